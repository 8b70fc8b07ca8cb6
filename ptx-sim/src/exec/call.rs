//! Calls and returns: parameters are bytes of the frames, copied lane by lane (PTX ISA §7.1, §9.7.12.5–6).

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Call, Callee, EXIT, Op};
use crate::regs::LANES;
use crate::window::CODE_WINDOW;

use super::access::lanes;
use super::cta::Cta;
use super::warp::{Frame, Path, Wait, Warp};

/// Frames that one warp may have; a recursion without an end must stop.
const MAX_FRAMES: usize = 1 << 12;

impl Warp {
    pub(super) fn call(&mut self, at: usize, call: &Call, cta: &mut Cta<'_>) -> Outcome {
        let Path { pc, mask, frame, rejoin, join, .. } = self.paths[at];
        let callee = match call.callee {
            Callee::Function(index) => index as usize,
            Callee::Register(slot) => {
                let targets = self.frame(frame)?.regs.double[slot as usize];
                let first = targets[mask.trailing_zeros() as usize % LANES];
                let same = lanes(mask).filter(|&l| targets[l] == first).fold(0, |m, l| m | 1 << l);
                if same != mask {
                    // Lanes that call different functions do so one function after the other.
                    self.part(at, pc + 1, &[(pc, mask & !same), (pc, same)], cta);
                    return Ok(());
                }
                indirect(first, cta)?
            }
        };
        let program = cta.launch.program(callee);
        let args = call.args.iter().map(|a| a.1).eq(program.params.iter().map(|p| p.bytes));
        if !args || call.returns.len() != program.returns.len() || program.insts.is_empty() {
            return Err(Fault::new(FindingKind::BadTarget));
        }
        let free = self.frames.iter().position(Option::is_none);
        let index = free.unwrap_or(self.frames.len());
        if index >= MAX_FRAMES {
            return Err(Fault::new(FindingKind::Budget));
        }
        if !self.local.push(index, program.local_bytes) {
            return Err(Fault::new(FindingKind::Budget));
        }
        let mut new = cta.frame(callee, self.index, self.local.base(index));
        new.caller = Some((frame, pc, rejoin, join));
        if cta.launch.is_foreign(callee) {
            new.called_at = Some(self.place_in(frame, self.at));
        }
        let caller = &self.frame(frame)?.params;
        for (arg, formal) in call.args.iter().zip(&program.params) {
            copy_lanes(caller, arg.0, &mut new.params, formal.offset, formal.bytes, mask);
        }
        let sizes = (caller.len() / LANES, new.params.len() / LANES);
        if free.is_none() {
            self.frames.push(None);
        }
        self.frames[index] = Some(new);
        self.pass_shade(frame, index, sizes, mask, || {
            call.args
                .iter()
                .zip(&program.params)
                .map(|(arg, formal)| (arg.0, formal.offset, formal.bytes))
                .collect()
        });
        self.paths[at] = Path { pc: 0, mask, frame: index, rejoin: EXIT, join: None, wait: Wait::Ready };
        Ok(())
    }

    /// Takes undefined bytes along with parameters: ranges of the one area to the other.
    fn pass_shade(
        &mut self,
        from: usize,
        to: usize,
        (from_size, to_size): (usize, usize),
        mask: u32,
        ranges: impl Fn() -> Vec<(u32, u32, u32)>,
    ) {
        let has = |frame: usize| self.frames[frame].as_ref().is_some_and(|f| f.shade.is_some());
        if !has(from) && !has(to) {
            return;
        }
        for (source, target, bytes) in ranges() {
            for lane in lanes(mask) {
                for byte in 0..bytes {
                    let at = lane * from_size + (source + byte) as usize;
                    let (dark, origin) = self.params_shade(from, at, 1);
                    self.shade_params(to, lane * to_size + (target + byte) as usize, dark, 1, origin);
                }
            }
        }
    }

    /// All lanes of a call have come to its end: goes back to the caller.
    pub(super) fn return_from(&mut self, at: usize, cta: &mut Cta<'_>) -> Outcome {
        let Path { mask, frame, .. } = self.paths[at];
        // Lanes that went on without the others may come to the end at different times.
        let others =
            self.paths.iter().enumerate().any(|(i, p)| i != at && p.frame == frame) || self.is_joined(frame);
        let Some(done) = self.frames[frame].take() else { return Err(Fault::new(FindingKind::BadTarget)) };
        if !others {
            self.local.pop(frame);
        }
        let Some((caller, pc, rejoin, join)) = done.caller else {
            return Err(Fault::new(FindingKind::BadTarget));
        };
        let launch = cta.launch;
        let returns = &launch.program(done.program).returns;
        let to = self.frame(caller)?;
        if let Op::Call(call) = &launch.program(to.program).insts[pc as usize].op {
            for (place, formal) in call.returns.iter().zip(returns) {
                copy_lanes(
                    &done.params,
                    formal.offset,
                    &mut to.params,
                    place.0,
                    formal.bytes.min(place.1),
                    mask,
                );
            }
        }
        let sizes = (done.params.len() / LANES, self.frame(caller)?.params.len() / LANES);
        self.frames[frame] = Some(done);
        if let Op::Call(call) = &launch.program(self.frame(caller)?.program).insts[pc as usize].op {
            self.pass_shade(frame, caller, sizes, mask, || {
                let places = call.returns.iter().zip(returns);
                places.map(|(place, formal)| (formal.offset, place.0, formal.bytes.min(place.1))).collect()
            });
        }
        if !others {
            self.frames[frame] = None;
        }
        self.paths[at] = Path { pc: pc + 1, mask, frame: caller, rejoin, join, wait: Wait::Ready };
        Ok(())
    }
}

/// The function at an address.
fn indirect(address: u64, cta: &Cta<'_>) -> Outcome<usize> {
    let index = address.wrapping_sub(CODE_WINDOW) / 16;
    let valid = address >= CODE_WINDOW && address.is_multiple_of(16) && index < cta.launch.programs() as u64;
    if valid { Ok(index as usize) } else { Err(Fault::at(FindingKind::BadTarget, 0, address)) }
}

/// Copies a range of every lane's bytes from one frame to another.
fn copy_lanes(from: &[u8], from_offset: u32, to: &mut [u8], to_offset: u32, bytes: u32, mask: u32) {
    let (from_size, to_size) = (from.len() / LANES, to.len() / LANES);
    for lane in lanes(mask) {
        let source = lane * from_size + from_offset as usize;
        let target = lane * to_size + to_offset as usize;
        to[target..target + bytes as usize].copy_from_slice(&from[source..source + bytes as usize]);
    }
}

/// A frame with its constants still to be filled in.
pub(super) fn empty_frame(program_index: usize, program: &crate::op::Program) -> Frame {
    let [words, doubles, preds] = program.registers;
    Frame {
        program: program_index,
        regs: crate::regs::Regs::new(words, doubles, preds),
        params: vec![0; program.frame_bytes as usize * LANES],
        tracked: if program.touches.is_empty() { Vec::new() } else { vec![Default::default(); words] },
        shade: None,
        caller: None,
        called_at: None,
    }
}
