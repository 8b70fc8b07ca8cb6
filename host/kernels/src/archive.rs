//! An archive: an index of files, then xz frames of one file or of a few that are alike.
//!
//! Little-endian: [`MAGIC`], u32 frames; for each u32 bytes, u16 files, and for each of these its name's length as u16, its name, u32
//! bytes once decompressed; then the frames in this order.

use lzma_rust2::XzReader;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;

/// What an archive begins with; its last byte is the version of the format.
pub const MAGIC: [u8; 8] = *b"FFKERN\0\x02";

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
    files: BTreeMap<&'a str, File<'a>>,
}

/// A file: some bytes of a frame once it is decompressed.
#[derive(Clone, Debug)]
struct File<'a> {
    frame: &'a [u8],
    bytes: Range<usize>,
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
        let mut index = Vec::new();
        for _ in 0..number(take(4)?) {
            let (length, mut names, mut end) = (number(take(4)?), Vec::new(), 0usize);
            for _ in 0..number(take(2)?) {
                let name_length = number(take(2)?);
                let name = std::str::from_utf8(take(name_length)?).map_err(|_| ArchiveError::Name)?;
                let start = end;
                end = start.saturating_add(number(take(4)?));
                names.push((name, start..end));
            }
            index.push((length, names));
        }
        let mut files = BTreeMap::new();
        for (length, names) in index {
            let frame = take(length)?;
            files.extend(names.into_iter().map(|(name, bytes)| (name, File { frame, bytes })));
        }
        Ok(Archive { files })
    }

    /// The names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.files.keys().copied()
    }

    /// Decompresses the frame of one file.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], [`ArchiveError::Damaged`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let file = self.files.get(name).ok_or_else(|| ArchiveError::Missing { name: name.to_owned() })?;
        let damaged = |reason: String| ArchiveError::Damaged { name: name.to_owned(), reason };
        let mut bytes = Vec::new();
        XzReader::new(file.frame, false)
            .read_to_end(&mut bytes)
            .map_err(|reason| damaged(reason.to_string()))?;
        let found = bytes.get(file.bytes.clone()).map(<[u8]>::to_vec);
        found.ok_or_else(|| damaged(format!("its frame has {} bytes", bytes.len())))
    }
}

/// Files by name that are compressed together.
pub type Frame = Vec<(String, Vec<u8>)>;

/// An archive of frames, each of files by name; the same files give the same bytes.
///
/// # Panics
/// If a name has more than 65535 bytes, a frame as many files, or there are 2³² frames or bytes of one.
#[cfg(feature = "pack")]
pub fn pack(frames: &[Frame]) -> Vec<u8> {
    let long = |length: usize| u32::try_from(length).expect("fewer than 2^32").to_le_bytes();
    let short = |length: usize| u16::try_from(length).expect("fewer than 2^16").to_le_bytes();
    let whole =
        |files: &Frame| -> Vec<u8> { files.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect() };
    let packed: Vec<Vec<u8>> = frames.iter().map(|files| compressed(&whole(files))).collect();
    let mut archive = MAGIC.to_vec();
    archive.extend(long(frames.len()));
    for (files, frame) in frames.iter().zip(&packed) {
        archive.extend(long(frame.len()));
        archive.extend(short(files.len()));
        for (name, bytes) in files {
            archive.extend(short(name.len()));
            archive.extend(name.as_bytes());
            archive.extend(long(bytes.len()));
        }
    }
    archive.extend(packed.concat());
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

    fn frames() -> Vec<Frame> {
        let text = "mov.b32 %r1, %r2;\n".repeat(100).into_bytes();
        let (b, a, c) = (("b".to_owned(), text), ("a".to_owned(), Vec::new()), ("c".to_owned(), vec![7]));
        vec![vec![b, c], vec![a]]
    }

    #[test]
    fn what_is_packed_is_read_back_and_packed_alike_twice() {
        let bytes = pack(&frames());
        assert_eq!(bytes, pack(&frames()));
        assert!(bytes.len() < 600, "{}", bytes.len());
        let archive = Archive::parse(&bytes).expect("whole");
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        for (name, file) in frames().into_iter().flatten() {
            assert_eq!(archive.read(&name), Ok(file));
        }
        assert_eq!(archive.read("d"), Err(ArchiveError::Missing { name: "d".into() }));
    }

    #[test]
    fn cut_and_changed_bytes_are_refused() {
        let bytes = pack(&frames());
        for length in 0..bytes.len() {
            assert!(Archive::parse(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        for name in ["a", "b", "c"] {
            let frame = Archive::parse(&bytes).expect("whole").files[name].frame;
            // In the compressed data, after xz's stream header of 12 and block header of 12.
            let at = frame.as_ptr() as usize - bytes.as_ptr() as usize + 25;
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let archive = Archive::parse(&changed).expect("the index is whole");
            assert!(matches!(archive.read(name), Err(ArchiveError::Damaged { .. })), "{name}");
        }
    }
}
