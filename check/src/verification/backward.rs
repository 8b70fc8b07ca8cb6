//! Backward passes that kernels are verified on: drawn at random, or of a problem of the caller's.

use super::guarded::Guarded;
use super::ragged::{Draw, Limits};
use crate::random_input::{self, InputKind, Random};
use crate::reference::{GradientsOf, gradient_start, gradients, plain_gradients, reference_of};
use crate::tolerance::backward::{GradientTolerance, GradientVerdicts, row_coordinates};
use crate::workload::Workload;
use ferroflash::attention::{HostOperand, Output};
use ferroflash::backward::{BackwardTensors, GradientInputs, Gradients, gradient_name};
use ferroflash::device::StreamHandle;
use ferroflash::problem::{ElementStrides, Extent, Operand, Problem, Sizes, TensorRole};
use ferroflash::workspace::Workspace;
use ferroflash::{Attention, Backward, BackwardPlan, DeviceTensors, Error, Layout};
use kernels_gpu::row::{Dtype, ScoreKind};

/// A backward pass with its inputs, what is right, and how far a kernel may be from it. O and LSE are the reference's, rounded.
pub struct BackwardCase {
    /// The pass.
    pub backward: Backward,
    kind: InputKind,
    workload: Workload,
    qkv: [Vec<u16>; 3],
    output: Output,
    d_o: Vec<u16>,
    d_lse: Option<Vec<f32>>,
    reference: GradientsOf<f64>,
    tolerance: GradientTolerance,
}

impl BackwardCase {
    /// Draws a pass for kernels of this dtype, tile width and score: masks, packed sequences, lengths, sinks, widths, strides.
    ///
    /// # Errors
    /// Where the problem cannot be, which is a fault of what is drawn.
    pub fn draw(dtype: Dtype, head_dim: u32, kind: ScoreKind, seed: u64) -> Result<BackwardCase, Error> {
        let mut random = Random::new(seed);
        let (lengths, backward) = loop {
            let mut draw = Draw { random: &mut random, numbers: &[], limits: Limits::BACKWARD };
            let (problem, lengths) = draw.problem(dtype, head_dim, kind)?;
            // Not of pages.
            if let Ok(backward) = Backward::new(&problem) {
                break (lengths, backward);
            }
        };
        let kinds = [InputKind::Random, InputKind::Random, InputKind::Outliers, InputKind::NotANumber];
        let kind = random.one_of(&kinds);
        let workload = Workload::with_sequences(backward.problem(), [lengths.q, lengths.k], seed);
        let backward = draw_strides(backward, &mut random)?;
        BackwardCase::new(&backward, workload, (kind, seed), random.below(2) == 0)
    }

    /// Of a pass, with inputs from a seed; with a gradient of LSE, too, if so wished.
    ///
    /// # Errors
    /// Those of the problem's operands.
    pub fn new(
        backward: &Backward,
        workload: Workload,
        (kind, seed): (InputKind, u64),
        with_d_lse: bool,
    ) -> Result<BackwardCase, Error> {
        let problem = backward.problem();
        let mut qkv = random_input::qkv(problem, kind, seed);
        workload.poison_unused(&mut qkv);
        let tensors = workload.tensors(&qkv);
        tensors.check_operands(problem)?;
        let output = reference_of(problem, &tensors, &|_, _| ()).rounded(problem.dtype());
        let (d_o, d_lse) = random_input::d_output(backward, kind, seed.wrapping_add(1));
        let d_lse = with_d_lse.then_some(d_lse);
        let lse = output.lse.clone().unwrap_or_default();
        let inputs = GradientInputs::new(tensors, &output.o, &lse, &d_o).with_d_lse(d_lse.as_deref());
        let reference = gradients(backward, &inputs, &|_, _| ());
        let tolerance = GradientTolerance::new(backward, &reference, &plain_gradients(backward, &inputs));
        Ok(BackwardCase {
            backward: *backward,
            kind,
            workload,
            qkv,
            output,
            d_o,
            d_lse,
            reference,
            tolerance,
        })
    }

