//! The undefined bits of a frame, and where they come from.

use std::collections::HashMap;

use crate::finding::{Fault, FindingKind, OtherAccess};
use crate::op::{Pc, Program};
use crate::regs::{Bank, LANES, Regs, Slot};

use super::access::lanes;
use super::warp::Frame;

/// Where undefined bits come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) at: (usize, Pc),
    pub(super) lane: usize,
    /// The address of memory that nobody wrote; `None` for a register.
    pub(super) address: Option<u64>,
    pub(super) shared: bool,
    pub(super) global: bool,
    /// Whether something was computed of them since.
    pub(super) computed: bool,
    /// The line by which another lane of the warp writes something else to the place, in no order with this one.
    pub(super) clashes_with: Option<u32>,
    /// Whether it is a parameter of a call that nothing was stored to.
    pub(super) of_parameter: bool,
}

impl Origin {
    /// A register, unless it is said which space the address is of.
    pub(super) fn new(at: (usize, Pc), lane: usize, address: Option<u64>) -> Origin {
        Origin {
            at,
            lane,
            address,
            shared: false,
            global: false,
            computed: false,
            clashes_with: None,
            of_parameter: false,
        }
    }

    /// Shared memory to which lanes of a warp write different values in no order, the other by that line.
    pub(super) fn of_clash(at: (usize, Pc), (lane, address): (usize, u64), line: u32) -> Origin {
        Origin { shared: true, clashes_with: Some(line), ..Origin::new(at, lane, Some(address)) }
    }

    /// The fault of what stands at a line of the PTX and depends on the bits.
    pub(super) fn fault(&self, what: &str, line: u32) -> Box<Fault> {
        let (kind, why) = match self.clashes_with {
            Some(_) => (FindingKind::SharedRace, "which of the writes takes effect is undefined: "),
            None if self.is_of_register() => {
                (FindingKind::Uninitialized, "a register that nothing was written to: ")
            }
            None if self.of_parameter => {
                (FindingKind::Uninitialized, "a parameter that nothing was stored to: ")
            }
            None => (FindingKind::Uninitialized, ""),
        };
        let mut fault = Fault::new(kind);
        (fault.lane, fault.address, fault.at) = (Some(self.lane), self.address, Some(self.at));
        fault.other = self.clashes_with.map(|line| OtherAccess {
            write: true,
            line: Some(line),
            warp: None,
            lanes: 0,
            cta: None,
        });
        fault.saying(format!("{why}{what} at line {line} depends on it"))
    }

    pub(super) fn is_of_register(&self) -> bool {
        self.address.is_none() && !self.shared && !self.global && !self.of_parameter
    }

    /// The origin of what an instruction makes of the bits. A register is named where its function first computes with it, as
    /// copies are the compiler's, or hands it on.
    pub(super) fn through(self, computes: bool, lane: usize, at: (usize, Pc)) -> Origin {
        let first = computes && !self.computed && self.is_of_register() && at.0 == self.at.0;
        let (lane, at) = if first { (lane, at) } else { (self.lane, self.at) };
        Origin { lane, at, computed: self.computed || computes, ..self }
    }
}

/// The undefined bits of a frame's registers and parameters.
#[derive(Debug)]
pub(super) struct Shade {
    /// Ones for undefined bits.
    pub(super) regs: Regs,
    /// The lanes of each register, by bank, that have such bits, and how many registers have such lanes.
    lanes: [Vec<u32>; 3],
    count: usize,
    /// Ones for the undefined bytes of the parameter area, as that area.
    pub(super) params: Vec<u8>,
    origins: HashMap<(Bank, Slot, usize), Origin>,
    /// The function's number, its registers that nothing is written to before they are read, and who reads each first: where a register
    /// has no other origin, it is this one, of every lane.
    at_entry: (usize, Vec<(Bank, Slot, Pc)>),
    /// The origin of what lies in the parameter area.
    pub(super) param_origin: Option<Origin>,
}

