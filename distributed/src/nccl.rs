//! NCCL between ranks: one GPU a rank, whatever process it is in.

mod calls;
mod library;
mod mailboxes;
mod options;
mod parcel;

pub use library::UniqueId;
pub use options::NcclOptions;

use crate::transport::{Message, Step, Ticket, Transport};
use crate::{Error, in_threads};
use calls::call;
use ferroflash::StreamHandle;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::side::SideStream;
use ferroflash::device::{Buffer, Device};
use library::{BYTES, Comm, Config, IN_PROGRESS, Library, NcclResult, SUCCESS, library};
use mailboxes::{Mailboxes, Means};
use parcel::{Direction, Parcel};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the host rests between two looks.
const REST: Duration = Duration::from_micros(50);
const JOINING: Step = Step { what: "joining", index: 0 };

/// A rank of an NCCL communicator, with a stream of its own.
///
/// NCCL does not tell which of several ranks keeps an exchange from ending, so that [`Error::Unfinished`] names all that take part in the
/// first one that did not end. A communicator of its own is then given up (`ncclCommAbort`), which ends the other ranks; a borrowed one
/// is left to its owner. Ranks that share memory ([`NcclOptions::peer_memory`]) tell each other that they give up, and set their devices free
/// of whatever they wait for: what is on its way then is no result, and [`Transport::wait`] says so.
///
/// What is captured on one rank is captured on all. Ranks that NCCL itself connects must have exchanged something before: it allocates at
/// the first time.
pub struct Nccl {
    library: &'static Library,
    /// `ncclComm_t` as a number; 0 where it was given up.
    comm: usize,
    is_borrowed: bool,
    rank: u32,
    world: u32,
    limit: Duration,
    /// Whether mailboxes are wanted.
    peer_memory: bool,
    mailboxes: Option<Mailboxes>,
    side: SideStream,
    kernels: SideStream,
    /// Exchanges that may not be over: their marks, and the ranks that take part.
    pending: VecDeque<(u64, Step, Vec<u32>)>,
    /// Memory for packed messages; the last is used, and those before live for graphs.
    staging: Vec<Buffer<CudaDevice>>,
}

impl Nccl {
    /// A rank that owns its communicator.
    fn new(
        library: &'static Library,
        comm: Comm,
        (rank, world): (u32, u32),
        [side, kernels]: [SideStream; 2],
        options: &NcclOptions,
    ) -> Nccl {
        Nccl {
            library,
            comm: comm as usize,
            is_borrowed: false,
            rank,
            world,
            limit: options.limit,
            peer_memory: options.peer_memory,
            mailboxes: None,
            side,
            kernels,
            pending: VecDeque::new(),
            staging: Vec::new(),
        }
    }

    /// Rank `rank` of `world`, all of which were given the same id; waits until all have come, no longer than the limit.
    ///
    /// # Errors
    /// [`Error::NoNccl`], [`Error::Unfinished`], [`Error::Nccl`], and what the driver reports.
    pub fn from_id(
        device: &Arc<CudaDevice>,
        id: &UniqueId,
        (rank, world): (u32, u32),
        options: &NcclOptions,
    ) -> Result<Nccl, Error> {
        let library = library()?;
        let streams = [SideStream::new(device)?, SideStream::for_kernels(device)?];
        let mut config = Config::new(options.is_blocking, options.max_ctas);
        let mut comm: Comm = std::ptr::null_mut();
        let ranks = [world, rank].map(|n| n as c_int);
        let result = device.with_current(|| {
            // SAFETY: writes one communicator where it is told to; id and configuration live until it returns.
            unsafe { (library.comm_init_rank_config)(&mut comm, ranks[0], *id, ranks[1], &mut config) }
        })?;
        let mut nccl = Nccl::new(library, comm, (rank, world), streams, options);
        let others: Vec<u32> = (0..world).filter(|&other| other != rank).collect();
        nccl.settle("ncclCommInitRankConfig", result, JOINING, &others)?;
        Ok(nccl)
    }

