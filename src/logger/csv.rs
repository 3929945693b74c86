//! Values as a table that every tool reads.

use super::file::{create_free, versioned};
use super::{Logger, Row};
use crate::config::TrainerConfig;
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Writes rows to a CSV file: `step`, `epoch` and a column for each name, empty where a row has no
/// such value. A name that comes up later gets a column of its own; every row is on disk as soon
/// as it is logged.
#[derive(Debug)]
pub struct CsvLogger {
    /// As it was given; `version` says which file beside it is the run's.
    base: PathBuf,
    version: u64,
    path: PathBuf,
    names: Vec<String>,
    writer: Option<csv::Writer<File>>,
    rows: u64,
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(default)]
    version: u64,
    rows: u64,
    names: Vec<String>,
}

impl CsvLogger {
    /// Writes to a new file at this path, which is created with the settings or the first row. A
    /// file that is there is kept: the run's rows then go to `name-v1.csv`, `name-v2.csv` and so on.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            base: path.clone(),
            version: 0,
            path,
            names: Vec::new(),
            writer: None,
            rows: 0,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that every name has a column.
    fn add_columns(&mut self, row: &Row<'_>) -> Result<()> {
        let known = self.names.len();
        for (name, _) in row.values.iter() {
            if !self.names.iter().any(|n| n == name) {
                self.names.push(name.to_owned());
            }
        }
        if self.writer.is_none() {
            return self.create();
        }
        match self.names.len() > known {
            true => self.rewrite(self.rows),
            false => Ok(()),
        }
    }

    fn create(&mut self) -> Result<()> {
        let (version, file) = create_free(|version| versioned(&self.base, version))?;
        (self.version, self.path) = (version, versioned(&self.base, version));
        let mut writer = csv::Writer::from_writer(file);
        let header = self.header(self.names.len());
        writer.write_record(header).map_err(|e| self.error(e))?;
        self.writer = Some(writer);
        Ok(())
    }

    /// Writes the file anew, with the first rows and all columns, then replaces it.
    fn rewrite(&mut self, rows: u64) -> Result<()> {
        let found = self.replace(rows).map_err(|e| self.error(e))?;
        match found < rows {
            true => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "`{}` has {found} rows, and is to have {rows}; move it away to go on in a new file",
                    self.path.display()
                ),
            )),
            false => Ok(()),
        }
    }

    /// The number of rows there were, if fewer than these; then all stays as it is.
    fn replace(&mut self, rows: u64) -> csv::Result<u64> {
        if let Some(mut writer) = self.writer.take() {
            writer.flush()?;
        }
        let wide = self.path.with_extension("csv.tmp");
        let mut writer = csv::Writer::from_path(&wide)?;
        writer.write_record(self.header(self.names.len()))?;
        let columns = self.names.len() + 2;
        let mut written = 0;
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_path(&self.path)?;
        for record in reader.records() {
            if written == rows {
                break;
            }
            let record = record?;
            written += 1;
            let fields = record.iter().chain(std::iter::repeat(""));
            writer.write_record(fields.take(columns))?;
        }
        writer.flush()?;
        drop(writer);
        if written < rows {
            std::fs::remove_file(&wide)?;
            return Ok(written);
        }
        std::fs::rename(&wide, &self.path)?;
        let file = File::options().append(true).open(&self.path)?;
        self.writer = Some(csv::Writer::from_writer(file));
        Ok(rows)
    }

    fn header(&self, names: usize) -> impl Iterator<Item = &str> {
        let names = self.names.iter().take(names).map(String::as_str);
        ["step", "epoch"].into_iter().chain(names)
    }

    fn error(&self, source: csv::Error) -> Error {
        let message = format!("cannot write `{}`", self.path.display());
        Error::new(ErrorKind::Io, message).with_source(source)
    }
}

impl Logger for CsvLogger {
    /// Takes the file's name: a checkpoint may come before the first row, and has to know where that
    /// goes.
    fn log_config(&mut self, _config: &TrainerConfig) -> Result<()> {
        match self.writer {
            Some(_) => Ok(()),
            None => self.create(),
        }
    }

