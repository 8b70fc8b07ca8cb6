//! The model of time: what follows from its rules alone, on kernels of a few instructions.

use ptx_sim::{Checks, Gpu, LaunchConfig, Memory, Module, Predictor, Timer, Unit, launch};

/// A kernel whose body runs after `%r0` is the thread's number and `%d0` an address of global memory.
fn kernel(body: &str) -> Module {
    let text = format!(
        ".version 8.0
         .target sm_90a
         .address_size 64
         .visible .entry k(.param .u64 data) {{
             .reg .pred %p<4>;
             .reg .b32 %r<40>;
             .reg .f32 %f<40>;
             .reg .b64 %d<4>;
             .shared .align 16 .b8 tile[4096];
             ld.param.u64 %d0, [data];
             mov.u32 %r0, %tid.x;
             cvt.rn.f32.u32 %f0, %r0;
             {body}
             ret;
         }}"
    );
    Module::parse(&text).expect("a module")
}

/// Clocks of so many CTAs of so many threads on one multiprocessor that holds `resident` of them, and what timed them.
fn clocks(module: &Module, (ctas, threads, resident): (u32, u32, u32), gpu: &Gpu) -> (u64, Timer) {
    let timer = Timer::new(gpu, resident);
    let mut memory = Memory::new();
    let data = memory.alloc(1 << 16);
    memory.write(data, &[0; 1 << 16]).expect("written");
    let config = LaunchConfig {
        checks: Checks::NONE,
        timer: Some(timer.clone()),
        ..LaunchConfig::new([ctas, 1, 1], [threads, 1, 1])
    };
    launch(module, "k", &data.to_le_bytes(), &mut memory, &config).expect("it runs");
    (timer.clocks(), timer)
}

fn one_warp(body: &str) -> u64 {
    clocks(&kernel(body), (1, 32, 1), &Gpu::H100).0
}

#[test]
fn a_chain_takes_its_latencies_and_what_is_independent_overlaps() {
    let chain = "fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(64);
    let apart: String =
        (1..33).map(|i| format!("fma.rn.f32 %f{i}, %f0, %f0, %f0;\n")).collect::<String>().repeat(2);
    let (chain, apart) = (one_warp(&chain), one_warp(&apart));
    assert!((64 * 4..64 * 4 + 40).contains(&chain), "{chain}");
    assert!((64..64 + 40).contains(&apart), "{apart}");
}

