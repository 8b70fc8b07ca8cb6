//! `wgmma` (PTX ISA §9.7.15): four warps multiply a 64×16 A, from shared memory or registers, with a 16×N B from shared memory.
//! The four come together at each product, as B is read for all of them; it is computed then, and its registers and tiles may
//! not be touched until its group is waited for. Products are exact; each element is summed in f32 in order of k.
//!
//! With g = lane/4 and t = lane mod 4, register i of D in warp w holds row 16·w + g + 8·(i/2 mod 2), column
//! 8·(i/4) + 2t + i mod 2; A in registers is the fragment of `mma` m16n8k16.

use crate::clock::{AgentOf, Clock};
use crate::finding::{Fault, FindingKind, Outcome};
use crate::float::{bf16_to_f32, canonical_bits, f16_to_f32};
use crate::mark::{Later, Who};
use crate::matrix_type::MatrixType;
use crate::op::{Op, Pc, Wgmma, WgmmaA};
use crate::regs::{LANES, Regs, Slot};
use crate::wide::{add_product, compiled_twice};

use super::cta::Cta;
use super::descriptor::Descriptor;
use super::mma::{halves, packed};
use super::schedule::{Blamed, State};
use super::warp::{Wait, Warp};

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;
const K: usize = 16;

/// The agent of a warpgroup's groups.
pub(super) fn agent_of(warp: u32) -> AgentOf {
    AgentOf::Warpgroup(warp / WARPS as u32)
}

impl Warp {
    /// Where the warp waits for the rest of its warpgroup.
    pub(super) fn at_wgmma(&self) -> Option<(usize, Pc)> {
        let first = self.paths.first()?;
        let waits = self.paths.iter().all(|p| p.wait == Wait::Warpgroup);
        waits.then_some((self.frames[first.frame].as_ref()?.program, first.pc))
    }
}

/// The parts of the operands that do not depend on the warp.
struct Tiles {
    /// Row k holds N values, each eight of them in `COLUMN_ORDER`.
    b: Vec<f32>,
    /// Row m holds those of k; `None` if A is in registers.
    a: Option<Vec<f32>>,
}

