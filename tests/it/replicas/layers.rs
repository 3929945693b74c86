//! Layers of `firebox::nn` make several replicas give what one gives, where Burn's do not.

use super::{Rows, assert_near, linear, rows, trainer};
use crate::support::quiet;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear};
use burn::optim::{SgdConfig, momentum::MomentumConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, activation};
use firebox::data::Loaders;
use firebox::nn::{Dropout, DropoutConfig, SyncBatchNorm};
use firebox::prelude::*;

on_each_backend!(
    several_replicas_give_what_one_gives,
    without_sync_the_statistics_are_those_of_a_part,
    with_burns_batch_norm_it_is_something_else,
    an_average_is_validated_as_it_is_given_back,
    a_failing_step_is_told_though_others_wait_in_a_layer,
);

/// Two branches with batch norm and dropout, one of which is Burn's if so wanted.
#[derive(Module, Debug)]
struct Branches<B: Backend> {
    left: (Linear<B>, SyncBatchNorm<B>),
    right: (Linear<B>, SyncBatchNorm<B>),
    burns: Option<BatchNorm<B>>,
    dropout: Dropout,
    out: Linear<B>,
}

impl<B: Backend> Branches<B> {
    fn new(with_burns: bool) -> Self {
        let device = &B::Device::default();
        let norm = || BatchNormConfig::new(8).init(device);
        let branch = || (linear(3, 8, device), norm().into());
        Self {
            left: branch(),
            right: branch(),
            burns: with_burns.then(norm),
            dropout: DropoutConfig::new(0.2).init(),
            out: linear(8, 1, device),
        }
    }

    fn loss(&self, rows: &Rows<B>) -> Tensor<B, 1> {
        let branch = |(linear, norm): &(Linear<B>, SyncBatchNorm<B>)| {
            activation::tanh(norm.forward(linear.forward(rows.x.clone())))
        };
        let mut hidden = branch(&self.left) * branch(&self.right);
        if let Some(norm) = &self.burns {
            hidden = norm.forward(hidden);
        }
        let out = self.out.forward(self.dropout.forward(hidden));
        (out - rows.y.clone()).square().mean()
    }

    /// Weights and running statistics.
    fn values(&self) -> Vec<f64> {
        let of = |tensor: Tensor<B, 1>| tensor.into_data().iter::<f64>().collect::<Vec<_>>();
        let mut values = Vec::new();
        for (linear, norm) in [&self.left, &self.right] {
            values.extend(of(linear.weight.val().flatten(0, 1)));
            values.extend(of(norm.gamma.val()));
            values.extend(of(norm.running_mean.value_sync()));
            values.extend(of(norm.running_var.value_sync()));
        }
        values.extend(of(self.out.weight.val().flatten(0, 1)));
        values
    }
}

impl<B: AutodiffBackend> TrainModule for Branches<B> {
    type Backend = B;
    type Batch = Rows<B>;
    type Eval = Branches<B::InnerBackend>;

    fn training_step(&self, rows: Rows<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.loss(&rows).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let momentum = MomentumConfig::new();
        let sgd = SgdConfig::new().with_momentum(Some(momentum));
        Ok(Optimizers::single(sgd.init()).with_lr(0.02))
    }
}

impl<B: Backend> EvalModule for Branches<B> {
    type Backend = B;
    type Batch = Rows<B>;

    fn validation_step(&self, rows: Rows<B>, cx: &mut StepContext<B>) -> Result<()> {
        cx.log("loss", self.loss(&rows));
        Ok(())
    }
}

/// 13 samples in batches of 5; the last has 3, so that one of 4 replicas has none.
fn data<B: AutodiffBackend>() -> Loaders<Branches<B>> {
    let (train, _) = rows::<B>(13);
    let (val, _) = rows::<B::InnerBackend>(13);
    Loaders::new(train.batch_size(5).shuffle(true)).with_val(val.batch_size(4))
}

fn fit<B: AutodiffBackend>(
    replicas: usize,
    sync: bool,
    with_burns: bool,
) -> Result<(Vec<f64>, f64)> {
    fit_as::<B>(replicas, with_burns, |c| c.with_sync_batchnorm(sync))
}

