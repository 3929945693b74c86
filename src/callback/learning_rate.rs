//! Logs learning rates.

use super::{Callback, RunContext};
use crate::error::Result;
use crate::module::TrainModule;

/// Logs the learning rate that each step used: `lr`, or `lr/<group>` with parameter groups.
#[derive(Debug, Clone, Copy, Default)]
pub struct LearningRateMonitor;

impl LearningRateMonitor {
    /// Logs with every step that is logged.
    pub fn new() -> Self {
        Self
    }
}

impl<M: TrainModule> Callback<M> for LearningRateMonitor {
    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if !cx.logs_now() {
            return Ok(());
        }
        let rates: Vec<_> = cx
            .learning_rates()
            .map(|(name, lr)| (name.to_owned(), lr))
            .collect();
        match rates.as_slice() {
            [(_, lr)] => cx.log("lr", *lr),
            many => {
                for (name, lr) in many {
                    cx.log(format!("lr/{name}"), *lr);
                }
            }
        }
        Ok(())
    }
}
