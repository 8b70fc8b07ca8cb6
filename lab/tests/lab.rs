//! The lab as a process: searches that are killed, kernels that hang, proposers and files that are wrong.

mod compiled;
mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{HANGS, WRITES_NOTHING, config, folder, has_git, lab, session, steps, write_kernels};

/// The score and row of every place of a session's leaderboard; without times and commits, which differ between runs.
fn places(session: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(session.join("leaderboard.json")).expect("a leaderboard");
    let board: Value = serde_json::from_str(&text).expect("JSON");
    let standings = board["standings"].as_array().expect("places").clone();
    let of_record =
        |record: &Value| (record["row"].clone(), record["score"].clone(), record["counters"].clone());
    let place = |standing: &Value| {
        let records: Vec<_> =
            standing["records"].as_array().expect("records").iter().map(of_record).collect();
        serde_json::json!([standing["place"], records])
    };
    standings.iter().map(place).collect()
}

#[test]
fn a_search_that_is_killed_anywhere_ends_with_the_leaderboard_of_one_that_was_not() {
    let (home, other) = (folder(), folder());
    let config = config(home.path(), "");
    // Where a search goes follows from counts; examining the numbers of every candidate would take most of the time.
    let arguments = ["evolve", "--device", "sim", "--counters-only", "--budget", "4", "--seed", "8"];
    let arguments = [&arguments[..], &["--config", &config]].concat();
    let whole = lab(home.path(), &arguments);
    whole.succeeded();
    assert!(whole.stdout.contains("best: fwd_f16_d64_m16"), "{}", whole.stdout);
    let whole = session(home.path());

    // Killed in the first compilation, then wherever a second and a half leads to, then left alone.
    let mut killed = support::start(other.path(), &arguments);
    while !session(other.path()).join("session.json").is_file() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(400));
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    let folder = session(other.path());
    let resume = ["evolve", "--resume", folder.to_str().expect("a path")];
    let mut kills = 0;
    loop {
        let mut again = support::start(other.path(), &resume);
        let deadline = Instant::now() + Duration::from_millis(1700);
        while Instant::now() < deadline && again.try_wait().expect("waits").is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if again.try_wait().expect("waits").is_some() || kills == 2 {
            again.wait().expect("ended");
            break;
        }
        again.kill().expect("killed");
        again.wait().expect("ended");
        kills += 1;
    }
    lab(other.path(), &resume).succeeded();
    assert_eq!(places(&folder), places(&whole));
    let rows = |session: &Path| {
        steps(session).iter().map(|step| step["candidate"]["row"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(rows(&folder), rows(&whole));
    let scores = |session: &Path| {
        steps(session).iter().map(|step| step["evaluated"]["outcome"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(scores(&folder), scores(&whole));
    let first = scores(&whole)[0]["scored"]["score"].as_f64().expect("a score");
    let best =
        scores(&whole).iter().filter_map(|o| o["scored"]["score"].as_f64()).fold(f64::INFINITY, f64::min);
    assert!(best < 0.9 * first, "{best} clocks, the bad start has {first}");

    // What it found can be shown.
    let path = folder.to_str().expect("a path");
    let log = lab(other.path(), &["log", path]);
    assert!(log.succeeded().stdout.contains("block_m 64 → 16"), "{}", log.stdout);
}

#[test]
fn the_gate_passes_the_tree_as_it_is_and_catches_a_slow_and_a_wrong_kernel() {
    if !has_git() {
        eprintln!("skipped: the project is no git repository here");
        return;
    }
    let home = folder();
    let config = config(home.path(), "");
    lab(home.path(), &["evaluate", "--device", "sim", "--config", &config, "fwd_f16_d64_m64n64_w4s1c1"])
        .succeeded();
    let (board, path) = (home.path().join("board.json"), session(home.path()));
    let (board, path) = (board.to_str().expect("a path"), path.to_str().expect("a path"));
    lab(home.path(), &["leaderboard", "--file", board, "--add", path]).succeeded();
    let refused = lab(home.path(), &["leaderboard", "--file", board, "--add", path, "--bless", "x"]);
    assert_eq!(refused.code, Some(2), "blessing takes a reason: {}", refused.stderr);

    let gate = |patch: Option<&str>| {
        let arguments = ["gate", "--device", "sim", "--file", board, "--config", &config];
        let patch = patch.map(|patch| ["--patch", patch]);
        lab(home.path(), &[&arguments[..], patch.as_ref().map_or(&[], |patch| &patch[..])].concat())
    };
    let same = gate(None);
    assert_eq!(same.code, Some(0), "{}{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("every counter is the same"), "{}", same.stdout);
    let flaw = concat!(env!("CARGO_MANIFEST_DIR"), "/flaws/no-swizzle.patch");
    let slow = gate(Some(flaw));
    assert_eq!(slow.code, Some(1), "{}{}", slow.stdout, slow.stderr);
    assert!(slow.stdout.contains("shared_load.wavefronts"), "{}", slow.stdout);
    let wrong = home.path().join("wrong.patch");
    std::fs::write(&wrong, support::wrong_patch()).expect("written");
    let wrong = gate(Some(wrong.to_str().expect("a path")));
    assert_eq!(wrong.code, Some(1), "{}{}", wrong.stdout, wrong.stderr);
    assert!(wrong.stdout.contains("gate: wrong") && wrong.stdout.contains("refused: "), "{}", wrong.stdout);
}

#[test]
fn the_projects_leaderboard_and_its_pages_are_as_the_kept_sessions_say() {
    lab(folder().path(), &["leaderboard", "--check"]).succeeded();
}

#[test]
fn a_kernel_that_hangs_is_killed_by_name_and_the_session_goes_on() {
    let home = folder();
    let rows = write_kernels(home.path(), &[HANGS, WRITES_NOTHING]);
    let config = config(home.path(), "[limits]\ntest_s = 1\n");
    let ptx = home.path().join("ptx");
    let begun = Instant::now();
    let arguments = ["evaluate", "--device", "sim", "--json", "--config", &config, "--ptx"];
    let ended = lab(home.path(), &[&arguments[..], &[ptx.to_str().expect("a path")]].concat());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("2 of 2 candidates are refused"), "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let refusal = |at: usize| {
        let evaluation = &found["evaluations"][at];
        let stages = evaluation["stages"].as_array().expect("stages").clone();
        (evaluation["name"].clone(), stages.last().expect("a stage")["outcome"]["refused"]["fault"].clone())
    };
    assert_eq!(refusal(0), (rows[0].clone().into(), "hang".into()));
    assert_eq!(refusal(1), (rows[1].clone().into(), "not-written".into()));
}

#[test]
fn ctrl_c_ends_with_a_summary_of_what_was_found() {
    let home = folder();
    let config = config(home.path(), "");
    let arguments = ["evolve", "--device", "sim", "--counters-only", "--budget", "100", "--config", &config];
    let mut running = support::start_heard(home.path(), &arguments);
    let begun = Instant::now();
    let has_step = || home.path().join("lab-runs").is_dir() && !steps(&session(home.path())).is_empty();
    while !has_step() && running.try_wait().expect("waits").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no step in two minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
    support::interrupt(&running);
    let output = running.wait_with_output().expect("ended");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stdout.contains("best: ") && stdout.contains("interrupted"), "{stdout}");
    assert!(stderr.contains("go on with --resume"), "{stderr}");
}

#[test]
fn proposers_that_fail_cost_a_step_and_patches_never_leave_the_device_crate() {
    if !has_git() {
        eprintln!("skipped: the project is no git repository here");
        return;
    }
    let home = folder();
    let config = config(home.path(), "");
    let outside = "--- a/host/src/lib.rs\n+++ b/host/src/lib.rs\n@@ -1 +1 @@\n-a\n+b\n";
    let flaw = include_str!("../flaws/extra-barrier.patch");
    let reply = |patch: &str| {
        format!("cat <<'END'\nHypothesis: Elsewhere.\nExpected gain: 5 %\nPatch:\n{patch}END\n")
    };
    let answers = ["", "sleep 60", "echo I would rather not.", &reply(outside), &reply(flaw)];
    let cases = answers.iter().enumerate().map(|(at, answer)| format!("{}) {answer}\n;;\n", at + 1));
    let script = home.path().join("proposer.sh");
    let number = "case $(sed -n 's/^Proposal number: //p') in\n";
    std::fs::write(&script, format!("{number}{}esac\n", cases.collect::<String>())).expect("written");
    let proposer = format!("sh {}", script.display());
    let before = support::git_status(home.path());
    let arguments = ["evolve", "--device", "sim", "--counters-only", "--config", &config];
    let rows = home.path().join("none.json");
    let start = serde_json::to_string(&[support::mediocre()]).expect("JSON");
    std::fs::write(&rows, start).expect("written");
    let arguments = [&arguments[..], &["--from", rows.to_str().expect("a path"), "--budget", "6"]].concat();
    let mut arguments = [&arguments[..], &["--proposer", &proposer, "--proposer-limit", "8"]].concat();
    // Not every system lets its users make namespaces.
    if ::lab::proposer::boxed::available().is_err() {
        arguments.push("--trust");
    }
    let ended = lab(home.path(), &arguments);
    ended.succeeded();
    let steps = steps(&session(home.path()));
    let decision = |at: usize| steps[at]["decision"].as_str().expect("a decision").to_owned();
    assert!(decision(1).contains("printed nothing"), "{}", decision(1));
    assert!(decision(2).contains("gave no answer within"), "{}", decision(2));
    assert!(decision(3).contains("no line `Hypothesis"), "{}", decision(3));
    assert!(decision(4).contains("forbidden") && decision(4).contains("host/src/lib.rs"), "{}", decision(4));
    assert!(decision(5).starts_with("dropped"), "a patch that works and gains nothing: {}", decision(5));
    assert_eq!(steps.len(), 6);
    assert_eq!(
        support::git_status(home.path()),
        before,
        "the user's tree is as it was, and no worktree is left"
    );
    let prompt = session(home.path()).join("proposals/005-prompt.md");
    let prompt = std::fs::read_to_string(prompt).expect("kept");
    assert!(
        prompt.contains("Proposal number: 5") && prompt.contains("Elsewhere."),
        "earlier failures are shown"
    );
}

/// Three changes to the softmax that each save instructions, and change no bit.
const SAVINGS: [(&str, &str); 3] = [
    (
        "                let mut sum = 0.0;\n                for tile in s.row_mut(m) {\n",
        "                let mut sum = -0.0;\n                for tile in s.row_mut(m) {\n",
    ),
    (
        "let offset = -base(self.row_max.row(m)[half]) * scale_log2;",
        "let offset = -max(self.row_max.row(m)[half], -1e36) * scale_log2;",
    ),
    (
        "                row_max = max(row_max, shfl_bfly::<1>(row_max));
                row_max = max(row_max, shfl_bfly::<2>(row_max));
                new_max.row_mut(m)[half] = row_max;
",
        "                new_max.row_mut(m)[half] = row_max;
",
    ),
];

#[test]
fn patches_that_build_on_each_other_end_as_one_that_applies() {
    if !has_git() {
        eprintln!("skipped: the project is no git repository here");
        return;
    }
    let home = folder();
    let config = config(home.path(), "");
    let file = "kernels-gpu/src/math/softmax.rs";
    // Lanes share the maximum of what grew, which hardly ever happens.
    let shared = "            let mut correction = W::Rows::<f32>::splat(1.0);\n            for m in 0..W::M {\n                for half in 0..2 {\n";
    let moved = format!(
        "{shared}                    let row_max = new_max.row(m)[half];\n                    \
         let row_max = max(row_max, shfl_bfly::<1>(row_max));\n                    \
         new_max.row_mut(m)[half] = max(row_max, shfl_bfly::<2>(row_max));\n"
    );
    let block = |search: &str, replace: &str| {
        let (search, replace) = (search.trim_end_matches('\n'), replace.trim_end_matches('\n'));
        format!("{file}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n")
    };
    let mut answers: Vec<String> = SAVINGS.map(|(search, replace)| block(search, replace)).into();
    answers[2] += &block(shared, &moved);
    let case = |(at, answer): (usize, &String)| {
        let number = at + 1;
        format!(
            "{number}) cat <<'END'\nHypothesis: Fewer instructions.\nExpected gain: 1 %\nPatch:\n{answer}END\n;;\n"
        )
    };
    let cases: String = answers.iter().enumerate().map(case).collect();
    let script = home.path().join("proposer.sh");
    let text = format!("case $(sed -n 's/^Proposal number: //p') in\n{cases}esac\n");
    std::fs::write(&script, text).expect("written");
    let proposer = format!("sh {}", script.display());
    // What is kept follows from counts; examining the numbers of each would take most of the time.
    let arguments = ["evolve", "--device", "sim", "--counters-only", "--budget", "4"];
    let of_row = ["--start", "fwd_f16_d64_m64n64_w4s3c1", "--config", &config, "--proposer", &proposer];
    let mut arguments = [&arguments[..], &of_row].concat();
    if ::lab::proposer::boxed::available().is_err() {
        arguments.push("--trust");
    }
    let ended = lab(home.path(), &arguments);
    let session = session(home.path());
    let steps = steps(&session);
    let decisions: Vec<&str> = steps.iter().filter_map(|step| step["decision"].as_str()).collect();
    assert_eq!(steps.iter().filter(|step| step["kept"] == true).count(), 4, "{decisions:#?}");
    assert!(ended.succeeded().stdout.contains("git apply"), "{}", ended.stdout);
    let kept = session.join("kept.patch");
    let text = std::fs::read_to_string(&kept).expect("what was kept");
    for added in ["-0.0", "-1e36", "new_max.row(m)[half]"] {
        assert!(text.lines().any(|line| line.starts_with('+') && line.contains(added)), "{added}: {text}");
    }
    // What is committed, whatever the working tree has.
    let check = ["apply", "--cached", "--check", kept.to_str().expect("a path")];
    let applied = Command::new("git").args(check).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let applied = applied.expect("git starts");
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}

#[test]
fn bad_input_is_a_clear_error_or_a_clean_skip() {
    let home = folder();
    let refused = |arguments: &[&str], code: i32, needles: &[&str]| {
        let ended = lab(home.path(), arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        let error = ended.stderr.lines().find(|line| line.contains("error:")).unwrap_or_default();
        needles.iter().for_each(|needle| assert!(error.contains(needle), "{needle} in {}", ended.stderr));
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    };
    let bad = home.path().join("bad.toml");
    std::fs::write(&bad, "[problems]\nhidden = 2\n\n[limits]\ntest_s = 0\n").expect("written");
    let bad = bad.to_str().expect("a path");
    refused(&["test", "--config", bad], 2, &["bad.toml:5:", "1 second"]);
    refused(&["test", "--config", "missing.toml"], 2, &["missing.toml"]);
    refused(&["evaluate", "no-such-row"], 2, &["no-such-row", "neither an entry"]);
    refused(&["evolve", "--strategy", "annealing"], 2, &["annealing"]);
    refused(&["leaderboard", "--add", "nowhere"], 2, &["nowhere"]);
    refused(&["evaluate", "nowhere.patch"], 2, &["nowhere.patch"]);
    refused(&["evolve", "--resume", "nowhere"], 2, &["nowhere", "cannot be resumed"]);
    refused(&["invert", "--only", "gremlins"], 2, &["gremlins", "no-swizzle"]);
    refused(&["benchmark", "--device", "sim", "--peer", "torch"], 1, &["a GPU is not here"]);

    let board = home.path().join("board.json");
    let text = serde_json::json!({ "format": 1, "standings": [{
        "place": { "device": "NVIDIA L4", "shape": "1,8,8,512,512,64", "dtype": "f16", "mask": "full" },
        "records": [{
            "when": "2026-01-01T00:00:00Z", "commit": "abc", "row": support::mediocre(), "measure": "microseconds",
            "score": { "low": 1.0, "estimate": 1.0, "high": 1.0 },
        }],
    }] });
    std::fs::write(&board, text.to_string()).expect("written");
    let board = board.to_str().expect("a path");
    refused(&["gate", "--device", "sim", "--file", board], 5, &["no entry of simulator", "NVIDIA L4"]);

    // A session whose last line was cut: the others are shown, and the cut one is named.
    let source = session(home.path());
    let cut = home.path().join("lab-runs/cut");
    std::fs::create_dir_all(&cut).expect("a folder");
    std::fs::copy(source.join("session.json"), cut.join("session.json")).expect("copied");
    std::fs::write(cut.join("records.jsonl"), "{\"kind\":\"x\",\"at_s\":0,\"body\":1}\n{\"kind\":\"st")
        .expect("written");
    let log = lab(home.path(), &["log", cut.to_str().expect("a path")]);
    log.succeeded();
    assert!(log.stderr.contains("records.jsonl:2: skipped"), "{}", log.stderr);
    assert!(log.stdout.contains("## cut: gate"), "{}", log.stdout);
}
