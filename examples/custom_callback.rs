//! A callback of your own: an exponential moving average of the loss, and a stop when it is low.

use burn::tensor::backend::AutodiffBackend;
use clap::Parser;
use firebox::callback::{Closure, Hook};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::testing::{Line, line_data};
use std::process::ExitCode;

/// Logs a smoothed training loss as `loss_ema` and stops the run once it is below a threshold.
struct SmoothedLoss {
    decay: f64,
    stop_below: f64,
    average: Option<f64>,
}

impl<M: TrainModule> Callback<M> for SmoothedLoss {
    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let Some(loss) = cx.results().get("train/loss_epoch") else {
            return Ok(());
        };
        let average = match self.average {
            Some(average) => self.decay * average + (1.0 - self.decay) * loss,
            None => loss,
        };
        self.average = Some(average);
        cx.log("loss_ema", average);
        if average < self.stop_below {
            cx.stop(format!("the smoothed loss is {average:.4}"));
        }
        Ok(())
    }

    // What a checkpoint keeps of this callback.
    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.average)
    }
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.average = state.as_f64();
        Ok(())
    }
}

/// Fits a line with a callback of its own.
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
        let smoothed = SmoothedLoss {
            decay: 0.5,
            stop_below: 1e-3,
            average: None,
        };
        // The smallest callback is a function.
        let first_step = Closure::at(Hook::OptimizerStep, |cx: &mut RunContext<'_, Line<B>>| {
            if cx.progress().global_step == 1 {
                println!("the first step: {:?}", cx.step_outcome());
            }
            Ok(())
        });
        let mut trainer = cx
            .trainer()
            .with_callback(smoothed)
            .with_callback(first_step);
        let mut data = Loaders::new(line_data().batch_size(8).shuffle(true));
        let fit = trainer.fit(Line::new(cx.device()), &mut data)?;
        println!(
            "stopped after {} epochs: {}",
            fit.progress.epoch, fit.stopped
        );
        Ok(())
    }
}

fn main() -> ExitCode {
    let trainer = TrainerConfig::new().with_max_epochs(50);
    let mut args = Args { trainer };
    args.update_from(std::env::args_os());
    firebox::launch(args)
}
