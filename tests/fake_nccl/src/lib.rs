//! A fake NCCL: the calls that the transport makes, between threads of one process whose device memory is the fake driver's.
//!
//! Named in `FERROFLASH_LIBNCCL` it takes libnccl's place. A communicator that may not block works in the background and says
//! `ncclInProgress` meanwhile, as the real one does. It is stricter: calls outside of a group, ranks that do not exist, messages of
//! unequal length are errors.
#![allow(non_snake_case)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type NcclResult = c_int;
const SUCCESS: NcclResult = 0;
const INVALID_ARGUMENT: NcclResult = 4;
const INVALID_USAGE: NcclResult = 5;
const REMOTE_ERROR: NcclResult = 6;
const IN_PROGRESS: NcclResult = 7;
/// `ncclUint8`, the only type that is moved.
const BYTES: c_int = 1;
/// How often a rank that waits looks whether it was given up.
const LOOK: Duration = Duration::from_millis(5);

/// `ncclUniqueId`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// The first fields of `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// What ranks of one id share.
#[derive(Default)]
struct Hub {
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Default)]
struct HubState {
    joined: c_int,
    /// Bytes on their way, by (from, to).
    parcels: HashMap<(c_int, c_int), VecDeque<Vec<u8>>>,
    /// Whether a rank has given up.
    is_aborted: bool,
}

struct Communicator {
    hub: Arc<Hub>,
    rank: c_int,
    world: c_int,
    is_blocking: bool,
    /// What `ncclCommGetAsyncError` says.
    found: Arc<AtomicI32>,
}

enum Call {
    Send { from: u64, bytes: usize, peer: c_int },
    Receive { to: u64, bytes: usize, peer: c_int },
}

