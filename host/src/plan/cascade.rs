//! Sequences that share a prefix of their keys: computed over the prefix once for all of them, over what follows for each, and merged; or
//! as they are, where that is not estimated to take longer.

use super::choice::Choice;
use super::reason::Trace;
use super::{COUNTER_BYTES, Plan, PlanOptions, Planner};
use crate::error::{Error, StepError};
use crate::merge::{MergeStates, MergeTensors};
use crate::problem::{
    BlockTable, ElementStrides, Extent, KeySequences, Layout, Mask, Operand, Pages, Problem, QuerySequences,
    Score, TensorRole,
};
use crate::{DeviceTensors, Number};

/// How much faster the three launches must be estimated to be: nobody has measured them against one yet.
const MARGIN: f64 = 1.25;

/// When a shared prefix is computed by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cascading {
    /// Where that is estimated to be faster by a quarter.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a problem whose sequences share a prefix is computed.
#[derive(Clone, Debug)]
pub struct PrefixPlan {
    /// All in one launch: what the addresses of a call are checked against.
    whole: Plan,
    cascade: Option<Cascade>,
    /// What both ways are estimated to take, in microseconds; that of the cascade where there can be one.
    estimates: (f64, Option<f64>),
}

/// A pass over the prefix, one over what follows it, and the merge of both.
#[derive(Clone, Debug)]
pub(crate) struct Cascade {
    pub(crate) prefix: Plan,
    pub(crate) suffix: Plan,
    pub(crate) merge: MergeStates,
    /// Entries of the block table that are the prefix's.
    entries: u32,
    /// Bytes that both passes work in, one after the other; the results of each are behind them.
    scratch_bytes: u64,
    /// Bytes of O and of LSE of a pass.
    state_bytes: [u64; 2],
}

impl Planner {
    /// The plan for a problem whose sequences all begin with the same `keys` keys: their block tables begin with the same pages, which
    /// row 0 names. Every sequence has at least these keys before its queries' own.
    ///
    /// # Errors
    /// [`StepError::SharedPrefix`] where the prefix is none of whole pages within the sequences, or, with [`Cascading::Always`], queries do not
    /// all see it alike; and those of [`Planner::plan`].
    pub fn plan_shared_prefix(
        &self,
        problem: &Problem,
        keys: u32,
        cascading: Cascading,
    ) -> Result<PrefixPlan, Error> {
        let refused = |reason| Error::from(StepError::SharedPrefix { keys, reason });
        let pages = match problem.keys() {
            KeySequences::Paged(pages @ Pages { table: BlockTable::Rows { .. }, .. }) => pages,
            _ => return Err(refused("keys lie in pages with a block table of rows, whose first are shared")),
        };
        if keys == 0 || !keys.is_multiple_of(pages.page) || keys >= problem.sizes().seqlen_k {
            return Err(refused("it is whole pages, and fewer keys than a sequence may have"));
        }
        let options = const { &PlanOptions::new() };
        let (whole, _) = self.estimated(problem, options)?;
        let whole_us = self.whole_us(problem, keys)?;
        let obstacle = obstacle(problem);
        if let (Cascading::Always, Some(reason)) = (cascading, obstacle) {
            return Err(refused(reason));
        }
        if cascading == Cascading::Never || obstacle.is_some() {
            return Ok(PrefixPlan { whole, cascade: None, estimates: (whole_us, None) });
        }
        let (cascade, cascade_us) = self.cascade(problem, pages, keys)?;
        let is_taken = cascading == Cascading::Always || cascade_us * MARGIN < whole_us;
        let estimates = (whole_us, Some(cascade_us));
        Ok(PrefixPlan { whole, cascade: is_taken.then_some(cascade), estimates })
    }

    /// What one launch takes. Lengths that nobody knows yet are at least the prefix, and half of the rest: as half of this many keys.
    fn whole_us(&self, problem: &Problem, keys: u32) -> Result<f64, Error> {
        let seqlen_k = problem.sizes().seqlen_k;
        let expected = if problem.has_lengths() { seqlen_k.saturating_add(keys) } else { seqlen_k };
        let problem = problem.with_seqlen_k(expected)?;
        self.choose(&problem, const { &PlanOptions::new() }, &mut Trace::silent()).map(|choice| choice.us)
    }

    fn estimated(&self, problem: &Problem, options: &PlanOptions) -> Result<(Plan, f64), Error> {
        let choice = self.choose(problem, options, &mut Trace::silent())?;
        let us = choice.us;
        Ok((self.build(problem, options, choice)?, us))
    }

    fn cascade(&self, problem: &Problem, pages: Pages, keys: u32) -> Result<(Cascade, f64), Error> {
        let options = const { &PlanOptions::new() };
        let of_prefix = problem.shared_prefix(keys, pages)?;
        let of_suffix = problem.behind_prefix(keys)?;
        let choice = self.choose(&of_prefix, options, &mut Trace::silent())?;
        let extent = problem.extent(TensorRole::O);
        let state_bytes = [
            problem.elements(TensorRole::O) as u64 * u64::from(problem.dtype().bytes()),
            problem.lse_len() as u64 * 4,
        ];
        let merge_us = merge_us(&choice, state_bytes);
        let prefix_us = choice.us;
        let prefix = self.build(&of_prefix, options, choice)?;
        let (suffix, suffix_us) = self.estimated(&of_suffix, options)?;
        let number = Number::from(problem.dtype());
        let merge = MergeStates::new(2, extent, Layout::Bshd, (number, number))?
            .with_strides(problem.strides(TensorRole::O))?;
        let cascade = Cascade {
            scratch_bytes: rounded(prefix.workspace_bytes().max(suffix.workspace_bytes())),
            prefix,
            suffix,
            merge,
            entries: keys / pages.page,
            state_bytes: state_bytes.map(rounded),
        };
        Ok((cascade, prefix_us + suffix_us + merge_us))
    }
}

