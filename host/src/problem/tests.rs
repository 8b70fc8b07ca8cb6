//! Problems are validated once: sizes, strides, masks, ragged batches.

use super::*;

const SIZES: Sizes = Sizes { batch: 2, heads_q: 8, heads_kv: 4, seqlen_q: 33, seqlen_k: 65, head_dim: 64 };

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
    assert_eq!(problem.byte_strides(TensorRole::Q), Strides { batch: 8 * 33 * 128, head: 128, row: 8 * 128 });
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
    let wide = refused(Sizes { head_dim: 84, ..SIZES });
    assert_eq!(
        wide.to_string(),
        "head_dim 84 has no kernel: multiples of 8 up to 256, and of 16 up to 512, have"
    );
    let huge = 1 << 30;
    let product = Sizes { batch: huge, heads_q: huge, heads_kv: 1, seqlen_q: huge, ..SIZES };
    assert!(matches!(refused(product), Error::TooLarge { what: "the number of elements of a tensor", .. }));
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
    assert!(matches!(shapes(&q, &[1, 2, 0, 64], &k), Error::ZeroSized { tensor: "K", dimension: "seqlen" }));
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

/// Where an element of a tensor lies.
fn place(problem: &Problem, role: TensorRole, [batch, head, row]: [u32; 3]) -> i64 {
    let strides = problem.strides(role);
    i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row
}

#[test]
fn heads_that_share_a_kv_head_are_one_head_where_their_rows_follow_each_other() {
    let of = |heads_q, heads_kv, seqlen_q| {
        Problem::new(Sizes { heads_q, heads_kv, seqlen_q, ..SIZES }, Dtype::Bf16).expect("valid")
    };
    let padded = ElementStrides { batch: 8 * 33 * 64, head: 33 * 64, row: 64, dim: 1 };
    let padded = [TensorRole::Q, TensorRole::O]
        .map(|role| of(8, 4, 32).with_strides(role, padded).expect("strides with a gap between heads"));
    let cases = [
        (of(8, 4, 33), true),
        (of(8, 1, 33), true),
        (of(8, 8, 33), false),
        (of(8, 4, 33).with_causal(true), false),
        (of(8, 4, 33).with_layout(Layout::Bshd), false),
        (of(8, 4, 1).with_layout(Layout::Bshd), true),
        (of(8, 4, 1).with_causal(true), true),
        (of(8, 4, 1).with_lengths(true), false),
        (of(8, 4, 33).with_sinks(true), false),
        (of(8, 4, 33).with_mask(Mask { window_left: Some(3), ..Mask::FULL }).expect("a window"), false),
        (padded[0], false),
        (padded[1], false),
    ];
    for (problem, is_one_tensor) in cases {
        let grouped = problem.with_groups_as_heads();
        assert_eq!(grouped.is_some(), is_one_tensor, "{problem:?}");
        let Some(grouped) = grouped else { continue };
        let (group, Sizes { batch, heads_q, seqlen_q, .. }) = (problem.group(), *problem.sizes());
        assert_eq!((grouped.group(), grouped.lse_len()), (1, problem.lse_len()));
        assert_eq!(
            (grouped.strides(TensorRole::K), grouped.mask()),
            (problem.strides(TensorRole::K), Mask::FULL)
        );
        for role in [TensorRole::Q, TensorRole::O] {
            assert_eq!(grouped.len(role), problem.len(role));
            for (batch, head, row) in (0..batch)
                .flat_map(|batch| (0..heads_q).map(move |head| (batch, head)))
                .flat_map(|(batch, head)| (0..seqlen_q).map(move |row| (batch, head, row)))
            {
                let of_group = [batch, head / group, head % group * seqlen_q + row];
                assert_eq!(place(&grouped, role, of_group), place(&problem, role, [batch, head, row]));
            }
        }
    }
}
