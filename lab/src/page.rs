//! The report as one HTML page with SVG charts: opens from disk, needs no network and no script, reads in light and dark.

mod course;
mod scale;
mod speed;
mod svg;

pub use course::{CourseChart, CoursePoint, courses};
pub use speed::{Series, SeriesKind, SpeedChart, SpeedPoint};

use crate::statistics::Interval;
use crate::table::Table;
use crate::whole_file;
use serde::{Deserialize, Serialize};
use std::path::Path;
use svg::escape;

const STYLE: &str = include_str!("page/style.css");

/// All that a page shows. What is empty is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// What a number needs to be worth something: device, driver, clock, commit, time. Names and values.
    pub facts: Vec<(String, String)>,
    /// One line a shape: a peer against this project.
    pub summary: Vec<SummaryRow>,
    /// What was found out, the most important first.
    pub findings: Vec<String>,
    /// What else there is to read.
    pub tables: Vec<Section>,
    /// Speed over length.
    pub speed: Vec<SpeedChart>,
    /// Leaderboard places over time.
    pub courses: Vec<CourseChart>,
}

/// A shape in the summary. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryRow {
    /// Shape, dtype and mask.
    pub shape: String,
    /// The peer.
    pub peer: String,
    /// The peer's median and 90th percentile.
    pub peer_us: [f64; 2],
    /// This project's.
    pub own_us: [f64; 2],
    /// How many times faster it is.
    pub speed_up: Interval,
    /// The kernel.
    pub kernel: String,
}

/// A table with its heading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What stands before the table, or in its place where it is empty.
    pub text: String,
    /// The table.
    pub table: Table,
}

impl Page {
    /// The page's text.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut body = format!("<h1>{title}</h1>\n");
        if !self.facts.is_empty() {
            body += "<dl>\n";
            for (name, value) in &self.facts {
                body += &format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
            }
            body += "</dl>\n";
        }
        if !self.findings.is_empty() {
            body += "<h2>Findings</h2>\n<ol>\n";
            for finding in &self.findings {
                body += &format!("<li>{}</li>\n", escape(finding));
            }
            body += "</ol>\n";
        }
        body += &self.summary_table();
        for Section { title, text, table } in &self.tables {
            body += &format!("<h2>{}</h2>\n", escape(title));
            if !text.is_empty() {
                body += &format!("<p>{}</p>\n", escape(text));
            }
            if !table.is_empty() {
                body += &html_table(table);
            }
        }
        if !self.speed.is_empty() {
            body += "<h2>Speed over length</h2>\n";
            for chart in &self.speed {
                body += &format!("<figure>\n{}{}</figure>\n", chart.svg(), chart.table());
            }
        }
        if !self.courses.is_empty() {
            body += "<h2>Over time</h2>\n<div class=\"small\">\n";
            for chart in &self.courses {
                body += &format!("<figure>\n{}</figure>\n", chart.svg());
            }
            body += "</div>\n";
        }
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
        )
    }

    /// Writes the page, whole or not at all.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        whole_file::write(path, &self.html())
    }

    fn summary_table(&self) -> String {
        if self.summary.is_empty() {
            return String::new();
        }
        let mut text =
            "<h2>Summary</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>shape</th><th>peer</th>\
             <th class=\"number\">peer p50 (p90), µs</th><th class=\"number\">own p50 (p90), µs</th>\
             <th class=\"number\">speed-up</th><th>kernel</th></tr></thead>\n<tbody>\n"
                .to_owned();
        for row in &self.summary {
            let Interval { low, estimate, high } = row.speed_up;
            let class = if low > 1.0 {
                "faster"
            } else if high < 1.0 {
                "slower"
            } else {
                "even"
            };
            let times = |[p50_us, p90_us]: [f64; 2]| {
                format!("<td class=\"number\">{p50_us:.1} <small>({p90_us:.1})</small></td>")
            };
            text += &format!(
                "<tr><td>{}</td><td>{}</td>{}{}<td class=\"number {class}\">{estimate:.2}× \
                 <small>({low:.2}–{high:.2})</small></td><td><code>{}</code></td></tr>\n",
                escape(&row.shape),
                escape(&row.peer),
                times(row.peer_us),
                times(row.own_us),
                escape(&row.kernel)
            );
        }
        text + "</tbody>\n</table></div>\n"
    }
}

