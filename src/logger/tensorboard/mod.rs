//! Values, histograms, images and texts for TensorBoard.

mod event;
mod record;

use super::file::{LogFile, create_free};
use super::{Logger, Media, Row, RunEnd};
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use event::{Message, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes an event file for [TensorBoard](https://www.tensorflow.org/tensorboard), which shows it
/// with `tensorboard --logdir FOLDER`. No Python is needed to write it.
///
/// | Logged | Shown under |
/// |---|---|
/// | rows | Scalars, grouped by what stands before the `/` of a name |
/// | histograms | Histograms and Distributions |
/// | images | Images |
/// | texts, in Markdown, and the run's settings as `config` | Text |
/// | hyper-parameters, with the last values of the run | HParams |
///
/// Values are written as 32-bit floats, since TensorBoard reads no others as scalars: they keep
/// about 7 digits, become infinite beyond ±3.4e38 and 0 below ±1.4e-45. A logger for CSV or JSON
/// keeps every bit. NaN and infinities are written as they are. TensorBoard itself shows a sample of
/// at most 1000 values a name unless told otherwise (`--samples_per_plugin scalars=0`), and takes a
/// name for one kind alone: a histogram needs another name than a value.
///
/// Every row is on its way to the disk as soon as it is logged; a process that is killed leaves at
/// most its last record cut short, which readers ignore.
///
/// ```
/// use firebox::logger::{Histogram, Logger, Row, TensorBoardLogger};
/// # fn main() -> firebox::Result<()> {
/// # let dir = tempfile::tempdir().map_err(|e| firebox::Error::user(e.to_string()))?;
/// # let folder = dir.path().join("run");
/// let mut logger = TensorBoardLogger::new(&folder);
/// let values = [("train/loss".to_owned(), 0.5)].into_iter().collect();
/// logger.log(&Row { step: 1, epoch: 0, values: &values })?;
/// logger.log_media(1, "weights", &Histogram::of([0.5, -0.25, 0.0]).into())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TensorBoardLogger {
    folder: PathBuf,
    /// The name of the run's first event file; those behind it are its further starts'.
    name: String,
    part: u64,
    file: Option<LogFile>,
    /// The last one logged: the settings of a run that goes on belong there.
    step: u64,
    config: Option<String>,
    has_session: bool,
}

#[derive(Serialize, Deserialize)]
struct State {
    name: String,
    part: u64,
    length: u64,
    step: u64,
}

impl TensorBoardLogger {
    /// Writes to a new event file in this folder, which is created, too, if it is not there.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            name: String::new(),
            part: 0,
            file: None,
            step: 0,
            config: None,
            has_session: false,
        }
    }

    /// The event file, once something was logged.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(LogFile::path)
    }

    fn write(&mut self, step: u64, values: impl IntoIterator<Item = Message>) -> Result<()> {
        let event = event::summary(unix_time(), step, values);
        self.file()?.append(&record::frame(&event))
    }

    fn file(&mut self) -> Result<&mut LogFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.create()?,
        };
        Ok(self.file.insert(file))
    }

    fn create(&mut self) -> Result<LogFile> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        let (time, host, process) = (unix_time(), host_name(), std::process::id());
        let name = |n| format!("{PREFIX}{:010}.{host}.{process}.{n}", time as u64);
        let (n, file) = create_free(|n| folder.join(name(n)))?;
        (self.name, self.part) = (name(n), 0);
        begin(folder.join(&self.name), file, [event::version(time)])
    }

    /// Begins the part of another start, behind the parts that are there.
    fn go_on(&mut self, step: u64) -> Result<LogFile> {
        let next = self.parts()?.last().map_or(0, |(part, _)| *part) + 1;
        let name = |n| format!("{}.{:03}", self.name, next + n);
        let (n, file) = create_free(|n| self.folder.join(name(n)))?;
        let (path, time) = (self.folder.join(name(n)), unix_time());
        self.part = next + n;
        let start = event::start(time, step.saturating_add(1));
        // The first one that TensorBoard sees is the start of a run to it, and drops nothing.
        let events = [event::version(time), start.clone(), start];
        begin(path, file, events)
    }

    /// The run's event files, in order.
    fn parts(&self) -> Result<Vec<(u64, PathBuf)>> {
        let failed = |e| Error::io("read", &self.folder, e);
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut parts = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let file = entry.file_name();
            let part = match file.to_str().and_then(|f| f.strip_prefix(&self.name)) {
                Some("") => Some(0),
                Some(rest) => rest
                    .strip_prefix('.')
                    .and_then(|part| part.parse::<u32>().ok()),
                None => None,
            };
            parts.extend(part.map(|part| (u64::from(part), entry.path())));
        }
        parts.sort();
        Ok(parts)
    }
}

