//! Random runs, in processes of their own: one goes through, one is stopped and resumed. What they
//! leave on the disk is compared byte by byte.

use crate::support::own_process;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData, activation};
use firebox::config::{ProgressMode, ValCheckInterval};
use firebox::data::{Loaders, Samples};
use firebox::metric::Accuracy;
use firebox::optim::schedule::{Cosine, Exponential, ReduceOnPlateau, ScheduleInterval};
use firebox::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// A run, and where it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Scenario {
    accelerator: String,
    samples: usize,
    batch_size: usize,
    epochs: u64,
    accumulate: u64,
    workers: usize,
    /// Loader threads after the resume: they decide nothing.
    workers_after: usize,
    schedule: usize,
    validate: usize,
    background: bool,
    stops: Vec<Stop>,
}

/// What stops the run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Stop {
    /// `max_steps`, which waits for the end of a group of batches.
    AtStep(u64),
    /// The model fails at this batch, which may be in the middle of a group.
    InBatch(u64),
    /// A validation fails after so many batches.
    InValidation(u64),
}

/// What one process does.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    scenario: Scenario,
    stop: Option<Stop>,
    runs: String,
    resume: bool,
}

/// The samples that the process has trained on, by the batch's number.
static TRAINED: Mutex<BTreeMap<u64, Vec<usize>>> = Mutex::new(BTreeMap::new());

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
    second: Linear<B>,
}

#[derive(Debug, Clone)]
struct Points<B: Backend> {
    ids: Vec<usize>,
    x: Tensor<B, 2>,
    y: Tensor<B, 1, Int>,
}

type Item = (usize, [f32; 3]);

#[derive(Debug, Clone, Copy)]
struct PointBatcher;

impl<B: Backend> Batcher<B, Item, Points<B>> for PointBatcher {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Points<B> {
        let n = items.len();
        let x: Vec<f32> = items.iter().flat_map(|(_, x)| *x).collect();
        let y: Vec<i64> = items.iter().map(|(id, _)| (*id % 2) as i64).collect();
        Points {
            ids: items.iter().map(|(id, _)| *id).collect(),
            x: Tensor::from_data(TensorData::new(x, [n, 3]), device),
            y: Tensor::from_data(TensorData::new(y, [n]), device),
        }
    }
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(3, 5).init(device),
            norm: BatchNormConfig::new(5).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            second: LinearConfig::new(5, 2).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = self.norm.forward(self.first.forward(x));
        self.second
            .forward(self.dropout.forward(activation::relu(x)))
    }
}

