//! What a change of a row is expected to do, said before it is measured.

use ferroflash::Row;
use kernels_gpu::geometry;

/// Wavefronts of shared memory for each operation of a problem, by arithmetic: what the main loop reads and writes.
///
/// For a step of block_m × block_n, 4 · block_m · block_n · head_dim operations, each warp reads its keys of K and V once for
/// every m-tile's worth of rows it holds, all warps together write K and V once, and where Q does not stay in registers each
/// m-tile is read again. A wavefront is 128 bytes.
pub fn wavefronts_per_flop(row: &Row) -> f64 {
    let bytes = f64::from(row.dtype.bytes());
    let (block_m, block_n) = (f64::from(row.block_m), f64::from(row.block_n));
    let head_dim = f64::from(row.head_dim);
    let keys = f64::from(geometry::keys_per_warp(row));
    let warps = f64::from(row.warps);
    let read = warps * 2.0 * keys * head_dim * bytes;
    let written = 2.0 * block_n * head_dim * bytes;
    let q_tiles = f64::from(geometry::m_tiles(row) * 16);
    let q = if geometry::q_in_registers(row) { 0.0 } else { warps * q_tiles * head_dim * bytes };
    (read + written + q) / 128.0 / (4.0 * block_m * block_n * head_dim)
}

/// How much less of it one row takes than another: 0.25 is a quarter less.
pub fn gain(from: &Row, to: &Row) -> f64 {
    1.0 - wavefronts_per_flop(to) / wavefronts_per_flop(from)
}

/// The columns in which two rows differ, `block_n 32 → 64, stages 1 → 2`; empty for equal rows.
pub fn change(from: &Row, to: &Row) -> String {
    let columns = |row: &Row| serde_json::to_value(row).unwrap_or_default();
    let (before, after) = (columns(from), columns(to));
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return String::new() };
    let differing = before.iter().filter_map(|(name, old)| {
        let new = after.get(name)?;
        (old != new).then(|| format!("{name} {} → {}", plain(old), plain(new)))
    });
    differing.collect::<Vec<_>>().join(", ")
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A hypothesis about a change.
pub fn hypothesis(from: &Row, to: &Row) -> String {
    let change = change(from, to);
    let gain = 100.0 * gain(from, to);
    let effect = if gain.abs() < 0.5 {
        "shared memory is read as often; copies, occupancy or the balance of CTAs may gain".to_owned()
    } else if gain > 0.0 {
        format!("fragments are read {gain:.0} % less often for the same operations")
    } else {
        format!(
            "fragments are read {:.0} % more often; occupancy or the balance of CTAs would have to pay for it",
            -gain
        )
    };
    if change.is_empty() { "the start, as it is".to_owned() } else { format!("{change}: {effect}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::table::VARIANTS;

    fn row() -> Row {
        VARIANTS.iter().map(|variant| variant.row).find(|row| row.head_dim == 64).expect("a row")
    }

    #[test]
    fn taller_warps_read_less_and_the_change_is_named_by_column() {
        let low = Row { block_m: 64, block_n: 64, warps: 4, stages: 2, min_ctas: 1, warp_rows: 16, ..row() };
        let tall = Row { block_m: 128, warp_rows: 32, ..low };
        assert!((gain(&low, &tall) - 0.5).abs() < 1e-9, "{}", gain(&low, &tall));
        assert_eq!(change(&low, &tall), "block_m 64 → 128, warp_rows 16 → 32");
        assert_eq!(change(&low, &low), "");
        assert!(hypothesis(&low, &tall).contains("50 % less often"));
        assert!(hypothesis(&tall, &low).contains("100 % more often"));
    }
}
