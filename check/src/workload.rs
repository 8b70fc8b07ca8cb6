//! A problem with what a call of it is given beside Q, K and V: how long its sequences are, and every operand.

use crate::random_input::{self, Random};
use ferroflash::attention::{HostTensors, OperandValues};
use ferroflash::problem::{
    BiasShape, BlockTable, Dropout, KeySequences, Mask, Operand, Pages, Problem, QuerySequences, Score,
    TensorRole,
};
use ferroflash::rounding::narrow;
use std::sync::OnceLock;

/// The seed of what a problem leaves open: the same on every machine.
const SEED: u64 = 1;
/// Elements after which a bias repeats: a prime, so that no two rows are alike.
const BIAS_PATTERN: usize = 1_048_573;

/// A problem, the lengths of its sequences and its operands.
#[derive(Clone, Debug)]
pub struct Workload {
    problem: Problem,
    seqlens_q: Vec<u32>,
    seqlens_k: Vec<u32>,
    /// All but a bias.
    operands: Vec<(Operand, OperandValues)>,
    /// What a bias repeats. It may be larger than all tensors together, so that it is there only once somebody asks for the operands.
    bias_pattern: Option<Vec<u16>>,
    with_bias: OnceLock<Vec<(Operand, OperandValues)>>,
}

/// What the elements of operands are drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices<'a> {
    /// Scores of sinks.
    pub(crate) sinks: &'a [f32],
    /// ALiBi's slopes; without, those of its paper.
    pub(crate) slopes: Option<&'a [f32]>,
    /// Elements of a bias.
    pub(crate) biases: &'a [f64],
    /// Of how many pages one is a hole; 0 for none.
    pub(crate) pages_a_hole: u32,
}

impl Workload {
    /// A problem as it is measured where nobody says more: packed sequences are equally long, keys of sequences with lengths are drawn, and
    /// so is every operand; the same on every machine.
    pub fn of(problem: &Problem) -> Workload {
        let (batch, sizes) = (problem.sizes().batch, problem.sizes());
        let equal = |total: u32| -> Vec<u32> {
            (0..batch).map(|at| total / batch + u32::from(at < total % batch)).collect()
        };
        let seqlens_q = match problem.queries() {
            QuerySequences::Batch => vec![sizes.seqlen_q; batch as usize],
            QuerySequences::Packed { total } => {
                equal(total).into_iter().map(|length: u32| length.min(sizes.seqlen_q)).collect()
            }
        };
        let seqlens_k = match problem.keys() {
            KeySequences::Packed { total } => equal(total),
            // No more than a pool and a list of pages hold if each sequence has its share.
            KeySequences::Paged(Pages { page, pages, table }) => {
                let listed = match table {
                    BlockTable::Rows { entries } => entries.saturating_mul(batch),
                    BlockTable::Csr { entries } => entries,
                };
                let most = (pages.min(listed) / batch * page).min(sizes.seqlen_k);
                random_input::lengths(problem, SEED).into_iter().map(|length| length.min(most)).collect()
            }
            _ if problem.has_lengths() => random_input::lengths(problem, SEED),
            _ => vec![sizes.seqlen_k; batch as usize],
        };
        Workload::with_sequences(problem, [seqlens_q, seqlens_k], SEED)
    }

    /// As [`Workload::of`], with so many queries and keys of each sequence, and operands that the seed gives.
    ///
    /// # Panics
    /// If these are not as many as the problem has sequences, or more queries or keys than it has.
    pub fn with_sequences(problem: &Problem, seqlens: [Vec<u32>; 2], seed: u64) -> Workload {
        let choices = Choices {
            sinks: &[0.0, 1.5, -3.0],
            slopes: None,
            biases: &[0.0, -1.0, 0.5, 2.0],
            pages_a_hole: 0,
        };
        Workload::draw(problem, seqlens, &choices, &mut Random::new(seed))
    }

