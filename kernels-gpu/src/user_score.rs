//! Scores of users in kernels: [`ferroflash_score::Score`] in float32, with tables in global memory.

use crate::params::{ForwardParams, TableParams};
use crate::ptx::math::{ex2, lg2, max, min, rcp};
use crate::ptx::memory::{ld_global_constant_b32, to_global};
use crate::row::ScoreKind;
use crate::score::{RowAt, Score};
use core::f32::consts::{LN_2, LOG2_E};
use core::marker::PhantomData;
use core::ops::{Add, Div, Mul, Neg, Sub};
use ferroflash_score::{Number, Query, TABLES_MAX, Tables};

macro_rules! user_scores {
    ($($number:literal $name:ident => $type:ty;)*) => {
        /// The number of a score's type: of a user's, behind those of Ferroflash.
        ///
        /// # Panics
        /// If no crate that is compiled in has a score of that name: a build error.
        pub const fn score_number(kind: ScoreKind) -> u8 {
            match kind {
                $(ScoreKind::User(name) if name.is(stringify!($name)) => kind.number() + $number,)*
                ScoreKind::User(_) => panic!("no crate given by --score has the score of a row"),
                kind => kind.number(),
            }
        }

        $(
            const _: () = {
                assert!(
                    same(<$type as ferroflash_score::Score<Real>>::NAME, stringify!($name)),
                    "a score's NAME is not the name that its Cargo.toml has for its type"
                );
                assert!(
                    <$type as ferroflash_score::Score<Real>>::TABLES.len() <= TABLES_MAX,
                    "a score has too many TABLES"
                );
            };

            impl<E> crate::element::TypeOf for crate::score::ScoreOf<{ FIRST_USER + $number }, E> {
                type Type = User<$type>;
            }
        )*
    };
}
for_each_user_score!(user_scores);

/// The number of the first user's score.
#[allow(dead_code, reason = "only a file of rows has users' scores")]
const FIRST_USER: u8 = 6;

#[allow(dead_code, reason = "only a file of rows has users' scores")]
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}

/// float32 as the kernels compute it.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Real(pub f32);

macro_rules! operators {
    ($($trait:ident::$method:ident => $of:expr;)*) => { $(
        impl $trait for Real {
            type Output = Real;

            #[inline(always)]
            fn $method(self, other: Real) -> Real {
                const OF: fn(f32, f32) -> f32 = $of;
                Real(OF(self.0, other.0))
            }
        }
    )* };
}
operators! {
    Add::add => |a, b| a + b;
    Sub::sub => |a, b| a - b;
    Mul::mul => |a, b| a * b;
    Div::div => |a, b| a * rcp(b);
}

impl Neg for Real {
    type Output = Real;

    #[inline(always)]
    fn neg(self) -> Real {
        Real(-self.0)
    }
}

impl Number for Real {
    const NEG_INFINITY: Real = Real(f32::NEG_INFINITY);

    #[inline(always)]
    fn of(value: f32) -> Real {
        Real(value)
    }

    #[inline(always)]
    fn of_int(value: i32) -> Real {
        Real(value as f32)
    }

    #[inline(always)]
    fn abs(self) -> Real {
        Real(self.0.abs())
    }

    #[inline(always)]
    fn min(self, other: Real) -> Real {
        Real(min(self.0, other.0))
    }

    #[inline(always)]
    fn max(self, other: Real) -> Real {
        Real(max(self.0, other.0))
    }

    #[inline(always)]
    fn exp(self) -> Real {
        Real(ex2(self.0 * LOG2_E))
    }

    #[inline(always)]
    fn ln(self) -> Real {
        Real(lg2(self.0) * LN_2)
    }

    #[inline(always)]
    fn tanh(self) -> Real {
        // As for a softcap.
        Real(1.0 - 2.0 * rcp(ex2(self.0 * (2.0 * LOG2_E)) + 1.0))
    }
}

/// The tables of a launch.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTables([TableParams; TABLES_MAX]);

impl DeviceTables {
    #[inline(always)]
    fn element<const TABLE: usize>(&self, index: u32) -> u32 {
        const { assert!(TABLE < TABLES_MAX, "a score has at most 4 tables") }
        let TableParams { address, last, .. } = self.0[TABLE];
        // SAFETY: an element of the table, or of what the host gives for one that the score does not have; nobody writes there meanwhile.
        unsafe { ld_global_constant_b32(to_global(address) + u64::from(index.min(last)) * 4) }
    }
}

impl Tables<Real> for DeviceTables {
    #[inline(always)]
    fn number<const TABLE: usize>(&self, index: u32) -> Real {
        Real(f32::from_bits(self.element::<TABLE>(index)))
    }

    #[inline(always)]
    fn word<const TABLE: usize>(&self, index: u32) -> u32 {
        self.element::<TABLE>(index)
    }
}

/// A user's score in a kernel. Its scores are in natural-log units.
#[derive(Clone, Copy, Debug)]
pub struct User<S> {
    /// log2(e).
    scale_log2: f32,
    scale: f32,
    tables: DeviceTables,
    score: PhantomData<S>,
}

impl<S: ferroflash_score::Score<Real>> Score for User<S> {
    type Row = S;
    /// The query, and the first key.
    type Keys = (S, u32);

    const HIDES: bool = S::MASKS;

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        let tables = DeviceTables(params.ragged.tables);
        // The host says what it is: with a constant ptxas issues the products of wgmma one by one (C7520).
        let scale_log2 = params.scale_log2;
        Self { scale_log2, scale: params.ragged.score.factor, tables, score: PhantomData }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> Self::Row {
        let RowAt { batch, head, query, seqlen_q, seqlen_k, .. } = at();
        S::new(Query { batch, head, query, seqlen_q, seqlen_k }, &DeviceTables(params.ragged.tables))
    }

    #[inline(always)]
    fn keys(self, row: S, first_key: u32) -> Self::Keys {
        (row, first_key)
    }

    #[inline(always)]
    fn score(self, qk: f32, (row, first): Self::Keys, offset: u32) -> f32 {
        row.score(Real(qk * self.scale), first + offset, &self.tables).0
    }

    #[inline(always)]
    fn hides_from(_: &ForwardParams, _: u32) -> u32 {
        if S::MASKS { 0 } else { u32::MAX }
    }

    #[inline(always)]
    fn sees(self, (row, first): Self::Keys, offset: u32) -> bool {
        row.sees(first + offset, &self.tables)
    }
}
