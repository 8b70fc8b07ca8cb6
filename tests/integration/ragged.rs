//! Ragged batches on the simulator: what holds between calls, what is refused, and what wrong values on the device do.

use crate::support::{self, problem, simulator};
use check::random_input::{self, InputKind};
use check::reference::reference_of;
use check::tolerance::Tolerance;
use check::verification::{GuardedTensors, same_bits};
use ferroflash::problem::{BlockTable, Pages, Score};
use ferroflash::rounding::narrow;
use ferroflash::{
    Attention, Combine, DeviceModel, Dtype, Error, HostOperand, HostTensors, Layout, Mask, Operand, Output,
    PlanOptions, Problem, Reason, RowSelection, Schedule, Splits,
};
use kernels_gpu::row::{Accumulation, Isa, ScoreKind};

support::trials!(
    packed_and_paged_sequences_are_those_of_a_batch,
    a_sequence_is_the_same_alone_and_in_any_batch,
    values_wider_than_a_warp_holds_are_computed_in_slices,
    masks_that_hide_nothing_more_change_nothing,
    a_chain_of_drafts_is_the_causal_mask,
    trees_are_seen_as_their_bits_say,
    trees_that_cannot_be_are_refused_by_name,
    far_and_near_scores_share_rows_under_a_softcap,
    wrong_values_on_the_device_reach_nothing_outside,
    operands_that_cannot_be_are_refused_by_name,
    what_is_ragged_is_planned_by_itself,
);

fn ragged() -> PlanOptions {
    PlanOptions { splits: Splits::Count(1), schedule: Some(Schedule::Ragged), ..PlanOptions::new() }
}

fn run(attention: &Attention, problem: &Problem, options: &PlanOptions, tensors: &HostTensors<'_>) -> Output {
    let plan = attention.planner().plan(problem, options).expect("planned");
    assert_eq!(plan.schedule(), Schedule::Ragged);
    attention.forward_with(&plan, tensors, true).expect("computed")
}

/// Keys of sequences in pages, last page first: the tensor, and the block table.
fn paged(problem: &Problem, rows: &[u16], seqlen_k: usize, page: usize) -> (Vec<u16>, Vec<i32>) {
    let sizes = problem.sizes();
    let row = (sizes.heads_kv * sizes.head_dim) as usize;
    let entries = seqlen_k.div_ceil(page);
    let pages = sizes.batch as usize * entries;
    let (mut pool, mut table) = (vec![0x7fff; pages * page * row], Vec::new());
    for (index, keys) in
        rows.chunks_exact(seqlen_k * row).flat_map(|keys| keys.chunks(page * row)).enumerate()
    {
        let number = pages - 1 - index;
        pool[number * page * row..][..keys.len()].copy_from_slice(keys);
        table.push(number as i32);
    }
    (pool, table)
}

fn packed_and_paged_sequences_are_those_of_a_batch() {
    let (seqlen_q, seqlen_k) = (70, 150);
    let mask = Mask::window(Some(60), Some(0)).with_sink_tokens(3);
    for (model, dtype) in [(DeviceModel::L4, Dtype::F16), (DeviceModel::H200, Dtype::Bf16)] {
        let attention = simulator(model);
        let batch = problem(dtype, [2, 4, 2, seqlen_q, seqlen_k, 64]).with_layout(Layout::Bshd);
        let batch = batch.with_mask(mask).expect("a mask");
        let qkv = random_input::qkv(&batch, InputKind::NotANumber, 3);
        let whole = run(&attention, &batch, &ragged(), &HostTensors::from(&qkv));
        // In layout bshd a batch of equal sequences is also one row of packed ones; only LSE lies otherwise.
        let starts = |length: u32| [0, length, 2 * length];
        let (starts_q, starts_k) = (starts(seqlen_q), starts(seqlen_k));
        let packed = batch.with_packed_queries(2 * seqlen_q).and_then(|it| it.with_packed_keys(2 * seqlen_k));
        let tensors = HostTensors::from(&qkv)
            .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts_q))
            .with_operand(Operand::CuSeqlensK, HostOperand::U32(&starts_k));
        let output = run(&attention, &packed.expect("packed"), &ragged(), &tensors);
        assert_eq!(output.o, whole.o, "{model:?} packed");
        let (lse, whole_lse) = (output.lse.expect("asked for"), whole.lse.clone().expect("asked for"));
        for (index, lse) in lse.iter().enumerate() {
            let (head, row) = (index / 140, index % 140);
            let other = whole_lse[(row / 70 * 4 + head) * 70 + row % 70];
            assert_eq!(lse.to_bits(), other.to_bits(), "{model:?} head {head} row {row}");
        }
        // Pages of 48 keys hold 150 with room to spare: what lies behind is NaN.
        for page in [16, 48] {
            let (k, table) = paged(&batch, &qkv[1], seqlen_k as usize, page);
            let (v, _) = paged(&batch, &qkv[2], seqlen_k as usize, page);
            let pages = Pages {
                page: page as u32,
                pages: table.len() as u32,
                table: BlockTable::Rows { entries: table.len() as u32 / 2 },
            };
            let problem = batch.with_pages(pages).expect("paged");
            let tensors =
                HostTensors::new(&qkv[0], &k, &v).with_operand(Operand::BlockTable, HostOperand::I32(&table));
            let output = run(&attention, &problem, &ragged(), &tensors);
            assert!(same_bits(&output, &whole), "{model:?} pages of {page}");
        }
    }
}