    /// The same with another O and LSE of the forward pass: those of kernels, for instance.
    pub fn with_output(self, output: Output) -> BackwardCase {
        BackwardCase { output, ..self }
    }

    /// What a backward pass is given.
    pub fn inputs(&self) -> GradientInputs<'_> {
        let lse = self.output.lse.as_deref().unwrap_or_default();
        GradientInputs::new(self.workload.tensors(&self.qkv), &self.output.o, lse, &self.d_o)
            .with_d_lse(self.d_lse.as_deref())
    }

    /// The pass with its sequences and operands.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Judges gradients.
    ///
    /// # Errors
    /// [`Error::WrongLength`].
    pub fn judge(&self, gradients: &Gradients) -> Result<GradientVerdicts, Error> {
        self.tolerance.judge(&self.backward, &self.reference, gradients)
    }

    /// Gradients by the kernels of `attention`, with every tensor and the workspace between guard bands, and NaN in what is written before.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something outside of the gradients and the workspace was written, gaps between strided rows included;
    /// whatever else keeps the pass from running.
    pub fn run(&self, attention: &Attention) -> Result<Gradients, Error> {
        self.run_plan(attention, &attention.plan_backward(&self.backward)?)
    }

    /// As [`BackwardCase::run`], by the kernels of a plan.
    ///
    /// # Errors
    /// Those of [`BackwardCase::run`].
    pub fn run_plan(&self, attention: &Attention, plan: &BackwardPlan) -> Result<Gradients, Error> {
        let (device, backward) = (attention.device(), &self.backward);
        let entry = plan.steps()[0].kernel().entry.as_str();
        let [q, k, v] = &self.qkv;
        let of = |elements: &[u16]| Guarded::of(device, elements);
        let (q, k, v, o, d_o) = (of(q)?, of(k)?, of(v)?, of(&self.output.o)?, of(&self.d_o)?);
        let lse = Guarded::of(device, self.output.lse.as_deref().unwrap_or_default())?;
        let d_lse = self.d_lse.as_deref().map(|d_lse| Guarded::of(device, d_lse)).transpose()?;
        let lengths = self.workload.seqlens_k().map(|lengths| Guarded::of(device, lengths)).transpose()?;
        let mut forward = DeviceTensors::new(q.address(), k.address(), v.address(), o.address())
            .with_lse(Some(lse.address()))
            .with_seqlens_k(lengths.as_ref().map(Guarded::address));
        let mut operands = Vec::new();
        for (operand, values) in self.workload.operands() {
            let guarded = match values.as_operand() {
                HostOperand::U32(values) => Guarded::of(device, values)?,
                HostOperand::I32(values) => Guarded::of(device, values)?,
                HostOperand::F32(values) => Guarded::of(device, values)?,
                HostOperand::Bits(values) => Guarded::of(device, values)?,
                _ => continue,
            };
            forward = forward.with_operand(*operand, guarded.address());
            operands.push(guarded);
        }
        let roles = [TensorRole::Q, TensorRole::K, TensorRole::V];
        let gradient = |role| Guarded::new::<u16>(device, backward.len(role));
        let gradients = [gradient(roles[0])?, gradient(roles[1])?, gradient(roles[2])?];
        let at = [0, 1, 2].map(|i: usize| gradients[i].address());
        let heads = backward.problem().sizes().heads_q as usize;
        let has_sinks = backward.problem().has_sinks();
        let d_sinks = has_sinks.then(|| Guarded::new::<f32>(device, heads)).transpose()?;
        let bias_len = backward.problem().operand_len(Operand::Bias);
        let d_bias = bias_len.map(|elements| Guarded::new::<u16>(device, elements)).transpose()?;
        let tensors = BackwardTensors::new(forward, d_o.address(), at)
            .with_d_lse(d_lse.as_ref().map(Guarded::address))
            .with_d_sinks(d_sinks.as_ref().map(Guarded::address))
            .with_d_bias(d_bias.as_ref().map(Guarded::address));
        let memory = Guarded::new::<u8>(device, plan.workspace_bytes() as usize)?;
        // SAFETY: every buffer is on this device and as long as the plan says, and lives until the reads below, which wait.
        unsafe {
            let (address, bytes, stream) = (memory.address(), plan.workspace_bytes(), StreamHandle::DEFAULT);
            let workspace = Workspace::from_raw(device.as_ref(), address, bytes, stream)?;
            attention.backward_in(plan, &tensors, &workspace, stream)?;
        }
        memory.read(entry, "the workspace", 0_u8)?;
        for (guarded, tensor, elements) in [(&o, "O", &self.output.o), (&d_o, "dO", &self.d_o)] {
            if guarded.read(entry, tensor, 0_u16)? != *elements {
                return Err(Error::GuardBand { entry: entry.to_owned(), tensor, distance: 0, side: "in" });
            }
        }
        let mut read = Vec::new();
        for (guarded, role) in gradients.iter().zip(roles) {
            let elements = guarded.read(entry, gradient_name(role), 0_u16)?;
            self.check_gaps(entry, role, &elements)?;
            read.push(elements);
        }
        let [q, k, v] = [0, 1, 2].map(|i| std::mem::take(&mut read[i]));
        let sinks = d_sinks.map(|sinks| sinks.read(entry, "dSinks", 0.0_f32)).transpose()?;
        let bias = d_bias.map(|bias| bias.read(entry, "dBias", 0_u16)).transpose()?;
        Ok(Gradients::new(q, k, v).with_sinks(sinks).with_bias(bias))
    }

    /// Refuses a gradient with anything but the NaN from before between its rows.
    fn check_gaps(&self, entry: &str, role: TensorRole, elements: &[u16]) -> Result<(), Error> {
        let width = self.backward.problem().extent(role).width as usize;
        let mut is_gap = vec![true; elements.len()];
        for at in row_coordinates(&self.backward, role) {
            let start = gradient_start(&self.backward, role, at);
            is_gap[start..start + width].fill(false);
        }
        match elements.iter().zip(is_gap).position(|(&bits, is_gap)| is_gap && bits != u16::MAX) {
            None => Ok(()),
            Some(distance) => Err(Error::GuardBand {
                entry: entry.to_owned(),
                tensor: gradient_name(role),
                distance: distance as u64,
                side: "in",
            }),
        }
    }
}

