//! Sending a spool to the server, in order, so that each part arrives at least once.
//!
//! A part whose answer was lost is sent again. That changes nothing in MLflow: of two points with
//! the same name, step, time and value its database keeps one, parameters and tags are set to what
//! they are, and an artifact replaces itself.

mod requests;

use super::client::{Client, Failure};
use super::spool::{Entry, Lines, Points, Position, RunInfo, Spool};
use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// MLflow's limit for one request.
const METRICS_LIMIT: usize = 1000;

/// Tells the user something, in one line.
pub(super) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Why nothing more was sent.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server does not answer, or not yet.
    Away(String),
    /// Sending cannot go on.
    Stop(Error),
}

/// A spool on its way to a server.
pub(super) struct Delivery {
    client: Client,
    report: Report,
    spool: PathBuf,
    position: Position,
    /// Whether the user knows that artifacts are left out.
    told: bool,
    pub(super) points: u64,
    pub(super) files: u64,
}

impl Delivery {
    pub(super) fn new(client: Client, spool: &Spool, report: Report) -> Result<Self> {
        Ok(Self {
            client,
            report,
            position: Position::of(spool)?,
            spool: spool.path().to_owned(),
            told: false,
            points: 0,
            files: 0,
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn spool(&self) -> &Path {
        &self.spool
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.position.confirmed
    }

    pub(super) fn run_id(&self) -> Option<&str> {
        self.position.run.as_ref().map(|run| run.run_id.as_str())
    }

    /// Sends the next part of what has been written up to this offset, and remembers that.
    ///
    /// # Errors
    /// It has not been sent, or the server has not confirmed it.
    pub(super) fn send_next(&mut self, written: u64) -> Result<(), Trouble> {
        let batch = self.next_batch(written).map_err(Trouble::Stop)?;
        let Some((entries, end)) = batch else {
            return Ok(());
        };
        if end > self.position.tried {
            self.position.tried = end;
            self.position.save(&self.spool).map_err(Trouble::Stop)?;
        }
        let sent = match &entries {
            Batch::Rows(rows) => self.send_rows(rows),
            Batch::Other(entry) => self.send(entry),
        };
        sent.map_err(|failure| self.trouble(failure))?;
        self.position.confirmed = end;
        self.position.save(&self.spool).map_err(Trouble::Stop)
    }

    /// As many rows as fit into a request, or one other entry.
    fn next_batch(&self, written: u64) -> Result<Option<(Batch, u64)>> {
        let mut rows: Vec<Points> = Vec::new();
        let mut metrics = 0;
        let mut end = self.position.confirmed;
        for line in Lines::read(&self.spool, end, written)? {
            let (entry, end_of_line) = line?;
            match entry {
                Entry::Row(points) => {
                    metrics += points.values.len();
                    if metrics > METRICS_LIMIT && !rows.is_empty() {
                        break;
                    }
                    rows.push(points);
                    end = end_of_line;
                }
                other if rows.is_empty() => return Ok(Some((Batch::Other(other), end_of_line))),
                _ => break,
            }
        }
        Ok((!rows.is_empty()).then_some((Batch::Rows(rows), end)))
    }

    fn send_rows(&mut self, rows: &[Points]) -> Result<(), Failure> {
        let run_id = self.run()?.run_id;
        let new = rows.iter().filter(|row| !row.sent);
        let metrics: Vec<Value> = new
            .flat_map(|row| {
                row.values.iter().map(|(key, Exact(value))| {
                    let (time, step) = (row.time, row.step);
                    json!({"key": key, "value": metric(*value), "timestamp": time, "step": step})
                })
            })
            .collect();
        // A row alone may have more values than a request can.
        for metrics in metrics.chunks(METRICS_LIMIT) {
            let body = json!({"run_id": run_id, "metrics": metrics});
            self.client.post("runs/log-batch", &body)?;
        }
        self.points += metrics.len() as u64;
        Ok(())
    }

    fn run(&self) -> Result<RunInfo, Failure> {
        let run = self.position.run.clone();
        run.ok_or_else(|| self.damaged("it does not begin with its run"))
    }

    fn damaged(&self, why: &str) -> Failure {
        Failure::Damaged(Error::new(
            ErrorKind::Corrupt,
            format!("`{}` is damaged: {why}", self.spool.display()),
        ))
    }

    fn trouble(&self, failure: Failure) -> Trouble {
        match failure {
            Failure::Away(why) => Trouble::Away(why),
            Failure::Damaged(error) => Trouble::Stop(error),
            // It has taken this run before: a token has run out, or something in front of MLflow
            // answers while it is away.
            Failure::Refused {
                status,
                code,
                message,
            } if self.position.run.is_some() && is_for_now(status, &code) => {
                Trouble::Away(format!("it answers {status}: {message}"))
            }
            Failure::Refused {
                status, message, ..
            } => Trouble::Stop(Error::new(
                ErrorKind::Io,
                format!(
                    "MLflow at {} refuses what it is sent ({status}): {message}; the rest stays in \
                     `{}`, to be sent by `{}` once that is put right",
                    self.client.uri(),
                    self.spool.display(),
                    send_command(&self.spool)
                ),
            )),
        }
    }
}

/// Whether an answer is no word of MLflow on what it was sent.
fn is_for_now(status: u16, code: &str) -> bool {
    matches!(status, 300..=399 | 401 | 403) || code.is_empty()
}

enum Batch {
    Rows(Vec<Points>),
    Other(Entry),
}

/// What sends the rest of a spool.
pub(super) fn send_command(spool: &Path) -> String {
    let folder = spool.parent().unwrap_or(spool);
    format!("firebox mlflow-send {}", folder.display())
}

/// A metric's value in MLflow's JSON: text where JSON has no number. (MLflow 3 stores a bare `NaN`
/// as 0 at step 0, and `null` is refused.)
fn metric(value: f64) -> Value {
    match value {
        _ if value.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        _ => json!(value),
    }
}
