//! `ferroflash verify` as a process.

use crate::support::{self, ferroflash, folder, safetensors};
use half::f16;
use std::fs;

support::trials!(
    the_sample_passes_with_its_stored_results,
    a_wrong_stored_output_fails_with_exit_code_1,
    generated_tensors_are_the_same_for_the_same_seed,
    nan_stays_in_the_rows_that_see_it,
    several_simulated_devices_are_right_and_bit_by_bit_one,
);

fn the_sample_passes_with_its_stored_results() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer2.safetensors");
    let ended = ferroflash(folder().path(), &["verify", "--device", "cpu", "--json", "--input", sample]);
    let report = ended.succeeded().json();
    assert_eq!(report["passed"], true);
    assert_eq!(report["results"][0]["name"], "stored o");
    assert!(report["results"][0]["verdict"]["max_error"].as_f64().is_some_and(|error| error < 1e-6));
    assert!(report["results"][0]["verdict"]["lse"]["max_error"].as_f64().is_some_and(|error| error < 1e-5));
    assert_eq!(report["results"][1]["verdict"]["passed"], true);
}

fn a_wrong_stored_output_fails_with_exit_code_1() {
    let folder = folder();
    let shape: &[usize] = &[1, 1, 2, 32];
    let tensor = |value: f32| f16::from_f32(value).to_le_bytes().repeat(64);
    let [q, k, v] = ["q", "k", "v"].map(|name| (name, "F16", shape, tensor(0.5)));
    let file = safetensors(&[q, k, v, ("o", "F16", shape, tensor(0.502))], &[]);
    fs::write(folder.path().join("qkv.safetensors"), file).expect("written");
    let ended = ferroflash(folder.path(), &["verify", "--device", "cpu", "--input", "qkv.safetensors"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stdout.contains("FAILED stored o"), "{}", ended.stdout);
    assert!(ended.stderr.contains("error: 1 of 2 outputs are wrong"), "{}", ended.stderr);
}

fn generated_tensors_are_the_same_for_the_same_seed() {
    let report = |seed: &str| {
        let args =
            ["verify", "--device", "cpu", "--shape", "1,4,2,65,63,64", "--causal", "--seed", seed, "--json"];
        ferroflash(folder().path(), &args).succeeded().json()
    };
    assert_eq!(report("7"), report("7"));
    assert_ne!(report("7"), report("8"));
}

fn nan_stays_in_the_rows_that_see_it() {
    let args = ["verify", "--device", "cpu", "--shape", "1,2,1,40,40,32", "--causal", "--input-kind", "nan"];
    ferroflash(folder().path(), &args).succeeded();
}

fn several_simulated_devices_are_right_and_bit_by_bit_one() {
    let args = ["verify", "--device", "sim", "--devices", "2,3", "--shape", "1,4,2,77,77,64", "--causal"];
    let ended = ferroflash(folder().path(), &args);
    let stdout = &ended.succeeded().stdout;
    assert_eq!(stdout.matches("every bit is one device's").count(), 3, "{stdout}");
    assert_eq!(stdout.matches("passed ").count(), 5, "{stdout}");
    assert!(stdout.contains("ulysses cannot compute this over 3 ranks"), "{stdout}");
    let input = ["verify", "--devices", "2", "--grid", "quick"];
    ferroflash(folder().path(), &input).refused(2, &["--grid"]);
}
