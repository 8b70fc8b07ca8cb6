//! npy, versions 1 to 3: one array a file, little-endian, in C order. The header is a Python literal, of which NumPy writes
//! the same three keys always; just these are parsed.

use std::path::Path;

use crate::error::{Error, NpyError};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Data starts at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// What an array's bytes mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// NumPy's name of the element type, `<f4`.
    pub(crate) descr: String,
    pub(crate) shape: Vec<usize>,
}

impl Layout {
    /// Bytes of the whole array; `None` if they cannot be counted or the type is not known.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let element = element_bytes(&self.descr)?;
        self.shape.iter().try_fold(element, |product, &size| product.checked_mul(size))
    }
}

fn element_bytes(descr: &str) -> Option<usize> {
    match descr {
        "|u1" | "|i1" | "|b1" | "<u1" | "<i1" => Some(1),
        "<u2" | "<i2" | "<f2" => Some(2),
        "<u4" | "<i4" | "<f4" => Some(4),
        "<u8" | "<i8" | "<f8" => Some(8),
        _ => None,
    }
}

/// Reads one array.
pub(crate) fn read(path: &Path) -> Result<(Layout, Vec<u8>), Error> {
    let file = std::fs::read(path).map_err(|reason| Error::File { path: path.to_owned(), reason })?;
    decode(&file).map_err(|reason| Error::Npy { path: path.to_owned(), reason })
}

fn decode(file: &[u8]) -> Result<(Layout, Vec<u8>), NpyError> {
    let (text, data) = split(file)?;
    let (layout, fortran_order) = parse(text).ok_or(NpyError::Header)?;
    if element_bytes(&layout.descr).is_none() {
        return Err(NpyError::Type(layout.descr));
    }
    // One dimension or none has but one order.
    if fortran_order && layout.shape.len() > 1 {
        return Err(NpyError::FortranOrder);
    }
    if layout.bytes() != Some(data.len()) {
        let element = element_bytes(&layout.descr).unwrap_or(1) as u128;
        let expected =
            layout.shape.iter().fold(element, |product, &size| product.saturating_mul(size as u128));
        return Err(NpyError::Length { got: data.len(), expected });
    }
    Ok((layout, data.to_vec()))
}

/// The header's text and the data after it.
fn split(file: &[u8]) -> Result<(&str, &[u8]), NpyError> {
    let rest = file.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let ([major, _minor], rest) = rest.split_first_chunk().ok_or(NpyError::Truncated)?;
    let length = match major {
        1 => rest.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_le_bytes(*length)), rest)),
        2 | 3 => rest.split_first_chunk().map(|(length, rest)| (u32::from_le_bytes(*length) as usize, rest)),
        _ => return Err(NpyError::Version(*major)),
    };
    let (length, rest) = length.ok_or(NpyError::Truncated)?;
    let (text, data) = rest.split_at_checked(length).ok_or(NpyError::Truncated)?;
    Ok((std::str::from_utf8(text).map_err(|_| NpyError::Header)?, data))
}

fn parse(text: &str) -> Option<(Layout, bool)> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, value) = quoted(rest)?;
        let value = value.trim_start().strip_prefix(':')?.trim_start();
        rest = match key {
            "descr" => {
                let (name, rest) = quoted(value)?;
                descr = Some(name.to_owned());
                rest
            }
            "fortran_order" => {
                let (order, rest) = match value.strip_prefix("True") {
                    Some(rest) => (true, rest),
                    None => (false, value.strip_prefix("False")?),
                };
                fortran_order = Some(order);
                rest
            }
            "shape" => {
                let (sizes, rest) = value.strip_prefix('(')?.split_once(')')?;
                let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
                shape = Some(sizes.map(|size| size.parse().ok()).collect::<Option<Vec<usize>>>()?);
                rest
            }
            _ => return None,
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some((Layout { descr: descr?, shape: shape? }, fortran_order?))
}

/// A quoted string at the start of `text`, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// Writes one array.
pub(crate) fn write(path: &Path, layout: &Layout, data: &[u8]) -> Result<(), Error> {
    std::fs::write(path, encode(layout, data)).map_err(|reason| Error::File { path: path.to_owned(), reason })
}

fn encode(layout: &Layout, data: &[u8]) -> Vec<u8> {
    let sizes: Vec<String> = layout.shape.iter().map(usize::to_string).collect();
    // A tuple of one has a comma.
    let comma = if sizes.len() == 1 { "," } else { "" };
    let (descr, sizes) = (&layout.descr, sizes.join(", "));
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}{comma}), }}");
    // Magic, version and header length are 12 bytes; a newline ends the header.
    let length = (12 + header.len() + 1).next_multiple_of(ALIGNMENT) - 12;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let version_2 = [2, 0];
    [MAGIC, &version_2, &(header.len() as u32).to_le_bytes(), header.as_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (descr, shape, bytes) in
            [("<f4", vec![2, 3], 24), ("|u1", vec![7], 7), ("<f8", vec![], 8), ("<f2", vec![0, 4], 0)]
        {
            let layout = Layout { descr: descr.to_owned(), shape };
            let data: Vec<u8> = (0..bytes).collect();
            let file = encode(&layout, &data);
            assert_eq!((file.len() - data.len()) % ALIGNMENT, 0);
            assert_eq!(decode(&file).unwrap(), (layout, data));
        }
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let file = |header: &str, data: &[u8]| {
            [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
        };
        let reason = |file: &[u8]| decode(file).unwrap_err().to_string();
        assert_eq!(reason(b"PK"), "it does not start as npy files do");
        assert_eq!(reason(b"\x93NUMPY\x01"), "it ends inside its header: truncated?");
        assert_eq!(reason(b"\x93NUMPY\x09\x00\x00\x00"), "its version is 9, not 1, 2 or 3");
        assert_eq!(reason(&file("{", &[])), "its header is not the dictionary that NumPy writes");
        let big_endian = file("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        assert_eq!(reason(&big_endian), "its elements are `>f4`: little-endian numbers are wanted");
        let fortran = file("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }", &[0; 4]);
        assert_eq!(reason(&fortran), "it is in Fortran order; save numpy.ascontiguousarray(array)");
        let short =
            file("{'descr': '<f4', 'fortran_order': False, 'shape': (9, 99999999999999999999), }", &[]);
        assert_eq!(reason(&short), "its header is not the dictionary that NumPy writes");
        let short = file("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }", &[0; 4]);
        assert_eq!(reason(&short), "it holds 4 bytes of data, its header says 36");
    }
}
