//! The program behind `cargo lab`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    lab::cli::main()
}
