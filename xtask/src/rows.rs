//! The rows to compile: those of the table, or a file's, as the generated macro that takes the table's place.

use crate::score_crate::{ScoreCrateError, Scores, no_scores};
use crate::workspace;
use kernels_gpu::backward::row::{BackwardRow, BackwardRowError};
use kernels_gpu::backward::table::{self as backward_table, BACKWARD_VARIANTS};
use kernels_gpu::geometry::PRODUCER_WARPS;
use kernels_gpu::row::{Accumulation, DENSE_HEAD_DIMS, Dtype, Isa, Row, RowError, Schedule, ScoreKind};
use kernels_gpu::table::{self, VARIANTS};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a file of rows is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    #[error("{} cannot be read: {reason}", path.display())]
    Read { path: PathBuf, reason: std::io::Error },
    #[error("{}: {reason} (expected a JSON array of rows like {EXAMPLE})", path.display())]
    Parse { path: PathBuf, reason: serde_json::Error },
    #[error("{} has no rows", .0.display())]
    Empty(PathBuf),
    #[error("row {number}, {entry}: {reason}")]
    Impossible { number: usize, entry: String, reason: RowError },
    #[error("row {number}, {entry}: {reason}")]
    ImpossibleBackward { number: usize, entry: String, reason: BackwardRowError },
    #[error("row {number}, {entry}, stands in the file already")]
    Twice { number: usize, entry: String },
    #[error("row {number}, {entry}, has the score {score}, and {known}")]
    Score { number: usize, entry: String, score: String, known: String },
    #[error(transparent)]
    ScoreCrate(#[from] ScoreCrateError),
}

const EXAMPLE: &str = r#"[{"isa":"mma","dtype":"f16","head_dim":64,"block_m":64,"block_n":64,"warps":4,"stages":2,"acc":"f32","min_ctas":1,"warp_rows":16,"schedule":"grid"}]"#;

/// Rows by the name of their entry.
pub(crate) type Rows = BTreeMap<String, Row>;

/// Rows of the backward pass by the name of their entry.
pub(crate) type BackwardRows = BTreeMap<String, BackwardRow>;

/// A row of a file: one of the backward pass says which.
enum FileRow {
    Backward(BackwardRow),
    Forward(Row),
}

/// Which rows to compile or check.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RowsOptions {
    /// These rows instead of the table: a JSON array of rows as in the manifest, at least one of them of the forward pass
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
    /// Every row of one tile a CTA that can exist instead of the table
    #[arg(long, conflicts_with = "rows")]
    pub(crate) every_row: bool,
    /// Kernels of the scores of a crate of yours, in this folder: in the rows of --rows, or in those that a softcap has
    #[arg(long, value_name = "CRATE", conflicts_with = "every_row")]
    pub(crate) score: Option<PathBuf>,
}

impl RowsOptions {
    /// The chosen rows.
    pub(crate) fn chosen(&self) -> Result<Rows, RowsError> {
        let scores = self.scores()?;
        match (&self.rows, &scores) {
            (Some(file), _) => of_file(file, scores.as_ref()),
            (None, Some(scores)) => Ok(scores.usual_rows().map(|row| (row.entry_name(), row)).collect()),
            (None, None) if self.every_row => Ok(feasible()),
            (None, None) => Ok(of_table()),
        }
    }

    /// The chosen rows of the backward pass: the table's, or those of the file.
    pub(crate) fn backward(&self) -> Result<BackwardRows, RowsError> {
        match &self.rows {
            Some(file) => backward_of_file(file),
            None if self.is_table() => Ok(backward_of_table()),
            None => Ok(BackwardRows::new()),
        }
    }

    /// The scores of the user's crate, where there is one.
    pub(crate) fn scores(&self) -> Result<Option<Scores>, ScoreCrateError> {
        self.score.as_deref().map(Scores::read).transpose()
    }

    /// Whether they are the table's, which the device crate knows by itself.
    pub(crate) fn is_table(&self) -> bool {
        self.rows.is_none() && !self.every_row && self.score.is_none()
    }

    /// Where their PTX goes by default: rows that are not the table's never replace what the host loads.
    pub(crate) fn default_folder(&self) -> PathBuf {
        let name = match (&self.score, &self.rows, self.every_row) {
            (Some(_), ..) => "ptx-scores",
            (None, Some(_), _) => "ptx-rows",
            (None, None, true) => "ptx-every-row",
            (None, None, false) => "ptx",
        };
        workspace::target().join(name)
    }
}

