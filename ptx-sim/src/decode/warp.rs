//! Instructions that a warp or a CTA executes together.

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::float::Round;
use crate::matrix_type::MatrixType;
use crate::op::{Barrier, BarrierReduction, Collective, CollectiveOp, Mma, Op, Reg, Shuffle, ShuffleMode};
use crate::parse::ast::Operand;
use crate::regs::Bank;
use crate::table::family::Family;

impl<'a> Builder<'_, 'a> {
    /// Captures: sparseness, shape, satfinite, types of D, A, B, C, operation of bits.
    pub(super) fn mma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let [sparse, shape, saturates, d_type, a_type, b_type, c_type, bits, _] = captures[..] else {
            return Err(self.unsupported());
        };
        let is_sparse = !sparse.is_empty();
        self.count(operands, if is_sparse { 6 } else { 4 })?;
        let (m, k) = shape.split_once("n8k").ok_or_else(|| self.unsupported())?;
        let (m, k): (usize, usize) = (if m == "m8" { 8 } else { 16 }, k.parse().unwrap_or(0));
        let (Some(mut a_type), Some(mut b_type)) = (MatrixType::of(a_type), MatrixType::of(b_type)) else {
            return Err(self.unsupported());
        };
        if let MatrixType::Bit { and } = &mut a_type {
            *and = bits == "and";
            b_type = a_type;
        }
        let (d_f32, c_f32) = (d_type == "f32", c_type == "f32");
        let halves = d_type == "f16";
        let sums = match a_type {
            MatrixType::F64 => "f64",
            _ if a_type.is_integer() => "s32",
            MatrixType::F16 | MatrixType::E4m3 | MatrixType::E5m2 if halves => "f16",
            _ => "f32",
        };
        // Bits of a row of A; a row of eight elements of f16 is one of half a register.
        let row = k * a_type.bits() / if is_sparse { 2 } else { 1 };
        let is_volta = m == 8 && a_type == MatrixType::F16;
        let legal = d_type == sums && c_type == sums && a_type.multiplies_with(b_type);
        if !legal || is_volta || row < 4 * a_type.bits().max(32) || is_sparse && m == 8 {
            return Err(self.unsupported());
        }
        let width = a_type.bits().max(32);
        let a_registers = row / (4 * width) * (m / 8);
        let b_registers = k * a_type.bits() / (4 * width);
        let sums = if halves { m / 8 } else { m / 4 };
        let width = width as u8;
        let sum_width = if a_type == MatrixType::F64 { 64 } else { 32 };
        let a = self.registers(&operands[1], 2, a_registers, width, false)?;
        let b = self.registers(&operands[2], 3, b_registers, width, false)?;
        let c = self.registers(&operands[3], 4, sums, sum_width, false)?;
        let sparse = match operands.get(5) {
            Some(Operand::Int(selector @ 0..=3)) => Some((self.word(&operands[4], 5)?, *selector as u32)),
            Some(_) => return Err(self.operand_error(6, "a constant from 0 to 3")),
            None => None,
        };
        let d = self.registers(&operands[0], 1, sums, sum_width, true)?;
        let saturates = !saturates.is_empty();
        // A direction is one of f64 alone.
        let round = direction(bits);
        if !matches!(bits, "" | "xor" | "and") && a_type != MatrixType::F64 {
            return Err(self.unsupported());
        }
        self.emit(Op::Mma(Box::new(Mma {
            m,
            k,
            round,
            volta: None,
            a_type,
            b_type,
            d_f32,
            c_f32,
            saturates,
            d,
            a,
            b,
            c,
            sparse,
        })));
        Ok(())
    }

    /// `mma` m8n8k4 of f16. Captures: layouts of A and B, types of D, A, B, C.
    pub(super) fn mma_volta(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        let (d_f32, c_f32) = (captures[2] == "f32", captures[5] == "f32");
        if c_f32 && !d_f32 {
            return Err(self.unsupported());
        }
        let sums = |f32| if f32 { 8 } else { 4 };
        let a = self.registers(&operands[1], 2, 2, 32, false)?;
        let b = self.registers(&operands[2], 3, 2, 32, false)?;
        let c = self.registers(&operands[3], 4, sums(c_f32), 32, false)?;
        let d = self.registers(&operands[0], 1, sums(d_f32), 32, true)?;
        self.emit(Op::Mma(Box::new(Mma {
            m: 8,
            k: 4,
            round: Round::Nearest,
            volta: Some([captures[0] == "row", captures[1] == "row"]),
            a_type: MatrixType::F16,
            b_type: MatrixType::F16,
            d_f32,
            c_f32,
            saturates: false,
            d,
            a,
            b,
            c,
            sparse: None,
        })));
        Ok(())
    }

    /// `{a, b, …}` of registers of one width; a single register counts as a vector of one.
    pub(super) fn registers(
        &mut self,
        operand: &Operand<'a>,
        position: usize,
        length: usize,
        bits: u8,
        written: bool,
    ) -> Result<Vec<Reg>, LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() != length {
            return Err(self.operand_error(position, "a vector of the length that the form has"));
        }
        let shape = crate::table::Shape { float: false, ..data_shape(bits) };
        let mut list = Vec::new();
        for part in parts {
            let slot = match part {
                _ if written => self.result(part, position, shape)?,
                // Sums may start as floating-point constants.
                Operand::Float { .. } => {
                    let value = self.constant_value(part, position, shape)?;
                    self.constant(shape.bank, value)?
                }
                _ => self.source(part, position, shape)?,
            };
            list.push(Reg { bank: shape.bank, slot, bits });
        }
        Ok(list)
    }

    pub(super) fn shuffle(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 5)?;
        let mode = match captures[0] {
            "up" => ShuffleMode::Up,
            "down" => ShuffleMode::Down,
            "bfly" => ShuffleMode::Butterfly,
            _ => ShuffleMode::Index,
        };
        let value = self.word(&operands[1], 2)?;
        let lane = self.word(&operands[2], 3)?;
        let clamp = self.word(&operands[3], 4)?;
        let members = self.word(&operands[4], 5)?;
        let (name, in_range) = match operands[0] {
            Operand::Pair(name, "_") => (name, None),
            Operand::Pair(name, pred) => (name, Some(self.predicate(pred, 1)?)),
            Operand::Name(name) => (name, None),
            _ => return Err(self.operand_error(1, "a register")),
        };
        let result = self.word_result(&Operand::Name(name), 1)?;
        self.emit(Op::Shuffle(Box::new(Shuffle { mode, result, in_range, value, lane, clamp, members })));
        Ok(())
    }

    /// `vote`, `match`, `redux` and `elect`.
    pub(super) fn collective(
        &mut self,
        family: Family,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let elects = family == Family::Elect;
        self.count(operands, if elects { 2 } else { 3 })?;
        let members = self.word(&operands[operands.len() - 1], operands.len())?;
        let no_value = Reg { bank: Bank::Word, slot: members, bits: 32 };
        let (op, bits) = collective_op(family, captures).ok_or_else(|| self.unsupported())?;
        let (value, negated) = match family {
            Family::Elect => (no_value, false),
            Family::Vote | Family::Ballot => {
                let (slot, negated) = self.predicate_operand(&operands[1], 2)?;
                (Reg { bank: Bank::Pred, slot, bits: 1 }, negated)
            }
            _ => (self.exact_source(&operands[1], 2, bits)?, false),
        };
        let (mut result, mut pred) = (None, None);
        match (&operands[0], family) {
            (Operand::Name(name), Family::Vote) => pred = Some(self.predicate(name, 1)?),
            (Operand::Pair(name, p), Family::Match | Family::Elect) => {
                pred = Some(self.predicate(p, 1)?);
                result = Some(self.any_result(&Operand::Name(name), 1, 32)?);
            }
            (operand, _) if !elects => result = Some(self.any_result(operand, 1, 32)?),
            _ => return Err(self.operand_error(1, "a register and a predicate")),
        }
        self.emit(Op::Collective(Box::new(Collective { op, result, pred, value, negated, members })));
        Ok(())
    }

    fn exact_source(&mut self, operand: &Operand<'a>, position: usize, bits: u8) -> Result<Reg, LoadError> {
        let shape = data_shape(bits);
        Ok(Reg { bank: shape.bank, slot: self.source(operand, position, shape)?, bits })
    }

    /// `bar` and `barrier`. Captures: name, cta, sync or arrive, aligned.
    pub(super) fn barrier(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let arrive_only = captures[2] == "arrive";
        self.count_between(operands, if arrive_only { 2 } else { 1 }, 2)?;
        let id = self.word(&operands[0], 1)?;
        let threads = match operands.get(1) {
            Some(operand) => Some(self.word(operand, 2)?),
            None => None,
        };
        let aligned = captures[0] == "bar" || captures[3] == "aligned";
        self.emit(Op::Barrier(Box::new(Barrier { id, threads, arrive_only, aligned, reduction: None })));
        Ok(())
    }

    /// `bar.red d, id{, threads}, {!}p`. Captures: name, cta, operation, aligned, type.
    pub(super) fn barrier_reduce(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count_between(operands, 3, 4)?;
        let (op, is_count) = match captures[2] {
            "popc" => (BarrierReduction::Popc, true),
            "and" => (BarrierReduction::And, false),
            _ => (BarrierReduction::Or, false),
        };
        if is_count != (captures[4] == "u32") {
            return Err(self.unsupported());
        }
        let last = operands.len() - 1;
        let id = self.word(&operands[1], 2)?;
        let threads = if last == 3 { Some(self.word(&operands[2], 3)?) } else { None };
        let (pred, negated) = self.predicate_operand(&operands[last], last + 1)?;
        let result = match operands[0] {
            Operand::Name(name) if !is_count => {
                Reg { bank: Bank::Pred, slot: self.predicate(name, 1)?, bits: 1 }
            }
            ref operand => Reg { bank: Bank::Word, slot: self.word_result(operand, 1)?, bits: 32 },
        };
        let aligned = captures[0] == "bar" || captures[3] == "aligned";
        let reduction = Some((op, result, pred, negated));
        self.emit(Op::Barrier(Box::new(Barrier { id, threads, arrive_only: false, aligned, reduction })));
        Ok(())
    }

    /// `bar.warp.sync` and `activemask`.
    pub(super) fn warp_state(&mut self, family: Family, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        let op = match family {
            Family::WarpBarrier => Op::WarpBarrier(self.word(&operands[0], 1)?),
            _ => Op::ActiveMask(self.word_result(&operands[0], 1)?),
        };
        self.emit(op);
        Ok(())
    }
}

