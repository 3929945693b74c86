//! A data module written for another model.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use firebox::data::TrainLoader;
use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Line, line_data};

#[derive(Module, Debug)]
struct Net<B: Backend> {
    linear: Linear<B>,
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Tensor<B, 2>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, x: Tensor<B, 2>, _: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.linear.forward(x).mean().into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::manual())
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Tensor<B, 2>;
}

struct Points;

impl<B: AutodiffBackend> DataModule<Line<B>> for Points {
    fn train_loader(&self) -> Result<Option<TrainLoader<Line<B>>>> {
        Ok(Some(line_data()))
    }
}

fn run<B: AutodiffBackend>(cx: Launch<B>, model: Net<B>) -> Result<()> {
    cx.trainer().fit(model, &mut Points)?;
    Ok(())
}

fn main() {}
