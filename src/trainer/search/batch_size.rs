//! The search for the batch size.

use super::Trials;
use super::out_of_memory::is_out_of_memory;
use crate::config::Limit;
use crate::data::{DataModule, TrainLoader};
use crate::error::{Error, ErrorKind, Result};
use crate::loops::trial::train_steps;
use crate::module::TrainModule;
use crate::panics;
use crate::trainer::Trainer;
use burn::tensor::backend::Backend;
use std::ops::ControlFlow;

/// Which batch sizes [`Trainer::find_batch_size`] tries.
///
/// ```
/// use firebox::trainer::{BatchSizeMode, BatchSizeSearch};
///
/// let search = BatchSizeSearch::new()
///     .with_start(16)
///     .with_mode(BatchSizeMode::BinarySearch);
/// assert_eq!((search.max_trials, search.most), (25, 8192));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BatchSizeSearch {
    /// The first batch size to try. Default: 2.
    pub start: usize,
    /// The optimizer steps of a trial: memory may run out after the first one. Default: 3.
    pub steps_per_trial: usize,
    /// How many batch sizes are tried at most. Default: 25.
    pub max_trials: usize,
    /// The largest batch size to try. Default: 8192.
    pub most: usize,
    /// How it goes on when one does not fit. Default: it takes the last that did.
    pub mode: BatchSizeMode,
    /// The fraction by which a binary search stays below what it found, as steps differ in what they
    /// need. Default: 0.05.
    pub margin: f64,
}

/// What a search for the batch size does when it has doubled until one did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchSizeMode {
    /// It takes the last that fitted.
    #[default]
    Power,
    /// It halves the distance between that and the one that did not fit, until they are neighbours,
    /// and then leaves a margin.
    BinarySearch,
}

impl Default for BatchSizeSearch {
    fn default() -> Self {
        Self {
            start: 2,
            steps_per_trial: 3,
            max_trials: 25,
            most: 8192,
            mode: BatchSizeMode::Power,
            margin: 0.05,
        }
    }
}

impl BatchSizeSearch {
    /// The defaults, which are Lightning's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`start`](Self::start).
    #[must_use]
    pub fn with_start(mut self, start: usize) -> Self {
        self.start = start;
        self
    }

    /// Sets [`steps_per_trial`](Self::steps_per_trial).
    #[must_use]
    pub fn with_steps_per_trial(mut self, steps: usize) -> Self {
        self.steps_per_trial = steps;
        self
    }

    /// Sets [`max_trials`](Self::max_trials).
    #[must_use]
    pub fn with_max_trials(mut self, trials: usize) -> Self {
        self.max_trials = trials;
        self
    }

    /// Sets [`most`](Self::most).
    #[must_use]
    pub fn with_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(mut self, mode: BatchSizeMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`margin`](Self::margin).
    #[must_use]
    pub fn with_margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    fn check(&self) -> Result<()> {
        let counts = [
            ("start", self.start),
            ("steps_per_trial", self.steps_per_trial),
            ("max_trials", self.max_trials),
            ("most", self.most),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::config(format!(
                "`{name}` of the batch size search is 0; use a whole number from 1"
            )));
        }
        if self.start > self.most {
            return Err(Error::config(format!(
                "`start` of the batch size search is {}, which is above `most`, {}; use at most that",
                self.start, self.most
            )));
        }
        if !(0.0..1.0).contains(&self.margin) {
            return Err(Error::config(format!(
                "`margin` of the batch size search is {}; use a number from 0.0 and below 1.0",
                self.margin
            )));
        }
        Ok(())
    }

    /// The batch size to take, of data with so many samples; `trial` says whether one fits.
    fn find(
        &self,
        samples: Option<usize>,
        mut trial: impl FnMut(usize) -> Result<()>,
    ) -> Result<usize> {
        let most = samples.map_or(self.most, |samples| self.most.min(samples));
        let mut size = self.start.min(most);
        let mut fitted = None;
        let mut failed: Option<(usize, Error)> = None;
        for _ in 0..self.max_trials {
            match trial(size) {
                Ok(()) => fitted = Some(size),
                Err(error) if is_out_of_memory(&error) => failed = Some((size, error)),
                Err(error) => return Err(error),
            }
            let next = match (fitted, &failed) {
                (None, _) => size / 2,
                (Some(low), None) => low.saturating_mul(2).min(most),
                (Some(low), Some((high, _))) => match self.mode {
                    BatchSizeMode::Power => low,
                    BatchSizeMode::BinarySearch => low + high.saturating_sub(low) / 2,
                },
            };
            if next == 0 || fitted == Some(next) {
                break;
            }
            size = next;
        }
        match (fitted, failed) {
            (Some(size), Some(_)) if self.mode == BatchSizeMode::BinarySearch => {
                // Rounded down: the margin is a minimum.
                Ok(((size as f64 * (1.0 - self.margin)) as usize).max(1))
            }
            (Some(size), _) => Ok(size),
            (None, Some((size, error))) => Err(self.nothing_fits(size, error)),
            (None, None) => Ok(size),
        }
    }

    fn nothing_fits(&self, smallest: usize, error: Error) -> Error {
        let message = match smallest {
            1 => "not even a batch size of 1 fits in memory; use a smaller model".to_owned(),
            _ => format!(
                "no batch size tried fits in memory, down to {smallest} after `max_trials` {}; use a \
                 smaller `start`",
                self.max_trials
            ),
        };
        Error::new(error.kind(), message).with_source(error)
    }
}

