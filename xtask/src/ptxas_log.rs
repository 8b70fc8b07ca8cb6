//! What `ptxas -v` says of one entry: its resources, and the reasons to refuse it.

use kernels_gpu::manifest::Resources;

/// What ptxas's remarks say, whatever their number, where it ignores setmaxnreg or lets wgmma wait for each other (C7504 to C7511, C7514,
/// C7515 and others), and the number of the one that says so otherwise: a wait is put in.
const REFUSED_REMARKS: [&str; 2] = ["Potential Performance Loss", "(C7517)"];

/// Why an entry's machine code is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "spills {stores} bytes of stores and {loads} bytes of loads a thread: lower block_m, block_n or min_ctas"
    )]
    Spill { stores: u32, loads: u32 },
    #[error(
        "keeps {bytes} bytes a thread in a stack frame: an array is indexed at run time or a loop is not unrolled"
    )]
    Stack { bytes: u32 },
    #[error("ptxas warns: {line}")]
    Warning { line: String },
    #[error("needs {bytes} bytes of shared memory, the row's limit is {limit}")]
    SharedMemory { bytes: u32, limit: u32 },
    #[error("ptxas says nothing of its resources")]
    NoResources,
}

/// The resources of the one entry in this log.
pub(crate) fn resources(log: &str) -> Result<Resources, Refusal> {
    let mut found = Resources::default();
    let (mut has_frame, mut has_registers) = (false, false);
    for line in log.lines() {
        // A called function has properties of its own; the worst of them counts.
        if let Some(stack) = number_before(line, " bytes stack frame") {
            has_frame = true;
            found.stack = found.stack.max(stack);
            found.spill_stores =
                found.spill_stores.max(number_before(line, " bytes spill stores").unwrap_or(0));
            found.spill_loads = found.spill_loads.max(number_before(line, " bytes spill loads").unwrap_or(0));
        }
        if line.contains("Used ") && line.contains(" registers") {
            has_registers = true;
            found.registers = found.registers.max(number_before(line, " registers").unwrap_or(0));
            found.static_smem = found.static_smem.max(number_before(line, " bytes smem").unwrap_or(0));
        }
    }
    if has_frame && has_registers { Ok(found) } else { Err(Refusal::NoResources) }
}

/// Every reason to refuse an entry with this log, which may use `smem_limit` bytes of shared memory, `dynamic_smem` of which
/// its launch asks for.
pub(crate) fn refusals(log: &str, found: &Resources, dynamic_smem: u32, smem_limit: u32) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if found.spill_stores > 0 || found.spill_loads > 0 {
        refusals.push(Refusal::Spill { stores: found.spill_stores, loads: found.spill_loads });
    } else if found.stack > 0 {
        // Spilled registers bring a frame of their own; without them, something else was put there.
        refusals.push(Refusal::Stack { bytes: found.stack });
    }
    let is_refused = |line: &&str| REFUSED_REMARKS.iter().any(|remark| line.contains(remark));
    refusals
        .extend(log.lines().filter(is_refused).map(|line| Refusal::Warning { line: line.trim().to_owned() }));
    let bytes = found.static_smem.saturating_add(dynamic_smem);
    if bytes > smem_limit {
        refusals.push(Refusal::SharedMemory { bytes, limit: smem_limit });
    }
    refusals
}

/// The number that ends right before `words`.
fn number_before(line: &str, words: &str) -> Option<u32> {
    let before = &line[..line.find(words)?];
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'fwd' for 'sm_89'
ptxas info    : Function properties for fwd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 129 registers, used 1 barriers, 1024 bytes smem, 448 bytes cmem[0]
ptxas info    : Compile time = 121.043 ms
";

    #[test]
    fn a_clean_log_has_resources_and_no_refusal() {
        let found = resources(CLEAN).expect("complete");
        assert_eq!(found, Resources { registers: 129, static_smem: 1024, ..Resources::default() });
        assert_eq!(refusals(CLEAN, &found, 40_000, 49_152), []);
    }

    #[test]
    fn spills_and_stack_frames_are_refused() {
        let planted = |text: &str| {
            let log = CLEAN.replace("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", text);
            let found = resources(&log).expect("complete");
            (found, refusals(&log, &found, 0, 49_152))
        };
        let (found, reasons) = planted("32 bytes stack frame, 24 bytes spill stores, 36 bytes spill loads");
        assert_eq!((found.stack, found.spill_stores, found.spill_loads), (32, 24, 36));
        assert_eq!(reasons, [Refusal::Spill { stores: 24, loads: 36 }]);
        let (_, reasons) = planted("0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads");
        assert_eq!(reasons, [Refusal::Spill { stores: 0, loads: 4 }]);
        let (_, reasons) = planted("512 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
        assert_eq!(reasons, [Refusal::Stack { bytes: 512 }]);
    }

    #[test]
    fn the_worst_function_of_a_log_counts() {
        let planted = format!(
            "{CLEAN}ptxas info    : Function properties for callee\n    \
            16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
        );
        let found = resources(&planted).expect("complete");
        assert_eq!((found.stack, found.spill_stores, found.registers), (16, 8, 129));
    }

    #[test]
    fn shared_memory_over_the_limit_counts_static_and_dynamic() {
        let found = resources(CLEAN).expect("complete");
        assert_eq!(
            refusals(CLEAN, &found, 48_129, 49_152),
            [Refusal::SharedMemory { bytes: 49_153, limit: 49_152 }]
        );
        assert_eq!(refusals(CLEAN, &found, 48_128, 49_152), []);
    }

    #[test]
    fn serialised_wgmma_and_a_lost_setmaxnreg_are_refused() {
        let found = resources(CLEAN).expect("complete");
        let of = |remark: &str| refusals(&format!("{CLEAN}ptxas info    : {remark}\n"), &found, 0, 49_152);
        for remark in [
            "(C7508) Potential Performance Loss: 'setmaxnreg' ignored",
            "(C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized",
            "(C7517) warpgroup.wait is injected",
        ] {
            assert!(matches!(&of(remark)[..], [Refusal::Warning { .. }]), "{remark}");
        }
        assert_eq!(of("(C7519) warpgroup.arrive is injected"), [], "harmless");
    }

    #[test]
    fn a_log_without_resources_is_refused() {
        assert_eq!(resources("ptxas info    : 0 bytes gmem\n"), Err(Refusal::NoResources));
        assert_eq!(resources(""), Err(Refusal::NoResources));
    }
}
