//! The options of problems that are more than a dense batch: packed and paged sequences, masks, sinks, scores.

use crate::failure::Failure;
use check::random_input;
use check::workload::Workload;
use clap::ValueEnum;
use ferroflash::problem::{BiasShape, Dropout, Score};
use ferroflash::{Layout, Mask, Problem};

/// What a problem is beside its shape.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RaggedArgs {
    #[command(flatten)]
    mask: MaskArgs,

    #[command(flatten)]
    sequences: SequenceArgs,

    /// Order of the dimensions: bhsd is [batch, heads, seqlen, head_dim], in pages HND; bshd there NHD [default: bhsd; of packed and paged
    /// sequences bshd]
    #[arg(long)]
    layout: Option<LayoutName>,
}

/// Which keys a query sees beside the causal mask, and a function of every score that needs no tensor.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Masks and scores")]
pub(crate) struct MaskArgs {
    /// Keys before and behind its own that a query sees; - for all. (A sliding_window of W tokens is W−1,0.)
    #[arg(long, value_name = "LEFT,RIGHT", value_parser = parse_window, allow_hyphen_values = true, conflicts_with = "causal")]
    window: Option<Window>,

    /// Keys of a chunk: no query sees a key outside of its own key's chunk
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    chunk: Option<u32>,

    /// Keys at the start that all queries see (prefix-LM)
    #[arg(long, value_name = "KEYS", default_value_t = 0, hide_default_value = true)]
    prefix: u32,

    /// Keys at the start that windows and chunks do not hide (StreamingLLM)
    #[arg(long, value_name = "KEYS", default_value_t = 0, hide_default_value = true)]
    sink_tokens: u32,

    /// Of so many last keys, a query sees only those whose bit it has, as in a tree of drafts
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    tree: Option<u32>,

    /// cap · tanh(score / cap)
    #[arg(long, value_name = "CAP", allow_negative_numbers = true, conflicts_with = "tree")]
    softcap: Option<f32>,

    /// Leave out each weight of the softmax with this probability, and multiply the others with 1 / (1 − P)
    #[arg(long, value_name = "P", allow_negative_numbers = true, conflicts_with_all = ["softcap", "tree"])]
    dropout: Option<f32>,

    /// Which weights --dropout leaves out
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, requires = "dropout")]
    dropout_seed: u64,
}

/// Sequences of lengths of their own, and operands whose elements are drawn.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Ragged batches and operands")]
pub(crate) struct SequenceArgs {
    /// A learned score for each query head, which counts in the softmax and has no value
    #[arg(long)]
    sinks: bool,

    /// A penalty in proportion to the distance of a key, with a slope for each query head
    #[arg(long, conflicts_with_all = ["bias", "softcap", "dropout"])]
    alibi: bool,

    /// A bias on every score, with sizes of its own in these of batch, heads and queries: any of the letters bhq, or 1 for none
    #[arg(long, value_name = "bhq", value_parser = parse_bias, conflicts_with_all = ["softcap", "dropout"])]
    bias: Option<BiasShape>,

    /// Width of V and O, where it is not that of Q and K
    #[arg(long, value_name = "N")]
    head_dim_v: Option<u32>,

    /// Sequences one after the other: queries, and keys too where they do not lie in pages, of lengths from 1 to SQ and SKV
    #[arg(long, conflicts_with = "seqlens_q")]
    packed: bool,

    /// Queries of each sequence, joined by commas: they then lie one after the other
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    seqlens_q: Vec<u32>,

    /// Keys of each sequence, joined by commas [default: those of --seqlens-q where SQ is SKV, else SKV]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', conflicts_with = "lengths")]
    seqlens_k: Vec<u32>,

    /// K and V in pages of so many keys, which lie in any order
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    page: Option<u32>,

    /// One list of pages for all sequences, not a row of the block table for each
    #[arg(long, requires = "page")]
    csr: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutName {
    Bhsd,
    Bshd,
}

/// Keys on both sides; all where there is no number.
type Window = (Option<u32>, Option<u32>);

/// Why an option of this kind cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RaggedError {
    #[error("{text:?} is no window: two numbers of keys joined by a comma, either of them - for all")]
    Window { text: String },
    #[error("{text:?} names no sizes of a bias: any of the letters b, h and q, each once, or 1")]
    Bias { text: String },
}

fn parse_window(text: &str) -> Result<Window, RaggedError> {
    let refused = || RaggedError::Window { text: text.to_owned() };
    let side = |side: &str| match side.trim() {
        "-" => Ok(None),
        keys => keys.parse().map(Some).map_err(|_| refused()),
    };
    let (left, right) = text.split_once(',').ok_or_else(refused)?;
    Ok((side(left)?, side(right)?))
}

