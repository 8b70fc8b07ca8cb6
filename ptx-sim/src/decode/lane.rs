//! Lane-wise instructions: table rows, comparisons with two results, moves of vectors, carries and conversions.

use super::Builder;
use super::lookup::{self, Form, Lane, LaneOp};
use super::operand::data_shape;
use crate::error::LoadError;
use crate::float::Round;
use crate::op::{BoolOp, Carry, Constant, Cvt, Op, ProductHalf, Reg, Scalar, Timer};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slots};
use crate::table::family::Family;

impl<'a> Builder<'_, 'a> {
    pub(super) fn lane(&mut self, lane: &Lane, operands: &[Operand<'a>]) -> Result<(), LoadError> {
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
        let (p, q) = match operands[0] {
            Operand::Pair(p, q) => (self.predicate_result(p)?, self.predicate_result(q)?),
            Operand::Name(p) => (self.predicate_result(p)?, self.allocate(Bank::Pred, 1)?),
            _ => return Err(self.operand_error(1, "a predicate")),
        };
        let op = match captures[1] {
            "and" => BoolOp::And,
            "or" => BoolOp::Or,
            _ => BoolOp::Xor,
        };
        self.emit(Op::Combine { op, compared, c, c_negated, p, q });
        Ok(())
    }

    /// `mov` between a register and a vector of narrower ones.
    pub(super) fn move_vector(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let bits: u8 = self.mnemonic.rsplit('b').next().and_then(|b| b.parse().ok()).unwrap_or(32);
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

    fn part(&mut self, part: &Operand<'a>, position: usize, bits: u8) -> Result<Reg, LoadError> {
        let slot = self.result(part, position, data_shape(bits))?;
        Ok(Reg { bank: data_shape(bits).bank, slot, bits })
    }

    fn part_bits(&self, parts: &[Operand<'a>], bits: u8, position: usize) -> Result<u8, LoadError> {
        match (bits, parts.len()) {
            (16 | 32 | 64, 2) => Ok(bits / 2),
            (32 | 64, 4) => Ok(bits / 4),
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
        let (round, integral) = match captures[0] {
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
        let narrows = to.is_float() && from.is_float() && to.bits() < from.bits();
        let from_integer = to.is_float() && !from.is_float();
        let to_integer = !to.is_float() && from.is_float();
        let same_size_floats = to.is_float() && from.is_float() && to.bits() == from.bits();
        let legal = match round {
            None => !narrows && !from_integer && !to_integer,
            Some(_) if integral => to_integer || same_size_floats,
            Some(_) => narrows || from_integer,
        };
        // f64 is not reached exactly from 64-bit integers by directed rounding, which is refused.
        let directed_to_f64 =
            to == Scalar::F64 && matches!(round, Some(r) if r != Round::Nearest) && !integral;
        if !legal || directed_to_f64 || same_size_floats && to != from {
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
        self.count(operands, 3)?;
        let slots = [
            self.word_result(&operands[0], 1)?,
            self.word(&operands[1], 2)?,
            self.word(&operands[2], 3)?,
            self.constant(Bank::Word, Constant::Bits(0))?,
            0,
        ];
        self.emit(Op::CvtPack { signed: captures[0] == "s16", slots });
        Ok(())
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
