//! What firebox's `Trainer` costs per step, where a step is nearly free: a small perceptron on the
//! CPU, so that everything around the arithmetic shows.
//!
//! The same model, data set, batcher, batch size and optimizer are trained
//!
//! - by hand: Burn's data loader, forward, backward, optimizer step, and nothing else;
//! - by firebox's `Trainer`, without loggers, progress, checkpoints and validation;
//! - by burn-train's `SupervisedTraining` with its default strategy (one device), without metrics,
//!   log files and checkpoints, and with an empty validation set.
//!
//! They take turns for several rounds in one process, so that a busy machine slows all of them. The
//! last lines are the ratios of steps per second, ours over theirs: of each round, which a change in
//! the machine's speed hardly touches, then the median over rounds. Aims: at least 0.95 of the loop by hand and 1.00 of burn-train.
//!
//! Run with `cargo bench --bench step_overhead`. `FIREBOX_BENCH_STEPS` sets the steps of a round
//! (3000) and `FIREBOX_BENCH_ROUNDS` the rounds (9), to be quick or to be precise.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark stops at the first failure"
)]
#![allow(missing_docs, reason = "nobody uses a benchmark's items")]

use burn::backend::Autodiff;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_train::metric::MetricDefinition;
use burn_train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn_train::{InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use firebox::config::{LoggerNames, ProgressMode, SanitySteps};
use firebox::data::{Loaders, SampleRng};
use firebox::prelude::*;
use firebox::testing::Cpu;
use std::sync::Arc;
use std::time::Instant;

const INPUTS: usize = 20;
const HIDDEN: usize = 64;
const CLASSES: usize = 4;
const BATCH_SIZE: usize = 32;
const EPOCHS: usize = 10;
const LR: f64 = 1e-3;

type Item = ([f32; INPUTS], i32);
type Device = burn::tensor::Device<Cpu>;

/// What the other two run on: Burn's backend with nothing around it.
type Plain = Autodiff<burn_flex::Flex>;

fn main() {
    let steps = setting("FIREBOX_BENCH_STEPS", 3000).div_ceil(EPOCHS) * EPOCHS;
    let rounds = setting("FIREBOX_BENCH_ROUNDS", 9);
    let data = synthetic(steps / EPOCHS * BATCH_SIZE);
    let ways: [fn(&[Item]); 3] = [by_hand, by_trainer, by_burn_train];
    ways.iter().for_each(|train| train(&data));
    let mut speeds = ways.map(|_| Vec::new());
    for _ in 0..rounds {
        for (train, speeds) in ways.iter().zip(&mut speeds) {
            let start = Instant::now();
            train(&data);
            speeds.push(steps as f64 / start.elapsed().as_secs_f64());
        }
    }
    println!("{steps} steps a round, {rounds} rounds, steps per second:\n");
    println!("{:<14}{:>8}{:>8}{:>8}", "", "median", "min", "max");
    for (name, speeds) in ["hand-written", "trainer", "burn-train"]
        .iter()
        .zip(&speeds)
    {
        let (min, median, max) = spread(speeds.clone());
        println!("{name:<14}{median:>8.0}{min:>8.0}{max:>8.0}");
    }
    let [by_hand, trainer, burn_train] = speeds;
    println!();
    for (name, theirs) in [("hand-written", by_hand), ("burn-train", burn_train)] {
        let of_rounds = trainer
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs);
        let (_, ratio, _) = spread(of_rounds.collect());
        println!("ratio trainer/{name} {ratio:.2}");
    }
}

/// The smallest, the median and the largest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    (values[0], values[last / 2], values[last])
}

/// A whole number from 1, from the environment.
fn setting(name: &str, default: usize) -> usize {
    let value = std::env::var(name).ok();
    value.map_or(default, |v| v.parse().expect(name)).max(1)
}

/// Uniform inputs; the class is where the largest of the first few is.
fn synthetic(samples: usize) -> Vec<Item> {
    let mut rng = SampleRng::new(42, 0, 0);
    let mut item = || {
        let x = [(); INPUTS].map(|()| rng.uniform() as f32);
        let largest = (0..CLASSES).max_by(|a, b| x[*a].total_cmp(&x[*b]));
        (x, largest.unwrap_or(0) as i32)
    };
    (0..samples).map(|_| item()).collect()
}

