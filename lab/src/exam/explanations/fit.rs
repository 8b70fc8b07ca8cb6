//! How near sums over keys come to a wrong row.

/// How near a mistake comes, and its free number.
#[derive(Clone, Copy)]
pub(super) struct Fit {
    pub(super) squares: f64,
    pub(super) number: f64,
}

impl Fit {
    pub(super) const NONE: Fit = Fit { squares: f64::INFINITY, number: 0.0 };

    pub(super) fn or(self, squares: f64, number: f64) -> Fit {
        if squares < self.squares { Fit { squares, number } } else { self }
    }
}

/// Adds a key's value, `p` times.
pub(super) fn add(values: &[f64], p: f64, key: usize, sum: &mut [f64]) {
    let value = &values[key * sum.len()..][..sum.len()];
    sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += p * value);
}

/// Σ (a − b)².
pub(super) fn squares(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// Σ (o − sum / divisor)², or infinity as soon as it is over `most`.
pub(super) fn squares_within(o: &[f64], sum: impl Iterator<Item = f64>, divisor: f64, most: f64) -> f64 {
    let inverse = if divisor > 0.0 { 1.0 / divisor } else { 0.0 };
    let mut squares = 0.0;
    for (o, sum) in o.iter().zip(sum) {
        squares += (o - sum * inverse).powi(2);
        // NaN is never nearer.
        if squares.is_nan() || squares > most {
            return f64::INFINITY;
        }
    }
    squares
}
