//! The command on a fake driver: every journey to a device and back, and every way that a device can fail. No GPU is used.

use crate::support::{
    self, Ended, binary, fake_driver, fake_nccl, ferroflash_with, folder, names, safetensors, tensor,
    write_kernels, write_qkv,
};
use ferroflash::{Dtype, Schedule};
use kernels_gpu::row::Isa;
use kernels_gpu::table::{VARIANTS, Variant};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

support::trials!(
    every_row_of_the_table_takes_the_quick_grid,
    a_wrong_output_fails_verify_and_bench,
    an_unsteady_output_is_found_by_repeats,
    a_write_past_the_output_is_named,
    a_write_past_the_workspace_is_named,
    a_counter_that_is_left_is_found,
    wrong_splits_fail_verify,
    verify_takes_lengths_splits_and_orders_of_heads,
    bench_measures_splits_side_by_side,
    k_and_v_stay_in_l2_where_that_is_asked_for,
    run_computes_real_tensors_as_the_cpu_does,
    verify_takes_real_tensors_through_every_row,
    bench_measures_and_never_calls_it_a_gpu,
    bench_times_lse_where_it_is_asked_for,
    bench_measures_another_folders_kernels_in_turns,
    bench_waits_for_its_turn,
    bench_measures_ranks_in_turns_with_one_device,
    ranks_over_nccl_are_measured_and_verified,
    wgmma_is_taken_where_device_and_driver_have_it,
    a_driver_without_tensor_maps_has_the_other_kernels,
    doctor_says_what_there_is,
    a_cubin_that_is_refused_gives_way_to_ptx,
    no_device_is_an_error_and_auto_goes_on,
    a_driver_that_does_not_start_says_why,
    a_device_too_old_is_an_error_and_auto_goes_on,
    a_device_number_that_does_not_exist_is_refused,
    a_driver_too_old_for_the_ptx_says_so,
    refused_ptx_shows_the_drivers_log,
    out_of_memory_names_what_was_requested_and_what_is_free,
    a_failing_launch_is_one_line,
    no_kernels_is_one_line,
    ctrl_c_during_a_launch_leaves_nothing,
);

const MINILM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer2.safetensors");
const MINILM_SHAPE: &[usize] = &[2, 12, 200, 32];
const RUN: [&str; 5] = ["run", "--input", "qkv.safetensors", "--output", "o.safetensors"];
const VERIFY: [&str; 5] = ["verify", "--device", "cuda", "--shape", "1,2,1,65,127,64"];

/// A folder to work in, and one with the table's kernels.
struct Setup {
    folder: TempDir,
    kernels: TempDir,
}

fn setup() -> Setup {
    let (folder, kernels) = (folder(), support::folder());
    write_kernels(kernels.path(), |_| ());
    Setup { folder, kernels }
}

impl Setup {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The command on the fake driver, with faults, on `qkv.safetensors` of 65 queries and 127 keys.
    fn run(&self, args: &[&str], faults: &[(&str, &str)]) -> Ended {
        let [libcuda, kernels] = self.variables();
        let ended = ferroflash_with(self.path(), args, &[&[libcuda, kernels], faults].concat());
        assert!(!ended.stderr.contains("left behind"), "nothing is left on the device: {}", ended.stderr);
        ended
    }

    /// As [`Setup::run`], with the kernels that `cargo xtask build-ptx` has compiled.
    fn run_compiled(&self, args: &[&str], faults: &[(&str, &str)]) -> Ended {
        ferroflash_with(self.path(), args, &[&self.variables()[..1], faults].concat())
    }

    fn variables(&self) -> [(&str, &str); 2] {
        let kernels = self.kernels.path().to_str().expect("UTF-8");
        let driver = fake_driver().to_str().expect("UTF-8");
        [("FERROFLASH_LIBCUDA", driver), ("FERROFLASH_PTX", kernels)]
    }

    fn write_qkv(&self) {
        write_qkv(self.path(), &[1, 4, 65, 64], &[1, 2, 127, 64], &[1, 2, 127, 64]);
    }

    /// Asserts that `run` is refused in one line and leaves nothing.
    #[track_caller]
    fn run_refused(&self, more: &[&str], faults: &[(&str, &str)], needles: &[&str]) {
        self.write_qkv();
        let ended = self.run(&[&RUN[..], more].concat(), faults);
        ended.refused(1, needles);
        assert_eq!(names(self.path()), ["qkv.safetensors"], "nothing is written");
    }
}

