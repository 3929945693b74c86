//! Wrong models: steps, losses and optimizers.

use super::*;
use burn::optim::SgdConfig;
use firebox::optim::schedule::{Cosine, LinearWarmup, OneCycle, Schedule, ScheduleInterval, Step};

#[test]
fn a_step_that_fails() {
    let runs = Runs::new();
    let error = runs.fit(Fault::StepError);
    assert_error(
        &error,
        ErrorKind::User,
        "epoch 0, batch 2, step 2: training_step: the step has had enough",
    );
    // The steps before it are kept.
    assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
}

#[test]
fn a_step_that_panics() {
    let runs = Runs::new();
    let error = runs.fit(Fault::StepPanic);
    assert_error(
        &error,
        ErrorKind::User,
        "epoch 0, batch 2, step 2: training_step: panicked: the step has had enough",
    );
    assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
}

#[test]
fn a_validation_that_fails_or_panics() {
    for (fault, message) in [
        (
            Fault::ValidationError,
            "sanity check: val batch 0: the validation has had enough",
        ),
        (
            Fault::ValidationPanic,
            "sanity check: val batch 0: panicked: the validation has had enough",
        ),
    ] {
        let runs = Runs::new();
        assert_error(&runs.fit(fault), ErrorKind::User, message);
        assert!(runs.assert_whole().is_empty());
    }
}

#[test]
fn a_loss_of_more_than_one_element() {
    let runs = Runs::new();
    let error = runs.fit(Fault::ManyLosses);
    assert_error(
        &error,
        ErrorKind::User,
        "epoch 0, batch 2, step 2: backward: the loss has 4 elements; reduce it to one with `.mean()`",
    );
    assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
}

#[test]
fn a_logged_tensor_of_more_than_one_element() {
    let runs = Runs::new();
    let error = runs.fit(Fault::ManyValues);
    assert_error(
        &error,
        ErrorKind::User,
        "epoch 0, batch 2, step 2: training_step: `losses`: a tensor of shape [4] is not one value; log its `.mean()`, or a metric",
    );
    runs.assert_whole();
}

#[test]
fn a_weight_that_is_no_weight() {
    for (weight, message) in [
        (
            f64::NAN,
            "epoch 0, batch 2, step 2: training_step: the weight of a mean is NaN; use a finite number from 0",
        ),
        (
            f64::INFINITY,
            "epoch 0, batch 2, step 2: training_step: the weight of a mean is inf; use a finite number from 0",
        ),
        (
            -1.0,
            "epoch 0, batch 2, step 2: training_step: the weight of a mean is -1; use a finite number from 0",
        ),
    ] {
        let runs = Runs::new();
        let error = runs.fit(Fault::Weight(weight));
        assert_error(&error, ErrorKind::User, message);
        assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
    }
}

#[test]
fn optimizers_that_cannot_be_made() {
    for (fault, kind, message) in [
        (
            Fault::ConfigureError,
            ErrorKind::User,
            "configure_optimizers: no optimizer is good enough",
        ),
        (
            Fault::ConfigurePanic,
            ErrorKind::User,
            "configure_optimizers: panicked: no optimizer is good enough",
        ),
        (
            Fault::NoLearningRate,
            ErrorKind::Config,
            "parameter group `default` has no learning rate; set one with `with_lr`",
        ),
    ] {
        let runs = Runs::new();
        assert_error(&runs.fit(fault), kind, message);
        runs.assert_nothing_written();
    }
}

fn sgd() -> Optimizers<Net<Cpu>> {
    Optimizers::single(SgdConfig::new().init()).with_lr(0.1)
}

fn group(name: &str, pattern: &str) -> ParamGroup<Net<Cpu>> {
    ParamGroup::new(name, [pattern], SgdConfig::new().init())
}

/// Fitting with these optimizers fails before anything is written.
#[track_caller]
fn assert_refused(optimizers: Optimizers<Net<Cpu>>, message: &str) {
    let runs = Runs::new();
    let outcome = runs
        .trainer()
        .fit_with(net(Fault::Nothing), optimizers, &mut data());
    assert_error(&outcome.unwrap_err(), ErrorKind::Config, message);
    runs.assert_nothing_written();
}

#[test]
fn a_group_that_matches_nothing() {
    assert_refused(
        sgd().with_group(group("head", "head.*")),
        "pattern `head.*` of parameter group `head` matches no parameter of `Net`, which has `linear.weight`, `linear.bias`",
    );
    assert_refused(
        sgd().with_frozen(["linear.weights"]),
        "pattern `linear.weights` of parameter group `frozen` matches no parameter of `Net`, which has `linear.weight`, `linear.bias`",
    );
}

#[test]
fn a_learning_rate_that_is_none() {
    assert_refused(
        sgd().with_lr(-0.1),
        "the learning rate of parameter group `default` is -0.1; use a finite number from 0",
    );
    assert_refused(
        sgd().with_lr(f64::NAN),
        "the learning rate of parameter group `default` is NaN; use a finite number from 0",
    );
    let group = group("bias", "*.bias").with_lr(f64::INFINITY);
    assert_refused(
        sgd().with_group(group),
        "the learning rate of parameter group `bias` is inf; use a finite number from 0",
    );
    let none = Optimizers::single(SgdConfig::new().init());
    assert_refused(
        none,
        "parameter group `default` has no learning rate; set one with `with_lr`",
    );
}

