//! The chart twice: wide, with names beside the lines, and narrow, with names below. The style sheet shows the one that fits.

use super::{Column, Series, SeriesKind, SpeedChart, SpeedPoint, columns, measured};
use crate::page::scale::Scale;
use crate::page::svg::{Drawing, GREY, colour};
use crate::statistics::Interval;

const TOP: f64 = 54.0;
/// From the axis to the labels of lengths, of batch × heads, and to the axis' name.
const BELOW_AXIS: [f64; 3] = [16.0, 31.0, 52.0];
/// The least distance of names.
const LINE: f64 = 15.0;
/// The width of a letter of a label, about.
const LETTER: f64 = 7.2;
/// Letters of a name at most.
const NAME_LETTERS: usize = 26;

/// Where things stand, in pixels.
#[derive(Clone, Copy, Debug)]
struct Layout {
    class: &'static str,
    width: f64,
    left: f64,
    right: f64,
    /// The axis of lengths.
    bottom: f64,
    height: f64,
    names: Names,
}

/// Where the names of series stand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Names {
    /// Right of their last points.
    Beside,
    /// Below the axis, a line each.
    Below,
}

impl Layout {
    const WIDE: Layout = Layout {
        class: "wide-only",
        width: 860.0,
        left: 56.0,
        right: 190.0,
        bottom: 370.0,
        height: 430.0,
        names: Names::Beside,
    };

    /// For a screen that is held in a hand.
    fn narrow(series: usize) -> Layout {
        let bottom = 290.0;
        let height = bottom + BELOW_AXIS[2] + 22.0 + 18.0 * series as f64;
        let (left, right) = (42.0, 6.0);
        Layout { class: "narrow-only", width: 360.0, left, right, bottom, height, names: Names::Below }
    }

    /// Where the axis of lengths ends.
    fn end(&self) -> f64 {
        self.width - self.right
    }
}

impl SpeedChart {
    /// The chart in both forms.
    pub(in crate::page) fn svg(&self) -> String {
        self.svg_in(Layout::WIDE) + &self.svg_in(Layout::narrow(self.series.len()))
    }

    fn svg_in(&self, layout: Layout) -> String {
        let mut drawing = Drawing::new(layout.class, layout.width, layout.height, &self.title);
        drawing.text("title", "start", [0.0, 14.0], &self.title);
        let series: Vec<(&Series, Vec<&SpeedPoint>)> =
            self.series.iter().map(|series| (series, measured(series))).filter(|s| !s.1.is_empty()).collect();
        if series.is_empty() {
            drawing.text("", "middle", [layout.width / 2.0, layout.height / 2.0], "Nothing was measured.");
            return drawing.finish();
        }
        let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
        let all_tflops: Vec<f64> = points().flat_map(|point| [point.tflops.low, point.tflops.high]).collect();
        let is_own = |series: &&(&Series, Vec<&SpeedPoint>)| series.0.kind == SeriesKind::Own;
        let own = series.iter().filter(is_own).flat_map(|(_, points)| points);
        let own_tflops: Vec<f64> = own.map(|point| point.tflops.estimate).collect();
        let plane = Plane {
            layout,
            columns: columns(points()),
            y: Scale::from_zero(&all_tflops, &own_tflops, [layout.bottom, TOP]),
        };
        plane.draw_axes(&mut drawing);
        let mut names = Vec::new();
        for (number, (series, points)) in series.iter().enumerate() {
            // The roofline is nobody's.
            let number = if series.kind == SeriesKind::Roofline { GREY } else { number };
            plane.draw_series(&mut drawing, number, series, points);
            if let Some(last) = points.last() {
                let mut at = plane.at(last, last.tflops.estimate);
                if series.kind == SeriesKind::Roofline {
                    at[0] = layout.end();
                }
                names.push(Name { at, number, series });
            }
        }
        match layout.names {
            Names::Beside => draw_names_beside(&mut drawing, names, layout),
            Names::Below => draw_names_below(&mut drawing, &names, layout),
        }
        drawing.finish()
    }
}

/// A series' name, and where its line ends.
struct Name<'a> {
    at: [f64; 2],
    number: usize,
    series: &'a Series,
}

impl Name<'_> {
    fn text(&self) -> String {
        let name = &self.series.name;
        if name.chars().count() <= NAME_LETTERS {
            return name.clone();
        }
        name.chars().take(NAME_LETTERS - 1).chain(['…']).collect()
    }
}

fn line_class(kind: SeriesKind) -> &'static str {
    match kind {
        SeriesKind::Own => "line thick",
        SeriesKind::Peer => "line",
        SeriesKind::Roofline => "line roof",
    }
}

/// From figures to places. Problems stand at equal distances: lengths double, and several may have one length.
struct Plane<'a> {
    layout: Layout,
    columns: Vec<Column<'a>>,
    y: Scale,
}

