//! The lab's way to a GPU, on the driver that computes on the CPU: processes, two kernels in turns, fresh inputs, both timers. Its
//! times mean nothing.

use crate::support::{fake_driver, folder, lab_binary, trials};
use serde_json::Value;
use std::process::Command;

trials!(
    a_row_goes_through_the_whole_cascade_beside_its_incumbent,
    a_kernel_that_is_wrong_on_the_device_is_refused
);

/// A row of the table that is not the one that rows are timed against.
const ENTRY: &str = "fwd_f16_d64_m64n64_w4s1c1";
const CONFIG: &str = "[problems]\nshapes = [\"1,1,1,64,64,64\"]\nsim_shapes = [\"1,1,1,64,64,64\"]\nmasks = [\"full\"]\n\
                      inputs = [\"random\", \"zero\"]\nhidden = 1\n[tolerances]\nschedules = 0\n";

/// Evaluates a row of the table, compiled, on the fake driver; returns the code and the JSON on stdout.
fn evaluate(fault: Option<(&str, &str)>) -> (Option<i32>, Value) {
    let home = folder();
    let config = home.path().join("test.toml");
    std::fs::write(&config, CONFIG).expect("written");
    let mut lab = Command::new(lab_binary());
    lab.args(["benchmark", ENTRY, "--device", "cuda", "--json", "--config"]).arg(&config);
    lab.arg("--runs").arg(home.path().join("runs")).env("FERROFLASH_LIBCUDA", fake_driver());
    lab.envs(fault);
    let output = lab.output().expect("the lab starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let found = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    (output.status.code(), found)
}

fn a_row_goes_through_the_whole_cascade_beside_its_incumbent() {
    let (code, found) = evaluate(None);
    assert_eq!(code, Some(0), "{found}");
    let evaluation = &found["evaluations"][0];
    let timed = &evaluation["timed"][0];
    for kind in ["warm_us", "cold_us", "fresh_us"] {
        assert!(timed[kind].as_array().is_some_and(|times| times.len() > 8), "{kind}: {timed}");
    }
    assert!(timed["wall_us"].as_f64().is_some_and(|time| time > 0.0), "{timed}");
    assert_eq!(timed["entry"], ENTRY);
    let incumbent = &evaluation["incumbent"][0];
    assert!(incumbent["entry"] != ENTRY && incumbent["fresh_us"].as_array().is_some(), "{incumbent}");
}

fn a_kernel_that_is_wrong_on_the_device_is_refused() {
    let (code, found) = evaluate(Some(("FAKE_DRIVER_OUTPUT", "wrong")));
    assert_eq!(code, Some(1), "{found}");
    let stages = found["evaluations"][0]["stages"].as_array().expect("stages").clone();
    let last = stages.last().expect("a stage");
    assert_eq!(
        (&last["stage"], &last["outcome"]["refused"]["fault"]),
        (&"numerics".into(), &"wrong-numbers".into())
    );
}
