//! What a problem over several devices is predicted to take: bytes, memory, times. A model on paper, whose link was measured
//! between two GPUs (docs/notes/several-gpus.md) and between nodes is assumed.
//!
//! Times of kernels are the planner's estimates for exactly the problems that a rank computes; links move bytes at a steady rate
//! after a latency, under computation where the schedule lets them.

use crate::all_gather;
use crate::context::{ContextOptions, Method, Setup, shape_of};
use crate::ring::{self, Visit};
use crate::ulysses;
use crate::{Error, Sharding};
use ferroflash::problem::TensorRole;
use ferroflash::{DeviceModel, Mask, PlanOptions, Planner, Problem, Reason};

/// As many times the least time are the same: a forecast is off by up to 5 % (docs/notes/several-gpus.md).
const ALIKE: f64 = 1.05;
/// GB/s at which the driver copies the rows of some heads to another place of a device's memory, as measured on an H100 (4 to 34 MB).
const COPY_GB_S: f64 = 700.0;
/// The same by [`ferroflash::Attention::copy`] (34 MB).
const KERNEL_COPY_GB_S: f64 = 1240.0;

fn copy_us(bytes: f64) -> f64 {
    bytes / COPY_GB_S / 1e3
}

/// What connects devices.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Link {
    /// GB/s that reach a device at a time, in one direction.
    pub gb_s: f64,
    /// Microseconds that an exchange takes however small it is.
    pub latency_us: f64,
}

/// Devices in nodes.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Cluster {
    /// Devices of a node.
    pub node: u32,
    /// Within a node.
    pub inside: Link,
    /// Between nodes, each device's share.
    pub between: Link,
}

impl Cluster {
    /// Eight GPUs a node on NVLink 4, as measured between two H100s (copy engines and flags, both directions at once, 1 to 64 MB: 380 GB/s
    /// after 18 µs; the data sheet has 450). Between nodes one 400 Gb/s adapter a GPU, of which 80 % are assumed, and NCCL's latency.
    pub const HGX: Cluster = Cluster {
        node: 8,
        inside: Link { gb_s: 380.0, latency_us: 18.0 },
        between: Link { gb_s: 0.8 * 50.0, latency_us: 50.0 },
    };

    /// What the slowest of an exchange among neighbours takes.
    fn pass_us(&self, world: u32, bytes: f64) -> f64 {
        let link = if world > self.node { self.between } else { self.inside };
        link.latency_us + bytes / link.gb_s / 1e3
    }

    /// What receiving as much from every other rank takes: from a node's own devices and from others at a time.
    fn gather_us(&self, world: u32, bytes: f64) -> f64 {
        let outside = f64::from(world.saturating_sub(self.node)) / f64::from((world - 1).max(1));
        let inside = self.inside.latency_us + bytes * (1.0 - outside) / self.inside.gb_s / 1e3;
        if outside == 0.0 {
            inside
        } else {
            inside.max(self.between.latency_us + bytes * outside / self.between.gb_s / 1e3)
        }
    }
}

/// What a rank is predicted to move and keep, from the formulas alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Footprint {
    /// Bytes from other ranks.
    pub received: f64,
    /// Bytes of buffers.
    pub buffers: f64,
    /// Bytes of the rank's own Q, K, V, O and LSE.
    pub tensors: f64,
}

