//! Tensors that one thread makes and another one reads.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Tensor};
use firebox::data::{EpochSpec, Loader};

on_each_backend!(a_batch_keeps_its_values_while_work_waits);

const SIDE: usize = 32;

/// A matrix full of the sample's value.
struct Full;

impl<B: Backend> Batcher<B, f32, Tensor<B, 2>> for Full {
    fn batch(&self, items: Vec<f32>, device: &Device<B>) -> Tensor<B, 2> {
        let batch = Tensor::full([SIDE, SIDE], items[0], device);
        // Reading a value has this thread's work done at once, and not when it is needed.
        assert_eq!(
            batch.clone().max().into_data().iter::<f32>().next(),
            Some(items[0])
        );
        batch
    }
}

pub fn a_batch_keeps_its_values_while_work_waits<B: AutodiffBackend>() {
    let device = Device::<B>::default();
    for workers in [0, 1, 3] {
        let samples: Vec<f32> = (0..100_u16).map(f32::from).collect();
        let loader: Loader<B, _> = Loader::new(InMemDataset::new(samples.clone()), Full);
        let batches = loader.workers(workers).iter(EpochSpec::new(device.clone()));
        let eye = Tensor::<B, 2>::eye(SIDE, &device);
        // Each batch is gone before what was computed from it is asked for.
        let products: Vec<_> = batches
            .unwrap()
            .map(|batch| batch.unwrap().value.unwrap().matmul(eye.clone()))
            .collect();
        for (product, sample) in products.into_iter().zip(samples) {
            let values = product.into_data().to_vec::<f32>().unwrap();
            assert_eq!(values, [sample; SIDE * SIDE], "{workers} workers");
        }
    }
}
