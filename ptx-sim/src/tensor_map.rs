//! Tensor maps: what a bulk tensor copy needs to know of a tensor in global memory (PTX ISA §5.5). NVIDIA does not publish the
//! 128 bytes that `cuTensorMapEncodeTiled` writes, so the simulator has its own, which it knows by a tag; the limits are those
//! of that call and of `cuTensorMapEncodeIm2col`. Elements outside the tensor read as zero.

use crate::im2col::Im2col;

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
    /// Not 3 to 5 dimensions of an im2col map, or lists of other lengths.
    #[error(
        "{dims} dimensions with {strides} strides and corners of {corners}: im2col takes 3 to 5, one stride less, corners of two less"
    )]
    Corners {
        /// Dimensions given.
        dims: usize,
        /// Strides given.
        strides: usize,
        /// Offsets of a corner given.
        corners: usize,
    },
    /// An offset of a corner that the hardware does not take.
    #[error("an offset of a corner is {got}: {least} to {most} for this many dimensions")]
    Corner {
        /// The offset.
        got: i16,
        /// The least.
        least: i16,
        /// The largest.
        most: i16,
    },
    /// An inner row of the box that is longer than the swizzle's span, which no hardware takes.
    #[error("a row of the box is {bytes} bytes, more than the swizzle's span of {span}")]
    Span {
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
    /// Elements of a box in each dimension; of im2col the channels of a pixel and the pixels.
    box_dims: Vec<u64>,
    /// From one element of a box to the next, in each dimension.
    element_strides: Vec<u16>,
    im2col: Option<Im2col>,
    swizzle: Swizzle,
}

const TAG: [u8; 8] = *b"ptxsim\x00\x01";

/// Where the corners of an im2col map lie among its bytes: two lengths of a box leave room for the first.
const LOWER: usize = 100;
const UPPER: usize = 118;

/// Refuses the first value of a list for which the rule does not hold.
fn check(
    what: &'static str,
    list: &[u64],
    rule: &'static str,
    holds: fn(u64) -> bool,
) -> Result<(), TensorMapError> {
    let wrong = list.iter().enumerate().find(|(_, value)| !holds(**value));
    wrong.map_or(Ok(()), |(index, &got)| Err(TensorMapError::Value { what, index, got, rule }))
}

impl TensorMap {
    /// Bytes of a map; it lies at a multiple of 64.
    pub const BYTES: usize = 128;

