//! Which checkpoint a run goes on from, and where.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::ErrorKind;
use firebox::config::Resume;
use firebox::data::Loaders;
use firebox::prelude::*;
use std::fs::File;
use std::path::PathBuf;

on_each_backend!(
    last_goes_on_in_its_folder,
    last_with_nothing_there_starts_anew,
    best_starts_a_new_folder,
    best_of_nothing_is_an_error,
    a_path_is_a_checkpoint_or_a_run,
    a_path_to_nothing_is_an_error,
    another_seed_in_the_middle_of_an_epoch_is_refused,
    a_run_that_goes_on_is_not_resumed,
    a_run_that_is_over_has_nothing_left_to_do,
    a_run_that_was_moved_goes_on,
    other_groups_are_refused,
);

type Fit<B> = Result<FitOutcome<Weights<B>>>;

/// Four batches an epoch, with a loss that gets worse: the best checkpoint is the first.
fn fit<B: AutodiffBackend>(config: TrainerConfig) -> Fit<B> {
    let mut data = Loaders::new(gradients([1.0; 4]));
    Trainer::new(config, B::Device::default())
        .with_callback(ModelCheckpoint::new().monitor("train/loss_epoch", Mode::Max))
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
}

fn config() -> (TrainerConfig, tempfile::TempDir) {
    let (config, runs) = quiet();
    (config.with_max_epochs(3), runs)
}

#[track_caller]
fn assert_error<B: AutodiffBackend>(fit: Fit<B>, kind: ErrorKind, text: &str) {
    let error = fit.unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(error.kind(), kind);
}

fn last_goes_on_in_its_folder<B: AutodiffBackend>() {
    let (config, runs) = config();
    // In the middle of the second epoch.
    let first = fit::<B>(config.clone().with_max_steps(6)).unwrap();
    assert_eq!((first.progress.epoch, first.progress.batch), (1, 2));
    let second = fit::<B>(config.with_resume(Resume::Last)).unwrap();
    assert_eq!(second.run_dir, first.run_dir);
    assert_eq!(second.run_dir, Some(runs.path().join("runs/version_0")));
    assert_eq!(second.progress.global_step, 12);
    assert_eq!(second.model.values(), [-11.0, 1.0]);
    // The best is of the first process; what was resumed from stays.
    let folder = second.run_dir.unwrap().join("checkpoints");
    assert_eq!(second.best_checkpoint, Some(folder.join("epoch=0-step=4")));
    let expected = ["epoch=0-step=4", "epoch=1-step=6", "epoch=2-step=12"];
    assert_eq!(checkpoints(&folder), expected);
}

fn last_with_nothing_there_starts_anew<B: AutodiffBackend>() {
    let (config, _runs) = config();
    let outcome = fit::<B>(config.with_resume(Resume::Last)).unwrap();
    assert_eq!(outcome.progress.global_step, 12);
}

fn best_starts_a_new_folder<B: AutodiffBackend>() {
    let (config, runs) = config();
    fit::<B>(config.clone()).unwrap();
    let config = config.with_resume(Resume::Best).with_max_epochs(2);
    let outcome = fit::<B>(config).unwrap();
    assert_eq!(outcome.run_dir, Some(runs.path().join("runs/version_1")));
    assert_eq!(outcome.progress.global_step, 8);
    assert_eq!(outcome.model.values(), [-7.0, 1.0]);
    // The best is still that of the other run, which has lost nothing.
    let [first, second] = [0, 1].map(|v| runs.path().join(format!("runs/version_{v}/checkpoints")));
    assert_eq!(outcome.best_checkpoint, Some(first.join("epoch=0-step=4")));
    assert_eq!(checkpoints(&first), ["epoch=0-step=4", "epoch=2-step=12"]);
    assert_eq!(checkpoints(&second), ["epoch=1-step=8"]);
}

