//! Everything a user can get wrong: what firebox says, with which exit code, and what it leaves.
//!
//! No panic may escape (a test would fail by it), and no half-written file may stay.

mod callbacks;
mod data;
mod model;
mod process;
mod settings;

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::callback::RunContext;
use firebox::config::ProgressMode;
use firebox::data::{EvalLoader, Loaders, TrainLoader};
use firebox::prelude::*;
use firebox::testing::{Cpu, PointBatcher, Points};
use firebox::{ErrorKind, checkpoint};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What a [`Net`] does wrong, in every epoch's third batch unless it says something else.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    StepError,
    StepPanic,
    /// A loss for each sample instead of their mean.
    ManyLosses,
    Weight(f64),
    /// A logged value for each sample.
    ManyValues,
    ConfigureError,
    ConfigurePanic,
    NoLearningRate,
    ValidationError,
    ValidationPanic,
}

/// y = w·x + b with a fault.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    linear: Linear<B>,
    #[module(skip)]
    fault: Fault,
}

impl<B: Backend> Net<B> {
    fn losses(&self, (x, y): Points<B>) -> burn::tensor::Tensor<B, 2> {
        MseLoss::new().forward_no_reduction(self.linear.forward(x), y)
    }
    fn loss(&self, (x, y): Points<B>) -> burn::tensor::Tensor<B, 1> {
        MseLoss::new().forward(self.linear.forward(x), y, Reduction::Mean)
    }
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        if cx.progress().batch != 2 {
            return Ok(self.loss(batch).into());
        }
        match self.fault {
            Fault::StepError => Err(Error::user("the step has had enough")),
            Fault::StepPanic => panic!("the step has had enough"),
            Fault::ManyLosses => Ok(self.losses(batch).flatten::<1>(0, 1).into()),
            Fault::Weight(weight) => Ok(Loss::weighted(self.loss(batch), weight)),
            Fault::ManyValues => {
                cx.log("losses", self.losses(batch.clone()).flatten::<1>(0, 1));
                Ok(self.loss(batch).into())
            }
            _ => Ok(self.loss(batch).into()),
        }
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let sgd = Optimizers::single(SgdConfig::new().init());
        match self.fault {
            Fault::ConfigureError => Err(Error::user("no optimizer is good enough")),
            Fault::ConfigurePanic => panic!("no optimizer is good enough"),
            Fault::NoLearningRate => Ok(sgd),
            _ => Ok(sgd.with_lr(0.1)),
        }
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;

    fn validation_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<()> {
        match self.fault {
            Fault::ValidationError => Err(Error::user("the validation has had enough")),
            Fault::ValidationPanic => panic!("the validation has had enough"),
            _ => {
                cx.log("loss", self.loss(batch));
                Ok(())
            }
        }
    }
}

/// A model with this fault.
fn net(fault: Fault) -> Net<Cpu> {
    let linear = LinearConfig::new(1, 1).init(&Device::<Cpu>::default());
    Net { linear, fault }
}

/// Four batches of four points.
fn points<B: Backend>() -> Loader<B, Points<B>> {
    let points = (0..16).map(|i| (i as f32 / 16.0, 1.0)).collect();
    Loader::new(InMemDataset::new(points), PointBatcher).batch_size(4)
}

fn data() -> Loaders<Net<Cpu>> {
    Loaders::new(points()).with_val(points())
}

/// A data module that gives what it is told to.
#[derive(Default)]
struct Given {
    train: Option<TrainLoader<Net<Cpu>>>,
    val: Option<EvalLoader<Net<Cpu>>>,
}

impl DataModule<Net<Cpu>> for Given {
    fn train_loader(&self) -> Result<Option<TrainLoader<Net<Cpu>>>> {
        Ok(self.train.clone())
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<Net<Cpu>>>> {
        Ok(self.val.clone())
    }
}

/// A folder for the runs of one test.
struct Runs(TempDir);

impl Runs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("runs")
    }

    /// Two epochs, every step logged.
    fn config(&self) -> TrainerConfig {
        TrainerConfig::new()
            .with_run_dir(self.dir())
            .with_max_epochs(2)
            .with_log_every_n_steps(1)
            .with_progress(ProgressMode::Off)
    }

    fn trainer(&self) -> Trainer<Net<Cpu>> {
        Trainer::new(self.config(), Device::<Cpu>::default())
    }

    /// The error of a fit with this fault.
    fn fit(&self, fault: Fault) -> Error {
        let outcome = self.trainer().fit(net(fault), &mut data());
        outcome.expect_err("the fit must fail")
    }

    /// Nothing was written, not even the folder.
    #[track_caller]
    fn assert_nothing_written(&self) {
        let found: Vec<_> = fs::read_dir(self.0.path()).unwrap().collect();
        assert!(found.is_empty(), "{found:?}");
    }

    /// The one run's folder has whole files alone: its settings, rows of equal length, and
    /// checkpoints that load. Returns the checkpoints' names.
    #[track_caller]
    fn assert_whole(&self) -> Vec<String> {
        let run = self.dir().join("version_0");
        assert_eq!(names(&self.dir()), ["version_0"]);
        let mut expected = vec!["config.toml"];
        TrainerConfig::from_file(run.join("config.toml")).unwrap();
        if run.join("metrics.csv").exists() {
            expected.push("metrics.csv");
            let mut rows = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
            assert!(rows.records().all(|row| row.is_ok()));
        }
        let checkpoints = run.join("checkpoints");
        let mut found = Vec::new();
        if checkpoints.exists() {
            expected.insert(0, "checkpoints");
            found = names(&checkpoints);
        }
        expected.push("run.jsonl");
        assert_eq!(names(&run), expected);
        found.retain(|name| name != "last");
        for name in &found {
            let checkpoint = checkpoints.join(name);
            assert_eq!(
                names(&checkpoint),
                [
                    "manifest.json",
                    "model.safetensors",
                    "optimizer-0.cbor",
                    "state.json"
                ]
            );
            checkpoint::load_model(&checkpoint, net(Fault::Nothing)).unwrap();
            let state = fs::read(checkpoint.join("state.json")).unwrap();
            serde_json::from_slice::<serde_json::Value>(&state).unwrap();
        }
        found
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The error is of this kind and says exactly this, and the exit code is the kind's.
#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, message: &str) {
    assert_eq!(without_places(&error.to_string()), message);
    assert_eq!(error.kind(), kind);
    let code = if kind == ErrorKind::Config { 2 } else { 1 };
    assert_eq!(error.exit_code(), code);
}

/// The message without where in which source a panic was raised: `(at FILE:LINE:COLUMN)`.
fn without_places(message: &str) -> String {
    let Some((before, rest)) = message.split_once(" (at ") else {
        return message.to_owned();
    };
    let (place, after) = rest.split_once(')').unwrap();
    assert!(place.contains(".rs:"), "{place}");
    format!("{before}{}", without_places(after))
}
