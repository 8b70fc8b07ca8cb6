//! `cargo xtask check-ptx`: the PTX has the table's entries, and each compiles for every architecture without spills, stack
//! frames, warnings that matter, or more shared memory than its row may use. What the project's record knows is not compiled again.

use crate::build_ptx::{Tables, same_names};
use crate::manifest_file;
use crate::ptx_text::Module;
use crate::ptxas::{self, Ptxas};
use crate::ptxas_log;
use crate::ptxas_record::Record;
use crate::{rows, workspace};
use anyhow::{Context, bail};
use ferroflash_kernels::{Arch, ptx};
use kernels_gpu::manifest::{Kernel, Manifest, Resources};
use kernels_gpu::row::{Isa, smem_limit};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every architecture that the sm_80 family is checked for.
const ARCHS: [&str; 4] = ["sm_80", "sm_86", "sm_89", "sm_90"];
/// The one architecture that the sm_90a family compiles for.
const WGMMA_ARCH: &str = Isa::Wgmma.arch();

/// What to check.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Check for this architecture; may be repeated. wgmma kernels are compiled for sm_90a alone, also where sm_90 is named
    /// [default: sm_80, sm_86, sm_89, sm_90 and sm_90a]
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
    /// Compile what the project's record knows, too
    #[arg(long)]
    pub(crate) afresh: bool,
    /// Keep with the project what ptxas says of the kernels of the table (kernels-gpu/ptxas.json)
    #[arg(long)]
    pub(crate) record: bool,
    /// Fail where there is no ptxas
    #[arg(long)]
    pub(crate) require_ptxas: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = options.ptx_dir.clone().unwrap_or_else(|| options.rows.default_folder());
    let mut manifest = manifest_file::read(&folder)?;
    let rows = Tables { rows: options.rows.chosen()?, backward: options.rows.backward()? };
    let texts = check_names(&folder, &manifest, &rows)?;
    let count = rows.rows.len() + rows.backward.len();
    eprintln!("{}: the entries of the {count} rows, no more and no less", workspace::shown(&folder));

    let Some(ptxas) = ptxas::resolve(&options.ptxas)? else {
        let unchecked = "registers, spills, stack frames and warnings";
        if options.require_ptxas || options.cubin {
            bail!("no ptxas on the PATH, in CUDA_HOME or in target/: add --ptxas to fetch it");
        }
        eprintln!("not checked, as there is no ptxas: {unchecked} (`--ptxas` fetches it)");
        return Ok(());
    };
    eprintln!("ptxas {} ({})", ptxas.version, ptxas.shown_path());
    if options.record && !options.rows.is_table() {
        bail!("only the table's kernels are kept with the project");
    }
    // Only the table's kernels are the project's, and what was not compiled has no machine code.
    let is_trusted = options.rows.is_table() && !options.afresh && !options.cubin;
    let mut found = Found { record: Record::read(&ptxas.version)?, is_trusted, ..Found::default() };
    for (family, text) in &texts {
        found.check(&folder, &mut manifest, (family, text), &ptxas, options)?;
    }
    manifest_file::write(&folder, &manifest)?;
    let Found { compilations, recorded, mut record, failures, .. } = found;
    if recorded > 0 {
        eprintln!(
            "{recorded} of {compilations} are as kernels-gpu/ptxas.json says (`--afresh` compiles them all the same)"
        );
    }
    if compilations == 0 {
        bail!("no kernel here is compiled for {}", options.arch.join(" or "));
    }
    if failures.is_empty() {
        if options.record {
            record.retain(&entries(&manifest));
            record.write()?;
        }
        return Ok(());
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    bail!("{} of {compilations} compilations are refused", failures.len())
}

/// The names of all kernels.
fn entries(manifest: &Manifest) -> BTreeSet<&str> {
    let forward = manifest.kernels.iter().map(|kernel| kernel.entry.as_str());
    let steps = manifest.step_kernels.iter().map(|kernel| kernel.entry.as_str());
    forward.chain(steps).chain(manifest.backward_kernels.iter().map(|kernel| kernel.entry.as_str())).collect()
}