fn part() -> Part {
    serde_json::from_str(&std::env::var("FIREBOX_TEST_PART").unwrap()).unwrap()
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let Part { stop, .. } = part();
        // Before the forward pass, which moves the running statistics of a batch norm for good.
        if matches!(stop, Some(Stop::InBatch(at)) if at == cx.progress().total_batches) {
            return Err(Error::user("the power is out"));
        }
        let logits = self.forward(batch.x);
        let accuracy = Accuracy::new().observe(logits.clone(), batch.y.clone())?;
        cx.log("acc", accuracy);
        let mut trained = TRAINED.lock().unwrap();
        trained.insert(cx.progress().total_batches, batch.ids);
        drop(trained);
        let loss = CrossEntropyLossConfig::new().init(&batch.y.device());
        Ok(loss.forward(logits, batch.y).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let momentum = MomentumConfig {
            momentum: 0.9,
            dampening: 0.0,
            nesterov: false,
        };
        let sgd = SgdConfig::new().with_momentum(Some(momentum)).init();
        let adam = Optimizers::single(AdamConfig::new().init()).with_lr(0.05);
        let plateau = ReduceOnPlateau::new(Mode::Min).patience(0).factor(0.5);
        Ok(match part().scenario.schedule {
            0 => adam,
            1 => adam
                .with_schedule(ScheduleInterval::Step, Cosine::new(20).warmup(3, 0.1))
                .with_group(ParamGroup::new("head", ["second.*"], sgd).with_lr(0.1)),
            2 => adam.with_schedule(ScheduleInterval::Epoch, Exponential::new(0.7)),
            _ => {
                let watched = ScheduleInterval::Metric("train/loss_epoch".into());
                adam.with_schedule(watched, plateau)
            }
        })
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;

    fn validation_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<()> {
        let Part { stop, .. } = part();
        let in_fit = cx.progress().total_batches > 0;
        if in_fit
            && matches!(stop, Some(Stop::InValidation(at)) if at <= cx.progress().total_batches)
        {
            return Err(Error::user("the power is out"));
        }
        let logits = self.forward(batch.x);
        let loss = CrossEntropyLossConfig::new().init(&batch.y.device());
        cx.log("loss", loss.forward(logits, batch.y));
        Ok(())
    }
}

struct Train(TrainerConfig);

impl Recipe for Train {
    fn config(&self) -> &TrainerConfig {
        &self.0
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let Part {
            scenario, resume, ..
        } = part();
        let items = |n: usize| {
            let value = |id: usize, k: usize| ((id * 7 + k * 5) % 11) as f32 / 11.0 - 0.5;
            let item = |id| (id, std::array::from_fn(|k| value(id, k)));
            InMemDataset::new((0..n).map(item).collect())
        };
        // A random augmentation, from the sample's own stream.
        let train = Samples::new(items(scenario.samples)).map(|(id, x): Item, rng| {
            let flip = if rng.chance(0.5) { -1.0 } else { 1.0 };
            Ok((id, x.map(|x| x * flip)))
        });
        let workers = if resume {
            scenario.workers_after
        } else {
            scenario.workers
        };
        let train = train
            .into_loader(PointBatcher)
            .batch_size(scenario.batch_size)
            .shuffle(true)
            .workers(workers);
        let mut data = Loaders::new(train);
        let mut trainer = cx.trainer().with_callback(LearningRateMonitor::new());
        let mut checkpoints = ModelCheckpoint::new().every_n_steps(3);
        if scenario.validate > 0 {
            data = data.with_val(Loader::new(items(5), PointBatcher).batch_size(2));
            checkpoints = checkpoints.monitor("val/loss", Mode::Min).save_top_k(2);
            trainer = trainer.with_callback(EarlyStopping::new("val/loss").patience(50));
        }
        trainer
            .with_callback(checkpoints)
            .fit(Net::<B>::new(cx.device()), &mut data)?;
        Ok(())
    }
}

/// Not a test: the process that the next one starts.
#[test]
#[ignore = "started by `resumed_is_never_stopped`"]
fn training_process() {
    let Part {
        scenario,
        stop,
        runs,
        resume,
    } = part();
    let mut config = TrainerConfig::new()
        .with_accelerator(scenario.accelerator)
        .with_progress(ProgressMode::Off)
        .with_max_epochs(scenario.epochs)
        .with_accumulate_grad_batches(scenario.accumulate)
        .with_log_every_n_steps(2)
        .with_checkpoint_in_background(scenario.background)
        .with_run_dir(&runs);
    config = match scenario.validate {
        2 => config.with_val_check_interval(ValCheckInterval::Batches(3)),
        3 => config.with_val_check_interval(ValCheckInterval::Fraction(0.5)),
        _ => config,
    };
    if let Some(Stop::AtStep(step)) = stop {
        config = config.with_max_steps(step);
    }
    if resume {
        config = config.with_resume(firebox::config::Resume::Last);
    }
    let done = firebox::try_launch(Train(config));
    let fails = matches!(stop, Some(Stop::InBatch(_) | Stop::InValidation(_)));
    // It may be over before.
    if let Err(error) = done {
        assert!(
            fails && error.to_string().ends_with("the power is out"),
            "{error}"
        );
    }
    let path = Path::new(&runs).join("trained.json");
    let before = fs::read(&path).ok();
    let before = before.map(|text| serde_json::from_slice(&text).unwrap());
    let mut trained: BTreeMap<u64, Vec<usize>> = before.unwrap_or_default();
    for (batch, ids) in TRAINED.lock().unwrap().iter() {
        // What is repeated, because it was not saved, is the same.
        let first = trained.entry(*batch).or_insert_with(|| ids.clone());
        assert_eq!(first, ids);
    }
    fs::write(path, serde_json::to_vec(&trained).unwrap()).unwrap();
    let batches = TRAINED.lock().unwrap().len().to_string();
    fs::write(Path::new(&runs).join("batches.txt"), batches).unwrap();
}

fn run(scenario: &Scenario, runs: &Path, stop: Option<Stop>, resume: bool) {
    let part = Part {
        scenario: scenario.clone(),
        stop,
        runs: runs.to_str().unwrap().into(),
        resume,
    };
    let output = own_process("resume::equivalence::training_process")
        .args(["--test-threads", "1"])
        .env("FIREBOX_TEST_PART", serde_json::to_string(&part).unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{part:?}\n{said}\n{text}");
}

/// Everything that a run leaves, by name, without what the clock and the folder's name decide.
fn left_behind(runs: &Path) -> Vec<(String, Vec<u8>)> {
    let run = runs.join("version_0");
    assert!(!runs.join("version_1").exists(), "it goes on in its folder");
    let last = fs::canonicalize(run.join("checkpoints/last")).unwrap();
    let mut files = vec![
        (
            "metrics.csv".into(),
            fs::read(run.join("metrics.csv")).unwrap(),
        ),
        (
            "trained.json".into(),
            fs::read(runs.join("trained.json")).unwrap(),
        ),
        (
            "last".into(),
            last.file_name().unwrap().as_encoded_bytes().to_vec(),
        ),
    ];
    for entry in fs::read_dir(&last).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let mut content = fs::read(entry.path()).unwrap();
        match name.as_str() {
            // Holds the checksum of the state.
            "manifest.json" => continue,
            "state.json" => content = timeless(&content, runs),
            _ => {}
        }
        files.push((name, content));
    }
    files.sort();
    files
}

fn timeless(state: &[u8], runs: &Path) -> Vec<u8> {
    let mut state: serde_json::Value = serde_json::from_slice(state).unwrap();
    let position = &mut state["position"];
    position["elapsed"] = 0.into();
    position["validated_at"] = 0.into();
    // The settings and the folder are those of the last process.
    state["config"] = "".into();
    state["records"]["kept"] = "".into();
    state["records"]["removed"] = "".into();
    for callback in state["callbacks"].as_array_mut().unwrap() {
        if callback["name"] == "ModelCheckpoint" {
            callback["state"]["saved_at"] = 0.into();
        }
    }
    let text = serde_json::to_string_pretty(&state).unwrap();
    text.replace(runs.to_str().unwrap(), "RUNS").into_bytes()
}

/// The number of batches that the last process has trained on.
#[track_caller]
fn assert_same(scenario: &Scenario) -> usize {
    let [through_dir, stopped_dir] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    run(scenario, through_dir.path(), None, false);
    let stops = scenario.stops.iter().map(|stop| Some(*stop)).chain([None]);
    for (index, stop) in stops.enumerate() {
        run(scenario, stopped_dir.path(), stop, index > 0);
    }
    let [through, stopped] = [&through_dir, &stopped_dir].map(|dir| left_behind(dir.path()));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&through), names(&stopped), "{scenario:?}");
    for ((name, expected), (_, found)) in through.iter().zip(&stopped) {
        if found != expected {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            panic!(
                "{name} differs in {scenario:?}\n--- through\n{}\n--- stopped\n{}",
                text(expected),
                text(found)
            );
        }
    }
    let batches = fs::read_to_string(stopped_dir.path().join("batches.txt"));
    batches.unwrap().parse().unwrap()
}

