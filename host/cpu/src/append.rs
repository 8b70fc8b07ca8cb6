//! New keys and values into a cache, rotated by their positions: rows by plain loops.

use crate::call::{Dtype, Lengths, Pages, Sizes, Tensor};
use crate::error::Error;
use crate::read::{at, integer};
use crate::real::Real;

/// Tables of rotations, `[positions, dim / 2]` in the type of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotary {
    /// Address of the cosines, contiguous.
    pub cos: u64,
    /// Address of the sines.
    pub sin: u64,
    /// Rows of both.
    pub positions: usize,
    /// Elements of a vector that are rotated, the first ones.
    pub dim: usize,
    /// Whether elements 2i and 2i + 1 are rotated together, else i and i + dim / 2.
    pub interleaved: bool,
    /// Whether query i of a sequence is rotated by the position i after the first new key's, else all by that.
    pub each_query: bool,
    /// Positions of each sequence's first new key, 32-bit integers `[batch]`; its length where there are none.
    pub starts: Option<u64>,
}

/// One call: key t of the new ones of a sequence becomes its key length + t in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Type of all tensors.
    pub dtype: Dtype,
    /// `seqlen_k` is what a sequence of the cache holds; `seqlen_q` as for attention.
    pub sizes: Sizes,
    /// New tokens of a sequence; with `cumulative_new`, of all.
    pub tokens: usize,
    /// New keys.
    pub new_k: Tensor,
    /// New values.
    pub new_v: Tensor,
    /// The cache of keys.
    pub k: Tensor,
    /// The cache of values.
    pub v: Tensor,
    /// Q, and where it goes as it is rotated; all zeros where none is.
    pub q: [Tensor; 2],
    /// Where each sequence's new tokens begin, as [`Lengths::cumulative_q`].
    pub cumulative_new: Option<u64>,
    /// `used_k` is required: the lengths before; `entry_k` and `cumulative_q` as for attention.
    pub lengths: Lengths,
    /// Address of the lengths after, 32-bit integers `[batch]`, apart from `used_k`.
    pub lengths_after: Option<u64>,
    /// The cache in pages.
    pub pages: Option<Pages>,
    /// Rotations of keys and Q.
    pub rotary: Option<Rotary>,
}

/// Where one sequence's new tokens are and go.
struct Sequence {
    first: usize,
    count: usize,
    length: usize,
    start: usize,
}

impl Append {
    /// Whether Q is rotated.
    pub fn rotates_queries(&self) -> bool {
        self.q[0].address != 0
    }

