//! What a checkpoint keeps beside the model, and which ones are kept.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::ErrorKind;
use firebox::callback::{Closure, Hook, SaveLast};
use firebox::checkpoint::Checkpoint;
use firebox::config::{Monitor, Resume, SaveTopK};
use firebox::data::TrainLoader;
use firebox::prelude::*;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

on_each_backend!(
    states_of_the_user_come_back,
    time_goes_on,
    a_stop_that_had_to_wait_still_waits,
    names_have_values_and_versions,
    several_policies_keep_their_own,
    every_so_often,
    the_settings_make_the_policy,
    settings_and_program_may_not_differ,
    what_cannot_be_kept_is_refused,
    the_best_weights_are_restored,
    a_copy_for_file_systems_without_links,
    a_launch_is_written_down,
);

/// A callback, a logger and a data module that count.
#[derive(Default, Clone)]
struct Count(Rc<RefCell<Vec<String>>>, u64);

impl Count {
    fn load(&mut self, who: &str, state: &Value) {
        self.1 = state.as_u64().unwrap();
        self.0.borrow_mut().push(format!("{who} {state}"));
    }
}

impl<M: TrainModule> Callback<M> for Count {
    fn on_train_batch_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        self.1 += 1;
        Ok(())
    }
    fn save_state(&self) -> Value {
        self.1.into()
    }
    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.load("callback", state);
        Ok(())
    }
}

impl firebox::logger::Logger for Count {
    fn log(&mut self, _row: &firebox::logger::Row<'_>) -> Result<()> {
        self.1 += 1;
        Ok(())
    }
    fn save_state(&self) -> Value {
        self.1.into()
    }
    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.load("logger", state);
        Ok(())
    }
}

impl<B: AutodiffBackend> DataModule<Weights<B>> for Count {
    fn train_loader(&self) -> Result<Option<TrainLoader<Weights<B>>>> {
        Ok(Some(gradients([1.0; 3])))
    }
    fn save_state(&self) -> Value {
        77.into()
    }
    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.load("data", state);
        Ok(())
    }
}

fn states_of_the_user_come_back<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let fit = |config: TrainerConfig| {
        let loaded = Count::default();
        let mut data = loaded.clone();
        let outcome = Trainer::new(config, B::Device::default())
            // Two of a kind: each gets its own.
            .with_callback(Count(loaded.0.clone(), 100))
            .with_callback(loaded.clone())
            .with_logger(loaded.clone())
            .fit(Weights::<B>::new(1.0, 1.0), &mut data)
            .unwrap();
        assert_eq!(outcome.progress.global_step, 6);
        loaded.0.take()
    };
    assert!(fit(config.clone().with_max_steps(6).with_max_epochs(2)).is_empty());
    let loaded = fit(config.with_max_epochs(2).with_resume(Resume::Last));
    // Three steps and an epoch value for each of two epochs.
    assert_eq!(
        loaded,
        ["data 77", "callback 106", "callback 6", "logger 8"]
    );
}

fn time_goes_on<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let fit = |config: TrainerConfig| {
        let start = Rc::new(RefCell::new(Duration::ZERO));
        let note = Rc::clone(&start);
        let note = Closure::at(
            Hook::FitStart,
            move |cx: &mut RunContext<'_, Weights<B>>| {
                *note.borrow_mut() = cx.elapsed();
                Ok(())
            },
        );
        let outcome = Trainer::new(config, B::Device::default())
            .with_callback(note)
            .fit(Weights::<B>::new(1.0, 1.0), &mut ones(3))
            .unwrap();
        (outcome, *start.borrow())
    };
    let (outcome, _) = fit(config.clone().with_max_epochs(1));
    let path = outcome.last_checkpoint.unwrap().join("state.json");
    let state: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let before = Duration::from_secs_f64(state["position"]["elapsed"].as_f64().unwrap());
    assert!(before > Duration::ZERO);
    let config = config.with_max_epochs(9).with_resume(Resume::Last);
    // The time that the run has had counts.
    let (outcome, start) = fit(config.with_max_time(Some(before.into())));
    assert!(start >= before, "{start:?} {before:?}");
    assert_eq!(outcome.stopped, firebox::StopReason::MaxTime);
    assert_eq!(outcome.progress.global_step, 3);
}

