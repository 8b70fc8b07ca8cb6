//! Changes as language models write them: diffs whose line counts are wrong, and SEARCH/REPLACE blocks, made into diffs.
//!
//! ```text
//! kernels-gpu/src/math/softmax.rs
//! <<<<<<< SEARCH
//! lines as they are
//! =======
//! lines as they should be
//! >>>>>>> REPLACE
//! ```

use super::DEVICE_SOURCE;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Why blocks cannot be made into a diff.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No line before a block names a file below the device crate's source.
    #[error("the block at line {line} has no file: the line above it names one below {DEVICE_SOURCE}")]
    NoFile {
        /// The line of the block's first mark.
        line: usize,
    },
    /// A block has no end.
    #[error("the block at line {line} does not end with `>>>>>>> REPLACE`")]
    NoEnd {
        /// The line of the block's first mark.
        line: usize,
    },
    /// A file that is not there.
    #[error("{path}: there is no such file")]
    Missing {
        /// The file.
        path: String,
    },
    /// The lines are not there, or in several places.
    #[error("{path}: the lines to replace, from `{first}` on, stand there {times} times, not once")]
    NotOnce {
        /// The file.
        path: String,
        /// The first line.
        first: String,
        /// How often.
        times: usize,
    },
}

/// Whether a text has SEARCH/REPLACE blocks.
pub(super) fn has_blocks(text: &str) -> bool {
    text.lines().any(is_search)
}

/// One replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    path: String,
    search: String,
    replace: String,
}

/// Makes blocks into a diff against the files that `read` gives by their path.
///
/// # Errors
/// [`EditError`].
pub fn to_diff(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<String, EditError> {
    let mut files: Vec<(String, String, String)> = Vec::new();
    for Block { path, search, replace } in blocks(text)? {
        let at = match files.iter().position(|(known, ..)| *known == path) {
            Some(at) => at,
            None => {
                let before = match read(&path) {
                    Some(before) => before,
                    // Nothing to search for: a new file.
                    None if search.is_empty() => String::new(),
                    None => return Err(EditError::Missing { path }),
                };
                files.push((path.clone(), before.clone(), before));
                files.len() - 1
            }
        };
        let now = &mut files[at].2;
        let times =
            if search.is_empty() { usize::from(now.is_empty()) } else { now.matches(&search).count() };
        if times != 1 {
            let first = search.lines().next().unwrap_or_default().to_owned();
            return Err(EditError::NotOnce { path, first, times });
        }
        *now = if search.is_empty() { replace } else { now.replacen(&search, &replace, 1) };
    }
    Ok(files.iter().map(|(path, before, after)| diff(path, before, after)).collect())
}

fn is_search(line: &str) -> bool {
    line.trim_end().trim_start_matches('<') == " SEARCH" && line.starts_with("<<<<<")
}

fn blocks(text: &str) -> Result<Vec<Block>, EditError> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut path, mut at) = (Vec::new(), None, 0);
    while at < lines.len() {
        if !is_search(lines[at]) {
            path = named_file(lines[at]).or(path);
            at += 1;
            continue;
        }
        let line = at + 1;
        let file = path.clone().ok_or(EditError::NoFile { line })?;
        let part = |from: usize, mark: char| {
            let is_end = |line: &&str| line.starts_with(&mark.to_string().repeat(5));
            lines[from..].iter().position(is_end).map(|length| from + length).ok_or(EditError::NoEnd { line })
        };
        let middle = part(at + 1, '=')?;
        let end = part(middle + 1, '>')?;
        // No line of the source ends with blanks, but those of an answer may.
        let joined =
            |lines: &[&str]| lines.iter().flat_map(|line| [line.trim_end(), "\n"]).collect::<String>();
        let (search, replace) = (joined(&lines[at + 1..middle]), joined(&lines[middle + 1..end]));
        found.push(Block { path: file, search, replace });
        at = end + 1;
    }
    Ok(found)
}

/// The file of the device crate that a line names, in whatever marks.
fn named_file(line: &str) -> Option<String> {
    let word = line
        .split(|c: char| c.is_whitespace() || matches!(c, '`' | '*' | '"' | '\''))
        .find(|word| word.ends_with(".rs"))?;
    let from_root = word.find(DEVICE_SOURCE).map(|start| word[start..].to_owned());
    from_root.or_else(|| of_crate(word))
}

