//! Reproducible inputs: the same seed gives the same bits on every machine.

use crate::reference::{gradient_start, row_start};
use ferroflash::Backward;
use ferroflash::problem::{Extent, Problem, TensorRole};
use ferroflash::rounding::narrow;
use kernels_gpu::row::Dtype;
use std::ops::Range;

/// How values are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Standard normal.
    Random,
    /// As trained models have them: one channel in sixteen of Q and K is 4 times the rest, one token in 32 another
    /// 2 times, so that single keys dominate the softmax.
    Outliers,
    /// Every element of a tensor the same: 0.5 in Q, −0.25 in K, 0.75 in V, which no wrong scale or order of the tensors confuses.
    Constant,
    /// Zero.
    Zero,
    /// Standard normal, but one element each is NaN in the last key of the first KV head, in the value in the middle
    /// of the last KV head, and in the first query row of the last head.
    NotANumber,
}

impl InputKind {
    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            InputKind::Random => "random",
            InputKind::Outliers => "outliers",
            InputKind::Constant => "constant",
            InputKind::Zero => "zero",
            InputKind::NotANumber => "nan",
        }
    }
}

/// Q, K and V as bits of the problem's dtype in its layout. Gaps between strided rows are NaN.
pub fn qkv(problem: &Problem, kind: InputKind, seed: u64) -> [Vec<u16>; 3] {
    let mut random = Random::new(seed);
    [TensorRole::Q, TensorRole::K, TensorRole::V].map(|role| tensor(problem, role, kind, &mut random))
}

/// dO as bits of the problem's dtype in the strides of a backward pass, gaps NaN, and a gradient of LSE. One element of dO is NaN in the
/// middle row of the first head where Q, K and V have some.
pub fn d_output(backward: &Backward, kind: InputKind, seed: u64) -> (Vec<u16>, Vec<f32>) {
    let (problem, mut random) = (backward.problem(), Random::new(seed));
    let Extent { batch, heads, rows, width } = problem.extent(TensorRole::O);
    let mut d_o = vec![nan(problem.dtype()); backward.len(TensorRole::O)];
    for (batch, head, row) in (0..batch)
        .flat_map(|batch| (0..heads).flat_map(move |head| (0..rows).map(move |row| (batch, head, row))))
    {
        let start = gradient_start(backward, TensorRole::O, [batch, head, row].map(|n| n as usize));
        for (channel, element) in d_o[start..][..width as usize].iter_mut().enumerate() {
            let value = match kind {
                InputKind::Constant => 0.25,
                InputKind::Zero => 0.0,
                InputKind::Random | InputKind::Outliers | InputKind::NotANumber => random.normal(),
            };
            let is_poisoned = kind == InputKind::NotANumber && (head, row, channel) == (0, rows / 2, 2);
            *element = narrow(problem.dtype(), if is_poisoned { f64::NAN } else { value });
        }
    }
    let d_lse = (0..problem.lse_len()).map(|_| random.normal() as f32).collect();
    (d_o, d_lse)
}

/// A length for each sequence, 1 to seqlen_k, every one as likely.
pub fn lengths(problem: &Problem, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let seqlen_k = u64::from(problem.sizes().seqlen_k);
    (0..problem.sizes().batch).map(|_| (1 + random.next_u64() % seqlen_k) as u32).collect()
}

/// Puts NaN in place of the keys and values behind each sequence's last.
pub fn poison_behind(problem: &Problem, seqlens_k: &[u32], qkv: &mut [Vec<u16>; 3]) {
    for role in [TensorRole::K, TensorRole::V] {
        poison_rows(problem, role, seqlens_k, &mut qkv[role as usize]);
    }
}

/// Puts NaN into the rows of a tensor behind the first so many of each batch entry or page.
pub(crate) fn poison_rows(problem: &Problem, role: TensorRole, used: &[u32], data: &mut [u16]) {
    let rows = problem.extent(role).rows;
    for (entry, &used) in used.iter().enumerate().take(problem.extent(role).batch as usize) {
        poison_entry(problem, role, (entry, used.min(rows)..rows), data);
    }
}

/// Puts NaN into the rows before one of every batch entry.
pub(crate) fn poison_before(problem: &Problem, role: TensorRole, first: u32, data: &mut [u16]) {
    for entry in 0..problem.extent(role).batch as usize {
        poison_entry(problem, role, (entry, 0..first), data);
    }
}

