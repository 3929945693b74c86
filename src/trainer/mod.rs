//! Settings, callbacks and loggers around the loops.

mod equipment;
mod evaluate;
mod predictions;
mod ranks;
mod resume;
mod run_dir;
mod search;

pub use predictions::PredictionWriter;
pub use search::{
    BatchSizeMode, BatchSizeSearch, LearningRateMode, LearningRatePoint, LearningRateSearch,
    LearningRates,
};

use crate::accelerators::Hardware;
use crate::callback::Callback;
use crate::checkpoint::{self, Position};
use crate::config::{Limit, ProgressMode, SanitySteps, Strategy, TrainerConfig, ValCheckInterval};
use crate::control::Inbox;
use crate::data::{DataModule, Loader};
use crate::distributed::World;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{self, Fabric, TrainState};
use crate::logger::Logger;
use crate::loops::fit::{Loaders, StopReason};
use crate::loops::{Own, Run, fit};
use crate::metric::Metrics;
use crate::module::{TrainModule, short_type_name};
use crate::optim::Optimizers;
use crate::output::say;
use crate::panics;
use crate::profiler::Profiler;
use crate::progress::{Progress, Stage};
use burn::tensor::Device;
use burn::tensor::backend::Backend;
use ranks::{Lanes, Ranks};
use resume::Resumed;
use run_dir::RunDir;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Trains, validates, tests and predicts with a model.
///
/// A [`Launch`](crate::Launch) makes one for the accelerator it found; [`Trainer::new`] makes one
/// for a device you chose.
///
/// ```
/// # use firebox::testing::{Line, Cpu, line_data};
/// use firebox::data::Loaders;
/// use firebox::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let runs = tempfile::tempdir().unwrap();
/// let config = TrainerConfig::new().with_max_epochs(20).with_run_dir(runs.path());
/// let device = Default::default();
/// let mut data = Loaders::new(line_data().batch_size(8).shuffle(true)).with_val(line_data());
/// let outcome = Trainer::new(config, device).fit(Line::<Cpu>::new(&device), &mut data)?;
/// assert!(outcome.metrics.get("val/loss").unwrap() < 0.01);
/// # Ok(())
/// # }
/// ```
pub struct Trainer<M: TrainModule> {
    config: TrainerConfig,
    placement: Placement<Device<M::Backend>>,
    lanes: Lanes,
    hardware: Hardware,
    callbacks: Vec<Box<dyn Callback<M>>>,
    loggers: Vec<Box<dyn Logger>>,
    hyper_parameters: Value,
    /// Of the last fit; rows of a test belong to its last step.
    progress: Progress,
    /// The folder of the last fit.
    last_run: Option<PathBuf>,
}

/// Where the replicas of a model are.
enum Placement<D> {
    On(Vec<D>),
    /// As many on this processor, up to so many, as make sense for the model.
    Auto(D, usize),
}

/// What a fit leaves behind.
#[derive(Debug)]
#[non_exhaustive]
pub struct FitOutcome<M> {
    /// The model after the last step.
    pub model: M,
    /// The best checkpoint by the value that a [`ModelCheckpoint`](crate::callback::ModelCheckpoint) watches, if one does.
    pub best_checkpoint: Option<PathBuf>,
    /// The checkpoint of the last step, if checkpoints are written.
    pub last_checkpoint: Option<PathBuf>,
    /// The latest value of every logged name.
    pub metrics: Metrics,
    /// Epochs, batches, steps and samples.
    pub progress: Progress,
    /// Why it ended.
    pub stopped: StopReason,
    /// The folder with the run's files, if it wrote any.
    pub run_dir: Option<PathBuf>,
    /// How long it took, validation included.
    pub elapsed: Duration,
}

