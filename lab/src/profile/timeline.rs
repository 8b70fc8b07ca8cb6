//! What PyTorch's profiler saw of a kernel, where the counters of ncu are not permitted: `benches/torch_profile.py` prints it.

use crate::profile::Figure;
use serde_json::Value;

/// Reads what the script printed of the kernel with this entry: its time, and what its launch was given. Nothing where the trace lacks it.
pub fn parse_timeline(text: &str, entry: &str) -> Vec<Figure> {
    let found: Value = serde_json::from_str(text.trim()).unwrap_or_default();
    let kernels = found["kernels"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(kernel) = kernels.iter().find(|kernel| kernel["name"] == entry) else { return Vec::new() };
    let ctas = kernel["grid"].as_array().map(|grid| grid.iter().filter_map(Value::as_f64).product());
    let number = |key: &str| kernel[key].as_f64();
    let figures = [
        ("timeline: mean time", number("us"), " µs"),
        ("timeline: launches", number("launches"), ""),
        ("timeline: CTAs", ctas, ""),
        ("timeline: registers a thread", number("registers per thread"), ""),
        ("timeline: shared memory", number("shared memory"), " bytes"),
        ("timeline: warps an SM", number("warps per SM"), ""),
        ("timeline: estimated occupancy", number("est. achieved occupancy %"), " %"),
    ];
    figures.into_iter().filter_map(|(name, value, unit)| Some(Figure::new(name, value?, unit))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_a_trace_is_read_and_others_are_not() {
        let printed = r#"{"device": "NVIDIA H200", "kernels": [{"name": "vectorized", "launches": 3, "us": 2.0},
            {"name": "fwd", "launches": 20, "us": 7.5, "grid": [8, 4, 2], "registers per thread": 168, "shared memory": 99328,
             "warps per SM": 0.48, "est. achieved occupancy %": 18}]}"#;
        let figures: Vec<String> = parse_timeline(printed, "fwd").iter().map(ToString::to_string).collect();
        assert_eq!(
            figures[..3],
            ["timeline: mean time 7.50 µs", "timeline: launches 20.00", "timeline: CTAs 64.00"]
        );
        assert_eq!(figures.len(), 7);
        for nothing in ["", "Traceback", "{}", r#"{"kernels": []}"#] {
            assert_eq!(parse_timeline(nothing, "fwd"), [], "{nothing}");
        }
    }
}
