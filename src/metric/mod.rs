//! Metrics that merge: over batches, devices and nodes alike.
//!
//! What one batch contributes is a short list of sufficient statistics, such as (correct, seen) for
//! the accuracy. A step makes them as an [`Observation`], which stays on the device; the host
//! [`read`]s many of them at once, folds them in `f64` with the metric's own [`Metric::merge`], and
//! takes the value from the merged [`MetricState`]. So the accuracy of an epoch is all correct
//! samples over all samples, and a ratio is never a mean of ratios, whatever the sizes of the
//! batches and the number of devices.
//!
//! ```
//! use burn::tensor::Tensor;
//! use firebox::metric::{self, Accuracy, MetricState};
//!
//! type B = burn_ndarray::NdArray;
//! # fn main() -> firebox::Result<()> {
//! let device = Default::default();
//! let accuracy = Accuracy::new();
//! // Two batches of unequal size: 1 of 1 right, then 1 of 3.
//! let small = accuracy.observe::<B>(
//!     Tensor::from_floats([[2.0, 1.0]], &device),
//!     Tensor::from_ints([0], &device),
//! )?;
//! let large = accuracy.observe::<B>(
//!     Tensor::from_floats([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], &device),
//!     Tensor::from_ints([0, 1, 1], &device),
//! )?;
//! let mut epoch: Option<MetricState> = None;
//! for (_, batch) in metric::read(vec![("acc", small, 1.0), ("acc", large, 3.0)])? {
//!     match &mut epoch {
//!         Some(epoch) => epoch.merge(&batch)?,
//!         None => epoch = Some(batch),
//!     }
//! }
//! let value = epoch.and_then(|e| e.value());
//! assert_eq!(value, Some(0.5)); // 2 of 4; the mean of the batches would be 2/3
//! # Ok(())
//! # }
//! ```
//!
//! Statistics are summed on the device in `f32` (in `f64` where the input is `f64`), so a batch's
//! counts are exact up to 2^24 = 16,777,216; the sums over batches are exact far beyond.

mod accuracy;
#[cfg(feature = "burn-train")]
mod burn_train;
mod confusion;
mod labels;
mod log;
mod mean;
mod observation;
mod perplexity;
mod ranks;
mod regression;
mod score;
mod state;
#[cfg(test)]
mod tests;

pub use crate::mode::Mode;
pub use accuracy::Accuracy;
#[cfg(feature = "burn-train")]
pub use burn_train::burn_metric;
#[cfg(feature = "burn-train")]
pub(crate) use burn_train::{batch_value, observe_entry};
pub use confusion::ConfusionMatrix;
pub use log::Metrics;
pub(crate) use log::{LogBook, LogBookState, Logged, logged_loss};
pub use mean::Mean;
pub use observation::{Observation, read};
pub use perplexity::Perplexity;
pub use regression::{MeanAbsoluteError, MeanSquaredError, R2};
pub use score::{Average, F1, FBeta, Precision, Recall};
pub use state::MetricState;

use crate::error::Result;

/// How the statistics of batches merge, and what values they give.
///
/// The trait knows nothing of tensors, so one object serves every backend. A metric also has a
/// method of its own, by convention `observe`, that turns a batch into an
/// [`Observation`] with as many statistics every time.
///
/// ```
/// use burn::tensor::{Tensor, backend::Backend};
/// use firebox::metric::{Metric, Observation};
///
/// /// The largest absolute value seen.
/// #[derive(Clone)]
/// struct MaxAbs;
///
/// impl MaxAbs {
///     fn observe<B: Backend, const D: usize>(&self, x: Tensor<B, D>) -> Observation<B> {
///         Observation::new(self.clone(), Some(x.detach().abs().max()), vec![])
///     }
/// }
/// impl Metric for MaxAbs {
///     fn merge(&self, state: &mut [f64], other: &[f64]) {
///         for (a, b) in state.iter_mut().zip(other) {
///             *a = a.max(*b);
///         }
///     }
///     fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
///         state.iter().map(|max| (String::new(), *max)).collect()
///     }
/// }
/// ```
pub trait Metric: Send + Sync + 'static {
    /// Merges the statistics `other` into `state`; element-wise addition unless overridden.
    ///
    /// Both have the same length. Merging must give the same in any grouping, to rounding.
    fn merge(&self, state: &mut [f64], other: &[f64]) {
        for (sum, value) in state.iter_mut().zip(other) {
            *sum += value;
        }
    }

    /// The values of a merged state, each with the suffix that its name gets: an empty one for
    /// the main value, `"/class_3"` and the like for further ones.
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)>;

    /// Whether the statistics say that the metric was fed something wrong that was not visible
    /// from shapes, such as a class label out of range.
    ///
    /// # Errors
    ///
    /// Says what was wrong, how often, and what would work.
    fn check(&self, state: &[f64]) -> Result<()> {
        let _ = state;
        Ok(())
    }
}
