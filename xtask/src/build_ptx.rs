//! `cargo xtask build-ptx`: the kernels' rows → rustc → PTX with launch bounds, and the manifest beside it.

use crate::device_compiler::{self, Compiler};
use crate::manifest_file;
use crate::ptx_text::{Bounds, Module};
use crate::rows::{self, Rows, RowsOptions};
use crate::{check_ptx, ptxas, workspace};
use anyhow::{Context, bail};
use cuda_builder::{CudaBuilder, DebugInfo, NvvmArch};
use kernels_gpu::geometry;
use kernels_gpu::manifest::{CombineRow, FORMAT, Family, Manifest};
use kernels_gpu::table::{COMBINE_VARIANTS, CombineVariant};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What to build.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The compiler for the kernels: a rustc whose sysroot holds the source of its own library
    #[arg(long, value_name = "PATH")]
    pub(crate) device_rustc: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rows: RowsOptions,
    /// Where PTX and manifest go [default: target/ptx; target/ptx-rows, -every-row or -lines with those options]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Keep source lines in the PTX, for the simulator (ptxas rejects such PTX)
    #[arg(long, conflicts_with_all = ["ptxas", "cubin"])]
    pub(crate) line_tables: bool,
    #[command(flatten)]
    pub(crate) ptxas: ptxas::PtxasOptions,
    /// Keep the machine code of every architecture, which the host prefers over PTX
    #[arg(long)]
    pub(crate) cubin: bool,
}

