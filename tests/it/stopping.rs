//! Early stopping and the best checkpoint, judged on the values they are meant for.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::StopReason;
use firebox::callback::{Closure, Hook};
use firebox::config::{SanitySteps, ValCheckInterval};
use firebox::data::{EvalLoader, TrainLoader};
use firebox::prelude::*;

on_each_backend!(
    patience_counts_checks,
    validating_every_ten_epochs,
    the_best_epoch_is_judged_on_its_own_value,
    not_finite_stops_at_once,
    minimums_hold_a_stop_back,
    a_stop_in_mid_epoch_validates_once,
    a_stop_waits_for_the_accumulated_group,
    a_request_is_forgotten_when_the_value_recovers,
    a_step_value_cannot_be_watched,
);

/// One training batch an epoch; validation gives these values, one a validation.
struct Script {
    values: Vec<f32>,
    batches: usize,
}

impl Script {
    fn new(values: &[f32]) -> Self {
        Self {
            values: values.to_vec(),
            batches: 1,
        }
    }
}

impl<B: AutodiffBackend> DataModule<Weights<B>> for Script {
    fn train_loader(&self) -> Result<Option<TrainLoader<Weights<B>>>> {
        Ok(Some(gradients(vec![1.0; self.batches])))
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<Weights<B>>>> {
        // A stream is opened anew for each validation, which so takes the next value.
        let values = self.values.clone();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let open = move |_| {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let value = values.get(index).or(values.last()).copied().unwrap_or(0.0);
            Ok(std::iter::once(Ok(vec![[value, 0.0]])))
        };
        Ok(Some(Loader::from_stream(open, TokenBatcher)))
    }
}

fn run<B: AutodiffBackend>(
    configure: impl Fn(TrainerConfig) -> TrainerConfig,
    stopping: EarlyStopping,
    mut script: Script,
) -> FitOutcome<Weights<B>> {
    let (config, _runs) = quiet();
    let config = configure(config.with_num_sanity_val_steps(SanitySteps::Batches(0)));
    Trainer::new(config, B::Device::default())
        .with_callback(stopping)
        .with_callback(ModelCheckpoint::new().monitor("val/value", Mode::Min))
        .fit_with(Weights::new(1.0, 1.0), sgd(0.0), &mut script)
        .unwrap()
}

fn watch() -> EarlyStopping {
    EarlyStopping::new("val/value")
}

fn patience_counts_checks<B: AutodiffBackend>() {
    for (values, patience, last_epoch) in [
        ([6., 5., 5., 5., 5., 5.], 3, 4),
        ([6., 5., 4., 4., 3., 3.], 1, 3),
        ([6., 5., 6., 5., 5., 5.], 3, 4),
    ] {
        let outcome = run::<B>(|c| c, watch().patience(patience), Script::new(&values));
        assert_eq!(outcome.progress.epoch, last_epoch + 1, "{values:?}");
        assert!(matches!(outcome.stopped, StopReason::Requested(_)));
    }
}

/// Never better after the first check: checks after epochs 10, 20, 30, 40.
fn validating_every_ten_epochs<B: AutodiffBackend>() {
    let outcome = run::<B>(
        |c| c.with_check_val_every_n_epoch(10),
        watch().patience(3),
        Script::new(&[1.0, 1.0]),
    );
    assert_eq!(outcome.progress.epoch, 40);
}

fn the_best_epoch_is_judged_on_its_own_value<B: AutodiffBackend>() {
    for _ in 0..100 {
        let script = Script::new(&[3., 2., 1., 5., 5.]);
        let outcome = run::<B>(|c| c, watch().patience(2), script);
        assert_eq!(outcome.progress.epoch, 5);
        let best = outcome.best_checkpoint.unwrap();
        assert_eq!(best.file_name().unwrap(), "epoch=2-step=3");
    }
}

fn not_finite_stops_at_once<B: AutodiffBackend>() {
    let outcome = run::<B>(|c| c, watch(), Script::new(&[4., 3., f32::NAN, 1.]));
    assert_eq!(outcome.progress.epoch, 3);
    assert_eq!(
        outcome.stopped,
        StopReason::Requested("val/value is NaN".into())
    );
    let best = outcome.best_checkpoint.unwrap();
    assert_eq!(best.file_name().unwrap(), "epoch=1-step=2");
    // All NaN: there is no best.
    let outcome = run::<B>(|c| c, watch(), Script::new(&[f32::NAN]));
    assert_eq!(outcome.best_checkpoint, None);
}

/// A value that gets worse from the start, with min_epochs 3 and min_steps 10.
fn minimums_hold_a_stop_back<B: AutodiffBackend>() {
    for (batches, steps) in [(3, 10), (5, 15)] {
        let script = Script {
            batches,
            ..Script::new(&[1., 2., 3., 4., 5., 6.])
        };
        let outcome = run::<B>(
            |c| c.with_min_epochs(3).with_min_steps(10),
            watch().patience(1),
            script,
        );
        assert_eq!(outcome.progress.global_step, steps);
    }
}

fn stop_at_step<B: AutodiffBackend>(step: u64) -> impl Callback<Weights<B>> {
    Closure::at(
        Hook::TrainBatchEnd,
        move |cx: &mut RunContext<'_, Weights<B>>| {
            if cx.progress().total_batches >= step {
                cx.stop("enough");
            }
            Ok(())
        },
    )
}

