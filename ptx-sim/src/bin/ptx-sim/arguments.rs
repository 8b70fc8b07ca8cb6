//! What `--arg` gives a kernel: numbers, and buffers that are filled, read back or both.

use std::path::PathBuf;
use std::str::FromStr;

use crate::npy::Layout;

/// Largest buffer, in bytes.
const BUFFER_BYTES_MAX: usize = 1 << 32;

/// One parameter of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A number's bytes, which a struct aligns to their count.
    Value(Vec<u8>),
    /// Bytes that no struct aligns.
    Bytes(Vec<u8>),
    /// Fields in order, aligned as C aligns them.
    Struct(Vec<Argument>),
    /// The address of the buffer of an earlier argument (of a struct, of the first buffer in it), and `offset` bytes more; arguments count from 1.
    Earlier { position: usize, offset: u64 },
    /// The address of a buffer.
    Buffer { source: Source, result: Option<(Layout, PathBuf)> },
    /// The address of a buffer that is read from a file, and written to another in the first one's type and shape.
    InOut { from: PathBuf, to: PathBuf },
}

/// What a buffer holds before the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Zeros(usize),
    /// So many bytes that nobody has written.
    Unwritten(usize),
}

/// Why an argument is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("expected KIND:VALUE, as u32:5 or in:q.npy; see --help")]
    NoKind,
    #[error(
        "`{0}` is no kind of argument: numbers are u8…u64, i8…i64, f32, f64, hex; buffers in, out, inout, zeros, uninit; arg for an earlier one's; struct"
    )]
    Kind(String),
    #[error("`{value}` is no {kind}")]
    Value { kind: String, value: String },
    #[error("expected {0}")]
    Form(&'static str),
    #[error("a buffer of {0} bytes: 1 to {BUFFER_BYTES_MAX} are possible")]
    Size(usize),
}

impl FromStr for Argument {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Argument, ArgumentError> {
        let (kind, value) = text.split_once(':').ok_or(ArgumentError::NoKind)?;
        let buffer = |source| Ok(Argument::Buffer { source, result: None });
        match kind {
            "in" => buffer(Source::File(value.into())),
            "zeros" => buffer(Source::Zeros(size(value)?)),
            "uninit" => buffer(Source::Unwritten(size(value)?)),
            "inout" => {
                let (from, to) = value.split_once(':').ok_or(ArgumentError::Form("inout:FROM.npy:TO.npy"))?;
                Ok(Argument::InOut { from: from.into(), to: to.into() })
            }
            "out" => {
                let form = "out:TYPE[SIZE,…]:TO.npy, as out:f32[8,64]:o.npy, or out:BYTES:TO.npy";
                let (layout, to) = value.split_once(':').ok_or(ArgumentError::Form(form))?;
                let layout = layout_of(layout).ok_or(ArgumentError::Form(form))?;
                let bytes = bounded(layout.bytes().unwrap_or(usize::MAX))?;
                Ok(Argument::Buffer { source: Source::Unwritten(bytes), result: Some((layout, to.into())) })
            }
            "arg" => {
                let form =
                    ArgumentError::Form("arg:N or arg:N+BYTES, where N is an earlier argument, from 1");
                let (position, offset) = value.split_once('+').unwrap_or((value, "0"));
                let number = |text| integer(text).and_then(|number| u64::try_from(number).ok());
                let position = number(position).and_then(|at| usize::try_from(at).ok()).filter(|at| *at > 0);
                let Some((position, offset)) = position.zip(number(offset)) else { return Err(form) };
                Ok(Argument::Earlier { position, offset })
            }
            "struct" => value
                .split(';')
                .map(|field| field.trim().parse())
                .collect::<Result<_, _>>()
                .map(Argument::Struct),
            "hex" => number(kind, value).map(Argument::Bytes),
            _ => number(kind, value).map(Argument::Value),
        }
    }
}

fn size(text: &str) -> Result<usize, ArgumentError> {
    let bad = || ArgumentError::Value { kind: "number of bytes".to_owned(), value: text.to_owned() };
    bounded(integer(text).and_then(|n| usize::try_from(n).ok()).ok_or_else(bad)?)
}

fn bounded(bytes: usize) -> Result<usize, ArgumentError> {
    if (1..=BUFFER_BYTES_MAX).contains(&bytes) { Ok(bytes) } else { Err(ArgumentError::Size(bytes)) }
}

/// `f32[8,64]`, or a number of bytes.
fn layout_of(text: &str) -> Option<Layout> {
    let Some((name, sizes)) = text.split_once('[') else {
        let bytes = usize::try_from(integer(text)?).ok()?;
        return Some(Layout { descr: "|u1".to_owned(), shape: vec![bytes] });
    };
    let descr = match name {
        "u8" => "|u1",
        "i8" => "|i1",
        // NumPy has no bf16: its bits go out as u16.
        "u16" | "bf16" => "<u2",
        "i16" => "<i2",
        "f16" => "<f2",
        "u32" => "<u4",
        "i32" => "<i4",
        "f32" => "<f4",
        "u64" => "<u8",
        "i64" => "<i8",
        "f64" => "<f8",
        _ => return None,
    };
    let sizes = sizes.strip_suffix(']')?.split(',').map(|size| size.trim().parse().ok());
    Some(Layout { descr: descr.to_owned(), shape: sizes.collect::<Option<_>>()? })
}

