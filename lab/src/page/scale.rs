//! From values to places on an axis, and which values get a tick.

/// An axis: values `low..=high` at places `start..=end`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    /// From tick to tick.
    step: f64,
}

impl Scale {
    /// An axis around the values, for changes that a zero would hide.
    pub(super) fn around(values: &[f64], [start, end]: [f64; 2]) -> Self {
        let (low, high) = range(values);
        let margin = 0.15 * (high - low).max(0.02 * high);
        let (low, high) = ((low - margin).max(0.0), high + margin);
        Self { low, high, start, end, step: round_step(high - low) }
    }

    /// Where a value stands.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        self.start + share * (self.end - self.start)
    }

    /// Round values on the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let Self { low, high, step, .. } = *self;
        let (first, last) = ((low / step).ceil() as i64, (high / step + 1e-9).floor() as i64);
        (first..=last).map(|n| n as f64 * step).collect()
    }

    /// A tick in words: with the decimals that tell it from the next one.
    pub(super) fn label(&self, tick: f64) -> String {
        let decimals = (-self.step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize;
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