impl Footprint {
    /// Of one rank, with chunks of exactly 1 / (2 N) of the sequence.
    ///
    /// All-gather: of 2 N chunks of K and V a rank receives all but its own, and under a causal mask not those behind its own last. Ring: all
    /// but its own, 1/N of them at a time in each of two buffers; two float32 states for each chunk of queries and rank that it sees.
    /// Ulysses: of 1/N of the heads all rows but its own, and of O and LSE its rows of the other heads.
    pub fn new(problem: &Problem, method: Method, rank: u32, world: u32) -> Footprint {
        let (n, r) = (f64::from(world), f64::from(rank));
        let bytes = |role| shape_of(problem, role).bytes() as f64;
        let [q, k, v, o] = TensorRole::ALL.map(bytes);
        let sizes = problem.sizes();
        let rows = problem.lse_len() as f64;
        let (kv, lse) = (k + v, rows * 4.0);
        let is_full = problem.mask() == Mask::FULL;
        let tensors = (q + kv + o + lse) / n;
        let (received, buffers) = match method {
            Method::AllGather if is_full => (kv * (n - 1.0) / n, kv),
            Method::AllGather => (kv * (2.0 * n - 2.0 - r) / (2.0 * n), kv),
            Method::Ring => {
                let state = rows / n * (f64::from(problem.head_dim_v()) + 1.0) * 4.0;
                let seen = if is_full { n } else { (r + 1.0 + n) / 2.0 };
                let passing = if world > 2 { 2.0 } else { n - 1.0 };
                (kv * (n - 1.0) / n, passing * kv / n + 2.0 * seen * state)
            }
            Method::Ulysses => {
                let copies =
                    if sizes.heads_kv.is_multiple_of(world) { 1.0 } else { n / f64::from(sizes.heads_kv) };
                let whole = (q + kv * copies + o + lse) / n;
                (whole * (n - 1.0) / n, whole)
            }
        };
        Footprint { received, buffers, tensors }
    }
}

/// What a method is predicted to take over some devices.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Forecast {
    /// The method.
    pub method: Method,
    /// Devices.
    pub devices: u32,
    /// Of the rank that moves and keeps most.
    pub footprint: Footprint,
    /// What the slowest rank computes, in microseconds.
    pub compute_us: f64,
    /// What the rank that receives most waits for links, if nothing were computed meanwhile, in microseconds.
    pub links_us: f64,
    /// From start to end, in microseconds.
    pub us: f64,
    /// The time of one device, by as many times the time of this.
    pub efficiency: f64,
}

impl Forecast {
    /// The bytes that the rank with most of them has on its device.
    pub fn memory(&self) -> f64 {
        self.footprint.buffers + self.footprint.tensors
    }
}

/// Predicts a method over `world` devices.
///
/// # Errors
/// [`Error::Refused`], and those of planning.
pub fn forecast(
    planner: &Planner,
    cluster: &Cluster,
    problem: &Problem,
    options: &ContextOptions,
    world: u32,
) -> Result<Forecast, Error> {
    let method = options.method;
    let (one_us, _) = kernel_us(planner, problem, &PlanOptions::new())?;
    if world == 1 {
        let tensors = Footprint::new(problem, method, 0, 1).tensors;
        let footprint = Footprint { tensors, ..Footprint::default() };
        let devices = world;
        return Ok(Forecast {
            method,
            devices,
            footprint,
            compute_us: one_us,
            links_us: 0.0,
            us: one_us,
            efficiency: 1.0,
        });
    }
    // The first, the last and the middle rank have the most to receive, to merge, and of both.
    let mut ranks = vec![0, world / 2, world - 1];
    ranks.dedup();
    let mut worst = Forecast {
        method,
        devices: world,
        footprint: Footprint::default(),
        compute_us: 0.0,
        links_us: 0.0,
        us: 0.0,
        efficiency: 0.0,
    };
    for rank in ranks {
        let setup = Setup::new(problem, (rank, world), options)?;
        let footprint = Footprint::new(problem, method, rank, world);
        let times = Times::new(planner, cluster, &setup, &footprint, one_us / f64::from(world))?;
        let most = &mut worst.footprint;
        most.received = most.received.max(footprint.received);
        most.buffers = most.buffers.max(footprint.buffers);
        most.tensors = most.tensors.max(footprint.tensors);
        worst.compute_us = worst.compute_us.max(times.compute_us);
        worst.links_us = worst.links_us.max(times.links_us);
        worst.us = worst.us.max(times.us);
    }
    worst.efficiency = one_us / (worst.us * f64::from(world));
    Ok(worst)
}

struct Times {
    compute_us: f64,
    links_us: f64,
    us: f64,
}