    pub(crate) fn draw(
        problem: &Problem,
        [seqlens_q, seqlens_k]: [Vec<u32>; 2],
        choices: &Choices<'_>,
        random: &mut Random,
    ) -> Workload {
        let batch = problem.sizes().batch as usize;
        assert_eq!([seqlens_q.len(), seqlens_k.len()], [batch, batch], "a length for each sequence");
        // What has a batch entry of its own has all of its queries, and all of its keys where no length says otherwise.
        let seqlens_q = match problem.queries() {
            QuerySequences::Batch => vec![problem.sizes().seqlen_q; batch],
            QuerySequences::Packed { .. } => seqlens_q,
        };
        let seqlens_k = match problem.keys() {
            KeySequences::Batch if !problem.has_lengths() => vec![problem.sizes().seqlen_k; batch],
            _ => seqlens_k,
        };
        let mut workload = Workload {
            problem: *problem,
            seqlens_q,
            seqlens_k,
            operands: Vec::new(),
            bias_pattern: None,
            with_bias: OnceLock::new(),
        };
        for operand in Operand::ALL {
            let Some(elements) = problem.operand_len(operand) else { continue };
            if let Some(values) = workload.values(operand, elements, choices, random) {
                workload.operands.push((operand, values));
            }
        }
        if let KeySequences::Paged(pages) = problem.keys() {
            workload.draw_pages(pages, choices.pages_a_hole, random);
        }
        workload
    }

    /// A pool that holds sequences of these lengths in pages of `page` keys. The block table has a row for each sequence, or with `in_one_list` one
    /// list of all their pages.
    pub fn pool(problem: &Problem, page: u32, in_one_list: bool, seqlens_k: &[u32]) -> Pages {
        let all: u32 = seqlens_k.iter().map(|length| length.div_ceil(page)).sum();
        let most = problem.sizes().seqlen_k.div_ceil(page);
        let table = if in_one_list {
            BlockTable::Csr { entries: all.max(most) }
        } else {
            BlockTable::Rows { entries: most }
        };
        Pages { page, pages: all.max(1), table }
    }

    /// The same with an operand that nothing is drawn for, a table of a user's score, or with another one than was drawn.
    pub fn with_operand(mut self, (operand, values): (Operand, OperandValues)) -> Workload {
        self.with_bias = OnceLock::new();
        if operand == Operand::Bias {
            self.bias_pattern = None;
        }
        self.operands.push((operand, values));
        self
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Keys of each sequence as a call is given them, where the problem has lengths.
    pub fn seqlens_k(&self) -> Option<&[u32]> {
        self.problem.has_lengths().then_some(&self.seqlens_k[..])
    }

    /// Every operand of the problem.
    pub fn operands(&self) -> &[(Operand, OperandValues)] {
        let Some(pattern) = &self.bias_pattern else { return &self.operands };
        self.with_bias.get_or_init(|| {
            let elements = self.problem.operand_len(Operand::Bias).unwrap_or(0);
            let bias = pattern.iter().copied().cycle().take(elements).collect();
            let mut operands = self.operands.clone();
            operands.push((Operand::Bias, OperandValues::Bits(bias)));
            operands
        })
    }

    /// Tensors with lengths and operands.
    pub fn tensors<'a>(&'a self, qkv: &'a [Vec<u16>; 3]) -> HostTensors<'a> {
        HostTensors::from(qkv).with_seqlens_k(self.seqlens_k()).with_operands(self.operands())
    }

    /// Rows of Q, K or V that a sequence has, in each batch entry or page from row 0 on.
    pub fn used_rows(&self, role: TensorRole) -> Vec<u32> {
        let (lengths, is_packed) = match role {
            TensorRole::Q | TensorRole::O => {
                (&self.seqlens_q, matches!(self.problem.queries(), QuerySequences::Packed { .. }))
            }
            TensorRole::K | TensorRole::V => {
                if let KeySequences::Paged(pages) = self.problem.keys() {
                    return self.used_of_pages(pages);
                }
                (&self.seqlens_k, matches!(self.problem.keys(), KeySequences::Packed { .. }))
            }
        };
        if is_packed { vec![lengths.iter().sum()] } else { lengths.clone() }
    }

    /// Puts NaN into the rows of Q, K and V that no sequence has.
    pub fn poison_unused(&self, qkv: &mut [Vec<u16>; 3]) {
        for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
            random_input::poison_rows(&self.problem, role, &self.used_rows(role), &mut qkv[role as usize]);
        }
    }

