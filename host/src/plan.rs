//! Which kernel computes a problem on a device, with which grid and parameters.

use crate::device::DeviceInfo;
use crate::error::Error;
use crate::module::Library;
use crate::problem::{Problem, TensorRole};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::ForwardParams;
use kernels_gpu::row::{Accumulation, Row};
use std::sync::Arc;

/// The most CTAs along the first dimension of a grid.
const GRID_MAX: u64 = (1 << 31) - 1;

/// The mask that a line of [`BEST`] was measured with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    Any,
    Full,
    Causal,
}

/// A measured preference: on these architectures, for this head_dim and mask, this row, once its own grid has so many CTAs an SM.
struct Best {
    /// First and last compute capability, 80 and 89 for Ampere and Ada.
    sm: (u32, u32),
    head_dim: u32,
    mask: Mask,
    /// The least CTAs an SM that the row's grid must have.
    ctas_per_sm: f64,
    /// block_m, block_n, warps, stages, min_ctas.
    row: (u32, u32, u32, u32, u32),
}

const fn best(
    sm: (u32, u32),
    head_dim: u32,
    mask: Mask,
    ctas_per_sm: f64,
    row: (u32, u32, u32, u32, u32),
) -> Best {
    Best { sm, head_dim, mask, ctas_per_sm, row }
}

/// Measured on an H200 over 15 shapes of 64 to 4096 keys, both masks, f16; other architectures take the same lines.
/// Between one and two waves of CTAs the balance decides, not the tile: there the preference goes back and forth.
///
/// The first line that fits is taken, so within an architecture and head_dim the rows of large grids stand before those of
/// small ones. Both dtypes share a line. Where no line fits, or its kernel was not compiled, [`fallback`] chooses.
const BEST: &[Best] = &[
    // sm       head_dim mask       CTAs/SM  block_m block_n warps stages min_ctas
    best((80, 999), 32, Mask::Full, 1.75, (128, 64, 4, 2, 1)),
    best((80, 999), 32, Mask::Causal, 15.0, (128, 64, 4, 2, 1)),
    best((80, 999), 32, Mask::Any, 1.9, (64, 64, 4, 2, 1)),
    best((80, 999), 32, Mask::Any, 0.0, (32, 128, 4, 2, 1)),
    best((80, 999), 64, Mask::Full, 1.75, (128, 64, 4, 2, 1)),
    best((80, 999), 64, Mask::Causal, 7.5, (128, 64, 4, 2, 1)),
    best((80, 999), 64, Mask::Any, 1.9, (64, 64, 4, 3, 1)),
    best((80, 999), 64, Mask::Any, 2.5, (32, 128, 4, 2, 1)),
    best((80, 999), 64, Mask::Any, 0.75, (64, 128, 4, 2, 1)),
    best((80, 999), 64, Mask::Any, 0.0, (32, 128, 4, 2, 1)),
    best((80, 999), 96, Mask::Full, 1.75, (128, 64, 4, 1, 1)),
    best((80, 999), 96, Mask::Causal, 7.0, (128, 64, 4, 1, 1)),
    best((80, 999), 96, Mask::Any, 2.2, (64, 64, 4, 2, 1)),
    best((80, 999), 96, Mask::Any, 0.7, (128, 64, 4, 1, 1)),
    best((80, 999), 96, Mask::Any, 0.75, (64, 64, 4, 2, 1)),
    best((80, 999), 96, Mask::Any, 0.0, (32, 64, 4, 2, 1)),
    best((80, 999), 128, Mask::Full, 1.75, (128, 64, 4, 1, 1)),
    best((80, 999), 128, Mask::Causal, 7.0, (128, 64, 4, 1, 1)),
    best((80, 999), 128, Mask::Full, 2.2, (64, 32, 4, 2, 1)),
    best((80, 999), 128, Mask::Causal, 1.9, (64, 32, 4, 2, 1)),
    best((80, 999), 128, Mask::Any, 0.7, (128, 64, 4, 1, 1)),
    best((80, 999), 128, Mask::Any, 0.0, (32, 128, 4, 1, 1)),
    best((80, 999), 256, Mask::Any, 0.75, (64, 64, 4, 1, 1)),
    best((80, 999), 256, Mask::Any, 0.0, (32, 64, 4, 1, 1)),
];