/// A callback asks for the end in the first epoch, but the run has a minimum.
fn a_stop_that_had_to_wait_still_waits<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let fit = |config: TrainerConfig| {
        let ask = Closure::at(
            Hook::TrainBatchEnd,
            |cx: &mut RunContext<'_, Weights<B>>| {
                if cx.progress().global_step == 2 {
                    cx.stop("enough");
                }
                Ok(())
            },
        );
        Trainer::new(
            config.with_min_steps(7).with_max_epochs(9),
            B::Device::default(),
        )
        .with_callback(ask)
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(3))
        .unwrap()
    };
    let config = config.with_max_steps(7);
    let stopped = fit(config.clone().with_max_time(None));
    assert_eq!(stopped.progress.global_step, 7);
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(9);
    let fail = |config: TrainerConfig| {
        let end = Closure::at(
            Hook::TrainBatchStart,
            |cx: &mut RunContext<'_, Weights<B>>| match cx.progress().global_step {
                4 => Err(Error::user("the power is out")),
                _ => Ok(()),
            },
        );
        let ask = Closure::at(
            Hook::TrainBatchEnd,
            |cx: &mut RunContext<'_, Weights<B>>| {
                if cx.progress().global_step == 2 {
                    cx.stop("enough");
                }
                Ok(())
            },
        );
        Trainer::new(config.with_min_steps(7), B::Device::default())
            .with_callback(ask)
            .with_callback(end)
            .fit(Weights::<B>::new(1.0, 1.0), &mut ones(3))
            .unwrap_err()
    };
    fail(config.clone());
    let resumed = fit(config.with_resume(Resume::Last));
    assert_eq!(resumed.progress.global_step, 7);
    assert_eq!(
        resumed.stopped,
        firebox::StopReason::Requested("enough".into())
    );
}

fn train<B: AutodiffBackend>(
    config: TrainerConfig,
    policies: impl IntoIterator<Item = ModelCheckpoint>,
) -> Result<FitOutcome<Weights<B>>> {
    let mut trainer = Trainer::new(config.with_max_epochs(2), B::Device::default());
    for policy in policies {
        trainer = trainer.with_callback(policy);
    }
    trainer.fit(Weights::<B>::new(1.0, 1.0), &mut ones(3))
}

fn names_have_values_and_versions<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let named = |name: &str| ModelCheckpoint::new().save_top_k(-1).name(name);
    let policies = [named("{step:03}/{train/loss_epoch:.2}"), named("all")];
    let outcome = train::<B>(config, policies).unwrap();
    // The losses of an epoch are 1, 0, -1, then -2, -3, -4.
    let expected = [
        "all",
        "all-v1",
        "step=003_train_loss_epoch=0.00",
        "step=006_train_loss_epoch=-3.00",
    ];
    let folder = outcome.run_dir.unwrap().join("checkpoints");
    assert_eq!(checkpoints(&folder), expected);
    assert_eq!(outcome.last_checkpoint, Some(folder.join(expected[3])));
}

fn several_policies_keep_their_own<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let own = runs.path().join("own");
    let policies = [
        ModelCheckpoint::new(),
        ModelCheckpoint::new()
            .dir(&own)
            .monitor("step", Mode::Max)
            .save_top_k(2)
            .save_last(SaveLast::Off)
            .every_n_epochs(0)
            .every_n_steps(1),
    ];
    let outcome = train::<B>(config, policies).unwrap();
    let folder = outcome.run_dir.unwrap().join("checkpoints");
    assert_eq!(checkpoints(&folder), ["epoch=1-step=6"]);
    assert_eq!(checkpoints(&own), ["epoch=1-step=5", "epoch=1-step=6"]);
    assert!(!own.join("last").exists());
}

