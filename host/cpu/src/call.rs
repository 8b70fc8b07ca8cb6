//! One call: tensors by address and strides, and which keys each query sees.

use crate::dropout::Dropout;
use crate::error::Error;
use crate::forward;
use std::num::NonZeroU32;

/// Type of the elements of Q, K, V and O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision, which the CPU alone computes, for tests of gradients.
    F64,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// Type of LSE: float32, or float64 of such elements.
    pub const fn of_sums(self) -> Dtype {
        match self {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => Dtype::F32,
            Dtype::F64 => Dtype::F64,
        }
    }
}

/// The sizes of a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Query heads: a multiple of `heads_kv`.
    pub heads_q: usize,
    /// Key and value heads.
    pub heads_kv: usize,
    /// Queries of a sequence; with [`Lengths::cumulative_q`], rows of Q in all.
    pub seqlen_q: usize,
    /// Keys of a sequence at most; with [`Lengths::cumulative_k`], rows of K in all; with [`Pages`], of the pages of a sequence.
    pub seqlen_k: usize,
    /// Elements of a query and key vector.
    pub head_dim: usize,
}

/// A tensor `[batch, heads, seqlen, head_dim]`, its last dimension contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tensor {
    /// Of its first element.
    pub address: u64,
    /// Elements from one sequence (or page) to the next, from one head to the next, and from one row to the next.
    pub strides: [i64; 3],
}

impl Tensor {
    /// Refuses the output named `tensor`, of `[batch, heads, rows]` rows of `width` elements, if its strides put two elements at one place. The rule
    /// is that of the kernels' outputs: from the smallest stride up, each must step over all that the smaller ones reach.
    ///
    /// # Errors
    /// [`Error::Coincide`].
    pub(crate) fn check_apart(
        &self,
        tensor: &'static str,
        [batch, heads, rows]: [usize; 3],
        width: usize,
    ) -> Result<(), Error> {
        let [of_batch, of_head, of_row] = self.strides;
        let mut outer = [("batch", batch, of_batch), ("heads", heads, of_head), ("rows", rows, of_row)];
        outer.sort_by_key(|&(_, _, stride)| stride.unsigned_abs());
        let mut elements = width as u128;
        // Nothing steps along a dimension of size 1.
        for (dimension, size, stride) in outer.into_iter().filter(|&(_, size, _)| size > 1) {
            let step = u128::from(stride.unsigned_abs());
            if step < elements {
                return Err(Error::Coincide { tensor, dimension, stride });
            }
            elements = elements.saturating_add((size as u128 - 1).saturating_mul(step));
        }
        Ok(())
    }
}

/// Sequences of different lengths: addresses of 32-bit integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// `[batch + 1]`: where each sequence's queries begin in Q, and where the last ends. Q has no batch then.
    pub cumulative_q: Option<u64>,
    /// The same of keys.
    pub cumulative_k: Option<u64>,
    /// The most queries of a sequence, for those who plan; 0 where it is not known.
    pub longest_q: usize,
    /// The most keys of a sequence.
    pub longest_k: usize,
    /// `[batch]`: keys of each sequence that count.
    pub used_k: Option<u64>,
    /// `[batch]`: the first key of each sequence that counts.
    pub first_k: Option<u64>,
    /// `[batch]`: which entry of K and V holds each sequence.
    pub entry_k: Option<u64>,
    /// Entries of K and V there are, where `entry_k` is given.
    pub entries_k: usize,
}

/// K and V in pages: the page of key j of a sequence is entry j / page_size of the sequence's row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Address of the table, 32-bit integers.
    pub table: u64,
    /// Entries from one sequence's row to the next.
    pub stride: i64,
    /// Keys of a page.
    pub page_size: usize,
    /// Pages there are.
    pub count: usize,
}

/// Which of a sequence's last keys each query sees: bits, as a tree of drafts has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Address of 32-bit words `[batch, seqlen_q, words]`, or with [`Lengths::cumulative_q`] `[rows, words]`: bit b of word w is of the key
    /// number 32 · w + b of the tree.
    pub bits: u64,
    /// Keys of the tree, the last of each sequence. All masks hold for them as well.
    pub keys: usize,
}

impl Tree {
    /// Words of a query.
    pub fn words(&self) -> usize {
        self.keys.div_ceil(32)
    }
}

/// Slopes of ALiBi, float32: score −slope · |distance| is added for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// Address of the slopes, `[heads_q]` or `[batch, heads_q]`.
    pub slopes: u64,
    /// Slopes from one sequence to the next: 0 or heads_q.
    pub stride: i64,
}

