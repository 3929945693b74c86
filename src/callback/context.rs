//! What callbacks see of a run, and what they ask for.

use crate::accelerators::Hardware;
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::fabric::check_pruning;
use crate::logger::Media;
use crate::metric::Metrics;
use crate::module::TrainModule;
use crate::optim::{OptimizerSet, StepOutcome};
use crate::progress::{Progress, Stage};
use firebox_backend::DeviceStats;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a callback sees of the run, and where it leaves its requests.
pub struct RunContext<'a, M: TrainModule> {
    pub(crate) stage: Stage,
    pub(crate) model: &'a M,
    pub(crate) optimizers: Option<&'a OptimizerSet<M>>,
    pub(crate) view: RunView<'a>,
    pub(crate) requests: &'a mut Requests,
    /// Index of the callback that looks.
    pub(crate) callback: usize,
}

/// The part of a [`RunContext`] that does not depend on the module.
#[derive(Clone, Copy)]
pub(crate) struct RunView<'a> {
    pub(crate) config: &'a TrainerConfig,
    pub(crate) run_dir: Option<&'a Path>,
    pub(crate) progress: &'a Progress,
    pub(crate) metrics: &'a Metrics,
    pub(crate) results: &'a Metrics,
    pub(crate) batch: BatchInfo,
    pub(crate) outcome: Option<StepOutcome>,
    pub(crate) logs_now: bool,
    pub(crate) validates: bool,
    pub(crate) validated: bool,
    pub(crate) last_epoch: Option<u64>,
    pub(crate) elapsed: Duration,
    pub(crate) resumed_from: Option<&'a Path>,
    pub(crate) hardware: &'a Hardware,
    pub(crate) takes_media: bool,
}

/// The batch that a batch hook is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchInfo {
    /// Index in its epoch, from 0.
    pub index: usize,
    /// Batches in the epoch, if that is known.
    pub total: Option<usize>,
    /// Samples in the batch, over all devices.
    pub samples: usize,
}

