//! A loss that jumps.

use super::{Callback, RunContext};
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::module::TrainModule;
use crate::output::say;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Notices when a logged value jumps above what it was: says so with the place, counts it
/// (`spikes/<value>`), and stops the run if it is to.
///
/// It sees the steps that are logged (`log_every_n_steps`). A value is a spike if it exceeds the mean
/// of those before it by `rtol` times that mean (2 by default, as in Lightning) or by `atol`, if that is
/// set, or if it is NaN or infinite. A spike is no part of later means.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::SpikeDetection;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(SpikeDetection::new("train/loss").stop(true))
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SpikeDetection {
    name: String,
    window: usize,
    warmup: usize,
    rtol: f64,
    atol: Option<f64>,
    stops: bool,
    seen: Seen,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Seen {
    /// The last values that were no spikes.
    window: VecDeque<Exact>,
    spikes: u64,
}

impl SpikeDetection {
    /// Watches the value of this name; compares with the mean of the last 10, after the first.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            window: 10,
            warmup: 1,
            rtol: 2.0,
            atol: None,
            stops: false,
            seen: Seen::default(),
        }
    }

    /// How many values the mean is taken over; from 1.
    #[must_use]
    pub fn window(mut self, values: usize) -> Self {
        self.window = values;
        self
    }

    /// How many values come before the first that may be a spike; from 1.
    #[must_use]
    pub fn warmup(mut self, values: usize) -> Self {
        self.warmup = values;
        self
    }

    /// By how much of the mean's size a value may exceed it.
    #[must_use]
    pub fn rtol(mut self, rtol: f64) -> Self {
        self.rtol = rtol;
        self
    }

    /// By how much a value may exceed the mean.
    #[must_use]
    pub fn atol(mut self, atol: f64) -> Self {
        self.atol = Some(atol);
        self
    }

    /// Whether a spike stops the run.
    #[must_use]
    pub fn stop(mut self, stops: bool) -> Self {
        self.stops = stops;
        self
    }

    /// The mean that a value is a spike above, if it is one.
    fn spike(&mut self, value: f64) -> Option<f64> {
        let window = &mut self.seen.window;
        let mean = window.iter().map(|v| v.0).sum::<f64>() / window.len().max(1) as f64;
        let excess = value - mean;
        let is_high =
            excess > self.rtol * mean.abs() || self.atol.is_some_and(|atol| excess > atol);
        if !value.is_finite() || (window.len() >= self.warmup && is_high) {
            self.seen.spikes += 1;
            return Some(mean);
        }
        window.push_back(Exact(value));
        while window.len() > self.window.max(self.warmup) {
            window.pop_front();
        }
        None
    }
}

impl<M: TrainModule> Callback<M> for SpikeDetection {
    fn check_config(&self, _config: &TrainerConfig) -> Result<()> {
        let is_number = |x: f64| x.is_finite() && x >= 0.0;
        if self.window == 0 || self.warmup == 0 {
            return Err(Error::config(
                "`window` and `warmup` are whole numbers from 1",
            ));
        }
        if !is_number(self.rtol) || !self.atol.is_none_or(is_number) {
            return Err(Error::config("`rtol` and `atol` are finite numbers from 0"));
        }
        Ok(())
    }

    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.seen = Seen::default();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let Some(value) = cx.fresh(&self.name) else {
            return Ok(());
        };
        let mean = self.spike(value);
        if let Some(mean) = mean {
            let (step, batch) = (cx.progress().global_step, cx.batch().index);
            let epoch = cx.progress().epoch;
            let what = format!(
                "`{}` is {value} at step {step} (epoch {epoch}, batch {batch}), above {mean}",
                self.name
            );
            say!("warning: {what}");
            if self.stops {
                cx.stop(what);
            }
        }
        if self.seen.spikes > 0 {
            cx.log(format!("spikes/{}", self.name), self.seen.spikes as f64);
        }
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.seen)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.seen = Seen::deserialize(state).map_err(|e| {
            Error::config("the state of SpikeDetection cannot be read").with_source(e)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spikes(mut detection: SpikeDetection, values: &[f64]) -> Vec<usize> {
        let spikes = values.iter().enumerate();
        let spikes = spikes.filter(|(_, value)| detection.spike(**value).is_some());
        spikes.map(|(index, _)| index).collect()
    }

    #[test]
    fn what_jumps_above_the_mean() {
        let loss = || SpikeDetection::new("train/loss");
        // Three times the mean is the limit.
        assert_eq!(spikes(loss(), &[1.0, 3.0, 6.1, 6.0, 100.0]), [2, 4]);
        assert_eq!(spikes(loss().atol(0.5), &[1.0, 1.5, 1.76]), [2]);
        assert_eq!(spikes(loss().warmup(3), &[1.0, 9.0, 1.0, 12.0]), [3]);
        // The mean is over the last values alone.
        assert_eq!(spikes(loss().window(1), &[1.0, 2.0, 6.0, 18.1]), [3]);
        // A negative value has a size, too.
        assert_eq!(spikes(loss(), &[-1.0, 0.9, 4.0]), [2]);
        assert_eq!(spikes(loss(), &[f64::NAN, 1.0, f64::INFINITY, 1.0]), [0, 2]);
    }
}