/// What is added to each score, in the type of Q: contiguous `[batch, heads_q, seqlen_q, seqlen_k]`, of which any of the first three is 1 where
/// all have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bias {
    /// Address of the numbers.
    pub values: u64,
    /// Whether sequences, query heads and queries have their own.
    pub own: [bool; 3],
}

impl Bias {
    /// Elements from one sequence, head and query to the next.
    pub fn strides(&self, sizes: &Sizes) -> [i64; 3] {
        let [batch, heads, queries] = self.own;
        let row = sizes.seqlen_k as i64;
        let head = if queries { row * sizes.seqlen_q as i64 } else { row };
        let sequence = if heads { head * sizes.heads_q as i64 } else { head };
        let of = |own: bool, stride| if own { stride } else { 0 };
        [of(batch, sequence), of(heads, head), of(queries, row)]
    }
}

/// One call: O = softmax(scores) · V, and LSE where an address of it is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Type of Q, K, V and O.
    pub dtype: Dtype,
    /// The sizes.
    pub sizes: Sizes,
    /// Elements of a value vector and of one of O.
    pub head_dim_v: usize,
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Output, as Q.
    pub o: Tensor,
    /// Address of the log-sum-exp of each row, natural logarithm, of [`Dtype::of_sums`], contiguous: `[batch, heads_q, seqlen_q]`, or with
    /// [`Lengths::cumulative_q`] `[heads_q, rows]`.
    pub lse: Option<u64>,
    /// The scale of Q·Kᵀ; 1/√head_dim where `None`.
    pub scale: Option<f64>,
    /// Keys seen before the query's own, at most; `None` is all. Query i of n is at key i + keys − n.
    pub window_left: Option<usize>,
    /// Keys seen after the query's own, at most; `Some(0)` is the causal mask.
    pub window_right: Option<usize>,
    /// Scores become softcap · tanh(score / softcap); 0 leaves them.
    pub softcap: f32,
    /// Biases by distance.
    pub alibi: Option<Alibi>,
    /// Biases, of queries and keys that are not ragged. A key whose bias is −∞ has no weight.
    pub bias: Option<Bias>,
    /// Weights of the softmax that are left out.
    pub dropout: Option<Dropout>,
    /// Address of a logit a query head, float32 `[heads_q]`, that takes part in each row's softmax without a value.
    pub sinks: Option<u64>,
    /// Address of the first key that each query may see and the one past the last, 32-bit integers `[batch, seqlen_q, 2]`, or with
    /// [`Lengths::cumulative_q`] `[rows, 2]`.
    pub intervals: Option<u64>,
    /// No query sees a key outside of its own key's chunk of so many keys.
    pub chunk: Option<usize>,
    /// Which of the last keys each query sees.
    pub tree: Option<Tree>,
    /// Sequences of different lengths.
    pub lengths: Lengths,
    /// K and V in pages.
    pub pages: Option<Pages>,
    /// Ranges that kernels split the keys into at most, 1 for none; the plan decides where `None`. The CPU splits nothing.
    pub splits: Option<NonZeroU32>,
}

impl Call {
    /// A call of contiguous `[batch, seqlen, heads, head_dim]` tensors without addresses, where every query sees every key.
    pub fn bshd(dtype: Dtype, sizes: Sizes) -> Call {
        let tensor = |heads: usize, seqlen: usize| {
            let row = (heads * sizes.head_dim) as i64;
            Tensor { address: 0, strides: [row * seqlen as i64, sizes.head_dim as i64, row] }
        };
        let (q, k) = (tensor(sizes.heads_q, sizes.seqlen_q), tensor(sizes.heads_kv, sizes.seqlen_k));
        Call {
            dtype,
            sizes,
            head_dim_v: sizes.head_dim,
            q,
            k,
            v: k,
            o: q,
            lse: None,
            scale: None,
            window_left: None,
            window_right: None,
            softcap: 0.0,
            alibi: None,
            bias: None,
            dropout: None,
            sinks: None,
            intervals: None,
            chunk: None,
            tree: None,
            lengths: Lengths::default(),
            pages: None,
            splits: None,
        }
    }

