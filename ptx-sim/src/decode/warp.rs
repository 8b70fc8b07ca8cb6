//! Instructions that a warp or a CTA executes together.

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{
    Barrier, BarrierReduction, Collective, CollectiveOp, MatrixType, Mma, Op, Reg, Shuffle, ShuffleMode,
};
use crate::parse::ast::Operand;
use crate::regs::Bank;
use crate::table::family::Family;

impl<'a> Builder<'_, 'a> {
    /// Captures: shape, types of D, A, B, C.
    pub(super) fn mma(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        let k: u8 = if captures[0] == "m16n8k8" { 8 } else { 16 };
        let (d_f32, c_f32) = (captures[1] == "f32", captures[4] == "f32");
        let input = if captures[2] == "f16" { MatrixType::F16 } else { MatrixType::Bf16 };
        // bf16 accumulates in f32 only, and an f16 result takes an f16 addend (PTX ISA §9.7.14.5.14).
        if captures[2] != captures[3] || d_f32 != c_f32 || input == MatrixType::Bf16 && !d_f32 {
            return Err(self.unsupported());
        }
        let accumulators = if d_f32 { 4 } else { 2 };
        let a = self.word_vector(&operands[1], 2, usize::from(k) / 4, false)?;
        let b = self.word_vector(&operands[2], 3, usize::from(k) / 8, false)?;
        let c = self.word_vector(&operands[3], 4, accumulators, false)?;
        let d = self.word_vector(&operands[0], 1, accumulators, true)?;
        self.emit(Op::Mma(Box::new(Mma { input, k, d_f32, c_f32, d, a, b, c })));
        Ok(())
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
