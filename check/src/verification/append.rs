//! Appending to caches, drawn at random: contiguous and paged caches of any strides, rotations, slots, sequences without new tokens, and
//! places that the cache does not have. Every tensor that is written is NaN before, and lies between guard bands.

use super::guarded::Guarded;
use crate::random_input::Random;
use crate::reference::{AppendInputs, Appended, Expected, appended};
use crate::workload::starts;
use ferroflash::append::{AppendRole, AppendTensors, KvAppend, NewTokens, Rotary};
use ferroflash::error::Error;
use ferroflash::problem::{
    BlockTable, ElementStrides, Extent, KeySequences, Layout, Mask, Pages, Problem, QuerySequences, Sizes,
    TensorRole,
};
use ferroflash::rounding::narrow;
use ferroflash::{Attention, StreamHandle};
use kernels_gpu::row::Dtype;

/// Each element of the cache before the call: NaN in every type.
const BEFORE: u16 = 0xffff;

/// A call with its inputs and what is right after it.
pub struct AppendCase {
    append: KvAppend,
    inputs: AppendInputs,
    /// Whether the rotated Q takes Q's place.
    in_place: bool,
    right: Appended,
}

impl AppendCase {
    /// Draws a case.
    ///
    /// # Errors
    /// Where the call cannot be: a fault of what is drawn.
    pub fn draw(dtype: Dtype, seed: u64) -> Result<AppendCase, Error> {
        let mut random = Random::new(seed);
        let (append, lengths) = draw_append(dtype, &mut random)?;
        let in_place = append.rotates_queries()
            && random.below(2) == 0
            && append.strides(AppendRole::RotatedQ) == append.problem().strides(TensorRole::Q);
        let inputs = draw_inputs(&append, lengths, &mut random);
        let right = appended(&append, &inputs);
        Ok(AppendCase { append, inputs, in_place, right })
    }

    /// Puts wrong numbers where the device reads lengths, starts and slots. What is right then is not known: only that nothing outside of
    /// the tensors is read or written.
    pub fn spoil(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        let far = [u32::MAX, u32::MAX / 2, 1 << 31, 1000, 0, 3];
        let inputs = &mut self.inputs;
        let lists = [
            &mut inputs.seqlens_k,
            &mut inputs.rotary_starts,
            &mut inputs.cu_seqlens_new,
            &mut inputs.cu_seqlens_q,
        ];
        for list in lists.into_iter().flatten() {
            list.iter_mut().for_each(|value| *value = random.one_of(&far));
        }
        inputs.page_indptr.iter_mut().flatten().for_each(|start| *start = u32::MAX);
        inputs
            .slots
            .iter_mut()
            .flatten()
            .for_each(|slot| *slot = random.one_of(&[i64::MIN, i64::MAX, 1 << 31]));
    }

    /// How many elements of the cache are written.
    pub fn written(&self) -> usize {
        self.right.k.iter().filter(|expected| **expected != Expected::Untouched).count()
    }

