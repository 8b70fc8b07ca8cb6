//! Merging O and LSE of several calls, drawn at random, against the definition in float64: any number of states, types, layouts and
//! widths, states without keys that hold NaN, sinks, rows that belong to no sequence.

use super::guarded::Guarded;
use crate::random_input::Random;
use ferroflash::error::Error;
use ferroflash::merge::{MergeStates, MergeTensors};
use ferroflash::problem::{ElementStrides, Extent, Layout};
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Attention, Number, StreamHandle};
use kernels_gpu::row::Dtype;
use kernels_gpu::steps::{STEP_VARIANTS, Step};

/// The types of partial O and O that there are kernels for.
pub fn merges() -> impl Iterator<Item = (Number, Number)> {
    let rows = STEP_VARIANTS.iter().map(|variant| variant.row);
    rows.filter(|row| row.step == Step::Merge).map(|row| (row.input, row.output))
}

/// A merge with its inputs.
pub struct MergeCase {
    merge: MergeStates,
    states: usize,
    extent: Extent,
    numbers: (Number, Number),
    strides: ElementStrides,
    /// O of each state, `[batch, heads, rows, width]`, as the values of its type.
    o: Vec<Vec<f64>>,
    /// LSE of each state, `[batch, heads, rows]`.
    lse: Vec<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    rows_used: Option<u32>,
    in_place: bool,
}

/// Elements of a type, as their bytes.
fn bytes_of(number: Number, value: f64) -> Vec<u8> {
    match number {
        Number::F16 => narrow(Dtype::F16, value).to_ne_bytes().to_vec(),
        Number::Bf16 => narrow(Dtype::Bf16, value).to_ne_bytes().to_vec(),
        Number::F32 => (value as f32).to_ne_bytes().to_vec(),
    }
}

fn value_of(number: Number, bytes: &[u8]) -> f64 {
    match (number, bytes) {
        (Number::F16, &[a, b, ..]) => widen(Dtype::F16, u16::from_ne_bytes([a, b])),
        (Number::Bf16, &[a, b, ..]) => widen(Dtype::Bf16, u16::from_ne_bytes([a, b])),
        (Number::F32, &[a, b, c, d, ..]) => f32::from_ne_bytes([a, b, c, d]).into(),
        _ => f64::NAN,
    }
}

impl MergeCase {
    /// Draws a case of these types.
    ///
    /// # Errors
    /// Where the merge cannot be: a fault of what is drawn.
    pub fn draw(numbers: (Number, Number), seed: u64) -> Result<MergeCase, Error> {
        let mut random = Random::new(seed);
        let states = random.one_of(&[1, 2, 2, 3, 8, 17, 133, 256]);
        let most = if states > 17 { 3 } else { 9 };
        let mut size = || 1 + random.below(most);
        let (batch, heads, rows) = (size(), size(), size());
        let extent = Extent { batch, heads, rows, width: 8 * (1 + random.below(32)) };
        let layout = random.one_of(&[Layout::Bhsd, Layout::Bshd]);
        let merge = MergeStates::new(states, extent, layout, numbers)?;
        let strides = merge.partial_strides();
        let count = (batch * heads * rows) as usize;
        let nothing = random.below(4) == 0;
        let mut lse = Vec::new();
        let mut o = Vec::new();
        for _ in 0..states {
            let of_state: Vec<f32> = (0..count)
                .map(|row| match random.below(5) {
                    _ if nothing && row == 0 => f32::NEG_INFINITY,
                    0 => f32::NEG_INFINITY,
                    1 => 60.0,
                    _ => random.below(2000) as f32 / 100.0 - 10.0,
                })
                .collect();
            let element = |row: usize, random: &mut Random| match of_state[row] {
                // What a state without keys holds is anything.
                f32::NEG_INFINITY => f64::NAN,
                _ => value_of(numbers.0, &bytes_of(numbers.0, f64::from(random.below(4001)) / 1000.0 - 2.0)),
            };
            let width = extent.width as usize;
            o.push((0..count * width).map(|at| element(at / width, &mut random)).collect());
            lse.push(of_state);
        }
        let sinks = (random.below(3) == 0)
            .then(|| (0..heads).map(|_| random.one_of(&[f32::NEG_INFINITY, -2.0, 3.5])).collect());
        let rows_used = (random.below(3) == 0).then(|| random.below(rows + 1));
        let in_place = numbers.0 == numbers.1 && random.below(2) == 0;
        let states = states as usize;
        Ok(MergeCase { merge, states, extent, numbers, strides, o, lse, sinks, rows_used, in_place })
    }

    /// Where a row's elements lie in its tensor.
    fn start(&self, row: usize) -> usize {
        let Extent { heads, rows, .. } = self.extent;
        let (head, row) = (row / rows as usize, row % rows as usize);
        let (batch, head) = (head / heads as usize, head % heads as usize);
        let [batch, head, row] = [batch, head, row].map(|n| n as i64);
        (batch * self.strides.batch + head * self.strides.head + row * self.strides.row) as usize
    }

