//! The functions on candle's CPU device, against softmax by candle's own operators.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use common::{assert_close, expected, tensor};
use ferroflash_candle::*;

#[test]
fn dense_calls_are_softmax() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let q = tensor(1, &[2, 5, 4, 32], dtype);
        let (k, v) = (tensor(2, &[2, 9, 2, 32], dtype), tensor(3, &[2, 9, 2, 32], dtype));
        let (causal, lse) = flash_attn_with_lse(&q, &k, &v, 0.3, true)?;
        let full = flash_attn(&q, &k, &v, 0.3, false)?;
        let windowed = flash_attn_windowed(&q, &k, &v, 0.3, Some(2), Some(1))?;
        assert_eq!((causal.dtype(), lse.dtype(), lse.dims()), (dtype, DType::F32, &[2, 4, 5][..]));
        for b in 0..2 {
            let rows = [&q, &k, &v].map(|tensor| tensor.get(b).expect("a sequence"));
            let of = |sees: &dyn Fn(i64, i64) -> bool| expected(&rows[0], &rows[1], &rows[2], 0.3, sees);
            let (o, expected_lse) = of(&|own, j| j <= own)?;
            assert_close(&causal.get(b)?, &o, tolerance)?;
            assert_close(&lse.get(b)?, &expected_lse, 1e-3)?;
            assert_close(&full.get(b)?, &of(&|_, _| true)?.0, tolerance)?;
            assert_close(&windowed.get(b)?, &of(&|own, j| own - 2 <= j && j <= own + 1)?.0, tolerance)?;
        }
    }
    Ok(())
}

#[test]
fn ragged_and_paged_calls_are_dense_calls_of_each_sequence() -> Result<()> {
    let q = tensor(1, &[7, 4, 32], DType::F32);
    let pages_k = tensor(2, &[4, 3, 2, 32], DType::F32);
    let pages_v = tensor(3, &[4, 3, 2, 32], DType::F32);
    let ends = |ends: &[u32]| Tensor::new(ends, &Device::Cpu);
    let (ends_q, ends_k) = (ends(&[0, 2, 7])?, ends(&[0, 4, 10])?);
    // Sequence 0 has 4 keys in pages 2 and 0, sequence 1 has 6 in pages 3 and 1.
    let table = Tensor::new(&[[2u32, 0], [3, 1]], &Device::Cpu)?;
    let gather = |pages: &Tensor| {
        let rows = |a: usize, b: usize, count: usize| {
            Tensor::cat(&[pages.get(a)?, pages.get(b)?], 0)?.narrow(0, 0, count)
        };
        Tensor::cat(&[rows(2, 0, 4)?, rows(3, 1, 6)?], 0)
    };
    let (k, v) = (gather(&pages_k)?, gather(&pages_v)?);
    let (ragged, lse) = flash_attn_varlen_with_lse(&q, &k, &v, &ends_q, &ends_k, 5, 6, 0.2, true)?;
    let paged = flash_attn_varlen_paged_windowed(
        &q,
        &pages_k,
        &pages_v,
        &ends_q,
        &ends_k,
        &table,
        None,
        5,
        6,
        0.2,
        None,
        Some(0),
        3,
        None,
    )?;
    for ((start_q, count_q), (start_k, count_k)) in [((0, 2), (0, 4)), ((2, 5), (4, 6))] {
        let (k, v) = (k.narrow(0, start_k, count_k)?, v.narrow(0, start_k, count_k)?);
        let (o, expected_lse) = expected(&q.narrow(0, start_q, count_q)?, &k, &v, 0.2, |own, j| j <= own)?;
        assert_close(&ragged.narrow(0, start_q, count_q)?, &o, 1e-5)?;
        assert_close(&paged.narrow(0, start_q, count_q)?, &o, 1e-5)?;
        assert_close(&lse.narrow(1, start_q, count_q)?, &expected_lse, 1e-5)?;
    }
    Ok(())
}

