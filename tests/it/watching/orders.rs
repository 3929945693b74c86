//! `firebox ctl`: a run that goes on is told what to do.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::ProgressMode;
use firebox::control::{Command, send};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::{ErrorKind, StopReason};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

on_each_backend!(
    cpu: orders_are_carried_out,
    all_replicas_do_what_is_ordered,
    what_was_set_stays_set,
    a_run_without_validation_refuses_one,
);

const PATIENCE: Duration = Duration::from_secs(120);

/// Gives an order once the run is there.
fn order(run: &Path, command: Command) -> Result<firebox::control::Answer> {
    loop {
        match send(run, &command, PATIENCE) {
            // The run is only just being made.
            Err(e) if e.to_string().contains("not the folder of a run") => {}
            Err(e) if e.to_string().contains("is not going on") => {}
            answered => return answered,
        }
        std::thread::yield_now();
    }
}

fn step(status: &Value) -> u64 {
    status["global_step"].as_u64().unwrap()
}

/// A run without end on so many devices, that `orders` are given.
fn ordered<B: AutodiffBackend, T: Send>(
    config: TrainerConfig,
    devices: usize,
    orders: impl FnOnce(&Path) -> T + Send,
) -> (FitOutcome<Weights<B>>, T) {
    let run = config.run_dir.join("version_0");
    let config = config
        .with_max_epochs(u32::MAX as u64)
        .with_min_epochs(u32::MAX as u64)
        .with_log_every_n_steps(1000);
    std::thread::scope(|scope| {
        let orders = scope.spawn(move || {
            let given = catch_unwind(AssertUnwindSafe(|| orders(&run)));
            given.unwrap_or_else(|panic| {
                // The run would go on for ever.
                order(&run, Command::Stop).unwrap();
                resume_unwind(panic)
            })
        });
        let device = B::Device::default();
        let mut data = Loaders::new(gradients([1.0; 4])).with_val(gradients([3.0]));
        let outcome = Trainer::new(config, device.clone())
            .with_devices(vec![device; devices])
            .fit(Weights::<B>::new(1.0, 1.0), &mut data)
            .unwrap();
        (outcome, orders.join().unwrap())
    })
}

fn orders_are_carried_out<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let (outcome, changed_at) = ordered::<B, _>(config, 1, |run| {
        let answer = order(run, Command::Status).unwrap();
        assert_eq!(answer.status["learning_rates"]["default"], 1.0);
        assert_eq!(answer.status["max_epochs"], u32::MAX);
        assert_eq!(answer.status["batches"], 4);

        let set = Command::set("lr=0.5").unwrap();
        let changed_at = step(&order(run, set).unwrap().status);
        let answer = order(run, Command::set("lr/head=1").unwrap());
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(
            error.to_string(),
            "there is no parameter group `head`; there is `default`"
        );

        let answer = order(run, Command::Validate).unwrap();
        assert_eq!(answer.text, "validated, val/value 3");
        let answer = order(run, Command::Save).unwrap();
        let path = answer.text.split('`').nth(1).unwrap();
        let saved = firebox::checkpoint::Checkpoint::open(path).unwrap();
        assert_eq!(
            path.split("step=").nth(1).unwrap(),
            saved.progress().global_step.to_string()
        );

        let answer = order(run, Command::Stop).unwrap();
        let expected = format!("the run ends after step {}", step(&answer.status));
        assert_eq!(answer.text, expected);
        changed_at
    });
    // `min_epochs` does not hold up what a person has ordered.
    let ordered = StopReason::Requested("`firebox ctl` has ordered it".into());
    assert_eq!(outcome.stopped, ordered);
    let steps = outcome.progress.global_step;
    let expected = 1.0 - changed_at as f32 - 0.5 * (steps - changed_at) as f32;
    assert_eq!(outcome.model.values()[0], expected);
    let run = outcome.run_dir.unwrap();
    let log = std::fs::read_to_string(run.join("control/orders.jsonl")).unwrap();
    let orders: Vec<Value> = log
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let done: Vec<_> = orders
        .iter()
        .map(|o| o["is_done"].as_bool().unwrap())
        .collect();
    assert_eq!(done, [true, true, false, true, true, true]);
    assert_eq!(orders[1]["step"], changed_at);
    let error = send(&run, &Command::Status, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("is not going on"), "{error}");
}

fn all_replicas_do_what_is_ordered<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_check_replicas_every_n_steps(1);
    let (outcome, (changed_at, grouped_at)) = ordered::<B, _>(config, 2, |run| {
        let set = |text| step(&order(run, Command::set(text).unwrap()).unwrap().status);
        let changed = (set("lr=0.25"), set("accumulate_grad_batches=2"));
        order(run, Command::Validate).unwrap();
        order(run, Command::Save).unwrap();
        order(run, Command::Stop).unwrap();
        changed
    });
    let progress = outcome.progress;
    let expected = 1.0 - changed_at as f32 - 0.25 * (progress.global_step - changed_at) as f32;
    assert_eq!(outcome.model.values()[0], expected);
    // From then on two batches to a step, and four to an epoch.
    let batches = grouped_at + 2 * (progress.global_step - grouped_at);
    let first_step_of_epoch = grouped_at % 4;
    let rest = if first_step_of_epoch % 2 == 1 { 1 } else { 0 };
    assert_eq!(progress.total_batches, batches - rest);
}

fn what_was_set_stays_set<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let (outcome, ()) = ordered::<B, _>(config.clone(), 1, |run| {
        order(run, Command::set("lr=0.125").unwrap()).unwrap();
        order(run, Command::set("accumulate_grad_batches=2").unwrap()).unwrap();
        order(run, Command::Stop).unwrap();
    });
    let before = outcome.progress;
    let resumed = config
        .with_resume(firebox::config::Resume::Last)
        .with_max_steps(before.global_step + 3)
        .with_progress(ProgressMode::Off);
    let again = Trainer::new(resumed, B::Device::default())
        .fit(
            Weights::<B>::new(1.0, 1.0),
            &mut Loaders::new(gradients([1.0; 4])).with_val(gradients([3.0])),
        )
        .unwrap();
    let moved = outcome.model.values()[0] - again.model.values()[0];
    assert_eq!(moved, 3.0 * 0.125);
    assert!(again.progress.total_batches - before.total_batches >= 5);
}

fn a_run_without_validation_refuses_one<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_limit_val_batches(firebox::config::Limit::NONE);
    ordered::<B, _>(config, 1, |run| {
        let error = order(run, Command::Validate).unwrap_err();
        assert_eq!(error.to_string(), "this run has no validation data");
        order(run, Command::Stop).unwrap();
    });
}