#[test]
fn no_optimizer_at_all() {
    assert_refused(
        Optimizers::manual(),
        "`configure_optimizers` of `Net` returns no optimizer; use `Optimizers::single` or `with_group`",
    );
    assert_refused(
        sgd().with_frozen(["*"]),
        "every parameter of `Net` is frozen; leave at least one to train",
    );
}

#[test]
fn a_schedule_with_wrong_parameters() {
    fn with(schedule: impl Schedule) -> Optimizers<Net<Cpu>> {
        sgd().with_schedule(ScheduleInterval::Step, schedule)
    }
    assert_refused(
        with(Cosine::new(0)),
        "cosine schedule: `total` is 0; use at least 1",
    );
    assert_refused(
        with(Cosine::new(10).warmup(10, 0.1)),
        "cosine schedule: `warmup` is 10; use fewer than the 10 updates in all",
    );
    assert_refused(
        with(OneCycle::new(-1.0, 10)),
        "one-cycle schedule: `max_lr` is -1.0; use a finite number above 0",
    );
    assert_refused(
        with(LinearWarmup::new(0, 0.1)),
        "linear warm-up schedule: `steps` is 0; use at least 1",
    );
    assert_refused(
        with(Step::new(0, 0.1)),
        "step schedule: `every` is 0; use at least 1",
    );
    // A group's own schedule is checked as well.
    let group = group("bias", "*.bias").with_schedule(ScheduleInterval::Epoch, Cosine::new(0));
    assert_refused(
        sgd().with_group(group),
        "cosine schedule: `total` is 0; use at least 1",
    );
}

#[test]
fn manual_optimizers_without_a_manual_step() {
    let runs = Runs::new();
    let manual = Optimizers::manual().with_group(group("all", "*").with_lr(0.1));
    let outcome = runs
        .trainer()
        .fit_with(net(Fault::Nothing), manual, &mut data());
    assert_error(
        &outcome.unwrap_err(),
        ErrorKind::Config,
        "epoch 0, batch 0, step 0: manual_step: `configure_optimizers` of `Net` returns `Optimizers::manual`, but it has no `manual_step`",
    );
    assert!(runs.assert_whole().is_empty());
}

/// Steps a group by hand: `all` with a loss for each sample, others with their mean.
#[derive(Module, Debug)]
struct ByHand<B: Backend> {
    net: Net<B>,
    #[module(skip)]
    group: &'static str,
}

impl<B: AutodiffBackend> TrainModule for ByHand<B> {
    type Backend = B;
    type Batch = Points<B>;
    type Eval = ByHand<B::InnerBackend>;

    fn training_step(&self, _: Points<B>, _: &mut StepContext<B>) -> Result<Loss<B>> {
        panic!("never called with manual optimizers")
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let all = ParamGroup::new("all", ["*"], SgdConfig::new().init());
        Ok(Optimizers::manual().with_group(all.with_lr(0.1)))
    }
    fn manual_step(self, batch: Points<B>, cx: &mut ManualStep<'_, Self>) -> Result<Self> {
        let group = self.group;
        let loss = match group {
            "all" => self.net.losses(batch).flatten::<1>(0, 1),
            _ => self.net.loss(batch),
        };
        cx.step(group, self, loss)
    }
}

impl<B: Backend> EvalModule for ByHand<B> {
    type Backend = B;
    type Batch = Points<B>;
}

#[test]
fn a_manual_step_with_a_wrong_group_or_loss() {
    for (group, kind, message) in [
        (
            "none",
            ErrorKind::Config,
            "epoch 0, batch 0, step 0: manual_step: there is no optimizer named `none`; there is `all`",
        ),
        (
            "all",
            ErrorKind::User,
            "epoch 0, batch 0, step 0: manual_step: the loss has 4 elements; reduce it to one with `.mean()`",
        ),
    ] {
        let runs = Runs::new();
        let mut trainer: Trainer<ByHand<Cpu>> = Trainer::new(runs.config(), Default::default());
        let net = net(Fault::Nothing);
        let outcome = trainer.fit(ByHand { net, group }, &mut Loaders::new(points()));
        assert_error(&outcome.unwrap_err(), kind, message);
        assert!(runs.assert_whole().is_empty());
    }
}

/// A validation loader for a model without a validation step.
#[test]
fn no_validation_step() {
    let runs = Runs::new();
    let mut trainer: Trainer<ByHand<Cpu>> = Trainer::new(runs.config(), Default::default());
    let net = net(Fault::Nothing);
    let mut data = Loaders::new(points()).with_val(points());
    let outcome = trainer.fit(ByHand { net, group: "all" }, &mut data);
    assert_error(
        &outcome.unwrap_err(),
        ErrorKind::Config,
        "sanity check: val batch 0: there is a val loader, but `ByHand` has no `validation_step`",
    );
    assert!(runs.assert_whole().is_empty());
}
