//! How much to plant: the number of instructions that slows a kernel down by as much as a gate is to find.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Instructions that the search begins with, and that it gives up at.
const FIRST: u32 = 8;
const MOST: u32 = 8192;

/// How far from a step in the slow-down a number is looked for.
const AROUND: u32 = 12;

/// Finds a number of instructions whose slow-down lies in `target`, where `measure` gives the slow-down of a number: doubles until
/// it is enough, then halves the distance. Where that ends at a step over the target, as where one instruction more makes the
/// compiler order the others anew, it goes through the numbers around: they may be placed otherwise. Returns the number with its
/// slow-down; `None` where no number gives it.
///
/// # Errors
/// Those of `measure`.
pub fn calibrate<E>(
    target: &RangeInclusive<f64>,
    mut measure: impl FnMut(u32) -> Result<f64, E>,
) -> Result<Option<(u32, f64)>, E> {
    let mut tried = BTreeSet::new();
    let (mut too_few, mut too_many) = (0, None);
    let mut instructions = FIRST;
    while instructions <= MOST {
        tried.insert(instructions);
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
            Some(too_many) if too_many - too_few <= 1 => break,
            Some(too_many) => too_few + (too_many - too_few) / 2,
        };
    }
    let Some(step) = too_many else { return Ok(None) };
    let around = (1..=AROUND).flat_map(|away| [step + away, step.saturating_sub(away)]);
    for instructions in around.filter(|&number| number > 0) {
        if tried.insert(instructions) {
            let slow_down = measure(instructions)?;
            if target.contains(&slow_down) {
                return Ok(Some((instructions, slow_down)));
            }
        }
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
    fn a_number_beside_a_step_is_found() {
        // From 17 instructions on the compiler places them badly, but for 20 and 21.
        let slow_down =
            |n: u32| f64::from(n) * 0.0015 + if n < 17 || n == 20 || n == 21 { 0.0 } else { 0.02 };
        assert_eq!(found(slow_down).0, Some((20, 0.03)));
    }

    #[test]
    fn what_cannot_be_reached_ends_too() {
        assert_eq!(found(|_| 0.0).0, None, "a compiler that takes the instructions out");
        let (step, calls) = found(|n| if n > 100 { 0.2 } else { 0.0 });
        assert!(step.is_none() && calls < 50, "a step: {calls}");
        let (failed, mut calls) = (Err::<f64, _>("no device"), 0);
        let result = calibrate(&(0.0..=1.0), |_| {
            calls += 1;
            failed
        });
        assert_eq!((result, calls), (Err("no device"), 1));
    }
}
