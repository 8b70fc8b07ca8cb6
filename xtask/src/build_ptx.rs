//! `cargo xtask build-ptx`: the kernels' rows → rustc → PTX with launch bounds, and the manifest beside it.

use crate::device_compiler::{self, Compiler};
use crate::manifest_file;
use crate::ptx_text::{Bounds, Module};
use crate::rows::{self, BackwardRows, Rows, RowsOptions};
use crate::score_crate::Scores;
use crate::{check_ptx, device_core, ptxas, workspace};
use anyhow::{Context, bail};
use cuda_builder::{CudaBuilder, DebugInfo, NvvmArch};
use kernels_gpu::geometry;
use kernels_gpu::manifest::{FORMAT, Family, Manifest, ScoreCrate};
use kernels_gpu::params::WgmmaParams;
use kernels_gpu::row::{Isa, Row};
use kernels_gpu::steps::{STEP_VARIANTS, StepVariant};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The families, each of one kind of rows.
const ISAS: [Isa; 2] = [Isa::Mma, Isa::Wgmma];

/// What the folders of the kinds of builds end in, and whether these keep source lines.
const KINDS: [(&str, bool); 4] = [("", false), ("-rows", false), ("-lines", true), ("-rows-lines", true)];

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
    let (rows, scores) = (options.rows.chosen()?, options.rows.scores()?);
    let rows = Tables { rows, backward: options.rows.backward()? };
    let out = options.out();
    let compiler = device_compiler::resolve(options.device_rustc.as_deref())?;
    let Compiler { rustc, version, origin } = &compiler;
    eprintln!("device compiler: {} ({version}; {origin})", rustc.display());

    let mut texts = Vec::new();
    for (isa, text) in compile_families(&compiler, options, &rows, scores.as_ref()) {
        let text = text?;
        let file = workspace::shown(&out.join(ptx_file(isa.arch())));
        eprintln!("{file}: {} kernels, {} KB", names(&rows, isa.arch()).len(), text.len() / 1024);
        texts.push((isa, text));
    }
    write(&out, &texts, version, &rows, scores.map(|scores| scores.record()))?;

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

/// The PTX of each family that has entries, compiled side by side: each has a target folder of its own, and rustc works on a family with
/// one thread.
fn compile_families(
    compiler: &Compiler,
    options: &Options,
    rows: &Tables,
    scores: Option<&Scores>,
) -> Vec<(Isa, anyhow::Result<String>)> {
    let has_entries = |isa: &Isa| !names(rows, isa.arch()).is_empty();
    std::thread::scope(|scope| {
        let started: Vec<_> = ISAS
            .into_iter()
            .filter(has_entries)
            .map(|isa| (isa, scope.spawn(move || compile(compiler, isa, options, (rows, scores)))))
            .collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        started.into_iter().map(|(isa, thread)| (isa, joined(thread))).collect()
    })
}

