//! How a tensor lies in memory: the order of its dimensions, strides, and how much a buffer of it must hold.

use super::{ALIGNMENT_BYTES, Extent};
use crate::error::Error;
use kernels_gpu::params::Strides;

/// The order of the dimensions of a contiguous tensor in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// `[batch, heads, seqlen, head_dim]`, as PyTorch's SDPA takes it.
    #[default]
    Bhsd,
    /// `[batch, seqlen, heads, head_dim]`, as flash-attn takes it.
    Bshd,
}

impl Layout {
    /// The dimensions by name, in order.
    pub const fn dimensions(self) -> &'static str {
        match self {
            Layout::Bhsd => "[batch, heads, seqlen, head_dim]",
            Layout::Bshd => "[batch, seqlen, heads, head_dim]",
        }
    }

    /// The strides of a contiguous tensor.
    pub(crate) fn strides(self, extent: &Extent) -> ElementStrides {
        let [heads, seqlen, dim] = [extent.heads, extent.rows, extent.width].map(i64::from);
        // A head or a row is under 2^39 elements. A batch entry that is too large keeps a multiple of 16 elements that is over
        // every limit, so that validation says so.
        let batch = heads.checked_mul(seqlen * dim).unwrap_or(i64::MAX & !15);
        match self {
            Layout::Bhsd => ElementStrides { batch, head: seqlen * dim, row: dim, dim: 1 },
            Layout::Bshd => ElementStrides { batch, head: dim, row: heads * dim, dim: 1 },
        }
    }
}

/// Distance in elements between neighbours along each dimension of a `[batch, head, row, head_dim]` view.
///
/// `dim` must be 1; the others must not be negative and must be multiples of 16 bytes. 0 repeats the same data, which only an
/// input may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementStrides {
    /// From one batch entry to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one sequence position to the next.
    pub row: i64,
    /// From one element of a vector to the next: 1.
    pub dim: i64,
}

impl ElementStrides {
    /// The same for a tensor of these dimensions: nothing steps along a dimension of size 1, and callers fill its stride with anything.
    pub(crate) fn of(self, extent: &Extent) -> ElementStrides {
        let taken = |size: u32, stride| if size == 1 { 0 } else { stride };
        ElementStrides {
            batch: taken(extent.batch, self.batch),
            head: taken(extent.heads, self.head),
            row: taken(extent.rows, self.row),
            dim: self.dim,
        }
    }

    /// The same in bytes of elements of `element_bytes`, as the kernels take them.
    pub(crate) fn bytes(self, element_bytes: u32) -> Strides {
        let bytes = i64::from(element_bytes);
        Strides { batch: self.batch * bytes, head: self.head * bytes, row: self.row * bytes }
    }

    /// Elements from the first to the last of a tensor of these dimensions and strides, after checking them.
    ///
    /// # Errors
    /// [`Error::NotContiguous`], [`Error::Misaligned`], [`Error::InvalidStride`], [`Error::TooLarge`].
    pub(crate) fn span(
        &self,
        extent: &Extent,
        element_bytes: u32,
        tensor: &'static str,
        is_output: bool,
    ) -> Result<usize, Error> {
        if self.dim != 1 {
            return Err(Error::NotContiguous { tensor, stride: self.dim });
        }
        let mut outer = [
            ("stride of dimension batch", extent.batch, self.batch),
            ("stride of dimension heads", extent.heads, self.head),
            ("stride of dimension rows", extent.rows, self.row),
        ];
        let dtype_bytes = i128::from(element_bytes);
        for (what, _, stride) in outer {
            if stride < 0 {
                return Err(Error::InvalidStride { tensor, what, stride, reason: "it is negative" });
            }
            let value = i128::from(stride) * dtype_bytes;
            if value % i128::from(ALIGNMENT_BYTES) != 0 {
                return Err(Error::Misaligned { tensor, what, value, required: ALIGNMENT_BYTES });
            }
        }
        // From the smallest stride up, each must step over all that the smaller ones reach.
        outer.sort_by_key(|&(_, _, stride)| stride);
        let mut elements = i128::from(extent.width);
        for (what, size, stride) in outer {
            if is_output && size > 1 && i128::from(stride) < elements {
                return Err(Error::InvalidStride {
                    tensor,
                    what,
                    stride,
                    reason: "elements of the output would coincide",
                });
            }
            elements += i128::from(size - 1) * i128::from(stride);
        }
        let limit = i64::MAX as u64 / dtype_bytes as u64;
        match usize::try_from(elements) {
            Ok(length) if length as u64 <= limit => Ok(length),
            _ => Err(Error::TooLarge {
                what: "the number of elements of a tensor",
                value: elements.to_string(),
                limit,
            }),
        }
    }
}
