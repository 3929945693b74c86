use serde_json::{Value, json};

use super::{Schedule, check_length, other_state};
use crate::error::{Error, Result};

/// One schedule after another, each with its own time from 0: PyTorch's `SequentialLR`.
///
/// ```
/// use firebox::optim::schedule::{Constant, Exponential, Schedule, Sequential};
///
/// let mut schedule = Sequential::new()
///     .then(Constant::new(), 2)
///     .then(Exponential::new(0.5), 3);
/// // The last one goes on after its end.
/// let lrs = [0, 1, 2, 3, 4, 5].map(|t| schedule.lr(1.0, t));
/// assert_eq!(lrs, [1.0, 1.0, 1.0, 0.5, 0.25, 0.125]);
/// ```
#[derive(Default)]
pub struct Sequential {
    phases: Vec<Phase>,
    /// The phase last asked for, which gets the watched metric's values.
    current: usize,
}

struct Phase {
    schedule: Box<dyn Schedule>,
    length: u64,
}

impl Sequential {
    /// No schedule yet: add at least one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a schedule for the next `length` updates; the last one added stays for good.
    #[must_use]
    pub fn then(mut self, schedule: impl Schedule, length: u64) -> Self {
        self.phases.push(Phase {
            schedule: Box::new(schedule),
            length,
        });
        self
    }
}

impl Schedule for Sequential {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        let last = self.phases.len().saturating_sub(1);
        let mut t = t;
        for (index, phase) in self.phases.iter_mut().enumerate() {
            if t < phase.length || index == last {
                self.current = index;
                return phase.schedule.lr(base, t);
            }
            t -= phase.length;
        }
        base
    }

    fn observe(&mut self, value: f64) {
        if let Some(phase) = self.phases.get_mut(self.current) {
            phase.schedule.observe(value);
        }
    }

    fn save_state(&self) -> Value {
        let phases = self.phases.iter().map(|p| p.schedule.save_state());
        json!({ "current": self.current, "phases": phases.collect::<Vec<_>>() })
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let number = self.phases.len();
        let other = || other_state(&format!("a sequence of {number} schedules"), state);
        let saved = state.get("phases").and_then(Value::as_array);
        let saved = saved.filter(|s| s.len() == number).ok_or_else(other)?;
        let current = state.get("current").and_then(Value::as_u64);
        let current = current.and_then(|c| usize::try_from(c).ok());
        self.current = current.ok_or_else(other)?;
        for (index, (phase, state)) in self.phases.iter_mut().zip(saved).enumerate() {
            let loaded = phase.schedule.load_state(state);
            loaded.map_err(|e| e.context(format!("schedule {index} of the sequence")))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.phases.is_empty() {
            return Err(Error::config(
                "a sequence of no schedules; add at least one with `then`",
            ));
        }
        for (index, phase) in self.phases.iter().enumerate() {
            let checked = check_length("sequential", "length", phase.length)
                .and_then(|()| phase.schedule.check());
            checked.map_err(|e| e.context(format!("schedule {index} of the sequence")))?;
        }
        Ok(())
    }
}
