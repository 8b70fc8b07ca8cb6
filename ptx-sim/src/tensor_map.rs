//! Tensor maps: what a bulk tensor copy needs to know of a tensor in global memory (PTX ISA §5.5). NVIDIA does not publish the
//! 128 bytes that `cuTensorMapEncodeTiled` writes, so the simulator has its own, which it knows by a tag; the limits are those
//! of that call. Tile mode only; elements outside the tensor read as zero.

use std::cmp::Ordering;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// 8 bits.
    U8,
    /// 16 bits of an integer.
    U16,
    /// 32 bits of an integer.
    U32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// 64 bits, of an integer or of IEEE double precision.
    U64,
}

impl TensorType {
    const ALL: [TensorType; 7] = [
        TensorType::U8,
        TensorType::U16,
        TensorType::U32,
        TensorType::F16,
        TensorType::Bf16,
        TensorType::F32,
        TensorType::U64,
    ];

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            TensorType::U8 => 1,
            TensorType::U16 | TensorType::F16 | TensorType::Bf16 => 2,
            TensorType::U32 | TensorType::F32 => 4,
            TensorType::U64 => 8,
        }
    }
}

/// How 16-byte chunks of shared memory are exchanged, by bits of their address (PTX ISA §5.5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// Bit 4 ^= bit 7.
    B32,
    /// Bits 4–5 ^= bits 7–8.
    B64,
    /// Bits 4–6 ^= bits 7–9.
    B128,
}

impl Swizzle {
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// Bytes of a row that are exchanged among themselves; 16 for none.
    pub fn span(self) -> u64 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// Where the byte of an address lies. Twice gives the address again.
    pub fn apply(self, address: u64) -> u64 {
        address ^ ((address >> 7) & (self.span() / 16 - 1)) << 4
    }
}

/// A tensor map that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// Not 1 to 5 dimensions, or lists of other lengths.
    #[error(
        "{dims} dimensions with {strides} strides and a box of {box_dims}: 1 to 5, one stride less, as many of the box"
    )]
    Rank {
        /// Dimensions given.
        dims: usize,
        /// Strides given.
        strides: usize,
        /// Lengths of the box given.
        box_dims: usize,
    },
    /// A number that the hardware does not take.
    #[error("{what} {index} is {got}: {rule}")]
    Value {
        /// What it counts.
        what: &'static str,
        /// Which dimension.
        index: usize,
        /// Its value.
        got: u64,
        /// What is allowed.
        rule: &'static str,
    },
    /// An inner row of the box that is longer than the swizzle's span, which no hardware takes.
    #[error("a row of the box is {bytes} bytes, more than the swizzle's span of {span}")]
    Span {
        /// Bytes of a row.
        bytes: u64,
        /// Bytes of the span.
        span: u64,
    },
    /// An inner row of the box that is shorter than the swizzle's span. Hardware takes it. CUDA's programming guide asks for shared
    /// memory of the full span for each row, but says neither where the rows begin nor how many bytes the mbarrier counts.
    #[error(
        "not supported: a row of the box is {bytes} bytes, less than the swizzle's span of {span}; CUDA does not say how such rows lie"
    )]
    ShortRow {
        /// Bytes of a row.
        bytes: u64,
        /// Bytes of the span.
        span: u64,
    },
}

/// A tensor in global memory and the box that a copy takes of it. Dimension 0 is contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    ty: TensorType,
    address: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
    box_dims: Vec<u64>,
    swizzle: Swizzle,
}

const TAG: [u8; 8] = *b"ptxsim\x00\x01";

impl TensorMap {
    /// Bytes of a map; it lies at a multiple of 64.
    pub const BYTES: usize = 128;

    /// A map of the tensor at `address`. `strides` are in bytes, from dimension 1 on; `box_dims` are elements.
    ///
    /// # Errors
    /// [`TensorMapError`] for what `cuTensorMapEncodeTiled` does not take, and for rows shorter than the swizzle's span.
    pub fn new(
        ty: TensorType,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        box_dims: &[u64],
        swizzle: Swizzle,
    ) -> Result<TensorMap, TensorMapError> {
        let rank = dims.len();
        if !(1..=5).contains(&rank) || strides.len() + 1 != rank || box_dims.len() != rank {
            let (strides, box_dims) = (strides.len(), box_dims.len());
            return Err(TensorMapError::Rank { dims: rank, strides, box_dims });
        }
        let check = |what, list: &[u64], rule, holds: fn(u64) -> bool| {
            let wrong = list.iter().enumerate().find(|(_, value)| !holds(**value));
            wrong.map_or(Ok(()), |(index, &got)| Err(TensorMapError::Value { what, index, got, rule }))
        };
        check("address", &[address], "a multiple of 16", |a| a.is_multiple_of(16))?;
        check("dimension", dims, "1 to 2^32", |d| (1..=1 << 32).contains(&d))?;
        check("stride", strides, "a multiple of 16 below 2^40", |s| s.is_multiple_of(16) && s < 1 << 40)?;
        check("box length", box_dims, "1 to 256", |b| (1..=256).contains(&b))?;
        let row = box_dims[0] * ty.bytes();
        check("bytes of a box row", &[row], "a multiple of 16", |r| r.is_multiple_of(16))?;
        let span = swizzle.span();
        match row.cmp(&span) {
            _ if swizzle == Swizzle::None => {}
            Ordering::Less => return Err(TensorMapError::ShortRow { bytes: row, span }),
            Ordering::Equal => {}
            Ordering::Greater => return Err(TensorMapError::Span { bytes: row, span }),
        }
        let (dims, strides, box_dims) = (dims.to_vec(), strides.to_vec(), box_dims.to_vec());
        Ok(TensorMap { ty, address, dims, strides, box_dims, swizzle })
    }

