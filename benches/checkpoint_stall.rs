//! How long training stands still for a checkpoint: written directly, and in the background.
//!
//! A model of 100 MB (25 million parameters) is trained with Adam, whose state is twice as large, so
//! that a checkpoint has 300 MB. What is timed lies between the end of one batch and the start of the
//! next; medians of batches with a save, and of those without.
//!
//! `cargo bench --bench checkpoint_stall`; `FIREBOX_BENCH_SAVES` sets how many saves are timed.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use firebox::checkpoint::Checkpoint;
use firebox::config::{LoggerNames, ProgressMode};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::testing::Cpu;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const PARAMETERS: usize = 25_000_000;

/// A save after so many steps: long enough for the one before to be written.
const EVERY: u64 = 12;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    weight: Param<Tensor<B, 2>>,
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = ();
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, _: (), _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.weight.val().square().mean().into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(1e-3))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = ();
}

struct Nothing;

impl<B: Backend> Batcher<B, (), ()> for Nothing {
    fn batch(&self, _items: Vec<()>, _device: &B::Device) {}
}

/// Times between a batch's end and the next one's start, and of whole batches.
#[derive(Default, Clone)]
struct Times(Rc<RefCell<Log>>);

#[derive(Default)]
struct Log {
    ended: Option<(u64, Instant)>,
    started: Option<Instant>,
    between: Vec<(u64, Duration)>,
    steps: Vec<Duration>,
}

impl<M: TrainModule> Callback<M> for Times {
    fn on_train_batch_start(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        let mut log = self.0.borrow_mut();
        if let Some((step, ended)) = log.ended.take() {
            log.between.push((step, ended.elapsed()));
        }
        log.started = Some(Instant::now());
        Ok(())
    }
    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let mut log = self.0.borrow_mut();
        if let Some(started) = log.started.take() {
            log.steps.push(started.elapsed());
        }
        log.ended = Some((cx.progress().global_step, Instant::now()));
        Ok(())
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    middle.as_secs_f64() * 1000.0
}

/// Milliseconds that a save takes from training, and that a step takes.
fn measure(background: bool, saves: u64) -> Result<(f64, f64)> {
    let device = Default::default();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).context("a folder")?;
    let steps = (saves + 1) * EVERY;
    let config = TrainerConfig::new()
        .with_max_epochs(1)
        .with_progress(ProgressMode::Off)
        .with_logger(LoggerNames::none())
        .with_checkpoint_in_background(background)
        .with_checkpoint_every_n_steps(EVERY)
        .with_run_dir(folder.path());
    let weight =
        Tensor::<Cpu, 2>::random([5000, PARAMETERS / 5000], Distribution::Default, &device);
    let net = Net {
        weight: Param::from_tensor(weight),
    };
    let batches = InMemDataset::new(vec![(); steps as usize]);
    let times = Times::default();
    let outcome = Trainer::new(config, device)
        .with_callback(times.clone())
        .fit(net, &mut Loaders::new(Loader::new(batches, Nothing)))?;
    if let Some(last) = outcome.last_checkpoint {
        Checkpoint::open(last)?;
    }
    let log = times.0.borrow();
    let saved = |step: &u64| step.is_multiple_of(EVERY);
    let times = |with: bool| {
        let between = log.between.iter().filter(|(step, _)| saved(step) == with);
        median(between.map(|(_, time)| *time).collect())
    };
    Ok((times(true) - times(false), median(log.steps.clone())))
}

fn main() -> Result<()> {
    let saves = std::env::var("FIREBOX_BENCH_SAVES").ok();
    let saves = saves.and_then(|n| n.parse().ok()).unwrap_or(5);
    println!(
        "{} MB of parameters, {} MB a checkpoint, {saves} saves",
        100, 300
    );
    let (direct, step) = measure(false, saves)?;
    println!("direct:     {direct:6.0} ms a save, {step:4.0} ms a step");
    let (background, step) = measure(true, saves)?;
    println!("background: {background:6.0} ms a save, {step:4.0} ms a step");
    println!("background / direct: {:.2}", background / direct);
    Ok(())
}
