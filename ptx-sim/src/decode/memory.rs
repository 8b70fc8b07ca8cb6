//! Loads, stores, atomics, asynchronous copies and matrix loads.

use super::Builder;
use super::lane::scalar;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{Access, Addr, Atomic, AtomicOp, Constant, CopyAsync, Matrix, Op, Scalar, Space};
use crate::parse::ast::Operand;
use crate::regs::Bank;

impl<'a> Builder<'_, 'a> {
    /// `ld` and `st`. Captures: semantics, scope, space, cache hints…, vector, type.
    pub(super) fn access(
        &mut self,
        is_store: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let (address, data) = if is_store { (0, 1) } else { (1, 0) };
        let ty = scalar(captures[captures.len() - 1]);
        let lanes = match captures[captures.len() - 2] {
            "v2" => 2,
            "v4" => 4,
            _ => 1,
        };
        let bytes = ty.bits() / 8;
        if u32::from(bytes) * lanes > 16 {
            return Err(self.unsupported());
        }
        let (space, addr) =
            self.space_and_address(captures[2], &operands[address], address + 1, u32::from(bytes) * lanes)?;
        if is_store && space == Space::Param {
            return Err(self.operand_error(1, "a parameter of a call or of a function"));
        }
        let parts = match &operands[data] {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() != lanes as usize {
            return Err(self.operand_error(data + 1, "as many registers as the vector has elements"));
        }
        let mut regs = Vec::new();
        for part in parts {
            regs.push(if is_store {
                self.any_source(part, data + 1, ty.bits())?
            } else {
                self.any_result(part, data + 1, ty.bits())?
            });
        }
        let signed = matches!(ty, Scalar::S(_));
        let strong = matches!(captures[0], "volatile" | "relaxed" | "acquire" | "release");
        let access = Box::new(Access { space, addr, element_bytes: bytes, signed, strong, regs });
        self.emit(if is_store { Op::Store(access) } else { Op::Load(access) });
        Ok(())
    }

    fn space_and_address(
        &mut self,
        space: &str,
        operand: &Operand<'a>,
        position: usize,
        bytes: u32,
    ) -> Result<(Space, Addr), LoadError> {
        let space = match space {
            "" => Space::Generic,
            "global" | "const" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            _ => {
                let Some((at, size, offset)) = self.frame_parameter(operand) else {
                    if !self.is_entry {
                        return Err(self.operand_error(position, "a parameter by its name"));
                    }
                    return Ok((Space::Param, self.address(operand, position)?));
                };
                let fits = offset >= 0 && offset + i64::from(bytes) <= i64::from(size);
                if !fits {
                    return Err(self.operand_error(position, "inside the parameter"));
                }
                let slot = self.constant(Bank::Double, Constant::Bits(at.into()))?;
                return Ok((Space::Frame, Addr { bank: Bank::Double, slot, offset }));
            }
        };
        Ok((space, self.address(operand, position)?))
    }

    /// `atom` and `red`. Captures: semantics, scope, space, operation, noftz of sums, type.
    pub(super) fn atomic(
        &mut self,
        has_result: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let space = match captures[2] {
            "" => Space::Generic,
            "global" => Space::Global,
            _ => Space::Shared,
        };
        let op = match captures[3] {
            "add" => AtomicOp::Add,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "exch" => AtomicOp::Exchange,
            "cas" => AtomicOp::CompareAndSwap,
            "inc" => AtomicOp::Increment,
            _ => AtomicOp::Decrement,
        };
        // The sum alone has a rounding word before its type.
        let ty = scalar(captures[captures.len() - 1]);
        let first = usize::from(has_result);
        self.count(operands, first + 2 + usize::from(op == AtomicOp::CompareAndSwap))?;
        let result = if has_result { Some(self.any_result(&operands[0], 1, ty.bits())?) } else { None };
        let addr = self.address(&operands[first], first + 1)?;
        let operand = self.any_source(&operands[first + 1], first + 2, ty.bits())?;
        let swap = match operands.get(first + 2) {
            Some(swap) => Some(self.any_source(swap, first + 3, ty.bits())?),
            None => None,
        };
        let ordered = matches!(captures[0], "acquire" | "release" | "acq_rel");
        self.emit(Op::Atomic(Box::new(Atomic { space, addr, op, ty, result, operand, swap, ordered })));
        Ok(())
    }

    /// `cp.async [to], [from], bytes{, source bytes or ignore predicate}`. Captures: cache, space, prefetch.
    pub(super) fn copy_async(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count_between(operands, 3, 4)?;
        let to = self.address(&operands[0], 1)?;
        let from = self.address(&operands[1], 2)?;
        let bytes = match operands[2] {
            Operand::Int(bytes @ (4 | 8)) if captures[0] == "ca" => bytes as u8,
            Operand::Int(16) => 16,
            _ => return Err(self.operand_error(3, "4, 8 or 16 (16 for cg)")),
        };
        let (mut source_bytes, mut ignore) = (None, None);
        if let Some(operand) = operands.get(3) {
            let is_predicate = match operand {
                Operand::Name(name) => self.predicate(name, 4).is_ok(),
                operand => matches!(operand, Operand::Not(_)),
            };
            if is_predicate {
                ignore = Some(self.source(operand, 4, crate::table::shape_of::<crate::regs::P>())?);
            } else {
                source_bytes = Some(self.any_source(operand, 4, 32)?);
            }
        }
        self.emit(Op::CopyAsync(Box::new(CopyAsync { to, from, bytes, source_bytes, ignore })));
        Ok(())
    }

    pub(super) fn wait_group(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        match operands[0] {
            Operand::Int(groups) if (0..=i64::from(u32::MAX)).contains(&groups) => {
                self.emit(Op::WaitGroup(Some(groups as u32)));
                Ok(())
            }
            _ => Err(self.operand_error(1, "a constant")),
        }
    }

    /// `ldmatrix` and `stmatrix`. Captures: count, trans, space.
    pub(super) fn matrix(
        &mut self,
        is_store: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let matrices = match captures[0] {
            "x1" => 1,
            "x2" => 2,
            _ => 4,
        };
        let (address, data) = if is_store { (0, 1) } else { (1, 0) };
        let mut addr = self.address(&operands[address], address + 1)?;
        if captures[2].is_empty() {
            // Without a space the address is generic and must lie in the shared window.
            addr.offset = addr.offset.wrapping_sub(crate::window::SHARED_WINDOW as i64);
        }
        let regs = self.word_vector(&operands[data], data + 1, matrices, !is_store)?;
        let matrix = Box::new(Matrix { addr, transposed: !captures[1].is_empty(), regs });
        self.emit(if is_store { Op::StoreMatrix(matrix) } else { Op::LoadMatrix(matrix) });
        Ok(())
    }

    /// `{a, b, …}` of 32-bit registers; a single register counts as a vector of one.
    pub(super) fn word_vector(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        length: usize,
        written: bool,
    ) -> Result<Vec<u32>, LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() != length {
            return Err(self.operand_error(position, "a vector of the length that the form has"));
        }
        let mut slots = Vec::new();
        for part in parts {
            slots.push(if written { self.word_result(part, position)? } else { self.word(part, position)? });
        }
        Ok(slots)
    }

    pub(super) fn move_matrix(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let result = self.result(&operands[0], 1, data_shape(32))?;
        let value = self.word(&operands[1], 2)?;
        self.emit(Op::MoveMatrix { result, value });
        Ok(())
    }
}
