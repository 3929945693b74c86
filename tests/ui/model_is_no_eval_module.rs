//! A model whose version without autodiff cannot be evaluated.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Points};

#[derive(Module, Debug)]
struct Net<B: Backend> {
    linear: Linear<B>,
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, (x, _): Points<B>, _: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.linear.forward(x).mean().into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::manual())
    }
}

fn main() {}