    fn used_of_pages(&self, pages: Pages) -> Vec<u32> {
        let mut used = vec![0; pages.pages as usize];
        let Some(table) = self.operands.iter().find_map(|(_, values)| match values {
            OperandValues::I32(table) => Some(table),
            _ => None,
        }) else {
            return used;
        };
        let mut first = 0;
        for &length in &self.seqlens_k {
            let count = length.div_ceil(pages.page);
            for entry in 0..count {
                let rows = (length - entry * pages.page).min(pages.page);
                if let Some(used) =
                    usize::try_from(table[first + entry as usize]).ok().and_then(|page| used.get_mut(page))
                {
                    *used = rows.max(*used);
                }
            }
            first += match pages.table {
                BlockTable::Rows { entries } => entries,
                BlockTable::Csr { .. } => count,
            } as usize;
        }
        used
    }

    fn values(
        &mut self,
        operand: Operand,
        elements: usize,
        choices: &Choices<'_>,
        random: &mut Random,
    ) -> Option<OperandValues> {
        let problem = self.problem;
        let mut scores = |of: &[f32]| OperandValues::F32((0..elements).map(|_| random.one_of(of)).collect());
        Some(match operand {
            Operand::CuSeqlensQ => OperandValues::U32(starts(&self.seqlens_q)),
            Operand::CuSeqlensK => OperandValues::U32(starts(&self.seqlens_k)),
            Operand::PageIndptr | Operand::BlockTable => return None,
            // Only who has the score knows them.
            Operand::Table0 | Operand::Table1 | Operand::Table2 | Operand::Table3 => return None,
            Operand::TreeMask => {
                // Queries that see all of it, none, and anything between.
                let mut half = || random.below(1 << 16);
                let word = |_| match half() % 4 {
                    0 => 0,
                    1 => u32::MAX,
                    _ => half() << 16 | half(),
                };
                OperandValues::U32((0..elements).map(word).collect())
            }
            Operand::Intervals => {
                let most = problem.sizes().seqlen_k + 20;
                OperandValues::U32((0..elements).map(|_| random.below(most)).collect())
            }
            Operand::Sinks => scores(choices.sinks),
            Operand::Slopes => match choices.slopes {
                Some(slopes) => scores(slopes),
                None => {
                    let heads = problem.sizes().heads_q as usize;
                    let slope = |at: usize| (-8.0 * (at % heads + 1) as f32 / heads as f32).exp2();
                    OperandValues::F32((0..elements).map(slope).collect())
                }
            },
            Operand::Bias => {
                let element = |_| narrow(problem.dtype(), random.one_of(choices.biases));
                self.bias_pattern = Some((0..elements.min(BIAS_PATTERN)).map(element).collect());
                return None;
            }
        })
    }

    /// Gives each sequence pages in any order, some of them holes; entries that no sequence has are far below 0.
    fn draw_pages(&mut self, pages: Pages, pages_a_hole: u32, random: &mut Random) {
        let mut free: Vec<i32> = (0..pages.pages.cast_signed()).collect();
        let (mut table, mut page_starts) = (Vec::new(), vec![0]);
        for &length in &self.seqlens_k {
            let first = table.len();
            for _ in 0..length.div_ceil(pages.page) {
                let is_hole = pages_a_hole > 0 && random.below(pages_a_hole) == 0;
                let page = free.swap_remove(random.below(free.len() as u32) as usize);
                table.push(if is_hole { -1 } else { page });
            }
            if let BlockTable::Rows { entries } = pages.table {
                table.resize(first + entries as usize, -7);
            }
            page_starts.push(table.len() as u32);
        }
        if let BlockTable::Csr { entries } = pages.table {
            table.resize(entries as usize, -7);
            self.operands.push((Operand::PageIndptr, OperandValues::U32(page_starts)));
        }
        self.operands.push((Operand::BlockTable, OperandValues::I32(table)));
    }

