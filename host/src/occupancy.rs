//! How many CTAs of a kernel an SM holds at a time (CUDA C++ Programming Guide, technical specifications per compute capability).

use crate::device::DeviceInfo;

/// Threads of a warp.
const WARP: u32 = 32;
/// Partitions of an SM, each with registers of its own.
const PARTITIONS: u32 = 4;
/// 32-bit registers of a partition.
const PARTITION_REGISTERS: u32 = 16384;
/// Registers of a thread are given out this many at a time.
const REGISTERS_UNIT: u32 = 8;
/// Shared memory that the system takes of each CTA, in bytes.
const RESERVED_SMEM_BYTES: u32 = 1024;

/// CTAs of `threads` threads, with `registers` registers a thread (as `ptxas -v` reports them) and `smem_bytes` bytes of shared memory,
/// that one SM of the device holds at a time: the least that registers, shared memory, threads and the SM's own limit allow. 0 where
/// not even one fits.
pub fn resident_ctas(device: &DeviceInfo, threads: u32, registers: u32, smem_bytes: u32) -> u32 {
    let warps = threads.div_ceil(WARP).max(1);
    // A warp gets all of its registers in one partition.
    let warp_registers = registers.max(1).next_multiple_of(REGISTERS_UNIT) * WARP;
    let by_registers = PARTITIONS * (PARTITION_REGISTERS / warp_registers) / warps;
    let by_smem = device.smem_per_sm_bytes / smem_bytes.saturating_add(RESERVED_SMEM_BYTES);
    let by_threads = device.threads_per_sm / (WARP * warps);
    by_registers.min(by_smem).min(by_threads).min(device.ctas_per_sm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::model::DeviceModel;

    #[test]
    fn what_is_used_up_first_limits() {
        let l4 = DeviceModel::L4.info();
        let on = |threads, registers, smem_bytes| resident_ctas(&l4, threads, registers, smem_bytes);
        assert_eq!(on(128, 132, 40 * 1024), 2, "shared memory");
        assert_eq!(on(128, 132, 8 * 1024), 3, "registers");
        assert_eq!(on(512, 32, 0), 3, "threads");
        assert_eq!(on(32, 16, 0), 24, "CTAs");
        assert_eq!((on(128, 64, 100 * 1024), on(1024, 255, 0)), (0, 0), "not even one");
    }

    /// Two writings of one table of the programming guide.
    #[cfg(feature = "sim")]
    #[test]
    fn the_simulator_counts_the_same() {
        use ptx_sim::Multiprocessor;
        let pairs = [
            (Multiprocessor::SM_80, "a100"),
            (Multiprocessor::SM_86, "rtx3090"),
            (Multiprocessor::SM_89, "l4"),
            (Multiprocessor::SM_90, "h200"),
        ];
        for (sm, model) in pairs {
            let device = DeviceModel::find(model).expect("in the list").info();
            for threads in [32, 96, 128, 160, 256, 384, 512, 1024] {
                for registers in (1..=255).step_by(7) {
                    for smem_bytes in (0..=228 * 1024).step_by(3000) {
                        let ctas = sm.occupancy(threads, registers, smem_bytes).map_or(0, |found| found.ctas);
                        let case =
                            format!("{model}: {threads} threads, {registers} registers, {smem_bytes} bytes");
                        assert_eq!(resident_ctas(&device, threads, registers, smem_bytes), ctas, "{case}");
                    }
                }
            }
        }
    }
}
