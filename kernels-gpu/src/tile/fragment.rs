//! Which (lane, register) holds which (row, column) in the fragments of mma.m16n8k16 and ldmatrix.
//!
//! Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix". With g = lane / 4 and t = lane % 4,
//! a lane's two neighbouring elements lie in columns 2t and 2t + 1 of row g (and of row g + 8).
//! Getting a map wrong does not fail, it only computes something else: each map has its inverse and a proof
//! that it is a bijection.

/// Row and column in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Row of the tile.
    pub row: u32,
    /// Column of the tile.
    pub column: u32,
}

/// Where an element of the 16×8 accumulator lies: `register` 0..4 of `lane` 0..32.
pub const fn accumulator_place(lane: u32, register: u32) -> Place {
    Place { row: lane / 4 + 8 * (register / 2), column: lane % 4 * 2 + register % 2 }
}

/// The lane and register that hold an element of the 16×8 accumulator.
pub const fn accumulator_holder(place: Place) -> (u32, u32) {
    (place.row % 8 * 4 + place.column / 2, place.row / 8 * 2 + place.column % 2)
}

/// Where an element of the 16×16 A operand lies: `element` 0..8 of `lane`, two a register.
pub const fn a_place(lane: u32, element: u32) -> Place {
    Place { row: lane / 4 + 8 * (element / 2 % 2), column: lane % 4 * 2 + element % 2 + 8 * (element / 4) }
}

/// The lane and element that hold an element of the 16×16 A operand.
pub const fn a_holder(place: Place) -> (u32, u32) {
    (place.row % 8 * 4 + place.column % 8 / 2, place.column / 8 * 4 + place.row / 8 * 2 + place.column % 2)
}

/// Where an element of the 16×8 B operand (row = k, column = n) lies: `element` 0..4 of `lane`.
pub const fn b_place(lane: u32, element: u32) -> Place {
    Place { row: lane % 4 * 2 + element % 2 + 8 * (element / 2), column: lane / 4 }
}

/// The lane and element that hold an element of the 16×8 B operand.
pub const fn b_holder(place: Place) -> (u32, u32) {
    (place.column * 4 + place.row % 8 / 2, place.row / 8 * 2 + place.row % 2)
}

/// The row of a 16×16 tile whose address `lane` gives to ldmatrix.x4, and its 8-element chunk (0 or 1), such
/// that the four matrices arrive as the registers of an A operand: rows 0–7 and 8–15 of the left half, then of
/// the right half. With `.trans` and rows = keys, the same addresses give two B operands of P·V, side by side.
pub const fn ldmatrix_a_source(lane: u32) -> (u32, u32) {
    (lane % 16, lane / 16)
}

/// As [`ldmatrix_a_source`], for two B operands of Q·Kᵀ from a tile whose rows are keys: registers 0 and 1 are
/// keys 0–7, registers 2 and 3 keys 8–15.
pub const fn ldmatrix_b_source(lane: u32) -> (u32, u32) {
    (lane % 8 + lane / 16 * 8, lane / 8 % 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that `place` and `holder` are each other's inverse and cover rows × columns exactly once.
    fn assert_bijection(
        elements: u32,
        (rows, columns): (u32, u32),
        place: impl Fn(u32, u32) -> Place,
        holder: impl Fn(Place) -> (u32, u32),
    ) {
        let mut seen = vec![false; (rows * columns) as usize];
        for lane in 0..32 {
            for element in 0..elements {
                let at = place(lane, element);
                assert!(at.row < rows && at.column < columns, "{at:?}");
                assert_eq!(holder(at), (lane, element), "{at:?}");
                assert!(!std::mem::replace(&mut seen[(at.row * columns + at.column) as usize], true));
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn accumulator_map_is_a_bijection() {
        assert_bijection(4, (16, 8), accumulator_place, accumulator_holder);
    }

    #[test]
    fn a_map_is_a_bijection() {
        assert_bijection(8, (16, 16), a_place, a_holder);
    }

    #[test]
    fn b_map_is_a_bijection() {
        assert_bijection(4, (16, 8), b_place, b_holder);
    }

    /// What register `register` of `lane` receives from ldmatrix.x4 when lane l names row and chunk `source(l)`:
    /// matrix `register`, row lane / 4, elements lane % 4 · 2 and the next. `.trans` swaps row and element.
    fn loaded(source: fn(u32) -> (u32, u32), lane: u32, register: u32, half: u32, trans: bool) -> Place {
        let (major, minor) = (lane / 4, lane % 4 * 2 + half);
        let (row, element) = if trans { (minor, major) } else { (major, minor) };
        let (tile_row, chunk) = source(register * 8 + row);
        Place { row: tile_row, column: chunk * 8 + element }
    }

    #[test]
    fn ldmatrix_delivers_the_a_operand() {
        for lane in 0..32 {
            for element in 0..8 {
                let got = loaded(ldmatrix_a_source, lane, element / 2, element % 2, false);
                assert_eq!(got, a_place(lane, element));
            }
        }
    }

    #[test]
    fn ldmatrix_delivers_two_b_operands_of_q_kt() {
        for lane in 0..32 {
            for operand in 0..2 {
                for element in 0..4 {
                    let got = loaded(ldmatrix_b_source, lane, operand * 2 + element / 2, element % 2, false);
                    // Rows of the tile are keys (n), columns are head_dim (k).
                    let want = b_place(lane, element);
                    assert_eq!(got, Place { row: want.column + operand * 8, column: want.row });
                }
            }
        }
    }

    #[test]
    fn ldmatrix_trans_delivers_two_b_operands_of_p_v() {
        for lane in 0..32 {
            for operand in 0..2 {
                for element in 0..4 {
                    let got = loaded(ldmatrix_a_source, lane, operand * 2 + element / 2, element % 2, true);
                    // Rows of the tile are keys (k), columns are head_dim (n).
                    let want = b_place(lane, element);
                    assert_eq!(got, Place { row: want.row, column: want.column + operand * 8 });
                }
            }
        }
    }

    #[test]
    fn packed_scores_are_the_a_operand_of_p_v() {
        // Registers of two neighbouring accumulators, packed in pairs, must be the A operand's registers.
        for lane in 0..32 {
            for register in 0..4 {
                let (tile, pair) = (register / 2, register % 2);
                for half in 0..2 {
                    let score = accumulator_place(lane, pair * 2 + half);
                    let at = Place { row: score.row, column: score.column + tile * 8 };
                    assert_eq!(at, a_place(lane, register * 2 + half));
                }
            }
        }
    }
}
