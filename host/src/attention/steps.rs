//! The steps beside attention as launches: appending to caches, merging partial results, copying, passes over a shared prefix.

use super::call::{Call, Queue};
use super::forward::ForwardKernels;
use super::{Attention, DeviceTensors};
use crate::append::{AppendTensors, KvAppend};
use crate::copy::{Copies, CopyRun};
use crate::device::{LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::merge::{MergeStates, MergeTensors};
use crate::plan::cascade::PrefixPlan;
use kernels_gpu::steps::StepRow;
use std::num::NonZeroU32;

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
        // SAFETY: the caller's promise.
        unsafe { self.call(append, tensors, None, stream) }
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
        // SAFETY: the caller's promise.
        unsafe { self.call(merge, tensors, None, stream) }
    }

    /// Copies runs of bytes within the device on the caller's stream, all at once, at the speed of its memory: a kernel, as the driver's own
    /// copies within a device are, which are slower for runs of some megabytes that lie apart. Waits for nothing and allocates nothing on
    /// the device but for the first use of its kernel ([`Attention::preload_copy`] does that before), so that it can be captured.
    ///
    /// With a number of `ctas` it takes no more multiprocessors than that, beside kernels that fill the device otherwise: each moves about 50 GB/s on
    /// an H200. Without one it takes all that are free, and what is launched behind it on another stream waits for them.
    ///
    /// # Errors
    /// [`Error::Misaligned`] where an address or a length is no multiple of 4 bytes, [`Error::ForeignStream`], [`Error::NoSuchKernel`], and
    /// what loading and launching report.
    ///
    /// # Safety
    /// All runs are on this device until the launch ends, nothing else writes what is read or touches what is written meanwhile, no run
    /// is written that another one reads or writes, and `stream` lives.
    pub unsafe fn copy(
        &self,
        runs: &[CopyRun],
        ctas: Option<NonZeroU32>,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call(&Copies::of(runs, ctas)?, &(), None, stream) }
    }

    /// Loads the kernel of [`Attention::copy`] unless it is loaded: to be called before a capture.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload_copy(&self) -> Result<(), Error> {
        self.step(StepRow::COPY).map(drop)
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
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, &(*tensors, seqlens_behind), None, stream) }
    }

    /// As [`Attention::reserve`], for [`Attention::launch_shared_prefix`].
    ///
    /// # Errors
    /// Those of [`Attention::reserve`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`] says of the stream.
    pub unsafe fn reserve_shared_prefix(&self, plan: &PrefixPlan, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.reserve_call(plan, stream) }
    }

    /// Loads the kernel of [`Attention::append`] unless it is loaded: to be called before a capture.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload_append(&self, append: &KvAppend) -> Result<(), Error> {
        append.kernels(self).map(drop)
    }

    /// Loads the kernel of [`Attention::merge`] unless it is loaded: to be called before a capture.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload_merge(&self, merge: &MergeStates) -> Result<(), Error> {
        merge.kernels(self).map(drop)
    }

    pub(super) fn step(&self, row: StepRow) -> Result<LoadedKernel, Error> {
        let Some(kernel) = self.library.step_kernels().iter().find(|kernel| kernel.row == row) else {
            let wanted = format!("of the step {:?} from {:?} to {:?}", row.step, row.input, row.output);
            let available = "the folder of kernels has none: run `cargo xtask build-ptx`".to_owned();
            return Err(Error::NoSuchKernel { wanted, available });
        };
        self.loaded(kernel)
    }
}

impl Call for KvAppend {
    type Tensors = AppendTensors;
    type Kernels = LoadedKernel;

    fn workspace_bytes(&self) -> u64 {
        0
    }

    fn check(&self, tensors: &AppendTensors) -> Result<(), Error> {
        self.check(tensors)
    }

    fn kernels(&self, attention: &Attention) -> Result<LoadedKernel, Error> {
        attention.step(self.kernel())
    }

    unsafe fn enqueue(
        &self,
        kernel: &LoadedKernel,
        tensors: &AppendTensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let params = self.params(tensors);
        // Checked when the call was made: fewer than 2^31.
        let grid = params.ctas() as u32;
        // SAFETY: the caller's promise.
        unsafe { queue.run(kernel, grid, &params.to_bytes()) }
    }
}

impl Call for MergeStates {
    type Tensors = MergeTensors;
    type Kernels = LoadedKernel;

    fn workspace_bytes(&self) -> u64 {
        0
    }

    fn check(&self, tensors: &MergeTensors) -> Result<(), Error> {
        self.check(tensors)
    }

    fn kernels(&self, attention: &Attention) -> Result<LoadedKernel, Error> {
        attention.step(self.kernel())
    }

    unsafe fn enqueue(
        &self,
        kernel: &LoadedKernel,
        tensors: &MergeTensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { queue.run(kernel, self.ctas(), &self.params(tensors).to_bytes()) }
    }
}

impl Call for Copies {
    type Tensors = ();
    type Kernels = LoadedKernel;

    fn workspace_bytes(&self) -> u64 {
        0
    }

    fn check(&self, (): &()) -> Result<(), Error> {
        Ok(())
    }

    fn kernels(&self, attention: &Attention) -> Result<LoadedKernel, Error> {
        attention.step(StepRow::COPY)
    }

    unsafe fn enqueue(&self, kernel: &LoadedKernel, (): &(), queue: &Queue<'_>) -> Result<(), Error> {
        for params in &self.launches {
            // SAFETY: the caller's promise.
            unsafe { queue.run(kernel, params.shares.min(self.ctas), &params.to_bytes())? };
        }
        Ok(())
    }
}

impl Call for PrefixPlan {
    /// With the keys of each sequence behind the prefix.
    type Tensors = (DeviceTensors, Option<u64>);
    /// Of all in one; or of the pass over the prefix, and of the one behind it and the merge.
    type Kernels = (ForwardKernels, Option<(ForwardKernels, LoadedKernel)>);

    fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes()
    }

    fn check(&self, (tensors, seqlens_behind): &Self::Tensors) -> Result<(), Error> {
        self.whole().check(&DeviceTensors { seqlens_k: *seqlens_behind, ..*tensors })?;
        self.whole().check(tensors)
    }

    fn kernels(&self, attention: &Attention) -> Result<Self::Kernels, Error> {
        let Some(cascade) = self.cascade() else { return Ok((self.whole().kernels(attention)?, None)) };
        let behind = (cascade.suffix.kernels(attention)?, cascade.merge.kernels(attention)?);
        Ok((cascade.prefix.kernels(attention)?, Some(behind)))
    }

    unsafe fn enqueue(
        &self,
        (first, behind): &Self::Kernels,
        (tensors, seqlens_behind): &Self::Tensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let Some((cascade, (suffix, merging))) = self.cascade().zip(behind.as_ref()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.whole().enqueue(first, tensors, queue) };
        };
        let (of_prefix, of_suffix, merge) = cascade.tensors(tensors, *seqlens_behind, queue.workspace);
        // SAFETY: the caller's promise; the passes are of the same tensors, and work in the workspace one after the other.
        unsafe {
            cascade.prefix.enqueue(first, &of_prefix, queue)?;
            cascade.suffix.enqueue(suffix, &of_suffix, queue)?;
            cascade.merge.enqueue(merging, &merge, queue)
        }
    }
}
