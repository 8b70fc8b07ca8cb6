//! Instructions of sm_90 and the targets that have them.

use super::Builder;
use super::operand::data_shape;
use crate::error::LoadError;
use crate::op::{
    Addr, AtomicOp, Bulk, BulkTo, CopyArrive, Inst, MbarrierAction, MbarrierOp, Op, PhaseOperand, Reg, Scope,
    Space, StoreAsync, TensorMapReplace,
};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slot};
use crate::table::family::Family;
use crate::table::pattern;

/// The number of `sm_90a`, and the letter of a target with features of its architecture (`a`) or family (`f`).
fn architecture(target: &str) -> Option<(u32, Option<char>)> {
    let name = target.strip_prefix("sm_")?;
    let number = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    Some((number.parse().ok()?, name[number.len()..].chars().next()))
}

/// Whether a target has what `needs` says: `sm_90` is there and on newer targets, `sm_90a` on that one alone, `sm_90a+` on
/// newer ones with a letter too, as architectures took such features over from the one before.
fn has(target: &str, needs: &str) -> bool {
    let Some((least, letter)) = architecture(needs.trim_end_matches('+')) else { return true };
    let Some((number, own)) = architecture(target) else { return false };
    match letter {
        None => number >= least,
        Some(_) if needs.ends_with('+') => number >= least && own.is_some(),
        Some(_) => needs == target,
    }
}

/// The space of a capture: empty for a generic address.
fn shared_or_generic(capture: &str) -> Space {
    match capture {
        "" => Space::Generic,
        "shared::cluster" => Space::Cluster,
        _ => Space::Shared,
    }
}

fn is_reduction(name: &str) -> bool {
    matches!(name, "add" | "min" | "max" | "and" | "or" | "xor" | "inc" | "dec")
}

fn reduction(name: &str) -> AtomicOp {
    match name {
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "inc" => AtomicOp::Increment,
        "dec" => AtomicOp::Decrement,
        _ => AtomicOp::Add,
    }
}