impl Plane<'_> {
    fn x(&self, column: usize) -> f64 {
        let (start, end) = (self.layout.left + 16.0, self.layout.end() - 16.0);
        match self.columns.len() {
            0 | 1 => (start + end) / 2.0,
            count => start + (end - start) * column as f64 / (count - 1) as f64,
        }
    }

    fn at(&self, point: &SpeedPoint, tflops: f64) -> [f64; 2] {
        let column = self.columns.iter().position(|column| *column == point.column());
        [self.x(column.unwrap_or_default()), self.y.place(tflops)]
    }

    fn draw_axes(&self, drawing: &mut Drawing) {
        let Layout { left, bottom, .. } = self.layout;
        let right = self.layout.end();
        for tick in self.y.ticks() {
            let at = self.y.place(tick);
            drawing.line("grid", [left, at], [right, at]);
            drawing.text("", "end", [left - 8.0, at], &self.y.label(tick));
        }
        drawing.line("axis", [left, bottom], [right, bottom]);
        let mut free_from = f64::NEG_INFINITY;
        for (number, column) in self.columns.iter().enumerate() {
            let at = self.x(number);
            drawing.line("axis", [at, bottom], [at, bottom + 4.0]);
            let length = column.seqlen.to_string();
            let letters = length.chars().count().max(column.heads.chars().count());
            let half = letters as f64 * LETTER / 2.0;
            // Labels that would touch are left out; the last one may not reach over the edge.
            if at - half < free_from || at + half > self.layout.width {
                continue;
            }
            free_from = at + half + LETTER;
            drawing.text("", "middle", [at, bottom + BELOW_AXIS[0]], &length);
            drawing.text("", "middle", [at, bottom + BELOW_AXIS[1]], column.heads);
        }
        let name = "sequence length; batch × heads";
        drawing.text("", "middle", [(left + right) / 2.0, bottom + BELOW_AXIS[2]], name);
        drawing.text("", "start", [2.0, TOP - 18.0], "TFLOP/s");
    }

    fn draw_series(&self, drawing: &mut Drawing, number: usize, series: &Series, points: &[&SpeedPoint]) {
        let colour = colour(number);
        let mut line: Vec<[f64; 2]> =
            points.iter().map(|point| self.at(point, point.tflops.estimate)).collect();
        if series.kind == SeriesKind::Roofline {
            // It holds for lengths that nobody measured too.
            let (first, last) = (line[0][1], line[line.len() - 1][1]);
            line.insert(0, [self.layout.left, first]);
            line.push([self.layout.end(), last]);
        }
        drawing.path(&format!("{} {colour}", line_class(series.kind)), &line, false);
        if series.kind == SeriesKind::Roofline {
            return;
        }
        for point in points {
            let Interval { low, estimate, high } = point.tflops;
            drawing.line(&format!("bar {colour}"), self.at(point, low), self.at(point, high));
            let mut hover = format!(
                "{}, length {}: {estimate:.1} TFLOP/s ({low:.1}–{high:.1})",
                series.name, point.seqlen
            );
            if !point.note.is_empty() {
                hover = format!("{hover}\n{}", point.note);
            }
            drawing.mark(number, self.at(point, estimate), &hover);
        }
    }
}

/// Writes each name at the height of its line's end, or as near as the others leave room.
fn draw_names_beside(drawing: &mut Drawing, mut names: Vec<Name<'_>>, layout: Layout) {
    names.sort_by(|a, b| a.at[1].total_cmp(&b.at[1]));
    let mut heights: Vec<f64> = Vec::new();
    for name in &names {
        let least = heights.last().map_or(TOP, |last| last + LINE);
        heights.push(name.at[1].max(least));
    }
    // What was pushed below the axis pushes the others up.
    let mut most = layout.bottom;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - LINE;
    }
    let column = layout.end() + 10.0;
    for (name, height) in names.iter().zip(heights) {
        let colour = colour(name.number);
        drawing.line(&format!("grid {colour}"), [name.at[0] + 8.0, name.at[1]], [column - 3.0, height]);
        drawing.text(&colour, "start", [column, height], &name.text());
    }
}

/// Writes the names below each other, each behind a piece of its line.
fn draw_names_below(drawing: &mut Drawing, names: &[Name<'_>], layout: Layout) {
    for (row, name) in names.iter().enumerate() {
        let height = layout.bottom + BELOW_AXIS[2] + 22.0 + 18.0 * row as f64;
        let (colour, kind) = (colour(name.number), name.series.kind);
        let (start, end) = (layout.left, layout.left + 28.0);
        drawing.line(&format!("{} {colour}", line_class(kind)), [start, height], [end, height]);
        if kind != SeriesKind::Roofline {
            drawing.key(name.number, [(start + end) / 2.0, height]);
        }
        drawing.text(&colour, "start", [end + 8.0, height], &name.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::page;

    /// The places of texts that begin at `x`.
    fn name_heights(svg: &str, x: f64) -> Vec<f64> {
        let column = format!("x=\"{x:.1}\" y=\"");
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
        let wide = Layout::WIDE;
        let mut beside = name_heights(&chart.svg_in(wide), wide.end() + 10.0);
        beside.sort_by(f64::total_cmp);
        let narrow = Layout::narrow(chart.series.len());
        let below = name_heights(&chart.svg_in(narrow), narrow.left + 36.0);
        for (heights, [top, bottom]) in
            [(beside, [TOP, wide.bottom]), (below, [narrow.bottom + 60.0, narrow.height - 9.0])]
        {
            assert_eq!(heights.len(), chart.series.len());
            assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > LINE - 0.2), "{heights:?}");
            assert!(heights.iter().all(|height| (top - 1.0..=bottom + 1.0).contains(height)), "{heights:?}");
        }
    }

    #[test]
    fn every_measured_point_has_its_figures_under_the_pointer() {
        let chart = page().speed.remove(0);
        for svg in [chart.svg_in(Layout::WIDE), chart.svg_in(Layout::narrow(5))] {
            assert_eq!(svg.matches("<title>").count(), 4 * 6, "the roofline has no points");
            assert_eq!(svg.matches("\"mark ").count(), 4 * 6);
            assert!(
                svg.contains("ferroflash, length 512: 258.5 TFLOP/s (250.8–263.7)\np50 38.1 µs</title>"),
                "{svg}"
            );
        }
    }
}