fn fit_as<B: AutodiffBackend>(
    replicas: usize,
    with_burns: bool,
    set: impl Fn(TrainerConfig) -> TrainerConfig,
) -> Result<(Vec<f64>, f64)> {
    let (config, _runs) = quiet();
    let mut data = data::<B>();
    let mut trainer = trainer(set(config.with_max_steps(20)), replicas);
    let outcome = trainer.fit(Branches::<B>::new(with_burns), &mut data)?;
    Ok((
        outcome.model.values(),
        outcome.metrics.get("val/loss").unwrap(),
    ))
}

pub fn several_replicas_give_what_one_gives<B: AutodiffBackend>() {
    let one = fit::<B>(1, true, false).unwrap();
    for replicas in [2, 4] {
        let several = fit::<B>(replicas, true, false).unwrap();
        assert_near(&several.0, &one.0, 1e-4);
        assert_near(&[several.1], &[one.1], 1e-4);
    }
}

pub fn without_sync_the_statistics_are_those_of_a_part<B: AutodiffBackend>() {
    let one = fit::<B>(1, true, false).unwrap();
    let apart = fit::<B>(2, false, false).unwrap();
    let far = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-3;
    assert!(apart.0.iter().zip(&one.0).any(far));
}

pub fn with_burns_batch_norm_it_is_something_else<B: AutodiffBackend>() {
    let run = |replicas| fit::<B>(replicas, true, true).unwrap();
    let (one, several) = (run(1), run(2));
    let far = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-3;
    assert!(several.0.iter().zip(&one.0).any(far));
}

pub fn an_average_is_validated_as_it_is_given_back<B: AutodiffBackend>() {
    // Each replica has statistics of its own in Burn's layer, and in its average of the weights.
    let (config, _runs) = quiet();
    let averaged = config
        .with_max_epochs(2)
        .with_weight_averaging(Some("ema:0.5".parse().unwrap()));
    let mut of_two = trainer(averaged, 2);
    let outcome = of_two
        .fit(Branches::<B>::new(true), &mut data::<B>())
        .unwrap();
    let (config, _runs) = quiet();
    let alone = trainer(config, 1).validate(&outcome.model, &mut data::<B>());
    let (told, alone) = (
        outcome.metrics.get("val/loss").unwrap(),
        alone.unwrap().get("val/loss").unwrap(),
    );
    assert_near(&[told], &[alone], 1e-5);
}

/// Fails at a sample.
#[derive(Module, Debug)]
struct Picky<B: Backend> {
    branches: Branches<B>,
}

impl<B: AutodiffBackend> TrainModule for Picky<B> {
    type Backend = B;
    type Batch = Rows<B>;
    type Eval = Picky<B::InnerBackend>;

    fn training_step(&self, rows: Rows<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        match rows.ids.contains(&3) {
            true => Err(Error::data("sample 3 is no good")),
            false => self.branches.training_step(rows, cx),
        }
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.02))
    }
}

impl<B: Backend> EvalModule for Picky<B> {
    type Backend = B;
    type Batch = Rows<B>;
}

pub fn a_failing_step_is_told_though_others_wait_in_a_layer<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let (train, _) = rows::<B>(4);
    let model = Picky {
        branches: Branches::<B>::new(false),
    };
    let error = trainer(config.with_max_epochs(1), 2)
        .fit(model, &mut Loaders::new(train.batch_size(4)))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("rank 1: ") && text.contains("sample 3 is no good"),
        "{text}"
    );
    assert!(!text.contains("statistics"), "{text}");
    assert_eq!(error.kind(), firebox::ErrorKind::Data);
}

#[cfg(feature = "flex")]
#[test]
fn with_a_scaled_loss_every_part_still_weighs_what_it_has() {
    use firebox::config::{LossScale, Precision};
    type Flex = <firebox_flex::Flex as firebox_backend::Accelerator>::Backend;
    let run = |replicas, precision| {
        let set = |config: TrainerConfig| {
            // Few steps: 16 bits soon go their own way.
            let config = config.with_precision(precision).with_max_steps(3);
            config.with_loss_scale(LossScale::Static(256.0))
        };
        fit_as::<Flex>(replicas, false, set).unwrap()
    };
    let far = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(0.1);
    let largest = |a: &[f64], b: &[f64]| a.iter().zip(b).map(far).fold(0.0, f64::max);
    let exact = run(1, Precision::F32True);
    for replicas in [1, 2, 4] {
        let several = run(replicas, Precision::F16Mixed);
        let off = largest(&several.0, &exact.0);
        assert!(off < 0.005, "{replicas} replicas are off by {off}");
    }
}