fn a_sequence_is_the_same_alone_and_in_any_batch() {
    let lengths = [130_u32, 5, 200];
    for (model, dtype) in [(DeviceModel::L4, Dtype::Bf16), (DeviceModel::H200, Dtype::F16)] {
        let attention = simulator(model);
        let of = |lengths: &[u32]| {
            let total: u32 = lengths.iter().sum();
            let most = 200;
            problem(dtype, [lengths.len() as u32, 4, 2, most, most, 64])
                .with_causal(true)
                .with_packed_queries(total)
                .and_then(|problem| problem.with_packed_keys(total))
                .expect("packed")
        };
        let options = PlanOptions { splits: Splits::Size(64), ..PlanOptions::new() };
        let together = of(&lengths);
        let qkv = random_input::qkv(&together, InputKind::Random, 5);
        let starts = [0, 130, 135, 335];
        let tensors = HostTensors::from(&qkv)
            .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts))
            .with_operand(Operand::CuSeqlensK, HostOperand::U32(&starts));
        let output = run(&attention, &together, &options, &tensors);
        for (index, &length) in lengths.iter().enumerate() {
            let cut = |tensor: &[u16], heads: usize| {
                let row = heads * 64;
                tensor[starts[index] as usize * row..][..length as usize * row].to_vec()
            };
            let own = [cut(&qkv[0], 4), cut(&qkv[1], 2), cut(&qkv[2], 2)];
            let starts = [0, length];
            let tensors = HostTensors::from(&own)
                .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts))
                .with_operand(Operand::CuSeqlensK, HostOperand::U32(&starts));
            let alone = run(&attention, &of(&[length]), &options, &tensors);
            assert_eq!(alone.o, cut(&output.o, 4), "{model:?} sequence {index}");
        }
    }
}

