//! A contiguous tensor of one rank, and the pieces of it that lie in one range of addresses.

use ferroflash::{ElementStrides, Layout};
use std::ops::Range;

/// `[batch, heads, rows, width]` without gaps, in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) batch: u32,
    pub(crate) heads: u32,
    pub(crate) rows: u32,
    pub(crate) width: u32,
    pub(crate) element_bytes: u32,
    pub(crate) layout: Layout,
}

impl Shape {
    /// The same with other rows.
    pub(crate) fn with_rows(self, rows: u32) -> Shape {
        Shape { rows, ..self }
    }

    /// The same with other heads.
    pub(crate) fn with_heads(self, heads: u32) -> Shape {
        Shape { heads, ..self }
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        [self.batch, self.heads, self.rows, self.width, self.element_bytes].map(u64::from).iter().product()
    }

    /// Elements between neighbours.
    pub(crate) fn strides(&self) -> ElementStrides {
        let [heads, rows, width] = [self.heads, self.rows, self.width].map(i64::from);
        match self.layout {
            Layout::Bshd => {
                ElementStrides { batch: heads * rows * width, head: width, row: heads * width, dim: 1 }
            }
            _ => ElementStrides { batch: heads * rows * width, head: rows * width, row: width, dim: 1 },
        }
    }

    /// Bytes from the start to an element.
    pub(crate) fn offset(&self, batch: u32, head: u32, row: u32) -> u64 {
        let strides = self.strides();
        let elements =
            i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(row) * strides.row;
        elements as u64 * u64::from(self.element_bytes)
    }

    /// The ranges of bytes (start, length) that some rows of some heads take, in the order of batch entries and heads. In layout `bshd` all
    /// heads of a row lie together, and all are meant.
    pub(crate) fn runs(&self, heads: Range<u32>, rows: Range<u32>) -> Vec<(u64, u64)> {
        if rows.is_empty() || heads.is_empty() {
            return Vec::new();
        }
        let row_bytes = u64::from(self.width) * u64::from(self.element_bytes);
        let count = u64::from(rows.end - rows.start);
        let at = |batch, head| self.offset(batch, head, rows.start);
        match self.layout {
            Layout::Bshd => (0..self.batch)
                .map(|batch| (at(batch, 0), count * row_bytes * u64::from(self.heads)))
                .collect(),
            _ => {
                let of_batch = |batch| heads.clone().map(move |head| (batch, head));
                let all = (0..self.batch).flat_map(of_batch);
                all.map(|(batch, head)| (at(batch, head), count * row_bytes)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_rows_asked_for() {
        let shape = Shape { batch: 2, heads: 3, rows: 5, width: 8, element_bytes: 2, layout: Layout::Bhsd };
        assert_eq!(shape.bytes(), 2 * 3 * 5 * 8 * 2);
        assert_eq!(shape.runs(1..3, 2..4), [(80 + 32, 32), (160 + 32, 32), (240 + 112, 32), (240 + 192, 32)]);
        let shape = Shape { layout: Layout::Bshd, ..shape };
        assert_eq!(shape.runs(0..3, 2..4), [(96, 96), (240 + 96, 96)]);
        assert!(shape.runs(0..3, 4..4).is_empty());
        assert_eq!(shape.offset(1, 2, 4), ((5 * 3 * 8) + 4 * 24 + 2 * 8) * 2);
    }
}
