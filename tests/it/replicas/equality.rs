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
