//! Small models with what is hard in 16 bits: normalization, attention, recurrent states.

use super::*;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNorm, BatchNormConfig, Linear, LinearConfig, Lstm, LstmConfig, PositionalEncoding,
    PositionalEncodingConfig,
};
use burn::optim::AdamConfig;
use burn::tensor::{Int, Tensor, TensorData};
use firebox::data::SampleRng;

pub const STEPS: usize = 8;
const WIDTH: usize = 16;

/// Sequences [batch, STEPS, WIDTH], and which half of each is larger [batch].
pub type Sequences<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

type Item = (Vec<f32>, i32);

pub struct Stack;

impl<B: Backend> Batcher<B, Item, Sequences<B>> for Stack {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Sequences<B> {
        let n = items.len();
        let (x, classes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let x = TensorData::new(x.concat(), [n, STEPS, WIDTH]);
        (
            Tensor::from_data(x, device),
            Tensor::from_data(TensorData::new(classes, [n]), device),
        )
    }
}

/// A loader of random sequences.
pub fn labelled<B: Backend>(samples: usize) -> Loader<B, Sequences<B>> {
    let mut rng = SampleRng::new(7, 0, 0);
    let mut item = || {
        let x: Vec<f32> = (0..STEPS * WIDTH)
            .map(|_| rng.uniform() as f32 - 0.5)
            .collect();
        let (first, second) = x.split_at(x.len() / 2);
        let sum = |half: &[f32]| half.iter().sum::<f32>();
        let class = i32::from(sum(first) < sum(second));
        (x, class)
    };
    let items: Vec<Item> = (0..samples).map(|_| item()).collect();
    let data = InMemDataset::new(items);
    Loader::new(data, Stack).batch_size(16).shuffle(true)
}

/// What all models here do with a batch.
macro_rules! trains {
    ($model:ident) => {
        impl<B: AutodiffBackend> TrainModule for $model<B> {
            type Backend = B;
            type Batch = Sequences<B>;
            type Eval = $model<B::InnerBackend>;

            fn training_step(
                &self,
                (x, classes): Sequences<B>,
                _cx: &mut StepContext<B>,
            ) -> Result<Loss<B>> {
                let logits = self.forward(x);
                let loss = CrossEntropyLossConfig::new().init(&logits.device());
                Ok(loss.forward(logits, classes).into())
            }
            fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
                Ok(Optimizers::single(AdamConfig::new().init()).with_lr(3e-3))
            }
        }

        impl<B: Backend> EvalModule for $model<B> {
            type Backend = B;
            type Batch = Sequences<B>;

            fn validation_step(
                &self,
                (x, classes): Sequences<B>,
                cx: &mut StepContext<B>,
            ) -> Result<()> {
                let logits = self.forward(x);
                let loss = CrossEntropyLossConfig::new().init(&logits.device());
                cx.log("loss", loss.forward(logits, classes));
                Ok(())
            }
        }
    };
}

/// Attention with Burn's own layers, which normalize and take softmax.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// Numbers that are no parameters.
    positions: PositionalEncoding<B>,
    pub encoder: TransformerEncoder<B>,
    pub head: Linear<B>,
}

impl<B: Backend> Attention<B> {
    pub fn new(device: &B::Device) -> Self {
        B::seed(device, 1);
        let model = Self {
            positions: PositionalEncodingConfig::new(WIDTH)
                .with_max_sequence_size(STEPS)
                .init(device),
            encoder: TransformerEncoderConfig::new(WIDTH, 32, 2, 1)
                .with_dropout(0.0)
                .init(device),
            head: LinearConfig::new(WIDTH, 2).init(device),
        };
        model.num_params();
        model
    }
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 2> {
        let [batch, steps, _] = x.dims();
        let mask = generate_autoregressive_mask(batch, steps, &x.device());
        let x = TransformerEncoderInput::new(self.positions.forward(x)).mask_attn(mask);
        let x = self.encoder.forward(x);
        self.head.forward(x.mean_dim(1).flatten(1, 2))
    }
}

trains!(Attention);

/// A recurrent network; Burn's begins with a state of zeros in the device's default format.
#[derive(Module, Debug)]
pub struct Recurrent<B: Backend> {
    pub lstm: Lstm<B>,
    pub head: Linear<B>,
}

impl<B: Backend> Recurrent<B> {
    pub fn new(device: &B::Device) -> Self {
        B::seed(device, 2);
        let model = Self {
            lstm: LstmConfig::new(WIDTH, WIDTH, true).init(device),
            head: LinearConfig::new(WIDTH, 2).init(device),
        };
        model.num_params();
        model
    }
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 2> {
        let (_, last) = self.lstm.forward(x, None);
        self.head.forward(last.hidden)
    }
}

trains!(Recurrent);

/// A layer whose statistics are kept beside its parameters.
#[derive(Module, Debug)]
pub struct Normalized<B: Backend> {
    linear: Linear<B>,
    pub norm: BatchNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> Normalized<B> {
    pub fn new(device: &B::Device) -> Self {
        let model = Self {
            linear: LinearConfig::new(WIDTH, WIDTH).init(device),
            norm: BatchNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, 2).init(device),
        };
        model.num_params();
        model
    }
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 2> {
        let x: Tensor<B, 2> = self.linear.forward(x.mean_dim(1).flatten(1, 2));
        self.head.forward(self.norm.forward(x))
    }
}

trains!(Normalized);
