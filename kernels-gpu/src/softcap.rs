//! The softcap: a tanh, which is a polynomial near 0.

use crate::element::TypeOf;
use crate::params::ForwardParams;
use crate::ptx::math::{ex2, fma, min, rcp};
use crate::row::ScoreKind;
use crate::score::{NEAR_LOG2_MAX, Near, RowAt, Score, ScoreOf};
use crate::tanh;
use core::f32::consts::LN_2;

impl<E> TypeOf for ScoreOf<{ ScoreKind::Softcap.number() }, E> {
    type Type = Softcap;
}

/// cap · tanh(scale · Q·Kᵀ / cap): the score is the tanh, and `scale_log2` has the cap.
#[derive(Clone, Copy, Debug)]
pub struct Softcap {
    scale_log2: f32,
    /// 2 · log2(e) · scale / cap.
    factor: f32,
}

impl Score for Softcap {
    type Row = ();
    type Keys = ();

    const OF_KEYS: bool = false;

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Self { scale_log2: params.scale_log2, factor: params.ragged.score.factor }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(_: &ForwardParams, _: impl FnOnce() -> RowAt) -> Self::Row {}

    #[inline(always)]
    fn keys(self, (): Self::Row, _: u32) -> Self::Keys {}

    #[inline(always)]
    fn score(self, qk: f32, (): Self::Keys, _: u32) -> f32 {
        self.of_product(qk)
    }

    #[inline(always)]
    fn of_product(self, qk: f32) -> f32 {
        // tanh x = 1 − 2 / (e^2x + 1), which is off by some 2^−22 everywhere; `tanh.approx` is off by 2^−11, which is 1.5 % of a weight at
        // a cap of 30.
        fma(-2.0, rcp(ex2(qk * self.factor) + 1.0), 1.0)
    }

    const BENDS: bool = true;

    #[inline(always)]
    fn derivative(self, tanh: f32) -> f32 {
        fma(-tanh, tanh, 1.0)
    }

    const MONOTONE: bool = true;

    #[inline(always)]
    fn near(self) -> Near {
        let of_product = self.factor * (0.5 * LN_2);
        // |tanh x| is at most |x|. The other bound keeps squares finite whatever the scale.
        let far = min(min(tanh::NEAR, NEAR_LOG2_MAX * rcp(self.scale_log2)) * rcp(of_product.abs()), 1e18);
        let square_of_product = of_product * of_product;
        let [constant, first, second] = tanh::around(far * far * square_of_product);
        let all = of_product * self.scale_log2;
        Near {
            square: far * far,
            powers: [
                constant * all,
                first * all * square_of_product,
                second * all * square_of_product * square_of_product,
            ],
        }
    }
}
