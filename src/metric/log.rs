//! Logged values, from a step's tensors to numbers.

use super::state::Statistics;
use super::{Mean, Metric, MetricState, Observation, read};
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::progress::Stage;
use burn::tensor::backend::{AutodiffBackend, Backend};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Named values in the order they were first logged.
///
/// ```
/// use firebox::metric::Metrics;
///
/// let metrics: Metrics = [("val/loss".to_owned(), 0.5)].into_iter().collect();
/// assert_eq!(metrics.get("val/loss"), Some(0.5));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// The value under this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }
    /// Sets the value under this name.
    pub fn insert(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, v)) => *v = value,
            None => self.0.push((name, value)),
        }
    }
    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
    /// A JSON object of all values, in the order of their names.
    pub(crate) fn to_json(&self) -> Value {
        let values: BTreeMap<&str, Exact> = self.iter().map(|(n, v)| (n, Exact(v))).collect();
        json!(values)
    }
    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(values: I) -> Self {
        let mut metrics = Self::default();
        metrics.extend(values);
        metrics
    }
}

impl Extend<(String, f64)> for Metrics {
    fn extend<I: IntoIterator<Item = (String, f64)>>(&mut self, values: I) {
        for (name, value) in values {
            self.insert(name, value);
        }
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(name, value)| (name, Exact(*value))))
    }
}

impl<'de> Deserialize<'de> for Metrics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<(String, Exact)>::deserialize(deserializer)?;
        Ok(values
            .into_iter()
            .map(|(name, Exact(v))| (name, v))
            .collect())
    }
}

/// One logged value, still on the device.
#[derive(Debug)]
pub(crate) struct Logged<B: Backend> {
    pub(crate) name: Cow<'static, str>,
    pub(crate) value: Observation<B>,
}

impl<B: AutodiffBackend> Logged<B> {
    /// The same, detached from the graph.
    pub(crate) fn inner(self) -> Logged<B::InnerBackend> {
        Logged {
            name: self.name,
            value: self.value.inner(),
        }
    }
}

/// What was logged in a stage: tensors until they are read, merged statistics from then on.
pub(crate) struct LogBook<B: Backend> {
    stage: Stage,
    /// Not read yet, each with its group (the optimizer step it belongs to) and its weight.
    unread: Vec<(u64, Logged<B>, f64)>,
    merged: Vec<Merged>,
    group: u64,
}

struct Merged {
    name: Cow<'static, str>,
    epoch: MetricState,
    /// The statistics of one group, and which.
    group: Option<(u64, MetricState)>,
}

/// What a checkpoint keeps of a [`LogBook`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LogBookState {
    pub(super) merged: Vec<MergedState>,
    pub(super) group: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MergedState {
    pub(super) name: String,
    pub(super) epoch: Statistics,
    pub(super) group: Option<(u64, Statistics)>,
}

impl LogBookState {
    /// The values of everything. Names get `suffix`.
    pub(crate) fn values(&self, stage: Stage, suffix: &str) -> Metrics {
        let all = self.merged.iter();
        values(
            stage,
            suffix,
            all.map(|m| (m.name.as_str(), m.epoch.values())),
        )
    }

    /// The values of the current group.
    pub(crate) fn group_values(&self, stage: Stage) -> Metrics {
        let current = self.merged.iter().filter_map(|m| match &m.group {
            Some((group, state)) if *group == self.group => Some((m.name.as_str(), state.values())),
            _ => None,
        });
        values(stage, "", current)
    }
}

/// Bounds what waits on the device when steps are not logged.
const MAX_UNREAD: usize = 1024;

impl<B: Backend> LogBook<B> {
    pub(crate) fn new(stage: Stage) -> Self {
        Self {
            stage,
            unread: Vec::new(),
            merged: Vec::new(),
            group: 0,
        }
    }

    /// Takes what a batch logged. `weight` is what plain values weigh: the batch's samples.
    pub(crate) fn add(
        &mut self,
        logged: impl IntoIterator<Item = Logged<B>>,
        weight: f64,
    ) -> Result<()> {
        let logged: Vec<_> = logged.into_iter().collect();
        // Now, while it is known which batch logged it.
        Self::check(&logged)?;
        let group = self.group;
        self.unread
            .extend(logged.into_iter().map(|logged| (group, logged, weight)));
        if self.unread.len() < MAX_UNREAD {
            return Ok(());
        }
        self.read()
    }

    /// Checks that what is logged as one value is one, without reading it.
    pub(crate) fn check(logged: &[Logged<B>]) -> Result<()> {
        logged.iter().try_for_each(|logged| {
            let checked = logged.value.check();
            checked.map_err(|e| e.context(format!("`{}`", logged.name)))
        })
    }

