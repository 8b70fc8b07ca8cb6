//! Device profiles: the coefficients of the cost model for one device, measured there, or from its data sheet where nobody measured.

use super::cost::Coefficients;
use super::curves::MergeCurves;
use crate::device::DeviceInfo;
use crate::device::model::DeviceModel;
use crate::error::Error;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Isa, Row, Schedule};
use kernels_gpu::table::VARIANTS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Profiles that come with the library, as `ferroflash tune` wrote them, the one of most problems first.
const EMBEDDED: &[&str] =
    &[include_str!("../../profiles/h200.json"), include_str!("../../profiles/h100.json")];
/// The variable that names a profile's file.
const VARIABLE: &str = "FERROFLASH_PROFILE";

/// What kernels cost on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device's name, as its driver has it.
    pub device: String,
    /// Its multiprocessors: part of one device (MIG) is another device.
    pub sm_count: u32,
    /// The problems that it was fitted to, in words.
    pub fitted_to: String,
    /// By kernel, the element type left out.
    pub kernels: BTreeMap<String, KernelCosts>,
}

/// What one kernel costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCosts {
    /// Without splits of the keys.
    pub whole: Option<Coefficients>,
    /// With several.
    pub split: Option<Coefficients>,
    /// By how much its times are longer than these say.
    #[serde(default, skip_serializing_if = "MergeCurves::is_flat")]
    pub curves: MergeCurves,
}

impl KernelCosts {
    /// What it costs with the keys split, or without.
    pub fn of(&self, is_split: bool) -> Option<Coefficients> {
        if is_split { self.split } else { self.whole }
    }
}

/// How many times as long a block of keys takes where shared memory holds one alone, and the next one is copied when it has been multiplied:
/// 1.33 to 1.42 on an H200, head_dim 512.
const ONE_BUFFER: f64 = 1.37;

impl Profile {
    /// The name of a kernel in profiles: without the element type, which both share.
    pub fn key(entry: &str) -> String {
        entry.replacen("_f16_", "_", 1).replacen("_bf16_", "_", 1)
    }

