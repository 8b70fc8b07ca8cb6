//! The published list of supported forms, made from the table.

use std::fmt::Write;

use crate::decode::lanes;
use crate::table::family;

/// The supported instruction forms as Markdown: `SUPPORT.md` holds this text.
pub fn support_matrix() -> String {
    let mut text = String::from(
        "# Supported instructions\n\n\
         Made from the table in `src/table`; a test keeps it true. Everything else is refused when a module is loaded.\n\
         `{a b}` stands for one of the words, `[a b]` for at most one. Sections are those of PTX ISA 9.1.\n\n\
         | form | section | meaning |\n|---|---|---|\n",
    );
    let rows = lanes().map(|l| (l.pattern, l.section, l.meaning, ""));
    let families = family::rows().map(|f| (f.pattern, f.section, f.meaning, f.needs));
    let mut rows: Vec<_> = rows.chain(families).collect();
    rows.sort_unstable();
    for (pattern, section, meaning, needs) in rows {
        let needs = match needs {
            "" => String::new(),
            first if first.ends_with('+') => {
                format!(" (`.target {}` and newer ones with a letter)", first.trim_end_matches('+'))
            }
            exact if exact.ends_with('a') => format!(" (`.target {exact}`)"),
            least => format!(" ({least} and newer)"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "| `{pattern}` | {section} | {}{needs} |", meaning.replace('|', "\\|"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `UPDATE_SUPPORT=1` in the environment the file is written instead.
    #[test]
    fn the_published_list_is_that_of_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/SUPPORT.md");
        if std::env::var_os("UPDATE_SUPPORT").is_some() {
            std::fs::write(path, support_matrix()).expect("SUPPORT.md can be written");
        }
        let published = std::fs::read_to_string(path).expect("SUPPORT.md can be read");
        assert!(published == support_matrix(), "run this test with UPDATE_SUPPORT=1 and review SUPPORT.md");
    }
}
