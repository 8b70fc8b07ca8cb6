//! Arithmetic of the cost model, none of whose numbers is NaN. The standard library's functions look for NaN, and round in calls where
//! programs may not count on SSE 4.1: they take several times as long.

/// The lesser of two numbers.
pub(super) fn lesser(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The greater of two numbers.
pub(super) fn greater(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// What of a range is nearest to a number.
pub(super) fn within(x: f64, least: f64, most: f64) -> f64 {
    lesser(greater(x, least), most)
}

/// The whole number nearest to a positive one; what is over 2^52 is whole.
fn nearest(x: f64) -> f64 {
    /// From here on neighbours are 1 apart.
    const WHOLE: f64 = (1u64 << 52) as f64;
    if x < WHOLE { x + WHOLE - WHOLE } else { x }
}

/// The least whole number that is not less than a positive one.
pub(super) fn ceil(x: f64) -> f64 {
    let nearest = nearest(x);
    nearest + if nearest < x { 1.0 } else { 0.0 }
}

/// The greatest whole number that is not more than a positive one.
pub(super) fn floor(x: f64) -> f64 {
    let nearest = nearest(x);
    nearest - if nearest > x { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_numbers_are_rounded_as_the_standard_library_does() {
        let large = (1u64 << 53) as f64;
        for x in
            [0.0, 1e-9, 0.5, 1.0, 1.5, 2.5, 1e6 + 0.1, large / 4.0 - 0.5, large / 2.0 - 0.5, large, 1e300]
        {
            assert_eq!((ceil(x), floor(x)), (x.ceil(), x.floor()), "{x}");
        }
    }
}
