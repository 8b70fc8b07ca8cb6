//! TFLOP/s over sequence length, against peers and the roofline.

use super::scale::{Scale, label};
use super::svg::{Drawing, GREY, colour, escape};
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 410.0;
const LEFT: f64 = 56.0;
/// Names of series stand right of their last point.
const RIGHT: f64 = 190.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 48.0;
/// The least distance of names.
const LINE: f64 = 15.0;

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

/// The speed at one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedPoint {
    /// The sequence length.
    pub seqlen: u32,
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
    /// The chart.
    pub(super) fn svg(&self) -> String {
        let mut drawing = Drawing::new(WIDTH, HEIGHT, &self.title);
        drawing.text("title", "start", [0.0, 14.0], &self.title);
        let series: Vec<(&Series, Vec<&SpeedPoint>)> =
            self.series.iter().map(|series| (series, measured(series))).filter(|s| !s.1.is_empty()).collect();
        let points = || series.iter().flat_map(|(_, points)| points.iter());
        if series.is_empty() {
            drawing.text("", "middle", [WIDTH / 2.0, HEIGHT / 2.0], "Nothing was measured.");
            return drawing.finish();
        }
        let mut lengths: Vec<u32> = points().map(|point| point.seqlen).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let all_tflops: Vec<f64> = points().flat_map(|point| [point.tflops.low, point.tflops.high]).collect();
        let as_f64: Vec<f64> = lengths.iter().map(|length| f64::from(*length)).collect();
        let x = Scale::log(&as_f64, [LEFT + 14.0, WIDTH - RIGHT - 10.0]);
        let is_own = |series: &&(&Series, Vec<&SpeedPoint>)| series.0.kind == SeriesKind::Own;
        let own = series.iter().filter(is_own).flat_map(|(_, points)| points);
        let own_tflops: Vec<f64> = own.map(|point| point.tflops.estimate).collect();
        let y = Scale::from_zero(&all_tflops, &own_tflops, [HEIGHT - BOTTOM, TOP]);
        draw_axes(&mut drawing, &lengths, x, y);
        let mut names = Vec::new();
        for (number, (series, points)) in series.iter().enumerate() {
            // The roofline is nobody's.
            let number = if series.kind == SeriesKind::Roofline { GREY } else { number };
            draw_series(&mut drawing, number, series, points, x, y);
            if let Some(last) = points.last() {
                let at = [x.place(f64::from(last.seqlen)), y.place(last.tflops.estimate)];
                names.push((at, number, &series.name));
            }
        }
        draw_names(&mut drawing, names);
        drawing.finish()
    }

    /// The figures, for those who want to read or copy them.
    pub(super) fn table(&self) -> String {
        let mut lengths: Vec<u32> = self.series.iter().flat_map(measured).map(|point| point.seqlen).collect();
        lengths.sort_unstable();
        lengths.dedup();
        if lengths.is_empty() {
            return String::new();
        }
        let mut text =
            "<details><summary>TFLOP/s as a table</summary><div class=\"wide\"><table>\n<thead><tr><th>length</th>".to_owned();
        for series in &self.series {
            text += &format!("<th>{}</th>", escape(&series.name));
        }
        text += "</tr></thead>\n<tbody>\n";
        for length in lengths {
            text += &format!("<tr><td>{length}</td>");
            for series in &self.series {
                let point = measured(series).into_iter().find(|point| point.seqlen == length);
                text += &point.map_or("<td>–</td>".to_owned(), |point| {
                    format!("<td>{:.1}</td>", point.tflops.estimate)
                });
            }
            text += "</tr>\n";
        }
        text + "</tbody>\n</table></div></details>\n"
    }
}

/// The points of a series that can be drawn, by length.
fn measured(series: &Series) -> Vec<&SpeedPoint> {
    let mut points: Vec<&SpeedPoint> = series.points.iter().filter(|point| point.is_measured()).collect();
    points.sort_by_key(|point| point.seqlen);
    points
}

fn draw_axes(drawing: &mut Drawing, lengths: &[u32], x: Scale, y: Scale) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for tick in y.ticks() {
        let at = y.place(tick);
        drawing.line("grid", [LEFT, at], [right, at]);
        drawing.text("", "end", [LEFT - 8.0, at], &label(tick));
    }
    drawing.line("axis", [LEFT, bottom], [right, bottom]);
    let mut last_label = f64::NEG_INFINITY;
    for length in lengths {
        let at = x.place(f64::from(*length));
        drawing.line("axis", [at, bottom], [at, bottom + 4.0]);
        // Labels that would touch are left out.
        if at - last_label > 42.0 {
            drawing.text("", "middle", [at, bottom + 16.0], &length.to_string());
            last_label = at;
        }
    }
    drawing.text("", "middle", [(LEFT + right) / 2.0, HEIGHT - 10.0], "sequence length");
    drawing.text("", "start", [0.0, TOP - 18.0], "TFLOP/s");
}

