//! Several loggers at once, chosen by name.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::{LoggerNames, Resume};
use firebox::logger::{Logger, Media, Row, RunEnd};
use firebox::prelude::*;
use serde_json::Value;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

on_each_backend!(
    cpu: all_loggers_have_the_same_rows,
    a_run_that_goes_on_logs_no_row_twice,
    histograms_count_every_number,
    loggers_are_told_how_it_ended,
);

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn all() -> LoggerNames {
    let mut names = vec!["csv", "jsonl"];
    if cfg!(feature = "tensorboard") {
        names.push("tensorboard");
    }
    names.into_iter().collect()
}

fn event_files(run: &Path) -> usize {
    let entries = std::fs::read_dir(run)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    entries
        .filter(|name| name.to_string_lossy().starts_with("events.out.tfevents."))
        .count()
}

fn all_loggers_have_the_same_rows<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_logger(all()).with_max_epochs(2);
    let (outcome, rows) = fit::<B>(config, sgd(0.1), ones(3));
    let run = outcome.run_dir.unwrap();
    let jsonl = lines(&run.join("metrics.jsonl"));
    let losses = jsonl
        .iter()
        .filter_map(|row| row["values"]["train/loss"].as_f64());
    assert_eq!(losses.collect::<Vec<_>>(), rows.values("train/loss"));
    let mut csv = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let column = csv
        .headers()
        .unwrap()
        .iter()
        .position(|name| name == "train/loss")
        .unwrap();
    let cells = csv
        .records()
        .map(|record| record.unwrap()[column].to_owned());
    let cells = cells.filter(|cell| !cell.is_empty());
    let losses: Vec<f64> = cells.map(|cell| cell.parse().unwrap()).collect();
    assert_eq!(losses, rows.values("train/loss"));
    assert_eq!(
        event_files(&run),
        usize::from(cfg!(feature = "tensorboard"))
    );
}

fn a_run_that_goes_on_logs_no_row_twice<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_logger(all()).with_max_epochs(2);
    let stopped = config.clone().with_max_steps(4);
    let (first, _) = fit::<B>(stopped, sgd(0.1), ones(3));
    // Rows behind the checkpoint, as of a process that was killed later.
    let run = first.run_dir.unwrap();
    let path = run.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text + "{\"step\":5,\"epoch\":1,\"values\":{}}\n{\"st",
    )
    .unwrap();
    let (second, _) = fit::<B>(config.with_resume(Resume::Last), sgd(0.1), ones(3));
    assert_eq!(second.run_dir.unwrap(), run);
    let rows = lines(&path);
    let steps = rows
        .iter()
        .filter(|row| row["values"]["train/loss"].is_number());
    let steps: Vec<_> = steps.map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    // TensorBoard's file of a second start is one of its own.
    assert_eq!(
        event_files(&run),
        2 * usize::from(cfg!(feature = "tensorboard"))
    );
}

/// Keeps what is neither a number nor lost.
#[derive(Clone, Default)]
struct Kept {
    media: Rc<RefCell<Vec<(u64, String, Media)>>>,
    ends: Rc<RefCell<Vec<String>>>,
}

impl Logger for Kept {
    fn log(&mut self, _row: &Row<'_>) -> Result<()> {
        Ok(())
    }
    fn takes_media(&self) -> bool {
        true
    }
    fn log_media(&mut self, step: u64, name: &str, media: &Media) -> Result<()> {
        let mut kept = self.media.borrow_mut();
        kept.push((step, name.to_owned(), media.clone()));
        Ok(())
    }
    fn finish(&mut self, end: &RunEnd<'_>) -> Result<()> {
        self.ends.borrow_mut().push(match end {
            RunEnd::Failed(error) => error.to_string(),
            other => format!("{other:?}"),
        });
        Ok(())
    }
}

fn histograms_count_every_number<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_log_histograms(true)
        .with_log_every_n_steps(2)
        .with_max_epochs(1);
    let kept = Kept::default();
    Trainer::new(config, B::Device::default())
        .with_logger(kept.clone())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(4))
        .unwrap();
    let media = kept.media.borrow();
    let named: Vec<_> = media
        .iter()
        .map(|(step, name, _)| (*step, name.as_str()))
        .collect();
    let of_step = |step| {
        ["parameters/a", "parameters/b", "gradients/a", "gradients/b"].map(|name| (step, name))
    };
    assert_eq!(named, [of_step(2), of_step(4)].concat());
    let Media::Histogram(gradient) = &media[2].2 else {
        panic!("{:?}", media[2]);
    };
    assert_eq!((gradient.count, gradient.min, gradient.sum), (1, 1.0, 1.0));
    let Media::Histogram(weight) = &media[0].2 else {
        panic!("{:?}", media[0]);
    };
    // After two steps of -1.
    assert_eq!((weight.count, weight.max), (1, -1.0));
}

fn loggers_are_told_how_it_ended<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let kept = Kept::default();
    let mut trainer =
        Trainer::new(config.with_max_epochs(1), B::Device::default()).with_logger(kept.clone());
    trainer
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(1))
        .unwrap();
    let error = trainer
        .with_callback(firebox::callback::Closure::at(
            firebox::callback::Hook::TrainBatchStart,
            |_| Err(Error::user("no")),
        ))
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(1))
        .unwrap_err();
    assert_eq!(
        *kept.ends.borrow(),
        ["Finished".to_owned(), error.to_string()]
    );
}