    /// The profile for a device: of the file that `FERROFLASH_PROFILE` names, else of the user's folder, else one that comes with the library;
    /// `None` where there is none for this device.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Profile`] where a file cannot be read, or the one that the variable names is for another device.
    pub fn find(device: &DeviceInfo) -> Result<Option<Profile>, Error> {
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            let profile = Profile::read(&path)?;
            if !profile.is_for(device) {
                let reason = format!(
                    "it is for {} with {} SMs, the device is {} with {}",
                    profile.device, profile.sm_count, device.name, device.sm_count
                );
                return Err(Error::Profile { path, reason });
            }
            return Ok(Some(profile));
        }
        match Profile::user_path(device).filter(|path| path.exists()) {
            Some(path) => {
                Profile::read(&path).map(|profile| Some(profile).filter(|profile| profile.is_for(device)))
            }
            None => Ok(Profile::embedded(device)),
        }
    }

    /// The profile for a device that comes with the library: of a device of its model, which drivers name in several ways.
    pub fn embedded(device: &DeviceInfo) -> Option<Profile> {
        embedded().iter().find(|profile| profile.is_for(device)).cloned()
    }

    /// Where the user's own profile for a device lies, if a home is known: `ferroflash/NAME.json` in `XDG_CONFIG_HOME` or `~/.config`.
    pub fn user_path(device: &DeviceInfo) -> Option<PathBuf> {
        let folder = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
        let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
        let plain =
            |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        let name: String = device.name.chars().map(plain).collect();
        Some(folder.join("ferroflash").join(format!("{name}.json")))
    }

    /// The profile in a file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Profile`].
    pub fn read(path: &Path) -> Result<Profile, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Profile { path: path.to_path_buf(), reason: error.to_string() })
    }

    /// The text of a profile's file: a line a kernel, so that a comparison shows which changed.
    pub fn to_json(&self) -> String {
        fn text(value: &impl Serialize) -> String {
            // Strings and numbers always have a text.
            serde_json::to_string(value).unwrap_or_default()
        }
        let lines: Vec<String> =
            self.kernels.iter().map(|(name, costs)| format!("{}:{}", text(name), text(costs))).collect();
        format!(
            "{{\n\"device\":{},\"sm_count\":{},\n\"fitted_to\":{},\n\"kernels\":{{\n{}\n}}}}\n",
            text(&self.device),
            self.sm_count,
            text(&self.fitted_to),
            lines.join(",\n")
        )
    }

    /// Whether it was measured on such a device: one of that name, or of the same model as drivers name it otherwise.
    pub fn is_for(&self, device: &DeviceInfo) -> bool {
        let model = DeviceModel::of_device(&self.device);
        let is_alike =
            self.device == device.name || model.is_some() && model == DeviceModel::of_device(&device.name);
        is_alike && self.sm_count == device.sm_count
    }

    /// What a kernel costs, as far as it was measured.
    pub fn measured(&self, kernel: &Kernel) -> KernelCosts {
        self.kernels.get(&Profile::key(&kernel.entry)).copied().unwrap_or_default()
    }

    /// What a kernel costs, as far as it was measured, and beyond that what its relatives do.
    fn costs(&self, kernel: &Kernel) -> KernelCosts {
        let measured = self.measured(kernel);
        let is_known = measured.whole.is_some() && measured.split.is_some();
        if is_known || kernel.row.schedule != Schedule::Ragged {
            return measured;
        }
        let relatives = self.costs_of_relatives(&kernel.row);
        let curves = |is_measured| if is_measured { measured.curves } else { relatives.curves };
        KernelCosts {
            whole: measured.whole.or(relatives.whole),
            split: measured.split.or(relatives.split),
            curves: MergeCurves {
                whole: curves(measured.whole.is_some()).whole,
                ..curves(measured.split.is_some())
            },
        }
    }

    /// What a kernel for ragged batches costs that was not measured itself, by the kernels of dense ones that take their tiles as it does: how
    /// splits and tiles compare, not what a window or a score adds. A block costs as its products do.
    pub fn costs_of_relatives(&self, row: &Row) -> KernelCosts {
        let whole = if row.isa == Isa::Wgmma { Schedule::Persistent } else { Schedule::Split };
        let products = |row: &Row| {
            let groups = geometry::value_groups(row);
            let widths = f64::from(row.head_dim + geometry::value_width(row) * groups);
            let waits = if groups > 1 { ONE_BUFFER } else { 1.0 };
            f64::from(row.block_m * row.block_n) * widths * waits
        };
        let nearest = |schedule| {
            let distance = |other: &Row| {
                let sizes = |row: &Row| [row.block_m, row.block_n, row.stages, row.min_ctas].map(f64::from);
                // A tile's rows tell kernels apart more than anything.
                let weights = [4.0, 2.0, 1.0, 1.0];
                let each = sizes(row).into_iter().zip(sizes(other)).zip(weights);
                each.map(|((a, b), weight)| weight * (a / b).ln().abs()).sum::<f64>()
            };
            let measured = VARIANTS.iter().filter_map(|variant| {
                let Row { isa, head_dim, .. } = variant.row;
                // O, which fills the registers, is as wide.
                let alike =
                    (isa, head_dim, variant.row.schedule) == (row.isa, geometry::value_width(row), schedule);
                let costs = self.kernels.get(&Profile::key(variant.entry)).filter(|_| alike)?;
                Some((&variant.row, *costs))
            });
            let nearest = measured.min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
            nearest.map_or_else(Default::default, |(other, costs)| (products(row) / products(other), costs))
        };
        let (of_whole, of_split): ((f64, KernelCosts), _) = (nearest(whole), nearest(Schedule::Split));
        KernelCosts {
            whole: of_whole.1.whole.map(|costs| costs.of_blocks(of_whole.0)),
            split: of_split.1.split.map(|costs| costs.of_blocks(of_split.0)),
            curves: MergeCurves { whole: of_whole.1.curves.whole, ..of_split.1.curves },
        }
    }
}

