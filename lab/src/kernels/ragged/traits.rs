//! What a ragged batch has that a kernel may do wrong, each by a name, and how many batches are to have it.

use check::verification::{RaggedSketch, ragged_wants_lse};
use ferroflash::plan::{Combine, Splits};
use ferroflash::problem::{BlockTable, KeySequences, Mask, Problem, QuerySequences, Sizes};
use kernels_gpu::row::Row;
use std::collections::BTreeMap;

/// Something that a batch has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trait {
    Named(String),
    /// It reaches this piece of the kernel's code.
    Reaches(u32),
}

impl Trait {
    /// Whether it shows by NaN of the output alone.
    pub(super) fn is_beside_nan(&self) -> bool {
        matches!(self, Trait::Named(name) if name.starts_with(BESIDE_NAN))
    }
}

/// The trait of sinks, whose scores may be −∞, or so far under the others that nothing shows.
pub(super) const SINKS: &str = "sinks";

/// Batches that are to have a trait: one may not show it, where sequences are short.
const TIMES: u32 = 2;
/// Those that are to have one of many that are alike.
const ONCE: u32 = 1;
/// Keys from which a sequence tells of a mistake that all of them share.
const TELLING: u32 = 17;

/// Traits with how many batches are to have each.
pub(super) type Traits = BTreeMap<Trait, u32>;

/// What the traits of batches with NaN among their inputs are called.
const BESIDE_NAN: &str = "NaN beside ";

/// The traits of a batch for kernels of a row, among them each size that is one of `numbers`, and more CTAs than some of `ctas`; none of a batch
/// that tells of no mistake.
pub(super) fn traits(sketch: &RaggedSketch, row: &Row, numbers: &[u32], ctas: &[u32]) -> Traits {
    let telling: Vec<_> = telling(sketch).collect();
    let longest = |of: fn(&(u32, (u32, u32))) -> u32| telling.iter().map(of).max();
    let (Some(most_queries), Some(most_keys)) = (longest(|(_, (q, _))| *q), longest(|(_, (_, k))| *k)) else {
        return Traits::new();
    };
    let mut has = kinds(&sketch.problem, most_queries, most_keys);
    if sketch.has_nan() {
        // What sees NaN tells nothing else.
        return has.into_iter().map(|one| (Trait::Named(format!("{BESIDE_NAN}{one}")), ONCE)).collect();
    }
    has.extend(splitting(sketch));
    let mut traits: Traits = has.into_iter().map(|one| (Trait::Named(one), TIMES)).collect();
    if !sees_several(&sketch.problem.mask()) {
        return traits;
    }
    let mut add = |name: String, times: u32| {
        let known = traits.entry(Trait::Named(name)).or_insert(times);
        *known = times.max(*known);
    };
    sizes(sketch).into_iter().for_each(|name| add(name, ONCE));
    let tiles = tiles(&sketch.problem, row);
    let passed = [1024, 4096].iter().chain(ctas).filter(|ctas| tiles > u64::from(**ctas));
    passed.for_each(|ctas| add(format!("more CTAs than {ctas}"), ONCE));
    of_mask(&sketch.problem, most_keys).into_iter().for_each(|name| add(name, TIMES));
    of_pages(&sketch.problem, most_keys).into_iter().for_each(|name| add(name, ONCE));
    for &(number, (q, k)) in &telling {
        let far = [255, 63, 19].into_iter().find(|end| number > *end);
        add(
            far.map_or(format!("sequence number {number}"), |end| format!("sequence number over {end}")),
            ONCE,
        );
        of_sequence(q, k).into_iter().for_each(|name| add(name, ONCE));
        let places = [
            ("sequence number", number),
            ("queries", q),
            ("keys", k),
            ("blocks of keys", k.div_ceil(row.block_n)),
        ];
        let named = places.into_iter().filter(|(_, size)| numbers.contains(size));
        named.for_each(|(place, size)| add(format!("{place} of one sequence: {size}"), TIMES));
    }
    for (place, size) in places(sketch).into_iter().filter(|(_, size)| numbers.contains(size)) {
        add(format!("{place}: {size}"), TIMES);
    }
    traits
}

/// Sequences that have queries and enough keys to tell of a mistake, by their numbers, with their queries and keys.
fn telling(sketch: &RaggedSketch) -> impl Iterator<Item = (u32, (u32, u32))> {
    (0..).zip(sketch.seqlens()).filter(|(_, (q, k))| *q > 0 && *k >= TELLING)
}

/// Whether a query sees several keys, so that another scale gives another output.
fn sees_several(mask: &Mask) -> bool {
    let side = |side: Option<u32>| side.unwrap_or(TELLING).min(TELLING);
    let window = side(mask.window_left) + side(mask.window_right);
    !mask.intervals && window + mask.prefix.min(TELLING) >= 4 && mask.chunk.is_none_or(|keys| keys >= 4)
}