/// The PTX of one family as rustc writes it.
fn compile(
    compiler: &Compiler,
    isa: Isa,
    options: &Options,
    (rows, scores): (&Tables, Option<&Scores>),
) -> anyhow::Result<String> {
    let arch = match isa {
        Isa::Mma => NvvmArch::Compute80,
        Isa::Wgmma => NvvmArch::Compute90a,
    };
    // A cdylib's files carry no hash: each kind of build has its own folder, and each stays fresh. What is compiled for a user's crate
    // has another package name.
    let kind = match (options.rows.is_table() || scores.is_some(), options.line_tables) {
        (true, false) => KINDS[0].0,
        (false, false) => KINDS[1].0,
        (true, true) => KINDS[2].0,
        (false, true) => KINDS[3].0,
    };
    let folder_of = |kind| workspace::target().join("device").join(format!("{}{kind}", arch.target_cpu()));
    let target_dir = folder_of(kind);
    let alike: Vec<PathBuf> = KINDS
        .iter()
        .filter(|(_, lines)| *lines == options.line_tables)
        .map(|(kind, _)| folder_of(kind))
        .collect();
    device_core::share(&alike, &target_dir)
        .with_context(|| format!("{} cannot be filled", target_dir.display()))?;
    let source = match scores {
        Some(scores) => scores.write_device_crate()?,
        None => workspace::root().join("kernels-gpu"),
    };
    let mut builder = CudaBuilder::new(&source)
        .arch(arch)
        .rustc(&compiler.rustc)
        .target_dir(&target_dir)
        .debug(if options.line_tables { DebugInfo::LineTables } else { DebugInfo::None });
    if isa == Isa::Wgmma {
        builder = builder.cfg("ferroflash_wgmma");
    }
    if !options.rows.is_table() {
        let file = scores.map_or(target_dir.as_path(), |_| &source).join(format!("rows-{}.rs", isa.name()));
        manifest_file::write_whole(&file, rows::macro_source(&rows.rows, &rows.backward, scores).as_bytes())?;
        builder = builder.cfg("ferroflash_rows").env("FERROFLASH_ROWS_FILE", &file);
    }
    let path = builder.build()?;
    std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Writes the bounded PTX of each family, then the manifest that names them; files of families that are gone are taken away.
fn write(
    out: &Path,
    texts: &[(Isa, String)],
    version: &str,
    rows: &Tables,
    score_crate: Option<ScoreCrate>,
) -> anyhow::Result<()> {
    let (mut families, mut kernels, mut step_kernels) = (Vec::new(), Vec::new(), Vec::new());
    let mut backward_kernels = Vec::new();
    for (isa, text) in texts {
        let family = isa.arch();
        let bound = bounded(text, family, rows)?;
        let module = Module::parse(&bound).context("the PTX with its launch bounds cannot be read")?;
        for (entry, row) in family_rows(&rows.rows, family) {
            let text = module.entry_text(&entry).with_context(|| format!("{entry} is lost"))?;
            kernels.push(manifest_file::kernel(&entry, row, family, &text));
        }
        for StepVariant { entry, row } in family_steps(family) {
            let text = module.entry_text(entry).with_context(|| format!("{entry} is lost"))?;
            step_kernels.push(manifest_file::step_kernel(entry, *row, family, &text));
        }
        for (entry, row) in rows.backward.iter().filter(|(_, row)| row.isa == *isa) {
            let text = module.entry_text(entry).with_context(|| format!("{entry} is lost"))?;
            backward_kernels.push(manifest_file::backward_kernel(entry, *row, family, &text));
        }
        let ptx = ptx_file(family);
        let sha256 = manifest_file::sha256(bound.as_bytes());
        manifest_file::write_whole(&out.join(&ptx), bound.as_bytes())?;
        families.push(Family { arch: family.to_owned(), ptx, sha256 });
    }
    if let Ok(before) = manifest_file::read(out) {
        manifest_file::carry_over(&mut kernels, &before.kernels, out);
        manifest_file::carry_over(&mut step_kernels, &before.step_kernels, out);
        manifest_file::carry_over(&mut backward_kernels, &before.backward_kernels, out);
    }
    let device_compiler = version.to_owned();
    let manifest = Manifest {
        format: FORMAT,
        device_compiler,
        families,
        kernels,
        step_kernels,
        backward_kernels,
        score_crate,
    };
    manifest_file::write(out, &manifest)?;
    for isa in ISAS {
        let file = out.join(ptx_file(isa.arch()));
        let is_named = manifest.families.iter().any(|family| family.arch == isa.arch());
        if !is_named && file.exists() {
            std::fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

/// A family's PTX with the launch bounds of its entries, which must be those of its rows.
fn bounded(text: &str, family: &str, rows: &Tables) -> anyhow::Result<String> {
    let module = Module::parse(text).with_context(|| format!("rustc's PTX of {family} cannot be read"))?;
    same_names(&module.entry_names(), family, rows)?;
    if family == Isa::Wgmma.arch() {
        calls_nothing(&module)?;
    }
    let of_row = |isa: Isa, threads: u32, min_ctas: u32| Bounds {
        threads,
        // Even `.minnctapersm 1` makes ptxas choose other registers than none at all; without it, it ignores setmaxnreg.
        min_ctas: (min_ctas > 1 || isa == Isa::Wgmma).then_some(min_ctas),
        // Tensor maps lie in it, at multiples of 64 bytes; rustc knows no parameter of more than 16.
        param_align: (isa == Isa::Wgmma).then_some(WgmmaParams::ALIGN),
    };
    let bounds = |entry: &str| {
        let forward = rows.rows.get(entry);
        let forward = forward.map(|row| of_row(row.isa, geometry::threads(row), row.min_ctas));
        let backward = || rows.backward.get(entry).map(|row| of_row(row.isa, row.threads(), row.min_ctas()));
        let step = || step(entry).map(|step| of_row(Isa::Mma, step.row.threads(), 1));
        forward.or_else(backward).or_else(step)
    };
    Ok(module.with_bounds(bounds)?)
}

/// The file of a family's PTX.
fn ptx_file(family: &str) -> String {
    format!("{family}.ptx")
}

/// The rows that are compiled.
pub(crate) struct Tables {
    /// Of the forward pass.
    pub(crate) rows: Rows,
    /// Of the backward pass.
    pub(crate) backward: BackwardRows,
}

/// The rows whose kernels a family holds.
fn family_rows(rows: &Rows, family: &str) -> Rows {
    let is_in = |row: &Row| row.isa.arch() == family;
    rows.iter().filter(|(_, row)| is_in(row)).map(|(entry, row)| (entry.clone(), *row)).collect()
}

/// The step kernels that a family holds: all in the one that runs everywhere.
fn family_steps(family: &str) -> &'static [StepVariant] {
    if family == Isa::Mma.arch() { STEP_VARIANTS } else { &[] }
}

fn step(entry: &str) -> Option<&'static StepVariant> {
    STEP_VARIANTS.iter().find(|variant| variant.entry == entry)
}

/// The names of the entries that a family must have.
fn names<'a>(tables: &'a Tables, family: &str) -> BTreeSet<&'a str> {
    let Tables { rows, backward } = tables;
    let rows = rows.iter().filter(|(_, row)| row.isa.arch() == family).map(|(entry, _)| entry.as_str());
    let backward = backward.iter().filter(|(_, row)| row.isa.arch() == family);
    let rows = rows.chain(backward.map(|(entry, _)| entry.as_str()));
    rows.chain(family_steps(family).iter().map(|variant| variant.entry)).collect()
}

