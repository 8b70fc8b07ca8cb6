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

/// The parts of a mnemonic. There may be white space before a dot.
pub(crate) fn parts(mnemonic: &str) -> impl Iterator<Item = &str> {
    mnemonic.split('.').map(str::trim_end)
}

/// Words whose order among themselves has a meaning: the types of several operands, the spaces of a copy, the layouts of a
/// product. All others may come in any order, as in ptxas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ordered {
    Type,
    Space,
    Layout,
    /// The two priorities of a cache policy.
    Policy,
}

fn ordered(word: &str) -> Option<Ordered> {
    match word {
        "row" | "col" => Some(Ordered::Layout),
        "pred" | "tf32" | "e4m3" | "e5m2" | "e4m3x2" | "e5m2x2" | "e2m1" | "e2m3" | "e3m2" | "e2m1x2"
        | "e2m3x2" | "e3m2x2" | "ue8m0x2" | "texref" | "samplerref" => Some(Ordered::Type),
        _ if word.starts_with("L2::evict") => Some(Ordered::Policy),
        _ if word.starts_with("shared") || word.starts_with("param") => Some(Ordered::Space),
        "global" | "local" | "const" => Some(Ordered::Space),
        _ => {
            let digits = word.trim_start_matches("bf").trim_start_matches(['b', 'u', 's', 'f']);
            let is_type = digits.len() < word.len() && digits.starts_with(|c: char| c.is_ascii_digit());
            is_type.then_some(Ordered::Type)
        }
    }
}

/// Whether a word keeps its place among others of its kind.
#[cfg(test)]
pub(crate) fn keeps_order(word: &str) -> bool {
    ordered(word).is_some()
}

/// Matches a mnemonic against a pattern: its first word is the instruction's, the others may come in any order.
pub(crate) fn captures<'m>(pattern: &str, mnemonic: &'m str) -> Option<Captures<'m>> {
    let mut left: Vec<&'m str> = parts(mnemonic).collect();
    let mut taken = Vec::new();
    for (at, segment) in segments(pattern).enumerate() {
        let (choices, optional, captured) = match segment {
            Segment::Word(word) => (word, false, false),
            Segment::One(choices) => (choices, false, true),
            Segment::Optional(choices) => (choices, true, true),
        };
        let found = match at {
            0 => left.first().filter(|part| is_choice(choices, part)).map(|_| 0),
            _ => position(&left, choices),
        };
        match found {
            Some(found) => {
                let part = left.remove(found);
                if captured {
                    taken.push(part);
                }
            }
            None if optional => taken.push(""),
            None => return None,
        }
    }
    left.is_empty().then_some(taken)
}

fn is_choice(choices: &str, part: &str) -> bool {
    choices.split(' ').any(|choice| choice == part)
}

/// Where the first part stands that is one of the choices; of a kind whose order counts only the first is looked at.
fn position(left: &[&str], choices: &str) -> Option<usize> {
    let mut passed = [None; 4];
    for (at, part) in left.iter().enumerate() {
        let kind = ordered(part);
        if (kind.is_none() || !passed.contains(&kind)) && is_choice(choices, part) {
            return Some(at);
        }
        if let Some(kind) = kind {
            passed[kind as usize] = Some(kind);
        }
    }
    None
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
        assert_eq!(
            captures(pattern, "ld.v2.b32 .global.volatile"),
            Some(vec!["volatile", "global", "v2", "b32"])
        );
        assert_eq!(
            captures("cvt [rn] {f32 u32} {f16 u64}", "cvt.f32.f16.rn"),
            Some(vec!["rn", "f32", "f16"])
        );
        assert_eq!(captures("cvt [rn] {f32 u32} {f16 u64}", "cvt.f16.f32.rn"), None);
        assert_eq!(captures(pattern, "global.ld.b32"), None);
        assert_eq!(captures(pattern, "ld.global.b128"), None);
        assert_eq!(captures(pattern, "ld.global.b32.x"), None);
        assert_eq!(captures(pattern, "ld.b32"), None);
        assert_eq!(heads(pattern), ["ld"]);
        assert_eq!(heads("{bar barrier} sync"), ["bar", "barrier"]);
    }
}
