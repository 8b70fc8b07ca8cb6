//! `ferroflash plan` as a process, without a GPU and without compiled kernels.

use crate::support::{self, Ended, ferroflash, ferroflash_with, folder, write_kernels};

support::trials!(
    a_plan_is_explained_for_a_device_that_is_not_there,
    json_has_what_the_lines_say,
    several_numbers_of_splits_are_planned_side_by_side,
    a_split_size_is_the_same_in_any_batch,
    what_cannot_be_planned_is_refused,
    without_kernels_the_table_is_planned_with,
    several_devices_are_a_model_on_paper,
    a_backward_pass_keeps_no_more_ds_than_it_may,
);

/// Plans with the table's kernels, whose registers are estimated alike on every machine.
fn plan(args: &[&str]) -> Ended {
    let (folder, kernels) = (folder(), folder());
    write_kernels(kernels.path(), |_| ());
    let ptx = kernels.path().to_str().expect("UTF-8");
    ferroflash(folder.path(), &[&["plan", "--ptx", ptx], args].concat())
}

fn a_plan_is_explained_for_a_device_that_is_not_there() {
    let ended = plan(&["--shape", "8,32,8,1,8192,128", "--device-model", "H200", "--combine", "kernel"]);
    let stdout = &ended.succeeded().stdout;
    for needle in [
        "8,32,8,1,8192,128 f16 full on NVIDIA H200 (sm_90, 132 SMs)",
        "_split, schedule split",
        "64 tiles × ",
        "CTAs an SM  ",
        "waves       ",
        "combine     combine_f16, 256 CTAs",
        "workspace   ",
        "1.074 GFLOP, 268.567 MB",
        "bound       55.95 µs: 55.95 by memory at 4800 GB/s",
        "no prediction",
        "because     estimated to take ",
        "by this device's profile",
        "because     next best, ",
    ] {
        assert!(stdout.contains(needle), "{needle:?} is in: {stdout}");
    }
    let full = plan(&["--shape", "8,32,32,4096,4096,64", "--device-model", "l4", "--causal"]);
    let stdout = &full.succeeded().stdout;
    for needle in
        ["schedule grid", "by data sheets", "at least 4", "workspace   0 bytes", "causal on NVIDIA L4"]
    {
        assert!(stdout.contains(needle), "{needle:?} is in: {stdout}");
    }
}

fn json_has_what_the_lines_say() {
    let args = ["--shape", "1,8,1,128,32768,128", "--device-model", "h100", "--dtype", "bf16", "--json"];
    let report = plan(&args).succeeded().json();
    let plan = &report[0];
    assert_eq!((&plan["schedule"], &plan["device"]["sm_count"]), (&"split".into(), &132.into()));
    assert_eq!(plan["combine"]["kernel"], "combine_bf16");
    assert_eq!(plan["combine"]["ctas"], 8 * 128);
    let number = |name: &str| plan[name].as_f64().expect(name);
    assert_eq!(number("ctas"), number("tiles") * number("splits"));
    assert!(number("splits") * number("split_keys") >= 32768.0);
    assert!(number("workspace_bytes") >= number("splits") * 1024.0 * 129.0 * 4.0);
    assert!(plan["bound_us"]["tensor"].as_f64() > plan["bound_us"]["memory"].as_f64());
    assert!(plan["reasons"].as_array().is_some_and(|reasons| reasons.len() >= 3), "{plan}");
}

fn several_numbers_of_splits_are_planned_side_by_side() {
    let args = ["--shape", "1,8,1,1,8192,128", "--splits", "auto,1,2,256", "--device-model", "l4", "--json"];
    let report = plan(&args).succeeded().json();
    let splits: Vec<u64> =
        report.as_array().expect("a list").iter().filter_map(|plan| plan["splits"].as_u64()).collect();
    let keys = report[3]["split_keys"].as_u64().expect("a plan with splits");
    assert_eq!((splits.len(), splits[1], splits[2]), (4, 1, 2), "{splits:?}");
    assert!(splits[0] > 2 && splits[3] > splits[0], "{splits:?}");
    assert!(splits[3] * keys < 8192 + keys, "no more than there are blocks: {splits:?} of {keys}");
    let schedules = ["grid", "persistent", "split"];
    for schedule in schedules {
        let args = ["--shape", "1,8,1,1,8192,64", "--schedule", schedule, "--json"];
        assert_eq!(plan(&args).succeeded().json()[0]["schedule"], schedule);
    }
    let all = plan(&["--shape", "1,8,1,1,8192,128", "--rows", "all", "--json"]).succeeded().json();
    assert!(all.as_array().is_some_and(|plans| plans.len() > 5), "{all}");
}

fn a_split_size_is_the_same_in_any_batch() {
    let kernel = |shape: &str, model: &str| {
        let args = ["--shape", shape, "--device-model", model, "--split-size", "1000", "--lengths", "--json"];
        let report = plan(&args).succeeded().json();
        (report[0]["kernel"].clone(), report[0]["split_keys"].clone())
    };
    let one = kernel("1,8,2,1,4096,128", "l4");
    assert_eq!(one, kernel("64,8,2,1,8192,128", "rtx4090"));
    assert_eq!(one.1, 1024);
}