    /// The scale of Q·Kᵀ.
    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (self.sizes.head_dim as f64).sqrt())
    }

    /// Whether every query sees the keys up to its own and no other.
    pub fn is_causal(&self) -> bool {
        self.window_left.is_none()
            && self.window_right == Some(0)
            && self.chunk.is_none()
            && self.tree.is_none()
    }

    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.sizes.heads_q / self.sizes.heads_kv
    }

    /// Refuses what cannot be computed, addresses and what lies there aside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&self) -> Result<(), Error> {
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = self.sizes;
        let named = [
            ("batch", batch),
            ("heads_q", heads_q),
            ("heads_kv", heads_kv),
            ("seqlen_q", seqlen_q),
            ("seqlen_k", seqlen_k),
            ("head_dim", head_dim),
            ("head_dim_v", self.head_dim_v),
            ("page_size", self.pages.map_or(1, |pages| pages.page_size)),
            ("attention_chunk", self.chunk.unwrap_or(1)),
            ("tree", self.tree.map_or(1, |tree| tree.keys)),
        ];
        if let Some((dimension, _)) = named.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::ZeroSized { dimension });
        }
        if !heads_q.is_multiple_of(heads_kv) {
            return Err(Error::HeadsNotDivisible { heads_q, heads_kv });
        }
        let number = |what, value, allowed| Err(Error::Number { what, value, allowed });
        // It multiplies sums of this type.
        let scale = match self.dtype.of_sums() {
            Dtype::F64 => self.scale(),
            _ => f64::from(self.scale() as f32),
        };
        if !(scale > 0.0 && scale.is_finite()) {
            return number("scale", self.scale(), "positive and finite in the type of LSE");
        }
        if !(self.softcap >= 0.0 && self.softcap.is_finite()) {
            return number("softcap", self.softcap.into(), "0 or positive, and finite");
        }
        let p = self.dropout.map_or(0.0, |dropout| dropout.p);
        if !(0.0..1.0).contains(&p) {
            return number("dropout_p", p.into(), "at least 0 and below 1");
        }
        self.o.check_apart("O", self.extent_q(), self.head_dim_v)?;
        let addresses =
            [("Q", self.q.address), ("K", self.k.address), ("V", self.v.address), ("O", self.o.address)];
        let mut addresses = addresses.into_iter().chain(self.optional_addresses());
        match addresses.find(|(_, address)| *address == 0) {
            Some((tensor, _)) => Err(Error::Null { tensor }),
            None => Ok(()),
        }
    }

    /// Sequences, heads and rows of Q, of which there is one sequence where they lie behind one another.
    pub(crate) fn extent_q(&self) -> [usize; 3] {
        let batch = if self.lengths.cumulative_q.is_some() { 1 } else { self.sizes.batch };
        [batch, self.sizes.heads_q, self.sizes.seqlen_q]
    }

    /// The same of K and V, where they are neither in pages nor in entries of a cache.
    pub(crate) fn extent_k(&self) -> [usize; 3] {
        let batch = if self.lengths.cumulative_k.is_some() { 1 } else { self.sizes.batch };
        [batch, self.sizes.heads_kv, self.sizes.seqlen_k]
    }

    /// What is given beside Q, K, V and O, by its name and address.
    fn optional_addresses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let lengths = &self.lengths;
        let given = [
            ("LSE", self.lse),
            ("the slopes", self.alibi.map(|alibi| alibi.slopes)),
            ("the bias", self.bias.map(|bias| bias.values)),
            ("the sinks", self.sinks),
            ("the intervals", self.intervals),
            ("the tree's bits", self.tree.map(|tree| tree.bits)),
            ("the block table", self.pages.map(|pages| pages.table)),
            ("the ends of queries", lengths.cumulative_q),
            ("the ends of keys", lengths.cumulative_k),
            ("the lengths of keys", lengths.used_k),
            ("the first keys", lengths.first_k),
            ("the entries of sequences", lengths.entry_k),
        ];
        given.into_iter().filter_map(|(name, address)| Some((name, address?)))
    }

    /// Refuses what has no gradients.
    ///
    /// # Errors
    /// [`Error::NoGradient`].
    pub fn check_gradients(&self) -> Result<(), Error> {
        if self.pages.is_some() || self.lengths.entry_k.is_some() {
            return Err(Error::NoGradient { what: "K and V in pages or in entries of a cache" });
        }
        Ok(())
    }

    /// Computes the call, on all processors. Every address is one of host memory.
    ///
    /// # Errors
    /// [`Error`]; nothing is written then.
    ///
    /// # Safety
    /// Each address is of memory that holds what its field says, for reading, and for writing of O and LSE, which overlap nothing;
    /// addresses are aligned to their element.
    pub unsafe fn forward(&self) -> Result<(), Error> {
        self.check()?;
        // SAFETY: the caller's promise.
        unsafe { forward::run(self) }
    }
}
