//! Gradients through candle's own `backward`, against those of attention by candle's operators.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use common::{assert_close, expected, tensor};
use ferroflash_candle::*;

/// Variables of Q, K and V.
fn variables(shapes: [&[usize]; 3], dtype: DType) -> Result<[Var; 3]> {
    let [q, k, v] = shapes;
    Ok([
        Var::from_tensor(&tensor(1, q, dtype))?,
        Var::from_tensor(&tensor(2, k, dtype))?,
        Var::from_tensor(&tensor(3, v, dtype))?,
    ])
}

/// A sum whose gradient differs from element to element.
fn loss(tensor: &Tensor, seed: u64) -> Result<Tensor> {
    let weights = common::tensor(seed, tensor.dims(), DType::F32);
    (tensor.to_dtype(DType::F32)? * weights)?.sum_all()
}

/// The gradients of the variables by `found` are those by `plain`, to a part of the largest.
fn assert_same(variables: &[Var; 3], found: &Tensor, plain: &Tensor, tolerance: f32) -> Result<()> {
    let (found, plain) = (found.backward()?, plain.backward()?);
    for variable in variables {
        let expected = plain.get(variable).expect("a gradient").to_dtype(DType::F32)?;
        let gradient = found.get(variable).expect("a gradient");
        assert_eq!(gradient.dtype(), variable.dtype());
        let largest = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        assert!(largest > 1e-3);
        assert_close(gradient, &expected, tolerance * largest)?;
    }
    Ok(())
}

