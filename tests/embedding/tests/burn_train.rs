//! A burn-train program trains the model.

#![allow(clippy::unwrap_used, reason = "tests")]

use burn::backend::Autodiff;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_ndarray::NdArray;
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use embedding::model::ConvNet;
use embedding::{Draw, Pictures, items};
use std::sync::Arc;

type B = Autodiff<NdArray>;

/// What burn-train asks of a model, around the model.
#[derive(Module, Debug)]
struct Classifier<B: Backend> {
    net: ConvNet<B>,
}

impl<B: Backend> Classifier<B> {
    fn classify(&self, (pictures, classes): Pictures<B>) -> ClassificationOutput<B> {
        let logits = self.net.forward(pictures);
        let criterion = CrossEntropyLossConfig::new().init(&logits.device());
        let loss = criterion.forward(logits.clone(), classes.clone());
        ClassificationOutput::new(loss, logits, classes)
    }
}

impl<B: AutodiffBackend> TrainStep for Classifier<B> {
    type Input = Pictures<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Pictures<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Classifier<B> {
    type Input = Pictures<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Pictures<B>) -> ClassificationOutput<B> {
        self.classify(batch)
    }
}

fn loader<B: Backend>() -> Arc<dyn DataLoader<B, Pictures<B>>> {
    DataLoaderBuilder::new(Draw)
        .batch_size(16)
        .build(InMemDataset::new(items()))
}

fn loss(model: &Classifier<NdArray>) -> f32 {
    let batch = Draw.batch(items(), &Default::default());
    let loss: Tensor<NdArray, 1> = model.classify(batch).loss;
    loss.into_scalar()
}

#[test]
fn burn_trains_own_loop_learns() {
    let files = tempfile::tempdir().unwrap();
    let device = Default::default();
    B::seed(&device, 42);
    let net = ConvNet::<B>::new(0.0, &device);
    let model = Classifier { net };
    let before = loss(&model.valid());
    let training = SupervisedTraining::new(files.path(), loader::<B>(), loader::<NdArray>())
        .num_epochs(10)
        .with_application_logger(None)
        .summary();
    let trained = training.launch(Learner::new(model, AdamConfig::new().init(), 1e-3));
    let after = loss(&trained.model);
    assert!(after < 0.5 * before, "{before} {after}");
}
