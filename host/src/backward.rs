//! The backward pass of a problem: gradients of Q, K and V from that of O, validated once.

use crate::attention::{DeviceTensors, HostTensors};
use crate::error::Error;
use crate::problem::{ElementStrides, KeySequences, Layout, Problem, QuerySequences, Score, TensorRole};
use kernels_gpu::backward::table::BACKWARD_VARIANTS;
use kernels_gpu::params::Strides;
use std::num::NonZeroU32;

/// Bytes of dS that a pass keeps in its workspace at most, unless it is said: of 2³⁰ pairs of a query and a key, enough that the grids of its
/// launches fill every device, and an eighth more, for the blocks on the diagonal of a causal mask.
const DS_BYTES_MAX: u64 = (2 << 30) + (256 << 20);

/// The gradients of a problem: dQ = scale · dS·K, dK = scale · dSᵀ·Q and dV = Pᵀ·dO, where P = exp(S − LSE), dS = P∘(dO·Vᵀ − δ) and
/// δ = rowsum(dO∘O) − dLSE; with a softcap dS is multiplied with its derivative, and with dropout dV and dO·Vᵀ have its factors. A learned
/// sink's is −Σ exp(sink − LSE)·δ over the rows of its head. A bias' is dS, summed over the batch entries, heads and queries that it is the
/// same for. ALiBi's slopes have none.
///
/// dO lies as O does, and dQ, dK and dV as Q, K and V, each with strides of its own ([`Backward::with_strides`]). A query that sees no key
/// has gradient 0, and so has a key that no query sees. NaN reaches the gradients of the rows that it concerns and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backward {
    problem: Problem,
    strides: [ElementStrides; 4],
    lengths: [usize; 4],
    ds_bytes_max: u64,
    ds_order: Option<[u32; 2]>,
    query_splits: Option<u32>,
}

impl Backward {
    /// The gradients of a problem, each in the strides of its tensor, or contiguous in the problem's layout where elements of that tensor
    /// coincide.
    ///
    /// # Errors
    /// [`Error::Backward`] where no kernel computes them: pages, users' scores, ALiBi over head_dim 128.
    pub fn new(problem: &Problem) -> Result<Backward, Error> {
        let refused = |reason| Err(Error::Backward { reason });
        if matches!(problem.keys(), KeySequences::Paged(_)) {
            return refused("K and V lie in pages, which only inference has: give them contiguous or packed");
        }
        if matches!(problem.score(), Score::User(_)) {
            return refused("users' scores have no backward kernels: their derivatives are not known");
        }
        let width = problem.sizes().head_dim.max(problem.head_dim_v());
        let mut of_score = BACKWARD_VARIANTS.iter().filter(|kernel| kernel.row.score == problem.score_kind());
        if !of_score.any(|kernel| kernel.row.head_dim >= width) {
            return refused(
                "its head_dim is wider than the backward kernels of its score: 256, 128 of ALiBi",
            );
        }
        let is_packed = problem.queries() != QuerySequences::Batch || problem.keys() != KeySequences::Batch;
        let usual = if is_packed { Layout::Bshd } else { Layout::Bhsd };
        let mut backward = Backward {
            problem: *problem,
            strides: TensorRole::ALL.map(|role| problem.strides(role)),
            lengths: TensorRole::ALL.map(|role| problem.len(role)),
            ds_bytes_max: DS_BYTES_MAX,
            ds_order: None,
            query_splits: None,
        };
        for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
            let own = backward.with_strides(role, problem.strides(role));
            backward = match own {
                Err(Error::InvalidStride { .. }) => {
                    let layout = problem.layout().unwrap_or(usual);
                    backward.with_strides(role, layout.strides(&problem.extent(role)))?
                }
                own => own?,
            };
        }
        Ok(backward)
    }

    /// With the gradient of one tensor strided; that of O is an input, whose elements may coincide.
    ///
    /// # Errors
    /// Those of [`Problem::with_strides`].
    pub fn with_strides(self, role: TensorRole, strides: ElementStrides) -> Result<Backward, Error> {
        let extent = self.problem.extent(role);
        let strides = strides.of(&extent);
        let length = strides.span(
            &extent,
            self.problem.dtype().bytes(),
            gradient_name(role),
            role != TensorRole::O,
        )?;
        let mut backward = self;
        (backward.strides[role as usize], backward.lengths[role as usize]) = (strides, length);
        Ok(backward)
    }

    /// With another limit for the bytes of dS that a plan may keep in its workspace, 2.25 GiB by default: longer problems are computed in
    /// several launches, of some heads each. Below what one KV head needs, no plan keeps dS, and none does with 0.
    #[must_use]
    pub fn with_ds_bytes_max(self, bytes: u64) -> Backward {
        Backward { ds_bytes_max: bytes, ..self }
    }

    /// With KV heads of a chunk and how many chunks dK and dV are ahead of dQ, where one launch computes all: to measure what is best.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ds_order(self, order: Option<[u32; 2]>) -> Backward {
        Backward { ds_order: order, ..self }
    }

    /// With `splits` CTAs that share each block of keys and divide the queries that see it, instead of as many as the plan takes for the problem
    /// and the device: one where there are many blocks. Their sums are float32 and are added in order, so that gradients have the same
    /// bits on every run; but bits follow from how many share a block, which the plan decides by batch and heads too. With 1 the gradients of
    /// a sequence are the same in every batch.
    #[must_use]
    pub fn with_query_splits(self, splits: Option<NonZeroU32>) -> Backward {
        Backward { query_splits: splits.map(NonZeroU32::get), ..self }
    }

    pub(crate) fn query_splits(&self) -> Option<u32> {
        self.query_splits
    }

    pub(crate) fn ds_order(&self) -> Option<[u32; 2]> {
        self.ds_order
    }

    /// Bytes of dS that a plan may keep in its workspace.
    pub fn ds_bytes_max(&self) -> u64 {
        self.ds_bytes_max
    }

    /// The problem of the forward pass.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The strides of the gradient of a tensor, in elements.
    pub fn strides(&self, role: TensorRole) -> ElementStrides {
        self.strides[role as usize]
    }

    /// The same in bytes, as the kernels take them.
    pub(crate) fn byte_strides(&self, role: TensorRole) -> Strides {
        self.strides(role).bytes(self.problem.dtype().bytes())
    }

    /// Elements that the buffer of the gradient of a tensor must hold, gaps between strided rows included.
    pub fn len(&self, role: TensorRole) -> usize {
        self.lengths[role as usize]
    }
}

