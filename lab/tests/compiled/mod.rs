//! The lab where nothing is compiled: searches of a folder of kernels, and a gate that plants what it has to find.

use crate::support::{
    Ended, config, folder, has_git, lab, lab_with, mediocre, session, steps, write_kernels,
};
use kernels_gpu::row::{Dtype, Row};
use lab::job::{Job, Report, Task, in_child};
use lab::kernels::{KernelRef, Machine, find};
use lab::plant::{Plant, plant};
use lab::problem_spec::{Mask, ProblemSpec};
use lab::session::{Header, chain};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The row that the self test and the gate take.
const ROW: &str = "fwd_f16_d64_m64n64_w4s1c1";

/// A folder with the mediocre row, a row of the table and two that `lab build` finds, compiled once for all tests.
fn kernels() -> &'static Path {
    static KERNELS: OnceLock<PathBuf> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let out = home.join("lab-kernels");
        let row = serde_json::to_string(&mediocre()).expect("JSON");
        let arguments = ["build", "--device", "sim", ROW, &row, "--space", ROW, "--most", "2", "--only"];
        let arguments = [&arguments[..], &["block_m=128", "--out", path(&out)]].concat();
        let built = lab(&home, &arguments);
        assert!(built.succeeded().stdout.contains("4 rows"), "{}", built.stdout);
        out
    })
}

/// The session of an evaluation of the row in that folder, made once for all tests that only read it.
fn evaluated() -> &'static Path {
    static SESSION: OnceLock<PathBuf> = OnceLock::new();
    SESSION.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-evaluated");
        // An earlier run of the tests may have left one of other kernels.
        if home.is_dir() {
            std::fs::remove_dir_all(&home).expect("removed");
        }
        std::fs::create_dir_all(&home).expect("a folder");
        let config = config(&home, "");
        let arguments = ["evaluate", "--device", "sim", "--config", &config, "--ptx", path(kernels()), ROW];
        without_compiler(&home, &arguments).succeeded();
        session(&home)
    })
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The lab in an environment that has no compiler.
fn without_compiler(home: &Path, arguments: &[&str]) -> Ended {
    lab_with(home, arguments, &[("CARGO", "/nonexistent/cargo"), ("PATH", "/nonexistent")])
}

/// A copy of the folder in which one kernel has a fault.
fn with_fault(home: &Path, what: Plant) -> PathBuf {
    let kernel = KernelRef { folder: kernels().to_owned(), entry: ROW.to_owned() };
    plant(&kernel, what, &home.join(what.name())).expect("planted").folder
}

fn rows(session: &Path) -> Vec<Row> {
    let row = |step: &Value| serde_json::from_value(step["candidate"]["row"].clone()).expect("a row");
    steps(session).iter().map(row).collect()
}

#[test]
fn a_folder_of_kernels_with_a_patch_is_compiled_from_the_last_commit() {
    if !has_git() {
        return;
    }
    let home = folder();
    let patch = concat!(env!("CARGO_MANIFEST_DIR"), "/flaws/always-rescale.patch");
    lab(home.path(), &["build", "--device", "sim", ROW, "--patch", patch, "--out", "patched"]).succeeded();
    let found = |folder: &Path| find(&KernelRef { folder: folder.to_owned(), entry: ROW.to_owned() });
    let (_, patched) = found(&home.path().join("patched")).expect("compiled");
    let (_, own) = found(kernels()).expect("compiled");
    assert_eq!(patched.row, own.row);
    assert_ne!(patched.sha256, own.sha256);
}

