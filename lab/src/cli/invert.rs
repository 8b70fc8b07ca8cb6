//! `lab invert`: flaws put into a kernel on purpose, ranked by the damage they do.

use crate::candidate::Candidate;
use crate::cli::evaluate::{DEFAULT_ROW, row_of};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Result};
use crate::evaluation::Evaluation;
use crate::invert::{Damage, FLAWS, Flaw, FlawChange, table};
use crate::problem_spec::Mask;
use crate::stages::{Cascade, Context, Watcher};
use crate::statistics::{Bootstrap, median_log_ratio};
use clap::Args;
use serde_json::json;

#[derive(Args, Clone, Debug)]
pub(crate) struct InvertArgs {
    /// The row of the kernel that is damaged
    #[arg(value_name = "ROW", default_value = DEFAULT_ROW)]
    row: String,
    /// Only these flaws, by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &InvertArgs) -> Result<u8> {
    let row = row_of("ROW", &args.row)?;
    if let Some(unknown) = args.only.iter().find(|name| !FLAWS.iter().any(|flaw| flaw.name == **name)) {
        let names: Vec<&str> = FLAWS.iter().map(|flaw| flaw.name).collect();
        return misuse("--only", format!("there is no flaw {unknown}: there are {}", names.join(", ")));
    }
    let mut lab = Lab::open("invert", &args.common)?;
    let simulated = lab.context.machine.simulated;
    let cascade = if simulated { Cascade::count() } else { Cascade::whole() };
    let flaws: Vec<&Flaw> = FLAWS
        .iter()
        .filter(|flaw| args.only.is_empty() || args.only.iter().any(|name| name == flaw.name))
        .collect();
    let mut screen = Screen::new(flaws.len() as u64 + 1);
    screen.stage(&args.row, "without flaws");
    let whole = Candidate::of_row(row);
    let without = lab.evaluate(&cascade, &whole, None, &mut screen)?;
    lab.context.incumbent = Some(whole);
    screen.done(&format!("{}: {}", without.name, without.verdict()));
    let mut damages: Vec<Damage> = Vec::new();
    let mut not_shown: Vec<String> = Vec::new();
    for flaw in flaws {
        let candidate = match flaw.change {
            FlawChange::Row(change) => change(&row).map(Candidate::of_row),
            FlawChange::Patch(patch) => Some(Candidate::of_patch(row, patch.to_owned())),
        };
        let Some(candidate) = candidate else {
            not_shown.push(format!("{}: the row has it already, or cannot have it", flaw.name));
            continue;
        };
        if let Some(reason) = not_compiled(&lab.context, &candidate) {
            not_shown.push(format!("{}: {reason}", flaw.name));
            continue;
        }
        let with = lab.evaluate(&cascade, &candidate, None, &mut screen)?;
        screen.done(&format!("{}: {}", flaw.name, with.verdict()));
        let damage = if simulated { on_counters(flaw, &without, &with) } else { on_time(flaw, &with) };
        match damage {
            Some(damage) => damages.push(damage),
            None if !with.passed() => not_shown.push(format!("{}: {}", flaw.name, with.verdict())),
            None => not_shown.push(format!("{}: only time can show it", flaw.name)),
        }
    }
    drop(screen);
    if args.common.json {
        let object =
            json!({ "session": lab.shown(), "row": args.row, "damages": damages, "not_shown": not_shown });
        screen::print(&object.to_string());
        return Ok(EXIT_DONE);
    }
    let measured = if simulated { "clocks" } else { "time" };
    table(&damages, measured).lines().iter().for_each(|line| screen::print(line));
    not_shown.iter().for_each(|line| screen::print(&format!("not shown: {line}")));
    Ok(EXIT_DONE)
}

/// Why a candidate is not in the folder of compiled kernels, where nothing is compiled.
fn not_compiled(context: &Context, candidate: &Candidate) -> Option<String> {
    let folder = context.compiled.as_deref()?;
    if candidate.patch.is_some() {
        return Some("a patch has to be compiled".to_owned());
    }
    let is_there = context.tree.has_compiled(&candidate.row, folder);
    (!is_there).then(|| format!("{} is not in {}", candidate.name, folder.display()))
}

/// The damage on the simulator's counters, on the mask under which the flaw shows.
fn on_counters(flaw: &Flaw, without: &Evaluation, with: &Evaluation) -> Option<Damage> {
    let mask = if flaw.causal_only { Mask::Causal } else { Mask::Full };
    let counted = |evaluation: &'_ Evaluation| {
        evaluation.counted.iter().find(|counted| counted.problem.mask == mask).cloned()
    };
    flaw.damage_on_counters(&counted(without)?, &counted(with)?)
}

/// The damage on time, in turns with the kernel without the flaw: the worst problem's.
fn on_time(flaw: &Flaw, with: &Evaluation) -> Option<Damage> {
    let factors = with.timed.iter().zip(&with.incumbent).filter_map(|(own, other)| {
        let log = median_log_ratio(&other.fresh_us, &own.fresh_us, Bootstrap::default()).ok()?;
        Some(log.map(f64::exp))
    });
    let worst = factors.max_by(|a, b| a.estimate.total_cmp(&b.estimate))?;
    Some(flaw.damage_on_time(worst))
}
