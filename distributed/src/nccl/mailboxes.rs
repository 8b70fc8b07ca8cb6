//! Exchanges with ranks of the same machine by its GPUs' copy engines: a rank copies what it sends into the receiver's memory, and flags in
//! memory of the host order the two streams.
//!
//! NCCL's kernels need multiprocessors, and wait for them until a launch that has them all is over; copy engines do not.
//!
//! Each rank has a mailbox: memory in which messages have places, a slot for every other rank of its machine, and a page with two flags of each. To
//! receive, it sets its `ready` flag in the sender's page. The sender waits for that, takes the flag down, copies to the places, or into its
//! slot of the receiver's mailbox, and sets `arrived` in the receiver's page. The receiver waits for that, takes it down and copies out of the
//! slot what has no place. A flag is set by one rank and taken down by the other before it can be set again, so that a graph of such exchanges
//! can be replayed.
//!
//! A rank that gives up says so in the others' pages, then sets all flags of its own page again and again until its streams have run out. What
//! these still write is no result: each of the other ranks looks into its page before it says that its own exchanges are over.

use super::parcel::{Direction, Parcel};
use crate::Error;
use crate::agreement::gather;
use crate::transport::{Step, Transport};
use ferroflash::StreamHandle;
use ferroflash::device::Buffer;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::peers::{Flags, MemoryPass, PeerMemory, machine};
use ferroflash::device::shared_page::SharedPage;
use ferroflash::device::side::SideStream;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of what a page has of a rank: two flags and whether it has given up, each in a line of its own.
const RANK_BYTES: u64 = 256;
const READY: u64 = 0;
const ARRIVED: u64 = 64;
const GIVEN_UP: u64 = 128;
const PREPARING: Step = Step { what: "letting ranks into memory", index: 0 };
/// Numbers that let a rank in: the page's name, and the pass to the memory.
const PASS_NUMBERS: usize = 1 + MemoryPass::NUMBERS;
/// Slots start at multiples of this.
const ALIGNMENT: u64 = 4096;

/// Memory that other processes were let into, by device, for the next mailbox: the driver does not say what becomes of it in theirs when it is
/// freed.
static LENT: Mutex<Vec<(u32, Buffer<CudaDevice>)>> = Mutex::new(Vec::new());

/// This rank's mailbox, and those of others that it reaches.
pub(super) struct Mailboxes {
    flags: Flags,
    page: SharedPage,
    rank: u32,
    /// The ranks of this machine, this one among them, in their order.
    near: Vec<u32>,
    /// Of the memory in which messages have places, and of each slot behind it.
    shared_bytes: u64,
    slot_bytes: u64,
    /// Taken when this is dropped.
    own: ManuallyDrop<Buffer<CudaDevice>>,
    /// By rank.
    peers: Vec<Option<Peer>>,
}

/// Another rank's mailbox.
struct Peer {
    memory: PeerMemory,
    page: SharedPage,
}

/// What a rank needs to have mailboxes.
pub(super) struct Means {
    flags: Flags,
    page: SharedPage,
}

impl Means {
    /// For one of `world` ranks; `None` where driver or system lack something.
    pub(super) fn find(device: &Arc<CudaDevice>, world: u32) -> Result<Option<Means>, Error> {
        let Some(flags) = Flags::find() else { return Ok(None) };
        let page = SharedPage::new(device, u64::from(world) * RANK_BYTES)?;
        Ok(page.map(|page| Means { flags, page }))
    }
}

impl Mailboxes {
    /// Opens the mailboxes of all ranks that have the means, each with `shared` bytes in which messages have places and a slot for the largest
    /// rank's parcels of `most` bytes for each other rank of its machine; every rank calls this. `None` where this rank reaches no other one's.
    pub(super) fn among(
        transport: &mut impl Transport,
        device: &Arc<CudaDevice>,
        means: Option<Means>,
        [shared, most]: [u64; 2],
    ) -> Result<Option<Mailboxes>, Error> {
        let (rank, world) = (transport.rank(), transport.world());
        let own = [shared, most, machine(), means.is_some().into()];
        let all = gather(transport, device, PREPARING, &own)?;
        let ranks = all.as_chunks::<4>().0;
        let are_able = ranks.iter().all(|rank| rank[0] == shared && rank[3] == 1);
        let slot = ranks.iter().map(|rank| rank[1]).max().unwrap_or(0);
        let Some(means) = means.filter(|_| are_able && shared.max(slot) > 0) else { return Ok(None) };
        let near = (0..).zip(ranks).filter(|(_, rank)| rank[2] == own[2]).map(|(rank, _)| rank).collect();
        let mut mailboxes = Mailboxes::new(device, means, (rank, world), near, [shared, slot])?;
        let passes = gather(transport, device, PREPARING, &mailboxes.pass(device)?)?;
        let opened = mailboxes.open(device, passes.as_chunks().0)?;
        let opened = gather(transport, device, PREPARING, &opened)?;
        mailboxes.keep(opened.chunks(world as usize).map(|of_peer| of_peer[rank as usize] == 1));
        Ok(mailboxes.peers.iter().any(Option::is_some).then_some(mailboxes))
    }