/// How one problem is computed: the kernel, its grid, and its parameters but for the addresses.
#[derive(Clone, Debug)]
pub struct Plan {
    kernel: Arc<Kernel>,
    problem: Problem,
    grid: u32,
    params: ForwardParams,
}

/// The addresses of a launch, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Q.
    pub q: u64,
    /// K.
    pub k: u64,
    /// V.
    pub v: u64,
    /// O.
    pub o: u64,
    /// LSE, 0 where none is wanted.
    pub lse: u64,
}

/// Which of the rows that can compute a problem are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// The one that the measured table prefers.
    Best,
    /// Every one.
    All,
    /// The one of this name; with a name of another dtype or head_dim, none.
    Named(String),
}

impl std::str::FromStr for RowSelection {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<RowSelection, Self::Err> {
        Ok(match text {
            "best" => RowSelection::Best,
            "all" => RowSelection::All,
            name => RowSelection::Named(name.to_owned()),
        })
    }
}

impl Plan {
    /// The plan that runs this kernel, whether or not it is the best.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where the kernel cannot compute the problem, [`Error::TooLarge`] where its grid is.
    pub fn with_kernel(problem: &Problem, kernel: &Arc<Kernel>) -> Result<Plan, Error> {
        let row = &kernel.row;
        let sizes = *problem.sizes();
        if (row.dtype, row.head_dim) != (problem.dtype(), sizes.head_dim) {
            let found = format!("{} is for {} and head_dim {}", kernel.entry, row.dtype.name(), row.head_dim);
            return Err(Error::NoSuchKernel { wanted: wanted(problem), available: found });
        }
        let ctas = geometry::ctas(row, sizes.batch, sizes.heads_q, sizes.seqlen_q);
        if ctas > GRID_MAX {
            let what = "the number of CTAs (batch × heads_q × blocks of queries)";
            return Err(Error::TooLarge { what, value: ctas.to_string(), limit: GRID_MAX });
        }
        let params = ForwardParams {
            q_strides: problem.byte_strides(TensorRole::Q),
            k_strides: problem.byte_strides(TensorRole::K),
            v_strides: problem.byte_strides(TensorRole::V),
            o_strides: problem.byte_strides(TensorRole::O),
            seqlen_q: sizes.seqlen_q,
            seqlen_k: sizes.seqlen_k,
            heads_q: Divisor::new(sizes.heads_q),
            group: Divisor::new(problem.group()),
            query_blocks: Divisor::new(geometry::query_blocks(row, sizes.seqlen_q)),
            causal: problem.causal().into(),
            scale_log2: problem.scale_log2(),
            ..ForwardParams::default()
        };
        Ok(Plan { kernel: kernel.clone(), problem: *problem, grid: ctas as u32, params })
    }

    /// The plan that the measured table prefers on this device.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where no compiled kernel computes the problem there, [`Error::TooLarge`].
    pub fn best(problem: &Problem, library: &Library, device: &DeviceInfo) -> Result<Plan, Error> {
        match choose(BEST, problem, library, device) {
            Some(kernel) => Plan::with_kernel(problem, kernel),
            None => Err(no_kernel(problem, library, device)),
        }
    }

