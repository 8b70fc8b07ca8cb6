//! Every kernel of the table on the simulator, and on the GPU; the latter are ignored, by name and with the reason,
//! where there is none.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::verification::{Grid, Observer, Oracle, RowReport, verify_rows};
use ferroflash::device::sim::SimDevice;
use ferroflash::module::Source;
use ferroflash::{
    Attention, CudaOptions, DeviceModel, ElementStrides, Error, HostTensors, PlanOptions, Problem, Row,
    RowSelection, Schedule, SimOptions, Splits, TensorRole,
};
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Dtype, Isa};
use kernels_gpu::table::{VARIANTS, Variant};
use libtest_mimic::{Completion, Failed, Trial};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Runs of one problem on the GPU that must be equal in every bit.
const GPU_REPEATS: usize = 250;
/// The compute capability that runs kernels with wgmma.
const WGMMA_SM: u32 = 90;

/// What a row is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum On {
    Gpu,
    Simulator,
}

impl On {
    const ALL: [On; 2] = [On::Gpu, On::Simulator];

    fn name(self) -> &'static str {
        match self {
            On::Gpu => "gpu",
            On::Simulator => "simulator",
        }
    }
}

/// Kernels that share their references: those of one dtype and head_dim, on one device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key(On, u32, Dtype);

impl Key {
    fn of(on: On, variant: &Variant) -> Key {
        Key(on, variant.row.head_dim, variant.row.dtype)
    }
}

/// The tests of this module: one a kernel and device.
pub(crate) fn trials() -> Vec<Trial> {
    let mut odd_lengths: Vec<(usize, Trial)> = Vec::new();
    let mut before: HashMap<Key, usize> = HashMap::new();
    for (on, variant) in On::ALL.into_iter().flat_map(|on| VARIANTS.iter().map(move |variant| (on, variant)))
    {
        let of_group = before.entry(Key::of(on, variant)).or_default();
        let name = format!("{}::odd_lengths::{}", on.name(), variant.entry);
        odd_lengths.push((*of_group, Trial::ignorable_test(name, move || kernel_is_right(on, variant))));
        *of_group += 1;
    }
    // The first kernel of each group first: the threads take a group each, instead of waiting for each other's.
    odd_lengths.sort_by_key(|(of_group, _)| *of_group);
    let odd_lengths = odd_lengths.into_iter().map(|(_, trial)| trial);
    // Scores are not what these are about: `odd_lengths` has them all.
    let plain = || VARIANTS.iter().filter(|variant| variant.row.score.is_plain());
    // Where a kernel's threads meet in shared memory does not depend on which 16 bits an element has.
    let conflicts = plain().filter(|variant| variant.row.dtype == Dtype::F16).map(|variant| {
        Trial::test(format!("simulator::bank_conflicts::{}", variant.entry), || no_bank_conflicts(variant))
    });
    let strided = On::ALL.into_iter().flat_map(|on| {
        let wgmma = plain().filter(|variant| variant.row.isa == Isa::Wgmma);
        wgmma.map(move |variant| {
            let name = format!("{}::strides::{}", on.name(), variant.entry);
            Trial::ignorable_test(name, move || strided_tensors_are_right(on, variant))
        })
    });
    let draws_tiles = |variant: &&Variant| match variant.row.schedule {
        Schedule::Persistent => true,
        // CTAs whose consumers share a tile have one each.
        Schedule::Ragged => {
            let row = &variant.row;
            row.isa == Isa::Wgmma && row.score.is_plain() && geometry::value_groups(row) == 1
        }
        Schedule::Grid | Schedule::Split => false,
    };
    let many_tiles = VARIANTS.iter().filter(draws_tiles).map(|variant| {
        Trial::test(format!("simulator::tiles_in_a_row::{}", variant.entry), || {
            tiles_that_follow_each_other_are_right(variant)
        })
    });
    let starts = Trial::test("kernels_that_start_under_the_one_before_wait_for_it", || {
        early_kernels_wait().map_err(Failed::from)
    });
    odd_lengths.chain(conflicts).chain(strided).chain(many_tiles).chain([starts]).collect()
}

