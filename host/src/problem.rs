//! One attention problem: sizes, element type, mask, scale and strides, validated once.

use crate::error::Error;
use kernels_gpu::params::Strides;
use kernels_gpu::row::{Dtype, HEAD_DIMS};
use std::hash::{Hash, Hasher};

/// The longest sequence and the largest batch or head count: rounded up to a block, it still fits the kernels' 32-bit positions.
const SIZE_MAX: u32 = (1 << 31) - 128;
/// Bytes that every address and every stride of Q, K, V and O must be a multiple of: one 128-bit access.
pub const ALIGNMENT_BYTES: u64 = 16;

/// The order of the dimensions of a contiguous tensor in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// `[batch, heads, seqlen, head_dim]`, as PyTorch's SDPA takes it.
    #[default]
    Bhsd,
    /// `[batch, seqlen, heads, head_dim]`, as flash-attn takes it.
    Bshd,
}

impl Layout {
    /// The dimensions by name, in order.
    pub const fn dimensions(self) -> &'static str {
        match self {
            Layout::Bhsd => "[batch, heads, seqlen, head_dim]",
            Layout::Bshd => "[batch, seqlen, heads, head_dim]",
        }
    }

    /// The strides of a contiguous tensor.
    fn strides(self, heads: u32, seqlen: u32, head_dim: u32) -> ElementStrides {
        let (heads, seqlen, dim) = (i64::from(heads), i64::from(seqlen), i64::from(head_dim));
        // A head or a row is under 2^39 elements. A batch entry that is too large keeps a multiple of 16 elements that is over
        // every limit, so that validation says so.
        let batch = heads.checked_mul(seqlen * dim).unwrap_or(i64::MAX & !15);
        match self {
            Layout::Bhsd => ElementStrides { batch, head: seqlen * dim, row: dim, dim: 1 },
            Layout::Bshd => ElementStrides { batch, head: dim, row: heads * dim, dim: 1 },
        }
    }
}

/// One of the four tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Queries `[batch, heads_q, seqlen_q, head_dim]`.
    Q,
    /// Keys `[batch, heads_kv, seqlen_k, head_dim]`.
    K,
    /// Values `[batch, heads_kv, seqlen_k, head_dim]`.
    V,
    /// Output `[batch, heads_q, seqlen_q, head_dim]`.
    O,
}

impl TensorRole {
    /// All four, in the order of the parameters.
    pub const ALL: [TensorRole; 4] = [TensorRole::Q, TensorRole::K, TensorRole::V, TensorRole::O];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            TensorRole::Q => "Q",
            TensorRole::K => "K",
            TensorRole::V => "V",
            TensorRole::O => "O",
        }
    }
}

/// The sizes of a problem. Each is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Batch entries.
    pub batch: u32,
    /// Query heads: a multiple of `heads_kv`.
    pub heads_q: u32,
    /// Key and value heads.
    pub heads_kv: u32,
    /// Query rows.
    pub seqlen_q: u32,
    /// Keys.
    pub seqlen_k: u32,
    /// Elements of a query, key and value vector.
    pub head_dim: u32,
}

impl Sizes {
    /// Heads and sequence length of one tensor.
    const fn heads_and_seqlen(&self, role: TensorRole) -> (u32, u32) {
        match role {
            TensorRole::Q | TensorRole::O => (self.heads_q, self.seqlen_q),
            TensorRole::K | TensorRole::V => (self.heads_kv, self.seqlen_k),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let named = [
            ("Q", "batch", self.batch, SIZE_MAX),
            ("Q", "heads_q", self.heads_q, SIZE_MAX),
            ("K", "heads_kv", self.heads_kv, SIZE_MAX),
            ("Q", "seqlen_q", self.seqlen_q, SIZE_MAX),
            ("K", "seqlen_k", self.seqlen_k, SIZE_MAX),
            ("Q", "head_dim", self.head_dim, u32::MAX),
        ];
        for (tensor, dimension, size, limit) in named {
            if size == 0 {
                return Err(Error::ZeroSized { tensor, dimension });
            }
            if size > limit {
                return Err(Error::TooLarge {
                    what: dimension,
                    value: size.to_string(),
                    limit: limit.into(),
                });
            }
        }
        if !HEAD_DIMS.contains(&self.head_dim) {
            return Err(Error::UnsupportedHeadDim { head_dim: self.head_dim, supported: HEAD_DIMS.to_vec() });
        }
        if !self.heads_q.is_multiple_of(self.heads_kv) {
            return Err(Error::HeadsNotDivisible { heads_q: self.heads_q, heads_kv: self.heads_kv });
        }
        Ok(())
    }
}

/// Distance in elements between neighbours along each dimension of a `[batch, head, row, head_dim]` view.
///
/// `dim` must be 1; the others must not be negative and must be multiples of 16 bytes. 0 repeats the same data, which only an
/// input may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementStrides {
    /// From one batch entry to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one sequence position to the next.
    pub row: i64,
    /// From one element of a vector to the next: 1.
    pub dim: i64,
}