impl<M: TrainModule> RunContext<'_, M> {
    /// Training, sanity check, validation, test or prediction.
    pub fn stage(&self) -> Stage {
        self.stage
    }
    /// The model as it is now.
    pub fn model(&self) -> &M {
        self.model
    }
    /// Whether the fit begins with its first batch: it goes on from no checkpoint.
    pub(super) fn starts_anew(&self) -> bool {
        self.progress().total_batches == 0
    }

    /// The run's counters.
    pub fn progress(&self) -> &Progress {
        self.view.progress
    }
    /// The latest value of every name logged so far in this run.
    pub fn metrics(&self) -> &Metrics {
        self.view.metrics
    }
    /// The values of what has just ended: the epoch, the validation, the test; at a batch's end
    /// those of the optimizer step, if it is one that is logged.
    pub fn results(&self) -> &Metrics {
        self.view.results
    }
    /// The batch a batch hook is about.
    pub fn batch(&self) -> BatchInfo {
        self.view.batch
    }
    /// What the last optimizer step did.
    pub fn step_outcome(&self) -> Option<StepOutcome> {
        self.view.outcome
    }
    /// Whether this step's values are read and go to the loggers (`log_every_n_steps`).
    pub fn logs_now(&self) -> bool {
        self.view.logs_now
    }
    /// Whether this run validates at all.
    pub fn validates(&self) -> bool {
        self.view.validates
    }
    /// The value under this name, if it is among what has just ended or a callback before this one
    /// has just logged it.
    pub fn fresh(&self, name: &str) -> Option<f64> {
        let logged = self.requests.logged.iter().rev();
        let mut logged = logged.filter(|(n, _)| n == name).map(|(_, value)| *value);
        self.results().get(name).or_else(|| logged.next())
    }

    /// The error of a callback whose watched name never comes, once all that an epoch logs has
    /// come.
    pub(super) fn check_monitor(&self, who: &str, monitor: &str) -> Result<()> {
        if self.view.validates && !self.view.validated {
            return Ok(());
        }
        let of_epoch = format!("{monitor}_epoch");
        let why = match self.metrics().get(&of_epoch) {
            Some(_) => format!("which has no value for an epoch; `{of_epoch}` has"),
            None => {
                let names: Vec<_> = self.metrics().iter().map(|(name, _)| name).collect();
                format!("which is never logged; logged are `{}`", names.join("`, `"))
            }
        };
        Err(Error::config(format!("{who} watches `{monitor}`, {why}")))
    }

    /// How long the run has trained, together with what it had before it was resumed.
    pub fn elapsed(&self) -> Duration {
        self.view.elapsed
    }
    /// The checkpoint that the run went on from, if it was resumed.
    pub fn resumed_from(&self) -> Option<&Path> {
        self.view.resumed_from
    }
    /// The epochs this run is to have, if there is a limit.
    pub fn max_epochs(&self) -> Option<u64> {
        self.view.last_epoch
    }
    /// How busy each of this process's devices is now.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the platform tells nothing, as
    /// by wgpu.
    pub fn device_stats(&self) -> Result<Vec<DeviceStats>> {
        self.view.hardware.stats()
    }
    /// Whether any logger takes what [`log_media`](Self::log_media) gives.
    pub fn takes_media(&self) -> bool {
        self.view.takes_media
    }
    /// The trainer's settings.
    pub fn config(&self) -> &TrainerConfig {
        self.view.config
    }
    /// The folder of this run's files, if it writes any.
    pub fn run_dir(&self) -> Option<&Path> {
        self.view.run_dir
    }
    /// Each parameter group's name and the learning rate of its last step.
    pub fn learning_rates(&self) -> impl Iterator<Item = (&str, f64)> {
        self.optimizers.into_iter().flat_map(|o| o.learning_rates())
    }

    /// Asks to stop after the current optimizer step, once `min_epochs` and `min_steps` are done.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.keep_going();
        self.requests.stops.push((self.callback, reason.into()));
    }
    /// Takes this callback's request to stop back.
    pub fn keep_going(&mut self) {
        self.requests.stops.retain(|(by, _)| *by != self.callback);
    }
    /// Logs a value under this very name, beside those of the step, validation or epoch.
    pub fn log(&mut self, name: impl Into<String>, value: f64) {
        self.requests.logged.push((name.into(), value));
    }
    /// Gives a histogram, an image or a text to the loggers that can show it.
    ///
    /// ```
    /// # use firebox::testing::{Line, AutodiffBackend};
    /// use firebox::callback::{Closure, Hook};
    /// use firebox::logger::{Channels, Image};
    /// use firebox::prelude::*;
    ///
    /// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
    /// trainer.with_callback(Closure::at(Hook::TrainEpochEnd, |cx| {
    ///     let gradient: Vec<u8> = (0..=255).collect();
    ///     cx.log_media("ramp", Image::new(256, 1, Channels::Gray, gradient)?);
    ///     cx.log_media("note", format!("epoch {} is done", cx.progress().epoch));
    ///     Ok(())
    /// }))
    /// # }
    /// ```
    pub fn log_media(&mut self, name: impl Into<String>, media: impl Into<Media>) {
        self.requests.media.push((name.into(), media.into()));
    }
    /// Asks for a checkpoint in this new folder. It is written before the next batch, when the hooks
    /// and the validation of this one are done; at the end of an epoch, when the epoch is closed.
    pub fn save_checkpoint(&mut self, path: impl Into<PathBuf>) {
        self.requests.saves.push(path.into());
    }
    /// Asks for another name for a checkpoint, once it is written.
    pub(crate) fn alias_checkpoint(&mut self, alias: Alias) {
        self.requests.aliases.push(alias);
    }
    /// Asks for a validation before the next batch, or with the end of the epoch.
    pub fn validate(&mut self) {
        self.requests.validates = true;
    }
    /// Sets the base learning rate of the parameter groups whose name matches a pattern (`*` for all),
    /// from the next step on; their schedules go on from it. A resumed run keeps it.
    ///
    /// # Errors
    /// No such group, or a learning rate that is no finite number from 0.
    pub fn set_learning_rate(&mut self, groups: &str, lr: f64) -> Result<()> {
        self.change(Change::LearningRate {
            groups: groups.to_owned(),
            lr,
        })
    }
    /// Leaves the parameters of the groups whose name matches a pattern as they are, from the next
    /// step on, until they are [unfrozen](Self::unfreeze). They take no part in gradient norms.
    ///
    /// # Errors
    /// No such group, or none that would be left to train.
    pub fn freeze(&mut self, groups: &str) -> Result<()> {
        self.change(Change::Freeze {
            groups: groups.to_owned(),
            frozen: true,
        })
    }
    /// Trains groups that were [frozen](Self::freeze) again.
    ///
    /// # Errors
    /// No such group.
    pub fn unfreeze(&mut self, groups: &str) -> Result<()> {
        self.change(Change::Freeze {
            groups: groups.to_owned(),
            frozen: false,
        })
    }
    /// Averages the gradients of this many batches for one step, from the next batch on, in place of
    /// the config's `accumulate_grad_batches`. A resumed run keeps it.
    ///
    /// # Errors
    /// 0, or a model that steps its optimizers by hand.
    pub fn set_accumulate_grad_batches(&mut self, batches: u64) -> Result<()> {
        self.change(Change::Accumulate(batches))
    }

    /// Checks a change and asks for it.
    pub(crate) fn change(&mut self, change: Change) -> Result<()> {
        self.check_change(&change)?;
        self.requests.changes.push(change);
        Ok(())
    }

    /// Whether a change can be made.
    pub(crate) fn check_change(&self, change: &Change) -> Result<()> {
        match self.optimizers {
            Some(optimizers) => change.check(self.model, optimizers),
            None => Err(Error::user("nothing is trained here that could be changed")),
        }
    }

    /// Asks to remove a checkpoint of this run, after all saves have succeeded.
    pub fn remove_checkpoint(&mut self, path: impl Into<PathBuf>) {
        self.requests.removes.push(path.into());
    }
}

