//! Splits PTX text into tokens (PTX ISA §4.1–4.3).

use crate::error::LoadError;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name, a register, a number, a directive or a whole dotted mnemonic.
    Word,
    /// The inside of a quoted string.
    Text,
    /// One character of punctuation.
    Punct(u8),
}

/// One token and the line that it starts on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) line: u32,
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// How compilers mark the text that an `asm` statement became. The LLVM of Triton 3.9 counts a line for each line in between, as if
/// every one stood on a source line of its own; Triton's do not, and what follows would keep the last of them.
const ASM: [&[u8]; 2] = [b"// begin inline asm", b"// end inline asm"];

/// The tokens of `source`; comments and white space are dropped, and `.loc` inside of an `asm` statement, all of which is where it
/// begins.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token<'_>>, LoadError> {
    let bytes = source.as_bytes();
    let mut list = Vec::with_capacity(bytes.len() / 4);
    let (mut at, mut line, mut in_asm) = (0, 1u32, false);
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() || byte == 0 {
            at += 1;
        } else if bytes[at..].starts_with(b"//") {
            in_asm = if in_asm { !bytes[at..].starts_with(ASM[1]) } else { bytes[at..].starts_with(ASM[0]) };
            at = line_end(bytes, at);
        } else if in_asm
            && bytes[at..].starts_with(b".loc")
            && !bytes.get(at + 4).is_some_and(|&b| is_word_byte(b))
        {
            at = line_end(bytes, at);
        } else if bytes[at..].starts_with(b"/*") {
            let end = find(bytes, at + 2, b"*/").ok_or(LoadError::Unterminated { line, what: "comment" })?;
            line += count_lines(&bytes[at..end]);
            at = end + 2;
        } else if byte == b'"' {
            let end = find(bytes, at + 1, b"\"").ok_or(LoadError::Unterminated { line, what: "string" })?;
            list.push(Token { kind: Kind::Text, text: slice(source, start + 1, end, line)?, line });
            line += count_lines(&bytes[at..end]);
            at = end + 1;
        } else if is_word_byte(byte) {
            at = if byte == b'.' { directive_end(bytes, at) } else { word_end(bytes, at) };
            list.push(Token { kind: Kind::Word, text: slice(source, start, at, line)?, line });
        } else if byte.is_ascii_punctuation() {
            at += 1;
            list.push(Token { kind: Kind::Punct(byte), text: slice(source, start, at, line)?, line });
        } else {
            return Err(LoadError::Character { line, byte });
        }
    }
    Ok(list)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |end| at + end)
}

/// A word runs over word bytes, over `::`, which joins two of them, and over the sign of a number's exponent.
fn word_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    loop {
        match bytes.get(at) {
            Some(&b) if is_word_byte(b) => at += 1,
            Some(b'+' | b'-')
                if ends_in_exponent(&bytes[start..at])
                    && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) =>
            {
                at += 1;
            }
            Some(b':')
                if bytes.get(at + 1) == Some(&b':')
                    && bytes.get(at + 2).is_some_and(|&b| is_word_byte(b)) =>
            {
                at += 2;
            }
            _ => return at,
        }
    }
}

/// Whether this is a decimal number up to the `e` of its exponent.
fn ends_in_exponent(word: &[u8]) -> bool {
    word.split_last().is_some_and(|(last, number)| {
        last.eq_ignore_ascii_case(&b'e')
            && number.first().is_some_and(u8::is_ascii_digit)
            && number.iter().all(|b| b.is_ascii_digit() || *b == b'.')
    })
}

/// Of `.reg.b32` the first part only: directives and their types need no blank between them.
fn directive_end(bytes: &[u8], at: usize) -> usize {
    let end = word_end(bytes, at);
    bytes[at + 1..end].iter().position(|&b| b == b'.').map_or(end, |dot| at + 1 + dot)
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes.get(from..)?.windows(what.len()).position(|w| w == what).map(|p| from + p)
}

fn count_lines(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&b| b == b'\n').count() as u32
}

fn slice(source: &str, from: usize, to: usize, line: u32) -> Result<&str, LoadError> {
    source.get(from..to).ok_or(LoadError::Character { line, byte: source.as_bytes()[from] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mnemonics_registers_and_labels_are_words() {
        let list = tokens("@!%p1 ld.shared::cta.b32 %r1, [%rd2+-4]; // x\n$L1: /* a\nb */ bra $L1;").unwrap();
        let text: Vec<&str> = list.iter().map(|t| t.text).collect();
        let want = [
            "@",
            "!",
            "%p1",
            "ld.shared::cta.b32",
            "%r1",
            ",",
            "[",
            "%rd2",
            "+",
            "-",
            "4",
            "]",
            ";",
            "$L1",
            ":",
            "bra",
            "$L1",
            ";",
        ];
        assert_eq!(text, want);
        assert_eq!(list.last().unwrap().line, 3);
    }

    #[test]
    fn an_open_comment_or_string_is_refused_with_its_line() {
        assert!(matches!(tokens("\n/* x"), Err(LoadError::Unterminated { line: 2, .. })));
        assert!(matches!(tokens("\"x"), Err(LoadError::Unterminated { line: 1, .. })));
        assert!(matches!(tokens("\u{e9}"), Err(LoadError::Character { line: 1, .. })));
    }
}
