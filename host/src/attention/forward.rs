//! The launches of attention: one, and a second where a kernel of its own merges the splits of the keys.

use super::call::{Call, Queue};
use super::operands::check_tensors;
use super::{Attention, DeviceTensors};
use crate::addresses::aligned;
use crate::device::{Launch, LoadedKernel};
use crate::error::Error;
use crate::plan::partial::{PartialPlan, PartialStates};
use crate::plan::{Addresses, Plan};
use crate::problem::ALIGNMENT_BYTES;
use kernels_gpu::params::{DenseParams, WgmmaParams};
use kernels_gpu::row::Schedule;

/// The plan's kernel, and the one that merges.
pub(super) type ForwardKernels = (LoadedKernel, Option<LoadedKernel>);

impl Call for Plan {
    type Tensors = DeviceTensors;
    type Kernels = ForwardKernels;

    fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes()
    }

    fn check(&self, tensors: &DeviceTensors) -> Result<(), Error> {
        check_tensors(self.problem(), tensors)?;
        check_own(self, tensors)
    }

    fn kernels(&self, attention: &Attention) -> Result<ForwardKernels, Error> {
        let kernel = attention.preload(self)?;
        let combine = self.combine().map(|combine| attention.loaded(combine)).transpose()?;
        Ok((kernel, combine))
    }

    unsafe fn enqueue(
        &self,
        (kernel, combine): &ForwardKernels,
        tensors: &DeviceTensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let addresses = addresses(tensors, queue.workspace);
        // SAFETY: the caller's promise; the merge works on what the launch before it left in the workspace.
        unsafe {
            attend(self, kernel, &addresses, queue)?;
            let Some(combine) = combine else { return Ok(()) };
            queue.run(combine, self.combine_grid(), &self.combine_params(&addresses).to_bytes())
        }
    }
}

impl Call for PartialPlan {
    type Tensors = (DeviceTensors, PartialStates);
    type Kernels = LoadedKernel;

    fn workspace_bytes(&self) -> u64 {
        0
    }

    fn check(&self, (tensors, states): &Self::Tensors) -> Result<(), Error> {
        check_tensors(self.problem(), tensors)?;
        check_own(self.plan(), tensors)?;
        for (tensor, address, required) in
            [("the partial O", states.o, ALIGNMENT_BYTES), ("the partial LSE", states.lse, 4)]
        {
            if address == 0 {
                return Err(Error::Operand { operand: tensor, reason: "its address is null" });
            }
            aligned(tensor, address, required)?;
        }
        Ok(())
    }

    fn kernels(&self, attention: &Attention) -> Result<LoadedKernel, Error> {
        attention.preload(self.plan())
    }

    unsafe fn enqueue(
        &self,
        kernel: &LoadedKernel,
        (tensors, states): &Self::Tensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let addresses = Addresses { lse: 0, partials: (states.o, states.lse), ..addresses(tensors, 0) };
        // SAFETY: the caller's promise.
        unsafe { attend(self.plan(), kernel, &addresses, queue) }
    }
}

/// Refuses addresses of own keys that are not aligned, or that the plan has no use for, or lacks.
fn check_own(plan: &Plan, tensors: &DeviceTensors) -> Result<(), Error> {
    let refused = |reason| Err(Error::Operand { operand: "the own keys", reason });
    match (plan.has_own_keys(), tensors.own) {
        (false, None) => Ok(()),
        (true, None) => {
            refused("the plan has keys in tensors of their own, and their addresses were not given")
        }
        (false, Some(_)) => refused("they were given, and the plan has none: Plan::with_own_keys"),
        (true, Some(own)) => {
            aligned("own K", own.k, ALIGNMENT_BYTES)?;
            aligned("own V", own.v, ALIGNMENT_BYTES)?;
            aligned("the count of heads that have arrived", own.arrived.unwrap_or(0), 4)
        }
    }
}

fn addresses(tensors: &DeviceTensors, workspace: u64) -> Addresses {
    let DeviceTensors { q, k, v, o, lse, seqlens_k, operands, own } = *tensors;
    let (lse, seqlens_k) = (lse.unwrap_or(0), seqlens_k.unwrap_or(0));
    let operands = operands.map(|address| address.unwrap_or(0));
    let own = own.unwrap_or_default();
    Addresses { q, k, v, o, lse, seqlens_k, operands, own, workspace, partials: (0, 0) }
}

/// Enqueues a plan's own kernel: with tensor maps where its copies need them.
///
/// # Safety
/// As [`Call::enqueue`].
unsafe fn attend(plan: &Plan, kernel: &LoadedKernel, at: &Addresses, queue: &Queue<'_>) -> Result<(), Error> {
    let forward = plan.params(at);
    let launch = |params: &[u8]| {
        let l2_window = plan.l2_window(at.k, at.v);
        // SAFETY: the caller's promise.
        unsafe { queue.launch(kernel, &Launch { grid: plan.grid(), params, l2_window }) }
    };
    let Some(tensors) = plan.tensors(at) else { return launch(&forward.to_bytes()) };
    let Attention { tensor_maps, device, .. } = queue.attention;
    let [q, k, v] = tensor_maps.get(device.as_ref(), &tensors)?;
    let wgmma = WgmmaParams { forward, q, k, v };
    if plan.schedule() == Schedule::Ragged {
        return launch(&wgmma.to_bytes());
    }
    let mut params = DenseParams { wgmma, ..DenseParams::default() };
    if let Some(tensors) = plan.own_keys(&at.own) {
        [params.own_k, params.own_v] = tensor_maps.get(device.as_ref(), &tensors)?;
        params.arrived = at.own.arrived.unwrap_or(0);
    }
    launch(&params.to_bytes())
}
