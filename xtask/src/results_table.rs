//! The results as Markdown: what was measured with what, which targets were met, a table of problems and one of decoding.

use crate::results::{FOLDER, Kernel, Mean, Method, OURS, Problem, Results, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// One device's part of docs/results.md.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = heading(results);
    let (prefill, decode) = (results.prefill(), results.decode());
    if !prefill.is_empty() {
        text.push_str(
            "\n| B,HQ,HKV,SQ,SKV,D | type | mask | Ferroflash µs (p10–p90) | TFLOP/s | CTAs | PyTorch flash µs | \
             PyTorch default µs | × flash | × default | by p90 | targets |\n\
             |---|---|---|--:|--:|---|--:|--:|--:|--:|--:|---|\n",
        );
        prefill.into_iter().for_each(|problem| text.push_str(&prefill_line(problem)));
    }
    if !decode.is_empty() {
        text.push_str(&decode_heading(results));
        decode.into_iter().for_each(|problem| text.push_str(&decode_line(problem)));
    }
    text
}

/// One device's table of lengths: a line a head_dim, heads, type and mask.
pub(crate) fn lengths_markdown(results: &Results) -> String {
    let mut text = heading(results);
    let mut lines: BTreeMap<_, BTreeMap<u32, &Problem>> = BTreeMap::new();
    for problem in results.prefill() {
        let (heads, keys, head_dim) = problem.heads_keys_and_head_dim();
        let shared = heads[0] != heads[1];
        let line = (shared, head_dim, heads, problem.dtype.as_str(), problem.mask());
        lines.entry(line).or_default().insert(keys, problem);
    }
    let lengths: BTreeSet<u32> = lines.values().flat_map(|line| line.keys().copied()).collect();
    text.push_str("\n| head_dim | heads | type | mask |");
    lengths.iter().for_each(|length| _ = write!(text, " {length} |"));
    text.push_str(" mean |\n|--:|--:|---|---|");
    lengths.iter().for_each(|_| text.push_str("--:|"));
    text.push_str("--:|\n");
    for ((shared, head_dim, [heads_q, heads_kv], dtype, mask), problems) in lines {
        let heads = if shared { format!("{heads_q} on {heads_kv} KV") } else { heads_q.to_string() };
        let _ = write!(text, "| {head_dim} | {heads} | {dtype} | {mask} |");
        for length in &lengths {
            let problem = problems.get(length);
            let ratio = problem.and_then(|problem| problem.ratio("default")).map(|ratio| ratio.median);
            let _ = match problem.and_then(|problem| problem.tflops()) {
                Some(tflops) => write!(text, " {tflops:.0} ({}) |", number(ratio, 2)),
                None => write!(text, " – |"),
            };
        }
        let is_mean = |mean: &&Mean| {
            !shared && (mean.head_dim, mean.dtype.as_str(), mean.mask()) == (head_dim, dtype, mask)
        };
        let mean = results.means.iter().find(is_mean).and_then(|mean| mean.target.reached);
        let _ = writeln!(text, " {} |", number(mean, 2));
    }
    text
}

/// What was measured, where, with what, and which targets were met: one paragraph, and a list of the missed ones.
fn heading(results: &Results) -> String {
    let Method { rounds, replays_per_round, .. } = results.method;
    let day = results.date.split('T').next().unwrap_or_default();
    let mut text = format!("**{}**", results.device.name);
    if let Some(driver) = &results.device.driver {
        let _ = write!(text, ", driver {driver}");
    }
    let _ = write!(text, ", PyTorch {}", results.torch.version);
    if let Some(cudnn) = &results.torch.cudnn {
        let _ = write!(text, ", cuDNN {cudnn}");
    }
    let _ = write!(text, ", {day}");
    if let Some(commit) = &results.commit {
        let _ = write!(text, ", commit `{commit}`");
    }
    let clocks = results.problems.iter().filter_map(|problem| problem.sm_clock_mhz);
    if let (Some(least), Some(most)) = (clocks.clone().min(), clocks.max()) {
        let range = if least == most { least.to_string() } else { format!("{least}–{most}") };
        let _ = write!(text, ", SM clock {range} MHz under load");
    }
    let replays = rounds * replays_per_round;
    let _ = write!(
        text,
        ". Device time of one forward pass: medians of {replays} CUDA-graph replays in {rounds} rounds, Ferroflash and \
         PyTorch {turns}; Ferroflash and PyTorch's flash write LSE too. × is how many times as long PyTorch takes; `by p90` \
         is × default by 90th percentiles. CTAs are those of a launch, the average an SM in parentheses, then the splits of \
         the keys or the schedule where it is not one tile a CTA. From [`{FOLDER}/{file}`](../{FOLDER}/{file}).",
        turns = results.method.turns(),
        file = results.file
    );
    text.push_str(&verdict(results));
    text
}

