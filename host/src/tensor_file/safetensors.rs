//! safetensors: reading with the format's own crate, and writing.

use super::{Contents, Elements, Given, Options, Tensor, lse_shape, o_shape, read_bytes, unsupported_dtype};
use crate::error::Error;
use crate::problem::{Layout, Mask, Operand, Problem};
use safetensors::tensor::{Dtype as FileDtype, SafeTensorError, SafeTensors};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Reads `q`, `k` and `v`, and `o` and `lse` where they are there. What is `given` is not looked up in the metadata.
pub(super) fn read(path: &Path, given: &Options) -> Result<Contents, Error> {
    let bytes = read_bytes(path)?;
    let bad = |error: SafeTensorError| bad_file(path, &reason(&error));
    let file = SafeTensors::deserialize(&bytes).map_err(bad)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(bad)?;
    let required = |name| {
        optional(&file, path, name)?.ok_or_else(|| {
            let mut found: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
            found.sort_unstable();
            Error::MissingTensor { path: path.to_owned(), tensor: String::from(name), found }
        })
    };
    let mut operands = Vec::new();
    for operand in Operand::ALL {
        operands.extend(optional(&file, path, operand.name())?.map(|tensor| (operand, tensor)));
    }
    Ok(Contents {
        qkv: [required("q")?, required("k")?, required("v")?],
        o: optional(&file, path, "o")?,
        lse: optional(&file, path, "lse")?,
        given: Given { seqlens_k: optional(&file, path, "seqlens_k")?, operands },
        options: header
            .metadata()
            .as_ref()
            .map_or(Ok(Options::default()), |metadata| options(path, metadata, given))?,
    })
}

/// The bytes of a file with O and, where it is given, LSE. The same input gives the same bytes.
pub(super) fn encode(problem: &Problem, layout: Layout, o: &[u16], lse: Option<&[f32]>) -> Vec<u8> {
    // LSE first: the format wants every tensor aligned to its elements.
    let mut data: Vec<u8> = lse.unwrap_or_default().iter().flat_map(|lse| lse.to_le_bytes()).collect();
    let lse_bytes = data.len();
    data.extend(o.iter().flat_map(|bits| bits.to_le_bytes()));
    let layout_name = match layout {
        Layout::Bhsd => "bhsd",
        Layout::Bshd => "bshd",
    };
    let mask = match problem.mask() {
        Mask::FULL => "none".to_owned(),
        mask => mask.to_string(),
    };
    let mut header = json!({
        "__metadata__": { "layout": layout_name, "mask": mask, "scale": problem.scale().to_string() },
        "o": {
            "dtype": problem.dtype().name().to_uppercase(),
            "shape": o_shape(problem, layout),
            "data_offsets": [lse_bytes, data.len()],
        },
    });
    if lse.is_some() {
        header["lse"] =
            json!({ "dtype": "F32", "shape": lse_shape(problem), "data_offsets": [0, lse_bytes] });
    }
    let mut header = Value::to_string(&header);
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

fn optional(file: &SafeTensors<'_>, path: &Path, name: &'static str) -> Result<Option<Tensor>, Error> {
    let Ok(view) = file.tensor(name) else { return Ok(None) };
    let dtype = match view.dtype() {
        FileDtype::F16 => "f16",
        FileDtype::BF16 => "bf16",
        FileDtype::F32 => "f32",
        FileDtype::F64 => "f64",
        FileDtype::U32 => "u32",
        FileDtype::I32 => "i32",
        FileDtype::I64 => "i64",
        other => return Err(unsupported_dtype(path, name, &other.to_string())),
    };
    let elements =
        Elements::from_bytes(dtype, view.data()).ok_or_else(|| unsupported_dtype(path, name, dtype))?;
    Ok(Some(Tensor { name, path: path.to_owned(), shape: view.shape().to_vec(), elements }))
}

/// What the metadata says of the problem. Keys of other programs are left alone.
fn options(path: &Path, metadata: &HashMap<String, String>, given: &Options) -> Result<Options, Error> {
    let bad = |key: &str, value: &str, known: &str| {
        let option = if key == "mask" { "causal" } else { key };
        bad_file(
            path,
            &format!("its metadata says {key} {value:?}, known are {known}; give --{option} to override it"),
        )
    };
    let mut options = Options::default();
    if let (None, Some(layout)) = (given.layout, metadata.get("layout")) {
        options.layout = match layout.as_str() {
            "bhsd" | "batch,heads,seq,head_dim" => Some(Layout::Bhsd),
            "bshd" | "batch,seq,heads,head_dim" => Some(Layout::Bshd),
            other => return Err(bad("layout", other, "bhsd and bshd")),
        };
    }
    if let (None, Some(mask)) = (given.causal, metadata.get("mask")) {
        options.causal = match mask.as_str() {
            "none" | "full" => Some(false),
            "causal" => Some(true),
            other => return Err(bad("mask", other, "none and causal")),
        };
    }
    if let (None, Some(scale)) = (given.scale, metadata.get("scale")) {
        options.scale =
            Some(parse_scale(scale).ok_or_else(|| bad("scale", scale, "a number and 1/sqrt(number)"))?);
    }
    Ok(options)
}

fn parse_scale(scale: &str) -> Option<f32> {
    match scale.strip_prefix("1/sqrt(").and_then(|rest| rest.strip_suffix(')')) {
        Some(n) => n.parse::<f64>().ok().map(|n| (1.0 / n.sqrt()) as f32),
        None => scale.parse().ok(),
    }
}

fn bad_file(path: &Path, reason: &str) -> Error {
    Error::BadTensorFile { path: path.to_owned(), format: "safetensors", reason: reason.to_owned() }
}

/// The crate's errors, with what probably happened.
fn reason(error: &SafeTensorError) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => "it is too short to hold a header".to_owned(),
        SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength => {
            "its first bytes are no header length: another kind of file, or truncated".to_owned()
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            "its data is not as long as its header says: truncated?".to_owned()
        }
        // JSON errors may quote the header over several lines.
        other => other.to_string().replace('\n', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_numbers_or_one_over_a_root() {
        assert_eq!(parse_scale("1/sqrt(32)"), Some((1.0 / 32.0_f64.sqrt()) as f32));
        assert_eq!(parse_scale("0.125"), Some(0.125));
        assert_eq!(parse_scale("1/sqrt(x)"), None);
        assert_eq!(parse_scale("big"), None);
    }
}