impl Cta<'_> {
    /// Runs the product that a warp has come to, if the other three have come too.
    pub(super) fn join_warpgroup(&mut self, at: usize, warps: &mut [Warp], states: &mut [State]) -> Blamed {
        let Some(place) = warps[at].at_wgmma() else { return Ok(()) };
        let first = at / WARPS * WARPS;
        let diverged = |detail| Fault::new(FindingKind::DivergedWarpgroup).saying(detail);
        let Some(group) = warps.get_mut(first..first + WARPS) else {
            return Err((at, diverged("the last warps of the CTA are no whole warpgroup")));
        };
        if group.iter().any(|w| w.at_wgmma().is_none()) {
            return Ok(());
        }
        if group.iter().any(|w| w.at_wgmma() != Some(place)) {
            return Err((at, diverged("the warps of a warpgroup wait at different wgmma")));
        }
        self.wgmma(place, group).map_err(|(i, fault)| (first + i, fault))?;
        for (warp, state) in group.iter_mut().zip(&mut states[first..]) {
            warp.release(|p| p.wait == Wait::Warpgroup);
            *state = State::Ready;
        }
        Ok(())
    }

    fn wgmma(&mut self, (program, pc): (usize, Pc), group: &mut [Warp]) -> Blamed {
        let launch = self.launch;
        let Op::Wgmma(op) = &launch.program(program).insts[pc as usize].op else { return Ok(()) };
        let frames: Vec<usize> = group.iter().map(|w| w.paths[0].frame).collect();
        for (i, warp) in group.iter_mut().enumerate() {
            warp.at = (program, pc);
            if self.launch.config.checks.async_copies {
                warp.claim_registers(op, frames[i]).map_err(|fault| (i, fault))?;
            }
        }
        let number = group[0].wgmma.open_group();
        if let Some(i) = group.iter().position(|w| w.wgmma.open_group() != number) {
            let detail = "the warps of a warpgroup have committed different numbers of groups";
            return Err((i, Fault::new(FindingKind::DivergedWarpgroup).saying(detail)));
        }
        let tiles = self.tiles(op, &frames, number, group).map_err(|fault| (0, fault))?;
        for (i, warp) in group.iter_mut().enumerate() {
            let regs = &mut warp.frame(frames[i]).map_err(|fault| (i, fault))?.regs;
            multiply(op, regs, &tiles, i);
        }
        self.counters.wgmma += 1;
        // A row of A and a column of B have 256 bits.
        let rows_of_a = if matches!(op.a, WgmmaA::Shared(_)) { 64 } else { 0 };
        self.counters.wgmma_operand_bytes += 32 * (rows_of_a + op.n as u64);
        self.counters.tensor_flops += 2 * 64 * (op.n * k_of(op.a_type)) as u64;
        self.progress += 1;
        Ok(())
    }

    /// Reads what lies in shared memory, as the warpgroup's agent.
    fn tiles(&mut self, op: &Wgmma, frames: &[usize], number: u32, group: &mut [Warp]) -> Outcome<Tiles> {
        check_scale(op, frames, group)?;
        let b = uniform(group, frames, op.b)?;
        let a = match op.a {
            WgmmaA::Shared(slot) => Some(uniform(group, frames, slot)?),
            WgmmaA::Registers(_) => None,
        };
        let mut clock: Option<Clock> = None;
        for warp in group.iter() {
            let seen = warp.release_clock(warp.live);
            // What all four have seen: any of them may be the one that reads.
            match &mut clock {
                Some(clock) => clock.meet(&seen),
                None => clock = Some(seen),
            }
        }
        let clock = clock.unwrap_or_default();
        let agent = self.agents.number(agent_of(group[0].index));
        let (leader, place) = (group[0].index, group[0].at);
        let who = Who {
            // None of them alone: what each of them wrote must be known to the others.
            agent: crate::clock::Agent::MAX,
            group: self.group,
            lane: 0,
            lanes: 0,
            line: self.launch.line(place),
            strong: None,
            clock: &clock,
            now: 0,
            synced: 0,
            met: (0, 0),
            later: Some(Later { agent, time: number, by_async_proxy: true }),
            order: None,
            warps: self.launch.warps() as u16,
        };
        let mut read = |operand: &Operand, bits: u64| -> Outcome<Vec<f32>> {
            let (ty, extent) = (operand.ty, operand.extent);
            let descriptor = Descriptor::decode(bits, operand.mn_major, extent as u64)
                .map_err(|detail| Fault::at(FindingKind::BadOperand, 0, bits).saying(detail))?;
            let (steps_mn, steps_k) = if operand.mn_major { (8, 1) } else { (1, 8) };
            let mut places = Vec::with_capacity(extent * K / 8);
            for mn in (0..extent).step_by(steps_mn) {
                for k in (0..K).step_by(steps_k) {
                    let address = descriptor.chunk(mn as u64, k as u64);
                    if let Some(offset) = self.shared.offset(0, address, 16)? {
                        places.push((mn, k, offset));
                    }
                }
            }
            let all = places.iter().map(|(.., offset)| (*offset as u32, 0));
            let is_clean = self.shared.note_reads(0, all, 16, &who);
            let mut tile = vec![0.0; extent * k_of(ty)];
            for (mn, k, offset) in places {
                if !is_clean {
                    self.note_read(self.rank, offset, 16, &who, (leader, place))?;
                }
                operand.put(&mut tile, (mn, k), &self.shared.load(offset, 16));
            }
            Ok(tile)
        };
        let operand_a = Operand {
            ty: op.a_type,
            extent: 64,
            mn_major: op.a_mn_major,
            is_negative: op.a_negative,
            is_b: false,
        };
        let operand_b = Operand {
            ty: op.b_type,
            extent: op.n,
            mn_major: op.b_mn_major,
            is_negative: op.b_negative,
            is_b: true,
        };
        let a = a.map(|bits| read(&operand_a, bits)).transpose()?;
        Ok(Tiles { a, b: read(&operand_b, b)? })
    }
}

