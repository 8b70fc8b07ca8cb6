//! Devices, as the model of time needs them: published rates and latencies, each with its source.
//!
//! - Rates of arithmetic: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", by compute capability.
//! - Tensor cores: NVIDIA's data sheets of A100, A10, L4, L40S, H100, H200, and the white papers on GA102 and AD102 (the RTX 3090 and 4090
//!   multiply at half rate where they sum in f32); that `mma.sync` reaches 62 % of Hopper's rate: Luo et al., arXiv 2402.13499 and 2501.12084.
//! - Latencies of `mma`, `ldmatrix`: Sun et al., arXiv 2206.02874; of memory, shuffles and arithmetic: Abdelkhalik et al.,
//!   arXiv 2208.11174 (A100), Luo et al. (H100, RTX 4090). H200 is H100's chip with other memory; the others take those of the RTX 4090.
//! - Bandwidth of L2: Luo et al. for H100 and RTX 4090; the others in proportion to multiprocessors and clock.

use crate::occupancy::Multiprocessor;

/// Clocks from the issue of an instruction to the first that can use its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// Integer and f32 arithmetic.
    pub arithmetic: u32,
    /// Exponentials, reciprocals and the like.
    pub special: u32,
    /// Loads from shared memory, `ldmatrix`.
    pub shared: u32,
    /// Shuffles and votes.
    pub shuffle: u32,
    /// `mma.sync` m16n8k16 of f16.
    pub mma: u32,
    /// The end of a `wgmma` after its last product.
    pub wgmma: u32,
    /// Loads of global memory that L2 holds.
    pub l2: u32,
    /// What a bulk copy takes beyond that.
    pub bulk: u32,
    /// From the last arrival at a barrier or an mbarrier until the others go on.
    pub barrier: u32,
    /// A branch that is taken.
    pub branch: u32,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// The name in options, `h200`.
    pub name: &'static str,
    /// The name in sentences.
    pub title: &'static str,
    /// What a multiprocessor holds.
    pub multiprocessor: Multiprocessor,
    /// Multiprocessors.
    pub sms: u32,
    /// Clock of the multiprocessors in MHz: an input, as it depends on power and temperature. The published boost clock.
    pub clock_mhz: f64,
    /// f32 operations of one of the four partitions of a multiprocessor in a clock.
    pub f32_lanes: u32,
    /// f16 multiply-adds of a partition's tensor core in a clock by `mma.sync`, summed in f32 and in f16.
    pub mma: [f64; 2],
    /// The same by `wgmma`; 0 where there is none.
    pub wgmma: f64,
    /// Bytes that a multiprocessor takes from L2 in a clock, while the others do too.
    pub l2_bytes: f64,
    /// L2 in MiB.
    pub l2_mib: u32,
    /// Memory bandwidth in GB/s, as the maker states it.
    pub memory_gb_s: f64,
    /// Latencies in clocks.
    pub latencies: Latencies,
}

const HOPPER: Latencies = Latencies {
    arithmetic: 4,
    special: 19,
    shared: 29,
    shuffle: 24,
    mma: 32,
    wgmma: 32,
    l2: 262,
    bulk: 200,
    barrier: 20,
    branch: 8,
};
const AMPERE: Latencies = Latencies { l2: 200, mma: 33, ..HOPPER };
const ADA: Latencies = Latencies { l2: 273, mma: 33, special: 18, shared: 30, ..HOPPER };

impl Gpu {
    /// NVIDIA H200.
    pub const H200: Gpu =
        Gpu { name: "h200", title: "NVIDIA H200", l2_mib: 60, memory_gb_s: 4800.0, ..Gpu::H100 };
    /// NVIDIA H100 SXM.
    pub const H100: Gpu = Gpu {
        name: "h100",
        title: "NVIDIA H100 SXM",
        multiprocessor: Multiprocessor::SM_90,
        sms: 132,
        clock_mhz: 1980.0,
        f32_lanes: 32,
        mma: [317.0, 317.0],
        wgmma: 512.0,
        l2_bytes: 34.0,
        l2_mib: 50,
        memory_gb_s: 3350.0,
        latencies: HOPPER,
    };
    /// NVIDIA A100 80GB.
    pub const A100: Gpu = Gpu {
        name: "a100",
        title: "NVIDIA A100 80GB",
        multiprocessor: Multiprocessor::SM_80,
        sms: 108,
        clock_mhz: 1410.0,
        f32_lanes: 16,
        mma: [256.0, 256.0],
        wgmma: 0.0,
        l2_bytes: 32.0,
        l2_mib: 40,
        memory_gb_s: 2039.0,
        latencies: AMPERE,
    };
    /// NVIDIA A10.
    pub const A10: Gpu = Gpu {
        name: "a10",
        title: "NVIDIA A10",
        multiprocessor: Multiprocessor::SM_86,
        sms: 72,
        clock_mhz: 1695.0,
        f32_lanes: 32,
        mma: [128.0, 128.0],
        wgmma: 0.0,
        l2_bytes: 24.0,
        l2_mib: 6,
        memory_gb_s: 600.0,
        latencies: ADA,
    };
    /// NVIDIA L4: 72 W, under which its clock falls below this one.
    pub const L4: Gpu = Gpu {
        name: "l4",
        title: "NVIDIA L4",
        multiprocessor: Multiprocessor::SM_89,
        sms: 58,
        clock_mhz: 2040.0,
        f32_lanes: 32,
        mma: [128.0, 128.0],
        wgmma: 0.0,
        l2_bytes: 24.0,
        l2_mib: 48,
        memory_gb_s: 300.0,
        latencies: ADA,
    };
    /// NVIDIA GeForce RTX 4090.
    pub const RTX4090: Gpu = Gpu {
        name: "rtx4090",
        title: "NVIDIA GeForce RTX 4090",
        sms: 128,
        clock_mhz: 2520.0,
        mma: [64.0, 128.0],
        l2_mib: 72,
        memory_gb_s: 1008.0,
        ..Gpu::L4
    };
    /// NVIDIA L40S.
    pub const L40S: Gpu = Gpu {
        name: "l40s",
        title: "NVIDIA L40S",
        sms: 142,
        clock_mhz: 2520.0,
        l2_mib: 96,
        memory_gb_s: 864.0,
        ..Gpu::L4
    };
    /// NVIDIA GeForce RTX 3090.
    pub const RTX3090: Gpu = Gpu {
        name: "rtx3090",
        title: "NVIDIA GeForce RTX 3090",
        sms: 82,
        mma: [64.0, 128.0],
        memory_gb_s: 936.0,
        ..Gpu::A10
    };
    /// Every device that the model knows.
    pub const ALL: [Gpu; 8] =
        [Gpu::H200, Gpu::H100, Gpu::A100, Gpu::L4, Gpu::A10, Gpu::RTX4090, Gpu::L40S, Gpu::RTX3090];

    /// The device of this name, in whatever case.
    pub fn find(name: &str) -> Option<Gpu> {
        Gpu::ALL.into_iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    /// The same at another clock: what its power limit leaves it, as `nvidia-smi` shows.
    pub fn at_clock(self, clock_mhz: f64) -> Gpu {
        Gpu { clock_mhz, ..self }
    }

    /// Clocks in microseconds.
    pub fn us(&self, clocks: f64) -> f64 {
        clocks / self.clock_mhz
    }
}
