//! O and LSE of several calls over disjoint keys into those of one call over all of them: rows by plain loops.

use crate::call::{Dtype, Tensor};
use crate::error::Error;
use crate::read::{at, number};
use crate::real::Real;

/// States to be merged: O `[batch, heads, rows, width]` and LSE `[batch, heads, rows]`, float32 and contiguous, of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// How many there are.
    pub states: usize,
    /// Sequences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Rows of a head.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Type of the states' O.
    pub partial_dtype: Dtype,
    /// Type of O.
    pub dtype: Dtype,
    /// O of the first state.
    pub partial_o: Tensor,
    /// Address of its LSE.
    pub partial_lse: u64,
    /// Address of O of the second state; each further one is as far behind the one before it. Unused for one state.
    pub next_o: u64,
    /// Address of LSE of the second state, the same way.
    pub next_lse: u64,
    /// O; where types and strides are the same, it may be the first state's own.
    pub o: Tensor,
    /// Address of LSE, where it is wanted.
    pub lse: Option<u64>,
}

impl Merge {
    /// Refuses what cannot be merged.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&self) -> Result<(), Error> {
        let named = [
            ("states", self.states),
            ("batch", self.batch),
            ("heads", self.heads),
            ("rows", self.rows),
            ("width", self.width),
        ];
        if let Some((dimension, _)) = named.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::ZeroSized { dimension });
        }
        if self.partial_dtype == Dtype::F64 || self.dtype == Dtype::F64 {
            return Err(Error::Double);
        }
        let several = self.states > 1;
        for (tensor, address) in [
            ("the first state's O", self.partial_o.address),
            ("the first state's LSE", self.partial_lse),
            ("the second state's O", if several { self.next_o } else { 1 }),
            ("the second state's LSE", if several { self.next_lse } else { 1 }),
            ("O", self.o.address),
        ] {
            if address == 0 {
                return Err(Error::Null { tensor });
            }
        }
        self.o.check_apart("O", [self.batch, self.heads, self.rows], self.width)
    }

    /// Merges. Every address is one of host memory.
    ///
    /// # Errors
    /// [`Error`]; nothing is written then.
    ///
    /// # Safety
    /// As [`crate::Call::forward`]; the states' LSE are apart from LSE.
    pub unsafe fn run(&self) -> Result<(), Error> {
        self.check()?;
        let (mut sum, mut row_of_state) = (vec![0.0; self.width], vec![0.0; self.width]);
        for batch in 0..self.batch as i64 {
            for head in 0..self.heads as i64 {
                for row in 0..self.rows as i64 {
                    // SAFETY: the caller's promise.
                    unsafe { self.row([batch, head, row], &mut sum, &mut row_of_state) };
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Merge::run`].
    unsafe fn row(&self, place: [i64; 3], sum: &mut [f32], row_of_state: &mut [f32]) {
        let [batch, head, row] = place;
        let lse_row = (batch * self.heads as i64 + head) * self.rows as i64 + row;
        let step = self.next_lse.wrapping_sub(self.partial_lse);
        // SAFETY: the caller's promise.
        let lse = |state: u64| unsafe {
            number::<f32>(Dtype::F32, self.partial_lse.wrapping_add(step.wrapping_mul(state)), lse_row)
        };
        let states = self.states as u64;
        let most = (0..states).map(lse).fold(f32::NEG_INFINITY, f32::max);
        sum.fill(0.0);
        let mut total = 0.0;
        // A state that saw no key may hold anything.
        for state in (0..states).filter(|&state| lse(state) != f32::NEG_INFINITY) {
            let weight = (lse(state) - most).exp();
            total += weight;
            let apart = self.next_o.wrapping_sub(self.partial_o.address).wrapping_mul(state);
            let o = self.partial_o.address.wrapping_add(apart);
            let from = at(o, elements(&self.partial_o, place), self.partial_dtype.bytes());
            // SAFETY: the caller's promise.
            unsafe { f32::read_row(self.partial_dtype, from, row_of_state) };
            sum.iter_mut().zip(&*row_of_state).for_each(|(sum, value)| *sum += weight * value);
        }
        let factor = if total == 0.0 { 0.0 } else { 1.0 / total };
        sum.iter_mut().for_each(|value| *value *= factor);
        // SAFETY: the caller's promise.
        unsafe {
            f32::write_row(self.dtype, at(self.o.address, elements(&self.o, place), self.dtype.bytes()), sum);
            if let Some(address) = self.lse {
                let merged = if total == 0.0 { f32::NEG_INFINITY } else { most + f32::ln(total) };
                *(at(address, lse_row, 4) as *mut f32) = merged;
            }
        }
    }
}

/// Elements before a row.
fn elements(tensor: &Tensor, [batch, head, row]: [i64; 3]) -> i64 {
    batch * tensor.strides[0] + head * tensor.strides[1] + row * tensor.strides[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_mean_by_exponentials_and_states_without_keys_leave_no_trace() {
        let none = f32::NEG_INFINITY;
        let partial_o =
            [[1.0f32, 2.0], [10.0, 20.0], [f32::NAN, f32::NAN], [3.0, 4.0], [1.0, 1.0], [7.0, 7.0]];
        // Two rows of three states: the second row's last has nothing, the first row's second neither.
        let partial_lse = [0.0f32, 1.0, none, 3f32.ln(), 0.0, none];
        let partial_o = [partial_o[0], partial_o[1], partial_o[2], partial_o[3], partial_o[4], partial_o[5]];
        let (mut o, mut lse) = ([[f32::NAN; 2]; 2], [f32::NAN; 2]);
        let tensor = |address: u64| Tensor { address, strides: [4, 4, 2] };
        let merge = Merge {
            states: 3,
            batch: 1,
            heads: 1,
            rows: 2,
            width: 2,
            partial_dtype: Dtype::F32,
            dtype: Dtype::F32,
            partial_o: tensor(partial_o.as_ptr() as u64),
            partial_lse: partial_lse.as_ptr() as u64,
            next_o: partial_o[2..].as_ptr() as u64,
            next_lse: partial_lse[2..].as_ptr() as u64,
            o: tensor(o.as_mut_ptr() as u64),
            lse: Some(lse.as_mut_ptr() as u64),
        };
        // SAFETY: every address is of an array as long as the sizes say.
        unsafe { merge.run() }.expect("merged");
        // Row 0: 1·(1, 2) and 1·(1, 1). Row 1: e·(10, 20) and 3·(3, 4).
        let e = 1f32.exp();
        let expected = [[1.0, 1.5], [(e * 10.0 + 9.0) / (e + 3.0), (e * 20.0 + 12.0) / (e + 3.0)]];
        for (found, expected) in o.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5, "{o:?}");
        }
        assert!((lse[0] - 2f32.ln()).abs() < 1e-6 && (lse[1] - (e + 3.0).ln()).abs() < 1e-6, "{lse:?}");
        let refused = Merge { next_o: 0, ..merge };
        // SAFETY: it is refused.
        assert_eq!(unsafe { refused.run() }, Err(Error::Null { tensor: "the second state's O" }));
        assert_eq!(Merge { states: 0, ..merge }.check(), Err(Error::ZeroSized { dimension: "states" }));
    }
}