    /// One rank for each of several devices of this process, all connected.
    ///
    /// # Errors
    /// Those of [`Nccl::from_id`], of the first rank that failed.
    pub fn world(devices: &[Arc<CudaDevice>], options: &NcclOptions) -> Result<Vec<Nccl>, Error> {
        let (id, world) = (UniqueId::new()?, devices.len() as u32);
        let join = |(rank, device)| Nccl::from_id(device, &id, (rank, world), options);
        in_threads((0..world).zip(devices), join).into_iter().collect()
    }

    /// The rank that a communicator of the caller's is (`ncclComm_t`; from PyTorch its process group's `_comm_ptr()`, which is 0 until the group
    /// has communicated). How it was made, the options do not change.
    ///
    /// # Errors
    /// [`Error::NoNccl`], [`Error::Refused`] for null, [`Error::Nccl`], and what the driver reports.
    ///
    /// # Safety
    /// `comm` is a communicator of this device made by the library that is opened here, outlives this, and is used by nobody else at the
    /// same time as by this.
    pub unsafe fn from_raw(
        device: &Arc<CudaDevice>,
        comm: *mut c_void,
        options: &NcclOptions,
    ) -> Result<Nccl, Error> {
        let library = library()?;
        if comm.is_null() {
            let reason = "the communicator is null: communicate once before it is borrowed".to_owned();
            return Err(Error::Refused { method: "a borrowed communicator", world: 0, reason });
        }
        let number = |name, call: unsafe extern "C" fn(Comm, *mut c_int) -> NcclResult| {
            let mut number = 0;
            // SAFETY: writes one number where it is told to; the communicator is the caller's promise.
            match unsafe { call(comm, &mut number) } {
                SUCCESS => Ok(number as u32),
                result => Err(Error::Nccl { call: name, reason: library.words(result), step: JOINING }),
            }
        };
        let world = number("ncclCommCount", library.comm_count)?;
        let rank = number("ncclCommUserRank", library.comm_user_rank)?;
        let streams = [SideStream::new(device)?, SideStream::for_kernels(device)?];
        let mut nccl = Nccl::new(library, comm, (rank, world), streams, options);
        nccl.is_borrowed = true;
        Ok(nccl)
    }

    /// The communicator (`ncclComm_t`); null where it was given up.
    pub fn as_raw(&self) -> *mut c_void {
        self.comm()
    }

    fn comm(&self) -> Comm {
        self.comm as Comm
    }

    fn given_up(&mut self, error: Error) -> Error {
        self.give_up();
        error
    }

