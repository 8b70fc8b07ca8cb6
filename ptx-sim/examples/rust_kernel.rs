//! A Rust kernel: rustc compiles a crate for `nvptx64-nvidia-cuda` with `--emit=asm`, and this is its text (attention with `mma.sync`).
//! `cargo run -p ptx-sim --example rust_kernel`

use ptx_sim::{InstructionClass, Sim, args};

/// 1.0 as f16.
const ONE: u16 = 0x3c00;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (heads, seqlen, head_dim) = (1usize, 128usize, 64usize);
    let count = heads * seqlen * head_dim;
    let mut sim = Sim::new(include_str!("../tests/ptx/attention_d64.ptx"))?;
    sim.config.dynamic_smem_bytes = 64 * 64 * 2 * 5;
    let [q, k, v] = [0, 0, ONE].map(|value| sim.buffer(&vec![value; count]));
    let o = sim.unwritten::<u16>(count);
    let scale_log2 = std::f32::consts::LOG2_E / 8.0;
    let length = seqlen as u32;
    let report = sim.launch("attention_d64", 2, 128, args!(&q, &k, &v, &o, length, length, scale_log2))?;
    assert_eq!(sim.read(&o)?, vec![ONE; count]);
    println!(
        "{} warp instructions, {} of them on tensor cores; {} bank conflicts",
        report.warp_instructions,
        report.class(InstructionClass::Tensor),
        report.shared_load.conflicts + report.shared_store.conflicts
    );
    Ok(())
}
