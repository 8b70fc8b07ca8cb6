//! Device time of backward passes, and a check of their gradients that needs no reference, at any size.

use super::tensors::TensorSets;
use super::{Bench, Load, MeasureOptions, Timing, launches_to_fill, replay_between, statistics};
use crate::reference::{gradient_start, row_start};
use crate::workload::Workload;
use ferroflash::backward::BackwardTensors;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::{Graph, Timeline};
use ferroflash::device::{Buffer, Device, StreamHandle};
use ferroflash::problem::{Operand, Problem, TensorRole};
use ferroflash::rounding::widen;
use ferroflash::{Backward, BackwardPlan, Error};
use std::time::Instant;

/// Launches of the replay from which the time of one is estimated.
const PASSES_TO_CALIBRATE: usize = 3;
/// The largest difference of two sums that must be equal, as a share of the sum of their terms' sizes. Both have rounded terms; a wrong
/// kernel is a large part of 1 off.
const DIFFERENCE_MAX: f64 = 1.0 / 256.0;

/// Whether gradients are whole, and what must hold of them does: ΣQ∘dQ = ΣK∘dK and ΣV∘dV = ΣdO∘O of each KV head of each batch entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct GradientCheck {
    /// Elements of gradients that are NaN after a pass on gradients of NaN.
    pub nan: usize,
    /// The largest difference of ΣQ∘dQ and ΣK∘dK, as a share of the sum of the terms' sizes.
    pub q_and_k: f64,
    /// The same of ΣV∘dV and ΣdO∘O.
    pub v_and_o: f64,
}

impl GradientCheck {
    /// Whether nothing is NaN and the sums are equal but for rounding.
    pub fn passed(&self) -> bool {
        self.nan == 0 && self.q_and_k <= DIFFERENCE_MAX && self.v_and_o <= DIFFERENCE_MAX
    }
}

impl std::fmt::Display for GradientCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GradientCheck { nan, q_and_k, v_and_o } = self;
        write!(
            f,
            "{nan} elements NaN, ΣQ∘dQ and ΣK∘dK {q_and_k:.1e} apart, ΣV∘dV and ΣdO∘O {v_and_o:.1e} (at most {DIFFERENCE_MAX:.1e})"
        )
    }
}

/// What became of one pass.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MeasuredBackward {
    /// Its kernels, in order.
    pub entries: Vec<String>,
    /// Bytes of its workspace.
    pub workspace_bytes: u64,
    /// Passes in one replay.
    pub passes_per_replay: usize,
    /// The gradients of one pass, checked before.
    pub check: GradientCheck,
    /// Device time of a pass; `None` where the check failed.
    pub timing: Option<Timing>,
    /// What the device does under this load.
    #[serde(flatten)]
    pub load: Load,
}

/// The tensors of a pass on the device, in the sets of the forward pass.
struct Sets {
    forward: TensorSets,
    /// dO, dQ, dK and dV, and bytes from one set to the next.
    gradients: [(Buffer<CudaDevice>, u64); 4],
    /// The gradient of the sinks, where there are any: the same in all sets.
    d_sinks: Option<Buffer<CudaDevice>>,
    /// That of the bias, where it is measured: the same in all sets.
    d_bias: Option<Buffer<CudaDevice>>,
}

impl Sets {
    fn set(&self, i: usize) -> BackwardTensors {
        let set = (i % self.forward.sets()) as u64;
        let [d_o, d_q, d_k, d_v] = [0, 1, 2, 3].map(|at: usize| {
            let (buffer, step) = &self.gradients[at];
            buffer.address() + set * step
        });
        let [d_sinks, d_bias] = [&self.d_sinks, &self.d_bias].map(|of| of.as_ref().map(Buffer::address));
        BackwardTensors::new(self.forward.set(i), d_o, [d_q, d_k, d_v])
            .with_d_sinks(d_sinks)
            .with_d_bias(d_bias)
    }
}

