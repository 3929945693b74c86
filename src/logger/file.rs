//! Files that loggers add to: none that is there is written over, and a run that goes on cuts its
//! own back to where the checkpoint was.

use crate::error::{Error, ErrorKind, Result};
use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file that grows by whole records, each on its way to the disk as soon as it is added.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LogFile {
    /// A file that has just been created.
    pub(super) fn new(path: PathBuf, file: File) -> Self {
        Self {
            path,
            file,
            length: 0,
        }
    }

    /// Opens a file of which the first `length` bytes count; [`cut`](Self::cut) drops the others.
    ///
    /// # Errors
    /// It cannot be opened, or is shorter.
    pub(super) fn open(path: PathBuf, length: u64) -> Result<Self> {
        let failed = |e| Error::io("open", &path, e);
        let file = File::options().read(true).append(true).open(&path);
        let file = file.map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found < length {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "`{}` has {found} bytes, but had {length} when the checkpoint was saved; move \
                     it away to go on in a new file",
                    path.display()
                ),
            ));
        }
        Ok(Self { path, file, length })
    }

    /// Drops what was added after the checkpoint.
    pub(super) fn cut(&self) -> Result<()> {
        let cut = self.file.set_len(self.length);
        cut.map_err(|e| Error::io("cut", &self.path, e))
    }

    /// Adds a record: all of it, or nothing.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(record) {
            // Behind half a record nothing could be read any more.
            let cut = self.cut();
            return Err(Error::io("write", &self.path, error).followed_by(cut.err()));
        }
        self.length += record.len() as u64;
        Ok(())
    }

    /// Has what was added outlast the machine's end, as the checkpoint does that counts on it.
    pub(super) fn sync(&self) {
        // Where that cannot be had, the checkpoint is not made worse by it.
        let _ = self.file.sync_data();
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

/// Creates the first file of `name(0)`, `name(1)` and so on that is not there yet, and says which.
pub(super) fn create_free(name: impl Fn(u64) -> PathBuf) -> Result<(u64, File)> {
    let mut version = 0;
    loop {
        let path = name(version);
        match File::options().append(true).create_new(true).open(&path) {
            Ok(file) => return Ok((version, file)),
            Err(e) if e.kind() == IoErrorKind::AlreadyExists => version += 1,
            Err(e) => return Err(Error::io("create", &path, e)),
        }
    }
}

/// The path for version 0, `name-v1.ext` beside it for version 1, and so on.
pub(super) fn versioned(path: &Path, version: u64) -> PathBuf {
    if version == 0 {
        return path.to_path_buf();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-v{version}.{}", extension.to_string_lossy()),
        None => format!("{stem}-v{version}"),
    };
    path.with_file_name(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn versions_are_beside_the_path() {
        let of = |path: &str, version| versioned(Path::new(path), version);
        assert_eq!(of("a/metrics.csv", 0), Path::new("a/metrics.csv"));
        assert_eq!(of("a/metrics.csv", 12), Path::new("a/metrics-v12.csv"));
        assert_eq!(of("metrics", 1), Path::new("metrics-v1"));
    }

    #[test]
    fn the_next_free_name_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let versions = [0, 1, 2].map(|_| create_free(|v| versioned(&path, v)).unwrap().0);
        assert_eq!(versions, [0, 1, 2]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = create_free(|_| "/nowhere/x.csv".into()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot create `/nowhere/x.csv`: "),
            "{text}"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error() {
        let full = Path::new("/dev/full");
        let file = File::options().append(true).open(full).unwrap();
        let mut file = LogFile::new(full.to_path_buf(), file);
        let text = file.append(b"row").unwrap_err().to_string();
        assert!(text.starts_with("cannot write `/dev/full`: "), "{text}");
        assert_eq!(file.length(), 0);
    }
}