/// How an operand lies in shared memory, and in [`Tiles`].
struct Operand {
    ty: MatrixType,
    /// Rows of A, columns of B.
    extent: usize,
    /// Whether a chunk of 16 bytes runs along m or n, else along k.
    mn_major: bool,
    is_negative: bool,
    is_b: bool,
}

impl Operand {
    /// Where the element of that row or column and that k lies in the tile.
    #[inline]
    fn place(&self, mn: usize, k: usize) -> usize {
        if self.is_b { k * self.extent + column_place(mn) } else { mn * k_of(self.ty) + k }
    }

    /// Puts the elements of a chunk of 16 bytes in their places. The chunk starts at row or column `mn` and, in elements of two bytes, at `k`.
    fn put(&self, tile: &mut [f32], (mn, k): (usize, usize), words: &[u32; 4]) {
        let halves = match self.ty {
            MatrixType::F16 => halves(words, f16_to_f32),
            MatrixType::Bf16 => halves(words, bf16_to_f32),
            _ => return self.put_any(tile, (mn, k), words),
        };
        let sign = if self.is_negative { -1.0 } else { 1.0 };
        if self.is_b && self.mn_major {
            // The low halves are the even columns.
            let at = k * self.extent + mn;
            for (to, value) in tile[at..at + 8].iter_mut().zip(halves.as_flattened()) {
                *to = sign * value;
            }
            return;
        }
        let (mut at, (step, half)) = (
            self.place(mn, k),
            match (self.is_b, self.mn_major) {
                (true, _) => (2 * self.extent, self.extent),
                (false, true) => (2 * K, K),
                (false, false) => (2, 1),
            },
        );
        for (low, high) in halves[0].iter().zip(halves[1]) {
            (tile[at], tile[at + half]) = (sign * low, sign * high);
            at += step;
        }
    }

    /// The same of types that are no two bytes, whose chunks run along k.
    fn put_any(&self, tile: &mut [f32], (mn, k): (usize, usize), words: &[u32; 4]) {
        let (per, sign) = (32 / self.ty.bits(), if self.is_negative { -1.0 } else { 1.0 });
        let first = k * k_of(self.ty) / K;
        for (i, &word) in words.iter().enumerate() {
            for part in 0..per {
                tile[self.place(mn, first + i * per + part)] = sign * value(self.ty, word, part);
            }
        }
    }
}

/// Where a column stands among those of its row in [`Tiles`].
fn column_place(column: usize) -> usize {
    column / 8 * 8 + column % 2 * 4 + column % 8 / 2
}

/// Whether D is added to must be the same in all lanes of all four warps.
fn check_scale(op: &Wgmma, frames: &[usize], group: &mut [Warp]) -> Outcome {
    let mut all = Vec::with_capacity(WARPS);
    for (warp, frame) in group.iter_mut().zip(frames) {
        all.push(warp.frame(*frame)?.regs.pred[op.scale_d as usize]);
    }
    if all.iter().all(|bits| *bits == 0) || all.iter().all(|bits| *bits == u32::MAX) {
        return Ok(());
    }
    Err(Fault::new(FindingKind::BadOperand).saying("scale-d differs within the warpgroup"))
}

/// A descriptor, which must be the same in all lanes of all four warps.
fn uniform(group: &mut [Warp], frames: &[usize], slot: Slot) -> Outcome<u64> {
    let mut all = Vec::with_capacity(WARPS * LANES);
    for (warp, frame) in group.iter_mut().zip(frames) {
        all.extend(warp.frame(*frame)?.regs.double[slot as usize]);
    }
    match all.iter().find(|value| **value != all[0]) {
        None => Ok(all[0]),
        Some(other) => {
            let detail = "a matrix descriptor differs within the warpgroup";
            Err(Fault::at(FindingKind::BadOperand, 0, *other).saying(detail))
        }
    }
}

/// Elements of k: 32 bytes.
fn k_of(ty: MatrixType) -> usize {
    256 / ty.bits()
}

