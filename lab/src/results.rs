//! Sessions that are kept with the project, and what follows from them: the leaderboard, and its pages.

mod pages;
mod portable;

use crate::error::{Error, Result};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::evolution;
use crate::kernels::Machine;
use crate::leaderboard::{Leaderboard, LeaderboardError, Measure, Place, Record};
use crate::session::{self, HEADER_FILE, Header, Line, RECORDS_FILE, write_whole};
pub(crate) use portable::portable;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The kept sessions, a folder each, from the project's root.
pub const FOLDER: &str = "lab/results";
/// The project's leaderboard.
pub const BOARD: &str = "lab/leaderboard.json";
/// The leaderboard to read, and over time as charts.
pub const PAGES: [&str; 2] = ["docs/leaderboard.md", "docs/leaderboard.html"];
/// What is kept of a session where it has it; its header and records always are.
const ALSO_KEPT: [&str; 1] = ["top.json"];

/// A kept session.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The folder's name.
    pub name: String,
    /// What it is.
    pub header: Header,
    /// What came of it.
    pub lines: Vec<Line>,
}

/// What the kept sessions say, as files from the project's root. None of the leaderboard before there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// Names and texts.
    pub files: Vec<(&'static str, String)>,
    /// The leaderboard.
    pub board: Leaderboard,
}

/// Copies a session into the project, without paths of the machine that it ran on. Returns its new folder.
///
/// # Errors
/// [`Error::NotResumable`] where it is no session, [`Error::BadFile`] where another one has its name, [`Error::Io`].
pub fn keep(root: &Path, folder: &Path, warn: &mut dyn FnMut(String)) -> Result<PathBuf> {
    let (header, lines) = session::read(folder, warn)?;
    let name = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let kept = root.join(FOLDER).join(name.file_name().unwrap_or_default());
    let is_same = |known: &Header| known.started == header.started && known.seed == header.seed;
    if kept.exists() && !session::read_header(&kept).is_ok_and(|known| is_same(&known)) {
        let reason = format!("another session than {}: give that another name", folder.display());
        return Err(Error::BadFile { path: kept, reason });
    }
    std::fs::create_dir_all(&kept).map_err(|source| Error::io(&kept, source))?;
    write_whole(&kept.join(HEADER_FILE), &format!("{:#}\n", portable(json!(header))))?;
    let records: String = lines.iter().map(|line| format!("{}\n", portable(json!(line)))).collect();
    write_whole(&kept.join(RECORDS_FILE), &records)?;
    for file in ALSO_KEPT {
        let path = folder.join(file);
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let value = serde_json::from_str(&text)
            .map_err(|error| Error::BadFile { path: path.clone(), reason: error.to_string() })?;
        write_whole(&kept.join(file), &format!("{}\n", portable(value)))?;
    }
    Ok(kept)
}

/// The kept sessions, in the order in which they began.
///
/// # Errors
/// [`Error::NotResumable`], [`Error::BadFile`] where a line is cut, [`Error::Io`].
pub fn read(root: &Path) -> Result<Vec<Kept>> {
    let mut sessions = Vec::new();
    for folder in session::all(&root.join(FOLDER)) {
        let mut cut = None;
        let (header, lines) = session::read(&folder, &mut |warning| cut = Some(warning))?;
        if let Some(reason) = cut {
            return Err(Error::BadFile { path: folder, reason });
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sessions.push(Kept { name, header, lines });
    }
    sessions.sort_by(|a, b| (&a.header.started, &a.name).cmp(&(&b.header.started, &b.name)));
    Ok(sessions)
}

/// What the kept sessions say. Reasons for blessed kernels, and what runs of the gate saw, come from the leaderboard as it is.
///
/// # Errors
/// Those of [`read`], and [`Error::BadFile`] where the leaderboard cannot be read or has a record of a session that is not kept.
pub fn render(root: &Path) -> Result<Rendered> {
    let path = root.join(BOARD);
    let bad = |error: LeaderboardError| Error::BadFile { path: path.clone(), reason: error.to_string() };
    let known = Leaderboard::read(&path).map_err(bad)?;
    let sessions = read(root)?;
    let is_kept = |record: &Record| sessions.iter().any(|session| session.header.started == record.when);
    let all = || known.standings().iter().flat_map(|standing| standing.records.iter());
    if let Some(lost) = all().find(|record| !is_kept(record)) {
        let reason =
            format!("its record of {}, {}, is of no session in {FOLDER}", lost.row.entry_name(), lost.when);
        return Err(Error::BadFile { path, reason });
    }
    let board = replay(&sessions, &known).map_err(bad)?;
    let [markdown, html] = PAGES;
    let mut files =
        vec![(markdown, pages::markdown(&board, &sessions)), (html, pages::html(&board, &sessions))];
    if !board.standings().is_empty() {
        files.push((BOARD, board.json()));
    }
    Ok(Rendered { files, board })
}

/// Writes everything that follows from the kept sessions.
///
/// # Errors
/// Those of [`render`], [`Error::Io`], [`Error::DiskFull`].
pub fn write(root: &Path) -> Result<Leaderboard> {
    let Rendered { files, board } = render(root)?;
    for (name, text) in files {
        let path = root.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| Error::io(folder, source))?;
        }
        write_whole(&path, &text)?;
    }
    Ok(board)
}

