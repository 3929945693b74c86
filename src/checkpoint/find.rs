//! Which checkpoints there are.

use super::MODEL;
use super::folder::{self, Manifest};
use crate::error::{Error, ErrorKind, Result};
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A checkpoint in a folder of checkpoints.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// What it says of itself, or why that cannot be read.
    pub manifest: Result<Manifest>,
    /// When it was written.
    pub(crate) written: SystemTime,
}

impl Found {
    fn step(&self) -> u64 {
        // What cannot be read comes first, so that it is seen.
        self.manifest.as_ref().map_or(u64::MAX, |m| m.step)
    }
}

/// The checkpoints in a folder such as `runs/version_0/checkpoints`, the newest first: that of the
/// latest step, and of those the one written last. Their files are not read.
///
/// # Errors
/// The folder cannot be read. One that does not exist has none.
pub fn list(folder: impl AsRef<Path>) -> Result<Vec<Found>> {
    let folder = folder.as_ref();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(Error::io("read", folder, e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("read", folder, e))?;
        let name = entry.file_name();
        // What `last` is a link to, or a copy of, is found by itself.
        let is_hidden = name.to_string_lossy().starts_with('.') || name == super::LAST;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_hidden {
            found.extend(look(entry.path()));
        }
    }
    found.sort_by_key(|found| std::cmp::Reverse((found.step(), found.written)));
    Ok(found)
}

/// A folder, if it is a checkpoint or the remains of one.
fn look(path: PathBuf) -> Option<Found> {
    let manifest = folder::read_manifest(&path);
    let is_checkpoint = path.join(folder::MANIFEST).exists() || path.join(MODEL).exists();
    let gone = |e: &Error| e.kind() == ErrorKind::Io && !path.exists();
    if !is_checkpoint || manifest.as_ref().is_err_and(gone) {
        return None;
    }
    let written = std::fs::metadata(path.join(folder::MANIFEST)).and_then(|m| m.modified());
    let written = written.or_else(|_| std::fs::metadata(&path)?.modified());
    Some(Found {
        written: written.unwrap_or(SystemTime::UNIX_EPOCH),
        manifest,
        path,
    })
}
