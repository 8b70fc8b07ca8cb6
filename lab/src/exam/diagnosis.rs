//! What a wrong output is instead: attention on fewer keys, with another scale, or no attention at all.

use crate::exam::fault::Fault;
use check::reference::{Keys, attention_row, row_coordinates, row_start};
use check::verification::Oracle;
use ferroflash::TensorRole;
use ferroflash::attention::Output;
use ferroflash::rounding::widen;
use std::f64::consts::{LN_2, LOG2_E};

/// Query rows that are computed again under each suspicion.
const ROWS: usize = 24;
/// How near a suspicion must come, as a share of the largest |O|: far more than rounding, far less than what it explains.
const NEAR: f64 = 0.02;
/// Block sizes whose ragged tail a kernel may leave out.
const BLOCKS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// Names the fault of an output that is known to be wrong.
pub(super) fn diagnose(oracle: &Oracle, output: &Output) -> Fault {
    let Oracle { problem, reference: right, .. } = oracle;
    let o: Vec<f64> = output.o.iter().map(|&bits| widen(problem.dtype(), bits)).collect();
    if o.iter().all(|&o| o == 0.0) {
        return Fault::Zeros;
    }
    // The NaN that outputs are filled with is not the one that arithmetic gives.
    if output.o.iter().zip(&right.o).any(|(&bits, right)| bits == u16::MAX && right.is_finite()) {
        return Fault::NotWritten;
    }
    if output.o.iter().all(|&bits| bits == output.o[0]) {
        return Fault::Constant;
    }
    let suspect = Suspect::new(oracle, &o);
    let scale = f64::from(problem.scale());
    let seqlen_k = problem.sizes().seqlen_k as usize;
    let halves: [Keys<'_>; 6] = [
        &|j, visible| j < visible.div_ceil(2),
        &|j, visible| j >= visible / 2,
        &|j, _| j < seqlen_k.div_ceil(2),
        &|j, _| j >= seqlen_k / 2,
        &|j, _| j % 2 == 0,
        &|j, _| j % 2 == 1,
    ];
    if halves.iter().any(|keys| suspect.explains(scale, *keys)) {
        return Fault::HalfTheKeys;
    }
    let tail = |block: usize| suspect.explains(scale, &|j, _| j < seqlen_k / block * block);
    let is_ragged = |block: &usize| !seqlen_k.is_multiple_of(*block) && seqlen_k > *block;
    let last_block = |block: usize| suspect.explains(scale, &|j, _| j < seqlen_k.saturating_sub(block));
    if BLOCKS.iter().filter(|block| is_ragged(block)).any(|&block| tail(block))
        || BLOCKS.iter().filter(|block| **block < seqlen_k).any(|&block| last_block(block))
        || suspect.explains(scale, &|j, _| j + 1 < seqlen_k)
    {
        return Fault::DroppedTail;
    }
    let root = f64::from(problem.sizes().head_dim).sqrt();
    let factors =
        [LOG2_E, LN_2, 0.5, 2.0, root, 1.0 / root, 0.25, 4.0, 0.9, 1.1, 0.75, 1.25, 1.5, 1.0 / scale];
    if factors.iter().any(|factor| suspect.explains(scale * factor, &|_, _| true)) {
        return Fault::WrongScale;
    }
    Fault::WrongNumbers
}

/// A wrong output, and some of its rows.
struct Suspect<'a> {
    oracle: &'a Oracle,
    o: &'a [f64],
    rows: Vec<[usize; 3]>,
    /// How far a row may be from a suspicion that explains it.
    near: f64,
}

impl<'a> Suspect<'a> {
    /// Takes the rows that are furthest from right, half of them, and others from all over.
    fn new(oracle: &'a Oracle, o: &'a [f64]) -> Suspect<'a> {
        let Oracle { problem, reference: right, .. } = oracle;
        let (head_dim, total) = (problem.sizes().head_dim as usize, problem.lse_len());
        let at = |row: usize| row_coordinates(problem, row);
        let error = |row: usize| {
            let start = row_start(problem, TensorRole::O, at(row));
            let pairs = o[start..start + head_dim].iter().zip(&right.o[start..]);
            pairs.map(|(o, right)| (o - right).abs()).fold(0.0, f64::max)
        };
        let mut order: Vec<usize> = (0..total).collect();
        order.sort_by(|&a, &b| error(b).total_cmp(&error(a)));
        order.truncate(ROWS / 2);
        order.extend((0..ROWS / 2).map(|part| part * total.saturating_sub(1) / (ROWS / 2 - 1)));
        let largest = right.o.iter().filter(|o| o.is_finite()).fold(0.0, |max: f64, o| max.max(o.abs()));
        Suspect { oracle, o, rows: order.into_iter().map(at).collect(), near: NEAR * largest }
    }

    /// Whether every row is attention with this scale over these keys.
    fn explains(&self, scale: f64, keys: Keys<'_>) -> bool {
        let Oracle { problem, qkv, .. } = self.oracle;
        let element = |role: TensorRole, index: usize| widen(problem.dtype(), qkv[role as usize][index]);
        self.rows.iter().all(|&at| {
            let start = row_start(problem, TensorRole::O, at);
            let (expected, _) = attention_row(problem, element, None, at, scale, keys);
            expected.iter().zip(&self.o[start..]).all(|(expected, o)| (expected - o).abs() <= self.near)
        })
    }
}
