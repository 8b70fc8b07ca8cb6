//! The addresses of a call, checked, and operands of host tensors, copied to the device.

use super::tensors::{DeviceTensors, HostTensors, check_given};
use crate::addresses::{aligned, overlap, range};
use crate::device::{Buffer, Device};
use crate::error::Error;
use crate::problem::{ALIGNMENT_BYTES, KeySequences, Operand, Problem, TensorRole};
use std::sync::Arc;

/// Refuses addresses that are not aligned, and operands that the problem does not take.
pub(super) fn check_tensors(problem: &Problem, tensors: &DeviceTensors) -> Result<(), Error> {
    for (tensor, address) in [("Q", tensors.q), ("K", tensors.k), ("V", tensors.v), ("O", tensors.o)] {
        aligned(tensor, address, ALIGNMENT_BYTES)?;
    }
    aligned("LSE", tensors.lse.unwrap_or(0), size_of::<f32>() as u64)?;
    aligned("seqlens_k", tensors.seqlens_k.unwrap_or(0), size_of::<u32>() as u64)?;
    for operand in Operand::ALL {
        // An address of 0 is none.
        let given = tensors.operands[operand as usize].filter(|&address| address != 0);
        if let Some(address) = check_given(operand, problem.operand_len(operand), given)? {
            aligned(operand.name(), address, operand.element_bytes().into())?;
        }
    }
    if let KeySequences::Paged(_) = problem.keys() {
        check_apart(problem, tensors)?;
    }
    let reason = match (problem.has_lengths(), tensors.seqlens_k) {
        (true, None | Some(0)) => "the problem has lengths on the device, and no address of them was given",
        (false, Some(_)) => "lengths were given, and the problem has none: plan Problem::with_lengths",
        _ => return Ok(()),
    };
    Err(Error::Lengths { reason })
}

/// Refuses an output that lies in the pool of pages.
fn check_apart(problem: &Problem, tensors: &DeviceTensors) -> Result<(), Error> {
    let range = |role, address: u64| range(address, problem.len(role), problem.dtype().bytes());
    let o = range(TensorRole::O, tensors.o);
    for (role, address) in [(TensorRole::K, tensors.k), (TensorRole::V, tensors.v)] {
        let pages = range(role, address);
        if overlap(&o, &pages) {
            return Err(Error::Operand { operand: role.name(), reason: "its pages overlap O" });
        }
    }
    Ok(())
}

/// Operands of a call from host tensors, on the device.
pub(super) struct HostOperands(Vec<(Operand, Buffer<dyn Device>)>);

impl HostOperands {
    pub(super) fn new(device: &Arc<dyn Device>, tensors: &HostTensors<'_>) -> Result<HostOperands, Error> {
        let given = Operand::ALL.into_iter().filter_map(|operand| Some((operand, tensors.operand(operand)?)));
        let copied =
            given.map(|(operand, values)| Ok((operand, Buffer::from_elements(device, values.bytes())?)));
        Ok(HostOperands(copied.collect::<Result<_, Error>>()?))
    }

    /// Tensors with these operands.
    pub(super) fn at(&self, tensors: DeviceTensors) -> DeviceTensors {
        let with = |tensors: DeviceTensors, (operand, buffer): &(Operand, Buffer<dyn Device>)| {
            tensors.with_operand(*operand, buffer.address())
        };
        self.0.iter().fold(tensors, with)
    }
}
