//! Gives registers that are never needed at the same time one place. PTX names a new register for almost every result: without
//! this a warp's registers would not fit into the caches of the host.
//!
//! What is needed where holds of each thread alone, so it holds of lanes on different paths too. Registers around `wgmma` keep
//! their own places, as what is known about them is kept by place (`exec/tracking.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cfg::Blocks;
use crate::compact::{self, Role};
use crate::op::{Op, Pc, Program};
use crate::regs::{Bank, Slot};
use crate::table::integer::IntOp;

/// Banks of registers.
const BANKS: usize = 3;

/// What one instruction does with registers, all banks numbered in a row.
#[derive(Default)]
struct Uses {
    reads: Vec<u32>,
    writes: Vec<u32>,
    /// Whether writes happen in every lane that comes by.
    is_certain: bool,
    /// Whether all operands are read before the result is written.
    is_lane_wise: bool,
}

/// Lets registers share places. They are numbered from 0 on in each bank before and after.
pub(crate) fn share(program: &mut Program) {
    let counts = program.registers;
    let first = [0, counts[0], counts[0] + counts[1]];
    let total = counts.iter().sum::<usize>();
    let uses = uses(program, first);
    let (mut spans, mut undefined) = spans(program, &uses, total);
    for alone in around_wgmma(program, counts[0]).into_iter().zip(&mut spans).filter(|(alone, _)| *alone) {
        *alone.1 = (0, u32::MAX);
    }
    let mut places = vec![0; total];
    for bank in 0..BANKS {
        let range = first[bank]..first[bank] + counts[bank];
        program.registers[bank] = color(&spans[range.clone()], &mut places[range]);
    }
    compact::each_mut(program, &mut |bank: Bank, slot: &mut Slot, _| {
        *slot = places[first[bank as usize] + *slot as usize];
    });
    // `wgmma` names its accumulators even where it does not add to them.
    if undefined.is_empty() || program.insts.iter().any(|inst| matches!(inst.op, Op::Wgmma(_))) {
        return;
    }
    // The first instruction in the text that reads each, which is named.
    for (pc, uses) in uses.iter().enumerate() {
        for &id in &uses.reads {
            if undefined.remove(id) {
                let after = first.partition_point(|first| *first <= id as usize);
                let bank = [Bank::Word, Bank::Double, Bank::Pred][after - 1];
                program.undefined.push((bank, places[id as usize], pc as Pc));
            }
        }
    }
}

fn uses(program: &mut Program, first: [usize; BANKS]) -> Vec<Uses> {
    let mut list = Vec::with_capacity(program.insts.len());
    for inst in &mut program.insts {
        let mut uses = Uses { is_certain: inst.guard.is_none(), ..Uses::default() };
        compact::each_of(inst, &mut |bank: Bank, slot: &mut Slot, role| {
            let id = (first[bank as usize] + *slot as usize) as u32;
            match role {
                Role::Read => uses.reads.push(id),
                Role::Write => uses.writes.push(id),
            }
        });
        uses.is_lane_wise = matches!(
            inst.op,
            Op::Int(..) | Op::Float(..) | Op::Half(..) | Op::Compare(..) | Op::Convert(..) | Op::Rare(..)
        );
        list.push(uses);
    }
    list
}

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(total: usize) -> Self {
        Set(vec![0; total.div_ceil(64)])
    }

    fn insert(&mut self, id: u32) {
        self.0[id as usize / 64] |= 1 << (id % 64);
    }

    /// Whether it was there.
    fn remove(&mut self, id: u32) -> bool {
        let was_there = self.contains(id);
        self.0[id as usize / 64] &= !(1 << (id % 64));
        was_there
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn contains(&self, id: u32) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().zip(0u32..).flat_map(|(word, at)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(64 * at + bit)
            })
        })
    }
}

