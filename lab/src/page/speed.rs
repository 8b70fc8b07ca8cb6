//! TFLOP/s over sequence length, against peers and the roofline: the figures, and their table.

mod plot;

use super::html_table;
use crate::statistics::Interval;
use crate::table::Table;
use serde::{Deserialize, Serialize};

/// Whose speed it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// This project's.
    Own,
    /// Somebody else's.
    Peer,
    /// What the device could do.
    Roofline,
}

/// One line of the chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub kind: SeriesKind,
    /// Its points.
    pub points: Vec<SpeedPoint>,
}

/// The speed on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedPoint {
    /// The sequence length.
    pub seqlen: u32,
    /// What tells problems of one length apart: batch × heads.
    #[serde(default)]
    pub heads: String,
    /// TFLOP/s, with the interval.
    pub tflops: Interval,
    /// What else the pointer shows: the kernel, the time, the spread.
    #[serde(default)]
    pub note: String,
}

impl SpeedPoint {
    /// Whether it can be drawn.
    fn is_measured(&self) -> bool {
        let Interval { low, estimate, high } = self.tflops;
        self.seqlen > 0 && [low, estimate, high].iter().all(|tflops| tflops.is_finite() && *tflops > 0.0)
    }

    fn column(&self) -> Column<'_> {
        Column { seqlen: self.seqlen, heads: &self.heads }
    }
}

/// A place on the axis of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column<'a> {
    seqlen: u32,
    heads: &'a str,
}

/// TFLOP/s over length for one dtype, head_dim and mask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedChart {
    /// What is measured.
    pub title: String,
    /// The lines.
    pub series: Vec<Series>,
}

impl SpeedChart {
    /// The figures, for those who want to read or copy them.
    pub(super) fn table(&self) -> String {
        let columns = columns(self.series.iter().flat_map(measured));
        if columns.is_empty() {
            return String::new();
        }
        let names = self.series.iter().map(|series| series.name.as_str());
        let mut table = Table::new(&["length", "batch × heads"].into_iter().chain(names).collect::<Vec<_>>());
        for column in columns {
            let mut cells = vec![column.seqlen.to_string(), column.heads.to_owned()];
            for series in &self.series {
                let point = measured(series).into_iter().find(|point| point.column() == column);
                cells.push(point.map_or("–".to_owned(), |point| format!("{:.1}", point.tflops.estimate)));
            }
            table.add(cells);
        }
        format!("<details><summary>TFLOP/s as a table</summary>{}</details>\n", html_table(&table))
    }
}

/// The points of a series that can be drawn, by length.
fn measured(series: &Series) -> Vec<&SpeedPoint> {
    let mut points: Vec<&SpeedPoint> = series.points.iter().filter(|point| point.is_measured()).collect();
    points.sort_by_key(|point| point.seqlen);
    points
}

/// The places of points, by length, those of one length in their order.
fn columns<'a>(points: impl Iterator<Item = &'a SpeedPoint>) -> Vec<Column<'a>> {
    let mut columns: Vec<Column<'a>> = Vec::new();
    for point in points {
        if !columns.contains(&point.column()) {
            columns.push(point.column());
        }
    }
    columns.sort_by_key(|column| column.seqlen);
    columns
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;

    #[test]
    fn a_length_that_a_peer_lacks_is_a_dash_and_bad_points_are_left_out() {
        let mut chart = page().speed.remove(0);
        chart.series[1].points.remove(0);
        chart.series[2].points[0].tflops.estimate = f64::NAN;
        chart.series[3].points[0].tflops = Interval::exact(0.0);
        let table = chart.table().replace(" class=\"number\"", "");
        let row = "<tr><td>512</td><td>4×16</td><td>258.5</td><td>–</td><td>–</td><td>–</td>";
        assert!(table.contains(row), "{table}");
        assert!(!chart.svg().contains("NaN"));
    }

    #[test]
    fn problems_of_one_length_have_a_place_each() {
        let mut chart = page().speed.remove(0);
        let other = SpeedPoint { heads: "8×16".to_owned(), ..chart.series[0].points[0].clone() };
        chart.series[0].points.push(other);
        let columns = columns(chart.series.iter().flat_map(measured));
        let first = columns.iter().take(3).map(|column| (column.seqlen, column.heads)).collect::<Vec<_>>();
        assert_eq!(first, [(512, "4×16"), (512, "8×16"), (1024, "4×16")]);
        assert_eq!(chart.table().matches(">512</td>").count(), 2);
    }
}
