use super::Schedule;

/// `base` times whatever a closure says of `t`: PyTorch's `LambdaLR`.
///
/// ```
/// use firebox::optim::schedule::{Lambda, Schedule};
///
/// let mut every_other = Lambda::new(|t| if t % 2 == 0 { 1.0 } else { 0.5 });
/// assert_eq!(every_other.lr(0.1, 3), 0.05);
/// ```
#[derive(Debug, Clone)]
pub struct Lambda<F>(F);

impl<F: Fn(u64) -> f64 + Send + 'static> Lambda<F> {
    /// A schedule from the factor of update `t`, which must depend on `t` alone.
    pub fn new(factor: F) -> Self {
        Self(factor)
    }
}

impl<F: Fn(u64) -> f64 + Send + 'static> Schedule for Lambda<F> {
    fn lr(&mut self, base: f64, t: u64) -> f64 {
        base * (self.0)(t)
    }
}
