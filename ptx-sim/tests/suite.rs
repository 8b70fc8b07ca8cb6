//! Kernels and planted bugs compiled by nvcc 13.0 and 13.5 (`foreign/*.cu`), by clang 19 and by Triton 3.6: right ones run under every seed, and
//! every bug is named by its kind at the line where it was written.

#[path = "foreign/run.rs"]
mod suite;

use ptx_sim::{Checks, Finding, Module, Report, Schedule, Severity, SimError};

/// Source and PTX of each file.
const FILES: [(&str, &str); 25] = [
    (include_str!("foreign/sync.cu"), include_str!("foreign/sync.ptx")),
    (include_str!("foreign/more.cu"), include_str!("foreign/more.ptx")),
    (include_str!("foreign/classic.cu"), include_str!("foreign/classic.ptx")),
    (include_str!("foreign/async.cu"), include_str!("foreign/async.ptx")),
    (include_str!("foreign/library.cu"), include_str!("foreign/library.ptx")),
    (include_str!("foreign/language.cu"), include_str!("foreign/language.ptx")),
    (include_str!("foreign/cutlass.cu"), include_str!("foreign/cutlass.ptx")),
    (include_str!("foreign/orders.cu"), include_str!("foreign/orders.ptx")),
    (include_str!("foreign/unusual.cu"), include_str!("foreign/unusual.ptx")),
    (include_str!("foreign/habits.cu"), include_str!("foreign/habits.ptx")),
    (include_str!("foreign/chains.cu"), include_str!("foreign/chains.ptx")),
    (include_str!("foreign/fields.cu"), include_str!("foreign/fields.ptx")),
    (include_str!("foreign/pointers.cu"), include_str!("foreign/pointers.ptx")),
    (include_str!("foreign/unset.cu"), include_str!("foreign/unset.ptx")),
    (include_str!("foreign/debug.cu"), include_str!("foreign/debug.ptx")),
    (include_str!("foreign/debug.cu"), include_str!("foreign/clang/debug_O0.ptx")),
    (include_str!("foreign/debug.cu"), include_str!("foreign/clang/debug_O2.ptx")),
    (include_str!("foreign/unset.cu"), include_str!("foreign/clang/unset_O0.ptx")),
    (include_str!("foreign/corners.cu"), include_str!("foreign/corners.ptx")),
    (include_str!("foreign/tasks.cu"), include_str!("foreign/tasks.ptx")),
    (include_str!("foreign/turns.cu"), include_str!("foreign/turns.ptx")),
    (include_str!("foreign/rounded.cu"), include_str!("foreign/rounded.ptx")),
    (include_str!("foreign/sync_triton.py"), include_str!("foreign/sync_triton.ptx")),
    (include_str!("foreign/flow_triton.py"), include_str!("foreign/flow_triton.ptx")),
    (include_str!("foreign/numbers_triton.py"), include_str!("foreign/numbers_triton.ptx")),
];

fn run(module: &Module, entry: &str, schedule: Schedule, checks: Checks) -> Result<Report, SimError> {
    suite::run(module, entry, |config| (config.schedule, config.checks) = (schedule, checks))
        .map(|(report, _)| report)
}

/// The kinds that a kernel's bug may be found as, and its line.
fn bug_of(source: &str, entry: &str) -> (Vec<String>, u32) {
    let head = format!("K {entry} ARGS");
    let start = source
        .lines()
        .position(|l| l.trim_start_matches('C').starts_with(&head) || l.starts_with(&format!("def {entry}(")))
        .unwrap_or_else(|| panic!("{entry}"));
    let (at, line) = source
        .lines()
        .enumerate()
        .skip(start)
        .find(|(_, l)| l.contains(" BUG "))
        .unwrap_or_else(|| panic!("{entry}"));
    let kinds = line.split(" BUG ").nth(1).unwrap();
    (kinds.split_whitespace().map(str::to_owned).collect(), at as u32 + 1)
}

/// The modules of a file: Triton makes one of every kernel.
fn modules(ptx: &str) -> impl Iterator<Item = Module> {
    ptx.split("// next module").map(|text| Module::parse(text).unwrap())
}

fn entries(module: &Module, prefix: &str) -> Vec<String> {
    module.entries().filter(|e| e.starts_with(prefix)).map(str::to_owned).collect()
}

#[test]
fn right_kernels_run_under_every_seed() {
    let (mut wrong, mut kernels) = (Vec::new(), 0);
    for module in FILES.into_iter().flat_map(|(_, ptx)| modules(ptx)) {
        for entry in entries(&module, "ok_") {
            kernels += 1;
            for schedule in (0..20).map(Schedule::Seeded).chain([Schedule::Deterministic]) {
                match run(&module, &entry, schedule, Checks::ALL) {
                    Ok(report) if report.warnings.is_empty() || entry.contains("same_value") => {}
                    Ok(report) => wrong.push(format!("{entry} {schedule:?}: {}", report.warnings[0])),
                    Err(error) => wrong.push(format!("{entry} {schedule:?}: {error}")),
                }
            }
        }
    }
    println!("{kernels} right kernels, each under 20 seeds and in order");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong with a finding, if anything.
fn check(source: &str, entry: &str, finding: &Finding) -> Option<String> {
    let (kinds, line) = bug_of(source, entry);
    let lines = [finding.source.as_ref(), finding.other_source.as_ref()];
    let named = kinds.iter().any(|k| k == finding.kind.name()) && finding.severity == Severity::Error;
    let placed = lines.into_iter().flatten().any(|s| s.line == line);
    (!named || !placed).then(|| format!("{entry}: not {kinds:?} at line {line} but {finding}"))
}

#[test]
fn every_bug_is_named_where_it_was_written() {
    let (mut wrong, mut bugs) = (Vec::new(), 0);
    for (source, module) in FILES.into_iter().flat_map(|(source, ptx)| modules(ptx).map(move |m| (source, m)))
    {
        for entry in entries(&module, "bad_") {
            bugs += 1;
            for schedule in [Schedule::Deterministic, Schedule::Seeded(1), Schedule::Seeded(2)] {
                match run(&module, &entry, schedule, Checks::ALL) {
                    Err(SimError::Finding(finding)) => wrong.extend(check(source, &entry, &finding)),
                    Err(error) => wrong.push(format!("{entry}: {error}")),
                    Ok(_) => wrong.push(format!("{entry} {schedule:?}: nothing was found")),
                }
            }
        }
    }
    println!("{bugs} bugs, each named in order and under two seeds");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_bug_in_a_function_names_the_calls_too() {
    let (source, ptx) = (include_str!("foreign/corners.cu"), include_str!("foreign/corners.ptx"));
    let line_with = |text: &str| source.lines().position(|line| line.ends_with(text)).unwrap() as u32 + 1;
    for (entry, kind) in [("calls_inlined", "INLINED"), ("calls_out_of_line", "CALLED")] {
        let module = Module::parse_entry(ptx, entry).unwrap();
        let error = run(&module, entry, Schedule::Deterministic, Checks::ALL).unwrap_err();
        let SimError::Finding(finding) = error else { panic!("{error}") };
        let at = finding.source.as_ref().unwrap();
        let [inner, outer] = [line_with("// CALLS"), line_with(&format!("// FROM {kind}"))];
        assert_eq!((at.line, &at.called_at[..]), (line_with(&format!("; // {kind}")), &[inner, outer][..]));
        let text = format!("(corners.cu:{}, called at {inner}, called at {outer})", at.line);
        assert!(finding.to_string().contains(&text), "{finding}");
        assert!(finding.to_json().contains(&format!("\"called_at\":[{inner}, {outer}]")));
    }
}
