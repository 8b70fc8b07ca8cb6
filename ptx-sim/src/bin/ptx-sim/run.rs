//! `ptx-sim run`: makes the buffers, launches the kernel, reports, writes the outputs.

use std::path::PathBuf;
use std::process::ExitCode;

use ptx_sim::{
    Entry, Finding, LaunchConfig, Memory, Module, Prediction, Predictor, Report, Schedule, SimError, launch,
    sarif,
};

use crate::arguments::{Argument, Source};
use crate::check::signature;
use crate::error::Error;
use crate::npy::{self, Layout};
use crate::options::RunOptions;

/// A buffer that is written to a file after the run.
struct Output {
    address: u64,
    bytes: usize,
    layout: Layout,
    path: PathBuf,
    /// Position of its parameter, from 1.
    position: usize,
}

pub(crate) fn run(options: &RunOptions) -> Result<ExitCode, Error> {
    let path = &options.file;
    let bytes = std::fs::read(path).map_err(|reason| Error::File { path: path.clone(), reason })?;
    let text = String::from_utf8_lossy(&bytes);
    // Of one entry alone is looked at what it needs; a name that is not there is found missing below.
    let module = match &options.entry {
        Some(entry) => Module::parse_entry(&text, entry),
        None => Module::parse(&text),
    };
    let module = module.map_err(|reason| Error::Load { path: path.clone(), reason })?;
    let (name, entry) = choose(&module, options)?;
    let mut memory = Memory::new();
    let (params, outputs) = parameters(name, entry, &options.arguments, &mut memory)?;
    let config = LaunchConfig {
        dynamic_smem_bytes: options.shared,
        limits: options.limits.map_or_else(|| module.limits(), |device| device.limits()),
        cluster: options.cluster.map(|d| d.0),
        checks: options.checks.0,
        schedule: options.seed.map_or(Schedule::Deterministic, Schedule::Seeded),
        instruction_budget: options.budget,
        coverage: options.coverage,
        ..LaunchConfig::new(options.grid.0, options.block.0)
    };
    let report = match launch(&module, name, &params, &mut memory, &config) {
        Ok(report) => report,
        Err(SimError::Finding(finding)) => {
            publish(&[&finding], options)?;
            if options.json {
                let finding = finding.to_json();
                crate::print(&format!("{{\"outcome\":\"finding\",\"finding\":{finding}}}\n"))?;
            }
            eprintln!("ptx-sim: {}: {finding}", path.display());
            return Ok(ExitCode::from(1));
        }
        Err(error) => return Err(Error::Launch(error)),
    };
    let warnings: Vec<&Finding> = report.warnings.iter().collect();
    publish(&warnings, options)?;
    for warning in &warnings {
        eprintln!("ptx-sim: {}: {warning}", path.display());
    }
    let holes = collect(&outputs, &memory)?;
    let predicted = predict(&module, name, entry, options, &config)?;
    print_report((name, &text), &report, options, (holes, predicted))?;
    let fails = options.checks.0.initialized && holes > 0;
    Ok(if fails { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// The predicted time, if it is asked for: of another run, on buffers as they were before this one.
fn predict(
    module: &Module,
    name: &str,
    entry: &Entry,
    options: &RunOptions,
    config: &LaunchConfig,
) -> Result<Option<Prediction>, Error> {
    let (Some(gpu), Some(registers)) = (options.predict, options.registers) else { return Ok(None) };
    let gpu = options.clock.map_or(gpu, |clock| gpu.at_clock(clock.into()));
    let mut memory = Memory::new();
    let (params, _) = parameters(name, entry, &options.arguments, &mut memory)?;
    let predictor = Predictor::new(gpu, registers);
    predictor.predict(module, name, &params, &mut memory, config).map(Some).map_err(Error::Launch)
}

/// Writes findings and warnings for other tools, as far as they are asked for.
fn publish(findings: &[&Finding], options: &RunOptions) -> Result<(), Error> {
    let ptx = options.file.display().to_string();
    if let Some(path) = &options.sarif {
        std::fs::write(path, sarif(findings, &ptx))
            .map_err(|reason| Error::File { path: path.clone(), reason })?;
    }
    if options.github {
        for finding in findings {
            crate::print(&format!("{}\n", finding.to_github(&ptx)))?;
        }
    }
    Ok(())
}

fn choose<'m>(module: &'m Module, options: &RunOptions) -> Result<(&'m str, &'m Entry), Error> {
    let names = || module.entries().map(str::to_owned).collect::<Vec<_>>();
    let name = match &options.entry {
        Some(name) => module.entries().find(|entry| entry == name),
        None if module.entries().nth(1).is_some() => return Err(Error::WhichEntry { names: names() }),
        None => module.entries().next(),
    };
    match (name.and_then(|name| Some((name, module.entry(name)?))), &options.entry) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) if module.entries().next().is_some() => {
            Err(Error::UnknownEntry { name: name.clone(), names: names() })
        }
        (None, _) => Err(Error::NoEntry { path: options.file.clone() }),
    }
}