/// The architectures that a family's kernels are compiled for, where these are asked for, or none in particular.
fn archs_of(family: &str, named: &[String]) -> Vec<String> {
    if family == WGMMA_ARCH {
        let is_meant = named.is_empty() || named.iter().any(|arch| arch == "sm_90" || arch == WGMMA_ARCH);
        return if is_meant { vec![WGMMA_ARCH.to_owned()] } else { Vec::new() };
    }
    let mut archs = if named.is_empty() { ARCHS.map(str::to_owned).to_vec() } else { named.to_vec() };
    archs.retain(|arch| arch != WGMMA_ARCH);
    archs
}

/// Each family's name and PTX, once entries, the manifest's kernels and the rows are the same.
fn check_names(folder: &Path, manifest: &Manifest, rows: &Tables) -> anyhow::Result<Vec<(String, String)>> {
    let kernels: rows::Rows =
        manifest.kernels.iter().map(|kernel| (kernel.entry.clone(), kernel.row)).collect();
    let backward: rows::BackwardRows =
        manifest.backward_kernels.iter().map(|kernel| (kernel.entry.clone(), kernel.row)).collect();
    if kernels != rows.rows || backward != rows.backward {
        bail!("the manifest's rows are others: run `cargo xtask build-ptx`");
    }
    let mut texts = Vec::new();
    for family in &manifest.families {
        let text = manifest_file::read_ptx(folder, family)?;
        let module = Module::parse(&text).with_context(|| family.ptx.clone())?;
        same_names(&module.entry_names(), &family.arch, rows)?;
        texts.push((family.arch.clone(), text));
    }
    let is_held = |family: &str| manifest.families.iter().any(|held| held.arch == family);
    if let Some(kernel) = manifest.kernels.iter().find(|kernel| !is_held(&kernel.family)) {
        bail!("{} is in no PTX that the manifest names: run `cargo xtask build-ptx`", kernel.entry);
    }
    Ok(texts)
}

/// What the compilations came to.
#[derive(Debug, Default)]
struct Found {
    compilations: usize,
    /// Of them, those that were not done, as the record knows them.
    recorded: usize,
    /// What was known, and what was accepted now.
    record: Record,
    /// Whether what is known is not compiled again.
    is_trusted: bool,
    /// A line for each refusal.
    failures: Vec<String>,
}

impl Found {
    /// Compiles every kernel of a family for every architecture and notes the resources in the manifest.
    fn check(
        &mut self,
        folder: &Path,
        manifest: &mut Manifest,
        (family, text): (&str, &str),
        ptxas: &Ptxas,
        options: &Options,
    ) -> anyhow::Result<()> {
        let module = Module::parse(text)?;
        let scratch = tempfile::tempdir().context("no temporary folder")?;
        for arch in &archs_of(family, &options.arch) {
            let (scratch, keep_cubins) = (scratch.path(), options.cubin);
            let compilation =
                Compilation { folder, family, module: &module, scratch, ptxas, arch, keep_cubins };
            compilation.check(&mut manifest.kernels, self)?;
            compilation.check(&mut manifest.step_kernels, self)?;
            compilation.check(&mut manifest.backward_kernels, self)?;
            eprintln!("{}", summary(manifest, arch));
        }
        Ok(())
    }
}

/// The compilation of a family's kernels for one architecture.
struct Compilation<'a> {
    folder: &'a Path,
    family: &'a str,
    module: &'a Module<'a>,
    scratch: &'a Path,
    ptxas: &'a Ptxas,
    arch: &'a str,
    keep_cubins: bool,
}

