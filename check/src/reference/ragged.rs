//! Attention of ragged batches, row by row, from the definitions: which keys a query sees, what a score is, where a key lies. Slow, and
//! with nothing in common with the kernels but the problem.

pub(super) mod backward;

use super::{Progress, Reference, row_start};
use crate::tolerance::Plain;
use ferroflash::attention::{HostOperand, HostTensors};
use ferroflash::problem::{
    BlockTable, Dropout, Extent, KeySequences, Mask, Operand, Problem, QuerySequences, Score, ScoreTable,
    ScoreTables, TensorRole,
};
use ferroflash::rounding::{narrow, widen};
use ferroflash_score::Query;
use kernels_gpu::row::Accumulation;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A problem and its tensors.
pub struct Ragged<'a> {
    problem: &'a Problem,
    tensors: &'a HostTensors<'a>,
    /// The bits of an element of Q, K or V, where the tensors do not hold them.
    element: Option<Element<'a>>,
}

type Element<'a> = Box<dyn Fn(TensorRole, usize) -> u16 + Sync + 'a>;

/// What is right in one row, what a plain implementation makes of it, and by how much its LSE may be off.
pub struct JudgedRow {
    /// O.
    pub o: Vec<f64>,
    /// LSE.
    pub lse: f64,
    /// O of each plain implementation.
    pub plain: Vec<Vec<f32>>,
    /// The bound of [`Ragged::lse_allowed`].
    pub lse_allowed: f64,
}

/// One sequence of a batch.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    batch: usize,
    /// The batch entry of Q, and the first query's row.
    q_at: (usize, usize),
    seqlen_q: usize,
    /// The first key's row in packed keys, or its entry in a block table.
    k_start: usize,
    seqlen_k: usize,
}

/// A query row: its sequence, head and number.
#[derive(Clone, Copy, Debug)]
struct Row {
    sequence: Sequence,
    head: usize,
    query: usize,
}

/// What a row sees: keys, their scores in natural-log units, and the score of its sink.
struct Seen {
    keys: Vec<usize>,
    scores: Vec<f64>,
    sink: f64,
}

impl<'a> Ragged<'a> {
    /// Of operands that [`HostTensors::check_operands`] takes.
    pub fn new(problem: &'a Problem, tensors: &'a HostTensors<'a>) -> Ragged<'a> {
        Ragged { problem, tensors, element: None }
    }

    /// Of tensors whose Q, K and V nobody holds: this gives the bits of an element.
    pub fn of_elements(
        problem: &'a Problem,
        tensors: &'a HostTensors<'a>,
        element: impl Fn(TensorRole, usize) -> u16 + Sync + 'a,
    ) -> Ragged<'a> {
        Ragged { problem, tensors, element: Some(Box::new(element)) }
    }

    /// One row of Q and O, `[batch, head, row]` as [`super::row_coordinates`] has it; `None` for a row that belongs to no sequence.
    pub fn judged_row(&self, [batch, head, row]: [usize; 3]) -> Option<JudgedRow> {
        let sequences = (0..self.problem.sizes().batch as usize).map(|batch| self.sequence(batch));
        let sequence = sequences.into_iter().find(|sequence| {
            let (entry, first) = sequence.q_at;
            entry == batch && (first..first + sequence.seqlen_q).contains(&row)
        })?;
        let row = Row { sequence, head, query: row - sequence.q_at.1 };
        let (o, lse) = self.right(row);
        let all = Plain::all(self.problem.sizes().head_dim as usize, Accumulation::F32);
        let plain = all.into_iter().map(|how| self.plain_row(row, how)).collect();
        Some(JudgedRow { o, lse, plain, lse_allowed: self.row_lse_allowed(row, lse, self.k_norm(row)) })
    }

