//! `lab build --out`: rows compiled together into a folder that other machines take with `--ptx`.

use crate::candidate::Candidate;
use crate::cli::evaluate::{Candidates, default_row, row_of};
use crate::cli::lab::Lab;
use crate::cli::micro::likeliest_first;
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Error, Result};
use crate::patched::PatchedTree;
use crate::predict::Model;
use crate::search::space::{Column, Space, columns};
use crate::stages::Watcher;
use crate::tree::Code;
use clap::Args;
use ferroflash::Row;
use ferroflash::module::Library;
use kernels_gpu::row::Isa;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A folder of compiled kernels to make.
#[derive(Args, Clone, Debug)]
pub(crate) struct FolderArgs {
    /// Compile the rows together into this folder, for --ptx here or on a machine without a compiler
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: Option<PathBuf>,
    /// Also every feasible row with the dtype, head_dim and schedule of this one: what a search from it may try; may be repeated
    #[arg(long, value_name = "ROW", requires = "out")]
    space: Vec<String>,
    /// Of the spaces only rows with these values of a column, as in min_ctas=1,2; may be repeated, once a column
    #[arg(long, value_name = "COLUMN=VALUES", requires = "space")]
    only: Vec<Only>,
    /// At most so many rows of each space, those first that the resource model expects most of; rows that are named come too
    #[arg(long, value_name = "N", requires = "space")]
    most: Option<usize>,
    /// Compile the rows from the last commit with this patch to kernels-gpu/src
    #[arg(long, value_name = "FILE", requires = "out")]
    patch: Option<PathBuf>,
    /// Keep machine code of this architecture (sm_90) beside the PTX; may be repeated [default: PTX only, which the driver compiles]
    #[arg(long, value_name = "SM", requires = "out")]
    arch: Vec<String>,
}

/// Values that a column of a row may have, as they are read; a row whose isa lacks the column has none of them.
#[derive(Clone, Debug)]
struct Only {
    column: String,
    values: Vec<String>,
}

impl Only {
    fn admits(&self, row: &Row) -> bool {
        let columns = columns(row.isa);
        let column = columns.iter().find(|column| column.name == self.column);
        let value = column.and_then(|column| Some(column.label(column.value(row)?).to_lowercase()));
        value.is_some_and(|value| self.values.contains(&value))
    }
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Only, String> {
        let (name, values) = text.split_once('=').ok_or("COLUMN=VALUE,VALUE is expected")?;
        let all: Vec<Column> = [Isa::Mma, Isa::Wgmma].into_iter().flat_map(columns).collect();
        let labels: BTreeSet<String> = all
            .iter()
            .filter(|column| column.name == name)
            .flat_map(|column| (0..column.values).map(|value| column.label(value).to_lowercase()))
            .collect();
        if labels.is_empty() {
            let names: BTreeSet<&str> = all.iter().map(|column| column.name).collect();
            return Err(format!("a search varies {}, not {name}", Vec::from_iter(names).join(", ")));
        }
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_lowercase()).collect();
        if let Some(value) = values.iter().find(|value| !labels.contains(*value)) {
            let labels = Vec::from_iter(labels.iter().map(String::as_str)).join(", ");
            return Err(format!("{name} is one of {labels}, not {value}"));
        }
        Ok(Only { column: name.to_owned(), values })
    }
}