/// All but those of the backward pass, which gained nothing by it, and each on every path before it touches memory.
fn early_kernels_wait() -> Result<(), Error> {
    let library = support::library();
    let source = |family: &str| Source::Ptx { family: family.to_owned() };
    for kernel in library.kernels() {
        assert!(library.image(kernel, &source(&kernel.family))?.waits && kernel.waits, "{}", kernel.entry);
    }
    for kernel in library.step_kernels() {
        assert!(library.image(kernel, &source(&kernel.family))?.waits && kernel.waits, "{}", kernel.entry);
    }
    for kernel in library.backward_kernels() {
        assert!(!library.image(kernel, &source(&kernel.family))?.waits, "{}", kernel.entry);
    }
    Ok(())
}

/// A batch of these sizes, with keys and values as wide as the row takes them.
fn problem_for(row: &Row, [batch, heads_q, heads_kv, seqlen_q, seqlen_k]: [u32; 5]) -> Problem {
    let dense = problem(row.dtype, [batch, heads_q, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
    dense.with_head_dim_v(geometry::widest_value(row.head_dim)).expect("a width that kernels have")
}

/// In which orders tiles that follow each other are run, one a problem. Kernels of both dtypes are alike, so that each problem is seen in two.
fn schedules(dtype: Dtype) -> [ptx_sim::Schedule; 2] {
    use ptx_sim::Schedule::{Deterministic, Seeded};
    match dtype {
        Dtype::F16 => [Deterministic, Seeded(1)],
        Dtype::Bf16 => [Seeded(2), Seeded(3)],
    }
}

/// A device of one SM, whose few CTAs have several tiles each: long and short ones after each other, with NaN in some.
fn tiles_that_follow_each_other_are_right(variant: &Variant) -> Result<(), Failed> {
    static ONE_SM: DeviceModel = DeviceModel::H200.with_sm_count(1);
    let Row { dtype, acc, block_m, min_ctas, .. } = variant.row;
    // Three tiles a head, the last of which is short; packed rows have those of both heads together. A CTA has four tiles or more.
    let (heads, seqlen_q) = (2 * min_ctas.max(2), 2 * block_m + 34);
    // With 60 keys a tile is one block: whoever copies is as far ahead of those who compute as it ever is. Under a causal mask most tiles
    // see none of them, many in a row. An odd number of blocks, whose parities change from one tile to the next, and an even one.
    let full = |seqlen_k| problem_for(&variant.row, [1, heads, heads / 2, seqlen_q, seqlen_k]);
    let [one, other] = schedules(dtype);
    for (seqlen_k, causal, schedule) in
        [(300, false, one), (430, true, other), (60, false, other), (60, true, one)]
    {
        let problem = full(seqlen_k).with_causal(causal);
        let qkv = random_input::qkv(&problem, InputKind::NotANumber, 5);
        let oracle = Oracle::new(&problem, qkv.clone(), None, &[acc], &|_, _| ());
        let options = SimOptions::default().with_model(&ONE_SM).with_schedule(schedule);
        let attention = support::on_simulator(options);
        let rows = RowSelection::Named(variant.entry.to_owned());
        let splits = if variant.row.schedule.splits() { Splits::Count(1) } else { Splits::Auto };
        let options = PlanOptions { rows, splits, ..PlanOptions::new() };
        let plan = attention.planner().plan(&problem, &options).map_err(|error| error.to_string())?;
        if !plan.draws_tiles() || plan.tiles() < 4 * plan.grid() {
            return Err(format!("{} tiles for {} CTAs", plan.tiles(), plan.grid()).into());
        }
        let output = attention.forward_with(&plan, &HostTensors::from(&qkv), true);
        let verdict = oracle.judge(acc, &output.map_err(|error| error.to_string())?);
        let verdict = verdict.map_err(|error| error.to_string())?;
        if !verdict.passed {
            return Err(format!("causal {causal}, {schedule:?}: {verdict}").into());
        }
    }
    Ok(())
}

/// What tensor maps have to say: rows with gaps, heads inside rows, K that all batch entries share, V that all heads share.
fn strided_tensors_are_right(on: On, variant: &Variant) -> Result<Completion, Failed> {
    if let Some(reason) = ignored(on, variant) {
        return Ok(Completion::ignored_with(reason));
    }
    let simulator;
    let Row { head_dim, dtype, acc, .. } = variant.row;
    let attention = match on {
        On::Gpu => gpu().as_ref().map_err(Error::to_string)?,
        On::Simulator => {
            simulator = shaken(head_dim, dtype);
            &simulator
        }
    };
    let gap = i64::from(head_dim) + 8;
    let strides = |batch, head, row| ElementStrides { batch, head, row, dim: 1 };
    let strided = || {
        problem_for(&variant.row, [2, 4, 2, 150, 190])
            .with_causal(true)
            .with_strides(TensorRole::Q, strides(150 * 4 * gap, gap, 4 * gap))?
            .with_strides(TensorRole::K, strides(0, 190 * gap, gap))?
            .with_strides(TensorRole::V, strides(190 * gap, 0, gap))
    };
    let problem = strided().map_err(|error: Error| error.to_string())?;
    let qkv = random_input::qkv(&problem, InputKind::Random, 3);
    let oracle = Oracle::new(&problem, qkv.clone(), None, &[acc], &|_, _| ());
    let options = PlanOptions::from(RowSelection::Named(variant.entry.to_owned()));
    let plan = attention.planner().plan(&problem, &options).map_err(|error| error.to_string())?;
    let output = attention.forward_with(&plan, &HostTensors::from(&qkv), true);
    let verdict = oracle.judge(acc, &output.map_err(|error| error.to_string())?);
    let verdict = verdict.map_err(|error| error.to_string())?;
    if verdict.passed { Ok(Completion::Completed) } else { Err(verdict.to_string().into()) }
}

/// Why a kernel cannot be run, if that is so.
fn ignored(on: On, variant: &Variant) -> Option<String> {
    if on != On::Gpu {
        return None;
    }
    if let Some(reason) = missing_gpu() {
        return Some(reason);
    }
    let info = gpu().as_ref().ok()?.device().info();
    if variant.row.isa == Isa::Wgmma && info.sm != WGMMA_SM {
        return Some(format!("it runs on sm_{WGMMA_SM}, the GPU is sm_{}", info.sm));
    }
    let (needed, limit) = (geometry::smem_bytes(&variant.row), info.smem_opt_in_bytes);
    (needed > limit).then(|| format!("it needs {needed} bytes of shared memory, the GPU has {limit}"))
}

/// No access to shared memory takes more passes than its size needs: exact, for ragged and full blocks, both masks.
fn no_bank_conflicts(variant: &Variant) -> Result<(), Failed> {
    let device = Arc::new(SimDevice::new(SimOptions::default().with_model(DeviceModel::H200)));
    let attention = Attention::new(device.clone(), support::library()).map_err(|error| error.to_string())?;
    // Rows of both heads lie in the same tiles where kernels pack them.
    let (heads, seqlen_q) = if variant.row.schedule.splits() { (2, 75) } else { (1, 150) };
    let full = problem_for(&variant.row, [1, heads, 1, seqlen_q, 190]);
    // At one split O goes out through shared memory, at several past it.
    let splits: &[Splits] = match variant.row.schedule {
        Schedule::Split | Schedule::Ragged => &[Splits::Count(1), Splits::Count(2)],
        Schedule::Grid | Schedule::Persistent => &[Splits::Auto],
    };
    let cases = [full, full.with_causal(true)].into_iter();
    for (problem, &splits) in cases.flat_map(|problem| splits.iter().map(move |splits| (problem, splits))) {
        let qkv = random_input::qkv(&problem, InputKind::Random, 0);
        let named = RowSelection::Named(variant.entry.to_owned());
        let options = PlanOptions { rows: named, splits, ..PlanOptions::new() };
        let plan = attention.planner().plan(&problem, &options).map_err(|error| error.to_string())?;
        attention.forward_with(&plan, &HostTensors::from(&qkv), true).map_err(|error| error.to_string())?;
        let report = device.report(variant.entry).ok_or("no report")?;
        let traffic = [report.shared_load, report.shared_store, report.async_shared];
        let unused = traffic.iter().filter(|traffic| traffic.wavefronts == 0).count();
        // With wgmma all tiles come by bulk copies, whose swizzle is that of the descriptors, or the products would be wrong.
        let is_unused = match variant.row.isa {
            Isa::Mma => unused > usize::from(plan.splits() > 1),
            Isa::Wgmma => report.bulk_load_bytes == 0,
        };
        if traffic.iter().any(|traffic| traffic.conflicts > 0) || is_unused {
            return Err(format!("loads, stores, copies: {traffic:?}").into());
        }
        if let Some(combine) = plan.combine() {
            let report = device.report(&combine.entry).ok_or("no report")?;
            if [report.shared_load, report.shared_store].iter().any(|traffic| traffic.conflicts > 0) {
                return Err(
                    format!("{}: {:?} {:?}", combine.entry, report.shared_load, report.shared_store).into()
                );
            }
        }
    }
    Ok(())
}

/// Why there is no GPU to test on, or `None` where there is one.
pub(crate) fn missing_gpu() -> Option<String> {
    match gpu() {
        Err(error @ (Error::NoDriver { .. } | Error::UnsupportedDevice { .. })) => Some(error.to_string()),
        // What the tests put in a driver's place runs no kernel.
        Ok(_) if find_cuda_helper::symbol(c"ferroflash_fake_driver").is_some() => {
            Some("the driver is the fake one".to_owned())
        }
        _ => None,
    }
}

/// A simulated device that has the shared memory for every row, and runs warps and lands copies in an order of its own for each
/// head_dim and dtype: kernels of both dtypes are alike, so that each is seen in two orders.
fn shaken(head_dim: u32, dtype: Dtype) -> Attention {
    let schedule = ptx_sim::Schedule::Seeded(u64::from(head_dim) + u64::from(dtype == Dtype::Bf16));
    support::scheduled(schedule)
}

fn gpu() -> &'static Result<Attention, Error> {
    static GPU: OnceLock<Result<Attention, Error>> = OnceLock::new();
    GPU.get_or_init(|| Attention::cuda(&CudaOptions::default()))
}

struct Quiet;

impl Observer for Quiet {
    fn advanced(&mut self, _: usize, _: usize) {}
    fn finished(&mut self, _: &RowReport) {}
}

fn kernel_is_right(on: On, variant: &Variant) -> Result<Completion, Failed> {
    if let Some(reason) = ignored(on, variant) {
        return Ok(Completion::ignored_with(reason));
    }
    let reports = reports(Key::of(on, variant))?;
    let report = reports.iter().find(|report| report.entry == variant.entry);
    let report = report.ok_or_else(|| format!("{} is not among the compiled kernels", variant.entry))?;
    match &report.first_failure {
        None => Ok(Completion::Completed),
        Some(failure) => {
            Err(format!("{} of {} problems are wrong; the first: {failure}", report.failed, report.cases)
                .into())
        }
    }
}

type Reports = Arc<OnceLock<Result<Vec<RowReport>, String>>>;

/// The reports of all kernels of a key; verified once, by the first test that asks.
fn reports(key: Key) -> Result<Vec<RowReport>, Failed> {
    static GROUPS: Mutex<Option<HashMap<Key, Reports>>> = Mutex::new(None);
    let group = {
        let mut groups = GROUPS.lock().map_err(|_| "another test panicked")?;
        groups.get_or_insert_default().entry(key).or_default().clone()
    };
    Ok(group.get_or_init(|| verify(key)).clone()?)
}

fn verify(Key(on, head_dim, dtype): Key) -> Result<Vec<RowReport>, String> {
    let simulator;
    let (attention, grid, repeats) = match on {
        On::Gpu => (gpu().as_ref().map_err(Error::to_string)?, Grid::Odd, GPU_REPEATS),
        On::Simulator => {
            simulator = shaken(head_dim, dtype);
            (&simulator, Grid::Quick, 1)
        }
    };
    let sm = attention.device().info().sm;
    let of_group = |kernel: &&Arc<Kernel>| {
        let runs = kernel.row.isa == Isa::Mma || sm == WGMMA_SM;
        runs && (kernel.row.head_dim, kernel.row.dtype) == (head_dim, dtype)
    };
    let kernels: Vec<Arc<Kernel>> = attention.library().kernels().iter().filter(of_group).cloned().collect();
    verify_rows(&kernels, grid, 0, repeats, attention, &mut Quiet).map_err(|error| error.to_string())
}
