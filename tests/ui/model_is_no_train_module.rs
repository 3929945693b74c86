//! A plain Burn module is given to a trainer.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use firebox::prelude::*;
use firebox::testing::AutodiffBackend;

#[derive(Module, Debug)]
struct Plain<B: Backend> {
    linear: Linear<B>,
}

fn run<B: AutodiffBackend>(cx: Launch<B>, model: Plain<B>) -> Result<()> {
    let mut data = ();
    cx.trainer().fit(model, &mut data)?;
    Ok(())
}

fn main() {}