/// The rows of the table.
pub(crate) fn of_table() -> Rows {
    VARIANTS.iter().map(|variant| (variant.entry.to_owned(), variant.row)).collect()
}

/// The rows of the backward pass's table.
pub(crate) fn backward_of_table() -> BackwardRows {
    BACKWARD_VARIANTS.iter().map(|variant| (variant.entry.to_owned(), variant.row)).collect()
}

/// Every row of one tile a CTA that can exist, with no cap on registers. ptxas may still spill for some.
fn feasible() -> Rows {
    let kinds =
        [(Dtype::F16, Accumulation::F32), (Dtype::F16, Accumulation::F16), (Dtype::Bf16, Accumulation::F32)];
    let (min_ctas, schedule) = (1, Schedule::Grid);
    let mut rows = Rows::new();
    for ((dtype, acc), head_dim) in pairs(&kinds, &DENSE_HEAD_DIMS) {
        for (isa, block_m, block_n, warps, warp_rows) in tiles() {
            for stages in 1..=4 {
                let row = Row {
                    isa,
                    dtype,
                    head_dim,
                    block_m,
                    block_n,
                    warps,
                    stages,
                    acc,
                    min_ctas,
                    warp_rows,
                    schedule,
                    score: ScoreKind::Plain,
                };
                if row.check().is_ok() {
                    rows.insert(row.entry_name(), row);
                }
            }
        }
    }
    rows
}

/// Every isa, block_m, block_n, warps and warp_rows that may go together.
fn tiles() -> Vec<(Isa, u32, u32, u32, u32)> {
    let blocks = pairs(&[16, 32, 64, 128], &[32, 64, 128]);
    let mma = pairs(&blocks, &pairs(&[4, 8], &[16, 32]))
        .into_iter()
        .map(|((block_m, block_n), (warps, warp_rows))| (Isa::Mma, block_m, block_n, warps, warp_rows));
    let block_ns: Vec<u32> = (64..=256).step_by(16).collect();
    // One consumer warp for 16 rows, or two that take the keys in turns.
    let wgmma = pairs(&pairs(&[64, 128, 192], &block_ns), &[1, 2]).into_iter().map(
        |((block_m, block_n), warps_n)| {
            (Isa::Wgmma, block_m, block_n, block_m / 16 * warps_n + PRODUCER_WARPS, 16)
        },
    );
    mma.chain(wgmma).collect()
}

/// Each of the first with each of the second.
fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    first.iter().flat_map(|&a| second.iter().map(move |&b| (a, b))).collect()
}

/// The rows of a file, each of which can be compiled.
///
/// # Errors
/// [`RowsError`], for the first row that cannot: with its number, its name and the numbers that forbid it.
fn of_file(path: &Path, scores: Option<&Scores>) -> Result<Rows, RowsError> {
    let mut rows = Rows::new();
    for (index, row) in read(path)?.into_iter().enumerate() {
        let FileRow::Forward(row) = row else { continue };
        let (number, entry) = (index + 1, row.entry_name());
        if let Err(reason) = row.check() {
            return Err(RowsError::Impossible { number, entry, reason });
        }
        let is_users = matches!(row.score, ScoreKind::User(_));
        if scores.is_some_and(|scores| !scores.has(&row)) || scores.is_none() && is_users {
            let known = scores.map_or_else(
                || "--score names no crate that has it".to_owned(),
                |scores| format!("the crate has {}", scores.names()),
            );
            return Err(RowsError::Score { number, entry, score: row.score.name().to_owned(), known });
        }
        if rows.insert(entry.clone(), row).is_some() {
            return Err(RowsError::Twice { number, entry });
        }
    }
    if rows.is_empty() { Err(RowsError::Empty(path.to_owned())) } else { Ok(rows) }
}

/// The rows of the backward pass of a file, as [`of_file`].
fn backward_of_file(path: &Path) -> Result<BackwardRows, RowsError> {
    let mut rows = BackwardRows::new();
    for (index, row) in read(path)?.into_iter().enumerate() {
        let FileRow::Backward(row) = row else { continue };
        let (number, entry) = (index + 1, row.entry_name());
        if let Err(reason) = row.check() {
            return Err(RowsError::ImpossibleBackward { number, entry, reason });
        }
        if rows.insert(entry.clone(), row).is_some() {
            return Err(RowsError::Twice { number, entry });
        }
    }
    Ok(rows)
}

