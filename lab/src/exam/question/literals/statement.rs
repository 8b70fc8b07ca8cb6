//! Statements of PTX, as far as literals and registers are concerned.

/// A number in the code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::exam::question) enum Literal {
    Integer(i64),
    Float(f32),
}

/// An operation, the registers that it writes and what it reads.
pub(super) struct Statement<'a> {
    pub(super) op: &'a str,
    pub(super) to: Vec<&'a str>,
    pub(super) from: Vec<&'a str>,
}

impl<'a> Statement<'a> {
    /// Whether it takes one integer of 32 bits from memory or from another thread.
    pub(super) fn reads_integer(&self) -> bool {
        let op = self.op;
        let is_load =
            ["ld.global", "ld.shared"].iter().any(|load| op.starts_with(load)) || op.starts_with("shfl");
        let is_word = [".b32", ".u32", ".s32"].iter().any(|word| op.ends_with(word));
        is_load && is_word && self.to.len() == 1
    }

    /// `None` of labels, declarations and braces.
    pub(super) fn read(text: &'a str) -> Option<Statement<'a>> {
        let mut text = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '{' | '}'));
        if let Some((label, behind)) = text.split_once(':')
            && label.chars().all(|c| c.is_alphanumeric() || matches!(c, '$' | '_'))
        {
            text = behind.trim_start();
        }
        if let Some(guarded) = text.strip_prefix('@') {
            text = guarded.split_once(char::is_whitespace)?.1.trim_start();
        }
        let (op, operands) = text.split_once(char::is_whitespace)?;
        if !op.starts_with(|c: char| c.is_ascii_lowercase()) {
            return None;
        }
        let operands = operands.trim();
        // A vector, or what a store writes to.
        let ends = if operands.starts_with('{') { '}' } else { ',' };
        let (first, rest) = operands.split_once(ends).unwrap_or((operands, ""));
        let (to, from) = if first.starts_with('[') { ("", operands) } else { (first, rest) };
        Some(Statement { op, to: names(to), from: names(from) })
    }
}

/// Registers and numbers of operands.
pub(in crate::exam::question) fn names(operands: &str) -> Vec<&str> {
    let is_between =
        |c: char| c.is_whitespace() || matches!(c, ',' | '{' | '}' | '[' | ']' | '|' | '!' | '(' | ')');
    operands.split(is_between).filter(|name| !name.is_empty() && *name != "_").collect()
}

/// A number as PTX writes it.
pub(in crate::exam::question) fn literal(operand: &str) -> Option<Literal> {
    if let Some(bits) = operand.strip_prefix("0f").or(operand.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(|bits| Literal::Float(f32::from_bits(bits)));
    }
    let (sign, digits) = operand.strip_prefix('-').map_or((1, operand), |digits| (-1, digits));
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let number = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    number.ok().map(|number| Literal::Integer(sign * number))
}
