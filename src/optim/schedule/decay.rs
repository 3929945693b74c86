//! Decay by factors and powers.

use super::{Schedule, check_factor, check_length, check_positive, share, wrong};
use crate::error::Result;

/// `base * gamma^(t / every)`, rounded down: times `gamma` every so many updates, PyTorch's
/// `StepLR`.
///
/// ```
/// use firebox::optim::schedule::{Schedule, Step};
///
/// let mut step = Step::new(2, 0.5);
/// assert_eq!([0, 1, 2, 3, 4].map(|t| step.lr(1.0, t)), [1.0, 1.0, 0.5, 0.5, 0.25]);
/// ```
#[derive(Debug, Clone)]
pub struct Step {
    every: u64,
    gamma: f64,
}

impl Step {
    /// Multiplies by `gamma` every `every` updates.
    pub fn new(every: u64, gamma: f64) -> Self {
        Self { every, gamma }
    }
}

impl Schedule for Step {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        let times = t.checked_div(self.every).unwrap_or(0);
        base * power(self.gamma, times)
    }

    fn check(&self) -> Result<()> {
        check_length("step", "every", self.every)?;
        check_positive("step", "gamma", self.gamma)
    }
}

/// Times `gamma` at each milestone: PyTorch's `MultiStepLR`.
///
/// ```
/// use firebox::optim::schedule::{MultiStep, Schedule};
///
/// let mut multi_step = MultiStep::new([2, 5], 0.5);
/// assert_eq!([0, 1, 2, 4, 5].map(|t| multi_step.lr(1.0, t)), [1.0, 1.0, 0.5, 0.5, 0.25]);
/// ```
#[derive(Debug, Clone)]
pub struct MultiStep {
    milestones: Vec<u64>,
    gamma: f64,
}

impl MultiStep {
    /// Multiplies by `gamma` from each of these updates on, given in increasing order.
    pub fn new(milestones: impl Into<Vec<u64>>, gamma: f64) -> Self {
        Self {
            milestones: milestones.into(),
            gamma,
        }
    }
}

impl Schedule for MultiStep {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        let reached = self.milestones.iter().filter(|m| **m <= t).count();
        base * power(self.gamma, reached as u64)
    }

    fn check(&self) -> Result<()> {
        if !self.milestones.is_sorted_by(|a, b| a < b) {
            let works = "increasing numbers";
            return Err(wrong("multi-step", "milestones", &self.milestones, works));
        }
        check_positive("multi-step", "gamma", self.gamma)
    }
}

/// `base * gamma^t`: PyTorch's `ExponentialLR`.
///
/// ```
/// use firebox::optim::schedule::{Exponential, Schedule};
///
/// assert_eq!(Exponential::new(0.5).lr(1.0, 3), 0.125);
/// ```
#[derive(Debug, Clone)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// Multiplies by `gamma` with every update.
    pub fn new(gamma: f64) -> Self {
        Self { gamma }
    }
}

impl Schedule for Exponential {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        base * power(self.gamma, t)
    }

    fn check(&self) -> Result<()> {
        check_positive("exponential", "gamma", self.gamma)
    }
}

/// `base * (end + (1 - end) * (1 - t / total)^power)`, then `base * end`: PyTorch's `PolynomialLR`,
/// which ends at 0, with an end factor as in TensorFlow's `PolynomialDecay`.
///
/// ```
/// use firebox::optim::schedule::{Polynomial, Schedule};
///
/// let mut polynomial = Polynomial::new(4, 2.0, 0.0);
/// assert_eq!([0, 2, 4, 9].map(|t| polynomial.lr(1.0, t)), [1.0, 0.25, 0.0, 0.0]);
/// ```
#[derive(Debug, Clone)]
pub struct Polynomial {
    total: u64,
    power: f64,
    end_factor: f64,
}

impl Polynomial {
    /// A decay to `base * end_factor`; update number `total` is the first to take that.
    pub fn new(total: u64, power: f64, end_factor: f64) -> Self {
        Self {
            total,
            power,
            end_factor,
        }
    }
}

impl Schedule for Polynomial {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        let left = (1.0 - share(t, self.total)).powf(self.power);
        base * (self.end_factor + (1.0 - self.end_factor) * left)
    }

    fn check(&self) -> Result<()> {
        check_length("polynomial", "total", self.total)?;
        check_positive("polynomial", "power", self.power)?;
        check_factor("polynomial", "end_factor", self.end_factor)
    }
}

fn power(gamma: f64, times: u64) -> f64 {
    gamma.powf(times as f64)
}
