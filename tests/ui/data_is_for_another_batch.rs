//! Data whose batches are not what the model's step takes.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use firebox::data::{Loaders, TrainLoader};
use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Line};

struct Column;

impl<B: Backend> Batcher<B, f32, Tensor<B, 2>> for Column {
    fn batch(&self, items: Vec<f32>, device: &B::Device) -> Tensor<B, 2> {
        Tensor::<B, 1>::from_floats(items.as_slice(), device).unsqueeze()
    }
}

fn inputs<B: Backend>() -> Loader<B, Tensor<B, 2>> {
    Loader::new(InMemDataset::new(vec![0.0, 1.0]), Column)
}

struct Inputs;

impl<B: AutodiffBackend> DataModule<Line<B>> for Inputs {
    fn train_loader(&self) -> Result<Option<TrainLoader<Line<B>>>> {
        Ok(Some(inputs()))
    }
}

fn run<B: AutodiffBackend>(cx: Launch<B>) -> Result<()> {
    let model = Line::<B>::new(cx.device());
    cx.trainer().fit(model, &mut Loaders::new(inputs()))?;
    Ok(())
}

fn main() {}
