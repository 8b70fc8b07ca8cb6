//! Device time of the best kernel of each standard problem, and the host's time of a launch, on a GPU.

use crate::problems;
use check::measure::{Bench, MeasureOptions, Measured};
use ferroflash::device::{Buffer, Launch};
use ferroflash::module::{Code, Image};
use ferroflash::{
    Combine, CudaOptions, DeviceTensors, Error, PlanOptions, Problem, StreamHandle, TensorRole,
};
use std::time::{Duration, Instant};

/// Launches that one timed batch enqueues: fewer than a stream holds before a launch waits.
const BATCH: usize = 256;
const BATCHES: usize = 31;
const LAUNCH_CALL: &str = "launch_call::";
const DEVICE_TIME: &str = "device_time::";
/// A kernel that does nothing.
const NOTHING: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing(.param .b32 unused)\n{\nret;\n}\n";

/// What the command line asks for, as `cargo bench` and `cargo test` pass it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// One quick run of everything instead of a measurement.
    pub test: bool,
    /// Names only.
    pub list: bool,
    /// Benchmarks whose name holds one of these; all where there are none.
    pub filters: Vec<String>,
}

impl Arguments {
    /// Reads the words after the program's name. Options of other harnesses are passed over.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Arguments {
        let mut arguments = Arguments::default();
        let mut measure = false;
        for word in words {
            match word.as_str() {
                "--bench" => measure = true,
                "--test" => arguments.test = true,
                "--list" => arguments.list = true,
                option if option.starts_with('-') => {}
                _ => arguments.filters.push(word),
            }
        }
        // `cargo bench` says so; `cargo test` says nothing.
        arguments.test |= !measure;
        arguments
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }
}

/// A benchmark.
#[derive(Clone, Debug)]
enum Benchmark {
    DeviceTime(Problem),
    /// Where splits are merged says whether a call is one launch or two.
    LaunchCall(Problem, Combine),
    /// Of a kernel that does nothing: what the driver takes for any.
    EmptyLaunch,
}

impl Benchmark {
    fn name(&self) -> String {
        match self {
            Benchmark::DeviceTime(problem) => format!("{DEVICE_TIME}{}", problems::name(problem)),
            Benchmark::LaunchCall(problem, combine) => {
                let launches = match combine {
                    Combine::Auto => "",
                    Combine::Fused => ", one launch",
                    Combine::Kernel => ", two launches",
                };
                format!("{LAUNCH_CALL}{}{launches}", problems::name(problem))
            }
            Benchmark::EmptyLaunch => format!("{LAUNCH_CALL}a kernel that does nothing"),
        }
    }
}

/// Runs what is asked for; without a GPU each benchmark is named as skipped. The number of failures is returned.
///
/// # Errors
/// Where there is a GPU and it cannot be used, or there are no kernels for it.
pub fn run(arguments: &Arguments) -> Result<usize, Error> {
    let wanted = benchmarks()?.into_iter().filter(|benchmark| arguments.wants(&benchmark.name()));
    let wanted: Vec<Benchmark> = wanted.collect();
    if arguments.list {
        wanted.iter().for_each(|benchmark| println!("{}: benchmark", benchmark.name()));
        return Ok(0);
    }
    if wanted.is_empty() {
        return Ok(0);
    }
    let bench = match Bench::open(&CudaOptions::default()) {
        Ok(bench) => bench,
        Err(error @ (Error::NoDriver { .. } | Error::UnsupportedDevice { .. })) => {
            skipped(&wanted, &error).iter().for_each(|line| println!("{line}"));
            return Ok(0);
        }
        Err(error) => return Err(error),
    };
    println!("{}: {}", bench.attention().device_name(), heading(&bench));
    let mut failures = 0;
    for benchmark in &wanted {
        match measure(&bench, benchmark, arguments.test) {
            Ok(line) => println!("{:<60} {line}", benchmark.name()),
            Err(error) => {
                failures += 1;
                println!("{:<60} FAILED: {error}", benchmark.name());
            }
        }
    }
    Ok(failures)
}

