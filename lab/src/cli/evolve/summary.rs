//! What a search found, in a table, and in files of the session.

use crate::cli::account::{Files, stepped};
use crate::cli::cross_check::{CROSS_CHECK, CrossCheck};
use crate::cli::evolve::bad_file;
use crate::cli::lab::Lab;
use crate::cli::screen;
use crate::error::Result;
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution::{HYPOTHESIS, Step};
use crate::leaderboard::Leaderboard;
use crate::results;
use crate::session::write_whole;
use crate::table::short;
use serde_json::json;

/// The session's own leaderboard, in its folder.
pub(crate) const LEADERBOARD_FILE: &str = "leaderboard.json";
/// Every patch that was kept, as one that applies to the commit, in the session's folder.
pub(crate) const KEPT_FILE: &str = "kept.patch";
/// Writes the session's leaderboard and what was kept, and prints the best.
pub(crate) fn show(lab: &Lab, steps: &[Step], why: &str, as_json: bool) -> Result<()> {
    let header = lab.session.header();
    let evaluations: Vec<Evaluation> = lab.session.records(EVALUATION);
    let mut board = Leaderboard::default();
    let path = lab.session.folder().join(LEADERBOARD_FILE);
    for (place, record) in results::records(header, &evaluations) {
        board.offer(place, record).map_err(|error| bad_file(&path, &error))?;
    }
    board.write(&path).map_err(|error| bad_file(&path, &error))?;
    let measured = if lab.context.machine.simulated {
        "clocks that a multiprocessor's units need, counted and weighed: no time"
    } else {
        "geometric mean of the median times on fresh inputs, µs"
    };
    let start = steps.first().and_then(|step| step.evaluated.score());
    let found = steps.iter().rfind(|step| step.kept);
    let kept = found.and_then(|step| step.candidate.patch.as_ref());
    if let Some(patch) = kept {
        write_whole(&lab.session.folder().join(KEPT_FILE), patch)?;
    }
    let opinions: Vec<CrossCheck> = lab.session.records(CROSS_CHECK);
    let object = json!({
        "session": lab.shown(), "second_harness": opinions, "device": header.device, "seed": header.seed, "measured": measured,
        "ended": why, "start": start, "best": found.map(|step| &step.evaluated), "candidate": found.map(|step| &step.candidate.name),
        "patch": kept.map(|_| KEPT_FILE), "steps": steps,
    });
    lab.results(&object, as_json)?;
    if as_json {
        return Ok(());
    }
    let files = Files { folder: lab.session.folder(), from_page: None };
    stepped(&lab.session.records(HYPOTHESIS), steps, files)
        .lines()
        .iter()
        .for_each(|line| screen::print(line));
    if let (Some(start), Some(best)) = (start, found)
        && let Some(score) = best.evaluated.score()
    {
        let percent = 100.0 * (1.0 - score / start);
        let name = &best.candidate.name;
        screen::print(&format!(
            "best: {name}, {} ({percent:.1} % less than the start's {}; {measured})",
            short(score),
            short(start)
        ));
    }
    let of_best = found.and_then(|best| opinions.iter().rfind(|one| one.candidate == best.candidate.name));
    let doubted = opinions.iter().filter(|opinion| opinion.doubt.is_some());
    let shown: Vec<&CrossCheck> = doubted.chain(of_best.filter(|opinion| opinion.doubt.is_none())).collect();
    shown.iter().for_each(|opinion| screen::print(&opinion.to_string()));
    if kept.is_some() {
        screen::print(&format!("all that was kept: git apply {}/{KEPT_FILE}", lab.shown()));
    }
    screen::print(&format!("{}; seed {}; {why}; session {}", header.device, header.seed, lab.shown()));
    Ok(())
}
