//! One attention problem: sizes, element type, mask, scale and strides, validated once.

mod dropout;
mod layout;
mod mask;
mod ragged;
mod sizes;
mod user_score;

pub use dropout::Dropout;
pub use layout::{ElementStrides, Layout};
pub use mask::Mask;
pub use ragged::{BiasShape, BlockTable, KeySequences, Operand, Pages, QuerySequences, Score};
pub use sizes::{Extent, Sizes, TensorRole};
pub use user_score::{ScoreTable, ScoreTables, UserScore};

use crate::error::Error;
use kernels_gpu::params::Strides;
use kernels_gpu::row::{DENSE_HEAD_DIMS, Dtype, HEAD_DIMS, ScoreKind};
use sizes::{SIZE_MAX, check_rows, check_width};
use std::hash::{Hash, Hasher};

/// Bytes that every address and every stride of Q, K, V and O must be a multiple of: one 128-bit access.
pub const ALIGNMENT_BYTES: u64 = 16;

/// A validated attention problem: O = softmax(scale · Q·Kᵀ + mask) · V for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    sizes: Sizes,
    dtype: Dtype,
    mask: Mask,
    has_lengths: bool,
    scale: f32,
    head_dim_v: u32,
    queries: QuerySequences,
    keys: KeySequences,
    score: Score,
    dropout: Option<Dropout>,
    has_sinks: bool,
    strides: [ElementStrides; 4],
    /// Elements from the first to the last of each tensor, both included.
    lengths: [usize; 4],
    lse_len: usize,
}

/// The scale is a positive number.
impl Eq for Problem {}

