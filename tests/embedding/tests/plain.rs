//! A plain Burn program trains the model.

use burn::backend::Autodiff;
use burn::data::dataloader::batcher::Batcher;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn_ndarray::NdArray;
use embedding::model::ConvNet;
use embedding::{Draw, items};

type B = Autodiff<NdArray>;

#[test]
fn a_plain_loop_learns() {
    let device = Default::default();
    B::seed(&device, 42);
    let mut model = ConvNet::<B>::new(0.0, &device);
    let mut optimizer = AdamConfig::new().init();
    let criterion = CrossEntropyLossConfig::new().init(&device);
    let mut losses = Vec::new();
    for _ in 0..10 {
        let (pictures, classes) = Draw.batch(items(), &device);
        let loss = criterion.forward(model.forward(pictures), classes);
        losses.push(loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
}