impl<'a> Builder<'_, 'a> {
    /// Refuses what the module's target does not have.
    pub(super) fn check_target(&self, needs: &'static str) -> Result<(), LoadError> {
        let target = self.names.target;
        if has(target, needs) {
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
                self.arrival((count, None), state)
            }
            Family::MbarrierArriveExpect => {
                let bytes = self.word(&operands[2], 3)?;
                self.arrival((None, Some(bytes)), state)
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
                MbarrierAction::Wait {
                    result: self.predicate(name, 1)?,
                    phase,
                    acquires: !captures.contains(&"relaxed"),
                }
            }
            family => {
                let value = self.word(&operands[1], 2)?;
                match family {
                    Family::MbarrierInit => MbarrierAction::Init { count: value },
                    Family::MbarrierExpect => {
                        self.announces(addr);
                        MbarrierAction::ExpectTx(value)
                    }
                    _ => MbarrierAction::CompleteTx(value),
                }
            }
        };
        self.emit(Op::Mbarrier(Box::new(MbarrierOp { space, addr, action })));
        Ok(())
    }

    /// `cuda::memcpy_async` is known by what follows its copy: bytes that are announced at the mbarrier without an arrival.
    fn announces(&mut self, addr: Addr) {
        if let Some(Inst { op: Op::Bulk(bulk), .. }) = self.program.insts.last_mut()
            && let BulkTo::Shared { mbarrier, .. } = &bulk.to
        {
            bulk.hides_proxies |= *mbarrier == addr;
        }
    }

    /// An arrival of so many threads, after so many more bytes are expected.
    fn arrival(&self, (count, bytes): (Option<Slot>, Option<Slot>), state: Option<Reg>) -> MbarrierAction {
        let says = |word: &str| pattern::parts(self.mnemonic).any(|part| part == word);
        MbarrierAction::Arrive {
            count,
            bytes,
            state,
            drops: says("arrive_drop"),
            keeps_open: says("noComplete"),
            releases: !says("relaxed"),
        }
    }

    /// `cp.async.bulk` and `cp.async.bulk.tensor`. Captures of a tensor's start with its rank; the last is the cache hint.
    pub(super) fn bulk(
        &mut self,
        family: Family,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let to_peer = matches!(family, Family::BulkPeer | Family::PeerReduce);
        let to_shared = to_peer || matches!(family, Family::BulkLoad | Family::TensorLoad);
        let is_tensor = matches!(family, Family::TensorLoad | Family::TensorStore | Family::TensorReduce);
        let hinted = captures.contains(&"L2::cache_hint");
        let multicast = captures.contains(&"multicast::cluster");
        let im2col = captures.contains(&"im2col");
        let offset_at = 2 + usize::from(to_shared) + usize::from(!is_tensor);
        let plain = offset_at + usize::from(im2col);
        let masked = captures.contains(&"cp_mask");
        let expected = plain + usize::from(multicast) + usize::from(hinted);
        self.count(operands, expected + usize::from(masked))?;
        if hinted {
            self.source(&operands[expected - 1], expected, data_shape(64))?;
        }
        let byte_mask = match operands.get(expected) {
            Some(mask) => Some(self.any_source(mask, expected + 1, 16)?.slot),
            None => None,
        };
        let mask = if multicast {
            // 16 bits, in a register of 16 or 32.
            Some(self.any_source(&operands[plain], plain + 1, 16)?.slot)
        } else {
            None
        };
        let reduces = match family {
            Family::BulkReduce | Family::PeerReduce => {
                let op = reduction(captures.iter().find(|c| is_reduction(c)).copied().unwrap_or("add"));
                Some((op, Some(super::lane::scalar(captures[captures.len() - 1]))))
            }
            Family::TensorReduce => Some((reduction(captures[1]), None)),
            _ => None,
        };
        let (shared_at, global_at) = if to_shared { (0, 1) } else { (1, 0) };
        let shared = self.address(&operands[shared_at], shared_at + 1)?;
        let mut coordinates = Vec::new();
        let global = match &operands[global_at] {
            Operand::TensorAddress { address, coordinates: list } if is_tensor => {
                if list.len() != usize::from(captures[0].as_bytes()[0] - b'0') {
                    return Err(self.operand_error(global_at + 1, "as many coordinates as the form has"));
                }
                for coordinate in list {
                    coordinates.push(self.word(coordinate, global_at + 1)?);
                }
                self.address(address, global_at + 1)?
            }
            _ if is_tensor => {
                return Err(self.operand_error(global_at + 1, "a tensor map with coordinates"));
            }
            operand => self.address(operand, global_at + 1)?,
        };
        let mut offsets = captures.contains(&"im2col_no_offs").then(Vec::new);
        if im2col {
            let Operand::Vector(list) = &operands[offset_at] else {
                return Err(self.operand_error(offset_at + 1, "a list of offsets"));
            };
            let list = list.iter().map(|offset| Ok(self.any_source(offset, offset_at + 1, 16)?.slot));
            offsets = Some(list.collect::<Result<Vec<Slot>, LoadError>>()?);
        }
        let dims = coordinates.len();
        if offsets.as_ref().is_some_and(|list| dims < 3 || im2col && list.len() + 2 != dims) {
            return Err(
                self.operand_error(offset_at + 1, "two offsets less than coordinates, of 3 to 5 dimensions")
            );
        }
        let bytes = if is_tensor { None } else { Some(self.word(&operands[2], 3)?) };
        let at = 2 + usize::from(!is_tensor);
        let to = match family {
            _ if to_peer => BulkTo::Peer { mbarrier: self.address(&operands[at], at + 1)? },
            _ if to_shared => {
                BulkTo::Shared { mbarrier: self.address(&operands[at], at + 1)?, space: Space::Cluster, mask }
            }
            _ => BulkTo::Global { byte_mask },
        };
        let space = if to_shared { Space::Cluster } else { Space::Shared };
        // Triton's shared memory has one name, and `cuda::memcpy_async` is known by what follows.
        let needs_no_init_fence = self.names.variables.contains_key("global_smem");
        let bulk = Bulk {
            to,
            shared,
            space,
            global,
            reduces,
            bytes,
            coordinates,
            offsets,
            hides_proxies: false,
            needs_no_init_fence,
        };
        self.emit(Op::Bulk(Box::new(bulk)));
        Ok(())
    }

    /// `mbarrier.pending_count`: states hold the phase, and above it what it lacked.
    pub(super) fn pending_count(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let shape = data_shape(64);
        let state = Reg { bank: shape.bank, slot: self.source(&operands[1], 2, shape)?, bits: 64 };
        let result = self.word_result(&operands[0], 1)?;
        let low = self.allocate(Bank::Word, 1)?;
        let part = |slot| Some(Reg { bank: Bank::Word, slot, bits: 32 });
        self.emit(Op::Unpack(Box::new((vec![part(low), part(result)], state))));
        Ok(())
    }

    /// `st.async [a], b, [mbarrier]` and `red.async`. The last capture is the type; of `red.async` the operation is another.
    pub(super) fn store_async(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 3)?;
        let ty = super::lane::scalar(captures[captures.len() - 1]);
        let addr = self.address(&operands[0], 1)?;
        let mbarrier = self.address(&operands[2], 3)?;
        let parts = match &operands[1] {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut regs = Vec::new();
        for part in parts {
            regs.push(self.any_source(part, 2, ty.bits())?);
        }
        let element_bytes = ty.bits() / 8;
        if regs.len() * usize::from(element_bytes) > 16 {
            return Err(self.unsupported());
        }
        let reduces = captures.iter().find(|c| is_reduction(c)).map(|name| (reduction(name), ty));
        self.emit(Op::StoreAsync(Box::new(StoreAsync { addr, mbarrier, element_bytes, regs, reduces })));
        Ok(())
    }

    /// `tensormap.replace [map]{, dimension}, value`. Captures: field, space, type.
    pub(super) fn tensor_map_replace(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let fields = [
            "box_dim",
            "global_dim",
            "global_stride",
            "element_stride",
            "global_address",
            "rank",
            "elemtype",
            "interleave_layout",
            "swizzle_mode",
            "swizzle_atomicity",
            "fill_mode",
        ];
        let Some(at) = fields.iter().position(|f| *f == captures[0]) else { return Err(self.unsupported()) };
        let numbered = at < 4;
        self.count(operands, if numbered { 3 } else { 2 })?;
        let space = match captures[1] {
            "" => Space::Generic,
            "global" => Space::Global,
            _ => Space::Shared,
        };
        let addr = self.address(&operands[0], 1)?;
        let dimension = match operands[1] {
            Operand::Int(dimension @ 0..=4) if numbered => dimension as u64,
            _ if numbered => return Err(self.operand_error(2, "a dimension")),
            _ => 0,
        };
        let last = operands.len();
        let value = self.any_source(&operands[last - 1], last, if captures[2] == "b64" { 64 } else { 32 })?;
        let field = fields[at];
        self.emit(Op::TensorMapReplace(Box::new(TensorMapReplace { space, addr, field, dimension, value })));
        Ok(())
    }

    /// `tensormap.cp_fenceproxy [to], [from], 128`.
    pub(super) fn tensor_map_copy(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 3)?;
        let (to, from) = (self.address(&operands[0], 1)?, self.address(&operands[1], 2)?);
        let scope = Scope::of(captures[0]).unwrap_or(Scope::System);
        self.emit(Op::TensorMapCopy { to, from, scope });
        Ok(())
    }

    /// `cp.async.bulk.wait_group{.read} n`.
    pub(super) fn wait_bulk(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        match operands[0] {
            Operand::Int(keep) if (0..=i64::from(u32::MAX)).contains(&keep) => {
                self.emit(Op::WaitBulk { keep: keep as u32, read: !captures[0].is_empty() });
                Ok(())
            }
            _ => Err(self.operand_error(1, "a constant")),
        }
    }

    pub(super) fn copy_arrive(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        let (space, addr) = (shared_or_generic(captures[1]), self.address(&operands[0], 1)?);
        let increments = captures[0].is_empty();
        self.emit(Op::CopyArrive(Box::new(CopyArrive { space, addr, increments })));
        Ok(())
    }

    /// `mapa` and `getctarank`. Captures: space, type.
    pub(super) fn map_rank(
        &mut self,
        gives_rank: bool,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, if gives_rank { 2 } else { 3 })?;
        let bits = if captures[1].ends_with("64") { 64 } else { 32 };
        let generic = captures[0].is_empty();
        let address = match &operands[1] {
            Operand::NameOffset(..) | Operand::Name(_) => {
                let shape = data_shape(bits);
                Reg { bank: shape.bank, slot: self.source(&operands[1], 2, shape)?, bits }
            }
            _ => return Err(self.operand_error(2, "an address")),
        };
        if gives_rank {
            let result = self.word_result(&operands[0], 1)?;
            self.emit(Op::RankOf { result, address, generic });
        } else {
            let rank = self.word(&operands[2], 3)?;
            let result = self.any_result(&operands[0], 1, bits)?;
            self.emit(Op::MapRank { result, address, rank, generic });
        }
        Ok(())
    }

    /// `setmaxnreg.inc` and `.dec`.
    pub(super) fn set_registers(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 1)?;
        match operands[0] {
            Operand::Int(count @ 24..=256) if count % 8 == 0 => {
                self.emit(Op::SetRegisters { increase: captures[0] == "inc", count: count as u32 });
                Ok(())
            }
            _ => Err(self.operand_error(1, "a multiple of 8 from 24 to 256")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_number_and_perhaps_a_letter() {
        assert_eq!(architecture("sm_90a"), Some((90, Some('a'))));
        assert_eq!(architecture("sm_100f"), Some((100, Some('f'))));
        assert_eq!(architecture("sm_80"), Some((80, None)));
        assert_eq!(architecture(""), None);
    }

    #[test]
    fn features_of_one_architecture_go_on_or_end_with_it() {
        assert!(has("sm_90a", "sm_90a") && !has("sm_100a", "sm_90a") && !has("sm_90", "sm_90a"));
        assert!(["sm_90a", "sm_100a", "sm_103f", "sm_120a"].into_iter().all(|target| has(target, "sm_90a+")));
        assert!(["sm_90", "sm_89", "sm_100", ""].into_iter().all(|target| !has(target, "sm_90a+")));
        assert!(has("sm_120a", "sm_80") && has("", "") && !has("sm_75", "sm_80"));
    }
}
