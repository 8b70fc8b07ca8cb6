//! Regret: how much longer plans take than the best that the kernels could do, by class of problem.

use super::draw::Class;
use super::sweep::Record;
use serde::Serialize;

/// The regret over some problems; shares of the best time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// Of which class; `None` for all.
    pub class: Option<Class>,
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
    /// By class, then of all; classes without problems are left out. `of` gives a record's regret, `None` where it has none.
    pub fn by_class(records: &[Record], of: impl Fn(usize, &Record) -> Option<f64>) -> Vec<Regret> {
        let classes = Class::ALL.map(Some).into_iter().chain([None]);
        let of_class = |class: Option<Class>| {
            let is_of = |record: &Record| class.is_none_or(|class| class == record.class);
            let of_record = |(number, record)| of(number, record).filter(|_| is_of(record));
            Regret::new(class, records.iter().enumerate().filter_map(of_record).collect())
        };
        classes.filter_map(of_class).collect()
    }

    fn new(class: Option<Class>, mut regrets: Vec<f64>) -> Option<Regret> {
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
        let found = Regret::new(None, regrets).expect("some");
        assert_eq!((found.problems, found.median, found.p95, found.worst), (101, 0.5, 0.95, 1.0));
        assert_eq!((found.over_5_percent, found.over_25_percent), (95.0 / 101.0, 75.0 / 101.0));
        assert_eq!(Regret::new(None, Vec::new()), None);
    }
}
