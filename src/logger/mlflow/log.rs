//! What the run tells its logger.

use super::ahead::{Ahead, Known};
use super::names::{flatten, tag_value};
use super::sender::Sender;
use super::spool::{Content, Entry, Lines, Points, Spool};
use super::{MlflowLogger, State};
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::logger::{Histogram, Logger, Media, Row, RunEnd};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

impl Logger for MlflowLogger {
    fn log_config(&mut self, config: &TrainerConfig) -> Result<()> {
        let text = config.to_toml()?;
        let tree: Value = toml::from_str(&text)
            .map_err(|e| Error::config("the settings cannot be read as TOML").with_source(e))?;
        self.add_settings(("config", "toml"), text, flatten("trainer", &tree))
    }

    fn log_hyper_parameters(&mut self, values: &Value) -> Result<()> {
        if values.is_null() {
            return Ok(());
        }
        let text = format!("{values:#}");
        let prefix = if values.is_object() {
            ""
        } else {
            "hyper_parameters"
        };
        self.add_settings(("hyper_parameters", "json"), text, flatten(prefix, values))
    }

    fn log(&mut self, row: &Row<'_>) -> Result<()> {
        // A run begins no later than its first row.
        self.start()?;
        let now = self.now();
        let mut parts: Vec<Points> = Vec::new();
        for (name, value) in row.values.iter() {
            let key = self.key(name);
            let (time, sent) = match self.ahead.take((row.step, row.epoch), &key, value) {
                Known::Repeated { time, sent } => (time, sent),
                Known::New => (now, false),
                Known::Differs => {
                    self.tell_difference(row.step, name);
                    (now, false)
                }
            };
            let value = (key, Exact(value));
            match parts.iter_mut().find(|p| (p.time, p.sent) == (time, sent)) {
                Some(part) => part.values.push(value),
                None => parts.push(Points {
                    time,
                    step: row.step,
                    epoch: row.epoch,
                    values: vec![value],
                    sent,
                }),
            }
        }
        let entries: Vec<_> = parts.into_iter().map(Entry::Row).collect();
        self.add(&entries)
    }

    fn takes_media(&self) -> bool {
        true
    }

    fn log_media(&mut self, step: u64, name: &str, media: &Media) -> Result<()> {
        let (ending, content) = match media {
            Media::Text(text) => ("txt", Content::Text(text.clone())),
            Media::Histogram(histogram) => ("json", Content::Text(histogram_json(histogram))),
            Media::Image(image) => {
                let file = image.png();
                let file = file.map_err(|e| e.context(format!("`{name}` at step {step}")))?;
                ("png", Content::Base64(STANDARD.encode(file)))
            }
        };
        let path = format!("{}/step-{step}.{ending}", self.key(name));
        self.add(&[Entry::Media { path, content }])
    }

    fn save_state(&self) -> Value {
        let Some(state) = &self.state else {
            return Value::Null;
        };
        let run_id = self.sender.as_ref().and_then(Sender::run_id);
        json!(State {
            run_id: run_id.or_else(|| state.run_id.clone()),
            ..state.clone()
        })
    }

    /// Goes on in the run's own spool. In a folder without it, the run is a new one.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        let state = State::deserialize(state).map_err(|e| {
            Error::config("the state of MlflowLogger cannot be read").with_source(e)
        })?;
        (self.sender, self.spool) = (None, None);
        let path = self.folder.join(&state.spool);
        let is_name = Path::new(&state.spool).file_name() == Some(state.spool.as_ref());
        if !is_name || !path.exists() || first_id(&path)? != Some(state.id.clone()) {
            self.resumed_from = Some(state.run_id.unwrap_or(state.id));
            self.state = None;
            return Ok(());
        }
        if state.experiment != self.experiment {
            (self.report)(&format!(
                "note: the run goes on in MLflow's experiment `{}`, where it began",
                state.experiment
            ));
        }
        let mut spool = Spool::open(&path, self.patience)?;
        if spool.length() < state.length {
            (self.report)(&format!(
                "warning: `{}` has lost its end, {} bytes that were written before the checkpoint; \
                 MLflow lacks them unless they were sent",
                path.display(),
                state.length - spool.length()
            ));
        }
        let length = state.length.min(spool.length());
        self.ahead = Ahead::go_back(&mut spool, length)?;
        self.settings.clear();
        for line in Lines::read(&path, 0, length)? {
            match line?.0 {
                Entry::Settings { path, text, .. } => self.settings.push((path, text)),
                Entry::Row(points) => self.time = self.time.max(points.time),
                _ => {}
            }
        }
        self.spool = Some(spool);
        self.state = Some(State { length, ..state });
        Ok(())
    }

    fn finish(&mut self, end: &RunEnd<'_>) -> Result<()> {
        // A run that has logged nothing has no run in MLflow.
        if self.sender.is_none() && self.spool.is_none() {
            return Ok(());
        }
        let (status, error) = match end {
            RunEnd::Finished => ("FINISHED", None),
            RunEnd::Interrupted => ("KILLED", None),
            RunEnd::Failed(error) => ("FAILED", Some(error.to_string())),
        };
        let tag = |text: String| Entry::Tag("firebox.error".to_owned(), tag_value(&text));
        let status = Entry::Status {
            status: status.to_owned(),
            end: Some(self.now()),
        };
        let entries: Vec<_> = error.map(tag).into_iter().chain([status]).collect();
        let added = self.add(&entries);
        let ended = self.wait_for_end();
        added.and(ended)
    }
}

/// Which run a spool is of, by its first line.
fn first_id(spool: &Path) -> Result<Option<String>> {
    let first = Lines::read(spool, 0, u64::MAX)?.next();
    match first.transpose() {
        Ok(Some((Entry::Run(begin), _))) => Ok(Some(begin.id)),
        // Damaged: it is kept, and not gone on with.
        _ => Ok(None),
    }
}

fn histogram_json(histogram: &Histogram) -> String {
    let buckets = histogram.buckets.iter();
    let buckets: Vec<_> = buckets
        .map(|(edge, count)| (Exact(*edge), Exact(*count)))
        .collect();
    json!({
        "min": Exact(histogram.min),
        "max": Exact(histogram.max),
        "count": histogram.count,
        "sum": Exact(histogram.sum),
        "sum_of_squares": Exact(histogram.sum_of_squares),
        "non_finite": histogram.non_finite,
        "buckets": buckets,
    })
    .to_string()
}
