//! How far gradients may be from the float64 reference: each of dQ, dK, dV, and those of sinks and of a bias, at most twice as far as a plain implementation that rounds
//! where kernels round, and always one unit in the last place of its largest element, and what roundings of O and dS
//! alone come to ([`GradientsOf::rounding`]).

use super::{Errors, held, smallest_normal, unit_roundoff};
use crate::reference::{GradientsOf, gradient_start};
use ferroflash::backward::gradient_name;
use ferroflash::problem::{Extent, TensorRole};
use ferroflash::rounding::widen;
use ferroflash::{Backward, Error, Gradients};

/// The tensors that have gradients, in the order of the results.
const ROLES: [TensorRole; 3] = [TensorRole::Q, TensorRole::K, TensorRole::V];

/// How one gradient compares with the reference.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct GradientVerdict {
    /// Its name, "dQ".
    pub name: &'static str,
    /// Largest error, over elements that are numbers in both.
    pub max_error: f64,
    /// Root of the mean squared error, over the same elements.
    pub rms_error: f64,
    /// Largest error that passes.
    pub allowed: f64,
    /// Largest error of the plain implementation.
    pub plain_error: f64,
    /// Where the largest error is, or the first element that is not finite where it should be or the reverse: batch, head, row, element.
    pub worst: [usize; 4],
    /// Elements that are NaN or infinite in one and not in the other.
    pub not_finite_mismatches: usize,
    /// Everything is within bounds.
    pub passed: bool,
}

/// How all compare.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct GradientVerdicts {
    /// dQ, dK and dV.
    pub each: [GradientVerdict; 3],
    /// The gradient of the sinks, where there are any.
    pub sinks: Option<GradientVerdict>,
    /// The gradient of the bias, where there is one.
    pub bias: Option<GradientVerdict>,
    /// All are within bounds.
    pub passed: bool,
}

impl GradientVerdicts {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &GradientVerdict> {
        self.each.iter().chain(&self.sinks).chain(&self.bias)
    }

    /// The largest share of its allowed error that a gradient took: 1 is the limit.
    pub fn ratio(&self) -> f64 {
        let ratio = |of: &GradientVerdict| match of {
            GradientVerdict { not_finite_mismatches: 1.., .. } => f64::INFINITY,
            GradientVerdict { max_error, allowed, .. } if *max_error > 0.0 => max_error / allowed,
            _ => 0.0,
        };
        self.all().map(ratio).fold(0.0, f64::max)
    }
}

impl std::fmt::Display for GradientVerdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, of) in self.all().enumerate() {
            let GradientVerdict { name, max_error, allowed, worst: [batch, head, row, element], .. } = of;
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{name} max error {max_error:.2e} (allowed {allowed:.2e})")?;
            if !of.passed {
                write!(f, ", worst at batch {batch} head {head} row {row} element {element}")?;
            }
            if of.not_finite_mismatches > 0 {
                let count = of.not_finite_mismatches;
                write!(f, ", {count} elements not finite where they should be or the reverse")?;
            }
        }
        Ok(())
    }
}

/// The bounds for one input.
#[derive(Clone, Copy, Debug)]
pub struct GradientTolerance {
    plain_error: [f64; 5],
    allowed: [f64; 5],
}

impl GradientTolerance {
    /// The bounds from what is right and what a plain implementation makes of it.
    pub fn new(
        backward: &Backward,
        reference: &GradientsOf<f64>,
        plain: &GradientsOf<f32>,
    ) -> GradientTolerance {
        let dtype = backward.problem().dtype();
        let (mut plain_error, mut allowed) = ([0.0; 5], [0.0; 5]);
        for (i, (right, plain)) in reference.all().into_iter().zip(plain.all()).enumerate() {
            let pairs = plain.iter().map(|&plain| f64::from(plain)).zip(right.iter().copied());
            plain_error[i] = Errors::of(pairs, |expected| held(dtype, expected)).max_error;
            let finite = right.iter().filter(|right| right.is_finite());
            let largest = finite.fold(0.0, |most: f64, right| most.max(right.abs()));
            let floor = 2.0 * unit_roundoff(dtype) * largest.max(smallest_normal(dtype));
            allowed[i] = f64::max(2.0 * plain_error[i], floor).max(reference.rounding[i]);
        }
        GradientTolerance { plain_error, allowed }
    }