    /// Merges on a device and judges: what is wrong first, in words.
    ///
    /// # Errors
    /// [`Error::GuardBand`], and whatever keeps it from running.
    pub fn run(&self, attention: &Attention) -> Result<Result<(), String>, Error> {
        let device = attention.device();
        let (input, output) = self.numbers;
        let (width, count) = (self.extent.width as usize, self.lse[0].len());
        let mut partial = Vec::new();
        for state in &self.o {
            let mut placed = vec![f64::NAN; count * width];
            for row in 0..count {
                placed[self.start(row)..][..width].copy_from_slice(&state[row * width..][..width]);
            }
            partial.extend(placed.into_iter().flat_map(|value| bytes_of(input, value)));
        }
        let state_bytes = (count * width) as u64 * u64::from(input.bytes());
        let states = Guarded::of(device, &partial)?;
        let lse = Guarded::of(device, &self.lse.concat())?;
        let o = Guarded::new::<u8>(device, count * width * output.bytes() as usize)?;
        let merged_lse = Guarded::new::<f32>(device, count)?;
        let sinks = self.sinks.as_ref().map(|sinks| Guarded::of(device, sinks)).transpose()?;
        let rows_used = self.rows_used.map(|rows| Guarded::of(device, &[rows])).transpose()?;
        let tensors = MergeTensors {
            partial_o: states.address(),
            partial_lse: lse.address(),
            next_o: states.address() + state_bytes,
            next_lse: lse.address() + count as u64 * 4,
            o: if self.in_place { states.address() } else { o.address() },
            lse: Some(merged_lse.address()),
            rows_used: rows_used.as_ref().map(Guarded::address),
            sinks: sinks.as_ref().map(Guarded::address),
        };
        // SAFETY: every buffer is on this device and as long as the merge says; what reads them below waits.
        unsafe { attention.merge(&self.merge, &tensors, StreamHandle::DEFAULT)? };
        let entry = "the merge kernel";
        let bytes = if self.in_place { states.read(entry, "O", 0_u8)? } else { o.read(entry, "O", 0_u8)? };
        let found_lse = merged_lse.read(entry, "LSE", 0_f32)?;
        let element = output.bytes() as usize;
        Ok((0..count).try_for_each(|row| {
            let found: Vec<f64> = bytes[self.start(row) * element..][..width * element]
                .chunks_exact(element)
                .map(|bytes| value_of(output, bytes))
                .collect();
            self.judge(row, &found, found_lse[row]).map_err(|reason| {
                format!(
                    "row {row}: {reason}; {} states of {:?}, {:?}",
                    self.states, self.extent, self.numbers
                )
            })
        }))
    }

    fn judge(&self, row: usize, found: &[f64], found_lse: f32) -> Result<(), String> {
        let Extent { heads, rows, .. } = self.extent;
        let is_used = self.rows_used.is_none_or(|used| row as u32 % rows < used);
        if !is_used {
            let is_untouched = found_lse.is_nan() && (self.in_place || found.iter().all(|o| o.is_nan()));
            return if is_untouched {
                Ok(())
            } else {
                Err("it belongs to no sequence, and was written".into())
            };
        }
        let sink = self
            .sinks
            .as_ref()
            .map_or(f32::NEG_INFINITY, |sinks| sinks[row / rows as usize % heads as usize]);
        let lses: Vec<f64> = self.lse.iter().map(|lse| lse[row].into()).collect();
        let most = lses.iter().copied().fold(sink.into(), f64::max);
        let base = if most == f64::NEG_INFINITY { 0.0 } else { most };
        let weights: Vec<f64> = lses.iter().map(|lse| (lse - base).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (f64::from(sink) - base).exp();
        let lse = if sum == 0.0 { f64::NEG_INFINITY } else { base + sum.ln() };
        if !(f64::from(found_lse) == lse || (f64::from(found_lse) - lse).abs() <= 2e-6 * lse.abs().max(1.0)) {
            return Err(format!("LSE is {found_lse}, right is {lse}"));
        }
        let share = match self.numbers.1 {
            Number::F16 => f64::exp2(-11.0),
            Number::Bf16 => f64::exp2(-8.0),
            Number::F32 => 0.0,
        };
        let width = self.extent.width as usize;
        for (column, &found) in found.iter().enumerate() {
            let seen = self.o.iter().zip(&weights).filter(|(_, weight)| **weight != 0.0);
            let terms: Vec<f64> = seen.map(|(o, weight)| o[row * width + column] * weight / sum).collect();
            let right: f64 = terms.iter().sum();
            // Weights by ex2 and rcp of 2 units each, of exponents in float32 up to 70, and sums in float32.
            let size: f64 = terms.iter().map(|term| term.abs()).sum();
            let allowed = share * right.abs() + size * (2e-5 + self.states as f64 * 1e-7) + 1e-7;
            let is_right = (found - right).abs() <= allowed;
            if !is_right {
                return Err(format!("element {column} is {found}, right is {right} within {allowed}"));
            }
        }
        Ok(())
    }
}