fn benchmarks() -> Result<Vec<Benchmark>, Error> {
    let mut all: Vec<Benchmark> = problems::standard()?.into_iter().map(Benchmark::DeviceTime).collect();
    all.push(Benchmark::EmptyLaunch);
    for (shape, combines) in [
        (problems::STANDARD[0], &[Combine::Auto][..]),
        (problems::DECODE, &[Combine::Fused, Combine::Kernel]),
        (problems::FEW_HEADS, &[Combine::Fused, Combine::Kernel]),
    ] {
        let problem = problems::problem(shape, ferroflash::Dtype::F16)?;
        all.extend(combines.iter().map(|&combine| Benchmark::LaunchCall(problem, combine)));
    }
    Ok(all)
}

/// What is said where there is no GPU: a line a benchmark, and the count.
fn skipped(wanted: &[Benchmark], error: &Error) -> Vec<String> {
    let mut lines: Vec<String> =
        wanted.iter().map(|benchmark| format!("{:<60} skipped", benchmark.name())).collect();
    lines.push(format!("device: {} skipped (no GPU: {error})", wanted.len()));
    lines
}

fn heading(bench: &Bench) -> String {
    let reading = bench.reading();
    let clock = reading.sm_clock_max_mhz.map_or("unknown".to_owned(), |mhz| format!("{mhz} MHz"));
    format!("driver {}, SM clock at most {clock}", reading.driver.as_deref().unwrap_or("unknown"))
}

fn measure(bench: &Bench, benchmark: &Benchmark, test: bool) -> Result<String, Error> {
    match benchmark {
        Benchmark::DeviceTime(problem) => {
            let plans = bench.attention().plans(problem, &PlanOptions::new())?;
            let measured = bench.measure(&plans, &options(test), &mut |_, _| {})?;
            Ok(measured.first().map_or_else(String::new, |measured| device_time_line(problem, measured)))
        }
        Benchmark::LaunchCall(problem, combine) => launch_call(bench, problem, *combine, batches(test)),
        Benchmark::EmptyLaunch => empty_launch(bench, batches(test)),
    }
}

fn batches(test: bool) -> usize {
    if test { 1 } else { BATCHES }
}

fn options(test: bool) -> MeasureOptions {
    if test {
        MeasureOptions { reps: 1, replay_us: 0.0, warm_up: Duration::ZERO, ..MeasureOptions::default() }
    } else {
        MeasureOptions::default()
    }
}

fn device_time_line(problem: &Problem, measured: &Measured) -> String {
    let Some(timing) = measured.timing else {
        return format!("WRONG OUTPUT of {}: {:?}", measured.entry, measured.check);
    };
    format!(
        "{:>10.2} µs ({:.2} to {:.2}) {:>7.1} TFLOP/s  {}",
        timing.median_us,
        timing.p10_us,
        timing.p90_us,
        check::workload::Workload::of(problem).flops() / timing.median_us / 1e6,
        measured.entry
    )
}

/// The host's time of one call of the library.
fn launch_call(bench: &Bench, problem: &Problem, combine: Combine, batches: usize) -> Result<String, Error> {
    let attention = bench.attention();
    let device = attention.device();
    let plan = attention.planner().plan(problem, &PlanOptions { combine, ..PlanOptions::new() })?;
    let buffer = |role: TensorRole| Buffer::new(device, problem.len(role) as u64 * 2);
    let [q, k, v, o] = TensorRole::ALL;
    let buffers = [buffer(q)?, buffer(k)?, buffer(v)?, buffer(o)?];
    let [q, k, v, o] = [0, 1, 2, 3].map(|i| buffers[i].address());
    let tensors = DeviceTensors::new(q, k, v, o);
    // SAFETY: the buffers are as long as the problem says and live until the stream is finished in `host_time`.
    host_time(bench, batches, || unsafe { attention.launch(&plan, &tensors, StreamHandle::DEFAULT) })
}

