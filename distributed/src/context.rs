//! One rank of a problem whose sequence is split: what it exchanges, and what it computes.

use crate::agreement::agree;
use crate::all_gather::AllGather;
use crate::alone::Alone;
use crate::lane::Lane;
use crate::ring::Ring;
use crate::shape::Shape;
use crate::transport::{Message, Traffic, Transport};
use crate::ulysses::Ulysses;
use crate::{Error, Sharding};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::{Extent, KeySequences, QuerySequences, Score, TensorRole};
use ferroflash::{
    Attention, Dtype, ElementStrides, Layout, Mask, Plan, PlanOptions, Planner, Problem, RowSelection, Sizes,
    StreamHandle,
};
use std::ops::Range;
use std::sync::Arc;

/// How the keys and values that a rank lacks reach its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Every rank receives all keys and values that its queries see, and computes as one device does: nothing is merged, and where
    /// kernels and blocks are those of one device, so is every bit.
    #[default]
    AllGather,
    /// Keys and values go round, one rank's at a time; float32 partial results are merged once, at the end.
    Ring,
    /// Ranks exchange heads for rows: each computes some heads of the whole sequence.
    Ulysses,
}

/// What is left to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// The method.
    pub method: Method,
    /// What chunks start at multiples of; as [`Sharding::new`] chooses where it is `None`.
    pub granule: Option<u32>,
    /// Into how many groups of heads an all-gather is cut, so that one travels while another is computed. `None`: each group has twice the
    /// heads of the one before, as only the first is waited for. One batch entry in layout `bhsd` can be cut, anything else is one group.
    pub head_groups: Option<u32>,
    /// Which kernels.
    pub rows: RowSelection,
}

/// A rank's tensors by address: contiguous in the problem's layout, with the rows of its two chunks one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankTensors {
    /// Q.
    pub q: u64,
    /// K.
    pub k: u64,
    /// V.
    pub v: u64,
    /// O.
    pub o: u64,
    /// LSE, float32, where it is wanted: `[batch, heads_q, rows]` of each of [`ContextParallel::parts`], one after the other.
    pub lse: Option<u64>,
}

/// A rank of a problem whose sequence is split among several.
pub struct ContextParallel {
    schedule: Box<dyn Schedule>,
    lane: Lane,
    setup: Setup,
}

/// What a method does on one rank.
pub(crate) trait Schedule: Send {
    /// Bytes of device memory.
    fn buffer_bytes(&self) -> u64;

    /// Bytes of memory that other ranks may write to.
    fn shared_bytes(&self) -> u64 {
        0
    }

    /// Takes that memory, where the transport has such, or allocates its own: called once, before [`Schedule::forward`].
    fn allocate(&mut self, _: &Arc<dyn Device>, _shared: Option<u64>, _announces: bool) -> Result<(), Error> {
        Ok(())
    }

    /// The plans of all launches, in order.
    fn plans(&self) -> Vec<&Plan>;

    /// Those of a call that is captured, where they are others.
    fn plans_of_graphs(&self) -> Vec<&Plan> {
        Vec::new()
    }

    /// The messages of each exchange that the transport has to prepare for, of a rank whose tensors are at these addresses: those that do not
    /// travel as they lie.
    fn exchanges(&self, _: &Setup, _: &RankTensors) -> Vec<Vec<Message>> {
        Vec::new()
    }

    /// Loads kernels that no plan names.
    fn preload(&self, _: &Attention) -> Result<(), Error> {
        Ok(())
    }

    /// # Safety
    /// As [`ContextParallel::forward`].
    unsafe fn forward(
        &mut self,
        lane: &mut Lane,
        setup: &Setup,
        tensors: &RankTensors,
        stream: StreamHandle,
    ) -> Result<(), Error>;
}

/// What schedules are made from.
pub(crate) struct Setup {
    pub(crate) problem: Problem,
    pub(crate) layout: Layout,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) of_q: Sharding,
    pub(crate) of_k: Sharding,
    pub(crate) options: ContextOptions,
    /// Rows of the rank that are computed together.
    pub(crate) parts: Vec<Range<u32>>,
}

