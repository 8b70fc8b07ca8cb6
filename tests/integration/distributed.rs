//! Attention over several ranks, each a simulator: against the reference, against one device, and where ranks fail.

use crate::support::{self, problem, trials};
use check::random_input::{InputKind, qkv};
use check::verification::Oracle;
use ferroflash::device::Buffer;
use ferroflash::{
    Attention, DeviceModel, DeviceTensors, Dtype, HostTensors, Layout, Mask, Output, PlanOptions, Problem,
    RowSelection, StreamHandle,
};
use ferroflash_distributed::{
    ContextOptions, Error, Local, Message, Method, RankRun, Sharding, SplitCache, Step, Ticket, Transport,
    over_ranks, over_transports,
};
use kernels_gpu::row::Accumulation;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

trials![
    two_ranks_compute_what_one_device_does,
    three_ranks_compute_what_one_device_does,
    four_ranks_compute_what_one_device_does,
    eight_ranks_compute_what_one_device_does,
    ranks_with_wgmma_compute_what_one_device_does,
    an_all_gather_has_one_devices_bits,
    problems_that_no_method_splits_are_refused,
    a_cache_split_among_ranks_decodes_as_a_whole_one,
    exchanges_that_end_as_late_as_they_may_change_nothing,
];

const LIMIT: Duration = Duration::from_secs(60);

fn simulators(count: u32, model: &'static DeviceModel) -> Vec<Arc<Attention>> {
    let one = |_| support::simulator(model);
    (0..count).map(one).map(Arc::new).collect()
}

fn options(method: Method) -> ContextOptions {
    ContextOptions { method, ..ContextOptions::default() }
}

#[track_caller]
fn right_on_all(
    problem: &Problem,
    attentions: &[Arc<Attention>],
    options: &ContextOptions,
    seed: u64,
) -> Vec<RankRun> {
    let tensors = qkv(problem, InputKind::Outliers, seed);
    let tensors = HostTensors::from(&tensors);
    let (output, runs) = over_ranks(attentions, problem, options, &tensors, LIMIT).expect("computed");
    let oracle = Oracle::of_tensors(problem, &tensors, &[Accumulation::F32], &|_, _| ());
    let verdict = oracle.judge(Accumulation::F32, &output).expect("as long as the problem says");
    let about = (attentions.len(), options.method, problem.sizes(), problem.mask().to_string());
    assert!(verdict.passed, "{about:?}: {verdict}");
    runs
}

fn every_method(world: u32) {
    let attentions = simulators(world, DeviceModel::L4);
    let of = |shape, dtype, layout: Layout, mask: Mask| {
        problem(dtype, shape).with_layout(layout).with_mask(mask).expect("a mask")
    };
    let gqa = [1, 8, 2, 203, 203, 64];
    let window = Mask::window(Some(37), Some(0)).with_sink_tokens(3);
    let cases = [
        (Method::AllGather, of(gqa, Dtype::F16, Layout::Bhsd, Mask::CAUSAL)),
        (Method::AllGather, of([2, 3, 1, 131, 131, 64], Dtype::Bf16, Layout::Bshd, Mask::CAUSAL)),
        (Method::AllGather, of([2, 3, 1, 77, 131, 64], Dtype::Bf16, Layout::Bhsd, Mask::FULL)),
        (Method::AllGather, of([1, 4, 4, 90, 131, 128], Dtype::F16, Layout::Bhsd, Mask::CAUSAL)),
        (Method::AllGather, of([1, 4, 2, 150, 150, 64], Dtype::F16, Layout::Bhsd, window)),
        (Method::Ring, of(gqa, Dtype::F16, Layout::Bhsd, Mask::CAUSAL)),
        (Method::Ring, of([2, 3, 1, 331, 331, 64], Dtype::Bf16, Layout::Bshd, Mask::CAUSAL)),
        (Method::Ring, of([2, 3, 1, 77, 259, 128], Dtype::Bf16, Layout::Bhsd, Mask::FULL)),
        (Method::Ulysses, of(gqa, Dtype::F16, Layout::Bhsd, Mask::CAUSAL)),
        (Method::Ulysses, of([2, 8, 8, 99, 131, 64], Dtype::Bf16, Layout::Bhsd, Mask::FULL)),
        (Method::Ulysses, of(gqa, Dtype::F16, Layout::Bhsd, window)),
    ];
    for (seed, (method, problem)) in (u64::from(world) << 8..).zip(cases) {
        let heads_divide = world.is_power_of_two();
        if method == Method::Ulysses && !heads_divide {
            continue;
        }
        right_on_all(&problem, &attentions, &options(method), seed);
    }
    // Fewer rows than chunks: some ranks have nothing to compute, and take part all the same.
    for method in [Method::AllGather, Method::Ring] {
        right_on_all(
            &problem(Dtype::F16, [1, 2, 1, 5, 5, 64]).with_causal(true),
            &attentions,
            &options(method),
            1,
        );
    }
}

