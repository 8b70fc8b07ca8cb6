//! Copies within a device by the kernel, on the simulator: every byte that is to move, and no other.

use crate::support;
use ferroflash::device::Buffer;
use ferroflash::{Attention, CopyRun, Error, SimOptions, StreamHandle};
use std::num::NonZeroU32;

support::trials!(runs_of_any_kind_are_copied_and_nothing_else, what_is_no_multiple_of_a_word_is_refused);

fn simulator() -> Attention {
    support::on_simulator(SimOptions::default())
}

/// Numbers below a bound, the same ones every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Words from place to place, of buffers of as many.
#[derive(Clone, Copy)]
struct Words {
    from: u64,
    to: u64,
    count: u64,
}

/// Rows that lie apart, packed or with gaps, and single ones between them; pieces of 16 bytes and of 4.
fn drawn(draw: &mut Draw) -> (u64, Vec<Words>) {
    let (mut runs, mut from, mut to) = (Vec::new(), 0, 0);
    for _ in 0..=draw.below(14) {
        let unit = if draw.below(3) == 0 { 1 } else { 4 };
        let long = if draw.below(4) == 0 { 20_000 } else { 70 };
        let count = unit * (1 + draw.below(long / unit));
        let [gap, other_gap] = [0, 1].map(|_| unit * draw.below(9));
        [from, to] = [from, to].map(|at: u64| at.next_multiple_of(unit));
        for _ in 0..=draw.below(5) {
            runs.push(Words { from, to, count });
            (from, to) = (from + count + gap, to + count + other_gap);
        }
    }
    (from.max(to), runs)
}

fn runs_of_any_kind_are_copied_and_nothing_else() {
    let attention = simulator();
    let device = attention.device();
    for seed in 0..40 {
        let mut draw = Draw(seed);
        let (words, runs) = drawn(&mut draw);
        let source: Vec<u32> = (0..words as u32).collect();
        let before: Vec<u32> = source.iter().map(|word| !word).collect();
        let (from, to) = (Buffer::from_elements(device, &source), Buffer::from_elements(device, &before));
        let (from, to) = (from.expect("memory"), to.expect("memory"));
        let run = |run: &Words| CopyRun {
            from: from.address() + run.from * 4,
            to: to.address() + run.to * 4,
            bytes: run.count * 4,
        };
        let copied: Vec<CopyRun> = runs.iter().map(run).collect();
        // SAFETY: the runs lie in the buffers, which nothing else uses.
        unsafe { attention.copy(&copied, NonZeroU32::new(seed as u32 % 3), StreamHandle::DEFAULT) }
            .expect("it runs");
        let mut expected = before;
        for Words { from, to, count } in runs {
            let [from, to, count] = [from, to, count].map(|n| n as usize);
            expected[to..to + count].copy_from_slice(&source[from..from + count]);
        }
        let mut got = vec![0; words as usize];
        to.read(0, &mut got).expect("read");
        let wrong = (0..got.len()).find(|&at| got[at] != expected[at]);
        assert_eq!(wrong, None, "seed {seed}: word {wrong:?} of {words}");
    }
}

fn what_is_no_multiple_of_a_word_is_refused() {
    let attention = simulator();
    let run = CopyRun { from: 0x1_0000, to: 0x2_0000, bytes: 64 };
    for (bad, value) in [
        (CopyRun { from: 0x1_0002, ..run }, 0x1_0002),
        (CopyRun { to: 0x2_0001, ..run }, 0x2_0001),
        (CopyRun { bytes: 6, ..run }, 6),
    ] {
        // SAFETY: it is refused before anything is launched.
        let refused = unsafe { attention.copy(&[bad], None, StreamHandle::DEFAULT) };
        assert!(matches!(refused, Err(Error::Misaligned { value: v, required: 4, .. }) if v == value));
    }
    // SAFETY: nothing is copied.
    unsafe { attention.copy(&[], None, StreamHandle::DEFAULT) }.expect("nothing to do");
}
