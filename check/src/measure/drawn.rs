//! The inputs that are measured on, as they are now, and what is right in one row of them.

use crate::reference::{Ragged, keys, row_start, visible_keys};
use crate::verification::Oracle;
use crate::workload::Workload;
use ferroflash::error::Error;
use ferroflash::problem::{Problem, Sizes, TensorRole};
use kernels_gpu::row::Accumulation;

/// Elements after which the inputs repeat: a prime under 2²⁰, so that no row or head repeats another at the same place.
pub(super) const PATTERN_LEN: usize = 1_048_573;

/// The inputs as they are now.
#[derive(Clone, Copy)]
pub(super) struct Drawn<'a> {
    pub(super) workload: &'a Workload,
    pub(super) pattern: &'a [u16],
    /// Where in the pattern Q begins.
    pub(super) start: usize,
}

/// Where in the pattern element `index` of a tensor lies, when Q begins at `start`.
pub(super) fn at_pattern(role: TensorRole, index: usize, start: usize) -> usize {
    (index + start + role as usize * (PATTERN_LEN / 4)) % PATTERN_LEN
}

impl Drawn<'_> {
    fn visible(&self, problem: &Problem, [batch, _, row]: [usize; 3]) -> usize {
        visible_keys(problem, keys(problem, self.workload.seqlens_k(), batch), row)
    }

    /// Whether a row sees no key.
    pub(super) fn sees_nothing(&self, problem: &Problem, at: [usize; 3]) -> bool {
        !problem.is_ragged() && self.visible(problem, at) == 0
    }

    /// The judge of row `[batch, head, row]`: of a problem of this one query and the keys that it sees; `None` where the row belongs to
    /// no sequence.
    pub(super) fn judge_of(
        &self,
        problem: &Problem,
        at: [usize; 3],
        accumulation: Accumulation,
    ) -> Result<Option<Oracle>, Error> {
        let element = |role, index| self.pattern[at_pattern(role, index, self.start)];
        if problem.is_ragged() {
            let none = Default::default();
            let row = Ragged::of_elements(problem, &self.workload.tensors(&none), element).judged_row(at);
            return row.map(|row| Oracle::of_row(problem, row)).transpose();
        }
        let [batch, head, _] = at;
        let (visible, head_dim) = (self.visible(problem, at), problem.sizes().head_dim);
        let one =
            Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 1, seqlen_k: visible as u32, head_dim };
        let one = Problem::new(one, problem.dtype())?.with_scale(problem.scale())?;
        let elements = |role: TensorRole, at: [usize; 3]| {
            let start = row_start(problem, role, at);
            (start..start + head_dim as usize).map(move |index| element(role, index))
        };
        let keys = |role| {
            let head_kv = head / problem.group() as usize;
            (0..visible).flat_map(|key| elements(role, [batch, head_kv, key])).collect::<Vec<u16>>()
        };
        let qkv = [elements(TensorRole::Q, at).collect(), keys(TensorRole::K), keys(TensorRole::V)];
        let mut oracle = Oracle::new(&one, qkv, None, &[accumulation], &|_, _| ());
        // Many rows are judged, and their keys are not needed again.
        oracle.qkv = Default::default();
        Ok(Some(oracle))
    }
}