fn every_row_of_the_table_takes_the_quick_grid() {
    let args = ["verify", "--device", "cuda", "--grid", "quick", "--rows", "all", "--repeats", "3", "--json"];
    // The only compute capability that runs them all.
    let ended = setup().run(&args, &[("FAKE_DRIVER_SM", "90")]);
    // But for those of ragged batches, which it says it cannot compute.
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report = ended.json();
    assert_eq!(report["device"], "fake driver (no GPU)");
    let rows = report["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), VARIANTS.len());
    for row in rows {
        if row["entry"].as_str().is_some_and(|entry| entry.contains("_ragged")) {
            assert!(row["failed"].as_u64() > Some(0), "{row}");
        } else {
            assert_eq!((row["failed"].as_u64(), row["repeats"].as_u64()), (Some(0), Some(3)), "{row}");
        }
    }
}

fn a_wrong_output_fails_verify_and_bench() {
    let (setup, wrong) = (setup(), [("FAKE_DRIVER_OUTPUT", "wrong")]);
    let verify = setup.run(&VERIFY, &wrong);
    assert_eq!(verify.code, Some(1));
    assert!(verify.stdout.contains("FAILED") && verify.stderr.contains("1 of 1 outputs are wrong"));
    let grid =
        setup.run(&["verify", "--device", "cuda", "--grid", "quick", "--rows", VARIANTS[0].entry], &wrong);
    assert_eq!(grid.code, Some(1));
    assert!(grid.stdout.contains("0 of 1 kernels right"), "{}", grid.stdout);
    let bench = setup.run(&["bench", "--shape", "1,2,1,65,127,64", "--reps", "1"], &wrong);
    assert_eq!(bench.code, Some(1));
    assert!(bench.stderr.contains("1 of 1 outputs are wrong"), "{}", bench.stderr);
}

fn an_unsteady_output_is_found_by_repeats() {
    let setup = setup();
    let unsteady = [("FAKE_DRIVER_OUTPUT", "unsteady")];
    setup.run(&VERIFY, &unsteady).succeeded();
    let repeated = setup.run(&[&VERIFY[..], &["--repeats", "3"]].concat(), &unsteady);
    assert_eq!(repeated.code, Some(1), "{}", repeated.stdout);
}

fn a_write_past_the_output_is_named() {
    let ended = setup().run(&VERIFY, &[("FAKE_DRIVER_OUTPUT", "past")]);
    ended.refused(1, &["fwd_f16_d64", "wrote outside O, 0 bytes after it"]);
}

/// The f16 kernels that run where the fake device is what it is by default.
fn kernels_on_sm_89(head_dim: u32) -> Vec<&'static Variant> {
    let is_it = |variant: &&Variant| {
        (variant.row.head_dim, variant.row.dtype, variant.row.isa) == (head_dim, Dtype::F16, Isa::Mma)
            && variant.row.schedule != Schedule::Ragged
    };
    VARIANTS.iter().filter(is_it).collect()
}

/// A kernel of a schedule, by name.
fn entry_of(schedule: Schedule) -> &'static str {
    let of_schedule = |variant: &&Variant| variant.row.schedule == schedule;
    kernels_on_sm_89(64).into_iter().find(of_schedule).expect("in the table").entry
}

fn a_write_past_the_workspace_is_named() {
    let (setup, past) = (setup(), [("FAKE_DRIVER_OUTPUT", "past_partials")]);
    setup
        .run(&[&VERIFY[..], &["--splits", "2"]].concat(), &past)
        .refused(1, &["wrote outside the workspace", "after it"]);
    setup.run(&VERIFY, &past).succeeded();
}

fn a_counter_that_is_left_is_found() {
    let (setup, counter) = (setup(), [("FAKE_DRIVER_OUTPUT", "counter")]);
    let persistent = entry_of(Schedule::Persistent);
    let args = [&VERIFY[..], &["--rows", persistent]].concat();
    setup.run(&args, &counter).refused(1, &[persistent, "left its work counter at another value than 0"]);
    setup.run(&args, &[]).succeeded();
    let fused = [&VERIFY[..], &["--splits", "2", "--combine", "fused"]].concat();
    setup.run(&fused, &counter).refused(1, &["left its work counter at another value than 0"]);
    setup.run(&fused, &[]).succeeded();
    // Launches of one stream share the counter, and the driver looks at it before each.
    let bench = ["bench", "--shape", "1,2,1,65,127,64", "--reps", "1", "--rows", persistent];
    setup.run(&bench, &[]).succeeded();
}

