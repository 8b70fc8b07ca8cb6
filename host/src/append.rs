//! New keys and values into a cache: what is appended, where to, and how it is rotated. Validated once; a launch checks addresses.

use crate::addresses::{aligned, overlap, range};
use crate::error::{Error, StepError};
use crate::problem::{
    ALIGNMENT_BYTES, BlockTable, ElementStrides, Extent, KeySequences, Layout, Mask, Problem, QuerySequences,
    TensorRole,
};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::params::Strides;
use kernels_gpu::step_params::AppendParams;
use kernels_gpu::steps::{Number, Step, StepRow};

/// The most CTAs of a grid, and the most tokens that the kernel's divisors take.
const TOKENS_MAX: u64 = (1 << 31) - 1;

/// New tokens of each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NewTokens {
    /// As many of each: new keys are `[batch, heads_kv, tokens, head_dim]`.
    Each(u32),
    /// Packed one sequence after the other, `[total, heads_kv, head_dim]`: [`AppendTensors::cu_seqlens_new`] says where each starts. A
    /// sequence may have none.
    Packed(u32),
}

impl NewTokens {
    fn rows(self) -> u32 {
        let (NewTokens::Each(rows) | NewTokens::Packed(rows)) = self;
        rows
    }
}

/// How keys and queries are rotated by their positions (RoPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rotary {
    /// Elements of a key vector that are rotated, the first ones: a multiple of 16, at most head_dim.
    pub dim: u32,
    /// Rows of the tables of cosines and sines, `[positions, dim / 2]` in the problem's dtype: at least the keys that a sequence of the
    /// cache may have.
    pub positions: u32,
    /// Whether elements 2i and 2i + 1 are rotated together (GPT-J), else i and i + dim / 2 are (NeoX, Llama).
    pub interleaved: bool,
}

/// Keys and values that are appended to the cache of an attention problem.
///
/// New token t of a sequence becomes key length + t, where the lengths before are [`AppendTensors::seqlens_k`]; it is rotated by the
/// same number as position. A token whose place the cache does not have (past a sequence's pages or rows, a hole in the block table, a slot
/// below 0) is left out. Nothing else of the cache is touched, and `seqlens_k` stays as it is: the lengths with the new tokens, which
/// attention over them takes, go to [`AppendTensors::lengths_after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvAppend {
    problem: Problem,
    new: NewTokens,
    rotary: Option<Rotary>,
    rotates_q: bool,
    has_rotary_starts: bool,
    has_slots: bool,
    strides: [ElementStrides; 3],
    lengths: [usize; 3],
}

/// A tensor of a call that the cache's problem does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendRole {
    /// New keys.
    NewK,
    /// New values.
    NewV,
    /// Q as it is rotated.
    RotatedQ,
}

impl AppendRole {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            AppendRole::NewK => "new K",
            AppendRole::NewV => "new V",
            AppendRole::RotatedQ => "rotated Q",
        }
    }
}

