//! Two optimizers in turn: a generator learns to imitate points on a circle.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::loss::BinaryCrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Int, Tensor, TensorData};
use clap::Parser;
use firebox::data::Loaders;
use firebox::prelude::*;
use std::process::ExitCode;

const NOISE: usize = 4;

/// Two linear layers.
#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
    activation: Relu,
}

impl<B: Backend> Mlp<B> {
    fn new(inputs: usize, outputs: usize, device: &B::Device) -> Self {
        Self {
            hidden: LinearConfig::new(inputs, 64).init(device),
            output: LinearConfig::new(64, outputs).init(device),
            activation: Relu::new(),
        }
    }
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.output
            .forward(self.activation.forward(self.hidden.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Gan<B: Backend> {
    generator: Mlp<B>,
    discriminator: Mlp<B>,
}

impl<B: Backend> Gan<B> {
    fn generate(&self, count: usize, device: &B::Device) -> Tensor<B, 2> {
        let noise = Tensor::random([count, NOISE], Distribution::Normal(0.0, 1.0), device);
        self.generator.forward(noise)
    }

    /// How far the discriminator is from calling these points real (1) or made up (0).
    fn loss(&self, points: Tensor<B, 2>, real: i32) -> Tensor<B, 1> {
        let device = points.device();
        let [count, _] = points.dims();
        let scores = self.discriminator.forward(points).squeeze_dim::<1>(1);
        let labels = Tensor::<B, 1, Int>::full([count], real, &device);
        let loss = BinaryCrossEntropyLossConfig::new().with_logits(true);
        loss.init(&device).forward(scores, labels)
    }
}

impl<B: AutodiffBackend> TrainModule for Gan<B> {
    type Backend = B;
    type Batch = Tensor<B, 2>;
    type Eval = Gan<B::InnerBackend>;

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let adam = || AdamConfig::new().with_beta_1(0.5).init();
        Ok(Optimizers::manual()
            .with_group(ParamGroup::new("generator", ["generator.*"], adam()).with_lr(2e-3))
            .with_group(
                ParamGroup::new("discriminator", ["discriminator.*"], adam()).with_lr(1e-3),
            ))
    }

    fn training_step(&self, _: Tensor<B, 2>, _: &mut StepContext<B>) -> Result<Loss<B>> {
        Err(Error::user("a GAN is trained by its `manual_step`"))
    }

    fn manual_step(self, real: Tensor<B, 2>, cx: &mut ManualStep<'_, Self>) -> Result<Self> {
        let device = real.device();
        let [count, _] = real.dims();

        let fake = self.generate(count, &device).detach();
        let loss = (self.loss(real, 1) + self.loss(fake, 0)) / 2.0;
        cx.log("discriminator_loss", &loss);
        let model = cx.step("discriminator", self, loss)?;

        let loss = model.loss(model.generate(count, &device), 1);
        cx.log("generator_loss", &loss);
        cx.step("generator", model, loss)
    }
}

impl<B: Backend> EvalModule for Gan<B> {
    type Backend = B;
    type Batch = Tensor<B, 2>;
}

struct PointBatcher;

impl<B: Backend> Batcher<B, [f32; 2], Tensor<B, 2>> for PointBatcher {
    fn batch(&self, points: Vec<[f32; 2]>, device: &B::Device) -> Tensor<B, 2> {
        let n = points.len();
        let values: Vec<f32> = points.into_iter().flatten().collect();
        Tensor::from_data(TensorData::new(values, [n, 2]), device)
    }
}

/// Trains a generative adversarial network on points of a circle.
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
        let angles = (0..1024).map(|i| i as f32 * std::f32::consts::TAU / 1024.0);
        let circle = angles.map(|angle| [angle.cos(), angle.sin()]).collect();
        let train = Loader::new(InMemDataset::new(circle), PointBatcher);
        let mut data = Loaders::new(train.batch_size(128).shuffle(true));
        let model = Gan::<B> {
            generator: Mlp::new(NOISE, 2, cx.device()),
            discriminator: Mlp::new(2, 1, cx.device()),
        };
        let fit = cx.trainer().fit(model, &mut data)?;

        let points = fit.model.generate(512, cx.device());
        let radius = points.powi_scalar(2).sum_dim(1).sqrt();
        if cx.is_root() {
            println!(
                "radius of generated points: {}",
                radius.mean().into_scalar()
            );
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let trainer = TrainerConfig::new().with_max_epochs(100);
    let mut args = Args { trainer };
    args.update_from(std::env::args_os());
    firebox::launch(args)
}