/// Copies the rows from one on of every batch entry from one tensor to another.
pub(crate) fn copy_from_row(
    problem: &Problem,
    role: TensorRole,
    first: u32,
    (from, to): (&[u16], &mut [u16]),
) {
    let Extent { batch, rows, .. } = problem.extent(role);
    let copied = (0..batch as usize).flat_map(|entry| elements(problem, role, (entry, first..rows)));
    copied.for_each(|row| to[row.clone()].copy_from_slice(&from[row]));
}

fn poison_entry(problem: &Problem, role: TensorRole, rows: (usize, Range<u32>), data: &mut [u16]) {
    elements(problem, role, rows).for_each(|row| data[row].fill(nan(problem.dtype())));
}

/// Where some rows of all heads of a batch entry or page lie, row by row.
fn elements(
    problem: &Problem,
    role: TensorRole,
    (entry, rows): (usize, Range<u32>),
) -> impl Iterator<Item = Range<usize>> {
    let Extent { heads, width, .. } = problem.extent(role);
    (0..heads).flat_map(move |head| {
        rows.clone().map(move |row| {
            let start = row_start(problem, role, [entry, head as usize, row as usize]);
            start..start + width as usize
        })
    })
}

fn tensor(problem: &Problem, role: TensorRole, kind: InputKind, random: &mut Random) -> Vec<u16> {
    let Extent { batch, heads, rows, width } = problem.extent(role);
    let mut data = vec![nan(problem.dtype()); problem.len(role)];
    for batch in 0..batch as usize {
        for head in 0..heads as usize {
            for row in 0..rows as usize {
                let large_token = random.next_u64().is_multiple_of(32);
                let start = row_start(problem, role, [batch, head, row]);
                let poisoned = match role {
                    TensorRole::K => head == 0 && row + 1 == rows as usize,
                    TensorRole::Q => head + 1 == heads as usize && row == 0,
                    // Where the mask hides it, its P is 0, and 0 · NaN must not reach O.
                    TensorRole::V => head + 1 == heads as usize && row == rows as usize / 2,
                    TensorRole::O => false,
                };
                for (channel, element) in data[start..][..width as usize].iter_mut().enumerate() {
                    let mut value = match kind {
                        InputKind::Constant => constant(role),
                        InputKind::Zero => 0.0,
                        InputKind::Random | InputKind::Outliers | InputKind::NotANumber => random.normal(),
                    };
                    if kind == InputKind::Outliers && matches!(role, TensorRole::Q | TensorRole::K) {
                        value *= if channel % 16 == 3 { 4.0 } else { 1.0 };
                        value *= if large_token { 2.0 } else { 1.0 };
                    }
                    *element = narrow(problem.dtype(), value);
                    if kind == InputKind::NotANumber && poisoned && channel == 1 {
                        *element = nan(problem.dtype());
                    }
                }
            }
        }
    }
    data
}

fn constant(role: TensorRole) -> f64 {
    match role {
        TensorRole::Q => 0.5,
        TensorRole::K => -0.25,
        TensorRole::V | TensorRole::O => 0.75,
    }
}

fn nan(dtype: Dtype) -> u16 {
    narrow(dtype, f64::NAN)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// One of 0 to `n` − 1.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        (self.next_u64() % u64::from(n)) as u32
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    /// One of `least` to `most`, every magnitude as likely.
    pub(crate) fn log_uniform(&mut self, least: u32, most: u32) -> u32 {
        let share = (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let ratio = (f64::from(most) + 1.0) / f64::from(least);
        ((f64::from(least) * ratio.powf(share)) as u32).clamp(least, most)
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Sum of twelve uniform numbers less 6: normal enough, and without functions that differ between machines.
    fn normal(&mut self) -> f64 {
        /// Every second of a word's four numbers of 16 bits, each with room for a sum.
        const EVERY_SECOND: u64 = 0x0000_ffff_0000_ffff;
        let two_sums = |word: u64| (word & EVERY_SECOND) + (word >> 16 & EVERY_SECOND);
        let sums: u64 = (0..3).map(|_| two_sums(self.next_u64())).sum();
        f64::from((sums >> 32) as u32 + sums as u32) / 65536.0 - 6.0
    }
}
