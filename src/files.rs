//! Files that are there completely or not at all.

use crate::error::{Error, Result};
use std::fs;
use std::path::Path;

/// Replaces a file at once: whoever reads it meanwhile finds the old one or the new one.
///
/// # Errors
/// What the file system refuses; the old file stays as it is.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!("{name}.tmp"));
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| Error::io("write", path, e))
}
