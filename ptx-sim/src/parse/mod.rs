//! PTX text to statements: the grammar of PTX ISA chapters 4, 5 and 11, names unresolved.

pub(crate) mod ast;
mod body;
mod lex;
mod number;
mod trim;

pub(crate) use trim::only;

use crate::error::LoadError;
use ast::{Bounds, Function, InitValue, Module, RegWidth, Space, Variable};
use lex::{Kind, Token};

/// Largest variable that is accepted; a damaged length must not exhaust memory.
const MAX_VARIABLE_BYTES: u64 = 1 << 26;

/// Parses a whole module.
pub(crate) fn parse(source: &str) -> Result<Module<'_>, LoadError> {
    let tokens = lex::tokens(source)?;
    let mut parser = Parser { source, tokens: &tokens, at: 0 };
    let mut module = Module::default();
    while parser.at < tokens.len() {
        parser.item(&mut module)?;
    }
    Ok(module)
}

/// A cursor over the tokens.
struct Parser<'t, 'a> {
    source: &'a str,
    tokens: &'t [Token<'a>],
    at: usize,
}

/// What stands before the name of a module-level declaration.
#[derive(Default)]
struct Linkage {
    is_extern: bool,
}

impl<'a> Parser<'_, 'a> {
    fn item(&mut self, module: &mut Module<'a>) -> Result<(), LoadError> {
        let mut linkage = Linkage::default();
        loop {
            let line = self.line();
            let word = self.word("a directive")?;
            match word {
                // Marks an end for the debug sections.
                _ if self.take(b':') => {}
                ".version" | ".address_size" | ".abi_preserve" | ".abi_preserve_control" => {
                    self.word("a number")?;
                }
                ".target" => {
                    module.target = self.word("a target")?;
                    while self.take(b',') {
                        module.is_debug |= self.word("a target")? == "debug";
                    }
                }
                ".file" => {
                    self.file(module)?;
                }
                ".section" => self.section()?,
                ".pragma" => self.skip_past(b';')?,
                ".extern" => {
                    linkage.is_extern = true;
                    continue;
                }
                ".visible" | ".weak" | ".common" => continue,
                ".alias" => {
                    let name = self.word("a function name")?;
                    self.expect(b',', "`,`")?;
                    module.aliases.push((name, self.word("a function name")?));
                    self.expect(b';', "`;`")?;
                }
                ".func" | ".entry" => {
                    let function = self.function(word == ".entry", line)?;
                    module.functions.push(function);
                }
                ".global" | ".const" | ".shared" => {
                    let space = match word {
                        ".global" => Space::Global,
                        ".const" => Space::Const,
                        _ => Space::Shared,
                    };
                    self.variables(space, linkage.is_extern, &mut module.variables)?;
                }
                _ => return Err(unsupported(line, word)),
            }
            return Ok(());
        }
    }

    fn file(&mut self, module: &mut Module<'a>) -> Result<(), LoadError> {
        let line = self.line();
        let number = self.integer()?;
        let name = self.tokens.get(self.at).filter(|t| t.kind == Kind::Text);
        let name = name.ok_or_else(|| self.expected("a file name"))?.text;
        self.at += 1;
        // Optional timestamp and size follow on the same line.
        while self.take(b',') {
            self.integer()?;
        }
        let number = u32::try_from(number).map_err(|_| LoadError::Range {
            line,
            what: "file number",
            value: number as u64,
            limit: u32::MAX.into(),
        })?;
        module.files.push((number, name));
        Ok(())
    }

    /// Debug sections hold nothing that executes.
    fn section(&mut self) -> Result<(), LoadError> {
        self.word("a section name")?;
        self.expect(b'{', "`{`")?;
        self.skip_past(b'}')
    }

    fn function(&mut self, is_entry: bool, line: u32) -> Result<Function<'a>, LoadError> {
        let returns = if !is_entry && self.peek(b'(') { self.parameters()? } else { Vec::new() };
        let name = self.word("a function name")?;
        let params = if self.peek(b'(') { self.parameters()? } else { Vec::new() };
        let bounds = self.performance_directives()?;
        let body = if self.take(b';') {
            None
        } else if self.peek(b'{') {
            Some(self.body()?)
        } else {
            // A directive such as .noreturn may end a declaration without a semicolon only at `;` or `{`.
            return Err(self.expected("`{` or `;`"));
        };
        Ok(Function { name, is_entry, returns, params, body, bounds, line })
    }

    /// `.maxntid`, `.reqntid`, `.minnctapersm`, `.maxnreg`, `.noreturn`, … (PTX ISA §11.4).
    fn performance_directives(&mut self) -> Result<Bounds, LoadError> {
        let mut bounds = Bounds::default();
        while let Some(token) = self.tokens.get(self.at).filter(|t| t.text.starts_with('.')) {
            self.at += 1;
            match token.text {
                ".maxntid" => {
                    let mut product = self.integer()?.unsigned_abs();
                    while self.take(b',') {
                        product = product.saturating_mul(self.integer()?.unsigned_abs());
                    }
                    bounds.max_threads = Some(product);
                }
                ".reqntid" => bounds.block = Some(self.extent()?),
                ".reqnctapercluster" => bounds.cluster = Some(self.extent()?),
                ".minnctapersm"
                | ".maxnreg"
                | ".maxnctapersm"
                | ".maxclusterrank"
                | ".abi_preserve"
                | ".abi_preserve_control" => {
                    self.integer()?;
                }
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" | ".unified" => {}
                ".attribute" => self.skip_past(b')')?,
                ".pragma" => self.skip_past(b';')?,
                other => return Err(unsupported(token.line, other)),
            }
        }
        Ok(bounds)
    }

    /// One to three lengths, the others 1.
    fn extent(&mut self) -> Result<[u32; 3], LoadError> {
        let mut size = [1; 3];
        for (at, size) in size.iter_mut().enumerate() {
            if at == 0 || self.take(b',') {
                *size = u32::try_from(self.integer()?).unwrap_or(0);
            }
        }
        Ok(size)
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>, LoadError> {
        self.expect(b'(', "`(`")?;
        let mut list = Vec::new();
        while !self.take(b')') {
            let line = self.line();
            match self.word("`.param`")? {
                ".param" => list.push(self.variable(Space::Param, false)?),
                ".reg" => list.push(self.register_parameter()?),
                other => return Err(unsupported(line, other)),
            }
            if !self.take(b',') && !self.peek(b')') {
                return Err(self.expected("`,` or `)`"));
            }
        }
        Ok(list)
    }

    /// A parameter of a function that is a register (PTX ISA §7.1).
    fn register_parameter(&mut self) -> Result<Variable<'a>, LoadError> {
        let (width, lanes) = self.register_type()?;
        let element = match width {
            RegWidth::Pred => 1,
            RegWidth::Bits(bits) => u32::from(bits) / 8,
        };
        let name = self.word("a name")?;
        let mut variable = self.variable_named(name, Space::Param, false, (None, element, lanes))?;
        variable.register = Some(width);
        Ok(variable)
    }

    /// One declaration statement after its state space, up to the semicolon.
    fn variables(
        &mut self,
        space: Space,
        is_extern: bool,
        list: &mut Vec<Variable<'a>>,
    ) -> Result<(), LoadError> {
        list.push(self.variable(space, is_extern)?);
        // What follows a comma has the space, the type and the alignment of the first.
        while self.take(b',') {
            let first = &list[list.len() - 1];
            let (align, element, lanes) = (first.align, first.element, first.lanes);
            let name = self.word("a name")?;
            list.push(self.variable_named(name, space, is_extern, (Some(align), element, lanes))?);
        }
        self.expect(b';', "`;`")
    }

    fn variable(&mut self, space: Space, is_extern: bool) -> Result<Variable<'a>, LoadError> {
        let line = self.line();
        let (mut align, mut element, mut lanes) = (None, None, 1u32);
        let name = loop {
            let word = self.word("a type or a name")?;
            match word {
                ".align" => align = Some(self.align()?),
                // `.ptr .space .align n` describes what a pointer parameter points to.
                ".ptr" => self.pointer_attributes()?,
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".v8" => lanes = 8,
                // Managed and unified memory is memory here.
                ".attribute" => self.skip_past(b')')?,
                ".texref" | ".surfref" | ".samplerref" => element = Some(8),
                _ if word.starts_with('.') => {
                    element = Some(number::type_bytes(word).ok_or_else(|| unsupported(line, word))?);
                }
                _ => break word,
            }
        };
        let element = element.ok_or_else(|| self.expected("a type"))?;
        self.variable_named(name, space, is_extern, (align, element, lanes))
    }

    /// What follows the name of a variable.
    fn variable_named(
        &mut self,
        name: &'a str,
        space: Space,
        is_extern: bool,
        (align, element, lanes): (Option<u32>, u32, u32),
    ) -> Result<Variable<'a>, LoadError> {
        let line = self.line();
        let (mut count, mut dimensions) = (u64::from(lanes), 0);
        while self.take(b'[') {
            dimensions += 1;
            let length = if self.peek(b']') { 0 } else { self.integer()?.unsigned_abs() };
            count = count.saturating_mul(length);
            self.expect(b']', "`]`")?;
        }
        let mut init = Vec::new();
        if self.take(b'=') {
            self.initializer(&mut init, 0)?;
            if dimensions > 0 && count == 0 {
                count = init.len() as u64;
            }
        }
        let bytes = count.saturating_mul(element.into());
        if bytes > MAX_VARIABLE_BYTES || init.len() as u64 > count {
            return Err(LoadError::Range {
                line,
                what: "variable size",
                value: bytes,
                limit: MAX_VARIABLE_BYTES,
            });
        }
        let align = align.unwrap_or(element * lanes);
        let register = None;
        Ok(Variable { space, name, align, element, lanes, bytes, is_extern, init, register, line })
    }

    fn align(&mut self) -> Result<u32, LoadError> {
        let line = self.line();
        let value = self.integer()?.unsigned_abs();
        if !value.is_power_of_two() || value > 1 << 16 {
            return Err(LoadError::Range { line, what: "alignment", value, limit: 1 << 16 });
        }
        Ok(value as u32)
    }

    fn pointer_attributes(&mut self) -> Result<(), LoadError> {
        while let Some(token) = self.tokens.get(self.at) {
            match token.text {
                ".global" | ".const" | ".shared" | ".local" => self.at += 1,
                ".align" => {
                    self.at += 1;
                    self.align()?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn initializer(&mut self, list: &mut Vec<InitValue<'a>>, depth: u32) -> Result<(), LoadError> {
        if depth > 8 {
            return Err(LoadError::Range {
                line: self.line(),
                what: "initialiser depth",
                value: 9,
                limit: 8,
            });
        }
        if self.take(b'{') {
            while !self.take(b'}') {
                self.initializer(list, depth + 1)?;
                if !self.take(b',') && !self.peek(b'}') {
                    return Err(self.expected("`,` or `}`"));
                }
            }
            return Ok(());
        }
        if self.peek(b'-') || self.peek(b'(') || self.peek(b'~') || self.at_digit() {
            let value = self.constant()?;
            let value = number::init_value(&value);
            if self.take(b'(') {
                // `0xff00(symbol)` is a byte of the address.
                let mut inner = Vec::new();
                self.initializer(&mut inner, depth + 1)?;
                self.expect(b')', "`)`")?;
                if let (Some(InitValue::Symbol { name, offset, .. }), InitValue::Bits(mask)) =
                    (inner.pop(), &value)
                {
                    list.push(InitValue::Symbol { name, offset, mask: Some(*mask) });
                }
                return Ok(());
            }
            list.push(value);
            return Ok(());
        }
        let mut name = self.word("a constant or a symbol")?;
        // `0xff(symbol)` is a byte of an address; `mask(symbol)` says the same with a name.
        if name == "generic" && self.take(b'(') {
            name = self.word("a symbol")?;
            let inside = if self.take(b'+') { self.integer()? } else { 0 };
            self.expect(b')', "`)`")?;
            let offset = inside + if self.take(b'+') { self.integer()? } else { 0 };
            list.push(InitValue::Symbol { name, offset, mask: None });
            return Ok(());
        }
        let offset = if self.take(b'+') || self.peek(b'-') { self.integer()? } else { 0 };
        list.push(InitValue::Symbol { name, offset, mask: None });
        Ok(())
    }

    // The cursor.

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    fn expected(&self, expected: &'static str) -> LoadError {
        let found = self.tokens.get(self.at).map_or("end of text", |t| t.text);
        LoadError::Expected { line: self.line(), expected, found: found.chars().take(80).collect() }
    }

    fn peek(&self, punct: u8) -> bool {
        self.tokens.get(self.at).is_some_and(|t| t.kind == Kind::Punct(punct))
    }

    /// Whether a number without a sign comes next.
    fn at_digit(&self) -> bool {
        let word = self.tokens.get(self.at).filter(|t| t.kind == Kind::Word);
        word.is_some_and(|t| t.text.starts_with(|c: char| c.is_ascii_digit()))
    }

    fn take(&mut self, punct: u8) -> bool {
        let found = self.peek(punct);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: u8, expected: &'static str) -> Result<(), LoadError> {
        if self.take(punct) { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, LoadError> {
        let token = self.tokens.get(self.at).filter(|t| t.kind == Kind::Word);
        let text = token.ok_or_else(|| self.expected(expected))?.text;
        self.at += 1;
        Ok(text)
    }

    fn skip_past(&mut self, punct: u8) -> Result<(), LoadError> {
        let line = self.line();
        while self.at < self.tokens.len() {
            self.at += 1;
            if self.tokens[self.at - 1].kind == Kind::Punct(punct) {
                return Ok(());
            }
        }
        Err(LoadError::Unterminated { line, what: "directive" })
    }
}

fn unsupported(line: u32, what: &str) -> LoadError {
    LoadError::Unsupported { line, instruction: what.chars().take(120).collect() }
}