/// How many targets were met, and each one that was not.
fn verdict(results: &Results) -> String {
    let targets = results.targets();
    let met = targets.iter().filter(|(_, target)| target.met).count();
    let mut text = format!(" **{met} of {} targets met.**", targets.len());
    if met < targets.len() {
        text.push_str(" Missed:\n\n");
    } else {
        text.push('\n');
    }
    for (title, target) in targets.iter().filter(|(_, target)| !target.met) {
        let reached =
            target.reached.map_or_else(|| "not measured".to_owned(), |reached| reached_text(target, reached));
        let _ = writeln!(text, "- {title}: {target}, {reached}");
    }
    text
}

/// What was reached, with all digits of the file, so that a near miss does not read as met.
fn reached_text(target: &Target, reached: f64) -> String {
    if target.is_share() {
        format!("reached {:.2} %", reached * 100.0)
    } else {
        format!("reached {reached:?}")
    }
}

fn prefill_line(problem: &Problem) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        problem.shape_name(),
        problem.dtype,
        problem.mask(),
        ours(problem),
        number(problem.tflops(), if problem.tflops() < Some(10.0) { 1 } else { 0 }),
        ctas(problem.kernel.as_ref()),
        theirs(problem, "flash"),
        default(problem),
        number(problem.ratio("flash").map(|ratio| ratio.median), 2),
        number(problem.ratio("default").map(|ratio| ratio.median), 2),
        number(problem.ratio("default").map(|ratio| ratio.p90), 2),
        verdicts(problem),
    )
}

fn decode_heading(results: &Results) -> String {
    let copy = results.copy_bandwidth.as_ref();
    let measured = match copy.and_then(|copy| copy.gbytes_per_s.zip(copy.kind.as_ref())) {
        Some((rate, kind)) => {
            format!("{rate:.0} GB/s read and written, the best of all copies in the same job (`{kind}`)")
        }
        None => "not measured".to_owned(),
    };
    format!(
        "\nDecoding. GB/s counts Q, K, V and O once. Copy bandwidth: {measured}.\n\n\
         | B,HQ,HKV,SQ,SKV,D | type | mask | Ferroflash µs (p10–p90) | GB/s | % of copy | CTAs | PyTorch flash µs | \
         PyTorch default µs | × flash | × default | targets |\n\
         |---|---|---|--:|--:|--:|---|--:|--:|--:|--:|---|\n"
    )
}

fn decode_line(problem: &Problem) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        problem.shape_name(),
        problem.dtype,
        problem.mask(),
        ours(problem),
        number(problem.gbytes_per_s(), 0),
        number(problem.share_of_copy(OURS).map(|share| share * 100.0), 1),
        ctas(problem.kernel.as_ref()),
        theirs(problem, "flash"),
        default(problem),
        number(problem.ratio("flash").map(|ratio| ratio.median), 2),
        number(problem.ratio("default").map(|ratio| ratio.median), 2),
        verdicts(problem),
    )
}

fn ours(problem: &Problem) -> String {
    problem
        .timing(OURS)
        .map_or_else(none, |ours| format!("{} ({}–{})", us(ours.median_us), us(ours.p10_us), us(ours.p90_us)))
}

fn theirs(problem: &Problem, name: &str) -> String {
    problem.timing(name).map_or_else(none, |theirs| us(theirs.median_us))
}

