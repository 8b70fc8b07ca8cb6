//! A second opinion on a win, before it is believed: another clock, and a GEMM of the same tile.
//!
//! The GEMM is the kernel's own two products, Q·Kᵀ and (Q·Kᵀ)·V, with its copies and its barriers and without the exponentials between:
//! no attention with this tile can be faster. On a GPU the host's clock times whole kernels and products over many launches, and shares
//! nothing with the events that decided; on the simulator both are counted.

use crate::candidate::Candidate;
use crate::cli::gate::timed::own;
use crate::cli::lab::Lab;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::job::{Report, Task};
use crate::kernels::KernelRef;
use crate::merge::side_by_side;
use crate::plant::{Plant, plant};
use crate::problem_spec::ProblemSpec;
use crate::table::short;
use serde::{Deserialize, Serialize};

/// The record of a second opinion.
pub(crate) const CROSS_CHECK: &str = "cross_check";

/// What the second harness may be off by.
const NOISE: f64 = 0.03;
/// Times below which the host's clock sees launches rather than kernels, in microseconds.
const LAUNCH_US: f64 = 15.0;

/// A kernel, and its two products alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opinion {
    whole: f64,
    products: f64,
}

/// What the second harness says of a win on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CrossCheck {
    pub(crate) candidate: String,
    problem: ProblemSpec,
    /// `µs by the host's clock`, or `clocks counted`.
    measured: String,
    before: Opinion,
    after: Opinion,
    /// How many times as fast the candidate is by the harness that decided.
    claimed: f64,
    /// Why the win is not to be believed as it is.
    pub(crate) doubt: Option<String>,
}

impl CrossCheck {
    fn find_doubt(&self) -> Option<String> {
        let CrossCheck { before, after, measured, claimed, .. } = self;
        let (gain, shown) = (before.whole / after.whole, |number: f64| short(number));
        if after.whole < (1.0 - NOISE) * after.products {
            let [whole, products] = [after.whole, after.products].map(shown);
            return Some(format!("it takes {whole} {measured}, a GEMM of its tile {products}"));
        }
        let is_short = measured.starts_with('µ') && after.whole < LAUNCH_US;
        (!is_short && claimed - 1.0 > 2.0 * (gain - 1.0).max(0.0) + NOISE).then(|| {
            format!("{claimed:.3} times as fast where it was decided, {gain:.3} times in {measured}")
        })
    }
}

impl std::fmt::Display for CrossCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CrossCheck { candidate, problem, measured, before, after, .. } = self;
        let [from, to, products_from, products_to] =
            [before.whole, after.whole, before.products, after.products].map(short);
        write!(
            f,
            "second harness, {candidate} on {problem}: {from} → {to} {measured}, a GEMM of its tile {products_from} → {products_to}"
        )?;
        match &self.doubt {
            Some(doubt) => write!(f, "; DOUBTED: {doubt}"),
            None => Ok(()),
        }
    }
}

/// Asks the second harness about a candidate that was found better than another: on the largest problem that both were measured on.
pub(crate) fn cross_check(
    lab: &Lab,
    [before, after]: [(&Candidate, &Evaluation); 2],
) -> Result<Option<CrossCheck>> {
    let simulated = lab.context.machine.simulated;
    let Some((problem, claimed, counted)) = claimed(before.1, after.1, simulated) else { return Ok(None) };
    // A session that goes on elsewhere has no kernels of its first part.
    let (Ok(one), Ok(other)) = (own(lab, before.0), own(lab, after.0)) else { return Ok(None) };
    let kernels = [one, other];
    let out = lab.context.ptx_folder(&format!("{}-cross-check", after.0.name));
    let mut products = Vec::new();
    for (at, kernel) in kernels.iter().enumerate() {
        match plant(kernel, Plant::NoExponential, &out.join(at.to_string())) {
            Ok(planted) => products.push(planted),
            // Exponentials that are written in another way are left where they are: then nothing is known.
            Err(Error::BadFile { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let whole = if simulated { &[][..] } else { &kernels[..] };
    let others: Vec<KernelRef> = products.iter().chain(whole).skip(1).cloned().collect();
    let (kernel, against) = side_by_side(&products[0], &others, &out)?;
    let limit = lab.context.config.limits.benchmark_s.duration();
    let task = Task::SecondOpinion { against };
    let done = lab.context.child(&kernel, &after.0.name, "cross-check", task, vec![problem], limit)?;
    let (whole, products) = match done.report {
        Report::Opinions(found) if simulated && found.len() == 2 => (counted, [found[0], found[1]]),
        Report::Opinions(found) if found.len() == 4 => ([found[2], found[3]], [found[0], found[1]]),
        _ => return Ok(None),
    };
    let [before, opinion] = [0, 1].map(|at| Opinion { whole: whole[at], products: products[at] });
    let measured = if simulated { "clocks counted" } else { "µs by the host's clock" }.to_owned();
    let name = after.0.name.clone();
    let found =
        CrossCheck { candidate: name, problem, measured, before, after: opinion, claimed, doubt: None };
    Ok(Some(CrossCheck { doubt: found.find_doubt(), ..found }))
}

/// The largest problem of two evaluations, how many times as fast the second is there, and the clocks of both where they were counted.
fn claimed(before: &Evaluation, after: &Evaluation, simulated: bool) -> Option<(ProblemSpec, f64, [f64; 2])> {
    let by_flops = |one: &ProblemSpec, other: &ProblemSpec| one.flops().total_cmp(&other.flops());
    if simulated {
        let after = after.counted.iter().max_by(|one, other| by_flops(&one.problem, &other.problem))?;
        let before = before.counted.iter().find(|before| before.problem == after.problem)?;
        let clocks = [before.clocks, after.clocks];
        return Some((after.problem, clocks[0] / clocks[1], clocks));
    }
    let own = after.timed.iter().max_by(|one, other| by_flops(&one.problem, &other.problem))?;
    let other = after.incumbent.iter().find(|other| other.problem == own.problem)?;
    let [own_us, other_us] = [own, other].map(|timed| crate::statistics::median(&timed.fresh_us));
    Some((own.problem, other_us? / own_us?, [0.0; 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(measured: &str, [whole, products]: [[f64; 2]; 2], claimed: f64) -> Option<String> {
        let opinion = |at: usize| Opinion { whole: whole[at], products: products[at] };
        let problem = crate::job::tests::problem();
        let (candidate, measured) = ("x".to_owned(), measured.to_owned());
        let (before, after) = (opinion(0), opinion(1));
        CrossCheck { candidate, problem, measured, before, after, claimed, doubt: None }.find_doubt()
    }

    #[test]
    fn a_win_that_the_products_or_the_other_clock_do_not_explain_is_doubted() {
        let host = "µs by the host's clock";
        assert_eq!(doubt(host, [[100.0, 80.0], [70.0, 60.0]], 1.25), None);
        let impossible = doubt(host, [[100.0, 50.0], [70.0, 60.0]], 2.0).expect("faster than its GEMM");
        assert!(
            impossible.contains("it takes 50.00") && impossible.contains("GEMM of its tile 60.00"),
            "{impossible}"
        );
        let unseen = doubt(host, [[100.0, 99.0], [70.0, 70.0]], 1.25).expect("only the events saw it");
        assert!(unseen.contains("1.250 times") && unseen.contains("1.010 times"), "{unseen}");
        assert_eq!(doubt(host, [[9.0, 9.0], [4.0, 4.0]], 1.25), None, "shorter than launches");
        assert!(doubt("clocks counted", [[9.0, 9.0], [4.0, 4.0]], 1.25).is_some());
    }
}
