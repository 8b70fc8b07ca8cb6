//! `lab leaderboard`: who is best where, what a session adds to it, and what is blessed although it is slower.

use crate::candidate::Candidate;
use crate::cli::evolve::bad_file;
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::job::Timed;
use crate::kernels::Counted;
use crate::leaderboard::{Leaderboard, LeaderboardError, Place, Record, Standing, Update};
use crate::results::{self, BOARD, Kept};
use crate::session::{self, RECORDS_FILE, chain};
use crate::stages::Cascade;
use crate::table::{Table, short};
use crate::tree::Tree;
use clap::Args;
use ferroflash::Row;
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  # keep a session with the project: its files in lab/results, then the leaderboard and its pages written anew
  cargo lab leaderboard --add lab-runs/20261120T141500Z

  # the leaderboard and its pages anew from lab/results; do they say what it says?
  cargo lab leaderboard --write
  cargo lab leaderboard --check";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LeaderboardArgs {
    /// Another leaderboard than the project's, which no session is kept with [default: lab/leaderboard.json of the project]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Offer every candidate of this session that passed: each gets the places where it is better. The project's leaderboard keeps
    /// the session
    #[arg(long, value_name = "SESSION")]
    add: Option<PathBuf>,
    /// Write the leaderboard and its pages anew from the sessions in lab/results
    #[arg(long, conflicts_with_all = ["file", "add"])]
    write: bool,
    /// Change nothing; fail where the leaderboard or a page says something else than the sessions in lab/results
    #[arg(long, conflicts_with_all = ["file", "add", "write"])]
    check: bool,
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
    let tree = Tree::own();
    if args.check {
        return check(tree.root(), args.common.json);
    }
    let path = path(args.file.as_deref());
    let mut board = Leaderboard::read(&path).map_err(|error| bad_file(&path, &error))?;
    let mut changes = Vec::new();
    if let Some(folder) = &args.add {
        verify(folder)?;
        re_evaluate(args, folder)?;
        let folder = match &args.file {
            Some(_) => folder.clone(),
            None => results::keep(tree.root(), folder, &mut |warning| screen::say(&warning))?,
        };
        changes = add(&mut board, args, &folder, &path)?;
        if args.file.is_some() || args.bless.is_some() {
            board.write(&path).map_err(|error| bad_file(&path, &error))?;
        }
    }
    if args.write || (args.add.is_some() && args.file.is_none()) {
        board = results::write(tree.root())?;
        screen::say(&format!("{} and {} are as {} says", BOARD, results::PAGES.join(", "), results::FOLDER));
    }
    if args.common.json {
        screen::print(&json!({ "file": path, "changes": changes, "leaderboard": board }).to_string());
        return Ok(EXIT_DONE);
    }
    changes.iter().for_each(|change| screen::print(change));
    table(board.standings()).lines().iter().for_each(|line| screen::print(line));
    Ok(EXIT_DONE)
}

/// Offers what a session found to a leaderboard; what changed, a line each.
fn add(board: &mut Leaderboard, args: &LeaderboardArgs, folder: &Path, path: &Path) -> Result<Vec<String>> {
    let (header, lines) = session::read(folder, &mut |warning| screen::say(&warning))?;
    let chosen = |record: &Record| args.bless.as_ref().is_none_or(|entry| *entry == record.row.entry_name());
    let mut offered = Kept { name: String::new(), header, lines }.records();
    offered.retain(|(_, record)| chosen(record));
    // A session without a candidate may be kept for what else it shows.
    if offered.is_empty() && (args.file.is_some() || args.bless.is_some()) {
        let reason = format!("{} has no candidate that passed and is meant", folder.display());
        return misuse("--add", reason);
    }
    let mut changes = Vec::new();
    for (place, record) in offered {
        let (shown, entry) = (place.to_string(), record.row.entry_name());
        let update = match &args.reason {
            Some(reason) => board.bless(place, record, reason),
            None => board.offer(place, record),
        }
        .map_err(|error| bad_file(path, &error))?;
        if update != Update::NotBetter {
            changes.push(format!("{shown}: {entry} {}", word(&update)));
        }
    }
    Ok(changes)
}

/// Refuses a session whose records are not as the lab wrote them.
fn verify(folder: &Path) -> Result<()> {
    let (header, lines) = session::read(folder, &mut |warning| screen::say(&warning))?;
    chain::verify(&header, &lines)
        .map_err(|error| Error::BadFile { path: folder.join(RECORDS_FILE), reason: error.to_string() })
}