    /// O and LSE in float64; NaN in rows that belong to no sequence.
    pub fn reference(&self, progress: Progress<'_>) -> Reference {
        let (done, total) = (AtomicUsize::new(0), self.problem.lse_len());
        let rows = self.each_row(|row| {
            let right = self.right(row);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
            right
        });
        let (mut o, mut lse) = (vec![0.0; self.problem.o_len()], vec![f64::NAN; total]);
        for index in 0..total {
            let at = row_start(self.problem, TensorRole::O, super::row_coordinates(self.problem, index));
            o[at..at + self.problem.head_dim_v() as usize].fill(f64::NAN);
        }
        for (row, (values, row_lse)) in rows {
            let at = row_start(self.problem, TensorRole::O, self.o_at(row));
            o[at..at + values.len()].copy_from_slice(&values);
            lse[self.lse_index(row)] = row_lse;
        }
        Reference { o, lse }
    }

    /// O of a plain implementation whose sums are float32.
    pub fn plain(&self, how: Plain) -> Vec<f32> {
        let mut o = vec![0.0; self.problem.o_len()];
        for (row, values) in self.each_row(|row| self.plain_row(row, how)) {
            let at = row_start(self.problem, TensorRole::O, self.o_at(row));
            o[at..at + values.len()].copy_from_slice(&values);
        }
        o
    }

    /// By how much each LSE may be off: the bound of [`crate::tolerance`] for products that accumulate in float32, and the rounding of what
    /// the score's function adds.
    pub fn lse_allowed(&self, lse: &[f64]) -> Vec<f64> {
        let mut allowed = vec![0.0; lse.len()];
        // All queries of a sequence, and all heads of a group, share their keys.
        let heads_kv = self.problem.sizes().heads_kv as usize;
        let group = self.problem.group() as usize;
        let k_norms: Vec<f64> = (0..self.problem.sizes().batch as usize * heads_kv)
            .into_par_iter()
            .map(|at| {
                let sequence = self.sequence(at / heads_kv);
                self.k_norm(Row { sequence, head: at % heads_kv * group, query: 0 })
            })
            .collect();
        let bound = |row: Row| {
            let k_norm = k_norms[row.sequence.batch * heads_kv + row.head / group];
            self.row_lse_allowed(row, lse[self.lse_index(row)], k_norm)
        };
        for (row, bound) in self.each_row(bound) {
            allowed[self.lse_index(row)] = bound;
        }
        allowed
    }

    /// O and LSE of a row.
    fn right(&self, row: Row) -> (Vec<f64>, f64) {
        let Seen { keys, scores, sink } = self.seen(row, |score| score);
        let most = base(scores.iter().copied().fold(sink, f64::max));
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (sink - most).exp();
        let mut o = vec![0.0; self.problem.head_dim_v() as usize];
        if sum != 0.0 {
            let (factor, mut value) = (self.kept_factor(), Vec::new());
            for (&key, weight) in keys.iter().zip(&weights) {
                let p = weight / sum * self.kept(row, key) * factor;
                self.read(TensorRole::V, self.key_at(row, key), &mut value);
                o.iter_mut().zip(&value).for_each(|(o, v)| *o += p * v);
            }
        }
        (o, if sum == 0.0 { f64::NEG_INFINITY } else { most + sum.ln() })
    }

    fn plain_row(&self, row: Row, how: Plain) -> Vec<f32> {
        let dtype = self.problem.dtype();
        let rounded = |value: f32| widen(dtype, narrow(dtype, value.into())) as f32;
        let of_score = |score| if how.parts(1.0).0 { widen(dtype, narrow(dtype, score)) } else { score };
        let Seen { keys, scores, sink } = self.seen(row, of_score);
        let most = base(scores.iter().copied().fold(sink, f64::max)) as f32;
        let weights: Vec<f32> = scores.iter().map(|&score| (score as f32 - most).exp()).collect();
        let sum = weights.iter().sum::<f32>() + (sink as f32 - most).exp();
        let mut o = vec![0.0_f32; self.problem.head_dim_v() as usize];
        if sum == 0.0 {
            return o;
        }
        let ((_, [of_p, of_o]), mut value) = (how.parts(sum), Vec::new());
        for (&key, weight) in keys.iter().zip(&weights) {
            let p = rounded(weight / of_p) * self.kept(row, key) as f32;
            self.read(TensorRole::V, self.key_at(row, key), &mut value);
            o.iter_mut().zip(&value).for_each(|(o, v)| *o += p * *v as f32);
        }
        let factor = self.kept_factor() as f32;
        o.into_iter().map(|o| rounded(o * factor / of_o)).collect()
    }