/// The files that say something else than the kept sessions.
///
/// # Errors
/// Those of [`render`].
pub fn stale(root: &Path) -> Result<Vec<&'static str>> {
    let Rendered { files, .. } = render(root)?;
    let differs = |(name, text): &(&str, String)| {
        !std::fs::read_to_string(root.join(name)).is_ok_and(|found| found == *text)
    };
    Ok(files.iter().filter(|file| differs(file)).map(|(name, _)| *name).collect())
}

/// The records that a session's candidates compete with: times on a GPU, counts on the simulator.
pub fn records(header: &Header, evaluations: &[Evaluation]) -> Vec<(Place, Record)> {
    let measure =
        if header.device == Machine::simulator().name { Measure::Clocks } else { Measure::Microseconds };
    // A patch is not a row of the tree: it joins once it is applied there.
    let passed = evaluations.iter().filter(|evaluation| evaluation.passed() && evaluation.patch.is_none());
    passed
        .flat_map(|evaluation| evolution::records(evaluation, header, &header.config))
        .filter(|(_, record)| record.measure == measure)
        .collect()
}

impl Kept {
    /// What the session competes with.
    pub fn records(&self) -> Vec<(Place, Record)> {
        records(&self.header, &session::of_kind::<Evaluation>(&self.lines, EVALUATION))
    }
}

