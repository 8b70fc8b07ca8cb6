//! `ldmatrix`, `stmatrix`, `movmatrix` (PTX ISA §9.7.14.5.15–17). Lane 8m + r addresses row r of matrix m; a lane holds
//! elements 2t and 2t+1 of row lane/4, where t = lane mod 4, or the same of the transposed matrix.

use crate::finding::{FindingKind, Outcome};
use crate::mark::Who;
use crate::op::Matrix;
use crate::regs::{Bank, LANES, Regs, Slot};

use super::access::{addresses, check_alignment};
use super::cta::Cta;
use super::shade::Origin;
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
        let list = addresses(&self.frame(frame)?.regs, &matrix.addr);
        cta.counters.matrix(&list, matrix.regs.len(), false);
        for (m, &slot) in matrix.regs.iter().enumerate() {
            let (mut rows, mut dark): (Rows, Rows) = ([[0; 4]; 8], [[0; 4]; 8]);
            for (r, row) in rows.iter_mut().enumerate() {
                let lane = 8 * m + r;
                check_alignment(cta, lane, list[lane], 16)?;
                let Some(offset) = cta.shared.offset(lane, list[lane], 16)? else { continue };
                let who = self.row_access(lane, r, cta);
                let unwritten = cta.shared.unwritten(offset, 16);
                for byte in (0..16).filter(|b| unwritten >> b & 1 == 1) {
                    dark[r][byte / 4] |= 0xff << (8 * (byte % 4));
                }
                let noted = cta.shared.note_read(offset, 16, &who);
                match cta.tolerate(noted, (self.index, self.at)) {
                    Err(fault) if fault.kind == FindingKind::Uninitialized => {}
                    outcome => outcome?,
                }
                *row = cta.shared.load(offset, 16);
            }
            let turned = |rows| if matrix.transposed { spread_transposed(rows) } else { spread(rows) };
            self.frame(frame)?.regs.set_word(slot, active, &turned(&rows));
            let values = turned(&dark);
            let address = Some(list[8 * m]);
            let origin =
                Origin { at: self.at, lane: 8 * m, address, shared: true, global: false, computed: false };
            for (lane, bits) in values.iter().enumerate() {
                self.shade_register(frame, (Bank::Word, slot, lane), (*bits).into(), Some(origin))?;
            }
        }
        Ok(())
    }

    pub(super) fn store_matrix(
        &mut self,
        matrix: &Matrix,
        frame: usize,
        _active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &matrix.addr);
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
                let who = self.row_access(lane, r, cta);
                let rank = cta.rank;
                cta.note_write(rank, offset, 16, row, &who, (self.index, self.at))?;
                cta.shared.store(offset, 16, row);
            }
        }
        Ok(())
    }

    /// A row is accessed for the four lanes that hold it, at the address of one.
    fn row_access(&self, lane: usize, row: usize, cta: &Cta<'_>) -> Who<'_> {
        Who { lanes: 15 << (4 * row) | 1 << lane, ..self.who(lane, None, cta) }
    }
}

fn spread(rows: &Rows) -> [u32; LANES] {
    std::array::from_fn(|lane| rows[lane / 4][lane % 4])
}

fn collect(values: &[u32; LANES]) -> Rows {
    std::array::from_fn(|row| std::array::from_fn(|t| values[4 * row + t]))
}

/// Lane gets elements (2t, g) and (2t+1, g), g = lane/4.
fn spread_transposed(rows: &Rows) -> [u32; LANES] {
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        let half = |row: usize| rows[row][g / 2] >> (16 * (g % 2)) & 0xffff;
        half(2 * t) | half(2 * t + 1) << 16
    })
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
