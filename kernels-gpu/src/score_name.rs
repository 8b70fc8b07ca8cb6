//! The name of a user's score, as a row has it.

use ferroflash_score::NAME_MAX;

/// The name of a user's score: lower-case letters, digits and `_`, the first one a letter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScoreName {
    /// Behind the name, zeros.
    bytes: [u8; NAME_MAX],
}

impl ScoreName {
    /// What a name is, in words.
    pub const RULE: &'static str = "a score's name has 1 to 24 lower-case letters, digits and _, the first one a letter, and is none of Ferroflash's";

    /// The name, if it can be one.
    pub const fn new(name: &str) -> Option<Self> {
        let (from, mut bytes, mut i) = (name.as_bytes(), [0; NAME_MAX], 0);
        if from.is_empty() || from.len() > NAME_MAX || !from[0].is_ascii_lowercase() {
            return None;
        }
        while i < from.len() {
            if !matches!(from[i], b'a'..=b'z' | b'0'..=b'9' | b'_') {
                return None;
            }
            bytes[i] = from[i];
            i += 1;
        }
        Some(Self { bytes })
    }

    /// The name.
    pub const fn as_str(&self) -> &str {
        let mut length = 0;
        while length < NAME_MAX && self.bytes[length] != 0 {
            length += 1;
        }
        match core::str::from_utf8(self.bytes.split_at(length).0) {
            Ok(name) => name,
            // They are letters, digits and `_`.
            Err(_) => "",
        }
    }

    /// Whether it is this name.
    pub const fn is(&self, name: &str) -> bool {
        match ScoreName::new(name) {
            Some(other) => {
                let mut i = 0;
                while i < NAME_MAX {
                    if self.bytes[i] != other.bytes[i] {
                        return false;
                    }
                    i += 1;
                }
                true
            }
            None => false,
        }
    }
}

impl core::fmt::Debug for ScoreName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_a_rust_identifier_and_a_ptx_entry_may_hold() {
        for name in ["a", "t5_bias", "x2", "abcdefghijklmnopqrstuvwx"] {
            let read = ScoreName::new(name).expect(name);
            assert_eq!((read.as_str(), read.is(name), read.is("other")), (name, true, false));
        }
        for name in ["", "2x", "_x", "T5", "a-b", "ä", "abcdefghijklmnopqrstuvwxy"] {
            assert_eq!(ScoreName::new(name), None, "{name}");
        }
    }
}
