//! PTX as steps.

use super::op::{Op, Type};
use super::{Does, Paths, Source, Step};
use crate::exam::question::literals::{Literal, literal, names};
use std::collections::HashMap;

/// What is read of a kernel's text.
#[derive(Default)]
pub(super) struct Reader {
    /// The kernel or function that is read, and whether it is the kernel.
    within: (String, bool),
    entry: usize,
    steps: Vec<Step>,
    /// Of a kernel or function by their names; what is handed to functions and back by the names that these have for it.
    registers: HashMap<String, usize>,
    labels: HashMap<String, usize>,
    functions: HashMap<String, usize>,
    /// Branches and calls, whose labels and functions may come later.
    branches: Vec<(usize, String)>,
    calls: Vec<(usize, String)>,
    /// What was put where since the last call: the name and offset, and the register for it.
    given: Vec<(String, String, usize)>,
    /// The function that was called last.
    called: String,
}

impl Reader {
    /// Begins a kernel or a function: `.entry name(…)`, `.func (…) name(…)`.
    pub(super) fn begin(&mut self, head: &str) {
        let is_kernel = head.contains(".entry");
        let (_, rest) = head.split_once(if is_kernel { ".entry" } else { ".func" }).unwrap_or_default();
        let rest = rest.trim_start();
        let rest =
            if rest.starts_with('(') { rest.split_once(')').map_or(rest, |(_, rest)| rest) } else { rest };
        let name = rest.split('(').next().unwrap_or_default().trim().to_owned();
        if is_kernel {
            self.entry = self.steps.len();
        } else {
            self.functions.insert(name.clone(), self.steps.len());
        }
        self.within = (name, is_kernel);
    }

    /// A function's name, what it gives back, and what it is given.
    fn call(&mut self, operands: &str) -> Does {
        let groups: Vec<&str> = operands.split(['(', ')']).collect();
        let has_result = operands.starts_with('(');
        let name = groups.get(if has_result { 2 } else { 0 }).copied().unwrap_or_default();
        let name = name.trim_matches(|c: char| c.is_whitespace() || c == ',').to_owned();
        let given = groups.get(if has_result { 3 } else { 1 }).copied().unwrap_or_default();
        for (number, place) in names(given).into_iter().enumerate() {
            for (_, offset, from) in self.given.clone().into_iter().filter(|(at, ..)| at == place) {
                let to = self.named(format!("{name}_param_{number}+{offset}"));
                self.copy(to, from);
            }
        }
        self.given.clear();
        self.called.clone_from(&name);
        self.calls.push((self.steps.len(), name));
        Does::Call(0)
    }

    fn copy(&mut self, to: usize, from: usize) {
        let does = Does::copy(to, Source::Register(from));
        self.steps.push(Step { guard: None, does, is_target: false });
    }

    /// What is put into a place for a function, or for who called this one.
    fn put(&mut self, operands: &str) -> Does {
        let (to, from) = operands.split_once(',').unwrap_or((operands, ""));
        let (to, from) = (names(to), names(from));
        let (Some(place), [from]) = (to.first(), from.as_slice()) else { return Does::Unknown(Vec::new()) };
        let (place, offset) = place.split_once('+').unwrap_or((place, "0"));
        let register = if place == "func_retval0" {
            self.named(format!("{}.result+{offset}", self.within.0))
        } else {
            let count = self.registers.len();
            let register = self.named(format!("given {count}"));
            self.given.push((place.to_owned(), offset.to_owned(), register));
            register
        };
        Does::copy(register, self.source(from))
    }

    fn named(&mut self, name: String) -> usize {
        let next = self.registers.len();
        *self.registers.entry(name).or_insert(next)
    }