/// The profiles that come with the library, the one of most problems first.
fn embedded() -> &'static [Profile] {
    static PROFILES: OnceLock<Vec<Profile>> = OnceLock::new();
    PROFILES.get_or_init(|| EMBEDDED.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
}

/// What a kernel costs on a device: as far as it was measured there, by `profile`; else what it costs on the first measured device of the same
/// compute capability, times what the two devices' data sheets differ by; without such, what its relatives cost there; else by the data sheet.
pub(super) fn of(kernel: &Kernel, device: &DeviceInfo, profile: Option<&Profile>) -> KernelCosts {
    let known = |profile: &Profile| match relative_of(device) {
        Some(_) => profile.measured(kernel),
        None => profile.costs(kernel),
    };
    let KernelCosts { whole, split, curves } = profile.map(known).unwrap_or_default();
    let estimated = estimated(kernel, device);
    KernelCosts { whole: whole.or(estimated.whole), split: split.or(estimated.split), curves }
}

/// The first measured device, where it has a device's compute capability and is another one. It was fitted to more problems than the others,
/// which are fitted with it in mind: it has no relative.
fn relative_of(device: &DeviceInfo) -> Option<(&'static Profile, DeviceInfo)> {
    let first = embedded().first()?;
    let info = DeviceModel::of_device(&first.device)?.info();
    (info.sm == device.sm && !first.is_for(device)).then_some((first, info))
}

/// What a kernel costs on a device where nobody measured it: by a relative, or by the data sheet.
pub fn estimated(kernel: &Kernel, device: &DeviceInfo) -> KernelCosts {
    let by_sheet = by_data_sheet(&kernel.row, device);
    let Some((profile, info)) = relative_of(device) else {
        return KernelCosts { whole: Some(by_sheet), ..KernelCosts::default() };
    };
    let theirs = by_data_sheet(&kernel.row, &info).to_vec();
    let ratios: Vec<f64> = by_sheet.to_vec().iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let scaled = |costs: Coefficients| costs.scaled(&Coefficients::from_slice(&ratios));
    // Curves are that device's own.
    let KernelCosts { whole, split, .. } = profile.costs(kernel);
    let whole = Some(whole.map_or(by_sheet, scaled));
    KernelCosts { whole, split: split.map(scaled), ..KernelCosts::default() }
}

/// What a data sheet says of a device, as far as the model asks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    /// Operations of the tensor cores of one multiprocessor in a microsecond.
    tensor: f64,
    /// MB from memory in a microsecond.
    memory: f64,
    /// MB from L2 in a microsecond.
    l2: f64,
}

impl Rates {
    /// Of a known model, else those of a device of its architecture in proportion to its multiprocessors.
    fn of(device: &DeviceInfo) -> Rates {
        let known = DeviceModel::of_device(&device.name);
        let alike = || {
            let nearest = |model: &&DeviceModel| {
                (device.sm / 10).abs_diff(model.sm / 10) * 100 + device.sm.abs_diff(model.sm)
            };
            crate::device::model::MODELS.iter().min_by_key(nearest).unwrap_or(DeviceModel::L4)
        };
        let model = known.unwrap_or_else(alike);
        let sms = f64::from(device.sm_count.max(1));
        let share = sms / f64::from(model.sm_count);
        Rates {
            tensor: f64::from(model.tensor_tflops) * 1e6 / f64::from(model.sm_count),
            memory: f64::from(model.bandwidth_gb_s) * share * 1e-3,
            // 64 bytes a clock and multiprocessor, of which about half is reached.
            l2: sms * 64.0 * 1.6e-3 * 0.5,
        }
    }
}