    fn log(&mut self, row: &Row<'_>) -> Result<()> {
        self.add_columns(row)?;
        let values: BTreeMap<&str, f64> = row.values.iter().collect();
        let cell = |name: &String| values.get(name.as_str()).map(f64::to_string);
        let cells = self.names.iter().map(|name| cell(name).unwrap_or_default());
        let counters = [row.step.to_string(), row.epoch.to_string()];
        let record: Vec<String> = counters.into_iter().chain(cells).collect();
        if let Some(writer) = &mut self.writer {
            let written = writer.write_record(&record);
            let flushed = written.and_then(|()| Ok(writer.flush()?));
            flushed.map_err(|e| self.error(e))?;
            self.rows += 1;
        }
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        let Some(writer) = &self.writer else {
            return serde_json::Value::Null;
        };
        // The checkpoint that counts these rows outlasts the machine's end; where that cannot be had
        // for them, it is not made worse by it.
        let _ = writer.get_ref().sync_data();
        json!(State {
            version: self.version,
            rows: self.rows,
            names: self.names.clone(),
        })
    }

    /// Rows that were logged after the state was saved are dropped: the run logs them again.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let State {
            version,
            rows,
            names,
        } = State::deserialize(state)
            .map_err(|e| Error::config("the state of CsvLogger cannot be read").with_source(e))?;
        let path = versioned(&self.base, version);
        // In a run folder of its own there is nothing to go on with.
        if !path.exists() {
            return Ok(());
        }
        (self.version, self.path) = (version, path);
        (self.rows, self.names) = (rows, names);
        self.rewrite(self.rows)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metric::Metrics;

    fn log(logger: &mut CsvLogger, step: u64, values: &[(&str, f64)]) {
        let values: Metrics = values.iter().map(|(n, v)| ((*n).into(), *v)).collect();
        let row = Row {
            step,
            epoch: 0,
            values: &values,
        };
        logger.log(&row).unwrap();
    }

    #[test]
    fn a_name_that_comes_later_gets_a_column() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut logger = CsvLogger::new(&path);
        log(&mut logger, 1, &[("a", 0.5)]);
        log(&mut logger, 2, &[("b", 1.0), ("a", 0.25)]);
        log(&mut logger, 3, &[("b", f64::NAN)]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "step,epoch,a,b\n1,0,0.5,\n2,0,0.25,1\n3,0,,NaN\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        std::fs::write(&path, "mine").unwrap();
        let mut logger = CsvLogger::new(&path);
        log(&mut logger, 1, &[("a", 0.5)]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(logger.path(), dir.path().join("metrics-v1.csv"));

        // Nor is it touched when the run goes on.
        let state = logger.save_state();
        log(&mut logger, 2, &[("a", 0.25)]);
        let mut again = CsvLogger::new(&path);
        again.load_state(&state).unwrap();
        log(&mut again, 2, &[("a", 0.125)]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        let text = std::fs::read_to_string(again.path()).unwrap();
        assert_eq!(text, "step,epoch,a\n1,0,0.5\n2,0,0.125\n");
    }

    #[test]
    fn a_file_with_fewer_rows_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut logger = CsvLogger::new(&path);
        log(&mut logger, 1, &[("a", 0.5)]);
        log(&mut logger, 2, &[("a", 0.5)]);
        let state = logger.save_state();
        std::fs::write(&path, "step,epoch,a\n1,0,0.5\n").unwrap();
        let error = CsvLogger::new(&path).load_state(&state).unwrap_err();
        assert!(
            error.to_string().contains("has 1 rows, and is to have 2"),
            "{error}"
        );
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "step,epoch,a\n1,0,0.5\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_checkpoint_before_the_first_row_knows_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut logger = CsvLogger::new(&path);
        logger.log_config(&TrainerConfig::new()).unwrap();
        let state = logger.save_state();
        log(&mut logger, 1, &[("a", 0.5)]);
        let mut again = CsvLogger::new(&path);
        again.load_state(&state).unwrap();
        log(&mut again, 1, &[("b", 0.25)]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "step,epoch,b\n1,0,0.25\n");
    }
}
