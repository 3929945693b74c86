//! Strategies beside `ddp`.

use super::{Net, assert_near, rows};
use crate::support::quiet;
use burn::optim::AdamConfig;
use burn::tensor::backend::AutodiffBackend;
use firebox::checkpoint::Checkpoint;
use firebox::config::{Resume, SaveTopK, Strategy};
use firebox::data::Loaders;
use firebox::prelude::*;
use std::path::PathBuf;

on_each_backend!(
    divided_moments_change_nothing,
    a_checkpoint_of_divided_moments_is_that_of_one_device,
    federated_averaging_weighs_by_samples,
    federated_averaging_resumes_exactly,
);

/// Trains with Adam, which keeps two moments of each parameter.
fn fit<B: AutodiffBackend>(
    config: TrainerConfig,
    replicas: usize,
) -> (FitOutcome<Net<B>>, PathBuf) {
    let (train, _) = rows::<B>(22);
    let mut data = Loaders::new(train.batch_size(4).shuffle(true));
    let optimizers = Optimizers::single(AdamConfig::new().init()).with_lr(0.01);
    let device = B::Device::default();
    let net = Net::new(&device);
    let mut trainer = Trainer::new(config, device.clone()).with_devices(vec![device; replicas]);
    let outcome = trainer.fit_with(net, optimizers, &mut data);
    let outcome = outcome.unwrap();
    let last = outcome.last_checkpoint.clone().unwrap();
    (outcome, last.canonicalize().unwrap())
}

pub fn divided_moments_change_nothing<B: AutodiffBackend>() {
    let run = |strategy, replicas| {
        let (config, runs) = quiet();
        let config = config.with_max_steps(20).with_strategy(strategy);
        (fit::<B>(config, replicas).0.model.values(), runs)
    };
    for replicas in [2, 3] {
        let (ddp, zero1) = (run(Strategy::Ddp, replicas), run(Strategy::Zero1, replicas));
        match std::any::type_name::<B>().contains("Cube") {
            // Bit by bit: the same sums, only elsewhere.
            false => assert_eq!(zero1.0, ddp.0),
            true => assert_near(&zero1.0, &ddp.0, 1e-2),
        }
    }
}

pub fn a_checkpoint_of_divided_moments_is_that_of_one_device<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_strategy(Strategy::Zero1);
    let (whole, _) = fit::<B>(config.clone().with_max_steps(20), 2);
    // Stopped at step 7, in the second epoch; on with other numbers of devices.
    for replicas in [1, 2, 3] {
        let (config, _runs) = quiet();
        let config = config.with_strategy(Strategy::Zero1);
        let (_, last) = fit::<B>(config.clone().with_max_steps(7), 2);
        let state = std::fs::read(last.join("optimizer-0.cbor")).unwrap();
        let text = String::from_utf8_lossy(&state);
        for path in ["first.weight", "first.bias", "second.weight", "second.bias"] {
            assert!(text.contains(&format!("param:{path}")), "{path} is missing");
        }
        let config = config.with_max_steps(20).with_resume(Resume::Path(last));
        let (resumed, _) = fit::<B>(config, replicas);
        match replicas {
            2 if !std::any::type_name::<B>().contains("Cube") => {
                assert_eq!(resumed.model.values(), whole.model.values());
            }
            _ => assert_near(&resumed.model.values(), &whole.model.values(), 1e-2),
        }
    }
}

pub fn federated_averaging_weighs_by_samples<B: AutodiffBackend>() {
    use crate::support::{Weights, gradients, sgd};
    // Batches of 3: the first replica has two samples of each, the second one. Gradient descent on
    // a linear loss, so that each replica moves by the mean of its own samples.
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_strategy(Strategy::FedAvg { every_n_steps: 2 });
    let samples = [1.0, 3.0, 8.0, 5.0, 7.0, 2.0];
    let mut data = Loaders::new(gradients::<B>(samples).batch_size(3));
    let device = B::Device::default();
    let outcome = Trainer::new(config, device.clone())
        .with_devices([device.clone(), device])
        .fit_with(Weights::new(0.0, 0.0), sgd(1.0), &mut data)
        .unwrap();
    // Replica 0: 2 + 6 = 8, of 4 samples; replica 1: 8 + 2 = 10, of 2.
    let expected = -(8.0 * 4.0 + 10.0 * 2.0) / 6.0;
    assert_near(&[outcome.model.values()[0].into()], &[expected], 1e-6);
    assert_eq!(outcome.progress.global_step, 2);
}

pub fn federated_averaging_resumes_exactly<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let config = config.with_strategy(Strategy::FedAvg { every_n_steps: 3 });
    // A round ends with each checkpoint.
    let config = config
        .with_checkpoint_every_n_steps(7)
        .with_save_top_k(SaveTopK::All);
    let (whole, _) = fit::<B>(config.clone().with_max_steps(20), 2);
    let at_7 = runs.path().join("runs/version_0/checkpoints");
    let found = firebox::checkpoint::list(&at_7).unwrap();
    let seventh = found
        .into_iter()
        .map(|found| found.path)
        .find(|path| Checkpoint::open(path).unwrap().progress().global_step == 7);
    let config = config
        .with_max_steps(20)
        .with_resume(Resume::Path(seventh.unwrap()));
    let (resumed, _) = fit::<B>(config, 2);
    // A GPU's kernels may round in another order, of which Adam makes steps.
    if !std::any::type_name::<B>().contains("Cube") {
        assert_eq!(resumed.model.values(), whole.model.values());
    }
}
