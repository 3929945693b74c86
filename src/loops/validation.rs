//! When validation is due.

use crate::config::{TrainerConfig, ValCheckInterval};
use crate::error::Result;
use std::time::Duration;

/// Decides after which training batches validation runs.
#[derive(Debug, Clone)]
pub(super) struct ValidationSchedule {
    interval: ValCheckInterval,
    every_n_epochs: u64,
}

/// A training batch that has just ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    /// The epoch's index.
    pub(super) epoch: u64,
    /// Batches finished in this epoch, and in all.
    pub(super) batch: u64,
    pub(super) total_batches: u64,
    pub(super) is_last: bool,
    /// Batches in this epoch, if known.
    pub(super) epoch_batches: Option<u64>,
    /// Time since the last validation, or since the run began.
    pub(super) since_validation: Duration,
}

impl ValidationSchedule {
    pub(super) fn new(config: &TrainerConfig) -> Self {
        Self {
            interval: config.val_check_interval,
            every_n_epochs: config.check_val_every_n_epoch,
        }
    }

    /// Whether the answer depends on when one asks.
    pub(super) fn looks_at_the_time(&self) -> bool {
        matches!(self.interval, ValCheckInterval::Time(_))
    }

    pub(super) fn due(&self, at: Finished) -> Result<bool> {
        let epoch_due = (at.epoch + 1).is_multiple_of(self.every_n_epochs.max(1));
        Ok(match self.interval {
            // Batches count across epochs, so an interval may be longer than an epoch.
            ValCheckInterval::Batches(n) => at.total_batches.is_multiple_of(n.max(1)),
            ValCheckInterval::Fraction(f) if f >= 1.0 => epoch_due && at.is_last,
            ValCheckInterval::Fraction(_) => {
                let every = self.interval.batches(at.epoch_batches)?;
                epoch_due && every.is_some_and(|n| at.batch.is_multiple_of(n.max(1)))
            }
            ValCheckInterval::Time(interval) => {
                epoch_due && at.since_validation >= interval.as_duration()
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The batches (counted from 1 over all epochs) after which validation runs.
    fn due(config: &TrainerConfig, per_epoch: u64, epochs: u64, sized: bool) -> Vec<u64> {
        let schedule = ValidationSchedule::new(config);
        let batches = (0..epochs).flat_map(|e| (1..=per_epoch).map(move |b| (e, b)));
        let finished = batches.map(|(epoch, batch)| Finished {
            epoch,
            batch,
            total_batches: epoch * per_epoch + batch,
            is_last: batch == per_epoch,
            epoch_batches: sized.then_some(per_epoch),
            since_validation: Duration::from_secs(epoch * per_epoch + batch),
        });
        let due = finished.filter(|at| schedule.due(*at).unwrap());
        due.map(|at| at.total_batches).collect()
    }

    fn every(interval: ValCheckInterval) -> TrainerConfig {
        TrainerConfig::new().with_val_check_interval(interval)
    }

    #[test]
    fn batches_count_across_epochs() {
        let config = every(ValCheckInterval::Batches(3));
        assert_eq!(due(&config, 4, 3, true), [3, 6, 9, 12]);
        assert_eq!(due(&config, 4, 3, false), [3, 6, 9, 12]);
        assert_eq!(
            due(&every(ValCheckInterval::Batches(1)), 2, 2, true),
            [1, 2, 3, 4]
        );
    }

    #[test]
    fn fractions_are_of_an_epoch() {
        let third = every(ValCheckInterval::Fraction(1.0 / 3.0));
        assert_eq!(due(&third, 64, 1, true), [21, 42, 63]);
        // Never less than one batch.
        assert_eq!(
            due(&every(ValCheckInterval::Fraction(0.3)), 1, 3, true),
            [1, 2, 3]
        );
        let whole = every(ValCheckInterval::Fraction(1.0));
        assert_eq!(due(&whole, 4, 3, false), [4, 8, 12]);
    }

    #[test]
    fn a_time_is_since_the_last_validation() {
        let config = every(ValCheckInterval::Time(Duration::from_secs(5).into()));
        // The times here are the batches' numbers.
        assert_eq!(due(&config, 4, 2, true), [5, 6, 7, 8]);
    }

    #[test]
    fn every_second_epoch() {
        let config = every(ValCheckInterval::Fraction(0.5)).with_check_val_every_n_epoch(2);
        assert_eq!(due(&config, 4, 4, true), [6, 8, 14, 16]);
    }
}