/// The tensors of a call, on the device, by the address of their first element. What the call does not take is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendTensors {
    /// New keys, [`KvAppend::len`] elements, 16-byte aligned.
    pub new_k: u64,
    /// New values.
    pub new_v: u64,
    /// The cache of keys, as the problem's K.
    pub k: u64,
    /// The cache of values, as the problem's V.
    pub v: u64,
    /// Q, as the problem's: exactly with [`KvAppend::with_rotated_queries`].
    pub q: Option<u64>,
    /// Where the rotated Q goes: Q's own address where its strides are Q's, or apart from it.
    pub rotated_q: Option<u64>,
    /// Cosines: exactly with [`KvAppend::with_rotary`].
    pub cos: Option<u64>,
    /// Sines.
    pub sin: Option<u64>,
    /// Keys of each sequence before the call, u32 `[batch]`; may be left out with slots where nothing is rotated.
    pub seqlens_k: Option<u64>,
    /// Where the keys of each sequence after the call go, u32 `[batch]`, apart from `seqlens_k`; where they are wanted.
    pub lengths_after: Option<u64>,
    /// Positions that the rotations of each sequence start at, u32 `[batch]`: exactly with [`KvAppend::with_rotary_starts`].
    pub rotary_starts: Option<u64>,
    /// The first new token of each sequence, u32 `[batch + 1]`, ascending from 0: exactly with [`NewTokens::Packed`].
    pub cu_seqlens_new: Option<u64>,
    /// The first query of each sequence, u32 `[batch + 1]`: exactly where a packed Q is rotated.
    pub cu_seqlens_q: Option<u64>,
    /// The pages of each sequence, as the problem's: exactly where the cache has pages and there are no slots.
    pub block_table: Option<u64>,
    /// Where each sequence starts in the block table, as the problem's.
    pub page_indptr: Option<u64>,
    /// Where each token goes, i64 `[tokens]`, page · keys of a page + row: exactly with [`KvAppend::with_slots`].
    pub slots: Option<u64>,
}

impl KvAppend {
    /// New tokens for the cache that is the problem's K and V, contiguous or in pages. New keys and values are contiguous
    /// `[batch, tokens, heads_kv, head_dim]`, or `[total, heads_kv, head_dim]`.
    ///
    /// # Errors
    /// [`StepError::Append`] where K and V are packed, [`Error::ZeroSized`], [`Error::TooLarge`].
    pub fn new(problem: &Problem, new: NewTokens) -> Result<KvAppend, Error> {
        if matches!(problem.keys(), KeySequences::Packed { .. }) {
            return Err(StepError::Append {
                reason: "packed keys have no room for more: give a cache or pages",
            }
            .into());
        }
        if new.rows() == 0 {
            return Err(Error::ZeroSized { tensor: "new K", dimension: "tokens" });
        }
        let cache = problem.extent(TensorRole::K);
        let slots = u64::from(cache.batch) * u64::from(cache.rows);
        limit("the number of keys of the cache (pages × keys of a page)", slots)?;
        let strides = [ElementStrides { batch: 0, head: 0, row: 0, dim: 1 }; 3];
        let mut append = KvAppend {
            problem: *problem,
            new,
            rotary: None,
            rotates_q: false,
            has_rotary_starts: false,
            has_slots: false,
            strides,
            lengths: [0; 3],
        };
        let tokens = u64::from(append.extent(AppendRole::NewK).batch) * u64::from(new.rows());
        let queries = problem.extent(TensorRole::Q);
        limit("the number of tokens", tokens + u64::from(queries.batch) * u64::from(queries.rows) + 1)?;
        for role in [AppendRole::NewK, AppendRole::NewV] {
            append = append.with_strides(role, Layout::Bshd.strides(&append.extent(role)))?;
        }
        append.with_strides(AppendRole::RotatedQ, problem.strides(TensorRole::Q))
    }

    /// With another layout of a tensor.
    ///
    /// # Errors
    /// As [`Problem::with_strides`].
    pub fn with_strides(mut self, role: AppendRole, strides: ElementStrides) -> Result<KvAppend, Error> {
        let extent = self.extent(role);
        let strides = strides.of(&extent);
        let is_output = role == AppendRole::RotatedQ;
        self.lengths[role as usize] =
            strides.span(&extent, self.problem.dtype().bytes(), role.name(), is_output)?;
        self.strides[role as usize] = strides;
        Ok(self)
    }

    /// With new keys rotated.
    ///
    /// # Errors
    /// [`StepError::Rotary`], [`StepError::RotaryPositions`].
    pub fn with_rotary(self, rotary: Rotary) -> Result<KvAppend, Error> {
        let Rotary { dim, positions, .. } = rotary;
        let head_dim = self.problem.sizes().head_dim;
        if dim == 0 || !dim.is_multiple_of(16) || dim > head_dim {
            return Err(StepError::Rotary { dim, head_dim }.into());
        }
        let needed = self.problem.sizes().seqlen_k;
        if positions < needed {
            return Err(StepError::RotaryPositions { positions, needed }.into());
        }
        limit("the number of positions of the rotary tables", positions.into())?;
        Ok(KvAppend { rotary: Some(rotary), ..self })
    }

