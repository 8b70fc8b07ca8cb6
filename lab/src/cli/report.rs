//! `lab report`: what was measured and found, as Markdown and as a page; `lab log`: the sessions alone, as Markdown.

use crate::cli::Common;
use crate::cli::account::{Files, sections};
use crate::cli::evolve::bad_file;
use crate::cli::leaderboard::{path, table};
use crate::cli::profile::PROFILE;
use crate::cli::screen;
use crate::error::{EXIT_DONE, Result};
use crate::evolution::{HYPOTHESIS, Hypothesis, STEP, Step};
use crate::leaderboard::Leaderboard;
use crate::page::{Page, Section, courses};
use crate::profile::Profile;
use crate::results::Kept;
use crate::session::{self, Line, RUNS};
use crate::tree::Tree;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Findings that are shown.
const FINDINGS: usize = 12;

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    log: LogArgs,
    /// The leaderboard [default: lab/leaderboard.json of the project]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "lab-report.html")]
    html: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// Sessions [default: all of lab-runs, oldest first]
    #[arg(value_name = "SESSION")]
    sessions: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl LogArgs {
    /// The sessions that are meant, with their folders.
    fn read(&self) -> Result<Vec<(PathBuf, Kept)>> {
        let runs = self.common.runs.clone().unwrap_or_else(|| Tree::own().root().join(RUNS));
        let folders = if self.sessions.is_empty() { session::all(&runs) } else { self.sessions.clone() };
        let mut found = Vec::new();
        for folder in folders {
            match session::read(&folder, &mut |warning| screen::say(&warning)) {
                Ok((header, lines)) => {
                    let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
                    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    found.push((folder, Kept { name, header, lines }));
                }
                // Of all sessions those that can be read; of a named one the reason.
                Err(error) if self.sessions.is_empty() => screen::say(&error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

pub(crate) fn log(args: &LogArgs) -> Result<u8> {
    let sessions = args.read()?;
    if args.common.json {
        let as_json = |(_, Kept { name, header, lines }): &(PathBuf, Kept)| {
            let hypotheses: Vec<Hypothesis> = session::of_kind(lines, HYPOTHESIS);
            let steps: Vec<Step> = session::of_kind(lines, STEP);
            json!({ "session": name, "header": header, "hypotheses": hypotheses, "steps": steps })
        };
        screen::print(&serde_json::Value::from_iter(sessions.iter().map(as_json)).to_string());
        return Ok(EXIT_DONE);
    }
    for (folder, session) in &sessions {
        for section in sections(session, Files { folder, from_page: None }) {
            screen::print(&section.markdown());
        }
    }
    Ok(EXIT_DONE)
}

pub(crate) fn report(args: &ReportArgs) -> Result<u8> {
    let sessions = args.log.read()?;
    let file = path(args.file.as_deref());
    let board = Leaderboard::read(&file).map_err(|error| bad_file(&file, &error))?;
    let mut page = Page { title: "Ferroflash: the lab's report".to_owned(), ..Page::default() };
    page.facts = vec![
        ("written".to_owned(), session::now()),
        ("commit".to_owned(), Tree::own().commit().unwrap_or_default()),
        ("sessions".to_owned(), sessions.len().to_string()),
    ];
    for (folder, session) in &sessions {
        page.findings.extend(findings(&session.header.started, &session.lines));
        page.sections.extend(sections(session, Files { folder, from_page: Some(&from(&args.html, folder)) }));
    }
    // The latest are the most telling.
    page.findings.reverse();
    page.findings.truncate(FINDINGS);
    if !board.standings().is_empty() {
        page.sections.push(Section::of_table("The leaderboard", table(board.standings())));
    }
    page.courses = courses(&board);
    session::write_whole(&args.html, &page.html())?;
    if args.log.common.json {
        screen::print(&json!({ "html": args.html, "page": page }).to_string());
        return Ok(EXIT_DONE);
    }
    screen::print("# The lab's report\n");
    if !page.findings.is_empty() {
        screen::print("## Findings\n");
        page.findings.iter().for_each(|finding| screen::print(&format!("- {finding}")));
        screen::print("");
    }
    page.sections.iter().for_each(|section| screen::print(&section.markdown()));
    screen::say(&format!("the page is {}", args.html.display()));
    Ok(EXIT_DONE)
}

/// The way from a page to a folder: relative where the folder lies below the page's.
fn from(page: &Path, folder: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (page, folder) = (absolute(page), absolute(folder));
    let below = page.parent().and_then(|home| folder.strip_prefix(home).ok());
    below.map_or_else(|| folder.clone(), Path::to_owned)
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
