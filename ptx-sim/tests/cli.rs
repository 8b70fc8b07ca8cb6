//! The command `ptx-sim` as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

/// `o[i] = scale · x[i] + n`, a thread each, with an exchange through shared memory; threads beyond n do nothing.
const KERNEL: &str = "\
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 tile[];
.visible .entry affine(.param .u64 x, .param .u64 o, .param .u32 n, .param .f32 scale)
{
    .reg .pred %p;
    .reg .b32 %r<9>;
    .reg .b64 %d<6>;
    .reg .f32 %f<4>;
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [o];
    ld.param.u32 %r0, [n];
    ld.param.f32 %f0, [scale];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    ld.global.f32 %f1, [%d3];
    mov.u32 %r5, tile;
    mad.lo.u32 %r6, %r1, 4, %r5;
    st.shared.f32 [%r6], %f1;
    ld.shared.f32 %f2, [%r6];
    cvt.rn.f32.u32 %f3, %r0;
    fma.rn.f32 %f2, %f2, %f0, %f3;
    st.global.f32 [%d4], %f2;
DONE:
    ret;
}
";

/// `p.o[i] = p.n · (p.x[i] + y[i])` of a struct `{ const float *x; unsigned n; float *o; } p`.
const OF_A_STRUCT: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry sum(.param .align 8 .b8 p[24], .param .u64 y)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<9>;
    .reg .f32 %f<5>;
    ld.param.u64 %d0, [p];
    ld.param.u32 %r0, [p+8];
    ld.param.u64 %d1, [p+16];
    ld.param.u64 %d2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d0, %d3;
    add.s64 %d5, %d2, %d3;
    add.s64 %d6, %d1, %d3;
    ld.global.f32 %f0, [%d4];
    ld.global.f32 %f1, [%d5];
    add.f32 %f2, %f0, %f1;
    cvt.rn.f32.u32 %f3, %r0;
    mul.f32 %f4, %f2, %f3;
    st.global.f32 [%d6], %f4;
    ret;
}
";

/// A folder of one test.
struct Folder(tempfile::TempDir);

/// What a command did.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.file("k.ptx", KERNEL.as_bytes());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run_in(self.0.path(), arguments)
    }

    fn floats(&self, name: &str) -> (String, Vec<f32>) {
        let file = std::fs::read(self.path(name)).unwrap();
        let header = u32::from_le_bytes(file[8..12].try_into().unwrap()) as usize;
        let text = String::from_utf8(file[12..12 + header].to_vec()).unwrap();
        let data = file[12 + header..].chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()));
        (text, data.collect())
    }
}

fn run_in(folder: &Path, arguments: &[&str]) -> Ran {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ptx-sim")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// A file as NumPy writes it.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

const ARGUMENTS: [&str; 14] = [
    "run",
    "k.ptx",
    "--grid",
    "4",
    "--block",
    "32",
    "--shared",
    "128",
    "--arg",
    "in:x.npy",
    "--arg",
    "out:f32[10,10]:o.npy",
    "--arg",
    "u32:100",
];

fn affine(folder: &Folder, more: &[&str]) -> Ran {
    folder.file("x.npy", &npy("<f4", "10, 10", &floats((0..100u8).map(f32::from))));
    folder.run(&[&ARGUMENTS[..], &["--arg", "f32:-0.5"], more].concat())
}

#[test]
fn a_kernel_runs_on_arrays_from_files() {
    let folder = Folder::new();
    let ran = affine(&folder, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out, "affine: 4 CTAs of 1 warps ran 88 warp instructions; no rule was broken\n");
    let (header, values) = folder.floats("o.npy");
    assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (10, 10), }"), "{header}");
    assert_eq!(values, (0..100u8).map(|x| 100.0 - 0.5 * f32::from(x)).collect::<Vec<_>>());
}

#[test]
fn a_buffer_can_be_read_and_written() {
    let folder = Folder::new();
    folder.file("x.npy", &npy("<f4", "64,", &floats((0..64u8).map(f32::from))));
    folder.file("y.npy", &npy("<f4", "64,", &floats((0..64).map(|_| 7.0))));
    let command = "run k.ptx --grid 2 --block 32 --shared 128 --entry affine --seed 3 --limits sm_90 \
                   --arg in:x.npy --arg inout:y.npy:z.npy --arg i32:40 --arg f32:1";
    let ran = folder.run(&command.split_whitespace().collect::<Vec<_>>());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let (header, values) = folder.floats("z.npy");
    assert!(header.contains("'shape': (64,)"), "{header}");
    // What the kernel leaves alone stays.
    let want = (0..64u8).map(|x| if x < 40 { 40.0 + f32::from(x) } else { 7.0 });
    assert_eq!(values, want.collect::<Vec<_>>());
}