/// From where to where each register is needed, in order of the text. An instruction reads at twice its number and writes after
/// that; whatever lies in a block to whose end a register is needed lies within.
///
/// Also gives the registers that are needed at the very start, when nothing has been written but the constants.
fn spans(program: &Program, uses: &[Uses], total: usize) -> (Vec<(u32, u32)>, Set) {
    let blocks = Blocks::new(program);
    let ends: Vec<usize> = (0..blocks.starts.len()).map(|b| blocks.last(b, uses.len()) + 1).collect();
    let (mut needed, mut kills) = (Vec::new(), Vec::new());
    for (block, start) in blocks.starts.iter().enumerate() {
        let (mut need, mut kill) = (Set::new(total), Set::new(total));
        for uses in &uses[*start as usize..ends[block]] {
            uses.reads.iter().filter(|id| !kill.contains(**id)).for_each(|id| need.insert(*id));
            if uses.is_certain {
                uses.writes.iter().for_each(|id| kill.insert(*id));
            }
        }
        needed.push(need);
        kills.push(kill);
    }
    // Needed at the start of a block; the virtual exit needs nothing.
    needed.push(Set::new(total));
    let mut left = vec![Set::new(total); blocks.starts.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for block in (0..blocks.starts.len()).rev() {
            for word in 0..total.div_ceil(64) {
                let out = blocks.successors[block].iter().fold(0, |bits, to| bits | needed[*to].0[word]);
                left[block].0[word] = out;
                let before = needed[block].0[word] | out & !kills[block].0[word];
                changed |= before != needed[block].0[word];
                needed[block].0[word] = before;
            }
        }
    }
    let mut spans = vec![(u32::MAX, 0); total];
    let mut cover = |id: u32, at: u32| {
        let span: &mut (u32, u32) = &mut spans[id as usize];
        *span = (span.0.min(at), span.1.max(at));
    };
    for (block, start) in blocks.starts.iter().enumerate() {
        needed[block].ids().for_each(|id| cover(id, 2 * start));
        left[block].ids().for_each(|id| cover(id, 2 * ends[block] as u32 - 1));
    }
    for (uses, at) in uses.iter().zip((0u32..).step_by(2)) {
        uses.reads.iter().for_each(|id| cover(*id, at));
        for id in &uses.writes {
            cover(*id, at + 1);
            if !uses.is_lane_wise {
                cover(*id, at);
            }
        }
    }
    // The constants are there from the start.
    let mut undefined = needed.swap_remove(0);
    for constant in &program.constants {
        let first = [0, program.registers[0], program.registers[0] + program.registers[1]];
        let id = first[constant.bank as usize] + constant.slot as usize;
        spans[id].0 = 0;
        undefined.remove(id as u32);
    }
    (spans, undefined)
}

/// The word registers that a `wgmma` has, and those that are moved from or to one of them.
fn around_wgmma(program: &mut Program, words: usize) -> Vec<bool> {
    let mut around = vec![false; words];
    for inst in program.insts.iter_mut().filter(|inst| matches!(inst.op, Op::Wgmma(_))) {
        compact::each_of(inst, &mut |bank: Bank, slot: &mut Slot, _| {
            if bank == Bank::Word {
                around[*slot as usize] = true;
            }
        });
    }
    let mut changed = around.contains(&true);
    while std::mem::take(&mut changed) {
        for inst in &program.insts {
            if let Op::Int(IntOp::MovWord, slots) = &inst.op {
                let (to, from) = (slots[0] as usize, slots[1] as usize);
                if around[to] != around[from] {
                    (around[to], around[from], changed) = (true, true, true);
                }
            }
        }
    }
    around
}

/// Gives every span the lowest place that is free as long as it lasts; the number of places.
fn color(spans: &[(u32, u32)], places: &mut [u32]) -> usize {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|at| spans[*at].0);
    let (mut taken, mut free) = (BinaryHeap::<Reverse<(u32, u32)>>::new(), BinaryHeap::new());
    let mut count = 0;
    for at in order {
        let (start, end) = spans[at];
        while let Some(&Reverse((until, place))) = taken.peek()
            && until < start
        {
            taken.pop();
            free.push(Reverse(place));
        }
        let place = match free.pop() {
            Some(Reverse(place)) => place,
            None => {
                count += 1;
                count - 1
            }
        };
        places[at] = place;
        taken.push(Reverse((end, place)));
    }
    count as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_overlap_have_places_of_their_own() {
        let spans = [(0, 9), (1, 3), (3, 5), (4, 4), (5, 8), (u32::MAX, 0)];
        let mut places = [0; 6];
        assert_eq!(color(&spans, &mut places), 3);
        for (a, b) in (0..5).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let apart = spans[a].1 < spans[b].0 || spans[b].1 < spans[a].0;
            assert!(apart || places[a] != places[b], "{a} and {b}");
        }
    }
}
