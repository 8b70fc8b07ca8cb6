//! Mistakes that explain a wrong O: each predicts the wrong rows in float64, and the one that comes nearest is named.
//!
//! A row's O is Σ p·v / Σ p over the keys it sees. Leaving out keys, another scale, another head's keys or a factor each give other
//! sums with one free number at most, against the head_dim numbers of each wrong row: what fits them to rounding is the mistake.

mod fit;
mod wrong_row;

use super::Fault;
use super::lse::least;
use check::reference::{row_coordinates, row_start};
use check::verification::Oracle;
use ferroflash::TensorRole;
use ferroflash::attention::Output;
use ferroflash::rounding::widen;
use fit::{Fit, add, squares, squares_within};
pub(super) use wrong_row::WrongRow;
use wrong_row::elements;

/// Wrong rows that are looked at: the worst, and as many from all over.
pub(super) const ROWS: usize = 6;
/// Share of the squared error that a mistake must leave unexplained at most.
const UNEXPLAINED: f64 = 0.15;
/// A mistake that leaves no more than this many times what the nearest one leaves may be the right one as well.
const AS_NEAR: f64 = 1.2;
/// Every how many-th key a kernel may see or leave out.
const STRIDES: [usize; 4] = [2, 3, 4, 8];
/// Keys between two ends of a block that may be left out.
const BLOCK_STEP: usize = 16;
/// What changes no float64 sum of a row whose largest P is 1.
const NO_WEIGHT: f64 = 1e-20;
/// Products of Q and K for which a wrong row is compared with attention over other heads' keys, of 64 of them at least.
const OTHERS_PRODUCTS: usize = 1 << 18;

/// A mistake that explains an output.
pub(super) struct Explained {
    pub(super) fault: Fault,
    pub(super) how: String,
    /// Whether another mistake gives the same numbers on these rows.
    pub(super) is_doubtful: bool,
    /// How much less clear it is than one that leaves rounding alone: 1 for that.
    pub(super) share: f64,
}

impl Explained {
    fn new(fault: Fault, how: String) -> Explained {
        Explained { fault, how, is_doubtful: false, share: 1.0 }
    }
}

/// Wrong rows of an output.
pub(super) struct Suspect<'a> {
    oracle: &'a Oracle,
    rows: Vec<WrongRow>,
    /// V of the rows' KV heads in float64, key by key: each mistake adds it up anew.
    values: Vec<([usize; 2], Vec<f64>)>,
    /// The rounding that even the right mistake leaves, squared and summed.
    noise: f64,
    /// What a mistake may leave of the squared error to explain the output.
    enough: f64,
    /// What leaves more neither explains it nor comes as near as what does.
    most: f64,
}

