//! Sequences that share a prefix, on the simulator: as right as without, repeated in every bit, planned by estimates, refused by name.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::reference::reference_of;
use check::tolerance::Tolerance;
use ferroflash::device::Buffer;
use ferroflash::error::StepError;
use ferroflash::problem::{BlockTable, Pages, Score};
use ferroflash::{
    Attention, Cascading, DeviceModel, DeviceTensors, Dtype, Error, HostOperand, HostTensors, Layout, Mask,
    Operand, Output, Planner, PrefixPlan, Problem, StreamHandle,
};
use kernels_gpu::row::Accumulation;

support::trials!(
    a_shared_prefix_is_as_right_as_without,
    a_shared_prefix_is_computed_by_itself_where_that_is_estimated_to_be_faster,
    prefixes_that_cannot_be_shared_are_refused,
);

/// Keys of the prefix.
const PREFIX: u32 = 64;

/// What a call has beside Q, K and V.
struct Call {
    qkv: [Vec<u16>; 3],
    lengths: Vec<u32>,
    starts: Vec<u32>,
    table: Vec<i32>,
    sinks: Option<Vec<f32>>,
}

impl Call {
    fn tensors(&self) -> HostTensors<'_> {
        let [q, k, v] = &self.qkv;
        let tensors = HostTensors::new(q, k, v)
            .with_seqlens_k(Some(&self.lengths))
            .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&self.starts))
            .with_operand(Operand::BlockTable, HostOperand::I32(&self.table));
        match &self.sinks {
            Some(sinks) => tensors.with_operand(Operand::Sinks, HostOperand::F32(sinks)),
            None => tensors,
        }
    }

    /// O and LSE, twice, which must be the same in every bit.
    fn run(&self, attention: &Attention, plan: &PrefixPlan) -> Output {
        let (device, problem) = (attention.device(), plan.whole().problem());
        let halves = |elements: &[u16]| Buffer::from_elements(device, elements).expect("memory");
        let words = |elements: &[u32]| Buffer::from_elements(device, elements).expect("memory");
        let [q, k, v] = [0, 1, 2].map(|at| halves(&self.qkv[at]));
        let (lengths, starts) = (words(&self.lengths), words(&self.starts));
        let behind = words(&self.lengths.iter().map(|length| length - PREFIX).collect::<Vec<_>>());
        let table = words(&self.table.iter().map(|page| page.cast_unsigned()).collect::<Vec<_>>());
        let sinks = self.sinks.as_ref().map(|sinks| Buffer::from_elements(device, sinks).expect("memory"));
        let run = || {
            let o = halves(&vec![0xffff; problem.o_len()]);
            let lse = Buffer::from_elements(device, &vec![f32::NAN; problem.lse_len()]).expect("memory");
            let [q, k, v, o_at] = [&q, &k, &v, &o].map(Buffer::address);
            let tensors = DeviceTensors::new(q, k, v, o_at)
                .with_lse(Some(lse.address()))
                .with_seqlens_k(Some(lengths.address()))
                .with_operand(Operand::CuSeqlensQ, starts.address())
                .with_operand(Operand::BlockTable, table.address());
            let tensors = match &sinks {
                Some(sinks) => tensors.with_operand(Operand::Sinks, sinks.address()),
                None => tensors,
            };
            // SAFETY: the buffers are as long as the problem says, and the simulator is done when it returns.
            unsafe {
                attention.launch_shared_prefix(plan, &tensors, Some(behind.address()), StreamHandle::DEFAULT)
            }
            .expect("launched");
            let mut output = Output::new(vec![0; problem.o_len()], Some(vec![0.0; problem.lse_len()]));
            o.read(0, &mut output.o).expect("read");
            lse.read(0, output.lse.as_mut().expect("there")).expect("read");
            output
        };
        let bits = |output: &Output| {
            let lse: Vec<u32> = output.lse.iter().flatten().map(|lse| lse.to_bits()).collect();
            (output.o.clone(), lse)
        };
        let first = run();
        assert_eq!(bits(&first), bits(&run()), "the same bits again");
        first
    }
}

/// Sequences with these new tokens behind a prefix of pages, and these keys in all, in scattered pages; every other page is NaN.
fn call(problem: &Problem, pages: Pages, (new, keys): (&[u32], &[u32]), seed: u64) -> Call {
    let mut qkv = random_input::qkv(problem, InputKind::Random, seed);
    let BlockTable::Rows { entries } = pages.table else { unreachable!("a table of rows") };
    let mut starts = vec![0];
    starts.extend(new.iter().scan(0, |sum, new| {
        *sum += new;
        Some(*sum)
    }));
    // Page 2i + 1 is nobody's.
    let mut free = (0..pages.pages.cast_signed()).step_by(2).rev();
    let shared: Vec<i32> = free.by_ref().take((PREFIX / pages.page) as usize).collect();
    let mut table = Vec::new();
    for keys in keys {
        let own = keys.div_ceil(pages.page).saturating_sub(PREFIX / pages.page);
        let end = table.len() + entries as usize;
        table.extend(&shared);
        table.extend(free.by_ref().take(own as usize));
        table.resize(end, -1);
    }
    for tensor in &mut qkv[1..] {
        let page_elements = tensor.len() / pages.pages as usize;
        tensor.chunks_mut(page_elements).skip(1).step_by(2).for_each(|page| page.fill(0xffff));
    }
    Call { qkv, lengths: keys.to_vec(), starts, table, sinks: None }
}