impl Times {
    /// `share_us` is what the rank's share of the work takes in one launch of the whole.
    fn new(
        planner: &Planner,
        cluster: &Cluster,
        setup: &Setup,
        footprint: &Footprint,
        share_us: f64,
    ) -> Result<Times, Error> {
        let world = setup.world;
        let options = PlanOptions::from(setup.options.rows.clone());
        let time = |problem: &Problem| kernel_us(planner, problem, &options).map(|(us, _)| us);
        match setup.options.method {
            Method::AllGather => {
                let all = f64::from(setup.problem.sizes().heads_kv);
                let mut links_us = 0.0;
                let mut arrives = |heads: std::ops::Range<u32>| {
                    links_us += cluster.gather_us(world, footprint.received * heads.len() as f64 / all);
                    links_us
                };
                let groups = all_gather::head_groups(setup);
                let arrivals: Vec<f64> = groups.iter().cloned().map(&mut arrives).collect();
                let own: u64 =
                    [TensorRole::K, TensorRole::V].map(|role| setup.local(role).bytes()).iter().sum();
                let tasks = all_gather::tasks(setup, &groups)?;
                let mut kernels_us = tasks
                    .iter()
                    .map(|task| time(&setup.problem_of(&task.cut)?))
                    .collect::<Result<Vec<f64>, Error>>()?;
                // What each launch loses at its end, its neighbour in the other stream fills by half, as measured.
                let compute_us =
                    scaled(&mut kernels_us, |apart_us| f64::midpoint(apart_us, apart_us.min(share_us)));
                // Kernels that wait themselves have neither copies nor a first wait; what chunks with few tiles a head lose, which no estimate
                // knows, is as much.
                let mut us = own as f64 / KERNEL_COPY_GB_S / 1e3;
                for (task, kernel_us) in tasks.iter().zip(kernels_us) {
                    us = us.max(arrivals[task.group]) + kernel_us;
                }
                Ok(Times { compute_us, links_us, us })
            }
            Method::Ring => ring_times(planner, cluster, setup, footprint, share_us),
            Method::Ulysses => {
                let compute_us = time(&setup.problem_of(&ulysses::cut(setup)?)?)?;
                let back =
                    (setup.local(TensorRole::O).bytes() as f64) * f64::from(world - 1) / f64::from(world);
                let there = footprint.received - back;
                let exchanges = [there, back].map(|bytes| cluster.gather_us(world, bytes));
                let links_us = exchanges.iter().sum();
                Ok(Times { compute_us, links_us, us: compute_us + links_us + copy_us(footprint.buffers) })
            }
        }
    }
}

/// Scales times so that they add up to what that makes of their sum, which is returned; where all are 0, they stay so.
fn scaled(times_us: &mut [f64], of_sum: impl Fn(f64) -> f64) -> f64 {
    let sum_us: f64 = times_us.iter().sum();
    if sum_us == 0.0 {
        return 0.0;
    }
    let wanted_us = of_sum(sum_us);
    times_us.iter_mut().for_each(|us| *us *= wanted_us / sum_us);
    wanted_us
}

/// Partial results go to memory and come back once; the planner's estimate of a launch does not count them, as others merge their splits.
fn ring_times(
    planner: &Planner,
    cluster: &Cluster,
    setup: &Setup,
    footprint: &Footprint,
    share_us: f64,
) -> Result<Times, Error> {
    let world = setup.world;
    let options = ring::plan_options(setup);
    let mut steps = vec![0.0; world as usize];
    for Visit { step, cut, .. } in ring::visits(setup)? {
        let (us, merge_us) = kernel_us(planner, &setup.problem_of(&cut)?, &options)?;
        steps[step as usize] += us - merge_us;
    }
    // Launches of parts are not faster than one of the whole.
    let steps_us = scaled(&mut steps, |sum_us| sum_us.max(share_us));
    let passed = [TensorRole::K, TensorRole::V].map(|role| setup.local(role).bytes() as f64);
    let bytes: f64 = passed.iter().sum();
    let pass_us = cluster.pass_us(world, bytes);
    let placed_us = copy_us(bytes) * f64::from(world - 1);
    let states = footprint.buffers - bytes * if world > 2 { 2.0 } else { 1.0 };
    let bandwidth =
        DeviceModel::of_device(&planner.device().name).map_or(1000.0, |model| model.bandwidth_gb_s.into());
    let merge_us = 2.0 * states / bandwidth / 1e3;
    let last = steps[world as usize - 1] + merge_us;
    let under: f64 = steps[..world as usize - 1].iter().map(|us: &f64| us.max(pass_us)).sum();
    let links_us = pass_us * f64::from(world - 1);
    Ok(Times { compute_us: steps_us + merge_us, links_us, us: under + placed_us + last })
}

