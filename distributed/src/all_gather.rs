//! All-gather: every rank receives the keys and values that its queries see, in the order of the sequence, and computes as one device does.
//!
//! Each chunk of queries sees a prefix of the keys, so its causal mask is the bottom-right one, and nothing is merged. Heads travel in groups:
//! one is on its way while the one before is computed. Of a rank's two chunks the one that sees more keys is computed group by group, and the
//! other one for all heads at the end: its tiles are shorter, and fill the multiprocessors that become free at different times.

use crate::Error;
use crate::context::{Cut, RankTensors, Schedule, Setup, buffer, shape_of};
use crate::lane::Lane;
use crate::shape::Shape;
use crate::transport::{Message, Piece, Step, Tensor, Ticket};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, CopyRun, DeviceTensors, Layout, Mask, Plan, StreamHandle};
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
    own: Option<Buffer<dyn Device>>,
    /// Heads of K and V that travel together.
    groups: Vec<Range<u32>>,
    jobs: Vec<Job>,
}

struct Job {
    plan: Plan,
    /// The group that has to be there, and with it those before.
    group: usize,
    /// Bytes from the start of Q, K, V, O and LSE.
    offsets: [u64; 5],
}

impl AllGather {
    pub(crate) fn new(attention: &Attention, setup: &Setup) -> Result<AllGather, Error> {
        let mut jobs = Vec::new();
        for Task { group, heads, part, cut } in tasks(setup)? {
            let (first_q, first_kv) = (heads.start * setup.problem.group(), heads.start);
            let [q, k, v, o] = cut.shapes;
            let lse = setup.lse_offset(&part) + setup.lse_shape(cut.seqlen_q).with_heads(first_q).bytes();
            let [q, o] = [q, o].map(|shape| shape.offset(0, first_q, part.start));
            let [k, v] = [k, v].map(|shape| shape.offset(0, first_kv, 0));
            jobs.push(Job {
                plan: setup.plan(attention.planner(), &cut)?,
                group,
                offsets: [q, k, v, o, lse],
            });
        }
        let bytes = [TensorRole::K, TensorRole::V].map(|role| shape_of(&setup.problem, role).bytes());
        let gathered = [0, bytes[0].next_multiple_of(ALIGNMENT)];
        Ok(AllGather { gathered, bytes, own: None, groups: head_groups(setup), jobs })
    }
}

impl Schedule for AllGather {
    fn buffer_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn shared_bytes(&self) -> u64 {
        self.gathered[1] + self.bytes[1]
    }

    fn allocate(&mut self, device: &Arc<dyn Device>, shared: Option<u64>) -> Result<(), Error> {
        let start = match shared {
            Some(start) => start,
            None => self.own.insert(buffer(device, self.shared_bytes())?).address(),
        };
        self.gathered = self.gathered.map(|place| start + place);
        Ok(())
    }

    fn plans(&self) -> Vec<&Plan> {
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
            // All groups set out at once: later ones travel under the computing of the first.
            let tickets: Vec<Ticket> = (0..self.groups.len())
                .map(|group| self.start(group, lane, setup, tensors, stream))
                .collect::<Result<_, _>>()?;
            // While the first group travels, nothing is computed.
            lane.copy(&self.own_keys(setup, tensors), stream)?;
            let beside = lane.fork(stream)?;
            // Neighbours in two streams: tiles of the next fill the multiprocessors that one leaves free at its end.
            for (job, stream) in self.jobs.iter().zip([stream, beside].into_iter().cycle()) {
                lane.join(tickets[job.group], stream)?;
                let Job { plan, offsets: [of_q, of_k, of_v, of_o, of_lse], .. } = job;
                let lse = tensors.lse.map(|lse| lse + of_lse);
                let on_device = DeviceTensors::new(tensors.q + of_q, k + of_k, v + of_v, tensors.o + of_o);
                lane.attention.launch(plan, &on_device.with_lse(lse), stream)?;
            }
            // A rank without queries has sent its keys all the same.
            if let Some(&last) = tickets.last() {
                lane.join(last, stream)?;
            }
            lane.rejoin(stream)
        }
    }
}

impl AllGather {
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
                let sent = pieces(setup, (mine, whole), (setup.rank, peer), heads);
                messages.extend(sent.map(|(offset, at, bytes)| Message::Send {
                    to: peer,
                    address: own + offset,
                    bytes,
                    place: place(at),
                }));
                let theirs = setup.local_of(role, peer);
                let to_here = pieces(setup, (theirs, whole), (peer, setup.rank), heads);
                messages.extend(to_here.map(|(offset, at, bytes)| {
                    let (address, of) = (gathered + at, Piece { owner: peer, tensor, offset });
                    Message::Receive { from: peer, address, bytes, of, place: place(at) }
                }));
            }
        }
        messages
    }

    /// This rank's own keys and values, of all heads, to where they belong.
    fn own_keys(&self, setup: &Setup, tensors: &RankTensors) -> Vec<CopyRun> {
        let all = 0..setup.problem.sizes().heads_kv;
        let of =
            |((role, _), (own, gathered)): ((TensorRole, Tensor), (u64, u64))| {
                let shapes = (setup.local(role), shape_of(&setup.problem, role));
                pieces(setup, shapes, (setup.rank, setup.rank), &all)
                    .map(move |(offset, at, bytes)| CopyRun { from: own + offset, to: gathered + at, bytes })
            };
        let places = [tensors.k, tensors.v].into_iter().zip(self.gathered);
        KEYS_AND_VALUES.into_iter().zip(places).flat_map(of).collect()
    }
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

/// What a rank computes, in order.
///
/// # Errors
/// [`Error::Refused`] where a chunk's queries do not see a prefix of the keys.
pub(crate) fn tasks(setup: &Setup) -> Result<Vec<Task>, Error> {
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
    let groups = head_groups(setup);
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

/// The pieces of rank `from`'s tensor that rank `to` needs: where each starts in the rank's tensor and in the whole, and its bytes.
fn pieces(
    setup: &Setup,
    (local, whole): (Shape, Shape),
    (from, to): (u32, u32),
    heads: &Range<u32>,
) -> impl Iterator<Item = (u64, u64, u64)> {
    let needed = keys_needed(setup, to);
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
    use super::growing;

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
