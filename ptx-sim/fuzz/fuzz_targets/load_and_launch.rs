//! Any bytes as PTX: refused with a line, or loaded, and then every entry runs to an end of some kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_sim::{Checks, LaunchConfig, Memory, Module, Schedule, launch};

/// Bytes of each buffer that stands in for a pointer.
const BUFFER_BYTES: usize = 1024;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let module = match Module::parse(&text) {
        Ok(module) => module,
        Err(error) => {
            assert!(error.to_string().starts_with("line "), "{error}");
            return;
        }
    };
    for (index, name) in module.entries().enumerate() {
        let mut memory = Memory::new();
        let Some(entry) = module.entry(name) else { return };
        let mut params = vec![0; entry.param_bytes()];
        // Every eight bytes could be a pointer; more than a few buffers only cost time.
        for param in params.chunks_exact_mut(8).take(8) {
            let address = memory.alloc(BUFFER_BYTES);
            memory.write(address, &[1; BUFFER_BYTES]).expect("the allocation holds it");
            param.copy_from_slice(&address.to_le_bytes());
        }
        let mut config = LaunchConfig::new([1 + index as u32 % 2, 1, 1], [64, 1, 1]);
        config.instruction_budget = 2000;
        config.dynamic_smem_bytes = 1024;
        // The length chooses, so that one input always runs alike.
        if bytes.len() % 3 == 0 {
            config.checks = Checks::NONE;
        }
        if bytes.len() % 2 == 0 {
            config.schedule = Schedule::Seeded(bytes.len() as u64);
        }
        // Any outcome will do, as long as there is one.
        let _ = launch(&module, name, &params, &mut memory, &config);
    }
});
