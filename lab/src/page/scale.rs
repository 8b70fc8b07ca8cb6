//! From values to places on an axis, and which values get a tick.

/// Values that differ by more than this factor are shown on a logarithmic axis.
const LOG_FROM: f64 = 30.0;

/// An axis: values `low..=high` at places `start..=end`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// With a tick each `step`.
    Linear {
        step: f64,
    },
    Log,
}

impl Scale {
    /// An axis from 0 to a round number, or a logarithmic one where the values that matter lie far apart. One slow peer is no
    /// reason: it would press those that are close together.
    pub(super) fn from_zero(values: &[f64], that_matter: &[f64], places: [f64; 2]) -> Self {
        let (low, high) = range(values);
        let (least, most) = range(that_matter);
        if most > LOG_FROM * least {
            let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf((high * 1.15).log10()));
            return Self { low, high, start: places[0], end: places[1], form: Form::Log };
        }
        let step = round_step(high);
        let high = (high / step).ceil() * step;
        Self { low: 0.0, high, start: places[0], end: places[1], form: Form::Linear { step } }
    }

    /// A linear axis around the values, for changes that a zero would hide.
    pub(super) fn around(values: &[f64], [start, end]: [f64; 2]) -> Self {
        let (low, high) = range(values);
        let margin = 0.15 * (high - low).max(0.02 * high);
        let (low, high) = ((low - margin).max(0.0), high + margin);
        Self { low, high, start, end, form: Form::Linear { step: round_step(high - low) } }
    }

    /// Where a value stands.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.form {
            Form::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Form::Linear { .. } => (value - self.low) / (self.high - self.low),
        };
        self.start + share * (self.end - self.start)
    }

    /// Round values on the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let is_on = |value: &f64| *value >= self.low * (1.0 - 1e-9) && *value <= self.high * (1.0 + 1e-9);
        let Form::Linear { step } = self.form else {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            return decades
                .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)))
                .filter(is_on)
                .collect();
        };
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step + 1e-9).floor() as i64);
        (first..=last).map(|n| n as f64 * step).collect()
    }

    /// A tick in words: with the decimals that tell it from the next one.
    pub(super) fn label(&self, tick: f64) -> String {
        let unit = match self.form {
            Form::Linear { step } => step,
            Form::Log => tick,
        };
        let decimals = (-unit.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize;
        format!("{tick:.decimals$}")
    }
}

/// The least and the greatest of positive values; 1 without any.
fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().reduce(f64::min).unwrap_or(1.0);
    let high = values.iter().copied().reduce(f64::max).unwrap_or(1.0);
    (low, high)
}

/// 1, 2 or 5 times a power of ten: a length is four to ten of it.
fn round_step(length: f64) -> f64 {
    let rough = length / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * decade >= rough * 0.9).unwrap_or(10.0);
    digit * decade
}

/// A value with so many significant digits, and no needless ones.
pub(super) fn digits(value: f64, significant: i32) -> String {
    let before_point = value.abs().max(1e-12).log10().floor() as i32 + 1;
    let after_point = (significant - before_point).clamp(0, 12) as usize;
    let text = format!("{value:.after_point$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_begin_at_zero_and_end_at_a_round_number() {
        let scale = Scale::from_zero(&[5.0, 130.0, 410.0], &[130.0, 410.0], [400.0, 0.0]);
        assert_eq!(scale.ticks(), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!((scale.place(0.0), scale.place(500.0)), (400.0, 0.0));
        let roofline = Scale::from_zero(&[200.0, 1070.0], &[200.0], [400.0, 0.0]);
        assert_eq!(roofline.ticks(), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0]);
    }

    #[test]
    fn values_that_lie_far_apart_get_a_logarithmic_axis() {
        let scale = Scale::from_zero(&[3.0, 900.0], &[3.0, 900.0], [0.0, 1.0]);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        let steps = [scale.place(10.0) - scale.place(1.0), scale.place(100.0) - scale.place(10.0)];
        assert!((steps[0] - steps[1]).abs() < 1e-12);
    }

    #[test]
    fn a_small_change_fills_the_axis() {
        let scale = Scale::around(&[29.7, 31.0], [0.0, 1.0]);
        assert!(scale.place(29.7) > 0.05 && scale.place(31.0) < 0.95);
        let alone = Scale::around(&[5.0], [0.0, 1.0]);
        assert!((alone.place(5.0) - 0.5).abs() < 1e-9);
        assert!(alone.ticks().len() >= 2);
    }

    #[test]
    fn ticks_are_labelled_with_what_tells_them_apart() {
        let labels =
            |scale: &Scale| -> Vec<String> { scale.ticks().iter().map(|tick| scale.label(*tick)).collect() };
        let log = Scale::from_zero(&[0.2, 9.0], &[0.2, 9.0], [0.0, 1.0]);
        assert_eq!(labels(&log), ["0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(
            labels(&Scale::from_zero(&[0.7], &[0.7], [0.0, 1.0])),
            ["0.0", "0.2", "0.4", "0.6", "0.8"]
        );
        assert_eq!(labels(&Scale::around(&[1000.0, 1001.0], [0.0, 1.0])), ["998", "1000", "1002", "1004"]);
        // A chart over time has room for five letters.
        for first in (1..1000).map(f64::from) {
            for change in [0.0, 0.001, 0.03, 0.5] {
                let scale = Scale::around(&[first, first * (1.0 + change)], [0.0, 1.0]);
                let labels = labels(&scale);
                assert!(labels.len() >= 2 && labels.windows(2).all(|two| two[0] != two[1]), "{labels:?}");
                assert!(labels.iter().all(|label| label.len() <= 5), "{labels:?}");
            }
        }
    }

    #[test]
    fn values_have_no_needless_digits() {
        let values =
            [(0.0, "0"), (0.5, "0.5"), (0.01502, "0.015"), (2.0, "2"), (12.54, "12.5"), (1500.0, "1500")];
        for (value, text) in values {
            assert_eq!(digits(value, 3), text);
        }
    }
}
