//! `lab leaderboard`: who is best where, what a session adds to it, and what is blessed although it is slower.

use crate::cli::evolve::bad_file;
use crate::cli::screen;
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Result};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution;
use crate::leaderboard::{Leaderboard, Standing, Update};
use crate::session;
use crate::table::{Table, short};
use crate::tree::Tree;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The project's leaderboard, from its root.
pub(crate) const FILE: &str = "lab/leaderboard.json";

#[derive(Args, Clone, Debug)]
pub(crate) struct LeaderboardArgs {
    /// The leaderboard [default: lab/leaderboard.json of the project]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Offer every candidate of this session that passed: each gets the places where it is better
    #[arg(long, value_name = "SESSION")]
    add: Option<PathBuf>,
    /// Give this entry of the session its places although it is not better; needs a reason
    #[arg(long, value_name = "ENTRY", requires_all = ["add", "reason"])]
    bless: Option<String>,
    /// Why a slower kernel is blessed; kept in the file
    #[arg(long, value_name = "TEXT", requires = "bless")]
    reason: Option<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &LeaderboardArgs) -> Result<u8> {
    let path = path(args.file.as_deref());
    let mut board = Leaderboard::read(&path).map_err(|error| bad_file(&path, &error))?;
    let mut changes = Vec::new();
    if let Some(folder) = &args.add {
        let (header, lines) = session::read(folder, &mut |warning| screen::say(&warning))?;
        let evaluations: Vec<Evaluation> = session::of_kind(&lines, EVALUATION);
        let chosen =
            |evaluation: &&Evaluation| args.bless.as_ref().is_none_or(|entry| *entry == evaluation.name);
        let passed: Vec<&Evaluation> = evaluations
            .iter()
            .filter(|evaluation| evaluation.passed() && evaluation.patch.is_none())
            .filter(chosen)
            .collect();
        if passed.is_empty() {
            return misuse(
                "--add",
                format!("{} has no candidate that passed and is meant", folder.display()),
            );
        }
        for evaluation in passed {
            for (place, record) in evolution::records(evaluation, &header, &header.config) {
                let shown = place.to_string();
                let update = match &args.reason {
                    Some(reason) => board.bless(place, record, reason),
                    None => board.offer(place, record),
                }
                .map_err(|error| bad_file(&path, &error))?;
                if update != Update::NotBetter {
                    changes.push(format!("{shown}: {} {}", evaluation.name, word(&update)));
                }
            }
        }
        board.write(&path).map_err(|error| bad_file(&path, &error))?;
    }
    if args.common.json {
        screen::print(&json!({ "file": path, "changes": changes, "leaderboard": board }).to_string());
        return Ok(EXIT_DONE);
    }
    changes.iter().for_each(|change| screen::print(change));
    table(board.standings()).lines().iter().for_each(|line| screen::print(line));
    Ok(EXIT_DONE)
}

/// The leaderboard that an option names, or the project's.
pub(crate) fn path(named: Option<&Path>) -> PathBuf {
    named.map_or_else(|| Tree::own().root().join(FILE), Path::to_owned)
}

fn word(update: &Update) -> String {
    match update {
        Update::First => "is the first".to_owned(),
        Update::Improved { factor } => format!("is better by a factor of {factor:.3}"),
        Update::NotBetter => "is not better".to_owned(),
        Update::Blessed => "is blessed".to_owned(),
    }
}

/// A line a place.
pub(crate) fn table(standings: &[Standing]) -> Table {
    let mut table = Table::new(&[
        "device", "shape", "dtype", "mask", "row", "score", "of", "TFLOP/s", "commit", "when", "reason",
    ]);
    for standing in standings {
        let (place, best) = (&standing.place, standing.best());
        table.add(vec![
            place.device.clone(),
            place.shape.clone(),
            place.dtype.name().to_owned(),
            place.mask.to_string(),
            best.row.entry_name(),
            short(best.score.estimate),
            best.measure.to_string(),
            best.tflops.map(short).unwrap_or_default(),
            best.commit.clone(),
            best.when.clone(),
            best.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}