    /// Bytes of a box, which a copy brings whatever part of it lies outside the tensor.
    pub fn box_bytes(&self) -> u64 {
        self.box_dims.iter().product::<u64>() * self.ty.bytes()
    }

    /// The map as the kernel is given it: a parameter or in global memory, 64-byte aligned.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&TAG);
        let ty = TensorType::ALL.iter().position(|t| *t == self.ty).unwrap_or(0);
        let swizzle = Swizzle::ALL.iter().position(|s| *s == self.swizzle).unwrap_or(0);
        bytes[8..11].copy_from_slice(&[ty as u8, swizzle as u8, self.dims.len() as u8]);
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        let longs = (24..).step_by(8).zip(&self.dims).chain((64..).step_by(8).zip(&self.strides));
        for (at, value) in longs {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in (96..).step_by(2).zip(&self.box_dims) {
            bytes[at..at + 2].copy_from_slice(&(*value as u16).to_le_bytes());
        }
        bytes
    }

    /// The map that was encoded so; `None` if these are not its bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<TensorMap> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let rank = usize::from(bytes[10]);
        if bytes[..8] != TAG || !(1..=5).contains(&rank) {
            return None;
        }
        let dims: Vec<u64> = (0..rank).map(|i| long(24 + 8 * i)).collect();
        let strides: Vec<u64> = (1..rank).map(|i| long(56 + 8 * i)).collect();
        let short = |i: usize| u64::from(u16::from_le_bytes([bytes[96 + 2 * i], bytes[97 + 2 * i]]));
        let box_dims: Vec<u64> = (0..rank).map(short).collect();
        let ty = *TensorType::ALL.get(usize::from(bytes[8]))?;
        let swizzle = *Swizzle::ALL.get(usize::from(bytes[9]))?;
        TensorMap::new(ty, long(16), &dims, &strides, &box_dims, swizzle).ok()
    }

    /// Where `tensormap.replace` puts a field of that name and dimension: offset, bytes, and what is written for a value.
    pub(crate) fn field(name: &str, dimension: u64, value: u64) -> Option<(u64, u32, u64)> {
        Some(match name {
            "global_address" => (16, 8, value),
            "rank" => (10, 1, value + 1),
            "box_dim" => (96 + 2 * dimension, 2, value),
            "global_dim" => (24 + 8 * dimension, 8, value & 0xffff_ffff),
            "global_stride" => (64 + 8 * dimension, 8, value),
            "element_stride" => (106 + 2 * dimension, 2, value),
            "elemtype" => {
                // The numbers of PTX ISA §9.7.9.28; types of one size move alike.
                let ty = match value {
                    0 => TensorType::U8,
                    1 => TensorType::U16,
                    2 | 3 => TensorType::U32,
                    6 => TensorType::F16,
                    7 | 8 | 11 | 12 => TensorType::F32,
                    10 => TensorType::Bf16,
                    4 | 5 | 9 => TensorType::U64,
                    _ => return None,
                };
                (8, 1, TensorType::ALL.iter().position(|t| *t == ty)? as u64)
            }
            "interleave_layout" => (116, 1, value),
            "swizzle_mode" => (9, 1, value),
            "fill_mode" => (117, 1, value),
            _ => return None,
        })
    }

    /// What every map starts with.
    pub(crate) const TAG: u64 = u64::from_le_bytes(TAG);

    /// Dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The 16-byte chunks of the box at `coordinates`, for a box that starts at `shared`.
    pub(crate) fn chunks(&self, coordinates: &[i32], shared: u64) -> Vec<Chunk> {
        let bytes = self.ty.bytes();
        let row_bytes = self.box_dims[0] * bytes;
        let rows: u64 = self.box_dims[1..].iter().product();
        let mut list = Vec::with_capacity((self.box_bytes() / 16) as usize);
        for row in 0..rows {
            let mut rest = row;
            let (mut inside, mut start) = (true, self.address);
            for (i, length) in self.box_dims.iter().enumerate().skip(1) {
                let at = i64::from(coordinates[i]) + (rest % length) as i64;
                rest /= length;
                inside &= (0..self.dims[i] as i64).contains(&at);
                start = start.wrapping_add((at as u64).wrapping_mul(self.strides[i - 1]));
            }
            for chunk in (0..row_bytes).step_by(16) {
                let first = i64::from(coordinates[0]) + (chunk / bytes) as i64;
                let count = (16 / bytes) as i64;
                let low = (-first).clamp(0, count) as u64;
                let high = (self.dims[0] as i64 - first).clamp(low as i64, count) as u64;
                let (low, high) = if inside { (low, high) } else { (0, 0) };
                let global = start.wrapping_add(((first + low as i64) as u64).wrapping_mul(bytes));
                list.push(Chunk {
                    shared: self.swizzle.apply(shared.wrapping_add(row * row_bytes + chunk)),
                    global,
                    skip: (low * bytes) as u32,
                    bytes: ((high - low) * bytes) as u32,
                    element: self.ty,
                });
            }
        }
        list
    }
}

