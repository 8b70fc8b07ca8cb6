//! The rows that a command may search: every feasible one, or those of a folder of compiled kernels.

use crate::cli::lab::Lab;
use crate::cli::screen;
use crate::error::{Error, Result};
use crate::search::space::Space;
use ferroflash::Row;
use ferroflash::module::Library;
use kernels_gpu::geometry;
use kernels_gpu::row::Isa;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// The record of a search space.
const SPACE: &str = "space";

/// A search space with what was left out of it.
#[derive(Clone, Debug)]
pub(crate) struct Searched {
    pub(crate) space: Space,
    pub(crate) bounds: Bounds,
}

/// What a search space was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bounds {
    /// Rows in it.
    pub(crate) rows: usize,
    /// Feasible rows that need more shared memory than the device has.
    pub(crate) too_large: usize,
    /// The folder of compiled kernels that bounds it.
    pub(crate) folder: Option<PathBuf>,
    /// Feasible rows that the folder lacks.
    pub(crate) not_compiled: usize,
    /// Kernels of the folder with another dtype, head_dim or schedule, or that are simulated on another device.
    pub(crate) of_others: usize,
}

impl Searched {
    /// The rows of a session that have the dtype, head_dim and schedule of `start`.
    ///
    /// # Errors
    /// [`Error::Host`] where the folder of compiled kernels cannot be used, [`Error::Argument`] where it has no such row.
    pub(crate) fn of(lab: &Lab, start: Row) -> Result<Searched> {
        // The simulator stands for another device where a kernel has other instructions, and clocks of two devices are not compared.
        let simulated = lab.context.machine.simulated;
        let is_of_device = |row: &Row| !simulated || row.isa == start.isa;
        let feasible = Space::new(start).restricted(is_of_device);
        let compiled = match &lab.context.compiled {
            Some(folder) => Some(rows_of(folder)?),
            None => None,
        };
        let all = match &compiled {
            Some(rows) => Space::of_rows(start, rows).restricted(is_of_device),
            None => feasible.clone(),
        };
        let limit =
            |isa| lab.context.machine.running(isa).limited(&lab.context.config.device).smem_opt_in_bytes;
        let (mma, wgmma) = (limit(Isa::Mma), limit(Isa::Wgmma));
        let smem_bytes = |row: &Row| if row.isa == Isa::Wgmma { wgmma } else { mma };
        let space = all.clone().restricted(|row| geometry::smem_bytes(row) <= smem_bytes(row));
        let bounds = Bounds {
            rows: space.rows().len(),
            too_large: all.rows().len() - space.rows().len(),
            folder: lab.context.compiled.clone(),
            not_compiled: feasible.rows().iter().filter(|row| !all.contains(row)).count(),
            of_others: compiled.map_or(0, |rows| rows.len() - all.rows().len()),
        };
        match &lab.context.compiled {
            Some(folder) if bounds.rows == 0 => {
                let Row { dtype, head_dim, schedule, .. } = start;
                let reason = format!(
                    "{} holds no {} kernel of head_dim {head_dim} with schedule {} that fits {}: --start names a row of another kind",
                    folder.display(),
                    dtype.name(),
                    schedule.name(),
                    lab.context.machine.name
                );
                Err(Error::Argument { option: "--ptx", reason })
            }
            _ => Ok(Searched { space, bounds }),
        }
    }

    /// Says how large the space is, and records it once a session.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub(crate) fn announce(&self, lab: &mut Lab) -> Result<()> {
        screen::say(&self.bounds.to_string());
        if lab.session.records::<serde_json::Value>(SPACE).is_empty() {
            lab.session.append(SPACE, &self.bounds)?;
        }
        Ok(())
    }

    /// Refuses a row that has to be in the space.
    ///
    /// # Errors
    /// [`Error::Argument`] with the rows that there are.
    pub(crate) fn require(&self, option: &'static str, row: &Row) -> Result<()> {
        let Some(folder) = self.bounds.folder.as_ref().filter(|_| !self.space.contains(row)) else {
            return Ok(());
        };
        let names: Vec<String> = self.space.rows().iter().take(NAMED).map(Row::entry_name).collect();
        let more = if self.bounds.rows > NAMED { ", …" } else { "" };
        let reason =
            format!("{} is not in {}: {}{more} are", row.entry_name(), folder.display(), names.join(", "));
        Err(Error::Argument { option, reason })
    }
}

/// Rows that an error names.
const NAMED: usize = 6;

/// The rows of a folder of compiled kernels.
fn rows_of(folder: &std::path::Path) -> Result<Vec<Row>> {
    Ok(Library::open(folder)?.kernels().iter().map(|kernel| kernel.row).collect())
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bounds { rows, too_large, folder, not_compiled, of_others } = self;
        write!(f, "the search space has {rows} rows")?;
        if let Some(folder) = folder {
            write!(f, ", those compiled in {}: {not_compiled} feasible rows are not", folder.display())?;
        }
        if *of_others > 0 {
            write!(
                f,
                "; {of_others} of its kernels have another dtype, head_dim or schedule, or are simulated on another device"
            )?;
        }
        if *too_large > 0 {
            write!(f, "; {too_large} need more shared memory than there is")?;
        }
        Ok(())
    }
}
