use super::Schedule;

/// The optimizer's own learning rate, always.
///
/// ```
/// use firebox::optim::schedule::{Constant, Schedule};
///
/// assert_eq!(Constant::new().lr(0.1, 1_000), 0.1);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Constant;

impl Constant {
    /// The schedule.
    pub fn new() -> Self {
        Self
    }
}

impl Schedule for Constant {
    fn lr(&mut self, base: f64, _t: u64) -> f64 {
        base
    }
}
