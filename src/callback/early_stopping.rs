//! Stops a run whose watched value no longer gets better.

use super::{Callback, RunContext};
use crate::error::{Error, Result};
use crate::metric::Mode;
use crate::module::TrainModule;
use crate::progress::Stage;
use serde::{Deserialize, Serialize};

/// Stops when a logged value has not improved for some checks.
///
/// A check happens whenever the value is new: after each validation for a value logged there,
/// after each epoch for one of training (`train/loss_epoch`). The rules are those of Lightning's
/// and Keras's callbacks of the same name: an equal value is no improvement, and NaN or infinity
/// stops at once unless [`check_finite(false)`](Self::check_finite).
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(EarlyStopping::new("val/loss").patience(5).min_delta(1e-3))
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EarlyStopping {
    monitor: String,
    mode: Mode,
    min_delta: f64,
    patience: u64,
    warmup: u64,
    check_finite: bool,
    stopping_threshold: Option<f64>,
    divergence_threshold: Option<f64>,
    state: State,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    checks: u64,
    /// Checks since the last improvement.
    bad: u64,
    best: Option<f64>,
}

impl EarlyStopping {
    /// Watches `monitor`: smaller is better, patience 3, no minimum change, no warm-up.
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: monitor.into(),
            mode: Mode::Min,
            min_delta: 0.0,
            patience: 3,
            warmup: 0,
            check_finite: true,
            stopping_threshold: None,
            divergence_threshold: None,
            state: State::default(),
        }
    }
    /// Whether smaller or larger is better.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
    /// A change counts as an improvement only if it is larger than this.
    pub fn min_delta(mut self, delta: f64) -> Self {
        self.min_delta = delta;
        self
    }
    /// Checks without improvement before the run stops.
    pub fn patience(mut self, checks: u64) -> Self {
        self.patience = checks;
        self
    }
    /// The first checks that never count as bad.
    pub fn warmup(mut self, checks: u64) -> Self {
        self.warmup = checks;
        self
    }
    /// Whether NaN or infinity stops at once (it does by default).
    pub fn check_finite(mut self, check: bool) -> Self {
        self.check_finite = check;
        self
    }
    /// Stops once the value is better than this.
    pub fn stopping_threshold(mut self, value: f64) -> Self {
        self.stopping_threshold = Some(value);
        self
    }
    /// Stops once the value is worse than this.
    pub fn divergence_threshold(mut self, value: f64) -> Self {
        self.divergence_threshold = Some(value);
        self
    }

    /// Takes a new value; the reason to stop, if there is one.
    fn check(&mut self, value: f64) -> Option<String> {
        let Self {
            monitor,
            mode,
            state,
            ..
        } = self;
        state.checks += 1;
        if self.check_finite && !value.is_finite() {
            return Some(format!("{monitor} is {value}"));
        }
        if let Some(threshold) = self.stopping_threshold
            && mode.better(value, threshold, 0.0)
        {
            return Some(format!("{monitor} reached {value} (threshold {threshold})"));
        }
        if let Some(threshold) = self.divergence_threshold
            && mode.better(threshold, value, 0.0)
        {
            return Some(format!(
                "{monitor} diverged to {value} (threshold {threshold})"
            ));
        }
        let improved = match state.best {
            None => !value.is_nan(),
            Some(best) => mode.better(value, best, self.min_delta),
        };
        if improved {
            state.best = Some(value);
            state.bad = 0;
        } else if state.checks > self.warmup {
            state.bad += 1;
        }
        (state.bad >= self.patience && state.bad > 0).then(|| {
            let best = state.best.unwrap_or(f64::NAN);
            format!(
                "{monitor} has not improved for {} checks (best {best})",
                state.bad
            )
        })
    }

    fn look<M: TrainModule>(&mut self, cx: &mut RunContext<'_, M>) {
        if let Some(value) = cx.fresh(&self.monitor) {
            match self.check(value) {
                Some(reason) => cx.stop(reason),
                None => cx.keep_going(),
            }
        }
    }
}

impl<M: TrainModule> Callback<M> for EarlyStopping {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.state = State::default();
        }
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.stage() == Stage::Validate {
            self.look(cx);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.look(cx);
        match self.state.checks {
            0 => cx.check_monitor("EarlyStopping", &self.monitor),
            _ => Ok(()),
        }
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.state)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.state = State::deserialize(state).map_err(|e| {
            Error::config("the state of EarlyStopping cannot be read").with_source(e)
        })?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The index of the value at which it stops.
    fn stops_at(mut stopping: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().position(|v| stopping.check(*v).is_some())
    }

    #[test]
    fn patience_counts_checks_without_improvement() {
        let patience = |n| EarlyStopping::new("x").patience(n);
        assert_eq!(stops_at(patience(3), &[6., 5., 5., 5., 5., 5.]), Some(4));
        assert_eq!(stops_at(patience(1), &[6., 5., 4., 4., 3., 3.]), Some(3));
        assert_eq!(stops_at(patience(3), &[6., 5., 6., 5., 5., 5.]), Some(4));
        assert_eq!(stops_at(patience(3), &[6., 5., 4., 3.]), None);
    }

    #[test]
    fn a_change_of_min_delta_is_no_improvement() {
        let stopping = EarlyStopping::new("x").patience(1).min_delta(0.1);
        assert_eq!(stops_at(stopping.clone(), &[1.0, 0.9]), Some(1));
        assert_eq!(stops_at(stopping, &[1.0, 0.89]), None);
    }

    #[test]
    fn not_finite_stops_at_once() {
        let stopping = EarlyStopping::new("x");
        assert_eq!(stops_at(stopping.clone(), &[4., 3., f64::NAN]), Some(2));
        assert_eq!(stops_at(stopping.clone(), &[4., f64::INFINITY]), Some(1));
        let mut tolerant = stopping.check_finite(false).patience(2);
        assert_eq!(tolerant.check(f64::NAN), None);
        assert_eq!(tolerant.check(3.0), None);
        assert_eq!(tolerant.state.best, Some(3.0));
        let mut stopping = EarlyStopping::new("val/loss");
        assert_eq!(stopping.check(f64::NAN).unwrap(), "val/loss is NaN");
    }

    #[test]
    fn thresholds() {
        let values = [9., 8., 7., 6., 5., 6., 4., 3., 2., 1.];
        let stopping = EarlyStopping::new("x").stopping_threshold(2.9);
        assert_eq!(stops_at(stopping, &values), Some(8));
        let stopping = EarlyStopping::new("x").divergence_threshold(15.9);
        assert_eq!(stops_at(stopping, &[9., 4., 2., 16.]), Some(3));
    }

    #[test]
    fn warmup_checks_are_never_bad() {
        let stopping = EarlyStopping::new("x").patience(2).warmup(3);
        assert_eq!(stops_at(stopping, &[1., 2., 3., 4., 5.]), Some(4));
    }

    #[test]
    fn the_count_goes_on_after_a_reload() {
        let mut first = EarlyStopping::new("x").patience(3);
        assert_eq!(stops_at(first.clone(), &[1., 2., 2.]), None);
        for value in [1., 2., 2.] {
            assert_eq!(first.check(value), None);
        }
        let mut second = EarlyStopping::new("x").patience(3);
        second.state = State::deserialize(&serde_json::json!(first.state)).unwrap();
        assert!(second.check(2.).is_some());
    }
}
