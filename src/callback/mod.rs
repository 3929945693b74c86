//! Code that runs at fixed points of a run, and the callbacks shipped with firebox.

mod checkpoint;
mod closure;
mod early_stopping;
mod learning_rate;
mod progress;
mod summary;

pub use checkpoint::{ModelCheckpoint, SaveLast};
pub use closure::{Closure, Hook};
pub use early_stopping::EarlyStopping;
pub use learning_rate::LearningRateMonitor;
pub use progress::ProgressBar;
pub use summary::ModelSummary;

use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::module::{TrainModule, short_type_name};
use crate::optim::{OptimizerSet, StepOutcome};
use crate::progress::{Progress, Stage};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Code that runs at fixed points of a run. Every hook does nothing unless you write it.
///
/// Hooks run in the order the callbacks were given. They look through a [`RunContext`] and leave
/// requests in it (stop, save); the loop serves those in one place, after all callbacks have run.
/// On several devices or processes, the callbacks of the first alone run, and what they ask for is
/// done by all.
///
/// ```
/// use firebox::prelude::*;
///
/// /// Stops when the loss is good enough.
/// struct GoodEnough(f64);
///
/// impl<M: TrainModule> Callback<M> for GoodEnough {
///     fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
///         if cx.results().get("val/loss").is_some_and(|loss| loss < self.0) {
///             cx.stop(format!("val/loss is below {}", self.0));
///         }
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a callback: it does not implement `Callback`",
    label = "needs `impl<M: TrainModule> Callback<M> for ...`",
    note = "see `firebox::callback::Callback`; for one hook, `Closure` takes a function"
)]
pub trait Callback<M: TrainModule> {
    /// Checks this callback's own settings against those of the run, before anything is written.
    ///
    /// # Errors
    /// A setting that cannot work.
    fn check_config(&self, config: &TrainerConfig) -> Result<()> {
        let _ = config;
        Ok(())
    }
    /// Before anything else in `fit`.
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// Before an epoch's first batch.
    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// Before a training batch.
    fn on_train_batch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// After an optimizer step; [`RunContext::step_outcome`] says what it did.
    fn on_optimizer_step(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// After a training batch, and after the optimizer step if it was the last of its group.
    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// After an epoch's last batch and its validation; the epoch's values are in
    /// [`RunContext::results`].
    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// Before a validation, test or prediction; [`RunContext::stage`] says which.
    fn on_eval_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// After a batch of a validation, test or prediction.
    fn on_eval_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// After a validation, test or prediction; its values are in [`RunContext::results`].
    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// When the run ends inside an epoch: at a limit of steps or time, at a callback's request, or at
    /// a signal. What is saved here goes on with the epoch's next batch. The hooks of the epoch's end
    /// follow, with the values of what there was of it.
    fn on_stop(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
    /// When the run fails. The error is returned to the caller in any case.
    fn on_exception(&mut self, cx: &mut RunContext<'_, M>, error: &Error) -> Result<()> {
        let _ = (cx, error);
        Ok(())
    }
    /// After everything else in `fit`.
    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// What errors call it: the type's name.
    fn name(&self) -> &str {
        short_type_name::<Self>()
    }
    /// What a checkpoint keeps of this callback.
    fn save_state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// Puts back what [`save_state`](Self::save_state) gave, when a run is resumed; before
    /// [`on_fit_start`](Self::on_fit_start).
    ///
    /// # Errors
    /// A state that is not of this callback.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
    /// The best checkpoint so far, if this callback watches a value.
    fn best_checkpoint(&self) -> Option<&Path> {
        None
    }
    /// The last checkpoint so far, if this callback writes any.
    fn last_checkpoint(&self) -> Option<&Path> {
        None
    }
    /// Whether this callback writes checkpoints; if none does, the trainer adds one that does.
    fn writes_checkpoints(&self) -> bool {
        false
    }
    /// The folder of this callback's checkpoints, if it is not the run's own. Runs to resume are
    /// looked for there, too.
    fn checkpoint_dir(&self) -> Option<&Path> {
        None
    }
    /// Whether the model is to have the weights of [`best_checkpoint`](Self::best_checkpoint) when
    /// `fit` ends.
    fn restores_best(&self) -> bool {
        false
    }
}

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
    fn check_monitor(&self, who: &str, monitor: &str) -> Result<()> {
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
    /// Asks for a checkpoint in this new folder. It is written before the next batch, when the hooks
    /// and the validation of this one are done; at the end of an epoch, when the epoch is closed.
    pub fn save_checkpoint(&mut self, path: impl Into<PathBuf>) {
        self.requests.saves.push(path.into());
    }
    /// Asks for another name for a checkpoint, once it is written.
    pub(crate) fn alias_checkpoint(&mut self, alias: Alias) {
        self.requests.aliases.push(alias);
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
    pub(crate) saves: Vec<PathBuf>,
    pub(crate) aliases: Vec<Alias>,
    pub(crate) removes: Vec<PathBuf>,
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