fn default(problem: &Problem) -> String {
    let picks = problem.default_picks.as_ref().map_or_else(String::new, |picks| format!(" {picks}"));
    theirs(problem, "default") + &picks
}

/// CTAs, and how they share the work: `256 (1.94/SM)`, `264 (2.00/SM) persistent`, `2112 (16.00/SM) split 33`.
fn ctas(kernel: Option<&Kernel>) -> String {
    let Some(kernel) = kernel else { return none() };
    let mut text = kernel.ctas.map_or_else(none, |ctas| ctas.to_string());
    if let Some(per_sm) = kernel.ctas_per_sm {
        let _ = write!(text, " ({per_sm:.2}/SM)");
    }
    let schedule = kernel.schedule.as_deref().filter(|&schedule| schedule != "grid");
    if let Some(schedule) = schedule {
        let _ = write!(text, " {schedule}");
    }
    if let (Some("split"), Some(splits)) = (schedule, kernel.splits) {
        let _ = write!(text, " {splits}");
    }
    text
}

fn verdicts(problem: &Problem) -> String {
    let verdict = |target: &Target| format!("{target}: {}", if target.met { "met" } else { "**missed**" });
    problem.targets.iter().map(verdict).collect::<Vec<_>>().join("; ")
}

pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(none, |value| format!("{value:.digits$}"))
}

fn none() -> String {
    "–".to_owned()
}

