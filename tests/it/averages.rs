//! Values of an epoch: weighed by samples, ratios from pooled counts.

use crate::support::*;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use firebox::data::Loaders;
use firebox::metric::{Accuracy, Average, Perplexity, Precision};
use firebox::prelude::*;

on_each_backend!(
    a_short_last_batch_weighs_its_samples,
    a_training_epoch_weighs_its_samples_too,
    ratios_come_from_pooled_counts,
    each_sample_counts_once,
    dropping_the_last_batch_drops_it_once,
    a_test_is_logged_at_the_last_step,
);

/// Values 0.7, 0.8 and 0.9 of batches of 256, 256 and 10.
fn values() -> Vec<f32> {
    [(0.7, 256), (0.8, 256), (0.9, 10)]
        .into_iter()
        .flat_map(|(value, size)| std::iter::repeat_n(value, size))
        .collect()
}

fn a_short_last_batch_weighs_its_samples<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let mut data = Loaders::new(gradients([0.0])).with_val(gradients(values()).batch_size(256));
    let mut trainer = Trainer::new(config, B::Device::default());
    let metrics = trainer
        .validate(&Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap();
    assert_close(&[metrics.get("val/value").unwrap()], &[393.0 / 522.0], 1e-6);
}

fn a_training_epoch_weighs_its_samples_too<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let data = Loaders::new(gradients(values()).batch_size(256));
    let (outcome, rows) = fit::<B>(config.with_max_epochs(1), sgd(0.0), data);
    let epoch = outcome.metrics.get("train/loss_epoch").unwrap();
    // A device sums 256 values of f32 in an order of its own.
    assert_close(&[epoch], &[393.0 / 522.0], 1e-5);
    assert_close(&rows.values("train/loss"), &[0.7, 0.8, 0.9], 1e-5);
}

/// A classifier that is told what it predicts.
#[derive(Module, Debug)]
struct Told<B: Backend> {
    unused: Param<Tensor<B, 1>>,
}

#[derive(Debug, Clone)]
struct Answers<B: Backend> {
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
}

impl<B: AutodiffBackend> TrainModule for Told<B> {
    type Backend = B;
    type Batch = Answers<B>;
    type Eval = Told<B::InnerBackend>;

    fn training_step(&self, _batch: Answers<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.unused.val().into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.0))
    }
}

impl<B: Backend> EvalModule for Told<B> {
    type Backend = B;
    type Batch = Answers<B>;

    fn validation_step(&self, batch: Answers<B>, cx: &mut StepContext<B>) -> Result<()> {
        let Answers { logits, targets } = batch;
        let precision = Precision::new(2).average(Average::Class(1));
        cx.log(
            "precision",
            precision.observe(logits.clone(), targets.clone())?,
        );
        cx.log(
            "accuracy",
            Accuracy::new().observe(logits.clone(), targets.clone())?,
        );
        cx.log("perplexity", Perplexity::new().observe(logits, targets)?);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct AnswerBatcher;

/// A sample: its two logits and its class.
type Answer = ([f32; 2], i32);

impl<B: Backend> Batcher<B, Answer, Answers<B>> for AnswerBatcher {
    fn batch(&self, answers: Vec<Answer>, device: &B::Device) -> Answers<B> {
        let n = answers.len();
        let logits: Vec<f32> = answers.iter().flat_map(|(logits, _)| *logits).collect();
        let targets: Vec<i32> = answers.iter().map(|(_, target)| *target).collect();
        Answers {
            logits: Tensor::<B, 1>::from_floats(logits.as_slice(), device).reshape([n, 2]),
            targets: Tensor::from_ints(targets.as_slice(), device),
        }
    }
}

fn evaluate<B: AutodiffBackend>(answers: Vec<Answer>, batch_size: usize) -> Metrics {
    let (config, _runs) = quiet();
    let loader = |answers| Loader::new(InMemDataset::new(answers), AnswerBatcher);
    let train = loader(vec![([0.0; 2], 0)]);
    let mut data = Loaders::new(train).with_val({
        Loader::new(InMemDataset::new(answers), AnswerBatcher).batch_size(batch_size)
    });
    let model = Told::<B> {
        unused: Param::from_tensor(Tensor::from_floats([0.0], &B::Device::default())),
    };
    Trainer::new(config, B::Device::default())
        .validate(&model, &mut data)
        .unwrap()
}

fn ratios_come_from_pooled_counts<B: AutodiffBackend>() {
    let says_1 = |target| ([0.0, 5.0], target);
    let says_0 = |target| ([5.0, 0.0], target);
    // Batch 1: one true positive. Batch 2: one true and three false positives.
    let first = [says_1(1), says_0(0), says_0(0), says_0(0)];
    let second = [says_1(1), says_1(0), says_1(0), says_1(0)];
    let metrics = evaluate::<B>([first, second].concat(), 4);
    assert_close(&[metrics.get("val/precision").unwrap()], &[0.4], 1e-6);

    // Two batches of one token, with log-losses 1 and 2: logits (0, x) and class 0.
    let logit = |loss: f32| ((loss.exp() - 1.0).ln(), 0);
    let tokens = [1.0, 2.0].map(logit).map(|(x, class)| ([0.0, x], class));
    let metrics = evaluate::<B>(tokens.to_vec(), 1);
    assert_close(
        &[metrics.get("val/perplexity").unwrap()],
        &[1.5_f64.exp()],
        1e-4,
    );
}

/// 5 samples of which the first is right, in batches of 1, 2 and 5.
fn each_sample_counts_once<B: AutodiffBackend>() {
    let right = ([5.0, 0.0], 0);
    let wrong = ([5.0, 0.0], 1);
    for batch_size in [1, 2, 5] {
        let metrics = evaluate::<B>(vec![right, wrong, wrong, wrong, wrong], batch_size);
        assert_close(&[metrics.get("val/accuracy").unwrap()], &[0.2], 1e-6);
    }
}

/// 9 samples in batches of 5: one batch of 5.
fn dropping_the_last_batch_drops_it_once<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let data = Loaders::new(gradients([1.0; 9]).batch_size(5).drop_last(true));
    let (outcome, _) = fit::<B>(config.with_max_epochs(1), sgd(0.0), data);
    assert_eq!(outcome.progress.samples, 5);
    assert_eq!(outcome.progress.total_batches, 1);
}

fn a_test_is_logged_at_the_last_step<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let rows = Rows::default();
    let mut data = Loaders::new(gradients([1.0; 3])).with_test(gradients([2.0, 4.0]));
    let mut trainer =
        Trainer::new(config.with_max_epochs(1), B::Device::default()).with_logger(rows.clone());
    let outcome = trainer.fit(Weights::<B>::new(1.0, 1.0), &mut data).unwrap();
    let metrics = trainer.test(&outcome.model, &mut data).unwrap();
    assert_eq!(metrics.get("test/value"), Some(3.0));
    assert_eq!(
        (rows.values("test/value"), rows.steps("test/value")),
        (vec![3.0], vec![3])
    );
}