fn values_wider_than_a_warp_holds_are_computed_in_slices() {
    let wide = |dtype, sizes, head_dim_v| problem(dtype, sizes).with_head_dim_v(head_dim_v).expect("a width");
    let cases = [
        // (device, dtype, B, HQ, HKV, SQ, SKV, head_dim, that of V, splits)
        (DeviceModel::L4, Dtype::F16, [2, 4, 2, 37, 75, 512], 512, 1),
        (DeviceModel::L4, Dtype::Bf16, [1, 8, 1, 1, 200, 512], 512, 3),
        (DeviceModel::H200, Dtype::F16, [1, 3, 3, 70, 130, 320], 320, 1),
        (DeviceModel::L4, Dtype::Bf16, [2, 5, 1, 3, 150, 512], 384, 2),
        (DeviceModel::H200, Dtype::Bf16, [1, 4, 2, 65, 97, 128], 512, 2),
        (DeviceModel::H200, Dtype::F16, [1, 2, 1, 66, 90, 512], 64, 1),
        (DeviceModel::H200, Dtype::F16, [2, 6, 2, 23, 300, 512], 512, 3),
        (DeviceModel::H200, Dtype::Bf16, [1, 4, 1, 130, 70, 448], 272, 1),
    ];
    for (model, dtype, sizes, head_dim_v, splits) in cases {
        let attention = simulator(model);
        let problem = wide(dtype, sizes, head_dim_v).with_causal(true).with_sinks(true);
        let what = format!("{model:?} {dtype:?} {sizes:?} {head_dim_v} {splits}");
        let planned = |combine| {
            let mut options = PlanOptions { splits: Splits::Count(splits), combine, ..PlanOptions::new() };
            if model == DeviceModel::H200 && head_dim_v > 256 {
                // Both ways to merge, whichever the plan would take each with.
                let entry = format!("fwd_wgmma_{}_d512_m64n64_w12s1c1_ragged", dtype.name());
                options.rows = RowSelection::Named(entry);
            }
            let plan = attention.planner().plan(&problem, &options).expect("planned");
            assert_eq!((plan.kernel().row.head_dim, plan.splits()), (512, splits), "{what}");
            assert_eq!(plan.is_fused(), splits > 1 && combine == Combine::Fused, "{what}");
            plan
        };
        let sinks: Vec<f32> = (0..sizes[1]).map(|head| head as f32 * 0.7 - 1.0).collect();
        let qkv = random_input::qkv(&problem, InputKind::NotANumber, 11);
        let tensors = HostTensors::from(&qkv).with_operand(Operand::Sinks, HostOperand::F32(&sinks));
        let [output, other] = [Combine::Fused, Combine::Kernel]
            .map(|combine| attention.forward_with(&planned(combine), &tensors, true).expect("computed"));
        assert!(same_bits(&output, &other), "{what}");
        let reference = reference_of(&problem, &tensors, &|_, _| ());
        let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
        let verdict = tolerance.judge(&problem, &reference, &output.o, output.lse.as_deref());
        let verdict = verdict.expect("lengths");
        assert!(verdict.passed, "{what}: {verdict}");
        let error = attention.planner().plan_partial(&problem, &PlanOptions::new());
        assert_eq!(head_dim_v > 256, matches!(error, Err(Error::NoSuchKernel { .. })), "{what}: {error:?}");
    }
    let halves_of_12 = problem(Dtype::F16, [1, 1, 1, 1, 1, 256]).with_head_dim_v(264);
    assert!(matches!(halves_of_12, Err(Error::UnsupportedHeadDim { head_dim: 264, .. })));
}

fn masks_that_hide_nothing_more_change_nothing() {
    let attention = simulator(DeviceModel::L4);
    let causal = problem(Dtype::F16, [1, 3, 1, 65, 130, 64]).with_causal(true);
    let qkv = random_input::qkv(&causal, InputKind::Outliers, 7);
    let tensors = HostTensors::from(&qkv);
    let right = run(&attention, &causal, &ragged(), &tensors);
    for mask in [
        Mask::window(Some(130), Some(0)),
        Mask::window(Some(129), Some(0)),
        Mask::CAUSAL.with_chunk(130),
        Mask::CAUSAL.with_sink_tokens(64),
        Mask::window(Some(3), Some(0)).with_sink_tokens(u32::MAX),
        Mask::CAUSAL.with_prefix(1),
    ] {
        let problem = causal.with_mask(mask).expect("a mask");
        assert!(same_bits(&run(&attention, &problem, &ragged(), &tensors), &right), "{mask}");
    }
    let narrower = causal.with_mask(Mask::window(Some(63), Some(0))).expect("a mask");
    assert!(!same_bits(&run(&attention, &narrower, &ragged(), &tensors), &right), "a window hides keys");
    let none = [f32::NEG_INFINITY; 3];
    let with_none = tensors.with_operand(Operand::Sinks, HostOperand::F32(&none));
    assert!(same_bits(&run(&attention, &causal.with_sinks(true), &ragged(), &with_none), &right), "no sinks");
}

/// Bits of a tree whose nodes have these parents, a row of words a node: its ancestors and itself. A node without one is a child of the context.
fn ancestors(parents: &[Option<usize>], words: usize) -> Vec<u32> {
    let mut bits = vec![0; parents.len() * words];
    for node in 0..parents.len() {
        let mut next = Some(node);
        while let Some(ancestor) = next {
            bits[node * words + ancestor / 32] |= 1 << (ancestor % 32);
            next = parents[ancestor];
        }
    }
    bits
}

