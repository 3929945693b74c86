//! A loop written by hand on `Fabric`: firebox's data order, gradient averaging and schedules, and
//! nothing between you and each step; on one device or several. Of the trainer's settings it uses those that a step needs
//! (seed, clipping, anomaly detection), `max_epochs` and `fast_dev_run`.

use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion, Tensor};
use clap::Parser;
use firebox::fabric::Reduce;
use firebox::prelude::*;
use firebox::testing::{Line, line_data};
use std::process::ExitCode;

/// Fits a line with a hand-written loop.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    trainer: TrainerConfig,
}

impl Recipe for Args {
    fn config(&self) -> &TrainerConfig {
        &self.trainer
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        // On each device (`--devices 2`), at the same time.
        cx.fabric().launch(|fabric| train(fabric, &self.trainer))?;
        Ok(())
    }
}

fn train<B: AutodiffBackend>(fabric: &Fabric<B>, config: &TrainerConfig) -> Result<()> {
    let data = line_data().batch_size(8).shuffle(true);
    let mut state = fabric.setup(Line::<B>::new(fabric.device()))?;

    let few = config.fast_dev_run.batches();
    let epochs = match few {
        Some(_) => 1,
        None => config.max_epochs.unwrap_or(10),
    };
    for epoch in 0..epochs {
        let (mut total, mut samples) = (0.0, 0.0);
        for (step, batch) in fabric.batches(&data, epoch)?.enumerate() {
            if few.is_some_and(|few| step as u64 >= few) {
                break;
            }
            let mut batch = batch?;
            samples += batch.samples as f64;
            // A device has no part of a batch that is smaller than there are devices.
            if let Some(points) = batch.value.take() {
                fabric.in_batch(epoch, &batch, || {
                    let loss = state.model().loss(points);
                    total += loss.clone().into_scalar().elem::<f64>() * batch.samples as f64;
                    fabric.backward(&mut state, loss, batch.samples)
                })?;
            }
            // Two batches make a step; the last, shorter group is stepped as well.
            if step % 2 == 1 || batch.is_last {
                fabric.optimizer_step(&mut state)?;
            }
        }
        state.on_epoch_end();
        let sums = Tensor::<B, 1>::from_floats([total, samples], fabric.device());
        let sums = fabric.all_reduce(sums, Reduce::Sum)?.into_data();
        if fabric.rank() == 0 {
            let sums: Vec<f64> = sums.iter().collect();
            println!("epoch {epoch}: loss {:.5}", sums[0] / sums[1]);
        }
    }
    let model = fabric.finish(state)?;
    if fabric.rank() == 0 {
        println!("trained {} parameters", model.num_params());
    }
    Ok(())
}

fn main() -> ExitCode {
    firebox::launch(Args::parse())
}