fn two_ranks_compute_what_one_device_does() {
    every_method(2);
}

fn three_ranks_compute_what_one_device_does() {
    every_method(3);
}

fn four_ranks_compute_what_one_device_does() {
    every_method(4);
}

fn eight_ranks_compute_what_one_device_does() {
    every_method(8);
}

fn ranks_with_wgmma_compute_what_one_device_does() {
    // Few multiprocessors are filled by a small problem.
    static SMALL: DeviceModel = DeviceModel::H200.with_sm_count(4);
    let attentions = simulators(2, &SMALL);
    for method in Method::ALL {
        let problem = problem(Dtype::Bf16, [1, 4, 2, 517, 517, 128]).with_causal(true);
        let mut options = options(method);
        if method == Method::Ring {
            // Of which the plan takes others for so little.
            options.rows = RowSelection::Named("fwd_wgmma_bf16_d128_m128n128_w12s2c1_split".to_owned());
        }
        let runs = right_on_all(&problem, &attentions, &options, 3);
        let kernels: Vec<&String> = runs.iter().flat_map(|run| &run.kernels).collect();
        assert!(kernels.iter().any(|kernel| kernel.contains("wgmma")), "{method:?}: {kernels:?}");
    }
}

fn an_all_gather_has_one_devices_bits() {
    for (model, row, granule) in [
        (DeviceModel::L4, "fwd_f16_d64_m64n64_w4s1c1", 64),
        (DeviceModel::H200, "fwd_wgmma_f16_d64_m128n128_w12s3c1_persistent", 128),
    ] {
        // In bhsd and without a mask one device computes the heads of a group as one, in other tiles than ranks with some of
        // the rows: a row's bits do not depend on the rows beside it.
        for (mask, layout) in
            [(Mask::CAUSAL, Layout::Bhsd), (Mask::FULL, Layout::Bhsd), (Mask::FULL, Layout::Bshd)]
        {
            let problem = problem(Dtype::F16, [1, 4, 2, 1031, 1031, 64]).with_layout(layout);
            let problem = problem.with_mask(mask).expect("a mask");
            let tensors = qkv(&problem, InputKind::Outliers, 5);
            let tensors = HostTensors::from(&tensors);
            let rows = RowSelection::Named(row.to_owned());
            let attentions = simulators(3, model);
            let plan =
                attentions[0].planner().plan(&problem, &PlanOptions::from(rows.clone())).expect("planned");
            let whole = attentions[0].forward_with(&plan, &tensors, true).expect("computed");
            let options = ContextOptions { rows, granule: Some(granule), ..ContextOptions::default() };
            let (output, _) = over_ranks(&attentions, &problem, &options, &tensors, LIMIT).expect("computed");
            assert!(output.o == whole.o, "{row} {mask}: O");
            assert!(output.lse == whole.lse, "{row} {mask}: LSE");
        }
    }
}

fn problems_that_no_method_splits_are_refused() {
    let attentions = simulators(2, DeviceModel::L4);
    let causal = problem(Dtype::F16, [1, 3, 3, 64, 64, 64]).with_causal(true);
    let refused = |problem: Problem, method, needle: &str| {
        let tensors = qkv(&problem, InputKind::Random, 1);
        let error = over_ranks(&attentions, &problem, &options(method), &HostTensors::from(&tensors), LIMIT);
        let error = error.expect_err(needle);
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains(needle), "{error}");
    };
    refused(causal, Method::Ulysses, "3 heads of Q");
    refused(causal.with_lengths(true), Method::Ring, "with lengths");
    refused(causal.with_sinks(true), Method::AllGather, "sinks");
    let window = causal.with_mask(Mask::window(Some(3), Some(0))).expect("a mask");
    refused(window, Method::Ring, "all-gather takes windows");
    assert_eq!(Sharding::new(64, 2).rows(0), 32);
}

/// Decodes on one rank that holds these keys of each sequence.
fn decode(
    attention: &Arc<Attention>,
    local: Local,
    problem: &Problem,
    qkv: [&[u16]; 3],
    lengths: &[u32],
) -> Output {
    let device = attention.device();
    let mut cache = SplitCache::new(attention.clone(), Box::new(local), problem).expect("agreed");
    cache.preload().expect("loaded");
    let [q, k, v] = qkv.map(|tensor| Buffer::from_elements(device, tensor).expect("memory"));
    let lengths = Buffer::from_elements(device, lengths).expect("memory");
    let o = Buffer::new(device, problem.o_len() as u64 * 2).expect("memory");
    let lse = Buffer::new(device, problem.lse_len() as u64 * 4).expect("memory");
    [&o, &lse].into_iter().for_each(|output| output.fill(0xff).expect("written"));
    let tensors = DeviceTensors::new(q.address(), k.address(), v.address(), o.address())
        .with_lse(Some(lse.address()))
        .with_seqlens_k(Some(lengths.address()));
    // SAFETY: the buffers are as long as the problem says, and outlive the reads below.
    unsafe { cache.forward(&tensors, StreamHandle::DEFAULT) }.expect("computed");
    // SAFETY: the default stream lives.
    unsafe { cache.wait(StreamHandle::DEFAULT) }.expect("over");
    let mut output = Output::new(vec![0; problem.o_len()], Some(vec![0.0; problem.lse_len()]));
    o.read(0, &mut output.o).expect("read");
    lse.read(0, output.lse.as_mut().expect("asked for")).expect("read");
    output
}

