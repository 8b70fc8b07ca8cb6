//! `ferroflash verify --backward`: gradients against the float64 reference.

use crate::backward_rows;
use crate::device::Engine;
use crate::failure::Failure;
use crate::input::{describe, to_json};
use crate::named_rows::NamedRows;
use crate::output::{self, Progress};
use crate::verify::{Args, GridName};
use check::random_input::InputKind;
use check::tolerance::backward::GradientVerdicts;
use check::verification::BackwardCase;
use check::workload::Workload;
use ferroflash::{Attention, BackwardPlan, Dtype, Error, RowSelection};
use kernels_gpu::row::ScoreKind;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What is verified.
pub(crate) enum What {
    /// One problem on generated tensors.
    Problem { workload: Box<Workload>, kind: InputKind },
    /// Problems drawn for every backward kernel.
    Grid(GridName),
}

/// Gradients of one problem and what is thought of them.
struct Judged {
    verdict: GradientVerdicts,
    /// The first repeated run that differed, where one did.
    differs_at: Option<usize>,
}

impl Judged {
    fn passed(&self) -> bool {
        self.verdict.passed && self.differs_at.is_none()
    }
}

pub(crate) fn run(args: &Args, what: What, engine: &Engine) -> Result<(), Failure> {
    let Engine::Kernels(attention) = engine else {
        return Err(Failure::NoRows { option: "backward", device: engine.name() });
    };
    match what {
        What::Problem { workload, kind } => one(args, &workload, kind, attention),
        What::Grid(grid) => grid_of_draws(args, grid, attention),
    }
}

fn one(args: &Args, workload: &Workload, kind: InputKind, attention: &Attention) -> Result<(), Failure> {
    let backward = args.of_backward.gradients(workload.problem())?;
    let case = BackwardCase::new(&backward, workload.clone(), (kind, args.seed), true)?;
    let rows = [args.rows.clone().unwrap_or_default()];
    let mut all = Vec::new();
    for plan in backward_rows::plans(attention, &backward, &rows)? {
        all.push((plan.entries(), judge(&case, &plan, args.repeats, attention)?));
    }
    let failed = all.iter().filter(|(_, judged)| !judged.passed()).count();
    if args.json {
        let results = all.iter().map(|(kernels, judged)| {
            json!({
                "kernels": kernels,
                "passed": judged.passed(),
                "verdict": judged.verdict,
                "repeats": args.repeats,
                "differs_at": judged.differs_at,
            })
        });
        output::print_json(&json!({
            "device": attention.device_name(),
            "problem": to_json(workload.problem()),
            "passed": failed == 0,
            "results": results.collect::<Vec<_>>(),
        }));
    } else {
        output::print(&describe(workload.problem()));
        for (kernels, judged) in &all {
            output::print(&line(&kernels.join(" + "), judged, args.repeats));
        }
    }
    if failed > 0 { Err(Failure::Wrong { failed, total: all.len() }) } else { Ok(()) }
}

fn judge(
    case: &BackwardCase,
    plan: &BackwardPlan,
    repeats: usize,
    attention: &Attention,
) -> Result<Judged, Error> {
    let first = case.run_plan(attention, plan)?;
    let verdict = case.judge(&first)?;
    let mut differs_at = None;
    for run in 1..=repeats {
        if case.run_plan(attention, plan)? != first {
            differs_at = Some(run);
            break;
        }
    }
    Ok(Judged { verdict, differs_at })
}

fn line(name: &str, judged: &Judged, repeats: usize) -> String {
    let repeats = match judged.differs_at {
        Some(at) => format!("; run {at} differs from the first"),
        None if repeats > 0 => format!("; {repeats} runs bitwise equal"),
        None => String::new(),
    };
    format!("{} {name}: {}{repeats}", output::passed(judged.passed()), judged.verdict)
}

