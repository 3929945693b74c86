//! Checkpoints: what is saved of a run, where, and how it is read back.
//!
//! A checkpoint is a folder:
//!
//! | file | what it holds |
//! |---|---|
//! | `manifest.json` | format, versions, epoch and step, and every other file's length and checksum |
//! | `model.safetensors` | the parameters by path, in their own precision, for any tool that reads safetensors |
//! | `trained.safetensors` | where weights are averaged: those that are trained, as `model.safetensors` has the average |
//! | `optimizer-N.cbor` | what the optimizer of each parameter group keeps (moments) |
//! | `gradients.safetensors` | in the middle of an accumulation group: the gradients so far |
//! | `state.json` | counters, schedules, position in the data, unfinished metrics, callbacks, loggers, settings, hyper-parameters, and your own state |
//!
//! It appears complete or not at all, whenever the process or the machine stops; what was damaged
//! later is found by its checksum. A run goes on from it as if it had never stopped: with
//! [`resume`](crate::TrainerConfig::resume) in the settings, or `--resume last` on the command line.
//!
//! Reading one runs no code, and what does not fit is an error. A checkpoint made on one backend is
//! read on any other.

mod find;
mod folder;
#[cfg(test)]
mod hostile;
mod pack;
#[cfg(feature = "pytorch")]
mod pytorch;
mod state;
mod tensors;
mod weights;
mod writer;

pub use find::{Found, list};
pub use folder::{FileEntry, Manifest};
pub use weights::{LoadReport, Mismatch, Weights};

pub(crate) use folder::remove_leftovers;
pub(crate) use pack::pack;
pub(crate) use state::{Part, Position, Records, RunState};
pub(crate) use writer::{Job, Writer};

use crate::callback::moved;
use crate::config::TrainerConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, GroupWeight, TrainState};
use crate::metric::Metrics;
use crate::module::TrainModule;
use crate::optim::Optimizers;
use crate::panics;
use crate::parameters::parameters;
use crate::progress::Progress;
use burn::module::Module;
use burn::tensor::backend::Backend;
use folder::Files;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
/// The weights that are trained, where `model.safetensors` has their average.
const TRAINED: &str = "trained.safetensors";
const GRADIENTS: &str = "gradients.safetensors";
const STATE: &str = "state.json";

/// The other name of the newest checkpoint in a folder.
pub(crate) const LAST: &str = "last";

/// More of anything than a run has done; counting on from there does not overflow.
const MAX_COUNT: u64 = 1 << 60;

/// The Burn that this firebox is built with.
pub(crate) const BURN_VERSION: &str = "0.21.0";

fn optimizer_file(index: usize) -> String {
    format!("optimizer-{index}.cbor")
}

/// A checkpoint, read and checked.
///
/// ```
/// # use firebox::testing::{Line, Cpu, line_data};
/// use firebox::checkpoint::Checkpoint;
/// use firebox::data::Loaders;
/// use firebox::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let runs = tempfile::tempdir().unwrap();
/// let config = TrainerConfig::new().with_max_epochs(2).with_run_dir(runs.path());
/// let device = Default::default();
/// let mut data = Loaders::new(line_data().batch_size(8));
/// let outcome = Trainer::new(config, device).fit(Line::<Cpu>::new(&device), &mut data)?;
///
/// let checkpoint = Checkpoint::open(outcome.last_checkpoint.unwrap())?;
/// assert_eq!(checkpoint.progress().global_step, 8);
/// let model = checkpoint.load_model(Line::<Cpu>::new(&device))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    files: Files,
    state: RunState,
}

