//! The loop over a grid, with stand-ins for kernels: right ones pass, wrong ones are named.

use crate::support;
use check::reference::reference_of;
use check::verification::{Grid, KernelRun, Observer, RowReport, RunKernel, verify_rows};
use ferroflash::module::kernels_of_table;
use ferroflash::{Dtype, Error, Layout, Output, Row, Schedule, Splits};
use kernels_gpu::manifest::Kernel;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

support::trials!(
    right_kernels_pass_in_every_case,
    each_planted_error_is_reported_with_its_case,
    a_run_that_differs_is_found,
    the_quick_grid_has_the_other_layout_of_every_case_for_the_other_dtype,
    the_odd_grid_has_every_length_ratio_and_mask,
    grids_have_every_way_to_split_and_every_group_with_and_without_lengths,
);

#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// The softmax scale is 5 % off.
    Scale,
    /// The causal mask is ignored.
    Mask,
    /// Heads of one group are mixed up.
    Group,
    /// The last row is not written.
    LastRow,
    /// Every hundredth run flips a bit.
    Flicker,
    /// It does not run at all.
    Fails,
}

/// The reference in place of a kernel.
struct StandIn {
    planted: Planted,
    runs: AtomicUsize,
}

impl RunKernel for StandIn {
    fn run(&self, run: &KernelRun<'_>) -> Result<Output, Error> {
        let KernelRun { kernel, problem, ref tensors, .. } = *run;
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let posed = match self.planted {
            Planted::Scale => problem.with_scale(problem.scale() * 1.05)?,
            Planted::Mask => problem.with_causal(false),
            Planted::Fails => {
                let wanted = kernel.entry.clone();
                return Err(Error::NoSuchKernel { wanted, available: "none".to_owned() });
            }
            _ => *problem,
        };
        let mut computed = reference_of(&posed, tensors, &|_, _| ());
        if self.planted == Planted::Group && problem.group() > 1 {
            computed.o.reverse();
        }
        if self.planted == Planted::LastRow {
            let head_dim = problem.sizes().head_dim as usize;
            let last = computed.o.len() - head_dim;
            computed.o[last..].fill(f64::NAN);
        }
        let mut output = computed.rounded(problem.dtype());
        if self.planted == Planted::Flicker && number % 100 == 99 {
            output.o[0] ^= 1;
        }
        Ok(output)
    }
}

#[derive(Default)]
struct Seen {
    finished: Vec<String>,
    last: (usize, usize),
}

impl Observer for Seen {
    fn advanced(&mut self, done: usize, total: usize) {
        self.last = (done, total);
    }

    fn finished(&mut self, report: &RowReport) {
        self.finished.push(report.entry.clone());
    }
}

/// The first two kernels of the table with head_dim 32, one with 64, and one that splits keys.
fn kernels() -> Vec<Arc<Kernel>> {
    let (all, _) = kernels_of_table();
    let of = |head_dim, schedule| {
        let is_it =
            move |kernel: &&Arc<Kernel>| (kernel.row.head_dim, kernel.row.schedule) == (head_dim, schedule);
        all.iter().filter(is_it).cloned()
    };
    of(32, Schedule::Grid)
        .take(2)
        .chain(of(64, Schedule::Grid).take(1))
        .chain(of(64, Schedule::Split).take(1))
        .collect()
}

fn verify(planted: Planted, repeats: usize) -> (Vec<RowReport>, Seen) {
    let stand_in = StandIn { planted, runs: AtomicUsize::new(0) };
    let mut seen = Seen::default();
    let reports = verify_rows(&kernels(), Grid::Quick, 5, repeats, &stand_in, &mut seen).expect("posed");
    (reports, seen)
}

fn right_kernels_pass_in_every_case() {
    let (reports, seen) = verify(Planted::Nothing, 3);
    assert_eq!(reports.len(), kernels().len());
    for report in &reports {
        assert_eq!((report.failed, &report.first_failure), (0, &None), "{report:?}");
        let splits = report.entry.ends_with("_split");
        let cases = Grid::Quick.cases().into_iter().filter(|case| splits || !case.lengths).count();
        assert_eq!((report.cases, report.repeats), (cases, 3), "in one layout each");
        assert!(report.worst_ratio > 0.0 && report.worst_ratio < 1.0, "{report:?}");
    }
    assert_eq!(seen.finished.len(), reports.len());
    assert_eq!(seen.last, (Grid::Quick.cases().len(), Grid::Quick.cases().len()));
}

