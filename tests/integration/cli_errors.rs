//! Bad input: one clear line, the right exit code, and nothing written.

use crate::support::{
    self, Ended, binary, ferroflash, ferroflash_with, folder, halves, names, npy, safetensors, write_qkv,
};
use std::fs;
use std::path::Path;
use std::process::Command;

support::trials!(
    a_missing_file_is_named,
    a_truncated_safetensors_file_is_refused,
    foreign_files_are_refused,
    a_hostile_header_is_refused,
    a_missing_tensor_is_named_with_those_found,
    a_wrong_rank_is_refused,
    a_wrong_dtype_is_refused,
    mixed_dtypes_are_refused,
    a_mismatched_batch_head_count_or_head_dim_is_refused,
    heads_that_do_not_divide_are_refused,
    an_unsupported_head_dim_names_those_supported,
    zero_sized_dimensions_are_refused,
    sizes_that_overflow_are_refused,
    values_too_large_for_the_dtype_are_refused,
    a_truncated_npy_file_is_refused,
    an_npy_file_in_fortran_order_is_refused,
    one_npy_file_is_misuse,
    an_existing_output_needs_force,
    an_output_that_cannot_be_written_leaves_nothing,
    a_disk_that_fills_up_leaves_nothing,
    results_that_cannot_be_shown_are_a_failure,
    an_output_of_unknown_kind_is_misuse,
    an_output_that_is_a_folder_is_refused,
    bad_metadata_is_refused_and_can_be_overridden,
    a_bad_scale_is_misuse,
    bad_shapes_in_arguments_are_misuse,
    bad_lengths_and_splits_are_misuse,
    unknown_and_missing_arguments_are_misuse,
    no_driver_is_one_line,
    an_output_that_is_an_input_is_refused,
    rows_without_kernels_are_misuse,
    bench_without_a_driver_is_one_line,
    doctor_says_what_to_do_without_a_driver,
);

const SHAPE: &[usize] = &[1, 2, 3, 32];

/// Runs `run` on `qkv.safetensors`, and asserts that nothing new lies in the folder.
fn run(folder: &Path, more: &[&str]) -> Ended {
    let args = ["run", "--device", "cpu", "--input", "qkv.safetensors", "--output", "o.safetensors"];
    run_args(folder, &[&args, more].concat())
}

fn run_args(folder: &Path, args: &[&str]) -> Ended {
    let before = names(folder);
    let ended = ferroflash(folder, args);
    if ended.code != Some(0) {
        assert_eq!(names(folder), before, "nothing is left behind");
    }
    ended
}

fn write(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("qkv.safetensors"), bytes).expect("written");
}

fn good_file() -> Vec<u8> {
    safetensors(&["q", "k", "v"].map(|name| (name, "F16", SHAPE, halves(SHAPE))), &[])
}

fn a_missing_file_is_named() {
    let folder = folder();
    run(folder.path(), &[]).refused(1, &["qkv.safetensors", "No such file"]);
}

fn a_truncated_safetensors_file_is_refused() {
    let folder = folder();
    let file = good_file();
    write(folder.path(), &file[..file.len() - 1]);
    run(folder.path(), &[]).refused(1, &["qkv.safetensors", "truncated?"]);
    write(folder.path(), &file[..40]);
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file"]);
    write(folder.path(), &file[..4]);
    run(folder.path(), &[]).refused(1, &["too short"]);
    write(folder.path(), &[]);
    run(folder.path(), &[]).refused(1, &["too short"]);
}

fn foreign_files_are_refused() {
    let folder = folder();
    write(folder.path(), b"PK\x03\x04 this is a zip archive, as torch.save makes them");
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file", "another kind of file"]);
    write(folder.path(), &[&16_u64.to_le_bytes()[..], b"{\"a\": \n\n nonsense"].concat());
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file"]);
}