    /// The largest norm of the keys of a row's sequence and KV head.
    fn k_norm(&self, row: Row) -> f64 {
        let norms = (0..row.sequence.seqlen_k).map(|key| norm(&self.key(row, key)));
        norms.filter(|norm| norm.is_finite()).fold(0.0, f64::max)
    }

    fn row_lse_allowed(&self, row: Row, lse: f64, k_norm: f64) -> f64 {
        let float = f64::exp2(-22.0);
        let steps = f64::from(self.problem.sizes().head_dim) / 16.0;
        let q_norm = norm(&self.query(row));
        let score = f64::from(self.problem.scale()) * q_norm * k_norm * (steps + 4.0) * float;
        let most = |of: &dyn Fn(usize) -> f64| {
            (0..row.sequence.seqlen_k).map(of).filter(|of| of.is_finite()).fold(0.0, f64::max)
        };
        let added = most(&|key| match self.problem.score() {
            Score::Plain => 0.0,
            Score::Softcap(cap) => f64::from(cap),
            Score::Alibi { .. } => self.given(row, key) * self.distance(row, key).abs(),
            Score::Bias(_) => self.given(row, key).abs(),
            // Its size, whatever of that it added.
            Score::User(_) => self.score(row, key, self.scaled(row, key)).abs(),
        });
        // What a user's function makes of an error of its argument.
        let score = match self.problem.score() {
            Score::User(_) => most(&|key| {
                let (scaled, of) = (self.scaled(row, key), |scaled| self.score(row, key, scaled));
                let moved = [score, -score].map(|error| (of(scaled + error) - of(scaled)).abs());
                moved[0].max(moved[1])
            }),
            _ => score,
        };
        let of_result = if lse.is_finite() { lse.abs() * float } else { 0.0 };
        score + (4.0 + (row.sequence.seqlen_k as f64).sqrt() + 8.0 * added) * float + of_result
    }

    /// Pairs of a query and a key that it sees, of one head.
    #[cfg(test)]
    pub(crate) fn keys_seen(&self) -> usize {
        let rows = self.each_row(|row| (0..row.sequence.seqlen_k).filter(|&key| self.sees(row, key)).count());
        rows.into_iter().filter(|(row, _)| row.head == 0).map(|(_, count)| count).sum()
    }

    /// What a function gives for each row of every sequence.
    fn each_row<T: Send>(&self, of: impl Fn(Row) -> T + Sync) -> Vec<(Row, T)> {
        let heads = self.problem.sizes().heads_q as usize;
        let rows: Vec<Row> = (0..self.problem.sizes().batch as usize)
            .map(|batch| self.sequence(batch))
            .flat_map(|sequence| {
                (0..heads).flat_map(move |head| {
                    (0..sequence.seqlen_q).map(move |query| Row { sequence, head, query })
                })
            })
            .collect();
        rows.into_par_iter().map(|row| (row, of(row))).collect()
    }

