//! What the tests share: the lab as a process, its configuration, kernels made by hand.

use check::kernel_folder::KernelFolder;
use ferroflash::module::kernels_of_table;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Row;
use kernels_gpu::table::VARIANTS;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The body of a kernel that never ends.
pub(crate) const HANGS: &str = "$L: bra $L;";
/// The body of a kernel that does nothing.
pub(crate) const WRITES_NOTHING: &str = "ret;";

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts that it succeeded.
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &Ended {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// A fresh folder, gone with its owner.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(arguments).current_dir(home).stdin(Stdio::null());
    command.arg("--runs").arg(home.join("lab-runs"));
    command
}

/// Runs the lab in a folder that also keeps its sessions.
pub(crate) fn lab(home: &Path, arguments: &[&str]) -> Ended {
    lab_with(home, arguments, &[])
}

/// As [`lab`], with other variables in its environment.
pub(crate) fn lab_with(home: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = command(home, arguments);
    let output = command.envs(environment.iter().copied()).output().expect("the lab starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Starts the lab and does not wait.
pub(crate) fn start(home: &Path, arguments: &[&str]) -> Child {
    let mut command = command(home, arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the lab starts")
}

/// As [`start`], with its output kept.
pub(crate) fn start_heard(home: &Path, arguments: &[&str]) -> Child {
    let mut command = command(home, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the lab starts")
}

/// Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
}

/// The row that searches begin with.
pub(crate) fn mediocre() -> Row {
    let usual = VARIANTS.iter().find(|variant| variant.entry == "fwd_f16_d64_m64n64_w4s1c1").expect("a row");
    Row { block_n: 32, ..usual.row }
}

/// A configuration of one small problem, and what else is given; returns its path.
pub(crate) fn config(home: &Path, more: &str) -> String {
    let text = format!(
        "[problems]\nsim_shapes = [\"1,1,1,160,160,64\"]\ninputs = [\"random\", \"outliers\"]\nhidden = 1\n\
         [tolerances]\nschedules = 1\n{more}"
    );
    let path = home.join("test.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("a path").to_owned()
}

/// The newest session of a folder; an empty path before there is one.
pub(crate) fn session(home: &Path) -> PathBuf {
    let entries = std::fs::read_dir(home.join("lab-runs")).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).max().unwrap_or_default()
}

/// The steps that a session recorded.
pub(crate) fn steps(session: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(session.join("records.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["kind"] == "step").map(|line| line["body"].clone()).collect()
}

/// Writes a folder `ptx` with one kernel a body, under the first rows of the table; returns their entries.
pub(crate) fn write_kernels(home: &Path, bodies: &[&str]) -> Vec<String> {
    let mut folder = KernelFolder::new(&home.join("ptx"), "by hand").expect("a folder");
    let mut ptx = ".version 7.4\n.target sm_80\n.address_size 64\n".to_owned();
    let (kernels, _) = kernels_of_table();
    let kernels: Vec<Kernel> =
        kernels.iter().take(bodies.len()).map(|kernel| Kernel::clone(kernel)).collect();
    let bytes = size_of::<kernels_gpu::params::ForwardParams>();
    for (Kernel { entry, threads, .. }, body) in kernels.iter().zip(bodies) {
        ptx += &format!(
            "\n.visible .entry {entry}(\n\t.param .align 8 .b8 {entry}_param_0[{bytes}]\n)\n.maxntid {threads}, 1, 1\n{{\n\t{body}\n}}\n"
        );
    }
    let entries = kernels.iter().map(|kernel| kernel.entry.clone()).collect();
    folder.family("sm_80", &ptx).expect("written");
    kernels.into_iter().for_each(|kernel| folder.kernel(kernel));
    folder.finish().expect("written");
    entries
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the project is a git repository here.
pub(crate) fn has_git() -> bool {
    git(&["rev-parse", "--verify", "HEAD"]).is_some()
}

/// What git says of the user's tree, and how many worktrees it knows below a folder; other tests have some elsewhere.
pub(crate) fn git_status(home: &Path) -> (Option<String>, usize) {
    let worktrees = git(&["worktree", "list", "--porcelain"]).unwrap_or_default();
    let home = home.to_str().expect("UTF-8");
    (git(&["status", "--porcelain"]), worktrees.matches(home).count())
}

/// A patch after which keys that the mask hides have a score of 0, which is wrong wherever anything is hidden.
pub(crate) fn wrong_patch() -> String {
    const FILE: &str = "kernels-gpu/src/math/mask.rs";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
    let text = std::fs::read_to_string(source).expect("the mask's source");
    let lines: Vec<&str> = text.lines().collect();
    let hides = |line: &&str| line.contains("f32::NEG_INFINITY") && !line.trim_start().starts_with("//");
    let at = lines.iter().position(hides).expect("a line that hides a score");
    let (before, after) = (lines[at - 1], lines[at + 1]);
    let changed = lines[at].replace("f32::NEG_INFINITY", "0.0");
    format!(
        "--- a/{FILE}\n+++ b/{FILE}\n@@ -{at},3 +{at},3 @@\n {before}\n-{}\n+{changed}\n {after}\n",
        lines[at]
    )
}
