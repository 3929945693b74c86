use burn::tensor::backend::Backend;

use super::{Metric, Observation};
use crate::error::{Error, Result};

/// The weighted mean, Σ wᵢ·xᵢ / Σ wᵢ: what a plain logged value becomes.
///
/// A plain value is weighted by the samples of its batch. [`Mean::weighted`] gives it another
/// weight, such as its number of tokens. The statistics are (Σ w·x, Σ w).
///
/// ```
/// use firebox::metric::{self, Mean};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let loss = Mean::weighted::<B>(0.5, 7.0)?; // 7 tokens, in a batch of 2 samples
/// let states = metric::read(vec![("loss", loss, 2.0)])?;
/// assert_eq!(states[0].1.state(), [3.5, 7.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean;

impl Mean {
    /// One value, already averaged over `weight` samples, tokens or whatever counts.
    ///
    /// # Errors
    ///
    /// When `weight` is negative or not finite, or `value` is a metric's statistics rather than a
    /// plain value.
    pub fn weighted<B: Backend>(
        value: impl Into<Observation<B>>,
        weight: f64,
    ) -> Result<Observation<B>> {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(Error::user(format!(
                "the weight of a mean is {weight}; use a finite number from 0"
            )));
        }
        value.into().with_weight(weight)
    }
}

impl Metric for Mean {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        ratio(state)
    }
}

/// The main value of a metric whose first two statistics are a sum and what it is divided by.
/// Nothing over nothing is NaN.
pub(super) fn ratio(state: &[f64]) -> Vec<(String, f64)> {
    match state {
        [sum, weight, ..] => vec![(String::new(), sum / weight)],
        _ => Vec::new(),
    }
}
