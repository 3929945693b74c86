use super::{Schedule, check_length, check_positive, cosine, wrong};
use crate::error::Result;

/// Up to a large learning rate and down to a tiny one, both along half a cosine: PyTorch's
/// `OneCycleLR` (two phases, cosine), after "Super-Convergence" (Smith and Topin, 2018).
///
/// The learning rates are absolute: the optimizer's own plays no part. Momentum is not cycled.
///
/// ```
/// use firebox::optim::schedule::{OneCycle, Schedule};
///
/// let mut one_cycle = OneCycle::new(1.0, 11);
/// let lr = |t| (one_cycle.lr(0.5, t) * 1e6).round() / 1e6;
/// // From max / 25, to max, to max / 25 / 10,000, where it stays.
/// assert_eq!([0, 10, 99].map(lr), [0.04, 0.000004, 0.000004]);
/// ```
#[derive(Debug, Clone)]
pub struct OneCycle {
    max_lr: f64,
    total: u64,
    pct_start: f64,
    div_factor: f64,
    final_div_factor: f64,
}

impl OneCycle {
    /// One cycle of `total` updates. As in PyTorch, 30 % of it rise, from `max_lr / 25`, and the
    /// last update takes the start's learning rate divided by 10,000.
    pub fn new(max_lr: f64, total: u64) -> Self {
        Self {
            max_lr,
            total,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
        }
    }

    /// The share of the cycle that rises, 0 to 1.
    #[must_use]
    pub fn pct_start(mut self, pct_start: f64) -> Self {
        self.pct_start = pct_start;
        self
    }

    /// The start's learning rate is `max_lr / div_factor`.
    #[must_use]
    pub fn div_factor(mut self, div_factor: f64) -> Self {
        self.div_factor = div_factor;
        self
    }

    /// The last learning rate is the first divided by this.
    #[must_use]
    pub fn final_div_factor(mut self, final_div_factor: f64) -> Self {
        self.final_div_factor = final_div_factor;
        self
    }
}

impl Schedule for OneCycle {
    fn lr(&mut self, _base: f64, t: u64) -> f64 {
        let start = self.max_lr / self.div_factor;
        let end = start / self.final_div_factor;
        let last = self.total.saturating_sub(1);
        if t >= last {
            return end;
        }
        // PyTorch's bounds: the peak need not fall on a whole update.
        let (t, last) = (t as f64, last as f64);
        let peak = self.pct_start * self.total as f64 - 1.0;
        if t < peak {
            return cosine(start, self.max_lr, t / peak);
        }
        cosine(self.max_lr, end, (t - peak) / (last - peak))
    }

    fn check(&self) -> Result<()> {
        check_positive("one-cycle", "max_lr", self.max_lr)?;
        check_length("one-cycle", "total", self.total)?;
        check_positive("one-cycle", "div_factor", self.div_factor)?;
        check_positive("one-cycle", "final_div_factor", self.final_div_factor)?;
        if !(0.0..=1.0).contains(&self.pct_start) {
            let works = "a share from 0 to 1";
            return Err(wrong("one-cycle", "pct_start", self.pct_start, works));
        }
        Ok(())
    }
}