impl<'a> Suspect<'a> {
    /// Takes some of the rows that are wrong, all of which are numbers.
    pub(super) fn new(oracle: &'a Oracle, output: &Output, allowed: f64, wrong: &[usize]) -> Suspect<'a> {
        let problem = &oracle.problem;
        let head_dim = problem.sizes().head_dim as usize;
        let o = |index: usize| widen(problem.dtype(), output.o[index]);
        let error = |row: usize| {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            (start..start + head_dim).map(|at| (o(at) - oracle.reference.o[at]).abs()).fold(0.0, f64::max)
        };
        let mut order = wrong.to_vec();
        order.sort_by(|&a, &b| error(b).total_cmp(&error(a)));
        let spread = (0..ROWS).map(|part| wrong[part * (wrong.len() - 1) / (ROWS - 1)]);
        let mut chosen: Vec<usize> = order.into_iter().take(ROWS).chain(spread).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let rows: Vec<WrongRow> = chosen.into_iter().map(|row| WrongRow::new(oracle, row, &o)).collect();
        let noise = rows.len() as f64 * head_dim as f64 * (0.3 * allowed).powi(2);
        let mut values: Vec<([usize; 2], Vec<f64>)> = Vec::new();
        for [batch, head, _] in rows.iter().map(|row| row.at) {
            let place = [batch, head / problem.group() as usize];
            if values.iter().any(|(of, _)| *of == place) {
                continue;
            }
            let value = |key: usize| elements(oracle, TensorRole::V, [place[0], place[1], key]);
            let keys = 0..problem.sizes().seqlen_k as usize;
            values.push((place, keys.flat_map(value).collect()));
        }
        let error: f64 = rows.iter().map(|row| squares(&row.o, &row.expected)).sum();
        let enough = (UNEXPLAINED * error).max(noise.min(0.5 * error));
        let most = (2.0 * AS_NEAR * enough).max(noise);
        Suspect { oracle, rows, values, noise, enough, most }
    }

    /// Keys that the rows see in all: what tells one mistake from another.
    pub(super) fn weight(&self) -> usize {
        self.rows.iter().map(|row| row.visible.min(64)).sum()
    }

    /// The largest error of the rows.
    pub(super) fn largest_error(&self) -> f64 {
        let pairs = self.rows.iter().flat_map(|row| row.o.iter().zip(&row.expected));
        pairs.map(|(o, expected)| (o - expected).abs()).fold(0.0, f64::max)
    }

    /// Whether every row is attention to a few times what is allowed.
    pub(super) fn is_near(&self, allowed: f64) -> bool {
        let largest =
            self.rows.iter().flat_map(|row| &row.expected).fold(0.0, |max: f64, o| max.max(o.abs()));
        self.largest_error() < (64.0 * allowed).min(0.1 * largest)
    }

    /// The mistake that comes nearest, if it comes near enough.
    pub(super) fn explain(&self) -> Option<Explained> {
        let mut found = vec![
            self.factor(),
            self.scale(),
            self.prefix(),
            self.suffix(),
            self.small_p(),
            self.hidden(),
            self.block(),
            self.single(),
        ];
        found.extend(STRIDES.into_iter().flat_map(|stride| self.strided(stride)));
        found.extend(self.other_heads());
        found.extend(self.swallowed());
        // Equal sums are the first one's: the plainer mistake.
        let nearer =
            |best: usize, other: usize| if found[other].0 < found[best].0 * 0.999 { other } else { best };
        let best = (0..found.len()).reduce(nearer)?;
        let (squares, explained) = found.swap_remove(best);
        let is_as_near = |(other, by): &(f64, Explained)| {
            by.fault != explained.fault && *other <= (AS_NEAR * squares).max(0.3 * self.noise)
        };
        let is_doubtful = explained.is_doubtful || found.iter().any(is_as_near);
        let share = (self.noise / squares).clamp(0.25, 1.0);
        (squares <= self.enough).then_some(Explained { share, is_doubtful, ..explained })
    }

    /// Adds up each row's nearest fit, as long as the sum may explain anything.
    fn each(&self, fit: impl Fn(&WrongRow) -> Fit) -> (f64, Vec<f64>) {
        let (mut squares, mut numbers) = (0.0, Vec::new());
        for row in &self.rows {
            let fit = fit(row);
            squares += fit.squares;
            numbers.push(fit.number);
            if squares > self.most {
                return (f64::INFINITY, numbers);
            }
        }
        (squares, numbers)
    }

    /// Σ p·v over keys in this order, told each sum behind its key; a fit of the sums over all of Σ p, or of those over what was added.
    fn nearest_sum(&self, row: &WrongRow, order: impl Iterator<Item = usize>) -> Fit {
        let total: f64 = row.p[..row.visible].iter().sum();
        let values = self.values_of(row);
        let (mut sum, mut added, mut best) = (vec![0.0; row.o.len()], 0.0, Fit::NONE);
        for (count, key) in order.enumerate() {
            add(values, row.p[key], key, &mut sum);
            added += row.p[key];
            for divisor in [added, total] {
                let squares = squares_within(&row.o, sum.iter().copied(), divisor, best.squares);
                best = best.or(squares, (count + 1) as f64);
            }
        }
        best
    }

    fn prefix(&self) -> (f64, Explained) {
        // The last step of all would be no mistake.
        let (squares, kept) = self.each(|row| self.nearest_sum(row, 0..row.visible.saturating_sub(1)));
        if self.are_halves(squares, &|key, half| key < half) {
            let is_doubtful = self.may_be_blocks();
            let how = "the first half".to_owned();
            return (squares, Explained { is_doubtful, ..Explained::new(Fault::HalfTheKeys, how) });
        }
        let cut = |pick: fn(f64, f64) -> f64| kept.iter().copied().reduce(pick).unwrap_or(0.0);
        let (least, most) = (cut(f64::min), cut(f64::max));
        let how = if least == most {
            format!("from key {least}")
        } else {
            format!("from key {least} to {most} on")
        };
        (squares, Explained::new(Fault::DroppedTail, how))
    }

    fn suffix(&self) -> (f64, Explained) {
        let (squares, kept) = self.each(|row| self.nearest_sum(row, (1..row.visible).rev()));
        if self.are_halves(squares, &|key, half| key >= half) {
            let is_doubtful = self.may_be_blocks();
            let how = "the last half".to_owned();
            return (squares, Explained { is_doubtful, ..Explained::new(Fault::HalfTheKeys, how) });
        }
        let how = format!("only the last {} or so are seen", kept[0]);
        (squares, Explained::new(Fault::DroppedKeys, how))
    }

    /// Every `stride`-th key alone, or all but these.
    fn strided(&self, stride: usize) -> Vec<(f64, Explained)> {
        let mut found = Vec::new();
        for rest in 0..stride {
            for alone in [true, false] {
                let takes = move |key: usize| (key % stride == rest) == alone;
                let (squares, _) = self.each(|row| self.over(row, &takes));
                let is_half = stride == 2;
                let fault = if is_half { Fault::HalfTheKeys } else { Fault::DroppedKeys };
                let which = if alone { "only" } else { "not" };
                let how = format!("{which} every {stride}. key, from key {rest} on");
                found.push((squares, Explained::new(fault, how)));
            }
        }
        found
    }

    /// One sum over some keys.
    fn over(&self, row: &WrongRow, takes: &dyn Fn(usize) -> bool) -> Fit {
        let total: f64 = row.p[..row.visible].iter().sum();
        let values = self.values_of(row);
        let (mut sum, mut added) = (vec![0.0; row.o.len()], 0.0);
        for key in (0..row.visible).filter(|&key| takes(key)) {
            add(values, row.p[key], key, &mut sum);
            added += row.p[key];
        }
        [added, total].into_iter().fold(Fit::NONE, |best, divisor| {
            best.or(squares_within(&row.o, sum.iter().copied(), divisor, f64::INFINITY), 0.0)
        })
    }

    fn small_p(&self) -> (f64, Explained) {
        let (squares, kept) = self.each(|row| {
            let mut order: Vec<usize> = (0..row.visible).collect();
            order.sort_by(|&a, &b| row.p[b].total_cmp(&row.p[a]));
            order.truncate(row.visible.saturating_sub(1));
            let fit = self.nearest_sum(row, order.iter().copied());
            let last = order.get((fit.number as usize).saturating_sub(1));
            Fit { number: last.map_or(0.0, |&key| row.p[key]), ..fit }
        });
        let least = kept.iter().copied().fold(f64::INFINITY, f64::min);
        // One more free number than a cut has: the order of the keys.
        let how = format!("none under {least:.1e} of the largest is seen");
        (squares * 1.05, Explained::new(Fault::SmallP, how))
    }

    /// Keys behind the last that a row sees.
    fn hidden(&self) -> (f64, Explained) {
        let (squares, _) = self.each(|row| {
            let values = self.values_of(row);
            let over = |weight: &dyn Fn(f64) -> f64| {
                let (mut sum, mut added, mut best) = (vec![0.0; row.o.len()], 0.0, Fit::NONE);
                for (key, p) in row.p.iter().map(|&p| weight(p)).enumerate() {
                    add(values, p, key, &mut sum);
                    added += p;
                    if key >= row.visible {
                        best = best
                            .or(squares_within(&row.o, sum.iter().copied(), added, best.squares), key as f64);
                    }
                }
                best
            };
            let best = over(&|p| p);
            // Where all scores of a row are as low as can be, each key counts the same.
            let flat = if row.visible == 0 { over(&|_| 1.0) } else { Fit::NONE };
            best.or(flat.squares, flat.number)
        });
        (squares, Explained::new(Fault::WrongMask, String::new()))
    }

    /// A block of keys in the middle.
    fn block(&self) -> (f64, Explained) {
        let (squares, firsts) = self.each(|row| {
            let (width, values) = (row.o.len(), self.values_of(row));
            let (mut sums, mut added) = (vec![vec![0.0; width]], vec![0.0]);
            let (mut sum, mut p_sum) = (vec![0.0; width], 0.0);
            for key in 0..row.visible {
                add(values, row.p[key], key, &mut sum);
                p_sum += row.p[key];
                if (key + 1) % BLOCK_STEP == 0 {
                    sums.push(sum.clone());
                    added.push(p_sum);
                }
            }
            let mut best = Fit::NONE;
            for from in 1..sums.len() {
                for to in from + 1..sums.len() {
                    for divisor in [p_sum - added[to] + added[from], p_sum] {
                        let left = (0..width).map(|d| sum[d] - sums[to][d] + sums[from][d]);
                        best = best.or(
                            squares_within(&row.o, left, divisor, best.squares),
                            (from * BLOCK_STEP) as f64,
                        );
                    }
                }
            }
            best
        });
        let how = format!("a block of them from key {} on", firsts[0]);
        (squares * 1.05, Explained::new(Fault::DroppedKeys, how))
    }

    /// One key alone.
    fn single(&self) -> (f64, Explained) {
        let (squares, keys) = self.each(|row| {
            let (width, values) = (row.o.len(), self.values_of(row));
            let (mut sum, p_sum) = (vec![0.0; width], row.p[..row.visible].iter().sum::<f64>());
            (0..row.visible).for_each(|key| add(values, row.p[key], key, &mut sum));
            (0..row.visible).fold(Fit::NONE, |best, key| {
                let p = row.p[key];
                [p_sum - p, p_sum].into_iter().fold(best, |best, divisor| {
                    let left = (0..width).map(|d| sum[d] - p * values[key * width + d]);
                    best.or(squares_within(&row.o, left, divisor, best.squares), key as f64)
                })
            })
        });
        (squares * 1.05, Explained::new(Fault::DroppedKeys, format!("key {}", keys[0])))
    }

    /// One softmax scale for all rows.
    fn scale(&self) -> (f64, Explained) {
        let squares = |log: f64, most: f64| -> f64 {
            let mut squares = 0.0;
            for row in &self.rows {
                squares += self.scaled(row, log.exp());
                if squares > most {
                    return f64::INFINITY;
                }
            }
            squares
        };
        let (log, squares) = least(&squares, -16.0, 16.0);
        let how = format!("{:.4} times the problem's", log.exp());
        // One number explains much of one or two rows, whatever is wrong.
        let is_doubtful = self.rows.len() < 3;
        (squares, Explained { is_doubtful, ..Explained::new(Fault::WrongScale, how) })
    }

    fn scaled(&self, row: &WrongRow, factor: f64) -> f64 {
        let scale = f64::from(self.oracle.problem.scale()) * factor;
        let (scores, values) = (&row.scores[..row.visible], self.values_of(row));
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut added) = (vec![0.0; row.o.len()], 0.0);
        for (key, score) in scores.iter().enumerate() {
            let p = (scale * (score - largest)).exp();
            // Under most scales most keys have hardly any weight.
            if p <= NO_WEIGHT {
                continue;
            }
            add(values, p, key, &mut sum);
            added += p;
        }
        squares_within(&row.o, sum.into_iter(), added, f64::INFINITY)
    }

