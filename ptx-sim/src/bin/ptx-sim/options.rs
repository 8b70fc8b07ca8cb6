//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ptx_sim::{Checks, Gpu, LaunchConfig, Limits};

use crate::arguments::Argument;

/// Runs PTX on the CPU and checks it: no GPU, no driver, no CUDA toolkit.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 all is well; 1 the kernel broke a rule (run) or the PTX is refused (check);
2 the command, a file or the launch is wrong.";

const EXAMPLE: &str = "\
An argument is given for each parameter of the kernel, in order:
  u8:5 u16: u32: u64: i8:-5 i16: i32: i64:   an integer, decimal or 0x
  f32:0.5 f64:-inf                           a floating-point number
  hex:00ff10                                 bytes
  in:q.npy                                   the address of a buffer filled from the file
  out:f32[8,64]:o.npy  out:2048:o.npy        of a buffer that the kernel must fill; it is then written to the file
  inout:x.npy:y.npy                          of a buffer filled from the first file, then written to the second
  zeros:4096  uninit:4096                    of scratch memory of so many bytes, zero or not written by anybody
  arg:1  arg:1+256                           the address that argument 1 is (of a struct, its first), and 256 bytes behind it
  'struct:in:q.npy;u32:64;f32:0.5'           fields of a struct given by value, aligned as C aligns them
f16 arrays are NumPy's float16; bf16 ones are uint16 with the same bits.

Example: row sums of a matrix in a.npy of 64 rows and 100 columns
  ptx-sim run rows.ptx --entry row_sum --grid 64 --block 128 --shared 512 \\
      --arg in:a.npy --arg 'out:f32[64]:sums.npy' --arg u32:100 --counters

A finding ends the run and goes to standard error as one line with its PTX line; a deadlock adds one for each warp that
waits. Orders that the hardware leaves open are chosen by --seed: try several.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a kernel with every check on, and writes its outputs to npy files
    #[command(after_help = EXAMPLE, after_long_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
    Run(Box<RunOptions>),
    /// Lists a module's entries and parameters, and every line that is not supported
    Check(CheckOptions),
    /// Prints the supported instruction forms as Markdown
    Support,
}

#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    /// PTX text
    pub(crate) file: PathBuf,
    /// Kernel to run; may be left out if there is but one
    #[arg(long)]
    pub(crate) entry: Option<String>,
    /// CTAs in each dimension
    #[arg(long, value_name = "X[,Y,Z]", default_value = "1")]
    pub(crate) grid: Dimensions,
    /// Threads of a CTA in each dimension
    #[arg(long, value_name = "X[,Y,Z]", default_value = "1")]
    pub(crate) block: Dimensions,
    /// Dynamic shared memory of a CTA
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) shared: u32,
    /// A parameter of the kernel, in order: see below
    #[arg(long = "arg", value_name = "KIND:VALUE", allow_hyphen_values = true)]
    pub(crate) arguments: Vec<Argument>,
    /// Runs warps and lands copies in a random order that this number repeats
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// `all`, `none`, or names with commas: bounds, alignment, initialized, async-copies, shared-races, global-races,
    /// convergence, shuffles; `all,-NAME` leaves one out
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(crate) checks: CheckList,
    /// Device whose shared memory is the limit; that of the PTX's `.target` unless given
    #[arg(long, value_enum)]
    pub(crate) limits: Option<Device>,
    /// CTAs of a cluster in each dimension, where the kernel does not say
    #[arg(long, value_name = "X[,Y,Z]")]
    pub(crate) cluster: Option<Dimensions>,
    /// Says what of the code the launch did not test: lines that no lane executed, and conditions that were the same in every lane
    #[arg(long)]
    pub(crate) coverage: bool,
    /// Writes the findings and warnings to this file as SARIF
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Prints findings and warnings as annotations of GitHub Actions too
    #[arg(long)]
    pub(crate) github: bool,
    /// Warp instructions that one CTA may execute
    #[arg(long, value_name = "COUNT", default_value_t = LaunchConfig::DEFAULT_BUDGET)]
    pub(crate) budget: u64,
    /// Predicts the time on a device too: h200, h100, a100, l4, a10, l40s, rtx4090, rtx3090; never a measured time
    #[arg(long, value_name = "DEVICE", value_parser = device, requires = "registers")]
    pub(crate) predict: Option<Gpu>,
    /// Registers of a thread, as `ptxas -v` says: how many CTAs a multiprocessor holds follows from them
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub(crate) registers: Option<u32>,
    /// Clock that a prediction assumes [default: the published boost clock]
    #[arg(long, value_name = "MHZ", requires = "predict", value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) clock: Option<u32>,
    /// Prints one JSON object: the outcome, the finding or the counters
    #[arg(long)]
    pub(crate) json: bool,
    /// Prints what was counted: instructions, bank conflicts, sectors, …
    #[arg(long, conflicts_with = "json")]
    pub(crate) counters: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CheckOptions {
    /// PTX text
    pub(crate) file: PathBuf,
}

