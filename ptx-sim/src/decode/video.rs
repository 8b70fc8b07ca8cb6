//! Video instructions: which parts of their operands they take.

use super::Builder;
use super::lane::comparison;
use crate::error::LoadError;
use crate::op::{Op, Scalar};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slot, Slots};
use crate::table::pattern;
use crate::video::{Part, Second, Video, VideoMad, VideoOp, WHOLE};

/// The name of a register without its selection: `.b0`, `.h1`, `.h32`, `.b7654`.
fn selection(name: &str) -> (&str, &str) {
    match name.rsplit_once('.') {
        Some((base, parts))
            if parts.starts_with(['b', 'h']) && parts[1..].bytes().all(|b| b.is_ascii_digit()) =>
        {
            (base, parts)
        }
        _ => (name, ""),
    }
}

/// The one part that a scalar operand selects.
fn single(parts: &str) -> Option<Part> {
    Some(match parts.as_bytes() {
        [] => WHOLE,
        [b'b', at @ b'0'..=b'3'] => (8 * u32::from(at - b'0'), 8),
        [b'h', at @ b'0'..=b'1'] => (16 * u32::from(at - b'0'), 16),
        _ => return None,
    })
}

impl<'a> Builder<'_, 'a> {
    fn says(&self, word: &str) -> bool {
        pattern::parts(self.mnemonic).any(|part| part == word)
    }

    /// An operand without its selection and its sign.
    fn selected(operand: &Operand<'a>) -> (Operand<'a>, &'a str, bool) {
        match operand {
            Operand::Name(name) => (Operand::Name(selection(name).0), selection(name).1, false),
            Operand::Negative(name) => (Operand::Name(selection(name).0), selection(name).1, true),
            other => (other.clone(), "", false),
        }
    }

    /// `vadd` … `vset4`, but `vmad`.
    pub(super) fn video(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let name = pattern::parts(self.mnemonic).next().unwrap_or("");
        let lanes: u32 = if name.ends_with('2') {
            2
        } else if name.ends_with('4') {
            4
        } else {
            1
        };
        let op = match name.trim_end_matches(['2', '4']) {
            "vadd" => VideoOp::Add,
            "vsub" => VideoOp::Sub,
            "vavrg" => VideoOp::Average,
            "vabsdiff" => VideoOp::Difference,
            "vmin" => VideoOp::Min,
            "vmax" => VideoOp::Max,
            "vset" => {
                let words = ["eq", "ne", "lt", "le", "gt", "ge"];
                let word = words.into_iter().find(|word| self.says(word)).unwrap_or("eq");
                VideoOp::Set(comparison(word, Scalar::U(32)))
            }
            shift => VideoOp::Shift { left: shift == "vshl", clamps: self.says("clamp") },
        };
        let second = match () {
            () if self.says("add") => Second::Add,
            () if self.says("min") => Second::Min,
            () if self.says("max") => Second::Max,
            () => Second::Nothing,
        };
        let mut signs =
            pattern::parts(self.mnemonic).filter(|p| matches!(*p, "u32" | "s32")).map(|p| p == "s32");
        let mut sign = || signs.next().unwrap_or(false);
        let signed =
            if matches!(op, VideoOp::Set(_)) { [false, sign(), sign()] } else { [sign(), sign(), sign()] };
        let [(d, to, _), (a, from_a, _), (b, from_b, _)] = match operands {
            [d, a, b, ..] => [d, a, b].map(Self::selected),
            _ => return self.count(operands, 3),
        };
        // c is of no use where all of a word is written, but may stand there.
        let least = if lanes == 1 && second == Second::Nothing && to.is_empty() { 3 } else { 4 };
        self.count_between(operands, least, 4)?;
        let parts = match lanes {
            1 => {
                let part = |text, at| single(text).ok_or_else(|| self.operand_error(at, "a byte or a half"));
                let (to, from_a, (at, bits)) = (part(to, 1)?, part(from_a, 2)?, part(from_b, 3)?);
                vec![(to, from_a, (32 + at, bits))]
            }
            _ => self.packed(lanes, [to, from_a, from_b])?,
        };
        let slots = self.video_slots([&d, &a, &b], operands.get(3))?;
        let saturates = self.says("sat");
        self.emit(Op::Video(Box::new(Video { op, signed, saturates, second, parts, slots })));
        Ok(())
    }

    /// The parts of a packed instruction: `.h10`, `.b3210` and the like name a part each, highest first.
    fn packed(
        &self,
        lanes: u32,
        [to, from_a, from_b]: [&str; 3],
    ) -> Result<Vec<(Part, Part, Part)>, LoadError> {
        let (letter, bits) = if lanes == 2 { ('h', 16) } else { ('b', 8) };
        let digits = |text: &str, least: usize, below: u32| -> Option<Vec<u32>> {
            let digits: Option<Vec<u32>> =
                text.strip_prefix(letter)?.chars().rev().map(|c| c.to_digit(below)).collect();
            digits.filter(|list| (least..=lanes as usize).contains(&list.len()))
        };
        let select = |text: &str, at: usize, from: u32| match text {
            "" => Ok((from..from + lanes).collect()),
            text => digits(text, lanes as usize, 2 * lanes)
                .ok_or_else(|| self.operand_error(at, "parts of both operands")),
        };
        let (from_a, from_b) = (select(from_a, 2, 0)?, select(from_b, 3, lanes)?);
        let mask = match to {
            "" => (0..lanes).collect(),
            to => digits(to, 1, lanes).ok_or_else(|| self.operand_error(1, "parts of the result"))?,
        };
        let part = |i: u32| (bits * i, bits);
        Ok(mask.into_iter().map(|i| (part(i), part(from_a[i as usize]), part(from_b[i as usize]))).collect())
    }

    /// `vmad`.
    pub(super) fn video_mad(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 4)?;
        let [(d, to, _), (a, from_a, minus_a), (b, from_b, minus_b), (c, from_c, minus_c)] =
            [&operands[0], &operands[1], &operands[2], &operands[3]].map(Self::selected);
        let (Some(from_a), Some(from_b), "", "") = (single(from_a), single(from_b), to, from_c) else {
            return Err(self.operand_error(2, "a byte or a half"));
        };
        let mut signs = pattern::parts(self.mnemonic).filter(|p| matches!(*p, "u32" | "s32")).skip(1);
        let mut sign = || signs.next() == Some("s32");
        let signed = [sign(), sign()];
        let shift = if self.says("shr7") {
            7
        } else if self.says("shr15") {
            15
        } else {
            0
        };
        let (plus_one, saturates) = (self.says("po"), self.says("sat"));
        let slots = self.video_slots([&d, &a, &b], Some(&c))?;
        self.emit(Op::VideoMad(Box::new(VideoMad {
            signed,
            parts: [from_a, from_b],
            negates_product: minus_a != minus_b,
            negates_c: minus_c,
            plus_one,
            saturates,
            shift,
            slots,
        })));
        Ok(())
    }

    fn video_slots(
        &mut self,
        [d, a, b]: [&Operand<'a>; 3],
        c: Option<&Operand<'a>>,
    ) -> Result<Slots, LoadError> {
        let c: Slot = match c {
            Some(c) => self.word(c, 4)?,
            None => self.constant(Bank::Word, crate::op::Constant::Bits(0))?,
        };
        let (a, b) = (self.word(a, 2)?, self.word(b, 3)?);
        Ok([self.word_result(d, 1)?, a, b, c, 0])
    }
}
