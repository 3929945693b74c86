//! Tiny modules with known answers, for examples in the documentation and for tests.

use crate::data::Loader;
use crate::error::Result;
use crate::module::{EvalModule, Loss, PredictModule, StepContext, TrainModule};
use crate::optim::Optimizers;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

pub use burn::tensor::backend::AutodiffBackend;

/// The CPU backend of the examples.
#[cfg(feature = "flex")]
pub type Cpu = <firebox_flex::Flex as firebox_backend::Accelerator>::Backend;
/// The CPU backend of the examples.
#[cfg(all(feature = "ndarray", not(feature = "flex")))]
pub type Cpu = <firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend;

/// y = w·x + b.
#[derive(Module, Debug)]
pub struct Line<B: Backend> {
    linear: Linear<B>,
}

/// x and y, each of shape [samples, 1].
pub type Points<B> = (Tensor<B, 2>, Tensor<B, 2>);

impl<B: Backend> Line<B> {
    /// A line with random weights.
    pub fn new(device: &B::Device) -> Self {
        let linear = LinearConfig::new(1, 1).init(device);
        Self { linear }
    }

    /// The mean squared error of a batch.
    pub fn loss(&self, (x, y): Points<B>) -> Tensor<B, 1> {
        MseLoss::new().forward(self.linear.forward(x), y, Reduction::Mean)
    }
}

#[diagnostic::do_not_recommend]
impl<B: AutodiffBackend> TrainModule for Line<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Line<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.loss(batch).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.5))
    }
}

#[diagnostic::do_not_recommend]
impl<B: Backend> EvalModule for Line<B> {
    type Backend = B;
    type Batch = Points<B>;

    fn validation_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<()> {
        cx.log("loss", self.loss(batch));
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl<B: Backend> PredictModule for Line<B> {
    type Input = Points<B>;
    type Output = Tensor<B, 2>;

    fn predict_step(&self, (x, _): Points<B>, _cx: &mut StepContext<B>) -> Result<Tensor<B, 2>> {
        Ok(self.linear.forward(x))
    }
}

/// 32 points of y = 2x + 1 with x in [-1, 1).
pub fn line_data<B: Backend>() -> Loader<B, Points<B>> {
    let points = (0..32).map(|i| {
        let x = i as f32 / 16.0 - 1.0;
        (x, 2.0 * x + 1.0)
    });
    Loader::new(InMemDataset::new(points.collect()), PointBatcher)
}

/// Makes [`Points`] of pairs.
#[derive(Debug, Clone, Copy)]
pub struct PointBatcher;

impl<B: Backend> Batcher<B, (f32, f32), Points<B>> for PointBatcher {
    fn batch(&self, points: Vec<(f32, f32)>, device: &B::Device) -> Points<B> {
        let n = points.len();
        let (x, y): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
        let column = |values| Tensor::from_data(TensorData::new(values, [n, 1]), device);
        (column(x), column(y))
    }
}