/// The parameter block, and the buffers to write to files afterwards.
fn parameters(
    name: &str,
    entry: &Entry,
    arguments: &[Argument],
    memory: &mut Memory,
) -> Result<(Vec<u8>, Vec<Output>), Error> {
    let (expected, got) = (entry.params().len(), arguments.len());
    if expected != got {
        let (entry, signature) = (name.to_owned(), signature(entry));
        return Err(Error::ArgumentCount { entry, expected, got, signature });
    }
    let mut block = vec![0; entry.param_bytes()];
    let mut made = Made { memory, outputs: Vec::new(), addresses: Vec::new() };
    for (at, (param, argument)) in entry.params().iter().zip(arguments).enumerate() {
        made.addresses.push(None);
        let (bytes, _) = made.bytes_of(argument)?;
        if bytes.len() != param.bytes as usize {
            return Err(Error::ArgumentSize {
                entry: name.to_owned(),
                position: at + 1,
                name: param.name.clone(),
                expected: param.bytes,
                argument: kind(argument).to_owned(),
                got: bytes.len(),
            });
        }
        block[param.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    Ok((block, made.outputs))
}

fn kind(argument: &Argument) -> &'static str {
    match argument {
        Argument::Value(_) | Argument::Bytes(_) => "of that number",
        Argument::Struct(_) => "of that struct",
        Argument::Earlier { .. } | Argument::Buffer { .. } | Argument::InOut { .. } => {
            "of a buffer's address"
        }
    }
}

/// What arguments have been made into.
struct Made<'a> {
    memory: &'a mut Memory,
    outputs: Vec<Output>,
    /// Of each argument the first address in it.
    addresses: Vec<Option<u64>>,
}