impl Checkpoint {
    /// Reads a checkpoint's folder and checks every file of it.
    ///
    /// # Errors
    /// No checkpoint there; a damaged one ([`ErrorKind::Corrupt`]), with the file at fault; or one
    /// of a newer format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_files(path, Files::read(path)?)
    }

    /// The checkpoint of these files. `path` is for messages.
    fn from_files(path: &Path, files: Files) -> Result<Self> {
        let damaged = |what: &str| folder::corrupt(path, what);
        let text = files.contents.get(STATE);
        let text = text.ok_or_else(|| damaged("`state.json` is missing"))?;
        let state: RunState = serde_json::from_slice(text)
            .map_err(|e| damaged("`state.json` cannot be read").with_source(e))?;
        if (files.epoch, files.step) != (state.progress.epoch, state.progress.global_step) {
            return Err(damaged(
                "`manifest.json` and `state.json` are of different steps",
            ));
        }
        if state.progress.counts().any(|count| count > MAX_COUNT) {
            return Err(damaged("`state.json` counts more than any run has done"));
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            state,
        })
    }

    /// Everything, for another process.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let lengths = self.files.contents.iter();
        let header = (
            &self.path,
            self.files.epoch,
            self.files.step,
            lengths
                .map(|(name, bytes)| (name, bytes.len()))
                .collect::<Vec<_>>(),
        );
        let header = serde_json::to_vec(&header)
            .map_err(|e| Error::config("the checkpoint's path cannot be sent").with_source(e))?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&header);
        for content in self.files.contents.values() {
            bytes.extend_from_slice(content);
        }
        Ok(bytes)
    }

    /// What [`to_bytes`](Self::to_bytes) gave.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::new(ErrorKind::Corrupt, "the checkpoint was sent incompletely");
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (header, mut rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let header: (PathBuf, u64, u64, Vec<(String, usize)>) =
            serde_json::from_slice(header).map_err(|e| damaged().with_source(e))?;
        let (path, epoch, step, lengths) = header;
        let mut files = Files {
            epoch,
            step,
            ..Files::default()
        };
        for (name, length) in lengths {
            let (content, after) = rest.split_at_checked(length).ok_or_else(damaged)?;
            files.contents.insert(name, content.to_vec());
            rest = after;
        }
        Self::from_files(&path, files)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How far the run was.
    pub fn progress(&self) -> &Progress {
        &self.state.progress
    }

    /// The latest value of every logged name.
    pub fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    /// The settings of the run.
    ///
    /// # Errors
    /// A setting that this version does not have.
    pub fn config(&self) -> Result<TrainerConfig> {
        TrainerConfig::from_toml_str(&self.state.config)
            .map_err(|e| e.context(format!("the settings in `{}`", self.path.display())))
    }

    /// The hyper-parameters that the [`Trainer`](crate::Trainer) was given.
    ///
    /// # Errors
    /// There are none, or they are of another type.
    pub fn hyper_parameters<H: DeserializeOwned>(&self) -> Result<H> {
        let path = self.path.display();
        if self.state.hyper_parameters.is_null() {
            return Err(Error::config(format!(
                "`{path}` has no hyper-parameters; give them to `Trainer::with_hyper_parameters`"
            )));
        }
        H::deserialize(&self.state.hyper_parameters).map_err(|e| {
            let what = format!("the hyper-parameters in `{path}` are not of this type");
            Error::config(what).with_source(e)
        })
    }

    /// The parameters, to be loaded into any model that has some of them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub fn weights(&self) -> Result<Weights> {
        Weights::of_checkpoint(&self.path, &self.files, MODEL)
    }

    /// A model of the same architecture with the checkpoint's parameters.
    ///
    /// # Errors
    /// A parameter that is not there, is of another shape, or is left over; each is named.
    pub fn load_model<B: Backend, M: Module<B>>(&self, model: M) -> Result<M> {
        let (model, _) = self.weights()?.load(model)?;
        Ok(model)
    }

    /// A model in training, as it was: parameters, optimizers, schedules, and the gradients of the
    /// step that was being built. For loops written by hand; [`Trainer`](crate::Trainer) resumes by
    /// its settings.
    ///
    /// # Errors
    /// Another model, other groups, optimizers or schedules.
    pub fn restore<M: TrainModule>(
        &self,
        fabric: &Fabric<M::Backend>,
        model: M,
        optimizers: Optimizers<M>,
    ) -> Result<TrainState<M>> {
        let trained = match self.state.averaged {
            Some(_) => TRAINED,
            None => MODEL,
        };
        let weights = Weights::of_checkpoint(&self.path, &self.files, trained)?;
        let (mut model, _) = weights.load(fabric.in_format(model)?)?;
        panics::catch(ErrorKind::User, || model.load_state(&self.state.model))
            .map_err(|e| e.context("load_state of the model"))?;
        let mut state = fabric.setup_with(model, optimizers)?;
        self.restore_optimizers(fabric, &mut state)?;
        if let (Some(count), true) = (self.state.averaged, fabric.averages()) {
            let model = self.load_model(state.average_to_load()?)?;
            state.resume_average(model, count);
        }
        if let (Some(scaler), Some(saved)) = (&mut state.scaler, &self.state.scaler) {
            let place = |e: Error| e.context(self.path.join(STATE).display());
            scaler.resume(saved).map_err(place)?;
        }
        state.keep_pruned(self.state.pruned.clone());
        if let Some(weight) = self.state.gradients {
            self.restore_gradients(weight, &mut state)?;
        }
        Ok(state)
    }

    fn restore_optimizers<M: TrainModule>(
        &self,
        fabric: &Fabric<M::Backend>,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        let saved = &self.state.optimizers;
        let mut kept = Vec::new();
        for (index, _) in saved.names().enumerate() {
            let name = optimizer_file(index);
            let bytes = self.file(&name)?;
            let value = ciborium::from_reader(bytes).map_err(|e| {
                folder::corrupt(&self.path, format!("`{name}` cannot be read")).with_source(e)
            })?;
            kept.push(value);
        }
        let model = state.present()?.clone();
        state
            .optimizers
            .load(&model, saved, kept, fabric.device())
            .map_err(|e| e.context(self.path.display()))
    }

    fn restore_gradients<M: TrainModule>(
        &self,
        weight: GroupWeight,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        let place = |e: Error| e.context(self.path.join(GRADIENTS).display());
        let (mut tensors, _) = tensors::decode(self.file(GRADIENTS)?).map_err(place)?;
        let parameters = parameters(state.present()?);
        let of_ids = parameters
            .into_iter()
            .filter_map(|p| Some((p.id, tensors.remove(&p.path)?)));
        let data: HashMap<_, _> = of_ids.collect();
        if let Some((path, _)) = tensors.pop_first() {
            let what = format!("`{path}` is no parameter of this model");
            return Err(place(Error::new(ErrorKind::Corrupt, what)));
        }
        panics::catch(ErrorKind::Backend, || state.write_gradients(weight, data)).map_err(place)
    }

    fn file(&self, name: &str) -> Result<&[u8]> {
        let content = self.files.contents.get(name).map(Vec::as_slice);
        content.ok_or_else(|| folder::corrupt(&self.path, format!("`{name}` is missing")))
    }

    /// The best checkpoint of the run so far, if the run watched a value.
    pub fn best(&self) -> Option<PathBuf> {
        let best = self.state.records.best.as_ref()?;
        Some(moved(best, &self.path))
    }

    pub(crate) fn state(&self) -> &RunState {
        &self.state
    }
}