/// What a problem has that changes something, a name each.
fn kinds(problem: &Problem, most_queries: u32, most: u32) -> Vec<String> {
    let Mask { window_left, window_right, chunk, prefix, sink_tokens, intervals, tree, .. } = problem.mask();
    let sizes = problem.sizes();
    let keys = match problem.keys() {
        KeySequences::Batch => "keys of a batch",
        KeySequences::Packed { .. } => "packed keys",
        KeySequences::Paged(pages) => match pages.table {
            BlockTable::Rows { .. } => "rows of pages",
            BlockTable::Csr { .. } => "lists of pages",
        },
    };
    let queries = match problem.queries() {
        QuerySequences::Batch => "queries of a batch",
        QuerySequences::Packed { .. } => "packed queries",
    };
    let has = [
        (true, keys),
        (true, queries),
        (window_left.is_some_and(|keys| keys + 1 < most), "left window"),
        (window_right == Some(0) && most_queries > 1, "causal"),
        (
            window_right.is_some_and(|keys| (1..most_queries.saturating_sub(1)).contains(&keys)),
            "right window",
        ),
        (window_right.is_none(), "no window to the right"),
        (chunk.is_some_and(|keys| keys < most), "chunks"),
        (prefix > 0 && prefix < most && most_queries > 16, "prefix"),
        (sink_tokens > 0 && window_left.is_some_and(|keys| keys + sink_tokens < most), "sink tokens"),
        (intervals, "intervals"),
        (tree.is_some(), "tree"),
        (problem.has_sinks(), SINKS),
        (most_queries <= 2, "decoding"),
        (most > 1000, "many keys"),
        (problem.group() > 2, "groups of several"),
        (problem.head_dim_v() != sizes.head_dim, "two widths"),
        (problem.head_dim_v() < sizes.head_dim, "narrow V"),
        (problem.scale() != 1.0 / (sizes.head_dim as f32).sqrt(), "scale"),
        (!ragged_wants_lse(problem), "no LSE"),
    ];
    has.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned()).collect()
}

/// How its keys are split, and who merges the splits, where there are several.
fn splitting(sketch: &RaggedSketch) -> Vec<String> {
    let keys = sketch.problem.sizes().seqlen_k;
    let most = keys.div_ceil(128);
    let (kind, splits) = match sketch.options.splits {
        Splits::Auto => ("as many splits as the plan takes", 1),
        Splits::Size(size) => ("splits of a size", keys.div_ceil(size.max(128))),
        Splits::Count(count) => ("", count.min(most)),
    };
    let count = match (splits, sketch.options.splits) {
        (..=1, _) | (_, Splits::Auto | Splits::Size(_)) => None,
        (2..=6, _) => Some(format!("{splits} splits")),
        _ => Some("more splits than six".to_owned()),
    };
    let merging = match sketch.options.combine {
        _ if splits < 2 => None,
        Combine::Fused => Some("splits merged in the same launch".to_owned()),
        Combine::Kernel => Some("splits merged by a kernel".to_owned()),
        Combine::Auto => None,
    };
    let kind = (!kind.is_empty() && keys > 128).then(|| kind.to_owned());
    [kind, count, merging].into_iter().flatten().collect()
}

/// CTAs of a launch that splits no keys.
fn tiles(problem: &Problem, row: &Row) -> u64 {
    let Sizes { batch, heads_kv, seqlen_q, .. } = *problem.sizes();
    u64::from(batch * heads_kv) * u64::from(seqlen_q * problem.group()).div_ceil(row.block_m.into())
}

/// How many there are of what all sequences share.
fn sizes(sketch: &RaggedSketch) -> Vec<String> {
    let problem = &sketch.problem;
    let Sizes { batch, heads_q, heads_kv, .. } = *problem.sizes();
    // Each number that is usual, and some of those beyond.
    let counted = |what: &str, count: u32, ends: &[u32]| match ends.iter().rev().find(|end| count > **end) {
        Some(end) => format!("more {what} than {end}"),
        None => format!("{count} {what}"),
    };
    vec![
        counted("sequences", batch, &[20, 64, 256]),
        counted("KV heads", heads_kv, &[8, 20, 64]),
        counted("heads of a group", problem.group(), &[16, 64]),
        counted("heads", heads_q, &[1, 16, 20, 64, 128]),
    ]
}

