//! A score function of your own for Ferroflash: what it implements, and what it is given. docs/scores.md is its guide.
//!
//! One source serves three: `cargo xtask build-ptx --score` compiles it into kernels, with float32 as [`Number`]; the simulator runs those
//! kernels; and the crate `check` evaluates the function itself in float64, to judge them.
//!
//! ```
//! use ferroflash_score::{Elements, Number, Query, Score, Tables};
//!
//! /// The scaled product and an element of a table for each head.
//! #[derive(Clone, Copy)]
//! pub struct HeadBias<F>(F);
//!
//! impl<F: Number> Score<F> for HeadBias<F> {
//!     const NAME: &'static str = "head_bias";
//!     const TABLES: &'static [Elements] = &[Elements::F32];
//!
//!     fn new(query: Query, tables: &impl Tables<F>) -> Self {
//!         HeadBias(tables.number::<0>(query.head))
//!     }
//!
//!     fn score(self, scaled: F, _key: u32, _tables: &impl Tables<F>) -> F {
//!         scaled + self.0
//!     }
//! }
//! ```

#![no_std]

// Float64 is evaluated on the host alone.
#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

use core::ops::{Add, Div, Mul, Neg, Sub};

/// The version of Ferroflash that a crate is built against.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Tables that a score has at most.
pub const TABLES_MAX: usize = 4;
/// Bytes of a score's name at most.
pub const NAME_MAX: usize = 24;

/// A function of every score between scale · Q·Kᵀ and the softmax, and a mask where it wants one. The type itself is what it keeps of a query
/// row, in registers through the loop over the keys: keep it small.
///
/// Evaluated for every query and key of a block, also for keys past the sequence's last and for keys that a mask hides; what it returns for
/// those is not used. It must not panic: no indexing, no division of integers by what may be 0. The same input gives the same result.
pub trait Score<F: Number>: Copy {
    /// Its name in rows, kernels and problems: at most [`NAME_MAX`] lower-case letters, digits and `_`, the first one a letter.
    const NAME: &'static str;
    /// The elements of its tables: at most [`TABLES_MAX`].
    const TABLES: &'static [Elements];
    /// Whether [`Score::sees`] hides keys. Every block of keys is then worked on as one that is seen in part.
    const MASKS: bool = false;

    /// What it keeps of a query.
    fn new(query: Query, tables: &impl Tables<F>) -> Self;

    /// The score of a key, from scale · Q·Kᵀ: both in natural-log units. −∞ leaves the key no weight. It must be finite or −∞ for finite input.
    fn score(self, scaled: F, key: u32, tables: &impl Tables<F>) -> F;

    /// Whether the query sees a key that the problem's mask shows. What lies in K and V at a hidden key, NaN too, does not reach the query.
    #[inline(always)]
    fn sees(self, key: u32, tables: &impl Tables<F>) -> bool {
        let _ = (key, tables);
        true
    }
}

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Batch entry.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Its number within its sequence.
    pub query: u32,
    /// Queries of the sequence.
    pub seqlen_q: u32,
    /// Keys of the sequence.
    pub seqlen_k: u32,
}

impl Query {
    /// The query's own key, as far from the last key as the query is from the last query: below 0 where there are more queries than keys.
    #[inline(always)]
    pub fn own_key(self) -> i32 {
        self.query.wrapping_add(self.seqlen_k).wrapping_sub(self.seqlen_q) as i32
    }
}

/// The type of a table's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elements {
    /// float32: [`Tables::number`].
    F32,
    /// u32: [`Tables::word`].
    U32,
}

/// The tables that a call gives. An index past a table's last element reads the last one.
pub trait Tables<F> {
    /// An element of a table of float32.
    fn number<const TABLE: usize>(&self, index: u32) -> F;

    /// An element of a table of u32.
    fn word<const TABLE: usize>(&self, index: u32) -> u32;
}

/// What scores are computed with: float32 in kernels, float64 where they are judged.
pub trait Number:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// −∞.
    const NEG_INFINITY: Self;

    /// A constant.
    fn of(value: f32) -> Self;

    /// An integer; in kernels rounded where it has more than 24 bits.
    fn of_int(value: i32) -> Self;

    /// The absolute value.
    fn abs(self) -> Self;

    /// The smaller number.
    fn min(self, other: Self) -> Self;

    /// The larger number.
    fn max(self, other: Self) -> Self;

    /// e to this power.
    fn exp(self) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;

    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
}

#[cfg(not(target_arch = "nvptx64"))]
impl Number for f64 {
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    fn of(value: f32) -> f64 {
        value.into()
    }

    fn of_int(value: i32) -> f64 {
        value.into()
    }

    fn abs(self) -> f64 {
        f64::abs(self)
    }

    fn min(self, other: f64) -> f64 {
        f64::min(self, other)
    }

    fn max(self, other: f64) -> f64 {
        f64::max(self, other)
    }

    fn exp(self) -> f64 {
        f64::exp(self)
    }

    fn ln(self) -> f64 {
        f64::ln(self)
    }

    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
}
