//! Scores of users: the example's kernels on the simulator against its own functions in float64, and what is refused.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::verification::{KernelRun, RaggedCase, RunKernel, UserCase};
use ferroflash::OperandValues;
use ferroflash::device::sim::SimDevice;
use ferroflash::module::{Library, MANIFEST_FILE};
use ferroflash::problem::{Score, UserScore};
use ferroflash::{
    Attention, DeviceModel, Dtype, Error, HostOperand, HostTensors, Mask, Operand, PlanOptions, Problem,
    Schedule, SimOptions,
};
use kernels_gpu::row::{Isa, ScoreKind, ScoreName};
use scores::{BLOCK, BUCKETS, BlockSparse, T5Bias};
use std::path::{Path, PathBuf};
use std::sync::Arc;

support::trials!(
    kernels_of_users_scores_are_right,
    a_users_score_is_planned_by_itself,
    kernels_of_another_version_are_refused_with_both,
    folders_without_users_scores_are_refused,
    tables_that_cannot_be_are_refused_by_name,
    a_block_that_is_hidden_may_hold_anything,
);

/// Cases of each kernel.
const CASES: u64 = 14;

/// Where `cargo xtask build-ptx --score examples/scores --rows examples/scores/rows.json` puts the kernels.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ptx-scores")
}

fn library() -> Library {
    let scores = folder();
    let opened = Library::find(None).and_then(|library| library.with_scores(&scores));
    opened.expect("cargo xtask build-ptx --score examples/scores --rows examples/scores/rows.json")
}

fn simulator(model: &'static DeviceModel, library: Library) -> Attention {
    let device = SimDevice::new(SimOptions::default().with_model(model));
    Attention::new(Arc::new(device), Arc::new(library)).expect("a device")
}

/// Numbers that a seed gives.
fn drawn(seed: u64, count: usize) -> Vec<u32> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*state >> 33) as u32)
    };
    let mut state = seed;
    std::iter::from_fn(|| next(&mut state)).take(count).collect()
}

/// T5's relative positions: a bias of each head and bucket, and the bucket of each distance: one each, and then ever more in one.
fn t5_bias(problem: &Problem, seed: u64) -> Result<UserCase, Error> {
    let biases = drawn(seed, (problem.sizes().heads_q * BUCKETS) as usize);
    let biases: Vec<f32> = biases.into_iter().map(|bits| (bits % 2001) as f32 / 500.0 - 2.0).collect();
    let bucket = |distance: u32| match distance {
        0..16 => distance,
        _ => (16 + (distance as f32 / 16.0).log2() as u32 * 4).min(BUCKETS - 1),
    };
    let buckets: Vec<u32> = (0..128).map(bucket).collect();
    let score = UserScore::new::<T5Bias>(&[biases.len() as u32, buckets.len() as u32])?;
    Ok(UserCase { score, tables: vec![OperandValues::F32(biases), OperandValues::U32(buckets)] })
}

/// A mask of blocks, half of which are seen.
fn block_sparse(problem: &Problem, seed: u64) -> Result<UserCase, Error> {
    let sizes = problem.sizes();
    let (rows, words) = (sizes.seqlen_q.div_ceil(BLOCK), sizes.seqlen_k.div_ceil(BLOCK).div_ceil(32));
    let mut mask = vec![words];
    mask.extend(drawn(seed, (rows * words) as usize).into_iter().map(|bits| bits << 1 | bits >> 30));
    let score = UserScore::new::<BlockSparse>(&[mask.len() as u32])?;
    Ok(UserCase { score, tables: vec![OperandValues::U32(mask)] })
}

