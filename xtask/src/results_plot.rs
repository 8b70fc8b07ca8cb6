//! The plot of the results: speed relative to PyTorch's flash, a bar a problem, as SVG that reads in light and dark.

use crate::results::{Problem, Results};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 900;
const LINE: i32 = 18;
const HEADING: i32 = 64;
const AXIS: i32 = 34;
/// Where the bars begin, and the space beyond the longest.
const LEFT: i32 = 290;
const RIGHT: i32 = 30;

const TEXT: RGBColor = RGBColor(31, 35, 40);
const GREY: RGBColor = RGBColor(139, 148, 158);
const FASTER: RGBColor = RGBColor(46, 160, 67);
const SLOWER: RGBColor = RGBColor(207, 104, 46);
const DEFAULT: RGBColor = RGBColor(56, 132, 228);

/// In the dark the background, which is drawn first, and the text on it change; bars, marks and the text in bars read on both.
const STYLE: &str = "<style>@media(prefers-color-scheme:dark)\
{svg>rect:first-of-type{fill:#0d1117}text[fill=\"#1F2328\"]{fill:#e6edf3}}</style>\n";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The file's text: one panel a device.
pub(crate) fn svg(devices: &[Results]) -> anyhow::Result<String> {
    let heights: Vec<i32> = devices.iter().map(panel_height).collect();
    let mut text = String::new();
    draw(&mut text, devices, &heights).map_err(|error| anyhow!("the plot cannot be drawn: {error}"))?;
    // After the opening tag.
    let at = text.find(">\n").map_or(0, |at| at + 2);
    text.insert_str(at, STYLE);
    Ok(text)
}

fn draw(text: &mut String, devices: &[Results], heights: &[i32]) -> Result<(), Box<dyn std::error::Error>> {
    let height = heights.iter().sum::<i32>().max(1) as u32;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for (device, &height) in devices.iter().zip(heights) {
        let (panel, below) = rest.split_vertically(height);
        draw_panel(&panel, device)?;
        rest = below;
    }
    root.present()?;
    Ok(())
}

fn panel_height(device: &Results) -> i32 {
    HEADING + LINE * device.problems.len() as i32 + AXIS
}

fn draw_panel(area: &Area<'_>, device: &Results) -> Result<(), Box<dyn std::error::Error>> {
    let label = |size: i32, h: HPos| {
        TextStyle::from(("sans-serif", size).into_font()).color(&TEXT).pos(Pos::new(h, VPos::Center))
    };
    area.draw(&Text::new(
        format!("Speed relative to PyTorch's flash on {}", device.device.name),
        (12, 20),
        label(20, HPos::Left),
    ))?;
    draw_legend(area, &label(15, HPos::Left))?;
    let scale = Scale::of(&device.problems);
    let bottom = HEADING + LINE * device.problems.len() as i32;
    for tick in scale.ticks() {
        let (x, colour) = (scale.x(tick), if tick == 1.0 { GREY.mix(1.0) } else { GREY.mix(0.3) });
        area.draw(&PathElement::new(vec![(x, HEADING - 4), (x, bottom + 4)], colour))?;
        area.draw(&Text::new(format!("{tick:.1}×"), (x, bottom + 14), label(15, HPos::Center)))?;
    }
    for (number, problem) in device.problems.iter().enumerate() {
        let middle = HEADING + LINE * number as i32 + LINE / 2;
        area.draw(&Text::new(problem.title(), (LEFT - 10, middle), label(15, HPos::Right)))?;
        let Some(ratio) = problem.relative_to_flash() else {
            area.draw(&Text::new("not measured", (LEFT + 6, middle), label(15, HPos::Left)))?;
            continue;
        };
        let colour = if ratio >= 1.0 { FASTER } else { SLOWER };
        let bar = [(LEFT, middle - 6), (scale.x(ratio), middle + 6)];
        area.draw(&Rectangle::new(bar, colour.filled()))?;
        let number = label(14, HPos::Left).color(&WHITE);
        area.draw(&Text::new(format!("{ratio:.2}×"), (LEFT + 6, middle), number))?;
        if let Some(default) = problem.default_relative_to_flash() {
            area.draw(&mark(scale.x(default), middle))?;
        }
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, label: &TextStyle<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let middle = 44;
    for (x, colour, name) in [(12, FASTER, "Ferroflash, faster"), (150, SLOWER, "Ferroflash, slower")] {
        area.draw(&Rectangle::new([(x, middle - 5), (x + 14, middle + 5)], colour.filled()))?;
        area.draw(&Text::new(name, (x + 20, middle), label.clone()))?;
    }
    area.draw(&mark(297, middle))?;
    area.draw(&Text::new("PyTorch's default back end", (308, middle), label.clone()))?;
    Ok(())
}

/// A diamond.
fn mark(x: i32, y: i32) -> Polygon<(i32, i32)> {
    Polygon::new(vec![(x, y - 6), (x + 5, y), (x, y + 6), (x - 5, y)], DEFAULT.filled())
}

/// Ratios to pixels: from 0, so that a bar's length is its value.
struct Scale {
    most: f64,
}

impl Scale {
    fn of(problems: &[Problem]) -> Scale {
        let values = problems.iter().flat_map(|problem| {
            [problem.relative_to_flash(), problem.default_relative_to_flash()].into_iter().flatten()
        });
        Scale { most: values.fold(1.0, f64::max) }
    }

    fn x(&self, ratio: f64) -> i32 {
        LEFT + (ratio / self.most * f64::from(WIDTH as i32 - LEFT - RIGHT)).round() as i32
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let halves = (self.most * 2.0).floor() as u32;
        (0..=halves).map(|half| f64::from(half) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn a_bar_is_as_long_as_its_ratio_and_a_missing_one_is_said() {
        let svg = svg(&[results(), results()]).expect("drawn");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("not measured").count(), 2, "one a panel");
        assert!(svg.contains("1,8,8,512,512,64 f16 causal") && svg.contains("1.50×"));
        // The ratio 1.5 is the largest: its bar is as long as they get.
        let bar = format!("width=\"{}\" height=\"12\"", WIDTH as i32 - LEFT - RIGHT);
        assert_eq!(svg.matches(&bar).count(), 2, "{svg}");
        let scale = Scale::of(&results().problems);
        assert_eq!(scale.x(0.75), LEFT + (WIDTH as i32 - LEFT - RIGHT) / 2);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5]);
    }

    #[test]
    fn the_style_names_what_is_drawn() {
        let svg = svg(&[results()]).expect("drawn");
        let (style, background, text) = (svg.find("<style>"), svg.find("<rect"), svg.find("<text"));
        assert!(style.is_some() && style < background && background < text, "{svg}");
        // The rule of the dark theme finds text by its colour.
        let themed = svg.matches("opacity=\"1\" fill=\"#1F2328\"").count();
        assert_eq!(themed + 1, svg.matches("<text").count(), "all but the number in the one bar");
    }
}