    /// A map of the tensor at `address`. `strides` are in bytes, from dimension 1 on; `box_dims` are elements.
    ///
    /// # Errors
    /// [`TensorMapError`] for what `cuTensorMapEncodeTiled` does not take.
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
        check("box length", box_dims, "1 to 256", |b| (1..=256).contains(&b))?;
        TensorMap {
            ty,
            address,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            box_dims: box_dims.to_vec(),
            element_strides: vec![1; rank],
            im2col: None,
            swizzle,
        }
        .checked()
    }

    /// A map for im2col copies of the tensor at `address`, whose dimensions are C, W, H and D where there are, and N. `corners` are the
    /// offsets of the bounding box from the first and from the last pixel, in the order W, H, D; `box_dims` the channels of a pixel and
    /// the pixels of a copy.
    ///
    /// # Errors
    /// [`TensorMapError`] for what `cuTensorMapEncodeIm2col` does not take.
    pub fn im2col(
        ty: TensorType,
        address: u64,
        (dims, strides): (&[u64], &[u64]),
        (lower, upper): (&[i16], &[i16]),
        box_dims: [u64; 2],
        swizzle: Swizzle,
    ) -> Result<TensorMap, TensorMapError> {
        let rank = dims.len();
        if !(3..=5).contains(&rank)
            || strides.len() + 1 != rank
            || lower.len() + 2 != rank
            || upper.len() + 2 != rank
        {
            return Err(TensorMapError::Corners { dims: rank, strides: strides.len(), corners: lower.len() });
        }
        let range = Im2col::corner_range(rank);
        if let Some(corner) = lower.iter().chain(upper).find(|corner| !range.contains(corner)) {
            return Err(TensorMapError::Corner { got: *corner, least: *range.start(), most: *range.end() });
        }
        check("channels of a pixel", &box_dims[..1], "1 to 256", |b| (1..=256).contains(&b))?;
        check("pixels of a copy", &box_dims[1..], "1 to 1024", |b| (1..=1024).contains(&b))?;
        let im2col = Some(Im2col { lower: lower.to_vec(), upper: upper.to_vec() });
        let (dims, strides, box_dims) = (dims.to_vec(), strides.to_vec(), box_dims.to_vec());
        TensorMap { ty, address, dims, strides, box_dims, element_strides: vec![1; rank], im2col, swizzle }
            .checked()
    }

    /// The map with other steps from one element of a box to the next, of each dimension; the first has none.
    ///
    /// # Errors
    /// [`TensorMapError::Value`] for another number of steps, or one that is not 1 to 8.
    pub fn with_element_strides(mut self, steps: &[u16]) -> Result<TensorMap, TensorMapError> {
        let list: Vec<u64> = steps.iter().map(|step| u64::from(*step)).collect();
        if list.len() != self.dims.len() {
            let (what, got, rule) = ("element strides", list.len() as u64, "as many as dimensions");
            return Err(TensorMapError::Value { what, index: 0, got, rule });
        }
        check("element stride", &list, "1 to 8", |s| (1..=8).contains(&s))?;
        self.element_strides = steps.to_vec();
        self.element_strides[0] = 1;
        Ok(self)
    }

    /// What holds of both modes.
    fn checked(self) -> Result<TensorMap, TensorMapError> {
        check("address", &[self.address], "a multiple of 16", |a| a.is_multiple_of(16))?;
        check("dimension", &self.dims, "1 to 2^32", |d| (1..=1 << 32).contains(&d))?;
        check("stride", &self.strides, "a multiple of 16 below 2^40", |s| {
            s.is_multiple_of(16) && s < 1 << 40
        })?;
        let row = self.box_dims[0] * self.ty.bytes();
        check("bytes of a box row", &[row], "a multiple of 16", |r| r.is_multiple_of(16))?;
        let span = self.swizzle.span();
        if self.swizzle != Swizzle::None && row > span {
            return Err(TensorMapError::Span { bytes: row, span });
        }
        Ok(self)
    }

    /// Elements of a box in each dimension, as they lie in shared memory.
    fn lengths(&self) -> impl Iterator<Item = u64> {
        let strides = if self.im2col.is_some() { &[][..] } else { &self.element_strides[..] };
        self.box_dims
            .iter()
            .enumerate()
            .map(|(i, length)| length.div_ceil(strides.get(i).map_or(1, |s| (*s).into())))
    }

    /// Whether it is for im2col copies.
    pub(crate) fn is_im2col(&self) -> bool {
        self.im2col.is_some()
    }

    /// Bytes of a box, which a copy brings whatever part of it lies outside the tensor.
    pub fn box_bytes(&self) -> u64 {
        self.lengths().product::<u64>() * self.ty.bytes()
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
        let box_dims = (96..).step_by(2).zip(self.box_dims.iter().map(|length| *length as u16));
        let steps = (106..).step_by(2).zip(self.element_strides.iter().copied());
        let (lower, upper) = self.im2col.as_ref().map_or((&[][..], &[][..]), |m| (&m.lower, &m.upper));
        let corners = [(LOWER, lower), (UPPER, upper)].into_iter();
        let corners = corners.flat_map(|(at, list)| (at..).step_by(2).zip(list.iter().map(|c| *c as u16)));
        for (at, value) in box_dims.chain(steps).chain(corners) {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes[11] = self.im2col.is_some().into();
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
        let ty = *TensorType::ALL.get(usize::from(bytes[8]))?;
        let swizzle = *Swizzle::ALL.get(usize::from(bytes[9]))?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let map = if bytes[11] == 0 {
            let box_dims: Vec<u64> = (0..rank).map(|i| word(96 + 2 * i).into()).collect();
            TensorMap::new(ty, long(16), &dims, &strides, &box_dims, swizzle)
        } else {
            let corner =
                |from| (0..rank.saturating_sub(2)).map(|i| word(from + 2 * i) as i16).collect::<Vec<_>>();
            let corners = (&corner(LOWER)[..], &corner(UPPER)[..]);
            let box_dims = [word(96).into(), word(98).into()];
            TensorMap::im2col(ty, long(16), (&dims, &strides), corners, box_dims, swizzle)
        };
        // A map that a kernel makes of zeros has no steps.
        let steps: Vec<u16> = (0..rank).map(|i| word(106 + 2 * i).max(1)).collect();
        map.ok()?.with_element_strides(&steps).ok()
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

    /// Where every row of the box at `coordinates` starts, a pixel of an im2col copy, and whether it lies in the tensor.
    fn rows(&self, coordinates: &[i32], offsets: &[u16]) -> Vec<(bool, u64)> {
        let place = |(inside, start): (bool, u64), i: usize, at: i64| {
            let inside = inside && (0..self.dims[i] as i64).contains(&at);
            (inside, start.wrapping_add((at as u64).wrapping_mul(self.strides[i - 1])))
        };
        let (steps, first) = (&self.element_strides, (true, self.address));
        if let Some(im2col) = &self.im2col {
            let pixels = im2col.pixels(&coordinates[1..], offsets, (&self.dims, steps), self.box_dims[1]);
            let row = |pixel: Vec<i64>| (1..).zip(pixel).fold(first, |row, (i, at)| place(row, i, at));
            return pixels.into_iter().map(row).collect();
        }
        let rows: u64 = self.lengths().skip(1).product();
        let row = |mut rest: u64| {
            self.lengths().enumerate().skip(1).fold(first, |row, (i, length)| {
                let at = i64::from(coordinates[i]) + (rest % length) as i64 * i64::from(steps[i]);
                rest /= length;
                place(row, i, at)
            })
        };
        (0..rows).map(row).collect()
    }

    /// The 16-byte chunks of the box at `coordinates`, for a box that starts at `shared`; `offsets` are those of an im2col copy.
    pub(crate) fn chunks(&self, coordinates: &[i32], offsets: &[u16], shared: u64) -> Vec<Chunk> {
        let bytes = self.ty.bytes();
        let row_bytes = self.box_dims[0] * bytes;
        // Each row of a swizzled box begins a span, even if it is shorter; an mbarrier counts the row's bytes (seen on an H200).
        let pitch = if self.swizzle == Swizzle::None { row_bytes } else { self.swizzle.span() };
        let mut list = Vec::with_capacity((self.box_bytes() / 16) as usize);
        for (row, (inside, start)) in (0..).zip(self.rows(coordinates, offsets)) {
            for chunk in (0..row_bytes).step_by(16) {
                let first = i64::from(coordinates[0]) + (chunk / bytes) as i64;
                let count = (16 / bytes) as i64;
                let low = (-first).clamp(0, count) as u64;
                let high = (self.dims[0] as i64 - first).clamp(low as i64, count) as u64;
                let (low, high) = if inside { (low, high) } else { (0, 0) };
                let global = start.wrapping_add(((first + low as i64) as u64).wrapping_mul(bytes));
                list.push(Chunk {
                    shared: self.swizzle.apply(shared.wrapping_add(row * pitch + chunk)),
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
        let corners = (&[-1i16, -2][..], &[1i16, 0][..]);
        let sizes = (&[32, 7, 5, 2][..], &[64, 448, 2240][..]);
        let map = TensorMap::im2col(TensorType::F16, 256, sizes, corners, [32, 48], Swizzle::B64).unwrap();
        let map = map.with_element_strides(&[1, 2, 2, 1]).unwrap();
        assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map.clone()));
        assert_eq!((map.rank(), map.box_bytes()), (4, 3072));
    }

    /// As an H200 puts them: the places of both chunks of the first nine rows.
    #[test]
    fn short_rows_begin_where_a_span_does() {
        let places = |swizzle| -> Vec<u64> {
            let map = TensorMap::new(TensorType::U32, 0, &[8, 9], &[32], &[8, 9], swizzle).unwrap();
            assert_eq!(map.box_bytes(), 288);
            map.chunks(&[0, 0], &[], 0).iter().map(|chunk| chunk.shared).collect()
        };
        let b64 = [0, 16, 64, 80, 144, 128, 208, 192, 288, 304, 352, 368, 432, 416, 496, 480, 512, 528];
        assert_eq!(places(Swizzle::B64), b64);
        let b128 = [0, 16, 144, 128, 288, 304, 432, 416, 576, 592, 720, 704, 864, 880, 1008, 992, 1024, 1040];
        assert_eq!(places(Swizzle::B128), b128);
    }

    #[test]
    fn steps_leave_elements_of_a_box_out() {
        let map = TensorMap::new(TensorType::U32, 0, &[4, 9], &[16], &[4, 5], Swizzle::None).unwrap();
        let map = map.with_element_strides(&[1, 2]).unwrap();
        assert_eq!(map.box_bytes(), 48);
        let global: Vec<u64> = map.chunks(&[0, 1], &[], 0).iter().map(|chunk| chunk.global).collect();
        assert_eq!(global, [16, 48, 80]);
        assert!(
            map.clone().with_element_strides(&[1, 9]).is_err() && map.with_element_strides(&[1]).is_err()
        );
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
        assert!(new(0, &[], &[], &[], none).starts_with("0 dimensions"));
        let im2col = |dims: &[u64], strides: &[u64], corner: &[i16]| {
            let corners = (corner, corner);
            TensorMap::im2col(TensorType::F16, 0, (dims, strides), corners, [8, 8], none)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            im2col(&[8, 8, 8, 8], &[16; 3], &[0, 128]),
            "an offset of a corner is 128: -128 to 127 for this many dimensions"
        );
        assert!(im2col(&[8, 8], &[16], &[]).starts_with("2 dimensions"));
    }

    #[test]
    fn chunks_outside_the_tensor_are_cut_to_what_lies_inside() {
        let map = TensorMap::new(TensorType::F16, 0, &[20, 3], &[48], &[16, 2], Swizzle::None).unwrap();
        let list = map.chunks(&[-2, 2], &[], 4096);
        let element = TensorType::F16;
        let chunk = |shared, global, skip, bytes| Chunk { shared, global, skip, bytes, element };
        assert_eq!(list[0], chunk(4096, 96, 4, 12));
        assert_eq!(list[1], chunk(4112, 96 + 12, 0, 16));
        // Row 3 does not exist.
        assert!(list[2..].iter().all(|c| c.bytes == 0) && list.len() == 4);
        let right = map.chunks(&[16, 0], &[], 4096);
        assert_eq!((right[0].bytes, right[1].bytes), (8, 0));
    }
}
