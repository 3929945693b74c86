//! Accumulation that changes with the epochs.

use super::{Callback, RunContext};
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::module::TrainModule;
use std::collections::BTreeMap;

/// Changes how many batches make an optimizer step, from given epochs on (counted from 0). Before the
/// first of them it is one batch.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::GradientAccumulationScheduler;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// // 8 batches to a step in the first four epochs, then 4.
/// trainer.with_callback(GradientAccumulationScheduler::new([(0, 8), (4, 4)]))
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GradientAccumulationScheduler {
    /// By the epoch they begin with.
    batches: BTreeMap<u64, u64>,
}

impl GradientAccumulationScheduler {
    /// `(epoch, batches to a step)` pairs.
    pub fn new(schedule: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self {
            batches: schedule.into_iter().collect(),
        }
    }

    fn at(&self, epoch: u64) -> u64 {
        let begun = self.batches.range(..=epoch).next_back();
        begun.map_or(1, |(_, batches)| *batches)
    }
}

impl<M: TrainModule> Callback<M> for GradientAccumulationScheduler {
    fn check_config(&self, config: &TrainerConfig) -> Result<()> {
        if config.accumulate_grad_batches != 1 {
            return Err(Error::config(format!(
                "`accumulate_grad_batches` is {} and this callback sets it; leave one of them out",
                config.accumulate_grad_batches
            )));
        }
        match self.batches.iter().find(|(_, batches)| **batches == 0) {
            Some((epoch, _)) => Err(Error::config(format!(
                "epoch {epoch} has 0 batches to a step; use a whole number from 1"
            ))),
            None => Ok(()),
        }
    }

    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        cx.set_accumulate_grad_batches(self.at(cx.progress().epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_its_epoch_on() {
        let schedule = GradientAccumulationScheduler::new([(4, 2), (1, 8)]);
        let batches = [0, 1, 3, 4, 9].map(|epoch| schedule.at(epoch));
        assert_eq!(batches, [1, 8, 8, 2, 2]);
    }
}