/// Drawn problems for each dtype, tile width and score that has backward kernels, each by every kernel that computes it; one line a width.
fn grid_of_draws(args: &Args, grid: GridName, attention: &Attention) -> Result<(), Failure> {
    let draws: u64 = match grid {
        GridName::Quick => 16,
        GridName::Odd => 400,
    };
    let (library, info) = (attention.library(), attention.device().info());
    let named = NamedRows::of(args.rows.as_ref());
    named.check(library.backward_kernels().iter().map(|kernel| kernel.entry.as_str()))?;
    let kernels = library.backward_kernels().iter().filter(|kernel| named.mean(&kernel.entry));
    let widths: BTreeSet<(Dtype, u32, ScoreKind)> =
        kernels.map(|kernel| (kernel.row.dtype, kernel.row.head_dim, kernel.row.score)).collect();
    if widths.is_empty() {
        let (wanted, available) = ("of the backward pass".to_owned(), "the folder has none".to_owned());
        return Err(Error::NoSuchKernel { wanted, available }.into());
    }
    let (mut failed, mut reports) = (0, Vec::new());
    for &(dtype, head_dim, score) in &widths {
        let progress = Progress::new("drawn problems");
        let (mut wrong, mut runs, mut worst, mut first_failure) = (0, 0, (0.0, String::new()), None);
        for draw in 0..draws {
            let mut case = BackwardCase::draw(dtype, head_dim, score, args.seed.wrapping_add(draw))?;
            case.backward = args.of_backward.of(case.backward);
            let plans = match args.rows {
                Some(RowSelection::Best) => vec![attention.plan_backward(&case.backward)?],
                _ => BackwardPlan::covering(&case.backward, library, info)?,
            };
            let mut failure = None;
            for plan in plans {
                let entries = plan.entries();
                if !entries.iter().any(|entry| named.mean(entry)) {
                    continue;
                }
                runs += 1;
                let name = format!("{case}, {}", entries.join(" + "));
                let failed = match judge(&case, &plan, args.repeats, attention) {
                    Ok(judged) => {
                        if judged.verdict.ratio() > worst.0 {
                            worst = (judged.verdict.ratio(), name.clone());
                        }
                        (!judged.passed()).then(|| line(&name, &judged, args.repeats))
                    }
                    Err(error) => Some(format!("{name}: {error}")),
                };
                failure = failure.or(failed);
            }
            wrong += usize::from(failure.is_some());
            first_failure = first_failure.or(failure);
            progress.set(draw as usize + 1, draws as usize);
        }
        drop(progress);
        failed += usize::from(wrong > 0);
        reports.push(report(
            args.json,
            (dtype, head_dim, score),
            (draws, wrong, runs),
            &worst,
            first_failure,
        ));
    }
    if args.json {
        let passed = failed == 0;
        output::print_json(&json!({ "device": attention.device_name(), "passed": passed, "rows": reports }));
    }
    if failed > 0 { Err(Failure::Wrong { failed, total: widths.len() }) } else { Ok(()) }
}

fn report(
    json: bool,
    (dtype, head_dim, score): (Dtype, u32, ScoreKind),
    (draws, wrong, runs): (u64, usize, usize),
    worst: &(f64, String),
    first_failure: Option<String>,
) -> Value {
    let score = if score.is_plain() { String::new() } else { format!(" {}", score.name()) };
    let name = format!("backward {} head_dim {head_dim}{score}", dtype.name());
    if !json {
        let failure =
            first_failure.as_ref().map_or(String::new(), |failure| format!("; first failure: {failure}"));
        output::print(&format!(
            "{} {name}: {} of {draws} problems right in {runs} passes, at worst {:.0} % of the allowed error ({}){failure}",
            output::passed(wrong == 0),
            draws - wrong as u64,
            worst.0 * 100.0,
            worst.1
        ));
    }
    json!({
        "name": name,
        "cases": draws,
        "passes": runs,
        "failed": wrong,
        "worst_ratio": worst.0,
        "worst_case": worst.1,
        "first_failure": first_failure,
    })
}
