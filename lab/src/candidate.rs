//! What is evaluated: a row of the table's kind, compiled from the tree as it is or from one with a patch.

use crate::error::{Error, Result};
use ferroflash::Row;
use ferroflash::module::sha256_hex;
use kernels_gpu::table::VARIANTS;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// What tables and errors call it: its row's entry, with the patch's hash where there is one.
    pub name: String,
    /// The row.
    pub row: Row,
    /// The patch to the device crate, whole, where there is one.
    pub patch: Option<String>,
}

impl Candidate {
    /// A row of the tree as it is.
    pub fn of_row(row: Row) -> Candidate {
        Candidate { name: row.entry_name(), row, patch: None }
    }

    /// A row of a patched tree.
    pub fn of_patch(row: Row, patch: String) -> Candidate {
        let hash = sha256_hex(patch.as_bytes());
        Candidate { name: format!("{}+{}", row.entry_name(), &hash[..8]), row, patch: Some(patch) }
    }

    /// A row of a patched tree under a name that a person can follow: `fwd_…+3-fewer-barriers`.
    pub fn of_step(row: Row, patch: String, number: usize, hypothesis: &str) -> Candidate {
        let words = hypothesis.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<String> = words.take(4).map(str::to_ascii_lowercase).collect();
        let name = format!("{}+{number}-{}", row.entry_name(), words.join("-"));
        Candidate { name: name.trim_end_matches('-').to_owned(), row, patch: Some(patch) }
    }

    /// Whether the row can be a kernel at all.
    ///
    /// # Errors
    /// [`Error::ImpossibleRow`] with the numbers.
    pub fn check(&self) -> Result<()> {
        let impossible = |reason: kernels_gpu::row::RowError| Error::ImpossibleRow {
            row: self.name.clone(),
            reason: reason.to_string(),
        };
        self.row.check().map_err(impossible)
    }
}

/// The candidates that an argument names: an entry of the table, a row as JSON, a file of rows, or a patch (of the row given).
///
/// # Errors
/// [`Error::NoSuchRow`], [`Error::Io`].
pub fn parse(argument: &str, patched_row: Row) -> Result<Vec<Candidate>> {
    let path = Path::new(argument);
    let is_patch = path.extension().is_some_and(|extension| extension == "patch" || extension == "diff");
    if is_patch {
        let patch = crate::whole_file::read(path).map_err(|source| Error::io(path, source))?;
        return Ok(vec![Candidate::of_patch(patched_row, patch)]);
    }
    if let Some(variant) = VARIANTS.iter().find(|variant| variant.entry == argument) {
        return Ok(vec![Candidate::of_row(variant.row)]);
    }
    if let Some(row) = row_of_name(argument) {
        return Ok(vec![Candidate::of_row(row)]);
    }
    let refused = |reason: String| Error::NoSuchRow { wanted: argument.to_owned(), reason };
    let text = match argument.trim_start().starts_with(['{', '[']) {
        true => argument.to_owned(),
        false if path.is_file() => crate::whole_file::read(path).map_err(|source| Error::io(path, source))?,
        false => {
            let hint =
                ferroflash::Error::unknown_kernel(argument, VARIANTS.iter().map(|variant| variant.entry));
            return Err(refused(format!(
                "neither an entry of the table, nor a row as JSON, nor a file of rows or a .patch ({hint})"
            )));
        }
    };
    let is_one = text.trim_start().starts_with('{');
    let rows: Vec<Row> =
        if is_one { serde_json::from_str(&text).map(|row| vec![row]) } else { serde_json::from_str(&text) }
            .map_err(|error| refused(format!("{error} (a row is {})", example())))?;
    if rows.is_empty() {
        return Err(refused("it has no rows".to_owned()));
    }
    Ok(rows.into_iter().map(Candidate::of_row).collect())
}

/// The row with this name that the table lacks: one of the table's with other tiles, warps, stages and CTAs.
fn row_of_name(name: &str) -> Option<Row> {
    // The numbers of `…_m64n32_w4s1c1…`.
    let (_, sizes) = name.split_once("_m")?;
    let sizes = sizes.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    let sizes: Vec<u32> = sizes.collect();
    let &[block_m, block_n, warps, stages, min_ctas] = sizes.first_chunk()?;
    let mut named =
        VARIANTS.iter().map(|variant| Row { block_m, block_n, warps, stages, min_ctas, ..variant.row });
    named.find(|row| row.entry_name() == name)
}

/// A row as JSON, for messages and help.
pub fn example() -> String {
    serde_json::to_string(&VARIANTS[0].row).unwrap_or_default()
}

/// The row of an entry of the table.
pub fn table_row(entry: &str) -> Option<Row> {
    VARIANTS.iter().find(|variant| variant.entry == entry).map(|variant| variant.row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_named_by_entry_json_file_or_patch() {
        let row = VARIANTS[0].row;
        let by_entry = parse(VARIANTS[0].entry, row).expect("an entry");
        assert_eq!(by_entry, [Candidate::of_row(row)]);
        assert_eq!(parse(&example(), row).expect("a row"), by_entry);
        assert_eq!(parse(&format!("[{}]", example()), row).expect("rows"), by_entry);
        let named = |name: &str| parse(name, row).map(|found| found[0].row);
        let tiles = named("fwd_f16_d64_m64n32_w4s1c1").expect("another tile");
        assert_eq!((tiles.block_m, tiles.block_n, tiles.stages, tiles.head_dim), (64, 32, 1, 64));
        assert!(named("fwd_wgmma_bf16_d128_m128n96_w12s2c1_persistent").is_ok_and(|row| row.block_n == 96));
        // One that can be no kernel is refused by what is wrong with it.
        let impossible =
            parse("fwd_f16_d64_m32n32_w8s1c1", row).expect("a row")[0].check().expect_err("impossible");
        assert!(impossible.to_string().contains("fwd_f16_d64_m32n32_w8s1c1: "), "{impossible}");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.json");
        std::fs::write(&file, format!("[{}]", example())).expect("written");
        assert_eq!(parse(&file.to_string_lossy(), row).expect("a file"), by_entry);
        let patch = folder.path().join("x.patch");
        std::fs::write(&patch, "--- a\n").expect("written");
        let patched = parse(&patch.to_string_lossy(), row).expect("a patch");
        assert!(
            patched[0].patch.is_some() && patched[0].name.starts_with(&format!("{}+", VARIANTS[0].entry))
        );
    }

    #[test]
    fn what_is_no_candidate_is_refused_with_the_reason() {
        let row = VARIANTS[0].row;
        let reason = |argument: &str| parse(argument, row).expect_err("refused").to_string();
        assert!(reason("fwd_x").contains("neither an entry of the table"));
        assert!(reason("{\"dtype\":\"f16\"}").contains("missing field"));
        assert!(reason("[]").contains("no rows"));
        let impossible = Candidate::of_row(Row { block_m: 48, ..row });
        assert!(impossible.check().expect_err("48").to_string().contains("block_m must be"));
    }
}