fn a_chain_of_drafts_is_the_causal_mask() {
    // Stages change no bit.
    for (model, plain, with_tree) in [
        (DeviceModel::L4, "fwd_f16_d64_m64n64_w4s2c2_ragged", "fwd_f16_d64_m64n64_w4s2c2_ragged_tree"),
        (
            DeviceModel::H200,
            "fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged",
            "fwd_wgmma_f16_d64_m128n128_w12s2c1_ragged_tree",
        ),
    ] {
        let attention = simulator(model);
        for nodes in [1, 5, 33, 64, 70] {
            // More keys than a block of either kernel, and ends off their grid.
            let batch = problem(Dtype::F16, [2, 2, 1, nodes, 203, 64]);
            let qkv = random_input::qkv(&batch, InputKind::NotANumber, u64::from(nodes));
            let of = |problem: &Problem, entry: &str, tensors: &HostTensors<'_>| {
                let options = PlanOptions { rows: RowSelection::Named(entry.to_owned()), ..ragged() };
                run(&attention, problem, &options, tensors)
            };
            let causal = batch.with_causal(true);
            let right = of(&causal, plain, &HostTensors::from(&qkv));
            let tree = batch.with_mask(Mask::FULL.with_tree(nodes)).expect("a tree");
            let parents: Vec<_> = (0..nodes as usize).map(|node| node.checked_sub(1)).collect();
            let bits = ancestors(&parents, tree.mask().tree_words() as usize).repeat(2);
            let tensors = HostTensors::from(&qkv).with_operand(Operand::TreeMask, HostOperand::U32(&bits));
            let output = of(&tree, with_tree, &tensors);
            assert!(same_bits(&output, &right), "{model:?} a chain of {nodes}");
            // A star is none.
            if nodes > 1 {
                let bits =
                    ancestors(&vec![None; nodes as usize], tree.mask().tree_words() as usize).repeat(2);
                let tensors =
                    HostTensors::from(&qkv).with_operand(Operand::TreeMask, HostOperand::U32(&bits));
                assert!(!same_bits(&of(&tree, with_tree, &tensors), &right), "{model:?} {nodes}");
            }
        }
    }
}

/// Trees with widths and a layout that no kernel has a tile of its own for, some with fewer keys than nodes, over pages, windows and packed
/// queries, and of parents drawn at random.
fn trees_are_seen_as_their_bits_say() {
    let attention = simulator(DeviceModel::L4);
    // The 33 nodes begin at the last key of a block.
    for (width, nodes, mask) in [
        (24, 8, Mask::FULL),
        (80, 63, Mask::CAUSAL),
        (96, 40, Mask::window(Some(70), Some(0))),
        (64, 33, Mask::FULL.with_intervals()),
    ] {
        let pages = Pages { page: 16, pages: 30, table: BlockTable::Rows { entries: 10 } };
        let tree = problem(Dtype::Bf16, [3, 4, 2, nodes, 160, width])
            .with_mask(mask.with_tree(nodes))
            .and_then(|problem| problem.with_packed_queries(3 * nodes))
            .and_then(|problem| problem.with_pages(pages))
            .expect("a tree")
            .with_lengths(true);
        let qkv = random_input::qkv(&tree, InputKind::Random, u64::from(width));
        let words = tree.mask().tree_words() as usize;
        // Several roots, so that the first node is not everyone's ancestor, and branches.
        let parent = |node: usize, seed: usize| match (node + seed) % 5 {
            0 => None,
            1 => Some(node / 2),
            _ => Some(node - 1),
        };
        let parents = |seed| -> Vec<Option<usize>> {
            (0..nodes as usize).map(|node| if node == 0 { None } else { parent(node, seed) }).collect()
        };
        let bits: Vec<u32> = (0..3).flat_map(|seed| ancestors(&parents(seed), words)).collect();
        let starts = [0, nodes, 2 * nodes, 3 * nodes];
        let table: Vec<i32> = (0..30).rev().collect();
        let intervals: Vec<u32> = (0..3 * nodes).flat_map(|query| [query % 20, 150 + query % 30]).collect();
        let lengths = [160, 100, nodes / 2];
        let mut tensors = HostTensors::from(&qkv)
            .with_seqlens_k(Some(&lengths))
            .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts))
            .with_operand(Operand::BlockTable, HostOperand::I32(&table))
            .with_operand(Operand::TreeMask, HostOperand::U32(&bits));
        if mask.intervals {
            tensors = tensors.with_operand(Operand::Intervals, HostOperand::U32(&intervals));
        }
        let plan = attention.plan(&tree).expect("planned");
        assert_eq!(plan.kernel().row.score, ScoreKind::Tree);
        let output = attention.forward_with(&plan, &tensors, true).expect("computed");
        let reference = reference_of(&tree, &tensors, &|_, _| ());
        let tolerance = Tolerance::new(&tree, &tensors, &reference, Accumulation::F32);
        let verdict = tolerance.judge(&tree, &reference, &output.o, output.lse.as_deref()).expect("lengths");
        assert!(verdict.passed, "width {width}: {verdict}");
    }
}

