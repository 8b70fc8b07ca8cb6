//! The plot of the results, as SVG that reads in light and dark: speed relative to PyTorch's flash, a bar a problem, and for
//! decoding the share of the device's copy bandwidth.

use crate::results::{OURS, Problem, Results};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 900;
const LINE: i32 = 18;
const PYTORCHS_DEFAULT: &str = "PyTorch's default back end";
const HEADING: i32 = 64;
const AXIS: i32 = 34;
/// Where the bars begin, and the space beyond the longest.
const LEFT: i32 = 290;
const RIGHT: i32 = 30;
/// Ticks of an axis at most.
const TICKS_MAX: f64 = 12.0;

/// What a number in a bar takes, with what is left free around it.
const NUMBER_WIDTH: i32 = 60;
const TEXT: RGBColor = RGBColor(31, 35, 40);
const GREY: RGBColor = RGBColor(139, 148, 158);
const FASTER: RGBColor = RGBColor(46, 160, 67);
const SLOWER: RGBColor = RGBColor(207, 104, 46);
const DEFAULT: RGBColor = RGBColor(56, 132, 228);

/// In the dark the background, which is drawn first, and the text on it change; bars, marks and the text in bars read on both.
const STYLE: &str = "<style>@media(prefers-color-scheme:dark)\
{svg>rect:first-of-type{fill:#0d1117}text[fill=\"#1F2328\"]{fill:#e6edf3}}</style>\n";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Bars under a heading.
pub(crate) struct Panel {
    pub(crate) title: String,
    /// What the colours of the bars mean.
    pub(crate) legend: [&'static str; 2],
    /// What the marks mean, where there are marks.
    pub(crate) mark: Option<&'static str>,
    pub(crate) unit: Unit,
    pub(crate) bars: Vec<Bar>,
}

/// One problem.
pub(crate) struct Bar {
    pub(crate) title: String,
    /// `None` where it was not measured.
    pub(crate) value: Option<f64>,
    /// Where the mark is.
    pub(crate) mark: Option<f64>,
    pub(crate) is_faster: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// `1.25×`
    Times,
    /// `90 %`
    Percent,
}

/// The file's text: one or two panels a device.
pub(crate) fn svg(devices: &[Results]) -> anyhow::Result<String> {
    panels_svg(&devices.iter().flat_map(Panel::of).collect::<Vec<_>>())
}

/// The file's text: panels one below the other.
pub(crate) fn panels_svg(panels: &[Panel]) -> anyhow::Result<String> {
    let mut text = String::new();
    draw(&mut text, panels).map_err(|error| anyhow!("the plot cannot be drawn: {error}"))?;
    // After the opening tag.
    let at = text.find(">\n").map_or(0, |at| at + 2);
    text.insert_str(at, STYLE);
    Ok(text)
}

fn draw(text: &mut String, panels: &[Panel]) -> Result<(), Box<dyn std::error::Error>> {
    let height = panels.iter().map(Panel::height).sum::<i32>().max(1) as u32;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for panel in panels {
        let (area, below) = rest.split_vertically(panel.height());
        panel.draw(&area)?;
        rest = below;
    }
    root.present()?;
    Ok(())
}

impl Panel {
    /// Those of a device that have problems.
    fn of(device: &Results) -> Vec<Panel> {
        let name = &device.device.name;
        let speed = Panel {
            title: format!("Speed relative to PyTorch's flash on {name}"),
            legend: ["Ferroflash, faster than flash", "slower than flash"],
            mark: Some(PYTORCHS_DEFAULT),
            unit: Unit::Times,
            bars: device.prefill().into_iter().map(Bar::of_speed).collect(),
        };
        let share = Panel {
            title: format!("Decoding: share of the copy bandwidth on {name}"),
            legend: ["Ferroflash, faster than the default", "slower than the default"],
            mark: Some(PYTORCHS_DEFAULT),
            unit: Unit::Percent,
            bars: device.decode().into_iter().map(Bar::of_share).collect(),
        };
        [speed, share].into_iter().filter(|panel| !panel.bars.is_empty()).collect()
    }