    fn new(
        device: &Arc<CudaDevice>,
        Means { flags, page }: Means,
        (rank, world): (u32, u32),
        near: Vec<u32>,
        [shared_bytes, slot_bytes]: [u64; 2],
    ) -> Result<Mailboxes, Error> {
        let [shared_bytes, slot_bytes] =
            [shared_bytes, slot_bytes].map(|bytes| bytes.next_multiple_of(ALIGNMENT));
        let slots = near.len().saturating_sub(1) as u64;
        let bytes = MemoryPass::rounded(shared_bytes + slots * slot_bytes);
        let own = match lent(device.ordinal(), bytes) {
            Some(buffer) => buffer,
            None => Buffer::new(device, bytes)?,
        };
        let (own, peers) = (ManuallyDrop::new(own), (0..world).map(|_| None).collect());
        Ok(Mailboxes { flags, page, rank, near, shared_bytes, slot_bytes, own, peers })
    }

    /// What lets others into this rank's.
    fn pass(&self, device: &Arc<CudaDevice>) -> Result<[u64; PASS_NUMBERS], Error> {
        let mut numbers = [self.page.name(); PASS_NUMBERS];
        numbers[1..].copy_from_slice(MemoryPass::new(device, &self.own)?.numbers());
        Ok(numbers)
    }

    /// Opens the mailboxes of others, each rank's by its pass, and says which are open.
    fn open(&mut self, device: &Arc<CudaDevice>, passes: &[[u64; PASS_NUMBERS]]) -> Result<Vec<u64>, Error> {
        for &peer in self.near.iter().filter(|&&peer| peer != self.rank) {
            let [page, memory @ ..] = &passes[peer as usize];
            let Some(pass) = MemoryPass::from_numbers(memory) else { continue };
            let opened = (SharedPage::open(device, *page)?, PeerMemory::open(device, &pass)?);
            if let (Some(page), Some(memory)) = opened {
                self.peers[peer as usize] = Some(Peer { memory, page });
            }
        }
        Ok(self.peers.iter().map(|peer| peer.is_some().into()).collect())
    }

    /// Closes the mailboxes of ranks that have not opened this one's, either both copy, or neither, and lets nobody else open this one.
    fn keep(&mut self, opened_by: impl Iterator<Item = bool>) {
        self.page.close();
        for (peer, _) in self.peers.iter_mut().zip(opened_by).filter(|(_, opened)| !opened) {
            *peer = None;
        }
    }

    /// Bytes of the mailbox, without the shared ones.
    pub(super) fn bytes(&self) -> u64 {
        self.own.bytes() - self.shared_bytes
    }

    /// Where the memory starts in which messages for this rank have places.
    pub(super) fn shared(&self) -> u64 {
        self.own.address()
    }

    /// Whether a parcel goes this way. Both ranks of a pair have the same answer.
    pub(super) fn takes(&self, parcel: &Parcel) -> bool {
        self.peers[parcel.peer as usize].is_some()
            && (parcel.is_placed() || parcel.bytes() <= self.slot_bytes)
    }

