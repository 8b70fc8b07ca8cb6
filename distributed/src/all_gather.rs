//! All-gather: every rank receives the keys and values that its queries see, in the order of the sequence, and computes as one device does.
//!
//! Each chunk of queries sees a prefix of the keys, so its causal mask is the bottom-right one, and nothing is merged. Heads travel in groups.
//! Keys and values that end with a rank's own are read where they are: only those of others are gathered, and own ones between them.
//!
//! Where nothing that is computed can keep an exchange from ending, all heads of a chunk are one launch, whose CTAs begin with own keys and wait
//! for others only when they come to them. Elsewhere one group is on its way while the one before is computed: of a rank's two chunks the one
//! that sees more keys group by group. The other one is computed for all heads at the end either way: its tiles are shorter, and fill the
//! multiprocessors that become free at different times.

mod plans;

use crate::Error;
use crate::context::{Cut, RankTensors, Schedule, Setup, buffer, shape_of};
use crate::lane::Lane;
use crate::shape::Shape;
use crate::transport::{Message, Piece, Step, Tensor, Ticket};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, CopyRun, DeviceTensors, Layout, Mask, OwnTensors, Plan, StreamHandle};
use std::ops::Range;
use std::sync::Arc;

/// The most groups of heads: exchanges that can be waited for at a time.
const GROUPS_MOST: u32 = 32;
/// Rows of queries whose tiles keep the largest devices busy, 128 of them.
const ROWS_THAT_FILL: u32 = 128 * 128;
/// Values start at a multiple of this behind the keys.
const ALIGNMENT: u64 = 256;
const KEYS_AND_VALUES: [(TensorRole, Tensor); 2] = [(TensorRole::K, Tensor::K), (TensorRole::V, Tensor::V)];

pub(crate) struct AllGather {
    /// The first addresses of keys and values of the whole sequence, as far as they are seen; from 0 until they are allocated.
    gathered: [u64; 2],
    bytes: [u64; 2],
    /// Where they are, unless the transport shares memory.
    memory: Option<Buffer<dyn Device>>,
    /// Heads of K and V that travel together.
    groups: Vec<Range<u32>>,
    /// What is computed as groups arrive.
    jobs: Vec<Job>,
    /// The same in launches that wait themselves: none where a kernel cannot.
    waiting: Vec<Job>,
    /// How many heads have arrived, for those: [`OwnTensors::arrived`].
    arrived: Option<Buffer<dyn Device>>,
}

struct Job {
    plan: Plan,
    /// The group that has to be there, and with it those before.
    group: usize,
    /// Bytes from the start of Q, K, V, O and LSE.
    offsets: [u64; 5],
    /// The first key that the kernel reads in the rank's own tensors; one past the last where it reads all keys among the gathered ones.
    own_first: u32,
    /// Bytes from the start of the rank's K and V to that key and its value; `None` where the kernel cannot read them there.
    own: Option<[u64; 2]>,
}

impl AllGather {
    pub(crate) fn new(attention: &Attention, setup: &Setup) -> Result<AllGather, Error> {
        let groups = head_groups(setup);
        let jobs = jobs(attention, setup, &groups)?;
        let whole = self::jobs(attention, setup, std::slice::from_ref(&(0..setup.problem.sizes().heads_kv)))?;
        let waiting = if whole.iter().all(|job| job.own.is_some()) { whole } else { Vec::new() };
        let bytes = [TensorRole::K, TensorRole::V].map(|role| shape_of(&setup.problem, role).bytes());
        let gathered = [0, bytes[0].next_multiple_of(ALIGNMENT)];
        Ok(AllGather { gathered, bytes, memory: None, groups, jobs, waiting, arrived: None })
    }
}

impl Schedule for AllGather {
    fn buffer_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn shared_bytes(&self) -> u64 {
        self.gathered[1] + self.bytes[1]
    }

