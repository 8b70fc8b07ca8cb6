//! What is planned for random problems on every device model, kept in a file: a change of the planner or of a profile shows as a diff, to be
//! reviewed. `FERROFLASH_BLESS=1 cargo test plans` writes it anew.

use crate::support;
use check::measure::draw::{Draw, Kind};
use check::workload::describe;
use ferroflash::device::model::MODELS;
use ferroflash::{Layout, Plan, PlanOptions, Planner, Problem};
use std::path::Path;

support::trials!(the_plans_are_those_that_were_reviewed,);

/// Dense problems, the classes in turns, and ragged batches.
const PROBLEMS: u64 = 120;
const RAGGED: u64 = 60;
const SEED: u64 = 5;

fn the_plans_are_those_that_were_reviewed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/plans.txt");
    let planned = planned();
    if std::env::var_os("FERROFLASH_BLESS").is_some() {
        std::fs::write(&path, &planned).expect("written");
    }
    let reviewed = std::fs::read_to_string(&path).expect("the file is there");
    for (number, (now, then)) in planned.lines().zip(reviewed.lines()).enumerate() {
        assert_eq!(
            now,
            then,
            "line {} of {}: review it, then FERROFLASH_BLESS=1",
            number + 1,
            path.display()
        );
    }
    assert_eq!(planned.lines().count(), reviewed.lines().count());
}

/// A problem, then a line for each choice and the devices that have it.
fn planned() -> String {
    let planners: Vec<Planner> = MODELS.iter().map(|model| Planner::of_table(&model.info())).collect();
    let mut text = String::new();
    let dense = (0..PROBLEMS).map(|place| Kind::Dense.number(place));
    for number in dense.chain((0..RAGGED).map(|place| Kind::Ragged.number(place))) {
        let problem = *Draw::new(SEED, number).expect("valid").workload.problem();
        text += &format!("{}\n", title(&problem));
        let mut choices: Vec<(String, Vec<&str>)> = Vec::new();
        for (planner, model) in planners.iter().zip(MODELS) {
            let choice = choice(&planner.plan(&problem, &PlanOptions::new()).expect("planned"));
            match choices.iter_mut().find(|(other, _)| *other == choice) {
                Some((_, models)) => models.push(model.name),
                None => choices.push((choice, vec![model.name])),
            }
        }
        for (choice, models) in choices {
            text += &format!("  {choice}: {}\n", models.join(" "));
        }
    }
    text
}

fn title(problem: &Problem) -> String {
    let sizes = problem.sizes();
    let shape = [sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.seqlen_k, sizes.head_dim];
    let lengths = if problem.has_lengths() { " lengths" } else { "" };
    let layout = if problem.layout() == Some(Layout::Bshd) { "bshd" } else { "bhsd" };
    let shape = shape.map(|size| size.to_string()).join(",");
    format!("{shape} {} {} {layout}{lengths}", problem.dtype().name(), describe(problem))
}

fn choice(plan: &Plan) -> String {
    let merged = if plan.is_fused() { ", merged in the same launch" } else { "" };
    match plan.splits() {
        1 => plan.kernel().entry.clone(),
        splits => format!("{}, {splits} splits{merged}", plan.kernel().entry),
    }
}