    /// Floating-point operations of the two products, as the field counts them: 2 · (width of K + width of V) for each query and each key
    /// that it sees.
    pub fn flops(&self) -> f64 {
        let widths = self.problem.sizes().head_dim + self.problem.head_dim_v();
        2.0 * f64::from(widths) * f64::from(self.problem.sizes().heads_q) * self.pairs()
    }

    /// Bytes that must be read and written at least: queries, their outputs, the keys and values that any query sees, and a bias, once.
    pub fn bytes_moved(&self) -> u64 {
        let sizes = self.problem.sizes();
        let widths = u64::from(sizes.head_dim + self.problem.head_dim_v());
        let queries: u64 = self.seqlens_q.iter().copied().map(u64::from).sum();
        let keys: u64 = self.sequences().map(|sequence| sequence.keys_seen()).sum();
        let bias = self.problem.operand_len(Operand::Bias).unwrap_or(0) as u64;
        let elements =
            widths * (u64::from(sizes.heads_q) * queries + u64::from(sizes.heads_kv) * keys) + bias;
        elements * u64::from(self.problem.dtype().bytes())
    }

    /// Pairs of a query and a key that it sees, of one head.
    fn pairs(&self) -> f64 {
        self.sequences().map(|sequence| sequence.pairs()).sum::<u64>() as f64
    }

    fn sequences(&self) -> impl Iterator<Item = Sequence<'_>> {
        let words = |wanted: Operand| {
            self.operands.iter().find_map(move |(operand, values)| match values {
                OperandValues::U32(values) if *operand == wanted => Some(&values[..]),
                _ => None,
            })
        };
        let (intervals, tree_bits) = (words(Operand::Intervals), words(Operand::TreeMask));
        let is_packed = matches!(self.problem.queries(), QuerySequences::Packed { .. });
        let mask = self.problem.mask();
        let mut first = 0;
        self.seqlens_q.iter().zip(&self.seqlens_k).map(move |(&seqlen_q, &seqlen_k)| {
            let tree_bits = tree_bits.map(|all| &all[mask.tree_words() as usize * first..]);
            let intervals = intervals.map(|all| &all[2 * first..]);
            let sequence = Sequence { mask, seqlen_q, seqlen_k, intervals, tree_bits };
            first += if is_packed { seqlen_q } else { self.problem.sizes().seqlen_q } as usize;
            sequence
        })
    }
}

/// What the queries of one sequence see.
struct Sequence<'a> {
    mask: Mask,
    seqlen_q: u32,
    seqlen_k: u32,
    /// First key and the one past the last, of each query.
    intervals: Option<&'a [u32]>,
    /// The words of a tree, of each query.
    tree_bits: Option<&'a [u32]>,
}

