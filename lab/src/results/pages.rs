//! The leaderboard to read: as Markdown, and as a page with charts over time.

use super::{FOLDER, Kept};
use crate::leaderboard::{Leaderboard, Measure, Standing};
use crate::page::{Page, Section, courses};
use crate::table::{Table, short};
use std::collections::BTreeMap;

const TITLE: &str = "The leaderboard";
/// What the pages say before there is a session.
const EMPTY: &str = "Nothing is measured yet: no session is kept in lab/results.";

/// The leaderboard in Markdown.
pub(super) fn markdown(board: &Leaderboard, sessions: &[Kept]) -> String {
    let mut text = format!(
        "# {TITLE}\n\n<!-- Written by `cargo lab leaderboard --write`. -->\n\n\
         The fastest kernel that the lab found right, for each device, shape (batch, query heads, KV heads, queries, keys, head_dim), dtype \
         and mask. It follows from the sessions in [`{FOLDER}`](../{FOLDER}) alone; [lab.md](lab.md#the-leaderboard) says how.\n"
    );
    if sessions.is_empty() {
        return text.replace(&format!("[`{FOLDER}`](../{FOLDER})"), &format!("`{FOLDER}`"))
            + &format!("\n**{EMPTY}**\n");
    }
    text += "Over time, as charts: [leaderboard.html](leaderboard.html), to be opened from disk.\n";
    for Section { title, text: about, table } in sections(board) {
        text += &format!("\n## {title}\n\n{about}\n\n{}", table.markdown());
    }
    text + &format!("\n## Sessions\n\n{}", sessions_table(sessions, true).markdown())
}

/// The leaderboard as a page.
pub(super) fn html(board: &Leaderboard, sessions: &[Kept]) -> String {
    let mut tables = sections(board);
    let text = if sessions.is_empty() { EMPTY } else { "" }.to_owned();
    tables.push(Section { title: "Sessions".to_owned(), text, table: sessions_table(sessions, false) });
    Page {
        title: format!("Ferroflash: {}", TITLE.to_lowercase()),
        tables,
        courses: courses(board),
        ..Page::default()
    }
    .html()
}

/// A table a device.
fn sections(board: &Leaderboard) -> Vec<Section> {
    let mut devices: BTreeMap<&str, Vec<&Standing>> = BTreeMap::new();
    for standing in board.standings() {
        devices.entry(&standing.place.device).or_default().push(standing);
    }
    let section = |(device, standings): (&str, Vec<&Standing>)| {
        let text = match standings.first().map(|standing| standing.best().measure) {
            Some(Measure::Microseconds) => {
                "Median device time on inputs that no launch has seen, and the range that 95 % of the launches fell in, unless the \
                 session's lab.toml says another share; × first is how many times as long the first holder of the place took."
            }
            _ => {
                "Shared-memory wavefronts per floating-point operation, counted by the simulator, which has no times; × first is how \
                 many times as many the first holder of the place took."
            }
        };
        Section { title: device.to_owned(), text: text.to_owned(), table: standings_table(&standings) }
    };
    devices.into_iter().map(section).collect()
}

fn standings_table(standings: &[&Standing]) -> Table {
    let measure = standings.first().map_or(String::new(), |standing| standing.best().measure.to_string());
    let titles =
        ["shape", "dtype", "mask", "kernel", &measure, "range", "p90 µs", "TFLOP/s", "holders", "× first"];
    let mut table = Table::new(&[&titles[..], &["commit", "measured", "slower, because"]].concat());
    for standing in standings {
        let (place, best) = (&standing.place, standing.best());
        let first = standing.records.first().unwrap_or(best);
        table.add(vec![
            place.shape.clone(),
            place.dtype.name().to_owned(),
            place.mask.to_string(),
            best.row.entry_name(),
            short(best.score.estimate),
            range(best.score.low, best.score.high),
            best.p90_us.map(short).unwrap_or_default(),
            best.tflops.map(short).unwrap_or_default(),
            standing.records.len().to_string(),
            format!("{:.2}", first.score.estimate / best.score.estimate),
            shown(&best.commit),
            best.when.split('T').next().unwrap_or_default().to_owned(),
            best.reason.clone().unwrap_or_default(),
        ]);
    }
    table.without_empty_columns()
}

/// Counts are exact.
fn range(low: f64, high: f64) -> String {
    if low == high { String::new() } else { format!("{}–{}", short(low), short(high)) }
}

fn sessions_table(sessions: &[Kept], links: bool) -> Table {
    let mut table = Table::new(&["session", "command", "device", "commit", "began", "records"]);
    for Kept { name, header, lines } in sessions {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        lines.iter().for_each(|line| *kinds.entry(&line.kind).or_default() += 1);
        let records: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        table.add(vec![
            if links { format!("[{name}](../{FOLDER}/{name})") } else { name.clone() },
            header.command.clone(),
            header.device.clone(),
            shown(header.commit.as_deref().unwrap_or_default()),
            header.started.clone(),
            records.join(", "),
        ]);
    }
    table
}

/// A commit, where one is known.
fn shown(commit: &str) -> String {
    if commit.is_empty() { "unknown".to_owned() } else { commit.to_owned() }
}
