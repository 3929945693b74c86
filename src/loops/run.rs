//! What a loop carries along, and the one place that acts on what callbacks ask for.

use super::orders::Taken;
use super::saving::Own;
use crate::accelerators::Hardware;
use crate::callback::{BatchInfo, Callback, Requests, RunContext, RunView};
use crate::checkpoint::{Position, Writer};
use crate::config::{ProgressMode, TrainerConfig};
use crate::control::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, TrainState};
use crate::logger::{Logger, Row, RunEnd};
use crate::metric::{LogBook, Metrics};
use crate::module::TrainModule;
use crate::optim::{OptimizerSet, StepOutcome};
use crate::panics;
use crate::profiler::Phase;
use crate::progress::{Progress, Stage};
use crate::signals;
use burn::tensor::backend::AutodiffBackend;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A run: its parts, how far it is, and what has been logged.
pub(crate) struct Run<'t, M: TrainModule> {
    pub(crate) config: &'t TrainerConfig,
    pub(crate) fabric: &'t Fabric<M::Backend>,
    pub(crate) callbacks: &'t mut [Box<dyn Callback<M>>],
    pub(crate) loggers: &'t mut [Box<dyn Logger>],
    pub(crate) run_dir: Option<&'t Path>,
    pub(crate) hardware: Hardware,
    pub(super) takes_media: bool,
    pub(crate) progress: Progress,
    pub(crate) position: Position,
    /// What this epoch has logged.
    pub(crate) book: Book<M>,
    /// The latest value of every name.
    pub(crate) metrics: Metrics,
    /// The values of what has just ended.
    pub(crate) results: Metrics,
    pub(crate) batch: BatchInfo,
    /// The training batch that errors name.
    pub(crate) at_batch: u64,
    pub(crate) outcome: Option<StepOutcome>,
    pub(crate) logs_now: bool,
    pub(crate) validates: bool,
    /// Whether each process has samples of its own.
    pub(crate) is_per_process: bool,
    pub(crate) requests: Requests,
    /// What the user adds to checkpoints.
    pub(crate) own: Own<'t>,
    /// The checkpoints of this run that are there, each with how many requests it serves.
    pub(super) saved: BTreeMap<PathBuf, usize>,
    /// The step of each that this process has written.
    pub(super) saved_at: BTreeMap<PathBuf, u64>,
    pub(super) writer: Writer,
    pub(super) resumed_from: Option<PathBuf>,
    /// Where the counters were before the first batch of the current step.
    pub(super) at_step: Option<(Progress, Position)>,
    /// Whether a signal has ended the last validation, which is still to come then.
    pub(super) in_validation: bool,
    /// Where `firebox ctl` leaves orders, and those that are being carried out.
    pub(crate) inbox: Option<Inbox>,
    pub(super) orders: Vec<Taken>,
    started: Instant,
}

