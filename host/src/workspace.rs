//! Device memory that calls work in: counters, and the partial O and LSE of splits.

use crate::device::{Buffer, Device, StreamHandle};
use crate::error::Error;
use crate::plan::{COUNTER_BYTES, COUNTERS_BYTES};
use foldhash::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::ThreadId;

/// Bytes that the address of a workspace must be a multiple of.
pub const WORKSPACE_ALIGNMENT: u64 = 256;

/// Bytes to set aside for a need of so many: a power of two and a sixteenth of it. What outgrows a workspace leaves the memory behind, as a
/// graph may have its address; so growing step by step, as sequences get longer, takes no more than about twice what the last one needs.
pub fn workspace_bytes_for(needed: u64) -> u64 {
    const LEAST: u64 = 4096;
    let with_a_sixteenth = |power: u64| power + power / 16;
    let mut power = LEAST;
    while with_a_sixteenth(power) < needed && power < 1 << 62 {
        power *= 2;
    }
    with_a_sixteenth(power).max(needed)
}

/// Device memory that the calls on one stream work in, one call after the other.
///
/// Any number of calls on its stream may share one, from any number of threads, and so may graphs captured from them as long as these
/// replay one after the other. Two streams, or two graphs that may run at a time, need one each: a launch on another stream than its
/// own is refused, which of two graphs runs when nobody can see.
pub struct Workspace {
    address: u64,
    bytes: u64,
    stream: StreamHandle,
    /// Held while the launches of one call are enqueued, so that no other call's come between them.
    enqueue: Mutex<()>,
    /// The memory, where it is not the caller's.
    _memory: Option<Buffer<dyn Device>>,
}

