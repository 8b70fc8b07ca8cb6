//! What every kernel takes for random problems, kept line by line in a file: regret is read off it, and device profiles are fitted to it.

use super::Bench;
use super::contest::{Entrant, Round};
use super::draw::{Class, Draw, RaggedTraits};
use crate::workload::Workload;
use ferroflash::error::Error;
use ferroflash::plan::Plan;
use ferroflash::problem::{Layout, Problem, Sizes};
use kernels_gpu::row::{Dtype, Isa};
use serde::{Deserialize, Serialize};

/// A trial this many times over the best is far enough off that more splits of the same kernel are not tried while they get slower.
const HOPELESS_SHARE: f64 = 2.5;

/// One problem, and what the plans for it take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The seed of the sweep.
    pub seed: u64,
    /// The problem's number in it.
    pub index: u64,
    /// What the problem is like.
    pub class: Class,
    /// Batch, query heads, KV heads, queries, keys, head_dim.
    pub shape: [u32; 6],
    /// Element type.
    pub dtype: Dtype,
    /// Whether under a causal mask.
    pub causal: bool,
    /// Whether with lengths on the device.
    pub lengths: bool,
    /// Whether splits were of each sequence's own keys: in older files they were of all that there was room for.
    #[serde(default)]
    pub by_sequence: bool,
    /// Whether kernels that do not pack heads were told those that share a KV head as one ([`Plan::groups_heads`]): in older files they
    /// were not.
    #[serde(default)]
    pub groups_heads: bool,
    /// Whether CTAs of the merging kernel took several query rows of many ([`Plan::combine_rows`]): in older files they took one.
    #[serde(default)]
    pub merges_together: bool,
    /// Whether every launch could start under the one before it ([`ferroflash::device::LoadedKernel::waits`]): in older files only those of kernels
    /// with wgmma could.
    #[serde(default)]
    pub starts_early: bool,
    /// Whether kernels with wgmma looked up the pages of several blocks at once: in older files those of one, which took longer where there
    /// are more queries than a few.
    #[serde(default)]
    pub pages_together: bool,
    /// The tensors' layout.
    pub layout: Layout,
    /// What it has beside these, where it is a ragged batch that was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedTraits>,
    /// The plan that was taken, then the others.
    pub times: Vec<PlanTime>,
    /// Plans whose output was wrong, by what names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
}

/// What a plan takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanTime {
    /// The kernel.
    pub entry: String,
    /// Ranges of keys.
    pub splits: u32,
    /// Whether the splits are merged in the same launch.
    pub fused: bool,
    /// Device time of one launch, in microseconds.
    pub us: f64,
    /// How far it came, and so how exact its time is.
    pub round: Round,
}

