//! Calls on the simulator, whose tensors lie in host memory.

use crate::backward::gradients;
use crate::error::Error;
use crate::problem::{operands, plan, problem};
use ferroflash::attention::HostOperand;
use ferroflash::problem::{Extent, Operand};
use ferroflash::{Attention, ElementStrides, GradientInputs, HostTensors, Problem, TensorRole};
use ferroflash_cpu::{Backward, Call};

/// # Safety
/// As [`crate::Engine::forward`], with host memory.
pub(crate) unsafe fn forward(attention: &Attention, call: &Call, device: &'static str) -> Result<(), Error> {
    call.check()?;
    let problem = problem(call, device)?;
    // SAFETY: the caller's promise: each tensor is as long as the problem says.
    unsafe {
        let plan = plan(attention, call, &problem)?;
        let output = attention.forward_with(&plan, &tensors(call, &problem), call.lse.is_some())?;
        let o = (problem.extent(TensorRole::O), problem.strides(TensorRole::O));
        write_rows(o, call.o.address, &output.o);
        if let (Some(address), Some(lse)) = (call.lse, &output.lse) {
            std::slice::from_raw_parts_mut(address as *mut f32, lse.len()).copy_from_slice(lse);
        }
    }
    Ok(())
}

/// # Safety
/// As [`crate::Engine::backward`], with host memory.
pub(crate) unsafe fn backward(
    attention: &Attention,
    backward: &Backward,
    device: &'static str,
) -> Result<(), Error> {
    backward.check()?;
    let (call, gradients) = (&backward.call, gradients(backward, device)?);
    let problem = gradients.problem();
    // SAFETY: the caller's promise: each tensor is as long as the problem says.
    unsafe {
        let lse = |address: u64| std::slice::from_raw_parts(address as *const f32, problem.lse_len());
        let Some(of_lse) = call.lse else { return Ok(()) };
        let o = std::slice::from_raw_parts(call.o.address as *const u16, problem.o_len());
        let d_o =
            std::slice::from_raw_parts(backward.d_o.address as *const u16, gradients.len(TensorRole::O));
        let inputs = GradientInputs::new(tensors(call, problem), o, lse(of_lse), d_o)
            .with_d_lse(backward.d_lse.map(lse));
        let found = attention.backward(&gradients, &inputs)?;
        let written = [
            (TensorRole::Q, backward.d_q.address, &found.q),
            (TensorRole::K, backward.d_k.address, &found.k),
            (TensorRole::V, backward.d_v.address, &found.v),
        ];
        for (role, address, elements) in written {
            write_rows((problem.extent(role), gradients.strides(role)), address, elements);
        }
        if let (Some(address), Some(sinks)) = (backward.d_sinks, &found.sinks) {
            std::slice::from_raw_parts_mut(address as *mut f32, sinks.len()).copy_from_slice(sinks);
        }
        if let (Some(address), Some(bias)) = (backward.d_bias, &found.bias) {
            std::slice::from_raw_parts_mut(address as *mut u16, bias.len()).copy_from_slice(bias);
        }
    }
    Ok(())
}

/// The tensors of a call where they lie.
///
/// # Safety
/// Each is as long as the problem says, and outlives what is returned.
unsafe fn tensors<'a>(call: &Call, problem: &Problem) -> HostTensors<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        let slice = |role: TensorRole, address: u64| {
            std::slice::from_raw_parts(address as *const u16, problem.len(role))
        };
        let (q, k, v) = (
            slice(TensorRole::Q, call.q.address),
            slice(TensorRole::K, call.k.address),
            slice(TensorRole::V, call.v.address),
        );
        let batch = call.sizes.batch;
        let lengths = call.lengths.used_k.map(|used| std::slice::from_raw_parts(used as *const u32, batch));
        let mut tensors = HostTensors::new(q, k, v).with_seqlens_k(lengths);
        for (operand, address) in operands(call) {
            let length = problem.operand_len(operand).unwrap_or(0);
            let values = match operand {
                Operand::Sinks | Operand::Slopes => {
                    HostOperand::F32(std::slice::from_raw_parts(address as *const f32, length))
                }
                Operand::BlockTable => {
                    HostOperand::I32(std::slice::from_raw_parts(address as *const i32, length))
                }
                Operand::Bias => HostOperand::Bits(std::slice::from_raw_parts(address as *const u16, length)),
                _ => HostOperand::U32(std::slice::from_raw_parts(address as *const u32, length)),
            };
            tensors = tensors.with_operand(operand, values);
        }
        tensors
    }
}

/// Copies the rows of a tensor and leaves what lies between them as it is.
///
/// # Safety
/// The tensor lies from `address` on, with these dimensions and strides.
pub(crate) unsafe fn write_rows((extent, strides): (Extent, ElementStrides), address: u64, elements: &[u16]) {
    let width = extent.width as usize;
    for batch in 0..i64::from(extent.batch) {
        for head in 0..i64::from(extent.heads) {
            for row in 0..i64::from(extent.rows) {
                let start = (batch * strides.batch + head * strides.head + row * strides.row) as usize;
                // SAFETY: the caller's promise.
                let to = unsafe { std::slice::from_raw_parts_mut((address as *mut u16).add(start), width) };
                to.copy_from_slice(&elements[start..start + width]);
            }
        }
    }
}