fn trees_that_cannot_be_are_refused_by_name() {
    let base = problem(Dtype::F16, [1, 2, 1, 8, 64, 64]);
    let tree = base.with_mask(Mask::FULL.with_tree(8)).expect("a tree");
    for refused in [
        base.with_mask(Mask::FULL.with_tree(0)),
        base.with_mask(Mask::FULL.with_tree(u32::MAX)),
        tree.with_score(Score::Softcap(30.0)),
        tree.with_score(Score::Alibi { per_batch: false }),
        base.with_score(Score::Softcap(30.0)).and_then(|problem| problem.with_mask(tree.mask())),
    ] {
        let error = refused.expect_err("no kernel computes it");
        assert!(matches!(error, Error::Mask { .. }) && error.to_string().contains("tree"), "{error}");
    }
    let attention = simulator(DeviceModel::L4);
    let qkv = random_input::qkv(&tree, InputKind::Random, 1);
    let given = |values: Option<HostOperand<'_>>| {
        let tensors = HostTensors::from(&qkv);
        let tensors = values.into_iter().fold(tensors, |of, bits| of.with_operand(Operand::TreeMask, bits));
        attention.forward_with(&*attention.plan(&tree)?, &tensors, false)
    };
    for (values, needle) in [
        (None, "tree_mask: the problem takes it"),
        (Some(HostOperand::U32(&[0; 7])), "tree_mask holds 7 elements, its shape needs 8"),
        (Some(HostOperand::F32(&[0.0; 8])), "tree_mask: its elements have another type"),
    ] {
        let error = given(values).expect_err(needle).to_string();
        assert!(error.contains(needle), "{error}: {needle}");
    }
}

/// Scores of rows go up and down by more than weights can be apart, in blocks that are near 0 for their whole warp, far for some rows, or far
/// for all.
fn far_and_near_scores_share_rows_under_a_softcap() {
    for (dtype, cap) in [(Dtype::Bf16, 30.0), (Dtype::Bf16, 150.0), (Dtype::F16, 30.0), (Dtype::F16, 150.0)] {
        for head_dim in [64, 128] {
            let problem = problem(dtype, [1, 1, 1, 64, 7 * 128, head_dim])
                .with_score(Score::Softcap(cap))
                .and_then(|problem| problem.with_scale(1.0))
                .expect("a softcap");
            let mut qkv = random_input::qkv(&problem, InputKind::Random, 5);
            let first_of_rows = |rows: &mut [u16], value: &dyn Fn(usize) -> f64| {
                for (row, elements) in rows.chunks_exact_mut(head_dim as usize).enumerate() {
                    elements.fill(0);
                    elements[0] = narrow(dtype, value(row));
                }
            };
            first_of_rows(&mut qkv[0], &|row| [500.0, -500.0, 30.0, -30.0, 1.0, -1.0][row / 3 % 6]);
            first_of_rows(&mut qkv[1], &|key| [1.0, 0.01, -1.0, 0.02, -0.25, 0.0, 1.0][key / 128]);
            let tensors = HostTensors::from(&qkv);
            let plan = simulator(DeviceModel::H200).planner().plan(&problem, &ragged()).expect("planned");
            assert_eq!((plan.kernel().row.isa, plan.kernel().row.score), (Isa::Wgmma, ScoreKind::Softcap));
            let output = simulator(DeviceModel::H200).forward_with(&plan, &tensors, true).expect("computed");
            let reference = reference_of(&problem, &tensors, &|_, _| ());
            let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
            let verdict =
                tolerance.judge(&problem, &reference, &output.o, output.lse.as_deref()).expect("lengths");
            assert!(verdict.passed, "{dtype:?}, cap {cap}, head_dim {head_dim}: {verdict}");
        }
    }
}