/// The gradient of a tensor in messages.
pub const fn gradient_name(role: TensorRole) -> &'static str {
    match role {
        TensorRole::Q => "dQ",
        TensorRole::K => "dK",
        TensorRole::V => "dV",
        TensorRole::O => "dO",
    }
}

/// What a backward pass is given on the host: what the forward pass had and gave, and the gradients of that, all as bit patterns of the
/// problem's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GradientInputs<'a> {
    /// Q, K, V, lengths and operands of the forward pass.
    pub tensors: HostTensors<'a>,
    /// O of the forward pass, in the problem's strides.
    pub o: &'a [u16],
    /// LSE of the forward pass, contiguous.
    pub lse: &'a [f32],
    /// dO, in the strides of [`Backward`].
    pub d_o: &'a [u16],
    /// The gradient of LSE, contiguous, where it is not 0.
    pub d_lse: Option<&'a [f32]>,
}

impl<'a> GradientInputs<'a> {
    /// Without a gradient of LSE.
    pub fn new(tensors: HostTensors<'a>, o: &'a [u16], lse: &'a [f32], d_o: &'a [u16]) -> GradientInputs<'a> {
        GradientInputs { tensors, o, lse, d_o, d_lse: None }
    }

    /// The same with a gradient of LSE.
    pub fn with_d_lse(self, d_lse: Option<&'a [f32]>) -> GradientInputs<'a> {
        GradientInputs { d_lse, ..self }
    }
}

/// What a backward pass computes, as bit patterns of the problem's dtype in the strides of [`Backward`]; gaps between strided rows are 0.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gradients {
    /// dQ.
    pub q: Vec<u16>,
    /// dK.
    pub k: Vec<u16>,
    /// dV.
    pub v: Vec<u16>,
    /// The gradients of the sinks, one a query head, where the problem has sinks.
    pub sinks: Option<Vec<f32>>,
    /// The gradient of the bias, which lies as the bias does, where the problem has one.
    pub bias: Option<Vec<u16>>,
}

impl Gradients {
    /// Of these gradients.
    pub fn new(q: Vec<u16>, k: Vec<u16>, v: Vec<u16>) -> Gradients {
        Gradients { q, k, v, sinks: None, bias: None }
    }

    /// The same with gradients of sinks.
    pub fn with_sinks(self, sinks: Option<Vec<f32>>) -> Gradients {
        Gradients { sinks, ..self }
    }

    /// The same with a gradient of the bias.
    pub fn with_bias(self, bias: Option<Vec<u16>>) -> Gradients {
        Gradients { bias, ..self }
    }
}

/// Bit by bit, so that NaN equals itself.
impl PartialEq for Gradients {
    fn eq(&self, other: &Gradients) -> bool {
        let bits = |of: &Gradients| -> Option<Vec<u32>> {
            of.sinks.as_ref().map(|sinks| sinks.iter().map(|sink| sink.to_bits()).collect())
        };
        (&self.q, &self.k, &self.v, &self.bias, bits(self))
            == (&other.q, &other.k, &other.v, &other.bias, bits(other))
    }
}