/// The host's time of the same launch of a kernel that does nothing: what no call can be below.
fn empty_launch(bench: &Bench, batches: usize) -> Result<String, Error> {
    let device = bench.attention().device();
    let kernel = device.load(&Image::new("nothing", Code::Ptx(NOTHING.to_owned()), 32, 0))?;
    let launch = Launch::new(1, &[0; 4]);
    // SAFETY: the kernel was loaded on this device and takes four bytes that it does not read.
    host_time(bench, batches, || unsafe { device.launch(&kernel, &launch, StreamHandle::DEFAULT) })
}

/// The host's time of one call: batches of calls are enqueued on a stream that is busy with the ones before.
fn host_time(
    bench: &Bench,
    batches: usize,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<String, Error> {
    let mut times_us = Vec::new();
    // The first batch loads the kernel.
    for _ in 0..=batches {
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        times_us.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
        // SAFETY: the default stream lives as long as the device.
        unsafe { bench.attention().device().synchronize(StreamHandle::DEFAULT)? };
    }
    times_us.remove(0);
    times_us.sort_by(f64::total_cmp);
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share).round() as usize];
    Ok(format!("{:>10.2} µs ({:.2} to {:.2}) of the host's time a call", at(0.5), at(0.1), at(0.9)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use check::measure::{Check, Load, Timing};

    fn parsed(words: &[&str]) -> Arguments {
        Arguments::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn only_cargo_bench_measures() {
        assert!(parsed(&[]).test, "cargo test");
        assert!(!parsed(&["--bench"]).test, "cargo bench");
        assert!(parsed(&["--test", "--bench"]).test, "cargo bench -- --test");
        let filtered = parsed(&["4096", "--sample-count=5", "--bench"]);
        assert_eq!(filtered.filters, ["4096"]);
        assert!(
            filtered.wants("device_time::4,32,32,4096,4096,64 f16 full") && !filtered.wants("launch_call::")
        );
    }

    #[test]
    fn without_a_gpu_everything_is_skipped_by_name() {
        let all = benchmarks().expect("valid");
        let no_driver =
            Error::NoDriver { searched: "libcuda.so.1".to_owned(), reason: "not found".to_owned() };
        let lines = skipped(&all, &no_driver);
        assert_eq!(lines.len(), all.len() + 1);
        assert!(
            lines[0].starts_with("device_time::1,1,1,128,128,64 f16 full") && lines[0].ends_with("skipped")
        );
        assert!(lines[all.len() - 1].starts_with("launch_call::"), "{lines:?}");
        let count = format!("device: {} skipped (no GPU: ", all.len());
        assert!(lines[all.len()].starts_with(&count), "{lines:?}");
    }

    #[test]
    fn rates_follow_from_the_median_and_a_wrong_output_has_none() {
        let problem = problems::problem([1, 8, 8, 512, 512, 64], ferroflash::Dtype::F16).expect("valid");
        let timing = Timing { median_us: 10.0, p10_us: 9.0, p90_us: 11.0, spread: 0.2 };
        let mut measured = Measured {
            entry: "fwd_x".to_owned(),
            is_baseline: false,
            source: "PTX sm_80".to_owned(),
            splits: 1,
            is_fused: false,
            ctas: 64,
            ctas_per_sm: 0.5,
            resident_ctas_per_sm: 2,
            waves: 0.25,
            launches_per_replay: 10,
            reps: 31,
            check: Check { nan: 0, max_error: 0.001 },
            timing: Some(timing),
            times_us: Vec::new(),
            load: Load::default(),
        };
        let line = device_time_line(&problem, &measured);
        assert_eq!(line, "     10.00 µs (9.00 to 11.00)    53.7 TFLOP/s  fwd_x");
        measured.timing = None;
        assert!(device_time_line(&problem, &measured).starts_with("WRONG OUTPUT of fwd_x"));
    }
}