    /// Ends what is under way, on this rank and so on the others.
    fn give_up(&mut self) {
        let comm = std::mem::take(&mut self.comm);
        self.pending.clear();
        let mailboxes = self.mailboxes.take();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if let Some(mailboxes) = &mailboxes {
                mailboxes.give_up();
                // From another thread: NCCL's own ending may wait for what is behind a flag.
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        mailboxes.set_free();
                        std::thread::sleep(REST);
                    }
                });
            }
            if comm != 0 && !self.is_borrowed {
                // SAFETY: the communicator lives, and is not used again.
                let _ =
                    self.side.device().with_current(|| unsafe { (self.library.comm_abort)(comm as Comm) });
            }
            if mailboxes.is_some() {
                self.runs_out();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        if let Some(mailboxes) = mailboxes {
            mailboxes.leave();
        }
    }

    /// Whether what is under way ends within the limit.
    fn runs_out(&mut self) -> bool {
        let Ok(last) = self.side.mark() else { return true };
        let until = Instant::now() + self.limit;
        // An error ends it, too.
        while matches!(self.side.is_over(last), Ok(false)) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(REST);
        }
        true
    }

    /// What mailboxes take, and what is left to NCCL.
    fn sorted(&self, messages: &[Message]) -> (Vec<Parcel>, Vec<Parcel>) {
        let is_taken =
            |parcel: &Parcel| self.mailboxes.as_ref().is_some_and(|mailboxes| mailboxes.takes(parcel));
        Parcel::of(messages).into_iter().partition(is_taken)
    }

    /// The address of as much staging memory as these take; 0 where they take none.
    fn staging(&mut self, parcels: &[Parcel]) -> Result<u64, Error> {
        let (_, bytes) = Parcel::staged(parcels);
        if bytes > self.staging.last().map_or(0, Buffer::bytes) {
            self.staging.push(Buffer::new(self.side.device(), bytes)?);
        }
        Ok(self.staging.last().map_or(0, Buffer::address))
    }

    /// The error of a rank that was given up, or that another one has left alone.
    fn living(&mut self, step: Step) -> Result<(), Error> {
        let died = |rank, reason: &str| Err(Error::Died { rank, step, reason: reason.to_owned() });
        if self.comm == 0 {
            return died(self.rank, "the communicator was given up after an earlier failure");
        }
        if let Some(rank) = self.mailboxes.as_ref().and_then(Mailboxes::given_up_by) {
            self.give_up();
            return died(rank, "it gave up after a failure, which it reports itself");
        }
        Ok(())
    }

    /// Marks where an exchange ends. What is captured is not run now, and cannot be asked about.
    fn marked(&mut self, step: Step, ranks: Vec<u32>, compute: StreamHandle) -> Result<Ticket, Error> {
        let mark = self.side.mark()?;
        // SAFETY: the stream is the promise of who called exchange.
        if !unsafe { self.side.device().is_capturing(compute)? } {
            self.pending.push_back((mark, step, ranks));
        }
        let first = self.side.first_mark();
        while self.pending.front().is_some_and(|(mark, ..)| *mark < first) {
            self.pending.pop_front();
        }
        Ok(Ticket(mark))
    }
}