/// A validated attention problem: O = softmax(scale · Q·Kᵀ + mask) · V for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    sizes: Sizes,
    dtype: Dtype,
    causal: bool,
    has_lengths: bool,
    scale: f32,
    strides: [ElementStrides; 4],
    /// Elements from the first to the last of each tensor, both included.
    lengths: [usize; 4],
    lse_len: usize,
}

/// The scale is a positive number.
impl Eq for Problem {}

impl Hash for Problem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.sizes, self.dtype, self.causal, self.has_lengths, self.scale.to_bits(), self.strides)
            .hash(state);
    }
}

impl Problem {
    /// A problem with contiguous `bhsd` tensors, no mask and scale 1/√head_dim.
    ///
    /// # Errors
    /// [`Error::ZeroSized`], [`Error::TooLarge`], [`Error::UnsupportedHeadDim`] or [`Error::HeadsNotDivisible`].
    pub fn new(sizes: Sizes, dtype: Dtype) -> Result<Problem, Error> {
        Problem::contiguous(sizes, dtype, Layout::Bhsd)
    }

    /// The problem that three tensors' shapes pose, each in the order of `layout` and contiguous.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] where a shape has not 4 dimensions or does not fit the others, and the errors of
    /// [`Problem::new`].
    pub fn from_shapes(
        q: &[usize],
        k: &[usize],
        v: &[usize],
        layout: Layout,
        dtype: Dtype,
    ) -> Result<Problem, Error> {
        let shapes = [("Q", q), ("K", k), ("V", v)];
        let mut parsed = [[0u32; 4]; 3];
        for ((tensor, shape), parsed) in shapes.into_iter().zip(&mut parsed) {
            *parsed = bhsd_shape(tensor, shape, layout)?;
        }
        let [[batch, heads_q, seqlen_q, head_dim], [batch_k, heads_kv, seqlen_k, dim_k], v_shape] = parsed;
        if (batch_k, dim_k) != (batch, head_dim) {
            let expected = format!("batch {batch} and head_dim {head_dim} as Q has");
            return Err(Error::ShapeMismatch { tensor: "K", expected, got: k.to_vec() });
        }
        if v_shape != parsed[1] {
            return Err(Error::ShapeMismatch {
                tensor: "V",
                expected: format!("K's shape {k:?}"),
                got: v.to_vec(),
            });
        }
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        Problem::contiguous(sizes, dtype, layout)
    }

    fn contiguous(sizes: Sizes, dtype: Dtype, layout: Layout) -> Result<Problem, Error> {
        sizes.check()?;
        let mut strides = [ElementStrides { batch: 0, head: 0, row: 0, dim: 1 }; 4];
        let mut lengths = [0; 4];
        for role in TensorRole::ALL {
            let (heads, seqlen) = sizes.heads_and_seqlen(role);
            strides[role as usize] = layout.strides(heads, seqlen, sizes.head_dim);
            lengths[role as usize] = span(&sizes, dtype, role, &strides[role as usize])?;
        }
        // Fewer than O has elements, so it fits.
        let lse_len = sizes.batch as usize * sizes.heads_q as usize * sizes.seqlen_q as usize;
        let scale = (1.0 / f64::from(sizes.head_dim).sqrt()) as f32;
        Ok(Problem { sizes, dtype, causal: false, has_lengths: false, scale, strides, lengths, lse_len })
    }