fn kernels_of_users_scores_are_right() {
    let attention = simulator(DeviceModel::H200, library());
    let (mut isas, mut names) = (Vec::new(), Vec::new());
    for kernel in attention.library().kernels() {
        let ScoreKind::User(name) = kernel.row.score else { continue };
        let user = match name.as_str() {
            "t5_bias" => t5_bias,
            _ => block_sparse,
        };
        let mut ran = 0;
        for seed in 0..CASES {
            let row = &kernel.row;
            let case = RaggedCase::draw_user(row.dtype, row.head_dim, &user, seed).expect("a case");
            if !case.fits(row) {
                continue;
            }
            let (problem, options) = (&case.problem, &case.options);
            let run = KernelRun { kernel, problem, options, tensors: case.tensors() };
            let verdict = attention.run(&run).and_then(|output| case.judge(&output)).expect("computed");
            assert!(verdict.passed, "{} seed {seed}: {case}: {verdict}", kernel.entry);
            ran += 1;
        }
        assert!(ran >= CASES / 2, "{} ran {ran} cases", kernel.entry);
        isas.push(kernel.row.isa);
        names.push(name.as_str().to_owned());
    }
    assert!(isas.contains(&Isa::Mma) && isas.contains(&Isa::Wgmma), "both families");
    assert!(
        ["t5_bias", "block_sparse"].iter().all(|name| names.iter().any(|known| known == name)),
        "{names:?}"
    );
}

fn a_users_score_is_planned_by_itself() {
    let of = |dtype, head_dim| {
        let problem = problem(dtype, [1, 4, 2, 200, 200, head_dim]).with_causal(true);
        let case = t5_bias(&problem, 1).expect("a case");
        problem.with_score(Score::User(case.score)).expect("a score")
    };
    let attention = simulator(DeviceModel::H200, library());
    for (dtype, isa) in [(Dtype::Bf16, Isa::Wgmma), (Dtype::F16, Isa::Mma)] {
        let plan = attention.plan(&of(dtype, 64)).expect("planned");
        assert_eq!((plan.schedule(), plan.kernel().row.isa), (Schedule::Ragged, isa));
        assert_eq!(plan.kernel().row.score, ScoreKind::User(ScoreName::new("t5_bias").expect("a name")));
        // Narrower vectors run in the only tile there is, wider ones in none.
        assert_eq!(attention.plan(&of(dtype, 24)).expect("planned").kernel().row.head_dim, 64);
        let error = attention.plan(&of(dtype, 128)).expect_err("no tile").to_string();
        assert!(error.contains("head_dim 128 and the score t5_bias"), "{error}");
    }
    // A plan without a score takes none of them.
    let plain = problem(Dtype::F16, [1, 4, 2, 200, 200, 64]).with_sinks(true);
    assert_eq!(attention.plan(&plain).expect("planned").kernel().row.score, ScoreKind::Plain);
    let without = simulator(DeviceModel::H200, Library::find(None).expect("compiled kernels"));
    let error = without.plan(&of(Dtype::F16, 64)).expect_err("no kernel").to_string();
    assert!(error.contains("t5_bias") && error.contains("build-ptx --score"), "{error}");
    let tree = problem(Dtype::F16, [1, 4, 2, 8, 200, 64]).with_mask(Mask::FULL.with_tree(8)).expect("a mask");
    let case = t5_bias(&tree, 1).expect("a case");
    assert!(matches!(tree.with_score(Score::User(case.score)), Err(Error::Mask { .. })));
}

/// A copy of the example's kernels with another manifest.
fn changed(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = support::folder();
    for name in support::names(&folder()) {
        std::fs::copy(folder().join(&name), copy.path().join(&name)).expect("copied");
    }
    let path = copy.path().join(MANIFEST_FILE);
    let text = std::fs::read_to_string(&path).expect("a manifest");
    let mut manifest = serde_json::from_str(&text).expect("JSON");
    change(&mut manifest);
    std::fs::write(&path, manifest.to_string()).expect("written");
    copy
}

fn kernels_of_another_version_are_refused_with_both() {
    let copy = changed(|manifest| manifest["score_crate"]["ferroflash"] = "0.0.1 with 1 bytes".into());
    let own = kernels_gpu::manifest::version();
    for opened in
        [Library::open(copy.path()), Library::find(None).and_then(|library| library.with_scores(copy.path()))]
    {
        let error = opened.expect_err("another version");
        assert!(matches!(error, Error::BadKernels { .. }), "{error}");
        let text = error.to_string();
        for part in ["scores 0.1.0", "0.0.1 with 1 bytes", own.as_str()] {
            assert!(text.contains(part), "{text}: {part}");
        }
    }
}

