//! The models, and batches for them.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, MultiGradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use firebox::data::SampleRng;
use firebox::prelude::*;
use std::str::FromStr;

const CLASSES: usize = 10;
const PIXELS: usize = 28 * 28;
const TOKENS: usize = 64;
const WORDS: usize = 256;
const WIDTH: usize = 128;

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Cnn,
    Mlp,
    Transformer,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "cnn" => Ok(Self::Cnn),
            "mlp" => Ok(Self::Mlp),
            "transformer" => Ok(Self::Transformer),
            other => Err(format!("there is no model `{other}`")),
        }
    }
}

impl Kind {
    /// The samples of half a batch.
    pub fn unit(self) -> usize {
        match self {
            Self::Cnn | Self::Mlp => 32,
            Self::Transformer => 16,
        }
    }

    pub fn steps(self) -> usize {
        match self {
            Self::Cnn => 24,
            Self::Mlp => 100,
            Self::Transformer => 8,
        }
    }

    fn inputs(self) -> usize {
        match self {
            Self::Cnn | Self::Mlp => PIXELS,
            Self::Transformer => TOKENS,
        }
    }
}

/// Inputs [batch, pixels or tokens] and classes [batch].
type Points<B> = (Tensor<B, 2>, Tensor<B, 1, Int>);

/// The same numbers in every batch, made once: what loading costs is not the question here.
///
/// What the loader takes for a sample is half a batch, so that both replicas have one, and the
/// weight of their losses is 1: gradients that a step returns itself are then not scaled, which
/// gradients of a loss never are.
pub struct Ready {
    values: Vec<f32>,
    classes: Vec<i32>,
    inputs: usize,
    unit: usize,
}

impl Ready {
    pub fn new(kind: Kind) -> Self {
        const MOST: usize = 4;
        let mut rng = SampleRng::new(42, 0, 0);
        let (unit, inputs) = (kind.unit(), kind.inputs());
        let scale = match kind {
            Kind::Transformer => WORDS as f64,
            Kind::Cnn | Kind::Mlp => 1.0,
        };
        let values = (0..MOST * unit * inputs).map(|_| (rng.uniform() * scale) as f32);
        Self {
            values: values.collect(),
            classes: (0..MOST * unit).map(|i| (i % CLASSES) as i32).collect(),
            inputs,
            unit,
        }
    }
}

impl<B: Backend> Batcher<B, (), Points<B>> for Ready {
    fn batch(&self, units: Vec<()>, device: &B::Device) -> Points<B> {
        let n = units.len() * self.unit;
        let x = TensorData::new(self.values[..n * self.inputs].to_vec(), [n, self.inputs]);
        let classes = TensorData::new(self.classes[..n].to_vec(), [n]);
        (
            Tensor::from_data(x, device),
            Tensor::from_data(classes, device),
        )
    }
}

#[derive(Module, Debug)]
pub struct Net<B: Backend> {
    layers: Layers<B>,
    timed: bool,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Layers<B: Backend> {
    Cnn(Cnn<B>),
    Mlp(Mlp<B>),
    Transformer(Transformer<B>),
}

/// As in the MNIST example, without its dropout: Burn's draws from one generator for all threads.
#[derive(Module, Debug)]
struct Cnn<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: AdaptiveAvgPool2d,
    linear1: Linear<B>,
    linear2: Linear<B>,
    activation: Relu,
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    linear1: Linear<B>,
    linear2: Linear<B>,
    linear3: Linear<B>,
    activation: Relu,
}

#[derive(Module, Debug)]
struct Transformer<B: Backend> {
    embedding: Embedding<B>,
    encoder: TransformerEncoder<B>,
    linear: Linear<B>,
}