fn collective_op(family: Family, captures: &[&str]) -> Option<(CollectiveOp, u8)> {
    let first = captures.first().copied().unwrap_or("");
    let second = captures.get(1).copied().unwrap_or("");
    Some(match (family, first, second) {
        (Family::Vote, "all", _) => (CollectiveOp::All, 1),
        (Family::Vote, "any", _) => (CollectiveOp::Any, 1),
        (Family::Vote, _, _) => (CollectiveOp::Uniform, 1),
        (Family::Ballot, _, _) => (CollectiveOp::Ballot, 1),
        (Family::Elect, _, _) => (CollectiveOp::Elect, 32),
        (Family::Match, "any", bits) => (CollectiveOp::MatchAny, if bits == "b64" { 64 } else { 32 }),
        (Family::Match, _, bits) => (CollectiveOp::MatchAll, if bits == "b64" { 64 } else { 32 }),
        (Family::Redux, "min", _) if captures.len() == 3 => {
            (CollectiveOp::FloatMin(captures[1] == "abs", captures[2] == "NaN"), 32)
        }
        (Family::Redux, "max", _) if captures.len() == 3 => {
            (CollectiveOp::FloatMax(captures[1] == "abs", captures[2] == "NaN"), 32)
        }
        (_, "add", "u32" | "s32") => (CollectiveOp::Add, 32),
        (_, "min", "u32") => (CollectiveOp::MinU, 32),
        (_, "max", "u32") => (CollectiveOp::MaxU, 32),
        (_, "min", "s32") => (CollectiveOp::MinS, 32),
        (_, "max", "s32") => (CollectiveOp::MaxS, 32),
        (_, "and", "b32") => (CollectiveOp::And, 32),
        (_, "or", "b32") => (CollectiveOp::Or, 32),
        (_, "xor", "b32") => (CollectiveOp::Xor, 32),
        _ => return None,
    })
}

/// The rounding of a name; to nearest where there is none.
pub(super) fn direction(name: &str) -> Round {
    match name {
        "rz" => Round::Zero,
        "rm" => Round::Down,
        "rp" => Round::Up,
        _ => Round::Nearest,
    }
}