/// The shape of one of a problem's tensors, contiguous.
pub(crate) fn shape_of(problem: &Problem, role: TensorRole) -> Shape {
    let Extent { batch, heads, rows, width } = problem.extent(role);
    let layout = problem.layout().unwrap_or_default();
    Shape { batch, heads, rows, width, element_bytes: problem.dtype().bytes(), layout }
}

impl ContextParallel {
    /// The rank that `transport` is, of a problem of the whole sequence; all ranks call this with the same problem and options. Allocates
    /// all that is needed between calls, and waits until the ranks have agreed.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Disagree`], and what planning, allocating and the transport report.
    pub fn new(
        attention: Arc<Attention>,
        mut transport: Box<dyn Transport>,
        problem: &Problem,
        options: &ContextOptions,
    ) -> Result<ContextParallel, Error> {
        let (rank, world) = (transport.rank(), transport.world());
        let setup = Setup::new(problem, (rank, world), options);
        let made = setup.and_then(|setup| {
            agree(transport.as_mut(), attention.device(), &setup.numbers())?;
            let mut schedule: Box<dyn Schedule> = match options.method {
                _ if world == 1 => Box::new(Alone::new(&attention, &setup)?),
                Method::AllGather => Box::new(AllGather::new(&attention, &setup)?),
                Method::Ring => Box::new(Ring::new(&attention, &setup)?),
                Method::Ulysses => Box::new(Ulysses::new(&attention, &setup)?),
            };
            // Only how long messages are matters, and LSE may be wanted.
            let nowhere = RankTensors { q: 0, k: 0, v: 0, o: 0, lse: Some(0) };
            let shared = transport.prepare(&schedule.exchanges(&setup, &nowhere), schedule.shared_bytes())?;
            schedule.allocate(attention.device(), shared, transport.announces())?;
            Ok((setup, schedule))
        });
        let (setup, schedule) = made.inspect_err(|error| transport.abort(error))?;
        let lane = Lane::new(attention, transport);
        Ok(ContextParallel { schedule, lane, setup })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.setup.rank
    }

    /// Ranks.
    pub fn world(&self) -> u32 {
        self.setup.world
    }

    /// How the rows of a tensor of the whole problem are split.
    pub fn sharding(&self, role: TensorRole) -> &Sharding {
        match role {
            TensorRole::Q | TensorRole::O => &self.setup.of_q,
            TensorRole::K | TensorRole::V => &self.setup.of_k,
        }
    }

    /// Bytes of one of the rank's tensors.
    pub fn bytes(&self, role: TensorRole) -> u64 {
        self.setup.local(role).bytes()
    }

    /// Bytes of the rank's LSE.
    pub fn lse_bytes(&self) -> u64 {
        self.setup.lse_shape(self.setup.local(TensorRole::Q).rows).bytes()
    }

    /// The rows of the rank that are computed together, as LSE lies.
    pub fn parts(&self) -> &[Range<u32>] {
        &self.setup.parts
    }

    /// Bytes moved so far, those of the agreement aside.
    pub fn traffic(&self) -> Traffic {
        self.lane.traffic
    }

    /// Bytes of device memory for received tensors and partial results.
    pub fn buffer_bytes(&self) -> u64 {
        self.schedule.buffer_bytes()
    }

    /// Bytes of device memory that the transport has for messages.
    pub fn staging_bytes(&self) -> u64 {
        self.lane.transport.staging_bytes()
    }

    /// The kernels of the launches, in order.
    pub fn kernels(&self) -> Vec<String> {
        self.plans().into_iter().map(|plan| plan.kernel().entry.clone()).collect()
    }

    fn plans(&self) -> Vec<&Plan> {
        self.schedule.plans()
    }

    /// Loads kernels and gives the stream its workspace, so that [`ContextParallel::forward`] allocates nothing.
    ///
    /// # Errors
    /// Those of [`Attention::reserve`].
    ///
    /// # Safety
    /// As [`Attention::reserve`] says of the stream.
    pub unsafe fn reserve(&self, stream: StreamHandle) -> Result<(), Error> {
        for stream in std::iter::once(stream).chain(self.lane.transport.beside()) {
            for plan in self.plans().into_iter().chain(self.schedule.plans_of_graphs()) {
                // SAFETY: the caller's promise; the transport's stream lives as long as the transport.
                unsafe { self.lane.attention.reserve(plan, stream)? };
            }
        }
        self.schedule.preload(&self.lane.attention)
    }

