//! `ptx-sim check`: what a module holds, and what of it is not supported.

use std::process::ExitCode;

use ptx_sim::{Entry, Module};

use crate::error::Error;
use crate::options::CheckOptions;

pub(crate) fn check(options: &CheckOptions) -> Result<ExitCode, Error> {
    let path = &options.file;
    let bytes = std::fs::read(path).map_err(|reason| Error::File { path: path.clone(), reason })?;
    let text = String::from_utf8_lossy(&bytes);
    let refusals = Module::refusals(&text);
    if !refusals.is_empty() {
        let mut list = String::new();
        for refusal in &refusals {
            list += &format!("{}: {refusal}\n", path.display());
        }
        crate::print(&list)?;
        eprintln!("ptx-sim: {} lines of {} are refused", refusals.len(), path.display());
        return Ok(ExitCode::from(1));
    }
    let module = Module::parse(&text).map_err(|reason| Error::Load { path: path.clone(), reason })?;
    let described = module.entries().filter_map(|name| Some(describe(name, module.entry(name)?)));
    crate::print(&described.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

fn describe(name: &str, entry: &Entry) -> String {
    let mut text = format!("{name}\n");
    for param in entry.params() {
        text += &format!("  {:<32} {:>5} bytes at {}\n", param.name, param.bytes, param.offset);
    }
    let dynamic = if entry.has_dynamic_smem() { ", and an array of the launch's size" } else { "" };
    text += &format!("  shared memory: {} bytes{dynamic}\n", entry.smem_bytes());
    if let Some([x, y, z]) = entry.block() {
        text += &format!("  threads of a CTA: {x} x {y} x {z}\n");
    } else if let Some(threads) = entry.max_threads() {
        text += &format!("  threads of a CTA: {threads} at most\n");
    }
    text
}

/// The names and sizes of an entry's parameters, for messages.
pub(crate) fn signature(entry: &Entry) -> String {
    let params = entry.params().iter().map(|param| format!("{} ({} bytes)", param.name, param.bytes));
    params.collect::<Vec<_>>().join(", ")
}
