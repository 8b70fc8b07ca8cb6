//! Lane-wise instructions: table rows, comparisons with two results, moves of vectors, carries and conversions.

use super::Builder;
use super::lookup::{self, Form, Lane, LaneOp};
use super::operand::data_shape;
use crate::error::LoadError;
use crate::float::Round;
use crate::op::{
    BoolOp, Carry, Cmp, Constant, Cvt, Op, ProductHalf, Reg, Scalar, SetCompare, SetResult, Special, Timer,
};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slots};
use crate::table::family::Family;
use crate::table::integer::IntOp;

impl<'a> Builder<'_, 'a> {
    pub(super) fn lane(&mut self, lane: &Lane, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let head = lane.pattern.split(' ').next().unwrap_or("");
        if operands.len() == 4 && lane.args.len() == 2 && matches!(head, "min" | "max") {
            // Of three operands: of two, then with the third.
            let first = self.lane_slots(lane, &operands[..3])?;
            let between = self.allocate(lane.result.bank, 1)?;
            let third = self.source(&operands[3], 4, lane.args[1])?;
            self.emit(lane.op.with([between, first[1], first[2], 0, 0]));
            self.emit(lane.op.with([first[0], between, third, 0, 0]));
            return Ok(());
        }
        if let LaneOp::Int(op @ (IntOp::CvtaShared | IntOp::CvtaLocal)) = lane.op {
            self.count(operands, 2)?;
            let window = if op == IntOp::CvtaShared { Special::SharedWindow } else { Special::LocalWindow };
            let window = self.constant(Bank::Double, Constant::Special(window))?;
            let address = self.source(&operands[1], 2, lane.args[0])?;
            let result = self.result(&operands[0], 1, lane.result)?;
            self.emit(lane.op.with([result, address, window, 0, 0]));
            return Ok(());
        }
        self.count(operands, 1 + lane.args.len())?;
        if let Some(timer) = operands.get(1).and_then(timer) {
            let result = self.any_result(&operands[0], 1, lane.result.bits)?;
            self.emit(Op::Timer(timer, result));
            return Ok(());
        }
        if let Operand::Pair(p, q) = operands[0] {
            return self.compare_both(lane, p, q, operands);
        }
        let attempt = self.lane_slots(lane, operands);
        match attempt {
            Ok(slots) => {
                self.emit(lane.op.with(slots));
                Ok(())
            }
            // Conversions may name wider registers than their types; the general form takes them.
            Err(error @ LoadError::Operand { .. }) if matches!(lane.op, LaneOp::Convert(_)) => {
                match lookup::captures_of(Family::Cvt, self.mnemonic) {
                    Some(captures) => self.cvt(&captures, operands),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn lane_slots(&mut self, lane: &Lane, operands: &[Operand<'a>]) -> Result<Slots, LoadError> {
        let mut slots = [0; 5];
        for (i, &shape) in lane.args.iter().enumerate() {
            slots[i + 1] = self.source(&operands[i + 1], i + 2, shape)?;
        }
        slots[0] = self.result(&operands[0], 1, lane.result)?;
        Ok(slots)
    }

    /// `setp … %p|%q`: the comparison and its opposite.
    fn compare_both(
        &mut self,
        lane: &Lane,
        p: &str,
        q: &str,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if lane.result.bank != Bank::Pred {
            return Err(self.operand_error(1, "one register"));
        }
        let compared = self.compare_into_temporary(lane, operands)?;
        let (p, q) = (self.predicate_result(p)?, self.predicate_result(q)?);
        self.emit(Op::Combine { op: BoolOp::First, compared, c: compared, c_negated: false, p, q });
        Ok(())
    }

    fn predicate_result(&mut self, name: &str) -> Result<u32, LoadError> {
        if name == "_" { self.allocate(Bank::Pred, 1) } else { self.predicate(name, 1) }
    }

    /// Where a comparison's two outcomes go, of which a form with one predicate drops the second.
    fn predicate_results(&mut self, operand: &Operand<'a>) -> Result<(u32, u32), LoadError> {
        match *operand {
            Operand::Pair(p, q) => Ok((self.predicate_result(p)?, self.predicate_result(q)?)),
            Operand::Name(p) => Ok((self.predicate_result(p)?, self.allocate(Bank::Pred, 1)?)),
            _ => Err(self.operand_error(1, "one or two predicates")),
        }
    }

    fn compare_into_temporary(&mut self, lane: &Lane, operands: &[Operand<'a>]) -> Result<u32, LoadError> {
        let mut slots = [0; 5];
        for (i, &shape) in lane.args.iter().enumerate() {
            slots[i + 1] = self.source(&operands[i + 1], i + 2, shape)?;
        }
        slots[0] = self.allocate(Bank::Pred, 1)?;
        self.emit(lane.op.with(slots));
        Ok(slots[0])
    }

    /// `setp` with a boolean operation on a third operand.
    pub(super) fn setp_bool(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        // The captures are parts of the module's text, so the plain comparison is looked up afresh.
        let plain: Vec<&str> =
            ["setp", captures[0], captures[2], captures[3]].into_iter().filter(|p| !p.is_empty()).collect();
        let plain = plain.join(".");
        let mut lookup = lookup::Lookup::default();
        let Some(Form::Lane(lane)) = lookup.find(&plain) else { return Err(self.unsupported()) };
        let compared = self.compare_into_temporary(&lane, &operands[..3])?;
        let (c, c_negated) = self.predicate_operand(&operands[3], 4)?;
        let (p, q) = self.predicate_results(&operands[0])?;
        let op = bool_op(captures[1]);
        self.emit(Op::Combine { op, compared, c, c_negated, p, q });
        Ok(())
    }

    /// `mov` between a register and a vector of narrower ones, or of 128-bit registers.
    pub(super) fn move_vector(&mut self, ty: &str, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let bits: u8 = ty[1..].parse().unwrap_or(32);
        if bits == 128 {
            return self.move_wide(operands);
        }
        match (&operands[0], &operands[1]) {
            (Operand::Vector(parts), source) => {
                let width = self.part_bits(parts, bits, 1)?;
                let source = self.source(source, 2, data_shape(bits))?;
                let from = Reg { bank: data_shape(bits).bank, slot: source, bits };
                let mut to = Vec::new();
                for part in parts {
                    let dropped = matches!(part, Operand::Name("_"));
                    to.push(if dropped { None } else { Some(self.part(part, 1, width)?) });
                }
                self.emit(Op::Unpack(Box::new((to, from))));
            }
            (target, Operand::Vector(parts)) => {
                let width = self.part_bits(parts, bits, 2)?;
                let mut from = Vec::new();
                for part in parts {
                    let slot = self.source(part, 2, data_shape(width))?;
                    from.push(Reg { bank: data_shape(width).bank, slot, bits: width });
                }
                let slot = self.result(target, 1, data_shape(bits))?;
                self.emit(Op::Pack(Box::new((Reg { bank: data_shape(bits).bank, slot, bits }, from))));
            }
            _ => return Err(self.operand_error(2, "a vector")),
        }
        Ok(())
    }

    fn move_wide(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let pair = |operand: &Operand<'a>| match operand {
            Operand::Vector(parts) if parts.len() == 2 => Some([parts[0].clone(), parts[1].clone()]),
            _ => None,
        };
        let mut from = [0; 2];
        match pair(&operands[1]) {
            Some(parts) => {
                for (slot, part) in from.iter_mut().zip(&parts) {
                    *slot = self.source(part, 2, data_shape(64))?;
                }
            }
            None => from = self.wide_register(&operands[1], 2)?.map(|reg| reg.slot),
        }
        let mut to = [0; 2];
        match pair(&operands[0]) {
            Some(parts) => {
                for (slot, part) in to.iter_mut().zip(&parts) {
                    *slot = self.result(part, 1, data_shape(64))?;
                }
            }
            None => to = self.wide_register(&operands[0], 1)?.map(|reg| reg.slot),
        }
        for (to, from) in to.into_iter().zip(from) {
            self.emit(Op::Int(IntOp::MovDouble, [to, from, 0, 0, 0]));
        }
        Ok(())
    }

    fn part(&mut self, part: &Operand<'a>, position: usize, bits: u8) -> Result<Reg, LoadError> {
        let slot = self.result(part, position, data_shape(bits))?;
        Ok(Reg { bank: data_shape(bits).bank, slot, bits })
    }

    fn part_bits(&self, parts: &[Operand<'a>], bits: u8, position: usize) -> Result<u8, LoadError> {
        match (bits, parts.len()) {
            (16 | 32 | 64, 2) => Ok(bits / 2),
            (32 | 64, 4) => Ok(bits / 4),
            (64, 8) => Ok(8),
            _ => Err(self.operand_error(position, "a vector of 2 or 4 registers")),
        }
    }

    pub(super) fn carry(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let name = captures[0];
        let product = name.starts_with("mad");
        let (half, cc, ty) =
            if product { (captures[1], captures[2], captures[3]) } else { ("", captures[1], captures[2]) };
        self.count(operands, if product { 4 } else { 3 })?;
        let carry_in = name.ends_with('c') && name != "sub" && name != "add" && name != "mad";
        if !carry_in && cc.is_empty() {
            return Err(self.unsupported());
        }
        let bits = if ty.ends_with("64") { 64 } else { 32 };
        let shape = data_shape(bits);
        let mut regs = Vec::new();
        for (i, operand) in operands.iter().enumerate() {
            let slot =
                if i == 0 { self.result(operand, 1, shape)? } else { self.source(operand, i + 1, shape)? };
            regs.push(Reg { bank: shape.bank, slot, bits });
        }
        let flag = match self.carry_flag {
            Some(flag) => flag,
            None => self.allocate(Bank::Pred, 1)?,
        };
        self.carry_flag = Some(flag);
        let product = match half {
            "lo" => Some(ProductHalf::Low),
            "hi" => Some(ProductHalf::High),
            _ => None,
        };
        self.emit(Op::Carry(Box::new(Carry {
            add: !name.starts_with("sub"),
            product,
            carry_in,
            carry_out: !cc.is_empty(),
            signed: ty.starts_with('s'),
            flag,
            regs,
        })));
        Ok(())
    }

    pub(super) fn cvt(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let (to, from) = (scalar(captures[3]), scalar(captures[4]));
        // Between the halves' two types the rounding may be left out.
        let halves = matches!((to, from), (Scalar::F16, Scalar::Bf16) | (Scalar::Bf16, Scalar::F16));
        let (round, integral) = match captures[0] {
            "" if halves && captures[2].is_empty() => (Some(Round::Nearest), false),
            "" => (None, false),
            "rn" => (Some(Round::Nearest), false),
            "rz" => (Some(Round::Zero), false),
            "rm" => (Some(Round::Down), false),
            "rp" => (Some(Round::Up), false),
            "rni" => (Some(Round::Nearest), true),
            "rzi" => (Some(Round::Zero), true),
            "rmi" => (Some(Round::Down), true),
            "rpi" => (Some(Round::Up), true),
            _ => return Err(self.unsupported()),
        };
        let narrows =
            to.is_float() && from.is_float() && (to.bits() < from.bits() || to != from && to.bits() == 16);
        let from_integer = to.is_float() && !from.is_float();
        let to_integer = !to.is_float() && from.is_float();
        let same = to.is_float() && to == from;
        let legal = match round {
            None => !narrows && !from_integer && !to_integer,
            Some(_) if integral => to_integer || same,
            // What is exact may name a rounding from bf16 alone.
            Some(_) => narrows || from_integer || from == Scalar::Bf16 && to.is_float() && !same,
        };
        if !legal {
            return Err(self.unsupported());
        }
        let result = self.any_result(&operands[0], 1, to.bits().max(8))?;
        let operand = self.any_source(&operands[1], 2, from.bits().max(8))?;
        self.emit(Op::Cvt(Box::new(Cvt {
            to,
            from,
            round,
            integral,
            flush: captures[1] == "ftz",
            saturate: captures[2] == "sat",
            result,
            operand,
        })));
        Ok(())
    }

    pub(super) fn cvt_pack(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, if captures[0].ends_with("16") { 3 } else { 4 })?;
        let below = match operands.get(3) {
            Some(operand) => self.word(operand, 4)?,
            None => self.constant(Bank::Word, Constant::Bits(0))?,
        };
        let (a, b) = (self.word(&operands[1], 2)?, self.word(&operands[2], 3)?);
        let slots = [self.word_result(&operands[0], 1)?, a, b, below, 0];
        let bits = captures[0][1..].parse().unwrap_or(16);
        self.emit(Op::CvtPack { signed: captures[0].starts_with('s'), bits, slots });
        Ok(())
    }

    /// `set`. Captures: comparison, operation with a predicate, ftz, type of the result, type compared.
    pub(super) fn set(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let with = self.combined_with(captures[1], operands, 3)?;
        let ty = scalar(captures[4]);
        let (a, b) = (self.compared(&operands[1], 2, ty)?, self.compared(&operands[2], 3, ty)?);
        let to = scalar(captures[3]);
        let packed = |ty| matches!(ty, Scalar::F16x2 | Scalar::Bf16x2);
        if packed(to) && to != ty || packed(ty) && to.bits() != 32 {
            return Err(self.unsupported());
        }
        let result = self.any_result(&operands[0], 1, to.bits())?;
        let result = if to.is_float() {
            SetResult::One(result, to)
        } else {
            SetResult::Mask(Reg { bits: to.bits(), ..result })
        };
        let (cmp, flush) = (comparison(captures[0], ty), !captures[2].is_empty());
        self.emit(Op::Set(Box::new(SetCompare { cmp, ty, flush, result, a, b, with })));
        Ok(())
    }

    /// `setp` of packed halves. Captures: comparison, operation with a predicate, ftz, type.
    pub(super) fn setp_pair(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let with = self.combined_with(captures[1], operands, 3)?;
        let ty = scalar(captures[3]);
        let (a, b) = (self.compared(&operands[1], 2, ty)?, self.compared(&operands[2], 3, ty)?);
        let (p, q) = self.predicate_results(&operands[0])?;
        let (cmp, flush) = (comparison(captures[0], ty), !captures[2].is_empty());
        let result = SetResult::Preds(p, q);
        self.emit(Op::Set(Box::new(SetCompare { cmp, ty, flush, result, a, b, with })));
        Ok(())
    }

    fn compared(&mut self, operand: &Operand<'a>, position: usize, ty: Scalar) -> Result<Reg, LoadError> {
        let float = matches!(ty, Scalar::F32 | Scalar::F64);
        let shape = crate::table::Shape { float, ..data_shape(ty.bits()) };
        Ok(Reg { bank: shape.bank, slot: self.source(operand, position, shape)?, bits: ty.bits() })
    }

    /// The predicate at the end of the operands, where the form has one.
    fn combined_with(
        &mut self,
        name: &str,
        operands: &[Operand<'a>],
        plain: usize,
    ) -> Result<Option<(BoolOp, u32, bool)>, LoadError> {
        self.count(operands, plain + usize::from(!name.is_empty()))?;
        if name.is_empty() {
            return Ok(None);
        }
        let (slot, negated) = self.predicate_operand(&operands[plain], plain + 1)?;
        Ok(Some((bool_op(name), slot, negated)))
    }

    /// `lop3.or d|p, a, b, c, table, q`. Capture: the operation with q.
    pub(super) fn lop_pred(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 6)?;
        let (d, p) = match operands[0] {
            Operand::Pair("_", p) => (self.allocate(Bank::Word, 1)?, self.predicate_result(p)?),
            Operand::Pair(d, p) => (self.word_result(&Operand::Name(d), 1)?, self.predicate_result(p)?),
            _ => return Err(self.operand_error(1, "a register and a predicate")),
        };
        let mut slots = [d, 0, 0, 0, 0];
        for at in 1..5 {
            slots[at] = self.word(&operands[at], at + 1)?;
        }
        let (c, c_negated) = self.predicate_operand(&operands[5], 6)?;
        let zero = self.constant(Bank::Word, Constant::Bits(0))?;
        let (compared, q) = (self.allocate(Bank::Pred, 1)?, self.allocate(Bank::Pred, 1)?);
        self.emit(Op::Int(IntOp::Lop3, slots));
        self.emit(Op::Compare(crate::table::compare::CompareOp::NeWord, [compared, d, zero, 0, 0]));
        self.emit(Op::Combine { op: bool_op(captures[0]), compared, c, c_negated, p, q });
        Ok(())
    }
}

fn bool_op(name: &str) -> BoolOp {
    match name {
        "and" => BoolOp::And,
        "or" => BoolOp::Or,
        _ => BoolOp::Xor,
    }
}

/// The comparison of that name; the unsigned ones of integers are the plain ones of unsigned types.
pub(super) fn comparison(name: &str, ty: Scalar) -> Cmp {
    match name {
        "eq" => Cmp::Eq,
        "ne" => Cmp::Ne,
        "lt" | "lo" => Cmp::Lt,
        "le" | "ls" => Cmp::Le,
        "gt" | "hi" => Cmp::Gt,
        "ge" | "hs" => Cmp::Ge,
        "equ" if ty.is_float() => Cmp::Equ,
        "neu" => Cmp::Neu,
        "ltu" => Cmp::Ltu,
        "leu" => Cmp::Leu,
        "gtu" => Cmp::Gtu,
        "geu" => Cmp::Geu,
        "num" => Cmp::Num,
        _ => Cmp::Nan,
    }
}

/// The type of that name.
pub(super) fn scalar(name: &str) -> Scalar {
    match name {
        "f16" => Scalar::F16,
        "bf16" => Scalar::Bf16,
        "f16x2" => Scalar::F16x2,
        "bf16x2" => Scalar::Bf16x2,
        "f32" => Scalar::F32,
        "f64" => Scalar::F64,
        _ => {
            let bits = name[1..].parse().unwrap_or(32);
            if name.starts_with('s') { Scalar::S(bits) } else { Scalar::U(bits) }
        }
    }
}

fn timer(operand: &Operand<'_>) -> Option<Timer> {
    match operand {
        Operand::Name("%clock" | "%globaltimer_lo") => Some(Timer::Clock),
        Operand::Name("%clock_hi" | "%globaltimer_hi") => Some(Timer::ClockHigh),
        Operand::Name("%clock64" | "%globaltimer") => Some(Timer::Clock64),
        _ => None,
    }
}