/// What keeps queries from seeing a shared prefix alike, or their passes from being merged.
fn obstacle(problem: &Problem) -> Option<&'static str> {
    // What a window shows after a query's own key hides nothing of a prefix.
    let hides = problem.mask() != Mask::window(None, problem.mask().window_right);
    match problem.score() {
        _ if hides => {
            Some("its mask hides keys of it from some queries: only full and causal masks show all")
        }
        _ if problem.dropout().is_some() => Some("its dropout depends on positions"),
        Score::Plain | Score::Softcap(_) => {
            let is_packed = matches!(problem.queries(), QuerySequences::Packed { .. });
            (!is_packed).then_some("queries are packed: Problem::with_packed_queries")
        }
        _ => Some("its scores depend on positions"),
    }
}

/// What the merge of two passes is estimated to take: a launch like that of the kernel that merges splits, and its bytes.
fn merge_us(choice: &Choice<'_>, [o, lse]: [u64; 2]) -> f64 {
    let coefficients = choice.candidate.coefficients(2);
    let mb = (3 * o + 3 * lse) as f64 / 1e6;
    coefficients.merge_launch + coefficients.merge_bytes * mb
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(COUNTER_BYTES)
}

impl PrefixPlan {
    /// The plan of the problem in one launch.
    pub fn whole(&self) -> &Plan {
        &self.whole
    }

    /// The plans of the pass over the prefix and of that over what follows, where the prefix is computed by itself.
    pub fn passes(&self) -> Option<[&Plan; 2]> {
        self.cascade.as_ref().map(|cascade| [&cascade.prefix, &cascade.suffix])
    }

    /// What one launch, and what the cascade is estimated to take, in microseconds; no time where there can be none.
    pub fn estimates_us(&self) -> (f64, Option<f64>) {
        self.estimates
    }

    /// Bytes of workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.cascade.as_ref().map_or(self.whole.workspace_bytes(), |cascade| {
            cascade.scratch_bytes + 2 * (cascade.state_bytes[0] + cascade.state_bytes[1])
        })
    }

    pub(crate) fn cascade(&self) -> Option<&Cascade> {
        self.cascade.as_ref()
    }
}

impl Cascade {
    /// The tensors of both passes and of the merge, for a call with these, in a workspace; `seqlens_behind` are the keys of each sequence
    /// behind the prefix.
    pub(crate) fn tensors(
        &self,
        tensors: &DeviceTensors,
        seqlens_behind: Option<u64>,
        workspace: u64,
    ) -> (DeviceTensors, DeviceTensors, MergeTensors) {
        let [o_bytes, lse_bytes] = self.state_bytes;
        let state = |index: u64| {
            let o = workspace + self.scratch_bytes + index * (o_bytes + lse_bytes);
            (o, o + o_bytes)
        };
        let ((prefix_o, prefix_lse), (suffix_o, suffix_lse)) = (state(0), state(1));
        let given = |operand: Operand| tensors.operands[operand as usize];
        let (table, starts) =
            (given(Operand::BlockTable).unwrap_or(0), given(Operand::CuSeqlensQ).unwrap_or(0));
        let of_prefix = DeviceTensors::new(tensors.q, tensors.k, tensors.v, prefix_o)
            .with_lse(Some(prefix_lse))
            .with_operand(Operand::BlockTable, table);
        let of_suffix = DeviceTensors::new(tensors.q, tensors.k, tensors.v, suffix_o)
            .with_lse(Some(suffix_lse))
            .with_seqlens_k(seqlens_behind)
            .with_operand(Operand::CuSeqlensQ, starts)
            .with_operand(Operand::BlockTable, table + u64::from(self.entries) * 4);
        let batch = self.suffix.problem().sizes().batch;
        let merge = MergeTensors {
            partial_o: prefix_o,
            partial_lse: prefix_lse,
            next_o: suffix_o,
            next_lse: suffix_lse,
            o: tensors.o,
            lse: tensors.lse,
            // Behind the last sequence are rows of nobody.
            rows_used: Some(starts + u64::from(batch) * 4),
            sinks: given(Operand::Sinks),
        };
        (of_prefix, of_suffix, merge)
    }
}

impl Problem {
    /// The pass over the first keys of sequences that share them: all queries as one sequence, without sinks.
    fn shared_prefix(&self, keys: u32, pages: Pages) -> Result<Problem, Error> {
        let queries = self.extent(TensorRole::Q);
        let sizes = crate::Sizes { batch: 1, seqlen_q: queries.rows, seqlen_k: keys, ..*self.sizes() };
        let table = BlockTable::Rows { entries: keys / pages.page };
        let mut problem = Problem::new(sizes, self.dtype())?;
        if self.head_dim_v() != sizes.head_dim {
            problem = problem.with_head_dim_v(self.head_dim_v())?;
        }
        let mut problem = problem
            .with_pages(Pages { table, ..pages })?
            .with_scale(self.scale())?
            .with_score(self.score())?;
        for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
            problem = problem.with_strides(role, self.strides(role))?;
        }
        Ok(problem)
    }

    /// The pass over the keys behind them, without sinks.
    fn behind_prefix(&self, keys: u32) -> Result<Problem, Error> {
        let Extent { heads, width, .. } = self.extent(TensorRole::O);
        let [heads, width] = [heads, width].map(i64::from);
        let contiguous = ElementStrides { batch: 0, head: width, row: heads * width, dim: 1 };
        let problem = self.with_sinks(false).with_strides(TensorRole::O, contiguous)?;
        problem.with_seqlen_k(self.sizes().seqlen_k - keys)
    }
}
