//! `ldmatrix`, `stmatrix`, `movmatrix` (PTX ISA §9.7.14.5.15–17). Lane 8m + r addresses row r of matrix m; a lane holds
//! elements 2t and 2t+1 of row lane/4, where t = lane mod 4, or the same of the transposed matrix.
//!
//! Matrices of bytes are transposed always: of 16×16 a lane gets elements 4t to 4t+3 of rows lane/4 and lane/4 + 8 of what memory holds
//! as columns, of 16×8 it stores 2t and 2t+1 of these two rows.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::mark::Who;
use crate::op::{Matrix, MemoryOrder, Space, StoreBulk};
use crate::regs::{Bank, FULL, LANES, Regs, Slot};
use crate::window;

use super::access::{addresses, check_alignment};
use super::bulk::fits;
use super::cta::Cta;
use super::mbarrier::shared_address;
use super::shape;
use super::undefined::Origin;
use super::warp::{Frame, Warp};

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
                (who.lane, who.lanes) = (lane, holders(matrix, lane));
                let unwritten = match cta.shared.note_read(offset, 16, &who) {
                    Ok(unwritten) => unwritten | cta.shared.dark(offset, 16),
                    fault => {
                        cta.tolerate(fault.map(drop), (self.index, self.place()))?;
                        cta.shared.dark(offset, 16)
                    }
                };
                *row = unpacked(matrix, cta.shared.load(offset, 16));
                if unwritten != 0 {
                    any_dark = true;
                    dark[r] = unpacked(matrix, widened(unwritten));
                }
            }
        }
        let frame_regs = self.frame(frame)?;
        let shaded = any_dark || frame_regs.shade.is_some();
        let values = values(matrix, loaded.each_ref().map(|(rows, _)| rows));
        for (&slot, values) in matrix.regs.iter().zip(&values) {
            frame_regs.regs.set_word(slot, active, values);
        }
        let dark = self::values(matrix, loaded.each_ref().map(|(_, dark)| dark));
        for (m, (&slot, dark)) in matrix.regs.iter().zip(&dark).enumerate().filter(|_| shaded) {
            let address = Some(list[8 * m]);
            let here = Origin { shared: true, ..Origin::new(self.at, 8 * m, address) };
            let origin = cta.origin_at(list[8 * m]).unwrap_or(here);
            for (lane, bits) in dark.iter().enumerate() {
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
        let addressed = FULL >> (LANES - 8 * matrix.regs.len());
        let Some(low) = shape::aligned(list, 0, addressed, 16) else { return Ok(false) };
        let who = self.who(0, None, cta);
        let shape = cta.shapes.at(self.at, &low, addressed, 16);
        let (least, most) = shape.range(low[0], 16);
        let base = low[0].wrapping_sub(window::SHARED_BASE as u32);
        let rows = shape.groups.iter().map(|(beyond, lanes)| {
            (*beyond, super::access::lanes(*lanes).fold(0, |all, lane| all | holders(matrix, lane)))
        });
        if !cta.shared.is_own(least, most) || !cta.shared.note_reads(base, rows, 16, &who) {
            return Ok(false);
        }
        cta.counters.shared_load.add_known(shape.wavefronts, addressed, 16);
        let Frame { regs, shade, .. } = self.frame(frame)?;
        // Nothing that is loaded is undefined.
        if let Some(shade) = shade {
            matrix.regs.iter().for_each(|slot| shade.clear(Bank::Word, *slot, FULL));
        }
        let row = |lane: usize| {
            unpacked(matrix, cta.shared.row(low[lane].wrapping_sub(window::SHARED_BASE as u32)))
        };
        if matrix.of_bytes {
            let addressed = |lane: &usize| *lane < 8 * matrix.regs.len();
            let rows: [Rows; 4] = std::array::from_fn(|m| {
                std::array::from_fn(|r| Some(8 * m + r).filter(addressed).map_or([0; 4], row))
            });
            for (&slot, values) in matrix.regs.iter().zip(&values(matrix, rows.each_ref())) {
                regs.set_word(slot, active, values);
            }
            return Ok(true);
        }
        for (m, &slot) in matrix.regs.iter().enumerate() {
            let rows: Rows = std::array::from_fn(|r| row(8 * m + r));
            let values = if matrix.transposed { spread_transposed(&rows) } else { spread(&rows) };
            regs.set_word(slot, active, &values);
        }
        Ok(true)
    }

    /// `st.bulk` (PTX ISA §9.7.9.13): zeroes a range of the CTA's shared memory.
    pub(super) fn store_bulk(
        &mut self,
        op: &StoreBulk,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        const MOST_BYTES: u64 = 1 << 24;
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        for lane in super::access::lanes(active) {
            let size = self.frame(frame)?.regs.bits(op.size.bank, op.size.slot, lane);
            if size % 8 != 0 || size > MOST_BYTES {
                let detail = "the size of st.bulk is a multiple of 8, and 16 MiB at most";
                return Err(Fault::at(FindingKind::BadOperand, lane, size).saying(detail));
            }
            let address = shared_address(op.space, list[lane]);
            fits(size, lane, address, cta)?;
            for at in (0..size).step_by(8) {
                let (address, part) = (address.wrapping_add(at), (lane, 8));
                self.write(Space::Shared, address, part, &[0; 4], MemoryOrder::WEAK, frame, cta)?;
                self.shade_stored(Space::Shared, address, part, (0, None), frame, cta)?;
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
        let list = addresses(&self.frame(frame)?.regs, &matrix.addr)
            .map(|address| shared_address(matrix.space, address));
        cta.counters.matrix(&list, matrix.regs.len(), true);
        for (m, &slot) in matrix.regs.iter().enumerate() {
            let values = &self.frame(frame)?.regs.word[slot as usize];
            let mut rows = if matrix.of_bytes { collect_bytes(values) } else { collect(values) };
            if matrix.transposed && !matrix.of_bytes {
                rows = collect(&spread_transposed(&rows));
            }
            for (r, row) in rows.iter().enumerate() {
                let lane = 8 * m + r;
                check_alignment(cta, lane, list[lane], 16)?;
                let Some(offset) = cta.shared.offset(lane, list[lane], 16)? else { continue };
                let who = Who { lanes: holders(matrix, lane), ..self.who(lane, None, cta) };
                let rank = cta.rank;
                cta.note_write(rank, offset, 16, row, &who, (self.index, self.place()))?;
                cta.shared.store(offset, 16, row);
            }
        }
        Ok(())
    }
}

/// A row of memory, with a byte for each of its 16 elements where they have less there: the bits above are zeros.
fn unpacked(matrix: &Matrix, row: [u32; 4]) -> [u32; 4] {
    let Some(bits) = matrix.packed_bits else { return row };
    let all = row.iter().rev().fold(0u128, |all, word| all << 32 | u128::from(*word));
    let element = |at: u32| (all >> (bits * at)) as u32 & ((1 << bits) - 1);
    std::array::from_fn(|word| (0..4).fold(0, |sum, i| sum | element(4 * word as u32 + i) << (8 * i)))
}

/// The row that a lane addresses is accessed for the lanes that hold it, at the address of one.
fn holders(matrix: &Matrix, lane: usize) -> u32 {
    // Every fourth lane holds four rows of 16×16 bytes, or two of the eight columns of 16×8.
    const FOURTH: u32 = 0x1111_1111;
    let held = match (matrix.of_bytes, matrix.loads) {
        (false, _) => 15 << (4 * (lane % 8)),
        (true, true) => FOURTH << (lane % 16 / 4),
        (true, false) => FOURTH << (lane % 8 / 2),
    };
    held | 1 << lane
}

/// What the lanes get of the rows, a register each.
fn values(matrix: &Matrix, rows: [&Rows; 4]) -> [[u32; LANES]; 4] {
    if matrix.of_bytes {
        let byte =
            |row: usize, column: usize| rows[row / 8][row % 8][column / 4] >> (8 * (column % 4)) & 0xff;
        // Two registers hold a matrix.
        return std::array::from_fn(|at| {
            std::array::from_fn(|lane| {
                let (row, column) = (16 * (at / 2) + 4 * (lane % 4), lane / 4 + 8 * (at % 2));
                (0..4).fold(0, |word, i| word | byte(row + i, column) << (8 * i))
            })
        });
    }
    rows.map(|rows| if matrix.transposed { spread_transposed(rows) } else { spread(rows) })
}

/// The columns of 16×8 bytes, each as a row of memory.
fn collect_bytes(values: &[u32; LANES]) -> Rows {
    let byte = |column: usize, row: usize| {
        values[4 * (row % 8) + column / 2] >> (8 * (2 * (row / 8) + column % 2)) & 0xff
    };
    std::array::from_fn(|column| {
        std::array::from_fn(|word| (0..4).fold(0, |sum, i| sum | byte(column, 4 * word + i) << (8 * i)))
    })
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
    use crate::op::Addr;

    #[test]
    fn bytes_that_are_stored_come_back_by_a_load_in_another_order() {
        // Element (row, column) of the 16×16 that memory holds is 16·row + column.
        let byte = |row: usize, word: usize| {
            (0..4).fold(0, |w, i| w | (16 * row as u32 + 4 * word as u32 + i) << (8 * i))
        };
        let half =
            |from: usize| -> Rows { std::array::from_fn(|r| std::array::from_fn(|w| byte(from + r, w))) };
        let addr = Addr { bank: Bank::Word, slot: 0, offset: 0 };
        let (space, regs) = (Space::Shared, vec![0; 2]);
        let matrix =
            Matrix { space, addr, transposed: true, of_bytes: true, packed_bits: None, loads: true, regs };
        let (low, high) = (half(0), half(8));
        let got = values(&matrix, [&low, &high, &low, &low]);
        // Lane 5 has rows 4 to 7 of columns 1 and 9.
        assert_eq!(got[0][5].to_le_bytes(), [65, 81, 97, 113]);
        assert_eq!(got[1][5].to_le_bytes(), [73, 89, 105, 121]);
        // Lane 5 stores columns 1 and 9 of rows 2 and 3.
        let stored = std::array::from_fn(|lane| if lane == 5 { u32::from_le_bytes([1, 2, 3, 4]) } else { 0 });
        let rows = collect_bytes(&stored);
        assert_eq!((rows[2], rows[3]), ([0x100, 0, 0x300, 0], [0x200, 0, 0x400, 0]));
        // Every byte has a place of its own.
        let places: Rows =
            collect_bytes(&std::array::from_fn(|lane| 0x0302_0100 + 0x0404_0404 * lane as u32));
        let mut bytes: Vec<u8> = places.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        bytes.sort_unstable();
        assert!(bytes.into_iter().eq(0..128));
    }

    #[test]
    fn short_elements_become_bytes() {
        let addr = Addr { bank: Bank::Word, slot: 0, offset: 0 };
        let (space, regs) = (Space::Shared, vec![0]);
        let mut matrix = Matrix {
            space,
            addr,
            transposed: false,
            of_bytes: false,
            packed_bits: Some(4),
            loads: true,
            regs,
        };
        let row = [0x7654_3210, 0xfedc_ba98, !0, !0];
        assert_eq!(unpacked(&matrix, row), [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c]);
        matrix.packed_bits = Some(6);
        // Elements 1, 2, 3, …, 16 of six bits each, and padding.
        let all = (0..16).fold(0u128, |all, at| all | (at + 1) << (6 * at)) | !0 << 96;
        let row = std::array::from_fn(|word| (all >> (32 * word)) as u32);
        assert_eq!(unpacked(&matrix, row), [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d]);
    }

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
