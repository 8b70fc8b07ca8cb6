//! `clusterlaunchcontrol` (PTX ISA §9.7.13.17–18). An answer is 16 bytes: x, y and z of a cluster's first CTA, and whether it is yes.

use super::{Builder, Form};
use crate::error::LoadError;
use crate::op::{Bulk, BulkTo, Op, Reg, Space};
use crate::parse::ast::Operand;
use crate::regs::{Bank, Slot};

impl<'a> Builder<'_, 'a> {
    pub(super) fn try_cancel(
        &mut self,
        captures: &[&str],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let shared = self.address(&operands[0], 1)?;
        let mbarrier = self.address(&operands[1], 2)?;
        let to_all = captures.contains(&"multicast::cluster::all");
        self.emit(Op::Bulk(Box::new(Bulk {
            to: BulkTo::Answer { mbarrier, to_all },
            shared,
            space: Space::Cluster,
            global: shared,
            reduces: None,
            bytes: None,
            coordinates: Vec::new(),
            offsets: None,
            hides_proxies: false,
            needs_no_init_fence: false,
        })));
        Ok(())
    }

    pub(super) fn is_canceled(&mut self, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let [_, [_, yes]] = self.answer(&operands[1])?;
        let reg = Reg { bank: Bank::Word, slot: yes, bits: 32 };
        let name = self.scopes.elements(reg, 1)[0];
        match self.lookup.find("setp.ne.b32") {
            Some(Form::Lane(lane)) => {
                self.lane(&lane, &[operands[0].clone(), Operand::Name(name), Operand::Int(0)])
            }
            _ => Err(self.unsupported()),
        }
    }

    pub(super) fn first_cta(&mut self, captures: &[&str], operands: &[Operand<'a>]) -> Result<(), LoadError> {
        self.count(operands, 2)?;
        let [[x, y], [z, yes]] = self.answer(&operands[1])?;
        let (from, whole) = match captures[0] {
            "get_first_ctaid::x" => (vec![x], false),
            "get_first_ctaid::y" => (vec![y], false),
            "get_first_ctaid::z" => (vec![z], false),
            _ => (vec![x, y, z, yes], true),
        };
        if whole != captures.contains(&"v4") {
            return Err(self.unsupported());
        }
        let to = self.word_vector(&operands[0], 1, from.len(), true)?;
        for (to, from) in to.into_iter().zip(from) {
            let [to, from] = [to, from].map(|slot| Reg { bank: Bank::Word, slot, bits: 32 });
            self.emit(Op::Pack(Box::new((to, vec![from]))));
        }
        Ok(())
    }

    /// The four words of an answer, a 128-bit register.
    fn answer(&mut self, operand: &Operand<'a>) -> Result<[[Slot; 2]; 2], LoadError> {
        let reg = match operand {
            Operand::Name(name) => self.register_named(name, 2)?,
            _ => return Err(self.operand_error(2, "a 128-bit register")),
        };
        if reg.bits != 128 {
            return Err(self.operand_error(2, "a 128-bit register"));
        }
        let mut words = [[0; 2]; 2];
        for (half, words) in words.iter_mut().enumerate() {
            let from = Reg { bank: Bank::Double, slot: reg.slot + half as Slot, bits: 64 };
            let mut to = Vec::new();
            for word in words {
                *word = self.allocate(Bank::Word, 1)?;
                to.push(Some(Reg { bank: Bank::Word, slot: *word, bits: 32 }));
            }
            self.emit(Op::Unpack(Box::new((to, from))));
        }
        Ok(words)
    }
}