    fn allocate(
        &mut self,
        device: &Arc<dyn Device>,
        shared: Option<u64>,
        announces: bool,
    ) -> Result<(), Error> {
        let start = match shared {
            Some(start) => start,
            None => self.memory.insert(buffer(device, self.shared_bytes())?).address(),
        };
        self.gathered = self.gathered.map(|place| start + place);
        if announces && !self.waiting.is_empty() {
            let count = buffer(device, size_of::<u32>() as u64)?;
            count.fill(0)?;
            self.arrived = Some(count);
        }
        Ok(())
    }

    fn plans(&self) -> Vec<&Plan> {
        self.jobs(self.arrived.is_some()).iter().map(|job| &job.plan).collect()
    }

    fn plans_of_graphs(&self) -> Vec<&Plan> {
        self.jobs.iter().map(|job| &job.plan).collect()
    }

    fn exchanges(&self, setup: &Setup, tensors: &RankTensors) -> Vec<Vec<Message>> {
        (0..self.groups.len()).map(|group| self.messages(group, setup, tensors)).collect()
    }

    fn preload(&self, attention: &Attention) -> Result<(), Error> {
        Ok(attention.preload_copy()?)
    }

    unsafe fn forward(
        &mut self,
        lane: &mut Lane,
        setup: &Setup,
        tensors: &RankTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let [k, v] = self.gathered;
        // SAFETY: the messages are within the rank's tensors and the buffers, which nothing else uses until the jobs are done, and these
        // are on the stream that exchanges wait for; the rest is the caller's promise.
        unsafe {
            let arrived = self.waits(lane, stream)?;
            let jobs = self.jobs(arrived.is_some());
            // All groups set out at once: later ones travel under the computing of the first.
            let mut tickets = Vec::new();
            for (group, heads) in self.groups.iter().enumerate() {
                tickets.push(self.start(group, lane, setup, tensors, stream)?);
                if let Some(count) = arrived {
                    lane.write((count, heads.end), None)?;
                }
            }
            lane.copy(&self.own_keys(jobs, setup, tensors), stream)?;
            let beside = lane.fork(stream)?;
            // Neighbours in two streams: tiles of the next fill the multiprocessors that one leaves free at its end.
            for (job, stream) in jobs.iter().zip([stream, beside].into_iter().cycle()) {
                if arrived.is_none() {
                    lane.join(tickets[job.group], stream)?;
                }
                let Job { plan, offsets: [of_q, of_k, of_v, of_o, of_lse], own, .. } = job;
                let lse = tensors.lse.map(|lse| lse + of_lse);
                let on_device = DeviceTensors::new(tensors.q + of_q, k + of_k, v + of_v, tensors.o + of_o);
                let own =
                    own.map(|[of_k, of_v]| OwnTensors { k: tensors.k + of_k, v: tensors.v + of_v, arrived });
                lane.attention.launch(plan, &on_device.with_lse(lse).with_own(own), stream)?;
            }
            // A rank without queries has sent its keys all the same.
            if let Some(&last) = tickets.last() {
                lane.join(last, stream)?;
            }
            lane.rejoin(stream)?;
            // Before any exchange of the next call.
            arrived.map_or(Ok(()), |count| lane.write((count, 0), Some(stream)))
        }
    }
}

impl AllGather {
    /// The launches of a call, whose kernels wait themselves or not.
    fn jobs(&self, wait: bool) -> &[Job] {
        if wait { &self.waiting } else { &self.jobs }
    }

    /// Where a call's kernels read how many heads have arrived, if they wait themselves. Those of a graph do not: nothing says that its branches run
    /// at the same time.
    ///
    /// # Safety
    /// The stream lives.
    unsafe fn waits(&self, lane: &Lane, stream: StreamHandle) -> Result<Option<u64>, Error> {
        let Some(count) = &self.arrived else { return Ok(None) };
        // SAFETY: the caller's promise.
        let is_captured = unsafe { lane.attention.device().is_capturing(stream)? };
        Ok((!is_captured).then(|| count.address()))
    }