fn wrong_values_on_the_device_reach_nothing_outside() {
    for (model, entry) in [
        (DeviceModel::L4, "fwd_f16_d64_m64n64_w4s2c2_ragged"),
        (DeviceModel::H200, "fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged"),
    ] {
        let attention = simulator(model);
        let pages = Pages { page: 16, pages: 9, table: BlockTable::Csr { entries: 11 } };
        let problem = problem(Dtype::F16, [3, 2, 1, 140, 100, 64])
            .with_causal(true)
            .with_lengths(true)
            .with_packed_queries(200)
            .and_then(|problem| problem.with_pages(pages))
            .expect("ragged");
        let options = PlanOptions { rows: RowSelection::Named(entry.to_owned()), ..ragged() };
        let plan = attention.planner().plan(&problem, &options).expect("planned");
        let tensors = GuardedTensors::new(&attention, &plan).expect("tensors");
        let qkv = random_input::qkv(&problem, InputKind::Random, 1);
        tensors.write_inputs([&qkv[0], &qkv[1], &qkv[2]]).expect("written");
        let far = u32::MAX / 2;
        for (starts, indptr, lengths, pages) in [
            (
                [0, 500, 100, 90],
                [0, 4, 2, 11],
                [100, far, 3],
                [0, 8, 9, 100, -1, i32::MIN, i32::MAX, 1, 2, 3, 4],
            ),
            ([7, far, 3, 5], [3, far, far, 0], [far, far, far], [8; 11]),
            ([200, 200, 200, 200], [11, 11, 11, 11], [50, 50, 50], [1000; 11]),
        ] {
            tensors.write_lengths(&lengths).expect("written");
            let operands = HostTensors::from(&qkv)
                .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts))
                .with_operand(Operand::PageIndptr, HostOperand::U32(&indptr))
                .with_operand(Operand::BlockTable, HostOperand::I32(&pages));
            tensors.write_operands(&operands).expect("written");
            tensors.launch(&attention).expect("no access outside of the tensors");
            tensors.output().expect("nothing written outside of O and LSE");
        }
    }
}

fn operands_that_cannot_be_are_refused_by_name() {
    let attention = simulator(DeviceModel::L4);
    let base = problem(Dtype::F16, [2, 2, 1, 8, 32, 64]);
    let refused =
        |problem: &Problem, give: &dyn Fn(HostTensors<'_>) -> Result<Output, Error>, needle: &str| {
            let qkv = random_input::qkv(problem, InputKind::Random, 1);
            let error = give(HostTensors::from(&qkv)).expect_err(needle).to_string();
            assert!(error.contains(needle), "{error}: {needle}");
        };
    let packed = base.with_packed_queries(12).expect("packed");
    let of_packed = |starts: &[u32], needle: &str| {
        refused(
            &packed,
            &|tensors| {
                let plan = attention.plan(&packed)?;
                let starts = HostOperand::U32(starts);
                attention.forward_with(&plan, &tensors.with_operand(Operand::CuSeqlensQ, starts), false)
            },
            needle,
        );
    };
    of_packed(&[0, 5], "cu_seqlens_q");
    of_packed(&[1, 5, 12], "cu_seqlens_q[0] is 1");
    of_packed(&[0, 8, 5], "cu_seqlens_q[2] is 5");
    of_packed(&[0, 8, 13], "cu_seqlens_q[2] is 13");
    of_packed(&[0, 9, 12], "cu_seqlens_q[1] is 9: starts ascend from 0 by at most seqlen_q");
    refused(
        &packed,
        &|tensors| attention.forward_with(&*attention.plan(&packed)?, &tensors, false),
        "cu_seqlens_q: the problem takes it",
    );
    let extra = |tensors: HostTensors<'_>| {
        let tensors = tensors.with_operand(Operand::Sinks, HostOperand::F32(&[0.0; 2]));
        attention.forward_with(&*attention.plan(&base)?, &tensors, false)
    };
    refused(&base, &extra, "sinks: it was given, and the problem takes none");
    let pages = Pages { page: 16, pages: 3, table: BlockTable::Rows { entries: 2 } };
    let paged = base.with_pages(pages).expect("paged");
    let table = |tensors: HostTensors<'_>| {
        let tensors = tensors.with_operand(Operand::BlockTable, HostOperand::I32(&[0, 1, 2, 3]));
        attention.forward_with(&*attention.plan(&paged)?, &tensors, false)
    };
    refused(&paged, &table, "block_table[3] is 3");
    let sinks = base.with_sinks(true);
    let short = |tensors: HostTensors<'_>| {
        let tensors = tensors.with_operand(Operand::Sinks, HostOperand::F32(&[0.0; 3]));
        attention.forward_with(&*attention.plan(&sinks)?, &tensors, false)
    };
    refused(&sinks, &short, "sinks");
    assert!(matches!(base.with_mask(Mask::CAUSAL.with_chunk(0)), Err(Error::Mask { .. })));
    assert!(matches!(base.with_mask(Mask::window(Some(3), Some(0)).with_prefix(2)), Err(Error::Mask { .. })));
    assert!(matches!(base.with_score(Score::Softcap(0.0)), Err(Error::InvalidSoftcap { .. })));
    assert!(matches!(base.with_head_dim_v(20), Err(Error::UnsupportedHeadDim { head_dim: 20, .. })));
    let short = Pages { table: BlockTable::Rows { entries: 1 }, ..pages };
    assert!(matches!(base.with_pages(short), Err(Error::Pages { entries: 1, .. })));
}

