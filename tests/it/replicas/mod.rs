//! Several replicas of a model on one machine: the result is that of one, and none waits for ever.

mod by_hand;
mod equality;
mod evaluation;
mod failures;
mod layers;
#[cfg(feature = "mpi")]
mod mpi;
mod strategies;
mod trials;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::optim::{SgdConfig, momentum::MomentumConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, activation};
use firebox::data::Loaders;
use firebox::prelude::*;
use std::sync::{Arc, Mutex};

/// The samples that steps have seen, in whatever order.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<usize>>>);

impl Seen {
    pub fn add(&self, ids: &[usize]) {
        self.0.lock().unwrap().extend(ids);
    }

    /// What has been seen since the last call, sorted.
    pub fn take(&self) -> Vec<usize> {
        let mut seen = std::mem::take(&mut *self.0.lock().unwrap());
        seen.sort_unstable();
        seen
    }
}

/// Rows of features with their ids; the target is a function of the features.
#[derive(Debug, Clone)]
pub struct Rows<B: Backend> {
    pub x: Tensor<B, 2>,
    pub y: Tensor<B, 2>,
    pub ids: Vec<usize>,
    pub seen: Seen,
}

#[derive(Debug, Clone)]
struct RowBatcher(Seen);

const FEATURES: usize = 3;

impl<B: Backend> Batcher<B, usize, Rows<B>> for RowBatcher {
    fn batch(&self, ids: Vec<usize>, device: &B::Device) -> Rows<B> {
        let value = |id: &usize, i: usize| ((id * 7 + i * 13) % 17) as f32 / 8.0 - 1.0;
        let x: Vec<f32> = ids
            .iter()
            .flat_map(|id| (0..FEATURES).map(move |i| value(id, i)))
            .collect();
        let y: Vec<f32> = x.chunks(FEATURES).map(|x| x[0] * x[1] - x[2]).collect();
        let n = ids.len();
        Rows {
            x: Tensor::from_data(TensorData::new(x, [n, FEATURES]), device),
            y: Tensor::from_data(TensorData::new(y, [n, 1]), device),
            ids,
            seen: self.0.clone(),
        }
    }
}

/// `n` samples, and who sees them.
pub fn rows<B: Backend>(n: usize) -> (Loader<B, Rows<B>>, Seen) {
    let seen = Seen::default();
    let data = InMemDataset::new((0..n).collect());
    (Loader::new(data, RowBatcher(seen.clone())), seen)
}

/// A layer with known weights: other tests draw from the same generator at the same time.
pub fn linear<B: Backend>(inputs: usize, outputs: usize, device: &B::Device) -> Linear<B> {
    let known = |n: usize| (0..n).map(|i| f64::sin(i as f64 * 1.7 + outputs as f64) as f32 / 2.0);
    let weight = TensorData::new(
        known(inputs * outputs).collect::<Vec<_>>(),
        [inputs, outputs],
    );
    let bias = TensorData::new(known(outputs).collect::<Vec<_>>(), [outputs]);
    Linear {
        weight: Param::from_tensor(Tensor::from_data(weight, device)),
        bias: Some(Param::from_tensor(Tensor::from_data(bias, device))),
    }
}

/// A small network with known initial weights.
#[derive(Module, Debug)]
pub struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Net<B> {
    pub fn new(device: &B::Device) -> Self {
        Self {
            first: linear(FEATURES, 8, device),
            second: linear(8, 1, device),
        }
    }

    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(activation::tanh(self.first.forward(x)))
    }

    fn loss(&self, rows: &Rows<B>) -> Tensor<B, 1> {
        let error = self.forward(rows.x.clone()) - rows.y.clone();
        error.square().mean()
    }

    /// Every parameter's values, one after the other.
    pub fn values(&self) -> Vec<f64> {
        let values = |tensor: TensorData| tensor.iter::<f64>().collect::<Vec<_>>();
        let of = |linear: &Linear<B>| {
            let bias = linear.bias.as_ref().unwrap().val().into_data();
            [values(linear.weight.val().into_data()), values(bias)].concat()
        };
        [of(&self.first), of(&self.second)].concat()
    }
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Rows<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, rows: Rows<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        rows.seen.add(&rows.ids);
        Ok(self.loss(&rows).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        // Not Adam, which makes steps of rounding errors where the gradient is 0.
        let momentum = MomentumConfig::new();
        let sgd = SgdConfig::new().with_momentum(Some(momentum));
        Ok(Optimizers::single(sgd.init()).with_lr(0.05))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Rows<B>;

    fn validation_step(&self, rows: Rows<B>, cx: &mut StepContext<B>) -> Result<()> {
        rows.seen.add(&rows.ids);
        cx.log("loss", self.loss(&rows));
        Ok(())
    }
}

impl<B: Backend> PredictModule for Net<B> {
    type Input = Rows<B>;
    type Output = Vec<(usize, f32)>;

    fn predict_step(&self, rows: Rows<B>, _cx: &mut StepContext<B>) -> Result<Self::Output> {
        let predicted = self.forward(rows.x).into_data();
        Ok(rows.ids.into_iter().zip(predicted.iter::<f32>()).collect())
    }
}

/// A trainer with so many replicas on the first device.
pub fn trainer<M: TrainModule>(config: TrainerConfig, replicas: usize) -> Trainer<M> {
    let device = burn::tensor::Device::<M::Backend>::default();
    // A GPU's kernels may round in another way from device to device.
    let on_cpu = !std::any::type_name::<M::Backend>().contains("Cube");
    let config = config.with_check_replicas_every_n_steps(on_cpu.then_some(1));
    Trainer::new(config, device.clone()).with_devices(vec![device; replicas])
}

/// Trains a new network on `n` samples.
pub fn fit<B: AutodiffBackend>(
    config: TrainerConfig,
    replicas: usize,
    train: Loader<B, Rows<B>>,
) -> FitOutcome<Net<B>> {
    let net = Net::new(&B::Device::default());
    let mut trainer = trainer(config, replicas);
    trainer.fit(net, &mut Loaders::new(train)).unwrap()
}

/// Whether two lists of numbers are equal relative to the larger of both, or to 0.1: a weight near 0
/// is the difference of larger ones.
#[track_caller]
pub fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let scale = a.abs().max(b.abs()).max(0.1);
        assert!((a - b).abs() <= tolerance * scale, "{i}: {a} and {b}");
    }
}