impl Workspace {
    /// A workspace in memory of its own, at least 256 bytes, for the calls on one stream. Waits for the default stream.
    ///
    /// # Errors
    /// [`Error::AllocationInCapture`] while the stream is captured, [`Error::OutOfMemory`], [`Error::ForeignStream`].
    ///
    /// # Safety
    /// `stream` lives, and no work on it that uses the workspace is left when the workspace is dropped; nor is a graph replayed that was
    /// captured with it.
    pub unsafe fn new(
        device: &Arc<dyn Device>,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Workspace, Error> {
        let bytes = bytes.max(COUNTER_BYTES);
        // SAFETY: the caller's promise.
        unsafe {
            device.check_stream(stream)?;
            if device.is_capturing(stream)? {
                return Err(Error::AllocationInCapture { needed: bytes });
            }
            let memory = Buffer::new(device, bytes)?;
            let address = memory.address();
            Workspace::zeroed(device.as_ref(), address, bytes, stream, Some(memory))
        }
    }

    /// A workspace in the caller's memory, for the calls on one stream. Its first 16384 bytes, or all where there are fewer, are counters:
    /// they are set to 0 here, once, as every launch leaves them 0, and are the library's until the workspace is dropped. Waits for the default
    /// stream.
    ///
    /// # Errors
    /// [`Error::Misaligned`] where the address is no multiple of 256 bytes, [`Error::WorkspaceTooSmall`] under 256 bytes,
    /// [`Error::AllocationInCapture`] while the stream is captured, as the zeroing would be part of the graph,
    /// [`Error::ForeignStream`].
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are allocated on the device and nobody else uses them until the workspace is dropped and all work
    /// with it is done; `stream` lives as long.
    pub unsafe fn from_raw(
        device: &dyn Device,
        address: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Workspace, Error> {
        check_memory(address, bytes)?;
        // SAFETY: the caller's promise.
        unsafe {
            device.check_stream(stream)?;
            if device.is_capturing(stream)? {
                return Err(Error::AllocationInCapture { needed: bytes });
            }
            Workspace::zeroed(device, address, bytes, stream, None)
        }
    }

    /// As [`Workspace::from_raw`], of memory that holds zeros already. Enqueues nothing and waits for nothing, so that a stream may be given one
    /// while it is captured.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::WorkspaceTooSmall`], [`Error::ForeignStream`].
    ///
    /// # Safety
    /// As [`Workspace::from_raw`]; whatever is enqueued on the stream from now on finds zeros in the memory.
    pub unsafe fn from_zeroed(
        device: &dyn Device,
        address: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Workspace, Error> {
        check_memory(address, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { device.check_stream(stream)? };
        Ok(Workspace { address, bytes, stream, enqueue: Mutex::new(()), _memory: None })
    }

    /// # Safety
    /// The memory is the workspace's.
    unsafe fn zeroed(
        device: &dyn Device,
        address: u64,
        bytes: u64,
        stream: StreamHandle,
        memory: Option<Buffer<dyn Device>>,
    ) -> Result<Workspace, Error> {
        // SAFETY: at least as many bytes are the workspace's; the default stream lives always. It is waited for, as other streams do
        // not wait for it by themselves.
        unsafe {
            device.fill(address, 0, bytes.min(COUNTERS_BYTES))?;
            device.synchronize(StreamHandle::DEFAULT)?;
        }
        Ok(Workspace { address, bytes, stream, enqueue: Mutex::new(()), _memory: memory })
    }

    /// Its address, a multiple of 256 bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes at its start that hold counters and nothing else: 0 whenever no launch uses it.
    pub fn counter_bytes(&self) -> u64 {
        self.bytes.min(COUNTERS_BYTES)
    }

    /// The stream whose calls work in it.
    pub fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// Keeps other calls out while one is enqueued.
    ///
    /// # Errors
    /// [`Error::WorkspaceTooSmall`], [`Error::WorkspaceStream`].
    pub(crate) fn enqueue(&self, needed: u64, stream: StreamHandle) -> Result<MutexGuard<'_, ()>, Error> {
        if stream != self.stream {
            let [bound, got] = [self.stream, stream].map(|stream| stream.as_raw() as u64);
            return Err(Error::WorkspaceStream { bound, got });
        }
        if self.bytes < needed {
            return Err(Error::WorkspaceTooSmall { needed, got: self.bytes });
        }
        // It guards no data.
        Ok(self.enqueue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The workspaces of the streams that calls without one were made on.
#[derive(Default)]
pub(crate) struct Workspaces {
    by_stream: RwLock<HashMap<Key, Cached>>,
}

/// A stream. The handle of a thread's own default stream is the same on every thread.
type Key = (StreamHandle, Option<ThreadId>);

struct Cached {
    workspace: Arc<Workspace>,
    /// Smaller ones from before: graphs that were captured with them hold their addresses.
    _outgrown: Vec<Arc<Workspace>>,
}

fn key(stream: StreamHandle) -> Key {
    (stream, (stream == StreamHandle::PER_THREAD).then(|| std::thread::current().id()))
}

impl Workspaces {
    /// The stream's workspace, made or replaced where it has not `bytes` bytes.
    ///
    /// # Errors
    /// Those of [`Workspace::new`].
    ///
    /// # Safety
    /// `stream` lives, and all work on it is done when this is dropped.
    pub(crate) unsafe fn get(
        &self,
        device: &Arc<dyn Device>,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Arc<Workspace>, Error> {
        let key = key(stream);
        let large_enough = |cached: &&Cached| cached.workspace.bytes >= bytes;
        // A thread that panicked while holding the lock left a complete map.
        let by_stream = self.by_stream.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = by_stream.get(&key).filter(large_enough) {
            return Ok(cached.workspace.clone());
        }
        drop(by_stream);
        let mut by_stream = self.by_stream.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have made it between the locks.
        if let Some(cached) = by_stream.get(&key).filter(large_enough) {
            return Ok(cached.workspace.clone());
        }
        // SAFETY: the caller's promise.
        let workspace = Arc::new(unsafe { Workspace::new(device, workspace_bytes_for(bytes), stream)? });
        let outgrown = by_stream.remove(&key).map_or_else(Vec::new, |mut cached| {
            cached._outgrown.push(cached.workspace);
            cached._outgrown
        });
        by_stream.insert(key, Cached { workspace: workspace.clone(), _outgrown: outgrown });
        Ok(workspace)
    }

    /// Gives back the memory of a stream.
    pub(crate) fn release(&self, stream: StreamHandle) {
        self.by_stream.write().unwrap_or_else(PoisonError::into_inner).remove(&key(stream));
    }
}
fn check_memory(address: u64, bytes: u64) -> Result<(), Error> {
    if !address.is_multiple_of(WORKSPACE_ALIGNMENT) {
        let (tensor, what, value) = ("the workspace", "address", address.into());
        return Err(Error::Misaligned { tensor, what, value, required: WORKSPACE_ALIGNMENT });
    }
    if bytes < COUNTER_BYTES {
        return Err(Error::WorkspaceTooSmall { needed: COUNTER_BYTES, got: bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_that_grow_step_by_step_leave_little_behind() {
        let (mut all, mut last, mut count) = (0, 0, 0);
        for needed in (1..=2048).map(|step| step << 20) {
            if needed > last {
                last = workspace_bytes_for(needed);
                assert!(last >= needed && last <= needed * 9 / 4 && last.is_multiple_of(WORKSPACE_ALIGNMENT));
                (all, count) = (all + last, count + 1);
            }
        }
        assert_eq!((count, last), (12, (2 << 30) + (128 << 20)));
        assert!(all < 2 * last);
        // dS of two GiB and what comes with it.
        assert_eq!(workspace_bytes_for(2_149_605_376), last);
        assert_eq!(workspace_bytes_for(1), 4352);
        assert_eq!(workspace_bytes_for(u64::MAX), u64::MAX);
    }
}
