//! One call: candle's tensors, checked against each other, as the bindings' call.

use crate::storage::{Held, engine, outputs, stream};
use candle_core::{DType, Result, Tensor, bail};
use ferroflash_call::{Alibi, Call, Dtype, Lengths, Pages, Sizes};

/// What is computed.
pub(crate) struct Attention<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    scale: f32,
    window: (Option<usize>, Option<usize>),
    softcap: f32,
    alibi: Option<&'a Tensor>,
    seqlens_q: Option<&'a Tensor>,
    seqlens_k: Option<&'a Tensor>,
    used_k: Option<Tensor>,
    block_table: Option<&'a Tensor>,
    longest: (usize, usize),
}

impl<'a> Attention<'a> {
    pub(crate) fn new(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor, scale: f32) -> Attention<'a> {
        Attention {
            q,
            k,
            v,
            scale,
            window: (None, None),
            softcap: 0.0,
            alibi: None,
            seqlens_q: None,
            seqlens_k: None,
            used_k: None,
            block_table: None,
            longest: (0, 0),
        }
    }

    pub(crate) fn window(self, left: Option<usize>, right: Option<usize>) -> Attention<'a> {
        Attention { window: (left, right), ..self }
    }

    pub(crate) fn softcap(self, softcap: f32) -> Attention<'a> {
        Attention { softcap, ..self }
    }

    pub(crate) fn alibi(self, alibi: Option<&'a Tensor>) -> Attention<'a> {
        Attention { alibi, ..self }
    }

    pub(crate) fn longest(self, longest: (usize, usize)) -> Attention<'a> {
        Attention { longest, ..self }
    }

    pub(crate) fn ragged(
        self,
        seqlens_q: &'a Tensor,
        seqlens_k: &'a Tensor,
        longest: (usize, usize),
    ) -> Attention<'a> {
        Attention { seqlens_q: Some(seqlens_q), seqlens_k: Some(seqlens_k), longest, ..self }
    }

    pub(crate) fn paged(
        self,
        seqlens_q: &'a Tensor,
        used_k: Tensor,
        block_table: &'a Tensor,
    ) -> Attention<'a> {
        Attention { seqlens_q: Some(seqlens_q), used_k: Some(used_k), block_table: Some(block_table), ..self }
    }

    /// O and LSE.
    pub(crate) fn forward(&self) -> Result<(Tensor, Tensor)> {
        let sizes = self.sizes()?;
        let dtype = match self.q.dtype() {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::Bf16,
            DType::F32 => Dtype::F32,
            other => bail!("Q is {other:?}: f16, bf16, or on the CPU f32 are supported"),
        };
        let q = Held::rows(self.q, "Q", self.q)?;
        let (k, v) = (Held::rows(self.k, "K", self.q)?, Held::rows(self.v, "V", self.q)?);
        let ends = [sizes.batch + 1];
        let seqlens_q = self.integers(self.seqlens_q, "seqlens_q", &ends)?;
        let seqlens_k = self.integers(self.seqlens_k, "seqlens_k", &ends)?;
        let used_k = self.integers(self.used_k.as_ref(), "seqlens_k", &[sizes.batch])?;
        let entries = self.block_table.map(|table| table.dims2()).transpose()?.map_or(0, |(_, entries)| entries);
        let table = self.integers(self.block_table, "block_table", &[sizes.batch, entries])?;
        let by_batch = self.alibi.is_some_and(|slopes| slopes.rank() == 2);
        let shape: &[usize] = if by_batch { &[sizes.batch, sizes.heads_q] } else { &[sizes.heads_q] };
        let slopes = |slopes| Held::plain(slopes, "alibi_slopes", &[DType::F32], shape, self.q);
        let slopes = self.alibi.map(slopes).transpose()?;
        let lse_shape = match self.seqlens_q {
            Some(_) => vec![sizes.heads_q, sizes.seqlen_q],
            None => vec![sizes.batch, sizes.heads_q, sizes.seqlen_q],
        };
        outputs(self.q, &lse_shape, |o, lse| {
            let stride = if by_batch { sizes.heads_q as i64 } else { 0 };
            let mut call = Call {
                q: q.tensor(),
                k: k.tensor(),
                v: v.tensor(),
                lse: Some(lse),
                scale: Some(self.scale.into()),
                window_left: self.window.0,
                window_right: self.window.1,
                softcap: self.softcap,
                alibi: slopes.as_ref().map(|slopes| Alibi { slopes: slopes.address, stride }),
                lengths: Lengths {
                    cumulative_q: seqlens_q.as_ref().map(|held| held.address),
                    cumulative_k: seqlens_k.as_ref().map(|held| held.address),
                    used_k: used_k.as_ref().map(|held| held.address),
                    longest_q: self.longest.0,
                    longest_k: self.longest.1,
                    ..Lengths::default()
                },
                pages: table.as_ref().map(|table| Pages {
                    table: table.address,
                    stride: entries as i64,
                    page_size: self.k.dims()[1],
                    count: self.k.dims()[0],
                }),
                ..Call::bshd(dtype, sizes)
            };
            call.o.address = o;
            let stream = stream(self.q.device());
            // SAFETY: the tensors' storages are held and as long as their layouts say; the outputs are fresh.
            unsafe { engine(self.q.device())?.forward(&call, stream) }.map_err(candle_core::Error::wrap)
        })
    }

    fn integers<'t>(
        &self,
        tensor: Option<&'t Tensor>,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<Held<'t>>> {
        let held = |tensor| Held::plain(tensor, name, &[DType::U32, DType::I32], shape, self.q);
        tensor.map(held).transpose()
    }

    fn sizes(&self) -> Result<Sizes> {
        let (batch, seqlen_q, heads_q, head_dim) = match self.seqlens_q {
            Some(ends) => {
                let (rows, heads, head_dim) = self.q.dims3()?;
                (ends.dims1()?.saturating_sub(1), rows, heads, head_dim)
            }
            None => self.q.dims4()?,
        };
        let (batch_k, rows_k, heads_kv, head_dim_k) = match self.seqlens_k {
            Some(_) => {
                let (rows, heads, head_dim) = self.k.dims3()?;
                (batch, rows, heads, head_dim)
            }
            None => self.k.dims4()?,
        };
        if self.k.shape() != self.v.shape() || head_dim_k != head_dim {
            bail!("Q {:?}, K {:?} and V {:?} are not of one problem", self.q.shape(), self.k.shape(), self.v.shape());
        }
        let seqlen_k = match self.block_table {
            Some(table) => table.dims2()?.1 * rows_k,
            None if batch_k != batch => bail!("K has batch {batch_k}, Q {batch}"),
            None => rows_k,
        };
        Ok(Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim })
    }
}