    /// The right O times a factor, one a row.
    fn factor(&self) -> (f64, Explained) {
        let (squares, factors) = self.each(|row| {
            let (mut cross, mut norm) = (0.0, f64::MIN_POSITIVE);
            for (o, expected) in row.o.iter().zip(&row.expected) {
                cross += o * expected;
                norm += expected * expected;
            }
            let factor = cross / norm;
            let left = row.o.iter().zip(&row.expected).map(|(o, expected)| (o - factor * expected).powi(2));
            Fit { squares: left.sum(), number: factor }
        });
        let [least, most] =
            [f64::min, f64::max].map(|pick| factors.iter().copied().reduce(pick).unwrap_or(1.0));
        let how = format!("{least:.4} to {most:.4}");
        (squares, Explained::new(Fault::WrongFactor, how))
    }

    /// Attention over another KV head's or batch entry's keys.
    fn other_heads(&self) -> Vec<(f64, Explained)> {
        let problem = &self.oracle.problem;
        let sizes = problem.sizes();
        let all = (0..sizes.batch as usize)
            .flat_map(|batch| (0..sizes.heads_kv as usize).map(move |head| [batch, head]));
        let (squares, which) = self.each(|row| {
            let own = [row.at[0], row.at[1] / problem.group() as usize];
            // Who differs in one of the two is likelier, and of these the nearer one.
            let mut others: Vec<[usize; 2]> = all.clone().filter(|other| *other != own).collect();
            others.sort_by_key(|other| {
                let [batches, heads] = [(0, sizes.batch), (1, sizes.heads_kv)].map(|(axis, count)| {
                    let steps = other[axis].abs_diff(own[axis]);
                    steps.min(count as usize - steps)
                });
                (batches > 0 && heads > 0, batches + heads)
            });
            let most = (OTHERS_PRODUCTS / (row.visible.max(1) * row.o.len())).max(64);
            others.into_iter().take(most).fold(Fit::NONE, |best, other| {
                let squares = self.of_head(row, other, |value| value);
                best.or(squares, (other[0] * sizes.heads_kv as usize + other[1]) as f64)
            })
        });
        let how = format!("of batch entry and head number {} for instance", which[0]);
        if squares.is_finite() { vec![(squares, Explained::new(Fault::WrongHead, how))] } else { Vec::new() }
    }