    fn height(&self) -> i32 {
        HEADING + LINE * self.bars.len() as i32 + AXIS
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        area.draw(&Text::new(self.title.clone(), (12, 20), label(20, HPos::Left)))?;
        self.draw_legend(area)?;
        let scale = Scale::of(&self.bars);
        let bottom = HEADING + LINE * self.bars.len() as i32;
        for tick in scale.ticks() {
            let (x, colour) = (scale.x(tick), if tick == 1.0 { GREY.mix(1.0) } else { GREY.mix(0.3) });
            area.draw(&PathElement::new(vec![(x, HEADING - 4), (x, bottom + 4)], colour))?;
            area.draw(&Text::new(self.unit.of_tick(tick), (x, bottom + 14), label(15, HPos::Center)))?;
        }
        for (number, bar) in self.bars.iter().enumerate() {
            bar.draw(area, &scale, self.unit, HEADING + LINE * number as i32 + LINE / 2)?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let middle = 44;
        let [faster, slower] = self.legend;
        for (x, colour, name) in [(12, FASTER, faster), (290, SLOWER, slower)] {
            area.draw(&Rectangle::new([(x, middle - 5), (x + 14, middle + 5)], colour.filled()))?;
            area.draw(&Text::new(name, (x + 20, middle), label(15, HPos::Left)))?;
        }
        if let Some(name) = self.mark {
            area.draw(&mark(492, middle))?;
            area.draw(&Text::new(name, (503, middle), label(15, HPos::Left)))?;
        }
        Ok(())
    }
}

impl Bar {
    fn of_speed(problem: &Problem) -> Bar {
        let value = problem.ratio("flash").map(|ratio| ratio.median);
        let is_faster = value.is_some_and(|value| value >= 1.0);
        Bar { title: problem.title(), value, mark: problem.default_relative_to_flash(), is_faster }
    }

    fn of_share(problem: &Problem) -> Bar {
        let is_faster = problem.ratio("default").is_some_and(|ratio| ratio.median >= 1.0);
        let [value, mark] = [OURS, "default"].map(|name| problem.share_of_copy(name));
        Bar { title: problem.title(), value, mark, is_faster }
    }

    fn draw(
        &self,
        area: &Area<'_>,
        scale: &Scale,
        unit: Unit,
        middle: i32,
    ) -> Result<(), Box<dyn std::error::Error>> {
        area.draw(&Text::new(self.title.clone(), (LEFT - 10, middle), label(15, HPos::Right)))?;
        if let Some(value) = self.value {
            let colour = if self.is_faster { FASTER } else { SLOWER };
            let bar = [(LEFT, middle - 6), (scale.x(value), middle + 6)];
            area.draw(&Rectangle::new(bar, colour.filled()))?;
            let number = label(14, HPos::Left).color(&WHITE);
            area.draw(&Text::new(unit.of_value(value), (self.number_x(scale), middle), number))?;
        } else {
            area.draw(&Text::new("not measured", (LEFT + 6, middle), label(15, HPos::Left)))?;
        }
        if let Some(value) = self.mark {
            area.draw(&mark(scale.x(value), middle))?;
        }
        Ok(())
    }

    /// Where the number in the bar starts: at its left, or behind a mark that stands there.
    fn number_x(&self, scale: &Scale) -> i32 {
        match self.mark.map(|mark| scale.x(mark)) {
            Some(mark) if mark < LEFT + NUMBER_WIDTH => mark + 10,
            _ => LEFT + 6,
        }
    }
}

impl Unit {
    fn of_value(self, value: f64) -> String {
        match self {
            Unit::Times => format!("{value:.2}×"),
            Unit::Percent => format!("{:.1} %", value * 100.0),
        }
    }

    fn of_tick(self, value: f64) -> String {
        match self {
            Unit::Times => format!("{value:.1}×"),
            Unit::Percent => format!("{:.0} %", value * 100.0),
        }
    }
}

fn label(size: i32, h: HPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&TEXT).pos(Pos::new(h, VPos::Center))
}

/// A diamond.
fn mark(x: i32, y: i32) -> Polygon<(i32, i32)> {
    Polygon::new(vec![(x, y - 6), (x + 5, y), (x, y + 6), (x - 5, y)], DEFAULT.filled())
}

/// Values to pixels: from 0, so that a bar's length is its value, to the largest or 1.
struct Scale {
    most: f64,
}

impl Scale {
    fn of(bars: &[Bar]) -> Scale {
        let values = bars.iter().flat_map(|bar| [bar.value, bar.mark].into_iter().flatten());
        Scale { most: values.fold(1.0, f64::max) }
    }

