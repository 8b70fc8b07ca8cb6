//! The lab's pages in a real browser: opened from disk without a network, wide and narrow, in light and dark.
//!
//! `cargo xtask test --only pages` finds or installs the browser. `FERROFLASH_PICTURES` names a folder for pictures of them.

mod browser;

use browser::{Browser, View};
use kernels_gpu::table::VARIANTS;
use lab::candidate::Candidate;
use lab::evaluation::{EVALUATION, Evaluation};
use lab::evolution::{HYPOTHESIS, STEP};
use lab::job::Timed;
use lab::kernels::{Counted, Machine};
use lab::problem_spec::{Mask, ProblemSpec, Shape};
use lab::results::{PAGES, keep, write};
use lab::session::{Header, Session};
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

const LOOK: &str = include_str!("browser/look.js");
const VIEWS: [View; 5] = [
    View { width: 1920, is_dark: false },
    View { width: 1280, is_dark: false },
    View { width: 1280, is_dark: true },
    View { width: 390, is_dark: false },
    View { width: 390, is_dark: true },
];

/// What `browser/look.js` finds.
#[derive(Debug, Deserialize)]
struct Look {
    /// The window's width, without its scroll bar, and the page's.
    width: u32,
    room: u32,
    scroll: u32,
    /// The page's background.
    ground: String,
    /// What reaches over the right edge.
    outside: Vec<String>,
    /// Text of less contrast than 4.5:1.
    pale: Vec<String>,
    plots: Vec<Plot>,
    tables: Vec<Table>,
    titles: Vec<String>,
    links: usize,
}

#[derive(Debug, Deserialize)]
struct Plot {
    name: String,
    width: f64,
    height: f64,
    /// Texts on each other, over the edge, and under 9 pixels.
    overlaps: Vec<String>,
    cut: Vec<String>,
    small: Vec<String>,
    marks: usize,
    /// Marks that are not in the picture, marks and lines that are hardly seen, and lines without a shape.
    unseen: usize,
    faint: usize,
    lines: usize,
    empty: usize,
}

#[derive(Debug, Deserialize)]
struct Table {
    columns: usize,
    rows: usize,
    /// Of each row.
    cells: Vec<usize>,
}

/// Opens a page in every view; asserts what holds for all pages, and what `check` asks of this one.
fn look_at(name: &str, file: &Path, check: impl Fn(&Look)) {
    let mut browser = Browser::start();
    let mut complaints = Vec::new();
    let mut looks = Vec::new();
    for view in VIEWS {
        let (look, found) = look(&mut browser, file, view);
        if let Some(folder) = std::env::var_os("FERROFLASH_PICTURES") {
            let scheme = if view.is_dark { "dark" } else { "light" };
            browser.picture(PathBuf::from(folder).join(format!("{name}-{}-{scheme}.png", view.width)));
        }
        complaints.extend(found.into_iter().map(|complaint| format!("{view:?}: {complaint}")));
        looks.push(look);
    }
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
    looks.iter().for_each(check);
}

/// Opens a page; returns what it looks like, and what no page may be.
fn look(browser: &mut Browser, file: &Path, view: View) -> (Look, Vec<String>) {
    let opened = browser.open(file, view);
    let look: Look = serde_json::from_value(browser.evaluate(LOOK)).expect("what look.js finds");
    let mut found: Vec<String> = opened.console.iter().map(|line| format!("console: {line}")).collect();
    found.extend(opened.requests.iter().map(|address| format!("asks for {address}")));
    found.extend(look.complaints(view));
    (look, found)
}

impl Look {
    fn complaints(&self, view: View) -> Vec<String> {
        let mut found = Vec::new();
        assert_eq!(self.width, view.width, "the window is as wide as was asked for");
        if self.scroll > self.room {
            found.push(format!("{} pixels wide in {}", self.scroll, self.room));
        }
        found.extend(self.outside.iter().map(|element| format!("over the edge: {element}")));
        found.extend(self.pale.iter().map(|element| format!("pale: {element}")));
        if (self.ground == "rgb(255, 255, 255)") == view.is_dark {
            found.push(format!("the background is {}", self.ground));
        }
        for plot in &self.plots {
            found
                .extend(plot.complaints().into_iter().map(|complaint| format!("{}: {complaint}", plot.name)));
        }
        let is_whole = |table: &&Table| table.cells.iter().all(|cells| *cells == table.columns);
        found.extend(self.tables.iter().filter(|table| !is_whole(table)).map(|table| format!("{table:?}")));
        found
    }
}

impl Plot {
    fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.width < 250.0 || self.height < 140.0 {
            found.push(format!("{} × {} pixels", self.width, self.height));
        }
        for (what, texts) in [("overlap", &self.overlaps), ("cut", &self.cut), ("small", &self.small)] {
            found.extend(texts.iter().map(|text| format!("{what}: {text}")));
        }
        for (what, count) in [("unseen", self.unseen), ("faint", self.faint), ("empty", self.empty)] {
            if count > 0 {
                found.push(format!("{count} {what}"));
            }
        }
        found
    }
}

