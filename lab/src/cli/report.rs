//! `lab report`: the summary of what was measured: shape, peer, this project, speed-up; findings; the changes that made them.

use crate::cli::Common;
use crate::cli::benchmark::PEER;
use crate::cli::evolve::bad_file;
use crate::cli::leaderboard::{path, table};
use crate::cli::profile::PROFILE;
use crate::cli::screen;
use crate::error::{EXIT_DONE, Error, Result};
use crate::evolution::{HYPOTHESIS, Hypothesis, STEP, Step};
use crate::kernels::Machine;
use crate::leaderboard::Leaderboard;
use crate::page::{Page, courses};
use crate::peer::{PeerReport, comparisons, page};
use crate::profile::Profile;
use crate::session::{self, Line, RUNS};
use crate::tree::Tree;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Findings that are shown.
const FINDINGS: usize = 12;

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// Sessions [default: all of lab-runs]
    #[arg(value_name = "SESSION")]
    sessions: Vec<PathBuf>,
    /// The leaderboard [default: lab/leaderboard.json of the project]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "lab-report.html")]
    html: PathBuf,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    let tree = Tree::own();
    let runs = args.common.runs.clone().unwrap_or_else(|| tree.root().join(RUNS));
    let folders = if args.sessions.is_empty() { session::all(&runs) } else { args.sessions.clone() };
    let file = path(args.file.as_deref());
    let board = Leaderboard::read(&file).map_err(|error| bad_file(&file, &error))?;
    let mut whole = Page { title: "Ferroflash: the lab's report".to_owned(), ..Page::default() };
    whole.facts = vec![
        ("written".to_owned(), session::now()),
        ("commit".to_owned(), tree.commit().unwrap_or_default()),
        ("sessions".to_owned(), folders.len().to_string()),
    ];
    let mut text = "# The lab's report\n".to_owned();
    let machine = Machine::find(crate::config::DeviceKind::Auto, 0)?;
    for folder in &folders {
        let (header, lines) = match session::read(folder, &mut |warning| screen::say(&warning)) {
            Ok(read) => read,
            Err(error) if args.sessions.is_empty() => {
                screen::say(&error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(report) = session::of_kind::<PeerReport>(&lines, PEER).pop() {
            let of_session = page(&report, &header, &machine);
            text +=
                &format!("\n## {}, {}\n\n{}", report.device, header.started, comparisons(&report).markdown());
            // The latest measurement of a chart takes the place of earlier ones.
            for chart in of_session.speed {
                whole.speed.retain(|known| known.title != chart.title);
                whole.speed.push(chart);
            }
            whole.summary = of_session.summary;
        }
        whole.findings.extend(findings(&header.started, &lines));
    }
    // The latest are the most telling.
    whole.findings.reverse();
    whole.findings.truncate(FINDINGS);
    whole.courses = courses(&board);
    if !whole.findings.is_empty() {
        text += "\n## Findings\n\n";
        whole.findings.iter().for_each(|finding| text += &format!("- {finding}\n"));
    }
    if !board.standings().is_empty() {
        text += &format!("\n## Leaderboard\n\n{}", table(board.standings()).markdown());
    }
    whole.write(&args.html).map_err(|source| Error::io(&args.html, source))?;
    if args.common.json {
        screen::print(&json!({ "html": args.html, "page": whole }).to_string());
    } else {
        screen::print(text.trim_end());
        screen::say(&format!("the page is {}", args.html.display()));
    }
    Ok(EXIT_DONE)
}

/// What a session found out: changes that were kept, and verdicts of profiles.
fn findings(when: &str, lines: &[Line]) -> Vec<String> {
    let hypotheses: Vec<Hypothesis> = session::of_kind(lines, HYPOTHESIS);
    let steps: Vec<Step> = session::of_kind(lines, STEP);
    let profiles: Vec<Profile> = session::of_kind(lines, PROFILE);
    let of_profile =
        |profile: &Profile| format!("{} on {}: {}", profile.name, profile.problem, profile.verdict);
    let mut findings: Vec<String> = profiles.iter().map(of_profile).collect();
    for step in steps.iter().filter(|step| step.kept && step.gain.is_some()) {
        let why = hypotheses.iter().find(|hypothesis| hypothesis.step == step.step);
        let why = why.map_or_else(String::new, |hypothesis| format!(" ({})", hypothesis.hypothesis));
        let gain = 100.0 * step.gain.unwrap_or(0.0);
        findings.push(format!("{when}: {} gained {gain:.1} %{why}", step.candidate.name));
    }
    findings
}
