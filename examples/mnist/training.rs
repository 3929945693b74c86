//! How the network is trained and evaluated.

use super::data::Digits;
use super::model::ConvNet;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use firebox::metric::Accuracy;
use firebox::prelude::*;

/// A network and its learning rate.
#[derive(Module, Debug)]
pub struct Classifier<B: Backend> {
    net: ConvNet<B>,
    lr: f64,
}

impl<B: Backend> Classifier<B> {
    pub fn new(net: ConvNet<B>, lr: f64) -> Self {
        Self { net, lr }
    }
}

fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, labels)
}

impl<B: AutodiffBackend> TrainModule for Classifier<B> {
    type Backend = B;
    type Batch = Digits<B>;
    type Eval = Classifier<B::InnerBackend>;

    fn training_step(&self, batch: Digits<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let logits = self.net.forward(batch.images);
        cx.log(
            "acc",
            Accuracy::new().observe(logits.clone(), batch.labels.clone())?,
        );
        Ok(cross_entropy(logits, batch.labels).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(self.lr))
    }
}

impl<B: Backend> EvalModule for Classifier<B> {
    type Backend = B;
    type Batch = Digits<B>;

    fn validation_step(&self, batch: Digits<B>, cx: &mut StepContext<B>) -> Result<()> {
        let logits = self.net.forward(batch.images);
        cx.log(
            "acc",
            Accuracy::new().observe(logits.clone(), batch.labels.clone())?,
        );
        cx.log("loss", cross_entropy(logits, batch.labels));
        Ok(())
    }
}