    fn sequence(&self, batch: usize) -> Sequence {
        let sizes = self.problem.sizes();
        let starts = |operand| {
            let starts = self.tensors.starts(operand).expect("the problem's operands are given");
            (starts[batch] as usize, (starts[batch + 1] - starts[batch]) as usize)
        };
        let (q_at, seqlen_q) = match self.problem.queries() {
            QuerySequences::Batch => ((batch, 0), sizes.seqlen_q as usize),
            QuerySequences::Packed { .. } => {
                let (start, length) = starts(Operand::CuSeqlensQ);
                ((0, start), length)
            }
        };
        let most = super::keys(self.problem, self.tensors.seqlens_k, batch);
        let (k_start, seqlen_k) = match self.problem.keys() {
            KeySequences::Batch => (0, most),
            KeySequences::Packed { .. } => {
                let (start, length) = starts(Operand::CuSeqlensK);
                (start, length.min(most))
            }
            KeySequences::Paged(pages) => match pages.table {
                BlockTable::Rows { entries } => (batch * entries as usize, most),
                BlockTable::Csr { .. } => {
                    let (start, length) = starts(Operand::PageIndptr);
                    (start, most.min(length * pages.page as usize))
                }
            },
        };
        Sequence { batch, q_at, seqlen_q, k_start, seqlen_k }
    }

    /// The row of K or V that holds a key; `None` for one in a hole.
    fn key_at(&self, row: Row, key: usize) -> Option<[usize; 3]> {
        let head = row.head / self.problem.group() as usize;
        let Sequence { batch, k_start, .. } = row.sequence;
        match self.problem.keys() {
            KeySequences::Batch => Some([batch, head, key]),
            KeySequences::Packed { .. } => Some([0, head, k_start + key]),
            KeySequences::Paged(pages) => {
                let Some(HostOperand::I32(table)) = self.tensors.operand(Operand::BlockTable) else {
                    unreachable!("a paged problem has a block table")
                };
                let page = pages.page as usize;
                let number = usize::try_from(table[k_start + key / page]).ok()?;
                Some([number, head, key % page])
            }
        }
    }

    fn elements(&self, role: TensorRole, at: Option<[usize; 3]>) -> Vec<f64> {
        let mut elements = Vec::new();
        self.read(role, at, &mut elements);
        elements
    }

    /// As [`Self::elements`], into memory that the caller has for all rows of a tensor.
    fn read(&self, role: TensorRole, at: Option<[usize; 3]>, elements: &mut Vec<f64>) {
        let (problem, width) = (self.problem, self.problem.extent(role).width as usize);
        elements.clear();
        let Some(start) = at.map(|at| row_start(problem, role, at)) else {
            return elements.resize(width, 0.0);
        };
        let wide = |bits: u16| widen(problem.dtype(), bits);
        if let Some(element) = &self.element {
            return elements.extend((start..start + width).map(|at| wide(element(role, at))));
        }
        let tensor = match role {
            TensorRole::Q => self.tensors.q,
            TensorRole::K => self.tensors.k,
            TensorRole::V | TensorRole::O => self.tensors.v,
        };
        elements.extend(tensor[start..start + width].iter().map(|&bits| wide(bits)));
    }

    fn query(&self, row: Row) -> Vec<f64> {
        self.elements(TensorRole::Q, Some(self.o_at(row)))
    }

    fn key(&self, row: Row, key: usize) -> Vec<f64> {
        self.elements(TensorRole::K, self.key_at(row, key))
    }

    fn value(&self, row: Row, key: usize) -> Vec<f64> {
        self.elements(TensorRole::V, self.key_at(row, key))
    }

    /// Where a row lies in Q and O.
    fn o_at(&self, row: Row) -> [usize; 3] {
        let (batch, first) = row.sequence.q_at;
        [batch, row.head, first + row.query]
    }

    fn lse_index(&self, row: Row) -> usize {
        let Extent { heads, rows, .. } = self.problem.extent(TensorRole::Q);
        let [batch, head, query] = self.o_at(row);
        (batch * heads as usize + head) * rows as usize + query
    }

    /// How far a key is from the query's own, which is as far from the last key as the query is from the last query.
    fn distance(&self, row: Row, key: usize) -> f64 {
        let Sequence { seqlen_q, seqlen_k, .. } = row.sequence;
        (row.query + seqlen_k) as f64 - seqlen_q as f64 - key as f64
    }