impl Shade {
    pub(super) fn new(like: &Regs, params: usize) -> Self {
        let sizes = [like.word.len(), like.double.len(), like.pred.len()];
        Shade {
            regs: Regs::new(sizes[0], sizes[1], sizes[2]),
            lanes: sizes.map(|size| vec![0; size]),
            count: 0,
            params: vec![0; params],
            origins: HashMap::new(),
            at_entry: (0, Vec::new()),
            param_origin: None,
        }
    }

    /// What is undefined when a function begins: registers that it reads before it writes them, and bytes of
    /// parameters, if it comes by there.
    pub(super) fn at_entry(index: usize, program: &Program, frame: &Frame) -> Self {
        let mut shade = Shade::new(&frame.regs, frame.params.len());
        shade.at_entry = (index, program.undefined.clone());
        for &(bank, slot, _) in &program.undefined {
            let of_register = &mut shade.lanes[bank as usize][slot as usize];
            shade.count += usize::from(*of_register == 0);
            *of_register = u32::MAX;
            shade.regs.fill(bank, slot, ones(bank));
        }
        for &(byte, pc) in &program.unset {
            let lane_bytes = frame.params.len() / LANES;
            (0..LANES).for_each(|lane| shade.params[lane * lane_bytes + byte as usize] = 1);
            shade
                .param_origin
                .get_or_insert(Origin { of_parameter: true, ..Origin::new((index, pc), 0, None) });
        }
        shade
    }

    /// Where the undefined bits of a lane's register come from.
    pub(super) fn origin(&self, bank: Bank, slot: Slot, lane: usize) -> Option<Origin> {
        if let Some(origin) = self.origins.get(&(bank, slot, lane)) {
            return Some(*origin);
        }
        let (index, registers) = &self.at_entry;
        let found = registers.iter().rev().find(|(of, at, _)| (*of, *at) == (bank, slot));
        found.map(|&(.., pc)| Origin::new((*index, pc), lane, None))
    }

    /// The same of the first of these lanes that has such bits.
    pub(super) fn first_origin(&self, bank: Bank, slot: Slot, active: u32) -> Option<Origin> {
        lanes(self.dark(bank, slot) & active).find_map(|lane| self.origin(bank, slot, lane))
    }

    /// Whether every bit is defined.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.params.iter().all(|dark| *dark == 0)
    }

    /// The lanes whose register has undefined bits.
    pub(super) fn dark(&self, bank: Bank, slot: Slot) -> u32 {
        self.lanes[bank as usize][slot as usize]
    }

    pub(super) fn is_clear(&self, bank: Bank, slot: Slot, active: u32) -> bool {
        self.dark(bank, slot) & active == 0
    }

    pub(super) fn set(&mut self, bank: Bank, slot: Slot, lane: usize, bits: u64, origin: Option<Origin>) {
        let of_register = &mut self.lanes[bank as usize][slot as usize];
        let (before, bit) = (*of_register, 1 << lane);
        if bits == 0 && before & bit == 0 {
            return;
        }
        *of_register = if bits == 0 { before & !bit } else { before | bit };
        match (before == 0, *of_register == 0) {
            (true, false) => self.count += 1,
            (false, true) => self.count -= 1,
            _ => {}
        }
        self.regs.set_bits(bank, slot, lane, bits);
        if bits != 0
            && let Some(origin) = origin
        {
            self.origins.insert((bank, slot, lane), origin);
        }
    }

    /// Every bit of a register is defined from here on.
    pub(super) fn clear(&mut self, bank: Bank, slot: Slot, active: u32) {
        lanes(self.dark(bank, slot) & active).for_each(|lane| self.set(bank, slot, lane, 0, None));
    }
}

/// All bits of a register.
pub(super) fn ones(bank: Bank) -> u64 {
    match bank {
        Bank::Word => u32::MAX.into(),
        Bank::Double => u64::MAX,
        Bank::Pred => 1,
    }
}
