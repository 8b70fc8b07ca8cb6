//! Ring: each rank's keys and values go round, and every rank computes the partial O and LSE of its queries over them as they come by.
//!
//! Under the causal mask a rank's first chunk of queries sees first chunks of the ranks before it, and its second chunk sees first
//! chunks of all and second chunks of the ranks behind it: all of a chunk or nothing, but for its own. Partial results are float32 and merged
//! once, in the order in which they were computed, so that a result repeats in every bit.

use crate::Error;
use crate::context::{Cut, RankTensors, Schedule, Setup, buffer};
use crate::lane::Lane;
use crate::transport::{Message, Piece, Step, Tensor, Ticket};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::{Extent, TensorRole};
use ferroflash::{
    Attention, DeviceTensors, Layout, Mask, MergeStates, MergeTensors, Number, PartialPlan, PartialStates,
    Plan, PlanOptions, Splits, StreamHandle,
};
use std::ops::Range;

/// What a launch's plan may be made of: the fewest ranges of keys that stay partial.
pub(crate) fn plan_options(setup: &Setup) -> PlanOptions {
    PlanOptions { splits: Splits::Count(2), ..PlanOptions::from(setup.options.rows.clone()) }
}

pub(crate) struct Ring {
    /// Keys and values of the rank whose turn it is, and of the next one.
    passing: [Buffer<dyn Device>; 2],
    /// Launches by step.
    steps: Vec<Vec<Launch>>,
    parts: Vec<Part>,
    states: Buffer<dyn Device>,
}

/// Some rows over some keys of one rank.
struct Launch {
    plan: PartialPlan,
    part: usize,
    /// The number of its first state among the part's.
    first_state: u32,
    /// Bytes from the start of Q, K and V.
    offsets: [u64; 3],
}

/// Rows whose partial results are merged together.
struct Part {
    merge: MergeStates,
    /// Bytes of O and of LSE of a state.
    state_bytes: [u64; 2],
    /// Bytes from the start of the states to the first O and the first LSE.
    at: [u64; 2],
    /// Bytes from the start of O and LSE.
    offsets: [u64; 2],
}

impl Ring {
    pub(crate) fn new(attention: &Attention, setup: &Setup) -> Result<Ring, Error> {
        let (problem, sizes) = (&setup.problem, setup.problem.sizes());
        let mut counts = vec![0u32; setup.parts.len()];
        let mut steps: Vec<Vec<Launch>> = (0..setup.world).map(|_| Vec::new()).collect();
        for Visit { step, part, keys, cut } in visits(setup)? {
            let plan = attention.planner().plan_partial(&setup.problem_of(&cut)?, &plan_options(setup))?;
            let first_state = counts[part];
            counts[part] += plan.states();
            let [q, k, v, _] = cut.shapes;
            let offsets = [
                q.offset(0, 0, setup.parts[part].start),
                k.offset(0, 0, keys.start),
                v.offset(0, 0, keys.start),
            ];
            steps[step as usize].push(Launch { plan, part, first_state, offsets });
        }
        let mut parts = Vec::new();
        let mut bytes = 0;
        for (rows, &states) in setup.parts.iter().zip(&counts) {
            let count = rows.end - rows.start;
            let extent =
                Extent { batch: sizes.batch, heads: sizes.heads_q, rows: count, width: problem.head_dim_v() };
            let numbers = (Number::F32, Number::from(problem.dtype()));
            let o = setup.local(TensorRole::O);
            let merge = MergeStates::new(states, extent, Layout::Bhsd, numbers)?.with_strides(o.strides())?;
            let lse_bytes = setup.lse_shape(count).bytes();
            let state_bytes = [merge.partial_bytes() as u64, lse_bytes];
            let at_o = bytes;
            let at_lse = (at_o + state_bytes[0] * u64::from(states)).next_multiple_of(256);
            bytes = (at_lse + lse_bytes * u64::from(states)).next_multiple_of(256);
            let offsets = [o.offset(0, 0, rows.start), setup.lse_offset(rows)];
            parts.push(Part { merge, state_bytes, at: [at_o, at_lse], offsets });
        }
        let device = attention.device();
        let most = setup.of_k.rows_most();
        let [k, v] = [TensorRole::K, TensorRole::V].map(|role| setup.local(role).with_rows(most).bytes());
        let passing = k.next_multiple_of(256) + v;
        let passing = [buffer(device, passing)?, buffer(device, if setup.world > 2 { passing } else { 0 })?];
        Ok(Ring { passing, steps, parts, states: buffer(device, bytes)? })
    }
}

impl Schedule for Ring {
    fn buffer_bytes(&self) -> u64 {
        self.passing.iter().map(Buffer::bytes).sum::<u64>() + self.states.bytes()
    }

    fn plans(&self) -> Vec<&Plan> {
        self.steps.iter().flatten().map(|launch| launch.plan.plan()).collect()
    }

    fn preload(&self, attention: &Attention) -> Result<(), Error> {
        for part in &self.parts {
            attention.preload_merge(&part.merge)?;
        }
        Ok(())
    }