    /// Computes O and LSE of this rank's queries; all ranks call this in the same order. Work is enqueued on `stream` and on the
    /// transport's own; with NCCL the host waits for nothing.
    ///
    /// # Errors
    /// What the transport and launches report. After an error of the transport this is of no further use.
    ///
    /// # Safety
    /// As [`Attention::forward_device`], for this rank's tensors; the stream is the same in every call, or its earlier work is done. Kernels may hold
    /// the device while they wait for other ranks: calls of several contexts on one device are not under way at a time unless all ranks have
    /// enqueued them in the same order on one stream, as NCCL asks of its communicators. All work is done when this is dropped, and no graph that was captured of it is replayed again.
    pub unsafe fn forward(&mut self, tensors: &RankTensors, stream: StreamHandle) -> Result<(), Error> {
        let ContextParallel { schedule, lane, setup } = self;
        // SAFETY: the caller's promise.
        let done = unsafe { schedule.forward(lane, setup, tensors, stream) };
        done.inspect_err(|error| lane.transport.abort(error))
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

impl Drop for ContextParallel {
    fn drop(&mut self) {
        if let Some(stream) = self.lane.transport.beside() {
            // SAFETY: by the promise of forward, all work is done when this is dropped; the stream goes with the transport.
            unsafe { self.lane.attention.release(stream) };
        }
    }
}

/// A problem over part of the rows, heads and keys: what [`Setup::problem_of`] makes one of.
pub(crate) struct Cut {
    pub(crate) heads_q: u32,
    pub(crate) heads_kv: u32,
    pub(crate) seqlen_q: u32,
    pub(crate) seqlen_k: u32,
    pub(crate) mask: Mask,
    /// Q and O, then K and V, as they lie.
    pub(crate) shapes: [Shape; 4],
}

impl Setup {
    pub(crate) fn new(
        problem: &Problem,
        (rank, world): (u32, u32),
        options: &ContextOptions,
    ) -> Result<Setup, Error> {
        let refused = |reason: &str| refuse(options.method, world, reason.to_owned());
        if problem.queries() != QuerySequences::Batch
            || problem.keys() != KeySequences::Batch
            || problem.has_lengths()
        {
            return Err(refused(
                "sequences are a dense batch: packed, paged and with lengths they are not split yet",
            ));
        }
        if problem.dropout().is_some() {
            return Err(refused("dropout depends on positions and is not split yet"));
        }
        if problem.has_sinks() || !matches!(problem.score(), Score::Plain | Score::Softcap(_)) {
            return Err(refused("sinks and scores that depend on positions are not split yet"));
        }
        let mask = problem.mask();
        if mask.intervals || mask.tree.is_some() {
            return Err(refused("intervals and trees are not split yet"));
        }
        let Some(layout) = problem.layout() else {
            return Err(refused("its tensors are contiguous, all in one layout"));
        };
        let sizes = problem.sizes();
        let sharding = |length| match options.granule {
            Some(granule) => Sharding::with_granule(length, world, granule),
            None => Sharding::new(length, world),
        };
        let (of_q, of_k) = (sharding(sizes.seqlen_q), sharding(sizes.seqlen_k));
        let parts: Vec<Range<u32>> = if mask == Mask::FULL || world == 1 {
            std::iter::once(0..of_q.rows(rank)).collect()
        } else {
            of_q.local_of(rank).to_vec()
        };
        let parts = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let options = options.clone();
        Ok(Setup { problem: *problem, layout, rank, world, of_q, of_k, options, parts })
    }

    /// What all ranks must have alike.
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = *self.problem.sizes();
        let mask = self.problem.mask();
        let side = |side: Option<u32>| side.map_or(u64::MAX, u64::from);
        let softcap = match self.problem.score() {
            Score::Softcap(cap) => u64::from(cap.to_bits()),
            _ => 0,
        };
        vec![
            ("batch", batch.into()),
            ("heads_q", heads_q.into()),
            ("heads_kv", heads_kv.into()),
            ("seqlen_q", seqlen_q.into()),
            ("seqlen_k", seqlen_k.into()),
            ("head_dim", head_dim.into()),
            ("head_dim of V", self.problem.head_dim_v().into()),
            ("dtype", u64::from(self.problem.dtype() == Dtype::Bf16)),
            ("layout", u64::from(self.layout == Layout::Bshd)),
            ("window_left", side(mask.window_left)),
            ("window_right", side(mask.window_right)),
            ("chunk", mask.chunk.unwrap_or(0).into()),
            ("prefix", mask.prefix.into()),
            ("sink_tokens", mask.sink_tokens.into()),
            ("scale", self.problem.scale().to_bits().into()),
            ("softcap", softcap),
            ("method", self.options.method as u64),
            ("granule", self.of_q.granule().into()),
            ("head_groups", self.options.head_groups.unwrap_or(0).into()),
        ]
    }

    pub(crate) fn refused(&self, reason: String) -> Error {
        refuse(self.options.method, self.world, reason)
    }

    /// A tensor of this rank.
    pub(crate) fn local(&self, role: TensorRole) -> Shape {
        self.local_of(role, self.rank)
    }

    /// A tensor of a rank.
    pub(crate) fn local_of(&self, role: TensorRole, rank: u32) -> Shape {
        let sharding = if matches!(role, TensorRole::Q | TensorRole::O) { &self.of_q } else { &self.of_k };
        shape_of(&self.problem, role).with_rows(sharding.rows(rank))
    }

    /// LSE of some rows.
    pub(crate) fn lse_shape(&self, rows: u32) -> Shape {
        let q = shape_of(&self.problem, TensorRole::Q);
        Shape { rows, width: 1, element_bytes: 4, layout: Layout::Bhsd, ..q }
    }

    /// Bytes of LSE before a part.
    pub(crate) fn lse_offset(&self, part: &Range<u32>) -> u64 {
        self.lse_shape(part.start).bytes()
    }

    /// The rows of the whole sequence that a part of this rank is; a part is a chunk, or both where every query sees every key.
    pub(crate) fn end_of(&self, rank: u32, part: &Range<u32>) -> u32 {
        let pairs = self.of_q.local_of(rank).into_iter().zip(self.of_q.rows_of(rank));
        pairs
            .filter(|(local, _)| local.end <= part.end && !local.is_empty())
            .map(|(_, rows)| rows.end)
            .max()
            .unwrap_or(0)
    }

    /// The problem of a cut.
    pub(crate) fn problem_of(&self, cut: &Cut) -> Result<Problem, Error> {
        let Sizes { batch, head_dim, .. } = *self.problem.sizes();
        let Cut { heads_q, heads_kv, seqlen_q, seqlen_k, mask, shapes } = *cut;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let mut problem = Problem::new(sizes, self.problem.dtype())?;
        if self.problem.head_dim_v() != head_dim {
            problem = problem.with_head_dim_v(self.problem.head_dim_v())?;
        }
        problem =
            problem.with_mask(mask)?.with_scale(self.problem.scale())?.with_score(self.problem.score())?;
        for (role, shape) in TensorRole::ALL.into_iter().zip(shapes) {
            let strides: ElementStrides = shape.strides();
            problem = problem.with_strides(role, strides)?;
        }
        Ok(problem)
    }

    /// The plan of a cut, whose heads are taken in turns by so many.
    pub(crate) fn plan(&self, planner: &Planner, cut: &Cut, options: PlanOptions) -> Result<Plan, Error> {
        let rows = self.options.rows.clone();
        Ok(planner.plan(&self.problem_of(cut)?, &PlanOptions { rows, ..options })?)
    }
}

fn refuse(method: Method, world: u32, reason: String) -> Error {
    Error::Refused { method: method.name(), world, reason }
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 3] = [Method::AllGather, Method::Ring, Method::Ulysses];

    /// The name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Method::AllGather => "all-gather",
            Method::Ring => "ring",
            Method::Ulysses => "ulysses",
        }
    }
}

/// Device memory of `bytes` bytes.
pub(crate) fn buffer(device: &Arc<dyn Device>, bytes: u64) -> Result<Buffer<dyn Device>, Error> {
    Ok(Buffer::new(device, bytes)?)
}
