//! The smallest complete fit: a line through points.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction::Mean};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use clap::Parser;
use firebox::data::Loaders;
use firebox::prelude::*;
use std::process::ExitCode;

/// y = w·x + b: plain Burn.
#[derive(Module, Debug)]
struct Line<B: Backend> {
    linear: Linear<B>,
}

type Points<B> = (Tensor<B, 2>, Tensor<B, 2>);

impl<B: AutodiffBackend> TrainModule for Line<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Line<B::InnerBackend>;

    fn training_step(&self, (x, y): Points<B>, _: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(MseLoss::new()
            .forward(self.linear.forward(x), y, Mean)
            .into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
    }
}

impl<B: Backend> EvalModule for Line<B> {
    type Backend = B;
    type Batch = Points<B>;
}

struct PointBatcher;

impl<B: Backend> Batcher<B, [f32; 2], Points<B>> for PointBatcher {
    fn batch(&self, points: Vec<[f32; 2]>, device: &B::Device) -> Points<B> {
        let column = |i: usize| {
            let values: Vec<f32> = points.iter().map(|point| point[i]).collect();
            Tensor::from_data(TensorData::new(values, [points.len(), 1]), device)
        };
        (column(0), column(1))
    }
}

/// Fits y = 2x + 1.
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
        let points = (0..64)
            .map(|i| i as f32 / 32.0 - 1.0)
            .map(|x| [x, 2.0 * x + 1.0]);
        let train = Loader::new(InMemDataset::new(points.collect()), PointBatcher);
        let mut data = Loaders::new(train.batch_size(16).shuffle(true));
        let linear = LinearConfig::new(1, 1).init(cx.device());
        let fit = cx.trainer().fit(Line::<B> { linear }, &mut data)?;
        let loss = fit.metrics.get("train/loss_epoch").unwrap_or(f64::NAN);
        if cx.is_root() {
            let w = fit.model.linear.weight.val().into_scalar();
            println!("w = {w}, loss {loss:.2e}");
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let trainer = TrainerConfig::new().with_max_epochs(20);
    let mut args = Args { trainer };
    args.update_from(std::env::args_os());
    firebox::launch(args)
}
