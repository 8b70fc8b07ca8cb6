//! `ferroflash doctor`: what of driver, device, kernels and tools is there, and what to do about the rest.

use crate::doctor_tools;
use crate::failure::Failure;
use crate::output;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::driver::Driver;
use ferroflash::device::nvml::{Nvml, Reading};
use ferroflash::device::{Device, DeviceInfo};
use ferroflash::module::{Library, Source};
use ferroflash::{Attention, Error, L2Policy};
use kernels_gpu::row::Isa;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const SM_MIN: u32 = 80;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,

    /// Folder of compiled kernels, as `cargo xtask build-ptx` writes it [default: searched for]
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,
}

/// One thing looked at.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) topic: String,
    /// How it stands.
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// What to do, where something is to be done.
    pub(crate) advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It works.
    Ok,
    /// It works, and could be better.
    Note,
    /// It is not there, or cannot be used.
    Missing,
}

impl Finding {
    pub(crate) fn ok(topic: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { topic: topic.into(), state: State::Ok, found: found.into(), advice: None }
    }

    pub(crate) fn note(
        topic: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Note, advice: Some(advice.into()), ..Finding::ok(topic, found) }
    }

    pub(crate) fn missing(
        topic: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Missing, advice: Some(advice.into()), ..Finding::ok(topic, found) }
    }
}

/// Says what there is. Something missing is a finding, not a failure.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut findings = Vec::new();
    let devices = match Driver::open() {
        Ok(driver) => open_devices(&driver, &mut findings),
        Err(error) => {
            findings.push(no_driver(&error));
            Vec::new()
        }
    };
    match Library::find(args.ptx.as_deref()) {
        Ok(library) => kernels(Arc::new(library), &devices, &mut findings),
        Err(error) => findings.push(no_kernels(&error)),
    }
    findings.extend(doctor_tools::findings());
    if args.json {
        let value = serde_json::to_value(&findings).unwrap_or_default();
        output::print_json(&serde_json::json!({ "findings": value }));
    } else {
        lines(&findings).iter().for_each(|line| output::print(line));
    }
    Ok(())
}

fn lines(findings: &[Finding]) -> Vec<String> {
    let width = findings.iter().map(|finding| finding.topic.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok     ",
            State::Note => "note   ",
            State::Missing => "missing",
        };
        lines.push(format!("{state}  {:width$}  {}", finding.topic, finding.found));
        lines.extend(finding.advice.iter().map(|advice| format!("{:9}{:width$}  → {advice}", "", "")));
    }
    lines
}

fn no_driver(error: &Error) -> Finding {
    let found = match error {
        Error::NoDriver { searched, reason } => format!("{reason} (searched {searched})"),
        error => error.to_string(),
    };
    Finding::missing(
        "driver",
        found,
        "install the NVIDIA driver (libcuda.so.1); in a container, start it with the GPU (`--gpus all`); where the library lies \
         elsewhere, name it in FERROFLASH_LIBCUDA; without a GPU, `--device sim` runs the kernels on the CPU and `--device cpu` computes the reference",
    )
}

fn no_kernels(error: &Error) -> Finding {
    let found = match error {
        Error::NoKernels { searched } => format!("no manifest.json in {searched}"),
        Error::BadKernels { path, reason } => format!("{}: {reason}", path.display()),
        error => error.to_string(),
    };
    let advice = "run `cargo xtask build-ptx`, or name their folder with --ptx or FERROFLASH_PTX";
    Finding::missing("kernels", found, advice)
}

fn open_devices(driver: &Driver, findings: &mut Vec<Finding>) -> Vec<Arc<CudaDevice>> {
    let (major, minor) = driver.cuda_version;
    findings.push(Finding::ok("driver", format!("{}, supports CUDA {major}.{minor}", driver.path)));
    let mut devices = Vec::new();
    for ordinal in 0..driver.device_count {
        match CudaDevice::open(ordinal, L2Policy::Default) {
            Ok(device) => {
                findings.extend(device_findings(&device));
                devices.push(Arc::new(device));
            }
            Err(error) => findings.push(Finding::missing(
                format!("device {ordinal}"),
                error.to_string(),
                "see whether `nvidia-smi` lists it, and whether another process holds it exclusively",
            )),
        }
    }
    devices
}

