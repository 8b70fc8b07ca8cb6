//! The rows that a search may propose: the table's columns with the values they may have, pruned by [`Row::check`].

use super::Rng;
use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Isa, Row};
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};

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
    columns: Vec<Column>,
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
        Self { columns, rows, start }
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

    /// Only the rows for which `keep` holds: those a device has room for, or those that a recording knows.
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

    /// In how many columns two rows differ.
    pub fn distance(&self, a: &Row, b: &Row) -> usize {
        self.columns.iter().filter(|column| column.value(a) != column.value(b)).count()
    }

    /// The rows that differ from `row` in one column, whether or not `row` itself is feasible.
    pub fn neighbours(&self, row: &Row) -> Vec<Row> {
        self.rows.iter().copied().filter(|other| self.distance(row, other) == 1).collect()
    }

    /// An untried row that differs from `row` in one column. Each column is as likely as another, however many values it has: a
    /// column of many values that hardly matter must not take all the steps.
    pub fn step(&self, row: &Row, tried: &BTreeSet<Row>, rng: &mut Rng) -> Option<Row> {
        let mut by_column: BTreeMap<usize, Vec<Row>> = BTreeMap::new();
        for other in self.neighbours(row).into_iter().filter(|other| !tried.contains(other)) {
            let differs = |column: &Column| column.value(row) != column.value(&other);
            let column = self.columns.iter().position(differs).unwrap_or_default();
            by_column.entry(column).or_default().push(other);
        }
        let columns: Vec<&Vec<Row>> = by_column.values().collect();
        columns.choose(rng)?.choose(rng).copied()
    }

    /// A row that has each column from one or the other of two: a feasible one that is neither, if there is any.
    pub fn crossover(&self, a: &Row, b: &Row, rng: &mut Rng) -> Option<Row> {
        let is_between = |row: &&Row| {
            *row != a && *row != b && {
                let from_one =
                    |column: &Column| [column.value(a), column.value(b)].contains(&column.value(row));
                self.columns.iter().all(from_one)
            }
        };
        let between: Vec<Row> = self.rows.iter().filter(is_between).copied().collect();
        between.choose(rng).copied()
    }

    /// Any row that is not in `tried`.
    pub fn random(&self, tried: &BTreeSet<Row>, rng: &mut Rng) -> Option<Row> {
        let untried: Vec<Row> = self.rows.iter().filter(|row| !tried.contains(row)).copied().collect();
        untried.choose(rng).copied()
    }

    /// Of a few untried rows the one that is most unlike all tried ones.
    pub fn unlike(&self, tried: &BTreeSet<Row>, rng: &mut Rng) -> Option<Row> {
        const DRAWN: usize = 12;
        let drawn: Vec<Row> = (0..DRAWN).filter_map(|_| self.random(tried, rng)).collect();
        let nearest = |row: &Row| tried.iter().map(|other| self.distance(row, other)).min();
        drawn.into_iter().rev().max_by_key(nearest)
    }

    /// What a model sees of a row: each value of each column as 0 or 1, its place among the column's values, and what
    /// follows from the row by arithmetic, in logarithms where products matter.
    pub fn features(&self, row: &Row) -> Vec<f64> {
        let mut features = Vec::new();
        for column in &self.columns {
            let value = column.value(row);
            features.push(value.map_or(-1.0, |value| value as f64));
            if column.values > 2 {
                features.extend((0..column.values).map(|other| f64::from(u8::from(value == Some(other)))));
            }
        }
        let log2 = |n: u32| f64::from(n.max(1)).log2();
        features.extend([
            log2(geometry::smem_bytes(row)),
            f64::from(geometry::registers_estimate(row)) / 32.0,
            f64::from(geometry::registers_limit(row)) / 32.0,
            log2(geometry::threads(row)),
            log2(geometry::warps_n(row)),
            log2(geometry::m_tiles(row)),
            log2(geometry::keys_per_warp(row)),
            f64::from(u8::from(geometry::q_in_registers(row))),
            log2(ctas_per_sm(row)),
            log2(row.block_m * row.block_n),
        ]);
        features
    }
}

