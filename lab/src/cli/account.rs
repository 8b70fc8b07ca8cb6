//! What a session came to, as sections to read: its course, candidates with their verdicts, refusals by name, what was kept, peers.

use crate::candidate::Candidate;
use crate::cli::benchmark::PEER;
use crate::cli::profile::{self, PROFILE};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution::{HYPOTHESIS, Hypothesis, STEP, Step};
use crate::exam::Fault;
use crate::page::{CourseChart, CoursePoint, Section, link};
use crate::peer::{PeerReport, comparisons};
use crate::predict;
use crate::profile::Profile;
use crate::results::Kept;
use crate::session::of_kind;
use crate::statistics::Interval;
use crate::table::{Table, short};
use std::collections::BTreeMap;
use std::path::Path;

/// Where a session's files lie, for links.
#[derive(Clone, Copy)]
pub(crate) struct Files<'a> {
    /// The session's folder.
    pub(crate) folder: &'a Path,
    /// How a page gets there; nothing links to anything without.
    pub(crate) from_page: Option<&'a Path>,
}

impl Files<'_> {
    /// A link to the first of the files that is there, else the text alone.
    fn link(self, text: &str, files: &[String]) -> String {
        let found = files.iter().find(|file| self.folder.join(file).is_file());
        match self.from_page.zip(found) {
            Some((page, file)) => link(text, &page.join(file).to_string_lossy()),
            None => text.to_owned(),
        }
    }
}

/// Everything that a session says, the most important first.
pub(crate) fn sections(session: &Kept, files: Files<'_>) -> Vec<Section> {
    let Kept { name, header, lines } = session;
    let commit = header.commit.as_deref().unwrap_or("no commit");
    let steps: Vec<Step> = of_kind(lines, STEP);
    let evaluations: Vec<Evaluation> = of_kind(lines, EVALUATION);
    let mut sections = vec![Section {
        title: format!("{name}: {}", header.command),
        text: format!("{}, commit {commit}, seed {}, begun {}", header.device, header.seed, header.started),
        course: (!steps.is_empty()).then(|| course(&steps, &header.device)),
        table: match steps.is_empty() {
            true => evaluated(&evaluations, files),
            false => stepped(&of_kind(lines, HYPOTHESIS), &steps, files),
        },
        ..Section::default()
    }];
    if sections[0].table.is_empty() {
        sections[0].text += ". No steps.";
    }
    sections.extend(kept(&steps));
    sections.extend(of_kind::<PeerReport>(lines, PEER).last().map(|report| {
        Section::of_table(&format!("{name}: against PyTorch on {}", report.device), comparisons(report))
    }));
    let profiles: Vec<Profile> = of_kind(lines, PROFILE);
    let refused = refused(&steps, &evaluations);
    for (title, table) in
        [("refusals, by their names", refused), ("what bounds the kernels", profile::table(&profiles))]
    {
        if !table.is_empty() {
            sections.push(Section::of_table(&format!("{name}: {title}"), table));
        }
    }
    sections
}

/// A change of a score in per cent.
fn percent(gain: Option<f64>) -> String {
    gain.map_or_else(|| "–".to_owned(), |gain| format!("{:+.1} %", 100.0 * gain))
}

/// A line a step: what was hoped for, and what became of it.
pub(crate) fn stepped(hypotheses: &[Hypothesis], steps: &[Step], files: Files<'_>) -> Table {
    let titles = ["step", "candidate", "proposed by", "score", "gain", "expected", "verdict", "hypothesis"];
    let mut table = Table::new(&titles);
    for hypothesis in hypotheses {
        let step = steps.iter().find(|step| step.step == hypothesis.step);
        let score = step.and_then(|step| step.evaluated.score());
        let name = &hypothesis.candidate;
        let logs = ["timing", "numerics", "numerics-again", "simulate", "compile"]
            .map(|stage| format!("logs/{name}-{stage}.log"));
        table.add(vec![
            hypothesis.step.to_string(),
            files.link(name, &logs),
            hypothesis.proposer.clone(),
            score.map_or_else(|| "–".to_owned(), short),
            percent(step.and_then(|step| step.gain)),
            percent(hypothesis.predicted_gain),
            step.map_or_else(|| "not finished".to_owned(), |step| step.decision.clone()),
            hypothesis.hypothesis.clone(),
        ]);
    }
    table
}

fn evaluated(evaluations: &[Evaluation], files: Files<'_>) -> Table {
    let mut table = Table::new(&["candidate", "verdict"]);
    for evaluation in evaluations {
        let log = format!("logs/{}-simulate.log", evaluation.name);
        table.add(vec![files.link(&evaluation.name, &[log]), evaluation.verdict()]);
    }
    table
}