    /// Refuses what cannot be appended, addresses and what lies there aside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&self) -> Result<(), Error> {
        let head_dim = self.sizes.head_dim;
        let named = [
            ("batch", self.sizes.batch),
            ("heads_kv", self.sizes.heads_kv),
            ("seqlen_k", self.sizes.seqlen_k),
            ("head_dim", head_dim),
            ("page_size", self.pages.map_or(1, |pages| pages.page_size)),
        ];
        if let Some((dimension, _)) = named.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::ZeroSized { dimension });
        }
        if self.dtype == Dtype::F64 {
            return Err(Error::Double);
        }
        for (tensor, address) in [
            ("new K", Some(self.new_k.address)),
            ("new V", Some(self.new_v.address)),
            ("K", Some(self.k.address)),
            ("V", Some(self.v.address)),
            ("cache_seqlens", self.lengths.used_k),
        ] {
            if address.is_none_or(|address| address == 0) {
                return Err(Error::Null { tensor });
            }
        }
        let (entries, rows) = match self.pages {
            Some(pages) => (pages.count, pages.page_size),
            None if self.lengths.entry_k.is_some() => (self.lengths.entries_k, self.sizes.seqlen_k),
            None => (self.sizes.batch, self.sizes.seqlen_k),
        };
        for (tensor, cache) in [("K", self.k), ("V", self.v)] {
            cache.check_apart(tensor, [entries, self.sizes.heads_kv, rows], head_dim)?;
        }
        if self.k.address == self.v.address && self.new_k.address != self.new_v.address {
            return Err(Error::OneCache);
        }
        if self.rotates_queries() {
            let batch = if self.lengths.cumulative_q.is_some() { 1 } else { self.sizes.batch };
            let extent = [batch, self.sizes.heads_q, self.sizes.seqlen_q];
            self.q[1].check_apart("the rotated Q", extent, head_dim)?;
        }
        let Some(rotary) = self.rotary else { return Ok(()) };
        if rotary.dim == 0 || !rotary.dim.is_multiple_of(16) || rotary.dim > head_dim {
            return Err(Error::Rotary { dim: rotary.dim, head_dim });
        }
        let needed = self.sizes.seqlen_k;
        if rotary.positions < needed {
            return Err(Error::RotaryPositions { positions: rotary.positions, needed });
        }
        Ok(())
    }

    /// Appends. Every address is one of host memory.
    ///
    /// # Errors
    /// [`Error`]; nothing is written then.
    ///
    /// # Safety
    /// As [`crate::Call::forward`], for reading and for writing of the cache, the rotated Q and the lengths.
    pub unsafe fn run(&self) -> Result<(), Error> {
        self.check()?;
        let mut sequences = Vec::new();
        for batch in 0..self.sizes.batch {
            // SAFETY: the caller's promise.
            let sequence = unsafe { self.sequence(batch)? };
            for number in 0..sequence.count {
                // SAFETY: the caller's promise.
                unsafe { self.place(batch, sequence.length + number)? };
            }
            sequences.push(sequence);
        }
        for (batch, sequence) in sequences.iter().enumerate() {
            // SAFETY: the caller's promise; every place was found.
            unsafe { self.append(batch, sequence)? };
            if let Some(after) = self.lengths_after {
                // SAFETY: the caller's promise.
                unsafe {
                    *(at(after, batch as i64, 4) as *mut i32) = (sequence.length + sequence.count) as i32
                };
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Append::run`].
    unsafe fn sequence(&self, batch: usize) -> Result<Sequence, Error> {
        let checked = |what, value: i64, from: usize, to: usize| {
            let (from, to) = (from as i64, to as i64);
            let is_in = (from..=to).contains(&value);
            if is_in { Ok(value as usize) } else { Err(Error::OutOfRange { what, batch, value, from, to }) }
        };
        let index = batch as i64;
        // SAFETY: the caller's promise.
        unsafe {
            let (first, count) = match integer(self.cumulative_new, index) {
                None => (batch * self.tokens, self.tokens),
                Some(start) => {
                    let start = checked("cu_seqlens_k_new", start, 0, self.tokens)?;
                    let end = integer(self.cumulative_new, index + 1).unwrap_or(0);
                    (start, checked("cu_seqlens_k_new", end, start, self.tokens)? - start)
                }
            };
            let length = integer(self.lengths.used_k, index).unwrap_or(0);
            let most = self.sizes.seqlen_k.saturating_sub(count);
            let length = checked("the number of keys before the new ones", length, 0, most)?;
            let starts = self.rotary.and_then(|rotary| rotary.starts);
            let start = integer(starts, index).unwrap_or(length as i64);
            let start = checked("rotary_seqlens", start, 0, i32::MAX as usize)?;
            Ok(Sequence { first, count, length, start })
        }
    }

    /// The entry or page of a key, and its row there.
    ///
    /// # Safety
    /// As [`Append::run`].
    unsafe fn place(&self, batch: usize, key: usize) -> Result<(i64, i64), Error> {
        let out = |what, value, to: usize| {
            let error = Error::OutOfRange { what, batch, value, from: 0, to: to.saturating_sub(1) as i64 };
            if value < 0 || value as usize >= to { Err(error) } else { Ok(value) }
        };
        // SAFETY: the caller's promise.
        unsafe {
            match self.pages {
                None => {
                    let entry = integer(self.lengths.entry_k, batch as i64);
                    let entries = self.lengths.entries_k;
                    let entry =
                        entry.map_or(Ok(batch as i64), |entry| out("the cache entry", entry, entries))?;
                    Ok((entry, key as i64))
                }
                Some(pages) => {
                    let entry = batch as i64 * pages.stride + (key / pages.page_size) as i64;
                    let page = integer(Some(pages.table), entry).unwrap_or(0);
                    Ok((out("a page", page, pages.count)?, (key % pages.page_size) as i64))
                }
            }
        }
    }

    /// # Safety
    /// As [`Append::run`]; every key has a place.
    unsafe fn append(&self, batch: usize, sequence: &Sequence) -> Result<(), Error> {
        let (entry, first) =
            if self.cumulative_new.is_some() { (0, sequence.first) } else { (batch as i64, 0) };
        // SAFETY: the caller's promise.
        unsafe {
            for number in 0..sequence.count {
                let (page, row) = self.place(batch, sequence.length + number)?;
                for head in 0..self.sizes.heads_kv as i64 {
                    let from = [entry, head, (first + number) as i64];
                    let to = [page, head, row];
                    let position = sequence.start + number;
                    self.row((self.new_k, from), (self.k, to), Some(position));
                    self.row((self.new_v, from), (self.v, to), None);
                }
            }
            let (Some(rotary), true) = (self.rotary, self.rotates_queries()) else { return Ok(()) };
            let starts = self.lengths.cumulative_q;
            let (entry, first, count) = match integer(starts, batch as i64) {
                None => (batch as i64, 0, self.sizes.seqlen_q as i64),
                Some(start) => (0, start, integer(starts, batch as i64 + 1).unwrap_or(start) - start),
            };
            let rows = self.sizes.seqlen_q as i64;
            if first < 0 || count < 0 || first + count > rows {
                let (what, value) = ("cu_seqlens_q", first + count);
                return Err(Error::OutOfRange { what, batch, value, from: first, to: rows });
            }
            for query in 0..count {
                let position = sequence.start + if rotary.each_query { query as usize } else { 0 };
                for head in 0..self.sizes.heads_q as i64 {
                    let place = [entry, head, first + query];
                    self.row((self.q[0], place), (self.q[1], place), Some(position));
                }
            }
        }
        Ok(())
    }

    /// Copies a row, rotated by a position where one is given.
    ///
    /// # Safety
    /// Both tensors have the row.
    unsafe fn row(&self, from: (Tensor, [i64; 3]), to: (Tensor, [i64; 3]), position: Option<usize>) {
        let bytes = self.dtype.bytes();
        let address = |(tensor, place): (Tensor, [i64; 3])| {
            let elements: i64 = tensor.strides.iter().zip(place).map(|(stride, index)| stride * index).sum();
            at(tensor.address, elements, bytes)
        };
        let mut row = vec![0.0; self.sizes.head_dim];
        // SAFETY: the caller's promise.
        unsafe {
            f32::read_row(self.dtype, address(from), &mut row);
            if let (Some(rotary), Some(position)) = (self.rotary, position) {
                let half = rotary.dim / 2;
                let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
                let angle = position.min(rotary.positions - 1) as i64 * half as i64;
                f32::read_row(self.dtype, at(rotary.cos, angle, bytes), &mut cos);
                f32::read_row(self.dtype, at(rotary.sin, angle, bytes), &mut sin);
                for (pair, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
                    let (first, second) =
                        if rotary.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                    let (x, y) = (row[first], row[second]);
                    (row[first], row[second]) = (x * cos - y * sin, x * sin + y * cos);
                }
            }
            f32::write_row(self.dtype, address(to), &row);
        }
    }
}
