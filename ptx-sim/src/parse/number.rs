//! Constants (PTX ISA §4.5) and the sizes of the fundamental types (§5.2).

use super::Parser;
use super::ast::{InitValue, Operand};
use crate::error::LoadError;

/// Bytes of `.b32`, `.f16`, …; `None` if it is not a type that memory can hold.
pub(crate) fn type_bytes(word: &str) -> Option<u32> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".tf32" | ".u16x2" | ".s16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" | ".f32x2" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// A constant in an initialiser. ptxas keeps the bits of the `0f` form in a variable of any type, and rounds what else has a point.
pub(super) fn init_value<'a>(value: &Operand<'_>) -> InitValue<'a> {
    match value {
        Operand::Int(value) => InitValue::Bits(*value as u64),
        Operand::Float { single: Some(bits), .. } => InitValue::Bits(u64::from(*bits)),
        Operand::Float { value, single: None } => InitValue::Float(*value),
        _ => InitValue::Bits(0),
    }
}

/// A word that starts with a digit, as a constant.
fn literal<'a>(word: &str) -> Option<Operand<'a>> {
    let lower = word.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
        let bits = u32::from_str_radix(hex, 16).ok()?;
        return Some(Operand::Float { value: f32::from_bits(bits).into(), single: Some(bits) });
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
        let bits = u64::from_str_radix(hex, 16).ok()?;
        return Some(Operand::Float { value: f64::from_bits(bits), single: None });
    }
    let exponent = !lower.starts_with("0x") && lower.contains('e');
    if lower.contains('.') || exponent {
        return Some(Operand::Float { value: lower.parse().ok()?, single: None });
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(binary) = digits.strip_prefix("0b") {
        u64::from_str_radix(binary, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    Some(Operand::Int(value.ok()? as i64))
}

fn apply(operator: &str, a: i64, b: i64) -> Option<i64> {
    Some(match operator {
        "||" => i64::from(a != 0 || b != 0),
        "&&" => i64::from(a != 0 && b != 0),
        "<<" => a.wrapping_shl(b as u32),
        ">>" => a.wrapping_shr(b as u32),
        "==" => i64::from(a == b),
        "!=" => i64::from(a != b),
        "<=" => i64::from(a <= b),
        ">=" => i64::from(a >= b),
        "<" => i64::from(a < b),
        ">" => i64::from(a > b),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" => a.checked_div(b)?,
        _ => a.checked_rem(b)?,
    })
}

impl<'a> Parser<'_, 'a> {
    /// A constant expression (PTX ISA §4.5.4–4.5.5).
    pub(super) fn constant(&mut self) -> Result<Operand<'a>, LoadError> {
        self.conditional(0)
    }

    fn conditional(&mut self, depth: u32) -> Result<Operand<'a>, LoadError> {
        let value = self.binary(0, depth)?;
        if !self.take(b'?') {
            return Ok(value);
        }
        let yes = self.conditional(depth + 1)?;
        self.expect(b':', "`:`")?;
        let no = self.conditional(depth + 1)?;
        Ok(if value == Operand::Int(0) { no } else { yes })
    }

    /// Operators that bind at least as tightly as `least`.
    fn binary(&mut self, least: u8, depth: u32) -> Result<Operand<'a>, LoadError> {
        let mut left = self.unary(depth)?;
        while let Some((operator, strength, length)) = self.operator().filter(|o| o.1 >= least) {
            self.at += length;
            let right = self.binary(strength + 1, depth + 1)?;
            left = match (left, right) {
                (Operand::Int(a), Operand::Int(b)) => {
                    Operand::Int(apply(operator, a, b).ok_or_else(|| self.expected("a constant"))?)
                }
                (Operand::Float { value: a, .. }, Operand::Float { value: b, .. }) => {
                    let value = match operator {
                        "+" => a + b,
                        "-" => a - b,
                        "*" => a * b,
                        "/" => a / b,
                        _ => return Err(self.expected("an operator of floating-point constants")),
                    };
                    Operand::Float { value, single: None }
                }
                _ => return Err(self.expected("constants of one kind")),
            };
        }
        Ok(left)
    }

    /// The operator that comes next, how tightly it binds, and its tokens.
    fn operator(&self) -> Option<(&'static str, u8, usize)> {
        const OPERATORS: [(&str, u8); 18] = [
            ("||", 0),
            ("&&", 1),
            ("<<", 7),
            (">>", 7),
            ("==", 5),
            ("!=", 5),
            ("<=", 6),
            (">=", 6),
            ("|", 2),
            ("^", 3),
            ("&", 4),
            ("<", 6),
            (">", 6),
            ("+", 8),
            ("-", 8),
            ("*", 9),
            ("/", 9),
            ("%", 9),
        ];
        let punct = |at: usize| match self.tokens.get(self.at + at).map(|t| t.kind) {
            Some(super::lex::Kind::Punct(byte)) => Some(byte),
            _ => None,
        };
        let found = OPERATORS
            .iter()
            .find(|(text, _)| text.bytes().enumerate().all(|(at, byte)| punct(at) == Some(byte)))?;
        Some((found.0, found.1, found.0.len()))
    }

    fn unary(&mut self, depth: u32) -> Result<Operand<'a>, LoadError> {
        if depth > 32 {
            return Err(self.expected("a simpler constant"));
        }
        if self.take(b'+') {
            return self.unary(depth + 1);
        }
        if self.take(b'-') {
            return Ok(match self.unary(depth + 1)? {
                Operand::Int(value) => Operand::Int(value.wrapping_neg()),
                Operand::Float { value, single } => {
                    Operand::Float { value: -value, single: single.map(|b| b ^ 0x8000_0000) }
                }
                value => value,
            });
        }
        if self.peek(b'~') || self.peek(b'!') {
            let complement = self.take(b'~') || !self.take(b'!');
            let Operand::Int(value) = self.unary(depth + 1)? else {
                return Err(self.expected("an integer"));
            };
            return Ok(Operand::Int(if complement { !value } else { i64::from(value == 0) }));
        }
        if self.take(b'(') {
            // A cast changes nothing that 64 bits do not hold.
            if self.tokens.get(self.at).is_some_and(|t| t.text == ".s64" || t.text == ".u64") {
                self.at += 1;
                self.expect(b')', "`)`")?;
                return self.unary(depth + 1);
            }
            let value = self.conditional(depth + 1)?;
            self.expect(b')', "`)`")?;
            return Ok(value);
        }
        let word = self.word("a constant")?;
        literal(word).ok_or_else(|| {
            self.at -= 1;
            self.expected("a constant")
        })
    }

    /// An integer by itself, whatever follows it.
    pub(super) fn plain_integer(&mut self) -> Result<i64, LoadError> {
        match self.unary(0)? {
            Operand::Int(value) => Ok(value),
            _ => Err(self.expected("an integer")),
        }
    }

    /// An integer constant with an optional sign.
    pub(super) fn integer(&mut self) -> Result<i64, LoadError> {
        match self.constant()? {
            Operand::Int(value) => Ok(value),
            _ => {
                self.at -= 1;
                Err(self.expected("an integer"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_in_every_base_and_both_float_forms() {
        assert_eq!(literal("0x7701U"), Some(Operand::Int(0x7701)));
        assert_eq!(literal("0b101"), Some(Operand::Int(5)));
        assert_eq!(literal("017"), Some(Operand::Int(15)));
        assert_eq!(literal("0"), Some(Operand::Int(0)));
        assert_eq!(literal("18446744073709551615"), Some(Operand::Int(-1)));
        assert_eq!(literal("0f3F800000"), Some(Operand::Float { value: 1.0, single: Some(0x3f80_0000) }));
        assert_eq!(literal("0dBFF0000000000000"), Some(Operand::Float { value: -1.0, single: None }));
        assert_eq!(literal("1.5"), Some(Operand::Float { value: 1.5, single: None }));
        assert_eq!(literal("9x"), None);
        assert_eq!(literal("99999999999999999999"), None);
    }
}
