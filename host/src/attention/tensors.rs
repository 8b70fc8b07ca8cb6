//! What attention takes and gives: tensors on the host and on the device.

use crate::device::as_bytes;
use crate::error::Error;
use crate::plan::OwnTensors;
use crate::problem::{Operand, Problem};
use ferroflash_score::Elements;

/// What attention computes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Output {
    /// O as bit patterns of the problem's dtype, `[batch, heads_q, seqlen_q, head_dim]` in the problem's strides; gaps between
    /// strided rows are 0.
    pub o: Vec<u16>,
    /// LSE, natural logarithm, `[batch, heads_q, seqlen_q]`, where it was asked for.
    pub lse: Option<Vec<f32>>,
}

impl Output {
    /// Of O and, where it was asked for, LSE.
    pub fn new(o: Vec<u16>, lse: Option<Vec<f32>>) -> Output {
        Output { o, lse }
    }
}

/// Q, K and V on the host, as bit patterns of a problem's dtype in its strides.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HostTensors<'a> {
    /// Q, [`Problem::q_len`] elements.
    pub q: &'a [u16],
    /// K, [`Problem::k_len`] elements.
    pub k: &'a [u16],
    /// V, [`Problem::v_len`] elements.
    pub v: &'a [u16],
    /// Keys of each sequence, `[batch]`: required exactly when the problem has lengths ([`Problem::with_lengths`]).
    pub seqlens_k: Option<&'a [u32]>,
    /// What else the problem takes ([`Problem::operand_len`]), by [`Operand`].
    operands: [Option<HostOperand<'a>>; Operand::ALL.len()],
}

