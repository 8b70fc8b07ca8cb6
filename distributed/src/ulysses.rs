//! Ulysses: ranks exchange heads for rows, so that each computes some heads of the whole sequence, and exchange O back.

use crate::Error;
use crate::context::{Cut, RankTensors, Schedule, Setup, buffer, shape_of};
use crate::lane::Lane;
use crate::shape::Shape;
use crate::transport::{Message, Piece, Step, Tensor};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, CopyRun, DeviceTensors, Layout, Plan, PlanOptions, StreamHandle};
use std::ops::Range;

pub(crate) struct Ulysses {
    /// Q, K, V, O and LSE of this rank's heads, of the whole sequence.
    whole: [Buffer<dyn Device>; 5],
    plan: Plan,
}

impl Ulysses {
    pub(crate) fn new(attention: &Attention, setup: &Setup) -> Result<Ulysses, Error> {
        let cut = cut(setup)?;
        let device = attention.device();
        let lse = setup.lse_shape(cut.seqlen_q).with_heads(cut.heads_q);
        let [q, k, v, o] = cut.shapes.map(|shape| buffer(device, shape.bytes()));
        let whole = [q?, k?, v?, o?, buffer(device, lse.bytes())?];
        Ok(Ulysses { whole, plan: setup.plan(attention.planner(), &cut, PlanOptions::new())? })
    }
}

impl Schedule for Ulysses {
    fn buffer_bytes(&self) -> u64 {
        self.whole.iter().map(Buffer::bytes).sum()
    }

    fn plans(&self) -> Vec<&Plan> {
        vec![&self.plan]
    }

    fn exchanges(&self, setup: &Setup, tensors: &RankTensors) -> Vec<Vec<Message>> {
        self.moves(setup, tensors).map(|moves| moves.messages).into()
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
        let [q, k, v, o, lse] = [0, 1, 2, 3, 4].map(|tensor: usize| self.whole[tensor].address());
        let [there, back] = self.moves(setup, tensors);
        // SAFETY: the messages are within the rank's tensors and the buffers, which nothing else uses; the rest is the caller's promise.
        unsafe {
            there.carry_out("rows for heads", lane, stream)?;
            let on_device = DeviceTensors::new(q, k, v, o).with_lse(tensors.lse.map(|_| lse));
            lane.attention.launch(&self.plan, &on_device, stream)?;
            back.carry_out("heads for rows", lane, stream)
        }
    }
}

impl Ulysses {
    /// Rows of Q, K and V for heads, and heads of O and LSE for rows.
    fn moves(&self, setup: &Setup, tensors: &RankTensors) -> [Moves; 2] {
        let [q, k, v, o, lse] = [0, 1, 2, 3, 4].map(|tensor: usize| self.whole[tensor].address());
        let of_rows: fn(&Run) -> u64 = |run| run.rows;
        let of_heads: fn(&Run) -> u64 = |run| run.heads;
        let mut there = Moves::default();
        for (tensor, role, rows, heads) in [
            (Tensor::Q, TensorRole::Q, tensors.q, q),
            (Tensor::K, TensorRole::K, tensors.k, k),
            (Tensor::V, TensorRole::V, tensors.v, v),
        ] {
            let runs = |from, to| pieces(setup, role, (from, to));
            there.add(setup, tensor, runs, (rows, of_rows), (heads, of_heads));
        }
        let runs = |from, to| pieces(setup, TensorRole::O, (to, from));
        let mut back = Moves::default();
        back.add(setup, Tensor::O, runs, (o, of_heads), (tensors.o, of_rows));
        if let Some(rows) = tensors.lse {
            let runs = |from, to| lse_pieces(setup, (to, from));
            back.add(setup, Tensor::Lse, runs, (lse, of_heads), (rows, of_rows));
        }
        [there, back]
    }
}

/// What changes its place, on other ranks and on this one.
#[derive(Default)]
struct Moves {
    messages: Vec<Message>,
    copies: Vec<CopyRun>,
}

impl Moves {
    /// Brings a tensor from where ranks have it to where they want it; `runs` are what the first of two ranks has for the second, and each
    /// place is an address and where a run lies behind it.
    fn add(
        &mut self,
        setup: &Setup,
        tensor: Tensor,
        runs: impl Fn(u32, u32) -> Vec<Run>,
        (from, of_from): (u64, fn(&Run) -> u64),
        (to, of_to): (u64, fn(&Run) -> u64),
    ) {
        for peer in 0..setup.world {
            let to_here = runs(peer, setup.rank);
            if peer == setup.rank {
                self.copies.extend(to_here.iter().map(|run| run.copy(from + of_from(run), to + of_to(run))));
            } else {
                let to_peer = runs(setup.rank, peer);
                self.messages.extend(to_peer.iter().map(|run| run.send(peer, from + of_from(run))));
                let of = |run: &Run| Piece { owner: peer, tensor, offset: of_from(run) };
                self.messages.extend(to_here.iter().map(|run| run.receive(of(run), to + of_to(run))));
            }
        }
    }

