//! A tensor as bulk copies see it: what a tensor map says of it, before a device encodes that.

use crate::error::Error;
use kernels_gpu::row::Dtype;

/// The most dimensions.
const RANK_MAX: usize = 5;
/// Bytes that addresses and strides are multiples of.
const ALIGNMENT: u64 = 16;
/// What the strides are below, in bytes.
const STRIDE_END: u64 = 1 << 40;
/// The largest dimension.
const DIM_MAX: u64 = 1 << 32;
/// The most elements of a box along a dimension.
const BOX_MAX: u32 = 256;

/// A tensor in device memory and the box of it that one bulk copy brings to shared memory (PTX ISA, "Tensor"). Dimension 0 is
/// contiguous; the innermost row of a box is as long as its swizzle spans; elements out of bounds read as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorBox {
    /// The tensor's name.
    pub tensor: &'static str,
    /// The address of its first element.
    pub address: u64,
    /// Its element type.
    pub dtype: Dtype,
    rank: usize,
    dims: [u64; RANK_MAX],
    strides: [u64; RANK_MAX - 1],
    box_dims: [u32; RANK_MAX],
}

impl TensorBox {
    /// A tensor of up to 5 dimensions and its box: the elements along each, innermost first, and from the second on the bytes from one
    /// element to the next. Along a dimension of size 1 nothing steps, so that its stride is taken for 0.
    ///
    /// # Errors
    /// [`Error::NoTensorMap`] for what `cuTensorMapEncodeTiled` does not take: a stride that is no multiple of 16 bytes below 2^40, a
    /// dimension of 0 or over 2^32, more than 256 elements of a box along a dimension. The address is not looked at.
    pub fn new<const RANK: usize>(
        tensor: &'static str,
        dtype: Dtype,
        dims: [(&'static str, u64, i64); RANK],
        box_dims: [u32; RANK],
    ) -> Result<TensorBox, Error> {
        const { assert!(RANK >= 1 && RANK <= RANK_MAX) };
        let refused = |what, dimension, value: i128, allowed| Error::NoTensorMap {
            tensor,
            what,
            dimension,
            value,
            allowed,
        };
        let mut made = TensorBox {
            tensor,
            address: 0,
            dtype,
            rank: RANK,
            dims: [0; RANK_MAX],
            strides: [0; RANK_MAX - 1],
            box_dims: [0; RANK_MAX],
        };
        for (i, (dimension, size, stride)) in dims.into_iter().enumerate() {
            if !(1..=DIM_MAX).contains(&size) {
                return Err(refused("size", dimension, size.into(), "1 to 2^32"));
            }
            if !(1..=BOX_MAX).contains(&box_dims[i]) {
                return Err(refused("block", dimension, box_dims[i].into(), "1 to 256"));
            }
            (made.dims[i], made.box_dims[i]) = (size, box_dims[i]);
            if i == 0 || size == 1 {
                continue;
            }
            made.strides[i - 1] = match u64::try_from(stride) {
                Ok(stride) if stride.is_multiple_of(ALIGNMENT) && stride < STRIDE_END => stride,
                _ => {
                    let allowed = "multiples of 16 bytes from 0 to below 2^40";
                    return Err(refused("stride", dimension, stride.into(), allowed));
                }
            };
        }
        Ok(made)
    }

    /// The same tensor at an address.
    pub fn at(self, address: u64) -> TensorBox {
        TensorBox { address, ..self }
    }

    /// Elements along each dimension.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.rank]
    }

    /// Bytes from one element to the next, from dimension 1 on.
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank - 1]
    }

    /// Elements of the box along each dimension.
    pub fn box_dims(&self) -> &[u32] {
        &self.box_dims[..self.rank]
    }

    /// Bytes of the innermost row of a box, which its swizzle spans: 64 or 128.
    pub fn row_bytes(&self) -> u32 {
        self.box_dims[0] * self.dtype.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(row: (&'static str, u64, i64), block: u32) -> Result<TensorBox, Error> {
        TensorBox::new("K", Dtype::F16, [("head_dim", 64, 2), row], [64, block])
    }

    #[test]
    fn what_bulk_copies_take_is_kept() {
        let made = with(("rows", 100, 128), 32).expect("as hardware takes it").at(4096);
        assert_eq!(
            (made.dims(), made.strides(), made.box_dims()),
            (&[64, 100][..], &[128][..], &[64, 32][..])
        );
        assert_eq!((made.address, made.row_bytes()), (4096, 128));
        assert_eq!(with(("rows", 100, 0), 32).expect("repeats a row").strides(), [0]);
        // A stride along which nothing steps is anything.
        let one = with(("rows", 1, -8), 256).expect("one row");
        assert_eq!((one.strides(), one), (&[0][..], with(("rows", 1, 1 << 50), 256).expect("one row")));
    }

    #[test]
    fn what_they_do_not_take_is_refused_with_its_value() {
        let text = |refused: Result<TensorBox, Error>| refused.expect_err("refused").to_string();
        for stride in [-128, 8, 1 << 40] {
            let text = text(with(("rows", 2, stride), 32));
            let start =
                format!("bulk copies do not take K: its stride of dimension rows is {stride}, allowed are");
            assert!(text.starts_with(&start), "{text}");
        }
        with(("rows", 2, (1 << 40) - 16), 32).expect("the largest");
        assert!(text(with(("rows", 0, 128), 32)).contains("size of dimension rows is 0"));
        with(("rows", 1 << 32, 128), 32).expect("the largest");
        assert!(text(with(("rows", (1 << 32) + 1, 128), 32)).contains("1 to 2^32"));
        assert!(
            text(with(("rows", 2, 128), 257))
                .contains("block of dimension rows is 257, allowed are 1 to 256")
        );
        assert!(with(("rows", 2, 128), 0).is_err());
    }
}
