//! Exchanges with ranks of the same machine by its GPUs' copy engines: a rank copies what it sends into the receiver's memory, and flags there
//! order the two streams.
//!
//! NCCL's kernels need multiprocessors, and wait for them until a launch that has them all is over; copy engines do not.
//!
//! Each rank has a mailbox: memory in which messages have places, and of every other rank of its machine two flags and a slot. To receive, it sets
//! its `ready` flag in the sender's mailbox. The sender waits for that, takes the flag down, copies to the places, or into its slot of the
//! receiver's mailbox, and sets `arrived` there. The receiver waits for that, takes it down and copies out of the slot what has no place. A
//! flag is set by one rank and taken down by the other before it can be set again, so that a graph of such exchanges can be replayed.

use super::parcel::{Direction, Parcel};
use crate::Error;
use ferroflash::device::Buffer;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::peers::{Flags, MemoryPass, PeerMemory};
use ferroflash::device::side::SideStream;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a rank's two flags, each in a line of its own.
const FLAGS_BYTES: u64 = 256;
const ARRIVED: u64 = 128;
/// Slots start at multiples of this.
const ALIGNMENT: u64 = 4096;

/// Memory that other processes were let into, by device, for the next mailbox: the driver does not say what becomes of it in theirs when it is
/// freed.
static LENT: Mutex<Vec<(u32, Buffer<CudaDevice>)>> = Mutex::new(Vec::new());

/// This rank's mailbox, and those of others that it reaches.
pub(super) struct Mailboxes {
    flags: Flags,
    rank: u32,
    /// The ranks of this machine, this one among them, in their order.
    near: Vec<u32>,
    /// Of the memory in which messages have places, and of each slot behind it.
    shared_bytes: u64,
    slot_bytes: u64,
    /// Taken when this is dropped.
    own: ManuallyDrop<Buffer<CudaDevice>>,
    /// By rank.
    peers: Vec<Option<PeerMemory>>,
}