impl<M: TrainModule> Trainer<M> {
    /// The largest batch size with which training fits in the device's memory, for the loader of the
    /// next fit.
    ///
    /// It is doubled until memory runs out, and is never more than the data has samples; a stream does
    /// not say how many it has, so set [`most`](BatchSizeSearch::most). Every trial trains a copy of
    /// the model for a few steps, from the weights that a fit would start from: the model's, or those
    /// of the checkpoint that the config says to `resume` from. Everything is as before afterwards,
    /// and nothing is written. `limit_train_batches` does not count. With `fast_dev_run` the first
    /// batch size is tried, for as many steps as that says.
    ///
    /// It runs on the first device alone. As a loader's batch size is that of all devices together,
    /// n of them have room for n times as much.
    ///
    /// On a CPU, where the system ends the process before it refuses memory, nothing will run out:
    /// set `most` there, too.
    ///
    /// ```
    /// # use firebox::testing::{Line, Cpu, line_data};
    /// # use firebox::data::Loaders;
    /// # use firebox::prelude::*;
    /// use firebox::trainer::BatchSizeSearch;
    ///
    /// # fn main() -> Result<()> {
    /// # let device = Default::default();
    /// # let model = Line::<Cpu>::new(&device);
    /// let mut data = Loaders::new(line_data().shuffle(true));
    /// let mut trainer = Trainer::new(TrainerConfig::new(), device);
    /// let search = BatchSizeSearch::new().with_most(24);
    /// assert_eq!(trainer.find_batch_size(&model, &mut data, search)?, 24);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A wrong setting; a batch size of 1 that does not fit; several processes; or what a step or
    /// the data reports that is no lack of memory.
    pub fn find_batch_size(
        &mut self,
        model: &M,
        data: &mut impl DataModule<M>,
        search: BatchSizeSearch,
    ) -> Result<usize> {
        search.check()?;
        self.search(model, |world, trials| {
            let mut search = search;
            if let Some(steps) = trials.config.fast_dev_run.batches() {
                search.max_trials = 1;
                search.steps_per_trial = search.steps_per_trial.min(steps as usize);
            }
            let train = trials.loader(world, data)?;
            let device = trials.fabric.device();
            let found = search.find(train.num_samples(), |size| {
                let train = train.clone().batch_size(size);
                let tried = panics::catch(ErrorKind::User, || {
                    trials.try_steps(&train, search.steps_per_trial)
                });
                if tried.as_ref().is_err_and(is_out_of_memory) {
                    panics::catch(ErrorKind::Backend, || {
                        M::Backend::memory_cleanup(device);
                        Ok(())
                    })?;
                }
                tried
            });
            found.map_err(|e| e.context("finding the batch size"))
        })
    }
}