/// A time in three or four digits.
pub(crate) fn us(time_us: f64) -> String {
    match time_us {
        0.0..100.0 => format!("{time_us:.2}"),
        100.0..1000.0 => format!("{time_us:.1}"),
        _ => format!("{time_us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{former_results, results};

    #[test]
    fn the_heading_names_what_its_numbers_depend_on() {
        let markdown = markdown(&results());
        let heading = markdown.lines().next().expect("a heading");
        for part in [
            "**Some GPU**, driver 580.1, PyTorch 2.11.0, cuDNN 9.19.0, 2026-01-31, commit `abc`, SM clock 1965–1980 MHz",
            "medians of 93 CUDA-graph replays in 3 rounds",
            "[`benches/results/a.json`](../benches/results/a.json)",
            "**3 of 5 targets met.** Missed:",
        ] {
            assert!(heading.contains(part), "{part}: {heading}");
        }
    }

    #[test]
    fn each_missed_target_is_listed_with_what_was_reached() {
        let markdown = markdown(&results());
        let missed: Vec<&str> = markdown.lines().filter(|line| line.starts_with("- ")).collect();
        assert_eq!(
            missed,
            [
                "- 1,8,8,512,512,64 f16 causal: 1.0 × default p90, reached 0.97",
                "- 4,16,16,4096,4096,128 bf16 full: 1.0 × flash, not measured",
            ]
        );
        let mut others = results();
        for target in others.problems.iter_mut().flat_map(|problem| &mut problem.targets) {
            target.met = !target.met;
        }
        let markdown = super::markdown(&others);
        assert!(markdown.contains("**2 of 5 targets met.**"), "{markdown}");
        assert!(
            markdown.contains("- 8,32,8,1,8192,128 f16 full: 88 % of copy, reached 89.99 %"),
            "{markdown}"
        );
        others.problems.truncate(1);
        others.problems[0].targets.truncate(0);
        assert!(!super::markdown(&others).contains("Missed"), "nothing to list");
    }

    #[test]
    fn decoding_has_a_table_of_its_own() {
        let markdown = markdown(&results());
        let lines: Vec<&str> = markdown.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[1..3],
            [
                "| 1,8,8,512,512,64 | f16 | causal | 8.00 (7.50–8.50) | 268 | 256 (1.94/SM) persistent | 12.00 | 10.00 cudnn | \
                 1.50 | 1.25 | 0.97 | 1.15 × default: met; 1.0 × default p90: **missed** |",
                "| 4,16,16,4096,4096,128 | bf16 | full | – | – | – | – | – | – | – | – | 1.0 × flash: **missed** |",
            ]
        );
        assert_eq!(
            lines[4],
            "| 8,32,8,1,8192,128 | f16 | full | 71.00 (70.50–71.50) | 3768 | 90.0 | 2112 (16.00/SM) split 33 | 142.0 | \
             142.0 flash | 2.00 | 2.00 | 88 % of copy: met; 1.0 × default: met |"
        );
        assert!(markdown.contains("Copy bandwidth: 4187 GB/s read and written, the best of all copies"));
        // Every line of a table has the columns of its heading.
        for line in lines {
            assert_eq!(line.matches('|').count(), 13, "{line}");
        }
    }

    #[test]
    fn how_a_launch_shares_its_work_is_said_where_it_is_not_a_tile_a_cta() {
        let text = |schedule: Option<&str>, splits| {
            let schedule = schedule.map(str::to_owned);
            ctas(Some(&Kernel { ctas: Some(264), ctas_per_sm: Some(2.0), schedule, splits }))
        };
        assert_eq!(text(Some("grid"), Some(1)), "264 (2.00/SM)");
        assert_eq!(text(Some("persistent"), Some(1)), "264 (2.00/SM) persistent");
        assert_eq!(text(Some("split"), Some(33)), "264 (2.00/SM) split 33");
        assert_eq!((text(None, None), ctas(None)), ("264 (2.00/SM)".to_owned(), "–".to_owned()));
    }

    #[test]
    fn a_copy_bandwidth_that_is_lacking_is_said() {
        let mut results = results();
        results.copy_bandwidth = None;
        assert!(markdown(&results).contains("Copy bandwidth: not measured."));
    }

    #[test]
    fn a_file_of_the_former_form_gives_a_table_without_decoding() {
        let markdown = markdown(&former_results());
        assert!(markdown.contains("**1 of 1 targets met.**\n\n| B,HQ"), "{markdown}");
        assert!(markdown.ends_with(
            "| 268 | 64 (0.48/SM) | 12.00 | 10.00 cudnn | 1.50 | 1.25 | 0.97 | 1.2 × default: met |\n"
        ));
        assert!(!markdown.contains("Decoding"));
    }

    #[test]
    fn lengths_stand_side_by_side_with_their_mean() {
        let mean = |reached: f64| {
            serde_json::json!({"head_dim": 64, "dtype": "f16", "causal": true, "relative_to": "default", "least": 1.05,
                "reached": reached, "met": reached >= 1.05})
        };
        let problem = |shape: [u32; 6], tflops: f64, ratio: f64| {
            serde_json::json!({"shape": shape, "dtype": "f16", "causal": true, "kernel": null, "times": {},
                "tflops": {"ferroflash": tflops},
                "speed_relative_to": {"default": {"median": ratio, "p90": ratio}}})
        };
        let file = serde_json::json!({
            "set": "lengths", "date": "2026-01-01T00:00:00Z", "device": {"name": "Some GPU"}, "torch": {"version": "2"},
            "method": {"rounds": 1, "replays_per_round": 2}, "means": [mean(1.25)],
            "problems": [
                problem([2, 32, 32, 1024, 1024, 64], 300.4, 1.3), problem([4, 32, 32, 512, 512, 64], 200.0, 1.2),
                problem([1, 64, 8, 1024, 1024, 64], 100.0, 1.1),
            ],
        });
        let results: Results = serde_json::from_value(file).expect("the file's form");
        let text = lengths_markdown(&results);
        assert!(text.contains("**1 of 1 targets met.**"), "{text}");
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            table,
            [
                "| head_dim | heads | type | mask | 512 | 1024 | mean |",
                "|--:|--:|---|---|--:|--:|--:|",
                "| 64 | 32 | f16 | causal | 200 (1.20) | 300 (1.30) | 1.25 |",
                "| 64 | 64 on 8 KV | f16 | causal | – | 100 (1.10) | – |",
            ]
        );
    }

    #[test]
    fn times_have_three_or_four_digits() {
        assert_eq!([8.123, 99.999, 123.45, 6543.2].map(us), ["8.12", "100.00", "123.5", "6543"]);
    }
}