    /// The plans of the rows selected; never an empty list.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where there is none, [`Error::TooLarge`].
    pub fn select(
        problem: &Problem,
        library: &Library,
        device: &DeviceInfo,
        rows: &RowSelection,
    ) -> Result<Vec<Plan>, Error> {
        let kernels: Vec<&Arc<Kernel>> = match rows {
            RowSelection::Best => return Ok(vec![Plan::best(problem, library, device)?]),
            RowSelection::All => usable(problem, library, device).collect(),
            RowSelection::Named(name) => {
                let named: Vec<_> = library.kernels().iter().filter(|kernel| kernel.entry == *name).collect();
                if named.is_empty() {
                    let names: Vec<&str> =
                        library.kernels().iter().map(|kernel| kernel.entry.as_str()).collect();
                    let available = format!("there are {}", names.join(", "));
                    return Err(Error::NoSuchKernel { wanted: name.clone(), available });
                }
                let runs = |kernel: &&Arc<Kernel>| runs_on(kernel, library, device);
                named.into_iter().filter(runs).collect()
            }
        };
        if kernels.is_empty() {
            return Err(no_kernel(problem, library, device));
        }
        kernels.into_iter().map(|kernel| Plan::with_kernel(problem, kernel)).collect()
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// CTAs of the launch.
    pub fn grid(&self) -> u32 {
        self.grid
    }

    /// The parameters of a launch with these addresses.
    pub fn params(&self, at: &Addresses) -> ForwardParams {
        ForwardParams { q: at.q, k: at.k, v: at.v, o: at.o, lse: at.lse, ..self.params }
    }
}

impl Best {
    fn fits(&self, problem: &Problem, device: &DeviceInfo) -> bool {
        let mask_fits = match self.mask {
            Mask::Any => true,
            Mask::Full => !problem.causal(),
            Mask::Causal => problem.causal(),
        };
        (self.sm.0..=self.sm.1).contains(&device.sm) && self.head_dim == problem.sizes().head_dim && mask_fits
    }

    fn names(&self, row: &Row) -> bool {
        (row.block_m, row.block_n, row.warps, row.stages, row.min_ctas) == self.row
    }
}

/// The kernel of the first line that fits, else of [`fallback`]. Only float32 accumulation is chosen unasked.
fn choose<'a>(
    table: &[Best],
    problem: &Problem,
    library: &'a Library,
    device: &DeviceInfo,
) -> Option<&'a Arc<Kernel>> {
    let usable = || usable(problem, library, device).filter(|kernel| kernel.row.acc == Accumulation::F32);
    let measured = table.iter().filter(|best| best.fits(problem, device)).find_map(|best| {
        usable()
            .find(|kernel| best.names(&kernel.row) && fills(&kernel.row, problem, device, best.ctas_per_sm))
    });
    measured.or_else(|| fallback(usable(), problem, device))
}

/// CTAs an SM that a row's grid has.
pub fn ctas_per_sm(row: &Row, problem: &Problem, sm_count: u32) -> f64 {
    let sizes = problem.sizes();
    geometry::ctas(row, sizes.batch, sizes.heads_q, sizes.seqlen_q) as f64 / f64::from(sm_count.max(1))
}

fn fills(row: &Row, problem: &Problem, device: &DeviceInfo, least: f64) -> bool {
    ctas_per_sm(row, problem, device.sm_count) >= least
}

/// Of the kernels that can compute the problem: one whose grid gives every SM a CTA before one whose does not, then the largest
/// tile where SMs are busy and the smallest where they are not, then more stages; the name decides what is left, so that the
/// choice is always the same.
fn fallback<'a>(
    kernels: impl Iterator<Item = &'a Arc<Kernel>>,
    problem: &Problem,
    device: &DeviceInfo,
) -> Option<&'a Arc<Kernel>> {
    kernels.max_by_key(|kernel| {
        let row = &kernel.row;
        let busy = fills(row, problem, device, 1.0);
        let tile = i64::from(row.block_m * row.block_n);
        (busy, if busy { tile } else { -tile }, row.stages, std::cmp::Reverse(&kernel.entry))
    })
}

/// The kernels that can compute the problem on the device.
fn usable<'a>(
    problem: &Problem,
    library: &'a Library,
    device: &DeviceInfo,
) -> impl Iterator<Item = &'a Arc<Kernel>> {
    let wanted = (problem.dtype(), problem.sizes().head_dim);
    library.kernels().iter().filter(move |kernel| {
        (kernel.row.dtype, kernel.row.head_dim) == wanted && runs_on(kernel, library, device)
    })
}

fn runs_on(kernel: &Kernel, library: &Library, device: &DeviceInfo) -> bool {
    kernel.smem_bytes <= device.smem_opt_in_bytes && library.source(kernel, device.sm).is_some()
}

