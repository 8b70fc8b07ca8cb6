//! Questions that one launch answers each, so that there can be many: every remainder of a block, scales and lengths far from the
//! usual ones, and whatever pair of properties no other question has.

use super::edges::Sides;
use super::{Placement, Question, log_uniform};
use crate::inputs::{Kind, Odd};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use fastrand::Rng;
use ferroflash::Row;
use kernels_gpu::geometry::SPLITS_MAX;
use kernels_gpu::row::Schedule;

/// What a question is in each respect that a mistake may depend on, as small numbers.
type Levels = [u8; 14];
/// Levels of each.
const COUNTS: Levels = [2, 2, 2, 4, 2, 2, 4, 3, 3, 3, 3, 3, 3, 7];
/// Levels of two respects.
type Pair = [(usize, u8); 2];
/// Inputs whose scores rise along the keys, and those whose scores fall.
const SLOPES: [[Kind; 2]; 2] = [[Kind::Late, Kind::Rising], [Kind::Sink, Kind::Falling]];
/// Tiles of 64 queries and 64 keys that one of these questions may have.
const TILES: u32 = 600;
/// Questions that are drawn for a pair, of which the one with most other pairs is taken.
const TRIES: usize = 40;

/// Those that go beside the questions `known` to be asked.
pub(super) fn once(row: &Row, known: &[Question], random: &mut Rng) -> Vec<Question> {
    let mut asked = remainders(row, random);
    asked.extend(far(row, random));
    asked.retain(|question| question.has_room(row));
    let mut left = pairs_left(row, known.iter().chain(&asked));
    while let Some(pair) = left.pop() {
        let drawn = (0..TRIES).filter_map(|_| with_pair(row, pair, random));
        let most =
            drawn.max_by_key(|question| left.iter().filter(|pair| has(&levels(question), pair)).count());
        if let Some(question) = most {
            let levels = levels(&question);
            left.retain(|pair| !has(&levels, pair));
            asked.push(question);
        }
    }
    asked
}

/// Numbers of keys and of queries that leave each remainder of a block.
fn remainders(row: &Row, random: &mut Rng) -> Vec<Question> {
    let mut queries: Vec<u32> = (0..64).collect();
    random.shuffle(&mut queries);
    let some = |rest: u32, least: u32, random: &mut Rng| rest + 64 * random.u32(least..=least + 1);
    (0..64)
        .zip(queries)
        .map(|(keys, queries)| {
            let sizes = [1, 1, 1, some(queries, u32::from(queries == 0), random), some(keys, 1, random)];
            let mut sides = Sides::draw(random);
            sides.is_causal = false;
            sides.question(row, sizes, 1, random)
        })
        .collect()
}