/// CTAs that an SM of the family can hold at once, by shared memory and registers, estimated.
fn ctas_per_sm(row: &Row) -> u32 {
    const REGISTERS_PER_SM: u32 = 65536;
    let by_smem = kernels_gpu::row::SMEM_OPT_IN_BYTES / geometry::smem_bytes(row).max(1);
    let by_registers = REGISTERS_PER_SM / (geometry::registers_estimate(row) * geometry::threads(row)).max(1);
    by_smem.min(by_registers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::rng;
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

    #[test]
    fn an_infeasible_value_is_pruned_before_anything_is_compiled() {
        let bf16 = VARIANTS.iter().find(|variant| variant.row.dtype == Dtype::Bf16).expect("a row").row;
        assert!(Space::new(bf16).rows().iter().all(|row| row.acc == Accumulation::F32));
    }

    #[test]
    fn neighbours_differ_in_one_column() {
        let (space, row) = (Space::new(usual_row()), usual_row());
        let neighbours = space.neighbours(&row);
        assert!(neighbours.contains(&Row { stages: 1, ..row }));
        assert!(!neighbours.contains(&row));
        assert!(neighbours.iter().all(|other| space.distance(&row, other) == 1));
    }

    #[test]
    fn steps_are_as_likely_in_one_column_as_in_another() {
        let (space, row) = (Space::new(usual_row()), usual_row());
        let steps: Vec<Row> =
            (0..400).filter_map(|step| space.step(&row, &BTreeSet::new(), &mut rng(2, step))).collect();
        assert_eq!(steps.len(), 400);
        assert!(steps.iter().all(|other| space.distance(&row, other) == 1));
        let stages = steps.iter().filter(|other| other.stages != row.stages).count();
        let min_ctas = steps.iter().filter(|other| other.min_ctas != row.min_ctas).count();
        assert!(stages * 3 > min_ctas * 2 && stages * 2 < min_ctas * 3, "{stages} and {min_ctas}");
        let all = space.neighbours(&row).into_iter().collect();
        assert_eq!(space.step(&row, &all, &mut rng(2, 0)), None, "all tried");
    }

    #[test]
    fn rows_unlike_the_tried_ones_are_far_from_them() {
        let (space, tried) = (Space::new(usual_row()), BTreeSet::from([usual_row()]));
        let distance = |row: Option<Row>| space.distance(&usual_row(), &row.expect("a row"));
        let mean =
            |draw: &dyn Fn(usize) -> Option<Row>| -> usize { (0..40).map(|i| distance(draw(i))).sum() };
        let unlike = mean(&|i| space.unlike(&tried, &mut rng(3, i)));
        assert!(unlike > mean(&|i| space.random(&tried, &mut rng(3, i))));
        let all = space.rows().iter().copied().collect();
        assert_eq!(space.unlike(&all, &mut rng(3, 0)), None);
    }

    #[test]
    fn a_crossing_takes_every_column_from_a_parent() {
        let a = Row { block_m: 32, block_n: 32, stages: 1, ..usual_row() };
        let b = Row { block_m: 64, block_n: 64, stages: 3, ..usual_row() };
        let space = Space::new(a);
        for step in 0..50 {
            let child = space.crossover(&a, &b, &mut rng(1, step)).expect("a child");
            assert!(child != a && child != b && space.contains(&child));
            assert!([32, 64].contains(&child.block_m) && [1, 3].contains(&child.stages));
        }
        let near = Row { stages: 2, ..a };
        assert_eq!(space.crossover(&a, &near, &mut rng(1, 0)), None, "nothing lies between neighbours");
    }

    #[test]
    fn tried_rows_are_never_drawn_and_an_empty_space_gives_none() {
        let space = Space::new(usual_row());
        let mut tried = BTreeSet::new();
        while let Some(row) = space.random(&tried, &mut rng(5, tried.len())) {
            assert!(tried.insert(row));
        }
        assert_eq!(tried.len(), space.rows().len());
        let none = space.restricted(|_| false);
        assert_eq!(none.random(&BTreeSet::new(), &mut rng(0, 0)), None);
    }

    #[test]
    fn features_have_one_length() {
        let space = Space::new(usual_row());
        let lengths: HashSet<usize> = space.rows().iter().map(|row| space.features(row).len()).collect();
        assert_eq!(lengths.len(), 1);
    }
}
