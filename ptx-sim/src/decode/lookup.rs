//! Finds the row of the table for a mnemonic.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::op::Op;
use crate::regs::Slots;
use crate::table::compare::CompareOp;
use crate::table::convert::ConvertOp;
use crate::table::family::{self, Family};
use crate::table::float::FloatOp;
use crate::table::half::HalfOp;
use crate::table::integer::IntOp;
use crate::table::{LaneRow, Shape, pattern};

/// A lane-wise operation of any table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaneOp {
    Int(IntOp),
    Float(FloatOp),
    Half(HalfOp),
    Compare(CompareOp),
    Convert(ConvertOp),
}

impl LaneOp {
    /// The operation on its registers.
    pub(crate) fn with(self, slots: Slots) -> Op {
        match self {
            LaneOp::Int(op) => Op::Int(op, slots),
            LaneOp::Float(op) => Op::Float(op, slots),
            LaneOp::Half(op) => Op::Half(op, slots),
            LaneOp::Compare(op) => Op::Compare(op, slots),
            LaneOp::Convert(op) => Op::Convert(op, slots),
        }
    }
}

/// A lane-wise row without the type of its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) op: LaneOp,
    pub(crate) pattern: &'static str,
    pub(crate) result: Shape,
    pub(crate) args: &'static [Shape],
    pub(crate) section: &'static str,
    pub(crate) meaning: &'static str,
}

/// What a mnemonic is.
#[derive(Clone, Debug)]
pub(crate) enum Form<'m> {
    Lane(Lane),
    /// With the least target.
    Family(Family, pattern::Captures<'m>, &'static str),
}

fn erase<O: Copy>(rows: &'static [LaneRow<O>], wrap: fn(O) -> LaneOp) -> impl Iterator<Item = Lane> {
    rows.iter().map(move |row| Lane {
        op: wrap(row.op),
        pattern: row.pattern,
        result: row.result,
        args: row.args,
        section: row.section,
        meaning: row.meaning,
    })
}

/// Every lane-wise row, in the order of the tables.
pub(crate) fn lanes() -> impl Iterator<Item = Lane> {
    erase(IntOp::ROWS, LaneOp::Int)
        .chain(erase(FloatOp::ROWS, LaneOp::Float))
        .chain(erase(HalfOp::ROWS, LaneOp::Half))
        .chain(erase(CompareOp::ROWS, LaneOp::Compare))
        .chain(erase(ConvertOp::ROWS, LaneOp::Convert))
}

/// Rows by the name of the instruction.
#[derive(Default)]
struct Index {
    lanes: HashMap<&'static str, Vec<Lane>>,
    families: HashMap<&'static str, Vec<&'static family::FamilyRow>>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut index = Index::default();
    for lane in lanes() {
        for head in pattern::heads(lane.pattern) {
            index.lanes.entry(head).or_default().push(lane);
        }
    }
    for row in family::rows() {
        for head in pattern::heads(row.pattern) {
            index.families.entry(head).or_default().push(row);
        }
    }
    index
});

/// Lookups of one module, remembered: a kernel repeats few mnemonics many times.
#[derive(Default)]
pub(crate) struct Lookup<'m> {
    seen: HashMap<&'m str, Option<Form<'m>>>,
}

impl<'m> Lookup<'m> {
    /// The form of a mnemonic; lane-wise rows come before families.
    pub(crate) fn find(&mut self, mnemonic: &'m str) -> Option<Form<'m>> {
        self.seen.entry(mnemonic).or_insert_with(|| find(mnemonic)).clone()
    }
}

fn find(mnemonic: &str) -> Option<Form<'_>> {
    let head = mnemonic.split('.').next()?;
    let lanes = INDEX.lanes.get(head).into_iter().flatten();
    if let Some(lane) = lanes.into_iter().find(|l| pattern::captures(l.pattern, mnemonic).is_some()) {
        return Some(Form::Lane(*lane));
    }
    let families = INDEX.families.get(head).into_iter().flatten();
    families
        .into_iter()
        .find_map(|row| Some(Form::Family(row.family, pattern::captures(row.pattern, mnemonic)?, row.needs)))
}

/// The captures of a family that is known to match.
pub(crate) fn captures_of(family: Family, mnemonic: &str) -> Option<pattern::Captures<'_>> {
    family::rows().filter(|row| row.family == family).find_map(|row| pattern::captures(row.pattern, mnemonic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mnemonic_has_two_lane_rows() {
        let all: Vec<Lane> = lanes().collect();
        for lane in &all {
            // The shortest mnemonic of the row: first choices, no options.
            let mnemonic = first_mnemonic(lane.pattern);
            let hits = all.iter().filter(|l| pattern::captures(l.pattern, &mnemonic).is_some()).count();
            assert_eq!(hits, 1, "{mnemonic}");
        }
    }

    fn first_mnemonic(text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, tail) = match rest.as_bytes()[0] {
                b'{' => rest[1..].split_once('}').unwrap(),
                b'[' => ("", rest.split_once(']').unwrap().1),
                _ => rest.split_once(' ').unwrap_or((rest, "")),
            };
            parts.extend(part.split(' ').next().filter(|p| !p.is_empty()));
            rest = tail.trim_start();
        }
        parts.join(".")
    }
}
