//! Runs the clusters of a grid: all cores where none can wait for another, else in turns, so that flags, locks and grid barriers
//! among those that fit on the device make progress.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::config::Schedule;
use crate::counters::Counters;
use crate::exec::group::Group;
use crate::exec::schedule::Advance;
use crate::finding::Finding;
use crate::launch::Launch;

/// What a grid leaves: its counts and its warnings, or the finding that ended it.
pub(crate) type Outcome = Result<(Counters, Vec<Finding>), Box<Finding>>;

/// Clusters that run at the same time without a seed, where they can tell each other something, and the longest turn of one, as a
/// power of two.
const FEW: usize = 4;
const SHORT: usize = 12;
/// Instructions of a cluster's turn.
const TURN: u64 = 1 << 21;
/// The same where time is taken.
const TIMED_TURN: u64 = 1 << 9;

/// Runs every cluster of the list, each with its CTAs.
pub(crate) fn run(launch: &Launch<'_>, groups: &[Vec<u64>], in_order: bool) -> Outcome {
    if in_order || groups.len() == 1 {
        return in_turns(launch, groups);
    }
    let failed_at = AtomicU64::new(u64::MAX);
    let failure: Mutex<Option<(u64, Box<Finding>)>> = Mutex::new(None);
    let run = |ids: &Vec<u64>| {
        // CTAs after one that failed do not matter; those before it still may hold the first finding.
        if ids[0] > failed_at.load(Relaxed) {
            return Default::default();
        }
        match alone(launch, ids) {
            Ok(outcome) => outcome,
            Err(finding) => {
                failed_at.fetch_min(ids[0], Relaxed);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if failure.as_ref().is_none_or(|(first, _)| ids[0] < *first) {
                    *failure = Some((ids[0], finding));
                }
                Default::default()
            }
        }
    };
    let both = |mut a: (Counters, Vec<Finding>), b: (Counters, Vec<Finding>)| {
        a.1.extend(b.1);
        (a.0.add(b.0), a.1)
    };
    let sum = groups.par_iter().map(run).reduce(Default::default, both);
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, finding)) => Err(finding),
        None => Ok(sum),
    }
}

fn alone(launch: &Launch<'_>, ids: &[u64]) -> Outcome {
    let mut group = Group::new(launch, ids);
    loop {
        match group.advance(TURN)? {
            Advance::Done => return Ok(group.finish()),
            Advance::Blocked if group.skip_time() => {}
            Advance::Blocked => return Err(group.stuck()),
            Advance::Slice => {}
        }
    }
}

/// The clusters that are on the device, and those that are not yet.
struct Resident<'c> {
    runnable: VecDeque<Group<'c>>,
    /// Those that spin, with what had changed when they were last looked at.
    spinning: VecDeque<(Group<'c>, u64)>,
    random: u64,
}

impl Resident<'_> {
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % below.max(1)
    }
}

fn in_turns(launch: &Launch<'_>, groups: &[Vec<u64>]) -> Outcome {
    let seed = match launch.config.schedule {
        // Clusters that tell each other something run in a mixed order too, always the same.
        Schedule::Deterministic if launch.orders_clusters && launch.config.timer.is_none() => 0x9e37_79b9,
        Schedule::Deterministic => 0,
        Schedule::Seeded(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    };
    let mut resident = Resident { runnable: VecDeque::new(), spinning: VecDeque::new(), random: seed };
    let mut waiting = groups.iter();
    let mut sum = (Counters::default(), Vec::new());
    let changes = || launch.memory.changes.load(Relaxed);
    let timer = launch.config.timer.as_ref();
    let most = timer.map_or(launch.resident_groups, |timer| timer.resident_ctas().max(1));
    loop {
        let room = resident.runnable.len() + resident.spinning.len() < most;
        let few = launch.config.schedule == Schedule::Deterministic && resident.runnable.len() >= FEW;
        let shuffles = timer.is_some() || seed != 0 && !few && resident.random(2) == 0;
        let starts = room && (resident.runnable.is_empty() || shuffles);
        if starts && let Some(ids) = waiting.next() {
            resident.runnable.push_back(Group::new(launch, ids));
            if timer.is_some() {
                continue;
            }
        }
        if resident.runnable.is_empty() {
            let now = changes();
            let changed = resident.spinning.iter().position(|(_, seen)| *seen != now);
            let spinning = &mut resident.spinning;
            let Some(at) = changed.or_else(|| spinning.iter_mut().position(|(group, _)| group.skip_time()))
            else {
                break;
            };
            resident.runnable.extend(resident.spinning.remove(at).map(|(group, _)| group));
        }
        let at = match timer {
            // Who is behind in the model of time, so that what is handed out goes to who is free first.
            Some(_) => {
                (0..resident.runnable.len()).min_by_key(|at| resident.runnable[*at].now()).unwrap_or(0)
            }
            None if seed == 0 => 0,
            None => resident.random(resident.runnable.len()),
        };
        let Some(mut group) = resident.runnable.remove(at) else { continue };
        let turn = match timer {
            Some(_) => TIMED_TURN,
            None if seed == 0 => TURN,
            // Short turns are as frequent as long ones, so that either side of a queue is ahead at times.
            None => {
                let longest = 1 << (1 + resident.random(SHORT));
                1 + resident.random(longest) as u64
            }
        };
        match group.advance(turn)? {
            Advance::Done => {
                let (counters, warnings) = group.finish();
                sum.0 = sum.0.add(counters);
                sum.1.extend(warnings);
            }
            Advance::Slice => resident.runnable.push_back(group),
            Advance::Blocked => {
                let seen = changes();
                resident.spinning.push_back((group, seen));
            }
        }
        if resident.runnable.is_empty() && resident.spinning.is_empty() && waiting.len() == 0 {
            return Ok(sum);
        }
    }
    match resident.spinning.pop_front() {
        Some((mut group, _)) => Err(group.stuck()),
        None => Ok(sum),
    }
}
