//! How long a run is, how much it sees, and when it validates.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::StopReason;
use firebox::callback::{Closure, Hook};
use firebox::config::{Limit, SanitySteps, ValCheckInterval};
use firebox::data::{EvalLoader, Loaders, TrainLoader};
use firebox::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

on_each_backend!(
    max_steps_counts_optimizer_steps,
    whichever_limit_comes_first,
    zero_limits_do_nothing,
    limits_are_counts_or_fractions,
    the_validation_interval_counts_batches_across_epochs,
    a_fraction_of_one_batch_is_one_batch,
    sanity_validation_leaves_no_trace,
    overfitting_sees_the_same_first_batches,
    a_development_run_writes_nothing,
    a_zero_time_trains_nothing,
    the_same_seed_gives_the_same_run,
    predictions_come_in_order,
);

fn max_steps_counts_optimizer_steps<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_steps(3).with_accumulate_grad_batches(2);
    let (outcome, _) = fit::<B>(config, sgd(0.1), ones(5));
    // 5 batches are 3 steps: the third one is the short group.
    assert_eq!(outcome.progress.global_step, 3);
    assert_eq!(outcome.progress.total_batches, 5);
    assert_eq!(outcome.stopped, StopReason::MaxSteps);
}

fn whichever_limit_comes_first<B: AutodiffBackend>() {
    for (epochs, steps, expected) in [
        (1, 100, StopReason::MaxEpochs),
        (100, 3, StopReason::MaxSteps),
    ] {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(epochs).with_max_steps(steps);
        let (outcome, _) = fit::<B>(config, sgd(0.1), ones(2));
        assert_eq!(outcome.stopped, expected);
    }
}

/// A data module that fails when it is asked for its training data.
struct NeverAsked;

impl<B: AutodiffBackend> DataModule<Weights<B>> for NeverAsked {
    fn train_loader(&self) -> Result<Option<TrainLoader<Weights<B>>>> {
        Ok(Some(gradients([1.0])))
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<Weights<B>>>> {
        Err(Error::data("asked for validation data"))
    }
}

fn zero_limits_do_nothing<B: AutodiffBackend>() {
    let limits: [fn(TrainerConfig) -> TrainerConfig; 3] = [
        |c| c.with_max_epochs(0),
        |c| c.with_max_steps(0),
        |c| c.with_limit_train_batches(Limit::Batches(0)),
    ];
    for limit in limits {
        let (config, _runs) = quiet();
        let (outcome, _) = fit::<B>(limit(config), sgd(0.1), ones(2));
        assert_eq!(outcome.model.values(), [1.0, 1.0]);
        assert_eq!(outcome.progress.total_batches, 0);
    }
    // A stage limited to nothing is not asked for its loader.
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_limit_val_batches(Limit::Batches(0));
    Trainer::new(config, B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut NeverAsked)
        .unwrap();
}

fn limits_are_counts_or_fractions<B: AutodiffBackend>() {
    for (limit, batches) in [
        (Limit::Batches(3), 3),
        (Limit::Fraction(0.5), 5),
        (Limit::Batches(99), 10),
    ] {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(2).with_limit_train_batches(limit);
        let (outcome, _) = fit::<B>(config, sgd(0.0), ones(10));
        assert_eq!(outcome.progress.total_batches, 2 * batches);
    }
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_limit_train_batches(Limit::Fraction(0.05));
    let error = Trainer::new(config, B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(10))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("0.05 of the 10 train batches is no batch; use 0.1 or more"),
        "{text}"
    );
}

/// The batches, counted over all epochs, after which the run validated.
fn validated_after<B: AutodiffBackend>(
    config: TrainerConfig,
    train: TrainLoader<Weights<B>>,
) -> Vec<u64> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = seen.clone();
    let note = Closure::at(Hook::EvalEnd, move |cx: &mut RunContext<'_, Weights<B>>| {
        noted.borrow_mut().push(cx.progress().total_batches);
        Ok(())
    });
    let config = config.with_num_sanity_val_steps(SanitySteps::Batches(0));
    let mut data = Loaders::new(train).with_val(gradients([1.0]));
    Trainer::new(config, B::Device::default())
        .with_callback(note)
        .fit(Weights::new(1.0, 1.0), &mut data)
        .unwrap();
    seen.take()
}

fn the_validation_interval_counts_batches_across_epochs<B: AutodiffBackend>() {
    for accumulate in [1, 2] {
        for sized in [true, false] {
            let (config, _runs) = quiet();
            let config = config
                .with_max_epochs(3)
                .with_accumulate_grad_batches(accumulate)
                .with_val_check_interval(ValCheckInterval::Batches(3));
            let train = match sized {
                true => gradients([1.0; 4]),
                false => {
                    Loader::from_stream(|_| Ok((0..4).map(|_| Ok(vec![[1.0, 0.0]]))), TokenBatcher)
                }
            };
            assert_eq!(validated_after::<B>(config, train), [3, 6, 9, 12]);
        }
    }
}

