//! A tensor on a device between two bands, in which nothing may change.

use ferroflash::device::{Buffer, Device, Element};
use ferroflash::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a band: a whole block of 128 rows at head_dim 256.
const BAND_BYTES: usize = 128 * 256 * 2;
/// Bytes that a tensor may begin behind an aligned address.
const OFFSET_MAX: usize = 256;
/// Every 16-bit and 32-bit float made of this byte is NaN, and none is the NaN that arithmetic gives.
const BAND_BYTE: u8 = 0xff;

/// What lies before and behind a tensor.
#[derive(Debug)]
pub struct Bands(Vec<u8>);

impl Bands {
    /// NaN of one pattern.
    fn usual() -> Bands {
        Bands(vec![BAND_BYTE; BAND_BYTES + OFFSET_MAX])
    }

    /// 16-bit words, over and over.
    pub fn of_words(words: impl Iterator<Item = u16>) -> Bands {
        let words = words.take((BAND_BYTES + OFFSET_MAX) / 2);
        Bands(words.flat_map(u16::to_le_bytes).collect())
    }
}

/// A tensor between two bands.
pub(super) struct Guarded {
    buffer: Buffer<dyn Device>,
    /// Bytes of the buffer before it.
    before: usize,
    elements: usize,
    element_bytes: usize,
    bands: Arc<Bands>,
    /// What was written to it, as bytes; nothing where nobody wrote.
    written: Mutex<Vec<u8>>,
}

impl Guarded {
    pub(super) fn new<T: Element>(device: &Arc<dyn Device>, elements: usize) -> Result<Guarded, Error> {
        Guarded::behind::<T>(device, elements, 0)
    }

    /// A tensor whose first element lies `offset` bytes behind an aligned address.
    pub(super) fn behind<T: Element>(
        device: &Arc<dyn Device>,
        elements: usize,
        offset: usize,
    ) -> Result<Guarded, Error> {
        let before = BAND_BYTES + offset;
        let buffer = Buffer::new(device, (before + elements * size_of::<T>() + BAND_BYTES) as u64)?;
        buffer.fill(BAND_BYTE)?;
        let element_bytes = size_of::<T>();
        let written = Mutex::default();
        Ok(Guarded { buffer, before, elements, element_bytes, bands: Arc::new(Bands::usual()), written })
    }

    /// A tensor that holds these elements.
    pub(super) fn of<T: Element>(device: &Arc<dyn Device>, elements: &[T]) -> Result<Guarded, Error> {
        let guarded = Guarded::new::<T>(device, elements.len())?;
        guarded.write("a tensor", elements)?;
        Ok(guarded)
    }

    pub(super) fn write<T: Element>(&self, tensor: &'static str, elements: &[T]) -> Result<(), Error> {
        let (expected, got) = (self.elements, elements.len());
        if got != expected {
            return Err(Error::WrongLength { tensor, expected, got });
        }
        self.buffer.write(self.at::<T>(), elements)?;
        let mut bytes = vec![0; elements.len() * self.element_bytes];
        self.buffer.read(self.before, &mut bytes)?;
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Ok(())
    }

    /// Writes bytes that are not compared later.
    pub(super) fn write_at(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.buffer.write(self.before + at, bytes)
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// Its elements, whatever lies around them.
    pub(super) fn elements_now<T: Element>(&self, zero: T) -> Result<Vec<T>, Error> {
        let mut elements = vec![zero; self.elements];
        self.buffer.read(self.at::<T>(), &mut elements).map(|()| elements)
    }

    /// Puts other bands around it.
    pub(super) fn set_bands(&mut self, bands: &Arc<Bands>) -> Result<(), Error> {
        self.bands = bands.clone();
        self.write_bands()
    }

    fn write_bands(&self) -> Result<(), Error> {
        self.buffer.write(0, &self.bands.0[..self.before])?;
        self.buffer.write(self.end(), &self.bands.0[..BAND_BYTES])
    }

    /// Makes it NaN.
    pub(super) fn poison(&self) -> Result<(), Error> {
        self.buffer.fill(BAND_BYTE)?;
        self.write_bands()
    }

    /// The first byte behind it.
    fn end(&self) -> usize {
        self.before + self.elements * self.element_bytes
    }

    /// Whether it is what was written, and its bands are whole.
    pub(super) fn check(&self, entry: &str, tensor: &'static str) -> Result<(), Error> {
        self.check_bands(entry, tensor)?;
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0_u8; written.len()];
        self.buffer.read(self.before, &mut bytes)?;
        match bytes == *written {
            true => Ok(()),
            false => Err(Error::GuardBand { entry: entry.to_owned(), tensor, distance: 0, side: "in" }),
        }
    }

    fn check_bands(&self, entry: &str, tensor: &'static str) -> Result<(), Error> {
        let broken = |side, distance: usize| Error::GuardBand {
            entry: entry.to_owned(),
            tensor,
            distance: distance as u64,
            side,
        };
        let differs = |band: &[u8], at: usize| band[at] != self.bands.0[at];
        let mut band = vec![0_u8; self.before];
        self.buffer.read(0, &mut band)?;
        if band != self.bands.0[..self.before]
            && let Some(at) = (0..band.len()).rev().find(|&at| differs(&band, at))
        {
            return Err(broken("before", self.before - at));
        }
        band.resize(BAND_BYTES, 0);
        self.buffer.read(self.end(), &mut band[..BAND_BYTES])?;
        if band[..BAND_BYTES] != self.bands.0[..BAND_BYTES]
            && let Some(at) = (0..BAND_BYTES).find(|&at| differs(&band, at))
        {
            return Err(broken("after", at));
        }
        Ok(())
    }

    /// The tensor's first element, counted from the buffer's start.
    fn at<T: Element>(&self) -> usize {
        self.before / size_of::<T>()
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.address() + self.before as u64
    }

    /// The tensor, once both bands are found whole.
    pub(super) fn read<T: Element>(
        &self,
        entry: &str,
        tensor: &'static str,
        zero: T,
    ) -> Result<Vec<T>, Error> {
        self.check_bands(entry, tensor)?;
        self.elements_now(zero)
    }
}
