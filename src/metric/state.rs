use std::fmt;
use std::sync::Arc;

use super::Metric;
use crate::error::{Error, Result};
use crate::exact::Exact;
use serde::{Deserialize, Serialize};

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
    /// Whether `metric` only stands in for the one that is not known yet.
    restored: bool,
}

/// What is saved of a [`MetricState`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Statistics {
    state: Vec<Exact>,
    values: Vec<(String, Exact)>,
}

impl Statistics {
    pub(super) fn state(&self) -> Vec<f64> {
        self.state.iter().map(|Exact(v)| *v).collect()
    }

    /// The values that these statistics have, each with the suffix of its name.
    pub(super) fn values(&self) -> Vec<(String, f64)> {
        let values = self.values.iter();
        values.map(|(name, Exact(v))| (name.clone(), *v)).collect()
    }
}

/// Stands in for the metric of restored statistics until that comes by.
struct Restored(Vec<(String, f64)>);

impl Metric for Restored {
    fn compute(&self, _state: &[f64]) -> Vec<(String, f64)> {
        self.0.clone()
    }
}

impl MetricState {
    /// A state that has seen nothing.
    pub fn new(metric: Arc<dyn Metric>) -> Self {
        Self::from_values(metric, Vec::new())
    }

    /// A state with the given statistics, such as [`MetricState::state`] gave them before.
    pub fn from_values(metric: Arc<dyn Metric>, state: Vec<f64>) -> Self {
        Self {
            metric,
            state,
            restored: false,
        }
    }

    /// What a checkpoint keeps.
    pub(super) fn save(&self) -> Statistics {
        // Statistics that are not sound have no values; the metric itself will say so.
        let values = self.compute().unwrap_or_default();
        Statistics {
            state: self.state.iter().copied().map(Exact).collect(),
            values: values.into_iter().map(|(n, v)| (n, Exact(v))).collect(),
        }
    }

    /// The state that was saved. Its metric is known again once a batch is merged; until then it
    /// has the values that it had.
    pub(super) fn restore(saved: Statistics) -> Self {
        let values = saved.values.into_iter().map(|(n, Exact(v))| (n, v));
        Self {
            metric: Arc::new(Restored(values.collect())),
            state: saved.state.into_iter().map(|Exact(v)| v).collect(),
            restored: true,
        }
    }

    /// Merges another state of the same metric into this one.
    ///
    /// # Errors
    ///
    /// As [`MetricState::merge_values`].
    pub fn merge(&mut self, other: &MetricState) -> Result<()> {
        if self.restored {
            self.metric = Arc::clone(&other.metric);
            self.restored = other.restored;
        }
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

    /// The metric, unless something stands in for it.
    pub(super) fn known_metric(&self) -> Option<Arc<dyn Metric>> {
        (!self.restored).then(|| Arc::clone(&self.metric))
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
