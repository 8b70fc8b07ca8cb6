//! How long a plan takes: for random problems of four classes on an H100, with all that is decided by the problem and nothing kept. Medians of
//! several rounds, in nanoseconds.

use ferroflash::{DeviceModel, Dtype, PlanOptions, Planner, Problem, Sizes};
use std::hint::black_box;
use std::time::Instant;

/// Problems of a class.
const PROBLEMS: usize = 400;
const ROUNDS: usize = 21;

/// Numbers below a bound, the same ones every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    /// From `least` to `most`, each power of two as likely.
    fn length(&mut self, least: u32, most: u32) -> u32 {
        let octaves = (most / least).ilog2();
        let low = least << self.below(octaves.max(1));
        low + self.below(low)
    }

    fn problem(&mut self, class: &str) -> Problem {
        let (heads_kv, group) = (1 << self.below(5), 1 << self.below(4));
        let keys = self.length(64, 16384);
        let queries = match class {
            "prefill" => keys,
            "chunks" => 1 + self.below(keys),
            _ => 1,
        };
        let head_dim = [32, 64, 96, 128, 256][self.below(5) as usize];
        let batch = if class == "prefill" { 1 + self.below(4) } else { 1 + self.below(64) };
        let sizes =
            Sizes { batch, heads_q: heads_kv * group, heads_kv, seqlen_q: queries, seqlen_k: keys, head_dim };
        let dtype = [Dtype::F16, Dtype::Bf16][self.below(2) as usize];
        let problem = Problem::new(sizes, dtype).expect("sizes of a problem");
        problem.with_causal(class != "decoding" && self.below(2) == 0).with_lengths(class == "lengths")
    }
}

fn main() {
    let planner = Planner::of_table(&DeviceModel::find("h100").expect("a model").info());
    // `cargo bench` passes `--bench`; a word is a class.
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let classes = ["prefill", "chunks", "decoding", "lengths"];
    for class in classes.into_iter().filter(|&class| only.as_ref().is_none_or(|only| only == class)) {
        let mut draw = Draw(7);
        let problems: Vec<Problem> = (0..PROBLEMS).map(|_| draw.problem(class)).collect();
        let options = PlanOptions::new();
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                for problem in &problems {
                    black_box(planner.plan(black_box(problem), &options).expect("planned"));
                }
                start.elapsed().as_secs_f64() * 1e9 / PROBLEMS as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{class:<10}{:>8.0} ns a plan", times[ROUNDS / 2]);
    }
}
