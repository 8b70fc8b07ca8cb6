//! `lab profile`: what keeps a kernel from being faster, a verdict a problem.

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::evaluate::{Candidates, default_row};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{EXIT_DONE, Error, Result};
use crate::job::{CHILD, Job, Report, Task};
use crate::kernels::KernelRef;
use crate::merge::side_by_side;
use crate::problem_spec::ProblemSpec;
use crate::process::{self, End};
use crate::profile::{
    Figure, METRICS, Profile, of_counters, parse_ncu, parse_timeline, targets, verdict_of_ncu,
};
use crate::stages::{Cascade, State, Watcher};
use crate::table::{Table, short};
use clap::Args;
use ferroflash::module::FOLDER_VARIABLE;
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// The record of a profile.
pub(crate) const PROFILE: &str = "profile";
/// What shows a timeline where ncu may not count.
const TIMELINE_SCRIPT: &str = "benches/torch_profile.py";
/// Timed replays: enough for a median.
const REPS: u32 = 15;

#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    candidates: Candidates,
    /// Do not use Nsight Compute even where it is there
    #[arg(long)]
    no_ncu: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?, &args.common)?;
    let mut lab = Lab::open("profile", &args.common)?;
    let mut screen = Screen::new(list.len() as u64);
    let mut profiles: Vec<Profile> = lab.session.records(PROFILE);
    let mut refused = 0;
    for candidate in &list {
        if profiles.iter().any(|profile| profile.name == candidate.name) {
            continue;
        }
        lab.check_time()?;
        let (found, refusal) = profile(&lab, candidate, !args.no_ncu, &mut screen)?;
        if let Some(refusal) = refusal {
            refused += 1;
            screen.done(&format!("{}: {refusal}", candidate.name));
            continue;
        }
        for profile in found {
            lab.session.append(PROFILE, &profile)?;
            profiles.push(profile);
        }
        screen.done(&candidate.name);
    }
    drop(screen);
    lab.results(&json!({ "session": lab.shown(), "profiles": profiles }), args.common.json)?;
    if !args.common.json {
        table(&profiles).lines().iter().for_each(|line| screen::print(line));
    }
    if refused > 0 { Err(Error::Refused { failed: refused, total: list.len() }) } else { Ok(EXIT_DONE) }
}

fn profile(
    lab: &Lab,
    candidate: &Candidate,
    use_ncu: bool,
    screen: &mut Screen,
) -> Result<(Vec<Profile>, Option<String>)> {
    let context = &lab.context;
    let mut state = Cascade::count().evaluate(candidate, None, context, screen)?;
    if !state.evaluation.passed() {
        return Ok((Vec::new(), Some(state.evaluation.verdict())));
    }
    if !context.machine.simulated {
        recount_on_gpu_shapes(lab, &mut state, screen)?;
    }
    let mut profiles = Vec::new();
    for counted in &state.evaluation.counted {
        let mut profile = of_counters(&state.evaluation, counted, &context.machine);
        if use_ncu && !context.machine.simulated {
            screen.stage(&candidate.name, "ncu");
            match ncu(lab, candidate, state.kernel()?, &counted.problem)? {
                Ok(metrics) => {
                    if let Some(verdict) = verdict_of_ncu(&metrics, state.candidate.row.isa) {
                        profile.verdict = verdict;
                        profile.source = "ncu".to_owned();
                    }
                    profile.targets = targets(counted, &context.machine, &metrics);
                    profile.metrics = metrics;
                }
                Err(refused) => {
                    screen.stage(&candidate.name, "PyTorch's profiler");
                    match timeline(lab, candidate, state.kernel()?, &counted.problem)? {
                        Ok(seen) => {
                            screen::say(&format!(
                                "ncu: {refused}: PyTorch's profiler gave a timeline instead"
                            ));
                            profile.source += " and PyTorch's profiler";
                            profile.metrics = seen;
                        }
                        Err(reason) => screen::say(&format!(
                            "ncu: {refused}; PyTorch's profiler: {reason}; the verdict is that of counts on the simulator and \
                             the measured time"
                        )),
                    }
                }
            }
        }
        profiles.push(profile);
    }
    Ok((profiles, None))
}

/// With a GPU the verdict is about the shapes that are timed: counts and times of these.
fn recount_on_gpu_shapes(lab: &Lab, state: &mut State, screen: &mut Screen) -> Result<()> {
    let context = &lab.context;
    let problems = context.config.problems.of_row(&state.candidate.row, false)?;
    let (kernel, name) = (state.kernel()?.clone(), state.candidate.name.clone());
    let limit = context.config.limits.profile_s.duration();
    screen.stage(&name, "counting the timed shapes");
    let task = Task::Count { schedules: 0 };
    if let Report::Counted(counted) =
        context.child(&kernel, &name, "profile-count", task, problems.clone(), limit)?.report
    {
        state.evaluation.counted = counted;
    }
    screen.stage(&name, "timing");
    let task = Task::Time { against: Vec::new(), reps: REPS };
    if let Report::Timed(timed) = context.child(&kernel, &name, "profile-time", task, problems, limit)?.report
    {
        state.evaluation.timed = timed;
    }
    Ok(())
}

