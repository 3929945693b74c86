//! What went wrong in other trainers on several devices.

use super::assert_near;
use crate::support::{
    Rows as Logged, Tokens, Weights, assert_close, gradients, quiet, sequences, sgd,
};
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::AutodiffBackend;
use firebox::checkpoint::Checkpoint;
use firebox::config::Resume;
use firebox::data::{Loaders, Samples};
use firebox::optim::schedule::{Linear, ScheduleInterval};
use firebox::prelude::*;
use std::sync::{Arc, Mutex};

on_each_backend!(
    the_schedule_counts_steps_on_any_number_of_devices,
    an_infinite_gradient_on_one_device_skips_the_step_of_all,
    clipping_is_of_the_averaged_gradient,
    tokens_weigh_over_devices,
    no_sample_counts_twice_in_a_validation,
    another_number_of_devices_goes_on_where_the_run_was,
);

/// A loss that weighs nothing on one device does not keep the others, whose layers take statistics
/// over all, from going on.
#[test]
fn a_part_that_weighs_nothing_holds_nobody_up() {
    use burn::module::Module;
    use burn::nn::Linear;
    use burn::tensor::backend::Backend;
    use firebox::nn::{SyncBatchNorm, SyncBatchNormConfig};
    use firebox::testing::Cpu;

    #[derive(Module, Debug)]
    struct Masked<B: Backend> {
        linear: Linear<B>,
        norm: SyncBatchNorm<B>,
    }

    impl<B: AutodiffBackend> TrainModule for Masked<B> {
        type Backend = B;
        type Batch = super::Rows<B>;
        type Eval = Masked<B::InnerBackend>;

        fn training_step(&self, rows: super::Rows<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
            // Samples from 2 on are masked: the second device's of each batch.
            let valid = rows.ids.iter().filter(|id| **id % 4 < 2).count();
            let loss = self
                .norm
                .forward(self.linear.forward(rows.x))
                .square()
                .mean();
            Ok(Loss::weighted(loss, valid as f64))
        }
        fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
            Ok(Optimizers::single(burn::optim::SgdConfig::new().init()).with_lr(0.1))
        }
    }

    impl<B: Backend> EvalModule for Masked<B> {
        type Backend = B;
        type Batch = super::Rows<B>;
    }

    let (config, _runs) = quiet();
    let cpu = Default::default();
    let model = Masked::<Cpu> {
        linear: super::linear(super::FEATURES, 4, &cpu),
        norm: SyncBatchNormConfig::new(4).init(&cpu),
    };
    let (train, _) = super::rows::<Cpu>(12);
    let mut trainer = super::trainer(config.with_max_epochs(2), 2);
    let outcome = trainer.fit(model, &mut Loaders::new(train.batch_size(4)));
    assert_eq!(outcome.unwrap().progress.global_step, 6);
}

/// Steps by hand, of which one device has no samples.
#[test]
fn steps_by_hand_on_fewer_samples_than_devices() {
    use burn::module::Module;
    use burn::tensor::backend::Backend;
    use firebox::testing::Cpu;

    #[derive(Module, Debug)]
    struct ByHand<B: Backend> {
        weights: Weights<B>,
    }

    impl<B: AutodiffBackend> TrainModule for ByHand<B> {
        type Backend = B;
        type Batch = Tokens<B>;
        type Eval = ByHand<B::InnerBackend>;

        fn training_step(&self, _: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
            Err(Error::user("steps are by hand"))
        }
        fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
            let sgd = || burn::optim::SgdConfig::new().init();
            Ok(Optimizers::manual()
                .with_lr(1.0)
                .with_group(ParamGroup::new("a", ["weights.a"], sgd()))
                .with_group(ParamGroup::new("b", ["weights.b"], sgd())))
        }
        fn manual_step(self, batch: Tokens<B>, cx: &mut ManualStep<'_, Self>) -> Result<Self> {
            let loss = self.weights.loss(batch.gradients.clone());
            let model = cx.step("a", self, loss)?;
            let loss = model.weights.loss(batch.gradients);
            cx.step("b", model, loss)
        }
    }

    impl<B: Backend> EvalModule for ByHand<B> {
        type Backend = B;
        type Batch = Tokens<B>;
    }

    let run = |devices| {
        let (config, _runs) = quiet();
        let tokens = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];
        let train = sequences::<Cpu>(tokens.map(|token| vec![token]).to_vec()).batch_size(3);
        let weights = Weights::new(0.0, 0.0);
        let mut trainer = super::trainer(config.with_max_epochs(2), devices);
        let outcome = trainer
            .fit(ByHand { weights }, &mut Loaders::new(train))
            .unwrap();
        (outcome.model.weights.values(), outcome.progress)
    };
    let one = run(1);
    for devices in [2, 3] {
        assert_eq!(run(devices), one);
    }
}