/// More keys and more queries than 16 bits count, and some between those and the usual ones; many splits; more query heads a KV head than any
/// other question has; more CTAs; each order of dimensions; and scales far under and over the usual one: the last so far that a finite
/// number for "hidden" is larger than the scores that are seen. Q and K are also so large and so small that only their scale
/// makes usual scores of them. Of two everything is as many.
fn far(row: &Row, random: &mut Rng) -> Vec<Question> {
    let more = random.u32(1..=300);
    let [group, far_group, farther_group] =
        [random.u32(9..=32), random.u32(33..=72), log_uniform(random, 73, 256)];
    let middle = [(8193, 1 << 16), (4097, 1 << 16)].map(|(least, most)| log_uniform(random, least, most));
    // With 128 KV heads, which no block packs, more CTAs in all than 4096, and for some kernels than 13 bits count, which takes longer.
    let batch = if random.u8(0..4) == 0 { random.u32(65..=66) } else { random.u32(33..=34) };
    let heads = random.u32(257..=300);
    let (several, alike) = (random.u32(5..=16), random.u32(2..=6));
    let mut of = |sizes: [u32; 5]| Sides::draw(random).question(row, sizes, 2, random);
    let usual = 1.0 / (row.head_dim as f32).sqrt();
    let mut asked = vec![
        of([1, 1, 1, 3, (1 << 16) + more]),
        of([1, 1, 1, (1 << 16) + more, 1 + more % 8]),
        of([1, 2 * group, 2, 3, 70]),
        of([1, 2 * far_group, 2, 2, 70]),
        of([1, 1, 1, 2, middle[0]]),
        of([1, 1, 1, middle[1], 1 + more % 8]),
        of([1, 2 * farther_group, 2, 1, 1 + more % 70]),
        of([batch, 128, 128, 1, 1 + more % 8]),
        of([1, heads, heads, 1, 65 + more % 8]),
        of([several, 2, 1, 3, 150]),
        of([alike; 5]),
        of([alike, alike, 1, alike, alike]),
    ];
    // Along more keys, and in more batch entries, than in any other question.
    for at in [4, 9] {
        let keys = asked[at].spec.shape.0[4];
        asked[at].kinds = SLOPES.map(|kinds| of_keys(kinds[random.usize(0..2)], keys)).into();
    }
    if let Some(splits) = &mut asked[4].splits {
        *splits = log_uniform(random, 10, SPLITS_MAX);
    }
    for (from, to) in [(-20.0, -7.0), (0.5, 4.0), (15.0, 16.0)] {
        let question = Sides::draw(random).question(row, [1, 2, 1, 9, 150], 2, random);
        let scale = usual * (from + (to - from) * random.f32()).exp2();
        asked.push(Question { scale: Some(scale), ..question });
    }
    let steepest = asked.len() - 1;
    asked[steepest].lse = true;
    asked[steepest].spec.mask = Mask::Causal;
    let huge = Sides::draw(random).question(row, [1, 2, 1, 70, 150], 1, random);
    asked.push(Question { kinds: vec![Kind::Huge], ..huge });
    for kind in [Kind::Loud, Kind::Faint] {
        let question = Sides::draw(random).question(row, [1, 2, 1, 9, 150], 1, random);
        asked.push(Question { scale: Some(usual * kind.scale()), kinds: vec![kind], ..question });
    }
    const PLACED: [Placement; 5] =
        [Placement::Mixed, Placement::Crossed, Placement::Shared, Placement::OneBatch, Placement::OneTensor];
    for placement in PLACED {
        let sizes = [2, 4, 2, random.u32(2..=48), random.u32(17..=150)];
        asked.push(Question { placement, ..Sides::draw(random).question(row, sizes, 2, random) });
    }
    asked
}

/// [`Kind::Rising`] instead of [`Kind::Late`] for thousands of keys: beside a last key that outweighs them, a kernel that begins with the last key rounds
/// the P of each other key to float16's subnormal numbers, and the thousands of roundings add up to an error that is no mistake.
fn of_keys(kind: Kind, keys: u32) -> Kind {
    if kind == Kind::Late && keys >= 2048 { Kind::Rising } else { kind }
}

/// Every two levels that a question can have and none of these has.
pub(super) fn pairs_left<'a>(row: &Row, asked: impl Iterator<Item = &'a Question>) -> Vec<Pair> {
    let is_split = row.schedule == Schedule::Split;
    let mut left: Vec<Pair> = Vec::new();
    for one in 0..COUNTS.len() {
        for other in one + 1..COUNTS.len() {
            let levels = |of: usize| (0..COUNTS[of]).map(move |level| (of, level));
            left.extend(levels(one).flat_map(|a| levels(other).map(move |b| [a, b])));
        }
    }
    let can_be = |&(of, level): &(usize, u8)| match of {
        LENGTHS => is_split || level == 0,
        SPLITS => is_split || level == 0,
        _ => true,
    };
    left.retain(|pair| pair.iter().all(can_be));
    for question in asked {
        let levels = levels(question);
        left.retain(|pair| !has(&levels, pair));
    }
    left
}

const LENGTHS: usize = 4;
const SPLITS: usize = 11;

fn has(levels: &Levels, pair: &Pair) -> bool {
    pair.iter().all(|&(of, level)| levels[of] == level)
}

/// Tiles of 64 queries and 64 keys of all heads.
fn tiles(question: &Question) -> u32 {
    let [batch, heads_q, _, seqlen_q, seqlen_k, _] = question.spec.shape.0;
    batch * heads_q * seqlen_q.div_ceil(64) * seqlen_k.div_ceil(64)
}

