//! The steps beside attention as launches: appending to caches, merging partial results, passes over a shared prefix.

use super::operands::check_tensors;
use super::{Attention, DeviceTensors};
use crate::append::{AppendTensors, KvAppend};
use crate::device::{Launch, LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::merge::{MergeStates, MergeTensors};
use crate::plan::cascade::{Cascade, PrefixPlan};
use kernels_gpu::steps::StepRow;

impl Attention {
    /// Appends new keys and values to a cache on the caller's stream, in one launch, and rotates them and Q. Waits for nothing and
    /// allocates nothing but for the first use of its kernel ([`Attention::preload_append`] does that before), so that it can be captured.
    ///
    /// # Errors
    /// [`Error::Operand`], [`Error::Misaligned`], [`Error::ForeignStream`], [`Error::NoSuchKernel`], and what loading and launching report.
    ///
    /// # Safety
    /// Each address is on this device and holds what its field says until the launch ends; nothing else touches the cache's rows that
    /// are written, no two tokens have the same slot, and `stream` lives.
    pub unsafe fn append(
        &self,
        append: &KvAppend,
        tensors: &AppendTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let params = append.params(tensors)?;
        // Checked when the call was made: fewer than 2^31.
        let grid = params.ctas() as u32;
        // SAFETY: the caller's promise.
        unsafe { self.launch_step(append.kernel(), (grid, &params.to_bytes()), stream) }
    }

    /// Merges O and LSE of several calls on the caller's stream, in one launch. Waits for nothing and allocates nothing but for the first
    /// use of its kernel ([`Attention::preload_merge`] does that before), so that it can be captured.
    ///
    /// # Errors
    /// [`Error::Operand`], [`Error::Misaligned`], [`Error::ForeignStream`], [`Error::NoSuchKernel`], and what loading and launching report.
    ///
    /// # Safety
    /// Each address is on this device and holds what its field says until the launch ends, nothing else touches O and LSE meanwhile, and
    /// `stream` lives.
    pub unsafe fn merge(
        &self,
        merge: &MergeStates,
        tensors: &MergeTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let params = merge.params(tensors)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_step(merge.kernel(), (merge.ctas(), &params.to_bytes()), stream) }
    }

    /// Starts a problem whose sequences share a prefix, as [`Attention::launch`] starts others: one launch, or three in the stream's
    /// workspace. `seqlens_behind` are the keys of each sequence behind the prefix, u32 `[batch]`: required exactly when the problem has
    /// lengths, which count the prefix, too.
    ///
    /// # Errors
    /// Those of [`Attention::launch`]; [`Error::Lengths`] without `seqlens_behind`.
    ///
    /// # Safety
    /// As [`Attention::forward_device`], for the plan's whole problem, whose sequences begin with the pages that the first of them begins
    /// with.
    pub unsafe fn launch_shared_prefix(
        &self,
        plan: &PrefixPlan,
        tensors: &DeviceTensors,
        seqlens_behind: Option<u64>,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let behind = DeviceTensors { seqlens_k: seqlens_behind, ..*tensors };
        check_tensors(plan.whole().problem(), &behind)?;
        let Some(cascade) = plan.cascade() else {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(plan.whole(), tensors, stream) };
        };
        // A launch as a whole checks them itself.
        check_tensors(plan.whole().problem(), tensors)?;
        let needed = plan.workspace_bytes();
        // Before the first launch, so that a kernel that does not load leaves nothing half done.
        self.preload_passes(cascade)?;
        // SAFETY: the caller's promise; the passes are of the same tensors, and work in the workspace one after the other.
        unsafe {
            self.device.check_stream(stream)?;
            let workspace = self.workspaces.get(&self.device, needed, stream)?;
            let _enqueue = workspace.enqueue(needed, stream)?;
            let (of_prefix, of_suffix, merge) = cascade.tensors(tensors, seqlens_behind, workspace.address());
            self.enqueue(&cascade.prefix, &of_prefix, workspace.address(), stream)?;
            self.enqueue(&cascade.suffix, &of_suffix, workspace.address(), stream)?;
            self.merge(&cascade.merge, &merge, stream)
        }
    }

    /// As [`Attention::reserve`], for [`Attention::launch_shared_prefix`].
    ///
    /// # Errors
    /// Those of [`Attention::reserve`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`] says of the stream.
    pub unsafe fn reserve_shared_prefix(&self, plan: &PrefixPlan, stream: StreamHandle) -> Result<(), Error> {
        let Some(cascade) = plan.cascade() else {
            // SAFETY: the caller's promise.
            return unsafe { self.reserve(plan.whole(), stream) };
        };
        self.preload_passes(cascade)?;
        // SAFETY: the caller's promise.
        unsafe { self.workspaces.get(&self.device, plan.workspace_bytes(), stream).map(drop) }
    }

    fn preload_passes(&self, cascade: &Cascade) -> Result<(), Error> {
        for pass in [&cascade.prefix, &cascade.suffix] {
            self.preload(pass)?;
            if let Some(combine) = pass.combine() {
                self.load(combine, |_| ())?;
            }
        }
        self.preload_merge(&cascade.merge)
    }

    /// Loads the kernel of [`Attention::append`] unless it is loaded: to be called before a capture.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload_append(&self, append: &KvAppend) -> Result<(), Error> {
        self.step(append.kernel()).map(drop)
    }

    /// Loads the kernel of [`Attention::merge`] unless it is loaded: to be called before a capture.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload_merge(&self, merge: &MergeStates) -> Result<(), Error> {
        self.step(merge.kernel()).map(drop)
    }

    pub(super) fn step(&self, row: StepRow) -> Result<LoadedKernel, Error> {
        let Some(kernel) = self.library.step_kernels().iter().find(|kernel| kernel.row == row) else {
            let wanted = format!("of the step {:?} from {:?} to {:?}", row.step, row.input, row.output);
            let available = "the folder of kernels has none: run `cargo xtask build-ptx`".to_owned();
            return Err(Error::NoSuchKernel { wanted, available });
        };
        self.load(kernel, |loaded| loaded.0)
    }

    /// # Safety
    /// The parameters are the kernel's; the rest as for [`Attention::append`].
    pub(super) unsafe fn launch_step(
        &self,
        row: StepRow,
        (grid, params): (u32, &[u8]),
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.device.check_stream(stream)? };
        let kernel = self.step(row)?;
        let launch = Launch { grid, params, l2_window: None, overlaps: false };
        // SAFETY: the kernel was loaded on this device; the rest is the caller's promise.
        unsafe { self.device.launch(&kernel, &launch, stream) }
    }
}
