//! The part of `ferroflash doctor` that looks for NVIDIA's tools and for the permission to use them.

use crate::doctor::Finding;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with versions inside, beside the PATH: where installers put the tools, and the tool's place in each version.
const INSTALLED: [(&str, &str); 3] =
    [("/usr/local", "bin"), ("/opt/nvidia/nsight-compute", ""), ("/opt/nvidia", "bin")];
/// What the kernel module was loaded with.
const MODULE_PARAMETERS: &str = "/proc/driver/nvidia/params";
/// Where the first process' capabilities stand.
const PROCESS_STATUS: &str = "/proc/self/status";
/// CAP_SYS_ADMIN in a capability mask (capabilities(7)).
const SYS_ADMIN: u32 = 21;

pub(crate) fn findings() -> Vec<Finding> {
    let parameters = fs::read_to_string(MODULE_PARAMETERS).ok();
    let admin = fs::read_to_string(PROCESS_STATUS).is_ok_and(|status| is_admin(&status));
    vec![ncu(find("ncu"), parameters.as_deref(), admin), compute_sanitizer(find("compute-sanitizer"))]
}

/// Nsight Compute, and whether the driver lets this process read performance counters.
fn ncu(path: Option<PathBuf>, parameters: Option<&str>, admin: bool) -> Finding {
    let Some(path) = path else {
        return Finding::missing(
            "ncu",
            "Nsight Compute is not on the PATH nor where installers put it",
            "only needed for profiles: install nsight-compute, of the CUDA toolkit or on its own",
        );
    };
    let path = path.display();
    match parameters.and_then(admin_only) {
        Some(true) if !admin => Finding::missing(
            "ncu",
            format!("{path}; the driver lets only administrators read performance counters"),
            "run it as root, or load the driver with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in \
             /etc/modprobe.d; in a container, add the capability SYS_ADMIN",
        ),
        Some(_) => Finding::ok("ncu", format!("{path}; performance counters may be read")),
        None => Finding::note(
            "ncu",
            format!("{path}; whether performance counters may be read is not known"),
            format!("{MODULE_PARAMETERS} cannot be read here: try `ncu ferroflash bench --reps 1`"),
        ),
    }
}

fn compute_sanitizer(path: Option<PathBuf>) -> Finding {
    match path {
        Some(path) => Finding::ok("compute-sanitizer", format!("{}; needs no permission", path.display())),
        None => Finding::missing(
            "compute-sanitizer",
            "not on the PATH nor where installers put it",
            "only needed to look for races and bad addresses: install cuda-sanitizer of the CUDA toolkit",
        ),
    }
}

/// Whether only administrators may profile, where the driver's parameters say.
fn admin_only(parameters: &str) -> Option<bool> {
    let value = parameters.lines().find_map(|line| line.trim().strip_prefix("RmProfilingAdminOnly:"))?;
    Some(value.trim() != "0")
}

fn is_admin(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> SYS_ADMIN & 1 == 1)
}

/// A tool on the PATH, else in the newest version that is installed elsewhere.
fn find(tool: &str) -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file())
    });
    on_path.or_else(|| {
        let mut found: Vec<PathBuf> = INSTALLED
            .iter()
            .flat_map(|(root, inside)| versions_with(Path::new(root), inside, tool))
            .collect();
        found.sort();
        found.pop()
    })
}

fn versions_with(root: &Path, inside: &str, tool: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path().join(inside).join(tool))
        .filter(|file| file.is_file())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_profiler_without_permission_is_missing_and_with_it_is_not() {
        let state =
            |parameters: Option<&str>, admin| ncu(Some(PathBuf::from("/bin/ncu")), parameters, admin).state;
        let restricted = Some("Mobile: 1\nRmProfilingAdminOnly: 1\n");
        assert_eq!((state(restricted, false), state(restricted, true)), (State::Missing, State::Ok));
        assert_eq!(
            (state(Some("RmProfilingAdminOnly: 0"), false), state(None, true)),
            (State::Ok, State::Note)
        );
        assert_eq!(ncu(None, None, true).state, State::Missing);
    }

    #[test]
    fn the_capability_is_one_bit_of_the_mask() {
        assert!(is_admin("Name:\tx\nCapEff:\t0000000000200000\n"));
        assert!(!is_admin("CapEff:\t00000000a80425fb\n"));
        assert!(!is_admin("CapEff:\tword"));
    }

    #[test]
    fn the_newest_installed_version_is_found() {
        let root = tempfile::tempdir().expect("a temporary folder");
        for version in ["2024.1", "2025.3"] {
            fs::create_dir_all(root.path().join(version)).expect("made");
            fs::write(root.path().join(version).join("ncu"), "").expect("written");
        }
        let mut found = versions_with(root.path(), "", "ncu");
        found.sort();
        assert_eq!(found.pop(), Some(root.path().join("2025.3/ncu")));
        assert!(versions_with(&root.path().join("no"), "", "ncu").is_empty());
    }
}
