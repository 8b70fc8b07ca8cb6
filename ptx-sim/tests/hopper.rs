//! A flash-attention kernel for sm_90a as rustc emits it — TMA, mbarriers, wgmma, setmaxnreg, two consumer warpgroups that take
//! turns by named barriers — against a float64 reference, and with one number changed.

use ptx_sim::{
    BlockedOn, Checks, FindingKind, LaunchConfig, Limits, Memory, Module, Report, Schedule, Severity,
    SimError, Swizzle, TensorMap, TensorType, launch,
};

const KERNEL: &str = include_str!("ptx/attention_d128_sm90a.ptx");
const HEAD_DIM: usize = 128;

/// Multiples of 1/64 below 1: a deterministic stand-in for random numbers, exact in f16.
fn values(count: usize, seed: u32) -> Vec<f64> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 25) / 64.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn to_f16(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 112;
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
}

fn from_f16(half: u16) -> f64 {
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * 2f32.powi(112);
    f64::from(if half & 0x8000 != 0 { -magnitude } else { magnitude })
}

/// One head; the output and the counters.
fn run(
    text: &str,
    seqlen: usize,
    schedule: Schedule,
    checks: Checks,
) -> Result<(Vec<f64>, Report), SimError> {
    let module = Module::parse(text).unwrap();
    let mut memory = Memory::new();
    let mut params = Vec::new();
    for seed in 1..=3 {
        let tensor = values(seqlen * HEAD_DIM, seed);
        let bytes: Vec<u8> = tensor.iter().flat_map(|x| to_f16(*x).to_le_bytes()).collect();
        let address = memory.alloc(bytes.len());
        memory.write(address, &bytes).unwrap();
        let (rows, row_bytes) = (seqlen as u64, 2 * HEAD_DIM as u64);
        let (dims, strides) = ([HEAD_DIM as u64, rows, 1], [row_bytes, rows * row_bytes]);
        let map =
            TensorMap::new(TensorType::F16, address, &dims, &strides, &[64, 128, 1], Swizzle::B128).unwrap();
        let place = memory.alloc(TensorMap::BYTES);
        memory.write(place, &map.to_bytes()).unwrap();
        params.extend(place.to_le_bytes());
    }
    let out = memory.alloc(2 * seqlen * HEAD_DIM);
    params.extend(out.to_le_bytes());
    params.extend((seqlen as u32).to_le_bytes());
    params.extend((seqlen as u32).to_le_bytes());
    params.extend((std::f32::consts::LOG2_E / (HEAD_DIM as f32).sqrt()).to_le_bytes());
    let mut config = LaunchConfig::new([seqlen as u32 / 128, 1, 1], [384, 1, 1]);
    config.dynamic_smem_bytes = 1024 + 32768 + 2 * 65536;
    (config.limits, config.schedule, config.checks) = (Limits::SM_90, schedule, checks);
    let report = launch(&module, "hop128", &params, &mut memory, &config)?;
    let mut bytes = vec![0; 2 * seqlen * HEAD_DIM];
    memory.read(out, &mut bytes).unwrap();
    Ok((bytes.chunks(2).map(|b| from_f16(u16::from_le_bytes([b[0], b[1]]))).collect(), report))
}

fn reference(seqlen: usize) -> Vec<f64> {
    let [q, k, v] = [1, 2, 3].map(|seed| values(seqlen * HEAD_DIM, seed));
    let row = |tensor: &[f64], i: usize| tensor[i * HEAD_DIM..(i + 1) * HEAD_DIM].to_vec();
    let one = |i: usize| -> Vec<f64> {
        let query = row(&q, i);
        let dot = |key: Vec<f64>| key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>();
        let scores: Vec<f64> = (0..seqlen).map(|j| dot(row(&k, j)) / (HEAD_DIM as f64).sqrt()).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..HEAD_DIM)
            .map(|d| weights.iter().enumerate().map(|(j, w)| w * v[j * HEAD_DIM + d]).sum::<f64>() / sum)
            .collect()
    };
    (0..seqlen).flat_map(one).collect()
}

#[test]
fn the_forward_agrees_with_the_reference() {
    let seqlen = 384;
    let (out, report) =
        run(KERNEL, seqlen, Schedule::Deterministic, Checks::ALL).unwrap_or_else(|e| panic!("{e}"));
    let pairs = out.iter().zip(reference(seqlen));
    let worst = pairs.map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-3, "{worst}");
    // 3 CTAs × 2 warpgroups × 3 key blocks × (8 + 8) products of m64n128k16.
    assert_eq!((report.wgmma, report.tensor_flops), (288, 288 * 2 * 64 * 128 * 16));
    // Each CTA brings 32 KiB of Q and, three times, of K and of V.
    assert_eq!(report.bulk_load_bytes, 3 * 7 * 32768);
}

