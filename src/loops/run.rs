//! What a loop carries along, and the one place that acts on what callbacks ask for.

use crate::callback::{BatchInfo, Callback, Requests, RunContext, RunView};
use crate::checkpoint;
use crate::config::TrainerConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, TrainState};
use crate::logger::{Logger, Row};
use crate::metric::Metrics;
use crate::module::TrainModule;
use crate::optim::{OptimizerSet, StepOutcome};
use crate::panics;
use crate::progress::{Progress, Stage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A run: its parts, how far it is, and what has been logged.
pub(crate) struct Run<'t, M: TrainModule> {
    pub(crate) config: &'t TrainerConfig,
    pub(crate) fabric: &'t Fabric<M::Backend>,
    pub(crate) callbacks: &'t mut [Box<dyn Callback<M>>],
    pub(crate) loggers: &'t mut [Box<dyn Logger>],
    pub(crate) run_dir: Option<&'t Path>,
    pub(crate) progress: Progress,
    /// The latest value of every name.
    pub(crate) metrics: Metrics,
    /// The values of what has just ended.
    pub(crate) results: Metrics,
    pub(crate) batch: BatchInfo,
    pub(crate) outcome: Option<StepOutcome>,
    pub(crate) logs_now: bool,
    pub(crate) validates: bool,
    pub(crate) validated: bool,
    pub(crate) requests: Requests,
    /// The checkpoints of this run that are there, each with how many requests it serves.
    saved: HashMap<PathBuf, usize>,
}

impl<'t, M: TrainModule> Run<'t, M> {
    pub(crate) fn new(
        config: &'t TrainerConfig,
        fabric: &'t Fabric<M::Backend>,
        callbacks: &'t mut [Box<dyn Callback<M>>],
        loggers: &'t mut [Box<dyn Logger>],
    ) -> Self {
        Self {
            config,
            fabric,
            callbacks,
            loggers,
            run_dir: None,
            progress: Progress::default(),
            metrics: Metrics::default(),
            results: Metrics::default(),
            batch: BatchInfo::default(),
            outcome: None,
            logs_now: false,
            validates: false,
            validated: false,
            requests: Requests::default(),
            saved: HashMap::new(),
        }
    }

    /// Runs `body`, and leaves by one way out whatever happens: loggers are finished, and if it
    /// failed, callbacks are told.
    pub(crate) fn run_to_end<T>(
        &mut self,
        settings: &TrainerConfig,
        state: &mut TrainState<M>,
        body: impl FnOnce(&mut Self, &mut TrainState<M>) -> Result<T>,
    ) -> Result<T> {
        let started = self
            .loggers
            .iter_mut()
            .try_for_each(|l| l.log_config(settings));
        let done = started.and_then(|()| panics::catch(ErrorKind::User, || body(self, state)));
        // What fails on the way out must not keep the callbacks behind it from saving what there
        // is, nor hide the first error.
        let mut later = Vec::new();
        if let Err(error) = &done
            && state.present().is_ok()
        {
            let told = self.train_hook(state, |c, cx| {
                later.extend(panics::catch(ErrorKind::User, || c.on_exception(cx, error)).err());
                Ok(())
            });
            later.extend(told.err());
        }
        later.extend(self.loggers.iter_mut().filter_map(|l| l.finish().err()));
        match done {
            Err(error) => Err(error.followed_by(later)),
            Ok(done) => match later.into_iter().next() {
                None => Ok(done),
                Some(error) => Err(error),
            },
        }
    }