/// Other strides for some of the gradients: gaps behind rows, the other layout, and a dO whose heads are all the same.
fn draw_strides(backward: Backward, random: &mut Random) -> Result<Backward, Error> {
    let mut drawn = backward;
    for role in TensorRole::ALL {
        let Extent { heads, rows, width, .. } = backward.problem().extent(role);
        let [heads, rows, width] = [heads, rows, width].map(i64::from);
        let padded = width + 8;
        let strides = match random.below(6) {
            0 => ElementStrides { batch: heads * rows * padded, head: rows * padded, row: padded, dim: 1 },
            1 => ElementStrides { batch: heads * rows * width, head: width, row: heads * width, dim: 1 },
            2 if role == TensorRole::O => ElementStrides { batch: rows * width, head: 0, row: width, dim: 1 },
            _ => continue,
        };
        drawn = drawn.with_strides(role, strides)?;
    }
    Ok(drawn)
}

impl std::fmt::Display for BackwardCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem: &Problem = self.backward.problem();
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = problem.sizes();
        let width_v = problem.head_dim_v();
        write!(f, "B{batch} H{heads_q}/{heads_kv} S{seqlen_q}x{seqlen_k} D{head_dim}/{width_v} ")?;
        write!(f, "{}, Q {:?}, K {:?}", problem.mask(), problem.queries(), problem.keys())?;
        write!(f, ", {:?}{}", problem.score(), if problem.has_sinks() { ", sinks" } else { "" })?;
        if let Some(dropout) = problem.dropout() {
            write!(f, ", {dropout:?}")?;
        }
        let layout = match problem.layout() {
            Some(Layout::Bshd) => "bshd",
            Some(_) => "bhsd",
            None => "strided",
        };
        write!(f, ", {layout}, {}, lengths {:?}", self.kind.name(), self.workload.seqlens_k())?;
        if self.d_lse.is_some() { write!(f, ", dLSE") } else { Ok(()) }
    }
}
