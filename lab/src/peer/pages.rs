//! A comparison with a peer as a table and as a page.

use crate::kernels::Machine;
use crate::page::{Page, Series, SeriesKind, SpeedChart, SpeedPoint, SummaryRow};
use crate::peer::{Comparison, PeerReport, Quantiles};
use crate::problem_spec::ProblemSpec;
use crate::session::Header;
use crate::stages::roofline;
use crate::statistics::Interval;
use crate::table::{Table, short};
use std::collections::BTreeMap;

/// A line a problem and peer: peer's p50 and p90, this project's, the speed-up with its interval.
pub fn comparisons(report: &PeerReport) -> Table {
    let mut table = Table::new(&[
        "problem",
        "peer",
        "peer p50 µs",
        "peer p90",
        "kernel",
        "p50 µs",
        "p90",
        "spread",
        "speed-up",
        "low",
        "high",
        "p90 no worse",
    ]);
    for comparison in &report.comparisons {
        let Comparison { problem, kernel, peer, own, theirs, speed_up, p90_no_worse } = comparison;
        table.add(vec![
            problem.to_string(),
            peer.clone(),
            short(theirs.p50_us),
            short(theirs.p90_us),
            kernel.clone(),
            short(own.p50_us),
            short(own.p90_us),
            format!("{:.1} %", 100.0 * own.spread),
            format!("{:.3}", speed_up.estimate),
            format!("{:.3}", speed_up.low),
            format!("{:.3}", speed_up.high),
            if *p90_no_worse { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

/// The page: summary, and TFLOP/s over length for each element type, head_dim and mask. The roofline is `machine`'s, where it was
/// measured there.
pub fn page(report: &PeerReport, header: &Header, machine: &Machine) -> Page {
    let mut facts = vec![
        ("device".to_owned(), report.device.clone()),
        ("commit".to_owned(), header.commit.clone().unwrap_or_default()),
        ("measured".to_owned(), header.started.clone()),
    ];
    facts.extend(report.facts.clone());
    let summary = report.comparisons.iter().map(|comparison| SummaryRow {
        shape: comparison.problem.to_string(),
        peer: comparison.peer.clone(),
        peer_us: [comparison.theirs.p50_us, comparison.theirs.p90_us],
        own_us: [comparison.own.p50_us, comparison.own.p90_us],
        speed_up: comparison.speed_up,
        kernel: comparison.kernel.clone(),
    });
    Page {
        title: "Ferroflash and PyTorch".to_owned(),
        facts,
        summary: summary.collect(),
        speed: charts(report, roofline(machine).filter(|_| machine.name == header.device)),
        ..Page::default()
    }
}

fn charts(report: &PeerReport, roof: Option<f64>) -> Vec<SpeedChart> {
    let mut groups: BTreeMap<String, Vec<&Comparison>> = BTreeMap::new();
    for comparison in &report.comparisons {
        let ProblemSpec { shape, dtype, mask } = comparison.problem;
        let title = format!("{} head_dim {} {}", dtype.name(), shape.head_dim(), mask.name());
        groups.entry(title).or_default().push(comparison);
    }
    groups.values_mut().for_each(|group| group.sort_by_key(|comparison| comparison.problem));
    let chart = |(title, group): (String, Vec<&Comparison>)| {
        let mut by_name: BTreeMap<String, Vec<SpeedPoint>> = BTreeMap::new();
        let mut own: Vec<SpeedPoint> = Vec::new();
        for comparison in &group {
            let theirs = point(comparison, &comparison.theirs, &comparison.peer);
            by_name.entry(comparison.peer.clone()).or_default().push(theirs);
            let point = point(comparison, &comparison.own, &comparison.kernel);
            if !own.contains(&point) {
                own.push(point);
            }
        }
        let mut series =
            vec![Series { name: "Ferroflash".to_owned(), kind: SeriesKind::Own, points: own.clone() }];
        series.extend(by_name.into_iter().map(|(name, points)| Series {
            name,
            kind: SeriesKind::Peer,
            points,
        }));
        if let Some(roof) = roof {
            let flat = |point: &SpeedPoint| SpeedPoint {
                tflops: Interval::exact(roof),
                note: "tensor cores at the highest clock".to_owned(),
                ..point.clone()
            };
            let points = own.iter().map(flat).collect();
            series.push(Series { name: "roofline".to_owned(), kind: SeriesKind::Roofline, points });
        }
        SpeedChart { title, series }
    };
    groups.into_iter().map(chart).collect()
}

fn point(comparison: &Comparison, quantiles: &Quantiles, who: &str) -> SpeedPoint {
    let Quantiles { p50_us, p90_us, spread } = *quantiles;
    let tflops = |time_us: f64| comparison.problem.flops() / time_us / 1e6;
    let p10_us = p90_us - spread * p50_us;
    let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, _] = comparison.problem.shape.0;
    let mut heads = format!("{batch}×{heads_q}");
    if heads_kv != heads_q {
        heads += &format!("/{heads_kv}");
    }
    if seqlen_q != seqlen_k {
        heads += &format!(" q{seqlen_q}");
    }
    SpeedPoint {
        seqlen: seqlen_k,
        heads,
        tflops: Interval { low: tflops(p90_us), estimate: tflops(p50_us), high: tflops(p10_us) },
        note: format!("{}, {who}: {} µs", comparison.problem, short(p50_us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem_spec::Mask;

    #[test]
    fn a_report_is_a_table_and_a_page() {
        let quantiles = |p50_us| Quantiles { p50_us, p90_us: 1.1 * p50_us, spread: 0.1 };
        let shape = "1,8,8,512,512,64".parse().expect("a shape");
        let comparison = Comparison {
            problem: ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask: Mask::Full },
            kernel: "fwd_x".to_owned(),
            peer: "torch flash".to_owned(),
            own: quantiles(10.0),
            theirs: quantiles(20.0),
            speed_up: Interval { low: 1.9, estimate: 2.0, high: 2.1 },
            p90_no_worse: true,
        };
        let report = PeerReport {
            device: "NVIDIA L4".to_owned(),
            facts: Vec::new(),
            comparisons: vec![comparison],
            errors: Vec::new(),
        };
        let table = comparisons(&report);
        assert!(table.markdown().contains("| 2.000 | 1.900 | 2.100 | yes |"), "{}", table.markdown());
        let header = crate::session::tests::header("benchmark");
        let here = Machine { name: header.device.clone(), clock_max_mhz: Some(2000), ..Machine::simulator() };
        let html = page(&report, &header, &here).html();
        assert!(html.contains("torch flash") && html.contains("roofline") && html.contains("<svg"));
        let elsewhere = Machine { name: "another".to_owned(), ..here };
        assert!(!page(&report, &header, &elsewhere).html().contains("roofline"), "another device's");
    }
}
