//! How fast the forward at B,H,S,D = 2,8,512,64 is simulated, with all checks and with none.

use std::time::Instant;

use ptx_sim::{Checks, LaunchConfig, Memory, Module, Report, launch};

const HEADS: usize = 2 * 8;
const SEQLEN: usize = 512;
const HEAD_DIM: usize = 64;
/// Of so many runs the fastest is reported.
const RUNS: usize = 3;

fn main() {
    let start = Instant::now();
    let module = Module::parse(include_str!("../tests/ptx/attention_d64.ptx")).expect("the kernel loads");
    println!("load           {:>8.3} s", start.elapsed().as_secs_f64());
    for (name, checks) in [("all checks", Checks::ALL), ("no checks", Checks::NONE)] {
        let runs = (0..RUNS).map(|_| forward(&module, checks));
        if let Some((time, report)) = runs.min_by(|a, b| a.0.total_cmp(&b.0)) {
            println!(
                "{name:<14} {time:>8.3} s   {:>7.2} M warp instructions/s   {:>7.1} M thread instructions/s",
                report.warp_instructions as f64 / time / 1e6,
                report.thread_instructions as f64 / time / 1e6
            );
        }
    }
}

/// Seconds of one launch, and what it did.
fn forward(module: &Module, checks: Checks) -> (f64, Report) {
    let bytes = 2 * HEADS * SEQLEN * HEAD_DIM;
    let mut memory = Memory::new();
    let mut params = Vec::new();
    for _ in 0..3 {
        let address = memory.alloc(bytes);
        // 1.0 in f16: the time does not depend on the values.
        memory.write(address, &[0x00, 0x3c].repeat(bytes / 2)).expect("the allocation holds it");
        params.extend(address.to_le_bytes());
    }
    params.extend(memory.alloc(bytes).to_le_bytes());
    params.extend((SEQLEN as u32).to_le_bytes());
    params.extend((SEQLEN as u32).to_le_bytes());
    params.extend((std::f32::consts::LOG2_E / (HEAD_DIM as f32).sqrt()).to_le_bytes());
    let mut config = LaunchConfig::new([SEQLEN as u32 / 64, HEADS as u32, 1], [128, 1, 1]);
    config.dynamic_smem_bytes = (64 * HEAD_DIM * 2 * 5) as u32;
    config.checks = checks;
    let start = Instant::now();
    let report = launch(module, "attention_d64", &params, &mut memory, &config).expect("no rule is broken");
    (start.elapsed().as_secs_f64(), report)
}