#[test]
fn slopes_and_softcap_reach_the_scores() -> Result<()> {
    let [q, k, v] = [1, 2, 3].map(|seed| tensor(seed, &[1, 5, 2, 16], DType::F32));
    let plain = flash_attn(&q, &k, &v, 1.0, false)?;
    let slopes = |slope: f32| Tensor::new(&[slope, slope], &Device::Cpu);
    assert_close(&flash_attn_alibi(&q, &k, &v, &slopes(0.0)?, 1.0, false)?, &plain, 0.0)?;
    // A steep slope leaves a query its own key.
    assert_close(&flash_attn_alibi(&q, &k, &v, &slopes(1e4)?, 1.0, false)?, &v, 1e-6)?;
    // A small cap makes all keys weigh the same.
    let capped = flash_attn_alibi_windowed_softcap(&q, &k, &v, None, 1.0, None, None, 1e-6)?;
    assert_close(&capped, &v.mean_keepdim(1)?.broadcast_as(v.shape())?.contiguous()?, 1e-5)
}

#[test]
fn views_are_taken_where_they_lie() -> Result<()> {
    let qkv = tensor(1, &[2, 6, 3, 4, 16], DType::F32);
    let part = |index| qkv.narrow(2, index, 1)?.squeeze(2);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let copies = flash_attn(&q.contiguous()?, &k.contiguous()?, &v.contiguous()?, 0.25, true)?;
    assert_close(&flash_attn(&q, &k, &v, 0.25, true)?, &copies, 0.0)
}

#[test]
fn what_is_wrong_is_said() -> Result<()> {
    let q = tensor(1, &[1, 5, 2, 16], DType::F32);
    let refused = |q: &Tensor, k: &Tensor, v: &Tensor| {
        flash_attn(q, k, v, 1.0, false).expect_err("refused").to_string()
    };
    assert!(refused(&q, &q, &tensor(1, &[1, 4, 2, 16], DType::F32)).contains("not of one problem"));
    assert!(refused(&q, &q.to_dtype(DType::F16)?, &q).contains("K is F16, Q F32"));
    let double = q.to_dtype(DType::F64)?;
    assert!(refused(&double, &double, &double).contains("Q is F64"));
    let turned = q.transpose(2, 3)?;
    assert!(refused(&turned, &turned, &turned).contains("must be contiguous"));
    let three = tensor(1, &[1, 5, 3, 16], DType::F32);
    assert!(refused(&three, &q, &q).contains("heads_q 3"));
    Ok(())
}

#[test]
fn two_sets_of_keys_merge() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 2e-3)] {
        let q = tensor(1, &[2, 3, 4, 16], dtype);
        let (k, v) = (tensor(2, &[2, 9, 2, 16], dtype), tensor(3, &[2, 9, 2, 16], dtype));
        let of = |from, count| {
            flash_attn_with_lse(&q, &k.narrow(1, from, count)?, &v.narrow(1, from, count)?, 0.5, false)
        };
        let ((o_a, lse_a), (o_b, lse_b), (whole, whole_lse)) = (of(0, 5)?, of(5, 4)?, of(0, 9)?);
        let (o, lse) = merge_states(&o_a, &lse_a, &o_b, &lse_b)?;
        assert_close(&o, &whole.to_dtype(DType::F32)?, tolerance)?;
        assert_close(&lse, &whole_lse, 1e-5)?;
        let nothing = (lse_b.ones_like()? * f64::NEG_INFINITY)?;
        let (kept, kept_lse) = merge_states(&o_a, &lse_a, &(o_b * f64::NAN)?, &nothing)?;
        assert_close(&kept, &o_a.to_dtype(DType::F32)?, 0.0)?;
        assert_close(&kept_lse, &lse_a, 0.0)?;
        let turned = lse_a.transpose(1, 2)?.contiguous()?;
        let error = merge_states(&o_a, &turned, &o_a, &lse_a).expect_err("refused").to_string();
        assert!(error.contains("LSE of a is F32 [2, 3, 4], must be contiguous [2, 4, 3]"), "{error}");
    }
    Ok(())
}

#[test]
fn a_window_of_any_number_of_keys_is_all_of_them() -> Result<()> {
    let q = tensor(1, &[1, 5, 2, 16], DType::F32);
    let full = flash_attn(&q, &q, &q, 0.3, false)?;
    for keys in [5, 1 << 40, usize::MAX] {
        let o = flash_attn_windowed(&q, &q, &q, 0.3, Some(keys), Some(keys))?;
        assert_close(&o, &full, 0.0)?;
    }
    Ok(())
}

