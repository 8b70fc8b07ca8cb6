//! A CUDA file in a test: `nvcc --ptx -arch=sm_80 kernels.cu` made the text (of `tests/foreign/kernels.cu`), and every access of its
//! kernels is checked while they run. `cargo run -p ptx-sim --example cuda_file`

use ptx_sim::{Gpu, LaunchConfig, Memory, Predictor, Schedule, Sim, SimError, args};

const PTX: &str = include_str!("../tests/foreign/kernels.ptx");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rows, columns) = (48u32, 70u32);
    let matrix: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    let mut sim = Sim::new(PTX)?;
    let (from, to) = (sim.buffer(&matrix), sim.unwritten::<f32>(matrix.len()));
    // Several orders of warps: a race that one of them hides is found in another.
    for seed in 0..4 {
        sim.config.schedule = Schedule::Seeded(seed);
        sim.launch("transpose", [3, 2, 1], [32, 8, 1], args!(&from, &to, rows as i32, columns as i32))?;
    }
    let transposed = sim.read(&to)?;
    assert_eq!(transposed[1], matrix[columns as usize]);

    // With fewer columns promised than the buffer has room for, the kernel stays inside; with more it does not.
    let more = (columns + 1) as i32;
    match sim.launch("transpose", [3, 2, 1], [32, 8, 1], args!(&from, &to, rows as i32, more)) {
        Err(SimError::Finding(finding)) => println!("found: {finding}"),
        other => return Err(format!("nothing was found: {other:?}").into()),
    }

    // How long it would take on a device, by the model of time; `ptxas -v` says how many registers it has.
    let mut memory = Memory::new();
    let (a, b) = (memory.alloc(4 * 1024 * 1024), memory.alloc(4 * 1024 * 1024));
    memory.write(a, &vec![0; 4 * 1024 * 1024])?;
    let params =
        [&a.to_le_bytes()[..], &b.to_le_bytes(), &1024i32.to_le_bytes(), &1024i32.to_le_bytes()].concat();
    let module = ptx_sim::Module::parse_entry(PTX, "transpose")?;
    let config = LaunchConfig::new([32, 32, 1], [32, 8, 1]);
    let predicted =
        Predictor::new(Gpu::L4, 24).predict(&module, "transpose", &params, &mut memory, &config)?;
    println!("{predicted}");
    Ok(())
}
