//! Statements of PTX by what they compute, so that those of two kernels can be compared.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How many statements back what a statement reads is told.
const BACK: usize = 3;

/// A number for each line of PTX, without the names of registers and labels: for a register that it reads stands what writes this, and so on for a few
/// statements. Of two kernels those lines have the same number that compute the same of the same.
pub(super) fn statements(ptx: &str) -> Vec<u64> {
    let lines: Vec<Vec<&str>> = ptx.lines().map(words).collect();
    let mut writers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in lines.iter().enumerate() {
        for register in written(line) {
            writers.entry(register).or_default().push(at);
        }
    }
    let mut numbers = vec![0; lines.len()];
    for _ in 0..=BACK {
        numbers = lines.iter().map(|line| number(line, &writers, &numbers)).collect();
    }
    numbers
}

fn number(line: &[&str], writers: &HashMap<&str, Vec<usize>>, numbers: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for word in line {
        match writers.get(word.trim_start_matches('!')) {
            Some(writers) => {
                writers.iter().map(|&at| numbers[at]).collect::<BTreeSet<u64>>().hash(&mut hasher)
            }
            None if word.starts_with('$') => '$'.hash(&mut hasher),
            // `fwd_f16_d64_param_0+16`, whatever the entry is called.
            None => word.rsplit_once("_param_").map_or(*word, |(_, rest)| rest).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// The words of a line, without its comment.
pub(super) fn words(line: &str) -> Vec<&str> {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    let is_between =
        |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '{' | '}' | '[' | ']' | '|' | '@');
    code.split(is_between).filter(|word| !word.is_empty()).collect()
}

/// The registers that a line writes: those behind the operation, as many as it has results. Assembly may call them what it likes.
pub(super) fn written<'a>(line: &[&'a str]) -> impl Iterator<Item = &'a str> {
    const NONE: [&str; 9] = ["st", "bra", "red", "bar", "call", "cp", "ret", "exit", "fence"];
    let op =
        line.iter().position(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).unwrap_or(line.len());
    let mut parts = line.get(op).copied().unwrap_or_default().split('.');
    let count = match parts.next() {
        Some(name) if NONE.contains(&name) => 0,
        _ => match parts.find(|part| matches!(*part, "v2" | "x2" | "v4" | "x4" | "m16n8k16")) {
            Some("v2" | "x2") => 2,
            Some(_) => 4,
            None => 1,
        },
    };
    let is_name =
        |word: &&&str| word.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '%' | '_'));
    line.iter().skip(op + 1).take(count).filter(is_name).copied()
}