/// What a kernel of a row costs by the device's rates.
pub(super) fn by_data_sheet(row: &Row, device: &DeviceInfo) -> Coefficients {
    let rates = Rates::of(device);
    // mma.sync reaches the data sheet's rate up to Ada; Hopper's is that of wgmma.
    let reached = match row.isa {
        Isa::Wgmma => 0.75,
        Isa::Mma if device.sm == 90 => 0.4,
        Isa::Mma => 0.7,
    };
    let products = 4.0 * f64::from(row.block_m) * f64::from(row.block_n) * f64::from(row.head_dim);
    // Reading a block from L2 can take longer than multiplying it.
    let block_busy = products / (rates.tensor * reached);
    let computing = match row.isa {
        Isa::Wgmma => row.warps - kernels_gpu::geometry::PRODUCER_WARPS,
        Isa::Mma => row.warps,
    };
    // Eight warps keep a multiprocessor's tensor cores busy.
    let alone = (8.0 / f64::from(computing)).clamp(1.05, 1.8);
    Coefficients {
        block: block_busy * alone,
        block_busy,
        memory: 1.0 / (0.9 * rates.memory),
        copy: 1.0 / rates.l2,
        ..Coefficients::START
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_profiles_can_be_read_and_are_for_their_devices() {
        for text in EMBEDDED {
            let profile: Profile = serde_json::from_str(text).expect("a profile");
            assert!(!profile.kernels.is_empty());
            let values = profile.kernels.values().flat_map(|costs| [costs.whole, costs.split]).flatten();
            for coefficients in values {
                assert!(coefficients.to_vec().iter().all(|value| value.is_finite() && *value > 0.0));
            }
        }
        assert!(Profile::embedded(&DeviceModel::H200.info()).is_some());
        let part = DeviceInfo { sm_count: 60, ..DeviceModel::H200.info() };
        assert!(Profile::embedded(&part).is_none(), "part of a device is another device");
    }

    #[test]
    fn a_profile_is_for_devices_of_its_model_whatever_drivers_call_them() {
        let model = DeviceModel::find("h100").expect("a model").info();
        let h100 = Profile::embedded(&model).expect("it comes with the library");
        let named = |name: &str| DeviceInfo { name: name.to_owned(), ..model.clone() };
        assert!(h100.is_for(&named("NVIDIA H100 80GB HBM3")));
        assert!(!h100.is_for(&named("NVIDIA H200")) && !h100.is_for(&named("something")));
    }

    #[test]
    fn a_profile_that_was_written_is_read_again() {
        let profile = Profile::embedded(&DeviceModel::H200.info()).expect("it comes with the library");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("profile.json");
        std::fs::write(&path, profile.to_json()).expect("written");
        assert_eq!(Profile::read(&path).expect("read"), profile);
        // One that was fitted before there was a coefficient, and one with a coefficient that there is not.
        let costs = |text: &str| serde_json::from_str::<KernelCosts>(text);
        let older = costs("{\"whole\":{\"launch\":3.5},\"split\":null}").expect("read");
        assert_eq!(older.whole, Some(Coefficients { launch: 3.5, ..Coefficients::START }));
        assert!(costs("{\"whole\":{\"lunch\":3.5},\"split\":null}").is_err());
        std::fs::write(&path, "{\"device\":3}").expect("written");
        let error = Profile::read(&path).expect_err("no profile").to_string();
        assert!(error.contains("not a device profile") && error.contains("ferroflash tune"), "{error}");
    }

    #[test]
    fn a_kernel_is_the_same_one_in_both_element_types() {
        assert_eq!(Profile::key("fwd_wgmma_bf16_d64_m64n64_w8s2c3"), "fwd_wgmma_d64_m64n64_w8s2c3");
        assert_eq!(Profile::key("fwd_f16_d64_m64n64_w4s2c1_accf16"), "fwd_d64_m64n64_w4s2c1_accf16");
    }

    #[test]
    fn unknown_devices_have_rates_in_proportion_to_their_size() {
        let ada = |sm_count| DeviceInfo { name: "something".to_owned(), sm_count, ..DeviceModel::L4.info() };
        let (small, large) = (Rates::of(&ada(58)), Rates::of(&ada(116)));
        assert_eq!(small.tensor, large.tensor);
        assert!((large.memory / small.memory - 2.0).abs() < 1e-12);
    }
}