/// The path from the repository's root of one that begins at the device crate's: the repository has no `src` of its own.
fn of_crate(path: &str) -> Option<String> {
    Some(format!("{DEVICE_SOURCE}{}", path.strip_prefix("src/")?))
}

/// One hunk from the first line that differs to the last.
fn diff(path: &str, before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let most = old.len().min(new.len()) - same;
    let tail = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(a, b)| a == b).count();
    if same == old.len() && same == new.len() {
        return String::new();
    }
    let first = same.saturating_sub(CONTEXT);
    let behind = tail.min(CONTEXT);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let mut text = format!("diff --git a/{path} b/{path}\n");
    if before.is_empty() {
        text += "new file mode 100644\n";
    }
    let from = if before.is_empty() { "/dev/null".to_owned() } else { format!("a/{path}") };
    text += &format!("--- {from}\n+++ b/{path}\n");
    let (old_count, new_count) = (old_end + behind - first, new_end + behind - first);
    let start = |count: usize| if count == 0 { first } else { first + 1 };
    text += &format!("@@ -{},{old_count} +{},{new_count} @@\n", start(old_count), start(new_count));
    let mut add =
        |mark: char, lines: &[&str]| lines.iter().for_each(|line| text += &format!("{mark}{line}\n"));
    add(' ', &old[first..same]);
    add('-', &old[same..old_end]);
    add('+', &new[same..new_end]);
    add(' ', &old[old_end..old_end + behind]);
    text
}

/// A diff whose hunks say how long they are and whose paths begin with `a/` and `b/`: people, models and programs write them otherwise.
pub fn recount(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut counted = String::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        let Some((old, new)) = starts(line) else {
            counted += &format!("{}\n", prefixed(line));
            continue;
        };
        let is_next = |at: usize| {
            let is_header = lines[at].starts_with("--- ")
                && lines.get(at + 1).is_some_and(|line| line.starts_with("+++ "));
            lines[at].starts_with("@@ ") || lines[at].starts_with("diff --git ") || is_header
        };
        // What ends a patch that was mailed is no line of it.
        let is_line =
            |line: &str| line != "-- " && (line.is_empty() || line.starts_with([' ', '+', '-', '\\']));
        let mut end = (at..lines.len()).find(|&at| is_next(at) || !is_line(lines[at])).unwrap_or(lines.len());
        // Blank lines between a hunk and what follows belong to neither.
        while end > at && lines[end - 1].is_empty() {
            end -= 1;
        }
        let body = &lines[at..end];
        let count = |other: char| body.iter().filter(|line| !line.starts_with([other, '\\'])).count();
        let (old_count, new_count) = (count('+'), count('-'));
        counted += &format!("@@ -{old},{old_count} +{new},{new_count} @@\n");
        body.iter().for_each(|line| counted += &format!("{line}\n"));
        at = end;
    }
    counted
}

/// A header with the paths that git writes.
fn prefixed(header: &str) -> String {
    let is_header = ["diff --git ", "--- ", "+++ "].iter().any(|mark| header.starts_with(mark));
    let mut words: Vec<String> = header.split(' ').map(str::to_owned).collect();
    let last = words.len() - 1;
    for (at, word) in words.iter_mut().enumerate().filter(|_| is_header) {
        let plain = word.replace("/./", "/");
        let plain = plain.strip_prefix("./").unwrap_or(&plain);
        let side =
            if header.starts_with("+++") || (header.starts_with("diff") && at == last) { 'b' } else { 'a' };
        let bare = plain.strip_prefix("a/").or_else(|| plain.strip_prefix("b/")).unwrap_or(plain);
        *word = match of_crate(bare) {
            Some(path) => format!("{side}/{path}"),
            None if plain.starts_with(DEVICE_SOURCE) => format!("{side}/{plain}"),
            None => plain.to_owned(),
        };
    }
    words.join(" ")
}

