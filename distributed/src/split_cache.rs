//! Decoding over a KV cache that is split among ranks: each attends to its own keys, and only O and LSE travel.

use crate::Error;
use crate::agreement::agree;
use crate::context::buffer;
use crate::lane::Lane;
use crate::transport::{Step, Traffic, Transport};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::{QuerySequences, TensorRole};
use ferroflash::{
    Attention, DeviceTensors, Layout, MergeStates, Number, PartialPlan, PartialStates, PlanOptions, Problem,
    StreamHandle,
};
use std::sync::Arc;

/// Keys of LSE and O are 16-byte aligned for every rank.
const ALIGNMENT: u64 = 256;

/// A rank that holds some of the keys of every sequence.
///
/// Its problem is over its own keys: all queries, K and V as they lie on this rank (contiguous or in pages), lengths on the device where
/// there are such. Masks are this rank's, too: where all keys come before all queries the full one. Sinks would count once for each
/// rank, so there are none.
pub struct SplitCache {
    lane: Lane,
    plan: PartialPlan,
    /// This rank's splits into one state, where there are several ranks, and those of all ranks into O.
    merges: [MergeStates; 2],
    /// The splits of this rank.
    splits: Buffer<dyn Device>,
    /// The states of all ranks.
    all: Buffer<dyn Device>,
    /// Bytes of O, and of O and LSE, of a rank's state.
    state_bytes: [u64; 2],
}

impl SplitCache {
    /// This rank of as many as `transport` connects. Allocates all that is needed between calls, and waits until the ranks have agreed upon
    /// their queries.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Disagree`], and what planning, allocating and the transport report.
    pub fn new(
        attention: Arc<Attention>,
        mut transport: Box<dyn Transport>,
        problem: &Problem,
    ) -> Result<SplitCache, Error> {
        let world = transport.world();
        let made = SplitCache::made(&attention, transport.as_mut(), problem);
        let (plan, merges) = made.inspect_err(|error| transport.abort(error))?;
        let state_o = (problem.elements(TensorRole::O) as u64 * 4).next_multiple_of(ALIGNMENT);
        let state = (state_o + problem.lse_len() as u64 * 4).next_multiple_of(ALIGNMENT);
        let splits = u64::from(plan.states()) * (plan.o_bytes() + plan.lse_bytes());
        let device = attention.device();
        Ok(SplitCache {
            splits: buffer(device, splits)?,
            all: buffer(device, state * u64::from(world))?,
            lane: Lane::new(attention, transport),
            plan,
            merges,
            state_bytes: [state_o, state],
        })
    }

    fn made(
        attention: &Attention,
        transport: &mut dyn Transport,
        problem: &Problem,
    ) -> Result<(PartialPlan, [MergeStates; 2]), Error> {
        let world = transport.world();
        let refused =
            |reason: &str| Error::Refused { method: "split cache", world, reason: reason.to_owned() };
        if problem.has_sinks() {
            return Err(refused("a sink would count on every rank"));
        }
        if problem.queries() != QuerySequences::Batch {
            return Err(refused("packed queries are not split yet: give as many to each sequence"));
        }
        let extent = problem.extent(TensorRole::O);
        let numbers = [
            ("batch", extent.batch.into()),
            ("heads_q", extent.heads.into()),
            ("seqlen_q", extent.rows.into()),
            ("head_dim of V", extent.width.into()),
        ];
        agree(transport, attention.device(), &numbers)?;
        let plan = attention.planner().plan_partial(problem, &PlanOptions::new())?;
        let own = MergeStates::new(plan.states(), extent, Layout::Bhsd, (Number::F32, Number::F32))?;
        let to = (Number::F32, Number::from(problem.dtype()));
        let all = MergeStates::new(world, extent, Layout::Bhsd, to)?;
        let all = all.with_strides(problem.strides(TensorRole::O))?;
        Ok((plan, [own, all]))
    }

    /// Loads kernels, so that [`SplitCache::forward`] allocates nothing.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn preload(&self) -> Result<(), Error> {
        self.lane.attention.preload(self.plan.plan())?;
        self.merges.iter().try_for_each(|merge| self.lane.attention.preload_merge(merge))?;
        Ok(())
    }

    /// Computes O and LSE over the keys of all ranks, on every rank; all ranks call this in the same order, with the same Q.
    ///
    /// # Errors
    /// What the transport and launches report. After an error of the transport this is of no further use.
    ///
    /// # Safety
    /// As [`Attention::forward_device`], for this rank's problem; the stream is the same in every call, or its earlier work is done.
    pub unsafe fn forward(&mut self, tensors: &DeviceTensors, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let done = unsafe { self.enqueue(tensors, stream) };
        done.inspect_err(|error| self.lane.transport.abort(error))
    }

    /// # Safety
    /// As [`SplitCache::forward`].
    unsafe fn enqueue(&mut self, tensors: &DeviceTensors, stream: StreamHandle) -> Result<(), Error> {
        let [to_lse, pitch] = self.state_bytes;
        let splits = self.splits.address();
        let lse = splits + u64::from(self.plan.states()) * self.plan.o_bytes();
        let states = PartialStates { o: splits, lse };
        let all = self.all.address();
        let own = all + u64::from(self.lane.transport.rank()) * pitch;
        let mut to_own = states.to_merge(self.plan.o_bytes(), self.plan.lse_bytes());
        (to_own.o, to_own.lse) = (own, Some(own + to_lse));
        let gathered = PartialStates { o: all, lse: all + to_lse };
        let mut to_all = gathered.to_merge(pitch, pitch);
        (to_all.o, to_all.lse) = (tensors.o, tensors.lse);
        let step = Step { what: "O and LSE", index: 0 };
        // SAFETY: states and buffers are as large as the plan says; the gathering waits for the stream, and the stream for it. The rest is
        // the caller's promise.
        unsafe {
            self.lane.attention.launch_partial(&self.plan, tensors, states, stream)?;
            self.lane.attention.merge(&self.merges[0], &to_own, stream)?;
            let ticket = self.lane.all_gather(step, (all, pitch), stream)?;
            self.lane.join(ticket, stream)?;
            self.lane.attention.merge(&self.merges[1], &to_all, stream)?;
        }
        Ok(())
    }

    /// The kernels of the launches over this rank's keys.
    pub fn kernels(&self) -> Vec<String> {
        vec![self.plan.plan().kernel().entry.clone()]
    }

    /// Bytes moved so far, those of the agreement aside.
    pub fn traffic(&self) -> Traffic {
        self.lane.traffic
    }

    /// Bytes of device memory for partial results.
    pub fn buffer_bytes(&self) -> u64 {
        self.splits.bytes() + self.all.bytes()
    }

    /// Waits on the host until all exchanges and all work on `stream` are over, no longer than the transport's limit for other ranks.
    ///
    /// # Errors
    /// Those of [`Transport::wait`].
    ///
    /// # Safety
    /// `stream` lives, and is not captured.
    pub unsafe fn wait(&mut self, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.lane.transport.wait(stream) }
    }
}