/// Fails where a family's PTX lacks the entry of a row or of a step kernel, or has another.
pub(crate) fn same_names(entries: &[&str], family: &str, rows: &Tables) -> anyhow::Result<()> {
    let in_ptx: BTreeSet<&str> = entries.iter().copied().collect();
    let in_table = names(rows, family);
    let lacking: Vec<&str> = in_table.difference(&in_ptx).copied().collect();
    let foreign: Vec<&str> = in_ptx.difference(&in_table).copied().collect();
    if !lacking.is_empty() {
        bail!("rows without an entry in the PTX of {family}: {}", lacking.join(", "));
    }
    if !foreign.is_empty() {
        bail!("entries in the PTX of {family} without a row: {}", foreign.join(", "));
    }
    Ok(())
}

/// Fails where an entry calls a function. What is meant is inlined; what is left is a panic that the compiler could not rule out, as of a
/// division by what may be 0, and around a call ptxas keeps the accumulators of wgmma in memory: up to 1224 bytes of spills.
fn calls_nothing(module: &Module<'_>) -> anyhow::Result<()> {
    for entry in module.entry_names() {
        let text = module.entry_text(entry).unwrap_or_default();
        if let Some(call) = text.lines().map(str::trim).find(|line| is_call(line)) {
            bail!("{entry} calls a function, `{call}`: rule the panic out, or ptxas spills around it");
        }
    }
    Ok(())
}

