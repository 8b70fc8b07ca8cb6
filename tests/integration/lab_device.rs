//! The lab's way to a GPU, on the driver that computes on the CPU: processes, two kernels in turns, fresh inputs, both timers. Its
//! times mean nothing.

use crate::support::{fake_driver, folder, lab_binary, trials, write_kernels};
use kernels_gpu::row::Dtype;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

trials!(
    a_row_goes_through_the_whole_cascade_beside_its_incumbent,
    a_kernel_that_is_wrong_on_the_device_is_refused,
    kernels_that_are_compiled_are_timed_and_nothing_else_is,
    a_gate_that_finds_nothing_of_what_it_plants_says_so,
    a_profile_without_counters_goes_on_with_a_timeline_and_then_with_counts
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
    assert_eq!((&last["stage"], &last["outcome"]["refused"]["fault"]), (&"numerics".into(), &"zeros".into()));
}

/// Runs the lab on the fake driver with kernels of the table that nobody compiled.
fn with_compiled(home: &Path, arguments: &[&str]) -> Output {
    let (config, kernels) = (home.join("test.toml"), home.join("kernels"));
    std::fs::write(&config, CONFIG).expect("written");
    std::fs::create_dir_all(&kernels).expect("a folder");
    write_kernels(&kernels, |_| ());
    let mut lab = Command::new(lab_binary());
    lab.args(arguments).args(["--device", "cuda", "--json", "--config"]).arg(&config);
    lab.arg("--ptx").arg(&kernels).arg("--runs").arg(home.join("runs"));
    lab.env("FERROFLASH_LIBCUDA", fake_driver()).env("CARGO", "/nonexistent/cargo");
    lab.output().expect("the lab starts")
}

fn kernels_that_are_compiled_are_timed_and_nothing_else_is() {
    let home = folder();
    let start = "fwd_f16_d32_m64n64_w4s2c1";
    let output = with_compiled(home.path(), &["micro", "--start", start]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let rows = found["rows"].as_array().expect("rows");
    let in_table = kernels_gpu::table::VARIANTS.iter().map(|variant| variant.row).filter(|row| {
        (row.dtype, row.head_dim) == (Dtype::F16, 32) && row.schedule == kernels_gpu::row::Schedule::Grid
    });
    assert_eq!(rows.len(), in_table.count(), "{stderr}");
    // Without bodies they are all alike: one is measured, the others are duplicates of it.
    assert_eq!(rows.iter().filter(|row| row["outcome"]["scored"]["score"].is_f64()).count(), 1, "{found}");
}

fn a_gate_that_finds_nothing_of_what_it_plants_says_so() {
    let home = folder();
    let output = with_compiled(home.path(), &["gate", "--self-test", "--repeats", "1", "--row", ENTRY]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let part = |name: &str| {
        let parts = found["parts"].as_array().expect("parts");
        let part = parts.iter().find(|part| part["part"] == name).expect("the part").clone();
        (part["works"].as_bool().expect("a verdict"), part["result"].as_str().expect("a result").to_owned())
    };
    // This driver computes attention whatever the kernel says, at its own pace.
    assert!(part("planted cheats").0);
    assert!(part("A/A").1.contains(" of 1 called different ("), "{found}");
    assert!(!part("wrong kernels").0 && part("wrong kernels").1.starts_with("0 of 9 refused"), "{found}");
    let hang = part("a kernel that never ends");
    assert_eq!(hang, (false, "ran; the next kernel: ran".to_owned()));
}

/// An ncu that may not count, as NVIDIA's says it.
const REFUSED: &str = "#!/bin/sh
echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters'
exit 1
";

fn a_profile_without_counters_goes_on_with_a_timeline_and_then_with_counts() {
    let home = folder();
    let seen =
        format!(r#"{{"kernels": [{{"name": "{ENTRY}", "launches": 20, "us": 7.5, "grid": [8, 4, 2]}}]}}"#);
    let tool = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("its own file");
        path
    };
    tool("ncu", REFUSED);
    let pythons = [
        tool("with-torch", &format!("#!/bin/sh\necho '{seen}'\n")),
        tool("without-torch", "#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 1\n"),
    ];
    let profile = |python: &Path| {
        let config = home.path().join("test.toml");
        std::fs::write(&config, format!("{CONFIG}[peers]\npython = {python:?}\n")).expect("written");
        let mut lab = Command::new(lab_binary());
        lab.args(["profile", ENTRY, "--device", "cuda", "--json", "--config"]).arg(&config);
        lab.arg("--runs").arg(home.path().join("runs")).env("FERROFLASH_LIBCUDA", fake_driver());
        let path = std::env::var("PATH").unwrap_or_default();
        lab.env("PATH", format!("{}:{path}", home.path().display()));
        let output = lab.output().expect("the lab starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
        (found["profiles"][0].clone(), stderr)
    };
    let (timeline, said) = profile(&pythons[0]);
    assert_eq!(timeline["source"], "simulator and measured time and PyTorch's profiler", "{said}");
    assert_eq!(timeline["metrics"][0]["name"], "timeline: mean time", "{timeline}");
    assert!(said.contains("ERR_NVGPUCTRPERM") && said.contains("timeline instead"), "{said}");
    let (counted, said) = profile(&pythons[1]);
    assert_eq!(counted["source"], "simulator and measured time", "{said}");
    assert!(
        counted["verdict"]["bound"].is_string() && counted["metrics"] == serde_json::json!([]),
        "{counted}"
    );
    assert!(said.contains("No module named 'torch'") && said.contains("counts on the simulator"), "{said}");
}