    /// With or without the causal mask, aligned bottom-right: query i sees key j where j ≤ i + seqlen_k − seqlen_q.
    pub fn with_causal(self, causal: bool) -> Problem {
        Problem { causal, ..self }
    }

    /// With or without lengths: then each sequence of K and V has a number of keys of its own, at most seqlen_k, which lies on the
    /// device ([`crate::DeviceTensors::seqlens_k`]). Its other keys are never read; the causal mask is aligned to its own last key; a
    /// sequence of length 0 has O 0 and LSE −∞.
    pub fn with_lengths(self, has_lengths: bool) -> Problem {
        Problem { has_lengths, ..self }
    }

    /// With another softmax scale.
    ///
    /// # Errors
    /// [`Error::InvalidScale`] where it is not positive and finite, also once multiplied by log2(e).
    pub fn with_scale(self, scale: f32) -> Result<Problem, Error> {
        let scaled = Problem { scale, ..self };
        if scale > 0.0 && scaled.scale_log2().is_finite() && scaled.scale_log2() > 0.0 {
            Ok(scaled)
        } else {
            Err(Error::InvalidScale { scale })
        }
    }

    /// With all four tensors contiguous in `layout`.
    pub fn with_layout(self, layout: Layout) -> Problem {
        let mut strides = self.strides;
        let mut lengths = self.lengths;
        for role in TensorRole::ALL {
            let (heads, seqlen) = self.sizes.heads_and_seqlen(role);
            strides[role as usize] = layout.strides(heads, seqlen, self.sizes.head_dim);
            // Every layout of a contiguous tensor is as long, and one was validated.
            lengths[role as usize] = self.elements(role);
        }
        Problem { strides, lengths, ..self }
    }

    /// With one tensor strided.
    ///
    /// # Errors
    /// [`Error::NotContiguous`], [`Error::Misaligned`], [`Error::InvalidStride`] where a stride is negative or makes elements
    /// of O coincide, [`Error::TooLarge`].
    pub fn with_strides(self, role: TensorRole, strides: ElementStrides) -> Result<Problem, Error> {
        let mut problem = self;
        let (heads, seqlen) = self.sizes.heads_and_seqlen(role);
        // Nothing steps along a dimension of size 1, and callers fill its stride with anything.
        let taken = |size: u32, stride| if size == 1 { 0 } else { stride };
        let strides = ElementStrides {
            batch: taken(self.sizes.batch, strides.batch),
            head: taken(heads, strides.head),
            row: taken(seqlen, strides.row),
            dim: strides.dim,
        };
        problem.lengths[role as usize] = span(&self.sizes, self.dtype, role, &strides)?;
        problem.strides[role as usize] = strides;
        Ok(problem)
    }

    /// The order of the dimensions, where all four tensors are contiguous in one order.
    pub fn layout(&self) -> Option<Layout> {
        [Layout::Bhsd, Layout::Bshd]
            .into_iter()
            .find(|&layout| self.with_layout(layout).strides == self.strides)
    }

    /// The sizes.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Element type of Q, K, V and O.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Whether the causal mask applies.
    pub fn causal(&self) -> bool {
        self.causal
    }

    /// Whether each sequence has a number of keys of its own.
    pub fn has_lengths(&self) -> bool {
        self.has_lengths
    }

    /// Refuses lengths that are not one a sequence, or longer than K and V.
    ///
    /// # Errors
    /// [`Error::Lengths`] where the problem has none, [`Error::WrongLength`], [`Error::LengthTooLong`].
    pub fn check_lengths(&self, seqlens_k: &[u32]) -> Result<(), Error> {
        if !self.has_lengths {
            let reason = "lengths were given, and the problem has none: plan Problem::with_lengths";
            return Err(Error::Lengths { reason });
        }
        let (expected, got) = (self.sizes.batch as usize, seqlens_k.len());
        if got != expected {
            return Err(Error::WrongLength { tensor: "seqlens_k", expected, got });
        }
        let seqlen_k = self.sizes.seqlen_k;
        match seqlens_k.iter().enumerate().find(|&(_, &length)| length > seqlen_k) {
            Some((batch, &length)) => Err(Error::LengthTooLong { batch, length, seqlen_k }),
            None => Ok(()),
        }
    }