    /// Whether a row sees a key.
    fn sees(&self, row: Row, key: usize) -> bool {
        let Mask { window_left, window_right, chunk, prefix, sink_tokens, intervals, tree, .. } =
            self.problem.mask();
        let distance = self.distance(row, key);
        let not_after = window_right.is_none_or(|right| -distance <= f64::from(right));
        let not_before = window_left.is_none_or(|left| distance <= f64::from(left));
        let own = distance + key as f64;
        let (same_chunk, chunk_is_later) = chunk.map_or((true, false), |chunk| {
            let number = |key: f64| (key / f64::from(chunk)).floor();
            (number(own) == number(key as f64), number(own) < number(key as f64))
        });
        let within = not_before && not_after && same_chunk || key < prefix as usize;
        let (mut is_seen, mut is_after) = (within, (!not_after || chunk_is_later) && key >= prefix as usize);
        if intervals {
            let [batch, _, query] = self.o_at(row);
            let rows = self.problem.extent(TensorRole::Q).rows as usize;
            let given = self.tensors.starts(Operand::Intervals).expect("the problem's operands are given");
            let [begin, end] = [0, 1].map(|i| given[(batch * rows + query) * 2 + i] as usize);
            is_seen &= (begin..end).contains(&key);
            is_after |= key >= end;
        }
        (is_seen || key < sink_tokens as usize && !is_after)
            && tree.is_none_or(|keys| self.tree_shows(row, key, keys as usize))
            && match self.problem.score() {
                Score::User(user) => user.sees(self.user_query(row), key as u32, &self.tables()),
                _ => true,
            }
    }

    /// Whether the key is before a tree of `keys` keys, or the query has its bit.
    fn tree_shows(&self, row: Row, key: usize, keys: usize) -> bool {
        let Some(number) = (key + keys).checked_sub(row.sequence.seqlen_k) else { return true };
        let [batch, _, query] = self.o_at(row);
        let rows = self.problem.extent(TensorRole::Q).rows as usize;
        let words = self.tensors.starts(Operand::TreeMask).expect("the problem's operands are given");
        let own = &words[(batch * rows + query) * self.problem.mask().tree_words() as usize..];
        own[number / 32] >> (number % 32) & 1 != 0
    }

    /// A query as users' scores know it.
    fn user_query(&self, row: Row) -> Query {
        let Sequence { batch, seqlen_q, seqlen_k, .. } = row.sequence;
        let [batch, head, query, seqlen_q, seqlen_k] =
            [batch, row.head, row.query, seqlen_q, seqlen_k].map(|n| n as u32);
        Query { batch, head, query, seqlen_q, seqlen_k }
    }

