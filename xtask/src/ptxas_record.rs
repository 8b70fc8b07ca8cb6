//! The registers of every kernel, as ptxas said when it accepted the kernel, in a file of the project. `check-ptx` does not compile a kernel whose
//! PTX, architecture and ptxas are those of the file, and a change that costs registers shows in the file's diff.

use crate::manifest_file::write_whole;
use crate::workspace;
use anyhow::Context;
use kernels_gpu::manifest::{PtxasRecord, RecordedKernel, Resources};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Characters of a kernel's SHA-256 that are kept.
const DIGITS: usize = 24;

/// What the file holds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Record(PtxasRecord);

impl Record {
    /// The project's record, where that is of this ptxas; an empty one otherwise.
    ///
    /// # Errors
    /// Where there is a file that is no record.
    pub(crate) fn read(ptxas: &str) -> anyhow::Result<Record> {
        let path = path();
        let empty = PtxasRecord { ptxas: ptxas.to_owned(), ..PtxasRecord::default() };
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Record(empty)) };
        let record: PtxasRecord = serde_json::from_str(&text).with_context(|| workspace::shown(&path))?;
        Ok(Record(if record.ptxas == ptxas { record } else { empty }))
    }

    /// What is known of a kernel whose PTX has this SHA-256.
    pub(crate) fn find(&self, entry: &str, sha256: &str, arch: &str) -> Option<Resources> {
        let known = self.0.kernels.get(entry).filter(|known| known.sha256 == digits(sha256))?;
        known.registers.get(arch).map(|&registers| Resources { registers, ..Resources::default() })
    }

    /// Keeps what an accepted kernel takes.
    pub(crate) fn keep(&mut self, entry: &str, sha256: &str, arch: &str, resources: &Resources) {
        if *resources != (Resources { registers: resources.registers, ..Resources::default() }) {
            return;
        }
        let kept = self.0.kernels.entry(entry.to_owned()).or_default();
        if kept.sha256 != digits(sha256) {
            *kept = RecordedKernel { sha256: digits(sha256).to_owned(), ..RecordedKernel::default() };
        }
        kept.registers.insert(arch.to_owned(), resources.registers);
    }

    /// Forgets all kernels but these.
    pub(crate) fn retain(&mut self, entries: &BTreeSet<&str>) {
        self.0.kernels.retain(|entry, _| entries.contains(entry.as_str()));
    }

    /// Writes the project's record, a line a kernel.
    ///
    /// # Errors
    /// What writing reports.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let lines: Vec<String> = self
            .0
            .kernels
            .iter()
            .map(|(entry, known)| {
                Ok(format!("{}:{}", serde_json::to_string(entry)?, serde_json::to_string(known)?))
            })
            .collect::<serde_json::Result<_>>()?;
        let ptxas = serde_json::to_string(&self.0.ptxas)?;
        let text = format!("{{\"ptxas\":{ptxas},\"kernels\":{{\n{}\n}}}}\n", lines.join(",\n"));
        Ok(write_whole(&path(), text.as_bytes())?)
    }
}

fn digits(sha256: &str) -> &str {
    sha256.get(..DIGITS).unwrap_or(sha256)
}

fn path() -> PathBuf {
    workspace::root().join("kernels-gpu/ptxas.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_ptx_on_the_same_architecture_is_known() {
        let mut record = Record::default();
        let sha = |digit: char| digit.to_string().repeat(64);
        let plain = Resources { registers: 168, ..Resources::default() };
        record.keep("fwd", &sha('a'), "sm_80", &plain);
        record.keep("fwd", &sha('a'), "sm_90", &Resources { registers: 96, ..plain });
        assert_eq!(record.find("fwd", &sha('a'), "sm_80"), Some(plain));
        assert_eq!(record.find("fwd", &sha('a'), "sm_90").map(|found| found.registers), Some(96));
        assert_eq!(record.find("fwd", &sha('b'), "sm_80"), None);
        assert_eq!(record.find("fwd", &sha('a'), "sm_89"), None);
        assert_eq!(record.find("bwd", &sha('a'), "sm_80"), None);
        // Another PTX takes the place of all that was known.
        record.keep("fwd", &sha('b'), "sm_80", &plain);
        assert_eq!(record.find("fwd", &sha('a'), "sm_90"), None);
        assert_eq!(record.find("fwd", &sha('b'), "sm_90"), None);
        record.keep("spills", &sha('a'), "sm_80", &Resources { stack: 8, ..plain });
        assert_eq!(record.find("spills", &sha('a'), "sm_80"), None);
        record.retain(&BTreeSet::from(["bwd"]));
        assert_eq!(record.find("fwd", &sha('b'), "sm_80"), None);
    }
}