fn wrong_splits_fail_verify() {
    let (setup, wrong) = (setup(), [("FAKE_DRIVER_OUTPUT", "wrong")]);
    let ended = setup.run(&[&VERIFY[..], &["--splits", "2"]].concat(), &wrong);
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stdout.contains("in 2 splits"), "{}", ended.stdout);
}

fn verify_takes_lengths_splits_and_orders_of_heads() {
    let setup = setup();
    let verify = |shape: &str, more: &[&str]| {
        let args = ["verify", "--device", "cuda", "--rows", "all", "--json", "--shape", shape];
        setup.run(&[&args[..], more].concat(), &[]).succeeded().json()
    };
    let count = |report: &serde_json::Value| report["results"].as_array().map(Vec::len);
    let rows = |schedules: &[Schedule]| {
        let kernels = kernels_on_sm_89(64);
        kernels.into_iter().filter(|variant| schedules.contains(&variant.row.schedule)).count()
    };
    let split = rows(&[Schedule::Split]);
    let lengths = verify("3,8,2,5,300,64", &["--lengths", "--splits", "1,2,3", "--causal"]);
    assert_eq!(count(&lengths), Some(3 * split), "only kernels that split keys take lengths");
    assert_eq!(lengths["problem"]["lengths"], true);
    assert_eq!(count(&verify("2,8,2,5,300,64", &["--split-size", "100"])), Some(split));
    let unsplit = rows(&[Schedule::Grid, Schedule::Persistent]);
    let together = verify("2,6,2,200,300,64", &["--heads-together", "4", "--causal"]);
    assert_eq!(count(&together), Some(unsplit + split));
}

fn bench_measures_splits_side_by_side() {
    let setup = setup();
    let args = ["bench", "--shape", "2,4,2,1,900,64", "--lengths", "--splits", "1,2,4", "--reps", "2"];
    let ended = setup.run(&[&args[..], &["--json", "bench.json"]].concat(), &[]);
    let stdout = &ended.succeeded().stdout;
    for needle in ["copies ", " GB/s", "of copy", "waves", "2,4,2,1,900,64 f16 full lengths"] {
        assert!(stdout.contains(needle), "{needle:?} is in: {stdout}");
    }
    let file = fs::read_to_string(setup.path().join("bench.json")).expect("written");
    let report: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    let rows = report["results"][0]["rows"].as_array().expect("a list");
    let splits: Vec<_> = rows.iter().filter_map(|row| row["splits"].as_u64()).collect();
    assert_eq!(splits, [1, 2, 4]);
    assert!(
        rows.iter().all(|row| row["share_of_copy"].as_f64() > Some(0.0) && row["waves"].as_f64() > Some(0.0))
    );
    assert!(report["device"]["copy_gbytes_per_s"].as_f64() > Some(0.0));
    let full: f64 = 4.0 * 2.0 * 4.0 * 900.0 * 64.0;
    assert!(report["results"][0]["flops"].as_f64() < Some(full), "only the keys that there are");
}

fn k_and_v_stay_in_l2_where_that_is_asked_for() {
    let setup = setup();
    let args = ["bench", "--shape", "1,4,2,65,300,64", "--reps", "1", "--l2", "persist", "--splits", "1,2"];
    let ended = setup.run(&[&args[..], &["--json", "bench.json"]].concat(), &[]);
    assert!(
        ended.succeeded().stdout.contains("(524288 bytes of it set aside for K and V)"),
        "{}",
        ended.stdout
    );
    assert!(!ended.stderr.contains("fake driver:"), "{}", ended.stderr);
    let refused = setup.run(&args, &[("FAKE_DRIVER_L2", "0")]);
    refused.refused(1, &["fake driver (no GPU) has no L2 cache that can be set aside", "default L2 policy"]);
}

