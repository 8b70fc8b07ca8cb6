//! Loads, stores, atomics, asynchronous copies and matrix loads.

use super::Builder;
use super::lane::scalar;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{
    Access, Addr, Atomic, AtomicOp, Constant, CopyAsync, Matrix, MemoryOrder, Op, Reg, Scalar, Space,
    StoreBulk,
};
use crate::parse::ast::Operand;
use crate::regs::Bank;
use crate::table::family::Family;
use crate::table::pattern;

impl<'a> Builder<'_, 'a> {
    /// `ld` and `st`. Captures: semantics, scope, space, cache hints…, cache policy, vector, type.
    pub(super) fn access(
        &mut self,
        family: Family,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let is_store = family == Family::Store;
        let hinted = !captures[captures.len() - 3].is_empty();
        self.count(operands, 2 + usize::from(hinted))?;
        if hinted {
            self.source(&operands[2], 3, data_shape(64))?;
        }
        let (address, data) = if is_store { (0, 1) } else { (1, 0) };
        let is_wide = captures[captures.len() - 1] == "b128";
        let ty = if is_wide { Scalar::U(64) } else { scalar(captures[captures.len() - 1]) };
        let lanes: u32 =
            captures[captures.len() - 2].strip_prefix('v').and_then(|n| n.parse().ok()).unwrap_or(1);
        let lanes = if is_wide { 2 * lanes } else { lanes };
        let bytes = ty.bits() / 8;
        let total = u32::from(bytes) * lanes;
        if total > 32 {
            return Err(self.unsupported());
        }
        let (space, addr) = self.space_and_address(captures[2], &operands[address], address + 1, total)?;
        if is_store && captures[2].starts_with("param") && space != Space::Frame {
            return Err(self.operand_error(1, "a parameter of a call or of a function"));
        }
        let parts = match &operands[data] {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut regs = Vec::new();
        for part in parts {
            if is_wide {
                regs.extend(self.wide_register(part, data + 1)?);
            } else if is_store {
                regs.push(self.any_source(part, data + 1, ty.bits())?);
            } else {
                regs.push(self.any_result(part, data + 1, ty.bits())?);
            }
        }
        if regs.len() != lanes as usize {
            return Err(self.operand_error(data + 1, "as many registers as the vector has elements"));
        }
        let signed = matches!(ty, Scalar::S(_));
        let read_only = family == Family::LoadUniform || captures.contains(&"nc");
        let order = MemoryOrder::of(captures[0], captures[1], if is_wide { 16 } else { bytes });
        let order = MemoryOrder { read_only, ..order };
        // More than 16 bytes are two accesses, as the hardware makes of them.
        let per = if total > 16 { regs.len() / 2 } else { regs.len() };
        for (at, half) in regs.chunks(per).enumerate() {
            let addr = Addr { offset: addr.offset + 16 * at as i64, ..addr };
            let access =
                Box::new(Access { space, addr, element_bytes: bytes, signed, order, regs: half.to_vec() });
            self.emit(if is_store { Op::Store(access) } else { Op::Load(access) });
        }
        Ok(())
    }

    /// A 128-bit register as its two halves, the lower one first.
    pub(super) fn wide_register(
        &self,
        operand: &Operand<'a>,
        position: usize,
    ) -> Result<[Reg; 2], LoadError> {
        let Operand::Name(name) = operand else {
            return Err(self.operand_error(position, "a 128-bit register"));
        };
        let reg = self.register_named(name, position)?;
        if reg.bits != 128 {
            return Err(self.operand_error(position, "a 128-bit register"));
        }
        let half = |at: u32| Reg { bank: Bank::Double, slot: reg.slot + at, bits: 64 };
        Ok([half(0), half(1)])
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
            "shared::cluster" => Space::Cluster,
            "local" => Space::Local,
            _ => {
                let Some((at, size, offset)) = self.frame_parameter(operand) else {
                    // In a function it is the address of a copy on the stack.
                    let space = if self.is_entry { Space::Param } else { Space::Local };
                    return Ok((space, self.address(operand, position)?));
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

    /// `atom` and `red`. Captures: semantics, scope, space, operation, noftz of sums, cache policy, vector, type.
    pub(super) fn atomic(
        &mut self,
        has_result: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let space = shared_space(captures[2]);
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
        let hinted = !captures[captures.len() - 3].is_empty();
        let first = usize::from(has_result);
        let expected = first + 2 + usize::from(op == AtomicOp::CompareAndSwap);
        self.count(operands, expected + usize::from(hinted))?;
        if hinted {
            self.source(&operands[expected], expected + 1, data_shape(64))?;
        }
        let semantics = if captures[0].is_empty() { "relaxed" } else { captures[0] };
        let ty_name = captures[captures.len() - 1];
        let element_bytes = match ty_name {
            "b128" => 16,
            "f16x2" | "bf16x2" => 2,
            name => scalar(name).bits() / 8,
        };
        let order = MemoryOrder::of(semantics, captures[1], element_bytes);
        let addr = self.address(&operands[first], first + 1)?;
        if ty_name == "b128" {
            return self.atomic_wide(has_result, operands, (space, addr, op, order));
        }
        let ty = scalar(ty_name);
        let parts = |operand: &Operand<'a>| match operand {
            Operand::Vector(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        let results = if has_result { parts(&operands[0]) } else { Vec::new() };
        let values = parts(&operands[first + 1]);
        let lanes: usize =
            captures[captures.len() - 2].strip_prefix('v').and_then(|n| n.parse().ok()).unwrap_or(1);
        if values.len() != lanes || has_result && results.len() != lanes {
            return Err(self.operand_error(first + 2, "as many registers as the vector has elements"));
        }
        let swap = match op {
            AtomicOp::CompareAndSwap => Some(self.any_source(&operands[first + 2], first + 3, ty.bits())?),
            _ => None,
        };
        // Each element of a vector is an operation of its own.
        for (at, value) in values.iter().enumerate() {
            let result = match results.get(at) {
                Some(Operand::Name("_")) | None => None,
                Some(result) => Some(self.any_result(result, 1, ty.bits())?),
            };
            let operand = self.any_source(value, first + 2, ty.bits())?;
            let addr = Addr { offset: addr.offset + i64::from(ty.bits() / 8) * at as i64, ..addr };
            let (wide, aligned) = (None, u32::from(ty.bits()) / 8 * lanes as u32);
            let aligned = if at == 0 { aligned } else { 1 };
            self.emit(Op::Atomic(Box::new(Atomic {
                space,
                addr,
                op,
                ty,
                result,
                operand,
                swap,
                wide,
                aligned,
                order,
            })));
        }
        Ok(())
    }

    /// `atom.exch` and `atom.cas` of 128 bits.
    fn atomic_wide(
        &mut self,
        has_result: bool,
        operands: &[Operand<'a>],
        (space, addr, op, order): (Space, Addr, AtomicOp, MemoryOrder),
    ) -> Result<(), LoadError> {
        if !has_result || !matches!(op, AtomicOp::Exchange | AtomicOp::CompareAndSwap) {
            return Err(self.unsupported());
        }
        let result = self.wide_register(&operands[0], 1)?;
        let operand = self.wide_register(&operands[2], 3)?;
        let swap = if op == AtomicOp::Exchange { operand } else { self.wide_register(&operands[3], 4)? };
        let wide = Some([result[1], operand[1], swap[1]]);
        let (result, operand, swap) = (Some(result[0]), operand[0], Some(swap[0]));
        let ty = Scalar::U(64);
        self.emit(Op::Atomic(Box::new(Atomic {
            space,
            addr,
            op,
            ty,
            result,
            operand,
            swap,
            wide,
            aligned: 16,
            order,
        })));
        Ok(())
    }

    /// `cp.async [to], [from], bytes{, source bytes or ignore predicate}`. Captures: cache, space, prefetch.
    pub(super) fn copy_async(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let hinted = !captures[captures.len() - 2].is_empty();
        self.count_between(operands, 3 + usize::from(hinted), 4 + usize::from(hinted))?;
        let operands = &operands[..operands.len() - usize::from(hinted)];
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

    /// `ldmatrix` and `stmatrix`. Captures: count, then trans, space and the format in memory, where the form has them.
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
        let addr = self.address(&operands[address], address + 1)?;
        let of_bytes = pattern::parts(self.mnemonic).any(|part| matches!(part, "m16n16" | "m16n8"));
        let each = if of_bytes && !is_store { 2 } else { 1 };
        let regs = self.word_vector(&operands[data], data + 1, each * matrices, !is_store)?;
        let space = shared_space(captures.iter().find(|word| word.starts_with("shared")).unwrap_or(&""));
        let transposed = captures.contains(&"trans");
        let packed_bits = match captures[captures.len() - 1] {
            "b6x16_p32" => Some(6),
            "b4x16_p64" => Some(4),
            _ => None,
        };
        let loads = !is_store;
        let matrix = Box::new(Matrix { space, addr, transposed, of_bytes, packed_bits, loads, regs });
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

    /// `createpolicy` gives a policy, which has no effect here.
    pub(super) fn create_policy(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let Some(result) = operands.first() else { return self.count(operands, 2) };
        let slot = self.result(result, 1, data_shape(64))?;
        let zero = self.constant(Bank::Double, Constant::Bits(0))?;
        self.emit(Op::Int(crate::table::integer::IntOp::MovDouble, [slot, zero, 0, 0, 0]));
        Ok(())
    }

    pub(super) fn alloca(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count_between(operands, 2, 3)?;
        let result = self.any_result(&operands[0], 1, 32)?;
        let bytes = self.any_source(&operands[1], 2, 32)?;
        let align = match operands.get(2) {
            None => 8,
            Some(Operand::Int(align @ (1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256))) => *align as u32,
            Some(_) => return Err(self.operand_error(3, "an alignment")),
        };
        self.emit(Op::Alloca { result, bytes, align });
        Ok(())
    }

    pub(super) fn stack(&mut self, saves: bool, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        let op = if saves {
            Op::StackSave(self.any_result(&operands[0], 1, 32)?)
        } else {
            Op::StackRestore(self.any_source(&operands[0], 1, 32)?)
        };
        self.emit(op);
        Ok(())
    }

    /// `st.bulk [a], size, 0`. Captures: weak, space.
    pub(super) fn store_bulk(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 3)?;
        let addr = self.address(&operands[0], 1)?;
        // 64 bits, or 32 since PTX 9.0.
        let size = self.any_source(&operands[1], 2, 32)?;
        if operands[2] != Operand::Int(0) {
            return Err(self.operand_error(3, "0"));
        }
        self.emit(Op::StoreBulk(Box::new(StoreBulk { space: shared_space(captures[1]), addr, size })));
        Ok(())
    }

    pub(super) fn move_matrix(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let result = self.result(&operands[0], 1, data_shape(32))?;
        let value = self.word(&operands[1], 2)?;
        self.emit(Op::MoveMatrix { result, value });
        Ok(())
    }
}

/// The space of a capture; empty for a generic address.
pub(super) fn shared_space(capture: &str) -> Space {
    match capture {
        "" => Space::Generic,
        "global" => Space::Global,
        "shared::cluster" => Space::Cluster,
        _ => Space::Shared,
    }
}
