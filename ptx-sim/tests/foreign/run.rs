//! How kernels of the suite are launched: on numbers, an output and 64 flags.

use ptx_sim::{LaunchConfig, Memory, Module, Report, SimError, launch};

/// Launches a kernel with what `config` makes of the usual launch; the report, and what its output holds.
pub(crate) fn run(
    module: &Module,
    entry: &str,
    config: impl FnOnce(&mut LaunchConfig),
) -> Result<(Report, Vec<u8>), SimError> {
    let mut memory = Memory::new();
    let numbers: Vec<u8> = (0..4096i32).flat_map(|i| (i * 7 % 1000).to_le_bytes()).collect();
    let (input, out, flag) = (memory.alloc(4 * 4096), memory.alloc(4 * 4096), memory.alloc(4 * 64));
    memory.write(input, &numbers).unwrap();
    memory.write(flag, &[0; 4 * 64]).unwrap();
    let mut params: Vec<u8> = [input, out, flag].into_iter().flat_map(u64::to_le_bytes).collect();
    // Triton adds pointers to scratch memory.
    let param_bytes = module.entry(entry).unwrap().param_bytes();
    if param_bytes > params.len() {
        params.extend(memory.alloc(4096).to_le_bytes());
        params.resize(param_bytes, 0);
    }
    let mut usual = LaunchConfig {
        limits: module.limits(),
        dynamic_smem_bytes: if params.len() > 24 { 16 << 10 } else { 0 },
        ..LaunchConfig::new([4, 1, 1], [128, 1, 1])
    };
    config(&mut usual);
    let report = launch(module, entry, &params, &mut memory, &usual)?;
    let mut bytes = vec![0; 4 * 4096];
    memory.read(out, &mut bytes).unwrap();
    Ok((report, bytes))
}