fn a_cache_split_among_ranks_decodes_as_a_whole_one() {
    for (world, lengths) in [(2u32, [300u32, 7]), (3, [0, 299]), (8, [300, 1])] {
        let attentions = simulators(world, DeviceModel::L4);
        let whole = problem(Dtype::Bf16, [2, 8, 2, 3, 300, 64]).with_lengths(true);
        let [q, k, v] = qkv(&whole, InputKind::Outliers, world.into());
        let tensors = HostTensors::new(&q, &k, &v).with_seqlens_k(Some(&lengths));
        // Rank r has keys from r · share on: some ranks have none of a sequence.
        let share = 300u32.div_ceil(world);
        let of_rank = problem(Dtype::Bf16, [2, 8, 2, 3, share, 64]).with_lengths(true);
        let cut = |tensor: &[u16], rank: u32| -> Vec<u16> {
            let row = |head: u32, key: u32| ((head * 300 + key.min(299)) * 64) as usize;
            let keys = |head| (0..share).map(move |key| row(head, rank * share + key));
            (0..4).flat_map(keys).flat_map(|at| tensor[at..at + 64].iter().copied()).collect()
        };
        let transports = Local::world(attentions.iter().map(|one| one.device().clone()).collect(), LIMIT);
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..world)
                .zip(transports)
                .zip(&attentions)
                .map(|((rank, local), attention)| {
                    let (k, v) = (cut(&k, rank), cut(&v, rank));
                    let own = lengths.map(|length| length.saturating_sub(rank * share).min(share));
                    let (q, of_rank) = (&q, &of_rank);
                    scope.spawn(move || decode(attention, local, of_rank, [q, &k, &v], &own))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        let oracle = Oracle::of_tensors(&whole, &tensors, &[Accumulation::F32], &|_, _| ());
        let verdict = oracle.judge(Accumulation::F32, &outputs[0]).expect("as long as the problem says");
        assert!(verdict.passed, "{world} ranks: {verdict}");
        assert!(outputs.iter().all(|output| *output == outputs[0]), "every rank has the same bits");
    }
}

/// Exchanges when somebody waits for it and not before: reads as late and writes as late as a stream of its own may.
struct Late {
    inner: Local,
    waiting: VecDeque<(Ticket, Step, Vec<Message>)>,
    tickets: u64,
}

impl Late {
    fn until(&mut self, last: Ticket, stream: StreamHandle) -> Result<(), Error> {
        while let Some((_, step, messages)) = self.waiting.pop_front_if(|(ticket, ..)| *ticket <= last) {
            // SAFETY: the promise of who called exchange, who had to keep it until the join.
            unsafe { self.inner.exchange(step, &messages, stream)? };
        }
        Ok(())
    }
}

impl Transport for Late {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world(&self) -> u32 {
        self.inner.world()
    }

    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        _: StreamHandle,
    ) -> Result<Ticket, Error> {
        self.tickets += 1;
        self.waiting.push_back((Ticket(self.tickets), step, messages.to_vec()));
        Ok(Ticket(self.tickets))
    }

    unsafe fn join(&mut self, ticket: Ticket, stream: StreamHandle) -> Result<(), Error> {
        self.until(ticket, stream)
    }

    unsafe fn wait(&mut self, stream: StreamHandle) -> Result<(), Error> {
        self.until(Ticket(u64::MAX), stream)
    }

    fn abort(&mut self, reason: &Error) {
        self.inner.abort(reason);
    }
}

fn exchanges_that_end_as_late_as_they_may_change_nothing() {
    let attentions = simulators(4, DeviceModel::L4);
    let problem = problem(Dtype::F16, [1, 8, 4, 203, 203, 64]).with_causal(true);
    let tensors = qkv(&problem, InputKind::Outliers, 9);
    let tensors = HostTensors::from(&tensors);
    for method in Method::ALL {
        let (early, _) =
            over_ranks(&attentions, &problem, &options(method), &tensors, LIMIT).expect("computed");
        let locals = Local::world(attentions.iter().map(|one| one.device().clone()).collect(), LIMIT);
        let late =
            |inner| Box::new(Late { inner, waiting: VecDeque::new(), tickets: 0 }) as Box<dyn Transport>;
        let ranks = attentions.iter().cloned().zip(locals.into_iter().map(late)).collect();
        let (output, _) = over_transports(ranks, &problem, &options(method), &tensors).expect("computed");
        assert!(output == early, "{method:?}");
    }
}
