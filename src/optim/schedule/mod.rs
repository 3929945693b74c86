//! Learning-rate schedules.
//!
//! A [`Schedule`] says which learning rate an update takes. Its time `t` counts optimizer steps or
//! epochs, as its [`ScheduleInterval`] says; it never counts micro-batches or devices, and a
//! skipped step does not advance it.
//!
//! ```
//! use firebox::optim::schedule::{Cosine, LinearWarmup, Schedule, Sequential};
//!
//! let mut warm_then_cosine = Sequential::new()
//!     .then(LinearWarmup::new(4, 0.0), 4)
//!     .then(Cosine::new(8), 8);
//! assert!(warm_then_cosine.check().is_ok());
//! let lr = |t| warm_then_cosine.lr(0.1, t);
//! let lrs: Vec<f64> = [0, 2, 4, 8, 12, 99].map(lr).to_vec();
//! assert_eq!(lrs, [0.0, 0.05, 0.1, 0.05, 0.0, 0.0]);
//! ```

mod burn_schedule;
mod constant;
mod cosine;
mod decay;
mod lambda;
mod linear;
mod one_cycle;
mod plateau;
mod sequential;
#[cfg(test)]
mod tests;

pub use burn_schedule::BurnSchedule;
pub use constant::Constant;
pub use cosine::Cosine;
pub use decay::{Exponential, MultiStep, Polynomial, Step};
pub use lambda::Lambda;
pub use linear::{Linear, LinearWarmup};
pub use one_cycle::OneCycle;
pub use plateau::ReduceOnPlateau;
pub use sequential::Sequential;

use serde_json::Value;

use crate::error::{Error, Result};

/// Which learning rate each update takes.
///
/// One method is needed. A schedule that is a function of `t` alone keeps no state, and resumes
/// from `t`.
///
/// ```
/// use firebox::optim::schedule::Schedule;
///
/// /// Warms up, then decays with the square root: "Attention Is All You Need", section 5.3.
/// struct InverseSqrt {
///     warmup: u64,
/// }
/// impl Schedule for InverseSqrt {
///     fn lr(&mut self, base: f64, t: u64) -> f64 {
///         let (t, warmup) = ((t + 1) as f64, self.warmup as f64);
///         base * (t / warmup).min((warmup / t).sqrt())
///     }
/// }
/// assert_eq!(InverseSqrt { warmup: 4 }.lr(0.1, 15), 0.05);
/// ```
pub trait Schedule: Send + 'static {
    /// The learning rate of update number `t`, counted from 0, given the optimizer's own (`base`).
    ///
    /// It may be asked again for the same `t`, and gives the same.
    fn lr(&mut self, base: f64, t: u64) -> f64;

    /// Takes a new value of the watched metric. Only schedules such as [`ReduceOnPlateau`] do
    /// something with it.
    fn observe(&mut self, value: f64) {
        let _ = value;
    }

    /// What has to be saved besides `t` to continue as if never stopped; `Null` if nothing.
    fn save_state(&self) -> Value {
        Value::Null
    }

    /// Takes back what [`Schedule::save_state`] gave.
    ///
    /// # Errors
    ///
    /// When the state is of another schedule.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        match state {
            Value::Null => Ok(()),
            _ => Err(other_state("a schedule without state", state)),
        }
    }

    /// Checks the parameters, before any work is done.
    ///
    /// # Errors
    ///
    /// Names the wrong parameter, its value and what works.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Schedule for Box<dyn Schedule> {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        self.as_mut().lr(base, t)
    }

    fn observe(&mut self, value: f64) {
        self.as_mut().observe(value);
    }

    fn save_state(&self) -> Value {
        self.as_ref().save_state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.as_mut().load_state(state)
    }

    fn check(&self) -> Result<()> {
        self.as_ref().check()
    }
}

/// When a schedule's time advances.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ScheduleInterval {
    /// With every optimizer step: `t` is the number of steps taken before.
    #[default]
    Step,
    /// With every epoch: `t` is the epoch, counted from 0.
    Epoch,
    /// With every new value of the metric logged under this name, which the schedule observes:
    /// `t` is the number of values before.
    Metric(String),
}

/// The error for a saved state that does not fit.
fn other_state(schedule: &str, state: &Value) -> Error {
    Error::config(format!(
        "the saved state `{state}` is not that of {schedule}; resume with the schedule that saved \
         it, or leave the schedule's state out"
    ))
}

/// The error for a wrong parameter.
fn wrong(schedule: &str, parameter: &str, value: impl std::fmt::Debug, works: &str) -> Error {
    Error::config(format!(
        "{schedule} schedule: `{parameter}` is {value:?}; use {works}"
    ))
}

fn check_length(schedule: &str, parameter: &str, length: u64) -> Result<()> {
    match length {
        0 => Err(wrong(schedule, parameter, length, "at least 1")),
        _ => Ok(()),
    }
}

fn check_factor(schedule: &str, parameter: &str, factor: f64) -> Result<()> {
    if factor.is_finite() && factor >= 0.0 {
        return Ok(());
    }
    let works = "a finite number from 0";
    Err(wrong(schedule, parameter, factor, works))
}

fn check_positive(schedule: &str, parameter: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    let works = "a finite number above 0";
    Err(wrong(schedule, parameter, value, works))
}

/// How far `t` is along `length`, from 0 to 1.
fn share(t: u64, length: u64) -> f64 {
    if t >= length {
        return 1.0;
    }
    t as f64 / length as f64
}

/// `from + (to - from) * share`, exactly `to` at the end.
fn between(from: f64, to: f64, share: f64) -> f64 {
    if share >= 1.0 {
        return to;
    }
    from + (to - from) * share
}

/// From `from` to `to` along half a cosine, exactly so at both ends.
fn cosine(from: f64, to: f64, share: f64) -> f64 {
    if share <= 0.0 {
        return from;
    }
    if share >= 1.0 {
        return to;
    }
    to + (from - to) / 2.0 * (1.0 + (std::f64::consts::PI * share).cos())
}