/// The planner's estimate for a problem, and how much of it merges splits.
fn kernel_us(planner: &Planner, problem: &Problem, options: &PlanOptions) -> Result<(f64, f64), Error> {
    let (_, reasons) = planner.explain(problem, options)?;
    let estimate = reasons.iter().find_map(|reason| match reason {
        Reason::Estimate { us, merge_us, .. } => Some((*us, *merge_us)),
        _ => None,
    });
    Ok(estimate.unwrap_or_default())
}

/// All methods over some devices, and which is to be taken.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The forecast of each method, or why it cannot be.
    pub methods: Vec<(Method, Result<Forecast, Error>)>,
    /// The method, and why.
    pub chosen: Option<(Method, String)>,
}

/// Compares the methods over `world` devices with `memory_bytes` each: of those that can compute the problem and fit, the one that is
/// predicted to take least; the first of those that its errors do not tell apart, as an all-gather merges nothing and keeps least.
pub fn compare(
    planner: &Planner,
    cluster: &Cluster,
    problem: &Problem,
    (world, memory_bytes): (u32, u64),
) -> Comparison {
    let of = |method| {
        let options = ContextOptions { method, ..ContextOptions::default() };
        (method, forecast(planner, cluster, problem, &options, world))
    };
    let methods: Vec<(Method, Result<Forecast, Error>)> = Method::ALL.map(of).into();
    let fits = |forecast: &&Forecast| forecast.memory() <= memory_bytes as f64;
    let possible: Vec<&Forecast> =
        methods.iter().filter_map(|(_, forecast)| forecast.as_ref().ok()).filter(fits).collect();
    let least = possible.iter().map(|forecast| forecast.us).fold(f64::INFINITY, f64::min);
    let best = possible.iter().find(|forecast| forecast.us <= least * ALIKE);
    let chosen = best.map(|best| (best.method, why(best, &methods, memory_bytes)));
    Comparison { methods, chosen }
}

/// Why a method is taken, and each other one not.
fn why(best: &Forecast, methods: &[(Method, Result<Forecast, Error>)], memory_bytes: u64) -> String {
    let mut text = format!(
        "{:.1} MB arrive in {:.0} µs, of which {:.0} are hidden under {:.0} µs of computing",
        best.footprint.received / 1e6,
        best.links_us,
        (best.compute_us + best.links_us - best.us).max(0.0),
        best.compute_us
    );
    for (method, forecast) in methods.iter().filter(|(method, _)| *method != best.method) {
        text += "; ";
        text += &match forecast {
            Ok(other) if other.memory() > memory_bytes as f64 => {
                format!("{} needs {:.1} GB a device", method.name(), other.memory() / 1e9)
            }
            Ok(other) => format!("{} would take {:+.1} %", method.name(), (other.us / best.us - 1.0) * 100.0),
            Err(Error::Refused { reason, .. }) => format!("{} cannot: {reason}", method.name()),
            Err(error) => format!("{} cannot: {error}", method.name()),
        };
    }
    text
}

/// The rows of a sequence that the longest and the shortest rank have: what the model takes as equal.
pub fn imbalance(length: u32, world: u32) -> f64 {
    let sharding = Sharding::new(length, world);
    f64::from(sharding.rows_most()) * f64::from(world) / f64::from(length.max(1))
}
