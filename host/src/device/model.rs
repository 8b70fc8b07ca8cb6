//! Devices by name: what planning and bounds need to know of them, without one at hand.

use super::DeviceInfo;

/// A GPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceModel {
    /// The name in options, `h200`.
    pub name: &'static str,
    /// The name in sentences, `NVIDIA H200`.
    pub title: &'static str,
    /// Compute capability, 89 for 8.9.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// L2 cache in MiB.
    pub l2_mib: u32,
    /// Memory in GB.
    pub memory_gb: u32,
    /// Memory bandwidth in GB/s, as the maker states it.
    pub bandwidth_gb_s: u32,
    /// Dense f16 and bf16 tensor throughput with float32 accumulation in TFLOP/s, as the maker states it.
    pub tensor_tflops: u32,
}

const fn model(
    name: &'static str,
    title: &'static str,
    (sm, sm_count): (u32, u32),
    (l2_mib, memory_gb): (u32, u32),
    (bandwidth_gb_s, tensor_tflops): (u32, u32),
) -> DeviceModel {
    DeviceModel { name, title, sm, sm_count, l2_mib, memory_gb, bandwidth_gb_s, tensor_tflops }
}

/// NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM, A10, L4 and L40S, and its white papers on GA102 and AD102 for the
/// others. H200's L2 is what its driver reports.
pub const MODELS: &[DeviceModel] = &[
    //    name       title                        sm, SMs    L2, memory  GB/s, TFLOP/s
    model("a100", "NVIDIA A100 80GB", (80, 108), (40, 80), (2039, 312)),
    model("a10", "NVIDIA A10", (86, 72), (6, 24), (600, 125)),
    model("rtx3090", "NVIDIA GeForce RTX 3090", (86, 82), (6, 24), (936, 71)),
    model("l4", "NVIDIA L4", (89, 58), (48, 24), (300, 121)),
    model("l40s", "NVIDIA L40S", (89, 142), (96, 48), (864, 362)),
    model("rtx4090", "NVIDIA GeForce RTX 4090", (89, 128), (72, 24), (1008, 165)),
    model("h100", "NVIDIA H100 SXM", (90, 132), (50, 80), (3350, 989)),
    model("h200", "NVIDIA H200", (90, 132), (60, 141), (4800, 989)),
];

/// What an SM offers (CUDA C++ Programming Guide, technical specifications per compute capability).
struct SmLimits {
    smem_bytes: u32,
    threads: u32,
    ctas: u32,
}

const fn sm_limits(sm: u32) -> SmLimits {
    let (smem_kib, threads, ctas) = match sm {
        ..=80 => (164, 2048, 32),
        81..=87 => (100, 1536, 16),
        88..=89 => (100, 1536, 24),
        90..=119 => (228, 2048, 32),
        _ => (100, 1536, 24),
    };
    SmLimits { smem_bytes: smem_kib * 1024, threads, ctas }
}

impl DeviceModel {
    /// NVIDIA L4, the smallest device that the kernels are made for.
    pub const L4: &'static DeviceModel = &MODELS[3];
    /// NVIDIA H200.
    pub const H200: &'static DeviceModel = &MODELS[7];

    /// The model of this name, in whatever case.
    pub fn find(name: &str) -> Option<&'static DeviceModel> {
        MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
    }

    /// The model that a device's name, as its driver has it, belongs to: `NVIDIA H100 80GB HBM3` is an H100.
    pub fn of_device(device_name: &str) -> Option<&'static DeviceModel> {
        let has_digit = |word: &&str| word.chars().any(|letter| letter.is_ascii_digit());
        let named = |model: &&DeviceModel| {
            let number = model.title.split(' ').find(has_digit);
            number.is_some_and(|number| device_name.split([' ', '-']).any(|word| word == number))
        };
        MODELS.iter().find(named)
    }

    /// The same with another number of SMs: a part of one that is shared out, or a test's small device.
    pub const fn with_sm_count(self, sm_count: u32) -> DeviceModel {
        DeviceModel { sm_count, ..self }
    }

    /// The device that this is, with all of its memory and nothing of L2 set aside.
    pub fn info(&self) -> DeviceInfo {
        let limits = sm_limits(self.sm);
        DeviceInfo {
            name: self.title.to_owned(),
            sm: self.sm,
            sm_count: self.sm_count,
            l2_bytes: u64::from(self.l2_mib) << 20,
            // The system takes 1 KiB of each CTA's share.
            smem_opt_in_bytes: limits.smem_bytes - 1024,
            smem_per_sm_bytes: limits.smem_bytes,
            threads_per_sm: limits.threads,
            ctas_per_sm: limits.ctas,
            memory_bytes: u64::from(self.memory_gb) * 1_000_000_000,
            l2_persisting_bytes: 0,
            l2_window_bytes: 0,
            has_tensor_maps: self.sm >= 90,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_name_and_by_what_drivers_call_them() {
        assert_eq!(DeviceModel::find("H200"), Some(DeviceModel::H200));
        assert_eq!(DeviceModel::find("l4").map(|model| model.sm_count), Some(58));
        assert_eq!(DeviceModel::find("b200"), None);
        let of = |name| DeviceModel::of_device(name).map(|model| model.name);
        assert_eq!(of("NVIDIA H200"), Some("h200"));
        assert_eq!(of("NVIDIA H100 80GB HBM3"), Some("h100"));
        assert_eq!(of("NVIDIA A100-SXM4-80GB"), Some("a100"));
        assert_eq!(of("NVIDIA GeForce RTX 4090"), Some("rtx4090"));
        assert_eq!(of("NVIDIA L40S"), Some("l40s"));
        assert_eq!(of("fake driver (no GPU)"), None);
    }

    #[test]
    fn shared_memory_is_what_the_architecture_has() {
        let opt_in = |name| DeviceModel::find(name).map(|model| model.info().smem_opt_in_bytes);
        assert_eq!(opt_in("l4"), Some(kernels_gpu::row::SMEM_OPT_IN_BYTES));
        assert_eq!(opt_in("h200"), Some(kernels_gpu::row::SMEM_MAX_BYTES));
        assert_eq!(opt_in("a100"), Some(163 * 1024));
    }
}
