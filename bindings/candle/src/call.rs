//! One call: candle's tensors, checked against each other, as the bindings' call.

use crate::gradient::{Gradients, computed};
use crate::storage::{Held, Output, Rest, engine, outputs, placed, plain, stream};
use candle_core::{DType, Layout, Result, Storage, Tensor, bail};
use ferroflash_call::{Alibi, Backward, Call, Dtype, Lengths, Pages, Sizes};
use std::sync::{Arc, OnceLock};

/// What is computed. A tensor is a reference to its storage, so a copy of this costs nothing.
#[derive(Clone)]
pub(crate) struct Attention {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: f32,
    window: (Option<usize>, Option<usize>),
    softcap: f32,
    alibi: Option<Tensor>,
    seqlens_q: Option<Tensor>,
    seqlens_k: Option<Tensor>,
    used_k: Option<Tensor>,
    block_table: Option<Tensor>,
    longest: (usize, usize),
}

impl Attention {
    pub(crate) fn new(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Attention {
        Attention {
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
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

    pub(crate) fn window(self, left: Option<usize>, right: Option<usize>) -> Attention {
        Attention { window: (left, right), ..self }
    }

    pub(crate) fn softcap(self, softcap: f32) -> Attention {
        Attention { softcap, ..self }
    }

    pub(crate) fn alibi(self, alibi: Option<&Tensor>) -> Attention {
        Attention { alibi: alibi.cloned(), ..self }
    }

    pub(crate) fn longest(self, longest: (usize, usize)) -> Attention {
        Attention { longest, ..self }
    }

    pub(crate) fn ragged(self, seqlens_q: &Tensor, seqlens_k: &Tensor, longest: (usize, usize)) -> Attention {
        Attention { seqlens_q: Some(seqlens_q.clone()), seqlens_k: Some(seqlens_k.clone()), longest, ..self }
    }

    pub(crate) fn paged(self, seqlens_q: &Tensor, used_k: Tensor, block_table: &Tensor) -> Attention {
        let (seqlens_q, block_table) = (Some(seqlens_q.clone()), Some(block_table.clone()));
        Attention { seqlens_q, used_k: Some(used_k), block_table, ..self }
    }

    /// O and LSE, with their gradients where Q, K or V have some.
    pub(crate) fn forward(&self) -> Result<(Tensor, Tensor)> {
        let lse_shape = self.lse_shape()?;
        let [o, lse] = self.computed(|call| {
            if is_empty(&call.sizes) {
                return self.of_nothing(&lse_shape);
            }
            let made = [
                Output { dtype: self.q.dtype(), shape: self.q.dims(), rest: Rest::Any },
                Output { dtype: DType::F32, shape: &lse_shape, rest: Rest::AnyLse },
            ];
            outputs(self.q.device(), made, |[o, lse]| {
                let mut call = Call { lse: Some(lse), ..*call };
                call.o.address = o;
                let stream = stream(self.q.device());
                // SAFETY: the tensors' storages are held and as long as their layouts say; the outputs are fresh.
                unsafe { engine(self.q.device())?.forward(&call, stream) }.map_err(candle_core::Error::wrap)
            })
        })?;
        let from = [&self.q, &self.k, &self.v];
        if !from.iter().any(|tensor| tensor.track_op()) {
            return Ok((plain(o, self.q.dims()), plain(lse, &lse_shape)));
        }
        // O and LSE without their histories, so that neither keeps itself.
        let kept = Arc::new(OnceLock::<[Tensor; 2]>::new());
        let gradients = |of_lse: bool| -> Option<Box<Gradients>> {
            let (attention, kept) = (self.clone(), Arc::clone(&kept));
            Some(Box::new(move |gradient| {
                let Some([o, lse]) = kept.get() else { bail!("O and LSE were not kept") };
                attention.gradients(
                    o,
                    lse,
                    if of_lse { [None, Some(gradient)] } else { [Some(gradient), None] },
                )
            }))
        };
        let o = computed("flash_attn", from, (o, self.q.dims()), gradients(false))?;
        let lse = computed("flash_attn_lse", from, (lse, &lse_shape), gradients(true))?;
        // It is set once, here.
        let _ = kept.set([o.detach(), lse.detach()]);
        Ok((o, lse))
    }

    /// O and LSE of queries that see nothing, or of none.
    fn of_nothing(&self, lse_shape: &[usize]) -> Result<[Storage; 2]> {
        let of = |tensor: Tensor| {
            let (storage, layout) = tensor.storage_and_layout();
            storage.try_clone(layout)
        };
        let device = self.q.device();
        let lse = Tensor::full(f32::NEG_INFINITY, lse_shape, device)?;
        Ok([of(Tensor::zeros(self.q.dims(), self.q.dtype(), device)?)?, of(lse)?])
    }

    /// The gradients of Q, K and V, from those of O and LSE.
    fn gradients(&self, o: &Tensor, lse: &Tensor, given: [Option<&Tensor>; 2]) -> Result<[Tensor; 3]> {
        if self.alibi.as_ref().is_some_and(Tensor::track_op) {
            bail!("alibi_slopes have no gradients: give them detached");
        }
        let d_o = given[0].map_or_else(|| o.zeros_like(), Tensor::contiguous)?;
        let d_lse = given[1].map(Tensor::contiguous).transpose()?;
        let storages = self.computed(|call| {
            let (held_o, held_d_o) =
                (Held::rows(o, "O", &self.q)?, Held::rows(&d_o, "the gradient of O", &self.q)?);
            let sums = |tensor, name| Held::plain(tensor, name, &[DType::F32], lse.dims(), &self.q);
            let held_lse = sums(lse, "LSE")?;
            let held_d_lse = d_lse.as_ref().map(|tensor| sums(tensor, "the gradient of LSE")).transpose()?;
            let made = [&self.q, &self.k, &self.v];
            let made =
                made.map(|tensor| Output { dtype: tensor.dtype(), shape: tensor.dims(), rest: Rest::Zero });
            outputs(self.q.device(), made, |[d_q, d_k, d_v]| {
                if is_empty(&call.sizes) {
                    return Ok(());
                }
                let at = |address, tensor: &Tensor| placed(address, &Layout::contiguous(tensor.shape()));
                let backward = Backward {
                    call: Call { o: held_o.tensor(), lse: Some(held_lse.address), ..*call },
                    d_o: held_d_o.tensor(),
                    d_lse: held_d_lse.as_ref().map(|held| held.address),
                    d_q: at(d_q, &self.q),
                    d_k: at(d_k, &self.k),
                    d_v: at(d_v, &self.v),
                    d_sinks: None,
                    d_bias: None,
                    ds_bytes_max: None,
                };
                let stream = stream(self.q.device());
                // SAFETY: as in `forward`.
                unsafe { engine(self.q.device())?.backward(&backward, stream) }
                    .map_err(candle_core::Error::wrap)
            })
        })?;
        let [d_q, d_k, d_v] = storages;
        Ok([plain(d_q, self.q.dims()), plain(d_k, self.k.dims()), plain(d_v, self.v.dims())])
    }

    fn lse_shape(&self) -> Result<Vec<usize>> {
        let sizes = self.sizes()?;
        Ok(match self.seqlens_q {
            Some(_) => vec![sizes.heads_q, sizes.seqlen_q],
            None => vec![sizes.batch, sizes.heads_q, sizes.seqlen_q],
        })
    }

    /// What `compute` makes of the call, whose tensors are checked, and held until it is over. O and LSE have no address yet.
    fn computed<R>(&self, compute: impl FnOnce(&Call) -> Result<R>) -> Result<R> {
        let sizes = self.sizes()?;
        let dtype = match self.q.dtype() {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::Bf16,
            DType::F32 => Dtype::F32,
            other => bail!("Q is {other:?}: f16, bf16, or on the CPU f32 are supported"),
        };
        let q = Held::rows(&self.q, "Q", &self.q)?;
        let (k, v) = (Held::rows(&self.k, "K", &self.q)?, Held::rows(&self.v, "V", &self.q)?);
        let ends = [sizes.batch + 1];
        // Copies of what has gaps, as a table's first columns have.
        let small = [&self.seqlens_q, &self.seqlens_k, &self.used_k, &self.block_table, &self.alibi];
        let small = small.map(|tensor| tensor.as_ref().map(Tensor::contiguous).transpose());
        let [seqlens_q, seqlens_k, used_k, table, alibi] = small;
        let (seqlens_q, seqlens_k, used_k, table, alibi) = (seqlens_q?, seqlens_k?, used_k?, table?, alibi?);
        let seqlens_q = self.integers(seqlens_q.as_ref(), "seqlens_q", &ends)?;
        let seqlens_k = self.integers(seqlens_k.as_ref(), "seqlens_k", &ends)?;
        let used_k = self.integers(used_k.as_ref(), "seqlens_k", &[sizes.batch])?;
        let table = table.as_ref();
        let entries = table.map(Tensor::dims2).transpose()?.map_or(0, |(_, entries)| entries);
        let table = self.integers(table, "block_table", &[sizes.batch, entries])?;
        let by_batch = alibi.as_ref().is_some_and(|slopes| slopes.rank() == 2);
        let shape: &[usize] = if by_batch { &[sizes.batch, sizes.heads_q] } else { &[sizes.heads_q] };
        let slopes = |slopes| Held::plain(slopes, "alibi_slopes", &[DType::F32], shape, &self.q);
        let slopes = alibi.as_ref().map(slopes).transpose()?;
        let stride = if by_batch { sizes.heads_q as i64 } else { 0 };
        compute(&Call {
            q: q.tensor(),
            k: k.tensor(),
            v: v.tensor(),
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
        })
    }

    fn integers<'t>(
        &self,
        tensor: Option<&'t Tensor>,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<Held<'t>>> {
        let held = |tensor| Held::plain(tensor, name, &[DType::U32, DType::I32], shape, &self.q);
        tensor.map(held).transpose()
    }

    fn sizes(&self) -> Result<Sizes> {
        let (batch, seqlen_q, heads_q, head_dim) = match &self.seqlens_q {
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
            bail!(
                "Q {:?}, K {:?} and V {:?} are not of one problem",
                self.q.shape(),
                self.k.shape(),
                self.v.shape()
            );
        }
        if heads_kv == 0 || heads_q % heads_kv != 0 {
            bail!("heads_q {heads_q} is not a multiple of heads_kv {heads_kv}");
        }
        let seqlen_k = match &self.block_table {
            Some(table) => table.dims2()?.1 * rows_k,
            None if batch_k != batch => bail!("K has batch {batch_k}, Q {batch}"),
            None => rows_k,
        };
        Ok(Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim })
    }
}

/// Whether there is no query, no key, or no sequence that any belongs to.
fn is_empty(sizes: &Sizes) -> bool {
    let Sizes { batch, heads_q, seqlen_q, seqlen_k, head_dim, .. } = *sizes;
    [batch, heads_q, seqlen_q, seqlen_k, head_dim].contains(&0)
}