/// What callbacks have asked for.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// By callback index.
    pub(crate) stops: Vec<(usize, String)>,
    pub(crate) logged: Vec<(String, f64)>,
    pub(crate) media: Vec<(String, Media)>,
    pub(crate) validates: bool,
    /// Somebody has ordered the run to end.
    pub(crate) ordered_stop: bool,
    pub(crate) changes: Vec<Change>,
    pub(crate) saves: Vec<PathBuf>,
    pub(crate) aliases: Vec<Alias>,
    pub(crate) removes: Vec<PathBuf>,
}

/// What a run does otherwise from now on; all ranks change it between the same two batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// The base learning rate of the parameter groups that a pattern matches.
    LearningRate { groups: String, lr: f64 },
    /// Whether the optimizers of groups leave their parameters as they are.
    Freeze { groups: String, frozen: bool },
    /// How many batches make a step.
    Accumulate(u64),
    /// The share of some parameters' entries that are zero from now on.
    Prune { paths: Vec<String>, amount: f64 },
}

impl Change {
    /// Whether a run with these optimizers can do so.
    pub(crate) fn check<M: TrainModule>(
        &self,
        model: &M,
        optimizers: &OptimizerSet<M>,
    ) -> Result<()> {
        match self {
            Self::Prune { paths, amount } => check_pruning(model, paths, *amount),
            Self::LearningRate { groups, lr } => optimizers.check_rate(groups, *lr),
            Self::Freeze { groups, frozen } => optimizers.check_freeze(groups, *frozen),
            Self::Accumulate(0) => Err(Error::config(
                "`accumulate_grad_batches` is 0; use a whole number from 1",
            )),
            Self::Accumulate(batches) if optimizers.manual && *batches != 1 => {
                Err(Error::config(format!(
                    "`accumulate_grad_batches` is {batches}, but the model steps its optimizers by \
                     hand; use 1"
                )))
            }
            Self::Accumulate(_) => Ok(()),
        }
    }
}

/// Another name for a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Alias {
    pub(crate) name: PathBuf,
    pub(crate) of: PathBuf,
    /// Whether the files are copied rather than linked.
    pub(crate) copies: bool,
}

/// One name for a path, however it was written.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Where a checkpoint is now that its run is resumed from `resumed_from`: beside that one, if the
/// run's folder was moved.
pub(crate) fn moved(path: &Path, resumed_from: &Path) -> PathBuf {
    let beside = resumed_from.parent().zip(path.file_name());
    let beside = beside.map(|(folder, name)| folder.join(name));
    match beside.filter(|beside| beside.exists() || !path.exists()) {
        Some(beside) => beside,
        None => path.to_path_buf(),
    }
}
