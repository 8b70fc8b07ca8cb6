//! `ferroflash run` as a process.

use crate::support::{self, ferroflash, folder, halves, names, npy, safetensors, tensor, write_qkv};
use half::{bf16, f16};
use std::fs;

support::trials!(
    equal_values_come_out_as_they_went_in,
    npy_in_and_out,
    bf16_leaves_npy_as_float32,
    the_output_says_what_it_is_and_is_the_same_every_time,
    json_is_one_value,
    layouts_agree,
    the_file_says_the_mask_and_the_command_line_overrides_it,
    lengths_hide_what_lies_behind_them,
    help_has_examples,
);

const RUN: [&str; 7] = ["run", "--device", "cpu", "--input", "qkv.safetensors", "--output", "o.safetensors"];

fn equal_values_come_out_as_they_went_in() {
    let folder = folder();
    write_qkv(folder.path(), &[1, 4, 5, 32], &[1, 2, 7, 32], &[1, 2, 7, 32]);
    ferroflash(folder.path(), &[&RUN[..], &["--lse"]].concat()).succeeded();
    let output = folder.path().join("o.safetensors");
    let (o, entry) = tensor(&output, "o");
    assert_eq!(o, halves(&[1, 4, 5, 32]));
    assert_eq!(entry["shape"], serde_json::json!([1, 4, 5, 32]));
    assert_eq!(entry["dtype"], "F16");
    let (lse, entry) = tensor(&output, "lse");
    assert_eq!(entry["shape"], serde_json::json!([1, 4, 5]));
    // Scores are 32 · 0.25 / √32, of 7 equal keys.
    let expected = 8.0 / 32_f64.sqrt() + 7_f64.ln();
    for bytes in lse.as_chunks().0 {
        assert!((f64::from(f32::from_le_bytes(*bytes)) - expected).abs() < 1e-6);
    }
}

fn npy_in_and_out() {
    let folder = folder();
    let shape = [1, 2, 3, 32];
    for name in ["q.npy", "k.npy", "v.npy"] {
        fs::write(folder.path().join(name), npy("<f2", false, "(1, 2, 3, 32)", &halves(&shape)))
            .expect("written");
    }
    let args = ["run", "--device", "cpu", "--input", "q.npy,k.npy,v.npy", "--output", "o.npy"];
    ferroflash(folder.path(), &args).succeeded();
    let expected = npy("<f2", false, "(1, 2, 3, 32)", &halves(&shape));
    assert_eq!(fs::read(folder.path().join("o.npy")).expect("written"), expected);
}

fn bf16_leaves_npy_as_float32() {
    let folder = folder();
    write_qkv(folder.path(), &[1, 1, 2, 32], &[1, 1, 2, 32], &[1, 1, 2, 32]);
    let args =
        ["run", "--device", "cpu", "--input", "qkv.safetensors", "--dtype", "bf16", "--output", "o.npy"];
    ferroflash(folder.path(), &args).succeeded();
    let expected = npy("<f4", false, "(1, 1, 2, 32)", &bf16::from_f32(0.5).to_f32().to_le_bytes().repeat(64));
    assert_eq!(fs::read(folder.path().join("o.npy")).expect("written"), expected);
}