/// Takes every row that could get a place through the examination again, here: what a session says of it is not taken on trust.
fn re_evaluate(args: &LeaderboardArgs, folder: &Path) -> Result<()> {
    let (header, lines) = session::read(folder, &mut |_| ())?;
    let evaluations = session::of_kind::<Evaluation>(&lines, EVALUATION);
    let refused = |reason: String| Error::BadFile { path: folder.to_owned(), reason };
    if let Some(timed) = evaluations.iter().flat_map(|known| &known.timed).find(|timed| is_too_fast(timed)) {
        let what =
            format!("{} on {} is timed faster than any GPU's tensor cores are", timed.entry, timed.problem);
        return Err(refused(what));
    }
    let records = results::records(&header, &evaluations);
    let winners = to_examine(records, args.bless.as_deref()).map_err(|error| bad_file(folder, &error))?;
    if winners.is_empty() {
        return Ok(());
    }
    let mut lab = Lab::open("leaderboard", &args.common)?;
    lab.context.config.problems = header.config.problems;
    lab.context.config.tolerances = header.config.tolerances;
    let mut screen = Screen::new(winners.len() as u64);
    for winner in winners {
        let candidate = Candidate::of_row(winner);
        let again = lab.evaluate(&Cascade::test(), &candidate, None, &mut screen)?;
        screen.done(&format!("{}: {}", candidate.name, again.verdict()));
        if !again.passed() {
            return Err(refused(format!("{} does not pass here: {}", candidate.name, again.verdict())));
        }
        for said in evaluations.iter().filter(|known| known.row == winner && known.patch.is_none()) {
            let is_same = said.ptx_sha256 == again.ptx_sha256;
            if let Some(known) = said.counted.iter().find(|known| is_made_up(known, &again.counted, is_same))
            {
                let what = format!("{} counts otherwise here on {}", candidate.name, known.problem);
                return Err(refused(what));
            }
        }
    }
    Ok(())
}

/// The rows of a session that a leaderboard may take: each that was the best of a place when the session measured it, and the one that is
/// to be blessed. What the leaderboard has is not asked, since it takes sessions in the order in which they began.
fn to_examine(
    records: Vec<(Place, Record)>,
    blessed: Option<&str>,
) -> std::result::Result<Vec<Row>, LeaderboardError> {
    let (mut alone, mut rows) = (Leaderboard::default(), Vec::new());
    for (place, record) in records {
        let row = record.row;
        let is_blessed = blessed.is_some_and(|entry| entry == row.entry_name());
        let holds = alone.offer(place, record)? != Update::NotBetter;
        if (holds || is_blessed) && !rows.contains(&row) {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Dense floating-point operations that the fastest GPU with kernels here does in a microsecond, an H200 at its highest clock.
const FLOPS_PER_US: f64 = 4096.0 * 132.0 * 1980.0;

/// Whether nobody can have timed this.
fn is_too_fast(timed: &Timed) -> bool {
    let times = [&timed.warm_us, &timed.cold_us, &timed.fresh_us];
    times.into_iter().flatten().any(|us| *us * FLOPS_PER_US < timed.problem.flops())
}

/// Whether a session cannot have counted this: the same code counts otherwise here, or other code counts less.
fn is_made_up(said: &Counted, here: &[Counted], is_same: bool) -> bool {
    let Some(now) = here.iter().find(|now| now.problem == said.problem) else { return true };
    let least = now.clocks * (1.0 - 1e-9);
    said.clocks < least
        || (is_same && (said.clocks * (1.0 - 1e-9) > now.clocks || now.counters() != said.counters()))
}

/// Whether everything is as the kept sessions say.
fn check(root: &Path, as_json: bool) -> Result<u8> {
    let stale = results::stale(root)?;
    if as_json {
        screen::print(&json!({ "stale": stale }).to_string());
    }
    if let Some(name) = stale.first() {
        let reason = format!("does not say what {} says: cargo lab leaderboard --write", results::FOLDER);
        return Err(Error::BadFile { path: name.into(), reason });
    }
    if !as_json {
        screen::print(&format!("the leaderboard and its pages are as {} says", results::FOLDER));
    }
    Ok(EXIT_DONE)
}

/// The leaderboard that an option names, or the project's.
pub(crate) fn path(named: Option<&Path>) -> PathBuf {
    named.map_or_else(|| Tree::own().root().join(BOARD), Path::to_owned)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaderboard::Measure;
    use crate::problem_spec::Mask;
    use crate::search::tests::usual_row;
    use crate::statistics::Interval;

    #[test]
    fn rows_that_a_leaderboard_may_take_are_examined() {
        let row = |stages| Row { stages, ..usual_row() };
        let offered = |stages, clocks| {
            let (device, shape) = ("simulator".to_owned(), "1,8,8,512,512,64".to_owned());
            let place = Place { device, shape, dtype: row(stages).dtype, mask: Mask::Full };
            let record = Record {
                when: "2026-11-20T10:00:00Z".to_owned(),
                commit: String::new(),
                row: row(stages),
                measure: Measure::Clocks,
                score: Interval::exact(clocks),
                p90_us: None,
                tflops: None,
                counters: Default::default(),
                reason: None,
            };
            (place, record)
        };
        let records = || vec![offered(1, 9.0), offered(2, 8.0), offered(3, 8.5), offered(4, 9.5)];
        assert_eq!(to_examine(records(), None).expect("numbers"), [row(1), row(2)]);
        let blessed = row(4).entry_name();
        assert_eq!(to_examine(records(), Some(&blessed)).expect("numbers"), [row(1), row(2), row(4)]);
    }
}
