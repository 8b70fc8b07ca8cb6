//! Function bodies: declarations, labels and instructions.

use super::ast::{Instruction, Operand, RegWidth, Space, Statement, Variable};
use super::lex::Kind;
use super::{Parser, number, unsupported};
use crate::error::LoadError;

/// Registers that one function may declare; a damaged count must not exhaust memory.
const MAX_REGISTERS: i64 = 1 << 20;

type Body<'a> = Vec<(u32, Statement<'a>)>;

impl<'a> Parser<'_, 'a> {
    /// From `{` to its `}`. The outer braces are not part of the list.
    pub(super) fn body(&mut self) -> Result<Body<'a>, LoadError> {
        let opened = self.line();
        self.expect(b'{', "`{`")?;
        let (mut list, mut depth) = (Vec::new(), 1u32);
        while depth > 0 {
            let line = self.line();
            if self.at >= self.tokens.len() {
                return Err(LoadError::Unterminated { line: opened, what: "function body" });
            } else if self.take(b'{') {
                depth += 1;
                list.push((line, Statement::Open));
            } else if self.take(b'}') {
                depth -= 1;
                if depth > 0 {
                    list.push((line, Statement::Close));
                }
            } else if !self.take(b';') {
                self.statement(&mut list)?;
            }
        }
        Ok(list)
    }

    fn statement(&mut self, list: &mut Body<'a>) -> Result<(), LoadError> {
        let line = self.line();
        let guard = if self.take(b'@') {
            let negated = self.take(b'!');
            Some((self.word("a predicate")?, negated))
        } else {
            None
        };
        let word = self.word("an instruction")?;
        if guard.is_none() && self.take(b':') {
            return self.labelled(word, line, list);
        }
        if word.starts_with('.') {
            return self.directive(word, line, list);
        }
        let mnemonic = self.qualified(word);
        let operands = self.operands()?;
        list.push((line, Statement::Instruction(Instruction { guard, mnemonic, operands })));
        Ok(())
    }

    /// The mnemonic that starts with `first`: qualifiers may stand apart from each other.
    fn qualified(&mut self, first: &'a str) -> &'a str {
        let start = first.as_ptr() as usize - self.source.as_ptr() as usize;
        let mut end = start + first.len();
        while let Some(token) = self.tokens.get(self.at).filter(|t| t.text.starts_with('.')) {
            end = token.text.as_ptr() as usize - self.source.as_ptr() as usize + token.text.len();
            self.at += 1;
        }
        &self.source[start..end]
    }

    fn labelled(&mut self, name: &'a str, line: u32, list: &mut Body<'a>) -> Result<(), LoadError> {
        match self.tokens.get(self.at).map(|t| t.text) {
            Some(".branchtargets") => {
                self.at += 1;
                let mut labels = vec![self.word("a label")?];
                while self.take(b',') {
                    labels.push(self.word("a label")?);
                }
                self.expect(b';', "`;`")?;
                list.push((line, Statement::Targets { name, labels }));
            }
            Some(".callprototype" | ".calltargets") => {
                self.skip_past(b';')?;
                list.push((line, Statement::Prototype));
            }
            _ => list.push((line, Statement::Label(name))),
        }
        Ok(())
    }

    fn directive(&mut self, word: &'a str, line: u32, list: &mut Body<'a>) -> Result<(), LoadError> {
        let space = match word {
            ".reg" => return self.registers(list),
            ".loc" => return self.location(list),
            ".pragma" => return self.skip_past(b';'),
            ".local" => Space::Local,
            ".shared" => Space::Shared,
            ".param" => Space::Param,
            _ => return Err(unsupported(line, word)),
        };
        let mut variables: Vec<Variable<'a>> = Vec::new();
        self.variables(space, false, &mut variables)?;
        list.extend(variables.into_iter().map(|v| (line, Statement::Variable(v))));
        Ok(())
    }

    fn registers(&mut self, list: &mut Body<'a>) -> Result<(), LoadError> {
        let line = self.line();
        let (width, lanes) = self.register_type()?;
        loop {
            let name = self.word("a register name")?;
            let count = if self.take(b'<') {
                let value = self.plain_integer()?;
                if !(0..=MAX_REGISTERS).contains(&value) {
                    let (value, limit) = (value as u64, MAX_REGISTERS as u64);
                    return Err(LoadError::Range { line, what: "register count", value, limit });
                }
                self.expect(b'>', "`>`")?;
                Some(value as u32)
            } else {
                None
            };
            list.push((line, Statement::Register { name, count, width, lanes }));
            if !self.take(b',') {
                return self.expect(b';', "`;`");
            }
        }
    }

    /// The type of registers, and how many of them a vector has.
    pub(super) fn register_type(&mut self) -> Result<(RegWidth, u32), LoadError> {
        let line = self.line();
        let mut lanes = 1;
        loop {
            match self.word("a register type")? {
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".pred" if lanes == 1 => return Ok((RegWidth::Pred, 1)),
                kind => {
                    let bytes = number::type_bytes(kind).ok_or_else(|| unsupported(line, kind))?;
                    return Ok((RegWidth::Bits(bytes as u8 * 8), lanes));
                }
            }
        }
    }

    /// `.loc file line column{, function_name label{+n}, inlined_at file line column}` (PTX ISA §11.5.2).
    fn location(&mut self, list: &mut Body<'a>) -> Result<(), LoadError> {
        let at_line = self.tokens[self.at - 1].line;
        let mut place = || -> Result<(u32, u32, u32), LoadError> {
            let (file, line) = (self.plain_integer()?, self.plain_integer()?);
            Ok((file as u32, line as u32, self.plain_integer()? as u32))
        };
        let (here, mut inlined_at) = (place()?, None);
        while self.take(b',') {
            match self.word("`function_name` or `inlined_at`")? {
                "inlined_at" => {
                    let (file, line) = (self.plain_integer()?, self.plain_integer()?);
                    inlined_at = Some((file as u32, line as u32, self.plain_integer()? as u32));
                }
                _ => {
                    self.word("a label")?;
                    if self.take(b'+') {
                        self.plain_integer()?;
                    }
                }
            }
        }
        // What else a compiler may say stands on the same line.
        while self.tokens.get(self.at).is_some_and(|t| t.line == at_line && t.kind == Kind::Word) {
            self.at += 1;
        }
        list.push((at_line, Statement::Location { here, inlined_at }));
        Ok(())
    }

    /// Operands up to and with the semicolon.
    fn operands(&mut self) -> Result<Vec<Operand<'a>>, LoadError> {
        let mut list = Vec::new();
        if self.take(b';') {
            return Ok(list);
        }
        loop {
            list.push(self.operand(0)?);
            if self.take(b';') {
                return Ok(list);
            }
            self.expect(b',', "`,` or `;`")?;
        }
    }

    fn operand(&mut self, depth: u32) -> Result<Operand<'a>, LoadError> {
        if depth > 3 {
            return Err(self.expected("a simpler operand"));
        }
        if self.take(b'{') {
            return Ok(Operand::Vector(self.list_until(b'}', depth)?));
        }
        if self.peek(b'(') && depth == 0 && !self.at_parenthesised_constant() {
            self.at += 1;
            return Ok(Operand::List(self.list_until(b')', depth)?));
        }
        if self.take(b'[') {
            let mut address = self.address()?;
            if self.take(b',') {
                self.expect(b'{', "`{`")?;
                let coordinates = self.list_until(b'}', depth)?;
                address = Operand::TensorAddress { address: Box::new(address), coordinates };
            }
            self.expect(b']', "`]`")?;
            return Ok(address);
        }
        if self.take(b'!') {
            return Ok(Operand::Not(self.word("a predicate")?));
        }
        if self.peek(b'-') && self.at_name(1) {
            self.at += 1;
            return Ok(Operand::Negative(self.word("an operand")?));
        }
        let digit = self.tokens.get(self.at).is_some_and(|t| {
            t.kind == Kind::Word && t.text.as_bytes()[0].is_ascii_digit()
                || matches!(t.kind, Kind::Punct(b'-' | b'~' | b'(' | b'+'))
        });
        if digit {
            return self.constant();
        }
        let name = self.word("an operand")?;
        if self.take(b'|') {
            return Ok(Operand::Pair(name, self.word("a predicate")?));
        }
        if self.take(b'+') || self.peek(b'-') {
            return Ok(Operand::NameOffset(name, self.integer()?));
        }
        Ok(Operand::Name(name))
    }

    /// Whether a name, not a constant, stands so many tokens on.
    fn at_name(&self, ahead: usize) -> bool {
        let token = self.tokens.get(self.at + ahead);
        token.is_some_and(|t| {
            t.kind == Kind::Word
                && !t.text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && t.text != "WARP_SZ"
        })
    }

    /// Whether a parenthesis opens a constant expression, not the parameters of a call.
    fn at_parenthesised_constant(&self) -> bool {
        let next = self.tokens[self.at..].iter().find(|t| t.kind != Kind::Punct(b'('));
        next.is_some_and(|t| {
            t.kind == Kind::Word && (t.text.as_bytes()[0].is_ascii_digit() || t.text.starts_with('.'))
                || matches!(t.kind, Kind::Punct(b'-' | b'~' | b'!'))
        })
    }

    fn list_until(&mut self, end: u8, depth: u32) -> Result<Vec<Operand<'a>>, LoadError> {
        let mut list = Vec::new();
        while !self.take(end) {
            list.push(self.operand(depth + 1)?);
            if !self.take(b',') && !self.peek(end) {
                return Err(self.expected("`,` or the end of the list"));
            }
        }
        Ok(list)
    }

    fn address(&mut self) -> Result<Operand<'a>, LoadError> {
        if self.at_digit() {
            return Ok(Operand::Address { base: None, offset: self.integer()? });
        }
        let base = Some(self.word("an address")?);
        let signed = self.take(b'+') || self.peek(b'-');
        let offset = if signed { self.integer()? } else { 0 };
        Ok(Operand::Address { base, offset })
    }
}
