//! Ragged batches at random, as servers and trainings have them: packed sequences, caches in pages, windows, sinks, scores.

use super::{BYTES_MAX, FLOPS_MAX, GROUPS, HEADS_KV, O_MAX, length};
use crate::random_input::Random;
use crate::workload::Workload;
use ferroflash::error::Error;
use ferroflash::problem::{BiasShape, Dropout, Layout, Mask, Problem, Score, Sizes, TensorRole};
use kernels_gpu::row::Dtype;
use serde::{Deserialize, Serialize};

/// Keys of a page that caches have.
const PAGES: [u32; 8] = [16, 16, 16, 64, 64, 1, 32, 128];
/// Widths of heads, the usual ones more often.
const HEAD_DIMS: [u32; 14] = [64, 64, 64, 128, 128, 128, 128, 256, 256, 96, 80, 32, 192, 512];
/// Widths that kernels of scores have.
const SCORE_HEAD_DIMS: [u32; 6] = [64, 64, 128, 128, 96, 256];
/// The most elements of a bias.
const BIAS_MAX: u64 = 1 << 27;

/// What a ragged batch has beside the sizes of a dense one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RaggedTraits {
    /// Queries of each sequence, where they are packed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    seqlens_q: Vec<u32>,
    /// Keys of each sequence, where they are packed or lie in pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    seqlens_k: Vec<u32>,
    /// Keys of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page: Option<u32>,
    /// Which keys a query sees.
    mask: Mask,
    /// What touches every score.
    #[serde(default)]
    score: DrawnScore,
    /// Whether query heads have learned scores of no key.
    #[serde(default)]
    sinks: bool,
    /// Width of V and O, where it is not that of Q and K.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head_dim_v: Option<u32>,
}

/// What touches every score of a batch that is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DrawnScore {
    #[default]
    Plain,
    Softcap(f32),
    Alibi,
    /// Of each head and query.
    Bias,
    Dropout(f32),
}

impl RaggedTraits {
    /// The problem of these sizes, with its sequences and operands.
    ///
    /// # Errors
    /// Where they are none.
    pub(crate) fn workload(&self, sizes: Sizes, dtype: Dtype, layout: Layout) -> Result<Workload, Error> {
        let mut problem = Problem::new(sizes, dtype)?.with_mask(self.mask)?.with_sinks(self.sinks);
        if let Some(width) = self.head_dim_v {
            problem = problem.with_head_dim_v(width)?;
        }
        problem = match self.score {
            DrawnScore::Plain => problem,
            DrawnScore::Softcap(cap) => problem.with_score(Score::Softcap(cap))?,
            DrawnScore::Alibi => problem.with_score(Score::Alibi { per_batch: false })?,
            DrawnScore::Bias => {
                let shape = BiasShape { batch: false, heads: true, queries: true };
                problem.with_score(Score::Bias(shape))?
            }
            DrawnScore::Dropout(p) => problem.with_dropout(Dropout { p, seed: 7, offset: 0 })?,
        };
        let total = |lengths: &[u32]| lengths.iter().sum::<u32>().max(1);
        if !self.seqlens_q.is_empty() {
            problem = problem.with_packed_queries(total(&self.seqlens_q))?;
        }
        let all = |most: u32| vec![most; sizes.batch as usize];
        let or_all = |lengths: &[u32], most| if lengths.is_empty() { all(most) } else { lengths.to_vec() };
        let lengths = [or_all(&self.seqlens_q, sizes.seqlen_q), or_all(&self.seqlens_k, sizes.seqlen_k)];
        if let Some(page) = self.page {
            problem = problem.with_pages(Workload::pool(&problem, page, false, &lengths[1]))?;
            problem = problem.with_lengths(true);
        } else if !self.seqlens_k.is_empty() {
            problem = problem.with_packed_keys(total(&self.seqlens_k))?;
        }
        problem = problem.with_layout(layout);
        Ok(Workload::with_sequences(&problem, lengths, 1))
    }

    /// Whether K and V lie in pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.page.is_some()
    }

    /// What regret calls a group of such problems.
    pub(crate) fn group(&self) -> &'static str {
        match self {
            RaggedTraits { page: Some(_), .. } => RaggedTraits::GROUPS[1],
            RaggedTraits { seqlens_q, .. } if !seqlens_q.is_empty() => RaggedTraits::GROUPS[0],
            _ => RaggedTraits::GROUPS[2],
        }
    }

    /// All groups.
    pub(crate) const GROUPS: [&str; 3] = ["packed", "pages", "scores"];
}

/// Ragged batch number `index` of a seed, and what it has beside its sizes. Batches over the limits of time and
/// memory are drawn again.
pub(super) fn ragged(seed: u64, index: u64) -> Result<(Workload, RaggedTraits), Error> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index);
    loop {
        let (sizes, dtype, traits) = draw(&mut random, index % 10);
        let pairs = pairs(&sizes, &traits);
        let flops = 4.0 * f64::from(sizes.heads_q) * f64::from(sizes.head_dim) * pairs;
        if flops > FLOPS_MAX {
            continue;
        }
        let layout = if traits.seqlens_q.is_empty() && traits.page.is_none() {
            random.one_of(&[Layout::Bhsd, Layout::Bshd])
        } else {
            Layout::Bshd
        };
        let bias = u64::from(sizes.heads_q) * u64::from(sizes.seqlen_q) * u64::from(sizes.seqlen_k);
        if traits.score == DrawnScore::Bias && bias > BIAS_MAX {
            continue;
        }
        let workload = traits.workload(sizes, dtype, layout)?;
        let problem = workload.problem();
        let elements = |role| problem.elements(role) as u64;
        let bytes = 2 * (elements(TensorRole::Q) + elements(TensorRole::K) + elements(TensorRole::V));
        if bytes <= BYTES_MAX && problem.elements(TensorRole::O) <= O_MAX {
            return Ok((workload, traits));
        }
    }
}