fn parse_bias(text: &str) -> Result<BiasShape, RaggedError> {
    let mut shape = BiasShape::default();
    for letter in text.chars().filter(|_| text != "1") {
        let has = match letter {
            'b' => &mut shape.batch,
            'h' => &mut shape.heads,
            'q' => &mut shape.queries,
            _ => return Err(RaggedError::Bias { text: text.to_owned() }),
        };
        if std::mem::replace(has, true) {
            return Err(RaggedError::Bias { text: text.to_owned() });
        }
    }
    Ok(shape)
}

impl RaggedArgs {
    /// The problem with what these options add, its sequences' lengths and its operands.
    pub(crate) fn workload(&self, problem: Problem) -> Result<Workload, Failure> {
        let layout = self.layout.map(|name| match name {
            LayoutName::Bhsd => Layout::Bhsd,
            LayoutName::Bshd => Layout::Bshd,
        });
        self.sequences.workload(self.mask.problem(problem)?, layout, SEED)
    }
}

impl MaskArgs {
    /// The problem with this mask and score, where they are given.
    pub(crate) fn problem(&self, problem: Problem) -> Result<Problem, Failure> {
        let masked = problem.with_mask(self.mask(problem.mask()));
        let masked = masked.map_err(|source| Failure::Argument { option: "--window", source })?;
        if let Some(p) = self.dropout {
            let dropout = Dropout { p, seed: self.dropout_seed, offset: 0 };
            return masked
                .with_dropout(dropout)
                .map_err(|source| Failure::Argument { option: "--dropout", source });
        }
        match self.softcap {
            Some(cap) => masked
                .with_score(Score::Softcap(cap))
                .map_err(|source| Failure::Argument { option: "--softcap", source }),
            None => Ok(masked),
        }
    }

    fn mask(&self, given: Mask) -> Mask {
        let mut mask = given;
        if let Some((left, right)) = self.window {
            (mask.window_left, mask.window_right) = (left, right);
        }
        if let Some(chunk) = self.chunk {
            mask = mask.with_chunk(chunk);
        }
        if self.prefix > 0 {
            mask = mask.with_prefix(self.prefix);
        }
        if self.sink_tokens > 0 {
            mask = mask.with_sink_tokens(self.sink_tokens);
        }
        if let Some(keys) = self.tree {
            mask = mask.with_tree(keys);
        }
        mask
    }
}

impl SequenceArgs {
    /// The problem with what these options add, in this layout, its sequences' lengths and its operands, from a seed.
    pub(crate) fn workload(
        &self,
        problem: Problem,
        layout: Option<Layout>,
        seed: u64,
    ) -> Result<Workload, Failure> {
        let refused = |option| move |source| Failure::Argument { option, source };
        let mut problem = problem.with_sinks(self.sinks);
        if let Some(width) = self.head_dim_v {
            problem = problem.with_head_dim_v(width).map_err(refused("--head-dim-v"))?;
        }
        let score = match self.bias {
            _ if self.alibi => Score::Alibi { per_batch: false },
            Some(shape) => Score::Bias(shape),
            None => problem.score(),
        };
        problem = problem.with_score(score)?;
        let lengths = self.lengths(&problem, seed)?;
        let [queries, keys] = &lengths;
        if self.is_packed() {
            let total = queries.iter().sum::<u32>().max(1);
            problem = problem.with_packed_queries(total).map_err(refused("--seqlens-q"))?;
        }
        if let Some(page) = self.page {
            problem = problem
                .with_pages(Workload::pool(&problem, page, self.csr, keys))
                .map_err(refused("--page"))?;
            problem = problem.with_lengths(true);
        } else if self.is_packed() {
            let total = keys.iter().sum::<u32>().max(1);
            problem = problem.with_packed_keys(total).map_err(refused("--seqlens-k"))?.with_lengths(false);
        } else if !self.seqlens_k.is_empty() {
            problem = problem.with_lengths(true);
        }
        if let Some(layout) = layout {
            problem = problem.with_layout(layout);
        }
        Ok(Workload::with_sequences(&problem, lengths, seed))
    }

    fn is_packed(&self) -> bool {
        self.packed || !self.seqlens_q.is_empty()
    }

    /// Queries and keys of each sequence.
    fn lengths(&self, problem: &Problem, seed: u64) -> Result<[Vec<u32>; 2], Failure> {
        let sizes = problem.sizes();
        let all = |most: u32| vec![most; sizes.batch as usize];
        let drawn = || random_input::lengths(problem, seed);
        let is_square = sizes.seqlen_q == sizes.seqlen_k;
        let queries = match &self.seqlens_q[..] {
            [] if self.packed && is_square => drawn(),
            // As long beside the longest as the keys are.
            [] if self.packed => {
                let share =
                    |keys: u32| u64::from(keys) * u64::from(sizes.seqlen_q) / u64::from(sizes.seqlen_k);
                drawn().into_iter().map(|keys| share(keys).max(1) as u32).collect()
            }
            [] => all(sizes.seqlen_q),
            given => given.to_vec(),
        };
        let keys = match &self.seqlens_k[..] {
            [] if problem.has_lengths() || self.packed => drawn(),
            [] if is_square => queries.clone(),
            [] => all(sizes.seqlen_k),
            given => given.to_vec(),
        };
        for (option, lengths, most) in
            [("--seqlens-q", &queries, sizes.seqlen_q), ("--seqlens-k", &keys, sizes.seqlen_k)]
        {
            if lengths.len() != sizes.batch as usize || lengths.iter().any(|&length| length > most) {
                let (found, batch) = (lengths.clone(), sizes.batch);
                return Err(Failure::Sequences { option, found, batch, most });
            }
        }
        Ok([queries, keys])
    }
}