#[test]
fn gradients_of_o_and_lse_are_those_of_plain_attention() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let variables = variables([&[2, 5, 4, 16], &[2, 9, 2, 16], &[2, 9, 2, 16]], dtype)?;
        let [q, k, v] = variables.each_ref().map(|variable| variable.as_tensor());
        let cases: [(Option<usize>, Option<usize>); 3] = [(None, None), (None, Some(0)), (Some(2), Some(1))];
        for (left, right) in cases {
            let sees = |own: i64, j: i64| {
                left.is_none_or(|left| own - left as i64 <= j)
                    && right.is_none_or(|right| j <= own + right as i64)
            };
            let (mut plain_o, mut plain_lse) = (Vec::new(), Vec::new());
            for b in 0..2 {
                let (o, lse) = expected(&q.get(b)?, &k.get(b)?, &v.get(b)?, 0.3, sees)?;
                plain_o.push(o);
                plain_lse.push(lse);
            }
            let (plain_o, plain_lse) = (Tensor::stack(&plain_o, 0)?, Tensor::stack(&plain_lse, 0)?);
            let o = flash_attn_windowed(q, k, v, 0.3, left, right)?;
            assert_same(&variables, &loss(&o, 7)?, &loss(&plain_o, 7)?, tolerance)?;
            if left.is_none() {
                let (o, lse) = flash_attn_with_lse(q, k, v, 0.3, right.is_some())?;
                let both = (loss(&o, 7)? + loss(&lse, 8)?)?;
                assert_same(&variables, &both, &(loss(&plain_o, 7)? + loss(&plain_lse, 8)?)?, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_pass_through_views_and_reach_every_sequence() -> Result<()> {
    let packed = Var::from_tensor(&tensor(1, &[7, 3, 4, 16], DType::F32))?;
    let part = |index| packed.narrow(1, index, 1)?.squeeze(1);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let ends = Tensor::new(&[0u32, 2, 7], &Device::Cpu)?;
    let o = flash_attn_varlen(&q, &k, &v, &ends, &ends, 5, 5, 0.25, true)?;
    let plain = [(0, 2), (2, 5)].map(|(start, count)| {
        let rows = |tensor: &Tensor| tensor.narrow(0, start, count);
        Ok(expected(&rows(&q)?, &rows(&k)?, &rows(&v)?, 0.25, |own, j| j <= own)?.0)
    });
    let plain = Tensor::cat(&plain.into_iter().collect::<Result<Vec<_>>>()?, 0)?;
    let (found, plain) = (loss(&o, 7)?.backward()?, loss(&plain, 7)?.backward()?);
    assert_close(found.get(&packed).expect("a gradient"), plain.get(&packed).expect("a gradient"), 1e-5)
}

#[test]
fn softcaps_and_slopes_are_in_the_gradients() -> Result<()> {
    let variables = variables([&[1, 5, 2, 16]; 3], DType::F32)?;
    let [q, k, v] = variables.each_ref().map(|variable| variable.as_tensor());
    let slopes = Tensor::new(&[0.3f32, 0.7], &Device::Cpu)?;
    let o = flash_attn_alibi_windowed_softcap(q, k, v, Some(&slopes), 0.8, None, Some(0), 1.5)?;
    // Differences along Q of one element each, of the sum that the gradient is of.
    let of = |q: &Tensor| -> Result<f32> {
        loss(&flash_attn_alibi_windowed_softcap(q, k, v, Some(&slopes), 0.8, None, Some(0), 1.5)?, 7)?
            .to_scalar()
    };
    let gradient = loss(&o, 7)?.backward()?.get(q).expect("a gradient").flatten_all()?.to_vec1::<f32>()?;
    for at in [0, 37, 90, 159] {
        let mut step = vec![0.0f32; 160];
        step[at] = 1e-2;
        let step = Tensor::from_vec(step, q.dims(), &Device::Cpu)?;
        let difference = (of(&(q + &step)?)? - of(&(q - &step)?)?) / 2e-2;
        assert!((difference - gradient[at]).abs() < 2e-3, "{difference} {}", gradient[at]);
    }
    Ok(())
}

#[test]
fn what_has_no_gradient_fails_by_name_when_it_is_asked_for() -> Result<()> {
    let variables = variables([&[1, 5, 2, 16]; 3], DType::F32)?;
    let [q, k, v] = variables.each_ref().map(|variable| variable.as_tensor());
    let slopes = Var::new(&[0.3f32, 0.7], &Device::Cpu)?;
    let o = flash_attn_alibi(q, k, v, slopes.as_tensor(), 0.8, true)?;
    let error = loss(&o, 7)?.backward().expect_err("refused").to_string();
    assert!(error.contains("alibi_slopes have no gradients"), "{error}");
    let (o, lse) = flash_attn_with_lse(q, k, v, 0.8, true)?;
    let (merged, _) = merge_states(&o, &lse, &o, &lse)?;
    let error = loss(&merged, 7)?.backward().expect_err("refused").to_string();
    assert!(error.contains("merge_states"), "{error}");
    // Without variables there is no history.
    assert!(!flash_attn(&q.detach(), &k.detach(), &v.detach(), 0.8, true)?.track_op());
    Ok(())
}

#[test]
fn a_layer_learns_as_with_candles_operators() -> Result<()> {
    let x = tensor(5, &[6, 2, 8], DType::F32);
    let target = tensor(6, &[6, 2, 8], DType::F32);
    let losses = |attention: &dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        let weights = [11, 12, 13].map(|seed| Var::from_tensor(&tensor(seed, &[8, 8], DType::F32)));
        let weights = weights.into_iter().collect::<Result<Vec<_>>>()?;
        let mut losses = Vec::new();
        for _ in 0..20 {
            let projected = |index: usize| x.broadcast_matmul(weights[index].as_tensor());
            let o = attention(&projected(0)?, &projected(1)?, &projected(2)?)?;
            let loss = (o - &target)?.sqr()?.mean_all()?;
            let gradients = loss.backward()?;
            for weight in &weights {
                let gradient = gradients.get(weight).expect("a gradient");
                weight.set(&(weight.as_tensor() - (gradient * 0.3)?)?.detach())?;
            }
            losses.push(loss.to_scalar()?);
        }
        Ok(losses)
    };
    let ours = losses(&|q, k, v| {
        let of = |tensor: &Tensor| tensor.unsqueeze(0);
        flash_attn(&of(q)?, &of(k)?, &of(v)?, 0.35, true)?.squeeze(0)
    })?;
    let theirs = losses(&|q, k, v| Ok(expected(q, k, v, 0.35, |own, j| j <= own)?.0))?;
    assert!(ours[19] < 0.9 * ours[0], "{ours:?}");
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-4), "{ours:?} {theirs:?}");
    Ok(())
}
