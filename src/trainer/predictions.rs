//! Predictions in files.

use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::loops::evaluate::Prediction;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Writes predictions as they are made, a line of JSON for each sample, so that nothing is kept in
/// memory: each rank into a file of its own, `predictions-rank0.jsonl`. [`gather`](Self::gather) makes
/// one file of them, in the order of the data set.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use firebox::testing::{Line, Cpu, line_data};
/// # use firebox::prelude::*;
/// use firebox::trainer::PredictionWriter;
///
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let folder = dir.path().to_owned();
/// # let (cpu, config) = (Default::default(), TrainerConfig::new());
/// # let model = Line::<Cpu>::new(&cpu);
/// # let mut trainer = Trainer::new(config, cpu).with_devices([cpu, cpu]);
/// let writer = PredictionWriter::new(&folder)?;
/// // A batch's predictions, one for each sample: here the first column of a tensor.
/// let rows = |output: Tensor<_, 2>| Ok(output.into_data().iter::<f32>().collect::<Vec<_>>());
/// trainer.predict_to(&model, &line_data().batch_size(8), writer.rows(rows))?;
/// let all = writer.gather()?; // {"sample":0,"prediction":...}
/// # let text = std::fs::read_to_string(all).unwrap();
/// # assert_eq!(text.lines().count(), 32);
/// # assert!(text.lines().nth(9).unwrap().starts_with("{\"sample\":9,"), "{text}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PredictionWriter {
    folder: PathBuf,
    files: Arc<Mutex<BTreeMap<usize, BufWriter<File>>>>,
}

impl PredictionWriter {
    /// Writes into this folder, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or has predictions already: they are not overwritten.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(|e| Error::io("create", &folder, e))?;
        if let Some((_, file)) = written(&folder)?.first() {
            return Err(Error::config(format!(
                "`{}` is there already; use another folder, or remove it",
                file.display()
            )));
        }
        Ok(Self {
            folder,
            files: Arc::default(),
        })
    }

    /// What [`predict_to`](crate::Trainer::predict_to) takes. `rows` makes a batch's output into one
    /// value for each of its samples.
    pub fn rows<O, R: Serialize>(
        &self,
        rows: impl Fn(O) -> Result<Vec<R>> + Send + Sync + 'static,
    ) -> impl Fn(Prediction<O>) -> Result<()> + Send + Sync + 'static
    where
        O: 'static,
    {
        let writer = self.clone();
        move |prediction: Prediction<O>| {
            let Prediction {
                batch,
                samples,
                rank,
                output,
            } = prediction;
            let rows = rows(output)?;
            // A stream's samples have no number but their place.
            if !samples.is_empty() && rows.len() != samples.len() {
                return Err(Error::user(format!(
                    "batch {batch} has {} samples and {} rows of predictions; give one for each",
                    samples.len(),
                    rows.len()
                )));
            }
            let lines = rows.iter().enumerate().map(|(place, row)| {
                let sample = samples.get(place);
                match sample {
                    Some(sample) => json!({ "sample": sample, "prediction": row }),
                    None => json!({ "batch": batch, "place": place, "prediction": row }),
                }
            });
            writer.write(rank, lines)
        }
    }

    fn write(&self, rank: usize, lines: impl Iterator<Item = Value>) -> Result<()> {
        let path = self.folder.join(format!("{STEM}{rank}.jsonl"));
        let failed = |e| Error::io("write", &path, e);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match files.entry(rank) {
            std::collections::btree_map::Entry::Occupied(file) => file.into_mut(),
            std::collections::btree_map::Entry::Vacant(empty) => {
                empty.insert(BufWriter::new(File::create_new(&path).map_err(failed)?))
            }
        };
        for line in lines {
            writeln!(file, "{line}").map_err(failed)?;
        }
        // A batch is there as soon as it is predicted.
        file.flush().map_err(failed)
    }

    /// Makes `predictions.jsonl` of the files of all ranks that are in the folder, in the order of the
    /// data set, and gives its path. With several processes, call it when all have predicted, in one
    /// that sees the files of all.
    ///
    /// # Errors
    /// A file that cannot be read or written, or a line that is cut short.
    pub fn gather(&self) -> Result<PathBuf> {
        let mut all = Vec::new();
        for (_, path) in written(&self.folder)? {
            let file = File::open(&path).map_err(|e| Error::io("read", &path, e))?;
            for line in BufReader::new(file).lines() {
                let line = line.map_err(|e| Error::io("read", &path, e))?;
                let row: Value =
                    serde_json::from_str(&line).map_err(|e| Error::io("read", &path, e.into()))?;
                let number = |key: &str| row.get(key).and_then(Value::as_u64);
                let order = (number("sample"), number("batch"), number("place"));
                all.push((order, line));
            }
        }
        all.sort_by_key(|(order, _)| *order);
        let path = self.folder.join("predictions.jsonl");
        let text: String = all.into_iter().map(|(_, line)| line + "\n").collect();
        write_whole(&path, text.as_bytes())?;
        Ok(path)
    }
}

const STEM: &str = "predictions-rank";

/// The ranks' files in a folder, in the order of ranks.
fn written(folder: &Path) -> Result<Vec<(usize, PathBuf)>> {
    let failed = |e| Error::io("read", folder, e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let rank = name.and_then(|name| name.strip_prefix(STEM)?.strip_suffix(".jsonl"));
        if let Some(rank) = rank.and_then(|rank| rank.parse().ok()) {
            files.push((rank, path));
        }
    }
    files.sort();
    Ok(files)
}
