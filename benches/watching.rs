//! What it costs to watch a run: the MNIST example with CSV, JSON lines, TensorBoard, Prometheus, the
//! profiler and the system's metrics on, against the same with all of them off.
//!
//! Both train in turns in one run, so that a busy machine slows both; the ratio is the median over the
//! rounds of the ratios of neighbours. Aim: 1.03 at most.
//!
//! `cargo bench --bench watching`; `FIREBOX_BENCH_ROUNDS` sets the rounds (5), `FIREBOX_BENCH_STEPS` the
//! steps of a round (150).

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]
#![allow(missing_docs, reason = "nobody uses a benchmark's items")]

#[path = "../examples/mnist/data.rs"]
mod data;
#[path = "../examples/mnist/model.rs"]
mod model;
#[path = "../examples/mnist/training.rs"]
mod training;

use data::Mnist;
use firebox::config::{Limit, LoggerNames, ProfilerMode, ProgressMode};
use firebox::prelude::*;
use firebox::testing::Cpu;
use model::ConvNet;
use std::net::SocketAddr;
use training::Classifier;

fn number(name: &str, default: usize) -> usize {
    let set = std::env::var(name).ok();
    set.map_or(default, |text| text.parse().unwrap())
}

/// Seconds of a fit.
fn seconds(config: &TrainerConfig) -> f64 {
    let device = Default::default();
    let model = Classifier::<Cpu>::new(ConvNet::new(0.5, &device), 1e-3);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mnist/data");
    let mut trainer = Trainer::new(config.clone(), device);
    let fit = trainer.fit(model, &mut Mnist::new(folder.into(), 64));
    fit.unwrap().elapsed.as_secs_f64()
}

fn main() {
    let steps = number("FIREBOX_BENCH_STEPS", 150);
    let runs = tempfile::tempdir().unwrap();
    let off = TrainerConfig::new()
        .with_max_epochs(1)
        .with_limit_train_batches(Limit::Batches(steps))
        .with_limit_val_batches(Limit::NONE)
        .with_checkpointing(false)
        .with_progress(ProgressMode::Off)
        .with_logger(LoggerNames::none())
        .with_run_dir(runs.path());
    let loggers = ["csv", "jsonl", "tensorboard"];
    let loggers = loggers
        .into_iter()
        .filter(|name| *name != "tensorboard" || cfg!(feature = "tensorboard"));
    let on = off
        .clone()
        .with_logger(loggers.collect::<LoggerNames>())
        .with_metrics_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
        .with_profiler(ProfilerMode::Simple)
        .with_log_system_metrics(true);
    seconds(&off);
    let rounds = number("FIREBOX_BENCH_ROUNDS", 5).max(1);
    let mut ratios: Vec<f64> = (0..rounds).map(|_| seconds(&on) / seconds(&off)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("{steps} steps, {rounds} rounds: {ratios:.3?}");
    println!("ratio watched/unwatched {:.3}", ratios[rounds / 2]);
}