fn every_so_often<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let policy = |every| {
        ModelCheckpoint::new()
            .save_top_k(-1)
            .every_n_epochs(0)
            .every(every)
    };
    let outcome = train::<B>(config.clone(), [policy(Duration::ZERO)]).unwrap();
    assert_eq!(
        checkpoints(&outcome.run_dir.unwrap().join("checkpoints")).len(),
        6
    );
    let outcome = train::<B>(config, [policy(Duration::MAX)]).unwrap();
    let folder = outcome.run_dir.unwrap().join("checkpoints");
    assert_eq!(checkpoints(&folder), ["epoch=1-step=6"]);
}

fn the_settings_make_the_policy<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_checkpoint_every_n_steps(2)
        .with_save_top_k(SaveTopK::Best(2))
        .with_monitor("max:step".parse::<Monitor>().unwrap());
    for policies in [vec![], vec![ModelCheckpoint::new()]] {
        let outcome = train::<B>(config.clone(), policies).unwrap();
        let folder = outcome.run_dir.unwrap().join("checkpoints");
        assert_eq!(checkpoints(&folder), ["epoch=1-step=4", "epoch=1-step=6"]);
    }
}

fn settings_and_program_may_not_differ<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let policy = ModelCheckpoint::new()
        .monitor("train/loss_epoch", Mode::Min)
        .save_top_k(1);
    let config = config.with_save_top_k(SaveTopK::Best(3));
    let error = train::<B>(config, [policy]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error
            .to_string()
            .contains("`save_top_k` is 3, but a `ModelCheckpoint` of this program says 1"),
        "{error}"
    );
}

fn what_cannot_be_kept_is_refused<B: AutodiffBackend>() {
    for (policy, said) in [
        (
            ModelCheckpoint::new().save_top_k(2),
            "`save_top_k` is 2, but no value is watched",
        ),
        (
            ModelCheckpoint::new().save_last(SaveLast::Off),
            "`save_last` is off and no value is watched",
        ),
        (
            ModelCheckpoint::new().name("{epoch"),
            "the name of checkpoints is `{epoch`, in which a field is not closed",
        ),
    ] {
        let (config, _runs) = quiet();
        let error = train::<B>(config, [policy]).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

fn the_best_weights_are_restored<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let policy = ModelCheckpoint::new()
        .monitor("train/loss_epoch", Mode::Max)
        .restore_best(true);
    let outcome = train::<B>(config, [policy]).unwrap();
    assert_eq!(outcome.model.values(), [-2.0, 1.0]);
    assert_eq!(outcome.progress.global_step, 6);
}

fn a_copy_for_file_systems_without_links<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let policy = ModelCheckpoint::new().save_last(SaveLast::Copy);
    let outcome = train::<B>(config.clone(), [policy.clone()]).unwrap();
    let folder = outcome.run_dir.clone().unwrap().join("checkpoints");
    let copy = Checkpoint::open(folder.join("last")).unwrap();
    assert!(!folder.join("last").is_symlink());
    assert_eq!(copy.progress().global_step, 6);
    // The copy is no checkpoint beside its original.
    let again = train::<B>(config.with_resume(Resume::Last), [policy]).unwrap();
    assert_eq!(again.run_dir, outcome.run_dir);
    assert_eq!(again.last_checkpoint, outcome.last_checkpoint);
}

fn a_launch_is_written_down<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let outcome = train::<B>(config.clone(), []).unwrap();
    let config = config.with_resume(Resume::Last).with_log_every_n_steps(3);
    train::<B>(config, []).unwrap();
    let launches = std::fs::read_to_string(outcome.run_dir.unwrap().join("run.jsonl")).unwrap();
    let launches: Vec<Value> = launches
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [first, second] = launches.as_slice() else {
        panic!("{launches:?}");
    };
    assert_eq!(first["resumed_from"], Value::Null);
    let from = outcome.last_checkpoint.unwrap();
    assert_eq!(second["resumed_from"], json!(from));
    assert_eq!(second["config"]["log_every_n_steps"], 3);
    for launch in [first, second] {
        assert_eq!(launch["firebox"], env!("CARGO_PKG_VERSION"));
        assert_eq!(launch["burn"], "0.21.0");
        assert!(launch["command"][0].as_str().unwrap().contains("it-"));
        assert!(launch["git"].is_string() || launch["git"].is_null());
    }
}
