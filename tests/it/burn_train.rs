//! A model written for burn-train trains as it is, and just as one written for firebox.

use crate::support::quiet;
use burn::backend::Autodiff;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn_flex::Flex;
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use firebox::burn_train::BurnTrain;
use firebox::data::Loaders;
use firebox::metric::Accuracy;
use firebox::prelude::*;

/// Whether a point is right of the diagonal.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    linear: Linear<B>,
}

#[derive(Debug, Clone)]
struct Points<B: Backend> {
    points: Tensor<B, 2>,
    classes: Tensor<B, 1, Int>,
}

impl<B: Backend> Net<B> {
    fn output(&self, batch: Points<B>) -> ClassificationOutput<B> {
        let output = self.linear.forward(batch.points);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), batch.classes.clone());
        ClassificationOutput::new(loss, output, batch.classes)
    }
}

// As burn-train wants it.
impl<B: AutodiffBackend> TrainStep for Net<B> {
    type Input = Points<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Points<B>) -> TrainOutput<ClassificationOutput<B>> {
        let item = self.output(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl<B: Backend> InferenceStep for Net<B> {
    type Input = Points<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Points<B>) -> ClassificationOutput<B> {
        self.output(batch)
    }
}

// As firebox wants it.
impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let out = self.output(batch);
        cx.log("acc", Accuracy::new().observe(out.output, out.targets)?);
        Ok(out.loss.into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(0.05))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Points<B>;

    fn validation_step(&self, batch: Points<B>, cx: &mut StepContext<B>) -> Result<()> {
        let out = self.output(batch);
        cx.log("loss", out.loss);
        cx.log("acc", Accuracy::new().observe(out.output, out.targets)?);
        Ok(())
    }
}

struct PointBatcher;

impl<B: Backend> Batcher<B, [f32; 2], Points<B>> for PointBatcher {
    fn batch(&self, items: Vec<[f32; 2]>, device: &B::Device) -> Points<B> {
        let classes: Vec<i32> = items.iter().map(|[x, y]| i32::from(x > y)).collect();
        let n = items.len();
        let points: Vec<f32> = items.into_iter().flatten().collect();
        Points {
            points: Tensor::<B, 1>::from_floats(points.as_slice(), device).reshape([n, 2]),
            classes: Tensor::from_ints(classes.as_slice(), device),
        }
    }
}

fn loader<B: Backend>() -> Loader<B, Points<B>> {
    let points = (0..50).map(|i| {
        [
            (i * 37 % 50) as f32 / 25.0 - 1.0,
            (i * 11 % 50) as f32 / 25.0 - 1.0,
        ]
    });
    // 50 samples in batches of 8: the last has 2.
    Loader::new(InMemDataset::new(points.collect()), PointBatcher).batch_size(8)
}

type B = Autodiff<Flex>;

#[test]
fn it_trains_as_it_is_and_to_the_same_weights() {
    let device = Default::default();
    let net = Net::<B> {
        linear: LinearConfig::new(2, 2).init(&device),
    };
    net.num_params();
    let config = |config: TrainerConfig| config.with_max_epochs(4).with_accumulate_grad_batches(2);

    let (quiet_config, _runs) = quiet();
    let mut data = Loaders::new(loader().shuffle(true)).with_val(loader());
    let native = Trainer::new(config(quiet_config), device)
        .fit(net.clone(), &mut data)
        .unwrap();

    let (quiet_config, _runs) = quiet();
    let adapted = BurnTrain::new(net)
        .with_metric("loss", LossMetric::<Flex>::new())
        .with_metric("acc", AccuracyMetric::<Flex>::new());
    let optimizers = Optimizers::single(AdamConfig::new().init()).with_lr(0.05);
    let mut data = Loaders::new(loader().shuffle(true)).with_val(loader());
    let adapted = Trainer::new(config(quiet_config), device)
        .fit_with(adapted, optimizers, &mut data)
        .unwrap();

    let weight = |net: &Net<B>| net.linear.weight.val().into_data();
    let net = adapted.model.into_inner();
    assert_eq!(weight(&net), weight(&native.model));

    let value = |metrics: &Metrics, name| metrics.get(name).unwrap();
    for name in ["val/loss", "train/loss_epoch"] {
        let (a, b) = (value(&adapted.metrics, name), value(&native.metrics, name));
        assert!((a - b).abs() < 1e-9, "{name}: {a} and {b}");
    }
    // burn-train's accuracy is in percent.
    let percent = value(&adapted.metrics, "val/acc");
    assert!((percent - 100.0 * value(&native.metrics, "val/acc")).abs() < 1e-4);
    assert!(percent > 80.0, "{percent}");
}
