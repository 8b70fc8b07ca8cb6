//! How fast kernels are simulated, with all checks and with none: attention by mma.sync at B,H,S,D = 2,8,512,64, attention by
//! wgmma at 1,2,512,128, and a product of 128 × 128 float matrices through shared memory. And how fast one entry of a module of
//! 10 MB is loaded.

use std::time::Instant;

use ptx_sim::{Checks, LaunchConfig, Limits, Memory, Module, Report, Swizzle, TensorMap, TensorType, launch};

/// Of so many runs the fastest is reported.
const RUNS: usize = 3;

fn main() {
    // `cargo bench` passes `--bench`; a word is part of the name of what is to run.
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    load();
    type Run = fn(&Module, Checks) -> (f64, Report);
    let kernels: [(&str, &str, Run); 3] = [
        ("attention, mma", include_str!("../tests/ptx/attention_d64.ptx"), attention),
        ("attention, wgmma", include_str!("../tests/ptx/attention_d128_sm90a.ptx"), hopper),
        ("product", include_str!("../tests/foreign/kernels.ptx"), product),
    ];
    println!("on {} cores, million a second:", rayon::current_num_threads());
    println!("{:<18}{:<12}{:>10}{:>22}{:>22}", "", "", "time", "warp instructions", "thread instructions");
    for (name, text, run) in kernels {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let module = Module::parse(text).expect("the kernel loads");
        for (checked, checks) in [("all checks", Checks::ALL), ("no checks", Checks::NONE)] {
            let runs = (0..RUNS).map(|_| run(&module, checks));
            if let Some((time, report)) = runs.min_by(|a, b| a.0.total_cmp(&b.0)) {
                let rate = |count: u64| count as f64 / time / 1e6;
                let (warps, threads) = (rate(report.warp_instructions), rate(report.thread_instructions));
                println!("{name:<18}{checked:<12}{time:>8.3} s{warps:>22.2}{threads:>22.1}");
            }
        }
    }
}

/// Loads one entry of many.
fn load() {
    let one = include_str!("../tests/ptx/attention_d64.ptx");
    let (head, body) = one.split_at(one.find(".visible .entry").expect("it has an entry"));
    let mut text = head.to_owned();
    let mut count = 0;
    while text.len() < 10_000_000 {
        text.push_str(&body.replace("attention_d64", &format!("attention_{count}")));
        count += 1;
    }
    let start = Instant::now();
    let module = Module::parse_entry(&text, "attention_7").expect("the kernel loads");
    let time = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "one of {count} entries in {} MB: {time:.1} ms; {}",
        text.len() / 1_000_000,
        module.entries().count()
    );
}

/// An allocation of f16 ones, as the time does not depend on the values.
fn ones(memory: &mut Memory, count: usize) -> u64 {
    let address = memory.alloc(2 * count);
    memory.write(address, &[0x00, 0x3c].repeat(count)).expect("the allocation holds it");
    address
}

/// Seconds of one launch, and what it did.
fn timed(
    module: &Module,
    entry: &str,
    params: &[u8],
    memory: &mut Memory,
    config: &LaunchConfig,
) -> (f64, Report) {
    let start = Instant::now();
    let report = launch(module, entry, params, memory, config).expect("no rule is broken");
    (start.elapsed().as_secs_f64(), report)
}

fn scale(head_dim: usize) -> f32 {
    std::f32::consts::LOG2_E / (head_dim as f32).sqrt()
}

fn attention(module: &Module, checks: Checks) -> (f64, Report) {
    let (heads, seqlen, head_dim) = (2 * 8, 512u32, 64);
    let count = heads * seqlen as usize * head_dim;
    let mut memory = Memory::new();
    let mut params: Vec<u8> = (0..3).flat_map(|_| ones(&mut memory, count).to_le_bytes()).collect();
    params.extend(memory.alloc(2 * count).to_le_bytes());
    params.extend([seqlen, seqlen, scale(head_dim).to_bits()].into_iter().flat_map(u32::to_le_bytes));
    let mut config = LaunchConfig::new([seqlen / 64, heads as u32, 1], [128, 1, 1]);
    config.dynamic_smem_bytes = (64 * head_dim * 2 * 5) as u32;
    config.checks = checks;
    timed(module, "attention_d64", &params, &mut memory, &config)
}

fn hopper(module: &Module, checks: Checks) -> (f64, Report) {
    let (seqlen, head_dim) = (512u32, 128);
    let mut memory = Memory::new();
    let mut params = Vec::new();
    for _ in 0..3 {
        let address = ones(&mut memory, seqlen as usize * head_dim);
        let (rows, row_bytes) = (u64::from(seqlen), 2 * head_dim as u64);
        let (dims, strides) = ([head_dim as u64, rows, 1], [row_bytes, rows * row_bytes]);
        let map = TensorMap::new(TensorType::F16, address, &dims, &strides, &[64, 128, 1], Swizzle::B128)
            .expect("the map is right");
        let place = memory.alloc(TensorMap::BYTES);
        memory.write(place, &map.to_bytes()).expect("the allocation holds it");
        params.extend(place.to_le_bytes());
    }
    params.extend(memory.alloc(2 * seqlen as usize * head_dim).to_le_bytes());
    params.extend([seqlen, seqlen, scale(head_dim).to_bits()].into_iter().flat_map(u32::to_le_bytes));
    let mut config = LaunchConfig::new([seqlen / 128, 1, 1], [384, 1, 1]);
    config.dynamic_smem_bytes = 1024 + 32768 + 2 * 65536;
    (config.limits, config.checks) = (Limits::SM_90, checks);
    timed(module, "hop128", &params, &mut memory, &config)
}

fn product(module: &Module, checks: Checks) -> (f64, Report) {
    let size = 128u32;
    let mut memory = Memory::new();
    let mut params = Vec::new();
    for _ in 0..3 {
        let address = memory.alloc(4 * (size * size) as usize);
        memory.write(address, &1f32.to_le_bytes().repeat((size * size) as usize)).expect("it holds it");
        params.extend(address.to_le_bytes());
    }
    params.extend(size.to_le_bytes());
    let mut config = LaunchConfig::new([size / 16, size / 16, 1], [16, 16, 1]);
    config.checks = checks;
    timed(module, "matmul_tiled", &params, &mut memory, &config)
}