impl Bench {
    /// Measures a plan of the backward pass of a problem, whose O and LSE the forward pass has computed before. `progress` is called before
    /// each replay and after the last.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoSuchKernel`], and what loading and launching report. Wrong gradients are no error: they are in
    /// [`MeasuredBackward::check`].
    pub fn measure_backward(
        &self,
        plan: &BackwardPlan,
        workload: Workload,
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<MeasuredBackward, Error> {
        let backward = plan.backward();
        let cold_bytes = if options.cold { 2 * self.device.info().l2_bytes + 1 } else { 0 };
        let forward = TensorSets::new(&self.device, workload.clone(), true, cold_bytes, options.secret)?;
        let more = |role: TensorRole| forward.more(&self.device, backward.len(role), role == TensorRole::O);
        let [q, k, v, o] = TensorRole::ALL;
        let gradients = [more(o)?, more(q)?, more(k)?, more(v)?];
        let sink_bytes = plan.sink_ctas().map(|heads| u64::from(heads) * size_of::<f32>() as u64);
        let d_sinks = sink_bytes.map(|bytes| Buffer::new(&self.device, bytes)).transpose()?;
        let bias_len = backward.problem().operand_len(Operand::Bias).filter(|_| options.bias_gradient);
        let bias_bytes = bias_len.map(|elements| elements as u64 * u64::from(Operand::Bias.element_bytes()));
        let d_bias = bias_bytes.map(|bytes| Buffer::new(&self.device, bytes)).transpose()?;
        let sets = Sets { forward, gradients, d_sinks, d_bias };
        let forward_plan = self.attention.plan(backward.problem())?;
        for i in 0..sets.forward.sets() {
            // SAFETY: the tensors are as long as the problem says and outlive the launches, which the reads below wait for.
            unsafe { self.attention.launch(&forward_plan, &sets.forward.set(i), StreamHandle::DEFAULT)? };
        }
        let check = self.check_gradients(plan, &workload, &sets)?;
        let timeline = Timeline::new(&self.device)?;
        let (mut timing, mut passes, mut load) = (None, 0, Load::default());
        if check.passed() {
            // SAFETY: the timeline's stream lives longer than any work on it, and is released below.
            unsafe { self.attention.reserve_backward(plan, timeline.stream())? };
            let marks = (timeline.mark()?, timeline.mark()?);
            let few = self.capture_backward(plan, &sets, &timeline, PASSES_TO_CALIBRATE)?;
            for _ in 0..2 {
                replay_between(&timeline, &few, &marks)?;
                timeline.finish()?;
            }
            let pass_us = marks.1.since_us(&marks.0)? / PASSES_TO_CALIBRATE as f64;
            passes = launches_to_fill(pass_us, options.replay_us, sets.forward.sets());
            let graph = self.capture_backward(plan, &sets, &timeline, passes)?;
            let start = Instant::now();
            while start.elapsed() < options.warm_up {
                replay_between(&timeline, &graph, &marks)?;
                timeline.finish()?;
            }
            let mut times_us = Vec::new();
            for rep in 0..options.reps {
                progress(rep, options.reps);
                // The first one keeps the device busy until the timed one is enqueued behind it.
                replay_between(&timeline, &graph, &marks)?;
                replay_between(&timeline, &graph, &marks)?;
                timeline.finish()?;
                times_us.push(marks.1.since_us(&marks.0)? / passes as f64);
            }
            progress(options.reps, options.reps);
            timing = statistics(&times_us);
            load = self.load(&timeline, &graph, &marks)?;
        }
        // SAFETY: all replays were waited for, and the graphs are not replayed again.
        unsafe { self.release(&timeline) };
        Ok(MeasuredBackward {
            entries: plan.entries(),
            workspace_bytes: plan.workspace_bytes(),
            passes_per_replay: passes,
            check,
            timing,
            load,
        })
    }

    fn capture_backward(
        &self,
        plan: &BackwardPlan,
        sets: &Sets,
        timeline: &Timeline,
        passes: usize,
    ) -> Result<Graph, Error> {
        timeline.capture(|stream| {
            for i in 0..passes {
                // SAFETY: the tensors are as long as the problem says and outlive every replay: all end in one function.
                unsafe { self.attention.backward_device(plan, &sets.set(i), stream)? };
            }
            Ok(())
        })
    }

    /// Runs a pass once on the first set, with gradients of NaN before, and looks at what it wrote.
    fn check_gradients(
        &self,
        plan: &BackwardPlan,
        workload: &Workload,
        sets: &Sets,
    ) -> Result<GradientCheck, Error> {
        for (buffer, _) in &sets.gradients[1..] {
            buffer.fill(0xff)?;
        }
        let backward = plan.backward();
        // SAFETY: the tensors are as long as the problem says and live until the reads, which wait for the launches.
        unsafe { self.attention.backward_device(plan, &sets.set(0), StreamHandle::DEFAULT)? };
        let read = |at: usize, role: TensorRole| {
            let mut elements = vec![0; backward.len(role)];
            sets.gradients[at].0.read(0, &mut elements).map(|()| elements)
        };
        let [q, k, v, o] = TensorRole::ALL;
        let gradients = [read(1, q)?, read(2, k)?, read(3, v)?, read(0, o)?];
        let tensors = sets.forward.read_first(backward.problem())?;
        Ok(check(backward, workload, &tensors, &gradients))
    }
}

/// Compares sums over the rows that sequences have. Tensors and gradients are in the order of the roles, the last gradient dO.
fn check(
    backward: &Backward,
    workload: &Workload,
    tensors: &[Vec<u16>; 4],
    gradients: &[Vec<u16>; 4],
) -> GradientCheck {
    let problem: &Problem = backward.problem();
    let (dtype, group) = (problem.dtype(), problem.group() as usize);
    let mut found = GradientCheck::default();
    // The sum of a tensor times its gradient over a head's rows, and that of the terms' sizes.
    let mut sum = |role: TensorRole, batch: usize, head: usize| -> [f64; 2] {
        let width = problem.extent(role).width as usize;
        let used = workload.used_rows(role)[batch] as usize;
        let mut sums = [0.0, 0.0];
        for row in 0..used {
            let at = [batch, head, row];
            let (from, of) = (row_start(problem, role, at), gradient_start(backward, role, at));
            let pairs = tensors[role as usize][from..from + width]
                .iter()
                .zip(&gradients[role as usize][of..of + width]);
            for (&value, &gradient) in pairs {
                let gradient = widen(dtype, gradient);
                found.nan += usize::from(gradient.is_nan());
                let term = widen(dtype, value) * gradient;
                sums = [sums[0] + term, sums[1] + term.abs()];
            }
        }
        sums
    };
    let (mut q_and_k, mut v_and_o) = (0.0_f64, 0.0_f64);
    // Sequences that are packed are one batch entry, with the sums of all; a batch entry of one tensor alone has no counterpart.
    let [batch_q, batch_k] = [TensorRole::Q, TensorRole::K].map(|role| problem.extent(role).batch as usize);
    for head in 0..problem.sizes().heads_kv as usize {
        let mut over = |role: TensorRole, entries: std::ops::Range<usize>, heads: std::ops::Range<usize>| {
            let mut total = [0.0, 0.0];
            for (batch, head) in entries.flat_map(|batch| heads.clone().map(move |head| (batch, head))) {
                let [value, size] = sum(role, batch, head);
                total = [total[0] + value, total[1] + size];
            }
            total
        };
        let entries: Vec<[std::ops::Range<usize>; 2]> = if batch_q == batch_k {
            (0..batch_q).map(|batch| [batch..batch + 1, batch..batch + 1]).collect()
        } else {
            vec![[0..batch_q, 0..batch_k]]
        };
        for [of_q, of_k] in entries {
            let heads = head * group..(head + 1) * group;
            let difference = |[a, size_a]: [f64; 2], [b, size_b]: [f64; 2]| {
                (a - b).abs() / (size_a + size_b).max(f64::MIN_POSITIVE)
            };
            let (q, k) = (
                over(TensorRole::Q, of_q.clone(), heads.clone()),
                over(TensorRole::K, of_k.clone(), head..head + 1),
            );
            q_and_k = q_and_k.max(difference(q, k));
            let (v, o) = (over(TensorRole::V, of_k, head..head + 1), over(TensorRole::O, of_q, heads));
            v_and_o = v_and_o.max(difference(v, o));
        }
    }
    GradientCheck { q_and_k, v_and_o, ..found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_input::InputKind;
    use crate::reference::{GradientsOf, gradients, reference_of};
    use ferroflash::backward::GradientInputs;
    use ferroflash::rounding::narrow;
    use ferroflash::{Dtype, Sizes};

    #[test]
    fn right_gradients_pass_and_wrong_ones_do_not() {
        let sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 40, seqlen_k: 50, head_dim: 32 };
        let problem = Problem::new(sizes, Dtype::Bf16).expect("valid").with_causal(true);
        let (backward, workload) = (Backward::new(&problem).expect("it has kernels"), Workload::of(&problem));
        let qkv = crate::random_input::qkv(&problem, InputKind::Random, 1);
        let (d_o, _) = crate::random_input::d_output(&backward, InputKind::Random, 2);
        let o = reference_of(&problem, &workload.tensors(&qkv), &|_, _| ()).rounded(Dtype::Bf16).o;
        let inputs = GradientInputs::new(workload.tensors(&qkv), &[], &[], &d_o);
        let GradientsOf { q, k, v, .. } = gradients(&backward, &inputs, &|_, _| ());
        let rounded = |of: &[f64]| of.iter().map(|&value| narrow(Dtype::Bf16, value)).collect::<Vec<u16>>();
        let right = [rounded(&q), rounded(&k), rounded(&v), d_o];
        let tensors = [qkv[0].clone(), qkv[1].clone(), qkv[2].clone(), o];
        let found = check(&backward, &workload, &tensors, &right);
        assert!(found.passed() && found.q_and_k > 0.0, "{found}");
        // Without the scale, with one head of another, with an element that nobody wrote.
        let wrong = |change: &dyn Fn(&mut [Vec<u16>; 4])| {
            let mut gradients = right.clone();
            change(&mut gradients);
            !check(&backward, &workload, &tensors, &gradients).passed()
        };
        assert!(wrong(&|of| of[1] = rounded(&k.iter().map(|k| k * 5.6).collect::<Vec<_>>())));
        assert!(wrong(&|of| of[2].rotate_left(50 * 32)));
        assert!(wrong(&|of| of[0][7] = 0xffff));
    }
}
