//! Finds the row of the table for a mnemonic.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use crate::op::Op;
use crate::regs::Slots;
use crate::table::compare::CompareOp;
use crate::table::convert::ConvertOp;
use crate::table::family::{self, Family};
use crate::table::float::FloatOp;
use crate::table::half::HalfOp;
use crate::table::integer::IntOp;
use crate::table::rare::RareOp;
use crate::table::{LaneRow, Shape, pattern};

/// A lane-wise operation of any table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaneOp {
    Int(IntOp),
    Float(FloatOp),
    Half(HalfOp),
    Compare(CompareOp),
    Convert(ConvertOp),
    Rare(RareOp),
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
            LaneOp::Rare(op) => Op::Rare(op, slots),
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
        .chain(erase(RareOp::ROWS, LaneOp::Rare))
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
    /// Mnemonics whose words go together and which the target has.
    legal: HashSet<&'m str>,
}

impl<'m> Lookup<'m> {
    /// The form of a mnemonic; lane-wise rows come before families.
    pub(crate) fn find(&mut self, mnemonic: &'m str) -> Option<Form<'m>> {
        self.seen.entry(mnemonic).or_insert_with(|| find(mnemonic)).clone()
    }

    /// Whether a mnemonic is known to be legal.
    pub(crate) fn is_legal(&self, mnemonic: &str) -> bool {
        self.legal.contains(mnemonic)
    }

    /// Remembers that it is.
    pub(crate) fn set_legal(&mut self, mnemonic: &'m str) {
        self.legal.insert(mnemonic);
    }
}

fn find(mnemonic: &str) -> Option<Form<'_>> {
    let head = pattern::parts(mnemonic).next()?;
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
            let mnemonic = words(lane.pattern, false).join(".");
            let hits = all.iter().filter(|l| pattern::captures(l.pattern, &mnemonic).is_some()).count();
            assert_eq!(hits, 1, "{mnemonic}");
        }
    }

    #[test]
    fn every_row_is_found_whatever_the_order_of_its_qualifiers() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let patterns = lanes().map(|l| l.pattern).chain(family::rows().map(|r| r.pattern));
        for (text, options) in patterns.flat_map(|p| [(p, false), (p, true)]) {
            let in_order = words(text, options);
            let joined = in_order.join(".");
            let expected = pattern::captures(text, &joined);
            assert!(expected.is_some(), "{text}");
            for _ in 0..20 {
                // A shuffle that leaves the types, the spaces and the layouts among themselves as they are.
                let (mut free, mut fixed): (Vec<&str>, Vec<&str>) =
                    in_order[1..].iter().partition(|word| !pattern::keeps_order(word));
                fixed.reverse();
                let mut shuffled = vec![in_order[0]];
                while !free.is_empty() || !fixed.is_empty() {
                    let at = random(free.len() + fixed.len());
                    shuffled.push(if at < free.len() { free.swap_remove(at) } else { fixed.pop().unwrap() });
                }
                let mnemonic = shuffled.join(if random(4) == 0 { " ." } else { "." });
                let found: Option<Vec<&str>> = pattern::captures(text, &mnemonic);
                assert_eq!(found, expected, "{mnemonic}");
            }
        }
    }

    /// The words of a row's mnemonic: the first choices, without or with the options.
    fn words(text: &str, options: bool) -> Vec<&str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, tail) = match rest.as_bytes()[0] {
                b'{' => rest[1..].split_once('}').unwrap(),
                b'[' if options => rest[1..].split_once(']').unwrap(),
                b'[' => ("", rest.split_once(']').unwrap().1),
                _ => rest.split_once(' ').unwrap_or((rest, "")),
            };
            parts.extend(part.split(' ').next().filter(|p| !p.is_empty()));
            rest = tail.trim_start();
        }
        parts
    }
}
