//! The leaderboard to read: as Markdown, and as a page with charts over time.

use super::{FOLDER, Kept};
use crate::leaderboard::{Leaderboard, Measure, Standing};
use crate::page::{Page, Section, courses, link};
use crate::session::{HEADER_FILE, RECORDS_FILE};
use crate::table::{Table, short};
use std::collections::BTreeMap;

const TITLE: &str = "The leaderboard";
/// What the pages say before there is a session.
const EMPTY: &str = "Nothing is measured yet: no session is kept in lab/results.";
const ABOUT: &str = "The best kernel that the lab has found to be right, for each device, problem and mask. All of it follows from the \
    records of the sessions below, kept in lab/results. A kernel's name says how it works: fwd (forward), wgmma (Hopper's instructions; \
    without it those of every GPU from Ampere on), the number type, the head's size (d64), the block of queries by keys that a group of \
    threads computes at a time (m64n128), its warps, buffers and groups an SM (w8s2c1), and how work is handed out.";
/// What a column holds.
const SPEED_UP: &str = "The speed-up is over the first kernel found there.";

/// The leaderboard in Markdown.
pub(super) fn markdown(board: &Leaderboard, sessions: &[Kept]) -> String {
    let mut text = format!("# {TITLE}\n\n<!-- Written by `cargo lab leaderboard --write`. -->\n\n{ABOUT}");
    text += " [lab.md](lab.md#the-leaderboard) says how.\n";
    if !sessions.is_empty() {
        text += "Over time, as charts: [leaderboard.html](leaderboard.html), to be opened from disk.\n";
    }
    for section in sections(board, sessions) {
        text += &format!("\n{}", section.markdown());
    }
    text
}

/// The leaderboard as a page.
pub(super) fn html(board: &Leaderboard, sessions: &[Kept]) -> String {
    let mut sections = sections(board, sessions);
    sections.insert(
        0,
        Section { title: "What this is".to_owned(), text: ABOUT.to_owned(), ..Section::default() },
    );
    let title = format!("Ferroflash: {}", TITLE.to_lowercase());
    Page { title, sections, courses: courses(board), ..Page::default() }.html()
}

/// A table a device, and one of the sessions.
fn sections(board: &Leaderboard, sessions: &[Kept]) -> Vec<Section> {
    let mut devices: BTreeMap<&str, Vec<&Standing>> = BTreeMap::new();
    for standing in board.standings() {
        devices.entry(&standing.place.device).or_default().push(standing);
    }
    let section = |(device, standings): (&str, Vec<&Standing>)| {
        let text = match standings.first().map(|standing| standing.best().measure) {
            Some(Measure::Microseconds) => {
                "Median time of a launch on inputs that no launch has seen, and the range that 95 % of the launches fell in, unless the \
                 session's lab.toml says another share."
            }
            _ => {
                "Clocks that the units of a multiprocessor need, from what the simulator counts: those of the busiest, and a quarter of the \
                 others'. It is no time, and fewer are better."
            }
        };
        let table = standings_table(&standings, sessions);
        Section { text: format!("{text} {SPEED_UP}"), ..Section::of_table(device, table) }
    };
    let mut found: Vec<Section> = devices.into_iter().map(section).collect();
    let text = if sessions.is_empty() { EMPTY } else { "" }.to_owned();
    found.push(Section { text, ..Section::of_table("Sessions", sessions_table(sessions)) });
    found
}

fn standings_table(standings: &[&Standing], sessions: &[Kept]) -> Table {
    let measure = standings.first().map_or(String::new(), |standing| standing.best().measure.to_string());
    let of_problem = ["batch", "heads (Q/KV)", "queries", "keys", "head size", "type", "mask"];
    let of_kernel = ["kernel", &measure, "95 % within", "p90 µs", "TFLOP/s", "speed-up"];
    let of_record = ["found", "commit", "kept though slower, because"];
    let mut table = Table::new(&[&of_problem[..], &of_kernel, &of_record].concat());
    for standing in standings {
        let (place, best) = (&standing.place, standing.best());
        let first = standing.records.first().unwrap_or(best);
        let sizes: Vec<&str> = place.shape.split(',').collect();
        let size = |at: usize| sizes.get(at).copied().unwrap_or_default().to_owned();
        let session = sessions.iter().find(|session| session.header.started == best.when);
        let linked = |text: &str, file: &str| match session {
            Some(session) => link(text, &format!("../{FOLDER}/{}/{file}", session.name)),
            None => text.to_owned(),
        };
        table.add(vec![
            size(0),
            format!("{}/{}", size(1), size(2)),
            size(3),
            size(4),
            size(5),
            place.dtype.name().to_owned(),
            place.mask.to_string(),
            best.row.entry_name(),
            short(best.score.estimate),
            range(best.score.low, best.score.high),
            best.p90_us.map(short).unwrap_or_default(),
            best.tflops.map(short).unwrap_or_default(),
            format!("{:.2}", first.score.estimate / best.score.estimate),
            linked(best.when.split('T').next().unwrap_or_default(), RECORDS_FILE),
            linked(&shown(&best.commit), HEADER_FILE),
            best.reason.clone().unwrap_or_default(),
        ]);
    }
    table.without_empty_columns()
}

/// Counts are exact.
fn range(low: f64, high: f64) -> String {
    if low == high { String::new() } else { format!("{}–{}", short(low), short(high)) }
}

fn sessions_table(sessions: &[Kept]) -> Table {
    let mut table = Table::new(&["session", "command", "device", "commit", "began", "records"]);
    for Kept { name, header, lines } in sessions {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        lines.iter().for_each(|line| *kinds.entry(&line.kind).or_default() += 1);
        let records: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let file = |text: &str, file: &str| link(text, &format!("../{FOLDER}/{name}/{file}"));
        table.add(vec![
            link(name, &format!("../{FOLDER}/{name}")),
            header.command.clone(),
            header.device.clone(),
            file(&shown(header.commit.as_deref().unwrap_or_default()), HEADER_FILE),
            header.started.clone(),
            file(&records.join(", "), RECORDS_FILE),
        ]);
    }
    table
}

/// A commit, where one is known.
fn shown(commit: &str) -> String {
    if commit.is_empty() { "unknown".to_owned() } else { commit.to_owned() }
}
