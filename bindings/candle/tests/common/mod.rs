//! Inputs, and attention by candle's own operators.

use candle_core::{D, DType, Device, Result, Tensor};

/// `[batch, seqlen, heads, head_dim]` of numbers that repeat.
pub fn tensor(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let mut state = seed;
    let numbers: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
        .and_then(|tensor| tensor.to_dtype(dtype))
        .expect("a tensor")
}

/// O and LSE of one sequence `[seqlen, heads, head_dim]`, whose queries see the keys that `sees` says.
pub fn expected(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f64,
    sees: impl Fn(i64, i64) -> bool,
) -> Result<(Tensor, Tensor)> {
    let float = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous();
    let (q, k, v) = (float(q)?, float(k)?, float(v)?);
    let group = q.dim(0)? / k.dim(0)?;
    let repeated = |tensor: &Tensor| {
        let (heads, keys, dim) = tensor.dims3()?;
        tensor
            .unsqueeze(1)?
            .expand((heads, group, keys, dim))?
            .reshape((heads * group, keys, dim))?
            .contiguous()
    };
    let (k, v) = (repeated(&k)?, repeated(&v)?);
    let (queries, keys) = (q.dim(1)? as i64, k.dim(1)? as i64);
    let mask: Vec<f32> = (0..queries)
        .flat_map(|i| (0..keys).map(move |j| (i + keys - queries, j)))
        .map(|(own, j)| if sees(own, j) { 0.0 } else { f32::NEG_INFINITY })
        .collect();
    let mask = Tensor::from_vec(mask, (queries as usize, keys as usize), &Device::Cpu)?;
    let scores = (q.matmul(&k.t()?)? * scale)?.broadcast_add(&mask)?;
    let exponentials = scores.exp()?;
    let sum = exponentials.sum_keepdim(D::Minus1)?;
    let o = exponentials.broadcast_div(&sum)?.matmul(&v)?.transpose(0, 1)?;
    Ok((o, sum.squeeze(D::Minus1)?.log()?))
}

/// Two tensors are equal to a tolerance.
pub fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) -> Result<()> {
    assert_eq!(found.dims(), expected.dims());
    let difference =
        (found.to_dtype(DType::F32)? - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference <= tolerance, "{difference}");
    Ok(())
}