fn a_stop_in_mid_epoch_validates_once<B: AutodiffBackend>() {
    for interval in [
        ValCheckInterval::Fraction(1.0),
        ValCheckInterval::Batches(3),
    ] {
        let (config, _runs) = quiet();
        let rows = Rows::default();
        let config = config
            .with_num_sanity_val_steps(SanitySteps::Batches(0))
            .with_val_check_interval(interval);
        let mut script = Script {
            batches: 8,
            ..Script::new(&[1.0])
        };
        let outcome = Trainer::new(config, B::Device::default())
            .with_callback(stop_at_step(3))
            .with_logger(rows.clone())
            .fit(Weights::<B>::new(1.0, 1.0), &mut script)
            .unwrap();
        assert_eq!(outcome.progress.total_batches, 3);
        assert_eq!(outcome.stopped, StopReason::Requested("enough".into()));
        assert_eq!(rows.steps("val/value"), [3]);
    }
}

/// Nothing that was accumulated is thrown away: the group of batches 3 and 4 is stepped.
fn a_stop_waits_for_the_accumulated_group<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let outcome = Trainer::new(config.with_accumulate_grad_batches(2), B::Device::default())
        .with_callback(stop_at_step(3))
        .fit_with(Weights::<B>::new(1.0, 1.0), sgd(0.25), &mut ones(8))
        .unwrap();
    assert_eq!(outcome.progress.total_batches, 4);
    assert_eq!(outcome.model.values(), [0.5, 1.0]);
}

/// Bad at the second check, better again before min_epochs is over: the run goes on.
fn a_request_is_forgotten_when_the_value_recovers<B: AutodiffBackend>() {
    let outcome = run::<B>(
        |c| c.with_min_epochs(4).with_max_epochs(6),
        watch().patience(1),
        Script::new(&[5., 6., 4., 3., 2., 1.]),
    );
    assert_eq!(outcome.progress.epoch, 6);
    assert_eq!(outcome.stopped, StopReason::MaxEpochs);
}

fn a_step_value_cannot_be_watched<B: AutodiffBackend>() {
    type Watch<B> = fn(Trainer<Weights<B>>) -> Trainer<Weights<B>>;
    let watchers: [Watch<B>; 2] = [
        |t| t.with_callback(EarlyStopping::new("train/loss")),
        |t| t.with_callback(ModelCheckpoint::new().monitor("train/loss", Mode::Min)),
    ];
    for (watch, who) in watchers
        .into_iter()
        .zip(["EarlyStopping", "ModelCheckpoint"])
    {
        let (config, _runs) = quiet();
        let trainer = Trainer::new(config.with_max_epochs(2), B::Device::default());
        let error = watch(trainer)
            .fit(Weights::new(1.0, 1.0), &mut ones(2))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "epoch 0, batch 2, step 2: callback `{who}`: {who} watches `train/loss`, which has no \
                 value for an epoch; `train/loss_epoch` has"
            )
        );
    }
}
