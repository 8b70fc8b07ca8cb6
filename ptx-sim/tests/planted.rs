//! Planted bugs: each file of `fail/<kind>/` breaks one rule. Lines that end in `// BUG` are the bug, lines that start with
//! `//FIX` mend it, and `FIRES` marks the line that must be reported. The mended twin must stay quiet.
//!
//! `pass/` holds programs that break no rule, each with what the last buffer must hold at the end.
//!
//! Directives: `//# grid n`, `//# block n`, `//# smem n`, `//# budget n`; one parameter each for `//# buffer bytes`,
//! `//# unwritten bytes`, `//# freed bytes`. A buffer holds zeros, or the words after its size; `//# expect` is followed by
//! words. `3..6` stands for 3 4 5, `7x4` for 7 7 7 7. `//# map type dims strides box swizzle` is a parameter too: the address
//! of a tensor map of the buffer before it.

use std::path::{Path, PathBuf};

use ptx_sim::{
    Checks, Finding, LaunchConfig, Limits, Memory, Module, Schedule, SimError, Swizzle, TensorMap,
    TensorType, launch,
};

struct Case {
    name: String,
    kind: String,
    text: String,
}

fn cases() -> Vec<Case> {
    cases_in("tests/fail")
}

fn cases_in(folder: &str) -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let list = |path: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let files = list(&root).into_iter().flat_map(|path| if path.is_dir() { list(&path) } else { vec![path] });
    files
        .map(|path| Case {
            name: path.strip_prefix(&root).unwrap().display().to_string(),
            kind: path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
        })
        .collect()
}

/// The text with its bug mended, line for line.
fn mended(text: &str) -> String {
    let mend = |line: &str| {
        let bare = line.trim_start();
        match bare.strip_prefix("//FIX") {
            Some(fix) => fix.to_owned(),
            None if line.contains("// BUG") => String::new(),
            None => line.to_owned(),
        }
    };
    text.lines().map(mend).collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap();
    let run = |word: &str| match (word.split_once(".."), word.split_once('x')) {
        (Some((from, to)), _) => (number(from)..number(to)).collect(),
        (None, Some((value, count))) => vec![number(value); number(count) as usize],
        (None, None) => vec![number(word)],
    };
    text.split_whitespace().flat_map(run).collect()
}

/// A map of the tensor at an address, from the text of a directive.
fn tensor_map(text: &str, address: u64) -> TensorMap {
    let parts: Vec<&str> = text.split(' ').collect();
    let [ty, dims, strides, box_dims, swizzle] = parts[..] else { panic!("map {text}") };
    let list = |text: &str| -> Vec<u64> {
        text.split(',').filter(|n| *n != "-").map(|n| n.parse().unwrap()).collect()
    };
    let ty = match ty {
        "f16" => TensorType::F16,
        "u32" => TensorType::U32,
        other => panic!("type {other}"),
    };
    let swizzle = match swizzle {
        "none" => Swizzle::None,
        "32" => Swizzle::B32,
        "64" => Swizzle::B64,
        "128" => Swizzle::B128,
        other => panic!("swizzle {other}"),
    };
    TensorMap::new(ty, address, &list(dims), &list(strides), &list(box_dims), swizzle).unwrap()
}