impl<M: TrainModule> Trials<'_, M> {
    /// Trains a copy for so many steps, and waits until the device is through with them.
    fn try_steps(&self, train: &TrainLoader<M>, steps: usize) -> Result<()> {
        let mut state = self.state()?;
        let mut run = self.run();
        let mut done = 0;
        train_steps(&mut run, &mut state, train, Limit::ALL, |_, _| {
            done += 1;
            match done >= steps {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        M::Backend::sync(self.fabric.device()).map_err(|e| {
            let error = Error::new(ErrorKind::Backend, "cannot wait for the device");
            error.with_source(format!("{e:?}"))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    /// What a search finds where so much fits, and what it tries.
    fn found(
        search: BatchSizeSearch,
        samples: Option<usize>,
        fits: usize,
    ) -> (Result<usize>, Vec<usize>) {
        let mut tried = Vec::new();
        let found = search.find(samples, |size| {
            tried.push(size);
            match size <= fits {
                true => Ok(()),
                false => Err(Error::user("CUDA_ERROR_OUT_OF_MEMORY")),
            }
        });
        (found, tried)
    }

    #[test]
    fn doubles_until_the_trials_are_over() {
        let search = BatchSizeSearch::new().with_max_trials(4);
        let (size, tried) = found(search, None, usize::MAX);
        assert_eq!((size.unwrap(), tried), (16, vec![2, 4, 8, 16]));
    }

    #[test]
    fn power_takes_the_last_that_fitted() {
        let (size, tried) = found(BatchSizeSearch::new(), Some(1000), 100);
        assert_eq!(size.unwrap(), 64);
        assert_eq!(tried, [2, 4, 8, 16, 32, 64, 128]);
        let (size, tried) = found(BatchSizeSearch::new().with_start(500), Some(1000), 100);
        assert_eq!((size.unwrap(), tried), (62, vec![500, 250, 125, 62]));
    }

    #[test]
    fn a_binary_search_leaves_a_margin() {
        let search = BatchSizeSearch::new().with_mode(BatchSizeMode::BinarySearch);
        let (size, tried) = found(search.with_start(500), Some(1000), 100);
        assert_eq!(size.unwrap(), 95);
        assert_eq!(tried, [500, 250, 125, 62, 93, 109, 101, 97, 99, 100]);
        let (size, _) = found(search.with_margin(0.0), Some(1000), 100);
        assert_eq!(size.unwrap(), 100);
        // Where nothing ran out, there is nothing to stay away from.
        let (size, _) = found(search, Some(1000), usize::MAX);
        assert_eq!(size.unwrap(), 1000);
        let (size, _) = found(search, Some(1000), 1);
        assert_eq!(size.unwrap(), 1);
    }

    #[test]
    fn never_more_than_there_is() {
        let (size, tried) = found(BatchSizeSearch::new(), Some(20), usize::MAX);
        assert_eq!((size.unwrap(), tried), (20, vec![2, 4, 8, 16, 20]));
        let (size, tried) = found(BatchSizeSearch::new().with_start(64), Some(20), usize::MAX);
        assert_eq!((size.unwrap(), tried), (20, vec![20]));
        let (size, _) = found(BatchSizeSearch::new(), None, usize::MAX);
        assert_eq!(size.unwrap(), 8192);
    }

    #[test]
    fn nothing_fits() {
        let (error, tried) = found(BatchSizeSearch::new().with_start(8), None, 0);
        assert_eq!(tried, [8, 4, 2, 1]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "not even a batch size of 1 fits in memory; use a smaller model: \
             CUDA_ERROR_OUT_OF_MEMORY"
        );
        let search = BatchSizeSearch::new().with_start(64).with_max_trials(2);
        let (error, tried) = found(search, None, 0);
        assert_eq!(tried, [64, 32]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "no batch size tried fits in memory, down to 32 after `max_trials` 2; use a smaller \
             `start`: CUDA_ERROR_OUT_OF_MEMORY"
        );
    }

    #[test]
    fn other_errors_end_the_search() {
        let mut trials = 0;
        let error = BatchSizeSearch::new().find(None, |size| {
            trials += 1;
            match size < 8 {
                true => Ok(()),
                false => Err(Error::data("a broken sample")),
            }
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert_eq!(error.to_string(), "a broken sample");
        assert_eq!(trials, 3);
    }

    #[test]
    fn wrong_settings_are_refused() {
        let search = BatchSizeSearch::new();
        for (search, message) in [
            (
                search.with_start(0),
                "`start` of the batch size search is 0; use a whole number from 1",
            ),
            (
                search.with_start(64).with_most(32),
                "`start` of the batch size search is 64, which is above `most`, 32; use at most that",
            ),
            (
                search.with_margin(1.0),
                "`margin` of the batch size search is 1; use a number from 0.0 and below 1.0",
            ),
        ] {
            let error = search.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert_eq!(error.to_string(), message);
        }
    }
}
