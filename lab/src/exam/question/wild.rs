//! Questions that reach code which no other one does: conditions that no number in the code tells, such as a hash of sizes, two sizes that are
//! compared with each other, or three properties at once.

use super::{Code, Placement, Question, log_uniform};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use fastrand::Rng;
use ferroflash::Row;
use kernels_gpu::geometry::SPLITS_MAX;
use kernels_gpu::row::Schedule;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Questions that are drawn.
const DRAWN: usize = 4000;
/// Those of them that are asked at most.
const MOST: usize = 48;
/// Questions that have to reach a piece of code.
const ENOUGH: usize = 4;
/// Tiles of 64 queries and 64 keys that one may have.
const TILES: u32 = 1600;
/// Rows of splits that a kernel of its own may merge.
const MERGED: u64 = 15_000;
/// The largest number of queries or keys.
const ROWS_MAX: u32 = 70_000;

/// Of many questions those that reach code which too few of the ones `asked`, and of those before them, do: for each piece of it the smallest one, and
/// others of any size, as a mistake need not show in each.
pub(super) fn reaching(row: &Row, code: &Code<'_>, asked: &[&Question], random: &mut Rng) -> Vec<Question> {
    let sizes: Vec<u32> = code.literals.sizes().collect();
    let mut drawn: Vec<Question> = (0..DRAWN).map(|_| draw(row, &sizes, random)).collect();
    drawn.retain(|question| question.has_room(row) && question.merged() <= MERGED);
    let found = drawn.par_iter().map(|question| (code.reached)(question)).collect::<Vec<_>>();
    let known = asked.par_iter().map(|question| (code.reached)(question)).collect::<Vec<_>>();
    let mut times: HashMap<u32, usize> = HashMap::new();
    known.into_iter().for_each(|found| count(&found, &mut times));
    let mut by_size: Vec<usize> = (0..drawn.len()).collect();
    by_size.sort_by(|&a, &b| drawn[a].spec.flops().total_cmp(&drawn[b].spec.flops()));
    let mut chosen = Vec::new();
    for (order, enough) in [(by_size, 1), ((0..drawn.len()).collect(), ENOUGH)] {
        for at in order {
            let is_new = found[at].iter().any(|number| times.get(number).is_none_or(|times| *times < enough));
            if is_new && chosen.len() < MOST && !chosen.contains(&at) {
                count(&found[at], &mut times);
                chosen.push(at);
            }
        }
    }
    chosen.into_iter().map(|at| drawn[at].clone()).collect()
}

/// Counts what a question reaches.
fn count(found: &[u32], times: &mut HashMap<u32, usize>) {
    let once: HashSet<&u32> = found.iter().collect();
    once.into_iter().for_each(|number| *times.entry(*number).or_default() += 1);
}

/// Any question that is not too large: sizes of every magnitude, of the code's own numbers, and as large as another one.
fn draw(row: &Row, sizes: &[u32], random: &mut Rng) -> Question {
    let mut taken: Vec<u32> = Vec::new();
    let mut size = |most: u32, random: &mut Rng| {
        let most = most.max(1);
        let size = match random.u8(0..8) {
            0 | 1 if !sizes.is_empty() => sizes[random.usize(0..sizes.len())],
            2 if !taken.is_empty() => taken[random.usize(0..taken.len())],
            _ => log_uniform(random, 1, most),
        };
        let size = size.clamp(1, most);
        taken.push(size);
        size
    };
    // What is drawn first may be large; the others share what is left.
    let mut left = TILES;
    let mut shape = [1; 5];
    let mut order = [0, 1, 2, 3, 4];
    random.shuffle(&mut order);
    for of in order {
        let is_rows = of >= 3;
        let most = if is_rows { left.saturating_mul(64).min(ROWS_MAX) } else { left.min(300) };
        // Few in most questions, so that every other size can be large.
        let most = if random.bool() { most } else { most.min(if is_rows { 300 } else { 8 }) };
        shape[of] = size(most, random);
        left /= if is_rows { shape[of].div_ceil(64) } else { shape[of] };
    }
    let [batch, group, heads_kv, seqlen_q, seqlen_k] = shape;
    let is_split = row.schedule == Schedule::Split;
    let chunks = log_uniform(random, 1, 300) as u16;
    let placements = [
        Placement::Bhsd,
        Placement::Bhsd,
        Placement::Bshd,
        Placement::Bshd,
        Placement::Padded(chunks),
        Placement::PaddedHeads(chunks),
        Placement::Mixed,
        Placement::Crossed,
        Placement::Shared,
        Placement::OneBatch,
        Placement::OneTensor,
    ];
    let usual = 1.0 / (row.head_dim as f32).sqrt();
    Question {
        spec: ProblemSpec {
            shape: Shape([batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k, row.head_dim]),
            dtype: row.dtype,
            mask: if random.bool() { Mask::Causal } else { Mask::Full },
        },
        placement: placements[random.usize(0..placements.len())],
        scale: random.bool().then(|| usual * random.f32().mul_add(5.0, -4.0).exp2()),
        lse: random.bool(),
        lengths: is_split && random.bool(),
        splits: is_split.then(|| log_uniform(random, 1, SPLITS_MAX)),
        is_slice: random.bool(),
        few_sms: random.bool(),
        odd: None,
        kinds: Vec::new(),
        once: true,
    }
}