impl Record {
    /// Nothing measured yet of problem number `index` of a seed.
    pub fn new(draw: &Draw, (seed, index): (u64, u64)) -> Record {
        let problem = draw.workload.problem();
        let sizes = problem.sizes();
        Record {
            seed,
            index,
            class: Class::of(problem),
            shape: [
                sizes.batch,
                sizes.heads_q,
                sizes.heads_kv,
                sizes.seqlen_q,
                sizes.seqlen_k,
                sizes.head_dim,
            ],
            dtype: problem.dtype(),
            causal: problem.causal(),
            lengths: problem.has_lengths(),
            by_sequence: problem.has_lengths(),
            groups_heads: true,
            merges_together: true,
            starts_early: true,
            pages_together: true,
            layout: problem.layout().unwrap_or_default(),
            ragged: draw.ragged.clone(),
            times: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// The problem, with its sequences and operands.
    ///
    /// # Errors
    /// Where a file holds one that is none.
    pub fn workload(&self) -> Result<Workload, Error> {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = self.shape;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        if let Some(ragged) = &self.ragged {
            return ragged.workload(sizes, self.dtype, self.layout);
        }
        let problem = Problem::new(sizes, self.dtype)?;
        Ok(Workload::of(
            &problem.with_layout(self.layout).with_causal(self.causal).with_lengths(self.lengths),
        ))
    }

    /// Whether a plan of a kernel still does what was measured of it.
    pub(crate) fn is_of(&self, plan: &Plan) -> bool {
        let has_pages = self.ragged.as_ref().is_some_and(RaggedTraits::has_pages);
        let is_lookup_hidden =
            !has_pages || self.class == Class::Decode || plan.kernel().row.isa != Isa::Wgmma;
        (self.groups_heads || !plan.groups_heads())
            && (self.merges_together || plan.combine_rows() == 1)
            && (self.pages_together || is_lookup_hidden)
    }

    /// Whether it is also still launched as it was.
    pub(crate) fn is_launched_as(&self, plan: &Plan) -> bool {
        let merges = plan.splits() > 1 && !plan.is_fused();
        let started_early = self.starts_early || (plan.kernel().row.isa == Isa::Wgmma && !merges);
        started_early && self.is_of(plan)
    }

    /// The fastest plan whose output was right.
    pub fn best(&self) -> Option<&PlanTime> {
        self.times.iter().filter(|time| time.us.is_finite()).min_by(|a, b| a.us.total_cmp(&b.us))
    }

    /// How much longer the plan takes than the best, as a share of the best: 0 where it is the best. `None` where its output was wrong.
    pub fn regret(&self) -> Option<f64> {
        let plan = self.times.first().filter(|time| time.us.is_finite())?;
        Some((plan.us / self.best()?.us - 1.0).max(0.0))
    }
}

impl Bench {
    /// Measures problem number `index` of a seed with every plan for it.
    ///
    /// # Errors
    /// Those of [`Bench::contest`].
    pub fn sweep(&self, seed: u64, index: u64) -> Result<Record, Error> {
        self.sweep_drawn(&Draw::new(seed, index)?, (seed, index))
    }

    /// Measures a problem with every plan for it.
    ///
    /// # Errors
    /// Those of [`Bench::contest`].
    pub fn sweep_drawn(&self, draw: &Draw, (seed, index): (u64, u64)) -> Result<Record, Error> {
        let plans = self.attention().planner().contestants(draw.workload.problem())?;
        let entrants = self.contest(&draw.workload, &plans, &|at, tried| is_hopeless(&plans, at, tried))?;
        let mut record = Record::new(draw, (seed, index));
        for (plan, entrant) in plans.iter().zip(entrants) {
            let Some(entrant) = entrant else { continue };
            let (entry, splits, fused) = (plan.kernel().entry.clone(), plan.splits(), plan.is_fused());
            if !entrant.check.passed() {
                record.wrong.push(format!("{entry} {splits} splits fused {fused}: {:?}", entrant.check));
            }
            record.times.push(PlanTime { entry, splits, fused, us: entrant.time_us, round: entrant.round });
        }
        Ok(record)
    }
}

/// Whether fewer splits of the same kernel, merged the same way, were far too slow, and more of them slower still.
fn is_hopeless(plans: &[Plan], at: usize, tried: &[Option<Entrant>]) -> bool {
    let same = |&i: &usize| {
        plans[i].kernel().entry == plans[at].kernel().entry
            && (plans[i].splits() == 1 || plans[i].is_fused() == plans[at].is_fused())
            && plans[i].splits() < plans[at].splits()
    };
    if tried.len() > 1 && (0..at).rev().filter(same).take(1).any(|i| tried[i].is_none()) {
        return true;
    }
    let best = tried.iter().flatten().map(|entrant| entrant.time_us).fold(f64::INFINITY, f64::min);
    let times: Vec<f64> = (0..at).filter(same).filter_map(|i| Some(tried[i]?.time_us)).collect();
    let [.., before, last] = times[..] else { return false };
    last > before && last > HOPELESS_SHARE * best
}