/// The seed of what is drawn for plans and measurements: the same on every machine.
const SEED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use check::workload::describe;
    use clap::Parser;
    use ferroflash::{Dtype, Sizes};

    #[derive(Parser)]
    struct Command {
        #[arg(long)]
        causal: bool,
        #[arg(long)]
        lengths: bool,
        #[command(flatten)]
        ragged: RaggedArgs,
    }

    fn workload(words: &str) -> Result<Workload, String> {
        let words = std::iter::once("x").chain(words.split_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        let sizes = Sizes { batch: 3, heads_q: 4, heads_kv: 2, seqlen_q: 40, seqlen_k: 40, head_dim: 64 };
        let problem = Problem::new(sizes, Dtype::F16).expect("valid");
        let problem = problem.with_causal(command.causal).with_lengths(command.lengths);
        command.ragged.workload(problem).map_err(|failure| failure.to_string())
    }

    fn described(words: &str) -> String {
        describe(workload(words).expect(words).problem())
    }

    #[test]
    fn nothing_more_is_a_dense_batch() {
        for words in ["", "--causal", "--lengths"] {
            assert!(!workload(words).expect(words).problem().is_ragged(), "{words}");
        }
        assert_eq!(described("--causal"), "causal");
    }

    #[test]
    fn each_option_is_in_the_problem() {
        for (words, expected) in [
            ("--window 9,0", "window 9,0"),
            ("--window -,3 --sink-tokens 4", "window all,3, 4 sink tokens"),
            ("--causal --tree 33", "causal, tree of 33"),
            ("--causal --chunk 16 --sinks", "causal, chunks of 16, sinks"),
            ("--causal --prefix 7 --softcap 30", "causal, prefix 7, softcap 30"),
            ("--causal --dropout 0.1 --dropout-seed 7 --sinks", "causal, dropout 0.1, sinks"),
            ("--dropout 0", "full"),
            ("--alibi --head-dim-v 32", "full, ALiBi, V 32 wide"),
            ("--bias hq", "full, bias hq"),
            ("--bias 1", "full, bias 1"),
            ("--causal --seqlens-q 40,1,0", "causal, 41 packed queries, 41 packed keys"),
            ("--seqlens-q 40,1,0 --seqlens-k 40,40,1", "full, 41 packed queries, 81 packed keys"),
            ("--page 16 --seqlens-k 40,1,0", "full, 4 pages of 16"),
            (
                "--page 16 --csr --seqlens-q 1,1,1 --seqlens-k 33,17,0",
                "full, 3 packed queries, 5 pages of 16 in one list",
            ),
        ] {
            assert_eq!(described(words), expected, "{words}");
        }
        let drawn = described("--packed");
        let totals: Vec<&str> = drawn.split(' ').filter(|word| word.parse::<u32>().is_ok()).collect();
        assert!(totals.len() == 2 && totals[0] == totals[1], "as many queries as keys: {drawn}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (words, needle) in [
            ("--window 9", "two numbers of keys"),
            ("--window 9,x", "two numbers of keys"),
            ("--bias hh", "each once"),
            ("--bias x", "any of the letters"),
            ("--softcap 3 --alibi", "cannot be used with"),
            ("--softcap 0", "--softcap"),
            ("--softcap -1", "softcap -1 cannot be used"),
            ("--softcap 2 --tree 8", "cannot be used with"),
            ("--dropout 1", "--dropout"),
            ("--dropout 0.5 --alibi", "cannot be used with"),
            ("--dropout-seed 3", "--dropout"),
            ("--window 3,0 --causal", "cannot be used with"),
            ("--window 3,0 --prefix 4", "a prefix that all queries see"),
            ("--tree 0", "'--tree <KEYS>'"),
            ("--chunk 0", "'--chunk <KEYS>'"),
            ("--tree 8 --alibi", "a tree excludes"),
            ("--csr", "--page"),
            ("--seqlens-q 1,2", "--seqlens-q"),
            ("--seqlens-k 1,2,41", "--seqlens-k"),
            ("--head-dim-v 7", "--head-dim-v"),
        ] {
            let error = workload(words).expect_err(words);
            assert!(error.contains(needle), "{words}: {error}");
        }
    }
}