impl Compilation<'_> {
    /// Compiles the family's among kernels of one kind and notes their resources.
    fn check<R: Sync>(&self, kernels: &mut [Kernel<R>], found: &mut Found) -> anyhow::Result<()> {
        let Compilation { folder, arch, .. } = self;
        let of_family = kernels.iter_mut().filter(|kernel| kernel.family == self.family);
        let mut kernels: Vec<(&mut Kernel<R>, Option<Resources>)> = of_family
            .map(|kernel| {
                let known = found.record.find(&kernel.entry, &kernel.sha256, arch);
                (kernel, known.filter(|_| found.is_trusted))
            })
            .collect();
        let Arch { sm, .. } = Arch::parse(arch).with_context(|| format!("{arch} is no architecture"))?;
        for (kernel, _) in kernels.iter().filter(|(_, known)| known.is_none()) {
            let path = self.scratch.join(format!("{}.ptx", kernel.entry));
            let text = self.module.only(&kernel.entry)?;
            std::fs::write(&path, ptx::for_sm(&text, sm).as_bytes())
                .with_context(|| path.display().to_string())?;
        }
        let results = in_parallel(&kernels, |(kernel, known)| self.check_one(kernel, *known));
        found.compilations += kernels.len();
        for ((kernel, known), result) in kernels.iter_mut().zip(results) {
            found.recorded += usize::from(known.is_some());
            kernel.resources.remove(*arch);
            kernel.cubins.remove(*arch);
            match result {
                Ok((resources, refusals)) => {
                    kernel.resources.insert(arch.to_string(), resources);
                    if refusals.is_empty() {
                        found.record.keep(&kernel.entry, &kernel.sha256, arch, &resources);
                    }
                    found.failures.extend(
                        refusals.iter().map(|refusal| format!("{} on {arch}: {refusal}", kernel.entry)),
                    );
                    if self.keep_cubins && refusals.is_empty() {
                        let file = format!("cubin/{arch}/{}.cubin", kernel.entry);
                        let code = std::fs::read(self.cubin_path(kernel))?;
                        manifest_file::write_whole(&folder.join(&file), &code)?;
                        kernel.cubins.insert(arch.to_string(), file);
                    }
                }
                Err(reason) => found.failures.push(format!("{} on {arch}: {reason}", kernel.entry)),
            }
        }
        Ok(())
    }

    fn cubin_path<R>(&self, kernel: &Kernel<R>) -> PathBuf {
        self.scratch.join(format!("{}.cubin", kernel.entry))
    }

    /// One kernel through ptxas, unless its resources are known; the error is the reason why there is no machine code.
    fn check_one<R>(
        &self,
        kernel: &Kernel<R>,
        known: Option<Resources>,
    ) -> Result<(Resources, Vec<ptxas_log::Refusal>), String> {
        let (log, resources) = match known {
            // It had no warnings, or it would not be known.
            Some(resources) => (String::new(), resources),
            None => {
                let ptx = self.scratch.join(format!("{}.ptx", kernel.entry));
                let log = self
                    .ptxas
                    .compile(&ptx, self.arch, &self.cubin_path(kernel))
                    .map_err(|error| error.to_string())?;
                let resources = ptxas_log::resources(&log).map_err(|refusal| refusal.to_string())?;
                (log, resources)
            }
        };
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
    let all = forward.chain(manifest.step_kernels.iter().map(|kernel| &kernel.resources));
    let all = all.chain(manifest.backward_kernels.iter().map(|kernel| &kernel.resources));
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
    fn wgmma_kernels_are_compiled_for_their_one_architecture() {
        let archs = |family: &str, named: &[&str]| {
            archs_of(family, &named.iter().map(|name| name.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(archs("sm_80", &[]), ["sm_80", "sm_86", "sm_89", "sm_90"]);
        assert_eq!(archs("sm_80", &["sm_90a", "sm_89"]), ["sm_89"]);
        assert_eq!(archs("sm_90a", &[]), ["sm_90a"]);
        assert_eq!(archs("sm_90a", &["sm_90"]), ["sm_90a"]);
        assert_eq!(archs("sm_90a", &["sm_90", "sm_90a"]), ["sm_90a"]);
        assert!(archs("sm_90a", &["sm_89"]).is_empty());
    }

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