type Book<M> = LogBook<<<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend>;

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
            takes_media: loggers.iter().any(|logger| logger.takes_media()),
            loggers,
            run_dir: None,
            hardware: Hardware::unnamed::<M::Backend>(),
            progress: Progress::default(),
            position: Position::default(),
            book: LogBook::new(Stage::Train),
            metrics: Metrics::default(),
            results: Metrics::default(),
            batch: BatchInfo::default(),
            at_batch: 0,
            outcome: None,
            logs_now: false,
            validates: false,
            is_per_process: false,
            requests: Requests::default(),
            own: Own::default(),
            saved: BTreeMap::new(),
            saved_at: BTreeMap::new(),
            writer: Writer::new(config.checkpoint_in_background),
            resumed_from: None,
            at_step: None,
            in_validation: false,
            inbox: None,
            orders: Vec::new(),
            started: Instant::now(),
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
        let hyper_parameters = &self.own.hyper_parameters;
        let started = self.loggers.iter_mut().try_for_each(|logger| {
            logger.log_config(settings)?;
            logger.log_hyper_parameters(hyper_parameters)
        });
        let done = started.and_then(|()| panics::catch(ErrorKind::User, || body(self, state)));
        // What fails on the way out must not keep the callbacks behind it from saving what there
        // is, nor hide the first error.
        let mut later = Vec::new();
        let done = done.map_err(|error| self.first_error(error));
        if let Err(error) = &done
            && state.present().is_ok()
        {
            self.back_to_step(state);
            let told = self.train_hook(state, |c, cx| {
                later.extend(panics::catch(ErrorKind::User, || c.on_exception(cx, error)).err());
                Ok(())
            });
            later.extend(told.err());
            later.extend(panics::catch(ErrorKind::User, || self.write(state)).err());
        }
        later.extend(self.writer.wait().err());
        let end = match (&done, signals::received()) {
            (Err(error), _) => RunEnd::Failed(error),
            (Ok(_), Some(_)) => RunEnd::Interrupted,
            (Ok(_), None) => RunEnd::Finished,
        };
        later.extend(self.finish_loggers(&end));
        match done {
            Err(error) => Err(error.followed_by(later)),
            Ok(done) => match later.into_iter().next() {
                None => Ok(done),
                Some(error) => Err(error),
            },
        }
    }

    /// Finishes every logger, also those behind one that fails; what failed.
    pub(crate) fn finish_loggers(&mut self, end: &RunEnd<'_>) -> Vec<Error> {
        let finished = self.loggers.iter_mut().map(|logger| logger.finish(end));
        finished.filter_map(Result::err).collect()
    }

    /// Ends the waiting of the other ranks. The error that the user is told is the first of all.
    pub(crate) fn first_error(&self, error: Error) -> Error {
        let group = &self.fabric.group;
        if group.is_alone() {
            return error;
        }
        let error = match error.kind() {
            ErrorKind::Aborted => error.without_context(),
            _ => group.marked(error),
        };
        group.fail(Error::new(ErrorKind::Aborted, error.to_string()));
        match error.kind() {
            ErrorKind::Aborted => group.take_failure().unwrap_or(error),
            _ => error,
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
        let at = self.at();
        let elapsed = self.elapsed();
        if self.callbacks.is_empty() {
            return Ok(());
        }
        let profiler = &self.fabric.profiler;
        profiler.time(Phase::Callbacks, || {
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
                        validated: self.position.validated,
                        last_epoch: self.config.epoch_limit(),
                        elapsed,
                        resumed_from: self.resumed_from.as_deref(),
                        hardware: &self.hardware,
                        takes_media: self.takes_media,
                    },
                    requests: &mut self.requests,
                    callback: index,
                };
                let caught =
                    panics::catch(ErrorKind::User, || hook(callback.as_mut(), &mut context));
                caught.map_err(|e| {
                    let place = format!("callback `{}`", callback.name());
                    match stage {
                        Stage::Train => e.context(format!("{at}: {place}")),
                        _ => e.context(place),
                    }
                })?;
            }
            Ok(())
        })
    }

    /// A hook of training.
    pub(crate) fn train_hook(
        &mut self,
        state: &TrainState<M>,
        hook: impl FnMut(&mut dyn Callback<M>, &mut RunContext<'_, M>) -> Result<()>,
    ) -> Result<()> {
        self.hook(Stage::Train, state.model(), Some(&state.optimizers), hook)
    }

    /// How long the run has trained, with what it had before it was resumed.
    pub(crate) fn elapsed(&self) -> Duration {
        let before = Duration::try_from_secs_f64(self.position.elapsed).unwrap_or_default();
        before.saturating_add(self.started.elapsed())
    }

    /// Whether this rank may print.
    pub(super) fn prints(&self) -> bool {
        self.fabric.group.is_root() && self.config.progress != ProgressMode::Off
    }

    /// Takes the values of what has just ended.
    pub(crate) fn set_results(&mut self, results: Metrics) {
        self.metrics
            .extend(results.iter().map(|(n, v)| (n.to_owned(), v)));
        self.results = results;
    }

    /// Gives the results, and what callbacks have logged with them, to the loggers as one row.
    pub(crate) fn log_results(&mut self) -> Result<()> {
        let profiler = &self.fabric.profiler;
        profiler.time(Phase::Logging, || {
            let media = std::mem::take(&mut self.requests.media);
            let step = self.progress.global_step;
            for (name, media) in &media {
                self.loggers
                    .iter_mut()
                    .try_for_each(|logger| logger.log_media(step, name, media))?;
            }
            self.log_row()
        })
    }

    fn log_row(&mut self) -> Result<()> {
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

    /// Why a callback wants the run to stop, if it may stop yet.
    pub(crate) fn stop_request(&self) -> Option<&str> {
        // No minimum holds up what a person has ordered.
        if self.requests.ordered_stop {
            return Some("`firebox ctl` has ordered it");
        }
        let (_, reason) = self.requests.stops.first()?;
        self.past_minimum().then_some(reason.as_str())
    }

    /// Whether `min_epochs` and `min_steps` are done.
    pub(crate) fn past_minimum(&self) -> bool {
        self.progress.global_step >= self.config.min_steps.unwrap_or(0)
            && self.progress.epoch >= self.config.min_epochs.unwrap_or(0)
    }

    /// How many batches make a step.
    pub(super) fn batches_to_a_step(&self) -> u64 {
        let of_config = self.config.accumulate_grad_batches;
        self.position.accumulate.unwrap_or(of_config).max(1)
    }

    /// Where the run is, as errors name it.
    pub(crate) fn at(&self) -> Place {
        Place {
            epoch: self.progress.epoch,
            batch: self.at_batch,
            step: self.progress.global_step,
        }
    }
}

/// An epoch, its batch, and the optimizer steps taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    epoch: u64,
    batch: u64,
    step: u64,
}

impl Place {
    /// Adds to an error that it happened here, in what.
    pub(crate) fn of(self, what: &str) -> impl FnOnce(Error) -> Error {
        move |e| e.context(format!("{self}: {what}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batch, step } = self;
        write!(f, "epoch {epoch}, batch {batch}, step {step}")
    }
}
