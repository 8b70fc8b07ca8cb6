//! `ferroflash tune`: measures random problems on the device and fits its profile to them.

use crate::device::parse_model;
use crate::failure::Failure;
use crate::output::{self, Progress};
use crate::regret;
use check::measure::Bench;
use check::measure::fit;
use check::measure::kept::{self, KeptRecords};
use check::measure::regret::Regret;
use check::measure::sweep::Record;
use check::predict::{self, Accuracy, Predictor, Simulated};
use ferroflash::device::{Device, DeviceInfo};
use ferroflash::module::Library;
use ferroflash::output_file::OutputFile;
use ferroflash::{CudaOptions, DeviceModel, Error, Planner, Profile};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  # eight minutes of measuring, then plans on this machine follow the profile
  ferroflash tune

  # less time, and a file of one's own: FERROFLASH_PROFILE=l4.json makes programs plan with it
  ferroflash tune --minutes 3 --output l4.json

  # the profile that comes with the library, from what is kept with the project; needs no GPU
  ferroflash tune --from benches/results/2026-11-22-h200-plans.jsonl.gz --device-model h200 --output h200.json

  # a profile of a device that is not there, predicted by the simulator
  ferroflash tune --predict --device-model l4 --output l4.json

  # how far predictions are from times that were kept of a device
  ferroflash tune --predict --device-model h100 --from h100.jsonl

  # what predictions are calibrated by, from what is kept with the project
  ferroflash tune --calibrate calibration.json --from benches/results/*-h200-plans-*.jsonl.gz --device-model h200

Every plan for each of some thousand random problems is measured and its output checked; a cost model is then fitted kernel by kernel. What
was measured is kept as it comes, so that an interrupted run goes on where it was. Regret is how much longer the plan takes than the best
that was measured; it is shown for problems that were left out of the fit.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Minutes of measuring
    #[arg(long, value_name = "M", default_value_t = 8.0)]
    minutes: f64,

    /// What the random problems are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    kind: regret::KindArgs,

    /// The profile's file [default: the user's own, which the library finds by itself]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace that file where it exists
    #[arg(long)]
    force: bool,

    /// Where measurements are kept [default: beside the profile, .jsonl]
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    keep: Option<PathBuf>,

    /// Fit to kept measurements instead of measuring (.jsonl or .jsonl.gz); of the device that --device-model names
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "device_model")]
    from: Vec<PathBuf>,

    /// The device that kept measurements are of, or that is predicted
    #[arg(long, value_name = "MODEL", value_parser = parse_model)]
    device_model: Option<&'static DeviceModel>,

    /// Predict what kernels cost on the device that --device-model names, instead of measuring it; with --from, compare predictions with
    /// kept measurements
    #[arg(long, requires = "device_model", conflicts_with_all = ["keep", "calibrate"])]
    predict: bool,

    /// Fit what predictions are calibrated by into this file, instead of a profile
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with = "output")]
    calibrate: Option<PathBuf>,

    /// Name the N left-out problems whose plans by the new profile have the most regret
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    worst: usize,

    /// Folder of compiled kernels, as `cargo xtask build-ptx` writes it [default: searched for]
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,

    /// Number of the GPU, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: u32,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(model) = args.device_model.filter(|_| args.predict || args.calibrate.is_some()) {
        let library = Arc::new(Library::find(args.ptx.as_deref())?);
        let predictor = Predictor::new(library.clone(), model).ok_or(Failure::NotPredicted)?;
        return match &args.calibrate {
            Some(path) => calibrate(args, &predictor, &library, model, path),
            None if args.from.is_empty() => predict(args, &predictor, model),
            None => judge(args, &predictor, &library, model),
        };
    }
    if let Some(model) = args.device_model {
        let records: Result<Vec<Vec<Record>>, Error> =
            args.from.iter().map(|path| kept::read(path)).collect();
        let library = Library::find(args.ptx.as_deref())?;
        let info = model.info();
        return fit_and_write(args, &library, &info, &records?.concat(), &path_of(args, &info)?);
    }
    let options = CudaOptions::default().with_ptx(args.ptx.clone()).with_ordinal(args.ordinal);
    let bench = Bench::open(&options)?;
    let info = bench.device().info().clone();
    let path = path_of(args, &info)?;
    let keep = args.keep.clone().unwrap_or_else(|| path.with_extension("jsonl"));
    let mut records = KeptRecords::open(&keep)?;
    if !records.records().is_empty() {
        output::say(&format!("{}: goes on behind {} problems", keep.display(), records.records().len()));
    }
    let limit = Duration::from_secs_f64(args.minutes.max(0.0) * 60.0);
    regret::sweep(&bench, (args.seed, args.kind.kind()), u64::MAX, Some(limit), &mut records)?;
    fit_and_write(args, bench.attention().library(), &info, records.records(), &path)
}

/// Writes a profile that nobody measured.
fn predict(args: &Args, predictor: &Predictor, model: &DeviceModel) -> Result<(), Failure> {
    let progress = Progress::new("simulating");
    let profile = predictor.profile(&|done, of| progress.set(done, of))?;
    drop(progress);
    let path = path_of(args, &model.info())?;
    write(&path, args.force, &profile.to_json())?;
    output::print(&format!(
        "{}: a predicted profile of {}; {}",
        path.display(),
        profile.device,
        profile.fitted_to
    ));
    Ok(())
}

/// Fits what predictions are calibrated by, and says how good they are on what was left out.
fn calibrate(
    args: &Args,
    predictor: &Predictor,
    library: &Library,
    model: &DeviceModel,
    path: &Path,
) -> Result<(), Failure> {
    let (records, kernels) = simulated(args, predictor)?;
    let sheet = Planner::with_profile(library, &model.info(), None);
    let (calibration, judged) = predict::calibrate(&sheet, &records, &kernels)?;
    judged.iter().for_each(|(part, accuracy)| line(part.name(), accuracy));
    line("the last without any factor", &calibration.untouched);
    write(path, args.force, &calibration.to_json())
}

/// Says how far predictions are from kept times.
fn judge(args: &Args, predictor: &Predictor, library: &Library, model: &DeviceModel) -> Result<(), Failure> {
    let (records, kernels) = simulated(args, predictor)?;
    let sheet = Planner::with_profile(library, &model.info(), None);
    let judged = predict::judge(&sheet, &records, &kernels, predictor.calibration())?;
    judged.iter().for_each(|(part, accuracy)| line(part.name(), accuracy));
    Ok(())
}

/// What was kept, and what every kernel is simulated to cost.
fn simulated(args: &Args, predictor: &Predictor) -> Result<(Vec<Record>, Simulated), Failure> {
    let records: Result<Vec<Vec<Record>>, Error> = args.from.iter().map(|path| kept::read(path)).collect();
    let records = records?.concat();
    let progress = Progress::new("simulating");
    Ok((records, predictor.simulate(&|_| true, &|done, of| progress.set(done, of))?))
}

fn line(what: &str, found: &Accuracy) {
    let Accuracy { pairs, spearman, median, p90 } = found;
    let (median, p90) = (100.0 * median, 100.0 * p90);
    output::print(&format!(
        "{what:40}{pairs:>6} times, Spearman {spearman:.4}, error {median:.1} % in the median, {p90:.1} % in 9 of 10"
    ));
}
fn write(path: &Path, force: bool, text: &str) -> Result<(), Failure> {
    let mut file = OutputFile::create(path, force)?;
    file.write(text.as_bytes())?;
    Ok(file.commit()?)
}

/// Where the profile goes; its folder is made.
fn path_of(args: &Args, info: &DeviceInfo) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.output {
        return Ok(path.clone());
    }
    let path = Profile::user_path(info).ok_or(Failure::NoHome)?;
    if let Some(folder) = path.parent() {
        let io_error = |source| Error::Io { path: folder.to_path_buf(), source };
        std::fs::create_dir_all(folder).map_err(io_error)?;
    }
    Ok(path)
}

fn fit_and_write(
    args: &Args,
    library: &Library,
    info: &DeviceInfo,
    records: &[Record],
    path: &Path,
) -> Result<(), Failure> {
    let sheet = Planner::with_profile(library, info, None);
    let current = Planner::with_profile(library, info, Profile::find(info)?);
    // Every second one is left out of a first fit, to say what the second will be worth.
    let (fitted, left_out): (Vec<Record>, Vec<Record>) =
        records.iter().cloned().partition(|record| record.index % 2 == 0);
    let trial = Planner::with_profile(library, info, Some(fit::fit(&sheet, &fitted)?));
    for (what, planner) in [
        ("before anything was measured", &sheet),
        ("as planned so far", &current),
        ("by the new profile", &trial),
    ] {
        output::print(&format!("{what}:"));
        let regrets = Regret::by_class(&left_out, |_, record| fit::regret(planner, record));
        regrets.iter().for_each(|regret| output::print(&format!("  {}", regret::summary(regret))));
    }
    if args.worst > 0 {
        let regret = |record| Some((fit::regret(&trial, record)?, record));
        let mut missed: Vec<(f64, &Record)> = left_out.iter().filter_map(regret).collect();
        missed.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (regret, record) in missed.into_iter().take(args.worst) {
            let text = regret::line(record, fit::planned(&trial, record));
            output::print(&format!("  {:5.1} %  {text}", 100.0 * regret));
        }
    }
    let profile = fit::fit(&sheet, records)?;
    // The user's own profile is this command's to replace.
    let mut file = OutputFile::create(path, args.force || args.output.is_none())?;
    file.write(profile.to_json().as_bytes())?;
    file.commit()?;
    output::print(&format!(
        "{}: the profile of {}, fitted to {}",
        path.display(),
        profile.device,
        profile.fitted_to
    ));
    Ok(())
}