/// `X`, `X,Y` or `X,Y,Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions(pub(crate) [u32; 3]);

/// What was given instead of sizes or checks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("expected one to three numbers with commas between")]
    Dimensions,
    #[error("the model of time knows no `{0}`: see --help")]
    Device(String),
    #[error("`{0}` is no check: see --help")]
    Check(String),
}

/// A device that the model of time knows.
fn device(name: &str) -> Result<Gpu, OptionError> {
    Gpu::find(name).ok_or_else(|| OptionError::Device(name.to_owned()))
}

impl FromStr for Dimensions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut sizes = [1; 3];
        for (at, part) in text.split(',').enumerate() {
            let size = sizes.get_mut(at).ok_or(OptionError::Dimensions)?;
            *size = part.trim().parse().map_err(|_| OptionError::Dimensions)?;
        }
        Ok(Dimensions(sizes))
    }
}

/// Checks by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckList(pub(crate) Checks);

impl FromStr for CheckList {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut checks = if text.starts_with('-') { Checks::ALL } else { Checks::NONE };
        for item in text.split(',') {
            let (name, on) = item.strip_prefix('-').map_or((item, true), |name| (name, false));
            let check = match name {
                "all" if on => {
                    checks = Checks::ALL;
                    continue;
                }
                "none" if on => {
                    checks = Checks::NONE;
                    continue;
                }
                "bounds" => &mut checks.bounds,
                "alignment" => &mut checks.alignment,
                "initialized" => &mut checks.initialized,
                "async-copies" => &mut checks.async_copies,
                "shared-races" => &mut checks.shared_races,
                "global-races" => &mut checks.global_races,
                "convergence" => &mut checks.convergence,
                "shuffles" => &mut checks.shuffles,
                _ => return Err(OptionError::Check(item.to_owned())),
            };
            *check = on;
        }
        Ok(CheckList(checks))
    }
}

/// A device by its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// A100: 163 KiB of shared memory
    #[value(name = "sm_80")]
    Sm80,
    /// L4: 99 KiB
    #[value(name = "sm_89")]
    Sm89,
    /// H100, H200: 227 KiB
    #[value(name = "sm_90")]
    Sm90,
}

impl Device {
    pub(crate) fn limits(self) -> Limits {
        match self {
            Device::Sm80 => Limits::SM_80,
            Device::Sm89 => Limits::SM_89,
            Device::Sm90 => Limits::SM_90,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn dimensions_and_checks_parse() {
        assert_eq!("4,2".parse(), Ok(Dimensions([4, 2, 1])));
        assert_eq!("4,2,1,1".parse::<Dimensions>(), Err(OptionError::Dimensions));
        assert_eq!("-4".parse::<Dimensions>(), Err(OptionError::Dimensions));
        let only = Checks { bounds: true, ..Checks::NONE };
        assert_eq!("bounds".parse(), Ok(CheckList(only)));
        let without = Checks { shuffles: false, ..Checks::ALL };
        assert_eq!("all,-shuffles".parse(), Ok(CheckList(without)));
        assert_eq!("-shuffles".parse(), Ok(CheckList(without)));
        assert_eq!("races".parse::<CheckList>(), Err(OptionError::Check("races".to_owned())));
    }
}
