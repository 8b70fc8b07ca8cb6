//! Regret: how much longer plans take than the best that the kernels could do, by class of problem.

use super::draw::{Class, RaggedTraits};
use super::sweep::Record;
use serde::Serialize;

/// Problems whose lengths lie on the device.
const LENGTHS: &str = "lengths";
/// All problems.
const ALL: &str = "all";

/// The regret over some problems; shares of the best time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// Of which problems: a class of dense ones, `lengths` for those of any class whose lengths lie on the device, where no plan can know them;
    /// of ragged batches `packed` ones, those in `pages`, and others with windows, sinks or `scores`; or `all`.
    pub class: &'static str,
    /// How many problems.
    pub problems: usize,
    /// The median.
    pub median: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The worst.
    pub worst: f64,
    /// Share of the problems with more than 5 %.
    pub over_5_percent: f64,
    /// Share of the problems with more than 25 %.
    pub over_25_percent: f64,
}

impl Regret {
    /// By class, of what has lengths on the device, of ragged batches, then of all; classes without problems are left out. `of` gives a record's regret,
    /// `None` where it has none.
    pub fn by_class(records: &[Record], of: impl Fn(usize, &Record) -> Option<f64>) -> Vec<Regret> {
        let class_of = |record: &Record| match &record.ragged {
            Some(ragged) => ragged.group(),
            None if record.lengths => LENGTHS,
            None => record.class.name(),
        };
        let of_class = |class: &'static str| {
            let is_of = |record: &Record| class == ALL || class == class_of(record);
            let of_record = |(number, record)| of(number, record).filter(|_| is_of(record));
            Regret::new(class, records.iter().enumerate().filter_map(of_record).collect())
        };
        let classes = Class::ALL.map(Class::name).into_iter().chain([LENGTHS]).chain(RaggedTraits::GROUPS);
        classes.chain([ALL]).filter_map(of_class).collect()
    }

    fn new(class: &'static str, mut regrets: Vec<f64>) -> Option<Regret> {
        regrets.sort_by(f64::total_cmp);
        let last = regrets.len().checked_sub(1)?;
        let at = |share: f64| regrets[(share * last as f64).round() as usize];
        let over = |limit: f64| {
            regrets.iter().filter(|&&regret| regret > limit).count() as f64 / regrets.len() as f64
        };
        Some(Regret {
            class,
            problems: regrets.len(),
            median: at(0.5),
            p95: at(0.95),
            worst: at(1.0),
            over_5_percent: over(0.05),
            over_25_percent: over(0.25),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_regrets() {
        let regrets = (0..=100).rev().map(|percent| f64::from(percent) / 100.0).collect();
        let found = Regret::new(ALL, regrets).expect("some");
        assert_eq!((found.problems, found.median, found.p95, found.worst), (101, 0.5, 0.95, 1.0));
        assert_eq!((found.over_5_percent, found.over_25_percent), (95.0 / 101.0, 75.0 / 101.0));
        assert_eq!(Regret::new(ALL, Vec::new()), None);
    }
}
