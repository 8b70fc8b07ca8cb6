//! `lab log`: hypothesis, predicted gain, result and decision of every step of every session, as Markdown.

use crate::cli::Common;
use crate::cli::screen;
use crate::error::{EXIT_DONE, Result};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution::{HYPOTHESIS, Hypothesis, STEP, Step};
use crate::session::{self, Header, Line, RUNS};
use crate::table::{Table, short};
use crate::tree::Tree;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// Sessions [default: all of lab-runs, oldest first]
    #[arg(value_name = "SESSION")]
    sessions: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &LogArgs) -> Result<u8> {
    let runs = args.common.runs.clone().unwrap_or_else(|| Tree::own().root().join(RUNS));
    let folders = if args.sessions.is_empty() { session::all(&runs) } else { args.sessions.clone() };
    let mut as_json = Vec::new();
    for folder in &folders {
        let read = session::read(folder, &mut |warning| screen::say(&warning));
        let (header, lines) = match read {
            Ok(read) => read,
            // Of all sessions those that can be read; of a named one the reason.
            Err(error) if args.sessions.is_empty() => {
                screen::say(&error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        if args.common.json {
            let hypotheses: Vec<Hypothesis> = session::of_kind(&lines, HYPOTHESIS);
            let steps: Vec<Step> = session::of_kind(&lines, STEP);
            as_json
                .push(json!({ "session": name, "header": header, "hypotheses": hypotheses, "steps": steps }));
        } else {
            screen::print(markdown(&name, &header, &lines).trim_end());
            screen::print("");
        }
    }
    if args.common.json {
        screen::print(&serde_json::Value::from(as_json).to_string());
    }
    Ok(EXIT_DONE)
}

/// One session.
pub(crate) fn markdown(name: &str, header: &Header, lines: &[Line]) -> String {
    let commit = header.commit.as_deref().unwrap_or("no commit");
    let mut text = format!(
        "## {name}: {}\n\n{}, commit {commit}, seed {}, begun {}\n\n",
        header.command, header.device, header.seed, header.started
    );
    let steps: Vec<Step> = session::of_kind(lines, STEP);
    let hypotheses: Vec<Hypothesis> = session::of_kind(lines, HYPOTHESIS);
    let percent =
        |gain: Option<f64>| gain.map_or_else(|| "–".to_owned(), |gain| format!("{:+.1} %", 100.0 * gain));
    if !hypotheses.is_empty() {
        let mut table = Table::new(&[
            "step",
            "candidate",
            "proposed by",
            "hypothesis",
            "predicted gain",
            "result",
            "gain",
            "decision",
        ]);
        for hypothesis in &hypotheses {
            let step = steps.iter().find(|step| step.step == hypothesis.step);
            let score = step.and_then(|step| step.evaluated.score());
            table.add(vec![
                hypothesis.step.to_string(),
                hypothesis.candidate.clone(),
                hypothesis.proposer.clone(),
                hypothesis.hypothesis.clone(),
                percent(hypothesis.predicted_gain),
                score.map_or_else(|| "–".to_owned(), short),
                percent(step.and_then(|step| step.gain)),
                step.map_or_else(|| "not finished".to_owned(), |step| step.decision.clone()),
            ]);
        }
        return text + &table.markdown();
    }
    let evaluations: Vec<Evaluation> = session::of_kind(lines, EVALUATION);
    let mut table = Table::new(&["candidate", "result"]);
    for evaluation in &evaluations {
        table.add(vec![evaluation.name.clone(), evaluation.verdict()]);
    }
    if table.is_empty() {
        text += "No steps.\n";
        return text;
    }
    text + &table.markdown()
}
