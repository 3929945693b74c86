//! What a run puts into its checkpoints, and how it goes on from one.

use super::Run;
use crate::callback::{absolute, moved};
use crate::checkpoint::{self, Checkpoint, Job, Part, Records, RunState};
use crate::error::{ErrorKind, Result};
use crate::fabric::TrainState;
use crate::module::TrainModule;
use crate::output::say;
use crate::panics;
use crate::profiler::Phase;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What the user adds to every checkpoint.
pub(crate) struct Own<'t> {
    pub(crate) hyper_parameters: Value,
    /// The state of the data module.
    pub(crate) data: Box<dyn Fn() -> Result<Value> + 't>,
    /// The settings as they were given, as TOML.
    pub(crate) config: String,
}

impl Default for Own<'_> {
    fn default() -> Self {
        Self {
            hyper_parameters: Value::Null,
            data: Box::new(|| Ok(Value::Null)),
            config: String::new(),
        }
    }
}

impl<M: TrainModule> Run<'_, M> {
    /// Acts on what callbacks have asked for: saves first, removals only after all saves have
    /// succeeded. Called between two batches alone, where nothing is half done.
    ///
    /// Several callbacks may ask for the same checkpoint; it is written once, and stays until each
    /// of them has asked for its removal.
    pub(crate) fn serve(&mut self, state: &mut TrainState<M>) -> Result<()> {
        let orders = self.orders_anywhere();
        let orders = self.fabric.group.broadcast(orders)?;
        self.change(state, &orders.changes)?;
        self.serve_agreed(state, orders.saves)
    }

    /// As [`serve`](Self::serve), where all ranks know whether anything is to be saved.
    pub(super) fn serve_agreed(&mut self, state: &mut TrainState<M>, saves: bool) -> Result<()> {
        if saves {
            self.collect(state)?;
        }
        self.write(state)
    }

    /// Acts on requests, with what is at hand on this rank.
    pub(super) fn write(&mut self, state: &mut TrainState<M>) -> Result<()> {
        let requests = &self.requests;
        if requests.saves.is_empty() && requests.aliases.is_empty() && requests.removes.is_empty() {
            return Ok(());
        }
        // All are taken now: if a save fails, its removals are never made up for.
        let mut job = Job {
            aliases: std::mem::take(&mut self.requests.aliases),
            ..Job::default()
        };
        for path in std::mem::take(&mut self.requests.saves) {
            let (key, step) = (absolute(&path), self.progress.global_step);
            let before = self.saved_at.insert(key.clone(), step);
            let requests = self.saved.entry(key).or_default();
            *requests += 1;
            // What is there is not what another step asks for; the file system will say so.
            if *requests == 1 || before.is_some_and(|before| before != step) {
                job.saves.push(path);
            }
        }
        for path in std::mem::take(&mut self.requests.removes) {
            // Only what this run has written is ever removed.
            let key = absolute(&path);
            let Some(requests) = self.saved.get_mut(&key) else {
                continue;
            };
            *requests -= 1;
            if *requests == 0 {
                self.saved.remove(&key);
                job.removes.push(path);
            }
        }
        self.fabric.profiler.time(Phase::Checkpoint, || {
            if !job.saves.is_empty() {
                let run = self.save(&job.removes)?;
                let packed = checkpoint::pack(state, run);
                job.packed = Some(packed.map_err(|e| e.context("saving a checkpoint"))?);
            }
            self.writer.begin(job)
        })
    }

    /// The run as it is now, without what the model and its optimizers keep.
    fn save(&mut self, removed: &[PathBuf]) -> Result<RunState> {
        let mut position = self.position;
        position.elapsed = self.elapsed().as_secs_f64();
        let callbacks = self.callbacks.iter();
        let callbacks = callbacks.map(|c| part(c.name(), || c.save_state()));
        let loggers = self.loggers.iter();
        let loggers = loggers.map(|l| part(l.name(), || l.save_state()));
        let best = self.callbacks.iter().find_map(|c| c.best_checkpoint());
        Ok(RunState {
            progress: self.progress,
            position,
            seed: self.config.seed,
            metrics: self.metrics.clone(),
            epoch: self.book.save()?,
            callbacks: callbacks
                .filter_map(Result::transpose)
                .collect::<Result<_>>()?,
            loggers: loggers
                .filter_map(Result::transpose)
                .collect::<Result<_>>()?,
            stops: self.requests.stops.clone(),
            data: (self.own.data)()?,
            hyper_parameters: self.own.hyper_parameters.clone(),
            config: self.own.config.clone(),
            records: Records {
                kept: self.saved.clone(),
                removed: removed.to_vec(),
                best: best.map(Path::to_path_buf),
            },
            ..RunState::default()
        })
    }

    /// Goes on from a checkpoint, in the folder of the run that wrote it (`in_place`) or in one of
    /// its own. Model, optimizers and data are restored elsewhere.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint, in_place: bool) -> Result<()> {
        let saved = checkpoint.state();
        self.count_from(checkpoint);
        self.metrics = saved.metrics.clone();
        self.book.load(saved.epoch.clone());
        self.resumed_from = Some(checkpoint.path().to_path_buf());
        hand_out(
            ("callback", &saved.callbacks),
            self.callbacks,
            |callback| callback.name(),
            |callback, state| callback.load_state(state),
        )?;
        hand_out(
            ("logger", &saved.loggers),
            self.loggers,
            |logger| logger.name(),
            |logger, state| logger.load_state(state),
        )?;
        // A stop that has taken effect ended the run then; it is resumed to go on.
        if !self.past_minimum() {
            let stops = saved.stops.iter();
            let stops = stops.filter(|(index, _)| *index < self.callbacks.len());
            self.requests.stops = stops.cloned().collect();
        }
        self.take_over(checkpoint, in_place);
        Ok(())
    }

    /// Goes on counting from a checkpoint.
    pub(crate) fn count_from(&mut self, checkpoint: &Checkpoint) {
        self.progress = checkpoint.state().progress;
        self.position = checkpoint.state().position;
    }

    /// Takes over the records of what has been written, but for the checkpoint resumed from: that is
    /// never removed. Another run's checkpoints are not this one's to remove, unless a callback of
    /// this run writes into their very folder.
    fn take_over(&mut self, checkpoint: &Checkpoint, in_place: bool) {
        let own: Vec<_> = self
            .callbacks
            .iter()
            .filter_map(|c| c.checkpoint_dir())
            .collect();
        let is_own = |path: &Path| {
            let folder = path.parent();
            in_place || own.iter().any(|own| folder == Some(&*absolute(own)))
        };
        let records = &checkpoint.state().records;
        let now = |path: &PathBuf| absolute(&moved(path, checkpoint.path()));
        for (path, requests) in &records.kept {
            let path = now(path);
            if is_own(&path) && path != absolute(checkpoint.path()) {
                self.saved.insert(path, *requests);
            }
        }
        // The process was killed before it came to these.
        for path in records.removed.iter().map(now) {
            if is_own(&path) {
                self.saved.insert(path.clone(), 1);
                self.requests.removes.push(path);
            }
        }
    }
}

/// The state of a callback or logger, if it has one.
fn part(name: &str, save: impl FnOnce() -> Value) -> Result<Option<Part>> {
    let state = panics::catch(ErrorKind::User, || Ok(save()))
        .map_err(|e| e.context(format!("save_state of `{name}`")))?;
    let name = name.to_owned();
    Ok((!state.is_null()).then_some(Part { name, state }))
}

/// Gives each callback or logger the first state under its name that is left: of several of a kind,
/// each has its own, in order. What nobody takes is named.
fn hand_out<T>(
    (what, saved): (&str, &[Part]),
    owners: &mut [T],
    name: impl Fn(&T) -> &str,
    load: impl Fn(&mut T, &Value) -> Result<()>,
) -> Result<()> {
    let mut left: Vec<&Part> = saved.iter().collect();
    for owner in owners {
        if let Some(at) = left.iter().position(|part| part.name == name(owner)) {
            let part = left.remove(at);
            panics::catch(ErrorKind::User, || load(owner, &part.state))
                .map_err(|e| e.context(format!("{what} `{}`", part.name)))?;
        }
    }
    for part in left {
        say!(
            "warning: the checkpoint has the state of a {what} `{}`, which this run does not have",
            part.name
        );
    }
    Ok(())
}
