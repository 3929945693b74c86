//! Values that cannot be, and settings that contradict each other.

use super::value::Setting;
use super::{
    Limit, ProgressMode, SETTINGS, Strategy, TrainerConfig, ValCheckInterval, WallTime,
    WeightAveraging,
};
use crate::error::{Error, Result};

/// What is wrong, and which settings it is about.
pub(super) struct Problem {
    pub keys: Vec<&'static str>,
    pub message: String,
}

impl TrainerConfig {
    /// Finds impossible values and contradictions.
    ///
    /// Settings from a file or the command line are checked when they are read, and a trainer
    /// checks again when it starts, because the program may have changed them since.
    ///
    /// ```
    /// use firebox::config::TrainerConfig;
    ///
    /// let error = TrainerConfig::new().with_min_epochs(5).with_max_epochs(3).check().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "`min_epochs` is 5, above `max_epochs`, which is 3; lower the one or raise the other",
    /// );
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with the settings, their values, and what
    /// would work.
    pub fn check(&self) -> Result<()> {
        self.problem()
            .map_or(Ok(()), |problem| Err(Error::config(problem.message)))
    }

    /// The first problem, if there is one.
    pub(super) fn problem(&self) -> Option<Problem> {
        self.impossible_value().or_else(|| self.contradiction())
    }

    fn impossible_value(&self) -> Option<Problem> {
        let zeros = [
            self.num_nodes == Some(0),
            self.check_replicas_every_n_steps == Some(0),
            self.check_val_every_n_epoch == 0,
            self.log_every_n_steps == 0,
            self.accumulate_grad_batches == 0,
            self.checkpoint_every_n_steps == Some(0),
        ];
        let is_zero = |setting: &Setting| {
            let counts = Setting::FROM_ONE.into_iter().zip(zeros);
            counts
                .into_iter()
                .any(|(key, zero)| zero && key == setting.key)
        };
        let wrong = SETTINGS
            .iter()
            .find(|setting| !(setting.is_possible)(self) || is_zero(setting))?;
        let key = wrong.key;
        let shown = match is_zero(wrong) {
            true => "0".to_owned(),
            false => (wrong.shown)(self),
        };
        Some(Problem {
            keys: vec![key],
            message: format!("`{key}` is {shown}; use {}", wrong.allowed()),
        })
    }

    fn contradiction(&self) -> Option<Problem> {
        let problem = |keys: &[&'static str], message| {
            let keys = keys.to_vec();
            Some(Problem { keys, message })
        };
        if let (Some(min), Some(max)) = (self.min_epochs, self.epoch_limit())
            && min > max
        {
            let max = match self.max_epochs {
                Some(max) => format!("{max}; lower the one or raise the other"),
                None => format!("{max} unless it is set; set it"),
            };
            return problem(
                &["min_epochs", "max_epochs"],
                format!("`min_epochs` is {min}, above `max_epochs`, which is {max}"),
            );
        }
        if let (Some(min), Some(max)) = (self.min_steps, self.max_steps)
            && min > max
        {
            return problem(
                &["min_steps", "max_steps"],
                format!(
                    "`min_steps` is {min}, above `max_steps`, which is {max}; lower the one or \
                     raise the other"
                ),
            );
        }
        let every = self.check_val_every_n_epoch;
        if let ValCheckInterval::Batches(batches) = self.val_check_interval
            && every != 1
        {
            return problem(
                &["val_check_interval", "check_val_every_n_epoch"],
                format!(
                    "`val_check_interval` is {batches} batches, which are counted across epochs, \
                     but `check_val_every_n_epoch` is {every}; leave one of them out"
                ),
            );
        }
        if let (Strategy::FedAvg { .. }, Some(_)) =
            (self.strategy, self.check_replicas_every_n_steps)
        {
            return problem(
                &["strategy", "check_replicas_every_n_steps"],
                format!(
                    "`strategy` is {}, where devices differ between two averages, and \
                     `check_replicas_every_n_steps` compares them; leave one of them out",
                    self.strategy
                ),
            );
        }
        match (self.weight_averaging, self.strategy, self.epoch_limit()) {
            (Some(averaging), Strategy::FedAvg { .. }, _) => {
                return problem(
                    &["weight_averaging", "strategy"],
                    format!(
                        "`weight_averaging` is {averaging} and `strategy` is {}, where devices differ \
                         between two averages; leave one of them out",
                        self.strategy
                    ),
                );
            }
            (Some(averaging @ WeightAveraging::Swa { .. }), _, None) => {
                return problem(
                    &["weight_averaging", "max_epochs"],
                    format!(
                        "`weight_averaging` is {averaging}, which begins after a share of \
                         `max_epochs`, and that is not set; set it, or use ema"
                    ),
                );
            }
            _ => {}
        }
        if self.dashboard && self.progress == ProgressMode::Off {
            return problem(
                &["dashboard", "progress"],
                "`dashboard` is true and `progress` is off; leave one of them out".to_owned(),
            );
        }
        if self.collective_timeout == WallTime::ZERO {
            return problem(
                &["collective_timeout"],
                "`collective_timeout` is 0s; use a time above 0 (`30m`)".to_owned(),
            );
        }
        if self.overfit_batches.is_none() {
            return None;
        }
        let overfit = self.overfit_batches;
        if let Some(batches) = self.fast_dev_run.batches() {
            return problem(
                &["fast_dev_run", "overfit_batches"],
                format!(
                    "`fast_dev_run` is {batches} and `overfit_batches` is {overfit}, and both say \
                     how many batches to run; leave one of them out"
                ),
            );
        }
        if self.limit_train_batches != Limit::ALL {
            return problem(
                &["overfit_batches", "limit_train_batches"],
                format!(
                    "`overfit_batches` is {overfit} and `limit_train_batches` is {}, and both say \
                     how many batches to train on; leave one of them out",
                    self.limit_train_batches
                ),
            );
        }
        None
    }
}