    /// Zeros instead of NaN and infinities, where one that these rows see is no number.
    fn swallowed(&self) -> Option<(f64, Explained)> {
        let Oracle { problem, qkv, .. } = self.oracle;
        let is_odd = |&bits: &u16| !widen(problem.dtype(), bits).is_finite();
        if !qkv.iter().flatten().any(is_odd) {
            return None;
        }
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let (squares, _) = self.each(|row| {
            let own = [row.at[0], row.at[1] / problem.group() as usize];
            Fit::NONE.or(self.of_head(row, own, finite), 0.0)
        });
        Some((squares, Explained::new(Fault::WrongNan, "taken for 0".to_owned())))
    }

    /// Attention over a KV head's keys, each element as `seen`.
    fn of_head(&self, row: &WrongRow, [batch, head]: [usize; 2], seen: impl Fn(f64) -> f64) -> f64 {
        let elements = |role: TensorRole, at: [usize; 3]| elements(self.oracle, role, at).map(&seen);
        let q: Vec<f64> = elements(TensorRole::Q, row.at).collect();
        let scale = f64::from(self.oracle.problem.scale());
        let scores: Vec<f64> = (0..row.visible)
            .map(|key| {
                let k = elements(TensorRole::K, [batch, head, key]);
                scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut added) = (vec![0.0; row.o.len()], 0.0);
        for (key, score) in scores.iter().enumerate() {
            let p = (score - largest).exp();
            let v = elements(TensorRole::V, [batch, head, key]);
            sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += p * v);
            added += p;
        }
        squares_within(&row.o, sum.iter().copied(), added, f64::INFINITY)
    }