fn a_hostile_header_is_refused() {
    let folder = folder();
    write(folder.path(), &[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file"]);
    let nested = "[".repeat(100_000);
    write(folder.path(), &[&100_000_u64.to_le_bytes()[..], nested.as_bytes()].concat());
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file"]);
}

fn a_missing_tensor_is_named_with_those_found() {
    let folder = folder();
    let tensors = ["q", "k", "value"].map(|name| (name, "F16", SHAPE, halves(SHAPE)));
    write(folder.path(), &safetensors(&tensors, &[]));
    run(folder.path(), &[]).refused(1, &["no tensor \"v\"", "[\"k\", \"q\", \"value\"]"]);
}

fn a_wrong_rank_is_refused() {
    let folder = folder();
    write_qkv(folder.path(), SHAPE, &[2, 3, 32], SHAPE);
    run(folder.path(), &[]).refused(1, &["tensor k", "[2, 3, 32]", "4 dimensions"]);
}

fn a_wrong_dtype_is_refused() {
    let folder = folder();
    for (dtype, bytes) in [("I32", 4), ("F64", 8), ("U8", 1)] {
        let tensors = ["q", "k", "v"].map(|name| (name, dtype, SHAPE, vec![0; bytes * 6 * 32]));
        write(folder.path(), &safetensors(&tensors, &[]));
        run(folder.path(), &[]).refused(1, &["tensor q has dtype", "f16, bf16 and f32"]);
    }
}

fn mixed_dtypes_are_refused() {
    let folder = folder();
    let [q, k] = ["q", "k"].map(|name| (name, "F16", SHAPE, halves(SHAPE)));
    write(folder.path(), &safetensors(&[q, k, ("v", "F32", SHAPE, vec![0; 4 * 6 * 32])], &[]));
    run(folder.path(), &[]).refused(1, &["tensor v has dtype f32", "the others f16", "--dtype"]);
    run(folder.path(), &["--dtype", "bf16"]).succeeded();
}

fn a_mismatched_batch_head_count_or_head_dim_is_refused() {
    let folder = folder();
    for (k, v, tensor) in [
        ([2, 2, 3, 32], [2, 2, 3, 32], "K"),
        ([1, 2, 3, 64], [1, 2, 3, 64], "K"),
        ([1, 2, 3, 32], [1, 1, 3, 32], "V"),
        ([1, 2, 3, 32], [1, 2, 4, 32], "V"),
    ] {
        write_qkv(folder.path(), SHAPE, &k, &v);
        run(folder.path(), &[]).refused(1, &[&format!("{tensor} has shape")]);
    }
}

fn heads_that_do_not_divide_are_refused() {
    let folder = folder();
    write_qkv(folder.path(), &[1, 8, 3, 32], &[1, 3, 3, 32], &[1, 3, 3, 32]);
    run(folder.path(), &[]).refused(1, &["heads_q 8 is not a multiple of heads_kv 3"]);
}

fn an_unsupported_head_dim_names_those_supported() {
    let folder = folder();
    let shape = [1, 2, 3, 84];
    write_qkv(folder.path(), &shape, &shape, &shape);
    run(folder.path(), &[]).refused(1, &["head_dim 84", "multiples of 8 up to 256"]);
}

fn zero_sized_dimensions_are_refused() {
    let folder = folder();
    for (q, k) in
        [([0, 2, 3, 32], [0, 2, 3, 32]), ([1, 2, 3, 32], [1, 2, 0, 32]), ([1, 2, 3, 0], [1, 2, 3, 0])]
    {
        write_qkv(folder.path(), &q, &k, &k);
        run(folder.path(), &[]).refused(1, &["zero-sized dimension"]);
    }
}

fn sizes_that_overflow_are_refused() {
    let folder = folder();
    let huge: &[usize] = &[1 << 31, 1 << 31, 1 << 31, 32];
    write(folder.path(), &safetensors(&["q", "k", "v"].map(|name| (name, "F16", huge, Vec::new())), &[]));
    run(folder.path(), &[]).refused(1, &["not a readable safetensors file"]);
    let path = folder.path().join("huge.npy");
    fs::write(&path, npy("<f2", false, "(4294967296, 4294967296, 4294967296, 32)", &[])).expect("written");
    let files = ["run", "--device", "cpu", "--input", "huge.npy,huge.npy,huge.npy", "--output", "o.npy"];
    run_args(folder.path(), &files).refused(1, &["too large"]);
    let shape = "4294967295,1,1,4294967295,4294967295,64";
    run_args(folder.path(), &["verify", "--device", "cpu", "--shape", shape])
        .refused(2, &["--shape", "too large"]);
    let shape = "1000000000,1000000000,1,1000000000,1,64";
    run_args(folder.path(), &["verify", "--device", "cpu", "--shape", shape])
        .refused(2, &["--shape", "too large"]);
}

fn values_too_large_for_the_dtype_are_refused() {
    let folder = folder();
    let large = 70000_f32.to_le_bytes().repeat(6 * 32);
    write(folder.path(), &safetensors(&["q", "k", "v"].map(|name| (name, "F32", SHAPE, large.clone())), &[]));
    run(folder.path(), &[]).refused(1, &["tensor q holds 70000", "bf16"]);
    run(folder.path(), &["--dtype", "bf16"]).succeeded();
}

fn a_truncated_npy_file_is_refused() {
    let folder = folder();
    let file = npy("<f2", false, "(1, 2, 3, 32)", &halves(SHAPE));
    for (length, reason) in [(file.len() - 2, "truncated?"), (30, "inside its header"), (4, "does not start")]
    {
        fs::write(folder.path().join("q.npy"), &file[..length]).expect("written");
        let args = ["run", "--device", "cpu", "--input", "q.npy,q.npy,q.npy", "--output", "o.npy"];
        run_args(folder.path(), &args).refused(1, &["q.npy", "not a readable npy file", reason]);
    }
}

fn an_npy_file_in_fortran_order_is_refused() {
    let folder = folder();
    fs::write(folder.path().join("q.npy"), npy("<f2", true, "(1, 2, 3, 32)", &halves(SHAPE)))
        .expect("written");
    let args = ["run", "--device", "cpu", "--input", "q.npy,q.npy,q.npy", "--output", "o.npy"];
    run_args(folder.path(), &args).refused(1, &["Fortran order", "ascontiguousarray"]);
}

fn one_npy_file_is_misuse() {
    let folder = folder();
    let args = ["run", "--device", "cpu", "--input", "q.npy", "--output", "o.npy"];
    run_args(folder.path(), &args).refused(2, &["three .npy files"]);
}

fn an_existing_output_needs_force() {
    let folder = folder();
    write(folder.path(), &good_file());
    let output = folder.path().join("o.safetensors");
    fs::write(&output, "precious").expect("written");
    run(folder.path(), &[]).refused(1, &["o.safetensors exists", "--force"]);
    assert_eq!(fs::read(&output).expect("still there"), b"precious");
    run(folder.path(), &["--force"]).succeeded();
    assert_ne!(fs::read(&output).expect("replaced"), b"precious");
    assert_eq!(names(folder.path()), ["o.safetensors", "qkv.safetensors"]);
}

fn an_output_that_cannot_be_written_leaves_nothing() {
    let folder = folder();
    write(folder.path(), &good_file());
    let args = ["run", "--device", "cpu", "--input", "qkv.safetensors", "--output"];
    let to = |output| run_args(folder.path(), &[&args[..], &[output]].concat());
    to("missing/o.safetensors").refused(1, &["missing/o.safetensors", "No such file"]);
    to("qkv.safetensors/o.safetensors").refused(1, &["Not a directory"]);
    // Nobody may make a file there, root neither.
    to("/proc/o.safetensors").refused(1, &["/proc/o.safetensors"]);
}

/// The system ends a file at a limit as it does on a full disk: with an error in the middle of writing.
fn a_disk_that_fills_up_leaves_nothing() {
    let folder = folder();
    let shape = [1, 4, 256, 64];
    write_qkv(folder.path(), &shape, &shape, &shape);
    let limited = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited])
        .arg(binary())
        .args(["run", "--device", "cpu", "--input", "qkv.safetensors", "--output", "o.safetensors"])
        .current_dir(folder.path())
        .output()
        .expect("sh starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: o.safetensors: File too large"), "{stderr}");
    assert_eq!(names(folder.path()), ["qkv.safetensors"]);
}

