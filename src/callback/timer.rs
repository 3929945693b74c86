//! How long a run trains and validates.

use super::{Callback, RunContext};
use crate::error::{Error, Result};
use crate::module::TrainModule;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Logs how long the run has trained and validated, in seconds, at the end of each epoch
/// (`timer/train`, `timer/validate`), and stops it at a limit. A resumed run counts on.
///
/// The setting `max_time` limits a run as well; this one lets `min_epochs` and `min_steps` be done.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::Timer;
/// use firebox::prelude::*;
/// use std::time::Duration;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(Timer::new().limit(Duration::from_secs(3600)))
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Timer {
    limit: Option<Duration>,
    validating_since: Option<Instant>,
    times: Times,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Times {
    validated: Duration,
}

impl Timer {
    /// Logs, and stops nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop when the run, with its validations, has taken so long.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<M: TrainModule> Callback<M> for Timer {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.times = Times::default();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if let Some(limit) = self.limit.filter(|limit| cx.elapsed() >= *limit) {
            cx.stop(format!("the run has taken {limit:?}"));
        }
        Ok(())
    }

    fn on_eval_start(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        self.validating_since = Some(Instant::now());
        Ok(())
    }

    fn on_eval_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        let since = self.validating_since.take();
        self.times.validated += since.map_or(Duration::ZERO, |since| since.elapsed());
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let trained = cx.elapsed().saturating_sub(self.times.validated);
        cx.log("timer/train", trained.as_secs_f64());
        cx.log("timer/validate", self.times.validated.as_secs_f64());
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.times)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.times = Times::deserialize(state)
            .map_err(|e| Error::config("the state of Timer cannot be read").with_source(e))?;
        Ok(())
    }
}