fn levels(question: &Question) -> Levels {
    let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, _] = question.spec.shape.0;
    let within = |size: u32, ends: &[u32]| ends.iter().filter(|end| size >= **end).count() as u8;
    [
        u8::from(question.spec.mask == Mask::Causal),
        u8::from(question.lse),
        u8::from(question.is_slice),
        match question.placement {
            Placement::Bhsd => 0,
            Placement::Bshd => 1,
            Placement::Padded(_)
            | Placement::Mixed
            | Placement::Crossed
            | Placement::Shared
            | Placement::OneBatch
            | Placement::OneTensor => 2,
            Placement::PaddedHeads(_) => 3,
        },
        u8::from(question.lengths),
        u8::from(question.scale.is_some()),
        within(seqlen_k, &[2, 64, 2048]),
        within(seqlen_q, &[2, 1000]),
        within(heads_q, &[8, 16]),
        within(heads_q / heads_kv, &[2, 5]),
        within(batch, &[2, 3]),
        match question.splits {
            None | Some(1) => 0,
            Some(_) => 1 + u8::from(question.is_merged_by_a_kernel()),
        },
        match question.kinds.last() {
            Some(Kind::Late | Kind::Rising) => 1,
            Some(Kind::Sink | Kind::Falling) => 2,
            _ => 0,
        },
        question
            .odd
            .and_then(|odd| Odd::ALL.iter().position(|other| *other == odd))
            .map_or(0, |at| at as u8 + 1),
    ]
}

/// A question with these two levels; `None` where the one that was drawn is too large, or cannot have both.
fn with_pair(row: &Row, pair: Pair, random: &mut Rng) -> Option<Question> {
    let mut levels = COUNTS.map(|count| random.u8(0..count));
    // Small where nothing else is said, and half of them smaller.
    [6, 7, 8].into_iter().for_each(|of| levels[of] = levels[of].min(1));
    if random.bool() {
        [8, 9, 10].into_iter().for_each(|of| levels[of] = 0);
    }
    pair.into_iter().for_each(|(of, level)| levels[of] = level);
    let [causal, lse, slice, layout, lengths, scale, keys, queries, heads, group, batch, splits, slope, odd] =
        levels;
    let kind = slope.checked_sub(1).map(|slope| SLOPES[usize::from(slope)][random.usize(0..2)]);
    let mut of = |ends: &[(u32, u32)], level: u8| {
        let (from, to) = ends[usize::from(level)];
        random.u32(from..=to)
    };
    let group = of(&[(1, 1), (2, 4), (5, if heads == 0 { 7 } else { 8 })], group);
    let heads_kv = [1, 8_u32.div_ceil(group), 16_u32.div_ceil(group)][usize::from(heads)];
    let seqlen_k = of(&[(1, 1), (2, 63), (64, 256), (2048, 2100)], keys);
    let kind = kind.map(|kind| of_keys(kind, seqlen_k));
    let seqlen_q = of(&[(1, 1), (2, 48), (1000, 1040)], queries);
    // An even number of keys and splits is merged by a kernel.
    let splits = match splits {
        0 => 1,
        level => {
            2 * of(&[(1, 4)], 0)
                + u32::from(level == 1) * (1 - seqlen_k % 2)
                + u32::from(level == 2) * (seqlen_k % 2)
        }
    };
    let unlike = [Placement::Padded(1), Placement::Mixed, Placement::Shared][random.usize(0..3)];
    let placement = [Placement::Bhsd, Placement::Bshd, unlike, Placement::PaddedHeads(1)];
    let is_split = row.schedule == Schedule::Split;
    let usual = 1.0 / (row.head_dim as f32).sqrt();
    let batch = u32::from(batch) + 1;
    let question = Question {
        spec: ProblemSpec {
            shape: Shape([batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k, row.head_dim]),
            dtype: row.dtype,
            mask: if causal == 1 { Mask::Causal } else { Mask::Full },
        },
        placement: placement[usize::from(layout)],
        scale: (scale == 1).then(|| random.f32().mul_add(0.9, 0.2) * usual),
        lse: lse == 1,
        lengths: is_split && lengths == 1,
        splits: is_split.then_some(splits),
        is_slice: slice == 1,
        few_sms: random.bool(),
        odd: usize::from(odd).checked_sub(1).map(|odd| Odd::ALL[odd]),
        kinds: kind.into_iter().collect(),
        once: true,
    };
    (tiles(&question) <= TILES && has(&self::levels(&question), &pair)).then_some(question)
}