    /// The softmax scale.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The softmax scale times log2(e), for kernels that use exp2.
    pub fn scale_log2(&self) -> f32 {
        (f64::from(self.scale) * std::f64::consts::LOG2_E) as f32
    }

    /// Query heads that share one KV head.
    pub fn group(&self) -> u32 {
        self.sizes.heads_q / self.sizes.heads_kv
    }

    /// The strides of one tensor, in elements.
    pub fn strides(&self, role: TensorRole) -> ElementStrides {
        self.strides[role as usize]
    }

    /// The strides of one tensor, in bytes, as the kernels take them.
    pub fn byte_strides(&self, role: TensorRole) -> Strides {
        let strides = self.strides(role);
        let bytes = i64::from(self.dtype.bytes());
        Strides { batch: strides.batch * bytes, head: strides.head * bytes, row: strides.row * bytes }
    }

    /// Elements that a buffer of one tensor must hold, gaps between strided rows included.
    pub fn len(&self, role: TensorRole) -> usize {
        self.lengths[role as usize]
    }

    /// Elements that one tensor has, gaps not included.
    pub fn elements(&self, role: TensorRole) -> usize {
        let (heads, seqlen) = self.sizes.heads_and_seqlen(role);
        self.sizes.batch as usize * heads as usize * seqlen as usize * self.sizes.head_dim as usize
    }

    /// Elements that Q's buffer must hold.
    pub fn q_len(&self) -> usize {
        self.len(TensorRole::Q)
    }

    /// Elements that K's buffer must hold.
    pub fn k_len(&self) -> usize {
        self.len(TensorRole::K)
    }

    /// Elements that V's buffer must hold.
    pub fn v_len(&self) -> usize {
        self.len(TensorRole::V)
    }

    /// Elements that O's buffer must hold.
    pub fn o_len(&self) -> usize {
        self.len(TensorRole::O)
    }

    /// Elements of LSE, contiguous `[batch, heads_q, seqlen_q]`.
    pub fn lse_len(&self) -> usize {
        self.lse_len
    }
}

/// A shape in `layout`'s order as `[batch, heads, seqlen, head_dim]`.
fn bhsd_shape(tensor: &'static str, shape: &[usize], layout: Layout) -> Result<[u32; 4], Error> {
    let &[batch, second, third, head_dim] = shape else {
        let expected = format!("4 dimensions {}", layout.dimensions());
        return Err(Error::ShapeMismatch { tensor, expected, got: shape.to_vec() });
    };
    let (heads, seqlen) = match layout {
        Layout::Bhsd => (second, third),
        Layout::Bshd => (third, second),
    };
    let named = [("batch", batch), ("heads", heads), ("seqlen", seqlen), ("head_dim", head_dim)];
    let mut sizes = [0; 4];
    for ((dimension, size), slot) in named.into_iter().zip(&mut sizes) {
        if size == 0 {
            return Err(Error::ZeroSized { tensor, dimension });
        }
        let too_large =
            |_| Error::TooLarge { what: dimension, value: size.to_string(), limit: SIZE_MAX.into() };
        *slot = u32::try_from(size).map_err(too_large)?;
    }
    Ok(sizes)
}