fn a_shared_prefix_is_as_right_as_without() {
    for (model, dtype) in [(DeviceModel::L4, Dtype::F16), (DeviceModel::H200, Dtype::Bf16)] {
        let attention = support::simulator(model);
        let decoding: (&[u32], &[u32]) = (&[1, 1, 1, 1], &[130, 65, 200, 97]);
        let mixed: (&[u32], &[u32]) = (&[3, 0, 20], &[70, 64, 150]);
        for (seed, (page, layout, mask, score, head_dim_v, has_sinks, (new, keys))) in (0..).zip([
            (16, Layout::Bshd, Mask::CAUSAL, Score::Plain, 64, false, decoding),
            (1, Layout::Bhsd, Mask::CAUSAL, Score::Plain, 64, true, mixed),
            (64, Layout::Bshd, Mask::FULL, Score::Softcap(15.0), 64, true, mixed),
            (16, Layout::Bhsd, Mask::CAUSAL, Score::Softcap(2.0), 40, false, mixed),
            (8, Layout::Bshd, Mask::window(None, Some(2)), Score::Plain, 64, false, decoding),
        ]) {
            let pages = Pages {
                page,
                pages: 2 * 600 / page + 20,
                table: BlockTable::Rows { entries: 210 / page + 1 },
            };
            let total = new.iter().sum::<u32>() + 2;
            let problem = problem(dtype, [new.len() as u32, 4, 2, 20, 200, 64])
                .with_head_dim_v(head_dim_v)
                .and_then(|problem| problem.with_packed_queries(total))
                .and_then(|problem| problem.with_pages(pages))
                .map(|problem| problem.with_layout(layout).with_lengths(true).with_sinks(has_sinks))
                .and_then(|problem| problem.with_mask(mask))
                .and_then(|problem| problem.with_score(score))
                .expect("a problem");
            let mut call = call(&problem, pages, (new, keys), seed);
            call.sinks = has_sinks.then(|| vec![0.5, -1.0, 2.0, f32::NEG_INFINITY]);
            let tensors = call.tensors();
            tensors.check_operands(&problem).expect("a call");
            let reference = reference_of(&problem, &tensors, &|_, _| ());
            let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
            for cascading in [Cascading::Always, Cascading::Never] {
                let plan =
                    attention.planner().plan_shared_prefix(&problem, PREFIX, cascading).expect("planned");
                assert_eq!(plan.passes().is_some(), cascading == Cascading::Always);
                let output = call.run(&attention, &plan);
                let verdict = tolerance
                    .judge(&problem, &reference, &output.o, output.lse.as_deref())
                    .expect("as long as the problem says");
                assert!(verdict.ratio() <= 1.0, "{model:?} {cascading:?} page {page} {mask}: {verdict}");
            }
        }
    }
}

fn paged(batch: u32, new: u32, keys: u32) -> Problem {
    let pages = Pages { page: 16, pages: keys / 16 * batch, table: BlockTable::Rows { entries: keys / 16 } };
    problem(Dtype::Bf16, [batch, 32, 8, new, keys, 128])
        .with_causal(true)
        .with_lengths(true)
        .with_packed_queries(batch * new)
        .and_then(|problem| problem.with_pages(pages))
        .expect("paged")
}

fn a_shared_prefix_is_computed_by_itself_where_that_is_estimated_to_be_faster() {
    let planner = Planner::of_table(&DeviceModel::H200.info());
    let taken = |problem: &Problem, keys| {
        let plan = planner.plan_shared_prefix(problem, keys, Cascading::Auto).expect("planned");
        let (whole, cascade) = plan.estimates_us();
        let cascade = cascade.expect("there can be one");
        assert_eq!(plan.passes().is_some(), cascade * 1.25 < whole, "{cascade} of {whole}");
        plan.passes().is_some()
    };

    assert!(taken(&paged(64, 1, 16384), 8192), "64 sequences read 8192 keys once");
    assert!(!taken(&paged(2, 1, 2048), 256), "three launches for two short sequences");
}

fn prefixes_that_cannot_be_shared_are_refused() {
    let planner = Planner::of_table(&DeviceModel::L4.info());
    let whole = paged(4, 1, 1024);
    let refused = |problem: &Problem, keys, cascading, needle: &str| {
        let error = planner.plan_shared_prefix(problem, keys, cascading).expect_err(needle);
        assert!(
            matches!(error, Error::Step(StepError::SharedPrefix { .. }))
                && error.to_string().contains(needle),
            "{error}"
        );
    };
    refused(&whole, 0, Cascading::Auto, "a prefix of 0 keys");
    refused(&whole, 40, Cascading::Auto, "whole pages");
    refused(&whole, 1024, Cascading::Auto, "fewer keys");
    refused(&problem(Dtype::F16, [4, 4, 2, 1, 1024, 64]), 64, Cascading::Auto, "lie in pages");
    let window = whole.with_mask(Mask::window(Some(100), Some(0))).expect("a mask");
    refused(&window, 64, Cascading::Always, "its mask");
    let plan = planner.plan_shared_prefix(&window, 64, Cascading::Auto).expect("planned as it is");
    assert!(plan.passes().is_none() && plan.estimates_us().1.is_none());
    let slopes = whole.with_score(Score::Alibi { per_batch: false }).expect("a score");
    refused(&slopes, 64, Cascading::Always, "positions");
}
