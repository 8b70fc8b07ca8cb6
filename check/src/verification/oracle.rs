//! What is right for one problem, and how far a kernel may be from it: computed once, used for many kernels.

use crate::reference::{JudgedRow, Reference, reference_of};
use crate::tolerance::{Tolerance, Verdict};
use ferroflash::attention::{HostTensors, Output};
use ferroflash::error::Error;
use ferroflash::problem::{Problem, Sizes};
use kernels_gpu::row::Accumulation;

/// A problem with its inputs, its reference, and the bounds for kernels.
pub struct Oracle {
    /// The problem.
    pub problem: Problem,
    /// Q, K and V, where they were given to keep.
    pub qkv: [Vec<u16>; 3],
    /// Keys of each sequence, where the problem has lengths.
    pub seqlens_k: Option<Vec<u32>>,
    /// What is right.
    pub reference: Reference,
    tolerances: Vec<(Accumulation, Tolerance)>,
}

impl Oracle {
    /// Computes the reference and the bounds for kernels with these accumulations.
    pub fn new(
        problem: &Problem,
        qkv: [Vec<u16>; 3],
        seqlens_k: Option<Vec<u32>>,
        accumulations: &[Accumulation],
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Oracle {
        let tensors = HostTensors::from(&qkv).with_seqlens_k(seqlens_k.as_deref());
        let judge = Oracle::of_tensors(problem, &tensors, accumulations, progress);
        Oracle { qkv, seqlens_k, ..judge }
    }

    /// As [`Oracle::new`], of tensors with every operand that the problem takes; it does not keep them.
    pub fn of_tensors(
        problem: &Problem,
        tensors: &HostTensors<'_>,
        accumulations: &[Accumulation],
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Oracle {
        let reference = reference_of(problem, tensors, progress);
        let tolerance = |&accumulation: &Accumulation| {
            (accumulation, Tolerance::new(problem, tensors, &reference, accumulation))
        };
        let tolerances = accumulations.iter().map(tolerance).collect();
        Oracle { problem: *problem, qkv: Default::default(), seqlens_k: None, reference, tolerances }
    }

    /// Of one row of a ragged batch; kernels for these accumulate in float32.
    ///
    /// # Errors
    /// Those of [`Problem`], where `batch` has widths that no problem can have.
    pub fn of_row(batch: &Problem, row: JudgedRow) -> Result<Oracle, Error> {
        let Sizes { head_dim, .. } = *batch.sizes();
        let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 1, seqlen_k: 1, head_dim };
        let problem = Problem::new(sizes, batch.dtype())?.with_head_dim_v(batch.head_dim_v())?;
        let reference = Reference { o: row.o, lse: vec![row.lse] };
        let tolerance = Tolerance::of_plain(&problem, &row.plain, &reference, vec![row.lse_allowed]);
        let tolerances = vec![(Accumulation::F32, tolerance)];
        Ok(Oracle { problem, qkv: Default::default(), seqlens_k: None, reference, tolerances })
    }

    /// Judges the output of a kernel with this accumulation, in the problem's layout.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where an output is not as long as the problem says.
    ///
    /// # Panics
    /// If [`Oracle::new`] was not given this accumulation.
    pub fn judge(&self, accumulation: Accumulation, output: &Output) -> Result<Verdict, Error> {
        let tolerance = self.tolerance(accumulation);
        tolerance.judge(&self.problem, &self.reference, &output.o, output.lse.as_deref())
    }

    /// Judges results that another program stored, in the problem's layout, as those of a kernel that accumulates in
    /// float32.
    ///
    /// # Errors
    /// [`Error::WrongLength`].
    ///
    /// # Panics
    /// If [`Oracle::new`] was not given float32 accumulation.
    pub fn judge_stored(&self, o: &[f64], lse: Option<&[f64]>) -> Result<Verdict, Error> {
        self.tolerance(Accumulation::F32).judge_values(&self.problem, &self.reference, o, lse)
    }

    /// The bounds for kernels with this accumulation.
    ///
    /// # Panics
    /// If [`Oracle::new`] was not given this accumulation.
    pub fn tolerance(&self, accumulation: Accumulation) -> &Tolerance {
        let found = self.tolerances.iter().find(|(of, _)| *of == accumulation);
        &found.expect("the oracle was asked for this accumulation").1
    }
}