/// Compiles the rows into the folder.
pub(super) fn build(candidates: &Candidates, args: &FolderArgs, common: &Common) -> Result<u8> {
    let Some(out) = &args.out else { return misuse("--out", "a folder is needed") };
    if common.ptx.is_some() {
        return misuse("--ptx", "what is compiled already needs no --out");
    }
    let lab = Lab::open("build", common)?;
    let model = Model::new(&lab.context.config.problems, &lab.context.machine);
    let rows = rows(candidates, args, common, &model)?;
    let mut screen = Screen::new(1);
    screen.stage(&format!("{} rows", rows.len()), "compile");
    let log = lab.context.log("folder", "compile")?;
    let patched = args.patch.as_deref().map(|path| patched(&lab, path)).transpose()?;
    let tree = patched.as_ref().map_or(&lab.context.tree, PatchedTree::tree);
    // The limit is one row's.
    let limit = lab.context.config.limits.build_s.duration().saturating_mul(rows.len() as u32);
    let own = [lab.context.machine.arch()];
    let code =
        if args.arch.is_empty() { Code::Ptx { archs: &own } } else { Code::Machine { archs: &args.arch } };
    tree.compile_for(&rows, out, code, &log, limit).map_err(|error| lab.with_folder(error))?;
    drop(screen);
    let bytes = bytes_of(out)?;
    let spilling = spilling(out, &args.arch)?;
    let object =
        json!({ "session": lab.shown(), "folder": out, "rows": rows, "bytes": bytes, "spilling": spilling });
    lab.results(&object, common.json)?;
    if !common.json {
        let spills = match spilling.len() {
            0 => String::new(),
            count => format!("; {count} spill and will be refused"),
        };
        screen::print(&format!("{}: {} rows, {} KB{spills}", out.display(), rows.len(), bytes / 1024));
    }
    Ok(EXIT_DONE)
}

/// The last commit with a patch.
fn patched(lab: &Lab, path: &Path) -> Result<PatchedTree> {
    let patch = crate::whole_file::read(path).map_err(|source| Error::io(path, source))?;
    let worktrees = lab.context.folder.join("worktrees");
    PatchedTree::new(&lab.context.tree, &patch, &worktrees)
        .map_err(|error| Error::BadFile { path: path.to_owned(), reason: error.to_string() })
}

/// The rows named, and those of the spaces, each once.
fn rows(candidates: &Candidates, args: &FolderArgs, common: &Common, model: &Model) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    if !candidates.rows.is_empty() || args.space.is_empty() {
        for Candidate { row, patch, .. } in candidates.list(default_row()?, common)? {
            if patch.is_some() {
                return misuse(
                    "--out",
                    "all kernels of a folder come from one tree: a patch to it goes to --patch",
                );
            }
            rows.push(row);
        }
    }
    for start in &args.space {
        let is_meant = |row: &Row| args.only.iter().all(|only| only.admits(row));
        let space = Space::new(row_of("--space", start)?).restricted(is_meant);
        rows.extend(likeliest_first(model, space.rows()).into_iter().take(args.most.unwrap_or(usize::MAX)));
    }
    rows.sort();
    rows.dedup();
    Ok(rows)
}

/// Rows whose registers spill on one of the architectures.
fn spilling(folder: &Path, archs: &[String]) -> Result<Vec<String>> {
    let library = Library::open(folder)?;
    let spills = |kernel: &kernels_gpu::manifest::Kernel| {
        let of = |arch: &String| kernel.resources.get(arch).map_or(0, |r| r.spill_loads + r.spill_stores);
        archs.iter().any(|arch| of(arch) > 0)
    };
    let kernels = library.kernels().iter();
    Ok(kernels.filter(|kernel| spills(kernel)).map(|kernel| kernel.entry.clone()).collect())
}

/// Bytes of all files of a folder.
fn bytes_of(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(folder).map_err(|source| Error::io(folder, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io(folder, source))?;
        let path = entry.path();
        bytes += match path.is_dir() {
            true => bytes_of(&path)?,
            false => entry.metadata().map_err(|source| Error::io(&path, source))?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn a_column_is_bound_to_its_values_and_nothing_else_is_one() {
        let row = Row { min_ctas: 2, ..VARIANTS[0].row };
        let admits = |text: &str| text.parse::<Only>().map(|only| only.admits(&row));
        assert_eq!(admits("min_ctas=1,2"), Ok(true));
        assert_eq!(admits("min_ctas=1,3"), Ok(false));
        assert_eq!(admits("acc=f32"), Ok(true));
        assert!(admits("head_dim=64").expect_err("the problem's").contains("block_m"));
        assert!(admits("stages=9").expect_err("no such value").contains("1, 2, 3, 4"));
        assert!(admits("stages").is_err());
    }
}