fn device_findings(device: &CudaDevice) -> Vec<Finding> {
    const GIB: f64 = (1u64 << 30) as f64;
    let info = device.info();
    let topic = format!("device {}", device.ordinal());
    let free = device.memory_free().map_or("unknown".to_owned(), |free| format!("{:.1}", free as f64 / GIB));
    let found = format!(
        "{}, sm_{}, {} SMs, {:.0} MiB L2, {} KiB shared memory a CTA, {free} of {:.1} GiB free",
        info.name,
        info.sm,
        info.sm_count,
        info.l2_bytes as f64 / f64::from(1 << 20),
        info.smem_opt_in_bytes / 1024,
        info.memory_bytes as f64 / GIB
    );
    let standing = if info.sm < SM_MIN {
        Finding::missing(
            &topic,
            found,
            "the kernels need sm_80 (Ampere) or newer: use another device, or --device cpu",
        )
    } else {
        Finding::ok(&topic, found)
    };
    let clocks = match Nvml::open(device.pci_bus_id()) {
        Some(nvml) => Finding::ok(format!("{topic} clocks"), clocks(&nvml.read())),
        None => Finding::note(
            format!("{topic} clocks"),
            "NVML (libnvidia-ml.so.1) cannot be opened for it",
            "it comes with the driver; in a container, NVIDIA_DRIVER_CAPABILITIES must hold `utility`",
        ),
    };
    vec![standing, clocks]
}

fn clocks(reading: &Reading) -> String {
    let number = |value: Option<u32>| value.map_or("unknown".to_owned(), |value| value.to_string());
    format!(
        "SM {} of {} MHz, memory {} MHz, {} W, {} °C, driver {}",
        number(reading.sm_clock_mhz),
        number(reading.sm_clock_max_mhz),
        number(reading.memory_clock_mhz),
        reading.power_w.map_or("unknown".to_owned(), |watts| format!("{watts:.0}")),
        number(reading.temperature_c),
        reading.driver.as_deref().unwrap_or("unknown")
    )
}

fn kernels(library: Arc<Library>, devices: &[Arc<CudaDevice>], findings: &mut Vec<Finding>) {
    let (count, compiler) = (library.kernels().len(), library.device_compiler());
    findings
        .push(Finding::ok("kernels", format!("{count} in {}, by {compiler}", library.folder().display())));
    for family in library.families() {
        let topic = format!("PTX {}", family.arch);
        match library.family_ptx(&family.arch) {
            Ok(ptx) => findings.push(ptx_version(&topic, &ptx, family.arch == Isa::Wgmma.arch())),
            Err(error) => findings.push(Finding::missing(
                topic,
                error.to_string(),
                "the file is not the one that the manifest was written for: run `cargo xtask build-ptx` again",
            )),
        }
    }
    for device in devices.iter().filter(|device| device.info().sm >= SM_MIN) {
        let topic = format!("device {} kernels", device.ordinal());
        findings.push(sources(&topic, &library, device.info()));
        findings.push(first_load(device, &library));
    }
}

/// Which CUDA version the PTX asks of a driver, and whether this one has it. Where it does not, devices that would run the kernels
/// with wgmma run the others.
fn ptx_version(topic: &str, ptx: &str, is_wgmma: bool) -> Finding {
    let version = ptx.lines().find_map(|line| line.trim().strip_prefix(".version "));
    let Some(needed) = version.and_then(cuda_of_ptx) else {
        return Finding::ok(topic, format!("PTX {}", version.unwrap_or("of no stated version")));
    };
    let found = format!("PTX {}, needs CUDA {}.{}", version.unwrap_or_default(), needed.0, needed.1);
    match Driver::open() {
        Ok(driver) if driver.cuda_version < needed && is_wgmma => Finding::note(
            topic,
            format!("{found}, which the driver does not support"),
            "only compute capability 9.0 has these kernels, and runs the others too; to have them there, update the driver",
        ),
        Ok(driver) if driver.cuda_version < needed => {
            let advice = "update the driver, or build machine code: `cargo xtask build-ptx --cubin`";
            Finding::missing(topic, format!("{found}, which the driver does not support"), advice)
        }
        _ => Finding::ok(topic, found),
    }
}

