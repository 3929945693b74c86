//! The same through a real process, the example `linear_regression`: exit codes, what is printed,
//! and the layers of the configuration.

use super::*;
use crate::support::{accelerator_list, example};
use std::process::Command;

/// What a process did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the example in `folder` with these arguments and variables.
fn run(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(example("linear_regression"));
    for (name, _) in std::env::vars() {
        if name.starts_with("FIREBOX_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).args(arguments);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran {
        code: output.status.code().expect("no signal ended it"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    };
    assert!(!ran.stderr.contains("panicked at"), "{}", ran.stderr);
    ran
}

/// The settings that a run with these arguments and variables would have.
fn printed(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> TrainerConfig {
    let arguments: Vec<_> = arguments
        .iter()
        .chain(&["--print-config"])
        .copied()
        .collect();
    let ran = run(folder, &arguments, variables);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    TrainerConfig::from_toml_str(&ran.stdout).unwrap()
}

#[test]
fn a_run_that_works() {
    let runs = Runs::new();
    let ran = run(
        runs.0.path(),
        &["--max-epochs", "2", "--progress", "off"],
        &[],
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(!ran.stdout.is_empty());
    let run = runs.dir().join("version_0");
    assert_eq!(
        names(&run),
        ["checkpoints", "config.toml", "metrics.csv", "run.jsonl"]
    );
    let config = TrainerConfig::from_file(run.join("config.toml")).unwrap();
    assert_eq!(config.max_epochs, Some(2));
    assert_eq!(names(&run.join("checkpoints")), ["epoch=1-step=8", "last"]);
}

#[test]
fn wrong_settings_exit_with_2() {
    for (arguments, message) in [
        (
            ["--devices", "0"],
            "error: --devices: `devices` is `0`; use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)",
        ),
        (
            ["--devices", "1025"],
            "error: `devices` is `1025`, but a processor has at most 1024 replicas; flex has 0: CPU",
        ),
        (
            ["--max-epochs", "-3"],
            "error: --max-epochs: `max_epochs` is `-3`; use a whole number from 0 (below 2^63), or leave it out (`none`)",
        ),
        (
            ["--accelerator=ndarray", "--precision=bf16-mixed"],
            "error: `precision` is bf16-mixed, which ndarray does not compute in; it can do 32-true, 64-true",
        ),
        (
            ["--logger", "wandb"],
            "error: `logger` is wandb, which does not exist; use csv, jsonl, tensorboard, mlflow or none",
        ),
        (
            ["--config", "missing.toml"],
            "error: cannot read the configuration `missing.toml`: No such file or directory (os error 2)",
        ),
    ] {
        let runs = Runs::new();
        let ran = run(runs.0.path(), &arguments, &[]);
        let mut lines = ran.stderr.lines();
        let error = lines
            .find(|line| line.starts_with("error"))
            .unwrap_or_default();
        assert_eq!((error, ran.code), (message, 2));
        assert_eq!(ran.stdout, "");
        runs.assert_nothing_written();
    }
}

#[test]
fn an_accelerator_that_is_not_there_exits_with_1_or_2() {
    let runs = Runs::new();
    let list = accelerator_list();
    let ran = run(runs.0.path(), &["--accelerator", "tpu"], &[]);
    assert_eq!(
        ran.stderr,
        format!("error: there is no accelerator `tpu`; {list}\n")
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));

    let ran = run(runs.0.path(), &["--accelerator", "cuda"], &[]);
    if !cfg!(feature = "cuda") {
        let message =
            "error: accelerator `cuda` needs the feature `cuda`, which is not compiled in";
        assert_eq!(ran.stderr, format!("{message}; {list}\n"));
        assert_eq!(ran.code, 2);
    } else if ran.code != 0 {
        let start = "error: accelerator `cuda` is not available: ";
        assert!(ran.stderr.starts_with(start), "{}", ran.stderr);
        assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1));
    }
    runs.assert_nothing_written();
}

#[test]
fn the_choice_of_the_accelerator_is_said_in_one_line() {
    let runs = Runs::new();
    let arguments = ["--accelerator", "cpu", "--fast-dev-run"];
    let ran = run(runs.0.path(), &arguments, &[("FIREBOX_DEVICES", "1")]);
    let said = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("accelerator: "));
    assert_eq!(said.collect::<Vec<_>>(), ["accelerator: flex (CPU)"]);
}