/// How many queries and keys one sequence has.
fn of_sequence(q: u32, k: u32) -> Vec<String> {
    let mut found = vec![format!("{} keys behind whole blocks", k % 64)];
    if q <= 8 {
        found.push(format!("{q} queries"));
    }
    // Beside whole blocks, of which more cost more.
    let beside = |size: u32, near: u32| {
        let [block, by] = if size <= near { [64, 1] } else { [1024, 2] };
        (62..=2050).contains(&size) && (size + by) % block <= 2 * by
    };
    found.extend(beside(k, 514).then(|| format!("{k} keys")));
    found.extend(beside(q, 258).then(|| format!("{q} queries")));
    for (what, size, ends) in [("keys", k, [520, 1030, 2055]), ("queries", q, [65, 260, 500])] {
        let above = ends.into_iter().rev().find(|end| size > *end);
        found.extend(above.map(|end| format!("more {what} than {end}")));
    }
    found
}

/// Windows, chunks and the like that are as many keys as blocks or usual models have, where some key is hidden.
fn of_mask(problem: &Problem, longest: u32) -> Vec<String> {
    let Mask { window_left, window_right, chunk, prefix, sink_tokens, tree, .. } = problem.mask();
    let is_round = |size: u32| (16..=1024).contains(&size) && size.is_power_of_two();
    let mut found = Vec::new();
    let sides = [("left", window_left), ("right", window_right), ("chunk", chunk), ("prefix", Some(prefix))];
    for (side, keys) in sides.into_iter().filter_map(|(side, keys)| Some((side, keys?))) {
        if keys < longest && (is_round(keys) || side == "left" && is_round(keys + 1)) {
            found.push(format!("{side} {keys}"));
        }
        if keys > 64 && keys < longest {
            found.push(format!("{side} of more than a block"));
        }
    }
    if sink_tokens > 64 && sink_tokens < longest && window_left.is_some_and(|keys| keys < longest) {
        found.push("sink tokens of more than a block".to_owned());
    }
    if let Some(keys) = tree {
        let whole = if keys.is_multiple_of(32) { "whole " } else { "" };
        found.push(format!("tree of {whole}{} words", keys.div_ceil(32).min(6)));
    }
    found
}

/// Keys of a page, where a sequence has more than one.
fn of_pages(problem: &Problem, longest: u32) -> Option<String> {
    let KeySequences::Paged(pages) = problem.keys() else { return None };
    let page = pages.page;
    if page >= longest && page < 256 {
        return None;
    }
    Some(match page {
        _ if page <= 256 && page.is_power_of_two() || page <= 128 && page.is_multiple_of(16) => {
            format!("pages of {page}")
        }
        _ if !page.is_multiple_of(2) => "odd pages".to_owned(),
        257.. => "pages of more than 256".to_owned(),
        _ if page.is_multiple_of(8) => "pages of eights".to_owned(),
        _ => "even pages".to_owned(),
    })
}

/// Each size that a kernel's code may compare with a number, by the place where it is.
fn places(sketch: &RaggedSketch) -> Vec<(&'static str, u32)> {
    let problem = &sketch.problem;
    let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = *problem.sizes();
    let Mask { window_left, window_right, chunk, prefix, sink_tokens, tree, .. } = problem.mask();
    let pages = match problem.keys() {
        KeySequences::Paged(pages) => Some(pages),
        _ => None,
    };
    let optional = [
        ("page", pages.map(|pages| pages.page)),
        ("pages", pages.map(|pages| pages.pages)),
        (
            "entries of a table",
            pages.map(|pages| match pages.table {
                BlockTable::Rows { entries } | BlockTable::Csr { entries } => entries,
            }),
        ),
        ("left window", window_left),
        ("keys of a window", window_left.map(|keys| keys.saturating_add(1))),
        ("right window", window_right),
        ("chunk", chunk),
        ("tree", tree),
        (
            "keys in all",
            match problem.keys() {
                KeySequences::Packed { total } => Some(total),
                _ => None,
            },
        ),
        (
            "queries in all",
            match problem.queries() {
                QuerySequences::Packed { total } => Some(total),
                QuerySequences::Batch => None,
            },
        ),
        (
            "splits",
            match sketch.options.splits {
                Splits::Count(count) => Some(count),
                _ => None,
            },
        ),
        (
            "keys of a split",
            match sketch.options.splits {
                Splits::Size(size) => Some(size),
                _ => None,
            },
        ),
    ];
    let always = [
        ("sequences", batch),
        ("heads", heads_q),
        ("KV heads", heads_kv),
        ("heads of a group", problem.group()),
        ("heads of all sequences", batch * heads_q),
        ("KV heads of all sequences", batch * heads_kv),
        ("most queries", seqlen_q),
        ("most keys", seqlen_k),
        ("prefix", prefix),
        ("sink tokens", sink_tokens),
        ("width", head_dim),
        ("width of V", problem.head_dim_v()),
    ];
    optional.into_iter().filter_map(|(place, size)| Some((place, size?))).chain(always).collect()
}