/// Offers every session's kernels in turn; who was blessed is blessed again, behind the rest of its session.
fn replay(sessions: &[Kept], known: &Leaderboard) -> std::result::Result<Leaderboard, LeaderboardError> {
    let reason = |(place, record): &(Place, Record)| {
        let is_it = |known: &&Record| {
            (&known.when, known.row) == (&record.when, record.row) && known.reason.is_some()
        };
        known.get(place)?.records.iter().find(is_it)?.reason.clone()
    };
    let mut board = Leaderboard::default();
    for session in sessions {
        let (blessed, offered): (Vec<_>, Vec<_>) = session
            .records()
            .into_iter()
            .map(|one| (reason(&one), one))
            .partition(|(reason, _)| reason.is_some());
        for (reason, (place, record)) in offered.into_iter().chain(blessed) {
            match reason {
                Some(reason) => board.bless(place, record, &reason)?,
                None => board.offer(place, record)?,
            };
        }
    }
    for standing in known.standings() {
        if let Some(replayed) = board.get_mut(&standing.place) {
            replayed.changes.clone_from(&standing.changes);
        }
    }
    Ok(board)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::job;
    use crate::kernels::Counted;
    use crate::problem_spec::{Mask, ProblemSpec};
    use crate::search::tests::usual_row;
    use crate::session::Session;
    use ferroflash::Row;
    use kernels_gpu::row::Isa;

    /// A session that timed the usual row once for each number, on two problems.
    pub(crate) fn session(runs: &Path, started: &str, times_us: &[f64]) -> PathBuf {
        let header = Header {
            device: "NVIDIA H200".to_owned(),
            commit: Some("0123abc".to_owned()),
            arguments: vec!["--ptx".to_owned(), ["", "somewhere", "kernels"].join("/")],
            started: started.to_owned(),
            ..session::tests::header("evolve")
        };
        let mut session = Session::create(runs, header).expect("created");
        for us in times_us {
            session.append(EVALUATION, &evaluation(*us)).expect("written");
        }
        session.folder().to_owned()
    }

    fn evaluation(us: f64) -> Evaluation {
        let row = usual_row();
        let timed = |mask, us: f64| {
            let shape = format!("4,16,16,512,512,{}", row.head_dim).parse().expect("a shape");
            job::tests::timed(ProblemSpec { shape, dtype: row.dtype, mask }, &row.entry_name(), us)
        };
        let times = vec![timed(Mask::Full, us), timed(Mask::Causal, 0.6 * us)];
        Evaluation { timed: times, ..Evaluation::new(&Candidate::of_row(row)) }
    }

    fn quiet(warning: String) {
        panic!("{warning}")
    }

    #[test]
    fn what_is_kept_becomes_a_leaderboard_and_pages_whatever_the_order() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let root = home.path();
        let later = session(runs.path(), "2026-11-21T10:00:00Z", &[15.0, 12.0]);
        let earlier = session(runs.path(), "2026-11-20T10:00:00Z", &[16.0, 14.0, 14.5]);
        for folder in [&later, &earlier] {
            keep(root, folder, &mut quiet).expect("kept");
        }
        let board = write(root).expect("written");
        let holders: Vec<usize> = board.standings().iter().map(|standing| standing.records.len()).collect();
        assert_eq!(holders, [3, 3], "16, 14 and 12 µs");
        assert_eq!(stale(root).expect("readable"), Vec::<&str>::new());
        let markdown = std::fs::read_to_string(root.join(PAGES[0])).expect("a page");
        assert!(
            markdown.contains("## NVIDIA H200")
                && markdown.contains("[0123abc](../lab/results/20261121T100000Z/session.json)"),
            "{markdown}"
        );
        assert!(markdown.contains(&usual_row().entry_name()) && markdown.contains("20261120T100000Z"));
        let html = std::fs::read_to_string(root.join(PAGES[1])).expect("a page");
        assert_eq!(html.matches("class=\"mark ").count(), 6, "a mark a holder");

        // A session that went on is kept anew; what is written then is out of date.
        let mut more = Session::resume(&later, "evolve", &mut quiet).expect("resumed");
        more.append(EVALUATION, &evaluation(11.0)).expect("written");
        keep(root, &later, &mut quiet).expect("kept again");
        assert_eq!(stale(root).expect("readable"), [PAGES[0], PAGES[1], BOARD]);
        write(root).expect("written");
        assert_eq!(stale(root).expect("readable"), Vec::<&str>::new());
        std::fs::write(root.join(PAGES[0]), markdown.replace("0123abc", "4567def")).expect("written");
        assert_eq!(stale(root).expect("readable"), [PAGES[0]]);
    }

    #[test]
    fn clocks_compete_with_those_of_the_device_that_they_are_of() {
        let simulated = Header { device: Machine::simulator().name, ..session::tests::header("evolve") };
        let device = |isa: Isa| {
            let row = Row { isa, ..usual_row() };
            let mut counted = Evaluation { row, ..Evaluation::new(&Candidate::of_row(row)) };
            let problem = job::tests::problem();
            counted.counted = vec![Counted { problem, ctas: 1, clocks: 1.0, numbers: Default::default() }];
            records(&simulated, &[counted])[0].0.device.clone()
        };
        assert_eq!(device(Isa::Mma), simulated.device);
        assert_ne!(device(Isa::Wgmma), simulated.device);
        assert_eq!([Isa::Mma, Isa::Wgmma].map(device), Machine::simulator().stands_for()[..]);
    }

    #[test]
    fn nothing_kept_is_said_and_invents_nothing() {
        let home = tempfile::tempdir().expect("a folder");
        assert_eq!(stale(home.path()).expect("readable"), PAGES);
        assert!(write(home.path()).expect("written").standings().is_empty());
        assert!(!home.path().join(BOARD).exists());
        for page in PAGES {
            let text = std::fs::read_to_string(home.path().join(page)).expect("a page");
            assert!(text.contains("Nothing is measured yet"), "{text}");
        }
    }

    #[test]
    fn kept_files_name_no_folder_of_a_machine() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let folder = session(runs.path(), "2026-11-21T10:00:00Z", &[15.0]);
        let kept = keep(home.path(), &folder, &mut quiet).expect("kept");
        let header = session::read_header(&kept).expect("a header");
        assert_eq!(header.arguments, ["--ptx", "kernels"]);
        let (before, after) = (session::read(&folder, &mut quiet), session::read(&kept, &mut quiet));
        assert_eq!(before.expect("records").1, after.expect("records").1, "every figure to its last bit");
    }

    #[test]
    fn blessings_and_changes_outlive_a_replay_and_foreign_records_are_not_dropped_in_silence() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let root = home.path();
        let folder = session(runs.path(), "2026-11-20T10:00:00Z", &[10.0]);
        keep(root, &folder, &mut quiet).expect("kept");
        write(root).expect("written");
        let slower = session(runs.path(), "2026-11-21T10:00:00Z", &[12.0]);
        keep(root, &slower, &mut quiet).expect("kept");
        let path = root.join(BOARD);
        let mut board = Leaderboard::read(&path).expect("a leaderboard");
        let sessions = read(root).expect("sessions");
        for (place, record) in sessions[1].records() {
            board.bless(place, record, "a wrong result was mended").expect("blessed");
        }
        let place = board.standings()[0].place.clone();
        board.get_mut(&place).expect("a standing").add_change(0.01);
        board.write(&path).expect("written");
        let replayed = write(root).expect("written");
        assert_eq!(replayed, board);
        let page = std::fs::read_to_string(root.join(PAGES[0])).expect("a page");
        assert!(page.contains("a wrong result was mended"), "{page}");

        std::fs::remove_dir_all(root.join(FOLDER).join("20261121T100000Z")).expect("removed");
        let error = write(root).expect_err("a record without its session").to_string();
        assert!(error.contains("2026-11-21T10:00:00Z, is of no session in lab/results"), "{error}");
    }

    #[test]
    fn one_that_held_a_place_before_a_better_one_of_its_session_can_be_blessed() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let root = home.path();
        let mut slow = evaluation(10.0);
        slow.row = kernels_gpu::table::VARIANTS
            .iter()
            .map(|variant| variant.row)
            .find(|row| row.dtype == usual_row().dtype && *row != usual_row())
            .expect("another row");
        let folder = session(runs.path(), "2026-11-20T10:00:00Z", &[]);
        let mut open = Session::resume(&folder, "evolve", &mut quiet).expect("resumed");
        open.append(EVALUATION, &slow).expect("written");
        open.append(EVALUATION, &evaluation(8.0)).expect("written");
        keep(root, &folder, &mut quiet).expect("kept");
        let mut board = write(root).expect("written");
        for (place, record) in read(root).expect("sessions")[0].records() {
            if record.row == slow.row {
                board.bless(place, record, "the faster one is wrong").expect("blessed");
            }
        }
        board.write(&root.join(BOARD)).expect("written");
        for _ in 0..2 {
            let replayed = write(root).expect("written");
            for standing in replayed.standings() {
                let best = standing.best();
                assert_eq!((best.row, best.reason.as_deref()), (slow.row, Some("the faster one is wrong")));
                assert_eq!(standing.records.len(), 2, "nobody twice");
            }
        }
    }

    #[test]
    fn a_session_does_not_take_the_place_of_another_of_its_name() {
        let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let folder = session(runs.path(), "2026-11-20T10:00:00Z", &[10.0]);
        keep(home.path(), &folder, &mut quiet).expect("kept");
        let path = folder.join(HEADER_FILE);
        let text = std::fs::read_to_string(&path).expect("a header");
        std::fs::write(&path, text.replace("\"seed\": 1", "\"seed\": 3")).expect("written");
        let error = keep(home.path(), &folder, &mut quiet).expect_err("another session").to_string();
        assert!(error.contains("another session than"), "{error}");
    }
}
