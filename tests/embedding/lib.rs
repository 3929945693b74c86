//! The model of firebox's MNIST example, and digits to train it on, for programs without firebox.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

#[path = "../../examples/mnist/model.rs"]
#[allow(missing_docs, reason = "an example's file, unchanged")]
pub mod model;

/// A picture with a bright row, and which row that is.
pub type Item = usize;

/// Pictures `[batch, 28, 28]` and their classes `[batch]`.
pub type Pictures<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

/// Sixteen pictures of four classes.
pub fn items() -> Vec<Item> {
    (0..16).map(|i| i % 4).collect()
}

/// Draws the pictures.
#[derive(Debug, Clone, Copy)]
pub struct Draw;

impl<B: Backend> Batcher<B, Item, Pictures<B>> for Draw {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Pictures<B> {
        let picture = |class: &usize| {
            let row = 3 + 7 * *class;
            (0..28 * 28).map(move |pixel| if pixel / 28 == row { 1.0f32 } else { 0.0 })
        };
        let pixels: Vec<_> = items.iter().flat_map(picture).collect();
        let classes: Vec<_> = items.iter().map(|class| *class as i32).collect();
        let count = items.len();
        (
            Tensor::from_data(TensorData::new(pixels, [count, 28, 28]), device),
            Tensor::from_data(TensorData::new(classes, [count]), device),
        )
    }
}