    /// With the problem's Q rotated, too: query i of a sequence by the position length + i where the mask depends on positions (causal,
    /// windows), as flash-attn does, else all of them by the position length.
    ///
    /// # Errors
    /// [`StepError::Append`] without [`KvAppend::with_rotary`].
    pub fn with_rotated_queries(self) -> Result<KvAppend, Error> {
        if self.rotary.is_none() {
            return Err(StepError::Append {
                reason: "queries are rotated with new keys: say with_rotary first",
            }
            .into());
        }
        Ok(KvAppend { rotates_q: true, ..self })
    }

    /// With positions of each sequence that rotations start at, instead of its length.
    pub fn with_rotary_starts(self) -> KvAppend {
        KvAppend { has_rotary_starts: true, ..self }
    }

    /// With a place for each token instead of the lengths.
    pub fn with_slots(self) -> KvAppend {
        KvAppend { has_slots: true, ..self }
    }

    /// The attention problem whose K and V are the cache.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How many tokens are appended.
    pub fn new_tokens(&self) -> NewTokens {
        self.new
    }

    /// How keys and queries are rotated.
    pub fn rotary(&self) -> Option<Rotary> {
        self.rotary
    }

    /// Whether Q is rotated.
    pub fn rotates_queries(&self) -> bool {
        self.rotates_q
    }

    /// Whether rotations start at positions of their own.
    pub fn has_rotary_starts(&self) -> bool {
        self.has_rotary_starts
    }

    /// Whether each token has a place of its own.
    pub fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// Whether each query is rotated by a position of its own.
    pub fn rotates_each_query(&self) -> bool {
        let Mask { window_left, window_right, .. } = self.problem.mask();
        window_left.is_some() || window_right.is_some()
    }

    /// The dimensions of a tensor.
    pub fn extent(&self, role: AppendRole) -> Extent {
        let of_cache = |role| {
            let Extent { heads, width, .. } = self.problem.extent(role);
            let batch = match self.new {
                NewTokens::Each(_) => self.problem.sizes().batch,
                NewTokens::Packed(_) => 1,
            };
            Extent { batch, heads, rows: self.new.rows(), width }
        };
        match role {
            AppendRole::NewK => of_cache(TensorRole::K),
            AppendRole::NewV => of_cache(TensorRole::V),
            AppendRole::RotatedQ => self.problem.extent(TensorRole::Q),
        }
    }

    /// The strides of a tensor, in elements.
    pub fn strides(&self, role: AppendRole) -> ElementStrides {
        self.strides[role as usize]
    }

    /// Elements that a buffer of a tensor must hold, gaps between strided rows included.
    pub fn len(&self, role: AppendRole) -> usize {
        self.lengths[role as usize]
    }

    /// Elements of the table of cosines, and of that of sines.
    pub fn table_len(&self) -> usize {
        self.rotary.map_or(0, |rotary| rotary.positions as usize * (rotary.dim / 2) as usize)
    }

    /// The kernel that does it.
    pub(crate) fn kernel(&self) -> StepRow {
        let number = Number::from(self.problem.dtype());
        StepRow { step: Step::Append, input: number, output: number }
    }

