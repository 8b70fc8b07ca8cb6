//! What was found as one HTML page with SVG charts: opens from disk, needs no network and no script, reads in light and dark.

mod course;
mod scale;
mod svg;

pub use course::{CourseChart, CoursePoint, courses};

use crate::table::Table;
use serde::Serialize;
use svg::escape;

const STYLE: &str = include_str!("page/style.css");

/// All that a page shows. What is empty is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// What a number needs to be worth something: device, driver, clock, commit, time. Names and values.
    pub facts: Vec<(String, String)>,
    /// What was found out, the most important first.
    pub findings: Vec<String>,
    /// What else there is to read.
    pub sections: Vec<Section>,
    /// Leaderboard places over time.
    pub courses: Vec<CourseChart>,
}

/// A table or a change with its heading.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What stands before the table, or in its place where it is empty.
    pub text: String,
    /// How it went.
    pub course: Option<CourseChart>,
    /// The table. A cell `[text](path)` is a link.
    pub table: Table,
    /// A change of source, as a diff.
    pub diff: String,
}

impl Section {
    /// A heading with a table.
    pub fn of_table(title: &str, table: Table) -> Section {
        Section { title: title.to_owned(), table, ..Section::default() }
    }

    /// The section in Markdown, without its chart.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n", self.title);
        if !self.text.is_empty() {
            text += &format!("\n{}\n", self.text);
        }
        if !self.table.is_empty() {
            text += &format!("\n{}", self.table.markdown());
        }
        if !self.diff.is_empty() {
            text += &format!("\n```diff\n{}\n```\n", self.diff.trim_end());
        }
        text
    }

    fn html(&self) -> String {
        let mut text = format!("<h2>{}</h2>\n", escape(&self.title));
        if !self.text.is_empty() {
            text += &format!("<p>{}</p>\n", escape(&self.text));
        }
        if let Some(course) = &self.course {
            text += &format!("<figure>\n{}</figure>\n", course.svg());
        }
        if !self.table.is_empty() {
            text += &html_table(&self.table);
        }
        if !self.diff.is_empty() {
            text += &format!("<div class=\"wide\"><pre>{}</pre></div>\n", escape(&self.diff));
        }
        text
    }
}

impl Page {
    /// The page's text.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut body = format!("<h1>{title}</h1>\n");
        if !self.facts.is_empty() {
            body += "<dl>\n";
            for (name, value) in &self.facts {
                body += &format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), linked(value));
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
        self.sections.iter().for_each(|section| body += &section.html());
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
}

/// A link to a file as a table's cell has it.
pub fn link(text: &str, path: &str) -> String {
    format!("[{text}]({path})")
}

/// What a link says, and where it leads; none where the text is no link.
fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('[')?.strip_suffix(')')?.split_once("](")
}

/// Text as HTML: a link where all of it is one.
fn linked(text: &str) -> String {
    match parts(text) {
        Some((text, path)) => format!("<a href=\"{}\">{}</a>", escape(path), escape(text)),
        None => escape(text),
    }
}

/// A table that scrolls by itself where it is wider than the screen; long sentences break.
fn html_table(table: &Table) -> String {
    const LONG: usize = 48;
    let said = |text: &str| parts(text).map_or(text, |(said, _)| said).chars().count();
    let is_long = |column: usize| table.rows().iter().any(|row| said(&row[column]) > LONG);
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(column, text): (usize, &String)| {
            let class = match (table.is_number(column), is_long(column)) {
                (true, _) => " class=\"number\"",
                (false, true) => " class=\"long\"",
                (false, false) => "",
            };
            format!("<{tag}{class}>{}</{tag}>", linked(text))
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
    use crate::statistics::Interval;

    fn page() -> Page {
        let point = |when: &str, score: f64| CoursePoint {
            when: when.to_owned(),
            score: Interval { low: score * 0.99, estimate: score, high: score * 1.01 },
            holds: true,
            note: "fwd_f16_d64_m64n64_w4s2c1, 0123abc".to_owned(),
        };
        let course = CourseChart {
            title: "4,16,512,64 f16 causal".to_owned(),
            device: "NVIDIA H200".to_owned(),
            unit: "µs".to_owned(),
            points: vec![point("2026-05-04T12:00:00Z", 38.1), point("2026-05-09T12:00:00Z", 29.7)],
        };
        let mut best = Table::new(&["kernel", "µs", "verdict"]);
        let verdict = "refused: race: two accesses to the same memory are in no order";
        best.add([&link("fwd_<f16>", "logs/a&b.log"), "29.7", verdict].map(str::to_owned).to_vec());
        Page {
            title: "Ferroflash <on> H200".to_owned(),
            facts: vec![("commit".to_owned(), link("0123abc", "session.json"))],
            findings: vec!["Two warps share a row block: + 9 % on short sequences.".to_owned()],
            sections: vec![Section {
                text: "Lower is better.".to_owned(),
                diff: "-a < b\n+b\n".to_owned(),
                course: Some(course.clone()),
                ..Section::of_table("Best <kernels>", best)
            }],
            courses: vec![course.clone(), CourseChart { points: course.points[..1].to_vec(), ..course }],
        }
    }

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let html = page().html();
        for part in [
            "<h1>",
            "Findings",
            "Best &lt;kernels&gt;",
            "-a &lt; b",
            "Over time",
            "<a href=\"session.json\">0123abc</a>",
            "<td><a href=\"logs/a&amp;b.log\">fwd_&lt;f16&gt;</a></td>",
            "<td class=\"long\">refused: race",
            "</html>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        for fetched in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
            let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_namespace.contains(fetched), "{fetched}");
        }
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
        page.courses[0].points.clear();
        page.courses[1].points[0].score = Interval::exact(f64::NAN);
        let html = page.html();
        assert_eq!(html.matches("Nothing was measured.").count(), 2);
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }
}