/// The session of the measurements.
fn header(device: &str, started: &str) -> Header {
    Header {
        command: "benchmark".to_owned(),
        arguments: vec!["--peer".to_owned(), "torch".to_owned()],
        config: Default::default(),
        seed: 1,
        device: device.to_owned(),
        commit: Some("eb72e54".to_owned()),
        version: "0".to_owned(),
        harness: String::new(),
        kernels: None,
        started: started.to_owned(),
    }
}

/// The page that `lab report` writes of a folder's sessions.
fn report(home: &Path, runs: &Path) -> PathBuf {
    let (html, board) = (home.join("report.html"), home.join("board.json"));
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
    lab.arg("report").arg("--runs").arg(runs).arg("--html").arg(&html).arg("--file").arg(board);
    let output = lab.output().expect("the lab starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    html
}

/// A session of a search: steps that were kept, dropped and refused, with their hypotheses, logs and a patch.
fn search(runs: &Path) {
    let mut session =
        Session::create(runs, header(&Machine::simulator().name, "2026-11-20T16:00:00Z")).expect("created");
    let shape = "1,8,8,512,512,64".parse().expect("a shape");
    let row = evaluation(0, shape, 1.0).row;
    let logs = session.subfolder("logs").expect("a folder");
    for number in 0..12_u32 {
        let name = format!("{}+{number}-fewer-barriers", row.entry_name());
        let hypothesis = json!({
            "step": number, "candidate": name, "proposer": "python3 client.py", "predicted_gain": 0.04,
            "hypothesis": "The barrier behind the copies waits for warps that read nothing of them, so one of the two can go.",
        });
        session.append(HYPOTHESIS, &hypothesis).expect("written");
        let (kept, outcome, decision) = match number % 3 {
            1 => (false, json!({ "refused": { "reason": "race" } }), "refused: race: two accesses to k_smem"),
            2 => {
                (false, json!({ "scored": { "score": 5e4 } }), "dropped: worse on 1,8,8,512,512,64 f16 full")
            }
            _ => (
                true,
                json!({ "scored": { "score": 4e4 / f64::from(number + 1) } }),
                "kept: better on 2 problems",
            ),
        };
        let cost = json!({ "seconds": 1.0, "gpu_seconds": 0.0 });
        let patch = (number > 0)
            .then_some("--- a/kernels-gpu/src/a.rs\n+++ b/kernels-gpu/src/a.rs\n@@ -1 +1 @@\n-a\n+b\n");
        let step = json!({
            "step": number, "gain": 0.1, "kept": kept, "decision": decision,
            "candidate": { "name": name, "row": row, "patch": patch },
            "evaluated": { "row": row, "outcome": outcome, "cost": cost },
        });
        session.append(STEP, &step).expect("written");
        std::fs::write(logs.join(format!("{name}-simulate.log")), "").expect("written");
    }
}

#[test]
#[ignore = "needs Chromium: cargo xtask test --only pages"]
fn the_report_of_a_search_shows_its_course_candidates_and_refusals_in_every_view() {
    let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    search(runs.path());
    look_at("report", &report(home.path(), runs.path()), |look| {
        // A mark each for what has a score, and one line through what was kept.
        assert_eq!(look.plots.iter().map(|plot| (plot.marks, plot.lines)).collect::<Vec<_>>(), [(8, 1)]);
        assert_eq!(look.tables.iter().map(|table| table.rows).collect::<Vec<_>>(), [12, 1]);
        assert_eq!(look.links, 12, "a log each");
    });
}

/// A row that was timed on one shape under both masks, at so many TFLOP/s.
fn evaluation(at: usize, shape: Shape, tflops: f64) -> Evaluation {
    let variants = VARIANTS.iter().filter(|variant| variant.row.head_dim == shape.head_dim());
    let variant = variants.clone().nth(at % variants.count()).expect("a row");
    let timed = |mask| {
        let problem = ProblemSpec { shape, dtype: variant.row.dtype, mask };
        let us = problem.flops() / tflops / 1e6;
        Timed {
            problem,
            entry: variant.entry.to_owned(),
            ctas: 256,
            resident_ctas_per_sm: 2,
            warm_us: Vec::new(),
            cold_us: Vec::new(),
            fresh_us: (0..20).map(|i| us * (1.0 + 1e-3 * f64::from(i % 5))).collect(),
            wall_us: None,
            sm_clock_mhz: None,
        }
    };
    let timed = vec![timed(Mask::Full), timed(Mask::Causal)];
    Evaluation { timed, ..Evaluation::new(&Candidate::of_row(variant.row)) }
}

/// A row that was counted on one shape on the simulator.
fn counted(shape: Shape, wavefronts: u64) -> Evaluation {
    let evaluation = evaluation(0, shape, 1.0);
    let problem = evaluation.timed[0].problem;
    let parts = ["shared_load", "shared_store", "async_shared"].map(|part| format!("{part}.wavefronts"));
    let numbers = parts.into_iter().zip([wavefronts, 0, 0]).collect();
    Evaluation {
        timed: Vec::new(),
        counted: vec![Counted { problem, ctas: 256, clocks: wavefronts as f64, numbers }],
        ..evaluation
    }
}

#[test]
#[ignore = "needs Chromium: cargo xtask test --only pages"]
fn the_leaderboards_page_shows_every_holder_in_every_view() {
    let (home, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let shapes =
        ["1,8,8,512,512,64", "16,32,32,16384,16384,128"].map(|shape| shape.parse().expect("a shape"));
    // Of no device: what a page of many places looks like.
    let days =
        [("planted NVIDIA A100-SXM4-80GB", 18, 1.0), ("planted GPU", 19, 2.0), ("planted GPU", 20, 3.0)];
    for (device, day, tflops) in days {
        let header = header(device, &format!("2026-11-{day}T14:15:00Z"));
        let mut session = Session::create(runs.path(), header).expect("created");
        for (at, shape) in (0..6).flat_map(|at| shapes.map(|shape| (at, shape))) {
            session
                .append(EVALUATION, &evaluation(at, shape, tflops * (1.0 + 0.01 * at as f64)))
                .expect("written");
        }
        keep(home.path(), session.folder(), &mut |warning| panic!("{warning}")).expect("kept");
    }
    let mut session =
        Session::create(runs.path(), header(&Machine::simulator().name, "2026-11-20T15:00:00Z"))
            .expect("created");
    for wavefronts in [9_000, 8_000] {
        session.append(EVALUATION, &counted(shapes[0], wavefronts)).expect("written");
    }
    keep(home.path(), session.folder(), &mut |warning| panic!("{warning}")).expect("kept");
    let board = write(home.path()).expect("written");
    let holders: usize = board.standings().iter().map(|standing| standing.records.len()).sum();
    assert!(holders > 40, "{holders}");
    look_at("leaderboard", &home.path().join(PAGES[1]), |look| {
        assert_eq!(look.plots.len(), board.standings().len());
        assert_eq!(look.plots.iter().map(|plot| plot.marks).sum::<usize>(), holders);
        assert!(look.plots.iter().all(|plot| plot.lines == 1));
        // A table each for two devices and the simulator, and one of the sessions.
        let rows: Vec<usize> = look.tables.iter().map(|table| table.rows).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!((rows[..3].iter().sum(), rows[3]), (board.standings().len(), days.len() + 1));
    });
}

#[test]
#[ignore = "needs Chromium: cargo xtask test --only pages"]
fn a_leaderboard_of_nothing_says_so_in_every_view() {
    let home = tempfile::tempdir().expect("a folder");
    write(home.path()).expect("written");
    look_at("empty", &home.path().join(PAGES[1]), |look| {
        assert_eq!((look.plots.len(), look.tables.len()), (0, 0));
        assert_eq!(look.titles, ["Ferroflash: the leaderboard", "What this is", "Sessions"]);
    });
}

#[test]
#[ignore = "needs Chromium: cargo xtask test --only pages"]
fn planted_faults_are_found_by_what_they_are() {
    let (folder, runs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    search(runs.path());
    let html = std::fs::read_to_string(report(folder.path(), runs.path())).expect("a page");
    let file = folder.path().join("planted.html");
    let mut browser = Browser::start();
    let view = View { width: 390, is_dark: false };
    let mut found = |html: &str| {
        std::fs::write(&file, html).expect("written");
        look(&mut browser, &file, view).1
    };
    assert_eq!(found(&html), Vec::<String>::new(), "nothing is planted");
    let (chart, last) = ("<figure>", "</body>");
    // What is put in place of what, behind the chart's beginning or anywhere, and what has to be said of it.
    let plants: [(&str, &str, &str, &str); 10] = [
        (
            "",
            last,
            "<img src=\"http://planted.invalid/x.png\" alt=\"\"></body>",
            "asks for \"http://planted.invalid/x.png\"",
        ),
        ("", last, "<link rel=\"stylesheet\" href=\"planted.css\"></body>", "planted.css"),
        ("", last, "<script>planted()</script></body>", "planted is not defined"),
        ("", last, "<p style=\"color:#aaa\">planted</p></body>", "pale: p \"planted\""),
        ("", last, "<p style=\"width:500px\">planted</p></body>", "over the edge: p \"planted\""),
        ("", ".wide{overflow-x:auto", ".wide{", "pixels wide in"),
        (chart, " d=\"M", " d=\"MX", "Expected number"),
        (
            chart,
            ">The search</text>",
            ">The search, planted, and so long that nobody can read it to its end</text>",
            "cut: text \"The search, planted",
        ),
        (chart, "<text class=\"\"", "<text class=\"\" style=\"font-size:5px\"", "small: text"),
        (chart, "<circle class=\"mark c0\" cx=\"", "<circle class=\"mark c0\" cx=\"9", "1 unseen"),
    ];
    for (behind, place, plant, said) in plants {
        let at = html.find(behind).expect("a chart");
        let (before, after) = html.split_at(at);
        assert!(after.contains(place), "{place} is not on the page");
        let found = found(&format!("{before}{}", after.replacen(place, plant, 1)));
        assert!(
            found.iter().any(|complaint| complaint.contains(said)),
            "{plant}: {said} is not in {found:?}"
        );
    }
}
