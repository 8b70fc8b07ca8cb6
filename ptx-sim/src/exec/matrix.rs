//! `ldmatrix`, `stmatrix`, `movmatrix` (PTX ISA §9.7.14.5.15–17). Lane 8m + r addresses row r of matrix m; a lane holds
//! elements 2t and 2t+1 of row lane/4, where t = lane mod 4, or the same of the transposed matrix.

use crate::finding::Outcome;
use crate::mark::Who;
use crate::op::Matrix;
use crate::regs::{Bank, FULL, LANES, Regs, Slot};
use crate::window;

use super::access::{addresses, check_alignment};
use super::cta::Cta;
use super::mbarrier::shared_address;
use super::shape;
use super::undefined::Origin;
use super::warp::Warp;

/// Eight rows of eight 16-bit elements, two elements to a word.
type Rows = [[u32; 4]; 8];

impl Warp {
    pub(super) fn load_matrix(
        &mut self,
        matrix: &Matrix,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &matrix.addr)
            .map(|address| shared_address(matrix.space, address));
        if self.load_matrix_at_once(matrix, &list, frame, active, cta)? {
            return Ok(());
        }
        cta.counters.matrix(&list, matrix.regs.len(), false);
        let mut who = self.who(0, None, cta);
        let mut loaded: [(Rows, Rows); 4] = Default::default();
        let mut any_dark = false;
        for (m, (rows, dark)) in loaded.iter_mut().take(matrix.regs.len()).enumerate() {
            for (r, row) in rows.iter_mut().enumerate() {
                let lane = 8 * m + r;
                check_alignment(cta, lane, list[lane], 16)?;
                let Some(offset) = cta.shared.offset(lane, list[lane], 16)? else { continue };
                (who.lane, who.lanes) = (lane, row_lanes(lane, r));
                let unwritten = match cta.shared.note_read(offset, 16, &who) {
                    Ok(unwritten) => unwritten | cta.shared.dark(offset, 16),
                    fault => {
                        cta.tolerate(fault.map(drop), (self.index, self.place()))?;
                        cta.shared.dark(offset, 16)
                    }
                };
                *row = cta.shared.load(offset, 16);
                if unwritten != 0 {
                    any_dark = true;
                    dark[r] = widened(unwritten);
                }
            }
        }
        let frame_regs = self.frame(frame)?;
        let shaded = any_dark || frame_regs.shade.is_some();
        let turned = |rows: &Rows| if matrix.transposed { spread_transposed(rows) } else { spread(rows) };
        for (&slot, (rows, _)) in matrix.regs.iter().zip(&loaded) {
            frame_regs.regs.set_word(slot, active, &turned(rows));
        }
        for (m, (&slot, (_, dark))) in matrix.regs.iter().zip(&loaded).enumerate().filter(|_| shaded) {
            let address = Some(list[8 * m]);
            let here =
                Origin { at: self.at, lane: 8 * m, address, shared: true, global: false, computed: false };
            let origin = cta.origin_at(list[8 * m]).unwrap_or(here);
            for (lane, bits) in turned(dark).iter().enumerate() {
                self.shade_register(frame, (Bank::Word, slot, lane), (*bits).into(), Some(origin))?;
            }
        }
        Ok(())
    }

    /// An `ldmatrix` that nothing is wrong with; false if something may be, and nothing was loaded.
    fn load_matrix_at_once(
        &mut self,
        matrix: &Matrix,
        list: &[u64; LANES],
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome<bool> {
        let own = self.frame(frame)?;
        let addressed = FULL >> (LANES - 8 * matrix.regs.len());
        let Some(low) = shape::aligned(list, 0, addressed, 16).filter(|_| own.shade.is_none()) else {
            return Ok(false);
        };
        let who = self.who(0, None, cta);
        let shape = cta.shapes.at(self.at, &low, addressed, 16);
        let (least, most) = shape.range(low[0], 16);
        let base = low[0].wrapping_sub(window::SHARED_BASE as u32);
        let rows = shape.groups.iter().map(|(beyond, lanes)| {
            (*beyond, super::access::lanes(*lanes).fold(0, |all, lane| all | row_lanes(lane, lane % 8)))
        });
        if !cta.shared.is_own(least, most) || !cta.shared.note_reads(base, rows, 16, &who) {
            return Ok(false);
        }
        cta.counters.shared_load.add_known(shape.wavefronts, addressed, 16);
        let regs = &mut self.frame(frame)?.regs;
        for (m, &slot) in matrix.regs.iter().enumerate() {
            let row = |r: usize| cta.shared.row(low[8 * m + r].wrapping_sub(window::SHARED_BASE as u32));
            let rows: Rows = std::array::from_fn(row);
            let values = if matrix.transposed { spread_transposed(&rows) } else { spread(&rows) };
            regs.set_word(slot, active, &values);
        }
        Ok(true)
    }

    pub(super) fn store_matrix(
        &mut self,
        matrix: &Matrix,
        frame: usize,
        _active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &matrix.addr)
            .map(|address| shared_address(matrix.space, address));
        cta.counters.matrix(&list, matrix.regs.len(), true);
        for (m, &slot) in matrix.regs.iter().enumerate() {
            let mut rows = collect(&self.frame(frame)?.regs.word[slot as usize]);
            if matrix.transposed {
                rows = collect(&spread_transposed(&rows));
            }
            for (r, row) in rows.iter().enumerate() {
                let lane = 8 * m + r;
                check_alignment(cta, lane, list[lane], 16)?;
                let Some(offset) = cta.shared.offset(lane, list[lane], 16)? else { continue };
                let who = Who { lanes: row_lanes(lane, r), ..self.who(lane, None, cta) };
                let rank = cta.rank;
                cta.note_write(rank, offset, 16, row, &who, (self.index, self.place()))?;
                cta.shared.store(offset, 16, row);
            }
        }
        Ok(())
    }
}