/// Also behind a predicate: `@%p1 call.uni f, ();`.
fn is_call(line: &str) -> bool {
    line.split_whitespace().any(|word| word == "call" || word.starts_with("call."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::table::row_of;

    /// A row of the table with wgmma.
    const WGMMA: &str = "fwd_wgmma_bf16_d128_m128n128_w12s3c1_persistent";

    fn of_table() -> Tables {
        Tables { rows: rows::of_table(), backward: rows::backward_of_table() }
    }

    fn fake_ptx(rows: &Tables, isa: Isa) -> (Isa, String) {
        let arch = isa.arch();
        let entries = names(rows, arch).into_iter().map(|entry| {
            format!(".visible .entry {entry}(\n\t.param .align 16 .b8 p[64]\n)\n{{\n\tret;\n}}\n")
        });
        let header = format!(".version 8.0\n.target {arch}\n.address_size 64\n");
        (isa, header + &entries.collect::<String>())
    }

    #[test]
    fn entries_and_rows_must_be_the_same() {
        let rows = of_table();
        let names: Vec<&str> = names(&rows, "sm_80").into_iter().collect();
        assert!(same_names(&names, "sm_80", &rows).is_ok());
        let lacking = same_names(&names[1..], "sm_80", &rows).expect_err("one is lacking").to_string();
        assert_eq!(lacking, format!("rows without an entry in the PTX of sm_80: {}", names[0]));
        // A kernel that the other family should hold is a foreign one.
        let foreign = same_names(&[&names[..], &[WGMMA]].concat(), "sm_80", &rows);
        assert_eq!(
            foreign.expect_err("one too many").to_string(),
            format!("entries in the PTX of sm_80 without a row: {WGMMA}")
        );
        assert!(same_names(&names, "sm_90a", &rows).is_err());
    }

    #[test]
    fn a_panic_in_a_kernel_with_wgmma_is_named() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let rows = Rows::from([(WGMMA.to_owned(), row_of(WGMMA))]);
        let rows = Tables { rows, backward: BackwardRows::new() };
        let (isa, text) = fake_ptx(&rows, Isa::Wgmma);
        let mma = fake_ptx(&rows, Isa::Mma);
        write(folder.path(), &[mma.clone(), (isa, text.clone())], "rustc", &rows, None)
            .expect("it calls nothing");
        for call in ["call.uni panic_fmt, ();", "@%p1 call.uni panic_fmt, ();"] {
            let calling = text.replace("\tret;", &format!("\t@%p1 bra $L;\n\t{call}\n$L:\n\tret;"));
            let error = write(folder.path(), &[mma.clone(), (isa, calling)], "rustc", &rows, None)
                .expect_err("a call");
            let expected = format!("{WGMMA} calls a function, `{call}`");
            assert!(format!("{error:#}").starts_with(&expected), "{error:#}");
        }
    }

    #[test]
    fn every_entry_gets_the_bounds_of_its_row() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let rows = of_table();
        write(folder.path(), &ISAS.map(|isa| fake_ptx(&rows, isa)), "rustc", &rows, None).expect("writes");
        let forward =
            rows.rows.iter().map(|(entry, row)| (entry, row.isa, geometry::threads(row), row.min_ctas));
        let backward =
            rows.backward.iter().map(|(entry, row)| (entry, row.isa, row.threads(), row.min_ctas()));
        for (entry, isa, threads, min_ctas) in forward.chain(backward) {
            let text = std::fs::read_to_string(folder.path().join(ptx_file(isa.arch()))).expect("readable");
            let is_said = min_ctas > 1 || isa == Isa::Wgmma;
            let least = if is_said { format!("\n.minnctapersm {min_ctas}") } else { String::new() };
            let align = if isa == Isa::Wgmma { 64 } else { 16 };
            let expected = format!(
                "{entry}(\n\t.param .align {align} .b8 p[64]\n)\n.maxntid {threads}, 1, 1{least}\n{{"
            );
            assert!(text.contains(&expected), "{entry}");
        }
        let manifest = manifest_file::read(folder.path()).expect("readable");
        assert_eq!(manifest.kernels.len(), rows.rows.len());
        assert_eq!(manifest.backward_kernels.len(), rows.backward.len());
        for family in &manifest.families {
            assert!(manifest_file::read_ptx(folder.path(), family).is_ok());
        }
        for kernel in &manifest.kernels {
            assert_eq!(kernel.family, kernel.row.isa.arch(), "{}", kernel.entry);
        }
        assert!(manifest.step_kernels.iter().all(|kernel| kernel.family == "sm_80"));
    }

    #[test]
    fn a_family_without_rows_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let rows = of_table();
        write(folder.path(), &ISAS.map(|isa| fake_ptx(&rows, isa)), "rustc", &rows, None).expect("writes");
        assert!(folder.path().join("sm_90a.ptx").is_file());
        let rows = Tables { rows: family_rows(&rows.rows, "sm_80"), ..rows };
        write(folder.path(), &[fake_ptx(&rows, Isa::Mma)], "rustc", &rows, None).expect("writes");
        assert!(!folder.path().join("sm_90a.ptx").exists());
        let manifest = manifest_file::read(folder.path()).expect("readable");
        assert_eq!(manifest.families.len(), 1);
        // The combine kernels are all that a file of wgmma rows leaves of the family that runs everywhere.
        let rows = Rows::from([(WGMMA.to_owned(), row_of(WGMMA))]);
        let rows = Tables { rows, backward: BackwardRows::new() };
        assert_eq!(names(&rows, "sm_80").len(), STEP_VARIANTS.len());
    }
}