fn read(path: &Path) -> Result<Vec<FileRow>, RowsError> {
    let text =
        std::fs::read_to_string(path).map_err(|reason| RowsError::Read { path: path.to_owned(), reason })?;
    let values: Vec<serde_json::Value> =
        serde_json::from_str(&text).map_err(|reason| RowsError::Parse { path: path.to_owned(), reason })?;
    // By hand, as the message of an untagged enum names no field.
    let row = |value: serde_json::Value| {
        let is_backward = value.get("pass").is_some();
        if is_backward {
            serde_json::from_value(value).map(FileRow::Backward)
        } else {
            serde_json::from_value(value).map(FileRow::Forward)
        }
    };
    let rows = values.into_iter().map(row).collect::<Result<_, _>>();
    rows.map_err(|reason| RowsError::Parse { path: path.to_owned(), reason })
}

/// Rust source that defines `for_each_forward_kernel!`, `for_each_wgmma_kernel!`, `for_each_backward_kernel!` and
/// `for_each_wgmma_backward_kernel!` with these rows, any of which may have none, and `for_each_user_score!`.
pub(crate) fn macro_source(rows: &Rows, backward: &BackwardRows, scores: Option<&Scores>) -> String {
    let forward = |isa: Isa| -> Vec<String> {
        let rows = rows.iter().filter(|(_, row)| row.isa == isa);
        rows.map(|(entry, row)| table::line(entry, row)).collect()
    };
    let backward = |isa: Isa| -> Vec<String> {
        let rows = backward.iter().filter(|(_, row)| row.isa == isa);
        rows.map(|(entry, row)| backward_table::line(entry, row)).collect()
    };
    let of = |name: &str, lines: Vec<String>| {
        let lines: String = lines.iter().map(|line| format!("            {line}\n")).collect();
        format!(
            "/// Calls `$callback!` back with the rows of a file.\n#[macro_export]\n\
             macro_rules! {name} {{\n    ($callback:ident) => {{\n        $callback! {{\n{lines}        }}\n    }};\n}}\n"
        )
    };
    let scores = scores.map_or_else(no_scores, Scores::macro_source);
    of("for_each_forward_kernel", forward(Isa::Mma))
        + &of("for_each_wgmma_kernel", forward(Isa::Wgmma))
        + &of("for_each_backward_kernel", backward(Isa::Mma))
        + &of("for_each_wgmma_backward_kernel", backward(Isa::Wgmma))
        + &scores
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKWARD: &str =
        r#"{"pass":"dkv","dtype":"f16","head_dim":64,"block_m":64,"block_n":128,"warps":8,"stages":2}"#;
    const ROW: &str = r#"{"dtype":"bf16","head_dim":128,"block_m":128,"block_n":32,"warps":8,"stages":3,"acc":"f32","min_ctas":1,"warp_rows":16,"schedule":"grid"}"#;

    fn from(text: &str) -> Result<Rows, RowsError> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("rows.json");
        std::fs::write(&path, text).expect("writable");
        of_file(&path, None)
    }

    fn backward_from(text: &str) -> Result<BackwardRows, RowsError> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("rows.json");
        std::fs::write(&path, text).expect("writable");
        backward_of_file(&path)
    }

    #[test]
    fn rows_of_the_backward_pass_stand_beside_the_others() {
        let both = format!("[{BACKWARD},{ROW}]");
        assert_eq!(from(&both).expect("possible").len(), 1);
        let names: Vec<String> = backward_from(&both).expect("possible").into_keys().collect();
        assert_eq!(names, ["bwd_dkv_f16_d64_m64n128_w8s2"]);
        let impossible = both.replace("\"warps\":8,\"stages\":2", "\"warps\":2,\"stages\":2");
        let error = backward_from(&impossible).expect_err("4 or 8 warps have 128 keys").to_string();
        assert!(error.starts_with("row 1, bwd_dkv_f16_d64_m64n128_w2s2: warps must be"), "{error}");
        assert!(matches!(backward_from(&format!("[{BACKWARD},{BACKWARD}]")), Err(RowsError::Twice { .. })));
        assert!(matches!(from(&format!("[{BACKWARD}]")), Err(RowsError::Empty(_))));
    }

    #[test]
    fn the_generated_macro_has_the_tables_form() {
        let rows = from(&format!("[{ROW}]")).expect("a possible row");
        let backward = backward_from(&format!("[{ROW},{BACKWARD}]")).expect("a possible row");
        let source = macro_source(&rows, &backward, None);
        let line = "bwd_dkv_f16_d64_m64n128_w8s2 => { Dkv, F16, 64, 64, 128, 8, 2 };";
        assert!(source.contains(line), "{source}");
        assert!(
            source
                .contains("fwd_bf16_d128_m128n32_w8s3c1 => { Bf16, 128, 128, 32, 8, 3, F32, 1, 16, Grid };"),
            "{source}"
        );
        for (name, count) in
            [("for_each_forward_kernel", 1), ("for_each_wgmma_kernel", 0), ("for_each_backward_kernel", 0)]
        {
            let text = source.split("macro_rules! ").find(|text| text.starts_with(name)).expect(name);
            assert_eq!(text.matches("fwd_").count(), count, "{text}");
        }
    }

    #[test]
    fn each_row_is_in_the_macro_of_its_isa() {
        let wgmma = ROW
            .replace("{\"dtype\"", "{\"isa\":\"wgmma\",\"dtype\"")
            .replace("\"block_n\":32,\"warps\":8", "\"block_n\":176,\"warps\":12")
            .replace("\"stages\":3", "\"stages\":2");
        let rows = from(&format!("[{ROW},{wgmma}]")).expect("possible rows");
        let source = macro_source(&rows, &BackwardRows::new(), None);
        let (mma, wgmma) = source.split_once("macro_rules! for_each_wgmma_kernel").expect("two macros");
        assert!(mma.contains("fwd_bf16_d128_m128n32_w8s3c1 =>") && !mma.contains("fwd_wgmma"), "{mma}");
        assert!(wgmma.contains(
            "fwd_wgmma_bf16_d128_m128n176_w12s2c1 => { Bf16, 128, 128, 176, 12, 2, F32, 1, 16, Grid };"
        ));
        assert!(!wgmma.contains("fwd_bf16"), "{wgmma}");
    }

    #[test]
    fn an_impossible_row_is_refused_with_its_name_and_numbers() {
        let wide = ROW.replace(
            "\"head_dim\":128,\"block_m\":128,\"block_n\":32",
            "\"head_dim\":256,\"block_m\":128,\"block_n\":64",
        );
        let text = from(&format!("[{ROW},{wide}]")).expect_err("too much shared memory").to_string();
        assert!(text.starts_with("row 2, fwd_bf16_d256_m128n64_w8s3c1: shared memory over 227 KB"), "{text}");
        assert!(text.contains("262144 bytes"), "{text}");
    }

    #[test]
    fn files_that_are_no_rows_are_refused() {
        assert!(matches!(from("["), Err(RowsError::Parse { .. })));
        assert!(matches!(from("[]"), Err(RowsError::Empty(_))));
        assert!(matches!(from(&format!("[{ROW},{ROW}]")), Err(RowsError::Twice { number: 2, .. })));
        let users = ROW.replace("\"grid\"", "\"ragged\",\"score\":\"mine\"");
        let error = from(&format!("[{users}]")).expect_err("no crate has it").to_string();
        assert!(
            error.contains("w8s3c1_ragged_mine, has the score mine, and --score names no crate"),
            "{error}"
        );
        let unknown = ROW.replace("\"min_ctas\"", "\"ctas\"");
        assert!(from(&format!("[{unknown}]")).expect_err("unknown column").to_string().contains("ctas"));
        assert!(matches!(of_file(Path::new("/nonexistent/rows.json"), None), Err(RowsError::Read { .. })));
    }

    #[test]
    fn feasible_rows_hold_every_head_dim_and_nothing_impossible() {
        let rows = feasible();
        for head_dim in DENSE_HEAD_DIMS {
            assert!(rows.values().any(|row| row.head_dim == head_dim), "{head_dim}");
        }
        assert!(rows.values().all(|row| row.check().is_ok()));
        assert!(rows.len() > 200, "{}", rows.len());
        // The table's rows of one tile a CTA that cap no registers are among them.
        for (entry, row) in
            of_table().into_iter().filter(|(_, row)| row.min_ctas == 1 && row.schedule == Schedule::Grid)
        {
            assert_eq!(rows.get(&entry), Some(&row));
        }
    }

    #[test]
    fn every_row_of_the_table_survives_the_file() {
        let rows = of_table();
        let list: Vec<&Row> = rows.values().collect();
        let text = serde_json::to_string(&list).expect("rows serialize");
        assert_eq!(from(&text).expect("the table's rows are possible"), rows);
    }
}