fn what_cannot_be_planned_is_refused() {
    let shape = ["--shape", "1,8,1,1,8192,128"];
    let refused = |more: &[&str], code: i32, needles: &[&str]| {
        plan(&[&shape[..], more].concat()).refused(code, needles)
    };
    refused(&["--device-model", "tpu"], 2, &["no model \"tpu\"", "h200"]);
    refused(&["--splits", "0"], 2, &["0 splits", "at least 1"]);
    refused(&["--splits", "257"], 2, &["257 splits", "at most 256"]);
    refused(&["--splits", "some"], 2, &["neither auto nor a number"]);
    refused(&["--split-size", "0"], 2, &["--split-size"]);
    refused(&["--splits", "2", "--split-size", "64"], 2, &["cannot be used with"]);
    refused(
        &["--lengths", "--schedule", "grid"],
        1,
        &["with the schedule grid that takes lengths on the device"],
    );
    plan(&["--shape", "1,8,1,1,100000,128", "--split-size", "64"])
        .refused(1, &["1563 splits", "at most 256", "give at least 448"]);
    plan(&["--shape", "1,8,3,1,8192,128"]).refused(2, &["--shape", "not a multiple"]);
    plan(&[]).refused(2, &["--shape"]);
}

fn without_kernels_the_table_is_planned_with() {
    let folder = folder();
    let nowhere = folder.path().join("nowhere");
    let variables = [("FERROFLASH_PTX", nowhere.to_str().expect("UTF-8"))];
    let args = ["plan", "--shape", "1,8,1,1,8192,128", "--device-model", "a100"];
    let ended = ferroflash_with(folder.path(), &args, &variables);
    assert!(
        ended.succeeded().stderr.contains("no compiled kernels: planned with the table's rows"),
        "{}",
        ended.stderr
    );
    assert!(ended.stdout.contains("fwd_f16_d128"), "{}", ended.stdout);
    let named = ferroflash(folder.path(), &[&args[..], &["--ptx", "nowhere"]].concat());
    named.refused(1, &["no compiled kernels", "nowhere"]);
}

fn several_devices_are_a_model_on_paper() {
    let shape = ["--shape", "1,32,8,1048576,1048576,128", "--causal", "--dtype", "bf16"];
    let shape = [&shape[..], &["--device-model", "h200"]].concat();
    let ended = plan(&[&shape[..], &["--devices", "8,64"]].concat());
    let stdout = &ended.succeeded().stdout;
    for needle in
        ["a model on paper", "nodes of 8 devices", "efficiency", "are hidden under", "ulysses cannot"]
    {
        assert!(stdout.contains(needle), "{needle:?} is in: {stdout}");
    }
    let named = plan(&[&shape[..], &["--devices", "8", "--method", "all-gather", "--json"]].concat());
    let value = &named.succeeded().json()[0];
    assert_eq!((&value["is_a_model"], &value["forecast"]["method"]), (&true.into(), &"all-gather".into()));
    // Of 16 chunks of K and V, 2 · 8 heads · 2^20 · 128 elements, the first rank lacks 14.
    let kv = 2.0 * 8.0 * 1_048_576.0 * 128.0 * 2.0;
    assert_eq!(value["forecast"]["footprint"]["received"].as_f64(), Some(kv * 14.0 / 16.0));
    plan(&[&shape[..], &["--devices", "64", "--method", "ulysses"]].concat())
        .refused_after_output(1, &["do not divide"]);
    plan(&["--shape", "1,2,2,64,64,64", "--method", "ring"]).refused(2, &["--devices"]);
}

fn a_backward_pass_keeps_no_more_ds_than_it_may() {
    let folder = folder();
    let plan = |args: &[&str]| {
        let shape = ["plan", "--shape", "1,16,16,16384,16384,128", "--causal", "--dtype", "bf16"];
        ferroflash(folder.path(), &[&shape[..], &["--device-model", "h200"], args].concat())
    };
    // A head's dS is half of 16384 × 16384 pairs, 2 bytes each, and blocks on the diagonal.
    const OF_HEAD: u64 = 276_840_448;
    for (limit, chunks, heads) in
        [(None, 1, 5), (Some("600M"), 8, 2), (Some("300M"), 16, 1), (Some("263M"), 1, 0)]
    {
        let limit = limit.map_or(vec![], |limit| vec!["--ds-max", limit]);
        let ended = plan(&[&["--backward", "--json"], &limit[..]].concat());
        let value = &ended.succeeded().json()[0];
        assert_eq!(
            (&value["chunks"], &value["ds_bytes"]),
            (&chunks.into(), &(heads * OF_HEAD).into()),
            "{limit:?}"
        );
        assert_eq!(value["statistics_ctas"].is_null(), heads == 0, "{limit:?}");
    }
    for (args, needles) in [
        (&["--backward"][..], ["statistics", "dS of 5 KV heads at a time", "of them dS (--ds-max)"]),
        (&["--backward", "--ds-max", "600M"], ["dkvds", "dqds", "launched 8 times, for 2 KV heads each"]),
    ] {
        let stdout = plan(args).succeeded().stdout.clone();
        for needle in needles {
            assert!(stdout.contains(needle), "{needle:?} is in: {stdout}");
        }
    }
    plan(&["--ds-max", "1G"]).refused(2, &["--backward"]);
    plan(&["--backward", "--ds-max", "1.5G"]).refused(2, &["no number of bytes", "512M"]);
}
