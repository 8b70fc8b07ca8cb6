//! The integration tests, one binary. Tests that need a GPU are reported as ignored, with the reason, where there is none.

mod append;
mod backward;
mod backward_ds;
mod backward_splits;
mod bindings;
mod cascade;
mod cli_errors;
mod cli_plan;
mod cli_run;
mod cli_verify;
mod copies;
mod devices;
mod distributed;
mod distributed_failures;
mod dropout;
mod fake_device;
mod fake_library;
mod host_device;
mod interrupt;
mod lab_device;
mod merge;
mod nccl;
mod own_keys;
mod plans;
mod predict;
mod ragged;
mod reference;
mod sample;
mod splits;
mod support;
mod tensor_files;
mod tolerance;
mod user_scores;
mod verification;

use libtest_mimic::{Arguments, Conclusion};

fn main() {
    if fake_library::is_child() {
        return fake_library::child();
    }
    let arguments = Arguments::from_args();
    let trials = [
        append::trials(),
        bindings::trials(),
        cascade::trials(),
        cli_errors::trials(),
        cli_plan::trials(),
        cli_run::trials(),
        cli_verify::trials(),
        copies::trials(),
        devices::trials(),
        distributed::trials(),
        distributed_failures::trials(),
        dropout::trials(),
        fake_device::trials(),
        fake_library::trials(),
        host_device::trials(),
        interrupt::trials(),
        lab_device::trials(),
        merge::trials(),
        own_keys::trials(),
        plans::trials(),
        predict::trials(),
        backward::trials(),
        backward_ds::trials(),
        backward_splits::trials(),
        ragged::trials(),
        reference::trials(),
        sample::trials(),
        splits::trials(),
        tensor_files::trials(),
        tolerance::trials(),
        user_scores::trials(),
        verification::trials(),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().flatten().collect());
    summarise(&conclusion);
    conclusion.exit();
}

/// The counts in one line for whoever greps for what was not run.
fn summarise(conclusion: &Conclusion) {
    let Conclusion { num_passed, num_failed, num_ignored, .. } = conclusion;
    let skipped = *num_ignored > 0;
    let why = devices::missing_gpu()
        .filter(|_| skipped)
        .map_or(String::new(), |reason| format!(" (no GPU: {reason})"));
    println!("integration: {num_passed} passed, {num_failed} failed, {num_ignored} skipped{why}");
}
