//! Parameters chosen by path, with an optimizer and a learning rate of their own.

use super::erased::ErasedOptimizer;
use super::schedule::{Schedule, ScheduleInterval};
use crate::module::TrainModule;
use burn::optim::Optimizer;

/// Parameters chosen by their path, with their own optimizer, learning rate and schedule.
///
/// A path is what the module's fields spell: `encoder.layers.0.weight`. In a pattern `*` stands
/// for any run of characters: `*.bias`, `encoder.*`. A parameter belongs to the first group that
/// matches.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use burn::optim::{AdamWConfig, SgdConfig};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>() -> Optimizers<Line<B>> {
/// // No weight decay on biases, half the learning rate on the rest.
/// Optimizers::single(AdamWConfig::new().init())
///     .with_lr(5e-4)
///     .with_group(
///         ParamGroup::new("bias", ["*.bias"], AdamWConfig::new().with_weight_decay(0.0).init())
///             .with_lr(1e-3),
///     )
/// # }
/// ```
pub struct ParamGroup<M: TrainModule> {
    pub(super) name: String,
    pub(super) patterns: Vec<String>,
    /// A group without an optimizer is frozen.
    pub(super) optimizer: Option<Box<dyn ErasedOptimizer<M>>>,
    pub(super) lr: Option<f64>,
    pub(super) schedule: Option<(ScheduleInterval, Box<dyn Schedule>)>,
}

impl<M: TrainModule> ParamGroup<M> {
    /// The parameters whose path matches one of the patterns, updated by this optimizer.
    pub fn new<P: Into<String>>(
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = P>,
        optimizer: impl Optimizer<M, M::Backend> + 'static,
    ) -> Self {
        Self {
            optimizer: Some(Box::new(optimizer)),
            ..Self::frozen(name, patterns)
        }
    }

    /// Parameters that stay as they are. They take no part in gradient norms either.
    pub fn frozen<P: Into<String>>(
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = P>,
    ) -> Self {
        Self {
            name: name.into(),
            patterns: patterns.into_iter().map(Into::into).collect(),
            optimizer: None,
            lr: None,
            schedule: None,
        }
    }

    /// This group's base learning rate, instead of the set's.
    #[must_use]
    pub fn with_lr(mut self, lr: f64) -> Self {
        self.lr = Some(lr);
        self
    }

    /// This group's schedule, instead of the set's.
    #[must_use]
    pub fn with_schedule(mut self, every: ScheduleInterval, schedule: impl Schedule) -> Self {
        self.schedule = Some((every, Box::new(schedule)));
        self
    }
}

/// Whether `pattern`, in which `*` stands for any run of characters, matches the whole `path`.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, rest)) => path.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len())
                .filter(|i| tail.is_char_boundary(*i))
                .any(|i| matches(rest, &tail[i..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, path, expected) in [
            ("conv1.weight", "conv1.weight", true),
            ("conv1", "conv1.weight", false),
            ("conv1.*", "conv1.weight", true),
            ("*.bias", "fc.0.bias", true),
            ("*.bias", "bias", false),
            ("*", "anything", true),
            ("enc*.w*", "encoder.0.weight", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xbxa", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} on {path}");
        }
    }
}