#[test]
fn a_broken_rule_names_its_line_and_ends_with_1() {
    let folder = Folder::new();
    // Room for half of the threads only.
    let ran = affine(&folder, &["--shared", "64"]);
    // An option that is given twice is refused.
    assert_eq!(ran.code, 2, "{}", ran.err);
    let mut arguments = ARGUMENTS.to_vec();
    arguments[7] = "64";
    arguments.extend(["--arg", "f32:-0.5", "--seed", "5"]);
    let ran = folder.run(&arguments);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    let want = "ptx-sim: k.ptx: out-of-bounds: kernel affine line 27 `st.shared.f32 [%r6], %f1;`, CTA (0, 0, 0), warp 0, \
                lane 16, address 0x440; seed 5\n";
    assert_eq!(ran.err.lines().count(), 1);
    assert_eq!(ran.err.split("address").next(), want.split("address").next(), "{}", ran.err);
    assert!(ran.err.ends_with("; seed 5\n"));
    // The same with this check off, which makes the missing words zero.
    arguments.extend(["--checks", "all,-bounds"]);
    assert_eq!(folder.run(&arguments).code, 0);
}

#[test]
fn an_output_that_nobody_wrote_is_reported() {
    let folder = Folder::new();
    folder.file("x.npy", &npy("<f4", "100,", &floats((0..100u8).map(f32::from))));
    let mut arguments = ARGUMENTS.to_vec();
    arguments[13] = "u32:90";
    arguments.extend(["--arg", "f32:1"]);
    let ran = folder.run(&arguments);
    assert_eq!(ran.code, 1);
    assert_eq!(
        ran.err,
        "ptx-sim: unwritten: 40 of 400 bytes of parameter 2 (o.npy) were never written, the first at byte 360\n"
    );
    assert_eq!(folder.floats("o.npy").1[89..], [vec![179.0], vec![0.0; 10]].concat());
    arguments.extend(["--checks", "none"]);
    assert_eq!(folder.run(&arguments).code, 0);
}