fn scenario(accelerator: &'static str) -> impl Strategy<Value = Scenario> {
    let stop = prop_oneof![
        (1..14_u64).prop_map(Stop::AtStep),
        (4..20_u64).prop_map(Stop::InBatch),
        (4..20_u64).prop_map(Stop::InValidation),
    ];
    (
        (7..17_usize, 2..4_usize, 2..4_u64, 1..4_u64),
        (0..3_usize, 0..3_usize, 0..4_usize, 0..4_usize),
        any::<bool>(),
        proptest::collection::vec(stop, 1..3),
    )
        .prop_map(move |(sizes, others, background, stops)| Scenario {
            accelerator: accelerator.into(),
            samples: sizes.0,
            batch_size: sizes.1,
            epochs: sizes.2,
            accumulate: sizes.3,
            workers: others.0,
            workers_after: others.1,
            schedule: others.2,
            validate: others.3,
            background,
            stops: before_the_end(stops, sizes),
        })
}

/// What fails in the last validation has saved the last step: no other checkpoint is written for
/// it, and that one is of the moment before the epoch's end.
fn before_the_end(stops: Vec<Stop>, sizes: (usize, usize, u64, u64)) -> Vec<Stop> {
    let (samples, batch_size, epochs, _) = sizes;
    let others = (epochs - 1) * samples.div_ceil(batch_size) as u64;
    let stops = stops.into_iter().enumerate();
    let earlier = |(index, stop)| match stop {
        Stop::InValidation(at) if index == 0 => Stop::InValidation(at.min(others)),
        Stop::InValidation(at) => Stop::InBatch(at),
        stop => stop,
    };
    stops.map(earlier).collect()
}

/// Each case takes three or four processes, so there are few of them; `PROPTEST_CASES` is for more.
fn resumed_is_never_stopped(accelerator: &'static str) {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(20),
        failure_persistence: None,
        // A smaller case is worth its time only to a person who looks for a fault.
        max_shrink_iters: if cases.is_some() { 60 } else { 0 },
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&scenario(accelerator), |scenario| {
            assert_same(&scenario);
            Ok(())
        })
        .unwrap();
}

#[cfg(feature = "flex")]
#[test]
fn resumed_is_never_stopped_on_flex() {
    resumed_is_never_stopped("flex");
}

#[cfg(feature = "ndarray")]
#[test]
fn resumed_is_never_stopped_on_ndarray() {
    resumed_is_never_stopped("ndarray");
}

#[cfg(feature = "flex")]
fn plain() -> Scenario {
    Scenario {
        accelerator: "flex".into(),
        samples: 10,
        batch_size: 2,
        epochs: 3,
        accumulate: 1,
        workers: 0,
        workers_after: 2,
        schedule: 0,
        validate: 0,
        background: false,
        stops: Vec::new(),
    }
}

/// 15 steps in all. The second stop is at the end of an epoch.
#[cfg(feature = "flex")]
#[test]
fn the_rest_of_the_steps_comes_and_no_more() {
    for (stop, rest) in [(3, 12), (5, 10), (7, 8)] {
        let scenario = Scenario {
            stops: vec![Stop::AtStep(stop)],
            ..plain()
        };
        assert_eq!(assert_same(&scenario), rest);
    }
}

/// In the middle of a group of batches, twice, with other loader threads afterwards.
#[cfg(feature = "flex")]
#[test]
fn an_unfinished_group_goes_on() {
    assert_same(&Scenario {
        samples: 15,
        accumulate: 3,
        schedule: 1,
        validate: 2,
        stops: vec![Stop::InBatch(4), Stop::InBatch(13)],
        ..plain()
    });
}
