//! Outputs that are no good terminal, and loaders that do not know how long they are.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::ProgressMode;
use firebox::data::Loaders;
use firebox::prelude::*;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

on_each_backend!(
    cpu: a_stream_has_as_many_batches_as_come,
    a_stream_that_breaks_is_an_error_with_its_place,
);

/// The example in two epochs, with these standard outputs.
fn run(runs: &Path, stdout: Stdio, stderr: Stdio, more: &[&str]) -> std::process::Child {
    Command::new(example("linear_regression"))
        .args(["--accelerator=cpu", "--max-epochs=2", "--run-dir"])
        .arg(runs)
        .args(more)
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap()
}

fn assert_trained(runs: &Path) {
    let run = runs.join("version_0");
    let metrics = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    assert!(metrics.contains("train/loss_epoch"), "{metrics}");
    let last = firebox::checkpoint::Checkpoint::open(run.join("checkpoints/last")).unwrap();
    assert_eq!(last.progress().epoch, 2);
}

#[test]
fn nobody_reads_any_more() {
    for progress in ["--progress=auto", "--progress=bar", "--progress=plain"] {
        let runs = tempfile::tempdir().unwrap();
        let mut child = run(runs.path(), Stdio::null(), Stdio::piped(), &[progress]);
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{progress}");
        assert_trained(runs.path());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_disk_for_the_log_is_full() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let runs = tempfile::tempdir().unwrap();
    let mut child = run(runs.path(), Stdio::null(), full.into(), &[]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_trained(runs.path());
}

#[test]
fn a_pipe_has_plain_short_lines() {
    for more in [[].as_slice(), &["--dashboard"]] {
        let runs = tempfile::tempdir().unwrap();
        let child = run(runs.path(), Stdio::piped(), Stdio::piped(), more);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
        let epochs = text
            .lines()
            .filter(|line| line.starts_with("epoch "))
            .count();
        assert_eq!(epochs, 2, "{text}");
        assert!(text.contains("2 epochs, "), "{text}");
        assert!(text.lines().count() < 30, "{text}");
        assert_trained(runs.path());
    }
}

fn a_stream_has_as_many_batches_as_come<B: AutodiffBackend>() {
    for progress in [ProgressMode::Bar, ProgressMode::Plain] {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(2).with_progress(progress);
        // Another number in every epoch.
        let stream = |epoch: u64| Ok((0..3 + epoch).map(|_| Ok(vec![[1.0, 0.0]])));
        let mut data = Loaders::new(Loader::from_stream(stream, TokenBatcher));
        let outcome = Trainer::new(config, B::Device::default())
            .fit(Weights::<B>::new(1.0, 1.0), &mut data)
            .unwrap();
        assert_eq!(outcome.progress.total_batches, 3 + 4);
    }
}

fn a_stream_that_breaks_is_an_error_with_its_place<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(2).with_progress(ProgressMode::Bar);
    let stream = |_: u64| {
        Ok((0..3).map(|index| match index {
            2 => Err(Error::data("the connection is lost")),
            _ => Ok(vec![[1.0, 0.0]]),
        }))
    };
    let mut data = Loaders::new(Loader::from_stream(stream, TokenBatcher));
    let error = Trainer::new(config, B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap_err()
        .to_string();
    assert!(error.contains("epoch 0, batch "), "{error}");
    assert!(error.contains("item 2 of the stream"), "{error}");
    assert!(error.contains("the connection is lost"), "{error}");
}