fn run_computes_real_tensors_as_the_cpu_does() {
    let setup = setup();
    let [q, k, v] = ["q", "k", "v"].map(|name| (name, "F16", MINILM_SHAPE, tensor(MINILM.as_ref(), name).0));
    fs::write(setup.path().join("qkv.safetensors"), safetensors(&[q, k, v], &[])).expect("written");
    // Read as bshd the same bytes are another problem: 12 queries of 200 heads.
    for layout in ["bhsd", "bshd"] {
        let mut outputs = Vec::new();
        for (device, name) in [("auto", "device: fake driver (no GPU)"), ("cpu", "device: CPU")] {
            let output = format!("{device}-{layout}.safetensors");
            let args = ["run", "--input", "qkv.safetensors", "--output", &output, "--lse", "--causal"];
            let ended = setup.run(&[&args[..], &["--device", device, "--layout", layout]].concat(), &[]);
            assert!(ended.succeeded().stderr.contains(name), "{}", ended.stderr);
            outputs.push(["o", "lse"].map(|name| tensor(&setup.path().join(&output), name).0));
        }
        let [fake, cpu] = [&outputs[0][0], &outputs[1][0]].map(|o| o.as_chunks::<2>().0);
        let different = fake.iter().zip(cpu).filter(|(a, b)| a != b).count();
        // The scale is rounded once more on its way through log2(e).
        assert!(different < fake.len() / 100, "{layout}: {different} of {} elements", fake.len());
        let lse = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        };
        for (fake, cpu) in lse(&outputs[0][1]).into_iter().zip(lse(&outputs[1][1])) {
            assert!((fake - cpu).abs() < 1e-5, "{layout}: {fake} {cpu}");
        }
    }
}

fn verify_takes_real_tensors_through_every_row() {
    let args = ["verify", "--device", "cuda", "--input", MINILM, "--rows", "all", "--json"];
    let report = setup().run(&args, &[]).succeeded().json();
    // The file's own O is judged too.
    assert_eq!(report["results"].as_array().map(Vec::len), Some(kernels_on_sm_89(32).len() + 1));
}

