//! The undefined bits of a frame, and where they come from.

use std::collections::HashMap;

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
}

impl Origin {
    pub(super) fn is_of_register(&self) -> bool {
        self.address.is_none() && !self.shared && !self.global
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
    origins: HashMap<(Bank, Slot), Origin>,
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
            param_origin: None,
        }
    }

    /// What is undefined when a function begins: registers that it reads before it writes them, if it comes by there.
    pub(super) fn at_entry(index: usize, program: &Program, frame: &Frame) -> Self {
        let mut shade = Shade::new(&frame.regs, frame.params.len());
        for &(bank, slot, pc) in &program.undefined {
            let origin = Origin {
                at: (index, pc),
                lane: 0,
                address: None,
                shared: false,
                global: false,
                computed: false,
            };
            (0..LANES).for_each(|lane| shade.set(bank, slot, lane, ones(bank), Some(origin)));
        }
        shade
    }

    pub(super) fn origin(&self, bank: Bank, slot: Slot) -> Option<Origin> {
        self.origins.get(&(bank, slot)).copied()
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
            self.origins.insert((bank, slot), origin);
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
