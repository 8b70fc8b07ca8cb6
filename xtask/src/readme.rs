//! `cargo xtask readme`: the results in the README and in docs/results.md, and their plot, from the measurements in benches/results.

use crate::results::{self, FOLDER, Results};
use crate::{gpus_plot, results_plot, results_speeds, results_table, workspace};
use anyhow::{Context, bail};
use std::path::Path;

/// Five speeds.
pub(crate) const README: &str = "README.md";
/// Every problem.
const PAGE: &str = "docs/results.md";
const PLOT: &str = "docs/results.svg";
/// Several GPUs at once.
const GPUS_PLOT: &str = "docs/several-gpus.svg";
const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// What the files should say.
struct Rendered {
    /// Pages with their whole text; without one that lacks a place for results while there are none.
    pages: Vec<(&'static str, String)>,
    /// Each plot; `None` where there is nothing to plot.
    plots: [(&'static str, Option<String>); 2],
}

/// Runs the command.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = workspace::root();
    let rendered = render(&root)?;
    for (page, text) in &rendered.pages {
        std::fs::write(root.join(page), text).context(*page)?;
    }
    for (file, text) in &rendered.plots {
        let plot = root.join(file);
        match text {
            Some(text) => {
                std::fs::create_dir_all(plot.parent().unwrap_or(&root))?;
                std::fs::write(&plot, text).context(*file)?;
                eprintln!("{file} is as {FOLDER} says");
            }
            None => eprintln!("{FOLDER} holds no measurement for {file}: benches/README.md says how"),
        }
    }
    eprintln!("{README} and {PAGE} are as {FOLDER} says");
    Ok(())
}

/// What disagrees with the measurements, a complaint a file.
pub(crate) fn complaints(root: &Path) -> anyhow::Result<Vec<String>> {
    let rendered = match render(root) {
        Ok(rendered) => rendered,
        Err(error) => return Ok(vec![format!("{error:#}")]),
    };
    let mut complaints = Vec::new();
    let pages = rendered.pages.iter().map(|(page, text)| (*page, text));
    let drawn = rendered.plots.iter().filter_map(|(file, text)| Some((*file, text.as_ref()?)));
    for (file, expected) in pages.chain(drawn) {
        if std::fs::read_to_string(root.join(file)).ok().as_ref() != Some(expected) {
            complaints.push(format!("{file} and {FOLDER} disagree: cargo xtask readme"));
        }
    }
    for (file, _) in rendered.plots.iter().filter(|(file, text)| text.is_none() && root.join(file).exists()) {
        complaints.push(format!("{file} shows results that {FOLDER} does not hold"));
    }
    Ok(complaints)
}

fn render(root: &Path) -> anyhow::Result<Rendered> {
    let devices = results::newest(root, results::HEADLINE)?;
    let lengths = results::newest(root, results::LENGTHS)?;
    let plot = if devices.is_empty() { None } else { Some(results_plot::svg(&devices)?) };
    let mut pages = Vec::new();
    for (page, part) in [(README, speeds(&devices)), (PAGE, tables(&devices, &lengths))] {
        let text = std::fs::read_to_string(root.join(page)).unwrap_or_default();
        if !devices.is_empty() || text.contains(BEGIN) {
            pages.push((page, replace_part(page, &text, &part)?));
        }
    }
    Ok(Rendered { pages, plots: [(PLOT, plot), (GPUS_PLOT, gpus_plot::svg(root)?)] })
}

/// The README's part.
fn speeds(devices: &[Results]) -> String {
    if devices.is_empty() { nothing() } else { results_speeds::markdown(devices) }
}

/// The part of [`PAGE`].
fn tables(devices: &[Results], lengths: &[Results]) -> String {
    if devices.is_empty() {
        return nothing();
    }
    let tables = devices.iter().map(results_table::markdown);
    let lengths = lengths.iter().map(|results| {
        format!(
            "The same 16384 tokens of 2048 elements in sequences of every length: TFLOP/s, and in parentheses how many times as \
             long PyTorch's default takes; `mean` is its geometric mean.\n\n{}",
            results_table::lengths_markdown(results)
        )
    });
    lengths.chain(tables).collect::<Vec<_>>().join("\n")
}

fn nothing() -> String {
    format!("Nothing is measured yet: `{FOLDER}` is empty.\n")
}

/// The page's text with the part between the markers.
fn replace_part(page: &str, text: &str, part: &str) -> anyhow::Result<String> {
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
        bail!("{page} has no place for results: it lacks the lines {BEGIN} and {END}");
    };
    if end < begin {
        bail!("{page} has the line {END} before {BEGIN}");
    }
    Ok(format!("{}\n{part}{}", &text[..begin + BEGIN.len()], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;
    use std::fs;

    fn complaints_of(root: &Path) -> Vec<String> {
        complaints(root).expect("readable")
    }

    #[test]
    fn pages_that_say_otherwise_than_the_file_are_found() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        assert_eq!(complaints_of(root), Vec::<String>::new(), "nothing measured, nothing said");
        fs::create_dir_all(root.join(FOLDER)).expect("created");
        fs::create_dir_all(root.join("docs")).expect("created");
        fs::write(root.join(FOLDER).join("a.json"), sample("GPU", "2026-01-01T00:00:00Z")).expect("written");
        assert!(complaints_of(root)[0].starts_with("README.md has no place for results"));

        fs::write(root.join(README), format!("# Title\n{BEGIN}\nold\n{END}\nafter\n")).expect("written");
        assert!(complaints_of(root)[0].starts_with("docs/results.md has no place for results"));
        fs::write(root.join(PAGE), format!("# Title\n{BEGIN}\nold\n{END}\nafter\n")).expect("written");
        assert_eq!(complaints_of(root).len(), 3, "README, page and plot");
        let rendered = render(root).expect("rendered");
        let [(README, readme), (PAGE, page)] = &rendered.pages[..] else { panic!("both pages") };
        for (text, last) in [(readme, "| 2.00 | 2.00 |"), (page, "1.0 × default: met |")] {
            assert!(text.starts_with(&format!("# Title\n{BEGIN}\n")) && !text.contains("old"), "{text}");
            assert!(text.ends_with(&format!("{last}\n{END}\nafter\n")), "{text}");
        }
        fs::write(root.join(README), readme).expect("written");
        fs::write(root.join(PAGE), page).expect("written");
        fs::write(root.join(PLOT), rendered.plots[0].1.as_ref().expect("a plot")).expect("written");
        assert_eq!(complaints_of(root), Vec::<String>::new());

        for (file, text, other) in
            [(README, readme, ["2.00 | 2.00 |", "2.00 | 2.01 |"]), (PAGE, page, ["| 1.50 |", "| 1.51 |"])]
        {
            fs::write(root.join(file), text.replace(other[0], other[1])).expect("written");
            assert_eq!(
                complaints_of(root),
                [format!("{file} and benches/results disagree: cargo xtask readme")]
            );
            fs::write(root.join(file), text).expect("written");
        }
        fs::remove_file(root.join(FOLDER).join("a.json")).expect("removed");
        let left = complaints_of(root);
        assert!(left.len() == 3 && left[2].contains("does not hold"), "{left:?}");
    }

    #[test]
    fn a_readme_without_results_says_so_between_its_markers() {
        let root = tempfile::tempdir().expect("a temporary folder");
        fs::write(root.path().join(README), format!("{BEGIN}\n{END}\n")).expect("written");
        let pages = render(root.path()).expect("rendered").pages;
        assert_eq!(pages.len(), 1, "a page that is not there is not made");
        assert!(pages[0].1.contains("Nothing is measured yet: `benches/results`"), "{pages:?}");
        assert!(replace_part(README, &format!("{END}\n{BEGIN}\n"), "").is_err());
    }
}
