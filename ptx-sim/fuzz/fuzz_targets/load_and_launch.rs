//! Any bytes as PTX: refused with a line, or loaded, and then every entry runs to an end of some kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_sim::{
    Checks, Gpu, LaunchConfig, Memory, Module, Output, Predictor, Schedule, Swizzle, TensorMap, TensorType,
    launch,
};

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
    // The input itself chooses how it runs, so that one input always runs alike.
    let choice = bytes.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    for (index, name) in module.entries().enumerate() {
        // One entry of a module loads as it does among all.
        let alone = Module::parse_entry(&text, name).expect("the whole module has loaded");
        let mut memory = Memory::new();
        let Some(entry) = alone.entry(name) else { return };
        let mut params = vec![0; entry.param_bytes()];
        // Every eight bytes could be a pointer; more than a few buffers only cost time.
        for (at, param) in params.chunks_exact_mut(8).take(8).enumerate() {
            let address = memory.alloc(BUFFER_BYTES);
            memory.write(address, &[1; BUFFER_BYTES]).expect("the allocation holds it");
            if choice >> 8 & 1 << at != 0 {
                // Where a program takes it for a tensor map, it is one.
                let map = TensorMap::new(TensorType::F16, address, &[64, 8], &[128], &[64, 8], Swizzle::B128);
                let map = map.expect("the map is right").to_bytes();
                memory.write(address, &map).expect("the allocation holds it");
            }
            param.copy_from_slice(&address.to_le_bytes());
        }
        let threads = [32, 64, 128, 256][choice as usize >> 4 & 3];
        let mut config = LaunchConfig::new([1 + index as u32 % 2 + (choice & 2), 1, 1], [threads, 1, 1]);
        config.instruction_budget = 2000;
        config.dynamic_smem_bytes = 1024;
        config.limits = alone.limits();
        config.output = Some(Output::default());
        if choice % 3 == 0 {
            config.checks = Checks::NONE;
        }
        if choice & 1 == 0 {
            config.schedule = Schedule::Seeded(u64::from(choice));
        }
        // Any outcome will do, as long as there is one.
        let _ = launch(&alone, name, &params, &mut memory, &config);
        if choice % 5 == 0 {
            let _ = Predictor::new(Gpu::H100, 64).predict(&alone, name, &params, &mut memory, &config);
        }
    }
});
