//! Wrong settings: found before any work, exit code 2, nothing written.

use super::*;
use crate::support::accelerator_list;
use clap::Parser;
use firebox::config::{LoggerNames, Precision};
use firebox::testing::{Line, line_data};

/// Fits a line.
#[derive(Parser, Debug)]
struct Program {
    #[command(flatten)]
    trainer: TrainerConfig,
}

impl Recipe for Program {
    fn config(&self) -> &TrainerConfig {
        &self.trainer
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let mut data = Loaders::new(line_data().batch_size(8));
        cx.trainer().fit(Line::<B>::new(cx.device()), &mut data)?;
        Ok(())
    }
}

/// Launching with these settings fails before anything is written.
#[track_caller]
fn assert_refused(change: impl FnOnce(TrainerConfig) -> TrainerConfig, message: &str) {
    let runs = Runs::new();
    let trainer = change(runs.config());
    let error = firebox::try_launch(Program { trainer }).unwrap_err();
    assert_error(&error, ErrorKind::Config, message);
    runs.assert_nothing_written();
}

/// The command line is refused with exit code 2 and this message.
#[track_caller]
fn assert_flags_refused(flags: &[&str], message: &str) {
    let arguments = ["train"].iter().chain(flags);
    let error = Program::try_parse_from(arguments).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let shown = error.to_string();
    assert_eq!(shown.lines().next().unwrap(), format!("error: {message}"));
}

#[test]
fn no_device_at_all() {
    assert_refused(
        |config| config.with_devices(0),
        "`devices` is Count(0); use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)",
    );
    assert_flags_refused(
        &["--devices", "0"],
        "--devices: `devices` is `0`; use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)",
    );
}

#[test]
fn more_devices_than_there_are() {
    assert_refused(
        |config| config.with_devices(1025),
        "`devices` is `1025`, but a processor has at most 1024 replicas; flex has 0: CPU",
    );
    assert_refused(
        |config| config.with_devices([3]),
        "`devices` is `3,`, but device 3 does not exist; flex has 0: CPU",
    );
}

#[test]
fn an_accelerator_that_is_not_there() {
    assert_refused(
        |config| config.with_accelerator("tpu"),
        &format!("there is no accelerator `tpu`; {}", accelerator_list()),
    );
}

#[test]
fn a_number_of_epochs_below_zero() {
    assert_flags_refused(
        &["--max-epochs=-3"],
        "--max-epochs: `max_epochs` is `-3`; use a whole number from 0 (below 2^63), or leave it out (`none`)",
    );
    assert_flags_refused(
        &["--max-epochs", "-3"],
        "--max-epochs: `max_epochs` is `-3`; use a whole number from 0 (below 2^63), or leave it out (`none`)",
    );
}

#[test]
fn limits_that_contradict_each_other() {
    assert_refused(
        |config| config.with_min_epochs(5),
        "`min_epochs` is 5, above `max_epochs`, which is 2; lower the one or raise the other",
    );
    assert_refused(
        |config| config.with_min_steps(5).with_max_steps(3),
        "`min_steps` is 5, above `max_steps`, which is 3; lower the one or raise the other",
    );
    assert_flags_refused(
        &["--min-epochs", "5", "--max-epochs", "3"],
        "`min_epochs` is 5, above `max_epochs`, which is 3; lower the one or raise the other (`min_epochs` from --min-epochs, `max_epochs` from --max-epochs)",
    );
}

#[test]
fn an_unknown_key_in_a_file() {
    let runs = Runs::new();
    let file = runs.0.path().join("run.toml");
    fs::write(&file, "max_epoch = 3\n").unwrap();
    let error = TrainerConfig::from_file(&file).unwrap_err();
    let text = error.to_string();
    let text = text.replace(&file.display().to_string(), "run.toml");
    let known: Vec<_> = toml::from_str::<toml::Table>(&TrainerConfig::new().to_toml().unwrap())
        .unwrap()
        .keys()
        .cloned()
        .collect();
    // All keys are listed, those that are unset by default too.
    assert!(known.iter().all(|key| text.contains(key.as_str())));
    let (before, _) = text.split_once("use one of").unwrap();
    assert_eq!(before, "run.toml: `max_epoch` is no setting; ");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn an_unknown_logger() {
    assert_refused(
        |config| config.with_logger(LoggerNames::from(["csv", "wandb"])),
        "`logger` is wandb, which does not exist; use csv, jsonl, tensorboard, mlflow or none",
    );
}

#[test]
fn a_precision_that_is_not_supported() {
    assert_refused(
        |config| {
            config
                .with_accelerator("ndarray")
                .with_precision(Precision::Bf16Mixed)
        },
        "`precision` is bf16-mixed, which ndarray does not compute in; it can do 32-true, 64-true",
    );
}

#[test]
fn a_run_folder_below_a_file() {
    let runs = Runs::new();
    let file = runs.0.path().join("file");
    fs::write(&file, "mine").unwrap();
    let trainer = runs.config().with_run_dir(file.join("runs"));
    let error = firebox::try_launch(Program { trainer }).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text.replace(&file.display().to_string(), "FILE"),
        "cannot create the run folder in `FILE/runs`: Not a directory (os error 20)"
    );
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Io, 1));
    assert_eq!(names(runs.0.path()), ["file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_trainer_is_as_before_after_a_refusal() {
    let runs = Runs::new();
    let file = runs.0.path().join("file");
    fs::write(&file, "mine").unwrap();
    let mut trainer: Trainer<Net<Cpu>> =
        Trainer::new(runs.config().with_run_dir(&file), Default::default());
    for _ in 0..2 {
        assert!(trainer.fit(net(Fault::Nothing), &mut data()).is_err());
    }
    fs::remove_file(&file).unwrap();
    let outcome = trainer.fit(net(Fault::Nothing), &mut data()).unwrap();
    // One checkpoint callback, not three: each would have written the last step.
    let kept = outcome.run_dir.unwrap().join("checkpoints");
    assert_eq!(names(&kept), ["epoch=1-step=8", "last"]);
}