/// A row is accessed for the four lanes that hold it, at the address of one.
fn row_lanes(lane: usize, row: usize) -> u32 {
    15 << (4 * row) | 1 << lane
}

/// A byte of ones for every bit.
fn widened(bytes: u32) -> [u32; 4] {
    std::array::from_fn(|word| {
        (0..4).filter(|b| bytes >> (4 * word + b) & 1 == 1).fold(0, |m, b| m | 0xff << (8 * b))
    })
}

fn spread(rows: &Rows) -> [u32; LANES] {
    std::array::from_fn(|lane| rows[lane / 4][lane % 4])
}

fn collect(values: &[u32; LANES]) -> Rows {
    std::array::from_fn(|row| std::array::from_fn(|t| values[4 * row + t]))
}

/// Lane gets elements (2t, g) and (2t+1, g), g = lane/4.
fn spread_transposed(rows: &Rows) -> [u32; LANES] {
    let mut turned = [0; LANES];
    for t in 0..4 {
        let (even, odd) = (&rows[2 * t], &rows[2 * t + 1]);
        for pair in 0..4 {
            turned[8 * pair + t] = even[pair] & 0xffff | odd[pair] << 16;
            turned[8 * pair + 4 + t] = even[pair] >> 16 | odd[pair] & 0xffff_0000;
        }
    }
    turned
}

/// `movmatrix`.
pub(super) fn transpose(regs: &mut Regs, result: Slot, value: Slot, active: u32) {
    let rows = collect(&regs.word[value as usize]);
    regs.set_word(result, active, &spread_transposed(&rows));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_twice_is_the_identity() {
        let values: [u32; LANES] =
            std::array::from_fn(|lane| (2 * lane as u32) | (2 * lane as u32 + 1) << 16);
        let once = spread_transposed(&collect(&values));
        // Element (r, c) is 8r + c: lane 1 holds (2, 0) and (3, 0) of the transpose's row 0.
        assert_eq!(once[1], 16 | 24 << 16);
        assert_eq!(spread_transposed(&collect(&once)), values);
        assert_eq!(spread(&collect(&values)), values);
    }
}