/// The words of the last buffer at the end.
fn run(text: &str, checks: Checks, schedule: Schedule) -> Result<Vec<u32>, SimError> {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    (config.checks, config.schedule, config.limits) = (checks, schedule, Limits::SM_90);
    let mut params = Vec::new();
    let mut last = (0, 0);
    for directive in text.lines().filter_map(|l| l.strip_prefix("//# ")) {
        let (name, value) = directive.split_once(' ').unwrap();
        if name == "expect" {
            continue;
        }
        if name == "map" {
            let map = tensor_map(value, last.0).to_bytes();
            let address = memory.alloc(map.len());
            memory.write(address, &map).unwrap();
            params.extend(address.to_le_bytes());
            continue;
        }
        let (value, content) = value.split_once(' ').unwrap_or((value, ""));
        let value: u32 = value.parse().unwrap();
        let mut buffer = |written: bool, freed: bool| {
            let address = memory.alloc(value as usize);
            if written {
                let mut bytes: Vec<u8> = words(content).into_iter().flat_map(u32::to_le_bytes).collect();
                bytes.resize(value as usize, 0);
                memory.write(address, &bytes).unwrap();
            }
            last = (address, value as usize);
            if freed {
                memory.free(address).unwrap();
            }
            params.extend(address.to_le_bytes());
        };
        match name {
            "grid" => config.grid[0] = value,
            "block" => config.block[0] = value,
            "smem" => config.dynamic_smem_bytes = value,
            "budget" => config.instruction_budget = value.into(),
            "buffer" => buffer(true, false),
            "unwritten" => buffer(false, false),
            "freed" => buffer(true, true),
            other => panic!("unknown directive {other}"),
        }
    }
    launch(&module, "k", &params, &mut memory, &config)?;
    let mut bytes = vec![0; last.1];
    // A freed buffer has no content.
    let content = if memory.read(last.0, &mut bytes).is_ok() { &bytes[..] } else { &[] };
    Ok(content.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

fn finding(case: &Case, schedule: Schedule) -> Finding {
    match run(&case.text, Checks::ALL, schedule) {
        Err(SimError::Finding(finding)) => *finding,
        other => panic!("{}: expected {}, got {other:?}", case.name, case.kind),
    }
}

#[test]
fn every_correct_program_gives_what_it_must_under_any_seed() {
    let cases = cases_in("tests/pass");
    assert!(cases.len() > 10);
    for case in cases {
        let expected = case.text.lines().find_map(|l| l.strip_prefix("//# expect ")).unwrap();
        let schedules = (0..20).map(Schedule::Seeded).chain([Schedule::Deterministic]);
        for schedule in schedules {
            for checks in [Checks::ALL, Checks::NONE] {
                match run(&case.text, checks, schedule) {
                    Ok(got) => assert_eq!(got, words(expected), "{} {schedule:?}", case.name),
                    Err(error) => panic!("{}: {error}", case.name),
                }
            }
        }
    }
}

#[test]
fn every_planted_bug_fires_by_name_and_line() {
    for case in cases() {
        let found = finding(&case, Schedule::Deterministic);
        assert_eq!(found.kind.name(), case.kind, "{}: {found}", case.name);
        // Of two accesses that race, either may come second.
        let lines = [Some(found.line), found.other.and_then(|o| o.line)];
        let fires = |line: u32| case.text.lines().nth(line as usize - 1).is_some_and(|l| l.contains("FIRES"));
        assert!(lines.into_iter().flatten().any(fires), "{}: {found}", case.name);
        assert_eq!(found.kernel, "k");
    }
}

/// Also where the CTAs run on all cores. Lines and CTAs: of the finding, then of the other access.
#[test]
fn a_race_between_ctas_names_both_accesses_and_always_the_same() {
    for (name, lines, ctas) in
        [("global-race/reader.ptx", [21, 22], [1, 0]), ("global-race/two_writers.ptx", [21, 21], [1, 0])]
    {
        let case = cases().into_iter().find(|c| c.name == name).unwrap();
        let found: Vec<Finding> = (0..30).map(|_| finding(&case, Schedule::Deterministic)).collect();
        assert!(found.iter().all(|f| *f == found[0]), "{name}");
        let other = found[0].other.unwrap();
        assert_eq!([found[0].line, other.line.unwrap()], lines, "{}", found[0]);
        assert_eq!([found[0].cta[0], other.cta.unwrap()], ctas, "{}", found[0]);
        assert_eq!((other.warp, other.lanes), (Some(0), 1), "{}", found[0]);
    }
}

#[test]
fn every_planted_bug_fires_under_any_seed() {
    for case in cases() {
        for seed in 0..20 {
            let found = finding(&case, Schedule::Seeded(seed));
            // Another order may break another rule first.
            let early: &[&str] = match case.kind.as_str() {
                // The reader comes before the writer, or before the mbarrier is there.
                "shared-race" => &["uninitialized", "async-pending", "mbarrier"],
                // The other access comes first, or a copy lands before the next is issued.
                "async-pending" => &["shared-race"],
                "mbarrier" => &["async-pending"],
                _ => &[],
            };
            let early = early.contains(&found.kind.name());
            assert!(early || found.kind.name() == case.kind, "{}: {found}", case.name);
            assert_eq!(found.seed, Some(seed));
        }
    }
}

#[test]
fn every_mended_twin_is_quiet_under_any_seed() {
    for case in cases() {
        let text = mended(&case.text);
        assert_ne!(text, case.text.trim_end(), "{} has nothing to mend", case.name);
        let schedules = (0..20).map(Schedule::Seeded).chain([Schedule::Deterministic]);
        for schedule in schedules {
            if let Err(error) = run(&text, Checks::ALL, schedule) {
                panic!("{} mended: {error}", case.name);
            }
        }
    }
}

#[test]
fn every_check_can_be_turned_off() {
    let without = |kind: &str| {
        let mut checks = Checks::ALL;
        match kind {
            "out-of-bounds" | "use-after-free" => checks.bounds = false,
            // The planted addresses overlap, which other checks see once this one is off.
            "misaligned" => checks = Checks { bounds: true, ..Checks::NONE },
            "uninitialized" => checks.initialized = false,
            // The race and the missing value of an unfinished copy are findings of their own.
            "async-pending" | "proxy-fence" | "wgmma-pending" | "wgmma-fence" => {
                (checks.async_copies, checks.initialized, checks.shared_races) = (false, false, false);
            }
            // Reading too early also reads what is not there yet.
            "shared-race" => (checks.shared_races, checks.initialized) = (false, false),
            "global-race" | "read-only" => checks.global_races = false,
            "barrier-divergence" | "diverged-warp" => (checks.convergence, checks.shuffles) = (false, false),
            "shuffle-inactive" => checks.shuffles = false,
            // The kernel cannot go on.
            "trap" | "bad-operand" | "bad-target" | "deadlock" | "budget" | "mbarrier"
            | "diverged-warpgroup" => {
                return None;
            }
            other => panic!("no switch for {other}"),
        }
        Some(checks)
    };
    // A part of a warp cannot multiply for it.
    for case in cases().into_iter().filter(|c| c.name != "diverged-warp/wgmma.ptx") {
        if let Some(checks) = without(&case.kind)
            && let Err(error) = run(&case.text, checks, Schedule::Deterministic)
        {
            panic!("{} with its check off: {error}", case.name);
        }
    }
}