/// The CUDA version that brought a PTX version (PTX ISA, release notes).
fn cuda_of_ptx(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.trim().split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    match (major, minor) {
        (7, minor) => Some((11, minor)),
        // CUDA 12.6 brought no PTX version.
        (8, minor) => Some((12, if minor > 5 { minor + 1 } else { minor })),
        (9, minor) => Some((13, minor)),
        _ => None,
    }
}

/// How many kernels a device gets as machine code and how many as PTX.
fn sources(topic: &str, library: &Library, info: &DeviceInfo) -> Finding {
    let (mut cubins, mut ptx, mut unusable) = (0, 0, 0);
    for kernel in library.kernels() {
        match library.source(kernel, info.sm) {
            Some(Source::Cubin { .. }) => cubins += 1,
            Some(Source::Ptx { .. }) => ptx += 1,
            None => unusable += 1,
        }
    }
    let found = format!("{cubins} as cubin, {ptx} as PTX, {unusable} for other architectures");
    if ptx == 0 && cubins > 0 {
        return Finding::ok(topic, found);
    }
    if ptx == 0 {
        return Finding::missing(topic, found, "run `cargo xtask build-ptx`");
    }
    let advice = "the driver compiles PTX at a kernel's first use (0.1 to 0.3 s each, then cached); \
                  `cargo xtask build-ptx --cubin` spares that";
    Finding::note(topic, found, advice)
}

/// Loads one kernel, as the surest sign that the rest will load.
fn first_load(device: &Arc<CudaDevice>, library: &Arc<Library>) -> Finding {
    let topic = format!("device {} load", device.ordinal());
    let kernel = library.kernels().iter().find(|kernel| library.source(kernel, device.info().sm).is_some());
    let Some(kernel) = kernel else {
        return Finding::missing(topic, "no kernel is for this device", "run `cargo xtask build-ptx`");
    };
    let start = Instant::now();
    match Attention::new(device.clone(), library.clone()).and_then(|attention| attention.source_of(kernel)) {
        Ok(source) => Finding::ok(
            topic,
            format!("{} from {source} in {:.2} s", kernel.entry, start.elapsed().as_secs_f64()),
        ),
        Err(error) => Finding::missing(
            topic,
            error.to_string(),
            "update the driver, or build the kernels again with `cargo xtask build-ptx`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_under_what_it_is_for() {
        let findings = [Finding::ok("driver", "there"), Finding::missing("ncu", "not found", "install it")];
        let expected =
            ["ok       driver  there", "missing  ncu     not found", "                 → install it"];
        assert_eq!(lines(&findings), expected);
    }

    #[test]
    fn ptx_versions_name_the_cuda_version_that_brought_them() {
        assert_eq!(cuda_of_ptx("7.8"), Some((11, 8)));
        assert_eq!(
            (cuda_of_ptx("8.0"), cuda_of_ptx("8.5"), cuda_of_ptx("8.6")),
            (Some((12, 0)), Some((12, 5)), Some((12, 7)))
        );
        assert_eq!((cuda_of_ptx("9.0"), cuda_of_ptx("6.4"), cuda_of_ptx("x")), (Some((13, 0)), None, None));
        assert!(
            ptx_version("PTX", "//\n.version 7.8\n", false).found.starts_with("PTX 7.8, needs CUDA 11.8")
        );
    }

    #[test]
    fn a_missing_driver_says_where_it_was_looked_for_and_what_to_do() {
        let error =
            Error::NoDriver { searched: "libcuda.so.1".to_owned(), reason: "no such file".to_owned() };
        let finding = no_driver(&error);
        assert_eq!(
            (finding.state, finding.found.as_str()),
            (State::Missing, "no such file (searched libcuda.so.1)")
        );
        assert!(finding.advice.is_some_and(|advice| advice.contains("--device cpu")));
    }
}