fn wanted(problem: &Problem) -> String {
    format!("for {} and head_dim {}", problem.dtype().name(), problem.sizes().head_dim)
}

fn no_kernel(problem: &Problem, library: &Library, device: &DeviceInfo) -> Error {
    let available = format!(
        "none of the {} in {} computes it on sm_{}; run `cargo xtask build-ptx`",
        library.kernels().len(),
        library.folder().display(),
        device.sm
    );
    Error::NoSuchKernel { wanted: wanted(problem), available }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::tests::Recorder;
    use crate::module::tests::library;
    use crate::problem::{Layout, Sizes};
    use kernels_gpu::row::{Dtype, HEAD_DIMS};
    use kernels_gpu::table::VARIANTS;

    /// A usual row, for tests to vary.
    pub(crate) const ROW: Row = Row {
        dtype: Dtype::F16,
        head_dim: 64,
        block_m: 64,
        block_n: 64,
        warps: 4,
        stages: 2,
        acc: Accumulation::F32,
        min_ctas: 1,
    };
    const TALL: Row = Row { block_m: 128, ..ROW };
    const LOW: Row = Row { block_m: 32, ..ROW };

    fn problem(batch: u32, seqlen: u32) -> Problem {
        let sizes =
            Sizes { batch, heads_q: 8, heads_kv: 2, seqlen_q: seqlen, seqlen_k: seqlen, head_dim: 64 };
        Problem::new(sizes, Dtype::F16).expect("valid")
    }

    fn info(sm: u32, sm_count: u32) -> DeviceInfo {
        Recorder::new(sm, sm_count).info().clone()
    }

    #[test]
    fn parameters_are_the_problems() {
        let sizes = Sizes { batch: 3, heads_q: 8, heads_kv: 2, seqlen_q: 65, seqlen_k: 17, head_dim: 64 };
        let problem =
            Problem::new(sizes, Dtype::F16).expect("valid").with_layout(Layout::Bshd).with_causal(true);
        let plan = Plan::best(&problem, &library(&[ROW]), &info(80, 1)).expect("planned");
        assert_eq!(plan.grid(), 3 * 8 * 2);
        let at = Addresses { q: 16, k: 32, v: 48, o: 64, lse: 80 };
        let params = plan.params(&at);
        assert_eq!((params.q, params.k, params.v, params.o, params.lse), (16, 32, 48, 64, 80));
        assert_eq!(
            (params.seqlen_q, params.seqlen_k, params.heads_q.value, params.group.value),
            (65, 17, 8, 4)
        );
        assert_eq!((params.query_blocks.value, params.causal), (2, 1));
        assert_eq!(params.scale_log2, 0.125 * std::f32::consts::LOG2_E);
        assert_eq!((params.q_strides.row, params.q_strides.head), (8 * 128, 128));
        assert_eq!((params.k_strides.batch, params.v_strides.row), (17 * 2 * 128, 2 * 128));
        assert_eq!(params.o_strides, params.q_strides);
    }

    #[test]
    fn the_first_line_that_fits_is_taken_and_small_grids_get_smaller_blocks() {
        let library = library(&[LOW, ROW, TALL]);
        let table = [
            best((90, 90), 64, Mask::Any, 0.0, (64, 64, 4, 2, 1)),
            best((80, 89), 64, Mask::Causal, 0.0, (32, 64, 4, 2, 1)),
            best((80, 89), 64, Mask::Any, 2.0, (128, 64, 4, 2, 1)),
            best((80, 89), 64, Mask::Any, 0.0, (64, 64, 4, 2, 1)),
        ];
        let block_m = |problem: &Problem, device: &DeviceInfo| {
            choose(&table, problem, &library, device).expect("one fits").row.block_m
        };
        // 8 heads × 4 blocks of 128 rows are 2 CTAs an SM of 16.
        assert_eq!(block_m(&problem(1, 512), &info(89, 16)), 128);
        assert_eq!(block_m(&problem(1, 512), &info(89, 17)), 64);
        assert_eq!(block_m(&problem(1, 512).with_causal(true), &info(89, 16)), 32);
        assert_eq!(block_m(&problem(1, 512), &info(90, 16)), 64);
    }

    #[test]
    fn without_a_line_any_kernel_that_fits_is_taken_the_smallest_where_sms_would_idle() {
        let library = library(&[TALL, LOW, ROW]);
        let block_m = |sm_count| {
            choose(&[], &problem(1, 512), &library, &info(80, sm_count)).expect("one fits").row.block_m
        };
        assert_eq!((block_m(32), block_m(33), block_m(64), block_m(1000)), (128, 64, 64, 32));
    }

    #[test]
    fn every_row_of_the_table_lines_is_one_that_can_exist() {
        for best in BEST {
            let (block_m, block_n, warps, stages, min_ctas) = best.row;
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let head_dim = best.head_dim;
                let row = Row {
                    dtype,
                    head_dim,
                    block_m,
                    block_n,
                    warps,
                    stages,
                    acc: Accumulation::F32,
                    min_ctas,
                };
                assert_eq!(row.check(), Ok(()));
                assert!(
                    VARIANTS.iter().any(|variant| variant.row == row),
                    "{} is not in the table",
                    row.entry_name()
                );
            }
        }
    }

    #[test]
    fn every_head_dim_and_dtype_has_a_plan_on_every_family() {
        let rows: Vec<Row> = VARIANTS.iter().map(|variant| variant.row).collect();
        let library = library(&rows);
        for head_dim in HEAD_DIMS {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let sizes = Sizes { head_dim, ..*problem(1, 128).sizes() };
                let problem = Problem::new(sizes, dtype).expect("valid");
                for sm in [80, 86, 89, 90, 100, 120] {
                    let plan = Plan::best(&problem, &library, &info(sm, 58)).expect("planned");
                    assert_eq!((plan.kernel().row.dtype, plan.kernel().row.head_dim), (dtype, head_dim));
                }
            }
        }
    }

    #[test]
    fn rows_are_selected_by_name_and_f16_accumulation_only_so() {
        let half = Row { acc: Accumulation::F16, ..ROW };
        let bf16 = Row { dtype: Dtype::Bf16, ..ROW };
        let library = library(&[half, ROW, bf16]);
        let device = info(89, 58);
        let select = |rows: &str| {
            let rows = rows.parse().expect("any text is a selection");
            Plan::select(&problem(1, 64), &library, &device, &rows)
        };
        let names =
            |rows| select(rows).expect("some").iter().map(|plan| plan.kernel().row).collect::<Vec<_>>();
        assert_eq!(names("best"), [ROW]);
        assert_eq!(names("all"), [half, ROW]);
        assert_eq!(names(&half.entry_name()), [half]);
        let error = select("fwd_nothing").expect_err("unknown").to_string();
        assert!(error.starts_with("no kernel fwd_nothing: there are fwd_f16"), "{error}");
        assert!(matches!(select(&bf16.entry_name()), Err(Error::NoSuchKernel { .. })), "another dtype");
        let wide =
            Problem::new(Sizes { head_dim: 32, ..*problem(1, 64).sizes() }, Dtype::F16).expect("valid");
        assert!(matches!(Plan::best(&wide, &library, &device), Err(Error::NoSuchKernel { .. })));
    }

    #[test]
    fn a_grid_over_the_limit_and_shared_memory_over_the_devices_are_refused() {
        let sizes =
            Sizes { batch: 1 << 15, heads_q: 1 << 15, heads_kv: 1, seqlen_q: 129, seqlen_k: 1, head_dim: 64 };
        let large = Problem::new(sizes, Dtype::F16).expect("valid");
        assert!(matches!(Plan::best(&large, &library(&[ROW]), &info(80, 1)), Err(Error::TooLarge { .. })));
        let small = DeviceInfo { smem_opt_in_bytes: 1024, ..info(80, 1) };
        assert!(matches!(
            Plan::best(&problem(1, 1), &library(&[ROW]), &small),
            Err(Error::NoSuchKernel { .. })
        ));
    }
}