fn by_hand(data: &[Item]) {
    let device = Device::default();
    let loader = burn_loader::<Plain>(data);
    let mut model = Mlp::<Plain>::new(&device);
    let mut optimizer = AdamConfig::new().init();
    for _ in 0..EPOCHS {
        for batch in loader.iter() {
            let gradients = GradientsParams::from_grads(model.loss(batch).backward(), &model);
            model = optimizer.step(LR, model, gradients);
        }
    }
}

fn by_trainer(data: &[Item]) {
    let device = Device::default();
    let config = TrainerConfig::new()
        .with_max_epochs(EPOCHS as u64)
        .with_logger(LoggerNames::none())
        .with_progress(ProgressMode::Off)
        .with_model_summary(false)
        .with_checkpointing(false)
        .with_num_sanity_val_steps(SanitySteps::Batches(0));
    let loader = Loader::new(InMemDataset::new(data.to_vec()), Stack)
        .batch_size(BATCH_SIZE)
        .shuffle(true);
    let model = Mlp::<Cpu>::new(&device);
    let fitted = Trainer::new(config, device).fit(model, &mut Loaders::new(loader));
    let steps = data.len().div_ceil(BATCH_SIZE) * EPOCHS;
    assert_eq!(fitted.unwrap().progress.global_step, steps as u64);
}

fn by_burn_train(data: &[Item]) {
    let files = tempfile::tempdir().unwrap();
    let model = Mlp::<Plain>::new(&Device::default());
    let training = SupervisedTraining::new(files.path(), burn_loader(data), burn_loader(&[]))
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .renderer(NoRenderer);
    training.launch(Learner::new(model, AdamConfig::new().init(), LR));
}

fn burn_loader<B: Backend>(data: &[Item]) -> Arc<dyn DataLoader<B, Points<B>>> {
    DataLoaderBuilder::new(Stack)
        .batch_size(BATCH_SIZE)
        .shuffle(42)
        .build(InMemDataset::new(data.to_vec()))
}

/// Inputs [batch, INPUTS] and classes [batch].
type Points<B> = (Tensor<B, 2>, Tensor<B, 1, Int>);

struct Stack;

impl<B: Backend> Batcher<B, Item, Points<B>> for Stack {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Points<B> {
        let n = items.len();
        let (x, classes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let x = TensorData::new(x.into_flattened(), [n, INPUTS]);
        let classes = TensorData::new(classes, [n]);
        (
            Tensor::from_data(x, device),
            Tensor::from_data(classes, device),
        )
    }
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    linear1: Linear<B>,
    linear2: Linear<B>,
    linear3: Linear<B>,
    activation: Relu,
    loss: CrossEntropyLoss<B>,
}

impl<B: Backend> Mlp<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            linear1: LinearConfig::new(INPUTS, HIDDEN).init(device),
            linear2: LinearConfig::new(HIDDEN, HIDDEN).init(device),
            linear3: LinearConfig::new(HIDDEN, CLASSES).init(device),
            activation: Relu::new(),
            loss: CrossEntropyLossConfig::new().init(device),
        }
    }

    fn loss(&self, (x, classes): Points<B>) -> Tensor<B, 1> {
        let x = self.activation.forward(self.linear1.forward(x));
        let x = self.activation.forward(self.linear2.forward(x));
        self.loss.forward(self.linear3.forward(x), classes)
    }
}

impl<B: AutodiffBackend> TrainModule for Mlp<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Mlp<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.loss(batch).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(LR))
    }
}

impl<B: Backend> EvalModule for Mlp<B> {
    type Backend = B;
    type Batch = Points<B>;
}

impl<B: AutodiffBackend> TrainStep for Mlp<B> {
    type Input = Points<B>;
    type Output = ();

    fn step(&self, batch: Points<B>) -> TrainOutput<()> {
        TrainOutput::new(self, self.loss(batch).backward(), ())
    }
}

impl<B: Backend> InferenceStep for Mlp<B> {
    type Input = Points<B>;
    type Output = ();

    fn step(&self, batch: Points<B>) {
        self.loss(batch);
    }
}

/// Shows nothing.
struct NoRenderer;

impl MetricsRendererTraining for NoRenderer {
    fn update_train(&mut self, _: MetricState) {}
    fn update_valid(&mut self, _: MetricState) {}
    fn render_train(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
    fn render_valid(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for NoRenderer {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for NoRenderer {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}