    /// Whether all exchanges go this way.
    pub(super) fn reaches_all(&self) -> bool {
        let others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.rank);
        others.into_iter().all(|(_, peer)| peer.is_some())
    }

    /// As [`Transport::write`], with `side` as the stream of exchanges.
    ///
    /// # Safety
    /// As [`Transport::write`].
    pub(super) unsafe fn write(
        &self,
        side: &SideStream,
        (word, value): (u64, u32),
        after: Option<StreamHandle>,
    ) -> Result<(), Error> {
        let stream = after.unwrap_or(side.stream());
        // SAFETY: the caller's promise.
        unsafe { self.flags.set((side.device(), stream), word, value)? };
        Ok(())
    }

    /// Where the mailbox of another rank starts, and where its page has what is of this rank.
    fn addresses(&self, peer: u32) -> [u64; 2] {
        let of = |peer: &Peer| [peer.memory.address(), peer.page.address() + place_of(self.rank)];
        self.peers[peer as usize].as_ref().map_or([0; 2], of)
    }

    /// Where, in the mailbox of one rank, another's slot starts.
    fn slot(&self, of: u32, sender: u32) -> u64 {
        self.shared_bytes + slot_number(&self.near, of, sender) * self.slot_bytes
    }

    /// Tells the senders of what comes here that their slots are free.
    ///
    /// # Safety
    /// As [`Mailboxes::exchange`].
    pub(super) unsafe fn invite(&self, side: &SideStream, parcels: &[Parcel]) -> Result<(), Error> {
        for parcel in of(parcels, Direction::Receive) {
            let [_, page] = self.addresses(parcel.peer);
            // SAFETY: the flag is in a page that lives until all exchanges are over.
            unsafe { self.flags.set(on(side), page + READY, 1)? };
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
            let [mailbox, page] = self.addresses(parcel.peer);
            let copies = match parcel.is_placed() {
                true => parcel.copies_to_places(mailbox),
                false => parcel.copies(mailbox + self.slot(parcel.peer, self.rank)),
            };
            // SAFETY: flags and slots are in pages and mailboxes that live until all exchanges are over; the rest is the caller's promise.
            unsafe {
                self.take_down(side, parcel.peer, READY)?;
                side.copy(&copies)?;
                self.flags.set(on(side), page + ARRIVED, 1)?;
            }
        }
        for parcel in of(parcels, Direction::Receive) {
            // SAFETY: as above.
            unsafe {
                self.take_down(side, parcel.peer, ARRIVED)?;
                if !parcel.is_placed() {
                    side.copy(&parcel.copies(self.own.address() + self.slot(self.rank, parcel.peer)))?;
                }
            }
        }
        Ok(())
    }

    /// Waits for a flag of this rank's page that another sets, and takes it down.
    ///
    /// # Safety
    /// The page lives until the stream is over.
    unsafe fn take_down(&self, side: &SideStream, peer: u32, flag: u64) -> Result<(), Error> {
        let flag = self.page.address() + place_of(peer) + flag;
        // SAFETY: the caller's promise.
        unsafe {
            self.flags.wait(on(side), flag, 1)?;
            self.flags.set(on(side), flag, 0)?;
        }
        Ok(())
    }

    /// A rank that has given up.
    pub(super) fn given_up_by(&self) -> Option<u32> {
        let has = |&&peer: &&u32| self.page.word(place_of(peer) + GIVEN_UP).load(Ordering::Acquire) != 0;
        self.near.iter().find(has).copied()
    }

    /// Tells the others that this rank gives up.
    pub(super) fn give_up(&self) {
        for peer in self.peers.iter().flatten() {
            peer.page.word(place_of(self.rank) + GIVEN_UP).store(1, Ordering::Release);
        }
    }

    /// Sets every flag that a stream of this rank may wait for, after [`Mailboxes::give_up`]. It may wait for several, one after the other, and
    /// takes each down.
    pub(super) fn set_free(&self) {
        for &peer in &self.near {
            for flag in [READY, ARRIVED] {
                self.page.word(place_of(peer) + flag).store(1, Ordering::Release);
            }
        }
    }

    /// Frees and closes nothing: other ranks may still write to this mailbox.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        let is_lent = self.peers.iter().flatten().any(|peer| peer.memory.is_lent());
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

fn on(side: &SideStream) -> (&Arc<CudaDevice>, StreamHandle) {
    (side.device(), side.stream())
}

fn of(parcels: &[Parcel], direction: Direction) -> impl Iterator<Item = &Parcel> {
    parcels.iter().filter(move |parcel| parcel.direction == direction)
}

/// The number of a sender's slot in the mailbox of one of the ranks of a machine.
fn slot_number(near: &[u32], of: u32, sender: u32) -> u64 {
    near.iter().filter(|&&rank| rank < sender && rank != of).count() as u64
}

/// Where a page has what is of a rank.
fn place_of(rank: u32) -> u64 {
    u64::from(rank) * RANK_BYTES
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
