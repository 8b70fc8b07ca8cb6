//! npy, versions 1 to 3: one tensor a file, little-endian, in C order.
//!
//! The header is a Python literal. NumPy writes the same three keys in it always, so that a parser of just these is
//! small, and safe with hostile files; crates that parse all of Python's literals recurse without a limit.

use super::{Elements, Tensor, read_bytes, unsupported_dtype};
use crate::error::Error;
use half::bf16;
use kernels_gpu::row::Dtype;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Data starts at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads one tensor; `name` is what errors call it.
pub(super) fn read(path: &Path, name: &'static str) -> Result<Tensor, Error> {
    let bytes = read_bytes(path)?;
    let bad = |reason: String| Error::BadTensorFile { path: path.to_owned(), format: "npy", reason };
    let (text, data) = split(&bytes).map_err(|reason| bad(reason.to_owned()))?;
    let header =
        parse(text).ok_or_else(|| bad("its header is not the dictionary NumPy writes".to_owned()))?;
    let (dtype, element_bytes) = match header.descr.as_str() {
        "<f2" => ("f16", 2),
        "<f4" => ("f32", 4),
        "<f8" => ("f64", 8),
        other => return Err(unsupported_dtype(path, name, other)),
    };
    if header.fortran_order {
        return Err(bad("it is in Fortran order; save numpy.ascontiguousarray(array)".to_owned()));
    }
    let expected =
        header.shape.iter().try_fold(element_bytes, |product: usize, &size| product.checked_mul(size));
    let expected = expected.ok_or_else(|| Error::TooLarge {
        what: "the number of bytes of a tensor",
        value: format!("{:?} elements", header.shape),
        limit: usize::MAX as u64,
    })?;
    if data.len() != expected {
        return Err(bad(format!(
            "it holds {} bytes of data, its header says {expected}: truncated?",
            data.len()
        )));
    }
    let elements = Elements::from_bytes(dtype, data).ok_or_else(|| unsupported_dtype(path, name, dtype))?;
    Ok(Tensor { name, path: path.to_owned(), shape: header.shape, elements })
}

/// The bytes of a file. npy has no bf16: its values go out as float32, which holds them all.
pub(super) fn encode(shape: &[usize], dtype: Dtype, bits: &[u16]) -> Vec<u8> {
    let descr = match dtype {
        Dtype::F16 => "<f2",
        Dtype::Bf16 => "<f4",
    };
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let shape = shape.join(", ");
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version and header length are 10 bytes; a newline ends the header.
    let end = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(ALIGNMENT);
    header.push_str(&" ".repeat(end - (MAGIC.len() + 4 + header.len() + 1)));
    header.push('\n');
    let mut file = MAGIC.to_vec();
    file.extend([1, 0]);
    // Four sizes of 20 digits at most fit.
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.into_bytes());
    match dtype {
        Dtype::F16 => file.extend(bits.iter().flat_map(|bits| bits.to_le_bytes())),
        Dtype::Bf16 => {
            file.extend(bits.iter().flat_map(|&bits| bf16::from_bits(bits).to_f32().to_le_bytes()))
        }
    }
    file
}

/// The header's text and the data after it.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), &'static str> {
    let ends = "it ends inside its header: truncated?";
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not start as npy files do")?;
    let ([major, _minor], rest) = rest.split_first_chunk().ok_or(ends)?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_le_bytes(*length)), rest)),
        2 | 3 => rest.split_first_chunk().map(|(length, rest)| (u32::from_le_bytes(*length) as usize, rest)),
        _ => return Err("its version is not 1, 2 or 3"),
    }
    .ok_or(ends)?;
    let (text, data) = rest.split_at_checked(length).ok_or(ends)?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
    Ok((text, data))
}

fn parse(text: &str) -> Option<Header> {
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
    Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

/// A quoted string at the start of `text`, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_numpy_writes_them_parse() {
        let header =
            parse("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 64), }   \n").expect("valid");
        assert_eq!((header.descr.as_str(), header.fortran_order), ("<f2", false));
        assert_eq!(header.shape, [1, 2, 3, 64]);
        assert_eq!(
            parse("{'shape': (), 'fortran_order': True, 'descr': '>f4'}").expect("valid").shape.len(),
            0
        );
    }

    #[test]
    fn other_headers_do_not() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f2', 'fortran_order': Maybe, 'shape': (1,), }",
            "{'descr': '<f2', 'fortran_order': False, }",
            "{'descr': '<f2, 'fortran_order': False, 'shape': (1,), }",
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
        assert!(parse(&"(".repeat(60_000)).is_none());
        assert!(parse(&format!("{{'shape': {}", "(".repeat(60_000))).is_none());
    }
}