fn folders_without_users_scores_are_refused() {
    let refused = |library: Library, folder: &Path, needle: &str| {
        let error = library.with_scores(folder).expect_err(needle).to_string();
        assert!(error.contains(needle), "{error}");
    };
    let table = Library::find(None).expect("compiled kernels");
    let own = table.folder().to_owned();
    refused(table, &own, "no kernel of a user's score");
    refused(library(), &folder(), "is there already");
}

fn tables_that_cannot_be_are_refused_by_name() {
    let attention = simulator(DeviceModel::L4, library());
    let base = problem(Dtype::F16, [1, 1, 1, 8, 32, 64]);
    let score = UserScore::new::<T5Bias>(&[32, 4]).expect("a score");
    let biased = base.with_score(Score::User(score)).expect("a score");
    let qkv = random_input::qkv(&base, InputKind::Random, 1);
    let (numbers, words) = ([0.5_f32; 32], [0_u32, 1, 2, 3]);
    let run = |first: Option<HostOperand<'_>>, second: Option<HostOperand<'_>>| {
        let tensors = HostTensors::from(&qkv);
        let tensors = first.into_iter().fold(tensors, |of, values| of.with_operand(Operand::Table0, values));
        let tensors = second.into_iter().fold(tensors, |of, values| of.with_operand(Operand::Table1, values));
        let plan = attention.planner().plan(&biased, &PlanOptions::new())?;
        attention.forward_with(&plan, &tensors, false)
    };
    run(Some(HostOperand::F32(&numbers)), Some(HostOperand::U32(&words))).expect("computed");
    let refused = |first, second, needle: &str| {
        let error = run(first, second).expect_err(needle).to_string();
        assert!(error.contains(needle), "{error}: {needle}");
    };
    refused(Some(HostOperand::F32(&numbers)), None, "table 1: the problem takes it");
    refused(Some(HostOperand::U32(&[0; 32])), Some(HostOperand::U32(&words)), "table 0: its elements");
    refused(
        Some(HostOperand::F32(&numbers[1..])),
        Some(HostOperand::U32(&words)),
        "table 0 holds 31 elements",
    );
    for (lengths, needle) in [(&[32][..], "2 tables, 1 lengths"), (&[32, 0], "table 1 has no elements")] {
        let error = UserScore::new::<T5Bias>(lengths).expect_err(needle).to_string();
        assert!(error.contains("t5_bias") && error.contains(needle), "{error}");
    }
}

/// NaN in K and V of blocks that no query sees, beside others that some see.
fn a_block_that_is_hidden_may_hold_anything() {
    for (model, dtype) in [(DeviceModel::L4, Dtype::F16), (DeviceModel::H200, Dtype::Bf16)] {
        let attention = simulator(model, library());
        let base = problem(dtype, [1, 2, 2, 40, 160, 64]);
        // Ten blocks of keys: all queries see every other one, and those of the first block of queries key block 1 as well.
        let mask = [1, 0b01_0101_0111, 0b01_0101_0101, 0b01_0101_0101];
        let score = UserScore::new::<BlockSparse>(&[mask.len() as u32]).expect("a score");
        let sparse = base.with_score(Score::User(score)).expect("a score");
        let clean = random_input::qkv(&base, InputKind::Random, 3);
        let mut poisoned = clean.clone();
        let nan = if dtype == Dtype::F16 { 0x7e00 } else { 0x7fc0 };
        for (tensor, key) in [1, 2].into_iter().flat_map(|tensor| (0..320).map(move |row| (tensor, row))) {
            if key % 160 / 16 % 2 == 1 && key % 160 / 16 != 1 {
                poisoned[tensor][key * 64..][..64].fill(nan);
            }
        }
        let run = |qkv: &[Vec<u16>; 3]| {
            let tensors = HostTensors::from(qkv).with_operand(Operand::Table0, HostOperand::U32(&mask));
            let plan = attention.plan(&sparse).expect("planned");
            attention.forward_with(&plan, &tensors, true).expect("computed")
        };
        let (right, output) = (run(&clean), run(&poisoned));
        assert!(check::verification::same_bits(&output, &right), "{model:?}");
    }
}