impl Sequence<'_> {
    /// The keys that a query sees: so many at the start, and these.
    fn seen(&self, query: u32) -> (u64, std::ops::Range<i64>) {
        let Mask { window_left, window_right, chunk, prefix, sink_tokens, .. } = self.mask;
        let keys = i64::from(self.seqlen_k);
        let own = i64::from(query) + keys - i64::from(self.seqlen_q);
        let mut begin = window_left.map_or(0, |left| own - i64::from(left)).max(0);
        let mut end = window_right.map_or(keys, |right| own + 1 + i64::from(right));
        if let Some(chunk) = chunk.map(i64::from) {
            let first = own.div_euclid(chunk) * chunk;
            (begin, end) = (begin.max(first), end.min(first + chunk));
        }
        // Sink tokens end where a window or chunk does.
        let mut sinks = i64::from(sink_tokens).min(end);
        end = end.max(i64::from(prefix)).min(keys);
        if let Some(intervals) = self.intervals {
            let [first, past] = [0, 1].map(|side| i64::from(intervals[2 * query as usize + side]));
            (begin, end) = (begin.max(first), end.min(past));
            sinks = sinks.min(past);
        }
        let sinks = sinks.min(keys).max(0);
        let begin = begin.max(sinks).min(end.max(sinks));
        (sinks as u64, begin..end.max(begin))
    }

    fn pairs(&self) -> u64 {
        let of = |query| {
            let (sinks, rest) = self.seen(query);
            sinks + (rest.end - rest.start) as u64 - self.hidden_by_tree(query, sinks as i64, &rest)
        };
        (0..self.seqlen_q).map(of).sum()
    }

    /// Of the keys that a query sees otherwise, those that a tree hides.
    fn hidden_by_tree(&self, query: u32, sinks: i64, rest: &std::ops::Range<i64>) -> u64 {
        let (Some(bits), Some(keys)) = (self.tree_bits, self.mask.tree) else { return 0 };
        let own = &bits[(query * self.mask.tree_words()) as usize..];
        let first_key = i64::from(self.seqlen_k) - i64::from(keys);
        // Bits that are 0, of keys in a range.
        let hidden = |range: &std::ops::Range<i64>| {
            let [from, past] =
                [range.start, range.end].map(|key| (key - first_key).clamp(0, keys.into()) as u32);
            let of_word = |word: u32| {
                let bit = |number: u32| number.clamp(word * 32, word * 32 + 32) - word * 32;
                let below = |number: u32| ((1u64 << bit(number)) - 1) as u32;
                (!own[word as usize] & below(past) & !below(from)).count_ones()
            };
            (from / 32..past.div_ceil(32)).map(of_word).sum::<u32>()
        };
        u64::from(hidden(&(0..sinks)) + hidden(rest))
    }

    /// Keys that any of the queries sees.
    fn keys_seen(&self) -> u64 {
        let seen = (0..self.seqlen_q).map(|query| self.seen(query));
        let union = |(sinks, all): (u64, std::ops::Range<i64>),
                     (others, rest): (u64, std::ops::Range<i64>)| {
            let all = if all.is_empty() {
                rest
            } else if rest.is_empty() {
                all
            } else {
                all.start.min(rest.start)..all.end.max(rest.end)
            };
            (sinks.max(others), all)
        };
        let (sinks, rest) = seen.fold((0, 0..0), union);
        sinks + (rest.end - rest.start.max(sinks as i64)).max(0) as u64
    }
}

/// The first row of each sequence, and the one past the last.
pub(crate) fn starts(lengths: &[u32]) -> Vec<u32> {
    let ends = lengths.iter().scan(0, |sum, length| {
        *sum += length;
        Some(*sum)
    });
    std::iter::once(0).chain(ends).collect()
}

