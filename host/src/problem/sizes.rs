//! The four tensors of a problem, and their sizes.

use crate::error::Error;
use kernels_gpu::row::HEAD_DIMS;

/// The longest sequence and the largest batch or head count: rounded up to a block, it still fits the kernels' 32-bit positions.
pub(super) const SIZE_MAX: u32 = (1 << 31) - 128;

/// One of the four tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Queries `[batch, heads_q, seqlen_q, head_dim]`.
    Q,
    /// Keys `[batch, heads_kv, seqlen_k, head_dim]`.
    K,
    /// Values `[batch, heads_kv, seqlen_k, head_dim]`.
    V,
    /// Output `[batch, heads_q, seqlen_q, head_dim]`.
    O,
}

impl TensorRole {
    /// All four, in the order of the parameters.
    pub const ALL: [TensorRole; 4] = [TensorRole::Q, TensorRole::K, TensorRole::V, TensorRole::O];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            TensorRole::Q => "Q",
            TensorRole::K => "K",
            TensorRole::V => "V",
            TensorRole::O => "O",
        }
    }
}

/// The sizes of a problem. Each is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Batch entries.
    pub batch: u32,
    /// Query heads: a multiple of `heads_kv`.
    pub heads_q: u32,
    /// Key and value heads.
    pub heads_kv: u32,
    /// Query rows.
    pub seqlen_q: u32,
    /// Keys.
    pub seqlen_k: u32,
    /// Elements of a query, key and value vector.
    pub head_dim: u32,
}

/// The dimensions of one tensor: batch entries (1 where sequences are packed, pages where keys lie in pages), heads, rows, and elements of
/// a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Batch entries, or pages.
    pub batch: u32,
    /// Heads.
    pub heads: u32,
    /// Rows: of a sequence, of all packed sequences, or of a page.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
}

impl Extent {
    /// Elements of a tensor without gaps.
    pub(super) fn elements(&self) -> usize {
        [self.batch, self.heads, self.rows, self.width].into_iter().map(|n| n as usize).product()
    }
}

impl Sizes {
    pub(super) fn check(&self) -> Result<(), Error> {
        let named = [
            ("Q", "batch", self.batch, SIZE_MAX),
            ("Q", "heads_q", self.heads_q, SIZE_MAX),
            ("K", "heads_kv", self.heads_kv, SIZE_MAX),
            ("Q", "seqlen_q", self.seqlen_q, SIZE_MAX),
            ("K", "seqlen_k", self.seqlen_k, SIZE_MAX),
            ("Q", "head_dim", self.head_dim, u32::MAX),
        ];
        for (tensor, dimension, size, limit) in named {
            if size == 0 {
                return Err(Error::ZeroSized { tensor, dimension });
            }
            if size > limit {
                return Err(Error::TooLarge {
                    what: dimension,
                    value: size.to_string(),
                    limit: limit.into(),
                });
            }
        }
        check_width(self.head_dim)?;
        if !self.heads_q.is_multiple_of(self.heads_kv) {
            return Err(Error::HeadsNotDivisible { heads_q: self.heads_q, heads_kv: self.heads_kv });
        }
        Ok(())
    }
}

/// Refuses a width that no kernel has room for, or whose rows are no whole 16-byte chunks; of the widest values two CTAs compute a half each.
pub(super) fn check_width(width: u32) -> Result<(), Error> {
    let [.., whole, most] = HEAD_DIMS;
    let multiple = if width > whole { 16 } else { 8 };
    if width == 0 || width > most || !width.is_multiple_of(multiple) {
        let have = "multiples of 8 up to 256, and of 16 up to 512,";
        return Err(Error::UnsupportedHeadDim { head_dim: width, have });
    }
    Ok(())
}

/// Refuses a number of rows that is 0 or too large.
pub(super) fn check_rows(tensor: &'static str, dimension: &'static str, rows: u32) -> Result<(), Error> {
    match rows {
        0 => Err(Error::ZeroSized { tensor, dimension }),
        rows if rows > SIZE_MAX => {
            Err(Error::TooLarge { what: dimension, value: rows.to_string(), limit: SIZE_MAX.into() })
        }
        _ => Ok(()),
    }
}
