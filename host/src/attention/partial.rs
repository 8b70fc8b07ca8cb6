//! Launches whose O and LSE stay partial.

use super::operands::check_tensors;
use super::{Attention, DeviceTensors};
use crate::addresses::aligned;
use crate::device::{Launch, StreamHandle};
use crate::error::Error;
use crate::plan::Addresses;
use crate::plan::partial::{PartialPlan, PartialStates};
use crate::problem::ALIGNMENT_BYTES;

impl Attention {
    /// Starts a problem whose partial O and LSE go to `states`, on the caller's stream, in one launch without a workspace. O and LSE of
    /// `tensors` are not written. Waits for nothing and allocates nothing but for the first use of its kernel ([`Attention::preload`] of
    /// [`PartialPlan::plan`] does that before), so that it can be captured.
    ///
    /// # Errors
    /// Those of [`Attention::launch`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`], and for [`PartialPlan::states`] states as for outputs.
    pub unsafe fn launch_partial(
        &self,
        plan: &PartialPlan,
        tensors: &DeviceTensors,
        states: PartialStates,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let plan = plan.plan();
        check_tensors(plan.problem(), tensors)?;
        for (tensor, address, required) in
            [("the partial O", states.o, ALIGNMENT_BYTES), ("the partial LSE", states.lse, 4)]
        {
            if address == 0 {
                return Err(Error::Operand { operand: tensor, reason: "its address is null" });
            }
            aligned(tensor, address, required)?;
        }
        let DeviceTensors { q, k, v, o, seqlens_k, operands, .. } = *tensors;
        let addresses = Addresses {
            q,
            k,
            v,
            o,
            seqlens_k: seqlens_k.unwrap_or(0),
            operands: operands.map(|address| address.unwrap_or(0)),
            partials: (states.o, states.lse),
            ..Addresses::default()
        };
        let kernel = self.preload(plan)?;
        let params = self.params(plan, &addresses)?;
        let launch = Launch {
            grid: plan.grid(),
            params: params.bytes(),
            l2_window: plan.l2_window(k, v),
            overlaps: plan.overlaps(),
        };
        // SAFETY: the kernel was loaded on this device and takes this one parameter; the rest is the caller's promise.
        unsafe {
            self.device.check_stream(stream)?;
            self.device.launch(&kernel, &launch, stream)
        }
    }
}
