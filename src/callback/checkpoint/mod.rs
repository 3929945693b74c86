//! Decides when a checkpoint is written and which ones are kept.

mod name;
mod policy;

use super::{Alias, Callback, RunContext, absolute, moved};
use crate::config::{Monitor, SaveTopK, TrainerConfig};
use crate::error::{Error, Result};
use crate::mode::Mode;
use crate::module::TrainModule;
use crate::progress::Stage;
use name::{Template, Values};
use policy::{Policy, State};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes checkpoints: always the last one, and the best `save_top_k` of a watched value.
///
/// Each checkpoint is a folder `checkpoints/epoch=E-step=S` in the run's folder, and `last` is a link
/// to the newest. The previous one is removed only after the next one is complete, and only what
/// this callback wrote is ever removed; a checkpoint that the run was resumed from never is. By
/// default one is written after every epoch, and at the end of the run wherever that is.
///
/// Several of them may stand side by side, each with its own rules.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(
///     ModelCheckpoint::new()
///         .monitor("val/acc", Mode::Max)
///         .save_top_k(3)
///         .name("{epoch}-{val/acc:.3}"), // `epoch=4-val_acc=0.912`
/// )
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ModelCheckpoint {
    dir: Option<PathBuf>,
    name: String,
    monitor: Option<Monitor>,
    save_top_k: Option<SaveTopK>,
    save_last: SaveLast,
    every_n_epochs: u64,
    every_n_steps: Option<u64>,
    every: Option<Duration>,
    save_on_exception: bool,
    restore_best: bool,
    /// The rules of this run: the above, and what the settings add.
    rules: Rules,
    state: State,
    /// Whether this run has been stopped in the midst of an epoch.
    has_stopped: bool,
}

/// What becomes of the newest checkpoint, beside the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaveLast {
    /// It is kept, and `last` is a symbolic link to it (not on Windows).
    Link,
    /// It is kept, and `last` is a copy of it, for file systems without links.
    Copy,
    /// It is kept only if it is one of the best, and none is written for the run's end.
    Off,
}

/// What a run goes by.
#[derive(Debug, Clone)]
struct Rules {
    dir: Option<PathBuf>,
    template: Option<Template>,
    monitor: Option<Monitor>,
    every_n_steps: Option<u64>,
    policy: Policy,
}

impl Default for ModelCheckpoint {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelCheckpoint {
    /// Keeps the last checkpoint, written after every epoch and at the end.
    pub fn new() -> Self {
        let policy = Policy {
            mode: None,
            top_k: SaveTopK::Best(1),
            keeps_last: true,
        };
        Self {
            dir: None,
            name: "{epoch}-{step}".into(),
            monitor: None,
            save_top_k: None,
            save_last: SaveLast::Link,
            every_n_epochs: 1,
            every_n_steps: None,
            every: None,
            save_on_exception: true,
            has_stopped: false,
            restore_best: false,
            rules: Rules {
                dir: None,
                template: None,
                monitor: None,
                every_n_steps: None,
                policy,
            },
            state: State::default(),
        }
    }
    /// Writes into this folder instead of the run's own.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
    /// How checkpoints are called: text with fields for the epoch, the step and logged values, such
    /// as `{epoch}-{step:06}-{val/loss:.3}`. A field writes its name as well, unless `=` stands
    /// before it; slashes become `_`. A name that is taken gets `-v1`, `-v2` and so on behind it.
    pub fn name(mut self, template: impl Into<String>) -> Self {
        self.name = template.into();
        self
    }
    /// Keeps the best by this logged value, written whenever the value is new. A value that is not
    /// finite is never the best. `step` and `epoch` are values, too.
    pub fn monitor(mut self, name: impl Into<String>, mode: Mode) -> Self {
        let name = name.into();
        self.monitor = Some(Monitor { name, mode });
        self
    }
    /// How many of the best to keep beside the last (1 unless set; it needs a
    /// [`monitor`](Self::monitor)). -1, or [`SaveTopK::All`], keeps every checkpoint.
    pub fn save_top_k(mut self, k: impl Into<SaveTopK>) -> Self {
        self.save_top_k = Some(k.into());
        self
    }
    /// What becomes of the newest ([`SaveLast::Link`] unless set).
    pub fn save_last(mut self, last: SaveLast) -> Self {
        self.save_last = last;
        self
    }
    /// Writes after every `n`-th epoch; 0 turns that off.
    pub fn every_n_epochs(mut self, n: u64) -> Self {
        self.every_n_epochs = n;
        self
    }
    /// Also writes after every `n`-th optimizer step; 0 turns that off.
    pub fn every_n_steps(mut self, n: u64) -> Self {
        self.every_n_steps = Some(n);
        self
    }
    /// Also writes after the optimizer step at which so much time has passed since the last one.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = Some(time);
        self
    }
    /// Whether a run that fails leaves a checkpoint of its last step (it does by default). It goes on
    /// with the batch that failed; running statistics of a batch norm may have seen that one already.
    pub fn save_on_exception(mut self, save: bool) -> Self {
        self.save_on_exception = save;
        self
    }
    /// Whether `fit` returns the model with the weights of the best checkpoint, rather than those of
    /// the last step.
    pub fn restore_best(mut self, restore: bool) -> Self {
        self.restore_best = restore;
        self
    }