/// Elements from the first to the last of a strided tensor, after checking the strides.
fn span(sizes: &Sizes, dtype: Dtype, role: TensorRole, strides: &ElementStrides) -> Result<usize, Error> {
    let tensor = role.name();
    if strides.dim != 1 {
        return Err(Error::NotContiguous { tensor, stride: strides.dim });
    }
    let (heads, seqlen) = sizes.heads_and_seqlen(role);
    let mut outer = [
        ("stride of dimension batch", sizes.batch, strides.batch),
        ("stride of dimension heads", heads, strides.head),
        ("stride of dimension rows", seqlen, strides.row),
    ];
    let dtype_bytes = i128::from(dtype.bytes());
    for (what, _, stride) in outer {
        if stride < 0 {
            return Err(Error::InvalidStride { tensor, what, stride, reason: "it is negative" });
        }
        let value = i128::from(stride) * dtype_bytes;
        if value % i128::from(ALIGNMENT_BYTES) != 0 {
            return Err(Error::Misaligned { tensor, what, value, required: ALIGNMENT_BYTES });
        }
    }
    // From the smallest stride up, each must step over all that the smaller ones reach.
    outer.sort_by_key(|&(_, _, stride)| stride);
    let mut elements = i128::from(sizes.head_dim);
    for (what, size, stride) in outer {
        if role == TensorRole::O && size > 1 && i128::from(stride) < elements {
            return Err(Error::InvalidStride {
                tensor,
                what,
                stride,
                reason: "elements of the output would coincide",
            });
        }
        elements += i128::from(size - 1) * i128::from(stride);
    }
    let limit = i64::MAX as u64 / dtype_bytes as u64;
    match usize::try_from(elements) {
        Ok(length) if length as u64 <= limit => Ok(length),
        _ => Err(Error::TooLarge {
            what: "the number of elements of a tensor",
            value: elements.to_string(),
            limit,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes =
        Sizes { batch: 2, heads_q: 8, heads_kv: 4, seqlen_q: 33, seqlen_k: 65, head_dim: 64 };

    fn good() -> Problem {
        Problem::new(SIZES, Dtype::F16).expect("valid")
    }

    fn refused(sizes: Sizes) -> Error {
        Problem::new(sizes, Dtype::F16).expect_err("refused")
    }

    #[test]
    fn defaults_are_contiguous_full_and_one_over_root_head_dim() {
        let problem = good();
        assert_eq!((problem.causal(), problem.scale(), problem.group()), (false, 0.125, 2));
        assert_eq!(problem.q_len(), 2 * 8 * 33 * 64);
        assert_eq!((problem.k_len(), problem.v_len()), (2 * 4 * 65 * 64, 2 * 4 * 65 * 64));
        assert_eq!((problem.o_len(), problem.lse_len()), (problem.q_len(), 2 * 8 * 33));
        assert_eq!(
            problem.byte_strides(TensorRole::K),
            Strides { batch: 4 * 65 * 128, head: 65 * 128, row: 128 }
        );
        assert_eq!(problem.scale_log2(), 0.125 * std::f32::consts::LOG2_E);
    }

    #[test]
    fn bshd_swaps_rows_and_heads_and_keeps_the_length() {
        let problem = good().with_layout(Layout::Bshd);
        assert_eq!(
            problem.byte_strides(TensorRole::Q),
            Strides { batch: 8 * 33 * 128, head: 128, row: 8 * 128 }
        );
        assert_eq!(problem.q_len(), good().q_len());
        let shapes = ([2, 33, 8, 64], [2, 65, 4, 64]);
        let parsed =
            Problem::from_shapes(&shapes.0, &shapes.1, &shapes.1, Layout::Bshd, Dtype::F16).expect("valid");
        assert_eq!(parsed, problem);
    }

    #[test]
    fn each_bad_size_is_refused_with_its_value() {
        assert!(matches!(refused(Sizes { batch: 0, ..SIZES }), Error::ZeroSized { dimension: "batch", .. }));
        assert!(matches!(
            refused(Sizes { seqlen_k: 0, ..SIZES }),
            Error::ZeroSized { dimension: "seqlen_k", .. }
        ));
        let uneven = Sizes { heads_kv: 3, ..SIZES };
        assert!(matches!(refused(uneven), Error::HeadsNotDivisible { heads_q: 8, heads_kv: 3 }));
        let wide = refused(Sizes { head_dim: 80, ..SIZES });
        assert_eq!(wide.to_string(), "head_dim 80 has no kernel: supported are [32, 64, 96, 128, 256]");
        let long = Sizes { seqlen_q: u32::MAX, ..SIZES };
        assert!(matches!(refused(long), Error::TooLarge { what: "seqlen_q", .. }));
        let huge = 1 << 30;
        let product = Sizes { batch: huge, heads_q: huge, heads_kv: 1, seqlen_q: huge, ..SIZES };
        assert!(matches!(
            refused(product),
            Error::TooLarge { what: "the number of elements of a tensor", .. }
        ));
    }

    #[test]
    fn shapes_that_do_not_fit_each_other_name_the_tensor() {
        let shapes = |q: &[usize], k: &[usize], v: &[usize]| {
            Problem::from_shapes(q, k, v, Layout::Bhsd, Dtype::Bf16).expect_err("refused")
        };
        let (q, k) = ([1, 4, 8, 64], [1, 2, 9, 64]);
        assert!(Problem::from_shapes(&q, &k, &k, Layout::Bhsd, Dtype::Bf16).is_ok());
        assert!(matches!(shapes(&[4, 8, 64], &k, &k), Error::ShapeMismatch { tensor: "Q", .. }));
        assert!(matches!(shapes(&q, &[2, 2, 9, 64], &k), Error::ShapeMismatch { tensor: "K", .. }));
        assert!(matches!(shapes(&q, &[1, 2, 9, 32], &k), Error::ShapeMismatch { tensor: "K", .. }));
        assert!(matches!(shapes(&q, &k, &[1, 2, 8, 64]), Error::ShapeMismatch { tensor: "V", .. }));
        assert!(matches!(
            shapes(&q, &[1, 2, 0, 64], &k),
            Error::ZeroSized { tensor: "K", dimension: "seqlen" }
        ));
        let wide = [1, 1 << 40, 8, 64];
        assert!(matches!(shapes(&wide, &k, &k), Error::TooLarge { what: "heads", .. }));
    }

    #[test]
    fn strides_are_checked_for_sign_alignment_contiguity_and_overlap() {
        let dense = good().strides(TensorRole::O);
        let strided = |role, strides| good().with_strides(role, strides);
        let padded = ElementStrides { row: 72, head: 33 * 72, batch: 8 * 33 * 72, dim: 1 };
        assert_eq!(strided(TensorRole::O, padded).expect("valid").o_len(), 2 * 8 * 33 * 72 - 8);
        let odd = ElementStrides { row: 68, ..padded };
        let error = strided(TensorRole::Q, odd).expect_err("136 bytes");
        assert!(matches!(error, Error::Misaligned { tensor: "Q", value: 136, required: 16, .. }));
        let gappy = ElementStrides { dim: 2, ..dense };
        let error = strided(TensorRole::V, gappy).expect_err("not contiguous");
        assert!(matches!(error, Error::NotContiguous { tensor: "V", stride: 2 }));
        let backwards = ElementStrides { batch: -64, ..dense };
        assert!(matches!(strided(TensorRole::K, backwards), Err(Error::InvalidStride { stride: -64, .. })));
        let repeated = ElementStrides { head: 0, ..dense };
        assert!(strided(TensorRole::K, ElementStrides { head: 0, ..good().strides(TensorRole::K) }).is_ok());
        assert!(matches!(strided(TensorRole::O, repeated), Err(Error::InvalidStride { tensor: "O", .. })));
        let single = Problem::new(Sizes { batch: 1, ..SIZES }, Dtype::F16).expect("valid");
        let any = ElementStrides { batch: -7, ..single.strides(TensorRole::O) };
        assert!(single.with_strides(TensorRole::O, any).is_ok(), "a stride that nothing steps along");
        let far = ElementStrides { batch: i64::MAX / 16 * 16, ..dense };
        assert!(matches!(strided(TensorRole::Q, far), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn a_scale_must_be_positive_and_finite_also_in_base_two() {
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX] {
            assert!(matches!(good().with_scale(scale), Err(Error::InvalidScale { .. })), "{scale}");
        }
        assert_eq!(good().with_scale(2.0).expect("valid").scale(), 2.0);
    }
}