impl<B: Backend> Net<B> {
    pub fn new(kind: Kind, timed: bool, device: &B::Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let conv = |from, to| Conv2dConfig::new([from, to], [3, 3]).init(device);
        let layers = match kind {
            Kind::Cnn => Layers::Cnn(Cnn {
                conv1: conv(1, 8),
                conv2: conv(8, 16),
                pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
                linear1: linear(16 * 8 * 8, 512),
                linear2: linear(512, CLASSES),
                activation: Relu::new(),
            }),
            Kind::Mlp => Layers::Mlp(Mlp {
                linear1: linear(PIXELS, 512),
                linear2: linear(512, 512),
                linear3: linear(512, CLASSES),
                activation: Relu::new(),
            }),
            Kind::Transformer => Layers::Transformer(Transformer {
                embedding: EmbeddingConfig::new(WORDS, WIDTH).init(device),
                encoder: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 2)
                    .with_dropout(0.0)
                    .init(device),
                linear: linear(WIDTH, CLASSES),
            }),
        };
        Self { layers, timed }
    }

    fn loss(&self, (x, classes): Points<B>) -> Tensor<B, 1> {
        let logits = match &self.layers {
            Layers::Cnn(net) => net.forward(x),
            Layers::Mlp(net) => net.forward(x),
            Layers::Transformer(net) => net.forward(x),
        };
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(logits, classes)
    }
}

impl<B: Backend> Cnn<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [batch, _] = x.dims();
        let x = self.conv1.forward(x.reshape([batch, 1, 28, 28]));
        let x = self.activation.forward(self.conv2.forward(x));
        let x = self.pool.forward(x).reshape([batch, 16 * 8 * 8]);
        let x = self.activation.forward(self.linear1.forward(x));
        self.linear2.forward(x)
    }
}

impl<B: Backend> Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = self.activation.forward(self.linear1.forward(x));
        let x = self.activation.forward(self.linear2.forward(x));
        self.linear3.forward(x)
    }
}

impl<B: Backend> Transformer<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = self.embedding.forward(x.int());
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        self.linear.forward(x.mean_dim(1).squeeze_dim::<2>(1))
    }
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        if !self.timed {
            return Ok(self.loss(batch).into());
        }
        marks::note();
        let loss = self.loss(batch);
        let gradients = GradientsParams::from_grads(loss.backward(), self);
        marks::note();
        Ok(Loss::from_gradients(gradients))
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let adam = AdamConfig::new().init();
        Ok(match self.timed {
            false => Optimizers::single(adam),
            true => Optimizers::single(Noting(adam)),
        }
        .with_lr(1e-4))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
}

/// An optimizer that notes when it begins.
#[derive(Clone)]
struct Noting<O>(O);

impl<M, B, O> Optimizer<M, B> for Noting<O>
where
    M: burn::module::AutodiffModule<B>,
    B: AutodiffBackend,
    O: Optimizer<M, B>,
{
    type Record = O::Record;

    fn step(&mut self, lr: f64, module: M, gradients: GradientsParams) -> M {
        marks::note();
        let stepped = self.0.step(lr, module, gradients);
        marks::note();
        stepped
    }

    fn step_multi(&mut self, lr: f64, module: M, gradients: MultiGradientsParams) -> M {
        self.0.step_multi(lr, module, gradients)
    }

    fn to_record(&self) -> Self::Record {
        self.0.to_record()
    }

    fn load_record(self, record: Self::Record) -> Self {
        Self(self.0.load_record(record))
    }
}

pub mod marks {
    //! When replicas were where in a step.

    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread::{self, ThreadId};
    use std::time::Instant;

    /// Of each replica, by its thread: for every step when it began, when it had its gradients, when
    /// its optimizer began and when that ended.
    pub type Marks = Vec<(ThreadId, Vec<Instant>)>;

    static MARKS: Mutex<Marks> = Mutex::new(Vec::new());

    fn marks() -> MutexGuard<'static, Marks> {
        MARKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This replica comes to the next place.
    pub fn note() {
        let now = Instant::now();
        let id = thread::current().id();
        let mut marks = marks();
        match marks.iter_mut().find(|(thread, _)| *thread == id) {
            Some((_, times)) => times.push(now),
            None => marks.push((id, vec![now])),
        }
    }

    /// All of them; none are left.
    pub fn take() -> Marks {
        std::mem::take(&mut *marks())
    }
}
