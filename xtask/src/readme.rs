//! `cargo xtask readme`: the README's results and their plot, from the measurements in benches/results.

use crate::results::{self, FOLDER, Results};
use crate::{results_plot, results_table, workspace};
use anyhow::{Context, bail};
use std::path::Path;

const README: &str = "README.md";
const PLOT: &str = "docs/results.svg";
const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// What the files should say.
struct Rendered {
    /// `None` where there is no README yet, or one without a place for results while there are none.
    readme: Option<String>,
    /// `None` where there is nothing to plot.
    plot: Option<String>,
}

/// Runs the command.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = workspace::root();
    let rendered = render(&root)?;
    if let Some(text) = &rendered.readme {
        std::fs::write(root.join(README), text).context(README)?;
    }
    let plot = root.join(PLOT);
    match &rendered.plot {
        Some(text) => {
            std::fs::create_dir_all(plot.parent().unwrap_or(&root))?;
            std::fs::write(&plot, text).context(PLOT)?;
            eprintln!("{README} and {PLOT} are as {FOLDER} says");
        }
        None => {
            eprintln!("{FOLDER} holds no measurement of the headline problems: benches/README.md says how")
        }
    }
    Ok(())
}

/// What disagrees with the measurements, a complaint a file.
pub(crate) fn complaints(root: &Path) -> anyhow::Result<Vec<String>> {
    let rendered = match render(root) {
        Ok(rendered) => rendered,
        Err(error) => return Ok(vec![format!("{error:#}")]),
    };
    let disagrees = |file: &str, expected: Option<&String>| {
        let found = std::fs::read_to_string(root.join(file)).ok();
        expected.is_some_and(|expected| found.as_ref() != Some(expected))
    };
    let mut complaints = Vec::new();
    for (file, expected) in [(README, &rendered.readme), (PLOT, &rendered.plot)] {
        if disagrees(file, expected.as_ref()) {
            complaints.push(format!("{file} and {FOLDER} disagree: cargo xtask readme"));
        }
    }
    if rendered.plot.is_none() && root.join(PLOT).exists() {
        complaints.push(format!("{PLOT} shows results that {FOLDER} does not hold"));
    }
    Ok(complaints)
}

fn render(root: &Path) -> anyhow::Result<Rendered> {
    let devices = results::newest(root, results::HEADLINE)?;
    let lengths = results::newest(root, results::LENGTHS)?;
    let plot = if devices.is_empty() { None } else { Some(results_plot::svg(&devices)?) };
    let readme = std::fs::read_to_string(root.join(README)).unwrap_or_default();
    if devices.is_empty() && !readme.contains(BEGIN) {
        return Ok(Rendered { readme: None, plot });
    }
    Ok(Rendered { readme: Some(replace_part(&readme, &part(&devices, &lengths))?), plot })
}

/// What stands between the markers.
fn part(devices: &[Results], lengths: &[Results]) -> String {
    if devices.is_empty() {
        return format!("Nothing is measured yet: `{FOLDER}` is empty.\n");
    }
    let tables: Vec<String> = devices.iter().map(results_table::markdown).collect();
    let plot = format!("![Speed relative to PyTorch's flash, a bar a problem]({PLOT})\n");
    let lengths = lengths.iter().map(|results| {
        format!(
            "The same 16384 tokens of 2048 elements in sequences of every length: TFLOP/s, and in parentheses how many times as \
             long PyTorch's default takes; `mean` is its geometric mean.\n\n{}",
            results_table::lengths_markdown(results)
        )
    });
    std::iter::once(plot).chain(lengths).chain(tables).collect::<Vec<_>>().join("\n")
}

fn replace_part(readme: &str, part: &str) -> anyhow::Result<String> {
    let (Some(begin), Some(end)) = (readme.find(BEGIN), readme.find(END)) else {
        bail!("{README} has no place for results: it lacks the lines {BEGIN} and {END}");
    };
    if end < begin {
        bail!("{README} has the line {END} before {BEGIN}");
    }
    Ok(format!("{}\n{part}{}", &readme[..begin + BEGIN.len()], &readme[end..]))
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
    fn a_readme_that_says_otherwise_than_the_file_is_found() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        assert_eq!(complaints_of(root), Vec::<String>::new(), "nothing measured, nothing said");
        fs::create_dir_all(root.join(FOLDER)).expect("created");
        fs::create_dir_all(root.join("docs")).expect("created");
        fs::write(root.join(FOLDER).join("a.json"), sample("GPU", "2026-01-01T00:00:00Z")).expect("written");
        assert!(complaints_of(root)[0].contains("no place for results"));

        fs::write(root.join(README), format!("# Title\n{BEGIN}\nold\n{END}\nafter\n")).expect("written");
        assert_eq!(complaints_of(root).len(), 2, "README and plot");
        let rendered = render(root).expect("rendered");
        let text = rendered.readme.expect("a README");
        assert!(text.starts_with(&format!("# Title\n{BEGIN}\n![Speed")) && !text.contains("old"), "{text}");
        assert!(text.ends_with(&format!("1.0 × default: met |\n{END}\nafter\n")), "{text}");
        fs::write(root.join(README), &text).expect("written");
        fs::write(root.join(PLOT), rendered.plot.expect("a plot")).expect("written");
        assert_eq!(complaints_of(root), Vec::<String>::new());

        fs::write(root.join(README), text.replace("| 1.50 |", "| 1.51 |")).expect("written");
        assert_eq!(complaints_of(root), ["README.md and benches/results disagree: cargo xtask readme"]);
        fs::write(root.join(README), &text).expect("written");
        fs::remove_file(root.join(FOLDER).join("a.json")).expect("removed");
        let left = complaints_of(root);
        assert!(left.len() == 2 && left[1].contains("does not hold"), "{left:?}");
    }

    #[test]
    fn a_readme_without_results_says_so_between_its_markers() {
        let root = tempfile::tempdir().expect("a temporary folder");
        fs::write(root.path().join(README), format!("{BEGIN}\n{END}\n")).expect("written");
        let text = render(root.path()).expect("rendered").readme.expect("a README");
        assert!(text.contains("Nothing is measured yet: `benches/results`"), "{text}");
        assert!(replace_part(&format!("{END}\n{BEGIN}\n"), "").is_err());
    }
}
