//! What happens without each barrier, wait and fence: every one is deleted from every right kernel that nvcc compiled
//! (`foreign/*.cu`), and the rest runs under four orders. None may give a wrong result in silence. Those that give a right one in
//! silence are listed in `deletion.txt`, each with why nothing needs it; for the kernels of the later audits ([`AUDITS`]) only that none is
//! wrong in silence is asked.
//!
//! Barriers that give a value (`bar.red`) cannot be deleted. A wait for an mbarrier that is deleted tells its loop that the phase is
//! complete.

#[path = "foreign/run.rs"]
mod suite;

use std::collections::{BTreeMap, BTreeSet};

use ptx_sim::{Checks, Module, Schedule};

const FILES: [&str; 8] = [
    include_str!("foreign/sync.ptx"),
    include_str!("foreign/more.ptx"),
    include_str!("foreign/classic.ptx"),
    include_str!("foreign/async.ptx"),
    include_str!("foreign/library.ptx"),
    include_str!("foreign/language.ptx"),
    include_str!("foreign/cutlass.ptx"),
    include_str!("foreign/orders.ptx"),
];
const AUDITS: [&str; 10] = [
    include_str!("foreign/chains.ptx"),
    include_str!("foreign/corners.ptx"),
    include_str!("foreign/fields.ptx"),
    include_str!("foreign/habits.ptx"),
    include_str!("foreign/kernels.ptx"),
    include_str!("foreign/pointers.ptx"),
    include_str!("foreign/tasks.ptx"),
    include_str!("foreign/turns.ptx"),
    include_str!("foreign/unusual.ptx"),
    include_str!("foreign/wmma.ptx"),
];
const ORDERS: [Schedule; 4] =
    [Schedule::Deterministic, Schedule::Seeded(1), Schedule::Seeded(2), Schedule::Seeded(3)];
const DELETED: [&str; 11] = [
    "bar.sync",
    "bar.warp.sync",
    "bar.arrive",
    "barrier.",
    "membar",
    "fence",
    "cp.async.wait",
    "cp.async.bulk.wait",
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "wgmma.wait",
];

/// What a run leaves in its buffers; `None` if it was found to be wrong, or a warning says so.
fn run(module: &Module, entry: &str, schedule: Schedule) -> Option<Vec<u8>> {
    let launched = suite::run(module, entry, |config| {
        (config.schedule, config.checks, config.instruction_budget) = (schedule, Checks::ALL, 1 << 22);
    });
    let (report, bytes) = launched.ok()?;
    report.warnings.is_empty().then_some(bytes)
}

/// The lines of an entry that can be deleted, and what is put in their places.
fn deletions(lines: &[&str], entry: &str) -> Vec<(usize, String)> {
    let head = lines.iter().position(|l| l.contains(&format!(".entry {entry}("))).unwrap();
    let body = lines.iter().enumerate().skip(head).take_while(|(_, l)| **l != "}");
    body.filter_map(|(at, line)| {
        let bare = line.trim();
        let bare = if bare.starts_with('@') { bare.split_once(' ')?.1.trim() } else { bare };
        DELETED.iter().find(|name| bare.starts_with(**name))?;
        let instead = match bare.strip_prefix("mbarrier.") {
            // The first operand says whether the phase is complete.
            Some(rest) => {
                let result = rest.split_whitespace().nth(1)?.trim_end_matches(',');
                format!("setp.eq.u32 {result}, 0, 0;")
            }
            None => String::new(),
        };
        Some((at, instead))
    })
    .collect()
}

/// How a deletion went.
#[derive(Debug, Default)]
struct Tally {
    found: usize,
    silent: Vec<String>,
    wrong: Vec<String>,
}

fn study(ptx: &str, tally: &mut Tally) -> usize {
    let lines: Vec<&str> = ptx.lines().collect();
    let whole = Module::parse(ptx).unwrap();
    // Instructions that write the same value are warned of as they are.
    let is_right = |e: &&str| e.starts_with("ok_") && !e.contains("same_value");
    let entries: Vec<String> = whole.entries().filter(is_right).map(str::to_owned).collect();
    let mut kernels = 0;
    for entry in &entries {
        let list = deletions(&lines, entry);
        let right: Vec<_> =
            ORDERS.iter().map(|order| run(&whole, entry, *order).expect("it is right")).collect();
        // What is appended or pushed lies where the order puts it: there the kernel's own checks must say what is wrong.
        let by_order = right.windows(2).any(|pair| pair[0] != pair[1]);
        kernels += usize::from(!list.is_empty());
        let mut number = BTreeMap::new();
        for (at, instead) in list {
            let mut text = lines.clone();
            text[at] = &instead;
            let module = Module::parse_entry(&text.join("\n"), entry).unwrap();
            let outcomes: Vec<_> = ORDERS.iter().map(|order| run(&module, entry, *order)).collect();
            let what = lines[at].trim().trim_end_matches(';');
            let name = what.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
            let nth = number.entry(name).and_modify(|n| *n += 1).or_insert(1);
            let label = format!("{entry} {name} {nth}");
            let is_right =
                |(got, right): (&Option<Vec<u8>>, &Vec<u8>)| got.as_ref().is_none_or(|got| got == right);
            if !by_order && !outcomes.iter().zip(&right).all(is_right) {
                tally.wrong.push(label);
            } else if outcomes.iter().any(Option::is_none) {
                tally.found += 1;
            } else {
                tally.silent.push(label);
            }
        }
    }
    kernels
}

/// The kernels of these files, and how the deletions from them went: none wrong in silence.
fn study_all(files: &[&str]) -> (usize, Tally) {
    let mut tally = Tally::default();
    let kernels: usize = files.iter().map(|ptx| study(ptx, &mut tally)).sum();
    println!("{kernels} kernels: {} found, {} silent and right", tally.found, tally.silent.len());
    assert!(tally.wrong.is_empty(), "silent and wrong: {:#?}", tally.wrong);
    (kernels, tally)
}

#[test]
fn nothing_that_orders_can_go_without_a_finding_or_a_reason() {
    let (kernels, tally) = study_all(&FILES);
    if std::env::var_os("PTX_SIM_SHOW_SILENT").is_some() {
        println!("{}", tally.silent.join("\n"));
    }
    let explained = include_str!("deletion.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .flat_map(|line| {
            let (label, _) = line.split_once(": ").expect("KERNEL INSTRUCTION NUMBERS: why");
            let (what, numbers) = label.rsplit_once(' ').expect("numbers with commas");
            numbers.split(',').map(move |number| format!("{what} {number}"))
        })
        .collect::<BTreeSet<String>>();
    let silent: BTreeSet<String> = tally.silent.into_iter().collect();
    let unexplained: Vec<_> = silent.difference(&explained).collect();
    let found: Vec<_> = explained.difference(&silent).collect();
    assert!(
        unexplained.is_empty() && found.is_empty(),
        "silent without a reason: {unexplained:#?}, explained but found: {found:#?}"
    );
    assert!(kernels >= 30 && tally.found >= 200, "{kernels} kernels, {} found", tally.found);
}

#[test]
fn nothing_that_orders_can_go_from_the_audits_kernels_and_be_wrong_in_silence() {
    let (kernels, tally) = study_all(&AUDITS);
    assert!(kernels >= 120 && tally.found >= 500, "{kernels} kernels, {} found", tally.found);
}