/// Trains weights on so many devices; what they end with, and what was logged.
fn fit<B: AutodiffBackend>(
    config: TrainerConfig,
    devices: usize,
    optimizers: Optimizers<Weights<B>>,
    train: Loader<B, Tokens<B>>,
) -> (FitOutcome<Weights<B>>, Logged) {
    let rows = Logged::default();
    let device = B::Device::default();
    let outcome = Trainer::new(config, device.clone())
        .with_devices(vec![device; devices])
        .with_callback(LearningRateMonitor::new())
        .with_logger(rows.clone())
        .fit_with(Weights::new(1.0, 1.0), optimizers, &mut Loaders::new(train));
    (outcome.unwrap(), rows)
}

pub fn the_schedule_counts_steps_on_any_number_of_devices<B: AutodiffBackend>() {
    let expected: Vec<f64> = (0..8).map(|step| 1.0 - f64::from(step) / 8.0).collect();
    for devices in [1, 4] {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(1).with_accumulate_grad_batches(2);
        let optimizers =
            sgd::<B>(1.0).with_schedule(ScheduleInterval::Step, Linear::new(1.0, 0.0, 8));
        let train = gradients(vec![0.0; 64]).batch_size(4);
        let (outcome, rows) = fit(config, devices, optimizers, train);
        assert_close(&rows.values("lr"), &expected, 1e-12);
        assert_eq!(outcome.progress.global_step, 8);
    }
}

pub fn an_infinite_gradient_on_one_device_skips_the_step_of_all<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Norm(1.0));
    // Of the first batch the second device has the infinite one.
    let train = gradients([0.0, f32::INFINITY, 0.5, 0.5]).batch_size(2);
    let (outcome, rows) = fit::<B>(config, 2, sgd(1.0), train);
    assert_eq!(outcome.model.values(), [0.5, 1.0]);
    assert_eq!(outcome.progress.skipped_steps, 1);
    assert_eq!(outcome.progress.global_step, 1);
    assert_eq!(rows.values("train/skipped_steps").last(), Some(&1.0));
}

pub fn clipping_is_of_the_averaged_gradient<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Norm(1.0));
    // (6, 0) and (0, 8) average to (3, 4); clipped before, it would be (0.5, 0.5).
    let train = sequences(vec![vec![[6.0, 0.0]], vec![[0.0, 8.0]]]).batch_size(2);
    let (outcome, rows) = fit::<B>(config, 2, sgd(1.0), train);
    let moved = outcome.model.values().map(|v| 1.0 - f64::from(v));
    assert_near(&moved, &[0.6, 0.8], 1e-6);
    assert_near(&rows.values("train/grad_norm"), &[5.0], 1e-6);
}

pub fn tokens_weigh_over_devices<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    // One token with gradient 4 on one device, three with gradient 1 on the other.
    let train = sequences(vec![vec![[4.0, 0.0]], vec![[1.0, 0.0]; 3]]).batch_size(2);
    let (outcome, _) = fit::<B>(config.with_max_epochs(1), 2, sgd(1.0), train);
    assert_near(
        &[outcome.model.values()[0].into()],
        &[1.0 - 7.0 / 4.0],
        1e-6,
    );
}

pub fn no_sample_counts_twice_in_a_validation<B: AutodiffBackend>() {
    let device = B::Device::default();
    // What each sample logs, the batch size, and the mean over all of them.
    let trials = [
        (vec![1.0, 0.0, 0.0, 0.0, 0.0], 1, 0.2),
        (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2, 4.5),
        (vec![0.0, 10.0, 20.0], 3, 10.0),
    ];
    for (values, batch_size, mean) in trials {
        let (config, _runs) = quiet();
        let val = gradients(values).batch_size(batch_size);
        let mut data = Loaders::new(gradients([1.0])).with_val(val);
        let metrics = Trainer::new(config, device.clone())
            .with_devices(vec![device.clone(); 2])
            .validate(&Weights::<B>::new(0.0, 0.0), &mut data)
            .unwrap();
        assert_near(&[metrics.get("val/value").unwrap()], &[mean], 1e-6);
    }
}