/// Loads the parameters of a checkpoint into a model of the same architecture, on any backend.
///
/// ```no_run
/// # use firebox::testing::{Line, Cpu};
/// let model = Line::<Cpu>::new(&Default::default());
/// let path = "runs/version_0/checkpoints/last";
/// let model = firebox::checkpoint::load_model(path, model)?;
/// # Ok::<(), firebox::Error>(())
/// ```
///
/// # Errors
/// No checkpoint at this path, a damaged one, or one of another model.
pub fn load_model<B: Backend, M: Module<B>>(path: impl AsRef<Path>, model: M) -> Result<M> {
    Checkpoint::open(path)?.load_model(model)
}

/// Builds a model from the hyper-parameters in a checkpoint, and loads its parameters.
///
/// ```no_run
/// # use firebox::testing::{Line, Cpu};
/// # #[derive(serde::Deserialize)] struct Config;
/// # impl Config { fn init(&self, device: &<Cpu as burn::tensor::backend::BackendTypes>::Device) -> Line<Cpu> { Line::new(device) } }
/// let device = Default::default();
/// let path = "runs/version_0/checkpoints/last";
/// let model = firebox::checkpoint::load_from_checkpoint(path, |config: Config| config.init(&device))?;
/// # Ok::<(), firebox::Error>(())
/// ```
///
/// # Errors
/// As [`load_model`], or no hyper-parameters, or those of another type.
pub fn load_from_checkpoint<H: DeserializeOwned, B: Backend, M: Module<B>>(
    path: impl AsRef<Path>,
    build: impl FnOnce(H) -> M,
) -> Result<M> {
    let checkpoint = Checkpoint::open(path)?;
    let hyper_parameters = checkpoint.hyper_parameters()?;
    let model = panics::catch(ErrorKind::User, || Ok(build(hyper_parameters)))?;
    checkpoint.load_model(model)
}

/// Saves a model in training into a new folder, for loops written by hand;
/// [`Checkpoint::restore`] takes it up again. Of several ranks the first saves, after an optimizer
/// step and before the next batch.
///
/// ```
/// # use firebox::testing::{Line, Cpu, line_data};
/// use firebox::checkpoint::{self, Checkpoint};
/// use firebox::prelude::*;
/// use firebox::progress::Progress;
///
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let fabric = Fabric::new(Default::default());
/// let mut state = fabric.setup(Line::<Cpu>::new(&Default::default()))?;
/// let progress = Progress { epoch: 3, global_step: 12, ..Progress::default() };
/// let path = dir.path().join("after-epoch-3");
/// checkpoint::save(&path, &mut state, &progress)?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let model = Line::<Cpu>::new(&Default::default());
/// let optimizers = model.configure_optimizers()?;
/// let state = checkpoint.restore(&fabric, model, optimizers)?;
/// assert_eq!(checkpoint.progress().epoch, 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The folder exists, or whatever the file system refuses; then nothing has changed.
pub fn save<M: TrainModule>(
    path: impl AsRef<Path>,
    state: &mut TrainState<M>,
    progress: &Progress,
) -> Result<()> {
    let config = TrainerConfig::default();
    let run = RunState {
        progress: *progress,
        seed: config.seed,
        config: config.to_toml()?,
        ..RunState::default()
    };
    pack(state, run)?.encode()?.write(path.as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_burn_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains(&format!("burn = {{ version = \"={BURN_VERSION}\"")));
    }
}