fn bench_measures_and_never_calls_it_a_gpu() {
    let setup = setup();
    let args = ["bench", "--shape", "1,2,1,65,127,64", "--mask", "both", "--rows", "all", "--reps", "2"];
    let ended = setup.run(&[&args[..], &["--cold", "--json", "bench.json"]].concat(), &[]);
    assert!(ended.succeeded().stdout.contains("fake driver (no GPU)"), "{}", ended.stdout);
    let file = fs::read_to_string(setup.path().join("bench.json")).expect("written");
    let report: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    assert!(file.contains("fake driver (no GPU)"), "{file}");
    let results = report["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2);
    let rows = kernels_on_sm_89(64).len();
    for result in results {
        let measured = result["rows"].as_array().expect("a list");
        assert_eq!(measured.len(), rows);
        assert!(measured.iter().all(|row| row["timing"]["median_us"].as_f64() > Some(0.0)), "{result}");
    }
}

fn bench_times_lse_where_it_is_asked_for() {
    let setup = setup();
    let bench = |more: &[&str], faults: &[(&str, &str)]| {
        let args = ["bench", "--shape", "1,2,1,65,63,64", "--causal", "--reps", "3", "--force"];
        setup.run(&[&args[..], &["--json", "bench.json"], more].concat(), faults)
    };
    let report = || {
        let file = fs::read_to_string(setup.path().join("bench.json")).expect("written");
        serde_json::from_str::<serde_json::Value>(&file).expect("JSON")
    };
    let wrong_lse = [("FAKE_DRIVER_OUTPUT", "lse")];
    bench(&[], &wrong_lse).succeeded();
    assert_eq!(report()["method"]["lse"], false);
    assert_eq!(report()["results"][0]["rows"][0].get("times_us"), None);

    let ended = bench(&["--lse", "--replays"], &[]);
    assert!(ended.succeeded().stdout.contains("with LSE"), "{}", ended.stdout);
    assert_eq!(report()["method"]["lse"], true);
    let times = &report()["results"][0]["rows"][0]["times_us"];
    assert_eq!(times.as_array().map(Vec::len), Some(3), "{times}");

    let ended = bench(&["--lse", "--replays"], &wrong_lse);
    assert!(ended.code == Some(1) && ended.stdout.contains("WRONG"), "{}", ended.stdout);
    assert_eq!(report()["results"][0]["rows"][0].get("times_us"), None);
}

fn bench_measures_ranks_in_turns_with_one_device() {
    let setup = setup();
    let args = ["bench", "--shape", "1,2,2,131,131,64", "--causal", "--devices", "1,2", "--reps", "1"];
    let args = [&args[..], &["--warm-up", "1", "--json", "ranks.json", "--force"]].concat();
    let ended = setup.run(&args, &[]);
    let stdout = &ended.succeeded().stdout;
    assert!(stdout.contains("fake driver (no GPU)") && stdout.contains("lost to the schedule"), "{stdout}");
    let file = fs::read_to_string(setup.path().join("ranks.json")).expect("written");
    let file: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    let results = file["results"].as_array().expect("results");
    assert_eq!(results.len(), 6, "every method over one and over two");
    for result in results {
        let measured = &result["measured"];
        let ranks = measured["ranks"].as_array().expect("ranks");
        assert_eq!(ranks.len() as u64, measured["devices"].as_u64().expect("a number"));
        for rank in ranks {
            assert_eq!(rank["is_captured"], true);
            assert!(rank["timing"]["median_us"].as_f64().expect("a time") > 0.0);
            let pair = |what: &str| [0, 1].map(|at| rank[what][at].as_f64().expect("bytes"));
            // Chunks of so short a sequence differ by more than 5 %.
            let [received, predicted] = pair("received");
            assert!((received - predicted).abs() <= 0.1 * predicted, "{result}");
        }
    }

    let ended = setup.run(&[&args[..], &["--eager", "--method", "ring"]].concat(), &[]);
    assert!(ended.succeeded().stdout.contains("one by one"), "{}", ended.stdout);
    // Rows that a launch leaves wrong are other rows of the whole than of a rank.
    let ended = setup.run(&args, &[("FAKE_DRIVER_OUTPUT", "wrong")]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("outputs are wrong"), "{}", ended.stderr);
    setup.run(&["bench", "--devices", "2", "--device", "sim"], &[]).refused(2, &["--devices needs a GPU"]);
}

/// All ranks at once, each on a device of its own.
fn ranks_over_nccl_are_measured_and_verified() {
    let setup = setup();
    let nccl = ("FERROFLASH_LIBNCCL", fake_nccl().to_str().expect("UTF-8"));
    let two = ("FAKE_DRIVER_DEVICES", "2");
    let over = ["--devices", "2", "--over", "nccl", "--rank-limit", "60"];
    let bench = |shape: &str, more: &[&str], faults: &[(&str, &str)]| {
        let args = ["bench", "--shape", shape, "--reps", "1", "--warm-up", "0", "--repeats", "3"];
        let file = ["--json", "at-once.json", "--force"];
        setup.run(&[&args[..], &over, &file, more].concat(), &[&[two], faults].concat())
    };
    let ended = bench("1,8,8,37,37,64", &["--mask", "both"], &[nccl]);
    let stdout = &ended.succeeded().stdout;
    assert!(stdout.contains("3 calls bitwise equal") && stdout.contains("predicted on paper"), "{stdout}");
    let file = fs::read_to_string(setup.path().join("at-once.json")).expect("written");
    let file: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    let results = file["results"].as_array().expect("results");
    assert_eq!(results.len(), 6, "every method with both masks");
    for result in results {
        let ranks = result["measured"]["ranks"].as_array().expect("ranks");
        assert_eq!(ranks.len(), 2);
        assert!(ranks.iter().all(|rank| rank["received"].as_f64().expect("bytes") > 0.0), "{result}");
        assert!(result["measured"]["efficiency"].as_f64().expect("a share") > 0.0, "{result}");
    }
    bench("1,2,2,37,37,64", &["--graph", "--causal", "--method", "ring"], &[nccl]).succeeded();
    // One new token over a cache that is split.
    let ended = bench("2,4,2,1,300,64", &[], &[nccl]);
    assert!(ended.succeeded().stdout.contains("split cache"), "{}", ended.stdout);
    // Rows that a launch leaves wrong are other rows of the whole than of a rank.
    let ended = bench("1,2,2,37,37,64", &["--causal"], &[nccl, ("FAKE_DRIVER_OUTPUT", "wrong")]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("outputs are wrong"), "{}", ended.stderr);

    let verify = ["verify", "--shape", "1,4,2,77,77,64", "--causal", "--repeats", "2"];
    let ended = setup.run(&[&verify[..], &over].concat(), &[two, nccl]);
    let stdout = &ended.succeeded().stdout;
    let lines = ["2 runs bitwise equal", "every bit is one device's"];
    assert!(lines.iter().all(|line| stdout.contains(line)), "{stdout}");

    // Heads of a chunk are copied row by row where the driver takes no pitch but its own.
    let pitch = ("FAKE_DRIVER_PITCH", "own");
    setup.run(&[&verify[..], &over].concat(), &[two, nccl, pitch]).succeeded();

    let ended = setup.run(&[&verify[..], &over].concat(), &[nccl]);
    ended.refused(1, &["there is no device"]);
    let nowhere = ("FERROFLASH_LIBNCCL", "/nowhere/libnccl.so");
    setup
        .run(&[&verify[..], &over].concat(), &[two, nowhere])
        .refused(1, &["no NCCL", "/nowhere/libnccl.so"]);
    setup.run(&["bench", "--over", "nccl"], &[]).refused(2, &["--devices"]);
}

/// A large problem of a head_dim that has kernels with wgmma, and such a kernel's name.
fn wgmma_problem() -> (&'static Variant, String) {
    // Not head_dim 32, at which plans of such a problem may do without.
    let wanted = (Isa::Wgmma, Dtype::F16, 64);
    let is_it = |variant: &&Variant| (variant.row.isa, variant.row.dtype, variant.row.head_dim) == wanted;
    let variant = VARIANTS.iter().find(is_it).expect("in the table");
    (variant, format!("2,4,2,600,1100,{}", variant.row.head_dim))
}

fn wgmma_is_taken_where_device_and_driver_have_it() {
    let (setup, hopper) = (setup(), [("FAKE_DRIVER_SM", "90")]);
    let (_, shape) = wgmma_problem();
    let verify = |more: &[&str]| {
        let args = ["verify", "--device", "cuda", "--shape", &shape];
        let ended = setup.run(&[&args[..], more].concat(), &hopper);
        assert!(ended.succeeded().stdout.contains("fwd_wgmma_"), "{}", ended.stdout);
    };
    verify(&["--repeats", "3"]);
    verify(&["--causal", "--layout", "bshd"]);
    let plan = setup.run(&["plan", "--shape", &shape], &hopper);
    let stdout = &plan.succeeded().stdout;
    assert!(stdout.contains("because     with wgmma and bulk copies, which the device has"), "{stdout}");
    // More and less than what is 9.0 has other instructions.
    for sm in ["89", "100"] {
        let plan = setup.run(&["plan", "--shape", &shape], &[("FAKE_DRIVER_SM", sm)]);
        assert!(!plan.succeeded().stdout.contains("wgmma"), "{}", plan.stdout);
    }
}

fn a_driver_without_tensor_maps_has_the_other_kernels() {
    let (setup, old) = (setup(), [("FAKE_DRIVER_SM", "90"), ("FAKE_DRIVER_CUDA", "11.8")]);
    let (variant, shape) = wgmma_problem();
    let args = ["verify", "--device", "cuda", "--shape", &shape];
    let ended = setup.run(&args, &old);
    assert!(!ended.succeeded().stdout.contains("wgmma"), "{}", ended.stdout);
    let plan = setup.run(&["plan", "--shape", &shape], &old);
    assert!(
        plan.succeeded().stdout.contains("without wgmma, which the device has: its copies need a driver")
    );
    let named = setup.run(&[&args[..], &["--rows", variant.entry]].concat(), &old);
    named.refused(1, &["no tensor maps", "driver for CUDA 12.0 (525)", "a kernel without wgmma"]);
}

fn doctor_says_what_there_is() {
    let doctor = setup().run(&["doctor"], &[("FAKE_DRIVER_CUDA", "12.4")]);
    let stdout = &doctor.succeeded().stdout;
    for found in ["supports CUDA 12.4", "fake driver (no GPU), sm_89", "1.0 of 1.0 GiB free", "PTX sm_80 in"]
    {
        assert!(stdout.contains(found), "{found:?} is in: {stdout}");
    }
    let old = setup().run(&["doctor", "--json"], &[("FAKE_DRIVER_CUDA", "11.0")]).succeeded().json();
    let findings = old["findings"].as_array().expect("a list");
    let of =
        |topic: &str| findings.iter().find(|finding| finding["topic"] == topic).expect("it is looked at");
    assert_eq!((&of("PTX sm_80")["state"], &of("PTX sm_90a")["state"]), (&"missing".into(), &"note".into()));
    let load = of("device 0 load");
    assert_eq!(load["state"], "missing", "{load}");
    assert!(load["advice"].as_str().is_some_and(|advice| advice.contains("update the driver")), "{load}");
}

fn a_cubin_that_is_refused_gives_way_to_ptx() {
    let setup = setup();
    write_kernels(setup.kernels.path(), |kernel| {
        kernel.cubins.insert("sm_89".to_owned(), "kernel.cubin".to_owned());
    });
    fs::write(setup.kernels.path().join("kernel.cubin"), b"\x7fELF\0").expect("written");
    setup.run(&VERIFY, &[]).succeeded();
    let bench = setup.run(&["bench", "--shape", "1,2,1,65,127,64", "--reps", "1", "--json", "b.json"], &[]);
    bench.succeeded();
    let file = fs::read_to_string(setup.path().join("b.json")).expect("written");
    assert!(file.contains("PTX sm_80"), "it says what was loaded: {file}");
}

fn bench_measures_another_folders_kernels_in_turns() {
    let setup = setup();
    let before = folder();
    write_kernels(before.path(), |_| ());
    let before = before.path().to_str().expect("UTF-8");
    let args = ["bench", "--shape", "1,2,1,65,127,64", "--reps", "2", "--json", "b.json", "--force"];
    let ended = setup.run(&[&args[..], &["--baseline", before]].concat(), &[]);
    assert!(ended.succeeded().stdout.contains(" (baseline) "), "{}", ended.stdout);
    let file = fs::read_to_string(setup.path().join("b.json")).expect("written");
    let report: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    assert_eq!(report["baseline"]["folder"], before);
    let rows = report["results"][0]["rows"].as_array().expect("a list");
    assert_eq!((rows.len(), &rows[0]["entry"]), (2, &rows[1]["entry"]));
    let median = |row: usize| rows[row]["timing"]["median_us"].as_f64().expect("timed");
    let speed = rows[0]["speed_relative_to_baseline"].as_f64().expect("compared");
    assert!((speed - median(1) / median(0)).abs() < 1e-9, "{speed}");
    assert_eq!(rows[1]["is_baseline"], true);
    // What stands in that folder is what is loaded.
    fs::write(Path::new(before).join("sm_80.ptx"), "// nothing").expect("written");
    let ended = setup.run(&[&args[..], &["--baseline", before]].concat(), &[]);
    assert!(ended.code == Some(1) && ended.stderr.contains(before), "{}", ended.stderr);
    setup.run(&[&args[..], &["--baseline", "nowhere"]].concat(), &[]).refused(1, &["nowhere"]);
    let simulated = setup.run(&[&args[..], &["--baseline", before, "--device", "sim"]].concat(), &[]);
    simulated.refused(2, &["--baseline needs a GPU: the simulator has no times"]);
}

fn bench_waits_for_its_turn() {
    let setup = setup();
    let mut child = Command::new(binary())
        .args(["bench", "--shape", "1,2,1,65,127,64", "2,2,1,65,127,64", "--reps", "2", "--turns"])
        .current_dir(setup.path())
        .envs(setup.variables())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("piped");
    let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut turn = || output.by_ref().map(|line| line.expect("UTF-8")).find(|line| line.starts_with("turn "));
    for done in 0..=2 {
        assert_eq!(turn(), Some(format!("turn {done} of 2: 1,2,1,65,127,64 f16 full")));
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().expect("it is ours").is_none(), "it waits");
        input.write_all(b"\n").expect("it reads");
    }
    assert_eq!(turn().as_deref(), Some("turn 0 of 2: 2,2,1,65,127,64 f16 full"));
    // Who took turns with it is gone: it goes on.
    drop(input);
    assert_eq!(turn().as_deref(), Some("turn 1 of 2: 2,2,1,65,127,64 f16 full"));
    assert_eq!(turn().as_deref(), Some("turn 2 of 2: 2,2,1,65,127,64 f16 full"));
    assert_eq!(turn(), None);
    assert!(child.wait().expect("it ends").success());
}