impl Transport for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn prepare(&mut self, exchanges: &[Vec<Message>], shared: u64) -> Result<Option<u64>, Error> {
        if self.world > 1 {
            let parcels = exchanges.iter().flat_map(|messages| Parcel::of(messages));
            let most = parcels.filter(|parcel| !parcel.is_placed()).map(|parcel| parcel.bytes()).max();
            let device = self.side.device().clone();
            let means = if self.peer_memory { Means::find(&device, self.world)? } else { None };
            self.mailboxes = Mailboxes::among(self, &device, means, [shared, most.unwrap_or(0)])?;
        }
        for messages in exchanges {
            let (_, parcels) = self.sorted(messages);
            self.staging(&parcels)?;
        }
        Ok(self.mailboxes.as_ref().filter(|_| shared > 0).map(Mailboxes::shared))
    }

    fn staging_bytes(&self) -> u64 {
        let own = self.mailboxes.as_ref().map_or(0, Mailboxes::bytes);
        own + self.staging.last().map_or(0, Buffer::bytes)
    }

    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        self.living(step)?;
        let (copied, parcels) = self.sorted(messages);
        let mut ranks: Vec<u32> = copied.iter().chain(&parcels).map(|parcel| parcel.peer).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let staging = self.staging(&parcels)?;
        // SAFETY: the stream and the addresses are the caller's promise; the staging memory is this one's own, and exchanges, one behind
        // the other on the same stream, are all that use it.
        unsafe {
            self.side.after(compute)?;
            if let Some(mailboxes) = &self.mailboxes {
                mailboxes.invite(&self.side, &copied)?;
            }
            self.side.copy(&Parcel::copies_of_packed(&parcels, staging, Direction::Send))?;
        }
        if !parcels.is_empty() {
            self.group(step, &ranks, |library, comm, stream| {
                Parcel::travelling(&parcels, staging).try_for_each(|(parcel, address, bytes)| {
                    let (bytes, peer) = (bytes as usize, parcel.peer as c_int);
                    match parcel.direction {
                        Direction::Send => {
                            let from = address as *const c_void;
                            // SAFETY: the addresses are the promise of who called exchange, and communicator and stream live.
                            let sent = unsafe { (library.send)(from, bytes, BYTES, peer, comm, stream) };
                            call("ncclSend", sent)
                        }
                        Direction::Receive => {
                            let to = address as *mut c_void;
                            // SAFETY: as above.
                            let received = unsafe { (library.recv)(to, bytes, BYTES, peer, comm, stream) };
                            call("ncclRecv", received)
                        }
                    }
                })
            })?;
        }
        // SAFETY: as above.
        unsafe {
            self.side.copy(&Parcel::copies_of_packed(&parcels, staging, Direction::Receive))?;
            if let Some(mailboxes) = &self.mailboxes {
                mailboxes.exchange(&self.side, &copied)?;
            }
        }
        self.marked(step, ranks, compute)
    }

    unsafe fn all_gather(
        &mut self,
        step: Step,
        (all, bytes): (u64, u64),
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        self.living(step)?;
        let rank = self.rank;
        let ranks: Vec<u32> = (0..self.world).filter(|&other| other != rank).collect();
        // SAFETY: the stream is the caller's promise.
        unsafe { self.side.after(compute)? };
        self.group(step, &ranks, |library, comm, stream| {
            // In place: NCCL knows it by where it reads from.
            let from = (all + u64::from(rank) * bytes) as *const c_void;
            let to = all as *mut c_void;
            // SAFETY: the addresses are the promise of who called this, and communicator and stream live.
            let gathered = unsafe { (library.all_gather)(from, to, bytes as usize, BYTES, comm, stream) };
            call("ncclAllGather", gathered)
        })?;
        self.marked(step, ranks, compute)
    }

    unsafe fn join(&mut self, ticket: Ticket, compute: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.side.join(ticket.0, compute)? };
        Ok(())
    }

    fn announces(&self) -> bool {
        self.mailboxes.as_ref().is_some_and(|mailboxes| mailboxes.reaches_all())
    }

    unsafe fn write(&mut self, word: (u64, u32), after: Option<StreamHandle>) -> Result<(), Error> {
        let Some(mailboxes) = &self.mailboxes else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { mailboxes.write(&self.side, word, after) }
    }

    fn beside(&self) -> Option<StreamHandle> {
        Some(self.kernels.stream())
    }

    unsafe fn order_beside(&mut self, compute: StreamHandle, back: bool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.kernels.order(compute, back)? };
        Ok(())
    }

    unsafe fn wait(&mut self, compute: StreamHandle) -> Result<(), Error> {
        self.living(JOINING)?;
        // SAFETY: the caller's promise.
        unsafe { self.side.after(compute)? };
        let last = self.side.mark()?;
        let until = Instant::now() + self.limit;
        loop {
            let is_over = self.side.is_over(last)?;
            while let Some((mark, ..)) = self.pending.front()
                && self.side.is_over(*mark)?
            {
                self.pending.pop_front();
            }
            let (step, ranks) =
                self.pending.front().map_or((JOINING, Vec::new()), |(_, step, ranks)| (*step, ranks.clone()));
            // Also when all is over: a rank that has given up sets others free, too.
            self.living(step)?;
            if is_over {
                return Ok(());
            }
            let found = self.async_error();
            if found != SUCCESS && found != IN_PROGRESS {
                let reason = self.library.words(found);
                return Err(self.given_up(Error::Nccl { call: "an exchange", reason, step }));
            }
            if Instant::now() >= until {
                return Err(self.given_up(Error::Unfinished { ranks, step, limit: self.limit }));
            }
            std::thread::sleep(REST);
        }
    }

    fn abort(&mut self, _: &Error) {
        self.give_up();
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.comm == 0 {
            return;
        }
        // What is under way may still use communicator and mailboxes.
        if !self.runs_out() {
            self.give_up();
        } else if !self.is_borrowed {
            let (library, comm) = (self.library, self.comm());
            // SAFETY: the communicator lives, and is not used again. An error here has nobody to go to.
            let _ = self.side.device().with_current(|| unsafe { (library.comm_destroy)(comm) });
        }
    }
}