#[test]
fn a_search_without_a_compiler_is_of_the_rows_of_the_folder_and_goes_on_where_it_was_killed() {
    let home = folder();
    let config = config(home.path(), "");
    // Where a search goes follows from counts; the exam of each row's numbers would take most of the time.
    let arguments =
        ["evolve", "--device", "sim", "--counters-only", "--seed", "5", "--config", &config, "--ptx"];
    let whole = without_compiler(home.path(), &[&arguments[..], &[path(kernels())]].concat());
    assert!(
        whole.succeeded().stdout.contains("every row of the search space is evaluated"),
        "{}",
        whole.stdout
    );
    assert!(whole.stderr.contains("the search space has 4 rows"), "{}", whole.stderr);
    assert!(whole.stderr.contains("feasible rows are not"), "{}", whole.stderr);
    let whole = session(home.path());
    assert_eq!(rows(&whole).len(), 4);

    // Cut behind its second step, as if it had been killed there, and resumed without naming the folder again.
    let records = std::fs::read_to_string(whole.join("records.jsonl")).expect("records");
    let lines: Vec<&str> = records.lines().collect();
    let is_step = |line: &&str| line.starts_with("{\"kind\":\"step\"");
    let second = lines.iter().enumerate().filter(|(_, line)| is_step(line)).nth(1).expect("two steps").0;
    let cut = home.path().join("lab-runs/cut");
    std::fs::create_dir_all(&cut).expect("a folder");
    std::fs::copy(whole.join("session.json"), cut.join("session.json")).expect("copied");
    std::fs::write(cut.join("records.jsonl"), lines[..=second].join("\n") + "\n").expect("written");
    without_compiler(home.path(), &["evolve", "--resume", path(&cut)]).succeeded();
    assert_eq!(rows(&cut), rows(&whole));
    let outcomes = |session: &Path| {
        steps(session).iter().map(|step| step["evaluated"]["outcome"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&cut), outcomes(&whole));

    let other = with_fault(home.path(), Plant::NotWritten);
    let changed = lab(home.path(), &["evolve", "--resume", path(&cut), "--ptx", path(&other)]);
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    assert!(changed.stderr.contains("holds other kernels"), "{}", changed.stderr);
}

#[test]
fn every_row_of_a_folder_is_measured_and_the_best_seed_a_search() {
    let home = folder();
    let config = config(home.path(), "");
    let arguments = ["micro", "--device", "sim", "--config", &config, "--ptx", path(kernels())];
    let ended = without_compiler(home.path(), &arguments);
    assert!(ended.succeeded().stdout.contains("4 of 4 rows measured"), "{}", ended.stdout);
    let top = session(home.path()).join("top.json");
    let text = std::fs::read_to_string(&top).expect("seeds");
    let mut seeds: Vec<Row> = serde_json::from_str(&text).expect("rows");
    assert_eq!(
        (seeds.len(), seeds[0].block_m),
        (4, 64),
        "low blocks leave the least to one multiprocessor: {text}"
    );

    // Seeds that the folder lacks are left out, and said.
    seeds.push(Row { stages: 4, ..mediocre() });
    std::fs::write(&top, serde_json::to_string(&seeds).expect("JSON")).expect("written");
    let arguments =
        ["evolve", "--device", "sim", "--counters-only", "--config", &config, "--ptx", path(kernels())];
    let more = ["--from", path(&top), "--budget", "1"];
    let ended = without_compiler(home.path(), &[&arguments[..], &more].concat());
    assert!(ended.succeeded().stderr.contains("1 of the 5 rows of"), "{}", ended.stderr);
}

#[test]
fn what_is_not_in_the_folder_or_has_to_be_compiled_is_a_clear_error() {
    let home = folder();
    let refused = |arguments: &[&str], code: i32, needles: &[&str]| {
        let ended = without_compiler(home.path(), &[arguments, &["--device", "sim"]].concat());
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        let error = ended.stderr.lines().find(|line| line.contains("error:")).unwrap_or_default();
        needles.iter().for_each(|needle| assert!(error.contains(needle), "{needle} in {}", ended.stderr));
    };
    let ptx = path(kernels());
    // An entry of the folder names its row, in the table or not.
    let arguments = ["build", "--device", "sim", "--ptx", ptx, "fwd_f16_d64_m64n32_w4s1c1"];
    assert!(without_compiler(home.path(), &arguments).succeeded().stdout.contains("m64n32"));
    let start = "fwd_f16_d64_m128n64_w4s2c1";
    refused(&["evolve", "--ptx", ptx, "--start", start], 2, &["--start", start, "is not in", "m64n32"]);
    let start = "fwd_bf16_d128_m64n64_w4s1c1";
    refused(&["micro", "--ptx", ptx, "--start", start], 2, &["no bf16 kernel of head_dim 128", "--start"]);
    refused(
        &["evolve", "--ptx", ptx, "--start", ROW, "--proposer", "true"],
        2,
        &["a patch has to be compiled"],
    );
    refused(&["evolve", "--ptx", "nowhere"], 2, &["nowhere", "manifest.json"]);
    refused(&["gate", "--ptx", ptx, "--patch", "x.patch"], 2, &["a patch has to be compiled"]);
    refused(&["build", "--out", "x", "--ptx", ptx], 2, &["compiled already"]);
    let patch = concat!(env!("CARGO_MANIFEST_DIR"), "/flaws/always-rescale.patch");
    refused(&["build", "--out", "x", patch], 2, &["goes to --patch"]);
    refused(&["build", "--out", "x", "--patch", "none.patch"], 2, &["none.patch"]);
    std::fs::write(home.path().join("prose.patch"), "It is faster.\n").expect("written");
    refused(&["build", "--out", "x", "--patch", "prose.patch"], 1, &["prose.patch", "git cannot be started"]);
    refused(&["build", "--out", "x", "--space", ROW, "--only", "head_dim=64"], 2, &["block_m, block_n"]);
    let ended = without_compiler(
        home.path(),
        &["invert", ROW, "--device", "sim", "--ptx", ptx, "--only", "no-swizzle"],
    );
    assert!(ended.succeeded().stdout.contains("no-swizzle: a patch has to be compiled"), "{}", ended.stdout);
}

#[test]
fn counts_are_those_of_the_kernel_whatever_a_session_draws_its_inputs_from() {
    let home = folder();
    let problem = ProblemSpec {
        shape: "1,1,1,160,160,64".parse().expect("a shape"),
        dtype: Dtype::F16,
        mask: Mask::Causal,
    };
    let counted = |seed| {
        let kernel = KernelRef { folder: kernels().to_owned(), entry: ROW.to_owned() };
        let task = Task::Count { schedules: 0 };
        let job = Job { kernel, task, problems: vec![problem], machine: Machine::simulator(), seed };
        let (program, log) = (Path::new(env!("CARGO_BIN_EXE_lab")), home.path().join("log"));
        in_child(program, &job, &log, Duration::from_secs(60)).expect("done").report
    };
    let first = counted(0);
    assert!(matches!(first, Report::Counted(_)), "{first:?}");
    // The first seed whose values would let a maximum grow once more.
    assert_eq!(counted(70), first);
}

#[test]
fn a_gate_without_a_compiler_passes_the_same_kernels_and_catches_slow_and_wrong_ones() {
    let home = folder();
    let config = config(home.path(), "");
    let board = home.path().join("board.json");
    lab(home.path(), &["leaderboard", "--file", path(&board), "--add", path(evaluated())]).succeeded();
    let gate = |ptx: &Path| {
        let arguments = ["gate", "--device", "sim", "--config", &config, "--file", path(&board)];
        without_compiler(home.path(), &[&arguments[..], &["--ptx", path(ptx)]].concat())
    };
    let same = gate(kernels());
    assert!(same.succeeded().stdout.contains("gate: pass"), "{}", same.stdout);
    let slow = gate(&with_fault(home.path(), Plant::Slower { instructions: 1 }));
    assert_eq!(slow.code, Some(1), "{}{}", slow.stdout, slow.stderr);
    assert!(slow.stdout.contains("gate: slower") && slow.stdout.contains("instructions"), "{}", slow.stdout);
    let wrong = gate(&with_fault(home.path(), Plant::NothingHidden));
    assert_eq!(wrong.code, Some(1), "{}{}", wrong.stdout, wrong.stderr);
    assert!(wrong.stdout.contains("gate: wrong"), "{}", wrong.stdout);
    write_kernels(home.path(), &["ret;"]);
    let lacking = gate(&home.path().join("ptx"));
    assert_eq!(lacking.code, Some(3), "{}{}", lacking.stdout, lacking.stderr);
    assert!(lacking.stdout.contains(&format!("{ROW} is not in")), "{}", lacking.stdout);
}

/// A session as it would be if its records were others, with all hashes as they should be.
fn forged(source: &Path, home: &Path, name: &str, change: &dyn Fn(&mut Header, &mut Value)) -> PathBuf {
    let (mut header, mut lines) = lab::session::read(source, &mut |_| ()).expect("a session");
    lines.iter_mut().for_each(|line| change(&mut header, &mut line.body));
    let mut last = chain::root(&header);
    for line in &mut lines {
        line.chain = chain::link(&last, line);
        last.clone_from(&line.chain);
    }
    let folder = home.join("lab-runs").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let header = serde_json::to_string(&header).expect("JSON");
    std::fs::write(folder.join("session.json"), header).expect("written");
    let lines: String = lines.iter().map(|line| serde_json::to_string(line).expect("JSON") + "\n").collect();
    std::fs::write(folder.join("records.jsonl"), lines).expect("written");
    folder
}

#[test]
fn a_forged_session_gets_no_place_and_is_refused_by_what_gives_it_away() {
    let home = folder();
    let (board, own) = (home.path().join("board.json"), evaluated());
    let refused = |session: &Path, needle: &str| {
        let ended = lab(home.path(), &["leaderboard", "--file", path(&board), "--add", path(session)]);
        assert_eq!(ended.code, Some(1), "{needle}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(needle), "{needle}: {}", ended.stderr);
        assert!(!board.exists(), "{needle}");
    };
    let fewer = |counted: &mut Value| {
        let clocks = counted["clocks"].as_f64().unwrap_or_default();
        counted["clocks"] = serde_json::json!(0.8 * clocks);
    };
    let each = |body: &mut Value, list: &str, change: &dyn Fn(&mut Value)| {
        body[list].as_array_mut().into_iter().flatten().for_each(change);
    };
    // By hand, with the hashes of what stood there.
    let by_hand = forged(own, home.path(), "by-hand", &|_, _| ());
    let records = std::fs::read_to_string(by_hand.join("records.jsonl")).expect("records");
    std::fs::write(by_hand.join("records.jsonl"), records.replacen("\"clocks\":", "\"clocks\":0.5e", 1))
        .expect("written");
    refused(&by_hand, "its hash is another");
    // With the times of a GPU that nobody has.
    let timed = serde_json::json!([{
        "problem": { "shape": "1,8,8,512,512,64", "dtype": "f16", "mask": "full" }, "entry": ROW, "ctas": 64,
        "resident_ctas_per_sm": 2, "warm_us": [0.1, 0.1], "cold_us": [0.1], "fresh_us": [0.1, 0.1],
        "wall_us": null, "sm_clock_mhz": null,
    }]);
    let on_a_gpu = |header: &mut Header, body: &mut Value| {
        header.device = "NVIDIA H200".to_owned();
        if body.get("counted").is_some() {
            body["timed"] = timed.clone();
        }
    };
    refused(&forged(own, home.path(), "too-fast", &on_a_gpu), "faster than any GPU");
    // With fewer clocks than the kernel needs.
    let cheap = forged(own, home.path(), "cheap", &|_, body| {
        if body.get("counted").is_some() {
            each(body, "counted", &fewer);
        }
    });
    refused(&cheap, "counts otherwise here");
}

#[test]
fn a_self_test_finds_what_it_plants_and_a_hang_is_killed_by_name() {
    let home = folder();
    let config = config(home.path(), "[limits]\ntest_s = 200\n");
    let test = |ptx: &Path| {
        let arguments = ["gate", "--self-test", "--row", ROW, "--repeats", "2", "--device", "sim"];
        without_compiler(home.path(), &[&arguments[..], &["--config", &config, "--ptx", path(ptx)]].concat())
    };
    let works = test(kernels());
    let cheats = works.succeeded().stdout.lines().find_map(|line| line.strip_prefix("planted cheats: "));
    let counts: Vec<usize> =
        cheats.into_iter().flat_map(str::split_whitespace).filter_map(|n| n.parse().ok()).collect();
    assert!(matches!(counts[..], [named, planted] if named == planted && planted >= 19), "{}", works.stdout);
    for said in [
        "A/A: 0 of 2 called different",
        "planted slow-down: 1 of 1 found",
        "wrong kernels: 9 of 9 refused",
        "without a fault: passed",
        "a kernel that never ends: hang, ",
        "; the next kernel: ran",
        "the gate works here",
    ] {
        assert!(works.succeeded().stdout.contains(said), "{said}: {}", works.stdout);
    }
    // What is recorded is not done again.
    let done = session(home.path());
    // A run promises a secret and tells it at its end, whatever it does.
    let records = || {
        let text = std::fs::read_to_string(done.join("records.jsonl")).expect("records");
        let is_of_a_run = |line: &&str| line.contains("\"promised\"") || line.contains("\"told\"");
        text.lines().filter(|line| !is_of_a_run(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = records();
    let arguments = ["gate", "--self-test", "--row", ROW, "--repeats", "2", "--resume", path(&done)];
    without_compiler(home.path(), &arguments).succeeded();
    assert_eq!(records(), before);

    // On a kernel that is wrong already the test proves nothing, and says so.
    let wrong = test(&with_fault(home.path(), Plant::NothingHidden));
    assert_eq!(wrong.code, Some(4), "{}{}", wrong.stdout, wrong.stderr);
    let line = wrong.stdout.lines().find(|line| line.contains("without a fault: wrong-")).unwrap_or_default();
    assert!(line.ends_with("  <- does not work"), "{}", wrong.stdout);
}
