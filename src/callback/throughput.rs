//! How fast a run trains.

use super::{Callback, RunContext};
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::module::TrainModule;
use crate::progress::Progress;
use std::time::{Duration, Instant};

/// Logs how fast the run trains, with every step that is logged, over the time since the one before:
/// `throughput/samples_per_second`, `batches_per_second` and `steps_per_second`, and what is told of a
/// sample. The time of validations is left out; that of waiting for data is in it.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::ThroughputMonitor;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// // A transformer of 124 million parameters on sequences of 1024 tokens, on a GPU of 60 TFLOP/s:
/// // about 6 operations for each parameter and token, forward and backward.
/// let monitor = ThroughputMonitor::new()
///     .items_per_sample("tokens", 1024.0)
///     .flops_per_sample(6.0 * 124e6 * 1024.0)
///     .peak_flops(60e12);
/// trainer.with_callback(monitor)
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct ThroughputMonitor {
    items: Vec<(String, f64)>,
    flops: Option<f64>,
    peak: Option<f64>,
    since: Option<(Instant, Progress)>,
    evaluating_since: Option<Instant>,
    /// Time of validations since then.
    evaluated: Duration,
}

impl ThroughputMonitor {
    /// Logs samples, batches and steps per second.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also logs `throughput/<name>_per_second`: a sample has so many of these (tokens, pixels).
    #[must_use]
    pub fn items_per_sample(mut self, name: impl Into<String>, items: f64) -> Self {
        self.items.push((name.into(), items));
        self
    }

    /// Also logs `throughput/flops_per_second`: training on a sample, forward and backward, takes so
    /// many floating-point operations.
    #[must_use]
    pub fn flops_per_sample(mut self, flops: f64) -> Self {
        self.flops = Some(flops);
        self
    }

    /// Also logs `throughput/utilization`, the share of what all devices together can do in a second.
    #[must_use]
    pub fn peak_flops(mut self, flops_per_second: f64) -> Self {
        self.peak = Some(flops_per_second);
        self
    }

    /// The values of so much progress in so many seconds.
    fn values(&self, samples: u64, batches: u64, steps: u64, seconds: f64) -> Vec<(String, f64)> {
        let per_second = |count: f64| count / seconds;
        let samples = per_second(samples as f64);
        let mut values = vec![
            ("samples_per_second".to_owned(), samples),
            ("batches_per_second".to_owned(), per_second(batches as f64)),
            ("steps_per_second".to_owned(), per_second(steps as f64)),
        ];
        let items = self.items.iter();
        values.extend(items.map(|(name, n)| (format!("{name}_per_second"), n * samples)));
        if let Some(flops) = self.flops {
            values.push(("flops_per_second".to_owned(), flops * samples));
            let utilization = self.peak.map(|peak| flops * samples / peak);
            values.extend(utilization.map(|share| ("utilization".to_owned(), share)));
        }
        values
    }
}

impl<M: TrainModule> Callback<M> for ThroughputMonitor {
    fn check_config(&self, _config: &TrainerConfig) -> Result<()> {
        let of_items = self.items.iter().map(|(_, items)| *items);
        let mut numbers = of_items.chain(self.flops).chain(self.peak);
        match numbers.find(|number| !number.is_finite() || *number <= 0.0) {
            Some(number) => Err(Error::config(format!(
                "a count for a sample or a second is {number}; use a finite number above 0"
            ))),
            None if self.peak.is_some() && self.flops.is_none() => Err(Error::config(
                "`peak_flops` is set and `flops_per_sample` is not; set both",
            )),
            None => Ok(()),
        }
    }

    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.since = Some((Instant::now(), *cx.progress()));
        self.evaluated = Duration::ZERO;
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if !cx.logs_now() {
            return Ok(());
        }
        let (now, progress) = (Instant::now(), *cx.progress());
        if let Some((then, before)) = self.since.replace((now, progress)) {
            let took = now.saturating_duration_since(then);
            let seconds = took.saturating_sub(std::mem::take(&mut self.evaluated));
            let values = self.values(
                progress.samples - before.samples,
                progress.total_batches - before.total_batches,
                progress.global_step - before.global_step,
                seconds.as_secs_f64().max(1e-9),
            );
            for (name, value) in values {
                cx.log(format!("throughput/{name}"), value);
            }
        }
        Ok(())
    }

    fn on_eval_start(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        self.evaluating_since = Some(Instant::now());
        Ok(())
    }

    fn on_eval_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        let since = self.evaluating_since.take();
        self.evaluated += since.map_or(Duration::ZERO, |since| since.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_second_has() {
        let monitor = ThroughputMonitor::new()
            .items_per_sample("tokens", 10.0)
            .flops_per_sample(2e9)
            .peak_flops(64e9);
        let values = monitor.values(64, 4, 2, 4.0);
        let values: Vec<_> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let expected = [
            ("samples_per_second", 16.0),
            ("batches_per_second", 1.0),
            ("steps_per_second", 0.5),
            ("tokens_per_second", 160.0),
            ("flops_per_second", 32e9),
            ("utilization", 0.5),
        ];
        assert_eq!(values, expected);
    }
}
