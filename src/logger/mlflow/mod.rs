//! Runs in MLflow, by the REST API of a tracking server.

mod ahead;
mod client;
mod delivery;
mod log;
mod names;
mod run;
mod send;
mod sender;
mod spool;
#[cfg(test)]
mod tests;

pub use send::{Sent, send_spooled};

use crate::error::{Error, Result};
use crate::output::say;
use ahead::Ahead;
use client::Client;
use delivery::Report;
use names::{key, tag_value};
use sender::{Retry, Sender};
use serde::{Deserialize, Serialize};
use spool::Spool;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Logs a run to an MLflow tracking server: settings and hyper-parameters as parameters, rows as
/// metrics with their step, texts, images (PNG) and histograms (JSON) as artifacts, and how the run
/// ended.
///
/// Training never waits for the server. Everything goes to a file in the run's folder,
/// `mlflow.spool.jsonl`, and a thread sends it from there; `mlflow.sent` holds how far the server
/// has confirmed. While the server is away or busy, it is asked again, every 30 s at last. What is
/// not sent when the run ends stays in the file, and [`send_spooled`] sends it later.
///
/// A run that is resumed in its folder goes on as the same run in MLflow. Rows that come again with
/// the values they had are the same points there; other values are added with their own time, as
/// MLflow cannot replace a point. A run resumed in another folder is a new run, with the tag
/// `firebox.resumed_from`.
///
/// MLflow's databases keep an infinity as the largest double. An epoch has no place in a metric;
/// the spool holds it. Credentials are read from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME
/// and MLFLOW_TRACKING_PASSWORD.
///
/// ```
/// use firebox::logger::MlflowLogger;
///
/// let logger = MlflowLogger::new("http://127.0.0.1:5000", "runs/mnist")?
///     .experiment("mnist")
///     .run_name("wide net")
///     .tag("dataset", "v2");
/// # Ok::<(), firebox::Error>(())
/// ```
pub struct MlflowLogger {
    client: Client,
    folder: PathBuf,
    experiment: String,
    run_name: Option<String>,
    tags: Vec<(String, String)>,
    patience: Duration,
    retry: Retry,
    report: Report,
    /// The spool that the run goes on in, and where it stands there.
    state: Option<State>,
    /// Open from the first entry until the run ends.
    spool: Option<Spool>,
    sender: Option<Sender>,
    ahead: Ahead,
    /// Settings files in the spool: path and text.
    settings: Vec<(String, String)>,
    /// The time of the last row, in ms since 1970.
    time: u64,
    resumed_from: Option<String>,
    /// Whether the run has ended; it goes on if more is logged.
    ended: bool,
    /// What the user has been told about.
    renamed: BTreeSet<String>,
    differs: bool,
}

/// What a checkpoint keeps.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// The name of the spool's file.
    spool: String,
    id: String,
    /// How long the spool is.
    length: u64,
    run_id: Option<String>,
    experiment: String,
}

impl MlflowLogger {
    /// Logs to the server at `tracking_uri`, and keeps its files in `spool_folder`, which is made
    /// with the first entry.
    ///
    /// # Errors
    /// `tracking_uri` is not the address of a server, or the credentials in the environment cannot
    /// be used.
    pub fn new(tracking_uri: &str, spool_folder: impl Into<PathBuf>) -> Result<Self> {
        Self::with_variables(tracking_uri, spool_folder.into(), &variable)
    }

    /// Logs to the server in MLFLOW_TRACKING_URI. The experiment is MLFLOW_EXPERIMENT_NAME, the run
    /// MLFLOW_RUN_NAME or else the name of its folder.
    ///
    /// # Errors
    /// MLFLOW_TRACKING_URI is not set, or as [`new`](Self::new).
    pub fn from_env(run_dir: impl Into<PathBuf>) -> Result<Self> {
        Self::from_variables(run_dir.into(), &variable)
    }

    fn from_variables(folder: PathBuf, get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let uri = get("MLFLOW_TRACKING_URI").ok_or_else(|| {
            Error::config(
                "MLFLOW_TRACKING_URI is not set; set it to the address of the tracking server, \
                 such as MLFLOW_TRACKING_URI=http://127.0.0.1:5000",
            )
        })?;
        let dir_name = folder.file_name().map(|n| n.to_string_lossy().into_owned());
        let mut logger = Self::with_variables(&uri, folder, get)?;
        logger.run_name = get("MLFLOW_RUN_NAME").or(dir_name);
        logger.experiment = get("MLFLOW_EXPERIMENT_NAME").unwrap_or(logger.experiment);
        Ok(logger)
    }

    fn with_variables(
        uri: &str,
        folder: PathBuf,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        Ok(Self {
            client: Client::new(uri, get)?,
            folder,
            experiment: "firebox".to_owned(),
            run_name: None,
            tags: Vec::new(),
            patience: Duration::from_secs(10),
            retry: Retry::default(),
            report: Arc::new(|line| say!("{line}")),
            state: None,
            spool: None,
            sender: None,
            ahead: Ahead::default(),
            settings: Vec::new(),
            time: 0,
            resumed_from: None,
            ended: false,
            renamed: BTreeSet::new(),
            differs: false,
        })
    }

    /// Sets the experiment, `firebox` by default. It is made if it is not there.
    #[must_use]
    pub fn experiment(mut self, name: impl Into<String>) -> Self {
        self.experiment = name.into();
        self
    }

    /// Sets the run's name. Without one, MLflow makes one up.
    #[must_use]
    pub fn run_name(mut self, name: impl Into<String>) -> Self {
        self.run_name = Some(name.into());
        self
    }

    /// Adds a tag to the run.
    #[must_use]
    pub fn tag(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let name = key(name.as_ref()).into_owned();
        self.tags.retain(|(other, _)| *other != name);
        self.tags.push((name, tag_value(value.as_ref())));
        self
    }

    /// Sets how long the end of the run may wait for the server; 10 s by default.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// The name under which MLflow has a metric.
    fn key(&mut self, name: &str) -> String {
        let key = key(name).into_owned();
        if key != name && self.renamed.insert(name.to_owned()) {
            (self.report)(&format!(
                "note: MLflow does not take the name `{name}`; it is `{key}` there"
            ));
        }
        key
    }

    fn tell_difference(&mut self, step: u64, name: &str) {
        if !std::mem::replace(&mut self.differs, true) {
            (self.report)(&format!(
                "warning: the repeated part of the run differs from what MLflow has, first in \
                 `{name}` at step {step}; MLflow cannot replace points, so it has both there, the \
                 new ones with the later time"
            ));
        }
    }

    /// In ms since 1970; never earlier than before.
    fn now(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        self.time = self.time.max(now);
        self.time
    }
}

impl fmt::Debug for MlflowLogger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MlflowLogger")
            .field("uri", &self.client.uri())
            .field("folder", &self.folder)
            .field("experiment", &self.experiment)
            .field("run_name", &self.run_name)
            .field("tags", &self.tags)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// An environment variable that is set, and not to nothing.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}
