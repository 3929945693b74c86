//! Wrong callbacks: what they watch, and what they do.

use super::*;
use firebox::callback::{Closure, Hook};

#[track_caller]
fn fit_error(trainer: Trainer<Net<Cpu>>, fault: Fault, mut data: Loaders<Net<Cpu>>) -> Error {
    let mut trainer = trainer;
    let outcome = trainer.fit(net(fault), &mut data);
    outcome.expect_err("the fit must fail")
}

#[test]
fn a_metric_that_is_never_logged() {
    for (data, message) in [
        (
            Loaders::new(points()),
            "epoch 0, batch 4, step 4: callback `EarlyStopping`: EarlyStopping watches `val/accuracy`, which is never logged; logged are `train/loss`, `train/grad_norm`, `train/loss_epoch`",
        ),
        (
            data(),
            "epoch 0, batch 4, step 4: callback `EarlyStopping`: EarlyStopping watches `val/accuracy`, which is never logged; logged are `train/loss`, `train/grad_norm`, `val/loss`, `train/loss_epoch`",
        ),
    ] {
        let runs = Runs::new();
        let trainer = runs
            .trainer()
            .with_callback(EarlyStopping::new("val/accuracy"));
        let error = fit_error(trainer, Fault::Nothing, data);
        assert_error(&error, ErrorKind::Config, message);
        assert_eq!(runs.assert_whole(), ["epoch=0-step=4"]);
    }
}

/// Fails, or panics, at one hook; and again on the way out if it is told to.
struct Failing {
    panics: bool,
    on_exception: bool,
}

impl Failing {
    fn fail(&self, what: &str) -> Result<()> {
        match self.panics {
            true => panic!("{what}"),
            false => Err(Error::user(what)),
        }
    }
}

impl<M: TrainModule> Callback<M> for Failing {
    fn on_optimizer_step(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        match cx.progress().global_step {
            3 => self.fail("the callback has had enough"),
            _ => Ok(()),
        }
    }
    fn on_exception(&mut self, _: &mut RunContext<'_, M>, _: &Error) -> Result<()> {
        match self.on_exception {
            true => self.fail("the way out is blocked"),
            false => Ok(()),
        }
    }
}

#[test]
fn a_callback_that_fails_or_panics() {
    for (panics, message) in [
        (
            false,
            "epoch 0, batch 2, step 3: callback `Failing`: the callback has had enough",
        ),
        (
            true,
            "epoch 0, batch 2, step 3: callback `Failing`: panicked: the callback has had enough",
        ),
    ] {
        let runs = Runs::new();
        let trainer = runs.trainer().with_callback(Failing {
            panics,
            on_exception: false,
        });
        let error = fit_error(trainer, Fault::Nothing, data());
        assert_error(&error, ErrorKind::User, message);
        assert_eq!(runs.assert_whole(), ["epoch=0-step=3"]);
    }
}

#[test]
fn the_first_error_is_reported_when_the_way_out_fails_too() {
    for (panics, message) in [
        (
            false,
            "epoch 0, batch 2, step 2: training_step: the step has had enough (and then: the way out is blocked)",
        ),
        (
            true,
            "epoch 0, batch 2, step 2: training_step: the step has had enough (and then: panicked: the way out is blocked)",
        ),
    ] {
        let runs = Runs::new();
        let trainer = runs.trainer().with_callback(Failing {
            panics,
            on_exception: true,
        });
        let error = fit_error(trainer, Fault::StepError, data());
        assert_error(&error, ErrorKind::User, message);
        // The callbacks behind it are told all the same.
        assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
    }
}

#[test]
fn every_hook_may_fail() {
    for hook in [
        Hook::FitStart,
        Hook::TrainEpochStart,
        Hook::TrainBatchStart,
        Hook::OptimizerStep,
        Hook::TrainBatchEnd,
        Hook::TrainEpochEnd,
        Hook::EvalStart,
        Hook::EvalBatchEnd,
        Hook::EvalEnd,
        Hook::FitEnd,
    ] {
        for panics in [false, true] {
            let runs = Runs::new();
            let fail = move |_: &mut RunContext<'_, Net<Cpu>>| match panics {
                true => panic!("enough"),
                false => Err(Error::user("enough")),
            };
            let trainer = runs.trainer().with_callback(Closure::at(hook, fail));
            let error = fit_error(trainer, Fault::Nothing, data());
            let message = without_places(&error.to_string());
            let end = if panics {
                "callback `Closure`: panicked: enough"
            } else {
                "callback `Closure`: enough"
            };
            assert!(message.ends_with(end), "{hook:?}: {message}");
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::User, 1));
            runs.assert_whole();
        }
    }
}
