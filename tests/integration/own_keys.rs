//! Plans whose last keys lie in tensors of their own, as a rank of a split sequence has them, on the simulator: bits of the plan with all keys in
//! one place, keys of other ranks that are not there yet, and what no kernel takes.

use crate::support::{self, problem, simulator};
use check::random_input::{InputKind, qkv};
use ferroflash::device::Buffer;
use ferroflash::{
    Attention, DeviceModel, DeviceTensors, Dtype, ElementStrides, Error, Mask, OwnTensors, Plan, PlanOptions,
    Problem, RowSelection, StreamHandle, TensorRole,
};

support::trials!(
    own_keys_give_the_bits_of_all_keys_in_one_place,
    a_kernel_waits_for_the_heads_that_it_comes_to,
    what_no_kernel_takes_is_refused,
);

/// A NaN of either dtype, which no kernel may read.
const POISON: u16 = 0x7fff;

fn plan(attention: &Attention, problem: &Problem, row: &str) -> Plan {
    let options = PlanOptions::from(RowSelection::Named(row.to_owned()));
    attention.planner().plan(problem, &options).expect("planned")
}

/// The keys from `first` on in tensors of their own, behind `before` other rows, head by head.
struct Apart {
    own: [Vec<u16>; 2],
    strides: ElementStrides,
    first_element: u64,
}

impl Apart {
    /// Takes them out of K and V, where they are poison then.
    fn take(problem: &Problem, kv: [&mut Vec<u16>; 2], first: u32, before: u32) -> Apart {
        let sizes = *problem.sizes();
        let (width, rows) = (i64::from(sizes.head_dim), i64::from(before + sizes.seqlen_k - first));
        let strides = ElementStrides {
            batch: i64::from(sizes.heads_kv) * rows * width,
            head: rows * width,
            row: width,
            dim: 1,
        };
        let own = kv.map(|tensor| {
            let mut own = vec![POISON; (i64::from(sizes.batch) * strides.batch) as usize];
            for batch in 0..sizes.batch {
                for head in 0..sizes.heads_kv {
                    for key in first..sizes.seqlen_k {
                        let of = |strides: &ElementStrides, row: u32| {
                            let at = [(batch, strides.batch), (head, strides.head), (row, strides.row)];
                            at.iter().map(|&(index, stride)| i64::from(index) * stride).sum::<i64>() as usize
                        };
                        let from = of(&problem.strides(TensorRole::K), key);
                        let to = of(&strides, before + key - first);
                        let row = &mut tensor[from..from + width as usize];
                        own[to..to + width as usize].copy_from_slice(row);
                        row.fill(POISON);
                    }
                }
            }
            own
        });
        Apart { own, strides, first_element: u64::from(before) * width as u64 }
    }
}

/// O of a plan whose keys from `first` on lie in tensors of their own, where `arrived` heads of the other keys are there; all where it is `None`.
fn with_own(
    attention: &Attention,
    plan: &Plan,
    tensors: &[Vec<u16>; 3],
    (first, arrived): (u32, Option<u32>),
) -> Result<Vec<u16>, Error> {
    let (problem, device) = (plan.problem(), attention.device());
    let [q, mut k, mut v] = tensors.clone();
    let apart = Apart::take(problem, [&mut k, &mut v], first, 3);
    let plan = plan.with_own_keys(first, [apart.strides; 2]).expect("the kernel takes them");
    let buffer = |elements: &[u16]| Buffer::from_elements(device, elements);
    let (q, k, v) = (buffer(&q)?, buffer(&k)?, buffer(&v)?);
    let [own_k, own_v] = [buffer(&apart.own[0])?, buffer(&apart.own[1])?];
    let o = buffer(&vec![POISON; problem.o_len()])?;
    let count = arrived.map(|count| Buffer::from_elements(device, &[count])).transpose()?;
    let own = OwnTensors {
        k: own_k.address() + apart.first_element * 2,
        v: own_v.address() + apart.first_element * 2,
        arrived: count.as_ref().map(Buffer::address),
    };
    let on_device =
        DeviceTensors::new(q.address(), k.address(), v.address(), o.address()).with_own(Some(own));
    // SAFETY: the buffers are as long as the problem says, and live until the launch is over.
    unsafe { attention.launch(&plan, &on_device, StreamHandle::DEFAULT)? };
    let mut bits = vec![0u16; problem.o_len()];
    o.read(0, &mut bits)?;
    Ok(bits)
}