    /// V of a row's KV head, key by key.
    fn values_of(&self, row: &WrongRow) -> &[f64] {
        let place = [row.at[0], row.at[1] / self.oracle.problem.group() as usize];
        let of_head = self.values.iter().find(|(of, _)| *of == place);
        of_head.map_or(&[], |(_, values)| values)
    }

    /// Whether sums over just one half of each row's keys come as near as those over the best cut.
    fn are_halves(&self, best: f64, takes: &dyn Fn(usize, usize) -> bool) -> bool {
        let (squares, _) = self.each(|row| {
            let halves = [row.visible / 2, row.visible.div_ceil(2)];
            halves.into_iter().fold(Fit::NONE, |best, half| {
                let over = self.over(row, &|key| takes(key, half));
                best.or(over.squares, half as f64)
            })
        });
        squares <= best.max(self.noise)
    }

    /// Whether halves of these rows are also whole blocks behind which keys were left out.
    fn may_be_blocks(&self) -> bool {
        let alike = self.rows.windows(2).all(|pair| pair[0].visible == pair[1].visible);
        let visible = self.rows[0].visible;
        let is_whole = |half: usize| half.is_multiple_of(BLOCK_STEP);
        alike && (visible < BLOCK_STEP || is_whole(visible / 2) || is_whole(visible.div_ceil(2)))
    }
}