    /// Appends on a device and judges all that was there: what is wrong first, in words.
    ///
    /// # Errors
    /// [`Error::GuardBand`], and whatever keeps it from running.
    pub fn run(&self, attention: &Attention) -> Result<Result<(), String>, Error> {
        let AppendCase { append, inputs, in_place, right } = self;
        let (device, problem) = (attention.device(), append.problem());
        let table = inputs.block_table.as_deref();
        let slots = inputs.slots.as_ref().map(|slots| {
            let parts = |slot: &i64| [*slot as u32, (*slot >> 32) as u32];
            slots.iter().flat_map(parts).collect::<Vec<u32>>()
        });
        let halves = |elements: &[u16]| Guarded::of(device, elements);
        let words = |elements: Option<&[u32]>| elements.map(|words| Guarded::of(device, words)).transpose();
        let (new_k, new_v) = (halves(&inputs.new_k)?, halves(&inputs.new_v)?);
        let (k, v) =
            (Guarded::new::<u16>(device, problem.k_len())?, Guarded::new::<u16>(device, problem.v_len())?);
        let rotates_q = append.rotates_queries();
        let q = rotates_q.then(|| halves(&inputs.q)).transpose()?;
        let apart = || Guarded::new::<u16>(device, append.len(AppendRole::RotatedQ));
        let rotated_q = (rotates_q && !in_place).then(apart).transpose()?;
        let rotates = append.rotary().is_some();
        let [cos, sin] = [&inputs.cos, &inputs.sin].map(|table| rotates.then(|| halves(table)).transpose());
        let (cos, sin) = (cos?, sin?);
        let [seqlens_k, starts, new_starts, q_starts, indptr] = [
            &inputs.seqlens_k,
            &inputs.rotary_starts,
            &inputs.cu_seqlens_new,
            &inputs.cu_seqlens_q,
            &inputs.page_indptr,
        ]
        .map(|values| words(values.as_deref()));
        let (seqlens_k, starts, new_starts) = (seqlens_k?, starts?, new_starts?);
        let (q_starts, indptr, slots) = (q_starts?, indptr?, words(slots.as_deref())?);
        let table = table.map(|table| Guarded::of(device, table)).transpose()?;
        let batch = problem.sizes().batch as usize;
        let lengths_after = seqlens_k.as_ref().map(|_| Guarded::new::<u32>(device, batch)).transpose()?;
        let at = |guarded: &Option<Guarded>| guarded.as_ref().map(Guarded::address);
        let tensors = AppendTensors {
            new_k: new_k.address(),
            new_v: new_v.address(),
            k: k.address(),
            v: v.address(),
            q: at(&q),
            rotated_q: at(&rotated_q).or(at(&q)),
            cos: at(&cos),
            sin: at(&sin),
            seqlens_k: at(&seqlens_k),
            lengths_after: at(&lengths_after),
            rotary_starts: at(&starts),
            cu_seqlens_new: at(&new_starts),
            cu_seqlens_q: at(&q_starts),
            block_table: at(&table),
            page_indptr: at(&indptr),
            slots: at(&slots),
        };
        // SAFETY: every buffer is on this device and as long as the call says; they are read below, which waits, and dropped then.
        unsafe { attention.append(append, &tensors, StreamHandle::DEFAULT)? };
        let dtype = problem.dtype();
        let judged = |name: &str, found: Vec<u16>, right: &[Expected], before: &[u16]| {
            let before = |at: usize| before.get(at).copied().unwrap_or(BEFORE);
            let wrong = (0..found.len()).find(|&at| !right[at].is_met(dtype, before(at), found[at]));
            wrong.map_or(Ok(()), |at| {
                let (bits, expected) = (found[at], right[at]);
                Err(format!("element {at} of {name} is {bits:#06x}, right is {expected:?}, in {self}"))
            })
        };
        let entry = "the append kernel";
        let (found_k, found_v) = (k.read(entry, "K", 0_u16)?, v.read(entry, "V", 0_u16)?);
        let found_q = match (&rotated_q, &q) {
            (Some(apart), _) => Some((apart.read(entry, "rotated Q", 0_u16)?, Vec::new())),
            (None, Some(q)) => Some((q.read(entry, "Q", 0_u16)?, inputs.q.clone())),
            (None, None) => None,
        };
        let lengths = lengths_after.map(|lengths| lengths.read(entry, "lengths_after", 0_u32)).transpose()?;
        Ok((|| {
            judged("K", found_k, &right.k, &[])?;
            judged("V", found_v, &right.v, &[])?;
            if let Some((found, before)) = found_q {
                judged("rotated Q", found, &right.rotated_q, &before)?;
            }
            let lengths = lengths.unwrap_or_default();
            if lengths == right.lengths {
                Ok(())
            } else {
                Err(format!("the lengths are {lengths:?}, right are {:?}, in {self}", right.lengths))
            }
        })())
    }
}

impl AppendCase {
    /// The call.
    pub fn append(&self) -> &KvAppend {
        &self.append
    }
}

