//! How much to plant: the number of instructions that slows a kernel down by as much as a gate is to find.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Numbers that are measured beside each other.
const AT_ONCE: usize = 8;
/// Instructions that the search begins with, and that it gives up at.
const FIRST: u32 = 8;
const MOST: u32 = 8192;
/// How far from a step in the slow-down a number is looked for.
const AROUND: u32 = 12;
/// Measurements, at most.
const ROUNDS: usize = 7;

/// Finds a number of instructions whose slow-down lies in `target`, where `measure` gives the slow-downs of a few numbers, measured
/// beside each other: doubles until it is enough, then divides what lies between. Where that ends at a step over the target, as where
/// one instruction more makes the compiler order the others anew, it goes through the numbers around: they may be placed otherwise.
/// Returns the number with its slow-down; `None` where no number gives it.
///
/// # Errors
/// Those of `measure`.
pub fn calibrate<E>(
    target: &RangeInclusive<f64>,
    mut measure: impl FnMut(&[u32]) -> Result<Vec<f64>, E>,
) -> Result<Option<(u32, f64)>, E> {
    let mut tried: BTreeMap<u32, f64> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let numbers = next(&tried, *target.end());
        if numbers.is_empty() {
            break;
        }
        tried.extend(numbers.iter().copied().zip(measure(&numbers)?));
        let off = |slow_down: f64| (slow_down - (target.start() + target.end()) / 2.0).abs();
        let hits = tried.iter().filter(|(_, slow_down)| target.contains(slow_down));
        if let Some((number, slow_down)) = hits.min_by(|one, other| off(*one.1).total_cmp(&off(*other.1))) {
            return Ok(Some((*number, *slow_down)));
        }
    }
    Ok(None)
}

/// What to measure behind what was tried.
fn next(tried: &BTreeMap<u32, f64>, enough: f64) -> Vec<u32> {
    let Some((&too_many, _)) = tried.iter().find(|(_, slow_down)| **slow_down > enough) else {
        let first = tried.keys().next_back().map_or(FIRST, |most| 2 * most);
        let doubled = std::iter::successors(Some(first), |number| Some(2 * number));
        return doubled.take(AT_ONCE).take_while(|number| *number <= MOST).collect();
    };
    let too_few = tried.range(..too_many).next_back().map_or(0, |(number, _)| *number);
    let parts = AT_ONCE.min((too_many - too_few - 1) as usize) as u32 + 1;
    if parts > 1 {
        return (1..parts).map(|part| too_few + (too_many - too_few) * part / parts).collect();
    }
    let around = (1..=AROUND).flat_map(|away| [too_many + away, too_few.saturating_sub(away)]);
    around.filter(|number| *number > 0 && !tried.contains_key(number)).take(AT_ONCE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn found(slow_down: impl Fn(u32) -> f64) -> (Option<(u32, f64)>, usize) {
        let mut calls = 0;
        let found = calibrate(&(0.028..=0.034), |numbers| {
            calls += 1;
            Ok::<_, Infallible>(numbers.iter().map(|number| slow_down(*number)).collect())
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
            assert!((0.028..=0.034).contains(&slow_down(instructions)) && calls < 5, "{reached} {calls}");
        }
    }

    #[test]
    fn a_number_beside_a_step_is_found() {
        // From 17 instructions on the compiler places them badly, but for 20 and 21.
        let slow_down =
            |n: u32| f64::from(n) * 0.0015 + if n < 17 || n == 20 || n == 21 { 0.0 } else { 0.02 };
        let (found, _) = found(slow_down);
        assert!(matches!(found, Some((20 | 21, _))), "{found:?}");
    }

    #[test]
    fn what_cannot_be_reached_ends_too() {
        assert_eq!(found(|_| 0.0).0, None, "a compiler that takes the instructions out");
        let (step, calls) = found(|n| if n > 100 { 0.2 } else { 0.0 });
        assert!(step.is_none() && calls <= ROUNDS, "a step: {calls}");
        let mut calls = 0;
        let result = calibrate(&(0.0..=1.0), |_| {
            calls += 1;
            Err("no device")
        });
        assert_eq!((result, calls), (Err("no device"), 1));
    }
}
