//! Problems at random, as users have them: prompts, chunks of queries over a longer past, decoding; ragged lengths, shared heads; ragged batches.

mod ragged;

pub use ragged::RaggedTraits;

use crate::random_input::Random;
use crate::workload::Workload;
use ferroflash::error::Error;
use ferroflash::problem::{Layout, Problem, Sizes, TensorRole};
use kernels_gpu::row::{DENSE_HEAD_DIMS, Dtype};

/// What a problem is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// As many queries as keys.
    Prefill,
    /// Fewer queries than keys, and more than a few.
    Chunk,
    /// A query or a few over many keys.
    Decode,
}

/// The most operations of a problem: about 2 ms on an H200.
const FLOPS_MAX: f64 = 1.2e12;
/// The most bytes of Q, K, V and O.
const BYTES_MAX: u64 = 768 << 20;
/// The most elements of O, all of which are read back after every check.
const O_MAX: usize = 24 << 20;
const HEADS_KV: [u32; 10] = [1, 2, 2, 3, 4, 4, 8, 8, 16, 32];
const GROUPS: [u32; 10] = [1, 1, 1, 1, 2, 3, 4, 4, 7, 8];

impl Class {
    /// All three.
    pub const ALL: [Class; 3] = [Class::Prefill, Class::Chunk, Class::Decode];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Prefill => "prefill",
            Class::Chunk => "chunk",
            Class::Decode => "decode",
        }
    }

    /// The class of a problem.
    pub fn of(problem: &Problem) -> Class {
        let sizes = problem.sizes();
        match sizes.seqlen_q {
            queries if queries <= 16 && queries < sizes.seqlen_k => Class::Decode,
            queries if queries < sizes.seqlen_k => Class::Chunk,
            _ => Class::Prefill,
        }
    }
}

/// Which problems are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Dense ones and ragged batches, in turns.
    #[default]
    Both,
    /// What kernels for dense batches compute.
    Dense,
    /// What takes kernels for ragged batches.
    Ragged,
}

/// The first number of ragged batches: dense problems have those below.
const RAGGED_FIRST: u64 = 1 << 32;

impl Kind {
    /// The number of the problem that is drawn at this place of a sweep.
    pub fn number(self, place: u64) -> u64 {
        match self {
            Kind::Dense => place,
            Kind::Ragged => RAGGED_FIRST + place,
            Kind::Both => place % 2 * RAGGED_FIRST + place / 2,
        }
    }
}

/// What is drawn: a problem, and its sequences and operands.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The problem, with its sequences and operands.
    pub workload: Workload,
    /// What it has beside its sizes, where it is a ragged batch.
    pub ragged: Option<RaggedTraits>,
}

impl Draw {
    /// A problem that nobody says more of.
    pub fn of(problem: &Problem) -> Draw {
        Draw { workload: Workload::of(problem), ragged: None }
    }

    /// What number `index` of a seed is.
    ///
    /// # Errors
    /// None: every size is one that a [`Problem`] takes.
    pub fn new(seed: u64, index: u64) -> Result<Draw, Error> {
        let Some(index) = index.checked_sub(RAGGED_FIRST) else {
            return Ok(Draw::of(&problem(seed, index)?));
        };
        let (workload, traits) = ragged::ragged(seed, index)?;
        Ok(Draw { workload, ragged: Some(traits) })
    }
}

/// Dense problem number `index` of a seed; the classes take turns. Problems over the limits of time and memory are drawn again.
///
/// # Errors
/// None: every size is one that a [`Problem`] takes.
pub fn problem(seed: u64, index: u64) -> Result<Problem, Error> {
    let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ index);
    let class = Class::ALL[(index % 3) as usize];
    loop {
        let drawn = draw(&mut random, class)?;
        let workload = Workload::of(&drawn);
        let fits = workload.flops() <= FLOPS_MAX && workload.bytes_moved() <= BYTES_MAX;
        if fits && drawn.elements(TensorRole::O) <= O_MAX && drawn.len(TensorRole::K) as u64 <= BYTES_MAX {
            return Ok(drawn);
        }
    }
}

