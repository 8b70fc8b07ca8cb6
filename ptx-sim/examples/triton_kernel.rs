//! A Triton kernel without a GPU: `compiled.asm["ptx"]` of `tests/foreign/attention_triton.py` is the text, `compiled.metadata.shared` its shared
//! memory. From Python, `ferroflash.sim` does the same on NumPy's arrays. `cargo run -p ptx-sim --example triton_kernel`

use ptx_sim::{Sim, args};

/// 1.0 as f16.
const ONE: u16 = 0x3c00;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (heads, seqlen, head_dim) = (2usize, 150usize, 64usize);
    let count = heads * seqlen * head_dim;
    let mut sim = Sim::new(include_str!("../tests/foreign/attention_triton.ptx"))?;
    sim.config.dynamic_smem_bytes = 40960;
    // All scores are alike, so O is the mean of the values that a query sees: 1 everywhere.
    let [q, k, v] = [0, 0, ONE].map(|value| sim.buffer(&vec![value; count]));
    let (o, lse) = (sim.unwritten::<u16>(count), sim.unwritten::<f32>(heads * seqlen));
    let scale_log2 = std::f32::consts::LOG2_E / 8.0;
    // The two last parameters are scratch memory that Triton appends and this kernel does not use.
    let (none, length) = (0u64, seqlen as i32);
    let report =
        sim.launch("attention", [3, 2, 1], 128, args!(&q, &k, &v, &o, &lse, length, scale_log2, none, none))?;
    assert_eq!(sim.read(&o)?, vec![ONE; count]);
    // LSE, in base 2 here, counts the keys that each query sees.
    assert!((sim.read(&lse)?[99] - 100f32.log2()).abs() < 1e-4);
    // Instructions by line of the Python file.
    let busiest = report.sources.iter().max_by_key(|source| source.warp_instructions);
    println!("{} warp instructions, most at {:?}", report.warp_instructions, busiest.map(|s| &s.source));
    Ok(())
}