    /// The kernel's parameters with these addresses, which [`KvAppend::check`] has seen.
    pub(crate) fn params(&self, tensors: &AppendTensors) -> AppendParams {
        let (problem, sizes) = (&self.problem, self.problem.sizes());
        let bytes = |role: AppendRole, is_single: bool| {
            let strides = self.strides(role).bytes(problem.dtype().bytes());
            // The first of packed sequences starts where the others do.
            if is_single { Strides { batch: 0, ..strides } } else { strides }
        };
        let packed_q = matches!(problem.queries(), QuerySequences::Packed { .. });
        let packed_new = matches!(self.new, NewTokens::Packed(_));
        let (new_k, queries, cache) =
            (self.extent(AppendRole::NewK), problem.extent(TensorRole::Q), problem.extent(TensorRole::K));
        let table_stride = match problem.keys() {
            KeySequences::Paged(pages) => {
                let (BlockTable::Rows { entries } | BlockTable::Csr { entries }) = pages.table;
                entries
            }
            KeySequences::Batch | KeySequences::Packed { .. } => 0,
        };
        let rotary = self.rotary.unwrap_or(Rotary { dim: 0, positions: 0, interleaved: false });
        let (rotated_chunks, chunks) = (rotary.dim / 8, sizes.head_dim / 8);
        let q_strides = problem.byte_strides(TensorRole::Q);
        AppendParams {
            new_k: tensors.new_k,
            new_v: tensors.new_v,
            k: tensors.k,
            v: tensors.v,
            q: tensors.q.unwrap_or(0),
            rotated_q: tensors.rotated_q.unwrap_or(0),
            cos: tensors.cos.unwrap_or(0),
            sin: tensors.sin.unwrap_or(0),
            seqlens_k: tensors.seqlens_k.unwrap_or(0),
            lengths_after: tensors.lengths_after.unwrap_or(0),
            rotary_starts: tensors.rotary_starts.unwrap_or(0),
            cu_seqlens_new: tensors.cu_seqlens_new.unwrap_or(0),
            cu_seqlens_q: tensors.cu_seqlens_q.unwrap_or(0),
            block_table: tensors.block_table.unwrap_or(0),
            page_indptr: tensors.page_indptr.unwrap_or(0),
            slots: tensors.slots.unwrap_or(0),
            new_k_strides: bytes(AppendRole::NewK, packed_new),
            new_v_strides: bytes(AppendRole::NewV, packed_new),
            k_strides: problem.byte_strides(TensorRole::K),
            v_strides: problem.byte_strides(TensorRole::V),
            q_strides: if packed_q { Strides { batch: 0, ..q_strides } } else { q_strides },
            rotated_q_strides: bytes(AppendRole::RotatedQ, packed_q),
            seqlen_new: Divisor::new(self.new.rows()),
            seqlen_q: Divisor::new(queries.rows),
            page: Divisor::new(cache.rows),
            pieces_k: Divisor::new(AppendParams::pieces(chunks, rotated_chunks, rotary.interleaved)),
            chunks_v: Divisor::new(problem.head_dim_v() / 8),
            tokens: new_k.batch * new_k.rows,
            q_tokens: if self.rotates_q { queries.batch * queries.rows } else { 0 },
            batch: sizes.batch,
            heads_kv: sizes.heads_kv,
            heads_q: sizes.heads_q,
            pages: cache.batch,
            table_stride,
            rotated_chunks,
            positions: rotary.positions,
            interleaved: rotary.interleaved.into(),
            each_query: self.rotates_each_query().into(),
        }
    }