/// A table that scrolls by itself where it is wider than the screen.
fn html_table(table: &Table) -> String {
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(column, text): (usize, &String)| {
            let class = if table.is_number(column) { " class=\"number\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(text))
        };
        cells.iter().enumerate().map(cell).collect()
    };
    let head = cells("th", table.titles());
    let body: String = table.rows().iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn page() -> Page {
        let series = |name: &str, kind, factor: f64| Series {
            name: name.to_owned(),
            kind,
            points: [512u32, 1024, 2048, 4096, 8192, 16384]
                .map(|seqlen| {
                    let tflops = factor * (1.0 - 300.0 / (f64::from(seqlen) + 300.0));
                    let tflops = Interval { low: tflops * 0.97, estimate: tflops, high: tflops * 1.02 };
                    SpeedPoint { seqlen, heads: "4×16".to_owned(), tflops, note: "p50 38.1 µs".to_owned() }
                })
                .to_vec(),
        };
        let speed = SpeedChart {
            title: "f16, head_dim 64, causal, batch 4, 16 heads".to_owned(),
            series: vec![
                series("ferroflash", SeriesKind::Own, 410.0),
                series("torch flash", SeriesKind::Peer, 380.0),
                series("torch <efficient> & co", SeriesKind::Peer, 300.0),
                series("torch math", SeriesKind::Peer, 20.0),
                series("roofline", SeriesKind::Roofline, 989.0),
            ],
        };
        let point = |when: &str, score: f64| CoursePoint {
            when: when.to_owned(),
            score: Interval { low: score * 0.99, estimate: score, high: score * 1.01 },
            note: "fwd_f16_d64_m64n64_w4s2c1, 0123abc".to_owned(),
        };
        let course = CourseChart {
            title: "4,16,512,64 f16 causal".to_owned(),
            device: "NVIDIA H200".to_owned(),
            unit: "µs".to_owned(),
            points: vec![
                point("2026-05-04T12:00:00Z", 38.1),
                point("2026-05-05T12:00:00Z", 31.0),
                point("2026-05-09T12:00:00Z", 29.7),
            ],
        };
        let mut best = Table::new(&["kernel", "µs"]);
        best.add(vec!["fwd_f16_d64_m64n64_w4s2c1".to_owned(), "29.7".to_owned()]);
        Page {
            title: "Ferroflash <on> H200".to_owned(),
            facts: vec![
                ("GPU".to_owned(), "NVIDIA H200".to_owned()),
                ("commit".to_owned(), "0123abc".to_owned()),
            ],
            summary: vec![SummaryRow {
                shape: "4,16,512,64 f16 causal".to_owned(),
                peer: "torch flash".to_owned(),
                peer_us: [44.0, 46.0],
                own_us: [38.1, 39.0],
                speed_up: Interval { low: 1.13, estimate: 1.155, high: 1.17 },
                kernel: "fwd_f16_d64_m64n64_w4s2c1".to_owned(),
            }],
            findings: vec!["Two warps share a row block: + 9 % on short sequences.".to_owned()],
            tables: vec![Section {
                title: "Best <kernels>".to_owned(),
                text: "Lower is better.".to_owned(),
                table: best,
            }],
            speed: vec![speed],
            courses: vec![
                course.clone(),
                CourseChart { points: course.points[..1].to_vec(), ..course.clone() },
                course,
            ],
        }
    }

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let html = page().html();
        for part in [
            "<h1>",
            "Summary",
            "Findings",
            "Best &lt;kernels&gt;",
            "Speed over length",
            "Over time",
            "1.16×",
            "</html>",
        ] {
            assert!(html.contains(part), "{part}");
        }
        for fetched in ["http:", "https:", "src=", "href=", "@import", "url(", "<script", "<link"] {
            let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_namespace.contains(fetched), "{fetched}");
        }
        assert!(!html.contains("<efficient>") && html.contains("&lt;efficient&gt; &amp; co"));
    }

    #[test]
    fn every_tag_is_closed_in_order() {
        let html = page().html();
        let (mut open, mut rest) = (Vec::new(), html.as_str());
        while let Some(at) = rest.find('<') {
            let end = rest[at..].find('>').expect("an end") + at;
            let tag = &rest[at + 1..end];
            rest = &rest[end + 1..];
            let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "</{name}>");
            } else if !(tag.ends_with('/') || tag.starts_with('!') || name == "meta") {
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }

    #[test]
    fn an_empty_page_and_one_with_nothing_measured_are_pages() {
        assert!(Page::default().html().contains("<body>"));
        let mut page = page();
        page.speed[0].series.clear();
        page.courses[0].points.clear();
        let nan = Interval { low: f64::NAN, estimate: f64::NAN, high: f64::NAN };
        page.courses[1].points[0].score = nan;
        let html = page.html();
        // The chart of speed has two forms.
        assert_eq!(html.matches("Nothing was measured.").count(), 2 + 2);
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }

    #[test]
    fn what_a_page_shows_is_plain_data() {
        let page = page();
        let text = serde_json::to_string(&page).expect("JSON");
        assert_eq!(serde_json::from_str::<Page>(&text).expect("the same"), page);
    }
}