    /// # Safety
    /// As [`crate::ContextParallel::forward`].
    unsafe fn start(
        &self,
        group: usize,
        lane: &mut Lane,
        setup: &Setup,
        tensors: &RankTensors,
        stream: StreamHandle,
    ) -> Result<Ticket, Error> {
        let step = Step { what: "keys and values", index: group as u32 };
        // SAFETY: the caller's promise.
        unsafe { lane.exchange(step, &self.messages(group, setup, tensors), stream) }
    }

    fn messages(&self, group: usize, setup: &Setup, tensors: &RankTensors) -> Vec<Message> {
        let heads = &self.groups[group];
        let mut messages = Vec::new();
        for ((role, tensor), (own, gathered)) in
            KEYS_AND_VALUES.into_iter().zip([tensors.k, tensors.v].into_iter().zip(self.gathered))
        {
            let whole = shape_of(&setup.problem, role);
            let mine = setup.local(role);
            let place = |at: u64| Some(gathered - self.gathered[0] + at);
            for peer in (0..setup.world).filter(|&peer| peer != setup.rank) {
                let sent = pieces(setup, (mine, whole), (setup.rank, keys_needed(setup, peer)), heads);
                messages.extend(sent.map(|(offset, at, bytes)| Message::Send {
                    to: peer,
                    address: own + offset,
                    bytes,
                    place: place(at),
                }));
                let theirs = setup.local_of(role, peer);
                let to_here = pieces(setup, (theirs, whole), (peer, keys_needed(setup, setup.rank)), heads);
                messages.extend(to_here.map(|(offset, at, bytes)| {
                    let (address, of) = (gathered + at, Piece { owner: peer, tensor, offset });
                    Message::Receive { from: peer, address, bytes, of, place: place(at) }
                }));
            }
        }
        messages
    }

    /// This rank's own keys and values, of all heads, to where they belong, as far as they are not read where they are.
    fn own_keys(&self, jobs: &[Job], setup: &Setup, tensors: &RankTensors) -> Vec<CopyRun> {
        let all = 0..setup.problem.sizes().heads_kv;
        let needed = jobs.iter().map(|job| job.own_first).max().unwrap_or(0);
        let of = |((role, _), (own, gathered)): ((TensorRole, Tensor), (u64, u64))| {
            let shapes = (setup.local(role), shape_of(&setup.problem, role));
            pieces(setup, shapes, (setup.rank, needed), &all).map(move |(offset, at, bytes)| CopyRun {
                from: own + offset,
                to: gathered + at,
                bytes,
            })
        };
        let places = [tensors.k, tensors.v].into_iter().zip(self.gathered);
        KEYS_AND_VALUES.into_iter().zip(places).flat_map(of).collect()
    }
}

/// The launches for heads that travel in these groups.
fn jobs(attention: &Attention, setup: &Setup, groups: &[Range<u32>]) -> Result<Vec<Job>, Error> {
    let tasks = tasks(setup, groups)?;
    let plans = plans::plans(attention.planner(), setup, &tasks)?;
    let job = |(task, plan): (Task, Plan)| {
        let Task { group, heads, part, cut } = task;
        let (first_q, first_kv) = (heads.start * setup.problem.group(), heads.start);
        let [q, k, v, o] = cut.shapes;
        let lse = setup.lse_offset(&part) + setup.lse_shape(cut.seqlen_q).with_heads(first_q).bytes();
        let [q, o] = [q, o].map(|shape| shape.offset(0, first_q, part.start));
        let [k, v] = [k, v].map(|shape| shape.offset(0, first_kv, 0));
        let mine = KEYS_AND_VALUES.map(|(role, _)| setup.local(role));
        let (first, row) = own_keys_at_end(setup, cut.seqlen_k);
        let strides = mine.map(|shape| shape.strides());
        let (plan, own_first, own) = match plan.with_own_keys(first, strides) {
            Some(plan) => (plan, first, Some(mine.map(|shape| shape.offset(0, first_kv, row)))),
            None => (plan, cut.seqlen_k, None),
        };
        Job { plan, group, offsets: [q, k, v, o, lse], own_first, own }
    };
    Ok(tasks.into_iter().zip(plans).map(job).collect())
}

