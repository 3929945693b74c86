//! A small net of the layers that most models are made of.

use super::measure::replace_weights;
use super::verify::VerifyCase;
use crate::data::SampleRng;
use crate::error::Result;
use crate::module::{EvalModule, Loss, StepContext, TrainModule};
use crate::optim::Optimizers;
use crate::parameters::parameters;
use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig,
};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::SgdConfig;
use burn::tensor::activation::tanh;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

const SAMPLES: usize = 2;
const SIDE: usize = 6;
/// A convolution of stride 2 leaves a third of the pixels' square.
const TOKENS: usize = 9;
const WIDTH: usize = 8;
const CLASSES: usize = 4;

/// The model and batch of the doctor's own verification.
pub(super) struct SelfTest;

/// Convolution, batch norm, embedding, layer norm, attention and a linear head.
#[derive(Module, Debug)]
pub(super) struct Net<B: Backend> {
    conv: Conv2d<B>,
    batch_norm: BatchNorm<B>,
    embedding: Embedding<B>,
    layer_norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    head: Linear<B>,
}

/// Images [samples, 1, SIDE, SIDE], words [samples, TOKENS] and classes [samples].
#[derive(Debug, Clone)]
pub(super) struct Batch<B: Backend> {
    images: Tensor<B, 4>,
    words: Tensor<B, 2, Int>,
    classes: Tensor<B, 1, Int>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let conv = Conv2dConfig::new([1, WIDTH], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        Self {
            conv: conv.init(device),
            batch_norm: BatchNormConfig::new(WIDTH).init(device),
            embedding: EmbeddingConfig::new(16, WIDTH).init(device),
            layer_norm: LayerNormConfig::new(WIDTH).init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, 2)
                .with_dropout(0.0)
                .init(device),
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    fn loss(&self, batch: Batch<B>) -> Tensor<B, 1> {
        // Not gelu: but for flex, Burn's backends take its gradient from another formula (with tanh)
        // than its value (with erf), and differ by up to 1e-3.
        let images = tanh(self.batch_norm.forward(self.conv.forward(batch.images)));
        let patches = images.reshape([SAMPLES, WIDTH, TOKENS]).swap_dims(1, 2);
        let tokens = patches + self.embedding.forward(batch.words);
        let tokens = self.layer_norm.forward(tokens);
        let input = MhaInput::self_attn(tokens.clone());
        let tokens = self.attention.forward(input).context + tokens;
        let pooled = tokens.mean_dim(1).reshape([SAMPLES, WIDTH]);
        let logits = self.head.forward(pooled);
        CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits, batch.classes)
    }
}

#[diagnostic::do_not_recommend]
impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Batch<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, batch: Batch<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.loss(batch).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
    }
}

#[diagnostic::do_not_recommend]
impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Batch<B>;

    fn validation_step(&self, _: Batch<B>, _: &mut StepContext<B>) -> Result<()> {
        Ok(())
    }
}

impl VerifyCase for SelfTest {
    type Model<B: AutodiffBackend> = Net<B>;

    /// The same weights in every process, so that processes can be compared.
    fn model<B: AutodiffBackend>(&self, device: &B::Device) -> Net<B> {
        let net = Net::new(device);
        let weights = parameters(&net).into_iter().enumerate().map(|(index, p)| {
            let mut rng = SampleRng::new(1, 0, index);
            let elements = p.shape.iter().product();
            (0..elements).map(|_| rng.uniform() - 0.5).collect()
        });
        let weights = weights.collect();
        match replace_weights(net, &weights) {
            Ok(net) => net,
            Err(_) => unreachable!("the weights were made for this net"),
        }
    }

    fn batch<B: AutodiffBackend>(&self, device: &B::Device) -> Batch<B> {
        let mut rng = SampleRng::new(2, 0, 0);
        let pixels: Vec<_> = (0..SAMPLES * SIDE * SIDE)
            .map(|_| rng.uniform() as f32)
            .collect();
        let words: Vec<_> = (0..SAMPLES * TOKENS).map(|i| (i * 7 % 16) as i32).collect();
        Batch {
            images: Tensor::from_data(TensorData::new(pixels, [SAMPLES, 1, SIDE, SIDE]), device),
            words: Tensor::from_data(TensorData::new(words, [SAMPLES, TOKENS]), device),
            classes: Tensor::from_data(TensorData::from([1, 3]), device),
        }
    }
}