fn begin(path: PathBuf, file: File, events: impl IntoIterator<Item = Vec<u8>>) -> Result<LogFile> {
    let mut file = LogFile::new(path, file);
    for event in events {
        file.append(&record::frame(&event))?;
    }
    Ok(file)
}

/// What TensorBoard knows event files by.
const PREFIX: &str = "events.out.tfevents.";

impl Logger for TensorBoardLogger {
    fn log_config(&mut self, config: &TrainerConfig) -> Result<()> {
        let config = config.to_toml()?;
        if self.config.as_ref() == Some(&config) {
            return Ok(());
        }
        // Indented it is a block of code, which nothing within can end.
        let text: String = config.lines().map(|line| format!("    {line}\n")).collect();
        self.write(self.step, [event::text("config", &text)])?;
        self.config = Some(config);
        Ok(())
    }

    /// `{"a": {"b": 1}}` is shown as `a.b`, a list as its JSON text; what is null is left out.
    fn log_hyper_parameters(&mut self, values: &Value) -> Result<()> {
        if values.is_null() {
            return Ok(());
        }
        self.write(self.step, [event::session_start(values, unix_time())])?;
        self.has_session = true;
        Ok(())
    }

    fn log(&mut self, row: &Row<'_>) -> Result<()> {
        self.step = row.step;
        if row.values.is_empty() {
            return Ok(());
        }
        let values = row.values.iter();
        self.write(row.step, values.map(|(name, v)| event::scalar(name, v)))
    }

    fn log_media(&mut self, step: u64, name: &str, media: &Media) -> Result<()> {
        let value = match media {
            Media::Histogram(histogram) => event::histogram(name, histogram),
            Media::Image(image) => {
                event::image(name, image).map_err(|e| e.context(format!("`{name}`")))?
            }
            Media::Text(text) => event::text(name, text),
        };
        self.write(step, [value])
    }

    fn takes_media(&self) -> bool {
        true
    }

    fn save_state(&self) -> Value {
        self.file.as_ref().map_or(Value::Null, |file| {
            file.sync();
            json!(State {
                name: self.name.clone(),
                part: self.part,
                length: file.length(),
                step: self.step,
            })
        })
    }

    /// What was logged after the state was saved is dropped: the run logs it again, into an event
    /// file of its own beside the earlier ones. In the same file a TensorBoard that is running would
    /// look for the rest where the file ended before.
    ///
    /// # Errors
    /// A state that is not of this logger, or a file that is shorter than the checkpoint knows it.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        let refused = || Error::config("the state of TensorBoardLogger cannot be read");
        let state = State::deserialize(state).map_err(|e| refused().with_source(e))?;
        if !state.name.starts_with(PREFIX) || state.name.contains(['/', '\\']) {
            let problem = format!("`{}` is no event file's name", state.name);
            return Err(refused().with_source(problem));
        }
        (self.step, self.name) = (state.step, state.name);
        let mut parts = self.parts()?;
        parts.retain(|(part, _)| *part >= state.part);
        // In a run folder of its own there is nothing to go on with.
        if parts.is_empty() {
            return Ok(());
        }
        for (part, path) in parts {
            let length = if part == state.part { state.length } else { 0 };
            LogFile::open(path, length)?.cut()?;
        }
        self.file = Some(self.go_on(state.step)?);
        Ok(())
    }

    fn finish(&mut self, end: &RunEnd<'_>) -> Result<()> {
        if !std::mem::take(&mut self.has_session) {
            return Ok(());
        }
        let status = match end {
            RunEnd::Finished => Status::Success,
            RunEnd::Failed(_) => Status::Failure,
            RunEnd::Interrupted => Status::Unknown,
        };
        self.write(self.step, [event::session_end(status, unix_time())])
    }
}

fn unix_time() -> f64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0.0, |time| time.as_secs_f64())
}

/// For people who look at the file's name, with what every file system takes.
fn host_name() -> String {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let variable = |name| std::env::var(name).ok();
    let name = named.or_else(|| variable("HOSTNAME").or_else(|| variable("COMPUTERNAME")));
    let name = name.unwrap_or_default();
    let is_safe = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.trim().chars().filter(is_safe).collect();
    match name.is_empty() {
        true => "localhost".to_owned(),
        false => name,
    }
}