/// The first of the rank's own keys after which none of another rank comes, of the first `keys` ones, and its row in the rank's tensors; no key
/// and any row where another rank has the last.
fn own_keys_at_end(setup: &Setup, keys: u32) -> (u32, u32) {
    let runs = setup.of_k.rows_of(setup.rank).into_iter().zip(setup.of_k.local_of(setup.rank));
    let mut end = (keys, 0);
    for (rows, at) in runs.rev() {
        if rows.start < keys && rows.end >= end.0 && !rows.is_empty() {
            end = (rows.start, at.start);
        }
    }
    end
}

/// What a rank computes in one launch.
pub(crate) struct Task {
    /// The last of the groups of heads that it needs.
    pub(crate) group: usize,
    /// Heads of K and V.
    pub(crate) heads: Range<u32>,
    part: Range<u32>,
    pub(crate) cut: Cut,
}

/// What a rank computes, in order, of heads that arrive in these groups.
///
/// # Errors
/// [`Error::Refused`] where a chunk's queries do not see a prefix of the keys.
pub(crate) fn tasks(setup: &Setup, groups: &[Range<u32>]) -> Result<Vec<Task>, Error> {
    let (problem, sizes) = (&setup.problem, setup.problem.sizes());
    let mask = problem.mask();
    let is_prefix = mask.window_right == Some(0) && mask.prefix == 0 && sizes.seqlen_k >= sizes.seqlen_q;
    if mask != Mask::FULL && !is_prefix {
        let reason =
            "its mask is full, or shows no key after a query's own, of as many keys as queries at least";
        return Err(setup.refused(reason.to_owned()));
    }
    let [q, o] = [TensorRole::Q, TensorRole::O].map(|role| setup.local(role));
    let [k, v] = [TensorRole::K, TensorRole::V].map(|role| shape_of(problem, role));
    let task = |group: usize, heads: Range<u32>, part: &Range<u32>| {
        let heads_kv = heads.len() as u32;
        let cut = Cut {
            heads_q: heads_kv * problem.group(),
            heads_kv,
            seqlen_q: part.end - part.start,
            seqlen_k: keys_end(setup, setup.rank, part),
            mask,
            shapes: [q, k, v, o],
        };
        Task { group, heads, part: part.clone(), cut }
    };
    let Some((most, others)) = setup.parts.split_last() else { return Ok(Vec::new()) };
    let of_groups = groups.iter().enumerate().map(|(group, heads)| task(group, heads.clone(), most));
    let of_all = others.iter().rev().map(|part| task(groups.len() - 1, 0..sizes.heads_kv, part));
    Ok(of_groups.chain(of_all).collect())
}

/// The heads of K and V of each group that travels together.
pub(crate) fn head_groups(setup: &Setup) -> Vec<Range<u32>> {
    let sizes = setup.problem.sizes();
    let heads = sizes.heads_kv;
    let can_be_cut = setup.layout == Layout::Bhsd && sizes.batch == 1;
    let ends: Vec<u32> = match setup.options.head_groups {
        _ if !can_be_cut => vec![heads],
        Some(asked) => {
            let count = asked.clamp(1, heads.min(GROUPS_MOST));
            (1..=count).map(|group| heads * group / count).collect()
        }
        None => growing(heads, heads_that_fill(setup)),
    };
    std::iter::once(0).chain(ends.iter().copied()).zip(&ends).map(|(start, &end)| start..end).collect()
}

/// The heads of K and V whose queries keep a device busy, of those that are computed group by group.
fn heads_that_fill(setup: &Setup) -> u32 {
    let parts = if setup.problem.mask() == Mask::FULL { setup.world } else { 2 * setup.world };
    let rows = setup.problem.sizes().seqlen_q / parts * setup.problem.group();
    ROWS_THAT_FILL.div_ceil(rows.max(1))
}

