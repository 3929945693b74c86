use burn::lr_scheduler::LrScheduler;
use serde_json::{Value, json};

use super::{Schedule, other_state};
use crate::error::Result;
use crate::optim::state::MAX_COUNT;

/// Any of Burn's learning-rate schedulers.
///
/// Burn's give absolute learning rates, so the optimizer's own plays no part. They only go forward,
/// one step at a time; this adapter steps them when `t` advances and no more. (Burn's cosine
/// restarts at its end; [`Cosine`](super::Cosine) does not.)
///
/// ```
/// use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
/// use firebox::optim::schedule::{BurnSchedule, Schedule};
///
/// # fn main() -> Result<(), String> {
/// let inner = LinearLrSchedulerConfig::new(1.0, 0.5, 2).init()?;
/// let mut linear = BurnSchedule::new(inner);
/// assert_eq!([0, 1, 1, 2, 3].map(|t| linear.lr(9.0, t)), [1.0, 0.75, 0.75, 0.5, 0.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BurnSchedule<S> {
    /// As given, to start again from.
    fresh: S,
    inner: S,
    /// How often `inner` was stepped.
    steps: u64,
    /// What it gave last.
    lr: f64,
}

impl<S: LrScheduler + 'static> BurnSchedule<S> {
    /// The scheduler, whose next step is that of update 0.
    pub fn new(scheduler: S) -> Self {
        Self {
            fresh: scheduler.clone(),
            inner: scheduler,
            steps: 0,
            lr: 0.0,
        }
    }

    fn step_to(&mut self, steps: u64) {
        if steps < self.steps {
            self.inner = self.fresh.clone();
            self.steps = 0;
        }
        while self.steps < steps {
            self.lr = self.inner.step();
            self.steps += 1;
        }
    }
}

impl<S: LrScheduler + 'static> Schedule for BurnSchedule<S> {
    fn lr(&mut self, _base: f64, t: u64) -> f64 {
        self.step_to(t.saturating_add(1));
        self.lr
    }

    fn save_state(&self) -> Value {
        json!({ "steps": self.steps })
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let steps = state.get("steps").and_then(Value::as_u64);
        // Burn's schedulers are stepped up to there one by one.
        let steps = steps.filter(|steps| *steps <= MAX_COUNT);
        self.step_to(steps.ok_or_else(|| other_state("a Burn scheduler", state))?);
        Ok(())
    }
}