fn the_output_says_what_it_is_and_is_the_same_every_time() {
    let folder = folder();
    write_qkv(folder.path(), &[1, 1, 2, 32], &[1, 1, 2, 32], &[1, 1, 2, 32]);
    let mut files = Vec::new();
    for _ in 0..3 {
        ferroflash(folder.path(), &[&RUN[..], &["--force", "--lse", "--causal"]].concat()).succeeded();
        files.push(fs::read(folder.path().join("o.safetensors")).expect("written"));
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
    let (length, rest) = files[0].split_first_chunk::<8>().expect("a header length");
    let length = u64::from_le_bytes(*length) as usize;
    let header: serde_json::Value = serde_json::from_slice(&rest[..length]).expect("a JSON header");
    assert_eq!(header["__metadata__"]["mask"], "causal");
    assert_eq!(header["__metadata__"]["layout"], "bhsd");
    assert_eq!(length % 8, 0, "data is aligned");
}

fn json_is_one_value() {
    let folder = folder();
    write_qkv(folder.path(), &[1, 1, 2, 32], &[1, 1, 2, 32], &[1, 1, 2, 32]);
    let ended = ferroflash(folder.path(), &[&RUN[..], &["--json"]].concat());
    let report = ended.succeeded().json();
    assert_eq!(report["output"], "o.safetensors");
    assert_eq!(report["problem"]["seqlen_k"], 2);
    assert!(report["device"].as_str().is_some_and(|device| device.contains("CPU")));
}

/// Element (head, row, d) of a 3-head, 5-row tensor, different for every one.
fn value(head: usize, row: usize, d: usize, salt: usize) -> f32 {
    ((head * 31 + row * 17 + d * 7 + salt * 13) % 23) as f32 / 8.0 - 1.0
}

fn layouts_agree() {
    let folder = folder();
    let bytes = |bshd: bool, salt| -> Vec<u8> {
        let mut elements = Vec::new();
        let (outer, inner) = if bshd { (5, 3) } else { (3, 5) };
        for i in 0..outer {
            for j in 0..inner {
                let (head, row) = if bshd { (j, i) } else { (i, j) };
                elements.extend((0..32).flat_map(|d| f16::from_f32(value(head, row, d, salt)).to_le_bytes()));
            }
        }
        elements
    };
    let outputs = [false, true].map(|bshd| {
        let shape: &[usize] = if bshd { &[1, 5, 3, 32] } else { &[1, 3, 5, 32] };
        let tensors =
            [("q", 0), ("k", 1), ("v", 2)].map(|(name, salt)| (name, "F16", shape, bytes(bshd, salt)));
        fs::write(folder.path().join("qkv.safetensors"), safetensors(&tensors, &[])).expect("written");
        let layout = if bshd { "bshd" } else { "bhsd" };
        ferroflash(folder.path(), &[&RUN[..], &["--force", "--causal", "--layout", layout]].concat())
            .succeeded();
        tensor(&folder.path().join("o.safetensors"), "o").0
    });
    let row = |output: usize, head: usize, row: usize| {
        let at = if output == 1 { row * 3 + head } else { head * 5 + row };
        &outputs[output][at * 64..][..64]
    };
    for head in 0..3 {
        for r in 0..5 {
            assert_eq!(row(0, head, r), row(1, head, r), "head {head} row {r}");
        }
    }
    assert_ne!(row(0, 0, 0), row(0, 1, 1), "the values differ at all");
}

fn the_file_says_the_mask_and_the_command_line_overrides_it() {
    let folder = folder();
    let shape: &[usize] = &[1, 1, 2, 32];
    let v: Vec<u8> = [1.0, 3.0].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes().repeat(32)).collect();
    let tensors =
        [("q", "F16", shape, halves(shape)), ("k", "F16", shape, halves(shape)), ("v", "F16", shape, v)];
    let file = safetensors(&tensors, &[("mask", "causal")]);
    fs::write(folder.path().join("qkv.safetensors"), file).expect("written");
    let first_element = |more: &[&str]| {
        ferroflash(folder.path(), &[&RUN[..], &["--force"], more].concat()).succeeded();
        let (o, _) = tensor(&folder.path().join("o.safetensors"), "o");
        f16::from_le_bytes([o[0], o[1]]).to_f32()
    };
    assert_eq!(first_element(&[]), 1.0, "row 0 sees key 0 alone");
    assert_eq!(first_element(&["--causal=false"]), 2.0, "row 0 sees both keys");
    assert_eq!(names(folder.path()), ["o.safetensors", "qkv.safetensors"]);
}

fn lengths_hide_what_lies_behind_them() {
    let folder = folder();
    let shape: &[usize] = &[2, 1, 3, 32];
    let bytes =
        |values: [f32; 6]| values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes().repeat(32)).collect();
    let q = ("q", "F16", &[2, 1, 1, 32][..], halves(&[2, 1, 1, 32]));
    let k = ("k", "F16", shape, bytes([0.5, 0.5, f32::NAN, 0.5, 0.5, 0.5]));
    let v = ("v", "F16", shape, bytes([1.0, 3.0, f32::NAN, 1.0, 1.0, 4.0]));
    fs::write(folder.path().join("qkv.safetensors"), safetensors(&[q, k, v], &[])).expect("written");
    let first_elements = |lengths: &str| {
        ferroflash(folder.path(), &[&RUN[..], &["--force", "--lengths", lengths]].concat()).succeeded();
        let (o, _) = tensor(&folder.path().join("o.safetensors"), "o");
        [0, 64].map(|at| f16::from_le_bytes([o[at], o[at + 1]]).to_f32())
    };
    assert_eq!(first_elements("2,3"), [2.0, 2.0]);
    assert_eq!(first_elements("1,0"), [1.0, 0.0]);
}

fn help_has_examples() {
    let folder = folder();
    for command in ["run", "verify", "bench", "plan"] {
        let ended = ferroflash(folder.path(), &[command, "--help"]);
        assert!(ended.succeeded().stdout.contains(&format!("  ferroflash {command} --")), "{}", ended.stdout);
    }
}