    fn x(&self, value: f64) -> i32 {
        LEFT + (value / self.most * f64::from(WIDTH as i32 - LEFT - RIGHT)).round() as i32
    }

    /// Multiples of the finest step that leaves them apart; 1 is one of them.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let per_unit = [5.0, 2.0, 1.0].into_iter().find(|per_unit| self.most * per_unit <= TICKS_MAX);
        let per_unit = per_unit.unwrap_or(1.0);
        let last = (self.most * per_unit).floor() as u32;
        (0..=last).map(move |number| f64::from(number) / per_unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{former_results, results};

    fn panels() -> Vec<Panel> {
        Panel::of(&results())
    }

    #[test]
    fn a_bar_is_as_long_as_its_ratio_and_a_missing_one_is_said() {
        let svg = svg(&[results(), results()]).expect("drawn");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("not measured").count(), 2, "one a device");
        assert!(svg.contains("1,8,8,512,512,64 f16 causal") && svg.contains("1.50×"));
        // The ratio 1.5 is the largest: its bar is as long as they get.
        let bar = format!("width=\"{}\" height=\"12\"", WIDTH as i32 - LEFT - RIGHT);
        assert_eq!(svg.matches(&bar).count(), 2, "{svg}");
        let scale = Scale::of(&panels()[0].bars);
        assert_eq!(scale.x(0.75), LEFT + (WIDTH as i32 - LEFT - RIGHT) / 2);
    }

    #[test]
    fn decoding_has_a_panel_of_its_own_in_percent() {
        let panels = panels();
        assert_eq!(panels.iter().map(|panel| panel.bars.len()).collect::<Vec<_>>(), [2, 1]);
        let bar = &panels[1].bars[0];
        assert_eq!((bar.value, bar.mark, bar.is_faster), (Some(0.8999), Some(0.45), true));
        let text = svg(&[results()]).expect("drawn");
        assert!(
            text.contains("Decoding: share of the copy bandwidth on Some GPU") && text.contains("90.0 %")
        );
        let of_all = ((WIDTH as i32 - LEFT - RIGHT) as f64 * 0.8999).round();
        assert!(text.contains(&format!("width=\"{of_all}\" height=\"12\"")), "1 is the whole width: {text}");
        assert_eq!(Panel::of(&former_results()).len(), 1, "no decoding, no panel");
    }

    #[test]
    fn a_bar_says_whether_it_is_faster() {
        let bars = &panels()[0].bars;
        assert_eq!([bars[0].is_faster, bars[1].is_faster], [true, false]);
        let colours = |svg: &str| {
            [FASTER, SLOWER]
                .map(|RGBColor(r, g, b)| svg.matches(&format!("fill=\"#{r:02X}{g:02X}{b:02X}\"")).count())
        };
        // Two bars and two legends.
        assert_eq!(colours(&svg(&[results()]).expect("drawn")), [4, 2]);
    }

    #[test]
    fn a_number_gives_way_to_a_mark() {
        let scale = Scale { most: 4.0 };
        let bar = |mark| Bar { title: String::new(), value: Some(2.2), mark: Some(mark), is_faster: true };
        assert_eq!(bar(1.5).number_x(&scale), LEFT + 6);
        assert!(bar(0.19).number_x(&scale) > scale.x(0.19) + 5, "the mark is 5 wide to either side");
    }

    #[test]
    fn ticks_keep_apart_and_hit_1() {
        let ticks = |most: f64| Scale { most }.ticks().collect::<Vec<_>>();
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(3.1), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(ticks(7.9), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn the_style_names_what_is_drawn() {
        let svg = svg(&[results()]).expect("drawn");
        let (style, background, text) = (svg.find("<style>"), svg.find("<rect"), svg.find("<text"));
        assert!(style.is_some() && style < background && background < text, "{svg}");
        // The rule of the dark theme finds text by its colour.
        let themed = svg.matches("opacity=\"1\" fill=\"#1F2328\"").count();
        assert_eq!(themed + 2, svg.matches("<text").count(), "all but the numbers in the two bars");
    }
}
