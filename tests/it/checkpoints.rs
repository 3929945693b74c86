//! Checkpoints that a run leaves, and those it must not take away.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::ErrorKind;
use firebox::callback::{Closure, Hook};
use firebox::data::Loaders;
use firebox::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

on_each_backend!(
    a_failed_save_leaves_the_last_good_checkpoint,
    two_policies_share_a_checkpoint,
    a_second_fit_starts_anew,
    a_failed_run_leaves_its_last_step,
    a_checkpoint_of_another_model_is_refused,
    a_part_of_an_epoch_is_no_better_than_a_whole_one,
    a_path_holds_one_step,
);

fn folders(run_dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(run_dir.join("checkpoints")).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !name.starts_with('.') && name != "last")
        .collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn a_failed_save_leaves_the_last_good_checkpoint<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    // The folder that the second save is written to first is a file: the disk refuses.
    let block = Closure::at(
        Hook::TrainEpochStart,
        |cx: &mut RunContext<'_, Weights<B>>| {
            if cx.progress().epoch == 1 {
                let folder = cx.run_dir().unwrap().join("checkpoints");
                std::fs::write(folder.join(".epoch=1-step=4.tmp"), "").unwrap();
            }
            Ok(())
        },
    );
    let error = Trainer::new(config.with_max_epochs(3), B::Device::default())
        .with_callback(block)
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let run_dir = runs.path().join("runs/version_0");
    assert_eq!(folders(&run_dir), set(["epoch=0-step=2"]));
    let path = run_dir.join("checkpoints/epoch=0-step=2");
    let zeros = Weights::<B>::new(0.0, 0.0);
    let model = firebox::checkpoint::load_model(path, zeros).unwrap();
    assert_eq!(model.values(), [-1.0, 1.0]);
}

/// One keeps the best of a value that gets worse, one keeps the last; both save after each epoch.
fn two_policies_share_a_checkpoint<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let mut data = Loaders::new(gradients([1.0, 1.0]));
    let outcome = Trainer::new(config.with_max_epochs(3), B::Device::default())
        .with_callback(ModelCheckpoint::new())
        .with_callback(ModelCheckpoint::new().monitor("train/loss_epoch", Mode::Max))
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap();
    let run_dir = outcome.run_dir.unwrap();
    assert_eq!(folders(&run_dir), set(["epoch=0-step=2", "epoch=2-step=6"]));
    let best = run_dir.join("checkpoints/epoch=0-step=2");
    assert_eq!(outcome.best_checkpoint, Some(best));
}

fn a_second_fit_starts_anew<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let stop = EarlyStopping::new("train/loss_epoch")
        .patience(1)
        .mode(Mode::Max);
    let mut trainer = Trainer::new(config.with_max_epochs(2), B::Device::default())
        .with_callback(ModelCheckpoint::new())
        .with_callback(stop);
    for version in 0..2 {
        let mut data = Loaders::new(gradients([-1.0, -1.0]));
        let outcome = trainer
            .fit(Weights::<B>::new(-9.0, 1.0), &mut data)
            .unwrap();
        assert_eq!(outcome.progress.epoch, 2);
        let run_dir = runs.path().join(format!("runs/version_{version}"));
        assert_eq!(folders(&run_dir), set(["epoch=1-step=4"]));
    }
    assert_eq!(
        folders(&runs.path().join("runs/version_0")),
        set(["epoch=1-step=4"])
    );
}

fn a_failed_run_leaves_its_last_step<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let fail = Closure::at(
        Hook::OptimizerStep,
        |cx: &mut RunContext<'_, Weights<B>>| match cx.progress().global_step {
            3 => Err(Error::user("the power is out")),
            _ => Ok(()),
        },
    );
    let error = Trainer::new(config.with_max_epochs(3), B::Device::default())
        .with_callback(fail)
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(9))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "epoch 0, batch 2, step 3: callback `Closure`: the power is out"
    );
    let run_dir = runs.path().join("runs/version_0");
    assert_eq!(folders(&run_dir), set(["epoch=0-step=3"]));
    let path = run_dir.join("checkpoints/epoch=0-step=3");
    let zeros = Weights::<B>::new(0.0, 0.0);
    let model = firebox::checkpoint::load_model(path, zeros).unwrap();
    assert_eq!(model.values(), [-2.0, 1.0]);
}

fn a_checkpoint_of_another_model_is_refused<B: AutodiffBackend>() {
    use burn::nn::{Linear, LinearConfig};

    let (config, _runs) = quiet();
    let outcome = Trainer::new(config.with_max_epochs(1), B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap();
    let path = outcome.last_checkpoint.unwrap();
    let linear: Linear<B> = LinearConfig::new(2, 2).init(&B::Device::default());
    let error = firebox::checkpoint::load_model(path, linear.clone()).unwrap_err();
    let text = error.to_string();
    let expected = "does not fit this model: 0 parameters loaded; 2 missing in the file: \
                    `weight`, `bias`; 2 not in the model: `a`, `b`";
    assert!(text.ends_with(expected), "{text}");

    let missing = outcome.run_dir.unwrap().join("nowhere");
    let error = firebox::checkpoint::load_model(&missing, linear).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot read the checkpoint `"),
        "{error}"
    );
}

fn a_part_of_an_epoch_is_no_better_than_a_whole_one<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    // The loss falls from step to step, also in the second epoch, which ends before its time.
    let outcome = Trainer::new(config.with_max_steps(5), B::Device::default())
        .with_callback(ModelCheckpoint::new().monitor("train/loss_epoch", Mode::Min))
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(4))
        .unwrap();
    let best = outcome.best_checkpoint.unwrap();
    assert!(best.ends_with("epoch=0-step=4"), "{}", best.display());
    assert!(best.join("manifest.json").is_file());
    assert_eq!(outcome.progress.global_step, 5);
}

fn a_path_holds_one_step<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let path = runs.path().join("latest");
    let save = Closure::at(
        Hook::TrainEpochEnd,
        move |cx: &mut RunContext<'_, Weights<B>>| {
            cx.save_checkpoint(&path);
            Ok(())
        },
    );
    let error = Trainer::new(config.with_max_epochs(2), B::Device::default())
        .with_callback(save)
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("latest"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_device_is_no_checkpoints_file() {
    use firebox::testing::Cpu;
    let (config, _runs) = quiet();
    let outcome = Trainer::new(config.with_max_epochs(1), Default::default())
        .fit(Weights::<Cpu>::new(1.0, 1.0), &mut ones(2))
        .unwrap();
    let path = outcome.last_checkpoint.unwrap();
    for file in ["model.safetensors", "manifest.json"] {
        std::fs::remove_file(path.join(file)).unwrap();
        // Endless.
        std::os::unix::fs::symlink("/dev/zero", path.join(file)).unwrap();
        let error = firebox::checkpoint::Checkpoint::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains(&format!("`{file}` is no file")),
            "{error}"
        );
    }
}