    /// A label with its colon, or a statement with its semicolon.
    pub(super) fn read(&mut self, piece: &str) {
        let text = piece
            .trim_matches(|c: char| c.is_whitespace() || matches!(c, '{' | ';'))
            .trim_start_matches('}')
            .trim();
        if let Some(label) = text.strip_suffix(':') {
            self.labels.insert(label.trim().to_owned(), self.steps.len());
            return;
        }
        let (guard, text) = match text.strip_prefix('@') {
            Some(guarded) => match guarded.split_once(char::is_whitespace) {
                Some((predicate, rest)) => (Some(predicate), rest.trim_start()),
                None => return,
            },
            None => (None, text),
        };
        let (op, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if !op.starts_with(|c: char| c.is_ascii_lowercase()) {
            return;
        }
        let guard = guard.map(|predicate| {
            let name = predicate.trim_start_matches('!');
            (self.register(name), predicate.starts_with('!'))
        });
        let does = self.does(op, operands.trim());
        self.steps.push(Step { guard, does, is_target: false });
    }

    fn does(&mut self, op: &str, operands: &str) -> Does {
        let name = op.split('.').next().unwrap_or(op);
        match name {
            "bra" => {
                self.branches.push((self.steps.len(), operands.to_owned()));
                return Does::Branch(0);
            }
            "brx" => return Does::BranchAnywhere,
            "call" => return self.call(operands),
            "st" if op.starts_with("st.param") => return self.put(operands),
            "ret" | "exit" | "trap" => return Does::End,
            "st" | "red" | "bar" | "barrier" | "membar" | "fence" => return Does::Unknown(Vec::new()),
            _ => {}
        }
        // A vector, or one register.
        let ends = if operands.starts_with('{') { '}' } else { ',' };
        let (to, from) = operands.split_once(ends).unwrap_or((operands, ""));
        let to: Vec<usize> = names(to).into_iter().map(|name| self.register(name)).collect();
        if op.starts_with("ld.param") {
            let from = names(from);
            let (name, at) =
                from.first().map_or(("", ""), |from| from.split_once('+').unwrap_or((from, "0")));
            let bits = op.split('.').find_map(Type::read).map_or(0, |of| of.bits);
            let (within, is_kernel) = self.within.clone();
            let handed = match name.strip_prefix("retval") {
                Some(_) => Some(format!("{}.result+{at}", self.called)),
                None => (!is_kernel).then(|| format!("{name}+{at}")),
            };
            return match (handed, at.parse(), to.as_slice()) {
                (None, Ok(at), _) if name == format!("{within}_param_0") => {
                    Does::Parameter { to, at, bytes: bits as usize / 8 }
                }
                (Some(handed), _, [to]) => {
                    let from = self.named(handed);
                    Does::copy(*to, Source::Register(from))
                }
                _ => Does::Unknown(to),
            };
        }
        let is_packed = from.contains('{');
        let from: Vec<Source> = names(from).into_iter().map(|name| self.source(name)).collect();
        match (Op::read(op), to.as_slice(), from.as_slice()) {
            (Some(op), _, [from]) if op.name == "mov" && to.len() > 1 && op.of.bits == 64 => {
                Does::Unpack { to, from: *from }
            }
            (Some(op), [to], _) if !is_packed && op.name != "ld" => Does::Compute { to: *to, op, from },
            _ => Does::Unknown(to),
        }
    }

    fn register(&mut self, name: &str) -> usize {
        self.named(format!("{} {name}", self.within.0))
    }

    fn source(&mut self, name: &str) -> Source {
        match (name, literal(name)) {
            (_, Some(Literal::Integer(value))) => Source::Value(value as u64),
            (_, Some(Literal::Float(value))) => Source::Value(value.to_bits().into()),
            ("%nctaid.x", _) => Source::Grid,
            ("%ctaid.x", _) => Source::Cta,
            ("%ctaid.y" | "%ctaid.z", _) => Source::Value(0),
            ("%nctaid.y" | "%nctaid.z", _) => Source::Value(1),
            // Inline assembly may declare registers with plain names.
            (register, _) if !register.contains('.') => Source::Register(self.register(register)),
            _ => Source::Unknown,
        }
    }

    /// What no statement writes is not known: special registers, addresses of shared arrays.
    fn forget_unwritten(&mut self) {
        let mut is_written = vec![false; self.registers.len()];
        for step in &self.steps {
            match &step.does {
                Does::Parameter { to, .. } | Does::Unpack { to, .. } | Does::Unknown(to) => {
                    to.iter().for_each(|&to| is_written[to] = true);
                }
                Does::Compute { to, .. } => is_written[*to] = true,
                Does::Branch(_) | Does::Call(_) | Does::BranchAnywhere | Does::End => {}
            }
        }
        let forget = |source: &mut Source| {
            if matches!(source, Source::Register(register) if !is_written[*register]) {
                *source = Source::Unknown;
            }
        };
        for step in &mut self.steps {
            match &mut step.does {
                Does::Unpack { from, .. } => forget(from),
                Does::Compute { from, .. } => from.iter_mut().for_each(forget),
                _ => {}
            }
        }
    }

    pub(super) fn finish(mut self) -> Paths {
        let end = self.steps.len();
        for (at, label) in std::mem::take(&mut self.branches) {
            let to = self.labels.get(&label).copied().unwrap_or(end);
            self.steps[at].does = Does::Branch(to);
        }
        for (at, name) in std::mem::take(&mut self.calls) {
            // What is defined nowhere gives back what is not known.
            let result = format!("{name}.result+");
            let results = self.registers.iter().filter(|(register, _)| register.starts_with(&result));
            self.steps[at].does = match self.functions.get(&name) {
                Some(&to) => Does::Call(to),
                None => Does::Unknown(results.map(|(_, &register)| register).collect()),
            };
        }
        self.forget_unwritten();
        for &to in self.labels.values() {
            if let Some(step) = self.steps.get_mut(to) {
                step.is_target = true;
            }
        }
        Paths { steps: self.steps, registers: self.registers.len(), entry: self.entry }
    }
}
