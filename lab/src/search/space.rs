//! The rows that a search may propose: the table's columns with the values they may have, pruned by [`Row::check`].

use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Isa, Row};
use std::collections::BTreeSet;

/// One column of a row that a search varies.
#[derive(Clone, Copy)]
pub struct Column {
    /// The column's name.
    pub name: &'static str,
    /// How many values it may have.
    pub values: usize,
    read: fn(&Row) -> Option<usize>,
    write: fn(&mut Row, usize),
    label: fn(usize) -> String,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} values", self.name, self.values)
    }
}

impl Column {
    /// Which of the column's values the row has; none for a value that the search does not know.
    pub fn value(&self, row: &Row) -> Option<usize> {
        (self.read)(row)
    }

    /// The row with value number `value` (below [`Self::values`]) in this column.
    pub fn with(&self, row: &Row, value: usize) -> Row {
        let mut row = *row;
        (self.write)(&mut row, value);
        row
    }

    /// Value number `value` as people read it.
    pub fn label(&self, value: usize) -> String {
        (self.label)(value)
    }
}

macro_rules! column {
    ($field:ident: $kind:ty = $($value:expr),+) => {{
        const VALUES: &[$kind] = &[$($value),+];
        Column {
            name: stringify!($field),
            values: VALUES.len(),
            read: |row| VALUES.iter().position(|value| *value == row.$field),
            write: |row, value| row.$field = VALUES[value],
            label: |value| format!("{:?}", VALUES[value]),
        }
    }};
}

/// The columns that a search varies. dtype and head_dim are the problem's, isa and schedule are the start's, so they are not among
/// them.
pub fn columns(isa: Isa) -> Vec<Column> {
    if isa == Isa::Wgmma {
        return vec![
            // How many warps there are follows from block_m and how many share its rows.
            Column {
                write: |row, value| {
                    let sharing = geometry::warps_n(row);
                    row.block_m = [64, 128, 192][value];
                    set_warps(row, sharing);
                },
                ..column!(block_m: u32 = 64, 128, 192)
            },
            Column {
                name: "warps",
                values: 2,
                read: |row| (geometry::warps_n(row) as usize).checked_sub(1).filter(|&value| value < 2),
                write: |row, value| set_warps(row, value as u32 + 1),
                label: |value| format!("{} sharing rows", value + 1),
            },
            column!(block_n: u32 = 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
            column!(stages: u32 = 1, 2, 3, 4),
            column!(min_ctas: u32 = 1, 2, 3),
        ];
    }
    vec![
        column!(block_m: u32 = 16, 32, 64, 128),
        column!(block_n: u32 = 32, 64, 128),
        column!(warps: u32 = 4, 8),
        column!(stages: u32 = 1, 2, 3, 4),
        column!(acc: Accumulation = Accumulation::F32, Accumulation::F16),
        column!(min_ctas: u32 = 1, 2, 3, 4, 5, 6, 7, 8),
        column!(warp_rows: u32 = 16, 32),
    ]
}

/// Gives a row with wgmma as many warps as make up its block, so many of them sharing its rows.
fn set_warps(row: &mut Row, sharing: u32) {
    row.warps = row.block_m / 16 * sharing + geometry::PRODUCER_WARPS;
}

/// The feasible rows of one dtype and head_dim, in one fixed order.
#[derive(Clone, Debug)]
pub struct Space {
    rows: Vec<Row>,
    start: Row,
}

impl Space {
    /// Every feasible row with the isa, dtype, head_dim and schedule of `start`, where the search begins.
    pub fn new(start: Row) -> Self {
        let columns = columns(start.isa);
        let mut rows = vec![start];
        for column in &columns {
            rows =
                rows.iter().flat_map(|row| (0..column.values).map(|value| column.with(row, value))).collect();
        }
        rows.retain(|row| row.check().is_ok());
        Self { rows, start }
    }

    /// The rows of a list that have the dtype, head_dim and schedule of `start`: those of [`Space::new`] in its order, so that the
    /// same rows make the same search, then those with values that no column knows.
    pub fn of_rows(start: Row, rows: &[Row]) -> Self {
        let mut space = Self::new(start).restricted(|row| rows.contains(row));
        let is_searched = |row: &Row| {
            (row.dtype, row.head_dim, row.schedule) == (start.dtype, start.head_dim, start.schedule)
                && row.check().is_ok()
        };
        let others: BTreeSet<Row> =
            rows.iter().copied().filter(|row| is_searched(row) && !space.contains(row)).collect();
        space.rows.extend(others);
        space
    }

    /// Only the rows for which `keep` holds: those a device has room for, or of a folder.
    pub fn restricted(mut self, keep: impl Fn(&Row) -> bool) -> Self {
        self.rows.retain(keep);
        self
    }

    /// Where the search begins, feasible or not.
    pub fn start(&self) -> Row {
        self.start
    }

    /// Every row.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether a row may be proposed.
    pub fn contains(&self, row: &Row) -> bool {
        self.rows.contains(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::usual_row;
    use kernels_gpu::row::Dtype;
    use kernels_gpu::table::VARIANTS;
    use std::collections::HashSet;

    #[test]
    fn every_row_of_the_table_is_in_its_space_so_no_value_is_forgotten() {
        for variant in VARIANTS {
            assert!(Space::new(variant.row).contains(&variant.row), "{}", variant.entry);
        }
    }

    #[test]
    fn rows_of_a_list_are_searched_in_the_order_of_the_whole_space() {
        let start = usual_row();
        let whole = Space::new(start);
        let mut rows = whole.rows().to_vec();
        rows.reverse();
        assert_eq!(Space::of_rows(start, &rows).rows(), whole.rows());
        let listed = [rows[5], Row { head_dim: 128, ..start }, rows[9], Row { stages: 9, ..start }];
        assert_eq!(Space::of_rows(start, &listed).rows(), [rows[9], rows[5]], "others are not searched");
        assert!(Space::of_rows(start, &[]).rows().is_empty());
    }

    #[test]
    fn rows_are_feasible_and_have_entry_names_of_their_own() {
        for start in VARIANTS.iter().map(|variant| variant.row) {
            let space = Space::new(start);
            let names: HashSet<String> = space.rows().iter().map(Row::entry_name).collect();
            assert_eq!(names.len(), space.rows().len());
            for row in space.rows() {
                assert_eq!(row.check(), Ok(()));
                assert_eq!((row.isa, row.dtype, row.head_dim), (start.isa, start.dtype, start.head_dim));
            }
        }
    }

    /// As docs/tiles.md says.
    #[test]
    fn of_54_tiles_45_fit_an_l4_and_33_fit_48_kb() {
        let space = Space::new(Row { acc: Accumulation::F32, ..usual_row() });
        let fit = |bytes: u32| {
            let tile = |row: &&Row| {
                [32, 64, 128].contains(&row.block_m)
                    && row.stages < 4
                    && row.acc == Accumulation::F32
                    && geometry::smem_bytes(row) <= bytes
            };
            let tiles = space.rows().iter().filter(tile);
            tiles.map(|row| (row.block_m, row.block_n, row.warps, row.stages)).collect::<HashSet<_>>().len()
        };
        assert_eq!([u32::MAX, 99 << 10, 48 << 10].map(fit), [51, 45, 33]);
    }

    #[test]
    fn an_infeasible_value_is_pruned_before_anything_is_compiled() {
        let bf16 = VARIANTS.iter().find(|variant| variant.row.dtype == Dtype::Bf16).expect("a row").row;
        assert!(Space::new(bf16).rows().iter().all(|row| row.acc == Accumulation::F32));
    }
}
