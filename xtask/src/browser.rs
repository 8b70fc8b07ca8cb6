//! The browser that the lab's pages are tested in: Chromium, or Chrome. Takes what was named, else what is there, else installs it.

use crate::{apt, process};
use std::path::PathBuf;
use std::process::Command;

/// Names the browser, for whoever starts the tests and for the tests themselves.
pub(crate) const VARIABLE: &str = "FERROFLASH_CHROMIUM";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// The browser, and a font: without one its texts have no size.
const PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];

/// The browser to use, or why there is none.
pub(crate) fn resolve() -> Result<PathBuf, String> {
    let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
    resolve_with(named, runs, apt::obstacle(), |found| apt::install(&PACKAGES, found))
}

/// `runs` says whether a program is a browser that starts; `install` brings one and asks what it is given whether it is there.
fn resolve_with(
    named: Option<PathBuf>,
    runs: impl Fn(&PathBuf) -> bool,
    obstacle: Option<&str>,
    install: impl FnOnce(&dyn Fn() -> Result<PathBuf, String>) -> Result<PathBuf, String>,
) -> Result<PathBuf, String> {
    if let Some(named) = named {
        if runs(&named) {
            return Ok(named);
        }
        return Err(format!("{VARIABLE} names {}, which does not start", named.display()));
    }
    let find = || {
        let found = NAMES.iter().map(PathBuf::from).find(|name| runs(name));
        found.ok_or_else(|| format!("none of {} starts", NAMES.join(", ")))
    };
    let missing = match find() {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    if let Some(obstacle) = obstacle {
        return Err(format!("{missing}, and {obstacle}: install chromium, or name a browser in {VARIABLE}"));
    }
    eprintln!("pages: no browser is here; trying apt-get");
    install(&find).map_err(|reason| format!("{missing}, and apt-get brought none: {reason}"))
}

/// Whether it says its version. Ubuntu's package is a program that only tells how to get another one.
fn runs(program: &PathBuf) -> bool {
    let said = process::answer(Command::new(program).arg("--version"));
    said.is_some_and(|said| ["Chromium ", "Google Chrome "].iter().any(|name| said.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn not_asked(_: &dyn Fn() -> Result<PathBuf, String>) -> Result<PathBuf, String> {
        panic!("nothing to install")
    }

    #[test]
    fn what_is_named_or_there_is_taken_without_an_installation() {
        let named = resolve_with(Some("mine".into()), |_| true, None, not_asked);
        assert_eq!(named, Ok("mine".into()));
        let refused = resolve_with(Some("mine".into()), |_| false, None, not_asked).expect_err("unfit");
        assert!(refused.contains("names mine, which does not start"), "{refused}");
        let chrome = resolve_with(None, |name| name.ends_with("google-chrome"), None, not_asked);
        assert_eq!(chrome, Ok("google-chrome".into()));
    }

    #[test]
    fn what_is_missing_is_installed_where_that_is_possible_and_looked_for_again() {
        let is_there = Cell::new(false);
        let installed = resolve_with(
            None,
            |_| is_there.get(),
            None,
            |find| {
                assert!(find().is_err());
                is_there.set(true);
                find()
            },
        );
        assert_eq!(installed, Ok("chromium".into()));
        let refused = resolve_with(None, |_| false, Some("apt-get needs root"), not_asked).expect_err("none");
        assert!(refused.contains("none of chromium, ") && refused.contains("needs root"), "{refused}");
        let failed = resolve_with(None, |_| false, None, |_| Err("no network".to_owned())).expect_err("none");
        assert!(failed.ends_with("apt-get brought none: no network"), "{failed}");
    }

    #[test]
    fn a_program_that_is_no_browser_is_none() {
        assert!(!runs(&"true".into()) && !runs(&"no-such-program".into()));
    }
}