#[test]
fn other_failures_exit_with_1() {
    let runs = Runs::new();
    fs::write(runs.dir(), "a file").unwrap();
    let ran = run(runs.0.path(), &["--progress", "off"], &[]);
    assert_eq!(
        ran.stderr,
        "error: cannot create the run folder in `runs`: File exists (os error 17)\n"
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(names(runs.0.path()), ["runs"]);
}

#[test]
fn an_unknown_key_or_flag() {
    let runs = Runs::new();
    fs::write(runs.0.path().join("run.toml"), "epochs = 3").unwrap();
    let ran = run(runs.0.path(), &["--config", "run.toml"], &[]);
    assert_eq!(ran.code, 2);
    let start = "error: run.toml: `epochs` is no setting; use one of accelerator, devices, ";
    assert!(ran.stderr.starts_with(start), "{}", ran.stderr);
    let ran = run(runs.0.path(), &["--epochs", "3"], &[]);
    let first = ran.stderr.lines().next().unwrap_or_default();
    assert_eq!(
        (first, ran.code),
        ("error: unexpected argument '--epochs' found", 2)
    );
    assert_eq!(names(runs.0.path()), ["run.toml"]);
}

#[test]
fn help_shows_every_setting() {
    let runs = Runs::new();
    let ran = run(runs.0.path(), &["--help"], &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.starts_with("Fits y = 2x + 1"), "{}", ran.stdout);
    let settings = TrainerConfig::new().to_toml().unwrap();
    for key in toml::from_str::<toml::Table>(&settings).unwrap().keys() {
        let flag = format!("--{}", key.replace('_', "-"));
        assert!(ran.stdout.contains(&flag), "{flag}");
    }
}

#[test]
fn flags_win_over_variables_and_variables_over_files() {
    let runs = Runs::new();
    let dir = runs.0.path();
    fs::write(
        dir.join("a.toml"),
        "max_epochs = 2\nseed = 2\nlogger = []\n",
    )
    .unwrap();
    fs::write(dir.join("b.json"), r#"{"max_epochs": 3, "devices": 1}"#).unwrap();
    let files = ["--config", "a.toml", "--config", "b.json"];

    let expected = TrainerConfig::new()
        .with_seed(2)
        .with_devices(1)
        .with_logger([""; 0]);
    let three = expected.clone().with_max_epochs(3);
    assert_eq!(printed(dir, &files, &[]), three);

    let variable = [("FIREBOX_MAX_EPOCHS", "4")];
    let four = expected.clone().with_max_epochs(4);
    assert_eq!(printed(dir, &files, &variable), four);

    let with_flag = [&files[..], &["--max-epochs", "5"]].concat();
    let five = expected.with_max_epochs(5);
    assert_eq!(printed(dir, &with_flag, &variable), five);

    // Nothing of that runs anything, and what is printed can be the next run's file.
    assert_eq!(names(dir), ["a.toml", "b.json"]);
    fs::write(dir.join("printed.toml"), five.to_toml().unwrap()).unwrap();
    assert_eq!(printed(dir, &["--config", "printed.toml"], &[]), five);
}

#[test]
fn a_variable_reaches_the_run() {
    let runs = Runs::new();
    let variables = [("FIREBOX_MAX_EPOCHS", "1"), ("FIREBOX_PROGRESS", "off")];
    let ran = run(runs.0.path(), &[], &variables);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let checkpoints = runs.dir().join("version_0").join("checkpoints");
    assert_eq!(names(&checkpoints), ["epoch=0-step=4", "last"]);

    let ran = run(runs.0.path(), &[], &[("FIREBOX_MAX_EPOCHS", "many")]);
    assert_eq!(
        (ran.stderr.lines().next(), ran.code),
        (
            Some(
                "error: FIREBOX_MAX_EPOCHS: `max_epochs` is `many`; use a whole number from 0 (below 2^63), or leave it out (`none`)"
            ),
            2
        )
    );
}
