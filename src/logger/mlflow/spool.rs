//! What is to be sent, as a file of lines in the run's folder, and how far it has been sent.

use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use crate::files::write_whole;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SUFFIX: &str = ".spool.jsonl";

/// One line of a spool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// The first line: which run this is.
    Run(Begin),
    /// Parameters, and the file they come from, which is kept as an artifact.
    Settings {
        path: String,
        text: String,
        params: Vec<(String, String)>,
    },
    Row(Points),
    /// An artifact.
    Media {
        path: String,
        content: Content,
    },
    Tag(String, String),
    /// The run's state from now on, with the time of its end in ms.
    Status {
        status: String,
        end: Option<u64>,
    },
}

/// How a run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Begin {
    /// Ties the run in MLflow to this spool, as a tag.
    pub(super) id: String,
    pub(super) uri: String,
    pub(super) experiment: String,
    pub(super) run_name: Option<String>,
    pub(super) tags: Vec<(String, String)>,
    /// In ms since 1970.
    pub(super) time: u64,
}

/// Values that were logged at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Points {
    /// In ms since 1970.
    pub(super) time: u64,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) values: Vec<(String, Exact)>,
    /// Whether MLflow has them already, from before the run went back to a checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sent: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Text(String),
    Base64(String),
}

/// A spool of which this process is the only writer and sender: it is locked.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: Arc<File>,
    /// The end of the last whole line.
    length: u64,
}

impl Spool {
    /// A new spool, `mlflow.spool.jsonl` in this folder. One that is there is kept: the new one is
    /// then `mlflow-v1.spool.jsonl` and so on.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| Error::io("create the folder", folder, e))?;
        let mut version = 0;
        loop {
            let path = match version {
                0 => folder.join(format!("mlflow{SUFFIX}")),
                _ => folder.join(format!("mlflow-v{version}{SUFFIX}")),
            };
            let mut options = File::options();
            match options.read(true).append(true).create_new(true).open(&path) {
                Ok(file) => return Self::locked(path, file, Duration::ZERO),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => version += 1,
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
    }

    /// A spool that is there. `patience` is how long another sender may take to end.
    pub(super) fn open(path: &Path, patience: Duration) -> Result<Self> {
        let file = File::options().read(true).append(true).open(path);
        let file = file.map_err(|e| Error::io("open", path, e))?;
        Self::locked(path.to_owned(), file, patience)
    }

    fn locked(path: PathBuf, file: File, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            match file.try_lock() {
                // Some file systems have no locks.
                Ok(()) | Err(TryLockError::Error(_)) => break,
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        ErrorKind::Io,
                        format!(
                            "`{}` is in use by a run that is going on, or by another `firebox \
                             mlflow-send`; wait for its end",
                            path.display()
                        ),
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        let length = end_of_lines(&file).map_err(|e| Error::io("read", &path, e))?;
        Ok(Self {
            path,
            file: Arc::new(file),
            length,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// As long as this is held, the spool stays locked.
    pub(super) fn lock(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Adds a line; it is with the operating system when this returns.
    pub(super) fn append(&mut self, entry: &Entry) -> Result<()> {
        let failed = |e| Error::io("write", &self.path, e);
        let mut line = serde_json::to_vec(entry).map_err(|e| failed(e.into()))?;
        line.push(b'\n');
        if let Err(error) = (&*self.file).write_all(&line) {
            // Half a line would spoil the next one.
            let cut = self.file.set_len(self.length).map_err(failed).err();
            return Err(failed(error).followed_by(cut));
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Drops what follows this point, and a last line that was not written to its end.
    pub(super) fn cut(&mut self, length: u64) -> Result<()> {
        self.length = self.length.min(length);
        let cut = self.file.set_len(self.length);
        cut.map_err(|e| Error::io("shorten", &self.path, e))
    }
}

/// The lines of a spool from one offset to another, each with the offset of its end.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    at: u64,
    to: u64,
}

impl Lines {
    pub(super) fn read(path: &Path, from: u64, to: u64) -> Result<Self> {
        let opened = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            Ok(BufReader::new(file))
        });
        Ok(Self {
            reader: opened.map_err(|e| Error::io("read", path, e))?,
            path: path.to_owned(),
            at: from,
            to,
        })
    }

    fn entry(&mut self) -> Result<(Entry, u64)> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line);
        let read = read.map_err(|e| Error::io("read", &self.path, e))?;
        let from = self.at;
        self.at += read as u64;
        let entry = serde_json::from_slice(&line).map_err(|e| {
            let place = format!("`{}` is damaged at byte {from}", self.path.display());
            Error::new(ErrorKind::Corrupt, place).with_source(e)
        })?;
        Ok((entry, self.at))
    }
}

impl Iterator for Lines {
    type Item = Result<(Entry, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.to).then(|| self.entry())
    }
}

/// How far a spool has been sent: the content of `mlflow.sent`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The server has confirmed everything before this offset,
    pub(super) confirmed: u64,
    /// and nothing after this one has ever been sent.
    pub(super) tried: u64,
    pub(super) run: Option<RunInfo>,
}

/// A run as MLflow knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunInfo {
    pub(super) run_id: String,
    /// Where its artifacts are.
    pub(super) artifact_uri: String,
}

impl Position {
    /// That of this spool; within its length, as both may have lost their ends with the machine.
    pub(super) fn of(spool: &Spool) -> Result<Self> {
        let path = beside(&spool.path, "sent");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let mut position: Self = serde_json::from_slice(&bytes).map_err(|e| {
            let message = format!(
                "`{}` is damaged; remove it, and all of `{}` is sent again, of which MLflow takes \
                 what it does not have yet",
                path.display(),
                spool.path.display()
            );
            Error::new(ErrorKind::Corrupt, message).with_source(e)
        })?;
        position.confirmed = position.confirmed.min(spool.length);
        position.tried = position.tried.clamp(position.confirmed, spool.length);
        Ok(position)
    }

    pub(super) fn save(&self, spool: &Path) -> Result<()> {
        let path = beside(spool, "sent");
        let bytes = serde_json::to_vec(self).map_err(|e| Error::io("write", &path, e.into()))?;
        write_whole(&path, &bytes)
    }
}

/// The spools of a folder, the first one first.
pub(super) fn spools(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io("read", folder, e);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("mlflow") && name.ends_with(SUFFIX) {
            found.push(path);
        }
    }
    found.sort_by_cached_key(|path| (path.as_os_str().len(), path.clone()));
    Ok(found)
}

/// The file with another ending that belongs to a spool: `mlflow.sent`.
pub(super) fn beside(spool: &Path, ending: &str) -> PathBuf {
    let name = spool.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(SUFFIX).unwrap_or(&name);
    spool.with_file_name(format!("{stem}.{ending}"))
}

/// The offset after the last line end: what follows was not written to its end.
fn end_of_lines(file: &File) -> io::Result<u64> {
    let mut file = file;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(1 << 16);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
