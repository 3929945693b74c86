use super::{Schedule, between, check_factor, check_length, share};
use crate::error::Result;

/// From `base * start_factor` up to `base` in `steps` updates, then `base`: PyTorch's `LinearLR`
/// with `end_factor = 1`.
///
/// ```
/// use firebox::optim::schedule::{LinearWarmup, Schedule};
///
/// let mut warmup = LinearWarmup::new(4, 0.5);
/// assert_eq!([0, 1, 4, 9].map(|t| warmup.lr(1.0, t)), [0.5, 0.625, 1.0, 1.0]);
/// ```
#[derive(Debug, Clone)]
pub struct LinearWarmup {
    steps: u64,
    start_factor: f64,
}

impl LinearWarmup {
    /// A warm-up; update number `steps` is the first to take the full learning rate. With a
    /// `start_factor` of 0 the first update changes nothing.
    pub fn new(steps: u64, start_factor: f64) -> Self {
        Self {
            steps,
            start_factor,
        }
    }
}

impl Schedule for LinearWarmup {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        base * between(self.start_factor, 1.0, share(t, self.steps))
    }

    fn check(&self) -> Result<()> {
        check_length("linear warm-up", "steps", self.steps)?;
        check_factor("linear warm-up", "start_factor", self.start_factor)
    }
}

/// From `base * start_factor` to `base * end_factor` in `steps` updates, then that: PyTorch's
/// `LinearLR`.
///
/// ```
/// use firebox::optim::schedule::{Linear, Schedule};
///
/// let mut linear = Linear::new(1.0, 0.0, 8);
/// assert_eq!([0, 1, 7, 8, 99].map(|t| linear.lr(2.0, t)), [2.0, 1.75, 0.25, 0.0, 0.0]);
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    start_factor: f64,
    end_factor: f64,
    steps: u64,
}

impl Linear {
    /// A straight line; update number `steps` is the first to take the end's learning rate.
    pub fn new(start_factor: f64, end_factor: f64, steps: u64) -> Self {
        Self {
            start_factor,
            end_factor,
            steps,
        }
    }
}

impl Schedule for Linear {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        base * between(self.start_factor, self.end_factor, share(t, self.steps))
    }

    fn check(&self) -> Result<()> {
        check_length("linear", "steps", self.steps)?;
        check_factor("linear", "start_factor", self.start_factor)?;
        check_factor("linear", "end_factor", self.end_factor)
    }
}