fn results_that_cannot_be_shown_are_a_failure() {
    let folder = folder();
    for args in [&["verify", "--device", "cpu", "--shape", "1,1,1,2,2,32", "--json"][..], &["doctor"]] {
        // Each write to it fails as on a full disk.
        let full = fs::File::create("/dev/full").expect("it is there");
        let command = Command::new(binary()).args(args).current_dir(folder.path()).stdout(full).output();
        let output = command.expect("the command starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("error: stdout: No space left on device"), "{stderr}");
    }
}

fn an_output_of_unknown_kind_is_misuse() {
    let folder = folder();
    write(folder.path(), &good_file());
    let args = ["run", "--device", "cpu", "--input", "qkv.safetensors", "--output"];
    run_args(folder.path(), &[&args[..], &["o.pt"]].concat()).refused(2, &["o.pt", ".safetensors or .npy"]);
    run_args(folder.path(), &[&args[..], &["o.npy", "--lse"]].concat()).refused(2, &["o.npy", "LSE"]);
}

fn an_output_that_is_a_folder_is_refused() {
    let folder = folder();
    write(folder.path(), &good_file());
    fs::create_dir(folder.path().join("o.safetensors")).expect("made");
    run(folder.path(), &["--force"]).refused(1, &["o.safetensors cannot be written", "not a file"]);
}

fn bad_metadata_is_refused_and_can_be_overridden() {
    let folder = folder();
    let tensors = || ["q", "k", "v"].map(|name| (name, "F16", SHAPE, halves(SHAPE)));
    write(folder.path(), &safetensors(&tensors(), &[("scale", "one"), ("format", "pt")]));
    run(folder.path(), &[]).refused(1, &["metadata", "scale", "\"one\"", "--scale"]);
    run(folder.path(), &["--scale", "1"]).succeeded();
    write(folder.path(), &safetensors(&tensors(), &[("mask", "tree")]));
    run(folder.path(), &["--force"]).refused(1, &["metadata", "mask", "\"tree\"", "--causal"]);
}

fn a_bad_scale_is_misuse() {
    let folder = folder();
    write(folder.path(), &good_file());
    for scale in ["0", "-1", "inf", "nan", "1e39"] {
        run(folder.path(), &["--scale", scale]).refused(2, &["--scale"]);
    }
    run(folder.path(), &["--scale", "big"]).refused(2, &["--scale"]);
}

fn bad_shapes_in_arguments_are_misuse() {
    let folder = folder();
    for (shape, needle) in [
        ("1,8,3,20,20,64", "not a multiple"),
        ("1,8,8,20,20,84", "multiples of 8 up to 256"),
        ("1,0,8,20,20,64", "zero-sized"),
        ("1,8,8,20,20", "6 sizes"),
        ("1,8,8,20,20,x", "\"x\" is not a size"),
        ("1,8,8,20,-20,64", "\"-20\" is not a size"),
        ("100000,1000,1000,100000,100000,64", "the memory in bytes"),
    ] {
        run_args(folder.path(), &["verify", "--device", "cpu", "--shape", shape])
            .refused(2, &["--shape", needle]);
    }
}

fn bad_lengths_and_splits_are_misuse() {
    let folder = folder();
    write(folder.path(), &good_file());
    run(folder.path(), &["--lengths", "4"]).refused(2, &["--lengths", "sequence 0 has 4 keys", "hold 3"]);
    run(folder.path(), &["--lengths", "1,2"]).refused(2, &["--lengths", "seqlens_k holds 2", "needs 1"]);
    run(folder.path(), &["--lengths", "none"]).refused(2, &["--lengths"]);
    run(folder.path(), &["--splits", "257"]).refused(2, &["--splits", "at most 256"]);
    run(folder.path(), &["--splits", "0"]).refused(2, &["--splits", "at least 1"]);
    run(folder.path(), &["--split-size", "0"]).refused(2, &["--split-size"]);
    run(folder.path(), &["--splits", "1", "--split-size", "64"]).refused(2, &["cannot be used with"]);
    run(folder.path(), &["--lengths", "3", "--splits", "2"]).succeeded();
}

fn unknown_and_missing_arguments_are_misuse() {
    let folder = folder();
    run_args(folder.path(), &["run", "--speed", "11"]).refused(2, &["--speed"]);
    run_args(folder.path(), &["run"]).refused(2, &["--input", "--output"]);
    run_args(folder.path(), &["fly"]).refused(2, &["fly"]);
    run_args(folder.path(), &["verify"]).refused(2, &["--input", "--shape", "--grid"]);
    run_args(folder.path(), &["verify", "--shape", "1,1,1,1,1,32", "--grid", "odd"]).refused(2, &["--grid"]);
}

fn an_output_that_is_an_input_is_refused() {
    let folder = folder();
    write(folder.path(), &good_file());
    fs::create_dir(folder.path().join("sub")).expect("made");
    std::os::unix::fs::symlink("qkv.safetensors", folder.path().join("link.safetensors")).expect("made");
    let absolute = folder.path().join("qkv.safetensors");
    let absolute = absolute.to_str().expect("UTF-8");
    let spellings =
        ["qkv.safetensors", "./qkv.safetensors", "sub/../qkv.safetensors", "link.safetensors", absolute];
    for input in spellings {
        for output in spellings {
            let args = ["run", "--device", "cpu", "--input", input, "--output", output];
            for force in [&[][..], &["--force"]] {
                run_args(folder.path(), &[&args, force].concat())
                    .refused(2, &["--output", output, "is an input"]);
            }
        }
    }
    assert_eq!(fs::read(absolute).expect("read"), good_file(), "it is as it was");
    // On stdin it is the same file.
    let stdin = fs::File::open(absolute).expect("opened");
    let mut command = Command::new(binary());
    command.args(["run", "--device", "cpu", "--input", "-", "--output", absolute, "--force"]).stdin(stdin);
    let ended = command.output().expect("the command starts");
    assert_eq!(ended.status.code(), Some(2), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(fs::read(absolute).expect("read"), good_file(), "it is as it was");
}

fn no_driver_is_one_line() {
    let folder = folder();
    write(folder.path(), &good_file());
    let missing = [("FERROFLASH_LIBCUDA", "/nonexistent/libcuda.so")];
    let args = ["run", "--input", "qkv.safetensors", "--output", "o.safetensors", "--device"];
    let cuda = ferroflash_with(folder.path(), &[&args[..], &["cuda"]].concat(), &missing);
    cuda.refused(1, &["no CUDA driver", "/nonexistent/libcuda.so", "use --device cpu"]);
    // What a command has no device for is not advised.
    let bench = ["bench", "--shape", "1,1,1,64,64,64"];
    let bench = ferroflash_with(folder.path(), &bench, &missing);
    bench.refused(1, &["no CUDA driver", "--device sim"]);
    assert!(!bench.stderr.contains("--device cpu"), "{}", bench.stderr);
    assert_eq!(names(folder.path()), ["qkv.safetensors"]);
    let auto = ferroflash_with(folder.path(), &[&args[..], &["auto"]].concat(), &missing);
    assert!(auto.succeeded().stderr.contains("device: simulator"), "{}", auto.stderr);
    assert!(auto.stderr.contains("/nonexistent/libcuda.so"), "it says why: {}", auto.stderr);
}

fn rows_without_kernels_are_misuse() {
    let folder = folder();
    let args = ["verify", "--device", "cpu", "--grid", "odd"];
    run_args(folder.path(), &args).refused(2, &["--grid needs kernels", "--device cuda"]);
    let args = ["verify", "--device", "cpu", "--shape", "1,1,1,1,1,32", "--rows", "all"];
    run_args(folder.path(), &args).refused(2, &["--rows needs kernels"]);
}

fn bench_without_a_driver_is_one_line() {
    let folder = folder();
    let args = ["bench", "--shape", "1,1,1,64,64,64", "--json", "bench.json"];
    let bench = ferroflash_with(folder.path(), &args, &[("FERROFLASH_LIBCUDA", "/nonexistent/libcuda.so")]);
    bench.refused(1, &["no CUDA driver", "/nonexistent/libcuda.so"]);
    assert!(names(folder.path()).is_empty());
    run_args(folder.path(), &["bench", "--shape", "1,8,3,20,20,64"]).refused(2, &["not a multiple"]);
}

fn doctor_says_what_to_do_without_a_driver() {
    let folder = folder();
    let doctor =
        ferroflash_with(folder.path(), &["doctor"], &[("FERROFLASH_LIBCUDA", "/nonexistent/libcuda.so")]);
    assert!(doctor.stdout.contains("driver"), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("/nonexistent/libcuda.so"), "{}", doctor.stdout);
    assert!(!doctor.stderr.contains("panicked"), "{}", doctor.stderr);
}