impl Mailboxes {
    /// A mailbox with `shared_bytes` in which messages have places and a slot of `slot_bytes` for each other rank of `near`; it reaches no other
    /// one before [`Mailboxes::open`].
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        flags: Flags,
        (rank, world): (u32, u32),
        near: Vec<u32>,
        [shared_bytes, slot_bytes]: [u64; 2],
    ) -> Result<Mailboxes, Error> {
        let [shared_bytes, slot_bytes] =
            [shared_bytes, slot_bytes].map(|bytes| bytes.next_multiple_of(ALIGNMENT));
        let slots = near.len().saturating_sub(1) as u64;
        let bytes = MemoryPass::rounded(shared_start(world) + shared_bytes + slots * slot_bytes);
        let own = match lent(device.ordinal(), bytes) {
            Some(buffer) => buffer,
            None => Buffer::new(device, bytes)?,
        };
        own.fill(0)?;
        let peers = (0..world).map(|_| None).collect();
        Ok(Mailboxes { flags, rank, near, shared_bytes, slot_bytes, own: ManuallyDrop::new(own), peers })
    }

    /// What lets others into this rank's.
    pub(super) fn pass(&self, device: &Arc<CudaDevice>) -> Result<MemoryPass, Error> {
        Ok(MemoryPass::new(device, &self.own)?)
    }

    /// Opens the mailboxes of others, each rank's by its pass, and says which are open.
    pub(super) fn open(
        &mut self,
        device: &Arc<CudaDevice>,
        passes: &[MemoryPass],
    ) -> Result<Vec<bool>, Error> {
        for &peer in self.near.iter().filter(|&&peer| peer != self.rank) {
            if let Some(pass) = passes.get(peer as usize) {
                self.peers[peer as usize] = PeerMemory::open(device, pass)?;
            }
        }
        Ok(self.peers.iter().map(Option::is_some).collect())
    }

    /// Closes the mailboxes of ranks that have not opened this one's: either both copy, or neither.
    pub(super) fn keep(&mut self, opened_by: impl Iterator<Item = bool>) {
        for (peer, _) in self.peers.iter_mut().zip(opened_by).filter(|(_, opened)| !opened) {
            *peer = None;
        }
    }

    pub(super) fn reaches_any(&self) -> bool {
        self.peers.iter().any(Option::is_some)
    }

    /// Bytes of the mailbox, without the shared ones.
    pub(super) fn bytes(&self) -> u64 {
        self.own.bytes() - self.shared_bytes
    }

    /// Where the memory starts in which messages for this rank have places.
    pub(super) fn shared(&self) -> u64 {
        self.own.address() + shared_start(self.peers.len() as u32)
    }

    /// Whether a parcel goes this way. Both ranks of a pair have the same answer.
    pub(super) fn takes(&self, parcel: &Parcel) -> bool {
        self.peers[parcel.peer as usize].is_some()
            && (parcel.is_placed() || parcel.bytes() <= self.slot_bytes)
    }

    fn peer_address(&self, peer: u32) -> u64 {
        self.peers[peer as usize].as_ref().map_or(0, PeerMemory::address)
    }

    /// Where, in the mailbox of one rank, another's slot starts.
    fn slot(&self, of: u32, sender: u32) -> u64 {
        let first = shared_start(self.peers.len() as u32) + self.shared_bytes;
        first + slot_number(&self.near, of, sender) * self.slot_bytes
    }

    /// Tells the senders of what comes here that their slots are free.
    ///
    /// # Safety
    /// As [`Mailboxes::exchange`].
    pub(super) unsafe fn invite(&self, side: &SideStream, parcels: &[Parcel]) -> Result<(), Error> {
        for parcel in of(parcels, Direction::Receive) {
            let ready = self.peer_address(parcel.peer) + u64::from(self.rank) * FLAGS_BYTES;
            // SAFETY: the flag is in the peer's mailbox, which it keeps until its exchanges are over.
            unsafe { self.flags.set(side, ready, 1)? };
        }
        Ok(())
    }

    /// Sends and receives parcels after [`Mailboxes::invite`].
    ///
    /// # Safety
    /// Their addresses are allocated on this device until the stream is over, and the other ranks make the same exchange.
    pub(super) unsafe fn exchange(&self, side: &SideStream, parcels: &[Parcel]) -> Result<(), Error> {
        let world = self.peers.len() as u32;
        let mut sent: Vec<&Parcel> = of(parcels, Direction::Send).collect();
        // Each begins with its neighbour, so that no rank is everybody's first.
        sent.sort_by_key(|parcel| (parcel.peer + world - self.rank) % world);
        for parcel in sent {
            let (own, peer) = (self.own.address(), self.peer_address(parcel.peer));
            let copies = match parcel.is_placed() {
                true => parcel.copies_to_places(peer + shared_start(world)),
                false => parcel.copies(peer + self.slot(parcel.peer, self.rank)),
            };
            // SAFETY: flags and slots are in mailboxes, which live until all exchanges are over; the rest is the caller's promise.
            unsafe {
                self.take_down(side, own + u64::from(parcel.peer) * FLAGS_BYTES)?;
                side.copy(&copies)?;
                self.flags.set(side, peer + u64::from(self.rank) * FLAGS_BYTES + ARRIVED, 1)?;
            }
        }
        for parcel in of(parcels, Direction::Receive) {
            let own = self.own.address();
            // SAFETY: as above.
            unsafe {
                self.take_down(side, own + u64::from(parcel.peer) * FLAGS_BYTES + ARRIVED)?;
                if !parcel.is_placed() {
                    side.copy(&parcel.copies(own + self.slot(self.rank, parcel.peer)))?;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The flag is in a mailbox that lives until the stream is over.
    unsafe fn take_down(&self, side: &SideStream, flag: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            self.flags.wait(side, flag, 1)?;
            self.flags.set(side, flag, 0)?;
        }
        Ok(())
    }

    /// Frees and closes nothing: other ranks may still write to this mailbox, and closing theirs would wait for copies to them.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        let is_lent = self.peers.iter().flatten().any(PeerMemory::is_lent);
        // SAFETY: taken here and nowhere else, and not used after.
        let own = unsafe { ManuallyDrop::take(&mut self.own) };
        if is_lent {
            let ordinal = own.device().ordinal();
            LENT.lock().unwrap_or_else(PoisonError::into_inner).push((ordinal, own));
        }
    }
}

/// The smallest buffer of device `ordinal` that was lent before and has `bytes` bytes.
fn lent(ordinal: u32, bytes: u64) -> Option<Buffer<CudaDevice>> {
    let mut all = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    let fits =
        |(_, (of, buffer)): &(usize, &(u32, Buffer<CudaDevice>))| *of == ordinal && buffer.bytes() >= bytes;
    let (at, _) = all.iter().enumerate().filter(fits).min_by_key(|(_, (_, buffer))| buffer.bytes())?;
    Some(all.swap_remove(at).1)
}

fn of(parcels: &[Parcel], direction: Direction) -> impl Iterator<Item = &Parcel> {
    parcels.iter().filter(move |parcel| parcel.direction == direction)
}

/// The number of a sender's slot in the mailbox of one of the ranks of a machine.
fn slot_number(near: &[u32], of: u32, sender: u32) -> u64 {
    near.iter().filter(|&&rank| rank < sender && rank != of).count() as u64
}

/// Where flags end and the shared memory starts.
fn shared_start(world: u32) -> u64 {
    (u64::from(world) * FLAGS_BYTES).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::slot_number;

    #[test]
    fn every_other_rank_of_the_machine_has_a_slot_of_its_own() {
        let near = [1, 3, 4, 9];
        for of in near {
            let senders = near.into_iter().filter(|&rank| rank != of);
            let numbers: Vec<u64> = senders.map(|sender| slot_number(&near, of, sender)).collect();
            assert_eq!(numbers, [0, 1, 2], "mailbox of {of}");
        }
    }
}
