//! Names of a function body: registers, variables and labels in nested blocks (PTX ISA §4.4, §5.1).

use std::collections::HashMap;

use crate::op::{Pc, Reg};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Symbol<'a> {
    Reg(Reg),
    /// A vector of so many registers, by its first.
    Vector(Reg, u32),
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

impl Symbol<'_> {
    /// A register, or a vector of several.
    pub(super) fn of_registers(first: Reg, lanes: u32) -> Self {
        if lanes > 1 { Symbol::Vector(first, lanes) } else { Symbol::Reg(first) }
    }
}

/// Registers, or vectors of `lanes`, declared by the `<n>` form.
struct Range<'a> {
    prefix: &'a str,
    count: u32,
    first: Reg,
    lanes: u32,
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
    /// The elements of whole vectors that the instruction names, which `ELEMENTS` are called.
    elements: Vec<Reg>,
}

/// Names that no register can have.
const ELEMENTS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

impl<'a> Scopes<'a> {
    pub(super) fn new() -> Self {
        Scopes { all: vec![Scope::default()], current: 0, elements: Vec::new() }
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

    pub(super) fn declare_range(&mut self, prefix: &'a str, count: u32, first: Reg, lanes: u32) {
        self.all[self.current].ranges.push(Range { prefix, count, first, lanes });
    }

    /// Declares a label; false if the block has it already.
    pub(super) fn label(&mut self, name: &'a str, pc: Pc) -> bool {
        self.all[self.current].labels.insert(name, pc).is_none()
    }

    /// Forgets the elements of the instruction before.
    pub(super) fn forget_elements(&mut self) {
        self.elements.clear();
    }

    /// Names for the elements of a vector that an instruction takes as a whole.
    pub(super) fn elements(&mut self, first: Reg, lanes: u32) -> Vec<&'static str> {
        let from = self.elements.len();
        self.elements.extend((0..lanes).map(|at| element(first, at)));
        ELEMENTS[ELEMENTS.len().min(from)..].iter().copied().take(lanes as usize).collect()
    }

    /// The innermost meaning of a name.
    pub(super) fn find(&self, name: &str) -> Option<Symbol<'a>> {
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            return self.elements.get(name.parse::<usize>().ok()?).copied().map(Symbol::Reg);
        }
        if let Some((vector, part)) = name.split_once('.')
            && !part.contains('.')
            && let Some(Symbol::Vector(first, lanes)) = self.find(vector)
        {
            let at = ["x", "y", "z", "w"].iter().zip(["r", "g", "b", "a"]);
            let at = at.take(lanes as usize).position(|(axis, colour)| part == *axis || part == colour)?;
            return Some(Symbol::Reg(element(first, at as u32)));
        }
        let number_at = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let mut at = self.current;
        loop {
            let scope = &self.all[at];
            if let Some(symbol) = scope.names.get(name) {
                return Some(symbol.clone());
            }
            if let Some(symbol) = scope.ranges.iter().find_map(|r| r.symbol(name, number_at)) {
                return Some(symbol);
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

/// A register of several in a row.
pub(super) fn element(first: Reg, at: u32) -> Reg {
    let each = if first.bits == 128 { 2 } else { 1 };
    Reg { slot: first.slot + each * at, ..first }
}

impl Range<'_> {
    /// A prefix may end in digits itself, so every split at or after the last letter is tried.
    fn symbol<'s>(&self, name: &str, number_at: usize) -> Option<Symbol<'s>> {
        let digits = name.strip_prefix(self.prefix)?;
        if self.prefix.len() < number_at || digits.is_empty() || digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        let number: u32 = digits.parse().ok()?;
        let first = |lanes| Symbol::of_registers(element(self.first, number * lanes), lanes);
        (number < self.count).then(|| first(self.lanes))
    }
}
