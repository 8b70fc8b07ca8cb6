//! Stage 5: device time, in turns with the incumbent's, on inputs that no launch has seen; never without a GPU.

use super::{Context, Stage, State, refused, without_problems};
use crate::candidate::Candidate;
use crate::error::Result;
use crate::evaluation::Outcome;
use crate::exam::Fault;
use crate::job::{Report, Task, Timed};
use crate::kernels::{self, KernelRef, Machine};
use crate::merge;
use crate::problem_spec::ProblemSpec;
use crate::profile::tensor_flops_per_clock;
use crate::statistics::median;

/// Timed replays of each kernel in each of the three ways.
const REPS: u32 = 31;

/// Times.
pub(super) struct Timing;

impl Stage for Timing {
    fn name(&self) -> &'static str {
        super::TIMING
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        if context.machine.simulated {
            return Ok(Outcome::Skipped("no GPU: a simulator has no times".to_owned()));
        }
        if let Some(skipped) = without_problems(&state.candidate.row) {
            return Ok(skipped);
        }
        let problems = context.config.problems.of_row(&state.candidate.row, false)?;
        let (kernel, against) = beside_incumbent(state, context)?;
        let limit = context.config.limits.benchmark_s.duration();
        let mut tries = 0;
        let timed = loop {
            let task = Task::Time { against: against.clone(), reps: REPS };
            let done =
                context.child(&kernel, &state.candidate.name, self.name(), task, problems.clone(), limit)?;
            let timed = match done.report {
                Report::Timed(timed) => timed,
                Report::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
                _ => Vec::new(),
            };
            tries += 1;
            // A candidate that deceives one of the clocks does so in each try; a busy host slows down one of them by chance.
            if tries == CLOCK_TRIES || timed.iter().all(|timed| timers_disagree(timed).is_none()) {
                break timed;
            }
        };
        if let Some(evidence) = timed.iter().find_map(|timed| under_the_roofline(timed, &context.machine)) {
            return Ok(refused(Fault::TooFast, evidence));
        }
        if let Some(evidence) = timed.iter().find_map(timers_disagree) {
            return Ok(refused(Fault::TimersDisagree, evidence));
        }
        let (own, others) = timed.into_iter().partition(|timed| timed.entry == kernel.entry);
        state.evaluation.timed = own;
        state.evaluation.incumbent = others;
        Ok(Outcome::Passed)
    }
}

/// One folder with the candidate and the incumbent, so that one process times both in turns.
fn beside_incumbent(state: &State, context: &Context) -> Result<(KernelRef, Vec<String>)> {
    let kernel = state.kernel()?.clone();
    let row = &state.candidate.row;
    let rival = context.incumbent.as_ref().filter(|incumbent| {
        incumbent.name != state.candidate.name
            && (incumbent.row.dtype, incumbent.row.head_dim) == (row.dtype, row.head_dim)
    });
    let Some(incumbent) = rival else { return Ok((kernel, Vec::new())) };
    let incumbent_kernel = incumbent_kernel(incumbent, context)?;
    let out = context.ptx_folder(&format!("{}-and-incumbent", state.candidate.name));
    merge::side_by_side(&kernel, &[incumbent_kernel], &out)
}

/// The incumbent's kernel: of the folder that the candidates come from where it is there, else compiled once.
fn incumbent_kernel(incumbent: &Candidate, context: &Context) -> Result<KernelRef> {
    let folder = context.ptx_folder(&incumbent.name);
    let folders = context.compiled.iter().chain([&folder]);
    let mut named = folders.filter_map(|folder| context.tree.compiled(&incumbent.row, folder).ok());
    if let Some(kernel) = named.find(|kernel| kernels::find(kernel).is_ok()) {
        return Ok(kernel);
    }
    let log = context.log(&incumbent.name, "compile")?;
    let limit = context.config.limits.build_s.duration();
    context.tree.compile(&[incumbent.row], &folder, &context.machine.arch(), &log, limit)?;
    context.tree.compiled(&incumbent.row, &folder)
}

