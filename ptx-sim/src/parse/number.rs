//! Constants (PTX ISA §4.5) and the sizes of the fundamental types (§5.2).

use super::Parser;
use super::ast::Operand;
use crate::error::LoadError;

/// Bytes of `.b32`, `.f16`, …; `None` if it is not a type that memory can hold.
pub(crate) fn type_bytes(word: &str) -> Option<u32> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        _ => return None,
    })
}

/// The bit pattern of a constant in an initialiser.
pub(super) fn init_bits(value: &Operand<'_>) -> u64 {
    match value {
        Operand::Int(value) => *value as u64,
        Operand::Float { single: Some(bits), .. } => u64::from(*bits),
        Operand::Float { value, single: None } => value.to_bits(),
        _ => 0,
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
    if lower.contains('.') {
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

impl<'a> Parser<'_, 'a> {
    /// A constant with an optional sign.
    pub(super) fn constant(&mut self) -> Result<Operand<'a>, LoadError> {
        let negative = self.take(b'-');
        let word = self.word("a constant")?;
        let value = literal(word).ok_or_else(|| {
            self.at -= 1;
            self.expected("a constant")
        })?;
        Ok(match value {
            Operand::Int(value) if negative => Operand::Int(value.wrapping_neg()),
            Operand::Float { value, single } if negative => {
                Operand::Float { value: -value, single: single.map(|b| b ^ 0x8000_0000) }
            }
            value => value,
        })
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