fn no_device_is_an_error_and_auto_goes_on() {
    let (setup, none) = (setup(), [("FAKE_DRIVER_DEVICES", "0")]);
    setup.run_refused(
        &["--device", "cuda"],
        &none,
        &["there is no CUDA device", "fake_driver", "--device cpu"],
    );
    let auto = setup.run_compiled(&RUN, &none);
    let stderr = &auto.succeeded().stderr;
    assert!(stderr.contains("device: simulator") && stderr.contains("there is no CUDA device"), "{stderr}");
}

fn a_driver_that_does_not_start_says_why() {
    let mismatch = [("FAKE_DRIVER_INIT_ERROR", "803")];
    let needles = ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "unsupported display driver", "--device cpu"];
    setup().run_refused(&["--device", "cuda"], &mismatch, &needles);
}

fn a_device_too_old_is_an_error_and_auto_goes_on() {
    let (setup, old) = (setup(), [("FAKE_DRIVER_SM", "75")]);
    setup.run_refused(
        &["--device", "cuda"],
        &old,
        &["fake driver (no GPU) is sm_75", "sm_80", "--device cpu"],
    );
    let auto = setup.run_compiled(&RUN, &old);
    let stderr = &auto.succeeded().stderr;
    assert!(stderr.contains("device: simulator") && stderr.contains("is sm_75"), "{stderr}");
}

