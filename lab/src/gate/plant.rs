//! How much to plant: the number of instructions that slows a kernel down by as much as a gate is to find.

use std::ops::RangeInclusive;

/// Instructions that the search begins with, and that it gives up at.
const FIRST: u32 = 8;
const MOST: u32 = 8192;

/// Finds a number of instructions whose slow-down lies in `target`, where `measure` gives the slow-down of a number: doubles until
/// it is enough, then halves the distance. Returns the number with its slow-down; `None` where no number gives it.
///
/// # Errors
/// Those of `measure`.
pub fn calibrate<E>(
    target: &RangeInclusive<f64>,
    mut measure: impl FnMut(u32) -> Result<f64, E>,
) -> Result<Option<(u32, f64)>, E> {
    let (mut too_few, mut instructions) = (0, FIRST);
    let mut too_many = None;
    while instructions <= MOST {
        let slow_down = measure(instructions)?;
        if target.contains(&slow_down) {
            return Ok(Some((instructions, slow_down)));
        }
        if slow_down < *target.start() {
            too_few = instructions;
        } else {
            too_many = Some(instructions);
        }
        instructions = match too_many {
            None => 2 * instructions,
            Some(too_many) if too_many - too_few <= 1 => return Ok(None),
            Some(too_many) => too_few + (too_many - too_few) / 2,
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn found(slow_down: impl Fn(u32) -> f64) -> (Option<(u32, f64)>, u32) {
        let mut calls = 0;
        let found = calibrate(&(0.028..=0.034), |instructions| {
            calls += 1;
            Ok::<_, Infallible>(slow_down(instructions))
        });
        (found.expect("measured"), calls)
    }

    #[test]
    fn a_number_is_found_on_slopes_of_any_steepness() {
        for per_instruction in [0.00002, 0.0004, 0.001, 0.01] {
            // Waits hide the first few.
            let slow_down = |n: u32| (f64::from(n) - 1.0).max(0.0) * per_instruction;
            let (found, calls) = found(slow_down);
            let (instructions, reached) = found.expect("a number");
            assert!((0.028..=0.034).contains(&slow_down(instructions)) && calls < 20, "{reached} {calls}");
        }
    }

    #[test]
    fn what_cannot_be_reached_ends_too() {
        assert_eq!(found(|_| 0.0).0, None, "a compiler that takes the instructions out");
        assert_eq!(found(|n| if n > 100 { 0.2 } else { 0.0 }).0, None, "a step");
        let (failed, mut calls) = (Err::<f64, _>("no device"), 0);
        let result = calibrate(&(0.0..=1.0), |_| {
            calls += 1;
            failed
        });
        assert_eq!((result, calls), (Err("no device"), 1));
    }
}
