//! Metrics written for burn-train.

use burn::data::dataloader::Progress;
use burn::tensor::backend::Backend;
use burn_train::metric::{Metric, MetricMetadata, Numeric, NumericEntry};

use super::{Mean, Observation};
use crate::error::Result;

/// Any numeric metric of burn-train, as it values this batch alone.
///
/// The value is averaged over batches, weighted by the count that the metric reports, or by the
/// samples of the batch if it reports none. That is right for what is a mean over samples:
/// accuracy, top-k accuracy, Hamming score (all in percent there). Of ratios it is a mean of batch
/// values, as in burn-train itself, and not the value of the whole: take [`Precision`],
/// [`Recall`], [`FBeta`] or [`Perplexity`] of this module instead; AUROC has no such counterpart.
/// A count of 1, as `LossMetric` reports for a mean loss, stands for the whole batch and weighs its
/// samples. The padded accuracy counts the padding.
///
/// Metrics of burn-train read their input back from the device at once, and some panic on an input
/// that they cannot take (AUROC, on other than two classes).
///
/// [`Precision`]: super::Precision
/// [`Recall`]: super::Recall
/// [`FBeta`]: super::FBeta
/// [`Perplexity`]: super::Perplexity
///
/// # Errors
///
/// When the metric's count is not usable as a weight.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_train::metric::{HammingScore, HammingScoreInput};
/// use firebox::metric::{self, burn_metric};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let device = Default::default();
/// let outputs = Tensor::<B, 2>::from_floats([[0.9, 0.1], [0.9, 0.1]], &device);
/// let targets = Tensor::from_ints([[1, 0], [1, 1]], &device);
/// let input = HammingScoreInput::new(outputs, targets);
/// let seen = burn_metric::<B, _>(&HammingScore::<B>::new(), &input)?;
/// let states = metric::read(vec![("val/hamming", seen, 2.0)])?;
/// assert_eq!(states[0].1.value(), Some(75.0));
/// # Ok(())
/// # }
/// ```
pub fn burn_metric<B: Backend, M: Metric + Numeric>(
    metric: &M,
    input: &M::Input,
) -> Result<Observation<B>> {
    observe_entry(batch_value(metric, input))
}

/// The metric's value of this batch alone.
pub(crate) fn batch_value<M: Metric + Numeric>(metric: &M, input: &M::Input) -> NumericEntry {
    // A cleared clone: what the metric itself accumulates cannot be merged.
    let mut metric = metric.clone();
    metric.clear();
    let done = || Progress::new(1, 1);
    metric.update(
        input,
        &MetricMetadata {
            progress: done(),
            global_progress: done(),
            iteration: None,
            lr: None,
        },
    );
    metric.value()
}

pub(crate) fn observe_entry<B: Backend>(entry: NumericEntry) -> Result<Observation<B>> {
    match entry {
        NumericEntry::Value(value) => Ok(value.into()),
        // One number for the whole batch (a mean loss): it weighs what the batch weighs.
        NumericEntry::Aggregated {
            aggregated_value,
            count: 1,
        } => Ok(aggregated_value.into()),
        NumericEntry::Aggregated {
            aggregated_value,
            count,
        } => Mean::weighted(aggregated_value, count as f64),
    }
}