fn what_is_ragged_is_planned_by_itself() {
    let attention = simulator(DeviceModel::H200);
    let base = problem(Dtype::Bf16, [4, 8, 2, 300, 300, 64]);
    let isa = |problem: &Problem| {
        let (plan, reasons) = attention.planner().explain(problem, &PlanOptions::new()).expect("planned");
        assert_eq!(plan.schedule(), Schedule::Ragged);
        (plan.kernel().row.isa, reasons.iter().map(Reason::to_string).collect::<Vec<_>>().join("; "))
    };
    let window = base.with_mask(Mask::window(Some(63), Some(0))).expect("a mask");
    // Of few short rows a tile of mma.sync is estimated to be faster.
    let long = problem(Dtype::Bf16, [4, 8, 2, 3000, 3000, 64]).with_mask(Mask::window(Some(1023), Some(0)));
    let long = long.and_then(|long| long.with_packed_queries(9000)).expect("packed");
    assert_eq!(isa(&long).0, Isa::Wgmma);
    let intervals = base.with_mask(Mask::CAUSAL.with_intervals()).expect("a mask");
    assert_eq!(isa(&intervals).0, Isa::Mma);
    let small = Pages { page: 4, pages: 300, table: BlockTable::Rows { entries: 75 } };
    let (isa_of_small, why) = isa(&base.with_pages(small).expect("paged"));
    assert_eq!(isa_of_small, Isa::Mma);
    assert!(why.contains("a page has 4"), "{why}");
    // A score whose only rows of a width are wgmma's runs in a wider tile where those cannot compute it.
    let of_96 = problem(Dtype::F16, [4, 8, 2, 300, 300, 96]).with_score(Score::Alibi { per_batch: false });
    let of_96 = of_96.expect("a score");
    let planned = |problem: &Problem| {
        let plan = attention.planner().plan(problem, &PlanOptions::new()).expect("planned");
        (plan.kernel().row.isa, plan.kernel().row.head_dim)
    };
    assert_eq!(planned(&of_96), (Isa::Wgmma, 96));
    let intervals = of_96.with_mask(Mask::CAUSAL.with_intervals()).expect("a mask");
    assert_eq!(planned(&intervals), (Isa::Mma, 128));
    assert_eq!(planned(&of_96.with_pages(small).expect("paged")), (Isa::Mma, 128));
    // A dense problem keeps the kernels that it has.
    let plan = attention.planner().plan(&base, &PlanOptions::new()).expect("planned");
    assert_ne!(plan.schedule(), Schedule::Ragged);
    let ragged_rows = PlanOptions { schedule: Some(Schedule::Grid), ..PlanOptions::new() };
    let error = attention.planner().plan(&window, &ragged_rows).expect_err("no such kernel");
    assert!(matches!(error, Error::NoSuchKernel { .. }), "{error}");
}
