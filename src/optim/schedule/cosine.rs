use super::{Schedule, between, check_factor, check_length, cosine, share, wrong};
use crate::error::Result;

/// From `base` down to a minimum along half a cosine, in `total` updates, then the minimum: "SGDR:
/// Stochastic Gradient Descent with Warm Restarts" (Loshchilov and Hutter, 2017), equation 5,
/// PyTorch's `CosineAnnealingLR`, but flat at its end: it never rises again.
///
/// ```
/// use firebox::optim::schedule::{Cosine, Schedule};
///
/// let mut cosine = Cosine::new(10).min_lr(0.1).warmup(2, 0.5);
/// let lrs = [0, 1, 2, 6, 10, 99].map(|t| cosine.lr(1.0, t));
/// assert_eq!(lrs, [0.5, 0.75, 1.0, 0.55, 0.1, 0.1]);
/// ```
#[derive(Debug, Clone)]
pub struct Cosine {
    total: u64,
    min_lr: f64,
    warmup: u64,
    start_factor: f64,
}

impl Cosine {
    /// A decay to 0; update number `total` is the first to take the minimum.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            min_lr: 0.0,
            warmup: 0,
            start_factor: 0.0,
        }
    }

    /// The learning rate at the end, an absolute value.
    #[must_use]
    pub fn min_lr(mut self, min_lr: f64) -> Self {
        self.min_lr = min_lr;
        self
    }

    /// Warms up, from `base * start_factor` to `base`, in the first `steps` of the `total` updates;
    /// the cosine takes the rest.
    #[must_use]
    pub fn warmup(mut self, steps: u64, start_factor: f64) -> Self {
        self.warmup = steps;
        self.start_factor = start_factor;
        self
    }
}

impl Schedule for Cosine {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        match t.checked_sub(self.warmup) {
            None => base * between(self.start_factor, 1.0, share(t, self.warmup)),
            Some(t) => {
                let length = self.total.saturating_sub(self.warmup);
                cosine(base, self.min_lr, share(t, length))
            }
        }
    }

    fn check(&self) -> Result<()> {
        check_length("cosine", "total", self.total)?;
        check_factor("cosine", "min_lr", self.min_lr)?;
        check_factor("cosine", "start_factor", self.start_factor)?;
        if self.warmup >= self.total {
            let works = format!("fewer than the {} updates in all", self.total);
            return Err(wrong("cosine", "warmup", self.warmup, &works));
        }
        Ok(())
    }
}
