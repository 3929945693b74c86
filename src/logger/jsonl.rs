//! Values as lines of JSON, which every language reads.

use super::file::{LogFile, create_free, versioned};
use super::{Logger, Row};
use crate::config::TrainerConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use crate::metric::Metrics;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes each row to a file as one line, a JSON object:
///
/// ```json
/// {"step":50,"epoch":0,"time":1733000000.125,"values":{"train/loss":0.25,"lr":0.001}}
/// ```
///
/// `time` is in seconds since 1970 (UTC), to the millisecond. Values are written with every bit of
/// them. JSON has no NaN and no infinities: they are the texts `"NaN"`, `"inf"` and `"-inf"`, which
/// Python's `float` and Rust's `parse` understand. Every row is on its way to the disk as soon as it
/// is logged.
///
/// ```
/// use firebox::logger::{JsonlLogger, Logger, Row};
/// # fn main() -> firebox::Result<()> {
/// # let dir = tempfile::tempdir().map_err(|e| firebox::Error::user(e.to_string()))?;
/// # let path = dir.path().join("metrics.jsonl");
/// let mut logger = JsonlLogger::new(&path);
/// let values = [("loss".to_owned(), f64::NAN)].into_iter().collect();
/// logger.log(&Row { step: 1, epoch: 0, values: &values })?;
/// # let text = std::fs::read_to_string(&path).map_err(|e| firebox::Error::user(e.to_string()))?;
/// assert!(text.ends_with("\"values\":{\"loss\":\"NaN\"}}\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JsonlLogger {
    /// As it was given; `version` says which file beside it is the run's.
    base: PathBuf,
    version: u64,
    path: PathBuf,
    file: Option<LogFile>,
    rows: u64,
}

#[derive(Serialize, Deserialize)]
struct State {
    version: u64,
    length: u64,
    rows: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    epoch: u64,
    time: f64,
    values: Values<'a>,
}

struct Values<'a>(&'a Metrics);

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, Exact(value))))
    }
}

impl JsonlLogger {
    /// Writes to a new file at this path, which is created with the settings or the first row. A
    /// file that is there is kept: the run's rows then go to `name-v1.jsonl`, `name-v2.jsonl` and
    /// so on.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            base: path.clone(),
            version: 0,
            path,
            file: None,
            rows: 0,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&mut self) -> Result<&mut LogFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let (version, file) = create_free(|version| versioned(&self.base, version))?;
                (self.version, self.path) = (version, versioned(&self.base, version));
                LogFile::new(self.path.clone(), file)
            }
        };
        Ok(self.file.insert(file))
    }
}

impl Logger for JsonlLogger {
    /// Takes the file's name: a checkpoint may come before the first row, and has to know where
    /// that goes.
    fn log_config(&mut self, _config: &TrainerConfig) -> Result<()> {
        self.file().map(drop)
    }

    fn log(&mut self, row: &Row<'_>) -> Result<()> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = Line {
            step: row.step,
            epoch: row.epoch,
            time: time.map_or(0.0, |time| time.as_millis() as f64 / 1000.0),
            values: Values(row.values),
        };
        let mut line = serde_json::to_vec(&line)
            .map_err(|e| Error::data("a row cannot be written as JSON").with_source(e))?;
        line.push(b'\n');
        self.file()?.append(&line)?;
        self.rows += 1;
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        self.file.as_ref().map_or_else(Default::default, |file| {
            file.sync();
            json!(State {
                version: self.version,
                length: file.length(),
                rows: self.rows,
            })
        })
    }

    /// Rows that were logged after the state was saved are dropped: the run logs them again.
    ///
    /// # Errors
    /// A state that is not of this logger, or a file that is not as the checkpoint knows it: shorter,
    /// or with another number of rows up to there.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let State {
            version,
            length,
            rows,
        } = State::deserialize(state)
            .map_err(|e| Error::config("the state of JsonlLogger cannot be read").with_source(e))?;
        let path = versioned(&self.base, version);
        // In a run folder of its own there is nothing to go on with.
        if !path.exists() {
            return Ok(());
        }
        let file = LogFile::open(path, length)?;
        check_rows(&file, rows)?;
        file.cut()?;
        (self.version, self.path) = (version, file.path().to_path_buf());
        (self.file, self.rows) = (Some(file), rows);
        Ok(())
    }
}