/// The scores of a search in their order; the line goes through what was the best of its time.
fn course(steps: &[Step], device: &str) -> CourseChart {
    let points = steps.iter().filter_map(|step| {
        Some(CoursePoint {
            when: format!("step {}", step.step),
            score: Interval::exact(step.evaluated.score()?),
            holds: step.kept,
            note: format!("{}\n{}", step.candidate.name, step.decision),
        })
    });
    let unit = "score, lower is better".to_owned();
    CourseChart { title: "The search".to_owned(), device: device.to_owned(), unit, points: points.collect() }
}

/// What the best differs by from the start.
fn kept(steps: &[Step]) -> Option<Section> {
    let (first, best) = (steps.first()?, steps.iter().rfind(|step| step.kept)?);
    let Candidate { name, row, patch } = &best.candidate;
    let change = predict::change(&first.candidate.row, row);
    let gain = percent(first.evaluated.score().zip(best.evaluated.score()).map(|(a, b)| 1.0 - b / a));
    let text = match (change.is_empty(), patch) {
        (true, None) => return None,
        (true, Some(_)) => format!("{name}, {gain}: this patch"),
        (false, None) => format!("{name}, {gain}: {change}"),
        (false, Some(_)) => format!("{name}, {gain}: {change}, and this patch"),
    };
    let diff = patch.clone().unwrap_or_default();
    Some(Section { title: "What was kept".to_owned(), text, diff, ..Section::default() })
}

/// Refused candidates by the name of what they did.
fn refused(steps: &[Step], evaluations: &[Evaluation]) -> Table {
    let verdicts = evaluations.iter().map(|evaluation| (&evaluation.name, evaluation.verdict()));
    let of_steps = steps.iter().map(|step| (&step.candidate.name, step.decision.clone()));
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let verdicts: Vec<(&String, String)> = verdicts.chain(of_steps).collect();
    for (candidate, verdict) in &verdicts {
        let name = verdict.strip_prefix("refused: ").and_then(|rest| rest.split(':').next());
        let known = name.map(|name| by_name.entry(name).or_default());
        if let Some(list) = known.filter(|list| !list.contains(&candidate.as_str())) {
            list.push(candidate);
        }
    }
    let mut table = Table::new(&["name", "what it says", "candidates"]);
    for (name, candidates) in by_name {
        let fault = Fault::ALL.iter().find(|fault| fault.name() == name);
        let meaning = fault.map_or("", |fault| fault.meaning());
        table.add(vec![name.to_owned(), meaning.to_owned(), candidates.join(", ")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Line, tests::header};
    use serde_json::json;

    #[test]
    fn a_searchs_account_has_its_course_verdicts_refusals_and_what_was_kept() {
        let row = crate::search::tests::usual_row();
        let taller = ferroflash::Row { block_m: 2 * row.block_m, ..row };
        let step = |number: usize, row, outcome, kept, decision: &str, patch: Option<&str>| {
            json!({
                "step": number, "gain": null, "kept": kept, "decision": decision,
                "candidate": { "name": format!("c{number}"), "row": row, "patch": patch },
                "evaluated": { "row": row, "outcome": outcome, "cost": { "seconds": 0.0, "gpu_seconds": 0.0 } },
            })
        };
        let scored = |score: f64| json!({ "scored": { "score": score } });
        let bodies = [
            step(0, row, scored(4e-4), true, "kept: the first that is right", None),
            step(1, row, json!({ "refused": { "reason": "race: x" } }), false, "refused: race: x", None),
            step(2, taller, scored(3e-4), true, "kept: better", Some("-a\n+b\n")),
        ];
        let line = |kind: &str, body| Line { kind: kind.to_owned(), at_s: 0.0, body, chain: String::new() };
        let mut lines: Vec<Line> = bodies.into_iter().map(|body| line(STEP, body)).collect();
        for number in 0..3 {
            let hypothesis = json!({
                "step": number, "candidate": format!("c{number}"), "proposer": "model", "hypothesis": "h",
                "predicted_gain": 0.1,
            });
            lines.push(line(HYPOTHESIS, hypothesis));
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("logs")).expect("made");
        std::fs::write(folder.path().join("logs/c1-simulate.log"), "").expect("written");
        let session = Kept { name: "s".to_owned(), header: header("evolve"), lines };
        let files = Files { folder: folder.path(), from_page: Some(Path::new("runs/s")) };
        let sections = sections(&session, files);
        let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["s: evolve", "What was kept", "s: refusals, by their names"]);
        let course = sections[0].course.as_ref().expect("a course");
        assert_eq!(course.points.iter().map(|point| point.holds).collect::<Vec<_>>(), [true, true]);
        let text = sections[0].markdown();
        assert!(text.contains("| [c1](runs/s/logs/c1-simulate.log) |") && text.contains("| c2 |"), "{text}");
        let kept = sections[1].markdown();
        assert!(kept.contains("c2, +25.0 %: block_m") && kept.contains("```diff\n-a\n+b\n```"), "{kept}");
        assert!(sections[2].markdown().contains("| race | two accesses"), "{}", sections[2].markdown());
    }
}
