//! Questions where the domain ends.

use super::{GROUPS, Placement, Question, log_uniform};
use crate::inputs::Kind;
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use fastrand::Rng;
use ferroflash::Row;
use kernels_gpu::row::Schedule;

/// What two questions about the same edge of the domain have otherwise, so that one of them has each.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    pub(super) is_causal: bool,
    is_bhsd: bool,
    lse: bool,
    is_slice: bool,
}

impl Sides {
    pub(super) fn draw(random: &mut Rng) -> Sides {
        let [is_causal, is_bhsd, lse, is_slice] = [(); 4].map(|()| random.bool());
        Sides { is_causal, is_bhsd, lse, is_slice }
    }

    pub(super) fn other(self) -> Sides {
        let Sides { is_causal, is_bhsd, lse, is_slice } = self;
        Sides { is_causal: !is_causal, is_bhsd: !is_bhsd, lse: !lse, is_slice: !is_slice }
    }

    pub(super) fn question(
        self,
        row: &Row,
        sizes: [u32; 5],
        least_splits: u32,
        random: &mut Rng,
    ) -> Question {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k] = sizes;
        let shape = Shape([batch, heads_q, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
        let mask = if self.is_causal { Mask::Causal } else { Mask::Full };
        let spec = ProblemSpec { shape, dtype: row.dtype, mask };
        let splits = (row.schedule == Schedule::Split).then(|| random.u32(least_splits..=9));
        let others = [Placement::Bshd, Placement::Padded(1), Placement::PaddedHeads(1)];
        let placement = if self.is_bhsd { Placement::Bhsd } else { others[random.usize(0..3)] };
        let (lse, is_slice) = (self.lse, self.is_slice);
        Question { placement, splits, lse, is_slice, ..Question::measured(spec, &[]) }
    }
}

/// Questions where the domain ends: many keys and many query rows, each with one head and again with several heads or batch entries, and
/// both together; one query row; one key; rows that see no key; many heads; more than 256 batch entries and 1024 heads of all of them;
/// rows that lie far from each other; and [`ends_of_blocks`]. Of the first five and of the next six half are causal, with LSE, `bhsd`, or at addresses of slices.
pub(super) fn edges(row: &Row, random: &mut Rng) -> Vec<Question> {
    let sides = [Sides::draw(random), Sides::draw(random)];
    let [either, other] = [sides[0], sides[0].other()];
    let several = |random: &mut Rng| {
        let (batch, heads) = if random.bool() { (1, random.u32(8..=10)) } else { (3, random.u32(2..=3)) };
        let group = if heads % 2 == 0 { 2 } else { 1 };
        [batch, heads, heads / group]
    };
    let few = |random: &mut Rng, most| log_uniform(random, 1, most);
    let [keys, queries] = [random.u32(2048..=8192), random.u32(1024..=4096)];
    let long = [1, 1, 1, few(random, 32), keys];
    let tall = [1, 1, 1, queries, few(random, 32)];
    let [batch, heads_q, heads_kv] = several(random);
    let long_too = [batch, heads_q, heads_kv, few(random, 8), random.u32(2048..=2304)];
    let [batch, heads_q, heads_kv] = several(random);
    let tall_too = [batch, heads_q, heads_kv, random.u32(1024..=1152), few(random, 32)];
    let square = [1, 1, 1, random.u32(1025..=1100), random.u32(1025..=1100)];
    let group = random.u32(1..=GROUPS as u32);
    let decode = [random.u32(1..=2), group, 1, 1, log_uniform(random, 2, 600)];
    let one_key = [1, 2, 1, random.u32(2..=64), 1];
    let some = random.u32(17..=80);
    let blind = [1, 1, 1, some + random.u32(1..=64), some];
    let heads_kv = random.u32(65..=130).div_ceil(group);
    let heads = [1, heads_kv * group, heads_kv, few(random, 8), few(random, 48)];
    let batches = [random.u32(257..=280), 4, 2, few(random, 4), few(random, 48)];
    let far = [2, 2, 2, random.u32(2..=16), random.u32(2..=40)];
    let slopes = if random.bool() { [Kind::Rising, Kind::Falling] } else { [Kind::Falling, Kind::Rising] };
    let mut asked = vec![
        (long, either, 2, vec![Kind::Sink]),
        (tall, either, 1, vec![Kind::Small]),
        (long_too, other, 2, vec![slopes[0]]),
        (tall_too, other, 1, vec![]),
        (square, other, 1, vec![slopes[1], Kind::Large]),
        (decode, sides[1], 1, vec![Kind::Sink]),
        (one_key, sides[1].other(), 1, vec![]),
        (blind, Sides { is_causal: true, ..sides[1] }, 1, vec![]),
        (heads, sides[1].other(), 1, vec![]),
        (batches, sides[1], 1, vec![]),
        (far, sides[1].other(), 1, vec![]),
    ];
    let last = asked.len() - 1;
    asked[last].1.is_bhsd = false;
    let mut questions: Vec<Question> = asked
        .into_iter()
        .map(|(sizes, sides, splits, kinds)| Question { kinds, ..sides.question(row, sizes, splits, random) })
        .collect();
    questions[last].placement = Placement::Padded(FAR);
    // Of these others ask what launches leave behind.
    ONCE.into_iter().for_each(|at| questions[at].once = true);
    questions.extend(ends_of_blocks(row, random));
    questions
}

/// Keys that end with a block, one behind or before its end, or with a fragment inside one: in the second to fourth block, so that a
/// mistake at the end of any but the first is met, and so few that no row's output forgives one key too many or too few. As many queries
/// for some, with and without a mask; for others queries that end so. The maximum of their rows grows in the last of several blocks, and of
/// some in each.
fn ends_of_blocks(row: &Row, random: &mut Rng) -> Vec<Question> {
    let [over, under] = [64 * random.u32(1..=3) + 1, 64 * random.u32(2..=3) - 1];
    let inside = 16 * (4 * random.u32(1..=2) + random.u32(1..=3));
    let few = random.u32(2..=8);
    let queries = [few, 64 * random.u32(1..=2) + 1, 128, 192, 64 * random.u32(2..=3) - 1];
    let is_causal = random.bool();
    let question = |(at, (keys, (queries, mask))): (usize, (u32, (u32, Option<bool>)))| {
        let heads_kv = random.u32(1..=2);
        let sizes = [1, heads_kv * random.u32(1..=2), heads_kv, queries, keys];
        let mut sides = Sides::draw(random);
        sides.is_causal = mask.unwrap_or(sides.is_causal);
        let mut kinds = vec![Kind::Late];
        kinds.extend((at % 2 == 1).then_some(Kind::Rising));
        Question { kinds, ..sides.question(row, sizes, 1, random) }
    };
    let masks = [None, None, Some(is_causal), Some(!is_causal), None];
    let keys = [over, under, 128, 192, inside];
    keys.into_iter().zip(queries.into_iter().zip(masks)).enumerate().map(question).collect()
}

/// Those of several heads over many keys or queries, over many of both, and of many batch entries.
const ONCE: [usize; 4] = [2, 3, 4, 9];

/// Chunks between rows that lie so far from each other that 16 bits do not count the elements between.
const FAR: u16 = 4200;
