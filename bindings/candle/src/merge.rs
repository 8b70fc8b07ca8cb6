//! Two states of candle's tensors as the bindings' merge.

use crate::gradient::computed;
use crate::storage::{Held, Output, Rest, engine, outputs, stream};
use candle_core::{DType, Result, Tensor, bail};
use ferroflash_call::{Dtype, Merge};

pub(crate) fn merge_states([a, b]: [&Tensor; 2], lse: [&Tensor; 2]) -> Result<(Tensor, Tensor)> {
    if a.rank() == 3 {
        // Sequences behind one another: rows are merged one by one.
        let one = |tensor: &Tensor| tensor.unsqueeze(0);
        let (o, sums) = merge_states([&one(a)?, &one(b)?], [&one(lse[0])?, &one(lse[1])?])?;
        return Ok((o.squeeze(0)?, sums.squeeze(0)?));
    }
    let (batch, rows, heads, width) = a.dims4()?;
    let dtype = match a.dtype() {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        DType::F32 => Dtype::F32,
        other => bail!("O is {other:?}: f16, bf16 and f32 are supported"),
    };
    // Strides are one state's for both, so copies are made of what is not contiguous.
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let types = [a.dtype()];
    let (held_a, held_b) =
        (Held::plain(&a, "O of a", &types, a.dims(), &a)?, Held::plain(&b, "O of b", &types, a.dims(), &a)?);
    let lse_shape = [batch, heads, rows];
    let held = |tensor, name| Held::plain(tensor, name, &[DType::F32], &lse_shape, &a);
    let (lse_a, lse_b) = (held(lse[0], "LSE of a")?, held(lse[1], "LSE of b")?);
    let merged = [
        Output { dtype: a.dtype(), shape: a.dims(), rest: Rest::Any },
        Output { dtype: DType::F32, shape: &lse_shape, rest: Rest::AnyLse },
    ];
    let [o, merged] = outputs(a.device(), merged, |[o, merged]| {
        let mut out = held_a.tensor();
        out.address = o;
        let merge = Merge {
            states: 2,
            batch,
            heads,
            rows,
            width,
            partial_dtype: dtype,
            dtype,
            partial_o: held_a.tensor(),
            partial_lse: lse_a.address,
            next_o: held_b.address,
            next_lse: lse_b.address,
            o: out,
            lse: Some(merged),
        };
        let stream = stream(a.device());
        // SAFETY: the tensors' storages are held and as long as their layouts say; the outputs are fresh.
        unsafe { engine(a.device())?.merge(&merge, stream) }.map_err(candle_core::Error::wrap)
    })?;
    drop((held_a, held_b, lse_a, lse_b));
    let of = |storage, shape| computed("merge_states", [&a, &b, lse[0]], (storage, shape), None);
    Ok((of(o, a.dims())?, of(merged, &lse_shape)?))
}