#[test]
fn seeds_do_not_change_a_bit() {
    let (plain, _) = run(KERNEL, 256, Schedule::Deterministic, Checks::NONE).unwrap();
    for seed in 0..6 {
        let (out, _) =
            run(KERNEL, 256, Schedule::Seeded(seed), Checks::ALL).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(out, plain, "seed {seed}");
    }
}

/// What is found once the n-th place of a text is another.
fn found(from: &str, to: &str, nth: usize) -> ptx_sim::Finding {
    let at = KERNEL.match_indices(from).nth(nth).unwrap_or_else(|| panic!("{from} is not there")).0;
    let text = format!("{}{to}{}", &KERNEL[..at], &KERNEL[at + from.len()..]);
    match run(&text, 384, Schedule::Deterministic, Checks::ALL) {
        Err(SimError::Finding(finding)) => *finding,
        Ok((_, report)) if !report.warnings.is_empty() => report.warnings[0].clone(),
        other => panic!("{to} for {from}: {:?}", other.map(|o| o.0.len())),
    }
}

#[test]
fn a_wrong_barrier_number_is_a_deadlock_with_its_name() {
    // The second warpgroup's first turn: the first arrives at barrier 3.
    let found = found("bar.sync %r41, %r42;", "bar.sync 6, %r42;", 0);
    assert_eq!(found.kind, FindingKind::Deadlock);
    let six = BlockedOn::Barrier { id: 6, expected: 256, arrived: 128, warps: vec![8, 9, 10, 11] };
    let lines: Vec<u32> = found.blocked.iter().filter(|b| b.on == six).map(|b| b.line).collect();
    assert_eq!(lines, [94; 4], "{found}");
}

#[test]
fn waits_and_fences_that_are_missing_are_found() {
    let kind = |from, to, nth| found(from, to, nth).kind;
    assert_eq!(kind("wgmma.fence.sync.aligned;", "", 0), FindingKind::WgmmaFence);
    assert_eq!(kind("wgmma.wait_group.sync.aligned 1;", "", 0), FindingKind::WgmmaPending);
    assert_eq!(
        kind("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;", 0),
        FindingKind::WgmmaPending
    );
    // The consumers do not wait for the second key block, whatever its parity.
    assert_eq!(kind("[%r19], %r324;", "[%r19], 1;", 0), FindingKind::AsyncPending);
    // The producer does not wait for the stage to be empty: it arrives again in a phase that lacks only bytes.
    assert_eq!(kind("@%p21 bra", "@!%p21 bra", 0), FindingKind::Mbarrier);
    // Forgiven, as the thread that initialises the mbarriers is the one that issues the copies.
    let unfenced = found("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;", "", 0);
    assert_eq!((unfenced.kind, unfenced.severity), (FindingKind::ProxyFence, Severity::Warning));
}

#[test]
fn bytes_and_parities_that_are_wrong_are_found() {
    let bytes = found("[%r733], %r687;", "[%r733], 32784;", 0);
    assert_eq!(bytes.kind, FindingKind::Deadlock);
    let lacks =
        bytes.blocked.iter().any(|b| matches!(b.on, BlockedOn::Mbarrier { bytes: 16, arrivals: 0, .. }));
    assert!(lacks, "{bytes}");
    assert_eq!(found("[%r733], %r687;", "[%r733], 16384;", 0).kind, FindingKind::Mbarrier);
}

/// The mended twin of all of these is the kernel itself.
#[test]
fn no_line_that_synchronises_can_be_left_out_unnoticed() {
    // Each of the two fences makes the mbarriers known by itself; more registers and taking turns only make it faster; and
    // with three key blocks nobody waits for the stage that this arrival empties.
    let spared = [56, 57, 72, 760, 822];
    let words =
        ["mbarrier", "wgmma.fence", "wgmma.wait", "wgmma.commit", "bar.", "setmaxnreg", "cp.async", "fence."];
    let is_one = |line: &str| words.iter().any(|w| line.contains(w)) && !line.contains("try_wait");
    let (mut noticed, mut unnoticed) = (0, Vec::new());
    for (at, _) in KERNEL.lines().enumerate().filter(|(_, line)| is_one(line)) {
        let left: Vec<&str> = KERNEL.lines().enumerate().map(|(i, l)| if i == at { "" } else { l }).collect();
        match run(&left.join("\n"), 384, Schedule::Deterministic, Checks::ALL) {
            Ok(_) => unnoticed.push(at + 1),
            Err(_) => noticed += 1,
        }
    }
    assert_eq!((noticed, unnoticed.as_slice()), (48, spared.as_slice()));
}