    /// The rules of a run with these settings, which writes into this folder if it writes at all.
    fn rules(&self, config: &TrainerConfig, run_dir: Option<&Path>) -> Result<Rules> {
        let monitor = one_of("monitor", &self.monitor, config.monitor.clone())?;
        let top_k = one_of("save_top_k", &self.save_top_k, config.save_top_k)?;
        let every_n_steps = one_of(
            "checkpoint_every_n_steps",
            &self.every_n_steps,
            config.checkpoint_every_n_steps,
        )?;
        let keeps_last = self.save_last != SaveLast::Off;
        if let Some(SaveTopK::Best(k)) = top_k
            && k > 0
            && monitor.is_none()
        {
            return Err(Error::config(format!(
                "`save_top_k` is {k}, but no value is watched; set `monitor`, such as `val/loss`"
            )));
        }
        let top_k = top_k.unwrap_or(SaveTopK::Best(1));
        if !keeps_last && monitor.is_none() && top_k != SaveTopK::All {
            return Err(Error::config(
                "`save_last` is off and no value is watched, so no checkpoint would be kept; set \
                 `monitor`, or `save_top_k` to all",
            ));
        }
        let own = |run: &Path| self.dir.clone().unwrap_or_else(|| run.join("checkpoints"));
        Ok(Rules {
            dir: run_dir.map(own),
            template: Some(Template::parse(&self.name)?),
            every_n_steps: every_n_steps.filter(|n| *n > 0),
            policy: Policy {
                mode: monitor.as_ref().map(|monitor| monitor.mode),
                top_k,
                keeps_last,
            },
            monitor,
        })
    }

    /// Saves if the policy says so; `keeps_last` whether the newest counts for itself.
    fn act<M: TrainModule>(
        &mut self,
        cx: &mut RunContext<'_, M>,
        score: Option<f64>,
        keeps_last: bool,
    ) {
        let Some(dir) = self.rules.dir.clone() else {
            return;
        };
        let (epoch, step) = (epoch(cx), cx.progress().global_step);
        let score = score.or_else(|| match self.monitor_name()? {
            "step" => Some(step as f64),
            "epoch" => Some(epoch as f64),
            _ => None,
        });
        let path = self.free_path(cx, &dir);
        let policy = Policy {
            keeps_last,
            ..self.rules.policy
        };
        let decision = self.state.decide(policy, path, step, score);
        if let Some(path) = decision.save {
            self.state.saved_at = cx.elapsed().as_secs_f64();
            cx.save_checkpoint(&path);
            self.name_last(cx, path);
        }
        // Those of another folder are not ours to remove.
        let removes = decision.remove.into_iter();
        let own = removes.filter(|path| path.parent() == Some(&dir));
        own.for_each(|path| cx.remove_checkpoint(path));
    }

    fn name_last<M: TrainModule>(&self, cx: &mut RunContext<'_, M>, of: PathBuf) {
        let copies = match self.save_last {
            SaveLast::Off => return,
            SaveLast::Copy => true,
            SaveLast::Link if cfg!(unix) => false,
            SaveLast::Link => return,
        };
        let name = of.with_file_name("last");
        cx.alias_checkpoint(Alias { name, of, copies });
    }

    /// A path that is not taken, neither on the disk nor by what is on its way there.
    fn free_path<M: TrainModule>(&self, cx: &RunContext<'_, M>, dir: &Path) -> PathBuf {
        let values = Values {
            epoch: epoch(cx),
            step: cx.progress().global_step,
            logged: &|name| cx.fresh(name).or_else(|| cx.metrics().get(name)),
        };
        let template = self.rules.template.as_ref();
        let name = template.map_or_else(String::new, |t| t.render(&values));
        let is_free = |path: &PathBuf| {
            let mut own = self.state.best.iter().chain(&self.state.last);
            !own.any(|kept| kept.path == *path) && path.symlink_metadata().is_err()
        };
        let path = dir.join(&name);
        let versions = (1..).map(|version: u64| dir.join(format!("{name}-v{version}")));
        let mut paths = std::iter::once(path.clone()).chain(versions);
        paths.find(is_free).unwrap_or(path)
    }