#[test]
fn warps_hide_each_others_latencies_until_a_unit_is_full() {
    let chain = kernel(&"fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(256));
    let of = |warps: u32| clocks(&chain, (1, 32 * warps, 1), &Gpu::H100).0 as f64;
    let one = of(1);
    // Four partitions, and three warps in each of them, take as long as one warp.
    assert!(of(12) < 1.1 * one, "{} {one}", of(12));
    // Eight in each find every issue slot taken twice over.
    assert!((1.8..2.2).contains(&(of(32) / one)), "{} {one}", of(32));
    let (_, timer) = clocks(&chain, (1, 1024, 1), &Gpu::H100);
    assert!(timer.busy(Unit::Float) > 0.9 && timer.busy(Unit::Tensor) == 0.0);
}

#[test]
fn exponentials_are_as_slow_as_their_unit() {
    let body: String = (1..33).map(|i| format!("ex2.approx.ftz.f32 %f{i}, %f0;\n")).collect();
    let took = clocks(&kernel(&body), (1, 512, 1), &Gpu::H100).0;
    // 32 a thread, 512 threads, 16 a clock.
    assert!((1024..1100).contains(&took), "{took}");
}

#[test]
fn bank_conflicts_take_their_passes() {
    let load = |stride: u32| {
        let body: String = (1..17).map(|i| format!("ld.shared.u32 %r{i}, [%r30+{}];\n", 4 * i)).collect();
        format!("mov.u32 %r31, tile;\nmul.lo.u32 %r30, %r0, {stride};\nadd.u32 %r30, %r30, %r31;\n{body}")
    };
    let (plain, conflicts) = (one_warp(&load(4)), one_warp(&load(64)));
    assert!(conflicts >= plain + 16 * 15 - 32, "{plain} {conflicts}");
}

#[test]
fn who_waits_at_a_barrier_goes_on_after_the_last_to_come() {
    let chain = "fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(500);
    let body = format!(
        "setp.lt.u32 %p0, %r0, 32;
         @!%p0 bra meet;
         {chain}
         meet:
         bar.sync 0;
         {chain}"
    );
    let both = clocks(&kernel(&body), (1, 64, 1), &Gpu::H100).0;
    assert!(both >= 2 * 500 * 4, "the second warp starts where the first has come: {both}");
    let alone = clocks(&kernel(&body.replace("bar.sync 0;", "")), (1, 64, 1), &Gpu::H100).0;
    assert!(both >= alone && alone >= 2 * 500 * 4, "{alone}");
}

#[test]
fn copies_are_there_when_they_are_waited_for() {
    let copy = "mov.u32 %r1, tile;\ncp.async.cg.shared.global [%r1], [%d0], 16;\ncp.async.commit_group;\n";
    let (waited, ended) =
        (format!("{copy}cp.async.wait_group 0;\n"), format!("{copy}cp.async.wait_group 1;\n"));
    let after = "fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(50);
    let (waited, ended) = (one_warp(&(waited + &after)), one_warp(&(ended + &after)));
    assert!(waited >= u64::from(Gpu::H100.latencies.l2) + 200, "{waited}");
    assert!(ended < waited, "{ended} {waited}");
}

#[test]
fn ctas_beyond_those_that_fit_take_another_round() {
    let chain = kernel(&"fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(300));
    let of = |ctas| clocks(&chain, (ctas, 32, 2), &Gpu::H100).0 as f64;
    assert!(
        of(2) < 1.05 * of(1)
            && (1.9..2.1).contains(&(of(3) / of(1)))
            && (1.9..2.1).contains(&(of(4) / of(1)))
    );
}

#[test]
fn tensor_cores_differ_by_device() {
    let mma: String = (0..8)
        .map(|_| "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4,%f5,%f6,%f7}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%f8,%f9,%f10,%f11};\n")
        .collect();
    let module = kernel(&mma.repeat(32));
    let of = |gpu: &Gpu| clocks(&module, (1, 512, 1), gpu).0 as f64;
    // 16 warps × 256 products of 2048 multiply-adds each, in four partitions.
    let least = |rate: f64| 4.0 * 256.0 * 2048.0 / rate;
    for (gpu, rate) in [(Gpu::A100, 256.0), (Gpu::L4, 128.0), (Gpu::RTX4090, 64.0), (Gpu::H100, 317.0)] {
        let share = of(&gpu) / least(rate);
        assert!((0.99..1.05).contains(&share), "{}: {share}", gpu.name);
    }
}

#[test]
fn a_grid_is_predicted_by_rounds_and_memory() {
    let module = kernel(&"fma.rn.f32 %f1, %f1, %f0, %f0;\n".repeat(3000));
    let predict = |ctas: u32, gpu: Gpu| {
        let mut memory = Memory::new();
        let data = memory.alloc(64);
        let config = LaunchConfig::new([ctas, 1, 1], [1024, 1, 1]);
        Predictor::new(gpu, 32)
            .predict(&module, "k", &data.to_le_bytes(), &mut memory, &config)
            .expect("predicted")
    };
    let (one, many) = (predict(264, Gpu::H100), predict(2640, Gpu::H100));
    assert_eq!((one.resident_ctas, one.rounds, many.rounds), (2, 1.0, 10.0));
    assert!((9.5..10.5).contains(&(many.compute_us / one.compute_us)), "{many} {one}");
    let slower = predict(264, Gpu::H100.at_clock(990.0));
    assert!((1.99..2.01).contains(&(slower.compute_us / one.compute_us)));
    assert!(one.to_string().starts_with("predicted for NVIDIA H100 SXM at 1980 MHz, not measured: "));
}