/// An element of a word. Integers of eight bits and single bits are exact in f32.
fn value(ty: MatrixType, word: u32, part: usize) -> f32 {
    if ty.is_integer() { ty.integer(word.into(), part) as f32 } else { ty.number(word.into(), part) }
}

/// Rows and columns whose sums stay in registers together.
const ROWS: usize = 4;
const COLUMNS: usize = 16;

/// Adds the products of a few rows of A and columns of B from `at` on, in order of k; rows of B and sums have `n` values.
#[inline(always)]
fn add_products<const N: usize, const FUSED: bool>(
    a: &[f32],
    b: &[f32],
    (k, n, at): (usize, usize, usize),
    sums: &mut [f32],
    exact: bool,
) {
    let mut totals = [[0f32; N]; ROWS];
    for (total, sums) in totals.iter_mut().zip(sums.chunks_exact(n)) {
        total.copy_from_slice(&sums[at..at + N]);
    }
    let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &a[row * k..(row + 1) * k]);
    for (i, b) in b.chunks_exact(n).take(k).enumerate() {
        let b = &b[at..at + N];
        for (row, total) in rows.iter().zip(&mut totals) {
            let x = row[i];
            for (total, y) in total.iter_mut().zip(b) {
                *total = add_product::<FUSED>(*total, x, *y, exact);
            }
        }
    }
    for (total, sums) in totals.iter().zip(sums.chunks_exact_mut(n)) {
        sums[at..at + N].copy_from_slice(total);
    }
}

compiled_twice! {
    /// Adds the products of rows of A of `k` values and B, of rows of `n`: of a multiple of four rows, and of eight columns.
    fn add_rows(a: &[f32], b: &[f32], k: usize, n: usize, sums: &mut [f32], exact: bool) {
        for (a, sums) in a.chunks_exact(ROWS * k).zip(sums.chunks_exact_mut(ROWS * n)) {
            let done = n / COLUMNS * COLUMNS;
            for at in (0..done).step_by(COLUMNS) {
                add_products::<COLUMNS, FUSED>(a, b, (k, n, at), sums, exact);
            }
            if done < n {
                add_products::<8, FUSED>(a, b, (k, n, done), sums, exact);
            }
        }
    }
}

/// One warp's sixteen rows.
fn multiply(op: &Wgmma, regs: &mut Regs, tiles: &Tiles, warp: usize) {
    let (n, k) = (op.n, k_of(op.a_type));
    let keeps = (regs.pred[op.scale_d as usize] & 1 == 1) != op.scale_d_negated;
    let own = match (&tiles.a, &op.a) {
        (None, WgmmaA::Registers(slots)) => fragment(op, regs, slots),
        (tile, _) => tile.iter().flat_map(|t| &t[16 * warp * k..16 * (warp + 1) * k]).copied().collect(),
    };
    if op.a_type.is_integer() {
        return multiply_integers(op, regs, (&own, &tiles.b), keeps);
    }
    let mut sum = vec![0f32; 16 * n];
    if keeps {
        for (i, &slot) in op.d.iter().enumerate() {
            let words = &regs.word[slot as usize];
            for (at, words) in rows_of(i, op.d_f16, n).zip(words.as_chunks::<4>().0) {
                if op.d_f16 {
                    sum[at..at + 8].copy_from_slice(halves(words, f16_to_f32).as_flattened());
                } else {
                    sum[at..at + 4].copy_from_slice(&words.map(f32::from_bits));
                }
            }
        }
    }
    // Products of tf32 and bf16 may be too small for f32.
    let exact = ![op.a_type, op.b_type].iter().any(|ty| matches!(ty, MatrixType::Tf32 | MatrixType::Bf16));
    add_rows(&own, &tiles.b, k, n, &mut sum, exact);
    for (i, &slot) in op.d.iter().enumerate() {
        let words = &mut regs.word[slot as usize];
        for (at, words) in rows_of(i, op.d_f16, n).zip(words.as_chunks_mut::<4>().0) {
            for (t, word) in words.iter_mut().enumerate() {
                *word = if op.d_f16 {
                    packed([sum[at + t], sum[at + 4 + t]])
                } else {
                    canonical_bits(sum[at + t])
                };
            }
        }
    }
}