impl Eq for Gradients {}

/// The tensors of a backward pass on the device, by the address of their first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackwardTensors {
    /// What the forward pass had and gave: O and LSE are inputs here, and LSE must be there.
    pub forward: DeviceTensors,
    /// dO, 16-byte aligned, [`Backward::len`] elements.
    pub d_o: u64,
    /// The gradient of LSE, float32, contiguous as LSE, where there is one.
    pub d_lse: Option<u64>,
    /// dQ, 16-byte aligned.
    pub d_q: u64,
    /// dK, 16-byte aligned.
    pub d_k: u64,
    /// dV, 16-byte aligned.
    pub d_v: u64,
    /// The gradient of the sinks, float32 `[heads_q]`, where it is wanted.
    pub d_sinks: Option<u64>,
    /// The gradient of the bias, in the problem's dtype and as the bias lies, where it is wanted.
    pub d_bias: Option<u64>,
}

impl BackwardTensors {
    /// Of the forward pass's tensors, dO, and where dQ, dK and dV go; without a gradient of LSE.
    pub const fn new(forward: DeviceTensors, d_o: u64, [d_q, d_k, d_v]: [u64; 3]) -> BackwardTensors {
        BackwardTensors { forward, d_o, d_lse: None, d_q, d_k, d_v, d_sinks: None, d_bias: None }
    }

    /// The same with a gradient of LSE at this address.
    pub const fn with_d_lse(self, d_lse: Option<u64>) -> BackwardTensors {
        BackwardTensors { d_lse, ..self }
    }

    /// The same with the gradient of the sinks going to this address.
    pub const fn with_d_sinks(self, d_sinks: Option<u64>) -> BackwardTensors {
        BackwardTensors { d_sinks, ..self }
    }

    /// The same with the gradient of the bias going to this address.
    pub const fn with_d_bias(self, d_bias: Option<u64>) -> BackwardTensors {
        BackwardTensors { d_bias, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Mask, Sizes};
    use kernels_gpu::row::Dtype;

    const SIZES: Sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 5, seqlen_k: 9, head_dim: 64 };

    fn problem() -> Problem {
        Problem::new(SIZES, Dtype::F16).expect("valid")
    }

    #[test]
    fn gradients_lie_as_their_tensors_do_unless_elements_coincide() {
        let bshd = problem().with_layout(Layout::Bshd);
        let backward = Backward::new(&bshd).expect("valid");
        for role in TensorRole::ALL {
            assert_eq!((backward.strides(role), backward.len(role)), (bshd.strides(role), bshd.len(role)));
        }
        let repeated = ElementStrides { batch: 0, ..bshd.strides(TensorRole::K) };
        let expanded = bshd.with_strides(TensorRole::K, repeated).expect("an input");
        let backward = Backward::new(&expanded).expect("valid");
        assert_eq!(backward.len(TensorRole::K), 2 * 2 * 9 * 64);
        let d_o = ElementStrides { batch: 0, head: 0, row: 0, dim: 1 };
        assert_eq!(backward.with_strides(TensorRole::O, d_o).expect("an input").len(TensorRole::O), 64);
        let error = backward.with_strides(TensorRole::Q, d_o).expect_err("an output");
        assert!(matches!(error, Error::InvalidStride { tensor: "dQ", .. }), "{error}");
    }

    #[test]
    fn what_has_no_kernels_is_refused_with_its_reason() {
        let refused = |problem: &Problem| Backward::new(problem).expect_err("refused").to_string();
        let bias = Score::Bias(crate::problem::BiasShape::default());
        for score in [Score::Softcap(2.0), Score::Alibi { per_batch: true }, bias] {
            let scored = problem().with_sinks(true).with_score(score).expect("valid");
            assert!(Backward::new(&scored).is_ok());
        }
        let wide = Problem::new(Sizes { head_dim: 136, ..SIZES }, Dtype::F16).expect("valid");
        for score in [Score::Softcap(2.0), bias] {
            assert!(Backward::new(&wide.with_score(score).expect("valid")).is_ok());
        }
        assert!(Backward::new(&wide.with_mask(Mask::CAUSAL.with_tree(5)).expect("valid")).is_ok());
        let alibi = wide.with_score(Score::Alibi { per_batch: true }).expect("valid");
        assert!(refused(&alibi).contains("128 of ALiBi"));
        let window = problem().with_mask(Mask::window(Some(3), Some(1)).with_intervals()).expect("valid");
        assert!(Backward::new(&window).is_ok());
    }
}
