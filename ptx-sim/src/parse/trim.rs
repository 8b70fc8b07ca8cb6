//! Leaves of a module's text only what one entry needs: the bodies of other functions become empty declarations. No tokens are
//! made for that, so a large module costs one pass over its bytes.

use std::collections::{HashMap, HashSet};

/// A function of the text.
struct Function<'a> {
    name: &'a str,
    is_entry: bool,
    /// Where its body starts and ends, braces included.
    body: (usize, usize),
}

/// The text with the bodies of `entry` and of the functions that it may reach, on the same lines. Names count wherever they
/// stand, so calls through tables of functions are reached too.
pub(crate) fn only(text: &str, entry: &str) -> String {
    let functions = functions(text);
    if !functions.iter().any(|f| f.is_entry && f.name == entry) {
        return text.to_owned();
    }
    let by_name: HashMap<&str, usize> =
        functions.iter().enumerate().filter(|(_, f)| !f.is_entry).map(|(i, f)| (f.name, i)).collect();
    let mut wanted: HashSet<usize> = HashSet::new();
    let mut left: Vec<(usize, usize)> = Vec::new();
    // What stands outside of bodies, initialisers above all, may name functions.
    let mut at = 0;
    for function in &functions {
        left.push((at, function.body.0));
        at = function.body.1;
    }
    left.push((at, text.len()));
    // Heads name functions as well, which is why only what has an initialiser is looked at.
    left.retain(|&(from, to)| text[from..to].contains('='));
    for (i, function) in functions.iter().enumerate() {
        if function.is_entry && function.name == entry && wanted.insert(i) {
            left.push(function.body);
        }
    }
    while let Some((from, to)) = left.pop() {
        for word in words(&text[from..to]) {
            if let Some(&index) = by_name.get(word)
                && wanted.insert(index)
            {
                left.push(functions[index].body);
            }
        }
    }
    let mut out = String::with_capacity(text.len() / 4);
    let mut at = 0;
    for (i, function) in functions.iter().enumerate() {
        if wanted.contains(&i) {
            continue;
        }
        out.push_str(&text[at..function.body.0]);
        out.push(';');
        let (from, to) = function.body;
        out.extend(std::iter::repeat_n(
            '\n',
            text.as_bytes()[from..to].iter().filter(|b| **b == b'\n').count(),
        ));
        at = to;
    }
    out.push_str(&text[at..]);
    out
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii() || !is_word(c as u8)).filter(|w| !w.is_empty())
}

/// Every function that has a body.
fn functions(text: &str) -> Vec<Function<'_>> {
    let bytes = text.as_bytes();
    let mut list = Vec::new();
    // The head that was seen last, until its body or its end.
    let mut head: Option<(usize, bool)> = None;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => at = line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => at = comment_end(bytes, at),
            b'"' => at = string_end(bytes, at),
            b'.' if bytes[at..].starts_with(b".entry") => {
                head = Some((at + 6, true));
                at += 6;
            }
            b'.' if bytes[at..].starts_with(b".func") => {
                head = Some((at + 5, false));
                at += 5;
            }
            b';' => {
                head = None;
                at += 1;
            }
            b'{' => {
                let end = block_end(bytes, at);
                if let Some((from, is_entry)) = head.take()
                    && let Some(name) = name_of(&text[from..at])
                {
                    list.push(Function { name, is_entry, body: (at, end) });
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    list
}

/// The name in a head: after what is returned, if anything is.
fn name_of(head: &str) -> Option<&str> {
    let mut rest = head.trim_start();
    if rest.starts_with('(') {
        rest = rest.split_once(')')?.1.trim_start();
    }
    words(rest).next()
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn comment_end(bytes: &[u8], at: usize) -> usize {
    bytes[at + 2..].windows(2).position(|w| w == b"*/").map_or(bytes.len(), |n| at + n + 4)
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    bytes[at + 1..].iter().position(|b| *b == b'"').map_or(bytes.len(), |n| at + n + 2)
}

/// Behind the brace that closes the one at `at`.
fn block_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0u32;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => at = line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => at = comment_end(bytes, at),
            b'"' => at = string_end(bytes, at),
            b'{' => {
                depth += 1;
                at += 1;
            }
            b'}' => {
                depth -= 1;
                at += 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_reached_keeps_its_body() {
        let text = ".func (.param .b32 r) f(.param .b32 a) { { ret; } }\n.func g() {\n call f;\n}\n.func h() { ret; }\n\
                    .entry k() // }\n{ call g;\n}\n.entry other() { bad; \"}\" }\n";
        let got = only(text, "k");
        assert!(got.contains("{ { ret; } }") && got.contains("call g") && got.contains("call f"));
        assert!(!got.contains("bad") && got.contains(".func h() ;") && got.contains(".entry other() ;"));
        assert_eq!(got.lines().count(), text.lines().count());
        assert_eq!(only(text, "none"), text);
        let table = format!(".global .u64 t[1] = {{h}};\n{text}");
        assert!(only(&table, "k").contains(".func h() { ret; }"));
    }
}