impl<M: TrainModule> Trainer<M> {
    /// A trainer on this device.
    pub fn new(config: TrainerConfig, device: Device<M::Backend>) -> Self {
        Self {
            config,
            placement: Placement::On(vec![device]),
            lanes: Lanes::default(),
            hardware: Hardware::unnamed::<M::Backend>(),
            callbacks: Vec::new(),
            loggers: Vec::new(),
            hyper_parameters: Value::Null,
            progress: Progress::default(),
            last_run: None,
        }
    }

    /// Trains on all of these devices, in place of the one it was made with: each has a replica of
    /// the model and takes its part of every batch. The same device may be there several times; on
    /// the CPU that makes use of several cores.
    ///
    /// ```
    /// # use firebox::testing::{Line, Cpu, line_data};
    /// # use firebox::data::Loaders;
    /// # use firebox::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let runs = tempfile::tempdir().unwrap();
    /// # let config = TrainerConfig::new().with_max_epochs(1).with_run_dir(runs.path());
    /// let cpu = Default::default();
    /// let mut data = Loaders::new(line_data().batch_size(8));
    /// let mut trainer = Trainer::new(config, cpu).with_devices([cpu, cpu]);
    /// let outcome = trainer.fit(Line::<Cpu>::new(&cpu), &mut data)?;
    /// assert_eq!(outcome.progress.global_step, 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = Device<M::Backend>>) -> Self {
        self.placement = Placement::On(devices.into_iter().collect());
        self
    }

    /// Says what the devices are.
    pub(crate) fn with_hardware(mut self, hardware: Hardware) -> Self {
        self.hardware = hardware;
        self
    }

    /// Leaves it to the model and the data how many replicas the processor has, on up to so many
    /// cores.
    pub(crate) fn with_replicas_by_need(mut self, cores: usize) -> Self {
        self.placement = Placement::Auto(self.device(), cores);
        self
    }

    /// Adds a callback; hooks run in the order callbacks were added.
    #[must_use]
    pub fn with_callback(mut self, callback: impl Callback<M> + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds a logger, beside those that the config names.
    #[must_use]
    pub fn with_logger(mut self, logger: impl Logger + 'static) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Puts what the model was built with (its sizes, its dropout) into every checkpoint, for
    /// [`load_from_checkpoint`](crate::checkpoint::load_from_checkpoint) to build it again.
    ///
    /// # Errors
    /// Something that JSON cannot hold, such as a map whose keys are no text.
    pub fn with_hyper_parameters(mut self, hyper_parameters: &impl Serialize) -> Result<Self> {
        self.hyper_parameters = serde_json::to_value(hyper_parameters)
            .map_err(|e| Error::config("the hyper-parameters cannot be saved").with_source(e))?;
        Ok(self)
    }

    /// The settings.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// Trains the model with the optimizers it asks for.
    ///
    /// # Errors
    /// A wrong setting, before any work; or what a step, the data, a callback or a file reports,
    /// with the epoch and batch. With checkpoints on, the last step's model has been saved.
    pub fn fit(&mut self, model: M, data: &mut impl DataModule<M>) -> Result<FitOutcome<M>> {
        let optimizers = fabric::configured(&model)?;
        self.fit_with(model, optimizers, data)
    }

    /// Trains the model with these optimizers.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn fit_with(
        &mut self,
        model: M,
        optimizers: Optimizers<M>,
        data: &mut impl DataModule<M>,
    ) -> Result<FitOutcome<M>> {
        let config = effective(&self.config)?;
        self.check_callbacks(&config)?;
        let world = World::join(config.num_nodes, config.collective_timeout.as_duration())?;
        let outcome = self.fit_in(&world, &config, model, optimizers, data);
        world.told(outcome)
    }

    fn fit_in(
        &mut self,
        world: &World,
        config: &TrainerConfig,
        model: M,
        optimizers: Optimizers<M>,
        data: &mut impl DataModule<M>,
    ) -> Result<FitOutcome<M>> {
        let fabric = Fabric::from_config(config, self.device());
        if let Some(precision) = fabric.format.chosen(config).filter(|_| world.is_root())
            && config.progress != ProgressMode::Off
        {
            say!("precision: {precision}");
        }
        M::Backend::seed(fabric.device(), config.seed);
        let dirs = self.callbacks.iter().filter_map(|c| c.checkpoint_dir());
        let dirs: Vec<_> = dirs.collect();
        let resumed = resume::find_for_all(&world.processes, config, &dirs)?;
        if world.is_root() {
            resume::announce(config, resumed.as_ref());
        }
        let mut state = match &resumed {
            None => fabric.setup_with(model, optimizers)?,
            Some(Resumed { checkpoint, .. }) => checkpoint.restore(&fabric, model, optimizers)?,
        };
        state.take_parameters(&world.processes)?;
        if state.optimizers.manual && config.accumulate_grad_batches != 1 {
            return Err(Error::config(format!(
                "`accumulate_grad_batches` is {}, but `{}` steps its optimizers by hand; use 1",
                config.accumulate_grad_batches,
                short_type_name::<M>()
            )));
        }
        if state.optimizers.manual && !matches!(config.strategy, Strategy::Auto | Strategy::Ddp) {
            return Err(Error::config(format!(
                "`strategy` is {}, but `{}` steps its optimizers by hand; use ddp",
                config.strategy,
                short_type_name::<M>()
            )));
        }
        let loaders = fit_loaders(world, config, data, resumed.as_ref())?;
        let plan = fit::Plan::new(config, &loaders)?;
        let batch_size = loaders.train.as_ref().map(Loader::global_batch_size);
        // Steps by hand are those of models that draw (GANs), and replicas on one processor draw from
        // one generator.
        let batch_size = batch_size.filter(|_| !state.optimizers.manual);
        let ranks = self.ranks(world, config, state.present()?, batch_size)?;
        let start = Instant::now();
        let given = (self.callbacks.len(), self.loggers.len());
        let is_root = world.is_root();
        let fitted = self.equip_and_run(
            is_root, config, ranks, &mut state, resumed, data, &loaders, plan,
        );
        // What the config has added is of this fit alone.
        self.callbacks.truncate(given.0);
        self.loggers.truncate(given.1);
        let elapsed = start.elapsed();
        let (stopped, metrics, left) = fitted?;
        let mut left = world.processes.broadcast(left)?;
        if let Some(best) = left.restored.take() {
            state.forget_average();
            state.restore_parameters(&world.processes, |model| {
                checkpoint::load_model(best, model)
            })?;
        }
        self.last_run.clone_from(&left.run_dir);
        Ok(FitOutcome {
            stopped,
            model: state.into_evaluated()?,
            best_checkpoint: left.best,
            last_checkpoint: left.last,
            metrics,
            progress: self.progress,
            run_dir: left.run_dir,
            elapsed,
        })
    }

    /// Makes the run's folder, adds what the config asks for, and runs the loop.
    #[allow(clippy::too_many_arguments, reason = "private, called once")]
    fn equip_and_run(
        &mut self,
        is_root: bool,
        config: &TrainerConfig,
        ranks: Ranks<M::Backend>,
        state: &mut TrainState<M>,
        resumed: Option<Resumed>,
        data: &impl DataModule<M>,
        loaders: &Loaders<M>,
        plan: fit::Plan,
    ) -> Result<(StopReason, Metrics, Left)> {
        let run_dir = match is_root {
            true => self.prepare_run_dir(resumed.as_ref())?,
            false => None,
        };
        let inbox = run_dir.as_ref().map(RunDir::inbox);
        let run_dir = run_dir.as_ref().map(RunDir::path);
        let mut profiler = Profiler::default();
        if is_root {
            self.add_default_callbacks(config, run_dir)?;
            profiler = equipment::profiler(config, run_dir)?;
        }
        let ranks = ranks.with_profiler(&profiler);
        let (stopped, metrics) = self.run(
            config, &ranks, state, run_dir, inbox, resumed, data, loaders, plan,
        )?;
        Ok((stopped, metrics, Left::by(&self.callbacks, run_dir)))
    }

    /// Runs the loop with the trainer's callbacks and loggers, and keeps how far it came.
    #[allow(clippy::too_many_arguments, reason = "private, called once")]
    fn run(
        &mut self,
        config: &TrainerConfig,
        ranks: &Ranks<M::Backend>,
        state: &mut TrainState<M>,
        run_dir: Option<&Path>,
        inbox: Option<Inbox>,
        resumed: Option<Resumed>,
        data: &impl DataModule<M>,
        loaders: &Loaders<M>,
        plan: fit::Plan,
    ) -> Result<(StopReason, Metrics)> {
        let fabric = ranks.first();
        let is_root = fabric.group.is_root();
        // The first rank alone looks, logs and saves.
        let callbacks = if is_root {
            self.callbacks.as_mut_slice()
        } else {
            &mut []
        };
        let logs = is_root && config.fast_dev_run.batches().is_none();
        let loggers = if logs {
            self.loggers.as_mut_slice()
        } else {
            &mut []
        };
        let mut run = Run::new(config, fabric, callbacks, loggers);
        run.run_dir = run_dir;
        run.hardware = self.hardware.clone();
        run.inbox = inbox;
        run.own = Own {
            hyper_parameters: self.hyper_parameters.clone(),
            data: Box::new(|| ask("save_state", || Ok(data.save_state()))),
            config: self.config.to_toml()?,
        };
        if let Some(Resumed {
            checkpoint,
            run_dir,
        }) = resumed
        {
            match is_root {
                true => run.restore(&checkpoint, run_dir.is_some())?,
                false => run.count_from(&checkpoint),
            }
        }
        if !is_root {
            state.drop_gradients();
        }
        let others = ranks.start(|fabric| {
            let replica = Replica {
                config: config.clone(),
                state: state.replica(fabric.device())?,
                loaders: loaders.clone(),
                plan: plan.clone(),
                counters: (run.progress, run.position),
            };
            Ok(Box::new(|fabric| replica.fit(fabric)))
        })?;
        let fitted = run.run_to_end(&self.config, state, |run, state| {
            fit::fit(run, state, loaders, plan)
        });
        self.progress = run.progress;
        let metrics = std::mem::take(&mut run.metrics);
        let profiled = equipment::write_profile(config, &fabric.profiler, run_dir);
        let stopped = ended_with(fitted, others.wait())?;
        // What has been trained is worth more.
        if let Err(error) = profiled {
            say!("warning: {error}");
        }
        Ok((stopped, metrics))
    }

    /// The device that the model is on.
    fn device(&self) -> Device<M::Backend> {
        match &self.placement {
            Placement::Auto(device, _) => device.clone(),
            Placement::On(devices) => devices.first().cloned().unwrap_or_default(),
        }
    }

    /// The ranks for this model.
    fn ranks(
        &mut self,
        world: &World,
        config: &TrainerConfig,
        model: &M,
        batch_size: Option<usize>,
    ) -> Result<Ranks<M::Backend>> {
        let devices = match &self.placement {
            Placement::On(devices) => devices.clone(),
            Placement::Auto(device, cores) => {
                let batch_size = batch_size.map(|size| size / world.processes.size());
                let replicas = ranks::useful_replicas(model, *cores, batch_size);
                vec![device.clone(); replicas]
            }
        };
        Ranks::new(config, &devices, &mut self.lanes, world.link())
    }
}