pub fn another_number_of_devices_goes_on_where_the_run_was<B: AutodiffBackend>() {
    let run = |config: TrainerConfig, devices| {
        let (train, seen) = super::rows::<B>(16);
        let net = super::Net::new(&B::Device::default());
        let mut data = Loaders::new(train.batch_size(4).shuffle(true));
        let mut trainer = super::trainer(config, devices);
        let outcome = trainer.fit(net, &mut data).unwrap();
        (outcome, seen.take())
    };
    let (config, _runs) = quiet();
    let whole = run(config.with_max_epochs(2), 1).0.model.values();
    for (before, after) in [(1, 2), (2, 1), (3, 2)] {
        let (config, _runs) = quiet();
        // In the middle of an epoch.
        let (first, saw) = run(config.clone().with_max_steps(1), before);
        assert_eq!(saw.len(), 4);
        let last = first.last_checkpoint.unwrap().canonicalize().unwrap();
        let config = config.with_max_epochs(2).with_resume(Resume::Path(last));
        let (resumed, rest) = run(config, after);
        assert_eq!(rest.len(), 28);
        // The first epoch's rest, and the second epoch.
        let twice = |id: &usize| saw.iter().chain(&rest).filter(|seen| *seen == id).count() == 2;
        assert!((0..16).all(|id| twice(&id)));
        assert_near(&resumed.model.values(), &whole, 1e-5);
    }
}

#[test]
fn no_two_samples_draw_the_same() {
    use firebox::testing::{Cpu, Line, PointBatcher};
    let draws = || {
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let draw = Arc::clone(&drawn);
        let points = InMemDataset::new(vec![(0.5_f32, 0.5_f32); 32]);
        let samples = Samples::new(points).map(move |point, rng| {
            draw.lock().unwrap().push(rng.next_u64());
            Ok(point)
        });
        let loader = Loader::from_samples(samples, PointBatcher);
        let loader = loader.batch_size(4).shuffle(true).workers(2);
        let (config, _runs) = quiet();
        let cpu = Default::default();
        Trainer::new(config.with_max_epochs(2), cpu)
            .with_devices([cpu, cpu])
            .fit(Line::<Cpu>::new(&cpu), &mut Loaders::new(loader))
            .unwrap();
        let mut drawn = std::mem::take(&mut *drawn.lock().unwrap());
        drawn.sort_unstable();
        drawn
    };
    let first = draws();
    let mut different = first.clone();
    different.dedup();
    assert_eq!((first.len(), different.len()), (64, 64));
    assert_eq!(draws(), first);
}

#[test]
fn a_stop_a_save_and_an_accumulation_group_over_devices_go_on_exactly() {
    use firebox::testing::Cpu;
    let run = |config: TrainerConfig| {
        let (train, _) = super::rows::<Cpu>(23);
        let train = train.batch_size(4).shuffle(true);
        super::fit(config.with_accumulate_grad_batches(4), 3, train)
    };
    let (config, runs) = quiet();
    // The last step of an epoch has two batches; a checkpoint in the midst of a step is written.
    let config = config.with_max_epochs(4);
    let whole = run(config.clone());
    struct Midway;
    impl<M: TrainModule> Callback<M> for Midway {
        fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
            if cx.progress().total_batches == 8 {
                let folder = cx.run_dir().unwrap().join("midway");
                cx.save_checkpoint(folder);
            }
            Ok(())
        }
    }
    let (train, _) = super::rows::<Cpu>(23);
    let mut data = Loaders::new(train.batch_size(4).shuffle(true));
    let trainer = super::trainer(config.clone().with_accumulate_grad_batches(4), 3);
    let mut trainer = trainer.with_callback(Midway);
    let net = super::Net::<Cpu>::new(&Default::default());
    let saved = trainer.fit(net, &mut data).unwrap();
    assert_near(&saved.model.values(), &whole.model.values(), 1e-6);
    let midway = runs.path().join("runs/version_1/midway");
    let checkpoint = Checkpoint::open(&midway).unwrap();
    assert_eq!(checkpoint.progress().batch, 2);
    let resumed = run(config.with_resume(Resume::Path(midway)));
    // The run that saved goes on from what it saved, so the two are equal bit by bit.
    assert_eq!(resumed.model.values(), saved.model.values());
    for name in ["train/loss_epoch", "train/loss"] {
        let loss = |outcome: &FitOutcome<_>| outcome.metrics.get(name);
        assert_eq!(loss(&resumed), loss(&saved), "{name}");
    }
}