fn a_fraction_of_one_batch_is_one_batch<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(3)
        .with_val_check_interval(ValCheckInterval::Fraction(0.3));
    assert_eq!(validated_after::<B>(config, gradients([1.0])), [1, 2, 3]);
    // Every batch (1) and every epoch (1.0) are different things.
    for (interval, expected) in [
        (ValCheckInterval::Batches(1), vec![1, 2, 3]),
        (ValCheckInterval::Fraction(1.0), vec![3]),
    ] {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(1).with_val_check_interval(interval);
        assert_eq!(validated_after::<B>(config, gradients([1.0; 3])), expected);
    }
}

fn sanity_validation_leaves_no_trace<B: AutodiffBackend>() {
    let run = |sanity: SanitySteps| {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(2).with_num_sanity_val_steps(sanity);
        let data = Loaders::new(gradients([1.0, 2.0, 3.0]).shuffle(true))
            .with_val(gradients([5.0, 7.0, 9.0]));
        let (outcome, rows) = fit::<B>(config, sgd(0.1), data);
        (
            outcome.model.values(),
            rows.values("val/value"),
            rows.values("train/loss"),
        )
    };
    let without = run(SanitySteps::Batches(0));
    assert_eq!(without.1, [7.0, 7.0]);
    assert_eq!(run(SanitySteps::Batches(2)), without);
    assert_eq!(run(SanitySteps::All), without);
}

fn overfitting_sees_the_same_first_batches<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(3)
        .with_overfit_batches(Limit::Batches(2));
    let data = Loaders::new(gradients([1.0, 2.0, 3.0, 4.0]).shuffle(true))
        .with_val(gradients([10.0, 20.0, 30.0]));
    let (outcome, rows) = fit::<B>(config, sgd(0.0), data);
    // Weights stay 1, so the losses are the gradients: the first two, in order, in each epoch.
    assert_eq!(rows.values("train/loss"), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    assert_eq!(rows.values("val/value"), [15.0; 3]);
    assert_eq!(outcome.progress.total_batches, 6);
}

fn a_development_run_writes_nothing<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let config = config.with_fast_dev_run(2);
    let data = Loaders::new(gradients([1.0; 9])).with_val(gradients([1.0; 9]));
    let (outcome, _) = fit::<B>(config, sgd(0.1), data);
    assert_eq!(outcome.progress.total_batches, 2);
    assert_eq!(outcome.metrics.get("val/value"), Some(1.0));
    assert_eq!(outcome.run_dir, None);
    assert_eq!(std::fs::read_dir(runs.path()).unwrap().count(), 0);
}

fn a_zero_time_trains_nothing<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let zero = std::time::Duration::ZERO;
    let (outcome, _) = fit::<B>(config.with_max_time(Some(zero.into())), sgd(0.1), ones(3));
    assert_eq!(outcome.progress.total_batches, 0);
    assert_eq!(outcome.stopped, StopReason::MaxTime);
    // The minimum wins over the time.
    let (config, _runs) = quiet();
    let config = config.with_max_time(Some(zero.into())).with_min_steps(4);
    let (outcome, _) = fit::<B>(config, sgd(0.1), ones(3));
    assert_eq!(outcome.progress.global_step, 4);
}

fn the_same_seed_gives_the_same_run<B: AutodiffBackend>() {
    let run = |seed, workers| {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(3).with_seed(seed);
        let values = (0..20).map(|i| i as f32 / 7.0);
        let train = gradients(values)
            .batch_size(3)
            .shuffle(true)
            .workers(workers);
        let (_, rows) = fit::<B>(config, sgd(0.1), Loaders::new(train));
        rows.values("train/loss")
    };
    assert_eq!(run(1, 0), run(1, 2));
    assert_ne!(run(1, 0), run(2, 0));
}

impl<B: burn::tensor::backend::Backend> PredictModule for Weights<B> {
    type Input = Tokens<B>;
    type Output = Vec<f32>;

    fn predict_step(&self, batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Vec<f32>> {
        Ok(batch
            .gradients
            .narrow(1, 0, 1)
            .into_data()
            .iter::<f32>()
            .collect())
    }
}

fn predictions_come_in_order<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let mut trainer = Trainer::new(config, B::Device::default());
    let loader = gradients([0.0, 1.0, 2.0, 3.0, 4.0])
        .batch_size(2)
        .workers(2);
    let batches = trainer
        .predict(&Weights::<B>::new(1.0, 1.0), &loader)
        .unwrap();
    assert_eq!(batches, [vec![0.0, 1.0], vec![2.0, 3.0], vec![4.0]]);
}