fn a_device_number_that_does_not_exist_is_refused() {
    setup().run_refused(&["--device", "cuda", "--ordinal", "3"], &[], &["no device 3", "it has 1"]);
}

fn a_driver_too_old_for_the_ptx_says_so() {
    // PTX 7.4 came with CUDA 11.4.
    let needles = ["supports CUDA 11.3", "fwd_f16_d64", "update the driver", "--cubin"];
    setup().run_refused(&[], &[("FAKE_DRIVER_CUDA", "11.3")], &needles);
    setup().run(&VERIFY, &[("FAKE_DRIVER_CUDA", "11.4")]).succeeded();
}

fn refused_ptx_shows_the_drivers_log() {
    let log =
        "ptxas application ptx input, line 12; error   : Unknown symbol 'x'\n\nptxas fatal   : aborted\n";
    let needles =
        ["refused the PTX of fwd_f16_d64", "CUDA_ERROR_INVALID_PTX", "line 12; error", "fatal   : aborted"];
    setup().run_refused(&[], &[("FAKE_DRIVER_PTX_LOG", log)], &needles);
    // Longer than the room for it.
    let long = "x".repeat(20_000);
    setup().run_refused(&[], &[("FAKE_DRIVER_PTX_LOG", &long)], &["refused the PTX", "xxx"]);
}

