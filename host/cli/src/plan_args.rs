//! The options that say how a problem is planned: splits of the keys, schedule, order of heads.

use clap::ValueEnum;
use ferroflash::{
    Accumulation, Attention, Combine, Error, Plan, PlanOptions, Problem, RowSelection, Schedule, Splits,
};
use kernels_gpu::geometry::SPLITS_MAX;
use std::collections::BTreeSet;
use std::num::ParseIntError;

/// How to plan.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// Ranges that the keys are split into, auto or at most so many; several numbers, joined by commas, make a plan each
    #[arg(long, value_name = "auto|N", value_parser = parse_splits, value_delimiter = ',', conflicts_with = "split_size")]
    splits: Vec<Splits>,

    /// Keys of a range: results then do not depend on batch and device size
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    split_size: Option<u32>,

    /// Only kernels of this schedule
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,

    /// Heads whose query blocks a grid without splits takes in turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    heads_together: Option<u32>,

    /// Where splits are merged, which changes no bit of the result; several, joined by commas, make a plan each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    combine: Vec<CombineName>,

    /// What the products are summed in where the plan chooses a kernel: f16 is less exact, and faster on GeForce cards of sm_86 and sm_89
    #[arg(long, value_enum, default_value = "f32")]
    accumulation: AccumulationName,
}

/// What products are summed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AccumulationName {
    /// float32
    F32,
    /// float16, of float16 elements: values of V over 1000 or scores over 65504 overflow
    F16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScheduleName {
    /// One CTA a block of query rows
    Grid,
    /// As many CTAs as the device holds take blocks of query rows from a counter
    Persistent,
    /// One CTA a block of the query rows that share a KV head, and a range of keys
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CombineName {
    /// As is estimated to be faster
    Auto,
    /// In the same launch, by the CTA of each tile that finishes last
    Fused,
    /// In a launch of its own
    Kernel,
}

/// Why a number of splits cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SplitsError {
    #[error("{text:?} is neither auto nor a number: {source}")]
    Number { text: String, source: ParseIntError },
    #[error("{splits} splits: at least 1 and at most {SPLITS_MAX}")]
    Range { splits: u32 },
}

/// `auto` or a number of splits.
pub(crate) fn parse_splits(text: &str) -> Result<Splits, SplitsError> {
    if text == "auto" {
        return Ok(Splits::Auto);
    }
    match text.parse().map_err(|source| SplitsError::Number { text: text.to_owned(), source })? {
        splits @ 1..=SPLITS_MAX => Ok(Splits::Count(splits)),
        splits => Err(SplitsError::Range { splits }),
    }
}

impl PlanArgs {
    /// What is asked for, for these rows.
    pub(crate) fn options(&self, rows: &RowSelection) -> Vec<PlanOptions> {
        let splits = match self.split_size {
            Some(keys) => &[Splits::Size(keys)][..],
            None if self.splits.is_empty() => &[Splits::Auto],
            None => &self.splits,
        };
        let schedule = self.schedule.map(|name| match name {
            ScheduleName::Grid => Schedule::Grid,
            ScheduleName::Persistent => Schedule::Persistent,
            ScheduleName::Split => Schedule::Split,
        });
        let heads_together = self.heads_together;
        let accumulation = match self.accumulation {
            AccumulationName::F32 => Accumulation::F32,
            AccumulationName::F16 => Accumulation::F16,
        };
        let with = |splits, combine| PlanOptions {
            rows: rows.clone(),
            splits,
            schedule,
            heads_together,
            combine,
            accumulation,
        };
        let combines = || self.combine.iter().map(|&name| Combine::from(name));
        splits.iter().flat_map(|&splits| combines().map(move |combine| with(splits, combine))).collect()
    }

    /// The plans for all of these rows, each once: `best` may name a row that is listed too.
    pub(crate) fn distinct_plans(
        &self,
        attention: &Attention,
        problem: &Problem,
        rows: &[RowSelection],
    ) -> Result<Vec<Plan>, Error> {
        let mut plans = Vec::new();
        for options in rows.iter().flat_map(|rows| self.options(rows)) {
            plans.extend(attention.plans(problem, &options)?);
        }
        let mut seen = BTreeSet::new();
        plans.retain(|plan| seen.insert((plan.kernel().entry.clone(), plan.splits(), plan.is_fused())));
        Ok(plans)
    }
}

impl From<CombineName> for Combine {
    fn from(name: CombineName) -> Combine {
        match name {
            CombineName::Auto => Combine::Auto,
            CombineName::Fused => Combine::Fused,
            CombineName::Kernel => Combine::Kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        plan: PlanArgs,
    }

    #[test]
    fn every_number_of_splits_goes_with_every_way_to_merge_them() {
        let options = |arguments: &[&str]| -> Vec<(Splits, Combine)> {
            let command = Command::parse_from([&["x"], arguments].concat());
            let options = command.plan.options(&RowSelection::Best);
            options.into_iter().map(|options| (options.splits, options.combine)).collect()
        };
        assert_eq!(options(&[]), [(Splits::Auto, Combine::Auto)]);
        let [two, four] = [2, 4].map(Splits::Count);
        assert_eq!(
            options(&["--splits", "2,4", "--combine", "fused,kernel"]),
            [(two, Combine::Fused), (two, Combine::Kernel), (four, Combine::Fused), (four, Combine::Kernel)]
        );
    }

    #[test]
    fn splits_are_auto_or_a_number_within_the_limit() {
        assert_eq!(parse_splits("auto").ok(), Some(Splits::Auto));
        assert_eq!(parse_splits("256").ok(), Some(Splits::Count(256)));
        for (text, needle) in [("0", "at least 1"), ("257", "at most 256"), ("many", "neither auto")] {
            let error = parse_splits(text).expect_err(text).to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
