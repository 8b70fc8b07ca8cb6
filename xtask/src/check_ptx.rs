//! `cargo xtask check-ptx`: the PTX has the table's entries, and each compiles for every architecture without spills, stack
//! frames, warnings that matter, or more shared memory than its row may use.

use crate::build_ptx::same_names;
use crate::manifest_file;
use crate::ptx_text::Module;
use crate::ptxas::{self, Ptxas};
use crate::ptxas_log;
use crate::{rows, workspace};
use anyhow::{Context, bail};
use kernels_gpu::manifest::{Kernel, Manifest, Resources};
use kernels_gpu::row::smem_limit;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every architecture that the sm_80 family is checked for.
const ARCHS: [&str; 4] = ["sm_80", "sm_86", "sm_89", "sm_90"];

/// What to check.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Check for this architecture; may be repeated [default: sm_80, sm_86, sm_89 and sm_90]
    #[arg(long, value_name = "SM")]
    pub(crate) arch: Vec<String>,
    /// The folder of the PTX and its manifest [default: where build-ptx puts it]
    #[arg(long, value_name = "DIR")]
    pub(crate) ptx_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rows: rows::RowsOptions,
    #[command(flatten)]
    pub(crate) ptxas: ptxas::PtxasOptions,
    /// Keep the machine code beside the PTX
    #[arg(long)]
    pub(crate) cubin: bool,
    /// Fail where there is no ptxas
    #[arg(long)]
    pub(crate) require_ptxas: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = options.ptx_dir.clone().unwrap_or_else(|| options.rows.default_folder());
    let mut manifest = manifest_file::read(&folder)?;
    let rows = options.rows.chosen()?;
    let text = check_names(&folder, &manifest, &rows)?;
    eprintln!("{}: the entries of the {} rows, no more and no less", workspace::shown(&folder), rows.len());

    let Some(ptxas) = ptxas::resolve(&options.ptxas)? else {
        let unchecked = "registers, spills, stack frames and warnings";
        if options.require_ptxas || options.cubin {
            bail!("no ptxas on the PATH, in CUDA_HOME or in target/: add --ptxas to fetch it");
        }
        eprintln!("not checked, as there is no ptxas: {unchecked} (`--ptxas` fetches it)");
        return Ok(());
    };
    eprintln!("ptxas {} ({})", ptxas.version, ptxas.shown_path());
    let archs =
        if options.arch.is_empty() { ARCHS.map(str::to_owned).to_vec() } else { options.arch.clone() };
    let failures = check_all(&folder, &mut manifest, &text, &ptxas, &archs, options.cubin)?;
    manifest_file::write(&folder, &manifest)?;
    if failures.is_empty() {
        return Ok(());
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    let kernels = manifest.kernels.len() + manifest.combine_kernels.len();
    bail!("{} of {} compilations are refused", failures.len(), archs.len() * kernels)
}

/// The PTX's text, once its entries, the manifest's kernels and the rows are the same.
fn check_names(folder: &Path, manifest: &Manifest, rows: &rows::Rows) -> anyhow::Result<String> {
    let Some(family) = manifest.families.first() else { bail!("the manifest names no PTX") };
    let text = manifest_file::read_ptx(folder, family)?;
    let module = Module::parse(&text).with_context(|| family.ptx.clone())?;
    same_names(&module.entry_names(), rows)?;
    let kernels: rows::Rows =
        manifest.kernels.iter().map(|kernel| (kernel.entry.clone(), kernel.row)).collect();
    if kernels != *rows {
        bail!("the manifest's rows are others: run `cargo xtask build-ptx`");
    }
    Ok(text)
}

/// Compiles every kernel for every architecture and notes the resources in the manifest; returns a line for each refusal.
fn check_all(
    folder: &Path,
    manifest: &mut Manifest,
    text: &str,
    ptxas: &Ptxas,
    archs: &[String],
    keep_cubins: bool,
) -> anyhow::Result<Vec<String>> {
    let module = Module::parse(text)?;
    let scratch = tempfile::tempdir().context("no temporary folder")?;
    let mut failures = Vec::new();
    for arch in archs {
        let compilation =
            Compilation { folder, module: &module, scratch: scratch.path(), ptxas, arch, keep_cubins };
        failures.extend(compilation.check(&mut manifest.kernels)?);
        failures.extend(compilation.check(&mut manifest.combine_kernels)?);
        eprintln!("{}", summary(manifest, arch));
    }
    Ok(failures)
}

