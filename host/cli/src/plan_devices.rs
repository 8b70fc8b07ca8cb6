//! `ferroflash plan --devices`: what a sequence split among several devices is predicted to take.

use crate::bench_report::title;
use crate::devices_args::DevicesArgs;
use crate::failure::Failure;
use crate::output;
use ferroflash::{Planner, Problem};
use ferroflash_distributed::Method;
use ferroflash_distributed::model::{Cluster, Forecast, compare, forecast};
use serde_json::json;

/// Prints a line for each number of devices, and why its method is taken.
pub(crate) fn run(
    args: &DevicesArgs,
    planner: &Planner,
    problems: &[Problem],
    json: bool,
) -> Result<(), Failure> {
    let cluster = Cluster::HGX;
    let mut values = Vec::new();
    for problem in problems {
        if !json {
            heading(problem, planner, &cluster);
        }
        for &devices in &args.devices {
            let (forecast, why) = chosen(args, planner, problem, &cluster, devices)?;
            match (json, forecast) {
                (true, forecast) => values.push(json!({
                    "problem": title(problem),
                    "devices": devices,
                    "is_a_model": true,
                    "cluster": cluster,
                    "forecast": forecast,
                    "memory_bytes": forecast.map(|forecast| forecast.memory()),
                    "why": why,
                })),
                (false, Some(forecast)) => {
                    output::print(&line(&forecast));
                    output::print(&format!("            {why}"));
                }
                (false, None) => output::print(&format!("  {devices:>7}   {why}")),
            }
        }
    }
    if json {
        output::print_json(&values.into());
    }
    Ok(())
}

/// The forecast of the method that was named, or of the one to be taken, and why; none where no method can.
fn chosen(
    args: &DevicesArgs,
    planner: &Planner,
    problem: &Problem,
    cluster: &Cluster,
    devices: u32,
) -> Result<(Option<Forecast>, String), Failure> {
    let of = |method| forecast(planner, cluster, problem, &args.context(method), devices);
    if let Some(method) = args.named() {
        return Ok((Some(of(method)?), "--method names it".to_owned()));
    }
    let comparison = compare(planner, cluster, problem, (devices, planner.device().memory_bytes));
    match comparison.chosen {
        Some((method, why)) => Ok((Some(of(method)?), why)),
        None => {
            let reason = |(method, forecast): (Method, Result<Forecast, _>)| match forecast {
                Ok(forecast) => format!("{} needs {:.1} GB a device", method.name(), forecast.memory() / 1e9),
                Err(error) => format!("{error}"),
            };
            Ok((None, comparison.methods.into_iter().map(reason).collect::<Vec<_>>().join("; ")))
        }
    }
}

fn heading(problem: &Problem, planner: &Planner, cluster: &Cluster) {
    let (inside, between) = (cluster.inside, cluster.between);
    output::print(&format!("{} on {}: a model on paper", title(problem), planner.device().name));
    output::print(&format!(
        "  nodes of {} devices, {:.0} GB/s and {:.0} µs within, {:.0} GB/s and {:.0} µs a device between; kernels as the planner estimates",
        cluster.node, inside.gb_s, inside.latency_us, between.gb_s, between.latency_us
    ));
    output::print(
        "  devices   method       received MB   memory GB   compute ms   links ms    total ms   efficiency",
    );
}

fn line(forecast: &Forecast) -> String {
    format!(
        "  {:>7}   {:<10} {:>13.1} {:>11.2} {:>12.3} {:>10.3} {:>11.3} {:>10.1} %",
        forecast.devices,
        forecast.method.name(),
        forecast.footprint.received / 1e6,
        forecast.memory() / 1e9,
        forecast.compute_us / 1e3,
        forecast.links_us / 1e3,
        forecast.us / 1e3,
        forecast.efficiency * 100.0
    )
}
