use serde_json::{Value, json};

use super::{Schedule, check_factor, other_state, wrong};
use crate::error::Result;
use crate::metric::Mode;

/// Times `factor` when the watched metric has not improved for more than `patience` values: the
/// rule of PyTorch's `ReduceLROnPlateau`, with its defaults.
///
/// NaN is no improvement. Use it with [`ScheduleInterval::Metric`](super::ScheduleInterval).
///
/// ```
/// use firebox::metric::Mode;
/// use firebox::optim::schedule::{ReduceOnPlateau, Schedule};
///
/// let mut plateau = ReduceOnPlateau::new(Mode::Min).factor(0.5).patience(1);
/// for (t, loss) in [3.0, 2.0, 2.0, 2.0].into_iter().enumerate() {
///     assert_eq!(plateau.lr(0.1, t as u64), 0.1);
///     plateau.observe(loss);
/// }
/// assert_eq!(plateau.lr(0.1, 4), 0.05);
/// ```
#[derive(Debug, Clone)]
pub struct ReduceOnPlateau {
    mode: Mode,
    factor: f64,
    patience: u64,
    threshold: Threshold,
    cooldown: u64,
    min_lr: f64,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum Threshold {
    Relative(f64),
    Absolute(f64),
}

#[derive(Debug, Clone, Default)]
struct State {
    best: Option<f64>,
    bad: u64,
    cooling: u64,
    reductions: u64,
}

/// A reduction by no more than this is not made; PyTorch's `eps`.
const EPSILON: f64 = 1e-8;

impl ReduceOnPlateau {
    /// Factor 0.1, patience 10, relative threshold 1e-4, no cool-down, no minimum.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Relative(1e-4),
            cooldown: 0,
            min_lr: 0.0,
            state: State::default(),
        }
    }

    /// What the learning rate is multiplied by, between 0 and 1.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// How many values in a row may bring no improvement before the learning rate is reduced.
    #[must_use]
    pub fn patience(mut self, patience: u64) -> Self {
        self.patience = patience;
        self
    }

    /// A value is better only if it is below `best * (1 - threshold)`, or above
    /// `best * (1 + threshold)`. For metrics that can be negative use
    /// [`ReduceOnPlateau::absolute_threshold`].
    #[must_use]
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = Threshold::Relative(threshold);
        self
    }

    /// A value is better only if it is below `best - threshold`, or above `best + threshold`.
    #[must_use]
    pub fn absolute_threshold(mut self, threshold: f64) -> Self {
        self.threshold = Threshold::Absolute(threshold);
        self
    }

    /// How many values after a reduction do not count against the patience.
    #[must_use]
    pub fn cooldown(mut self, cooldown: u64) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// The learning rate is not reduced below this, an absolute value.
    #[must_use]
    pub fn min_lr(mut self, min_lr: f64) -> Self {
        self.min_lr = min_lr;
        self
    }

    fn is_better(&self, value: f64) -> bool {
        let best = match (self.state.best, self.mode) {
            (Some(best), _) => best,
            (None, Mode::Min) => f64::INFINITY,
            (None, Mode::Max) => f64::NEG_INFINITY,
        };
        // Every comparison with NaN is false, so NaN is never better.
        match (self.mode, self.threshold) {
            (Mode::Min, Threshold::Relative(by)) => value < best * (1.0 - by),
            (Mode::Max, Threshold::Relative(by)) => value > best * (1.0 + by),
            (Mode::Min, Threshold::Absolute(by)) => value < best - by,
            (Mode::Max, Threshold::Absolute(by)) => value > best + by,
        }
    }
}

impl Schedule for ReduceOnPlateau {
    fn lr(&mut self, base: f64, _t: u64) -> f64 {
        let mut lr = base;
        for _ in 0..self.state.reductions {
            let reduced = (lr * self.factor).max(self.min_lr);
            if lr - reduced <= EPSILON {
                break;
            }
            lr = reduced;
        }
        lr
    }

    fn observe(&mut self, value: f64) {
        let better = self.is_better(value);
        let state = &mut self.state;
        if better {
            state.best = Some(value);
            state.bad = 0;
        } else {
            state.bad += 1;
        }
        if state.cooling > 0 {
            state.cooling -= 1;
            state.bad = 0;
        }
        if state.bad > self.patience {
            state.reductions += 1;
            state.cooling = self.cooldown;
            state.bad = 0;
        }
    }

    fn save_state(&self) -> Value {
        let state = &self.state;
        // As text, which keeps every bit and has infinities.
        let best = state.best.map(|best| best.to_string());
        json!({
            "best": best,
            "bad": state.bad,
            "cooling": state.cooling,
            "reductions": state.reductions,
        })
    }

    fn load_state(&mut self, value: &Value) -> Result<()> {
        self.state = State::read(value).ok_or_else(|| other_state("a plateau schedule", value))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if !(self.factor > 0.0 && self.factor < 1.0) {
            let works = "a number between 0 and 1";
            return Err(wrong("plateau", "factor", self.factor, works));
        }
        let (Threshold::Relative(threshold) | Threshold::Absolute(threshold)) = self.threshold;
        check_factor("plateau", "threshold", threshold)?;
        check_factor("plateau", "min_lr", self.min_lr)
    }
}

impl State {
    fn read(value: &Value) -> Option<Self> {
        let number = |name| value.get(name).and_then(Value::as_u64);
        Some(Self {
            best: match value.get("best")? {
                Value::Null => None,
                best => Some(best.as_str()?.parse().ok()?),
            },
            bad: number("bad")?,
            cooling: number("cooling")?,
            reductions: number("reductions")?,
        })
    }
}