/// A replica of the model beside the first.
struct Replica<M: TrainModule> {
    config: TrainerConfig,
    state: TrainState<M>,
    loaders: Loaders<M>,
    plan: fit::Plan,
    counters: (Progress, Position),
}

impl<M: TrainModule> Replica<M> {
    /// Takes part in a fit.
    fn fit(mut self, fabric: &Fabric<M::Backend>) -> Result<()> {
        let mut run = Run::new(&self.config, fabric, &mut [], &mut []);
        (run.progress, run.position) = self.counters;
        fit::fit(&mut run, &mut self.state, &self.loaders, self.plan).map(drop)
    }
}

/// What the callbacks of a fit leave behind.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Left {
    best: Option<PathBuf>,
    last: Option<PathBuf>,
    /// The checkpoint whose parameters the model is to have.
    restored: Option<PathBuf>,
    run_dir: Option<PathBuf>,
}

impl Left {
    fn by<M: TrainModule>(callbacks: &[Box<dyn Callback<M>>], run_dir: Option<&Path>) -> Self {
        let best = callbacks.iter().find_map(|c| c.best_checkpoint());
        let last = callbacks.iter().find_map(|c| c.last_checkpoint());
        let restores = callbacks.iter().find(|c| c.restores_best());
        let restored = restores.and_then(|c| c.best_checkpoint());
        Self {
            best: best.map(Path::to_path_buf),
            last: last.map(Path::to_path_buf),
            restored: restored.map(Path::to_path_buf),
            run_dir: run_dir.map(Path::to_path_buf),
        }
    }
}

