//! The plans of a rank's launches, which follow each other: what one leaves idle at its end the next one fills.

use super::Task;
use crate::Error;
use crate::context::Setup;
use ferroflash::{Plan, PlanOptions, Planner, Splits};

/// Of more tiles the end counts for nothing, and looking for the best takes longer than is worth it.
const TILES_MOST: u64 = 1 << 16;

/// The plans of tasks, of one range of keys each where together they keep the device busy. Of the last one as many heads are taken in turns as
/// leave the fewest multiprocessors idle at the end, where the tiles of a chunk are about as long as each other, and the last ones as the first; at
/// most those that the plan would take by itself. A kernel that splits keys has no such order and keeps its own: one of the same tile that has
/// took no less time.
pub(super) fn plans(planner: &Planner, setup: &Setup, tasks: &[Task]) -> Result<Vec<Plan>, Error> {
    let plan = |task: &Task, options: PlanOptions| setup.plan(planner, &task.cut, options);
    let mut plans: Vec<Plan> =
        tasks.iter().map(|task| plan(task, PlanOptions::new())).collect::<Result<_, _>>()?;
    if keep_busy(planner, &plans) {
        let split = plans.iter_mut().zip(tasks).filter(|(plan, _)| plan.splits() > 1);
        for (planned, task) in split {
            *planned = plan(task, PlanOptions { splits: Splits::Count(1), ..PlanOptions::new() })?;
        }
    }
    let (Some(last), Some(task)) = (plans.pop(), tasks.last()) else { return Ok(plans) };
    let tiles = plans.iter().chain([&last]).map(|plan| u64::from(plan.tiles())).sum::<u64>();
    let until_end = |last: &Plan| planner.makespan(&plans.iter().chain([last]).collect::<Vec<_>>());
    let mut best = last.clone();
    if let Some(mut least) = until_end(&last).filter(|_| tiles <= TILES_MOST) {
        let mut fewer = last.heads_together() / 2;
        while fewer > 0 {
            let other = plan(task, PlanOptions { heads_together: Some(fewer), ..PlanOptions::new() })?;
            let alike = Some(&other).filter(|other| other.kernel().entry == last.kernel().entry);
            if let Some(end) = alike.and_then(until_end).filter(|end| *end < least) {
                (best, least) = (other.clone(), end);
            }
            fewer = other.heads_together().min(fewer) / 2;
        }
    }
    plans.push(best);
    Ok(plans)
}

/// Whether the tiles of plans that follow each other fill the device twice: a launch that leaves multiprocessors idle at its end leaves them to
/// the next one then, so that to split its keys gains nothing, and would cost a merge and one device's bits.
fn keep_busy(planner: &Planner, plans: &[Plan]) -> bool {
    let tiles: u64 = plans.iter().map(|plan| u64::from(plan.tiles())).sum();
    let room = plans.iter().map(|plan| plan.resident_ctas() * planner.device().sm_count).max();
    room.is_some_and(|room| tiles >= 2 * u64::from(room))
}

#[cfg(test)]
mod tests {
    use super::super::tests::setup;
    use super::super::{head_groups, tasks};
    use super::plans;
    use crate::context::{ContextOptions, Setup};
    use ferroflash::{DeviceModel, PlanOptions, Planner, RowSelection};

    #[test]
    fn the_last_tiles_are_taken_in_the_order_that_leaves_least_idle() {
        let planner = Planner::of_table(&DeviceModel::H200.info());
        // One that has an order: kernels that split their keys have none.
        let rows = RowSelection::Named("fwd_wgmma_bf16_d128_m128n128_w12s3c1_persistent".to_owned());
        let options = ContextOptions { rows, ..ContextOptions::default() };
        let setup = Setup::new(&setup(16384, (1, 2)).problem, (1, 2), &options).expect("split");
        for groups in [head_groups(&setup), std::iter::once(0..8).collect()] {
            let tasks = tasks(&setup, &groups).expect("tasks");
            let ordered = plans(&planner, &setup, &tasks).expect("planned");
            let of = |heads_together| -> Vec<_> {
                let options = PlanOptions { heads_together, ..PlanOptions::new() };
                let plan = |task: &super::super::Task| {
                    setup.plan(&planner, &task.cut, options.clone()).expect("planned")
                };
                tasks.iter().map(plan).collect()
            };
            let end = |plans: &[_]| planner.makespan(&plans.iter().collect::<Vec<_>>()).expect("no splits");
            let (found, as_planned, all_at_once) = (end(&ordered), end(&of(None)), end(&of(Some(u32::MAX))));
            assert!(found < as_planned, "{found} for {as_planned}");
            assert!(found * 1000 <= all_at_once * 994, "{found} for {all_at_once}");
        }
    }

    #[test]
    fn keys_are_split_only_where_all_launches_together_leave_the_device_idle() {
        let planner = Planner::of_table(&DeviceModel::H200.info());
        let splits = |tokens, world: u32| -> Vec<u32> {
            let of_rank = |rank| {
                let setup = setup(tokens, (rank, world));
                let tasks = tasks(&setup, &head_groups(&setup)).expect("tasks");
                plans(&planner, &setup, &tasks).expect("planned")
            };
            (0..world).flat_map(of_rank).map(|plan| plan.splits()).collect()
        };
        for world in [2, 4, 8] {
            assert!(splits(8192 * world, world).iter().all(|&splits| splits == 1), "{world} ranks");
        }
        assert!(splits(32768, 64).iter().any(|&splits| splits > 1), "two tiles a head and chunk");
    }
}