impl std::fmt::Display for AppendCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = self.append.problem();
        let Sizes { batch, heads_q, heads_kv, head_dim, .. } = problem.sizes();
        write!(f, "B{batch} H{heads_q}/{heads_kv} D{head_dim}/{} ", problem.head_dim_v())?;
        write!(f, "{:?}, {:?}, ", problem.keys(), self.append.new_tokens())?;
        write!(f, "{:?}, Q {:?}, in place {}, ", self.append.rotary(), problem.queries(), self.in_place)?;
        write!(f, "lengths {:?}, slots {:?}", self.inputs.seqlens_k, self.inputs.slots)
    }
}

/// New tokens and queries of each sequence.
struct Lengths {
    new: Vec<u32>,
    q: Vec<u32>,
}

fn draw_append(dtype: Dtype, random: &mut Random) -> Result<(KvAppend, Lengths), Error> {
    let batch = random.one_of(&[1, 2, 3, 5]);
    let (heads_q, heads_kv) = random.one_of(&[(1, 1), (2, 2), (4, 2), (6, 1), (5, 5)]);
    let each = |random: &mut Random, lengths: &[u32]| -> Vec<u32> {
        (0..batch).map(|_| random.one_of(lengths)).collect()
    };
    let lengths = Lengths { new: each(random, &[0, 0, 1, 1, 2, 7]), q: each(random, &[0, 1, 1, 3, 6]) };
    let most = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0).max(1);
    let sizes = Sizes {
        batch,
        heads_q,
        heads_kv,
        seqlen_q: most(&lengths.q),
        seqlen_k: random.one_of(&[1, 7, 20, 65]),
        head_dim: 8 * (1 + random.below(32)),
    };
    let mut problem = Problem::new(sizes, dtype)?;
    if random.below(4) == 0 {
        problem = problem.with_head_dim_v(8 * (1 + random.below(32)))?;
    }
    if random.below(2) == 0 {
        problem = problem.with_packed_queries((lengths.q.iter().sum::<u32>() + random.below(3)).max(1))?;
    }
    let page = random.one_of(&[1, 3, 8, 16, 64]);
    let needed = sizes.seqlen_k.div_ceil(page);
    let table = match random.below(3) {
        0 => None,
        1 => Some(BlockTable::Rows { entries: needed + random.below(2) }),
        _ => Some(BlockTable::Csr { entries: (needed * batch).max(1) }),
    };
    if let Some(table) = table {
        problem = problem.with_pages(Pages { page, pages: needed * batch + random.below(3), table })?;
    }
    if random.below(2) == 0 {
        problem = problem.with_layout(Layout::Bhsd);
    }
    problem =
        problem.with_mask(random.one_of(&[Mask::FULL, Mask::CAUSAL, Mask::window(Some(3), Some(2))]))?;
    for role in [TensorRole::K, TensorRole::V, TensorRole::Q] {
        if random.below(3) == 0 {
            problem = problem.with_strides(role, gapped(problem.strides(role), random))?;
        }
    }
    let new = match random.below(2) {
        0 => NewTokens::Each(random.one_of(&[1, 1, 2, 5])),
        _ => NewTokens::Packed((lengths.new.iter().sum::<u32>() + random.below(3)).max(1)),
    };
    let mut append = KvAppend::new(&problem, new)?;
    for role in [AppendRole::NewK, AppendRole::NewV, AppendRole::RotatedQ] {
        if random.below(4) == 0 {
            append = append.with_strides(role, gapped(append.strides(role), random))?;
        }
    }
    let widths = sizes.head_dim / 16;
    if widths > 0 && random.below(4) > 0 {
        let dim = 16 * if random.below(2) == 0 { widths } else { 1 + random.below(widths) };
        let interleaved = random.below(2) == 0;
        append = append.with_rotary(Rotary { dim, positions: sizes.seqlen_k + 20, interleaved })?;
        if random.below(3) > 0 {
            append = append.with_rotated_queries()?;
        }
        if random.below(4) == 0 {
            append = append.with_rotary_starts();
        }
    }
    if random.below(4) == 0 {
        append = append.with_slots();
    }
    Ok((append, lengths))
}