    /// Lets what follows on the stream wait until all is in its place.
    ///
    /// # Safety
    /// As [`Lane::exchange`] and [`Lane::copy`].
    unsafe fn carry_out(
        &self,
        what: &'static str,
        lane: &mut Lane,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let ticket = lane.exchange(Step { what, index: 0 }, &self.messages, stream)?;
            lane.copy(&self.copies, stream)?;
            lane.join(ticket, stream)
        }
    }
}

/// What a rank computes.
///
/// # Errors
/// [`Error::Refused`] where heads cannot be exchanged for rows.
pub(crate) fn cut(setup: &Setup) -> Result<Cut, Error> {
    let (problem, sizes, world) = (&setup.problem, setup.problem.sizes(), setup.world);
    if setup.layout != Layout::Bhsd {
        return Err(setup.refused("heads of layout bshd do not lie together: take bhsd".to_owned()));
    }
    let shares = |heads: u32| heads.is_multiple_of(world);
    if !shares(sizes.heads_q) || !(shares(sizes.heads_kv) || world.is_multiple_of(sizes.heads_kv)) {
        let (q, kv) = (sizes.heads_q, sizes.heads_kv);
        let reason =
            format!("{q} heads of Q and {kv} of K and V do not divide; all-gather and ring take any");
        return Err(setup.refused(reason));
    }
    let own = |role| shape_of(problem, role).with_heads(heads_of(setup, role, setup.rank).len() as u32);
    let shapes = TensorRole::ALL.map(own);
    Ok(Cut {
        heads_q: shapes[0].heads,
        heads_kv: shapes[1].heads,
        seqlen_q: sizes.seqlen_q,
        seqlen_k: sizes.seqlen_k,
        mask: problem.mask(),
        shapes,
    })
}

/// Neighbouring bytes, as they lie in the tensor of the rank that has the rows, and of the rank that has the heads.
struct Run {
    rows: u64,
    heads: u64,
    bytes: u64,
}

impl Run {
    fn send(&self, to: u32, address: u64) -> Message {
        Message::Send { to, address, bytes: self.bytes, place: None }
    }

    fn receive(&self, of: Piece, address: u64) -> Message {
        Message::Receive { from: of.owner, address, bytes: self.bytes, of, place: None }
    }

    fn copy(&self, from: u64, to: u64) -> CopyRun {
        CopyRun { from, to, bytes: self.bytes }
    }
}

/// The heads of a tensor that a rank computes with.
fn heads_of(setup: &Setup, role: TensorRole, rank: u32) -> Range<u32> {
    let heads = setup.problem.extent(role).heads;
    if heads.is_multiple_of(setup.world) {
        let share = heads / setup.world;
        rank * share..(rank + 1) * share
    } else {
        // Several ranks share a head of K and V.
        let head = rank * heads / setup.world;
        head..head + 1
    }
}

/// What rank `rows` has of the heads of rank `heads`.
fn pieces(setup: &Setup, role: TensorRole, (rows, heads): (u32, u32)) -> Vec<Run> {
    let of_heads = heads_of(setup, role, heads);
    let local = setup.local_of(role, rows);
    let whole = shape_of(&setup.problem, role).with_heads(of_heads.len() as u32);
    let sharding = if matches!(role, TensorRole::Q | TensorRole::O) { &setup.of_q } else { &setup.of_k };
    let chunks = sharding.local_of(rows).into_iter().zip(sharding.rows_of(rows));
    chunks.flat_map(|(at, chunk)| paired((local, of_heads.clone(), at, 0), (whole, chunk))).collect()
}

/// The same of LSE, which lies part by part on the rank that has the rows.
fn lse_pieces(setup: &Setup, (rows, heads): (u32, u32)) -> Vec<Run> {
    let of_heads = heads_of(setup, TensorRole::Q, heads);
    let whole = setup.lse_shape(setup.of_q.length()).with_heads(of_heads.len() as u32);
    let chunks = setup.of_q.local_of(rows).into_iter().zip(setup.of_q.rows_of(rows));
    let of_chunk = |(at, chunk): (Range<u32>, Range<u32>)| {
        // Only this rank's own parts are known, and only its own places are used.
        let part = setup.parts.iter().find(|part| part.contains(&at.start)).filter(|_| rows == setup.rank);
        let part = part.cloned().unwrap_or(at.clone());
        let local = setup.lse_shape(part.end - part.start);
        let at = at.start - part.start..at.end - part.start;
        paired((local, of_heads.clone(), at, setup.lse_offset(&part)), (whole, chunk))
    };
    chunks.flat_map(of_chunk).collect()
}

fn paired(
    (local, heads, at, offset): (Shape, Range<u32>, Range<u32>, u64),
    (whole, chunk): (Shape, Range<u32>),
) -> Vec<Run> {
    let pairs = local.runs(heads, at).into_iter().zip(whole.runs(0..whole.heads, chunk));
    pairs.map(|((rows, bytes), (heads, _))| Run { rows: offset + rows, heads, bytes }).collect()
}