    /// Starts the next group.
    pub(crate) fn next_group(&mut self) {
        self.group += 1;
    }

    /// The values of the current group, merged over its batches.
    pub(crate) fn group_values(&mut self) -> Result<Metrics> {
        self.read()?;
        let current = self.merged.iter().filter_map(|m| match &m.group {
            Some((group, state)) if *group == self.group => Some((&m.name, state)),
            _ => None,
        });
        let current = current.map(computed).collect::<Result<Vec<_>>>()?;
        Ok(values(self.stage, "", current.into_iter()))
    }

    /// The values of everything since [`clear`](Self::clear), merged. Names get `suffix`.
    pub(crate) fn values(&mut self, suffix: &str) -> Result<Metrics> {
        self.read()?;
        let all = self.merged.iter().map(|m| computed((&m.name, &m.epoch)));
        let all = all.collect::<Result<Vec<_>>>()?;
        Ok(values(self.stage, suffix, all.into_iter()))
    }

    /// The metric that was logged under a name, if that is known.
    pub(super) fn metric(&self, name: &str) -> Option<Arc<dyn Metric>> {
        let merged = self.merged.iter().find(|m| m.name == name)?;
        merged.epoch.known_metric()
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Starts anew.
    pub(crate) fn clear(&mut self) {
        self.unread.clear();
        self.merged.clear();
    }

    /// What a checkpoint keeps.
    pub(crate) fn save(&mut self) -> Result<LogBookState> {
        self.read()?;
        let merged = self.merged.iter().map(|m| MergedState {
            name: m.name.clone().into_owned(),
            epoch: m.epoch.save(),
            group: m
                .group
                .as_ref()
                .map(|(group, state)| (*group, state.save())),
        });
        Ok(LogBookState {
            merged: merged.collect(),
            group: self.group,
        })
    }

    /// Goes on from what was saved.
    pub(crate) fn load(&mut self, saved: LogBookState) {
        let restore = |(group, state)| (group, MetricState::restore(state));
        let merged = saved.merged.into_iter().map(|m| Merged {
            name: m.name.into(),
            epoch: MetricState::restore(m.epoch),
            group: m.group.map(restore),
        });
        self.merged = merged.collect();
        self.group = saved.group;
    }

    /// Reads what waits on the device, in one transfer.
    fn read(&mut self) -> Result<()> {
        let unread = std::mem::take(&mut self.unread);
        let named = unread.into_iter().map(|(group, logged, weight)| {
            let name = Name(group, logged.name);
            (name, logged.value, weight)
        });
        for (Name(group, name), state) in read(named.collect())? {
            self.merge(group, name, state)?;
        }
        Ok(())
    }

    fn merge(&mut self, group: u64, name: Cow<'static, str>, state: MetricState) -> Result<()> {
        let Some(merged) = self.merged.iter_mut().find(|m| m.name == name) else {
            self.merged.push(Merged {
                name,
                epoch: state.clone(),
                group: Some((group, state)),
            });
            return Ok(());
        };
        let place = |e: Error| e.context(format!("`{}`", merged.name));
        merged.epoch.merge(&state).map_err(place)?;
        match &mut merged.group {
            Some((of, sum)) if *of == group => sum.merge(&state).map_err(place)?,
            other => *other = Some((group, state)),
        }
        Ok(())
    }
}

/// A loss as a step's logged value, of this weight.
pub(crate) fn logged_loss<B: Backend>(loss: Observation<B>, weight: f64) -> Result<Logged<B>> {
    Ok(Logged {
        name: Cow::Borrowed("loss"),
        value: Mean::weighted(loss, weight)?,
    })
}

struct Name(u64, Cow<'static, str>);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

fn computed<'a>(
    (name, state): (&'a Cow<'static, str>, &MetricState),
) -> Result<(&'a str, Vec<(String, f64)>)> {
    let values = state.compute();
    Ok((name, values.map_err(|e| e.context(format!("`{name}`")))?))
}

fn values<'a>(
    stage: Stage,
    suffix: &str,
    all: impl Iterator<Item = (&'a str, Vec<(String, f64)>)>,
) -> Metrics {
    let mut metrics = Metrics::default();
    for (name, values) in all {
        for (part, value) in values {
            let full = if name.contains('/') {
                format!("{name}{part}{suffix}")
            } else {
                format!("{}/{name}{part}{suffix}", stage.prefix())
            };
            metrics.insert(full, value);
        }
    }
    metrics
}