/// Strides that leave gaps between what was side by side.
fn gapped(strides: ElementStrides, random: &mut Random) -> ElementStrides {
    let factor = i64::from(random.one_of(&[2_u32, 3]));
    let ElementStrides { batch, head, row, dim } = strides;
    ElementStrides { batch: batch * factor, head: head * factor, row: row * factor, dim }
}

fn draw_inputs(append: &KvAppend, lengths: Lengths, random: &mut Random) -> AppendInputs {
    let problem = append.problem();
    let (dtype, sizes) = (problem.dtype(), *problem.sizes());
    let tensor = |length: usize, random: &mut Random| -> Vec<u16> {
        (0..length).map(|_| narrow(dtype, f64::from(random.below(4001)) / 1000.0 - 2.0)).collect()
    };
    let (new_k, new_v) =
        (tensor(append.len(AppendRole::NewK), random), tensor(append.len(AppendRole::NewV), random));
    let q = tensor(problem.q_len(), random);
    let (cos, sin) = (tensor(append.table_len(), random), tensor(append.table_len(), random));
    // Some sequences are full already, or nearly.
    let mut before = |_| random.below(sizes.seqlen_k + 3).min(sizes.seqlen_k);
    let seqlens_k: Vec<u32> = (0..sizes.batch).map(&mut before).collect();
    let rotary_starts: Vec<u32> = (0..sizes.batch).map(&mut before).collect();
    let mut inputs = AppendInputs { new_k, new_v, q, cos, sin, ..AppendInputs::default() };
    if let NewTokens::Packed(_) = append.new_tokens() {
        inputs.cu_seqlens_new = Some(starts(&lengths.new));
    }
    if append.rotates_queries() && matches!(problem.queries(), QuerySequences::Packed { .. }) {
        inputs.cu_seqlens_q = Some(starts(&lengths.q));
    }
    if append.has_rotary_starts() {
        inputs.rotary_starts = Some(rotary_starts);
    }
    let Extent { batch: pages, rows: page, .. } = problem.extent(TensorRole::K);
    if append.has_slots() {
        let Extent { batch, rows, .. } = append.extent(AppendRole::NewK);
        let mut free: Vec<u32> = (0..pages * page).collect();
        let mut slot = |_| match random.below(6) {
            0 => -1,
            1 => i64::from(random.one_of(&[pages * page, u32::MAX])) << random.one_of(&[0, 20]),
            _ if free.is_empty() => -7,
            _ => free.swap_remove(random.below(free.len() as u32) as usize).into(),
        };
        inputs.slots = Some((0..batch * rows).map(&mut slot).collect());
    } else if let KeySequences::Paged(Pages { table, .. }) = problem.keys() {
        draw_table(&mut inputs, (sizes, page, pages), table, random);
    }
    let needs_lengths = !append.has_slots() || append.rotary().is_some() && !append.has_rotary_starts();
    if needs_lengths || random.below(2) == 0 {
        inputs.seqlens_k = Some(seqlens_k);
    }
    inputs
}

/// Gives each sequence pages in any order, some of which are not there.
fn draw_table(
    inputs: &mut AppendInputs,
    (sizes, page, pages): (Sizes, u32, u32),
    table: BlockTable,
    random: &mut Random,
) {
    let mut free: Vec<i32> = (0..pages.cast_signed()).collect();
    let (mut rows, mut indptr) = (Vec::new(), vec![0]);
    for _ in 0..sizes.batch {
        let needed = sizes.seqlen_k.div_ceil(page);
        for _ in 0..needed {
            let number = free.swap_remove(random.below(free.len() as u32) as usize);
            rows.push(if random.below(8) == 0 { random.one_of(&[-1, pages.cast_signed()]) } else { number });
        }
        if let BlockTable::Rows { entries } = table {
            rows.resize(rows.len() + (entries - needed) as usize, -9);
        }
        indptr.push(rows.len() as u32);
    }
    inputs.block_table = Some(rows);
    if let BlockTable::Csr { .. } = table {
        inputs.page_indptr = Some(indptr);
    }
}
