//! A call on a device, whichever it is: its kernels are loaded, then its launches enqueued one after the other, on one stream and in one
//! workspace.

use super::Attention;
use crate::device::{Launch, LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::workspace::Workspace;

/// What a plan comes down to: kernels, and launches of them.
pub(super) trait Call {
    /// The addresses that it is called with.
    type Tensors;
    /// Its kernels, loaded.
    type Kernels;

    /// Bytes of the workspace that its launches use, one after the other; 0 where they need none.
    fn workspace_bytes(&self) -> u64;

    /// Refuses addresses that are missing, misaligned, or not the call's.
    fn check(&self, tensors: &Self::Tensors) -> Result<(), Error>;

    /// Its kernels, each loaded unless it is.
    fn kernels(&self, attention: &Attention) -> Result<Self::Kernels, Error>;

    /// Enqueues its launches.
    ///
    /// # Safety
    /// The tensors were checked and are what the public call says of them; the workspace is large enough, and no other call's launches
    /// come between; the stream lives.
    unsafe fn enqueue(
        &self,
        kernels: &Self::Kernels,
        tensors: &Self::Tensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error>;
}

/// Where the launches of a call go, and what they work in.
pub(super) struct Queue<'a> {
    pub(super) attention: &'a Attention,
    pub(super) workspace: u64,
    stream: StreamHandle,
}

impl Queue<'_> {
    /// Enqueues a kernel that keeps nothing in L2.
    ///
    /// # Safety
    /// As [`Queue::launch`].
    pub(super) unsafe fn run(&self, kernel: &LoadedKernel, grid: u32, params: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, &Launch::new(grid, params)) }
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// The kernel was loaded on this device and takes this one parameter, whose addresses are those of [`Call::enqueue`].
    pub(super) unsafe fn launch(&self, kernel: &LoadedKernel, launch: &Launch<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.attention.device.launch(kernel, launch, self.stream) }
    }
}

impl Attention {
    /// Enqueues a call, in the workspace given or else in the stream's.
    ///
    /// # Safety
    /// As the public call says of the tensors, the workspace and the stream.
    pub(super) unsafe fn call<C: Call>(
        &self,
        call: &C,
        tensors: &C::Tensors,
        workspace: Option<&Workspace>,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        call.check(tensors)?;
        let needed = call.workspace_bytes();
        let of_stream;
        // SAFETY: the caller's promise.
        unsafe {
            self.device.check_stream(stream)?;
            let workspace = match workspace {
                None if needed > 0 => {
                    of_stream = self.workspaces.get(&self.device, needed, stream)?;
                    Some(&*of_stream)
                }
                given => given,
            };
            // All before the first launch, so that a kernel that does not load leaves nothing half done.
            let kernels = call.kernels(self)?;
            let _enqueue = workspace.map(|workspace| workspace.enqueue(needed, stream)).transpose()?;
            let workspace = workspace.map_or(0, Workspace::address);
            call.enqueue(&kernels, tensors, &Queue { attention: self, workspace, stream })
        }
    }

    /// Loads a call's kernels and gives the stream the workspace that it needs.
    ///
    /// # Safety
    /// As [`Attention::forward_device`] says of the stream.
    pub(super) unsafe fn reserve_call<C: Call>(&self, call: &C, stream: StreamHandle) -> Result<(), Error> {
        call.kernels(self)?;
        match call.workspace_bytes() {
            0 => Ok(()),
            // SAFETY: the caller's promise.
            needed => unsafe { self.workspaces.get(&self.device, needed, stream).map(drop) },
        }
    }
}