    /// Refuses what the call lacks, what it does not take, and what is misaligned or lies over the cache.
    ///
    /// # Errors
    /// [`Error::Operand`], [`Error::Misaligned`].
    pub(crate) fn check(&self, tensors: &AppendTensors) -> Result<(), Error> {
        let paged = match self.problem.keys() {
            KeySequences::Paged(pages) if !self.has_slots => Some(pages.table),
            _ => None,
        };
        let packed_q = matches!(self.problem.queries(), QuerySequences::Packed { .. });
        let (rotates, rotates_q) = (self.rotary.is_some(), self.rotates_q);
        let needs_lengths =
            !self.has_slots || rotates && !self.has_rotary_starts || tensors.lengths_after.is_some();
        let exactly = [
            ("Q", tensors.q, rotates_q, ALIGNMENT_BYTES),
            ("rotated Q", tensors.rotated_q, rotates_q, ALIGNMENT_BYTES),
            ("cos", tensors.cos, rotates, ALIGNMENT_BYTES),
            ("sin", tensors.sin, rotates, ALIGNMENT_BYTES),
            ("seqlens_k", tensors.seqlens_k, needs_lengths || tensors.seqlens_k.is_some(), 4),
            ("lengths_after", tensors.lengths_after, tensors.lengths_after.is_some(), 4),
            ("rotary_starts", tensors.rotary_starts, self.has_rotary_starts, 4),
            ("cu_seqlens_new", tensors.cu_seqlens_new, matches!(self.new, NewTokens::Packed(_)), 4),
            ("cu_seqlens_q", tensors.cu_seqlens_q, packed_q && rotates_q, 4),
            ("block_table", tensors.block_table, paged.is_some(), 4),
            ("page_indptr", tensors.page_indptr, matches!(paged, Some(BlockTable::Csr { .. })), 4),
            ("slots", tensors.slots, self.has_slots, 8),
        ];
        for (tensor, given, is_taken, required) in exactly {
            let reason = match (given.is_some_and(|address| address != 0), is_taken) {
                (false, true) => "the call takes it, and it was not given",
                (true, false) => "it was given, and the call takes none",
                _ => {
                    aligned(tensor, given.unwrap_or(0), required)?;
                    continue;
                }
            };
            return Err(Error::Operand { operand: tensor, reason });
        }
        for (tensor, address) in
            [("new K", tensors.new_k), ("new V", tensors.new_v), ("K", tensors.k), ("V", tensors.v)]
        {
            if address == 0 {
                return Err(Error::Operand { operand: tensor, reason: "its address is null" });
            }
            aligned(tensor, address, ALIGNMENT_BYTES)?;
        }
        if tensors.lengths_after.is_some() && tensors.lengths_after == tensors.seqlens_k {
            let reason = "it is written while seqlens_k is read: give other memory";
            return Err(Error::Operand { operand: "lengths_after", reason });
        }
        self.check_apart(tensors)
    }

    fn check_apart(&self, tensors: &AppendTensors) -> Result<(), Error> {
        let bytes = self.problem.dtype().bytes();
        let range = |address: u64, elements: usize| range(address, elements, bytes);
        let caches = [(TensorRole::K, tensors.k), (TensorRole::V, tensors.v)]
            .map(|(role, address)| range(address, self.problem.len(role)));
        let others = [
            (AppendRole::NewK, Some(tensors.new_k)),
            (AppendRole::NewV, Some(tensors.new_v)),
            (AppendRole::RotatedQ, tensors.rotated_q),
        ];
        for (role, address) in others {
            let Some(address) = address else { continue };
            let own = range(address, self.len(role));
            if caches.iter().any(|cache| overlap(&own, cache)) {
                return Err(Error::Operand { operand: role.name(), reason: "it overlaps the cache" });
            }
        }
        if let (Some(q), Some(rotated)) = (tensors.q, tensors.rotated_q) {
            let in_place =
                q == rotated && self.strides(AppendRole::RotatedQ) == self.problem.strides(TensorRole::Q);
            let (q, rotated) =
                (range(q, self.problem.q_len()), range(rotated, self.len(AppendRole::RotatedQ)));
            if !in_place && overlap(&q, &rotated) {
                let reason = "it overlaps Q, and is not Q itself with its strides";
                return Err(Error::Operand { operand: "rotated Q", reason });
            }
        }
        Ok(())
    }
}

fn limit(what: &'static str, value: u64) -> Result<(), Error> {
    let limit = TOKENS_MAX;
    if value > limit { Err(Error::TooLarge { what, value: value.to_string(), limit }) } else { Ok(()) }
}