    unsafe fn forward(
        &mut self,
        lane: &mut Lane,
        setup: &Setup,
        tensors: &RankTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let states = self.states.address();
        let mut present = [tensors.k, tensors.v];
        let mut on_its_way: Option<(Ticket, [u64; 2])> = None;
        // SAFETY: the messages are within the rank's tensors and the buffers. What arrives in step n + 1 goes where step n − 1 was, whose
        // launches are on the stream that the exchange waits for. The rest is the caller's promise.
        unsafe {
            for step in 0..setup.world {
                if let Some((ticket, arrived)) = on_its_way.take() {
                    lane.join(ticket, stream)?;
                    present = arrived;
                }
                if step + 1 < setup.world {
                    on_its_way = Some(self.pass_on(step, present, lane, setup, stream)?);
                }
                for launch in &self.steps[step as usize] {
                    let [of_q, of_k, of_v] = launch.offsets;
                    let part = &self.parts[launch.part];
                    let state = |which: usize| {
                        states + part.at[which] + u64::from(launch.first_state) * part.state_bytes[which]
                    };
                    let to = PartialStates { o: state(0), lse: state(1) };
                    let [k, v] = [present[0] + of_k, present[1] + of_v];
                    let on_device = DeviceTensors::new(tensors.q + of_q, k, v, tensors.o);
                    lane.attention.launch_partial(&launch.plan, &on_device, to, stream)?;
                }
            }
            for part in &self.parts {
                let [o_bytes, lse_bytes] = part.state_bytes;
                let first = PartialStates { o: states + part.at[0], lse: states + part.at[1] };
                let merge = MergeTensors {
                    o: tensors.o + part.offsets[0],
                    lse: tensors.lse.map(|lse| lse + part.offsets[1]),
                    ..first.to_merge(o_bytes, lse_bytes)
                };
                lane.attention.merge(&part.merge, &merge, stream)?;
            }
        }
        Ok(())
    }
}

impl Ring {
    /// Passes what is here to the next rank, and receives what the one before has.
    ///
    /// # Safety
    /// As [`crate::ContextParallel::forward`].
    unsafe fn pass_on(
        &self,
        step: u32,
        present: [u64; 2],
        lane: &mut Lane,
        setup: &Setup,
        stream: StreamHandle,
    ) -> Result<(Ticket, [u64; 2]), Error> {
        let [to, from] = [1, setup.world - 1].map(|distance| (setup.rank + distance) % setup.world);
        let [own, next] = [step, step + 1].map(|step| owner_of(setup, step));
        let bytes = |role, owner| setup.local_of(role, owner).bytes();
        let place = self.passing[step as usize % 2].address();
        let arrived = [place, place + bytes(TensorRole::K, next).next_multiple_of(256)];
        let mut messages = Vec::new();
        for (index, (role, tensor)) in
            [(TensorRole::K, Tensor::K), (TensorRole::V, Tensor::V)].into_iter().enumerate()
        {
            let (sent, received) = (bytes(role, own), bytes(role, next));
            if sent > 0 {
                messages.push(Message::Send { to, address: present[index], bytes: sent, place: None });
            }
            if received > 0 {
                let of = Piece { owner: next, tensor, offset: 0 };
                let address = arrived[index];
                messages.push(Message::Receive { from, address, bytes: received, of, place: None });
            }
        }
        let step = Step { what: "keys and values", index: step };
        // SAFETY: the caller's promise.
        Ok((unsafe { lane.exchange(step, &messages, stream)? }, arrived))
    }
}

/// Whose keys and values are here in a step.
fn owner_of(setup: &Setup, step: u32) -> u32 {
    (setup.rank + setup.world - step) % setup.world
}

/// Which of a rank's keys a part of this rank's queries sees, and how.
fn seen(setup: &Setup, rows: &Range<u32>, owner: u32) -> Option<(Range<u32>, Mask)> {
    let [first, second] = setup.of_k.local_of(owner);
    let (keys, mask) = if setup.problem.mask() == Mask::FULL {
        (0..second.end, Mask::FULL)
    } else {
        let [first_rows, _] = setup.of_q.local_of(setup.rank);
        let is_first = rows.start < first_rows.end;
        match (is_first, owner.cmp(&setup.rank)) {
            (true, std::cmp::Ordering::Equal) => (first, Mask::CAUSAL),
            (false, std::cmp::Ordering::Equal) => (0..second.end, Mask::CAUSAL),
            (_, std::cmp::Ordering::Less) => (first, Mask::FULL),
            (true, std::cmp::Ordering::Greater) => return None,
            (false, std::cmp::Ordering::Greater) => (0..second.end, Mask::FULL),
        }
    };
    (!keys.is_empty()).then_some((keys, mask))
}

/// A part of a rank's queries over keys of another, in the step in which they come by.
pub(crate) struct Visit {
    pub(crate) step: u32,
    part: usize,
    keys: Range<u32>,
    pub(crate) cut: Cut,
}

/// What a rank computes, in order.
///
/// # Errors
/// [`Error::Refused`] where a chunk of keys is neither seen whole, nor cut by the diagonal alone, nor hidden.
pub(crate) fn visits(setup: &Setup) -> Result<Vec<Visit>, Error> {
    let sizes = setup.problem.sizes();
    let mask = setup.problem.mask();
    if mask != Mask::FULL && (mask != Mask::CAUSAL || sizes.seqlen_q != sizes.seqlen_k) {
        let reason = "its mask is full, or causal with as many queries as keys; all-gather takes windows";
        return Err(setup.refused(reason.to_owned()));
    }
    let [q, o] = [TensorRole::Q, TensorRole::O].map(|role| setup.local(role));
    let mut visits = Vec::new();
    for step in 0..setup.world {
        let owner = owner_of(setup, step);
        let [k, v] = [TensorRole::K, TensorRole::V].map(|role| setup.local_of(role, owner));
        for (part, rows) in setup.parts.iter().enumerate() {
            let Some((keys, mask)) = seen(setup, rows, owner) else { continue };
            let (seqlen_q, seqlen_k) = (rows.end - rows.start, keys.end - keys.start);
            let (heads_q, heads_kv) = (sizes.heads_q, sizes.heads_kv);
            let cut = Cut { heads_q, heads_kv, seqlen_q, seqlen_k, mask, shapes: [q, k, v, o] };
            visits.push(Visit { step, part, keys, cut });
        }
    }
    Ok(visits)
}
