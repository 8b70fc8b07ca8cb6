//! Names of a function body: registers, variables and labels in nested blocks (PTX ISA §4.4, §5.1).

use std::collections::HashMap;

use crate::op::{Pc, Reg};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Symbol<'a> {
    Reg(Reg),
    /// A module variable.
    Variable(u32),
    /// Bytes of the frame's local memory.
    Local(u32),
    /// Offset in the entry's parameters.
    EntryParam(u32),
    /// Offset and size in the frame's parameter area.
    FrameParam(u32, u32),
    /// A list of labels.
    Targets(Vec<&'a str>),
}

/// Registers declared by the `<n>` form.
struct Range<'a> {
    prefix: &'a str,
    count: u32,
    first: Reg,
}

/// One block.
#[derive(Default)]
struct Scope<'a> {
    parent: usize,
    names: HashMap<&'a str, Symbol<'a>>,
    ranges: Vec<Range<'a>>,
    labels: HashMap<&'a str, Pc>,
}

/// The blocks of a function; closed ones stay for the labels that branches refer to.
pub(super) struct Scopes<'a> {
    all: Vec<Scope<'a>>,
    current: usize,
}

impl<'a> Scopes<'a> {
    pub(super) fn new() -> Self {
        Scopes { all: vec![Scope::default()], current: 0 }
    }

    pub(super) fn open(&mut self) {
        self.all.push(Scope { parent: self.current, ..Scope::default() });
        self.current = self.all.len() - 1;
    }

    pub(super) fn close(&mut self) {
        self.current = self.all[self.current].parent;
    }

    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Declares a name; false if the block has it already.
    pub(super) fn declare(&mut self, name: &'a str, symbol: Symbol<'a>) -> bool {
        self.all[self.current].names.insert(name, symbol).is_none()
    }

    pub(super) fn declare_range(&mut self, prefix: &'a str, count: u32, first: Reg) {
        self.all[self.current].ranges.push(Range { prefix, count, first });
    }

    /// Declares a label; false if the block has it already.
    pub(super) fn label(&mut self, name: &'a str, pc: Pc) -> bool {
        self.all[self.current].labels.insert(name, pc).is_none()
    }

    /// The innermost meaning of a name.
    pub(super) fn find(&self, name: &str) -> Option<Symbol<'a>> {
        let number_at = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let mut at = self.current;
        loop {
            let scope = &self.all[at];
            if let Some(symbol) = scope.names.get(name) {
                return Some(symbol.clone());
            }
            if let Some(reg) = scope.ranges.iter().find_map(|r| r.register(name, number_at)) {
                return Some(Symbol::Reg(reg));
            }
            if at == 0 {
                return None;
            }
            at = scope.parent;
        }
    }

    /// The place of a label as seen from block `from`.
    pub(super) fn find_label(&self, name: &str, from: usize) -> Option<Pc> {
        let mut at = from;
        loop {
            if let Some(&pc) = self.all[at].labels.get(name) {
                return Some(pc);
            }
            if at == 0 {
                return None;
            }
            at = self.all[at].parent;
        }
    }
}

impl Range<'_> {
    /// A prefix may end in digits itself, so every split at or after the last letter is tried.
    fn register(&self, name: &str, number_at: usize) -> Option<Reg> {
        let digits = name.strip_prefix(self.prefix)?;
        if self.prefix.len() < number_at || digits.is_empty() || digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        let number: u32 = digits.parse().ok()?;
        let each = if self.first.bits == 128 { 2 } else { 1 };
        (number < self.count).then(|| Reg { slot: self.first.slot + each * number, ..self.first })
    }
}
