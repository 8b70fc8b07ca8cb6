//! Patterns of mnemonics. Segments are separated by blanks: `add` stands for itself, `{u32 s32}` for exactly one of its
//! words, `[ftz]` for at most one of them.

/// The word taken by each `{}` and `[]` of a pattern, in order; empty where an optional one is absent.
pub(crate) type Captures<'a> = Vec<&'a str>;

/// One segment.
enum Segment<'p> {
    Word(&'p str),
    One(&'p str),
    Optional(&'p str),
}

fn segments(pattern: &str) -> impl Iterator<Item = Segment<'_>> {
    let mut rest = pattern.trim();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let close = match rest.as_bytes()[0] {
            b'{' => Some('}'),
            b'[' => Some(']'),
            _ => None,
        };
        let end = match close {
            Some(close) => rest.find(close).map_or(rest.len(), |p| p + 1),
            None => rest.find(' ').unwrap_or(rest.len()),
        };
        let (word, tail) = rest.split_at(end);
        rest = tail.trim_start();
        Some(match close {
            Some('}') => Segment::One(word.trim_matches(['{', '}'])),
            Some(_) => Segment::Optional(word.trim_matches(['[', ']'])),
            None => Segment::Word(word),
        })
    })
}

/// The names of the instruction: the choices of the first segment.
pub(crate) fn heads(pattern: &str) -> Vec<&str> {
    match segments(pattern).next() {
        Some(Segment::Word(word)) => vec![word],
        Some(Segment::One(choices) | Segment::Optional(choices)) => choices.split(' ').collect(),
        None => Vec::new(),
    }
}

/// Matches a mnemonic, split at its dots, against a pattern.
pub(crate) fn captures<'m>(pattern: &str, mnemonic: &'m str) -> Option<Captures<'m>> {
    let mut parts = mnemonic.split('.').peekable();
    let mut taken = Vec::new();
    for segment in segments(pattern) {
        let (choices, optional) = match segment {
            Segment::Word(word) => {
                parts.next_if(|p| *p == word)?;
                continue;
            }
            Segment::One(choices) => (choices, false),
            Segment::Optional(choices) => (choices, true),
        };
        match parts.next_if(|p| choices.split(' ').any(|c| c == *p)) {
            Some(part) => taken.push(part),
            None if optional => taken.push(""),
            None => return None,
        }
    }
    parts.next().is_none().then_some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_options_and_plain_words() {
        let pattern = "ld [volatile] {global shared::cta} [v2 v4] {b32 b64}";
        assert_eq!(captures(pattern, "ld.global.v2.b32"), Some(vec!["", "global", "v2", "b32"]));
        assert_eq!(
            captures(pattern, "ld.volatile.shared::cta.b64"),
            Some(vec!["volatile", "shared::cta", "", "b64"])
        );
        assert_eq!(captures(pattern, "ld.global.b128"), None);
        assert_eq!(captures(pattern, "ld.global.b32.x"), None);
        assert_eq!(captures(pattern, "ld.b32"), None);
        assert_eq!(heads(pattern), ["ld"]);
        assert_eq!(heads("{bar barrier} sync"), ["bar", "barrier"]);
    }
}