fn each_planted_error_is_reported_with_its_case() {
    for (planted, in_case) in [
        (Planted::Scale, ""),
        (Planted::Mask, "causal"),
        (Planted::Group, "H3/1"),
        (Planted::LastRow, ""),
        (Planted::Fails, ""),
    ] {
        for report in verify(planted, 0).0 {
            assert!(report.failed > 0, "{report:?}");
            let failure = report.first_failure.expect("said");
            assert!(failure.contains(in_case), "{failure}");
        }
    }
}

fn a_run_that_differs_is_found() {
    let (reports, _) = verify(Planted::Flicker, 250);
    assert!(reports.iter().all(|report| report.failed > 0 && report.repeats < 250), "{reports:?}");
}

fn the_quick_grid_has_the_other_layout_of_every_case_for_the_other_dtype() {
    for case in Grid::Quick.cases() {
        let layouts = [Dtype::F16, Dtype::Bf16].map(|dtype| Grid::Quick.layouts(&case, dtype));
        assert_eq!(layouts.concat().iter().collect::<HashSet<_>>().len(), 2, "{case}");
    }
}

fn the_odd_grid_has_every_length_ratio_and_mask() {
    let lengths = [1, 17, 63, 65, 127, 199, 513, 1023];
    let cases = Grid::Odd.cases();
    for seqlen_q in lengths {
        for seqlen_k in lengths {
            for causal in [false, true] {
                let here = |case: &&check::verification::Case| {
                    case.seqlens == (seqlen_q, seqlen_k) && case.causal == causal
                };
                let ratios: BTreeSet<u32> =
                    cases.iter().filter(here).map(|case| case.heads.0 / case.heads.1).collect();
                assert!(ratios.is_superset(&BTreeSet::from([1, 2, 3])), "{seqlen_q} {seqlen_k} {causal}");
            }
        }
    }
}

fn grids_have_every_way_to_split_and_every_group_with_and_without_lengths() {
    let row = kernels().iter().find(|kernel| kernel.row.schedule == Schedule::Split).expect("one").row;
    for grid in [Grid::Quick, Grid::Odd] {
        let mut ways = BTreeSet::new();
        let mut groups = BTreeSet::new();
        for case in grid.cases() {
            let layouts = grid.layouts(&case, row.dtype).iter();
            let splits =
                layouts.map(|&layout| case.options(&row, usize::from(layout == Layout::Bshd)).splits);
            ways.extend(splits.map(|splits| match splits {
                Splits::Auto => "auto".to_owned(),
                Splits::Count(count) => count.to_string(),
                Splits::Size(_) => "size".to_owned(),
            }));
            if case.seqlens.0 <= 16 {
                groups.insert((case.heads.0 / case.heads.1, case.lengths));
            }
            assert_ne!(case.fits(&Row { schedule: Schedule::Grid, ..row }), case.lengths, "{case}");
            if case.lengths {
                let problem = case.problem(row.dtype, row.head_dim).expect("valid");
                let lengths = case.inputs(&problem, 0).1.expect("lengths");
                let keys = case.seqlens.1;
                assert!(lengths.iter().any(|&length| length == 0 || length > keys), "{case} {lengths:?}");
            }
        }
        assert_eq!(ways, ["1", "2", "256", "3", "auto", "size"].map(String::from).into());
        let all = [1, 2, 3, 4, 8].into_iter().flat_map(|group| [(group, false), (group, true)]);
        assert_eq!(groups, all.collect());
    }
    let queries: BTreeSet<u32> = Grid::Odd.cases().iter().map(|case| case.seqlens.0).collect();
    assert!([1, 2, 3, 5, 8, 11, 16].iter().all(|queries_now| queries.contains(queries_now)));
}
