//! Instructions of sm_90 and the targets that have them.

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{MbarrierAction, MbarrierOp, Op, PhaseOperand, Space};
use crate::parse::ast::Operand;
use crate::table::family::Family;

/// The number of `sm_90a`, and whether it has features of that architecture alone.
fn architecture(target: &str) -> Option<(u32, bool)> {
    let name = target.strip_prefix("sm_")?;
    let number = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    Some((number.parse().ok()?, name.ends_with('a')))
}

/// The space of a capture: empty for a generic address. The only CTA of a cluster has its own addresses there.
fn shared_or_generic(capture: &str) -> Space {
    if capture.is_empty() { Space::Generic } else { Space::Shared }
}

impl<'a> Builder<'_, 'a> {
    /// Refuses what the module's target does not have.
    pub(super) fn check_target(&self, needs: &'static str) -> Result<(), LoadError> {
        let target = self.names.target;
        let enough = match (architecture(needs), architecture(target)) {
            (None, _) => true,
            (_, None) => false,
            (Some((_, true)), _) => needs == target,
            (Some((least, false)), Some((number, _))) => number >= least,
        };
        if enough {
            return Ok(());
        }
        let instruction = self.mnemonic.chars().take(120).collect();
        Err(LoadError::Target { line: self.line, instruction, needs, target: target.to_owned() })
    }

    /// `mbarrier.…`; the space is the last capture.
    pub(super) fn mbarrier(
        &mut self,
        family: Family,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let space = shared_or_generic(captures[captures.len() - 1]);
        let arrives = matches!(family, Family::MbarrierArrive | Family::MbarrierArriveExpect);
        let has_result = arrives || family == Family::MbarrierWait;
        let (least, most) = match family {
            Family::MbarrierInvalidate => (1, 1),
            Family::MbarrierArrive => (2, 3),
            Family::MbarrierArriveExpect => (3, 3),
            // Only try_wait takes a time, which is a hint.
            Family::MbarrierWait => (3, if self.mnemonic.contains("try_wait") { 4 } else { 3 }),
            _ => (2, 2),
        };
        self.count_between(operands, least, most)?;
        let at = usize::from(has_result);
        let addr = self.address(&operands[at], at + 1)?;
        let state = match &operands[0] {
            _ if !arrives => None,
            Operand::Name("_") => None,
            operand => Some(self.any_result(operand, 1, 64)?),
        };
        let action = match family {
            Family::MbarrierInvalidate => MbarrierAction::Invalidate,
            Family::MbarrierArrive => {
                let count = match operands.get(2) {
                    Some(count) => Some(self.word(count, 3)?),
                    None => None,
                };
                MbarrierAction::Arrive { count, bytes: None, state }
            }
            Family::MbarrierArriveExpect => {
                MbarrierAction::Arrive { count: None, bytes: Some(self.word(&operands[2], 3)?), state }
            }
            Family::MbarrierWait => {
                let phase = if captures[0] == "parity" {
                    PhaseOperand::Parity(self.word(&operands[2], 3)?)
                } else {
                    PhaseOperand::State(self.source(&operands[2], 3, data_shape(64))?)
                };
                if let Some(hint) = operands.get(3) {
                    self.word(hint, 4)?;
                }
                let Operand::Name(name) = operands[0] else {
                    return Err(self.operand_error(1, "a predicate"));
                };
                MbarrierAction::Wait { result: self.predicate(name, 1)?, phase }
            }
            family => {
                let value = self.word(&operands[1], 2)?;
                match family {
                    Family::MbarrierInit => MbarrierAction::Init { count: value },
                    Family::MbarrierExpect => MbarrierAction::ExpectTx(value),
                    _ => MbarrierAction::CompleteTx(value),
                }
            }
        };
        self.emit(Op::Mbarrier(Box::new(MbarrierOp { space, addr, action })));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_number_and_perhaps_an_a() {
        assert_eq!(architecture("sm_90a"), Some((90, true)));
        assert_eq!(architecture("sm_100f"), Some((100, false)));
        assert_eq!(architecture("sm_80"), Some((80, false)));
        assert_eq!(architecture(""), None);
    }
}