/// Where groups end that double from a sixteenth of the heads on, or from as many as fill a device; what is left at the end joins the last.
fn growing(heads: u32, fill: u32) -> Vec<u32> {
    let mut ends = Vec::new();
    let (mut end, mut size) = (0, heads.div_ceil(16).max(fill));
    while heads - end >= 2 * size {
        end += size;
        ends.push(end);
        size *= 2;
    }
    ends.push(heads);
    ends
}

/// One past the last key that a part of a rank's queries sees.
fn keys_end(setup: &Setup, rank: u32, part: &Range<u32>) -> u32 {
    let sizes = setup.problem.sizes();
    match setup.problem.mask() {
        Mask::FULL => sizes.seqlen_k,
        _ => setup.end_of(rank, part) + sizes.seqlen_k - sizes.seqlen_q,
    }
}

/// One past the last key that a rank's queries see; 0 where it has none.
fn keys_needed(setup: &Setup, rank: u32) -> u32 {
    let rows = setup.of_q.rows(rank);
    if rows == 0 { 0 } else { keys_end(setup, rank, &(0..rows)) }
}

/// The chunks of rank `from`'s tensor that have some of the first `needed` keys: where each starts in the rank's tensor and in the whole, and its bytes,
/// head by head.
fn pieces(
    setup: &Setup,
    (local, whole): (Shape, Shape),
    (from, needed): (u32, u32),
    heads: &Range<u32>,
) -> impl Iterator<Item = (u64, u64, u64)> {
    let chunks = setup.of_k.rows_of(from).into_iter().zip(setup.of_k.local_of(from));
    let seen: Vec<_> = chunks.filter(|(rows, _)| rows.start < needed).collect();
    let heads = heads.clone();
    seen.into_iter().flat_map(move |(rows, at)| {
        let pairs = local.runs(heads.clone(), at).into_iter().zip(whole.runs(heads.clone(), rows));
        pairs.map(|((offset, bytes), (to, _))| (offset, to, bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::{growing, own_keys_at_end};
    use crate::context::{ContextOptions, Setup};
    use ferroflash::{Dtype, Problem, Sizes};

    pub(super) fn setup(tokens: u32, (rank, world): (u32, u32)) -> Setup {
        let sizes =
            Sizes { batch: 1, heads_q: 32, heads_kv: 8, seqlen_q: tokens, seqlen_k: tokens, head_dim: 128 };
        let problem = Problem::new(sizes, Dtype::Bf16).expect("a problem").with_causal(true);
        Setup::new(&problem, (rank, world), &ContextOptions::default()).expect("split")
    }

    #[test]
    fn own_keys_are_read_where_they_are_from_the_last_on() {
        // Of four chunks of 4096: rank 1 has the second and the third, which are neighbours, rank 0 the first and the last.
        let [outer, inner] = [0, 1].map(|rank| setup(16384, (rank, 2)));
        assert_eq!([4096, 16384].map(|keys| own_keys_at_end(&outer, keys)), [(0, 0), (12288, 4096)]);
        assert_eq!([8192, 12288].map(|keys| own_keys_at_end(&inner, keys)), [(4096, 0), (4096, 0)]);
        // Without a mask another rank has the last.
        assert_eq!(own_keys_at_end(&inner, 16384), (16384, 0));
    }

    #[test]
    fn groups_double_and_hold_every_head_once() {
        assert_eq!(growing(8, 1), [1, 3, 8]);
        assert_eq!(growing(32, 4), [4, 12, 32]);
        assert_eq!(growing(1, 1), [1]);
        assert_eq!(growing(2, 1), [1, 2]);
        assert_eq!(growing(8, 64), [8], "too few rows for more than one");
        for (heads, fill) in (1..200).flat_map(|heads| (1..40).map(move |fill| (heads, fill))) {
            let ends = growing(heads, fill);
            assert!(ends.is_sorted_by(|a, b| a < b) && ends.last() == Some(&heads) && ends.len() <= 32);
        }
    }
}