/// What a tool printed, or why it is nothing. All that it said goes to the log.
fn printed(
    lab: &Lab,
    command: &mut Command,
    input: &[u8],
    log: &Path,
) -> Result<std::result::Result<String, String>> {
    let limit = lab.context.config.limits.profile_s.duration();
    let ended = match process::run_logged(command, input, log, limit) {
        Ok(ended) => ended,
        Err(Error::Start { source, .. }) => return Ok(Err(source.to_string())),
        Err(error) => return Err(error),
    };
    Ok(match ended.end {
        _ if std::fs::read_to_string(log).is_ok_and(|said| said.contains("ERR_NVGPUCTRPERM")) => {
            Err("the counters are not permitted here (ERR_NVGPUCTRPERM)".to_owned())
        }
        End::Exited(status) if status.success() => Ok(ended.stdout),
        End::Exited(status) => {
            let said = process::last_line(log).unwrap_or_else(|| status.to_string());
            Err(format!("{said}, see {}", log.display()))
        }
        End::PrintedTooMuch => Err("it printed without end".to_owned()),
        End::TimedOut => Err("it was killed at its limit".to_owned()),
        End::Interrupted => return Err(lab.with_folder(Error::Interrupted { folder: log.to_owned() })),
    })
}

/// What ncu measured, or why there is nothing.
fn ncu(
    lab: &Lab,
    candidate: &Candidate,
    kernel: &KernelRef,
    problem: &ProblemSpec,
) -> Result<std::result::Result<Vec<Figure>, String>> {
    let context = &lab.context;
    let log = context.log(&candidate.name, "ncu")?;
    let mut command = Command::new("ncu");
    command.args(["--csv", "--page", "details", "--target-processes", "all"]);
    // As everything else is timed; the default locks the clock, at the base frequency.
    command.args(["--clock-control", "none", "--metrics", &METRICS.join(",")]);
    command.arg(&context.program).arg(CHILD);
    let job = Job {
        kernel: kernel.clone(),
        task: Task::Launch,
        problems: vec![*problem],
        machine: context.machine.clone(),
        seed: context.secret,
    };
    let input = serde_json::to_vec(&job).unwrap_or_default();
    let measured = printed(lab, &mut command, &input, &log)?.map(|text| parse_ncu(&text));
    Ok(something(measured, &log))
}

/// What PyTorch's profiler saw of the kernel, or why there is nothing.
fn timeline(
    lab: &Lab,
    candidate: &Candidate,
    kernel: &KernelRef,
    problem: &ProblemSpec,
) -> Result<std::result::Result<Vec<Figure>, String>> {
    let context = &lab.context;
    let log = context.log(&candidate.name, "timeline")?;
    // A folder of this kernel alone: there is no other that a plan could take.
    let alone = context.ptx_folder(&format!("{}-alone", candidate.name));
    let (alone, _) = side_by_side(kernel, &[], &alone)?;
    let mut command = Command::new(&context.config.peers.python);
    command
        .current_dir(context.tree.root())
        .arg(TIMELINE_SCRIPT)
        .args(["--shape", &problem.shape.to_string()]);
    command.args(["--dtype", problem.dtype.name(), "--mask", problem.mask.name()]);
    command.env(FOLDER_VARIABLE, std::path::absolute(&alone.folder).unwrap_or(alone.folder));
    let seen = printed(lab, &mut command, b"", &log)?.map(|text| parse_timeline(&text, &alone.entry));
    Ok(something(seen, &log))
}

/// Figures, where there are any.
fn something(
    found: std::result::Result<Vec<Figure>, String>,
    log: &Path,
) -> std::result::Result<Vec<Figure>, String> {
    found.and_then(|figures| match figures.is_empty() {
        true => Err(format!("it measured nothing, see {}", log.display())),
        false => Ok(figures),
    })
}

pub(crate) fn table(profiles: &[Profile]) -> Table {
    let mut table = Table::new(&[
        "kernel",
        "problem",
        "µs",
        "TFLOP/s",
        "of roofline",
        "warps an SM",
        "from",
        "verdict",
        "targets",
    ]);
    for profile in profiles {
        let dash = || "–".to_owned();
        let warps = profile.occupancy.as_ref();
        let share = profile.tflops.and_then(|(reached, roof)| Some(100.0 * reached / roof?));
        table.add(vec![
            profile.name.clone(),
            profile.problem.to_string(),
            profile.time_us.map_or_else(dash, short),
            profile.tflops.map_or_else(dash, |(reached, _)| short(reached)),
            share.map_or_else(dash, |share| format!("{share:.0} %")),
            warps.map_or_else(dash, |(warps, most, limit)| format!("{warps} of {most} ({limit})")),
            profile.source.clone(),
            profile.verdict.to_string(),
            profile.targets.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        ]);
    }
    table
}