/// Where the sums begin that each four lanes have in register `i` of D: of f16 eight, two to a lane, else the four of the even or the odd
/// columns.
fn rows_of(i: usize, d_f16: bool, n: usize) -> impl Iterator<Item = usize> {
    let (columns, down) = if d_f16 { (8 * (i / 2), i % 2) } else { (8 * (i / 4) + 4 * (i % 2), i / 2 % 2) };
    (0..8).map(move |g| (g + 8 * down) * n + columns)
}

fn multiply_integers(op: &Wgmma, regs: &mut Regs, (a, b): (&[f32], &[f32]), keeps: bool) {
    let (n, k) = (op.n, k_of(op.a_type));
    for (i, &slot) in op.d.iter().enumerate() {
        let old = regs.word[slot as usize];
        regs.word[slot as usize] = std::array::from_fn(|lane| {
            let (row, column) = (place_of(i, lane, n) / n, place_of(i, lane, n) % n);
            let x: Vec<i32> = a[row * k..(row + 1) * k].iter().map(|x| *x as i32).collect();
            let y: Vec<i32> = (0..k).map(|at| b[at * n + column_place(column)] as i32).collect();
            let start = if keeps { old[lane] as i32 } else { 0 };
            super::wmma::integer_sum(start, op.a_type, &x, &y, op.saturates) as u32
        });
    }
}

/// Row and column of register `i` of D, as an index.
fn place_of(i: usize, lane: usize, n: usize) -> usize {
    (lane / 4 + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + 2 * (lane % 4) + i % 2
}

/// A in registers: sixteen rows.
fn fragment(op: &Wgmma, regs: &Regs, slots: &[Slot]) -> Vec<f32> {
    let sign = if op.a_negative { -1.0 } else { 1.0 };
    let (k, per) = (k_of(op.a_type), 32 / op.a_type.bits());
    let mut rows = vec![0.0; 16 * k];
    for (i, &slot) in slots.iter().enumerate() {
        let words = &regs.word[slot as usize];
        let first = 8 * (i % 2) * k + 4 * per * (i / 2);
        let halves = match op.a_type {
            MatrixType::F16 => halves(words, f16_to_f32),
            MatrixType::Bf16 => halves(words, bf16_to_f32),
            _ => {
                for (lane, &word) in words.iter().enumerate() {
                    for part in 0..per {
                        let at = first + lane / 4 * k + per * (lane % 4) + part;
                        rows[at] = sign * value(op.a_type, word, part);
                    }
                }
                continue;
            }
        };
        for (lane, (low, high)) in halves[0].iter().zip(halves[1]).enumerate() {
            let at = first + lane / 4 * k + 2 * (lane % 4);
            (rows[at], rows[at + 1]) = (sign * low, sign * high);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_in_order_of_k_with_the_same_bits_however_they_are_compiled() {
        let number = |i: usize| f16_to_f32((i * 40_503 % 65_521) as u16);
        for n in [8, 24, 64] {
            let (a, b): (Vec<f32>, Vec<f32>) =
                ((0..16 * K).map(number).collect(), (0..K * n).map(|i| number(i + 77)).collect());
            let (mut sum, mut expected) = (vec![0.5; 16 * n], vec![0.5f32; 16 * n]);
            for at in 0..16 * n {
                let terms = (0..K).map(|k| a[at / n * K + k] * b[k * n + at % n]);
                expected[at] = terms.fold(expected[at], |sum, term| sum + term);
            }
            add_rows(&a, &b, K, n, &mut sum, true);
            let bits = |list: &[f32]| list.iter().map(|x| canonical_bits(*x)).collect::<Vec<_>>();
            assert_eq!(bits(&sum), bits(&expected), "{n}");
        }
    }

    #[test]
    fn every_element_of_the_accumulator_has_one_place() {
        let n = 24;
        let mut places: Vec<usize> =
            (0..n / 2).flat_map(|i| (0..LANES).map(move |lane| place_of(i, lane, n))).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..16 * n));
    }
}