/// Pairs of a query and a key that it sees, about.
fn pairs(sizes: &Sizes, traits: &RaggedTraits) -> f64 {
    let window = traits.mask.window_left.map_or(f64::INFINITY, |keys| f64::from(keys) + 1.0);
    let of = |at: usize| {
        let or = |lengths: &[u32], all: u32| f64::from(lengths.get(at).copied().unwrap_or(all));
        or(&traits.seqlens_q, sizes.seqlen_q) * or(&traits.seqlens_k, sizes.seqlen_k).min(window)
    };
    (0..sizes.batch as usize).map(of).sum()
}

fn draw(random: &mut Random, kind: u64) -> (Sizes, Dtype, RaggedTraits) {
    let dtype = random.one_of(&[Dtype::F16, Dtype::Bf16]);
    let heads_kv = random.one_of(&HEADS_KV);
    let heads_q = heads_kv * random.one_of(&GROUPS);
    let mut head_dim = random.one_of(&HEAD_DIMS);
    let mut traits = RaggedTraits { mask: Mask::CAUSAL, ..RaggedTraits::default() };
    let (batch, seqlen_q, seqlen_k);
    match kind {
        // Prompts or documents of lengths of their own, one in four times of one length; for one in three without a mask.
        0 | 1 => {
            batch = random.log_uniform(1, 48);
            let most = length(random, 16, 8192);
            let is_equal = random.below(4) == 0;
            let least = (most / 16).max(1);
            let of = |random: &mut Random| if is_equal { most } else { random.log_uniform(least, most) };
            traits.seqlens_q = (0..batch).map(|_| of(random)).collect();
            traits.seqlens_k = traits.seqlens_q.clone();
            if random.below(3) == 0 {
                traits.mask = Mask::FULL;
                if random.below(3) == 0 {
                    traits.seqlens_k = (0..batch).map(|_| random.log_uniform(least, most)).collect();
                }
            }
            seqlen_q = longest(&traits.seqlens_q);
            seqlen_k = longest(&traits.seqlens_k);
        }
        // Decoding from pages, with drafts for one in four.
        2 | 3 => {
            batch = random.log_uniform(1, 128);
            seqlen_q = if random.below(4) > 0 { 1 } else { 2 + random.below(7) };
            seqlen_k = length(random, 32, 65_536).max(seqlen_q);
            paged(random, &mut traits, batch, seqlen_q, seqlen_k);
        }
        // Prompts, whole or in parts, of sequences in pages: all with as many queries, or among others that decode.
        4 | 5 => {
            batch = random.log_uniform(1, 48);
            seqlen_k = length(random, 64, 32_768);
            seqlen_q = length(random, 16, 4096).min(seqlen_k);
            if kind == 5 {
                let few = 1 + random.below(3);
                let of = |random: &mut Random, at| {
                    if at == 0 {
                        seqlen_q
                    } else if at < few {
                        random.log_uniform(1, seqlen_q)
                    } else {
                        1
                    }
                };
                traits.seqlens_q = (0..batch).map(|at| of(random, at)).collect();
            }
            paged(random, &mut traits, batch, seqlen_q, seqlen_k);
        }
        // Windows, with sinks for one in three; decoding for one in four.
        6 => {
            batch = random.log_uniform(1, 16);
            seqlen_k = length(random, 128, 16_384);
            traits.mask = Mask::window(Some(random.log_uniform(16, seqlen_k)), Some(0));
            traits.sinks = random.below(3) == 0;
            seqlen_q = if random.below(4) == 0 { 1 } else { seqlen_k };
            if seqlen_q == 1 {
                paged(random, &mut traits, batch, seqlen_q, seqlen_k);
            }
        }
        // Scores other than plain ones, trees of drafts, values of another width.
        _ => {
            head_dim = random.one_of(&SCORE_HEAD_DIMS);
            batch = random.log_uniform(1, 32);
            seqlen_k = length(random, 64, 8192);
            seqlen_q = match random.below(3) {
                0 => 1 + random.below(4),
                1 => random.log_uniform(2, 512.min(seqlen_k)),
                _ => seqlen_k,
            };
            match random.below(7) {
                0 => traits.score = DrawnScore::Softcap(30.0),
                1 => traits.score = DrawnScore::Alibi,
                2 => traits.score = DrawnScore::Bias,
                3 if matches!(head_dim, 64 | 128) => traits.score = DrawnScore::Dropout(0.1),
                4 => traits.head_dim_v = Some(head_dim / 2),
                5 => traits.sinks = true,
                _ if seqlen_q <= 512 && head_dim != 96 => traits.mask = Mask::CAUSAL.with_tree(seqlen_q),
                _ => traits.sinks = true,
            }
        }
    }
    (Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim }, dtype, traits)
}

fn longest(lengths: &[u32]) -> u32 {
    lengths.iter().copied().max().unwrap_or(1)
}

/// Pages, and lengths from those of the queries up to all keys.
fn paged(random: &mut Random, traits: &mut RaggedTraits, batch: u32, seqlen_q: u32, seqlen_k: u32) {
    traits.page = Some(random.one_of(&PAGES));
    let is_full = random.below(4) == 0;
    let queries = |at: u32| traits.seqlens_q.get(at as usize).copied().unwrap_or(seqlen_q);
    let of = |random: &mut Random, at| {
        let least = queries(at).max(1);
        if is_full { seqlen_k } else { least + random.below(seqlen_k - least + 1) }
    };
    traits.seqlens_k = (0..batch).map(|at| of(random, at)).collect();
}
