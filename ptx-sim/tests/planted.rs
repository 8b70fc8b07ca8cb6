//! Planted bugs: each file of `fail/<kind>/` breaks one rule. Lines that end in `// BUG` are the bug, lines that start with
//! `//FIX` mend it, and `FIRES` marks the line that must be reported. The mended twin must stay quiet.
//!
//! Directives: `//# grid n`, `//# block n`, `//# smem n`, `//# budget n`; one parameter each for `//# buffer bytes`,
//! `//# unwritten bytes`, `//# freed bytes`.

use std::path::{Path, PathBuf};

use ptx_sim::{Checks, Finding, LaunchConfig, Memory, Module, Schedule, SimError, launch};

struct Case {
    name: String,
    kind: String,
    text: String,
}

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fail");
    let list = |path: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let files = list(&root).into_iter().flat_map(|kind| list(&kind));
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

fn run(text: &str, checks: Checks, schedule: Schedule) -> Result<(), SimError> {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    (config.checks, config.schedule) = (checks, schedule);
    let mut params = Vec::new();
    for directive in text.lines().filter_map(|l| l.strip_prefix("//# ")) {
        let (name, value) = directive.split_once(' ').unwrap();
        let value: u32 = value.parse().unwrap();
        let mut buffer = |written: bool, freed: bool| {
            let address = memory.alloc(value as usize);
            if written {
                memory.write(address, &vec![0; value as usize]).unwrap();
            }
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
    launch(&module, "k", &params, &mut memory, &config).map(|_| ())
}

fn finding(case: &Case, schedule: Schedule) -> Finding {
    match run(&case.text, Checks::ALL, schedule) {
        Err(SimError::Finding(finding)) => *finding,
        other => panic!("{}: expected {}, got {other:?}", case.name, case.kind),
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
            // Where the reader comes first, it reads what nobody has written yet.
            let early =
                case.kind == "shared-race" && matches!(found.kind.name(), "uninitialized" | "async-pending");
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
            "async-pending" => {
                (checks.async_copies, checks.initialized, checks.shared_races) = (false, false, false);
            }
            // Reading too early also reads what is not there yet.
            "shared-race" => (checks.shared_races, checks.initialized) = (false, false),
            "global-race" => checks.global_races = false,
            "barrier-divergence" | "diverged-warp" => (checks.convergence, checks.shuffles) = (false, false),
            "shuffle-inactive" => checks.shuffles = false,
            // The kernel cannot go on.
            "trap" | "bad-operand" | "bad-target" | "deadlock" | "budget" => return None,
            other => panic!("no switch for {other}"),
        }
        Some(checks)
    };
    for case in cases() {
        if let Some(checks) = without(&case.kind)
            && let Err(error) = run(&case.text, checks, Schedule::Deterministic)
        {
            panic!("{} with its check off: {error}", case.name);
        }
    }
}
