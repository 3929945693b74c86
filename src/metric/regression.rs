//! Errors of predicted numbers.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};

use super::labels::accumulator;
use super::mean::ratio;
use super::{Metric, Observation};
use crate::error::{Error, Result};

/// The mean of (prediction - target)² over all elements.
///
/// The statistics are (Σ of the squares, elements).
///
/// ```
/// use burn::tensor::Tensor;
/// use firebox::metric::{self, MeanSquaredError};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let device = Default::default();
/// let predicted = Tensor::<B, 1>::from_floats([1.0, 2.0], &device);
/// let seen = MeanSquaredError::new().observe(predicted, Tensor::from_floats([1.0, 5.0], &device))?;
/// let states = metric::read(vec![("val/mse", seen, 2.0)])?;
/// assert_eq!(states[0].1.value(), Some(4.5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct MeanSquaredError;

impl MeanSquaredError {
    /// The metric.
    pub fn new() -> Self {
        Self
    }

    /// Predictions and targets, of the same shape.
    ///
    /// # Errors
    ///
    /// When the shapes differ: one is never stretched to the other.
    pub fn observe<B: Backend, const D: usize>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Result<Observation<B>> {
        sum_of_errors(*self, pair(predictions, targets)?, Tensor::square)
    }
}

impl Metric for MeanSquaredError {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        ratio(state)
    }
}

/// The mean of |prediction - target| over all elements.
///
/// The statistics are (Σ of the absolute errors, elements). Used as [`MeanSquaredError`].
#[derive(Debug, Clone, Copy, Default)]
pub struct MeanAbsoluteError;

impl MeanAbsoluteError {
    /// The metric.
    pub fn new() -> Self {
        Self
    }

    /// Predictions and targets, of the same shape.
    ///
    /// # Errors
    ///
    /// When the shapes differ: one is never stretched to the other.
    pub fn observe<B: Backend, const D: usize>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Result<Observation<B>> {
        sum_of_errors(*self, pair(predictions, targets)?, Tensor::abs)
    }
}

impl Metric for MeanAbsoluteError {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        ratio(state)
    }
}

/// The coefficient of determination: 1 - Σ(t - p)² / Σ(t - t̄)², over all elements; 1 is perfect,
/// 0 is as good as predicting the mean t̄ of all targets.
///
/// The mean and the squares around it merge by the rule of Chan, Golub and LeVeque (1979), so
/// targets far from 0 lose nothing. The statistics are (the targets' mean, what rounding left of
/// it, Σ(t - t̄)², Σ(t - p)², elements). As in scikit-learn's `r2_score`, fewer than two elements
/// give NaN, and targets all alike give 1 if predicted exactly, else 0. Used as
/// [`MeanSquaredError`].
#[derive(Debug, Clone, Copy, Default)]
pub struct R2;

impl R2 {
    /// The metric.
    pub fn new() -> Self {
        Self
    }

    /// Predictions and targets, of the same shape. All elements count alike.
    ///
    /// # Errors
    ///
    /// When the shapes differ: one is never stretched to the other.
    pub fn observe<B: Backend, const D: usize>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Result<Observation<B>> {
        let Some((p, t)) = pair(predictions, targets)? else {
            return Ok(Observation::new(*self, None, Vec::new()));
        };
        let elements = t.dims()[0] as f64;
        let residual = p.sub(t.clone()).square().sum();
        // The mean of large values is rounded; the mean of what is left over mends it.
        let mean = t.clone().mean();
        let around = t.sub(mean.clone());
        let rest = around.clone().mean();
        let total = around.sub(rest.clone()).square().sum();
        let statistics = Tensor::cat(vec![mean, rest, total, residual], 0);
        Ok(Observation::new(*self, Some(statistics), vec![elements]))
    }
}

impl Metric for R2 {
    fn merge(&self, state: &mut [f64], other: &[f64]) {
        let [mean, rest, total, residual, n] = state else {
            return;
        };
        let &[other_mean, other_rest, other_total, other_residual, other_n] = other else {
            return;
        };
        let sum = *n + other_n;
        if sum == 0.0 {
            return;
        }
        let apart = (other_mean - *mean) + (other_rest - *rest);
        *total += other_total + apart * apart * (*n * other_n / sum);
        *residual += other_residual;
        // In the small part, where `f64` has digits to spare.
        *rest += apart * (other_n / sum);
        *n = sum;
    }

    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        let &[_, _, total, residual, n] = state else {
            return Vec::new();
        };
        let value = match (n < 2.0, total == 0.0, residual == 0.0) {
            (true, _, _) => f64::NAN,
            (_, true, true) => 1.0,
            (_, true, false) => 0.0,
            _ => 1.0 - residual / total,
        };
        vec![(String::new(), value)]
    }
}

fn sum_of_errors<B: Backend>(
    metric: impl Metric,
    pair: Option<Pair<B>>,
    error: fn(Tensor<B, 1>) -> Tensor<B, 1>,
) -> Result<Observation<B>> {
    let Some((p, t)) = pair else {
        return Ok(Observation::new(metric, None, Vec::new()));
    };
    let elements = p.dims()[0] as f64;
    let sum = error(p.sub(t)).sum();
    Ok(Observation::new(metric, Some(sum), vec![elements]))
}

type Pair<B> = (Tensor<B, 1>, Tensor<B, 1>);

/// Both as one row, in the precision to sum in; nothing if they have no elements.
fn pair<B: Backend, const D: usize>(
    predictions: Tensor<B, D>,
    targets: Tensor<B, D>,
) -> Result<Option<Pair<B>>> {
    let (p, t) = (predictions.dims(), targets.dims());
    if p != t {
        return Err(Error::user(format!(
            "predictions of shape {p:?} but targets of shape {t:?}; give both the same shape"
        )));
    }
    let elements: usize = p.iter().product();
    if elements == 0 {
        return Ok(None);
    }
    let to = match predictions.dtype() {
        DType::F64 => FloatDType::F64,
        _ => accumulator(targets.dtype()),
    };
    Ok(Some((
        predictions.detach().cast(to).reshape([elements]),
        targets.detach().cast(to).reshape([elements]),
    )))
}
