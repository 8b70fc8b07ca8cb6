//! Scores one after the other: a place of the leaderboard over time, or the course of a search.

use super::scale::{Scale, digits};
use super::svg::Drawing;
use crate::leaderboard::{Leaderboard, Place, Standing};
use crate::statistics::Interval;
use serde::Serialize;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 26.0;
/// Letters of a title in its usual size at most.
const TITLE_LETTERS: usize = 32;

/// Scores in their order, and which of them was the best of its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CourseChart {
    /// The place: shape, dtype and mask.
    pub title: String,
    /// Its device.
    pub device: String,
    /// What the scores count. Lower is better.
    pub unit: String,
    /// The scores, the latest last.
    pub points: Vec<CoursePoint>,
}

/// One score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoursePoint {
    /// When it was measured, as `2026-05-04T12:00:00Z`, or in which step.
    pub when: String,
    /// Whether it holds the place from then on.
    pub holds: bool,
    /// Its score with the interval.
    pub score: Interval,
    /// What else the pointer shows: the kernel, the commit, a reason.
    pub note: String,
}

/// A chart for every place of a leaderboard, in its order, in the unit that suits its scores.
pub fn courses(leaderboard: &Leaderboard) -> Vec<CourseChart> {
    leaderboard.standings().iter().map(course).collect()
}

fn course(standing: &Standing) -> CourseChart {
    let most = standing.records.iter().map(|record| record.score.high).fold(0.0, f64::max);
    let (unit, size) = standing.best().measure.unit_for(most);
    let points = standing.records.iter().map(|record| {
        let mut note = format!("{}, {}", record.row.entry_name(), record.commit);
        if let Some(tflops) = record.tflops {
            note += &format!(", {tflops:.1} TFLOP/s");
        }
        if let Some(reason) = &record.reason {
            note += &format!("\nslower, because: {reason}");
        }
        let Interval { low, estimate, high } = record.score;
        let score = Interval { low: low / size, estimate: estimate / size, high: high / size };
        CoursePoint { when: record.when.clone(), holds: true, score, note }
    });
    let Place { device, shape, dtype, mask } = &standing.place;
    CourseChart {
        title: format!("{shape} {} {mask}", dtype.name()),
        device: device.clone(),
        unit: unit.to_owned(),
        points: points.collect(),
    }
}

impl CourseChart {
    /// The chart. Scores stand at equal distances: a session makes many in an hour, and then there are none for weeks.
    pub(super) fn svg(&self) -> String {
        let mut drawing = Drawing::new("", WIDTH, HEIGHT, &self.title);
        let class = if self.title.chars().count() > TITLE_LETTERS { "title long" } else { "title" };
        drawing.text(class, "start", [0.0, 12.0], &self.title);
        drawing.text("", "start", [0.0, 30.0], &format!("{} on {}", self.unit, self.device));
        let points: Vec<&CoursePoint> = self.points.iter().filter(|point| is_measured(point)).collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            drawing.text("", "middle", [WIDTH / 2.0, HEIGHT / 2.0], "Nothing was measured.");
            return drawing.finish();
        };
        let scores: Vec<f64> = points.iter().flat_map(|point| [point.score.low, point.score.high]).collect();
        let y = Scale::around(&scores, [HEIGHT - BOTTOM, TOP]);
        for tick in y.ticks() {
            let at = y.place(tick);
            drawing.line("grid", [LEFT, at], [WIDTH - RIGHT, at]);
            drawing.text("", "end", [LEFT - 6.0, at], &y.label(tick));
        }
        let inside = WIDTH - LEFT - RIGHT - 20.0;
        let x = |i: usize| match points.len() {
            1 => LEFT + 10.0 + inside / 2.0,
            count => LEFT + 10.0 + inside * i as f64 / (count - 1) as f64,
        };
        // Each holds its place until the next: steps, not slopes.
        let mut steps: Vec<[f64; 2]> = Vec::new();
        for (i, point) in points.iter().enumerate().filter(|(_, point)| point.holds) {
            steps.extend(steps.last().map(|before| [x(i), before[1]]));
            steps.push([x(i), y.place(point.score.estimate)]);
        }
        // The last one still holds it.
        steps.extend(steps.last().map(|last| [WIDTH - RIGHT, last[1]]));
        drawing.path("line c0", &steps);
        for (i, point) in points.iter().enumerate() {
            let Interval { low, estimate, high } = point.score;
            let colour = if point.holds { "c0" } else { "c6" };
            drawing.line(&format!("bar {colour}"), [x(i), y.place(low)], [x(i), y.place(high)]);
            let hover = format!(
                "{}: {} {} ({}–{})\n{}",
                point.when,
                digits(estimate, 4),
                self.unit,
                digits(low, 4),
                digits(high, 4),
                point.note
            );
            drawing.mark(colour, [x(i), y.place(estimate)], &hover);
        }
        let bottom = HEIGHT - BOTTOM;
        drawing.line("axis", [LEFT, bottom], [WIDTH - RIGHT, bottom]);
        if points.len() == 1 {
            drawing.text("", "middle", [x(0), bottom + 14.0], day(&first.when));
        } else {
            drawing.text("", "start", [LEFT, bottom + 14.0], day(&first.when));
            drawing.text("", "end", [WIDTH - RIGHT, bottom + 14.0], day(&last.when));
        }
        drawing.finish()
    }
}

fn is_measured(point: &CoursePoint) -> bool {
    let Interval { low, estimate, high } = point.score;
    [low, estimate, high].iter().all(|score| score.is_finite() && *score > 0.0)
}

/// The day of a time; a step as it is.
fn day(when: &str) -> &str {
    if when.starts_with("20") { when.split('T').next().unwrap_or_default() } else { when }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaderboard::tests::{place, record};

    #[test]
    fn a_leaderboard_gives_a_chart_a_place_with_every_holder_and_reason() {
        let mut board = Leaderboard::default();
        for device in ["a", "b"] {
            for us in [10.0, 9.0, 8.5] {
                board.offer(place(device), record(us)).expect("taken");
            }
        }
        board.bless(place("b"), record(12.0), "a <wrong> result was mended").expect("taken");
        let charts = courses(&board);
        assert_eq!(charts.iter().map(|chart| chart.points.len()).collect::<Vec<_>>(), [3, 4]);
        let svg = charts[1].svg();
        assert_eq!(svg.matches("<title>").count(), 4);
        assert!(svg.contains("slower, because: a &lt;wrong&gt; result was mended</title>"), "{svg}");
        assert!(svg.contains("2026-05-04T12:00:00Z: 8.5 µs (8.415–8.585)"), "{svg}");
    }

    #[test]
    fn tiny_scores_keep_their_digits() {
        let point = |score| CoursePoint {
            when: String::new(),
            holds: true,
            score: Interval::exact(score),
            note: String::new(),
        };
        let chart = CourseChart {
            title: "1,8,512,64".to_owned(),
            device: "sim".to_owned(),
            unit: "wavefronts per FLOP".to_owned(),
            points: vec![point(0.000_412_3), point(0.000_380_1)],
        };
        assert!(chart.svg().contains("0.0003801 wavefronts"), "{}", chart.svg());
    }
}