    fn monitor_name(&self) -> Option<&str> {
        self.rules.monitor.as_ref().map(|m| m.name.as_str())
    }

    /// The watched value, if it is among what has just ended.
    fn score<M: TrainModule>(&mut self, cx: &RunContext<'_, M>) -> Option<f64> {
        let score = cx.fresh(self.monitor_name()?);
        self.state.scored |= score.is_some();
        score
    }

    /// Whether a checkpoint is due after the step that has just been taken.
    fn is_due<M: TrainModule>(&self, cx: &RunContext<'_, M>) -> bool {
        let step = cx.progress().global_step;
        let rules = &self.rules;
        let by_steps = rules.every_n_steps.is_some_and(|n| step.is_multiple_of(n));
        let since = cx.elapsed().as_secs_f64() - self.state.saved_at;
        let by_time = self.every.is_some_and(|every| since >= every.as_secs_f64());
        step > 0 && cx.step_outcome().is_some() && (by_steps || by_time)
    }
}

/// The epoch that is going on, or that has just ended.
fn epoch<M: TrainModule>(cx: &RunContext<'_, M>) -> u64 {
    let progress = cx.progress();
    match progress.batch {
        0 => progress.epoch.saturating_sub(1),
        _ => progress.epoch,
    }
}

/// What the program or the settings say; an error if they differ.
fn one_of<T: Clone + PartialEq + std::fmt::Display>(
    setting: &str,
    program: &Option<T>,
    settings: Option<T>,
) -> Result<Option<T>> {
    match (program, settings) {
        (Some(program), Some(set)) if *program != set => Err(Error::config(format!(
            "`{setting}` is {set}, but a `ModelCheckpoint` of this program says {program}; leave one \
             of them out"
        ))),
        (program, set) => Ok(program.clone().or(set)),
    }
}

impl<M: TrainModule> Callback<M> for ModelCheckpoint {
    fn check_config(&self, config: &TrainerConfig) -> Result<()> {
        self.rules(config, None).map(drop)
    }

    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.rules = self.rules(cx.config(), cx.run_dir())?;
        self.has_stopped = false;
        let Some(from) = cx.resumed_from() else {
            self.state = State::default();
            return Ok(());
        };
        let from = from.to_path_buf();
        let dir = self.rules.dir.clone().unwrap_or_default();
        // However the folder is written now.
        let in_dir = |path: &Path| {
            let own = dir.join(path.file_name()?);
            (absolute(path) == absolute(&own)).then_some(own)
        };
        for kept in self.state.best.iter_mut().chain(&mut self.state.last) {
            let path = moved(&kept.path, &from);
            kept.path = in_dir(&path).unwrap_or(path);
        }
        // The process may have been killed before it came to this; what `last` leads to may go now.
        if let Some(own) = in_dir(&from).filter(|own| !own.ends_with("last")) {
            self.name_last(cx, own);
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if self.is_due(cx) {
            let score = self.score(cx);
            self.act(cx, score, self.rules.policy.keeps_last);
        }
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.stage() == Stage::Validate
            && let Some(score) = self.score(cx)
        {
            self.act(cx, Some(score), self.rules.policy.keeps_last);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        // The values of a part of an epoch are not those of epochs.
        if self.has_stopped {
            return Ok(());
        }
        let score = self.score(cx);
        let due = self.every_n_epochs > 0
            && (cx.progress().epoch + 1).is_multiple_of(self.every_n_epochs);
        if due || score.is_some() {
            self.act(cx, score, self.rules.policy.keeps_last);
        }
        match self.monitor_name() {
            Some("step" | "epoch") => Ok(()),
            Some(name) if !self.state.scored => cx.check_monitor("ModelCheckpoint", name),
            _ => Ok(()),
        }
    }

    fn on_stop(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.has_stopped = true;
        self.on_fit_end(cx)
    }

    fn on_exception(&mut self, cx: &mut RunContext<'_, M>, _error: &Error) -> Result<()> {
        if self.save_on_exception && cx.progress().global_step > 0 {
            self.act(cx, None, true);
        }
        Ok(())
    }

    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if self.save_last != SaveLast::Off && cx.progress().global_step > 0 {
            self.act(cx, None, true);
        }
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.state)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.state = State::deserialize(state).map_err(|e| {
            Error::config("the state of ModelCheckpoint cannot be read").with_source(e)
        })?;
        Ok(())
    }

    fn best_checkpoint(&self) -> Option<&Path> {
        self.state.best.first().map(|kept| kept.path.as_path())
    }

    fn last_checkpoint(&self) -> Option<&Path> {
        self.state.last.as_ref().map(|kept| kept.path.as_path())
    }

    fn writes_checkpoints(&self) -> bool {
        true
    }

    fn checkpoint_dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn restores_best(&self) -> bool {
        self.restore_best
    }
}