#[test]
fn predicted_times_are_called_so() {
    let folder = Folder::new();
    let ran = affine(&folder, &["--predict", "l4", "--registers", "32"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("predicted for NVIDIA L4 at 2040 MHz, not measured: "), "{}", ran.out);
    let ran = affine(&folder, &["--predict", "h200", "--registers", "32", "--clock", "1500", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(json["predicted_us"].as_f64().is_some_and(|us| us > 1.0) && json["device"] == "h200", "{json}");
    for bad in [&["--predict", "l5", "--registers", "32"][..], &["--predict", "l4"]] {
        assert_eq!(affine(&folder, bad).code, 2, "{bad:?}");
    }
}

#[test]
fn json_tells_counters_and_findings() {
    let folder = Folder::new();
    let ran = affine(&folder, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((json["outcome"].as_str(), json["report"]["ctas"].as_u64()), (Some("ok"), Some(4)));
    let ran = affine(&folder, &["--json", "--budget", "5"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, json["outcome"].as_str()), (1, Some("finding")));
    let finding = &json["finding"];
    assert_eq!((finding["kind"].as_str(), finding["line"].as_u64()), (Some("budget"), Some(16)));
    assert_eq!((finding["lane"].is_null(), finding["cta"].as_array().unwrap().len()), (true, 3));
}

#[test]
fn counters_are_a_table() {
    let folder = Folder::new();
    let ran = affine(&folder, &["--counters"]);
    let row = |name: &str| {
        let line = ran.out.lines().find(|l| l.starts_with(name)).unwrap_or_default();
        line.split_whitespace().last().map(str::to_owned)
    };
    assert_eq!(
        (row("global_load.sectors").as_deref(), row("shared_bytes").as_deref()),
        (Some("13"), Some("128"))
    );
}

#[test]
fn wrong_commands_end_with_2_and_one_line() {
    let folder = Folder::new();
    folder.file("x.npy", &npy("<f4", "10, 10", &[0; 400]));
    folder.file("half.npy", &npy("<f4", "10, 10", &[0; 200]));
    folder.file("two.ptx", b".version 7.0\n.target sm_80\n.entry a() { ret; }\n.entry b() { ret; }\n");
    folder.file(
        "bad.ptx",
        b".version 7.0\n.target sm_80\n.entry a() {\ntcgen05.wait::ld.sync.aligned;\nret; }\n",
    );
    let error = |text: &str| {
        let ran = folder.run(&text.split_whitespace().collect::<Vec<_>>());
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{text}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{text}: {}", ran.err);
        ran.err
    };
    assert!(error("run no.ptx").starts_with("ptx-sim: no.ptx: "));
    assert_eq!(
        error("run bad.ptx"),
        "ptx-sim: bad.ptx: line 4: `tcgen05.wait::ld.sync.aligned` is not supported: tensor memory (tcgen05) is not simulated\n"
    );
    assert_eq!(error("run two.ptx"), "ptx-sim: --entry must say which: a, b\n");
    assert_eq!(error("run two.ptx --entry c"), "ptx-sim: no entry `c`; there are: a, b\n");
    assert_eq!(
        error("run k.ptx --arg u64:0"),
        "ptx-sim: entry `affine` takes 4 parameters, --arg was given 1 times: x (8 bytes), o (8 bytes), n (4 bytes), \
         scale (4 bytes)\n"
    );
    assert_eq!(
        error("run k.ptx --arg zeros:4 --arg zeros:4 --arg u64:1 --arg f32:1"),
        "ptx-sim: parameter 3 `n` of `affine` takes 4 bytes, --arg of that number gives 8\n"
    );
    assert_eq!(
        error("run k.ptx --arg in:half.npy --arg zeros:4 --arg u32:1 --arg f32:1"),
        "ptx-sim: half.npy: it holds 200 bytes of data, its header says 400\n"
    );
    assert_eq!(
        error("run k.ptx --block 2048 --arg zeros:4 --arg zeros:4 --arg u32:1 --arg f32:1"),
        "ptx-sim: threads of a CTA is 2048, allowed are 1 to 1024\n"
    );
    let ran = folder.run(&["run", "k.ptx", "--arg", "u32:x"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("`x` is no u32"), "{}", ran.err);
}

#[test]
fn check_lists_entries_or_every_refused_line() {
    let folder = Folder::new();
    let ran = folder.run(&["check", "k.ptx"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<&str> = ran.out.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "affine");
    assert!(lines[1].starts_with("  x ") && lines[1].ends_with("8 bytes at 0"), "{}", ran.out);
    assert!(lines[4].starts_with("  scale ") && lines[4].ends_with("4 bytes at 20"), "{}", ran.out);
    assert_eq!(lines[5], "  shared memory: 0 bytes, and an array of the launch's size");
    let text = KERNEL.replace("ld.shared.f32", "tcgen05.ld.f32").replace("fma.rn", "wgmma.rn");
    folder.file("bad.ptx", text.as_bytes());
    let ran = folder.run(&["check", "bad.ptx"]);
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (
            1,
            "bad.ptx: line 28: `tcgen05.ld.f32` is not supported: tensor memory (tcgen05) is not simulated\n\
             bad.ptx: line 30: `wgmma.rn.f32` is not supported\n",
            "ptx-sim: 2 lines of bad.ptx are refused\n"
        )
    );
}

#[test]
fn support_and_help_are_printed() {
    let folder = Folder::new();
    let ran = folder.run(&["support"]);
    assert_eq!((ran.code, ran.out), (0, ptx_sim::support_matrix()));
    let ran = folder.run(&["run", "--help"]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("out:f32[8,64]:o.npy") && ran.out.contains("Exit codes"), "{}", ran.out);
}

#[test]
fn what_a_launch_did_not_test_is_said_by_line() {
    let folder = Folder::new();
    let text = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n)\n{\n.reg .pred %p; .reg .b32 %r;\n\
                ld.param.u32 %r, [n];\nsetp.gt.u32 %p, %r, 9;\n@%p bra $large;\nret;\n$large:\nmov.u32 %r, 1;\nret;\n}\n";
    folder.file("c.ptx", text.as_bytes());
    let run = |n: &str, json: &[&str]| {
        let ran = folder.run(&[&["run", "c.ptx", "--coverage", "--arg", n], json].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let small = run("u32:3", &[]);
    assert!(
        small.contains("line 9, `@%p bra $large;`, never held")
            && small.contains("line 12, `mov.u32 %r, 1;`, was never executed"),
        "{small}"
    );
    let large = run("u32:12", &["--json"]);
    assert!(
        large.contains("{\"line\":9,\"what\":\"always held") && !large.contains("\"line\":12"),
        "{large}"
    );
}

#[test]
fn a_struct_has_fields_and_a_buffer_may_be_given_twice() {
    let folder = Folder::new();
    folder.file("s.ptx", OF_A_STRUCT.as_bytes());
    folder.file("x.npy", &npy("<f4", "5,", &floats((1..6u8).map(f32::from))));
    let run = |y: &str| {
        let fields = "struct:in:x.npy;u32:10;out:f32[4]:o.npy";
        folder.run(&["run", "s.ptx", "--block", "4", "--arg", fields, "--arg", y])
    };
    let ran = run("arg:1+4");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(folder.floats("o.npy").1, [30.0, 50.0, 70.0, 90.0]);
    let refused = run("arg:2");
    assert_eq!(refused.code, 2);
    assert!(
        refused.err.contains("argument 2 takes the address of argument 2, which is no earlier"),
        "{}",
        refused.err
    );
}
