//! A run that is stopped in the middle of an epoch and resumed ends with the very same weights as one
//! that was never stopped: `cargo run --release --example resume`.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::prelude::*;
use clap::Parser;
use firebox::config::Resume;
use firebox::data::Loaders;
use firebox::prelude::*;
use std::process::ExitCode;

/// Two layers with dropout, whose draws have to be the same as well.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    dropout: Dropout,
    second: Linear<B>,
}

/// x and y, each of shape `[samples, 1]`.
type Points<B> = (Tensor<B, 2>, Tensor<B, 2>);

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(1, 16).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            second: LinearConfig::new(16, 1).init(device),
        }
    }
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, (x, y): Points<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let hidden = self.dropout.forward(self.first.forward(x).tanh());
        let predicted = self.second.forward(hidden);
        Ok(MseLoss::new().forward(predicted, y, Reduction::Mean).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(1e-2))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
}

struct PointBatcher;

impl<B: Backend> Batcher<B, (f32, f32), Points<B>> for PointBatcher {
    fn batch(&self, points: Vec<(f32, f32)>, device: &B::Device) -> Points<B> {
        let n = points.len();
        let (x, y): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
        let column = |values| Tensor::from_data(TensorData::new(values, [n, 1]), device);
        (column(x), column(y))
    }
}

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
        let points = (0..256).map(|i| i as f32 / 128.0 - 1.0);
        let points = InMemDataset::new(points.map(|x| (x, x.sin())).collect());
        let loader = Loader::new(points, PointBatcher)
            .batch_size(16)
            .shuffle(true);
        let mut data = Loaders::new(loader);
        let mut fit = |config: TrainerConfig| {
            B::seed(cx.device(), config.seed);
            Trainer::new(config, cx.device().clone()).fit(Net::<B>::new(cx.device()), &mut data)
        };
        let config = self.trainer;
        let through = fit(config.clone())?;
        println!("never stopped: {} steps", through.progress.global_step);
        if config.fast_dev_run.batches().is_some() {
            return Ok(()); // It writes no checkpoint to resume from.
        }

        // A run of its own, stopped after 40 of its steps, which is in the middle of an epoch.
        let stopped = fit(config.clone().with_max_steps(40))?;
        println!(
            "stopped after {} steps: {}",
            stopped.progress.global_step, stopped.stopped
        );
        // On the command line this is `--resume last`.
        let resumed = fit(config.with_resume(Resume::Last))?;
        println!("resumed: {} steps", resumed.progress.global_step);

        match weights(&through.model) == weights(&resumed.model) {
            true => println!("the weights are equal, bit for bit"),
            false => return Err(Error::user("the weights differ")),
        }
        Ok(())
    }
}

/// All weights, as bits.
fn weights<B: Backend>(net: &Net<B>) -> Vec<u32> {
    let layers = [&net.first, &net.second];
    let data = layers.map(|layer| layer.weight.val().into_data());
    let values = data.iter().flat_map(|data| data.iter::<f32>());
    values.map(f32::to_bits).collect()
}

fn main() -> ExitCode {
    let trainer = TrainerConfig::new().with_max_epochs(10);
    let mut args = Args { trainer };
    args.update_from(std::env::args_os());
    firebox::launch(args)
}