    /// The tables of a user's score.
    fn tables(&self) -> ScoreTables<'a> {
        ScoreTables(Operand::TABLES.map(|table| match self.tensors.operand(table) {
            Some(HostOperand::F32(numbers)) => ScoreTable::F32(numbers),
            Some(HostOperand::U32(words)) => ScoreTable::U32(words),
            _ => ScoreTable::None,
        }))
    }

    /// A slope or an element of the bias.
    fn given(&self, row: Row, key: usize) -> f64 {
        let strides = self.problem.score_strides().map(|stride| stride as usize);
        let at = row.sequence.batch * strides[0] + row.head * strides[1] + row.query * strides[2];
        match (self.tensors.operand(Operand::Slopes), self.tensors.operand(Operand::Bias)) {
            (Some(HostOperand::F32(slopes)), _) => slopes[at].into(),
            (_, Some(HostOperand::Bits(bias))) => widen(self.problem.dtype(), bias[at + key]),
            _ => 0.0,
        }
    }

    /// scale · Q·Kᵀ of a row and a key.
    fn scaled(&self, row: Row, key: usize) -> f64 {
        let product: f64 = self.query(row).iter().zip(self.key(row, key)).map(|(q, k)| q * k).sum();
        f64::from(self.problem.scale()) * product
    }

    /// The score of a key from scale · Q·Kᵀ.
    fn score(&self, row: Row, key: usize, scaled: f64) -> f64 {
        match self.problem.score() {
            Score::User(user) => user.of(self.user_query(row), key as u32, scaled, &self.tables()),
            score => score.of(scaled, self.distance(row, key), self.given(row, key)),
        }
    }

    /// 0 for a weight that dropout leaves out, and 1 for others.
    fn kept(&self, row: Row, key: usize) -> f64 {
        let is_kept = |dropout: Dropout| {
            let head = row.sequence.batch * self.problem.sizes().heads_q as usize + row.head;
            dropout.keeps(head as u32, row.query as u32, key as u32)
        };
        if self.problem.dropout().is_none_or(is_kept) { 1.0 } else { 0.0 }
    }

    /// What weights that are kept are multiplied with.
    fn kept_factor(&self) -> f64 {
        self.problem.dropout().map_or(1.0, |dropout| dropout.factor().into())
    }

    /// What a row sees; `rounded` is applied to each score.
    fn seen(&self, row: Row, rounded: impl Fn(f64) -> f64) -> Seen {
        let (q, mut k) = (self.query(row), Vec::new());
        let keys: Vec<usize> = (0..row.sequence.seqlen_k).filter(|&key| self.sees(row, key)).collect();
        let score = |&key: &usize| {
            self.read(TensorRole::K, self.key_at(row, key), &mut k);
            let product: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
            rounded(self.score(row, key, f64::from(self.problem.scale()) * product))
        };
        let scores = keys.iter().map(score).collect();
        Seen { keys, scores, sink: self.sink(row.head) }
    }

    /// The score of a query head's sink; −∞ where there is none.
    fn sink(&self, head: usize) -> f64 {
        match self.tensors.operand(Operand::Sinks) {
            Some(HostOperand::F32(sinks)) if self.problem.has_sinks() => sinks[head].into(),
            _ => f64::NEG_INFINITY,
        }
    }
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// What scores are taken relative to: the greatest, or 0 where all are −∞, as −∞ − −∞ would be NaN.
fn base(most: f64) -> f64 {
    if most == f64::NEG_INFINITY { 0.0 } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_input::{self, InputKind};
    use ferroflash::{Dtype, Sizes};

    #[test]
    fn a_row_is_judged_alone_as_among_all_from_tensors_or_from_a_function() {
        let sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 3, seqlen_k: 5, head_dim: 32 };
        let problem = Problem::new(sizes, Dtype::F16).expect("valid").with_causal(true);
        let mut qkv = random_input::qkv(&problem, InputKind::Random, 1);
        // Keys of one sequence and head are larger, so that each has a bound of its own.
        let first = row_start(&problem, TensorRole::K, [1, 1, 0]);
        qkv[1][first..first + 32].fill(narrow(Dtype::F16, 9.0));
        let (none, tensors) = (HostTensors::new(&[], &[], &[]), HostTensors::from(&qkv));
        let held = Ragged::new(&problem, &tensors);
        let asked = Ragged::of_elements(&problem, &none, |role, at| qkv[role as usize][at]);
        let lse = held.reference(&|_, _| ()).lse;
        let allowed = held.lse_allowed(&lse);
        for (index, allowed) in allowed.iter().enumerate() {
            for ragged in [&held, &asked] {
                let row = ragged.judged_row(super::super::row_coordinates(&problem, index)).expect("a row");
                assert_eq!((row.lse, row.lse_allowed), (lse[index], *allowed), "row {index}");
            }
        }
        assert!(allowed[23] > 1.5 * allowed[17] && allowed[23] > 1.5 * allowed[11], "{allowed:?}");
    }
}