/// The compilation of kernels for one architecture.
struct Compilation<'a> {
    folder: &'a Path,
    module: &'a Module<'a>,
    scratch: &'a Path,
    ptxas: &'a Ptxas,
    arch: &'a str,
    keep_cubins: bool,
}

impl Compilation<'_> {
    /// Compiles kernels of one kind and notes their resources; returns a line for each refusal.
    fn check<R: Sync>(&self, kernels: &mut [Kernel<R>]) -> anyhow::Result<Vec<String>> {
        let Compilation { folder, arch, .. } = self;
        for kernel in kernels.iter() {
            let path = self.scratch.join(format!("{}.ptx", kernel.entry));
            std::fs::write(&path, self.module.only(&kernel.entry)?)
                .with_context(|| path.display().to_string())?;
        }
        let mut failures = Vec::new();
        let results = in_parallel(kernels, |kernel| self.check_one(kernel));
        for (kernel, result) in kernels.iter_mut().zip(results) {
            kernel.resources.remove(*arch);
            kernel.cubins.remove(*arch);
            match result {
                Ok((resources, refusals)) => {
                    kernel.resources.insert(arch.to_string(), resources);
                    failures.extend(
                        refusals.iter().map(|refusal| format!("{} on {arch}: {refusal}", kernel.entry)),
                    );
                    if self.keep_cubins && refusals.is_empty() {
                        let file = format!("cubin/{arch}/{}.cubin", kernel.entry);
                        let code = std::fs::read(self.cubin_path(kernel))?;
                        manifest_file::write_whole(&folder.join(&file), &code)?;
                        kernel.cubins.insert(arch.to_string(), file);
                    }
                }
                Err(reason) => failures.push(format!("{} on {arch}: {reason}", kernel.entry)),
            }
        }
        Ok(failures)
    }

    fn cubin_path<R>(&self, kernel: &Kernel<R>) -> PathBuf {
        self.scratch.join(format!("{}.cubin", kernel.entry))
    }

    /// One kernel through ptxas; the error is the reason why there is no machine code.
    fn check_one<R>(&self, kernel: &Kernel<R>) -> Result<(Resources, Vec<ptxas_log::Refusal>), String> {
        let ptx = self.scratch.join(format!("{}.ptx", kernel.entry));
        let log = self
            .ptxas
            .compile(&ptx, self.arch, &self.cubin_path(kernel))
            .map_err(|error| error.to_string())?;
        let resources = ptxas_log::resources(&log).map_err(|refusal| refusal.to_string())?;
        let refusals =
            ptxas_log::refusals(&log, &resources, kernel.smem_bytes, smem_limit(kernel.smem_bytes));
        Ok((resources, refusals))
    }
}

/// Maps on all cores, in the order of the input.
fn in_parallel<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = map(item);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// One line on an architecture: how many compiled, and their range of registers.
fn summary(manifest: &Manifest, arch: &str) -> String {
    let forward = manifest.kernels.iter().map(|kernel| &kernel.resources);
    let all = forward.chain(manifest.combine_kernels.iter().map(|kernel| &kernel.resources));
    let registers: Vec<u32> =
        all.filter_map(|resources| resources.get(arch)).map(|found| found.registers).collect();
    match (registers.iter().min(), registers.iter().max()) {
        (Some(least), Some(most)) => {
            format!("{arch}: {} kernels, {least} to {most} registers", registers.len())
        }
        _ => format!("{arch}: no kernel compiled"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_results_keep_their_order() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(
            in_parallel(&items, |item| item * 2),
            items.iter().map(|item| item * 2).collect::<Vec<_>>()
        );
        assert!(in_parallel(&[] as &[u32], |item| *item).is_empty());
    }
}