impl Hash for Problem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.sizes, self.dtype, self.mask, self.has_lengths, self.scale.to_bits(), self.strides).hash(state);
        (self.head_dim_v, self.queries, self.keys, self.score, self.dropout, self.has_sinks).hash(state);
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
        let problem = Problem {
            sizes,
            dtype,
            mask: Mask::FULL,
            has_lengths: false,
            scale: (1.0 / f64::from(sizes.head_dim).sqrt()) as f32,
            head_dim_v: sizes.head_dim,
            queries: QuerySequences::Batch,
            keys: KeySequences::Batch,
            score: Score::Plain,
            dropout: None,
            has_sinks: false,
            strides: [ElementStrides { batch: 0, head: 0, row: 0, dim: 1 }; 4],
            lengths: [0; 4],
            lse_len: 0,
        };
        problem.laid_out(layout)
    }

    /// With all four tensors contiguous, in whatever sizes they now have.
    fn laid_out(mut self, layout: Layout) -> Result<Problem, Error> {
        for role in TensorRole::ALL {
            let extent = self.extent(role);
            let strides = layout.strides(&extent);
            self.lengths[role as usize] = self.span(role, &strides)?;
            self.strides[role as usize] = strides;
        }
        // Fewer than O has elements, so it fits.
        self.lse_len = Extent { width: 1, ..self.extent(TensorRole::Q) }.elements();
        Ok(self)
    }

    /// With or without the causal mask, aligned bottom-right: query i sees key j where j ≤ i + seqlen_k − seqlen_q.
    pub fn with_causal(self, causal: bool) -> Problem {
        Problem { mask: if causal { Mask::CAUSAL } else { Mask::FULL }, ..self }
    }

    /// With a mask: [`Mask::FULL`], [`Mask::CAUSAL`], windows, chunks, prefixes.
    ///
    /// # Errors
    /// [`Error::Mask`] where its parts exclude each other, or the score's function; [`Error::Dropout`] where a tree excludes dropout.
    pub fn with_mask(self, mask: Mask) -> Result<Problem, Error> {
        mask.check(&self.score)?;
        Problem { mask, ..self }.checked_for_dropout()
    }

    /// With packed queries: Q and O are `[total, heads_q, head_dim]` in layout `bshd`, sequence after sequence, and
    /// [`Operand::CuSeqlensQ`] says where each starts. `seqlen_q` of the sizes is then the most queries that any of the `batch`
    /// sequences has; O of more is not computed, and who knows no bound gives `total`. All four tensors are contiguous in `bshd`: strides
    /// come after.
    ///
    /// # Errors
    /// [`Error::ZeroSized`], [`Error::TooLarge`].
    pub fn with_packed_queries(self, total: u32) -> Result<Problem, Error> {
        check_rows("Q", "total", total)?;
        Problem { queries: QuerySequences::Packed { total }, ..self }.laid_out(Layout::Bshd)
    }

    /// With packed keys: K and V are `[total, heads_kv, head_dim]` in layout `bshd`, and [`Operand::CuSeqlensK`] says where each sequence
    /// starts. `seqlen_k` of the sizes is then the most keys that any sequence has; more are not seen. All four tensors are contiguous in
    /// `bshd`: strides come after.
    ///
    /// # Errors
    /// [`Error::ZeroSized`], [`Error::TooLarge`].
    pub fn with_packed_keys(self, total: u32) -> Result<Problem, Error> {
        check_rows("K", "total", total)?;
        Problem { keys: KeySequences::Packed { total }, ..self }.laid_out(Layout::Bshd)
    }

    /// With keys in pages: K and V are `[pages, page, heads_kv, head_dim]` in layout `bshd` (NHD), `[pages, heads_kv, page, head_dim]` in
    /// `bhsd` (HND), and [`Operand::BlockTable`] says which pages hold a sequence's keys. All four tensors are contiguous in `bshd`
    /// afterwards: layout and strides come after.
    ///
    /// # Errors
    /// [`Error::ZeroSized`], [`Error::TooLarge`], [`Error::Pages`] where a sequence's pages do not hold seqlen_k keys.
    pub fn with_pages(self, pages: Pages) -> Result<Problem, Error> {
        pages.check(self.sizes.batch, self.sizes.seqlen_k)?;
        Problem { keys: KeySequences::Paged(pages), ..self }.laid_out(Layout::Bshd)
    }

    /// With values, and so rows of O, of another width than queries and keys: a multiple of 8 up to 256, of 16 up to
    /// 512. All four tensors are contiguous
    /// again in their layout.
    ///
    /// # Errors
    /// [`Error::UnsupportedHeadDim`], [`Error::TooLarge`].
    pub fn with_head_dim_v(self, head_dim_v: u32) -> Result<Problem, Error> {
        check_width(head_dim_v)?;
        let layout = self.layout().unwrap_or_default();
        Problem { head_dim_v, ..self }.laid_out(layout)
    }

    /// With a function of every score.
    ///
    /// # Errors
    /// [`Error::InvalidSoftcap`] where a softcap is not positive and finite, also with the scale; [`Error::Mask`] where the mask has a tree;
    /// [`Error::Dropout`] where there is dropout.
    pub fn with_score(self, score: Score) -> Result<Problem, Error> {
        score.check(self.scale)?;
        self.mask.check(&score)?;
        Problem { score, ..self }.checked_for_dropout()
    }

    /// With another number of keys that a sequence in pages may have.
    pub(crate) fn with_seqlen_k(self, seqlen_k: u32) -> Result<Problem, Error> {
        let sizes = Sizes { seqlen_k, ..self.sizes };
        sizes.check()?;
        Ok(Problem { sizes, ..self })
    }

    /// With or without learned sinks: a score of each query head, [`Operand::Sinks`], that counts in the softmax and has no value.
    pub fn with_sinks(self, has_sinks: bool) -> Problem {
        Problem { has_sinks, ..self }
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
        // Every layout of a contiguous tensor is as long, and one was validated.
        self.laid_out(layout).unwrap_or(self)
    }

    /// With one tensor strided.
    ///
    /// # Errors
    /// [`Error::NotContiguous`], [`Error::Misaligned`], [`Error::InvalidStride`] where a stride is negative or makes elements
    /// of O coincide, [`Error::TooLarge`].
    pub fn with_strides(self, role: TensorRole, strides: ElementStrides) -> Result<Problem, Error> {
        let mut problem = self;
        let strides = strides.of(&self.extent(role));
        problem.lengths[role as usize] = self.span(role, &strides)?;
        problem.strides[role as usize] = strides;
        Ok(problem)
    }

    fn span(&self, role: TensorRole, strides: &ElementStrides) -> Result<usize, Error> {
        strides.span(&self.extent(role), self.dtype.bytes(), role.name(), role == TensorRole::O)
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
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Which keys each query sees.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Whether a query sees no key after its own, and so the last one sees most.
    pub fn causal(&self) -> bool {
        self.mask.window_right == Some(0)
    }

    /// How sequences lie in Q.
    pub fn queries(&self) -> QuerySequences {
        self.queries
    }

    /// How sequences lie in K and V.
    pub fn keys(&self) -> KeySequences {
        self.keys
    }

    /// Elements of a value vector, and of a row of O.
    pub fn head_dim_v(&self) -> u32 {
        self.head_dim_v
    }

    /// What touches every score.
    pub fn score(&self) -> Score {
        self.score
    }

    /// Whether there are learned sinks.
    pub fn has_sinks(&self) -> bool {
        self.has_sinks
    }

    /// Whether only kernels for ragged batches compute it.
    pub fn is_ragged(&self) -> bool {
        self.queries != QuerySequences::Batch
            || self.keys != KeySequences::Batch
            || !matches!(self.mask, Mask::FULL | Mask::CAUSAL)
            || self.score_kind() != ScoreKind::Plain
            || self.has_sinks
            || self.head_dim_v != self.sizes.head_dim
            || !DENSE_HEAD_DIMS.contains(&self.sizes.head_dim)
    }

    /// The head_dim of the kernels that compute it: the least that holds queries, keys and values.
    pub fn tile_head_dim(&self) -> u32 {
        let width = self.sizes.head_dim.max(self.head_dim_v);
        HEAD_DIMS.into_iter().find(|&dim| dim >= width).unwrap_or(width)
    }

    /// The dimensions of one tensor.
    pub fn extent(&self, role: TensorRole) -> Extent {
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = self.sizes;
        let (batch, rows) = match (role, self.queries, self.keys) {
            (TensorRole::Q | TensorRole::O, QuerySequences::Batch, _) => (batch, seqlen_q),
            (TensorRole::Q | TensorRole::O, QuerySequences::Packed { total }, _) => (1, total),
            (TensorRole::K | TensorRole::V, _, KeySequences::Batch) => (batch, seqlen_k),
            (TensorRole::K | TensorRole::V, _, KeySequences::Packed { total }) => (1, total),
            (TensorRole::K | TensorRole::V, _, KeySequences::Paged(pages)) => (pages.pages, pages.page),
        };
        let heads = if matches!(role, TensorRole::Q | TensorRole::O) { heads_q } else { heads_kv };
        let width = if matches!(role, TensorRole::Q | TensorRole::K) { head_dim } else { self.head_dim_v };
        Extent { batch, heads, rows, width }
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

    /// The same tensors with the query heads that share a KV head as one head of all their rows. `None` where they are not that: heads are to
    /// follow each other in Q and O as rows do, and every row to see all keys.
    pub(crate) fn with_groups_as_heads(&self) -> Option<Problem> {
        let (group, Sizes { heads_kv, seqlen_q, .. }) = (self.group(), self.sizes);
        let sees_all = self.mask == Mask::FULL || self.mask == Mask::CAUSAL && seqlen_q == 1;
        if group == 1 || !sees_all || self.has_lengths || self.is_ragged() {
            return None;
        }
        let sizes = Sizes { heads_q: heads_kv, seqlen_q: seqlen_q.checked_mul(group)?, ..self.sizes };
        sizes.check().ok()?;
        let mut grouped = Problem { sizes, mask: Mask::FULL, ..*self };
        for role in [TensorRole::Q, TensorRole::O] {
            let strides = self.strides(role);
            let row = if seqlen_q == 1 { strides.head } else { strides.row };
            if strides.head != row.checked_mul(seqlen_q.into())? {
                return None;
            }
            let head = strides.head.checked_mul(group.into())?;
            grouped = grouped.with_strides(role, ElementStrides { head, row, ..strides }).ok()?;
        }
        Some(grouped)
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
        self.strides(role).bytes(self.dtype.bytes())
    }

    /// Elements that a buffer of one tensor must hold, gaps between strided rows included.
    pub fn len(&self, role: TensorRole) -> usize {
        self.lengths[role as usize]
    }

    /// Elements that one tensor has, gaps not included.
    pub fn elements(&self, role: TensorRole) -> usize {
        self.extent(role).elements()
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

    /// Elements of LSE, contiguous `[batch, heads_q, seqlen_q]`, or `[heads_q, total]` where queries are packed.
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

#[cfg(test)]
mod tests;
