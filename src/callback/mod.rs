//! Code that runs at fixed points of a run, and the callbacks shipped with firebox.

mod accumulation;
mod checkpoint;
mod closure;
mod context;
#[cfg(all(unix, feature = "dashboard"))]
mod dashboard;
mod device_stats;
mod early_stopping;
mod energy;
mod finetuning;
mod learning_rate;
mod on_exception;
mod progress;
mod prometheus;
mod pruning;
mod spike;
mod summary;
mod throughput;
mod timer;

pub use accumulation::GradientAccumulationScheduler;
pub use checkpoint::{ModelCheckpoint, SaveLast};
pub use closure::{Closure, Hook};
pub(crate) use context::{Alias, Change, Requests, RunView, absolute, moved};
pub use context::{BatchInfo, RunContext};
#[cfg(all(unix, feature = "dashboard"))]
pub use dashboard::Dashboard;
pub use device_stats::DeviceStatsMonitor;
pub use early_stopping::EarlyStopping;
pub use energy::EnergyMonitor;
pub use finetuning::BackboneFinetuning;
pub use learning_rate::LearningRateMonitor;
pub use on_exception::OnExceptionCheckpoint;
pub use progress::ProgressBar;
pub use prometheus::PrometheusExporter;
pub use pruning::Pruning;
pub use spike::SpikeDetection;
pub use summary::ModelSummary;
pub use throughput::ThroughputMonitor;
pub use timer::Timer;

use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::module::{TrainModule, short_type_name};
use std::path::Path;

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