impl Made<'_> {
    /// An argument's bytes, and what they are aligned to in a struct.
    fn bytes_of(&mut self, argument: &Argument) -> Result<(Vec<u8>, usize), Error> {
        let position = self.addresses.len();
        let address = match argument {
            Argument::Value(bytes) => return Ok((bytes.clone(), bytes.len())),
            Argument::Bytes(bytes) => return Ok((bytes.clone(), 1)),
            Argument::Struct(fields) => return self.fields(fields),
            Argument::Earlier { position: earlier, offset } => {
                let address = self.addresses.get(earlier - 1).copied().flatten();
                let address = address.filter(|_| *earlier < position);
                address.ok_or(Error::NoEarlier { position, earlier: *earlier })?.wrapping_add(*offset)
            }
            Argument::InOut { from, to } => {
                let (layout, data) = npy::read(from)?;
                let address = self.filled(&data)?;
                self.outputs.push(Output { address, bytes: data.len(), layout, path: to.clone(), position });
                address
            }
            Argument::Buffer { source, result } => {
                let (address, bytes) = match source {
                    Source::File(path) => {
                        let (_, data) = npy::read(path)?;
                        (self.filled(&data)?, data.len())
                    }
                    Source::Zeros(bytes) => (self.filled(&vec![0; *bytes])?, *bytes),
                    Source::Unwritten(bytes) => (self.memory.alloc(*bytes), *bytes),
                };
                if let Some((layout, path)) = result {
                    let (layout, path) = (layout.clone(), path.clone());
                    self.outputs.push(Output { address, bytes, layout, path, position });
                }
                address
            }
        };
        if let Some(first @ None) = self.addresses.last_mut() {
            *first = Some(address);
        }
        Ok((address.to_le_bytes().to_vec(), size_of::<u64>()))
    }

    fn fields(&mut self, fields: &[Argument]) -> Result<(Vec<u8>, usize), Error> {
        let (mut bytes, mut most) = (Vec::new(), 1);
        for field in fields {
            let (field, align) = self.bytes_of(field)?;
            bytes.resize(bytes.len().next_multiple_of(align), 0);
            bytes.extend(field);
            most = most.max(align);
        }
        bytes.resize(bytes.len().next_multiple_of(most), 0);
        Ok((bytes, most))
    }

    fn filled(&mut self, data: &[u8]) -> Result<u64, Error> {
        let address = self.memory.alloc(data.len());
        self.memory.write(address, data)?;
        Ok(address)
    }
}

/// Writes the outputs to their files; gives the bytes in them that the kernel did not write, and says where.
fn collect(outputs: &[Output], memory: &Memory) -> Result<usize, Error> {
    let mut holes = 0;
    for output in outputs {
        let mut data = vec![0; output.bytes];
        memory.read(output.address, &mut data)?;
        npy::write(&output.path, &output.layout, &data)?;
        let mut missing = (0, None);
        for at in 0..output.bytes {
            if !memory.is_written(output.address + at as u64, 1)? {
                missing = (missing.0 + 1, missing.1.or(Some(at)));
            }
        }
        if let (count, Some(first)) = missing {
            eprintln!(
                "ptx-sim: unwritten: {count} of {} bytes of parameter {} ({}) were never written, the first at byte {first}",
                output.bytes,
                output.position,
                output.path.display()
            );
            holes += count;
        }
    }
    Ok(holes)
}

fn print_report(
    (name, ptx): (&str, &str),
    report: &Report,
    options: &RunOptions,
    (holes, predicted): (usize, Option<Prediction>),
) -> Result<(), Error> {
    let untested = report.untested.iter().map(|gap| match options.json {
        true => format!("{{\"line\":{},\"what\":\"{}\"}}", gap.line, gap.kind),
        false => {
            let line = ptx.lines().nth((gap.line as usize).saturating_sub(1)).unwrap_or_default();
            format!("line {}, `{}`, {}\n", gap.line, line.trim(), gap.kind)
        }
    });
    let untested: Vec<String> = untested.collect();
    if options.json {
        let outcome = if holes > 0 { "unwritten" } else { "ok" };
        let report = report.to_json();
        let predicted = predicted.map_or_else(String::new, |p| {
            format!(",\"predicted_us\":{:.3},\"device\":\"{}\"", p.us, p.gpu.name)
        });
        let untested =
            if options.coverage { format!(",\"untested\":[{}]", untested.join(",")) } else { String::new() };
        return crate::print(&format!(
            "{{\"outcome\":\"{outcome}\",\"unwritten_bytes\":{holes},\"report\":{report}{predicted}{untested}}}\n"
        ));
    }
    let mut text = format!(
        "{name}: {} CTAs of {} warps ran {} warp instructions; {}\n",
        report.ctas,
        report.warps_per_cta,
        report.warp_instructions,
        match report.warnings.len() {
            0 => "no rule was broken".to_owned(),
            count => format!("{count} warnings"),
        }
    );
    if options.counters {
        text += &report.to_string();
    }
    if options.coverage {
        text += &format!("not tested: {}\n{}", untested.len(), untested.concat());
    }
    if let Some(predicted) = predicted {
        text += &format!("{predicted}\n");
    }
    crate::print(&text)
}