fn out_of_memory_names_what_was_requested_and_what_is_free() {
    // Q and O take 65 · 4 · 64 · 2 = 33280 bytes, K and V 127 · 2 · 64 · 2 = 32512.
    let memory = |bytes: &'static str| [("FAKE_DRIVER_MEMORY", bytes)];
    let needles = ["out of device memory", "33280 bytes requested", "1000 free"];
    setup().run_refused(&[], &memory("1000"), &needles);
    let needles = ["32512 bytes requested", "6720 free"];
    setup().run_refused(&[], &memory("40000"), &needles);
    let setup = setup();
    let bench = setup.run(&["bench", "--shape", "1,4,2,65,127,64", "--json", "b.json"], &memory("1000"));
    bench.refused_after_output(1, &["out of device memory", "1000 free"]);
}

fn a_failing_launch_is_one_line() {
    let needles = ["CUDA", "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"];
    setup().run_refused(&[], &[("FAKE_DRIVER_LAUNCH_ERROR", "700")], &needles);
}

fn no_kernels_is_one_line() {
    let setup = setup();
    fs::remove_file(setup.kernels.path().join("manifest.json")).expect("removed");
    setup.run_refused(&[], &[], &["no compiled kernels", "cargo xtask build-ptx", "FERROFLASH_PTX"]);
    write_kernels(setup.kernels.path(), |_| ());
    fs::write(setup.kernels.path().join("sm_80.ptx"), "other").expect("written");
    setup.run_refused(&[], &[], &["sm_80.ptx", "SHA-256", "build-ptx"]);
}

fn ctrl_c_during_a_launch_leaves_nothing() {
    let setup = setup();
    setup.write_qkv();
    let mut child = Command::new(binary())
        .args(RUN)
        .current_dir(setup.path())
        .envs(setup.variables())
        .env("FAKE_DRIVER_LAUNCH_MS", "600000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while names(setup.path()).len() < 2 {
        assert!(Instant::now() < deadline, "the temporary file appears");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Reading, opening and copying take far less.
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().expect("it is ours").is_none(), "it waits for the launch");
    let interrupted = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(interrupted.expect("sh runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(names(setup.path()), ["qkv.safetensors"]);
}