/// 16 bytes of shared memory and what of them lies in the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) shared: u64,
    /// Address of the first byte inside.
    pub(crate) global: u64,
    /// Bytes before it, and bytes inside.
    pub(crate) skip: u32,
    pub(crate) bytes: u32,
    /// The elements of a tensor.
    pub(crate) element: TensorType,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzles_are_their_own_inverse_and_stay_in_their_span() {
        for swizzle in Swizzle::ALL {
            for address in 0..4096 {
                let there = swizzle.apply(address);
                assert_eq!(swizzle.apply(there), address);
                assert_eq!(there / swizzle.span(), address / swizzle.span());
            }
        }
        // Row 3 of a 128-byte wide tile: chunk 5 goes to chunk 5 ^ 3.
        assert_eq!(Swizzle::B128.apply(3 * 128 + 5 * 16), 3 * 128 + 6 * 16);
        assert_eq!(Swizzle::B64.apply(3 * 128 + 16), 3 * 128 + 2 * 16);
        assert_eq!(Swizzle::B32.apply(3 * 128), 3 * 128 + 16);
    }

    #[test]
    fn maps_come_back_from_their_bytes() {
        let map =
            TensorMap::new(TensorType::Bf16, 256, &[100, 7, 3], &[256, 1792], &[64, 8, 1], Swizzle::B128)
                .unwrap();
        assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map.clone()));
        assert_eq!(TensorMap::from_bytes(&[0; 128]), None);
        assert_eq!((map.rank(), map.box_bytes()), (3, 1024));
    }

    #[test]
    fn what_hardware_does_not_take_is_refused_with_its_value() {
        let new = |address, dims: &[u64], strides: &[u64], boxes: &[u64], swizzle| {
            TensorMap::new(TensorType::F16, address, dims, strides, boxes, swizzle).unwrap_err().to_string()
        };
        let none = Swizzle::None;
        assert_eq!(new(8, &[64], &[], &[8], none), "address 0 is 8: a multiple of 16");
        assert_eq!(new(0, &[64, 2], &[24], &[8, 1], none), "stride 0 is 24: a multiple of 16 below 2^40");
        assert_eq!(new(0, &[64], &[], &[257], none), "box length 0 is 257: 1 to 256");
        assert_eq!(new(0, &[64], &[], &[4], none), "bytes of a box row 0 is 8: a multiple of 16");
        assert_eq!(
            new(0, &[64], &[], &[64], Swizzle::B64),
            "a row of the box is 128 bytes, more than the swizzle's span of 64"
        );
        let short = new(0, &[64], &[], &[32], Swizzle::B128);
        assert!(short.starts_with("not supported: a row of the box is 64 bytes"), "{short}");
        assert!(new(0, &[], &[], &[], none).starts_with("0 dimensions"));
    }

    #[test]
    fn chunks_outside_the_tensor_are_cut_to_what_lies_inside() {
        let map = TensorMap::new(TensorType::F16, 0, &[20, 3], &[48], &[16, 2], Swizzle::None).unwrap();
        let list = map.chunks(&[-2, 2], 4096);
        let element = TensorType::F16;
        let chunk = |shared, global, skip, bytes| Chunk { shared, global, skip, bytes, element };
        assert_eq!(list[0], chunk(4096, 96, 4, 12));
        assert_eq!(list[1], chunk(4112, 96 + 12, 0, 16));
        // Row 3 does not exist.
        assert!(list[2..].iter().all(|c| c.bytes == 0) && list.len() == 4);
        let right = map.chunks(&[16, 0], 4096);
        assert_eq!((right[0].bytes, right[1].bytes), (8, 0));
    }
}
