//! What touches every score between Q·Kᵀ and the softmax: a type of the kernel, so that a plain score costs nothing.

use crate::params::ForwardParams;

/// Turns Q·Kᵀ into scores. The order is: Q·Kᵀ, [`Score::score`], mask, times [`Score::scale_log2`], softmax.
pub trait Score: Copy {
    /// What the launch says of it. Cheap: made anew where it is needed, so that nothing of it is kept in registers.
    fn new(params: &ForwardParams) -> Self;

    /// What scores are multiplied with in the softmax, times log2(e): exp is taken in base 2. Positive and finite.
    fn scale_log2(self) -> f32;

    /// The score of a query and a key, given their product.
    fn score(self, qk: f32) -> f32;
}

/// The scaled product, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    scale_log2: f32,
}

impl Score for Plain {
    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Self { scale_log2: params.scale_log2 }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn score(self, qk: f32) -> f32 {
        qk
    }
}
