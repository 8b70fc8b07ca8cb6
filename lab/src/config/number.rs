//! Numbers of lab.toml that refuse what is impossible, so that the error is at their line.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a number is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NumberError {
    /// A time of nothing, or over a week.
    #[error("{0} s: a limit is from 1 second to a week (604800)")]
    Seconds(u64),
    /// A count over every budget.
    #[error("{0}: a count is from 0 to 1000000")]
    Count(u64),
    /// A share outside (0, 1].
    #[error("{0}: a share is more than 0 and at most 1")]
    Share(f64),
    /// A ratio outside [0, 1).
    #[error("{0}: a ratio is from 0 to less than 1 (0.03 is 3 %)")]
    Ratio(f64),
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $as_is:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = $as_is, into = $as_is)]
        pub struct $name($inner);

        impl $name {
            /// A constant known to be valid.
            pub(crate) const fn new(value: $inner) -> $name {
                $name(value)
            }

            /// The number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl TryFrom<$inner> for $name {
            type Error = NumberError;

            fn try_from(value: $inner) -> Result<$name, NumberError> {
                let valid: fn($inner) -> bool = $valid;
                if valid(value) { Ok($name(value)) } else { Err(NumberError::$name(value)) }
            }
        }

        impl From<$name> for $inner {
            fn from(number: $name) -> $inner {
                number.0
            }
        }
    };
}

number!(
    /// Seconds, at least 1.
    Seconds, u64, "u64", |seconds| (1..=604_800).contains(&seconds)
);
number!(
    /// A number of things, which may be 0.
    Count, u64, "u64", |count| count <= 1_000_000
);
number!(
    /// More than 0, at most 1.
    Share, f64, "f64", |share| share > 0.0 && share <= 1.0
);
number!(
    /// From 0 to less than 1.
    Ratio, f64, "f64", |ratio| (0.0..1.0).contains(&ratio)
);

impl Seconds {
    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl Count {
    /// As a length.
    pub const fn len(self) -> usize {
        self.0 as usize
    }

    /// Whether it is 0.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_refuses_what_is_outside() {
        assert!(Seconds::try_from(0).is_err() && Seconds::try_from(604_801).is_err());
        assert_eq!(Seconds::try_from(3).map(|s| s.duration().as_secs()), Ok(3));
        assert!(Share::try_from(0.0).is_err() && Share::try_from(1.1).is_err());
        assert!(Share::try_from(f64::NAN).is_err() && Ratio::try_from(f64::NAN).is_err());
        assert!(Ratio::try_from(1.0).is_err() && Ratio::try_from(-0.01).is_err());
        assert!(Count::try_from(1_000_001).is_err() && Count::try_from(0).is_ok());
    }
}
