//! A loop written by hand on `Fabric`: firebox's data order, gradient averaging and schedules, and
//! nothing between you and each step. Of the trainer's settings it uses those that a step needs
//! (seed, clipping, anomaly detection), `max_epochs` and `fast_dev_run`.

use burn::module::Module;
use burn::tensor::ElementConversion;
use burn::tensor::backend::AutodiffBackend;
use clap::Parser;
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
        let fabric = cx.fabric();
        let train = line_data().batch_size(8).shuffle(true);
        let mut state = fabric.setup(Line::<B>::new(cx.device()))?;

        let few = self.trainer.fast_dev_run.batches();
        let epochs = if few.is_some() {
            1
        } else {
            self.trainer.max_epochs.unwrap_or(10)
        };
        for epoch in 0..epochs {
            let (mut total, mut samples) = (0.0, 0);
            for (step, batch) in fabric.batches(&train, epoch)?.enumerate() {
                if few.is_some_and(|few| step as u64 >= few) {
                    break;
                }
                let batch = batch?;
                samples += batch.samples;
                fabric.seed_batch(epoch, batch.index);
                if let Some(points) = batch.value {
                    let loss = state.model().loss(points);
                    total += loss.clone().into_scalar().elem::<f64>() * batch.samples as f64;
                    fabric.backward(&mut state, loss, batch.samples)?;
                }
                // Two batches make a step; the last, shorter group is stepped as well.
                if step % 2 == 1 || batch.is_last {
                    fabric.optimizer_step(&mut state)?;
                }
            }
            state.on_epoch_end();
            println!("epoch {epoch}: loss {:.5}", total / samples as f64);
        }
        println!("trained {} parameters", state.into_model()?.num_params());
        Ok(())
    }
}

fn main() -> ExitCode {
    firebox::launch(Args::parse())
}
