//! N replicas give what one gives.

use super::{Net, Seen, assert_near, fit, rows, trainer};
use crate::support::quiet;
use burn::tensor::backend::AutodiffBackend;
use firebox::data::Loaders;
use firebox::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

on_each_backend!(
    any_number_of_replicas_gives_the_same,
    every_sample_is_seen_once_in_each_epoch,
    fewer_samples_than_replicas,
);

fn cases<B: 'static>() -> u32 {
    // A step takes long where a GPU is software.
    match std::any::type_name::<B>().contains("Cube") {
        true => 1,
        false => 24,
    }
}

pub fn any_number_of_replicas_gives_the_same<B: AutodiffBackend>() {
    let scenario = (1..40_usize, 1..17_usize, 1..4_u64, 2..5_usize);
    let mut runner = TestRunner::new(Config {
        cases: cases::<B>(),
        failure_persistence: None,
        ..Config::default()
    });
    let checked = runner.run(&scenario, |(samples, batch_size, accumulate, replicas)| {
        let run = |replicas| {
            let (config, _runs) = quiet();
            let config = config
                .with_max_steps(20)
                .with_accumulate_grad_batches(accumulate)
                .with_gradient_clip(GradientClip::Norm(0.5));
            let (train, _) = rows::<B>(samples);
            fit(config, replicas, train.batch_size(batch_size).shuffle(true))
        };
        let (one, several) = (run(1), run(replicas));
        assert_near(&several.model.values(), &one.model.values(), 1e-5);
        prop_assert_eq!(several.progress, one.progress);
        let loss = |outcome: &FitOutcome<Net<B>>| outcome.metrics.get("train/loss").unwrap();
        assert_near(&[loss(&several)], &[loss(&one)], 1e-5);
        Ok(())
    });
    checked.unwrap();
}

/// What each epoch of a run with two replicas has seen.
fn epochs<B: AutodiffBackend>(samples: usize, batch_size: usize) -> Vec<Vec<usize>> {
    struct Watch(Seen, Vec<Vec<usize>>);
    impl<M: TrainModule> Callback<M> for Watch {
        fn on_train_epoch_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
            self.1.push(self.0.take());
            Ok(())
        }
        fn save_state(&self) -> serde_json::Value {
            serde_json::json!(self.1)
        }
    }
    let (config, _runs) = quiet();
    let (train, seen) = rows::<B>(samples);
    let mut data = Loaders::new(train.batch_size(batch_size).shuffle(true));
    let trainer = trainer(config.with_max_epochs(2), 2);
    let mut trainer = trainer.with_callback(Watch(seen, Vec::new()));
    let outcome = trainer.fit(Net::<B>::new(&B::Device::default()), &mut data);
    let checkpoint = outcome.unwrap().last_checkpoint.unwrap();
    let state = std::fs::read_to_string(checkpoint.join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let callbacks = state["callbacks"].as_array().unwrap();
    let watch = callbacks
        .iter()
        .find(|part| part["name"] == "Watch")
        .unwrap();
    serde_json::from_value(watch["state"].clone()).unwrap()
}

pub fn every_sample_is_seen_once_in_each_epoch<B: AutodiffBackend>() {
    for (samples, batch_size) in [(11, 5), (12, 4), (7, 3)] {
        let all: Vec<_> = (0..samples).collect();
        assert_eq!(epochs::<B>(samples, batch_size), [all.clone(), all]);
    }
}

pub fn fewer_samples_than_replicas<B: AutodiffBackend>() {
    let run = |replicas| {
        let (config, _runs) = quiet();
        let (train, seen) = rows::<B>(1);
        let outcome = fit(config.with_max_epochs(3), replicas, train);
        (outcome.model.values(), outcome.progress, seen.take())
    };
    let (one, four) = (run(1), run(4));
    assert_near(&four.0, &one.0, 1e-5);
    assert_eq!((four.1, four.2), (one.1, vec![0, 0, 0]));
}

#[test]
fn a_stream_that_ends_early_on_one_replica_holds_nobody_up() {
    use firebox::testing::{Cpu, Line, PointBatcher};
    use std::sync::atomic::{AtomicUsize, Ordering};
    // Each replica reads a stream of its own; that of whoever comes second has half as much.
    let opened = AtomicUsize::new(0);
    let loader = Loader::from_stream(
        move |_epoch| {
            let items = if opened.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                10
            } else {
                5
            };
            Ok((0..items).map(|i| Ok((i as f32 / 10.0, 1.0))))
        },
        PointBatcher,
    );
    let (config, _runs) = quiet();
    let mut trainer = trainer(config.with_max_epochs(2), 2);
    let model = Line::<Cpu>::new(&Default::default());
    let mut data = Loaders::new(loader.batch_size(2));
    let outcome = trainer.fit(model, &mut data).unwrap();
    // Five batches of two; then one item for each of the first two and a half batches.
    assert_eq!(outcome.progress.total_batches, 10);
    assert_eq!(outcome.progress.global_step, 10);
}

#[test]
fn a_processor_has_replicas_where_they_are_worth_it() {
    use super::Rows;
    use burn::module::Module;
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::backend::Backend;
    use firebox::config::Devices;

    /// A wide layer, with or without Burn's dropout.
    #[derive(Module, Debug)]
    struct Wide<B: Backend> {
        layer: Linear<B>,
        dropout: Option<Dropout>,
    }

    impl<B: AutodiffBackend> TrainModule for Wide<B> {
        type Backend = B;
        type Batch = Rows<B>;
        type Eval = Wide<B::InnerBackend>;

        fn training_step(&self, rows: Rows<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
            rows.seen.add(&[rows.ids.len()]);
            Ok(self.layer.forward(rows.x).square().mean().into())
        }
        fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
            Ok(Optimizers::single(burn::optim::SgdConfig::new().init()).with_lr(0.1))
        }
    }

    impl<B: Backend> EvalModule for Wide<B> {
        type Backend = B;
        type Batch = Rows<B>;
    }

    struct Fit(TrainerConfig, usize, usize, bool, Seen);

    impl Recipe for Fit {
        fn config(&self) -> &TrainerConfig {
            &self.0
        }
        fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
            let Self(_, width, batch_size, has_dropout, parts) = self;
            let layer = LinearConfig::new(super::FEATURES, width).init(cx.device());
            let dropout = has_dropout.then(|| DropoutConfig::new(0.1).init());
            let (train, seen) = rows::<B>(256);
            let mut data = Loaders::new(train.batch_size(batch_size));
            cx.trainer().fit(Wide { layer, dropout }, &mut data)?;
            parts.add(&seen.take());
            Ok(())
        }
    }

    let parts = |width, batch_size, has_dropout| {
        let (config, _runs) = quiet();
        let config = config.with_max_steps(1).with_accelerator("cpu");
        assert_eq!(config.devices, Devices::Auto);
        let parts = Seen::default();
        let fit = Fit(config, width, batch_size, has_dropout, parts.clone());
        firebox::try_launch(fit).unwrap();
        parts.take()
    };
    // Too little to do, too few samples, or a layer that would draw other masks.
    assert_eq!(parts(8, 256, false), [256]);
    assert_eq!(parts(5_000, 64, false), [64]);
    assert_eq!(parts(5_000, 256, true), [256]);
    let cores = std::thread::available_parallelism().unwrap().get();
    match cores {
        1 => assert_eq!(parts(5_000, 256, false), [256]),
        _ => assert!(parts(5_000, 256, false).len() > 1),
    }
}
