//! An archive: an index of names, then one xz frame a file.
//!
//! Little-endian: [`MAGIC`], u32 files; for each its name's length as u16, its name, u32 bytes of its frame; then the frames in this order.

use lzma_rust2::XzReader;
use std::collections::BTreeMap;
use std::io::Read;

/// What an archive begins with; its last byte is the version of the format.
pub const MAGIC: [u8; 8] = *b"FFKERN\0\x01";

/// Why an archive cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It begins with something else.
    #[error("not an archive of kernels that this version reads")]
    Magic,
    /// It ends before its index says.
    #[error("cut off after {bytes} bytes")]
    CutOff {
        /// The bytes there are.
        bytes: usize,
    },
    /// The index cannot be read.
    #[error("a name in the index is not UTF-8")]
    Name,
    /// There is no such file.
    #[error("there is no file {name}")]
    Missing {
        /// The file asked for.
        name: String,
    },
    /// A frame is damaged.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// The file.
        name: String,
        /// What xz's checksum or format says.
        reason: String,
    },
}

/// An archive, its index read.
#[derive(Clone, Debug)]
pub struct Archive<'a> {
    frames: BTreeMap<&'a str, &'a [u8]>,
}

impl<'a> Archive<'a> {
    /// Reads the index.
    ///
    /// # Errors
    /// [`ArchiveError::Magic`], [`ArchiveError::CutOff`], [`ArchiveError::Name`].
    pub fn parse(bytes: &'a [u8]) -> Result<Archive<'a>, ArchiveError> {
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or(ArchiveError::Magic)?;
        let mut take = |count: usize| {
            let (taken, after) =
                rest.split_at_checked(count).ok_or(ArchiveError::CutOff { bytes: bytes.len() })?;
            rest = after;
            Ok(taken)
        };
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte));
        let files = number(take(4)?);
        let mut index = Vec::new();
        for _ in 0..files {
            let length = number(take(2)?);
            let name = std::str::from_utf8(take(length)?).map_err(|_| ArchiveError::Name)?;
            index.push((name, number(take(4)?)));
        }
        let frames = index.into_iter().map(|(name, length)| Ok((name, take(length)?)));
        Ok(Archive { frames: frames.collect::<Result<_, ArchiveError>>()? })
    }

    /// The names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.frames.keys().copied()
    }

    /// Decompresses one file.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], [`ArchiveError::Damaged`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let frame = self.frames.get(name).ok_or_else(|| ArchiveError::Missing { name: name.to_owned() })?;
        let mut bytes = Vec::new();
        XzReader::new(*frame, false)
            .read_to_end(&mut bytes)
            .map_err(|reason| ArchiveError::Damaged { name: name.to_owned(), reason: reason.to_string() })?;
        Ok(bytes)
    }
}

/// An archive of files by name; the same files give the same bytes.
///
/// # Panics
/// If a name has more than 65535 bytes, or there are 2³² files or bytes of one.
#[cfg(feature = "pack")]
pub fn pack(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let short = |length: usize| u32::try_from(length).expect("fewer than 2^32").to_le_bytes();
    let frames: Vec<Vec<u8>> = files.values().map(|bytes| compressed(bytes)).collect();
    let mut archive = MAGIC.to_vec();
    archive.extend(short(files.len()));
    for (name, frame) in files.keys().zip(&frames) {
        archive.extend(u16::try_from(name.len()).expect("a short name").to_le_bytes());
        archive.extend(name.as_bytes());
        archive.extend(short(frame.len()));
    }
    archive.extend(frames.concat());
    archive
}

#[cfg(feature = "pack")]
fn compressed(bytes: &[u8]) -> Vec<u8> {
    use lzma_rust2::{XzOptions, XzWriter};
    use std::io::Write;
    let mut options = XzOptions::with_preset(9);
    // What the reader allocates: no more than the file has.
    options.lzma_options.dict_size = u32::try_from(bytes.len()).unwrap_or(u32::MAX).clamp(1 << 12, 1 << 26);
    let written = XzWriter::new(Vec::new(), options).and_then(|mut writer| {
        writer.write_all(bytes)?;
        writer.finish()
    });
    written.expect("memory takes every write")
}

#[cfg(all(test, feature = "pack"))]
mod tests {
    use super::*;

    fn files() -> BTreeMap<String, Vec<u8>> {
        let text = "mov.b32 %r1, %r2;\n".repeat(100).into_bytes();
        [("b".to_owned(), text), ("a".to_owned(), Vec::new()), ("c".to_owned(), vec![7])].into()
    }

    #[test]
    fn what_is_packed_is_read_back_and_packed_alike_twice() {
        let bytes = pack(&files());
        assert_eq!(bytes, pack(&files()));
        assert!(bytes.len() < 600, "{}", bytes.len());
        let archive = Archive::parse(&bytes).expect("whole");
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        for (name, file) in &files() {
            assert_eq!(archive.read(name).as_ref(), Ok(file));
        }
        assert_eq!(archive.read("d"), Err(ArchiveError::Missing { name: "d".into() }));
    }

    #[test]
    fn cut_and_changed_bytes_are_refused() {
        let bytes = pack(&files());
        for length in 0..bytes.len() {
            assert!(Archive::parse(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        let frames_from = bytes.len() - files().values().map(|file| compressed(file).len()).sum::<usize>();
        for name in ["a", "b", "c"] {
            let whole = Archive::parse(&bytes).expect("whole").frames[name].as_ptr() as usize;
            // The first byte of the compressed data, after xz's stream header of 12 and block header of 12.
            let at = whole - bytes.as_ptr() as usize + 25;
            assert!(at > frames_from);
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let archive = Archive::parse(&changed).expect("the index is whole");
            assert!(matches!(archive.read(name), Err(ArchiveError::Damaged { .. })), "{name}");
        }
    }
}