#[test]
fn tables_and_lengths_with_gaps_mean_what_they_hold() -> Result<()> {
    let (q, pages) = (tensor(1, &[2, 4, 32], DType::F32), tensor(2, &[4, 3, 2, 32], DType::F32));
    let call = |table: &Tensor, ends: &Tensor| {
        let all = Tensor::new(&[0u32, 6, 12], &Device::Cpu)?;
        flash_attn_varlen_paged_windowed(
            &q,
            &pages,
            &pages,
            ends,
            &all,
            table,
            None,
            1,
            6,
            0.3,
            None,
            Some(0),
            3,
            None,
        )
    };
    let wide = Tensor::new(&[[2u32, 0, 9], [3, 1, 9]], &Device::Cpu)?.narrow(1, 0, 2)?;
    let ends = Tensor::new(&[[0u32, 9], [1, 9], [2, 9]], &Device::Cpu)?.narrow(1, 0, 1)?.squeeze(1)?;
    assert!(!wide.is_contiguous() && !ends.is_contiguous());
    assert_close(&call(&wide, &ends)?, &call(&wide.contiguous()?, &ends.contiguous()?)?, 0.0)
}

#[test]
fn states_of_sequences_behind_one_another_merge() -> Result<()> {
    let q = tensor(1, &[7, 4, 32], DType::F32);
    let ends = Tensor::new(&[0u32, 3, 7], &Device::Cpu)?;
    let (o, lse) = flash_attn_varlen_with_lse(&q, &q, &q, &ends, &ends, 4, 4, 0.2, true)?;
    let (merged, sums) = merge_states(&o, &lse, &o, &lse)?;
    assert_close(&merged, &o, 1e-6)?;
    assert_close(&sums, &(lse + 2f64.ln())?, 1e-6)
}

#[test]
fn empty_tensors_give_empty_results_and_queries_without_keys_give_zero() -> Result<()> {
    for (batch, queries, keys) in [(0, 5, 9), (2, 0, 9), (2, 5, 0), (0, 0, 0)] {
        let of = |rows: usize, heads: usize| {
            candle_core::Var::zeros((batch, rows, heads, 16), DType::F16, &Device::Cpu)
        };
        let (q, k, v) = (of(queries, 4)?, of(keys, 2)?, of(keys, 2)?);
        let (o, lse) = flash_attn_with_lse(&q, &k, &v, 0.3, true)?;
        assert_eq!((o.dims(), o.dtype()), (&[batch, queries, 4, 16][..], DType::F16));
        assert_eq!((lse.dims(), lse.dtype()), (&[batch, 4, queries][..], DType::F32));
        assert!(o.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.iter().all(|&number| number == 0.0));
        assert!(lse.flatten_all()?.to_vec1::<f32>()?.iter().all(|&number| number == f32::NEG_INFINITY));
        let gradients = o.to_dtype(DType::F32)?.sum_all()?.backward()?;
        for of in [&q, &k, &v] {
            let gradient = gradients.get(of).expect("there is one").to_dtype(DType::F32)?;
            assert_eq!(gradient.dims(), of.dims());
            assert!(gradient.flatten_all()?.to_vec1::<f32>()?.iter().all(|&number| number == 0.0));
        }
    }
    let rows = Tensor::zeros((0, 4, 16), DType::F32, &Device::Cpu)?;
    for ends in [&[0u32][..], &[0, 0, 0]] {
        let ends = Tensor::new(ends, &Device::Cpu)?;
        let (o, lse) = flash_attn_varlen_with_lse(&rows, &rows, &rows, &ends, &ends, 0, 0, 0.3, true)?;
        assert_eq!((o.dims(), lse.dims()), (&[0, 4, 16][..], &[4, 0][..]));
    }
    // What does not fit together is refused as ever.
    let (q, k) = (
        Tensor::zeros((2, 0, 3, 16), DType::F32, &Device::Cpu)?,
        Tensor::zeros((2, 0, 2, 16), DType::F32, &Device::Cpu)?,
    );
    let error = flash_attn(&q, &k, &k, 0.3, true).expect_err("refused").to_string();
    assert!(error.contains("heads_q 3"), "{error}");
    Ok(())
}