fn best_of_nothing_is_an_error<B: AutodiffBackend>() {
    let (config, _runs) = config();
    let best = || config.clone().with_resume(Resume::Best);
    assert_error(
        fit::<B>(best()),
        ErrorKind::Config,
        "there is no checkpoint under",
    );
    // One that watches nothing.
    Trainer::new(config.clone(), B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap();
    assert_error(
        fit::<B>(best()),
        ErrorKind::Config,
        "has no best checkpoint",
    );
}

fn a_path_is_a_checkpoint_or_a_run<B: AutodiffBackend>() {
    let (config, runs) = config();
    let first = fit::<B>(config.clone().with_max_steps(6)).unwrap();
    let run = first.run_dir.unwrap();
    let from = |path: PathBuf| fit::<B>(config.clone().with_resume(Resume::Path(path))).unwrap();
    for (version, path) in [(1, "checkpoints/epoch=0-step=4"), (2, "checkpoints/last")] {
        let outcome = from(run.join(path));
        let own = runs.path().join(format!("runs/version_{version}"));
        assert_eq!(outcome.run_dir, Some(own));
        assert_eq!(outcome.model.values(), [-11.0, 1.0]);
    }
    let outcome = from(run.clone());
    assert_eq!(outcome.run_dir, Some(run));
}

fn a_path_to_nothing_is_an_error<B: AutodiffBackend>() {
    let (config, runs) = config();
    let nowhere = runs.path().join("nowhere");
    let said = format!(
        "`resume` is {}, where there is no checkpoint",
        nowhere.display()
    );
    let config = config.with_resume(Resume::Path(nowhere));
    assert_error(fit::<B>(config), ErrorKind::Config, &said);
    assert!(!runs.path().join("runs").exists(), "nothing was written");
}

fn another_seed_in_the_middle_of_an_epoch_is_refused<B: AutodiffBackend>() {
    let (config, _runs) = config();
    fit::<B>(config.clone().with_max_steps(6)).unwrap();
    let config = config.with_seed(7).with_resume(Resume::Last);
    let said = "of a run with 42, in epoch 1 after 2 batches";
    assert_error(fit::<B>(config.clone()), ErrorKind::Config, said);
    // Between two epochs it is the user's affair, unless it is to be exact.
    fit::<B>(config.clone().with_seed(42).with_max_epochs(2)).unwrap();
    let strict = config.clone().with_resume_strict(true);
    assert_error(fit::<B>(strict), ErrorKind::Config, "of a run with 42");
    assert_eq!(fit::<B>(config).unwrap().progress.global_step, 12);
}

fn a_run_that_goes_on_is_not_resumed<B: AutodiffBackend>() {
    let (config, _runs) = config();
    let first = fit::<B>(config.clone().with_max_steps(6)).unwrap();
    // As the process that runs it would.
    let launches = File::open(first.run_dir.unwrap().join("run.jsonl")).unwrap();
    launches.lock().unwrap();
    let config = config.with_resume(Resume::Last);
    assert_error(
        fit::<B>(config.clone()),
        ErrorKind::Io,
        "is in use by a run that is going on",
    );
    drop(launches);
    fit::<B>(config).unwrap();
}

fn a_run_that_is_over_has_nothing_left_to_do<B: AutodiffBackend>() {
    let (config, _runs) = config();
    let first = fit::<B>(config.clone()).unwrap();
    let metrics = first.run_dir.unwrap().join("metrics.csv");
    let before = std::fs::read(&metrics).unwrap();
    let outcome = fit::<B>(config.with_resume(Resume::Last)).unwrap();
    assert_eq!(outcome.stopped, firebox::StopReason::MaxEpochs);
    assert_eq!(outcome.model.values(), first.model.values());
    assert_eq!(outcome.last_checkpoint, first.last_checkpoint);
    assert_eq!(std::fs::read(&metrics).unwrap(), before);
}

fn a_run_that_was_moved_goes_on<B: AutodiffBackend>() {
    let (config, runs) = config();
    fit::<B>(config.clone().with_max_epochs(2)).unwrap();
    let moved = runs.path().join("moved");
    std::fs::rename(runs.path().join("runs"), &moved).unwrap();
    let config = config.with_run_dir(&moved).with_resume(Resume::Last);
    fit::<B>(config.clone()).unwrap();
    // Once more, so that a last one that was not resumed from has to go.
    let outcome = fit::<B>(config.with_max_epochs(5)).unwrap();
    let folder = moved.join("version_0/checkpoints");
    assert_eq!(outcome.best_checkpoint, Some(folder.join("epoch=0-step=4")));
    let expected = [
        "epoch=0-step=4",
        "epoch=1-step=8",
        "epoch=2-step=12",
        "epoch=4-step=20",
    ];
    assert_eq!(checkpoints(&folder), expected);
}

fn other_groups_are_refused<B: AutodiffBackend>() {
    let (config, _runs) = config();
    fit::<B>(config.clone().with_max_epochs(1)).unwrap();
    let optimizers = sgd::<B>(1.0)
        .with_frozen(["b"])
        .with_group(ParamGroup::new("a", ["a"], burn::optim::SgdConfig::new().init()).with_lr(0.5));
    let config = config.with_resume(Resume::Last);
    let fit = Trainer::new(config.clone(), B::Device::default()).fit_with(
        Weights::<B>::new(1.0, 1.0),
        optimizers,
        &mut ones(4),
    );
    let said = "the checkpoint has the parameter groups `default`, and this run has `a`, `default`";
    assert_error(fit, ErrorKind::Config, said);
    // Another kind of optimizer.
    let adam = Optimizers::single(burn::optim::AdamConfig::new().init()).with_lr(1.0);
    let fit = Trainer::new(config, B::Device::default()).fit_with(
        Weights::<B>::new(1.0, 1.0),
        adam,
        &mut ones(4),
    );
    assert_error(fit, ErrorKind::Config, "optimizer of group `default`");
}