impl Options {
    fn out(&self) -> PathBuf {
        let default =
            if self.line_tables { workspace::target().join("ptx-lines") } else { self.rows.default_folder() };
        self.out.clone().unwrap_or(default)
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let rows = options.rows.chosen()?;
    let out = options.out();
    let compiler = device_compiler::resolve(options.device_rustc.as_deref())?;
    let Compiler { rustc, version, origin } = &compiler;
    eprintln!("device compiler: {} ({version}; {origin})", rustc.display());

    let arch = NvvmArch::Compute80;
    let text = compile(&compiler, arch, options, &rows)?;
    let ptx = write(&out, &text, arch, version, &rows)?;
    eprintln!("{}: {} kernels, {} KB", workspace::shown(&ptx), rows.len(), text.len() / 1024);

    if options.cubin || options.ptxas.ptxas.is_some() {
        check_ptx::run(&check_ptx::Options {
            rows: options.rows.clone(),
            ptx_dir: Some(out),
            ptxas: options.ptxas.clone(),
            cubin: options.cubin,
            require_ptxas: true,
            ..check_ptx::Options::default()
        })?;
    }
    Ok(())
}

/// The PTX as rustc writes it.
fn compile(compiler: &Compiler, arch: NvvmArch, options: &Options, rows: &Rows) -> anyhow::Result<String> {
    // A cdylib's files carry no hash: each kind of build has its own folder, and each stays fresh.
    let kind = match (options.rows.is_table(), options.line_tables) {
        (true, false) => "",
        (true, true) => "-lines",
        (false, false) => "-rows",
        (false, true) => "-rows-lines",
    };
    let target_dir = workspace::target().join("device").join(format!("{}{kind}", arch.target_cpu()));
    let mut builder = CudaBuilder::new(workspace::root().join("kernels-gpu"))
        .arch(arch)
        .rustc(&compiler.rustc)
        .target_dir(&target_dir)
        .debug(if options.line_tables { DebugInfo::LineTables } else { DebugInfo::None });
    if !options.rows.is_table() {
        let file = target_dir.join("rows.rs");
        manifest_file::write_whole(&file, rows::macro_source(rows).as_bytes())?;
        builder = builder.cfg("ferroflash_rows").env("FERROFLASH_ROWS_FILE", &file);
    }
    let path = builder.build()?;
    std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Writes the bounded PTX, then the manifest that names it; returns the PTX's path.
fn write(out: &Path, text: &str, arch: NvvmArch, version: &str, rows: &Rows) -> anyhow::Result<PathBuf> {
    let module = Module::parse(text).context("rustc's PTX cannot be read")?;
    same_names(&module.entry_names(), rows)?;
    let bounds = |entry: &str| match rows.get(entry) {
        Some(row) => Some(Bounds { threads: geometry::threads(row), min_ctas: row.min_ctas }),
        None => is_combine(entry).then_some(Bounds { threads: geometry::COMBINE_THREADS, min_ctas: 1 }),
    };
    let bound = module.with_bounds(bounds)?;

    let family = arch.target_cpu();
    let file = format!("{family}.ptx");
    let module = Module::parse(&bound).context("the PTX with its launch bounds cannot be read")?;
    let mut kernels = Vec::new();
    for (entry, row) in rows {
        let text = module.entry_text(entry).with_context(|| format!("{entry} is lost"))?;
        kernels.push(manifest_file::kernel(entry, *row, family, &text));
    }
    let mut combine_kernels = Vec::new();
    for CombineVariant { entry, dtype } in COMBINE_VARIANTS {
        let text = module.entry_text(entry).with_context(|| format!("{entry} is lost"))?;
        let row = CombineRow { dtype: *dtype };
        combine_kernels.push(manifest_file::combine_kernel(entry, row, family, &text));
    }
    if let Ok(before) = manifest_file::read(out) {
        manifest_file::carry_over(&mut kernels, &before.kernels, out);
        manifest_file::carry_over(&mut combine_kernels, &before.combine_kernels, out);
    }
    let families = vec![Family {
        arch: family.to_owned(),
        ptx: file.clone(),
        sha256: manifest_file::sha256(bound.as_bytes()),
    }];
    manifest_file::write_whole(&out.join(&file), bound.as_bytes())?;
    let device_compiler = version.to_owned();
    let manifest = Manifest { format: FORMAT, device_compiler, families, kernels, combine_kernels };
    manifest_file::write(out, &manifest)?;
    Ok(out.join(file))
}

fn is_combine(entry: &str) -> bool {
    COMBINE_VARIANTS.iter().any(|variant| variant.entry == entry)
}

/// Fails where the PTX lacks the entry of a row or of a combine kernel, or has another.
pub(crate) fn same_names(entries: &[&str], rows: &Rows) -> anyhow::Result<()> {
    let in_ptx: BTreeSet<&str> = entries.iter().copied().collect();
    let combine = COMBINE_VARIANTS.iter().map(|variant| variant.entry);
    let in_table: BTreeSet<&str> = rows.keys().map(String::as_str).chain(combine).collect();
    let lacking: Vec<&str> = in_table.difference(&in_ptx).copied().collect();
    let foreign: Vec<&str> = in_ptx.difference(&in_table).copied().collect();
    if !lacking.is_empty() {
        bail!("rows without an entry in the PTX: {}", lacking.join(", "));
    }
    if !foreign.is_empty() {
        bail!("entries in the PTX without a row: {}", foreign.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_names(rows: &Rows) -> Vec<&str> {
        let combine = COMBINE_VARIANTS.iter().map(|variant| variant.entry);
        rows.keys().map(String::as_str).chain(combine).collect()
    }

    fn fake_ptx(rows: &Rows) -> String {
        let entries =
            all_names(rows).into_iter().map(|entry| format!(".visible .entry {entry}(\n)\n{{\n\tret;\n}}\n"));
        format!(".version 7.0\n.target sm_80\n.address_size 64\n{}", entries.collect::<String>())
    }

    #[test]
    fn entries_and_rows_must_be_the_same() {
        let rows = rows::of_table();
        let names = all_names(&rows);
        assert!(same_names(&names, &rows).is_ok());
        let lacking = same_names(&names[1..], &rows).expect_err("one is lacking").to_string();
        assert_eq!(lacking, format!("rows without an entry in the PTX: {}", names[0]));
        let foreign =
            same_names(&[&names[..], &["stray"]].concat(), &rows).expect_err("one too many").to_string();
        assert_eq!(foreign, "entries in the PTX without a row: stray");
    }

    #[test]
    fn every_entry_gets_the_bounds_of_its_row() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let rows = rows::of_table();
        let path =
            write(folder.path(), &fake_ptx(&rows), NvvmArch::Compute80, "rustc", &rows).expect("writes");
        let text = std::fs::read_to_string(path).expect("readable");
        for (entry, row) in &rows {
            let (threads, min_ctas) = (row.warps * 32, row.min_ctas);
            let least = if min_ctas > 1 { format!("\n.minnctapersm {min_ctas}") } else { String::new() };
            let expected = format!("{entry}(\n)\n.maxntid {threads}, 1, 1{least}\n{{");
            assert!(text.contains(&expected), "{entry}");
        }
        let manifest = manifest_file::read(folder.path()).expect("readable");
        assert_eq!(manifest.kernels.len(), rows.len());
        assert!(manifest_file::read_ptx(folder.path(), &manifest.families[0]).is_ok());
    }
}
