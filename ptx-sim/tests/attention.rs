//! A flash-attention kernel as rustc emits it, against a float64 reference.

use ptx_sim::{Checks, LaunchConfig, Memory, Module, Report, Schedule, launch};

/// 1.0 and below, in f16 steps: a deterministic stand-in for random numbers.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0
    };
    // Sums of four are close enough to normal.
    (0..count).map(|_| round_f16((next() + next() + next() + next() - 2.0) * 1.7)).collect()
}

fn round_f16(x: f32) -> f32 {
    let scale = 2f32.powi(10 - x.abs().max(6.2e-5).log2().floor() as i32);
    (x * scale).round_ties_even() / scale
}

fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 112;
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
}

fn from_f16(half: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * 2f32.powi(112);
    if half & 0x8000 != 0 { -magnitude } else { magnitude }
}

struct Problem {
    heads: usize,
    seqlen: usize,
    causal: bool,
}

const HEAD_DIM: usize = 64;

impl Problem {
    fn run(&self, config: impl FnOnce(&mut LaunchConfig)) -> (Vec<f32>, Report, [Vec<f32>; 3]) {
        let name = if self.causal { "attention_d64_causal" } else { "attention_d64" };
        let text = if self.causal {
            include_str!("ptx/attention_d64_causal.ptx")
        } else {
            include_str!("ptx/attention_d64.ptx")
        };
        let module = Module::parse(text).unwrap();
        let count = self.heads * self.seqlen * HEAD_DIM;
        let tensors = [1, 2, 3].map(|seed| values(count, seed));
        let mut memory = Memory::new();
        let mut params = Vec::new();
        for tensor in &tensors {
            let bytes: Vec<u8> = tensor.iter().flat_map(|x| to_f16(*x).to_le_bytes()).collect();
            let address = memory.alloc(bytes.len());
            memory.write(address, &bytes).unwrap();
            params.extend(address.to_le_bytes());
        }
        let out = memory.alloc(2 * count);
        params.extend(out.to_le_bytes());
        params.extend((self.seqlen as u32).to_le_bytes());
        params.extend((self.seqlen as u32).to_le_bytes());
        params.extend((std::f32::consts::LOG2_E / (HEAD_DIM as f32).sqrt()).to_le_bytes());
        let mut launch_config =
            LaunchConfig::new([self.seqlen as u32 / 64, self.heads as u32, 1], [128, 1, 1]);
        launch_config.dynamic_smem_bytes = (64 * HEAD_DIM * 2 * 5) as u32;
        config(&mut launch_config);
        let report =
            launch(&module, name, &params, &mut memory, &launch_config).unwrap_or_else(|e| panic!("{e}"));
        let mut bytes = vec![0; 2 * count];
        memory.read(out, &mut bytes).unwrap();
        let out = bytes.chunks(2).map(|b| from_f16(u16::from_le_bytes([b[0], b[1]]))).collect();
        (out, report, tensors)
    }

    fn reference(&self, [q, k, v]: &[Vec<f32>; 3]) -> Vec<f64> {
        let mut out = Vec::new();
        for head in 0..self.heads {
            let row = |t: &'_ [f32], i: usize| -> Vec<f64> {
                t[(head * self.seqlen + i) * HEAD_DIM..][..HEAD_DIM].iter().map(|x| f64::from(*x)).collect()
            };
            let keys: Vec<Vec<f64>> = (0..self.seqlen).map(|j| row(k, j)).collect();
            let vectors: Vec<Vec<f64>> = (0..self.seqlen).map(|j| row(v, j)).collect();
            for i in 0..self.seqlen {
                let query = row(q, i);
                let seen = if self.causal { i + 1 } else { self.seqlen };
                let scores: Vec<f64> = keys[..seen]
                    .iter()
                    .map(|key| {
                        key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>() / (HEAD_DIM as f64).sqrt()
                    })
                    .collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..HEAD_DIM).map(|d| {
                    weights.iter().zip(&vectors).map(|(w, vector)| w * vector[d]).sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

fn worst(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(g, w)| (f64::from(*g) - w).abs())
        .fold(0.0, |worst, e| if e <= worst { worst } else { e })
}

#[test]
fn the_forward_agrees_with_the_reference() {
    let problem = Problem { heads: 1, seqlen: 128, causal: false };
    let (out, report, tensors) = problem.run(|_| {});
    let error = worst(&out, &problem.reference(&tensors));
    assert!(error < 1e-3, "{error}");
    // 2 CTAs × 4 warps × 2 tiles × (4·8 + 4·8) mma.
    assert_eq!(report.tensor_flops, 2 * 4 * 2 * 64 * 2 * 16 * 8 * 16);
}

#[test]
fn the_causal_forward_agrees_with_the_reference() {
    let problem = Problem { heads: 2, seqlen: 192, causal: true };
    let (out, _, tensors) = problem.run(|_| {});
    let error = worst(&out, &problem.reference(&tensors));
    assert!(error < 2e-3, "{error}");
}

#[test]
fn schedules_and_checks_do_not_change_a_bit() {
    let problem = Problem { heads: 1, seqlen: 128, causal: false };
    let (plain, report, _) = problem.run(|c| c.checks = Checks::NONE);
    for seed in 0..10 {
        let (out, seeded, _) = problem.run(|c| c.schedule = Schedule::Seeded(seed));
        assert_eq!(out, plain, "seed {seed}");
        assert_eq!(seeded, report, "seed {seed}");
    }
}

#[test]
fn one_cta_of_many_can_run_alone() {
    let problem = Problem { heads: 1, seqlen: 128, causal: false };
    let (whole, _, _) = problem.run(|_| {});
    let (part, report, _) = problem.run(|c| c.ctas = Some(vec![1]));
    assert_eq!(part[64 * HEAD_DIM..], whole[64 * HEAD_DIM..]);
    assert!(part[..64 * HEAD_DIM].iter().all(|x| *x == 0.0));
    assert_eq!((report.ctas, report.grid_ctas), (1, 2));
}