/// The bytes of a number as a parameter holds them.
fn number(kind: &str, text: &str) -> Result<Vec<u8>, ArgumentError> {
    let bad = || ArgumentError::Value { kind: kind.to_owned(), value: text.to_owned() };
    let unsigned = |bits: u32| {
        let value = integer(text).ok_or_else(bad)?;
        let fits = (0..1i128 << bits).contains(&value);
        if fits { Ok(value.to_le_bytes()[..bits as usize / 8].to_vec()) } else { Err(bad()) }
    };
    let signed = |bits: u32| {
        let value = integer(text).ok_or_else(bad)?;
        let fits = (-(1i128 << (bits - 1))..1i128 << (bits - 1)).contains(&value);
        if fits { Ok(value.to_le_bytes()[..bits as usize / 8].to_vec()) } else { Err(bad()) }
    };
    match kind {
        "u8" => unsigned(8),
        "u16" => unsigned(16),
        "u32" => unsigned(32),
        "u64" => unsigned(64),
        "i8" => signed(8),
        "i16" => signed(16),
        "i32" => signed(32),
        "i64" => signed(64),
        "f32" => text.parse().map(|x: f32| x.to_le_bytes().to_vec()).map_err(|_| bad()),
        "f64" => text.parse().map(|x: f64| x.to_le_bytes().to_vec()).map_err(|_| bad()),
        "hex" => hex(text).ok_or_else(bad),
        _ => Err(ArgumentError::Kind(kind.to_owned())),
    }
}

/// A decimal or 0x number.
fn integer(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok().filter(|n| *n >= 0),
        None => text.parse().ok(),
    }
}

/// Pairs of digits, first byte first.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    (!digits.is_empty() && digits.len().is_multiple_of(2))
        .then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_the_bytes_of_their_type() {
        let value = |text: &str| match text.parse() {
            Ok(Argument::Value(bytes) | Argument::Bytes(bytes)) => bytes,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(value("u32:5"), [5, 0, 0, 0]);
        assert_eq!(value("u64:0xffffffffffffffff"), [0xff; 8]);
        assert_eq!(value("i16:-2"), [0xfe, 0xff]);
        assert_eq!(value("f32:0.5"), 0.5f32.to_le_bytes());
        assert_eq!(value("f64:-inf"), f64::NEG_INFINITY.to_le_bytes());
        assert_eq!(value("hex:00ff10"), [0, 0xff, 0x10]);
    }

    #[test]
    fn buffers_have_a_size_or_a_file() {
        let layout = Layout { descr: "<f4".to_owned(), shape: vec![8, 64] };
        let result = Some((layout, "o.npy".into()));
        assert_eq!(
            "out:f32[8,64]:o.npy".parse(),
            Ok(Argument::Buffer { source: Source::Unwritten(2048), result })
        );
        assert_eq!("zeros:16".parse(), Ok(Argument::Buffer { source: Source::Zeros(16), result: None }));
        assert_eq!(
            "inout:a.npy:b.npy".parse(),
            Ok(Argument::InOut { from: "a.npy".into(), to: "b.npy".into() })
        );
    }

    #[test]
    fn structs_have_fields_and_buffers_may_be_an_earlier_arguments() {
        assert_eq!("arg:2+0x10".parse(), Ok(Argument::Earlier { position: 2, offset: 16 }));
        let earlier = Argument::Earlier { position: 1, offset: 0 };
        let fields = vec![Argument::Value(vec![5, 0, 0, 0]), earlier, Argument::Bytes(vec![1, 2])];
        assert_eq!("struct:u32:5; arg:1; hex:0102".parse(), Ok(Argument::Struct(fields)));
    }

    #[test]
    fn others_are_refused_with_a_reason() {
        let reason = |text: &str| text.parse::<Argument>().unwrap_err().to_string();
        assert_eq!(reason("5"), "expected KIND:VALUE, as u32:5 or in:q.npy; see --help");
        assert_eq!(reason("u32:4294967296"), "`4294967296` is no u32");
        assert_eq!(reason("i8:-129"), "`-129` is no i8");
        assert_eq!(reason("u8:0x-1"), "`0x-1` is no u8");
        assert_eq!(reason("hex:abc"), "`abc` is no hex");
        assert_eq!(reason("zeros:0"), "a buffer of 0 bytes: 1 to 4294967296 are possible");
        assert!(reason("out:f31[4]:a.npy").starts_with("expected out:TYPE"));
        assert!(reason("out:f64[99999999999,99999999999]:a.npy").starts_with("a buffer of"));
        assert_eq!(reason("struct:u32:5;u32"), "expected KIND:VALUE, as u32:5 or in:q.npy; see --help");
        assert!(reason("arg:0").starts_with("expected arg:N"));
        assert!(reason("float:1").starts_with("`float` is no kind of argument"));
    }
}