/// The elements of an operand on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum HostOperand<'a> {
    /// Starts of sequences, intervals, a tree's bits, tables of a score.
    U32(&'a [u32]),
    /// A block table.
    I32(&'a [i32]),
    /// Sinks, slopes, tables of a score.
    F32(&'a [f32]),
    /// A bias, as bit patterns of the problem's dtype.
    Bits(&'a [u16]),
}

/// The elements of an operand, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum OperandValues {
    /// Starts of sequences, intervals, a tree's bits, tables of a score.
    U32(Vec<u32>),
    /// A block table.
    I32(Vec<i32>),
    /// Sinks, slopes, tables of a score.
    F32(Vec<f32>),
    /// A bias, as bit patterns of the problem's dtype.
    Bits(Vec<u16>),
}

impl OperandValues {
    /// As a call takes them.
    pub fn as_operand(&self) -> HostOperand<'_> {
        match self {
            OperandValues::U32(values) => HostOperand::U32(values),
            OperandValues::I32(values) => HostOperand::I32(values),
            OperandValues::F32(values) => HostOperand::F32(values),
            OperandValues::Bits(values) => HostOperand::Bits(values),
        }
    }
}

impl<'a> HostOperand<'a> {
    /// The bytes of the elements.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            HostOperand::U32(values) => as_bytes(values),
            HostOperand::I32(values) => as_bytes(values),
            HostOperand::F32(values) => as_bytes(values),
            HostOperand::Bits(values) => as_bytes(values),
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            HostOperand::U32(values) => values.len(),
            HostOperand::I32(values) => values.len(),
            HostOperand::F32(values) => values.len(),
            HostOperand::Bits(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An element that is a number.
    fn integer(&self, index: usize) -> Option<i64> {
        match self {
            HostOperand::U32(values) => values.get(index).map(|&value| value.into()),
            HostOperand::I32(values) => values.get(index).map(|&value| value.into()),
            HostOperand::F32(_) | HostOperand::Bits(_) => None,
        }
    }

    /// Whether its elements are what an operand has.
    fn is_of(&self, operand: Operand, problem: &Problem) -> bool {
        match operand {
            Operand::TreeMask => matches!(self, HostOperand::U32(_)),
            Operand::Table0 | Operand::Table1 | Operand::Table2 | Operand::Table3 => {
                match problem.table_elements(operand) {
                    Some(Elements::F32) => matches!(self, HostOperand::F32(_)),
                    Some(Elements::U32) => matches!(self, HostOperand::U32(_)),
                    None => false,
                }
            }
            Operand::CuSeqlensQ | Operand::CuSeqlensK | Operand::PageIndptr | Operand::Intervals => {
                matches!(self, HostOperand::U32(_))
            }
            Operand::BlockTable => matches!(self, HostOperand::I32(_)),
            Operand::Sinks | Operand::Slopes => matches!(self, HostOperand::F32(_)),
            Operand::Bias => matches!(self, HostOperand::Bits(_)),
        }
    }
}

impl<'a> HostTensors<'a> {
    /// Of sequences that all have seqlen_k keys.
    pub fn new(q: &'a [u16], k: &'a [u16], v: &'a [u16]) -> HostTensors<'a> {
        HostTensors { q, k, v, seqlens_k: None, operands: [None; Operand::ALL.len()] }
    }

    /// The same with an operand.
    pub fn with_operand(mut self, operand: Operand, values: HostOperand<'a>) -> HostTensors<'a> {
        self.operands[operand as usize] = Some(values);
        self
    }

    /// The same with these operands.
    pub fn with_operands(self, operands: &'a [(Operand, OperandValues)]) -> HostTensors<'a> {
        operands
            .iter()
            .fold(self, |tensors, (operand, values)| tensors.with_operand(*operand, values.as_operand()))
    }

    /// An operand.
    pub fn operand(&self, operand: Operand) -> Option<HostOperand<'a>> {
        self.operands[operand as usize]
    }

    /// Starts of sequences, or intervals; none where they are not given.
    pub fn starts(&self, operand: Operand) -> Option<&'a [u32]> {
        match self.operand(operand) {
            Some(HostOperand::U32(values)) => Some(values),
            _ => None,
        }
    }

    /// Refuses operands that are not what a problem takes: their number, their type, starts that do not ascend from 0 or end past what they
    /// start in, pages past the pool.
    ///
    /// # Errors
    /// [`Error::Operand`], [`Error::WrongLength`], [`Error::OperandValue`].
    pub fn check_operands(&self, problem: &Problem) -> Result<(), Error> {
        for operand in Operand::ALL {
            let (name, values) = (operand.name(), self.operand(operand));
            let Some(values) = check_given(operand, problem.operand_len(operand), values)? else { continue };
            let (expected, got) = (problem.operand_len(operand).unwrap_or_default(), values.len());
            if got != expected {
                return Err(Error::WrongLength { tensor: name, expected, got });
            }
            if !values.is_of(operand, problem) {
                return Err(Error::Operand { operand: name, reason: "its elements have another type" });
            }
            let Some((least, most, step, reason)) = problem.operand_bounds(operand) else { continue };
            let mut before = 0;
            for index in 0..got {
                let Some(value) = values.integer(index) else { break };
                let follows = step.is_none_or(|step| {
                    let steps = if index == 0 { 0..=0 } else { 0..=step };
                    steps.contains(&(value - before))
                });
                if !(least..=most).contains(&value) || !follows {
                    return Err(Error::OperandValue { operand: name, index, value, reason });
                }
                before = value;
            }
        }
        Ok(())
    }

    /// The same with these keys of each sequence.
    pub fn with_seqlens_k(self, seqlens_k: Option<&'a [u32]>) -> HostTensors<'a> {
        HostTensors { seqlens_k, ..self }
    }
}

impl<'a> From<&'a [Vec<u16>; 3]> for HostTensors<'a> {
    /// Of Q, K and V in this order.
    fn from([q, k, v]: &'a [Vec<u16>; 3]) -> HostTensors<'a> {
        HostTensors::new(q, k, v)
    }
}

/// Tensors on the device, by the address of their first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceTensors {
    /// Q, 16-byte aligned, [`Problem::q_len`] elements.
    pub q: u64,
    /// K, 16-byte aligned, [`Problem::k_len`] elements.
    pub k: u64,
    /// V, 16-byte aligned, [`Problem::v_len`] elements.
    pub v: u64,
    /// O, 16-byte aligned, [`Problem::o_len`] elements.
    pub o: u64,
    /// LSE in float32, 4-byte aligned, [`Problem::lse_len`] elements, where it is wanted.
    pub lse: Option<u64>,
    /// Keys of each sequence, u32 `[batch]`, 4-byte aligned: required exactly when the problem has lengths ([`Problem::with_lengths`]).
    /// The kernel takes a length over seqlen_k for seqlen_k.
    pub seqlens_k: Option<u64>,
    /// What else the problem takes ([`Problem::operand_len`]), by [`Operand`], each aligned to its elements. Kernels clamp what lies there, so
    /// that nothing outside of the tensors is read or written.
    pub(crate) operands: [Option<u64>; Operand::ALL.len()],
    /// Where the keys of [`crate::Plan::with_own_keys`] are: given exactly with such a plan.
    pub own: Option<OwnTensors>,
}

/// An operand that the problem takes and the call gives; `None` where neither does.
///
/// # Errors
/// [`Error::Operand`] where only one of them does.
pub(crate) fn check_given<T>(
    operand: Operand,
    taken: Option<usize>,
    given: Option<T>,
) -> Result<Option<T>, Error> {
    match (taken, &given) {
        (Some(_), None) => Err(Error::Operand {
            operand: operand.name(),
            reason: "the problem takes it, and it was not given",
        }),
        (None, Some(_)) => Err(Error::Operand {
            operand: operand.name(),
            reason: "it was given, and the problem takes none",
        }),
        _ => Ok(given),
    }
}

impl DeviceTensors {
    /// Of Q, K, V and O, without LSE, of sequences that all have seqlen_k keys.
    pub const fn new(q: u64, k: u64, v: u64, o: u64) -> DeviceTensors {
        let operands = [None; Operand::ALL.len()];
        DeviceTensors { q, k, v, o, lse: None, seqlens_k: None, operands, own: None }
    }

    /// The same with an operand at this address.
    pub const fn with_operand(mut self, operand: Operand, address: u64) -> DeviceTensors {
        self.operands[operand as usize] = Some(address);
        self
    }

    /// The same with some keys in tensors of their own.
    pub const fn with_own(self, own: Option<OwnTensors>) -> DeviceTensors {
        DeviceTensors { own, ..self }
    }

    /// The same with LSE at this address.
    pub const fn with_lse(self, lse: Option<u64>) -> DeviceTensors {
        DeviceTensors { lse, ..self }
    }

    /// The same with the keys of each sequence at this address.
    pub const fn with_seqlens_k(self, seqlens_k: Option<u64>) -> DeviceTensors {
        DeviceTensors { seqlens_k, ..self }
    }
}