fn draw(random: &mut Random, class: Class) -> Result<Problem, Error> {
    let batch_max = if class == Class::Decode { 128 } else { 64 };
    let batch = random.log_uniform(1, batch_max);
    let heads_kv = random.one_of(&HEADS_KV);
    let heads_q = heads_kv * random.one_of(&GROUPS);
    let (seqlen_q, seqlen_k) = match class {
        Class::Prefill => {
            let seqlen = length(random, 16, 16384);
            (seqlen, seqlen)
        }
        Class::Chunk => {
            let keys = length(random, 64, 32768);
            (length(random, 17, 4096).min(keys - 1), keys)
        }
        Class::Decode => {
            let queries = if random.below(4) > 0 { 1 } else { 2 + random.below(7) };
            (queries, length(random, 32, 131_072))
        }
    };
    let head_dim = random.one_of(&DENSE_HEAD_DIMS);
    let dtype = random.one_of(&[Dtype::F16, Dtype::Bf16]);
    let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
    let problem = Problem::new(sizes, dtype)?;
    let layout = random.one_of(&[Layout::Bhsd, Layout::Bshd]);
    let causal = random.below(2) == 0;
    // Lengths of their own are for caches.
    let lengths = class != Class::Prefill && random.below(if class == Class::Decode { 4 } else { 8 }) == 0;
    Ok(problem.with_layout(layout).with_causal(causal).with_lengths(lengths))
}

/// A length, every magnitude as likely; one in four is a multiple of 64, as prompts that were padded have.
fn length(random: &mut Random, least: u32, most: u32) -> u32 {
    let length = random.log_uniform(least, most);
    if random.below(4) == 0 { length.next_multiple_of(64).min(most) } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::problem::{KeySequences, QuerySequences};

    #[test]
    fn a_seed_and_a_number_are_one_problem_and_all_kinds_come() {
        let drawn: Vec<Problem> = (0..600).map(|index| problem(7, index).expect("valid")).collect();
        assert_eq!(drawn[17], problem(7, 17).expect("valid"));
        assert_ne!(drawn[17], problem(8, 17).expect("valid"));
        let share = |is: &dyn Fn(&Problem) -> bool| drawn.iter().filter(|problem| is(problem)).count();
        for class in Class::ALL {
            let of_class = share(&|problem| Class::of(problem) == class);
            assert!((150..=250).contains(&of_class), "{class:?}: {of_class}");
        }
        for head_dim in DENSE_HEAD_DIMS {
            assert!(share(&|problem| problem.sizes().head_dim == head_dim) > 60);
        }
        assert!(share(&|problem| problem.causal()) > 200);
        assert!(share(&|problem| problem.has_lengths()) > 30);
        assert!(share(&|problem| problem.group() > 1) > 200);
        assert!(share(&|problem| !problem.sizes().seqlen_k.is_multiple_of(64)) > 300);
        for problem in &drawn {
            let workload = Workload::of(problem);
            assert!(workload.flops() <= FLOPS_MAX && workload.bytes_moved() <= BYTES_MAX);
        }
    }

    #[test]
    fn ragged_batches_of_all_kinds_come_and_every_one_is_ragged() {
        let drawn: Vec<Draw> =
            (0..400).map(|place| Draw::new(7, Kind::Ragged.number(place)).expect("valid")).collect();
        let share =
            |is: &dyn Fn(&Problem) -> bool| drawn.iter().filter(|draw| is(draw.workload.problem())).count();
        assert_eq!(share(&Problem::is_ragged), drawn.len());
        let is_packed = |problem: &Problem| problem.queries() != QuerySequences::Batch;
        let is_paged = |problem: &Problem| matches!(problem.keys(), KeySequences::Paged(_));
        assert!(share(&is_packed) > 100 && share(&is_paged) > 150);
        assert!(share(&|problem| is_packed(problem) && is_paged(problem)) > 30);
        assert!(share(&|problem| !problem.score_kind().is_plain()) > 15);
        assert!(share(&|problem| problem.mask().window_left.is_some()) > 30);
        assert!(share(&Problem::has_sinks) > 15);
        for width in [32, 64, 80, 96, 128, 192, 256, 512] {
            assert!(share(&|problem| problem.sizes().head_dim == width) > 8, "{width}");
        }
        assert_eq!(Draw::new(7, Kind::Both.number(5)).expect("valid").ragged, drawn[2].ragged);
        assert_eq!(Draw::new(7, Kind::Both.number(4)).expect("valid").ragged, None);
    }
}
