//! Where the user wrote an instruction, of what `.loc` says (PTX ISA §11.5.2).

use std::collections::HashMap;

use crate::parse::ast::{Operand, Statement};

/// File, line and column of a `.loc`.
pub(super) type Place = (u32, u32, u32);

/// The places of one function, in the order of its text.
#[derive(Default)]
pub(super) struct Places<'a> {
    /// Where each place was last said to be inlined.
    inlined: HashMap<Place, Option<Place>>,
    /// The function's file, where nothing is said to be inlined: clang 19 and nvcc's debug builds inline headers without a word.
    own_file: Option<u32>,
    /// The last line in that file.
    own_line: Option<u32>,
    /// That line where control first went to a label.
    at_label: HashMap<&'a str, u32>,
    /// Control does not run from the last instruction into the next.
    ended: bool,
}

impl<'a> Places<'a> {
    pub(super) fn new(body: &[(u32, Statement<'a>)]) -> Places<'a> {
        let mut list = Places::default();
        let (mut last, mut at_return) = (None, None);
        for (_, statement) in body {
            match statement {
                Statement::Location { inlined_at: Some(_), .. } => return list,
                Statement::Location { here, .. } => last = Some(here.0),
                Statement::Instruction(inst) if inst.mnemonic.starts_with("ret") => at_return = last,
                _ => {}
            }
        }
        // A function returns in its own file, whatever its first line was inlined from.
        list.own_file = at_return.or(last);
        list.own_line = body.iter().find_map(|(_, statement)| match statement {
            Statement::Location { here: (file, line, _), .. }
                if Some(*file) == list.own_file && *line > 0 =>
            {
                Some(*line)
            }
            _ => None,
        });
        list
    }

    /// Takes a `.loc`; file and line of what follows, and the lines of that file at which it was inlined, from the inside out.
    ///
    /// Of the calls that it was inlined through, that is the innermost in the file of the outermost: what a header holds is not
    /// what the user can mend. Where nothing tells the calls, it is the line of the function's file before, by which control came.
    pub(super) fn locate(&mut self, here: Place, inlined_at: Option<Place>) -> (u32, u32, Vec<u32>) {
        if let Some(own) = self.own_file {
            if here.0 == own {
                self.own_line = Some(here.1);
            }
            return (own, self.own_line.unwrap_or(here.1), Vec::new());
        }
        self.inlined.insert(here, inlined_at);
        let mut chain = vec![here];
        while let Some(Some(outer)) = self.inlined.get(&chain[chain.len() - 1])
            && chain.len() < 64
            && !chain.contains(outer)
        {
            chain.push(*outer);
        }
        let file = chain[chain.len() - 1].0;
        let mut own = chain.iter().filter(|place| place.0 == file).map(|place| place.1);
        (file, own.next().unwrap_or(here.1), own.collect())
    }

    /// Control comes to a label.
    pub(super) fn label(&mut self, name: &str) {
        if std::mem::take(&mut self.ended) && self.at_label.contains_key(name) {
            self.own_line = self.at_label.get(name).copied();
        }
    }

    /// An instruction: a branch takes its line to the label.
    pub(super) fn instruction(&mut self, mnemonic: &str, guarded: bool, operands: &[Operand<'a>]) {
        let name = mnemonic.split('.').next().unwrap_or_default();
        if let (Some(line), "bra", [Operand::Name(label), ..]) = (self.own_line, name, operands) {
            self.at_label.entry(label).or_insert(line);
        }
        self.ended = !guarded && matches!(name, "bra" | "brx" | "ret" | "exit" | "trap");
    }
}