/// What the first rank came to, once the others are gone.
fn ended_with<T>(first: Result<T>, others: Result<()>) -> Result<T> {
    match (first, others) {
        (Err(error), others) => Err(error.followed_by(others.err())),
        (Ok(done), others) => others.map(|()| done),
    }
}

/// The settings, checked, as `fast_dev_run` and `overfit_batches` change them.
fn effective(config: &TrainerConfig) -> Result<TrainerConfig> {
    config.check()?;
    let mut config = config.clone();
    if let Some(batches) = config.fast_dev_run.batches() {
        let few = Limit::Batches(batches as usize);
        config.max_epochs = Some(1);
        config.limit_train_batches = few;
        if !config.limit_val_batches.is_none() {
            config.limit_val_batches = few;
        }
        config.limit_test_batches = few;
        config.limit_predict_batches = few;
        config.num_sanity_val_steps = SanitySteps::Batches(0);
        config.val_check_interval = ValCheckInterval::Fraction(1.0);
        config.check_val_every_n_epoch = 1;
    }
    if !config.overfit_batches.is_none() {
        config.limit_train_batches = config.overfit_batches;
        config.limit_val_batches = config.overfit_batches;
    }
    Ok(config)
}

/// The loaders of a fit, checked. A stage limited to 0 batches is never asked for its loader.
fn fit_loaders<M: TrainModule, D: DataModule<M>>(
    world: &World,
    config: &TrainerConfig,
    data: &mut D,
    resumed: Option<&Resumed>,
) -> Result<Loaders<M>> {
    world.once_per_node(|| ask("prepare", || data.prepare()))?;
    ask("setup", || data.setup(Stage::Train))?;
    if let Some(resumed) = resumed {
        let state = &resumed.checkpoint.state().data;
        ask("load_state", || data.load_state(state))?;
    }
    let train = match config.limit_train_batches.is_none() {
        true => None,
        false => {
            let train = ask("train_loader", || data.train_loader())?;
            let train = train.ok_or_else(|| no_loader(data, "train"))?;
            train.check().map_err(|e| e.context("train loader"))?;
            Some(train)
        }
    };
    let val = match config.limit_val_batches.is_none() {
        true => None,
        false => ask("val_loader", || data.val_loader())?,
    };
    if let Some(val) = &val {
        val.check().map_err(|e| e.context("val loader"))?;
    }
    let is_per_process = data.is_per_process();
    let loaders = Loaders {
        is_per_process,
        train,
        val,
    };
    Ok(loaders.for_overfitting(config.overfit_batches))
}

/// Calls a method of a data module.
fn ask<T>(method: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    panics::catch(ErrorKind::Data, call).map_err(|e| e.context(method))
}

fn no_loader<D>(_data: &D, name: &str) -> Error {
    Error::config(format!(
        "the data module `{}` has no {name} loader; implement `{name}_loader`",
        short_type_name::<D>()
    ))
}
