//! A command's session with its context: opened the same way by every command.

use crate::candidate::Candidate;
use crate::cli::{Common, draw_seed, screen};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::evaluation::{EVALUATION, Evaluation};
use crate::exam::Refusal;
use crate::interrupt;
use crate::kernels::Machine;
use crate::patched::PatchedTree;
use crate::session::chain::TOLD;
use crate::session::{self, CompiledKernels, Header, RUNS, Session};
use crate::stages::{Cascade, Context, State, Watcher, own_program};
use crate::tree::Tree;
use ferroflash::module::sha256_hex;
use std::path::{Path, PathBuf};

/// The results of a command, in the session's folder.
const RESULTS_FILE: &str = "results.json";

/// A session and what its stages work with.
pub(crate) struct Lab {
    pub(crate) context: Context,
    pub(crate) session: Session,
}

impl Lab {
    /// Opens the session of a command: a new one, or the one to resume.
    pub(crate) fn open(command: &str, common: &Common) -> Result<Lab> {
        let tree = Tree::own();
        match &common.resume {
            Some(folder) => Lab::resume(command, folder, common, tree),
            None => Lab::create(command, common, tree),
        }
    }

    fn create(command: &str, common: &Common, tree: Tree) -> Result<Lab> {
        let mut config = Config::find(common.config.as_deref(), tree.root())?;
        if let Some(kind) = common.device {
            config.device.kind = kind;
        }
        if let Some(ordinal) = common.ordinal {
            config.device.ordinal = ordinal;
        }
        config.device.smem_max = common.smem_max.or(config.device.smem_max);
        let kernels = common.ptx.as_deref().map(CompiledKernels::of).transpose()?;
        let machine = Machine::find(&config.device)?;
        let runs = common.runs.clone().unwrap_or_else(|| tree.root().join(RUNS));
        let header = Header {
            command: command.to_owned(),
            arguments: std::env::args().skip(2).collect(),
            config: config.clone(),
            seed: common.seed.unwrap_or_else(draw_seed),
            device: machine.name.clone(),
            commit: tree.commit(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            harness: harness()?,
            kernels,
            started: session::now(),
        };
        let mut session = Session::create(&runs, header)?;
        let secret = draw_seed();
        session.promise(secret)?;
        let compiled = session.header().kernels.as_ref().map(|kernels| kernels.folder.clone());
        Ok(Lab { context: context(config, machine, tree, compiled, &session, secret)?, session })
    }

    fn resume(command: &str, folder: &Path, common: &Common, tree: Tree) -> Result<Lab> {
        let mut session = Session::resume(folder, command, &mut |warning| screen::say(&warning))?;
        let refused = |reason: String| Error::NotResumable { folder: folder.to_owned(), reason };
        let header = session.header();
        if common.seed.is_some_and(|seed| seed != header.seed) {
            return Err(refused(format!("its seed is {}", header.seed)));
        }
        if header.harness != harness()? {
            screen::say(
                "the lab itself has changed since this session began: its results may not be comparable",
            );
        }
        let kernels = match (&header.kernels, &common.ptx) {
            (None, None) => None,
            (None, Some(_)) => return Err(refused("it compiles its kernels, and takes no --ptx".to_owned())),
            (Some(before), moved) => {
                let now = CompiledKernels::of(moved.as_ref().unwrap_or(&before.folder))?;
                if now.sha256 != before.sha256 {
                    let folder = now.folder.display();
                    return Err(refused(format!(
                        "{folder} holds other kernels than those that it began with"
                    )));
                }
                Some(now.folder)
            }
        };
        let config = header.config.clone();
        let machine = Machine::find(&config.device)?;
        if machine.name != header.device {
            return Err(refused(format!("it is of {}, this is {}", header.device, machine.name)));
        }
        // The secret of the run before is not on the disk, or told: whoever reads it there may know what it led to.
        let secret = draw_seed();
        session.promise(secret)?;
        Ok(Lab { context: context(config, machine, tree, kernels, &session, secret)?, session })
    }

    /// Takes a candidate through a cascade and records what became of it; what a resumed session has recorded is taken from there.
    pub(crate) fn evaluate(
        &mut self,
        cascade: &Cascade,
        candidate: &Candidate,
        tree: Option<&Tree>,
        watcher: &mut dyn Watcher,
    ) -> Result<Evaluation> {
        if let Some(known) = self.recorded(candidate) {
            return Ok(known);
        }
        self.check_time()?;
        let patched = match (&candidate.patch, tree) {
            (Some(patch), None) => {
                watcher.stage(&candidate.name, "patch");
                match PatchedTree::new(&self.context.tree, patch, &self.context.folder.join("worktrees")) {
                    Ok(patched) => Some(patched),
                    Err(error) => {
                        let (Some(fault), evidence) = (error.fault(), error.to_string()) else {
                            return Err(Error::Missing {
                                what: "a worktree for the patch",
                                reason: error.to_string(),
                            });
                        };
                        let refusal = Refusal { fault, evidence };
                        let evaluation = State::refused(candidate, "patch", refusal).evaluation;
                        self.session.append(EVALUATION, &evaluation)?;
                        return Ok(evaluation);
                    }
                }
            }
            _ => None,
        };
        let tree = patched.as_ref().map(PatchedTree::tree).or(tree);
        let State { evaluation, .. } = cascade
            .evaluate(candidate, tree, &self.context, watcher)
            .map_err(|error| self.with_folder(error))?;
        self.session.append(EVALUATION, &evaluation)?;
        Ok(evaluation)
    }

    /// What the session has recorded of a candidate.
    pub(crate) fn recorded(&self, candidate: &Candidate) -> Option<Evaluation> {
        let recorded: Vec<Evaluation> = self.session.records(EVALUATION);
        recorded.into_iter().find(|known| known.name == candidate.name && known.patch == candidate.patch)
    }

    /// Stops at Ctrl-C and at the session's limit.
    pub(crate) fn check_time(&self) -> Result<()> {
        if interrupt::requested() {
            return Err(Error::Interrupted { folder: self.session.folder().to_owned() });
        }
        let limit = self.context.config.limits.session_s.duration();
        if self.session.elapsed() > limit {
            return Err(Error::TimedOut { command: format!("lab {}", self.session.header().command), limit });
        }
        Ok(())
    }

    /// An interruption, with the session's folder to resume.
    pub(crate) fn with_folder(&self, error: Error) -> Error {
        match error {
            Error::Interrupted { .. } => Error::Interrupted { folder: self.session.folder().to_owned() },
            error => error,
        }
    }

    /// Writes the command's results as a file of the session, and prints them where that is asked for.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn results(&self, object: &serde_json::Value, as_json: bool) -> Result<()> {
        session::write_whole(&self.session.folder().join(RESULTS_FILE), &format!("{object:#}\n"))?;
        if as_json {
            screen::print(&object.to_string());
        }
        Ok(())
    }

    /// The folder as a user types it.
    pub(crate) fn shown(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        let folder = self.session.folder();
        folder.strip_prefix(&here).unwrap_or(folder).display().to_string()
    }
}

impl Drop for Lab {
    /// Tells what the hidden problems were drawn from: until now it was in memory alone.
    fn drop(&mut self) {
        let secret = self.context.secret;
        if let Err(error) = self.session.append(TOLD, &secret) {
            screen::say(&format!("the session's secret is not recorded: {error}"));
        }
    }
}

fn context(
    config: Config,
    machine: Machine,
    tree: Tree,
    compiled: Option<PathBuf>,
    session: &Session,
    secret: u64,
) -> Result<Context> {
    let folder = std::path::absolute(session.folder()).unwrap_or_else(|_| session.folder().to_owned());
    Ok(Context {
        config,
        machine,
        tree,
        program: own_program()?,
        folder,
        secret,
        incumbent: None,
        known_ptx: Default::default(),
        compiled,
    })
}

/// SHA-256 of the program that runs.
fn harness() -> Result<String> {
    let program = own_program()?;
    let bytes = std::fs::read(&program).map_err(|source| Error::io(&program, source))?;
    Ok(sha256_hex(&bytes))
}