/// The least time that a problem can take, from the tensor cores' rate at the highest clock, in microseconds. `None` where the
/// clock or the architecture is not known.
pub fn floor_us(spec: &ProblemSpec, machine: &Machine) -> Option<f64> {
    let clock_mhz = f64::from(machine.clock_max_mhz?);
    let per_us = tensor_flops_per_clock(machine.sm)? * f64::from(machine.sm_count) * clock_mhz;
    Some(spec.flops() / per_us)
}

/// Floating-point operations a second that the tensor cores do at the highest clock, in TFLOP/s.
pub fn roofline(machine: &Machine) -> Option<f64> {
    let clock_mhz = f64::from(machine.clock_max_mhz?);
    Some(tensor_flops_per_clock(machine.sm)? * f64::from(machine.sm_count) * clock_mhz / 1e6)
}

fn under_the_roofline(timed: &Timed, machine: &Machine) -> Option<String> {
    let floor_us = floor_us(&timed.problem, machine)?;
    let fastest =
        [&timed.warm_us, &timed.cold_us, &timed.fresh_us].into_iter().flatten().copied().reduce(f64::min)?;
    (fastest < floor_us).then(|| {
        format!(
            "{} on {}: {fastest:.2} µs, the tensor cores alone need {floor_us:.2} µs",
            timed.entry, timed.problem
        )
    })
}

/// How often a candidate is timed whose clocks disagree, before it is refused for that.
const CLOCK_TRIES: u32 = 3;
/// What a launch costs the host, in microseconds: below, its clock cannot tell kernels apart.
const LAUNCH_US: f64 = 15.0;

/// The host's clock as a second opinion on the events: it may be slower by its launches and by what else the host does, which
/// the least of several tries leaves out.
fn timers_disagree(timed: &Timed) -> Option<String> {
    let (wall_us, event_us) = (timed.wall_us?, median(&timed.warm_us)?);
    (wall_us > 1.5 * event_us + LAUNCH_US).then(|| {
        format!(
            "{} on {}: {event_us:.2} µs by events, {wall_us:.2} µs by the host's clock",
            timed.entry, timed.problem
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job;
    use crate::problem_spec::Mask;

    fn timed(fresh_us: f64) -> Timed {
        let shape = "8,16,16,512,512,64".parse().expect("a shape");
        let problem = ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask: Mask::Full };
        Timed { warm_us: vec![200.0], fresh_us: vec![fresh_us], ..job::tests::timed(problem, "x", fresh_us) }
    }

    #[test]
    fn what_is_faster_than_the_tensor_cores_is_an_error() {
        let machine = Machine { clock_max_mhz: Some(2040), ..Machine::simulator() };
        // 8.59 GFLOP on 58 SMs × 1024 × 2.04 GHz.
        let floor = floor_us(&timed(1.0).problem, &machine).expect("known");
        assert!((floor - 70.9).abs() < 0.1, "{floor}");
        assert!(under_the_roofline(&timed(70.0), &machine).expect("too fast").contains("70.00 µs"));
        assert_eq!(under_the_roofline(&timed(72.0), &machine), None);
        assert_eq!(under_the_roofline(&timed(1.0), &Machine::simulator()), None, "the clock is not known");
    }

    #[test]
    fn a_clock_that_tells_another_story_is_an_error() {
        let told = |wall_us| timers_disagree(&Timed { wall_us: Some(wall_us), ..timed(200.0) });
        assert_eq!(told(210.0), None);
        assert!(told(400.0).expect("twice as long").contains("200.00 µs by events, 400.00 µs"));
        assert_eq!(told(190.0), None, "the least of several tries may be less than a median");
        let short = Timed { warm_us: vec![4.0], wall_us: Some(9.0), ..timed(4.0) };
        assert_eq!(timers_disagree(&short), None, "launches take the host longer than that");
    }
}