/// Whether the part that counts has so many rows, the last one whole.
fn check_rows(file: &LogFile, rows: u64) -> Result<()> {
    let failed = |e| Error::io("read", file.path(), e);
    let part = std::fs::File::open(file.path()).map_err(failed)?;
    let mut part = BufReader::new(part.take(file.length()));
    let (mut found, mut is_whole) = (0, true);
    let mut line = Vec::new();
    while part.read_until(b'\n', &mut line).map_err(failed)? > 0 {
        found += 1;
        is_whole = line.ends_with(b"\n");
        line.clear();
    }
    if found == rows && is_whole {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "`{}` was changed after the checkpoint was saved: its first {} bytes are {found} rows{}, \
             not {rows}; move it away to go on in a new file",
            file.path().display(),
            file.length(),
            if is_whole {
                ""
            } else {
                ", the last one cut short"
            },
        ),
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::fs;

    fn log(logger: &mut JsonlLogger, step: u64, values: &[(&str, f64)]) {
        let values: Metrics = values.iter().map(|(n, v)| ((*n).into(), *v)).collect();
        let row = Row {
            step,
            epoch: step / 10,
            values: &values,
        };
        logger.log(&row).unwrap();
    }

    fn rows(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        let lines = text.lines();
        lines.map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    fn steps(path: &Path) -> Vec<u64> {
        let rows = rows(path);
        rows.iter().map(|r| r["step"].as_u64().unwrap()).collect()
    }

    #[test]
    fn every_value_is_in_its_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut logger = JsonlLogger::new(&path);
        assert!(!path.exists());
        let values = [
            ("größe/\"损失\"\n", 0.1 + 0.2),
            ("nan", f64::NAN),
            ("up", f64::INFINITY),
            ("down", f64::NEG_INFINITY),
            ("tiny", 5e-324),
            ("zero", -0.0),
        ];
        log(&mut logger, 12, &values);
        // On disk while the logger is still open.
        let text = fs::read_to_string(&path).unwrap();
        let (head, tail) = text.split_once(",\"time\":").unwrap();
        assert_eq!(head, "{\"step\":12,\"epoch\":1");
        let (time, tail) = tail.split_once(',').unwrap();
        let millis = time.parse::<f64>().unwrap() * 1000.0;
        assert_eq!(millis.round() / 1000.0, time.parse::<f64>().unwrap());
        assert!(time.parse::<f64>().unwrap() > 1.7e9);
        assert_eq!(
            tail,
            "\"values\":{\"größe/\\\"损失\\\"\\n\":0.30000000000000004,\"nan\":\"NaN\",\
             \"up\":\"inf\",\"down\":\"-inf\",\"tiny\":5e-324,\"zero\":-0.0}}\n"
        );
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "mine").unwrap();
        let mut logger = JsonlLogger::new(&path);
        log(&mut logger, 1, &[("a", 0.5)]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(logger.path(), dir.path().join("metrics-v1.jsonl"));
        // A run that goes on finds its own file and leaves the other one alone.
        let state = logger.save_state();
        log(&mut logger, 2, &[("a", 0.5)]);
        let mut logger = JsonlLogger::new(&path);
        logger.load_state(&state).unwrap();
        log(&mut logger, 3, &[("a", 0.5)]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(logger.path(), dir.path().join("metrics-v1.jsonl"));
        assert_eq!(steps(logger.path()), [1, 3]);
    }

    #[test]
    fn no_row_comes_twice_and_none_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut logger = JsonlLogger::new(&path);
        let mut states = Vec::new();
        logger.log_config(&TrainerConfig::new()).unwrap();
        for step in 0..1000 {
            states.push(logger.save_state());
            log(&mut logger, step, &[("a", step as f64)]);
        }
        // Killed while it wrote a row.
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, b"{\"step\":10").unwrap();
        // From a late checkpoint, then from an earlier one, then from before the first row.
        for from in [700, 300, 0] {
            let mut logger = JsonlLogger::new(&path);
            logger.load_state(&states[from]).unwrap();
            logger.log_config(&TrainerConfig::new()).unwrap();
            assert_eq!(logger.save_state(), states[from]);
            for step in from as u64..1000 {
                log(&mut logger, step, &[("a", step as f64)]);
            }
            assert_eq!(steps(&path), Vec::from_iter(0..1000));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_changed_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut logger = JsonlLogger::new(&path);
        log(&mut logger, 1, &[("a", 0.5)]);
        log(&mut logger, 2, &[("a", 0.5)]);
        let state = logger.save_state();
        let length = state["length"].as_u64().unwrap() as usize;
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            let error = JsonlLogger::new(&path).load_state(&state).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            error.to_string().replace(&path.display().to_string(), "F")
        };
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            refused(&text[..length - 1]),
            format!(
                "`F` has {} bytes, but had {length} when the checkpoint was saved; move it away to \
                 go on in a new file",
                length - 1
            )
        );
        assert_eq!(
            refused(&text.replacen('\n', " ", 1)),
            format!(
                "`F` was changed after the checkpoint was saved: its first {length} bytes are 1 \
                 rows, not 2; move it away to go on in a new file"
            )
        );
        assert!(refused(&format!(" {text}")).contains("2 rows, the last one cut short, not 2"));
        // As the message says: without it the run goes on in a new file.
        fs::remove_file(&path).unwrap();
        let mut logger = JsonlLogger::new(&path);
        logger.load_state(&state).unwrap();
        log(&mut logger, 3, &[("a", 0.5)]);
        assert_eq!(steps(&path), [3]);
    }

    #[test]
    fn a_state_of_something_else_is_refused() {
        let mut logger = JsonlLogger::new("/nowhere/metrics.jsonl");
        assert_eq!(logger.save_state(), Value::Null);
        let error = logger.load_state(&json!({"rows": -1})).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("the state of JsonlLogger cannot be read: "),
            "{text}"
        );
    }
}
