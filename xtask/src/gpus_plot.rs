//! The plot of several GPUs at once, from what `benches/over_nccl.sh` left: speed relative to PyTorch's context parallelism, and the share of
//! as many times one GPU beside what the model predicts.

use crate::results::FOLDER;
use crate::results_plot::{self, Bar, Panel, Unit};
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files of a folder of results, in the order of the plot, and PyTorch's.
const FILES: [&str; 2] = ["short.json", "long.json"];
const PEER: &str = "peer.json";

/// The file's text; `None` where nothing was measured.
pub(crate) fn svg(root: &Path) -> anyhow::Result<Option<String>> {
    let Some(folder) = newest(root)? else { return Ok(None) };
    let read = |file: &str| -> anyhow::Result<Value> {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    };
    let measured: Vec<Value> = FILES.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
    Ok(Some(results_plot::panels_svg(&panels(&measured, &read(PEER)?))?))
}

/// The last folder that has all files.
fn newest(root: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(root.join(FOLDER)) else { return Ok(None) };
    let mut folders = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    folders.retain(|folder| FILES.iter().chain([&PEER]).all(|file| folder.join(file).exists()));
    Ok(folders.into_iter().max())
}

fn panels(measured: &[Value], peer: &Value) -> [Panel; 2] {
    let (mut speeds, mut shares) = (Vec::new(), Vec::new());
    let results = measured.iter().filter_map(|file| file["results"].as_array()).flatten();
    for result in results.filter(|result| result["measured"]["timing"].is_object()) {
        let (name, found) = (result["problem"].as_str().unwrap_or_default(), &result["measured"]);
        let title = name.replace(" bf16", "").replace(&format!(" {} GPUs,", found["devices"]), "");
        let us = found["timing"]["median_us"].as_f64();
        let value = fastest(peer, name).zip(us).map(|(peer_us, us)| peer_us / us);
        let is_faster = value.is_some_and(|value| value >= 1.0);
        let (share, predicted) = (found["efficiency"].as_f64(), found["predicted"]["efficiency"].as_f64());
        speeds.push(Bar { title: title.clone(), value, mark: None, is_faster });
        shares.push(Bar { title, value: share, mark: predicted, is_faster });
    }
    let name = peer["device"].as_str().unwrap_or_default();
    let count = &peer["world"];
    let legend = ["Ferroflash, faster than PyTorch", "slower than PyTorch"];
    [
        Panel {
            title: format!("Speed relative to PyTorch's context parallelism on {count} × {name}"),
            legend,
            mark: None,
            unit: Unit::Times,
            bars: speeds,
        },
        Panel {
            title: format!("Share of {count} times one GPU's speed"),
            legend,
            mark: Some("predicted by the model"),
            unit: Unit::Percent,
            bars: shares,
        },
    ]
}

/// The least that PyTorch took for a problem, whatever its back end and way of rotating keys.
fn fastest(peer: &Value, problem: &str) -> Option<f64> {
    let (sizes, rest) = problem.split_once(' ')?;
    let is_causal = rest.contains("causal");
    let sizes: Vec<&str> = sizes.split(',').collect();
    let [batch, heads, heads_kv, tokens, _, head_dim] = sizes[..] else { return None };
    let of_peer = [batch, heads, heads_kv, tokens, head_dim].join(",");
    let is_same =
        |row: &&Value| row["shape"] == of_peer.as_str() && row["causal"].as_bool() == Some(is_causal);
    let rows = peer["attention"].as_array()?.iter().filter(is_same);
    let is_time = |name: &str| name.ends_with("_us") && name != "one_gpu_us";
    let times = rows
        .filter_map(Value::as_object)
        .flat_map(|row| row.iter().filter(|(name, _)| is_time(name)).filter_map(|(_, value)| value.as_f64()));
    times.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bars_are_pytorchs_time_by_ours_and_the_share() {
        let result = |method: &str, us: f64| {
            json!({"problem": format!("1,8,2,64,64,128 bf16 causal: 2 GPUs, {method}"), "measured": {"devices": 2,
                "timing": {"median_us": us}, "efficiency": 0.5, "predicted": {"efficiency": 0.6}}})
        };
        let measured = json!({"results": [result("ring", 50.0), result("all-gather", 250.0)]});
        let row = |causal: bool, us: f64| json!({"shape": "1,8,2,64,128", "causal": causal, "one_gpu_us": 1.0, "allgather_us": us, "alltoall_us": us + 5.0});
        let peer = json!({"device": "GPU", "world": 2, "attention": [row(true, 100.0), row(false, 10.0), row(true, 120.0)]});
        let [speed, share] = panels(&[measured], &peer);
        let of = |panel: &Panel| {
            panel.bars.iter().map(|bar| (bar.value, bar.mark, bar.is_faster)).collect::<Vec<_>>()
        };
        assert_eq!(of(&speed), [(Some(2.0), None, true), (Some(0.4), None, false)]);
        assert_eq!(of(&share), [(Some(0.5), Some(0.6), true), (Some(0.5), Some(0.6), false)]);
        assert_eq!(speed.bars[0].title, "1,8,2,64,64,128 causal: ring");
    }

    #[test]
    fn nothing_measured_is_nothing_drawn() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert!(svg(root.path()).expect("readable").is_none());
    }
}