/// Calls of one group, and the communicator that they are of.
#[derive(Default)]
struct Group {
    depth: u32,
    calls: Vec<Call>,
    communicator: Option<usize>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hub_of(id: UniqueId) -> Arc<Hub> {
    static HUBS: Mutex<Option<HashMap<UniqueId, Arc<Hub>>>> = Mutex::new(None);
    lock(&HUBS).get_or_insert_default().entry(id).or_default().clone()
}

impl Hub {
    /// Waits until something is there, or a rank gives up.
    fn wait<T>(&self, mut ready: impl FnMut(&mut HubState) -> Option<T>) -> Result<T, NcclResult> {
        let mut state = lock(&self.state);
        loop {
            if let Some(there) = ready(&mut state) {
                return Ok(there);
            }
            if state.is_aborted {
                return Err(REMOTE_ERROR);
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Communicator {
    /// Does work now, or in the background where it may not block.
    fn run(&self, work: impl FnOnce(&Hub) -> Result<(), NcclResult> + Send + 'static) -> NcclResult {
        if self.is_blocking {
            return work(&self.hub).err().unwrap_or(SUCCESS);
        }
        self.found.store(IN_PROGRESS, Ordering::SeqCst);
        let (hub, found) = (self.hub.clone(), self.found.clone());
        std::thread::spawn(move || found.store(work(&hub).err().unwrap_or(SUCCESS), Ordering::SeqCst));
        IN_PROGRESS
    }
}

fn exchange(hub: &Hub, rank: c_int, calls: &[Call]) -> Result<(), NcclResult> {
    for call in calls {
        if let Call::Send { from, bytes, peer } = *call {
            // SAFETY: by the call's contract, the bytes are allocated; the fake driver's memory is the host's.
            let parcel = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
            lock(&hub.state).parcels.entry((rank, peer)).or_default().push_back(parcel);
            hub.changed.notify_all();
        }
    }
    for call in calls {
        if let Call::Receive { to, bytes, peer } = *call {
            let parcel = hub.wait(|state| state.parcels.get_mut(&(peer, rank))?.pop_front())?;
            if parcel.len() != bytes {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: by the call's contract, as many bytes are allocated.
            unsafe { (to as *mut u8).copy_from_nonoverlapping(parcel.as_ptr(), bytes) };
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> NcclResult {
    static LAST: AtomicU8 = AtomicU8::new(1);
    // SAFETY: by the call's contract, `id` is valid for a write.
    unsafe { id.write(UniqueId([LAST.fetch_add(1, Ordering::SeqCst); 128])) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut Communicator,
    world: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> NcclResult {
    // SAFETY: by the call's contract, the configuration lives.
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.size < size_of::<Config>() || config.version < 21_400 {
        return INVALID_ARGUMENT;
    }
    if !(0..world).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let is_blocking = config.blocking != 0;
    let communicator = Communicator { hub: hub_of(id), rank, world, is_blocking, found: Arc::default() };
    let result = communicator.run(move |hub| {
        lock(&hub.state).joined += 1;
        hub.changed.notify_all();
        hub.wait(|state| (state.joined >= world).then_some(()))
    });
    // SAFETY: by the call's contract, `comm` is valid for a write.
    unsafe { comm.write(Box::into_raw(Box::new(communicator))) };
    result
}

/// # Safety
/// The communicator lives.
unsafe fn number(
    comm: *const Communicator,
    to: *mut c_int,
    of: impl Fn(&Communicator) -> c_int,
) -> NcclResult {
    // SAFETY: the caller's; by the calls' contract, `to` is valid for a write.
    unsafe { to.write(of(&*comm)) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(comm: *const Communicator, count: *mut c_int) -> NcclResult {
    // SAFETY: the call's contract.
    unsafe { number(comm, count, |comm| comm.world) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(comm: *const Communicator, rank: *mut c_int) -> NcclResult {
    // SAFETY: the call's contract.
    unsafe { number(comm, rank, |comm| comm.rank) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(comm: *const Communicator, found: *mut NcclResult) -> NcclResult {
    // SAFETY: the call's contract.
    unsafe { number(comm, found, |comm| comm.found.load(Ordering::SeqCst)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: *mut Communicator) -> NcclResult {
    // SAFETY: by the call's contract, the communicator lives and is not used again.
    drop(unsafe { Box::from_raw(comm) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: *mut Communicator) -> NcclResult {
    // SAFETY: by the call's contract, the communicator lives and is not used again.
    let comm = unsafe { Box::from_raw(comm) };
    lock(&comm.hub.state).is_aborted = true;
    comm.hub.changed.notify_all();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: NcclResult) -> *const c_char {
    let words = match result {
        SUCCESS => c"no error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> NcclResult {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> NcclResult {
    let group = GROUP.take();
    if group.depth != 1 {
        return INVALID_USAGE;
    }
    let Some(comm) = group.communicator else { return SUCCESS };
    // SAFETY: by the calls' contract, the communicator lives.
    let comm = unsafe { &*(comm as *const Communicator) };
    let (rank, calls) = (comm.rank, group.calls);
    comm.run(move |hub| exchange(hub, rank, &calls))
}

/// Adds calls to the group of this thread.
///
/// # Safety
/// The communicator lives.
unsafe fn add(calls: Vec<Call>, kind: c_int, peer: c_int, comm: *const Communicator) -> NcclResult {
    // SAFETY: the caller's.
    let world = unsafe { (*comm).world };
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 || group.communicator.is_some_and(|other| other != comm as usize) {
            return INVALID_USAGE;
        }
        if kind != BYTES || !(0..world).contains(&peer) {
            return INVALID_ARGUMENT;
        }
        group.communicator = Some(comm as usize);
        group.calls.extend(calls);
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    peer: c_int,
    comm: *const Communicator,
    _: *mut c_void,
) -> NcclResult {
    // SAFETY: the call's contract.
    unsafe { add(vec![Call::Send { from: from as u64, bytes, peer }], kind, peer, comm) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    to: *mut c_void,
    bytes: usize,
    kind: c_int,
    peer: c_int,
    comm: *const Communicator,
    _: *mut c_void,
) -> NcclResult {
    // SAFETY: the call's contract.
    unsafe { add(vec![Call::Receive { to: to as u64, bytes, peer }], kind, peer, comm) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    bytes: usize,
    kind: c_int,
    comm: *const Communicator,
    _: *mut c_void,
) -> NcclResult {
    // SAFETY: the call's contract.
    let world = unsafe { (*comm).world };
    let calls = (0..world).flat_map(|peer| {
        let place = to as u64 + peer as u64 * bytes as u64;
        [Call::Send { from: from as u64, bytes, peer }, Call::Receive { to: place, bytes, peer }]
    });
    // SAFETY: the call's contract.
    unsafe { add(calls.collect(), kind, 0, comm) }
}