fn draw_series(
    drawing: &mut Drawing,
    number: usize,
    series: &Series,
    points: &[&SpeedPoint],
    x: Scale,
    y: Scale,
) {
    let colour = colour(number);
    let at = |point: &SpeedPoint, tflops: f64| [x.place(f64::from(point.seqlen)), y.place(tflops)];
    let line: Vec<[f64; 2]> = points.iter().map(|point| at(point, point.tflops.estimate)).collect();
    let style = match series.kind {
        SeriesKind::Own => "line thick",
        SeriesKind::Peer => "line",
        SeriesKind::Roofline => "line roof",
    };
    drawing.path(&format!("{style} {colour}"), &line, false);
    if series.kind == SeriesKind::Roofline {
        return;
    }
    for point in points {
        let Interval { low, estimate, high } = point.tflops;
        drawing.line(&format!("bar {colour}"), at(point, low), at(point, high));
        let mut hover =
            format!("{}, length {}: {estimate:.1} TFLOP/s ({low:.1}–{high:.1})", series.name, point.seqlen);
        if !point.note.is_empty() {
            hover = format!("{hover}\n{}", point.note);
        }
        drawing.mark(number, at(point, estimate), &hover);
    }
}

/// Writes each name at the height of its line's end, or as near as the others leave room.
fn draw_names(drawing: &mut Drawing, mut names: Vec<([f64; 2], usize, &String)>) {
    names.sort_by(|a, b| a.0[1].total_cmp(&b.0[1]));
    let mut heights: Vec<f64> = Vec::new();
    for (at, ..) in &names {
        let least = heights.last().map_or(TOP, |last| last + LINE);
        heights.push(at[1].max(least));
    }
    // What was pushed below the axis pushes the others up.
    let mut most = HEIGHT - BOTTOM;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - LINE;
    }
    let column = WIDTH - RIGHT + 10.0;
    for ((at, number, name), height) in names.into_iter().zip(heights) {
        drawing.line(&format!("grid {}", colour(number)), [at[0] + 8.0, at[1]], [column - 3.0, height]);
        let short: String = if name.chars().count() > 26 {
            name.chars().take(25).chain(['…']).collect()
        } else {
            name.clone()
        };
        drawing.text(&colour(number), "start", [column, height], &short);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;

    /// The places of texts in the column of names.
    fn name_heights(svg: &str) -> Vec<f64> {
        let column = format!("x=\"{:.1}\" y=\"", WIDTH - RIGHT + 10.0);
        let heights = svg
            .lines()
            .filter(|line| line.starts_with("<text"))
            .filter_map(|line| line.split_once(&column)?.1.split('"').next()?.parse().ok());
        heights.collect()
    }

    #[test]
    fn names_do_not_cover_each_other_and_stay_in_the_picture() {
        let mut chart = page().speed.remove(0);
        // All lines end at one point.
        for series in &mut chart.series {
            let last = series.points.len() - 1;
            series.points[last].tflops = Interval::exact(1.0);
        }
        let mut heights = name_heights(&chart.svg());
        heights.sort_by(f64::total_cmp);
        assert_eq!(heights.len(), chart.series.len());
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > LINE - 0.2), "{heights:?}");
        assert!(
            heights.iter().all(|height| (TOP - 1.0..=HEIGHT - BOTTOM + 1.0).contains(height)),
            "{heights:?}"
        );
    }

    #[test]
    fn every_measured_point_has_its_figures_under_the_pointer() {
        let chart = page().speed.remove(0);
        let svg = chart.svg();
        assert_eq!(svg.matches("<title>").count(), 4 * 6, "the roofline has no points");
        assert!(
            svg.contains("ferroflash, length 512: 258.5 TFLOP/s (250.8–263.7)\np50 38.1 µs</title>"),
            "{svg}"
        );
    }

    #[test]
    fn a_length_that_a_peer_lacks_is_a_dash_and_bad_points_are_left_out() {
        let mut chart = page().speed.remove(0);
        chart.series[1].points.remove(0);
        chart.series[2].points[0].tflops.estimate = f64::NAN;
        chart.series[3].points[0].tflops = Interval::exact(0.0);
        assert!(chart.table().contains("<tr><td>512</td><td>258.5</td><td>–</td><td>–</td><td>–</td>"));
        assert!(!chart.svg().contains("NaN"));
    }
}