fn own_keys_give_the_bits_of_all_keys_in_one_place() {
    let attention = simulator(DeviceModel::H200);
    for (row, dtype, [keys, first]) in [
        ("fwd_wgmma_bf16_d128_m128n128_w12s3c1_persistent", Dtype::Bf16, [300, 128]),
        ("fwd_wgmma_f16_d128_m64n64_w12s4c1", Dtype::F16, [300, 192]),
        ("fwd_wgmma_f16_d64_m192n128_w16s2c1_persistent", Dtype::F16, [389, 0]),
        ("fwd_wgmma_bf16_d128_m128n128_w12s2c1_split", Dtype::Bf16, [300, 128]),
        ("fwd_wgmma_bf16_d256_m128n64_w12s2c1_persistent", Dtype::Bf16, [131, 64]),
    ] {
        let head_dim =
            row.split('_').find_map(|part| part.strip_prefix('d')?.parse().ok()).expect("a head_dim");
        for (mask, first) in [(Mask::CAUSAL, first), (Mask::FULL, first), (Mask::FULL, keys)] {
            let queries = if mask == Mask::FULL { 70 } else { keys - first };
            let problem = problem(dtype, [2, 4, 2, queries, keys, head_dim]).with_mask(mask).expect("a mask");
            let plan = plan(&attention, &problem, row);
            for kind in [InputKind::Outliers, InputKind::NotANumber] {
                let tensors = qkv(&problem, kind, 7);
                let whole = attention.forward_with(&plan, &(&tensors).into(), false).expect("computed");
                let apart = with_own(&attention, &plan, &tensors, (first, None)).expect("computed");
                assert!(apart == whole.o, "{row} {mask}, own keys from {first} on, {kind:?}");
            }
        }
    }
}

fn a_kernel_waits_for_the_heads_that_it_comes_to() {
    let attention = simulator(DeviceModel::H200);
    let row = "fwd_wgmma_bf16_d128_m128n128_w12s3c1_persistent";
    let problem = problem(Dtype::Bf16, [1, 4, 2, 172, 300, 128]).with_causal(true);
    let plan = plan(&attention, &problem, row);
    let tensors = qkv(&problem, InputKind::Random, 3);
    let whole = attention.forward_with(&plan, &(&tensors).into(), false).expect("computed");
    let there = with_own(&attention, &plan, &tensors, (128, Some(2))).expect("computed");
    assert!(there == whole.o);
    for missing in [0, 1] {
        let error =
            with_own(&attention, &plan, &tensors, (128, Some(missing))).expect_err("nobody counts on");
        assert!(error.to_string().contains("nobody"), "{error}");
    }
    // Where all keys are own ones, there is nothing to wait for.
    let all = support::problem(Dtype::Bf16, [1, 4, 2, 300, 300, 128]).with_causal(true);
    let plan = self::plan(&attention, &all, row);
    let tensors = qkv(&all, InputKind::Random, 3);
    let whole = attention.forward_with(&plan, &(&tensors).into(), false).expect("computed");
    let apart = with_own(&attention, &plan, &tensors, (0, Some(0))).expect("computed");
    assert!(apart == whole.o);
}

fn what_no_kernel_takes_is_refused() {
    let attention = simulator(DeviceModel::H200);
    let problem = problem(Dtype::F16, [1, 4, 2, 172, 300, 128]).with_causal(true);
    let strides = [problem.strides(TensorRole::K), problem.strides(TensorRole::V)];
    let plan = |row: &str| plan(&attention, &problem, row);
    let persistent = plan("fwd_wgmma_f16_d128_m128n128_w12s3c1_persistent");
    assert!(persistent.with_own_keys(128, strides).is_some());
    assert!(persistent.with_own_keys(64, strides).is_none(), "a block has keys of both");
    assert!(persistent.with_own_keys(256, strides).is_none(), "queries whose own keys are elsewhere");
    assert!(persistent.with_own_keys(384, strides).is_none(), "more than there are");
    let odd = ElementStrides { row: 132, ..strides[0] };
    assert!(persistent.with_own_keys(128, [odd; 2]).is_none(), "no tensor map has such rows");
    let with_lengths =
        self::plan(&attention, &problem.with_lengths(true), "fwd_wgmma_f16_d128_m128n128_w12s2c1_split");
    assert!(
        with_lengths.with_own_keys(128, strides).is_none(),
        "keys before the first own one may be a sequence's last"
    );
    assert!(plan("fwd_f16_d128_m128n64_w4s1c1").with_own_keys(128, strides).is_none(), "mma.sync");
    // A plan without them takes no addresses of them, and one with them needs some.
    let with = persistent.with_own_keys(128, strides).expect("taken");
    let tensors = DeviceTensors::new(256, 512, 768, 1024);
    let own = OwnTensors { k: 256, v: 256, arrived: None };
    for (plan, tensors) in [
        (&persistent, tensors.with_own(Some(own))),
        (&with, tensors),
        (&with, tensors.with_own(Some(OwnTensors { v: 264, ..own }))),
        (&with, tensors.with_own(Some(OwnTensors { arrived: Some(6), ..own }))),
    ] {
        // SAFETY: refused before anything is launched.
        let refused = unsafe { attention.launch(plan, &tensors, StreamHandle::DEFAULT) };
        let error = refused.expect_err("refused");
        assert!(matches!(error, Error::Operand { .. } | Error::Misaligned { .. }), "{error}");
    }
}
