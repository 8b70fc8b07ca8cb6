//! What a search found, in a table, and in files of the session.

use crate::cli::evolve::bad_file;
use crate::cli::lab::Lab;
use crate::cli::screen;
use crate::error::Result;
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution::{self, HYPOTHESIS, Hypothesis, Step};
use crate::leaderboard::Leaderboard;
use crate::search::best;
use crate::search::replay::Recording;
use crate::session::write_whole;
use crate::table::{Table, short};
use serde_json::json;

/// The session's own leaderboard, in its folder.
pub(crate) const LEADERBOARD_FILE: &str = "leaderboard.json";
/// What was scored, for replays, in the session's folder.
pub(crate) const RECORDING_FILE: &str = "recording.json";
/// Rows that the table shows.
const SHOWN: usize = 8;

/// Writes the session's leaderboard and recording, and prints the best.
pub(crate) fn show(lab: &Lab, steps: &[Step], why: &str, as_json: bool) -> Result<()> {
    let header = lab.session.header();
    let evaluations: Vec<Evaluation> = lab.session.records(EVALUATION);
    let mut board = Leaderboard::default();
    let path = lab.session.folder().join(LEADERBOARD_FILE);
    evolution::leaderboard(&evaluations, header, &mut board).map_err(|error| bad_file(&path, &error))?;
    board.write(&path).map_err(|error| bad_file(&path, &error))?;
    let measured = if lab.context.machine.simulated {
        "shared-memory wavefronts per FLOP, all problems"
    } else {
        "geometric mean of the median times on fresh inputs, µs"
    };
    let rows: Vec<_> =
        steps.iter().filter(|step| step.candidate.patch.is_none()).map(|s| s.evaluated.clone()).collect();
    // A search that found nothing right has nothing to replay.
    if let Ok(recording) = Recording::new(header.device.clone(), measured.to_owned(), rows.clone()) {
        let text = serde_json::to_string(&recording).unwrap_or_default();
        write_whole(&lab.session.folder().join(RECORDING_FILE), &text)?;
    }
    let start = steps.first().and_then(|step| step.evaluated.score());
    let found = best(&rows);
    let object = json!({
        "session": lab.shown(), "device": header.device, "seed": header.seed, "measured": measured,
        "ended": why, "start": start, "best": found, "steps": steps,
    });
    lab.results(&object, as_json)?;
    if as_json {
        return Ok(());
    }
    table(lab, steps).lines().iter().for_each(|line| screen::print(line));
    if let (Some(start), Some(best)) = (start, found)
        && let Some(score) = best.score()
    {
        let percent = 100.0 * (1.0 - score / start);
        let name = best.row.entry_name();
        screen::print(&format!(
            "best: {name}, {} ({percent:.1} % less than the start's {}; {measured})",
            short(score),
            short(start)
        ));
    }
    screen::print(&format!("{}; seed {}; {why}; session {}", header.device, header.seed, lab.shown()));
    Ok(())
}

/// The best steps, and what had been expected of them.
fn table(lab: &Lab, steps: &[Step]) -> Table {
    let hypotheses: Vec<Hypothesis> = lab.session.records(HYPOTHESIS);
    let mut order: Vec<&Step> = steps.iter().filter(|step| step.evaluated.score().is_some()).collect();
    order.sort_by(|a, b| {
        let score = |step: &Step| step.evaluated.score().unwrap_or(f64::INFINITY);
        score(a).total_cmp(&score(b)).then(a.step.cmp(&b.step))
    });
    let percent =
        |gain: Option<f64>| gain.map_or_else(|| "–".to_owned(), |gain| format!("{:+.1} %", 100.0 * gain));
    let mut table = Table::new(&["step", "candidate", "score", "expected", "gain", "decision"]);
    for step in order.into_iter().take(SHOWN) {
        let hypothesis = hypotheses.iter().find(|hypothesis| hypothesis.step == step.step);
        table.add(vec![
            step.step.to_string(),
            step.candidate.name.clone(),
            step.evaluated.score().map(short).unwrap_or_default(),
            percent(hypothesis.and_then(|hypothesis| hypothesis.predicted_gain)),
            percent(step.gain),
            step.decision.clone(),
        ]);
    }
    table
}
