//! `cargo xtask`: builds and checks the kernels' PTX, tests the repository, runs the demonstration and the benchmarks.

mod apt;
mod bench;
mod browser;
mod build_ptx;
mod check_ptx;
mod demo;
mod device_compiler;
mod device_core;
mod gpus_plot;
mod manifest_file;
mod pack_kernels;
mod package;
mod process;
mod ptx_text;
mod ptxas;
mod ptxas_log;
mod ptxas_record;
mod python;
mod readme;
mod results;
mod results_plot;
mod results_speeds;
mod results_table;
mod rows;
mod score_crate;
mod test;
mod tidy;
mod tidy_imports;
mod workspace;

use clap::{Parser, Subcommand};

/// Build, check and test commands of Ferroflash.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the kernels to PTX, and write the manifest beside it
    BuildPtx(build_ptx::Options),
    /// Compile the PTX with ptxas for every architecture, and fail on spills, stack frames and warnings
    CheckPtx(check_ptx::Options),
    /// Compress compiled kernels, one by one, into the archive that programs carry
    PackKernels(pack_kernels::Options),
    /// Make all that is handed out: crates with the kernels inside, the Python wheel, the C archive
    Package(package::Options),
    /// Set up what is lacking and run every check and test
    Test(test::Options),
    /// Build what is lacking and run attention on a real layer's tensors
    Demo(demo::Options),
    /// Run the benchmarks
    Bench(bench::Options),
    /// Write the results in README.md and docs/results.md, and their plot, from benches/results
    Readme,
    /// Check the repository's rules
    Tidy,
}

fn main() -> std::process::ExitCode {
    let result = match Cli::parse().command {
        Command::BuildPtx(options) => build_ptx::run(&options),
        Command::CheckPtx(options) => check_ptx::run(&options),
        Command::PackKernels(options) => pack_kernels::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Readme => readme::run(),
        Command::Tidy => tidy::run(),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_and_options_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ptxas_takes_a_path_or_means_to_fetch_it() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["xtask", "check-ptx"], arguments].concat());
        let path = |cli: Cli| match cli.command {
            Command::CheckPtx(options) => options.ptxas.ptxas,
            _ => None,
        };
        assert_eq!(parse(&[]).map(path).expect("parses"), None);
        assert_eq!(parse(&["--ptxas", "--cubin"]).map(path).expect("parses"), Some(ptxas::FETCH.into()));
        assert_eq!(parse(&["--ptxas", "bin/ptxas"]).map(path).expect("parses"), Some("bin/ptxas".into()));
    }
}
