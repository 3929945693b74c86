//! The full tour: a convolutional network on MNIST, on whatever hardware is there.
//!
//! `cargo run --release --example mnist -- --help` shows every setting.

mod data;
mod model;
mod training;

use burn::tensor::backend::AutodiffBackend;
use clap::Parser;
use data::Mnist;
use firebox::prelude::*;
use model::ConvNet;
use std::path::PathBuf;
use std::process::ExitCode;
use training::Classifier;

/// Trains a small convolutional network on MNIST.
#[derive(Parser)]
#[command(next_help_heading = "MNIST")]
struct Args {
    /// Images in one step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Learning rate of Adam
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Share of activations that dropout sets to zero
    #[arg(long, default_value_t = 0.5)]
    dropout: f64,
    /// Folder with the four IDX files, `.gz` or plain
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mnist/data"))]
    data_dir: PathBuf,
    /// Print the results as one line of JSON, last
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Trainer")]
    trainer: TrainerConfig,
}

impl Recipe for Args {
    fn config(&self) -> &TrainerConfig {
        &self.trainer
    }

    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        if !(0.0..1.0).contains(&self.dropout) {
            let message = format!(
                "`--dropout` is {}; use a number from 0 and below 1",
                self.dropout
            );
            return Err(Error::config(message));
        }
        let net = ConvNet::new(self.dropout, cx.device());
        let model = Classifier::<B>::new(net, self.lr);
        let mut data = Mnist::new(self.data_dir, self.batch_size);

        let mut trainer = cx.trainer().with_callback(LearningRateMonitor::new());
        let fit = trainer.fit(model, &mut data)?;
        let test = trainer.test(&fit.model, &mut data)?;

        let accuracy = test.get("test/acc").unwrap_or(f64::NAN);
        if !cx.is_root() {
            return Ok(());
        }
        println!("test accuracy: {accuracy:.4}");
        if self.json {
            let result = serde_json::json!({
                "accelerator": cx.accelerator(),
                "devices": cx.devices().len(),
                "epochs": fit.progress.epoch,
                "global_step": fit.progress.global_step,
                "fit_seconds": fit.elapsed.as_secs_f64(),
                "test/acc": accuracy,
                "test/loss": test.get("test/loss"),
            });
            println!("{result}");
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    // This program's own default; files, environment and flags win over it.
    let trainer = TrainerConfig::new().with_max_epochs(3);
    let mut args = Args {
        trainer,
        ..Args::parse_from(["mnist"])
    };
    args.update_from(std::env::args_os());
    firebox::launch(args)
}
