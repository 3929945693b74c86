#![allow(clippy::unwrap_used, reason = "tests")]

mod content;
#[cfg(unix)]
mod real;
mod resume;
mod sending;
mod server;

use super::*;
use crate::logger::{Logger, Row, RunEnd};
use crate::metric::Metrics;
use serde_json::Value;
use server::{Act, Server};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

/// Longer than any test takes: what it waits for comes, or the test is stuck.
const LONG: Duration = Duration::from_secs(60);

/// A logger that asks again at once, and what it tells the user.
fn logger(uri: &str, folder: &Path) -> (MlflowLogger, Receiver<String>) {
    let mut logger = MlflowLogger::with_variables(uri, folder.to_owned(), &|_| None).unwrap();
    logger.retry = Retry {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(8),
    };
    let (told, says) = channel();
    // Whoever does not listen need not.
    logger.report = Arc::new(move |line| drop(told.send(line.to_owned())));
    (logger.patience(LONG), says)
}

fn try_log(logger: &mut MlflowLogger, step: u64, values: &[(&str, f64)]) -> Result<()> {
    let values: Metrics = values.iter().map(|(n, v)| ((*n).into(), *v)).collect();
    let row = Row {
        step,
        epoch: 0,
        values: &values,
    };
    logger.log(&row)
}

fn log(logger: &mut MlflowLogger, step: u64, values: &[(&str, f64)]) {
    try_log(logger, step, values).unwrap();
}

fn finish(logger: &mut MlflowLogger) {
    logger.finish(&RunEnd::Finished).unwrap();
}

/// The points of `loss` at these steps, where the value at a step is 1 / step.
fn losses(steps: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
    steps
        .into_iter()
        .map(|step| (step, serde_json::json!(1.0 / step as f64).to_string()))
        .collect()
}

fn log_losses(logger: &mut MlflowLogger, steps: impl IntoIterator<Item = u64>) {
    for step in steps {
        log(logger, step, &[("loss", 1.0 / step as f64)]);
    }
}

/// Sends the rest of a run's spool, to the server that it was for.
fn send_rest(folder: &Path) -> Result<Sent> {
    send::send_with(folder, &|_| None)
}

fn sent_file(folder: &Path) -> Value {
    let bytes = std::fs::read(folder.join("mlflow.sent")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn spool_length(folder: &Path) -> u64 {
    folder.join("mlflow.spool.jsonl").metadata().unwrap().len()
}

#[test]
fn the_environment_names_server_experiment_and_run() {
    let none = MlflowLogger::from_variables("runs/version_3".into(), &|_| None);
    let error = none.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error
            .to_string()
            .contains("MLFLOW_TRACKING_URI=http://127.0.0.1:5000"),
        "{error}"
    );

    let uri = |name: &str| (name == "MLFLOW_TRACKING_URI").then(|| "http://h:1".to_owned());
    let logger = MlflowLogger::from_variables("runs/version_3".into(), &uri).unwrap();
    assert_eq!(logger.run_name.as_deref(), Some("version_3"));
    assert_eq!(logger.experiment, "firebox");

    let all = |name: &str| {
        Some(if name.ends_with("URI") {
            "http://h:1".to_owned()
        } else {
            name.to_owned()
        })
    };
    let logger = MlflowLogger::from_variables("runs/version_3".into(), &all).unwrap();
    assert_eq!(logger.run_name.as_deref(), Some("MLFLOW_RUN_NAME"));
    assert_eq!(logger.experiment, "MLFLOW_EXPERIMENT_NAME");
    assert!(!format!("{logger:?}").contains("PASSWORD"));
}

#[test]
fn nothing_is_written_before_the_first_entry() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run");
    let (mut logger, _says) = logger("http://127.0.0.1:9", &folder);
    assert!(logger.save_state().is_null());
    finish(&mut logger);
    assert!(!folder.exists());
    let error = send_rest(dir.path()).unwrap_err().to_string();
    assert!(error.contains("holds no `mlflow.spool.jsonl`"), "{error}");
}