    /// Judges gradients, bits of the problem's dtype in the strides of the backward pass.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where one is not as long as it should be.
    pub fn judge(
        &self,
        backward: &Backward,
        reference: &GradientsOf<f64>,
        gradients: &Gradients,
    ) -> Result<GradientVerdicts, Error> {
        let (dtype, got) = (backward.problem().dtype(), [&gradients.q, &gradients.k, &gradients.v]);
        let mut each = Vec::new();
        for (i, role) in ROLES.into_iter().enumerate() {
            let (name, expected) = (gradient_name(role), backward.len(role));
            if got[i].len() != expected {
                return Err(Error::WrongLength { tensor: name, expected, got: got[i].len() });
            }
            let width = backward.problem().extent(role).width as usize;
            let elements = row_coordinates(backward, role).flat_map(|at| {
                let start = gradient_start(backward, role, at);
                got[i][start..start + width].iter().map(|&bits| widen(dtype, bits))
            });
            let pairs = elements.zip(reference.all()[i].iter().copied());
            let errors = Errors::of(pairs, |expected| held(dtype, expected));
            let [batch, head, row] =
                row_coordinates(backward, role).nth(errors.worst / width).unwrap_or_default();
            each.push(self.verdict(i, (name, [batch, head, row, errors.worst % width]), &errors));
        }
        let each: [GradientVerdict; 3] = [each[0], each[1], each[2]];
        let got_sinks = gradients.sinks.as_deref().unwrap_or_default();
        let (name, expected) = ("dSinks", reference.sinks.len());
        if got_sinks.len() != expected {
            return Err(Error::WrongLength { tensor: name, expected, got: got_sinks.len() });
        }
        let sinks = (expected > 0).then(|| {
            let pairs = got_sinks.iter().map(|&got| f64::from(got)).zip(reference.sinks.iter().copied());
            let errors = Errors::of(pairs, |expected| f64::from(expected as f32));
            self.verdict(3, (name, [0, errors.worst, 0, 0]), &errors)
        });
        let got_bias = gradients.bias.as_deref().unwrap_or_default();
        let (name, expected) = ("dBias", reference.bias.len());
        if got_bias.len() != expected {
            return Err(Error::WrongLength { tensor: name, expected, got: got_bias.len() });
        }
        let bias = backward.problem().bias_sizes().map(|[_, heads, rows, keys]| {
            let elements = got_bias.iter().map(|&bits| widen(dtype, bits));
            let errors =
                Errors::of(elements.zip(reference.bias.iter().copied()), |expected| held(dtype, expected));
            let (row, key) = (errors.worst / keys, errors.worst % keys);
            let worst = [row / rows / heads, row / rows % heads, row % rows, key];
            self.verdict(4, (name, worst), &errors)
        });
        let passed = each.iter().chain(&sinks).chain(&bias).all(|of| of.passed);
        Ok(GradientVerdicts { each, sinks, bias, passed })
    }

    /// The verdict of the gradient that is number `i` of [`GradientsOf::all`].
    fn verdict(
        &self,
        i: usize,
        (name, worst): (&'static str, [usize; 4]),
        errors: &Errors,
    ) -> GradientVerdict {
        GradientVerdict {
            name,
            max_error: errors.max_error,
            rms_error: errors.rms_error,
            allowed: self.allowed[i],
            plain_error: self.plain_error[i],
            worst,
            not_finite_mismatches: errors.not_finite_mismatches,
            passed: errors.not_finite_mismatches == 0 && errors.max_error <= self.allowed[i],
        }
    }
}

/// Batch, head and row of each row of a gradient, in the order of the reference.
pub fn row_coordinates(backward: &Backward, role: TensorRole) -> impl Iterator<Item = [usize; 3]> + use<> {
    let Extent { batch, heads, rows, .. } = backward.problem().extent(role);
    let (batch, heads, rows) = (batch as usize, heads as usize, rows as usize);
    (0..batch).flat_map(move |b| (0..heads).flat_map(move |h| (0..rows).map(move |row| [b, h, row])))
}