/// What a problem is beside its shape, dtype and lengths, for people.
pub fn describe(problem: &Problem) -> String {
    let mut text = problem.mask().to_string();
    match problem.score() {
        Score::Plain => {}
        Score::Softcap(cap) => text += &format!(", softcap {cap}"),
        Score::Alibi { .. } => text += ", ALiBi",
        Score::Bias(BiasShape { batch, heads, queries }) => {
            let has = [(batch, 'b'), (heads, 'h'), (queries, 'q')];
            let letters: String = has.into_iter().filter_map(|(has, letter)| has.then_some(letter)).collect();
            text += &format!(", bias {}", if letters.is_empty() { "1" } else { &letters });
        }
        Score::User(user) => text += &format!(", {}", user.name().as_str()),
    }
    if let Some(Dropout { p, .. }) = problem.dropout() {
        text += &format!(", dropout {p}");
    }
    if problem.has_sinks() {
        text += ", sinks";
    }
    if problem.head_dim_v() != problem.sizes().head_dim {
        text += &format!(", V {} wide", problem.head_dim_v());
    }
    if let QuerySequences::Packed { total } = problem.queries() {
        text += &format!(", {total} packed queries");
    }
    match problem.keys() {
        KeySequences::Batch => {}
        KeySequences::Packed { total } => text += &format!(", {total} packed keys"),
        KeySequences::Paged(Pages { page, pages, table }) => {
            let csr = if matches!(table, BlockTable::Csr { .. }) { " in one list" } else { "" };
            text += &format!(", {pages} pages of {page}{csr}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Ragged;
    use crate::verification::RaggedCase;
    use ferroflash::problem::Sizes;
    use kernels_gpu::row::{Dtype, ScoreKind};

    #[test]
    fn bits_of_a_tree_are_counted_within_what_a_query_sees() {
        let bits: Vec<u32> = (0..6u32).map(|word| word.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995).collect();
        let mask = Mask::CAUSAL.with_tree(70);
        for (seqlen_k, sinks, rest) in [
            (70, 0, 0..70),
            (200, 0, 0..200),
            (200, 3, 150..199),
            (90, 25, 40..77),
            (70, 0, 31..33),
            (300, 9, 10..11),
        ] {
            let sequence = Sequence { seqlen_q: 2, seqlen_k, mask, tree_bits: Some(&bits), intervals: None };
            for query in 0..2 {
                let is_hidden = |key: &i64| {
                    let number = key - (i64::from(seqlen_k) - 70);
                    let word = query as i64 * 3 + number / 32;
                    number >= 0 && bits[word as usize] >> (number % 32) & 1 == 0
                };
                let expected = (0..sinks).chain(rest.clone()).filter(is_hidden).count() as u64;
                let found = sequence.hidden_by_tree(query, sinks, &rest);
                assert_eq!(found, expected, "{seqlen_k} {sinks} {rest:?} {query}");
            }
        }
    }

    #[test]
    fn bytes_moved_count_each_tensor_once_and_shared_heads_once() {
        let sizes = Sizes { batch: 2, heads_q: 8, heads_kv: 2, seqlen_q: 1, seqlen_k: 100, head_dim: 64 };
        let problem = Problem::new(sizes, Dtype::Bf16).expect("valid");
        let workload = Workload::of(&problem);
        assert_eq!(workload.bytes_moved(), 2 * 2 * 64 * (8 + 2 * 100 + 2 * 100 + 8));
        assert_eq!(workload.flops(), 4.0 * 2.0 * 8.0 * 100.0 * 64.0);
        let workload = Workload::of(&problem.with_lengths(true));
        let keys: u64 = workload.seqlens_k().expect("lengths").iter().copied().map(u64::from).sum();
        assert!((2..200).contains(&keys), "{keys}");
        assert_eq!(workload.bytes_moved(), 2 * 64 * (2 * 8 + 2 * 2 * keys + 2 * 8));
        assert_eq!(workload.flops(), 4.0 * 8.0 * keys as f64 * 64.0);
    }

    #[test]
    fn operations_are_those_of_the_keys_that_the_reference_sees() {
        for seed in 0..200 {
            let kind = if seed % 2 == 0 { ScoreKind::Plain } else { ScoreKind::Tree };
            let case = RaggedCase::draw(Dtype::F16, 32, kind, seed).expect("a case");
            let (workload, problem) = (case.workload(), &case.problem);
            let tensors = case.tensors();
            let seen = Ragged::new(problem, &tensors).keys_seen();
            assert_eq!(workload.pairs(), seen as f64, "{case}");
        }
    }

    #[test]
    fn what_is_given_is_what_the_problem_takes() {
        for seed in 0..50 {
            let problem = RaggedCase::draw(Dtype::Bf16, 64, ScoreKind::Alibi, seed).expect("a case").problem;
            let workload = Workload::of(&problem);
            let qkv = TensorRole::ALL.map(|role| vec![0; problem.len(role)]);
            let [q, k, v, _] = qkv;
            let qkv = [q, k, v];
            workload.tensors(&qkv).check_operands(&problem).expect("every operand, as long as it should be");
        }
    }
}
