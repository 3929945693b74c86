use std::fmt;
use std::sync::Arc;

use super::Metric;
use crate::error::{Error, Result};

/// The merged statistics of one logged name, on the host.
///
/// A fresh state has seen nothing: it has no values, and merging it changes nothing. That is what
/// a device without a share of a batch contributes.
///
/// ```
/// use std::sync::Arc;
/// use firebox::metric::{Mean, MetricState};
///
/// # fn main() -> firebox::Result<()> {
/// let mut loss = MetricState::new(Arc::new(Mean));
/// assert_eq!(loss.value(), None);
/// loss.merge_values(&[0.5 * 3.0, 3.0])?; // mean 0.5 of 3 samples
/// loss.merge_values(&[2.5, 1.0])?;
/// assert_eq!(loss.value(), Some(1.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MetricState {
    metric: Arc<dyn Metric>,
    state: Vec<f64>,
}

impl MetricState {
    /// A state that has seen nothing.
    pub fn new(metric: Arc<dyn Metric>) -> Self {
        Self::from_values(metric, Vec::new())
    }

    /// A state with the given statistics, such as [`MetricState::state`] gave them before.
    pub fn from_values(metric: Arc<dyn Metric>, state: Vec<f64>) -> Self {
        Self { metric, state }
    }

    /// Merges another state of the same metric into this one.
    ///
    /// # Errors
    ///
    /// As [`MetricState::merge_values`].
    pub fn merge(&mut self, other: &MetricState) -> Result<()> {
        self.merge_values(&other.state)
    }

    /// Merges statistics of the same metric, from a batch, another device or a checkpoint.
    ///
    /// # Errors
    ///
    /// When there are another number of them than before: one name was logged with two metrics.
    pub fn merge_values(&mut self, other: &[f64]) -> Result<()> {
        if self.state.is_empty() {
            self.state.extend_from_slice(other);
        } else if self.state.len() == other.len() {
            self.metric.merge(&mut self.state, other);
        } else if !other.is_empty() {
            return Err(Error::user(format!(
                "a metric with {} statistics cannot merge {} statistics; log one metric, with the \
                 same settings, under one name",
                self.state.len(),
                other.len(),
            )));
        }
        Ok(())
    }

    /// All values, each with the suffix of its name; none when nothing was seen.
    ///
    /// # Errors
    ///
    /// When the statistics show that the metric was fed something wrong: see [`Metric::check`].
    pub fn compute(&self) -> Result<Vec<(String, f64)>> {
        if self.state.is_empty() {
            return Ok(Vec::new());
        }
        self.metric.check(&self.state)?;
        Ok(self.metric.compute(&self.state))
    }

    /// The main value, the one without a suffix, if the metric has one and the statistics are
    /// sound.
    pub fn value(&self) -> Option<f64> {
        let values = self.compute().ok()?;
        values
            .into_iter()
            .find_map(|(suffix, value)| suffix.is_empty().then_some(value))
    }

    /// The statistics, for sending and saving; empty when nothing was seen.
    pub fn state(&self) -> &[f64] {
        &self.state
    }

    /// The metric.
    pub fn metric(&self) -> &Arc<dyn Metric> {
        &self.metric
    }
}

impl fmt::Debug for MetricState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MetricState").field(&self.state).finish()
    }
}