/// Where a hunk begins in the old and the new file, by its header; line 1 where it says nothing.
fn starts(header: &str) -> Option<(u64, u64)> {
    let rest = header.strip_prefix("@@")?;
    let start = |mark: char| {
        let digits = rest.split(mark).nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    Some((start('-').unwrap_or(1), start('+').unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "kernels-gpu/src/a.rs";
    const TEXT: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n";

    fn read(path: &str) -> Option<String> {
        (path == FILE).then(|| TEXT.to_owned())
    }

    #[test]
    fn blocks_become_a_diff() {
        let text = format!(
            "### `{FILE}`\n```rust\n<<<<<<< SEARCH\nfour\nfive\n=======\nFOUR\n>>>>>>> REPLACE\n```\n\
             <<<<<<< SEARCH\nseven\n=======\nseven\nand more\n>>>>>>> REPLACE\n"
        );
        let diff = to_diff(&text, &read).expect("a diff");
        assert_eq!(
            diff,
            format!(
                "diff --git a/{FILE} b/{FILE}\n--- a/{FILE}\n+++ b/{FILE}\n@@ -1,9 +1,9 @@\n one\n two\n three\n-four\n-five\n-six\n\
                 -seven\n+FOUR\n+six\n+seven\n+and more\n eight\n nine\n"
            )
        );
        let blanks = "src/a.rs\r\n<<<<<<< SEARCH\r\nfour  \r\n=======\r\nFOUR \r\n>>>>>>> REPLACE\r\n";
        let diff = to_diff(blanks, &read).expect("a diff");
        assert!(diff.starts_with(&format!("diff --git a/{FILE} b/{FILE}\n")), "{diff}");
        assert!(diff.contains("-four\n+FOUR\n five"), "{diff}");
        let new = "kernels-gpu/src/b.rs\n<<<<<<< SEARCH\n=======\n//! New.\n>>>>>>> REPLACE\n";
        assert!(to_diff(new, &read).expect("a diff").contains("--- /dev/null\n"));
    }

    #[test]
    fn blocks_that_fit_nowhere_or_twice_are_named() {
        let block = |path: &str, search: &str| {
            to_diff(&format!("{path}\n<<<<<<< SEARCH\n{search}\n=======\nx\n>>>>>>> REPLACE\n"), &read)
        };
        assert!(matches!(block(FILE, "ten"), Err(EditError::NotOnce { times: 0, .. })));
        assert!(matches!(block("kernels-gpu/src/c.rs", "x"), Err(EditError::Missing { .. })));
        assert!(matches!(block("host/src/lib.rs", "x"), Err(EditError::NoFile { line: 2 })));
        let twice = to_diff(&format!("{FILE}\n<<<<<<< SEARCH\na\n=======\n>>>>>>> REPLACE\n"), &|_| {
            Some("a\na\n".to_owned())
        });
        assert!(matches!(twice, Err(EditError::NotOnce { times: 2, .. })));
        assert!(matches!(
            to_diff(&format!("{FILE}\n<<<<<<< SEARCH\na\n"), &read),
            Err(EditError::NoEnd { line: 2 })
        ));
    }

    #[test]
    fn hunks_that_were_counted_wrong_are_counted_again() {
        let wrong = format!(
            "--- a/{FILE}\n+++ b/{FILE}\n@@ -3,99 +3 @@ fn f() {{\n three\n-four\n+FOUR\n+more\n\n@@\n seven\n-eight\n--- a/x\n+++ b/x\n@@ -1 +1,7 @@\n-a\n+b\n"
        );
        let right = recount(&wrong);
        assert!(right.contains("@@ -3,2 +3,3 @@\n three\n"), "{right}");
        assert!(
            right.contains("@@ -1,2 +1,1 @@\n seven\n-eight\n--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n"),
            "{right}"
        );
        assert_eq!(recount(&right), right);
        let of_crate =
            "diff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,1 +1,1 @@\n-one\n+ONE\n";
        assert_eq!(recount(of_crate), of_crate.replace("src/a.rs", FILE));
        // What was right stays as it was, up to the section behind the header.
        let fine = format!(
            "--- a/{FILE}\n+++ b/{FILE}\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n\\ No newline at end of file\n"
        );
        assert_eq!(recount(&fine), fine);
    }
}
