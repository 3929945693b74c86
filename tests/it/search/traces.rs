//! A fit after a search is the fit without one, bit by bit. Each is in a process of its own, as the
//! weights are drawn at their first use, from a generator that all threads of a process share.

use crate::support::own_process;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, activation};
use firebox::config::{ProgressMode, Resume};
use firebox::data::Loaders;
use firebox::optim::schedule::{Cosine, ScheduleInterval};
use firebox::prelude::*;
use firebox::trainer::{BatchSizeSearch, LearningRateSearch};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
    second: Linear<B>,
}

type Points<B> = Tensor<B, 2>;

#[derive(Debug, Clone, Copy)]
struct PointBatcher;

impl<B: Backend> Batcher<B, [f32; 3], Points<B>> for PointBatcher {
    fn batch(&self, items: Vec<[f32; 3]>, device: &B::Device) -> Points<B> {
        let rows = items.len();
        let values: Vec<f32> = items.into_iter().flatten().collect();
        Tensor::from_data(TensorData::new(values, [rows, 3]), device)
    }
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(3, 5).init(device),
            norm: BatchNormConfig::new(5).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            second: LinearConfig::new(5, 3).init(device),
        }
    }

    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let hidden = self.norm.forward(self.first.forward(x.clone()));
        let hidden = self.dropout.forward(activation::relu(hidden));
        (self.second.forward(hidden) - x).square().mean()
    }
}

/// Whether the third step fails.
static FAILS: AtomicBool = AtomicBool::new(false);

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, x: Points<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        if FAILS.load(Ordering::Relaxed) && cx.progress().batch == 2 {
            return Err(Error::user("the step has had enough"));
        }
        Ok(self.loss(x).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init())
            .with_lr(0.05)
            .with_schedule(ScheduleInterval::Step, Cosine::new(100)))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;

    fn validation_step(&self, x: Points<B>, cx: &mut StepContext<B>) -> Result<()> {
        cx.log("loss", self.loss(x));
        Ok(())
    }
}

fn points<B: Backend>(n: usize) -> Loader<B, Points<B>> {
    let value = |id: usize, k: usize| ((id * 7 + k * 5) % 11) as f32 / 11.0 - 0.5;
    let points = (0..n).map(|id| std::array::from_fn(|k| value(id, k)));
    Loader::new(InMemDataset::new(points.collect()), PointBatcher)
}

/// Fits two epochs, and goes on for two more; with a search before each, or none.
fn train<B: AutodiffBackend>(search: &str, runs: &Path) {
    let device = B::Device::default();
    let config = TrainerConfig::new()
        .with_progress(ProgressMode::Off)
        .with_log_every_n_steps(1)
        .with_accumulate_grad_batches(2)
        .with_max_epochs(2)
        .with_run_dir(runs);
    let mut data = Loaders::new(points(37).batch_size(5).shuffle(true).workers(2))
        .with_val(points(6).batch_size(4));
    let model = Net::<B>::new(&device);
    let mut trainer = Trainer::new(config.clone(), device.clone());
    find(search, &mut trainer, &model, &mut data, runs);
    let model = trainer.fit(model, &mut data).unwrap().model;

    let config = config.with_max_epochs(4).with_resume(Resume::Last);
    let mut trainer = Trainer::new(config, device);
    find(search, &mut trainer, &model, &mut data, runs);
    trainer.fit(model, &mut data).unwrap();
}

fn find<B: AutodiffBackend>(
    search: &str,
    trainer: &mut Trainer<Net<B>>,
    model: &Net<B>,
    data: &mut Loaders<Net<B>>,
    runs: &Path,
) {
    let before = files(runs);
    let rates = LearningRateSearch::new().with_stop_above(None);
    let sizes = BatchSizeSearch::new();
    FAILS.store(search.ends_with("failing"), Ordering::Relaxed);
    match search {
        "none" => {}
        "rate" => {
            let found = trainer.find_learning_rate(model, data, rates).unwrap();
            assert_eq!(found.points().len(), 100);
            let again = trainer.find_learning_rate(model, data, rates).unwrap();
            assert_eq!(found, again);
        }
        "size" => assert_eq!(trainer.find_batch_size(model, data, sizes).unwrap(), 37),
        "rate-failing" => {
            let error = trainer.find_learning_rate(model, data, rates).unwrap_err();
            assert!(error.to_string().ends_with("the step has had enough"));
        }
        _ => {
            let error = trainer.find_batch_size(model, data, sizes).unwrap_err();
            assert!(error.to_string().ends_with("the step has had enough"));
        }
    }
    FAILS.store(false, Ordering::Relaxed);
    assert_eq!(files(runs), before);
}

/// Files in which there are times, or checksums of such files, or the folder's name.
const TIMED: [&str; 4] = ["config.toml", "manifest.json", "run.jsonl", "state.json"];

/// All other files below a folder with their contents.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let inside = files(&path).into_iter();
            found.extend(inside.map(|(file, content)| (format!("{name}/{file}"), content)));
        } else if !TIMED.contains(&name.as_str()) {
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

/// Not a test: the process that the others start.
#[test]
#[ignore = "started by `a_fit_after_a_search_is_the_fit_without`"]
fn training_process() {
    let told = std::env::var("FIREBOX_TEST_SEARCH").unwrap();
    let mut told = told.splitn(3, ' ');
    let (accelerator, search) = (told.next().unwrap(), told.next().unwrap());
    let runs = Path::new(told.next().unwrap());
    use firebox_backend::Accelerator;
    match accelerator {
        #[cfg(feature = "flex")]
        "flex" => train::<<firebox_flex::Flex as Accelerator>::Backend>(search, runs),
        #[cfg(feature = "ndarray")]
        "ndarray" => train::<<firebox_ndarray::NdArray as Accelerator>::Backend>(search, runs),
        other => panic!("{other} is not compiled in"),
    }
}

/// What a run leaves behind.
fn left_behind(accelerator: &str, search: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let told = format!("{accelerator} {search} {}", runs.display());
    let output = own_process("search::traces::training_process")
        .args(["--test-threads", "1"])
        .env("FIREBOX_TEST_SEARCH", told)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{accelerator} {search}\n{said}\n{text}"
    );
    files(&runs)
}

fn a_fit_after_a_search_is_the_fit_without(accelerator: &str) {
    let expected = left_behind(accelerator, "none");
    let names: Vec<_> = expected.keys().collect();
    let has = |file: &str| names.iter().any(|name| name.ends_with(file));
    assert!(has("metrics.csv") && has("model.safetensors"), "{names:?}");
    for search in ["rate", "size", "rate-failing", "size-failing"] {
        let found = left_behind(accelerator, search);
        assert!(found.keys().eq(expected.keys()), "{search}");
        for (name, content) in &expected {
            assert!(found[name] == *content, "{accelerator}, {search}: {name}");
        }
    }
}

#[cfg(feature = "flex")]
#[test]
fn on_flex() {
    a_fit_after_a_search_is_the_fit_without("flex");
}

#[cfg(feature = "ndarray")]
#[test]
fn on_ndarray() {
    a_fit_after_a_search_is_the_fit_without("ndarray");
}