    /// Runs a hook of every callback, in the order they were given.
    pub(crate) fn hook(
        &mut self,
        stage: Stage,
        model: &M,
        optimizers: Option<&OptimizerSet<M>>,
        mut hook: impl FnMut(&mut dyn Callback<M>, &mut RunContext<'_, M>) -> Result<()>,
    ) -> Result<()> {
        let Progress { epoch, batch, .. } = self.progress;
        for (index, callback) in self.callbacks.iter_mut().enumerate() {
            let mut context = RunContext {
                stage,
                model,
                optimizers,
                view: RunView {
                    config: self.config,
                    run_dir: self.run_dir,
                    progress: &self.progress,
                    metrics: &self.metrics,
                    results: &self.results,
                    batch: self.batch,
                    outcome: self.outcome,
                    logs_now: self.logs_now,
                    validates: self.validates,
                    validated: self.validated,
                    last_epoch: self.config.epoch_limit(),
                },
                requests: &mut self.requests,
                callback: index,
            };
            let caught = panics::catch(ErrorKind::User, || hook(callback.as_mut(), &mut context));
            caught.map_err(|e| {
                let place = format!("callback `{}`", callback.name());
                match stage {
                    Stage::Train => e.context(format!("epoch {epoch}, batch {batch}: {place}")),
                    _ => e.context(place),
                }
            })?;
        }
        Ok(())
    }

    /// A hook of training, then what the callbacks asked for in it.
    pub(crate) fn train_hook(
        &mut self,
        state: &TrainState<M>,
        hook: impl FnMut(&mut dyn Callback<M>, &mut RunContext<'_, M>) -> Result<()>,
    ) -> Result<()> {
        self.hook(Stage::Train, state.model(), Some(&state.optimizers), hook)?;
        self.serve(state)
    }

    /// Takes the values of what has just ended.
    pub(crate) fn set_results(&mut self, results: Metrics) {
        self.metrics
            .extend(results.iter().map(|(n, v)| (n.to_owned(), v)));
        self.results = results;
    }

    /// Gives the results, and what callbacks have logged with them, to the loggers as one row.
    pub(crate) fn log_results(&mut self) -> Result<()> {
        let logged = std::mem::take(&mut self.requests.logged);
        self.metrics.extend(logged.iter().cloned());
        let mut values = self.results.clone();
        values.extend(logged);
        if values.is_empty() {
            return Ok(());
        }
        let row = Row {
            step: self.progress.global_step,
            epoch: self.progress.epoch,
            values: &values,
        };
        self.loggers.iter_mut().try_for_each(|l| l.log(&row))
    }

    /// Acts on requests: saves first, removals only after all saves have succeeded.
    ///
    /// Several callbacks may ask for the same checkpoint; it is written once, and stays until each
    /// of them has asked for its removal.
    pub(crate) fn serve(&mut self, state: &TrainState<M>) -> Result<()> {
        // Both are taken now: if a save fails, its removals are never made up for.
        let saves = std::mem::take(&mut self.requests.saves);
        let removes = std::mem::take(&mut self.requests.removes);
        for path in saves {
            if let Some(requests) = self.saved.get_mut(&path) {
                *requests += 1;
                continue;
            }
            let callbacks = self.callbacks.iter().map(|c| c.save_state()).collect();
            checkpoint::save(&path, state, &self.progress, callbacks)
                .map_err(|e| e.context("saving a checkpoint"))?;
            self.saved.insert(path, 1);
        }
        for path in removes {
            // Only what this run has written is ever removed.
            let Some(requests) = self.saved.get_mut(&path) else {
                continue;
            };
            *requests -= 1;
            if *requests == 0 {
                self.saved.remove(&path);
                checkpoint::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Why a callback wants the run to stop, if it may stop yet.
    pub(crate) fn stop_request(&self) -> Option<&str> {
        let (_, reason) = self.requests.stops.first()?;
        self.past_minimum().then_some(reason.as_str())
    }

    /// Whether `min_epochs` and `min_steps` are done.
    pub(crate) fn past_minimum(&self) -> bool {
        self.progress.global_step >= self.config.min_steps.unwrap_or(0)
            && self.progress.epoch >= self.config.min_epochs.unwrap_or(0)
    }

    /// Where an error happened.
    pub(crate) fn place(&self, what: &str) -> impl FnOnce(Error) -> Error {
        let Progress { epoch, batch, .. } = self.progress;
        move |e| e.context(format!("epoch {epoch}, batch {batch}: {what}"))
    }
}
