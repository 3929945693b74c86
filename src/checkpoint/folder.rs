//! A checkpoint's folder: files that are there completely, or no checkpoint at all.
//!
//! The files are written into a hidden folder, `.NAME.tmp`, and flushed to the disk one by one. The
//! manifest comes last: it holds every file's length and checksum, so a folder whose manifest is
//! whole is whole. Then the folder is renamed. Until then the manifest is locked, so that another
//! process can tell a folder that is being written from one that a killed process left.

use crate::error::{Error, ErrorKind, Result};
use crate::output::say;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind as IoErrorKind;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

pub(super) const MANIFEST: &str = "manifest.json";

/// The layout of a folder that this version writes, and the newest it reads.
pub(super) const FORMAT: u64 = 1;

/// No manifest is longer: it lists a handful of files.
const MAX_MANIFEST: u64 = 1 << 20;

/// What a checkpoint's `manifest.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The version of the folder's layout.
    pub format: u64,
    /// The firebox that wrote it.
    pub firebox: String,
    /// The Burn it was built with.
    pub burn: String,
    /// Epochs that had been finished.
    pub epoch: u64,
    /// Optimizer steps that had been taken.
    pub step: u64,
    /// Each other file of the folder.
    pub files: BTreeMap<String, FileEntry>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileEntry {
    /// Its length.
    pub bytes: u64,
    /// Its checksum, XXH3 of 128 bits in hexadecimal, as `xxh128sum` prints it.
    pub xxh3: String,
}

impl FileEntry {
    fn of(content: &[u8]) -> Self {
        Self {
            bytes: content.len() as u64,
            xxh3: format!("{:032x}", xxh3_128(content)),
        }
    }
}

/// The files of a checkpoint in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    pub(super) epoch: u64,
    pub(super) step: u64,
    pub(super) contents: BTreeMap<String, Vec<u8>>,
}

impl Files {
    fn manifest(&self) -> Manifest {
        let files = self.contents.iter();
        Manifest {
            format: FORMAT,
            firebox: env!("CARGO_PKG_VERSION").into(),
            burn: super::BURN_VERSION.into(),
            epoch: self.epoch,
            step: self.step,
            files: files
                .map(|(name, bytes)| (name.clone(), FileEntry::of(bytes)))
                .collect(),
        }
    }

    /// Writes a new checkpoint.
    ///
    /// # Errors
    /// Whatever the file system refuses, or a checkpoint that is there already; then nothing has
    /// changed.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        if path.symlink_metadata().is_ok() {
            let there = io::Error::from(IoErrorKind::AlreadyExists);
            return Err(Error::io("create", path, there));
        }
        let parent = parent_of(path);
        create_folders(parent)?;
        let temporary = temporary_of(path);
        if temporary.symlink_metadata().is_ok() && !remove_leftover(&temporary)? {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "`{}` is in use; another process writes it",
                    temporary.display()
                ),
            ));
        }
        let written = self.write_into(&temporary, path);
        if written.is_err() {
            // The error that is returned is the one that counts.
            let _ = remove_own(&temporary);
        }
        written
    }

    fn write_into(&self, temporary: &Path, path: &Path) -> Result<()> {
        let manifest = temporary.join(MANIFEST);
        let failed = |e| Error::io("write", &manifest, e);
        let mut lock = begin(temporary).map_err(failed)?;
        for (name, content) in &self.contents {
            let file = temporary.join(name);
            write_synced(&file, content).map_err(|e| Error::io("write", &file, e))?;
        }
        let text = serde_json::to_vec_pretty(&self.manifest())
            .map_err(|e| Error::new(ErrorKind::Io, "cannot encode the manifest").with_source(e))?;
        let written = lock.write_all(&text).and_then(|()| lock.sync_all());
        written.map_err(failed)?;
        sync_folder(temporary).map_err(|e| Error::io("write", temporary, e))?;
        // Windows does not rename a folder with an open file in it.
        let lock = if cfg!(windows) { None } else { Some(lock) };
        fs::rename(temporary, path).map_err(|e| Error::io("create", path, e))?;
        drop(lock);
        let parent = parent_of(path);
        sync_folder(parent).map_err(|e| Error::io("write", parent, e))
    }

    /// Reads a checkpoint and checks every file against the manifest.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] names the file at fault.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let manifest = read_manifest(path)?;
        Self::check(path, &manifest, |name, bytes| {
            let file = path.join(name);
            let length = match fs::metadata(&file) {
                // A device or a pipe has no end.
                Ok(found) if !found.is_file() => {
                    return Err(corrupt(path, format!("`{name}` is no file")));
                }
                Ok(found) => found.len(),
                Err(e) if e.kind() == IoErrorKind::NotFound => {
                    return Err(corrupt(path, format!("`{name}` is missing")));
                }
                Err(e) => return Err(Error::io("read", &file, e)),
            };
            // Checked before memory is taken for it.
            if length != bytes {
                let found = format!("`{name}` has {length} bytes, not {bytes}");
                return Err(corrupt(path, found));
            }
            fs::read(&file).map_err(|e| Error::io("read", &file, e))
        })
    }

    /// The files that `read` gives, if they are what the manifest says.
    pub(super) fn check(
        path: &Path,
        manifest: &Manifest,
        read: impl Fn(&str, u64) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let mut contents = BTreeMap::new();
        for (name, entry) in &manifest.files {
            if !is_plain_name(name) {
                let what = format!("`{MANIFEST}` lists `{name}`, which is no file's name");
                return Err(corrupt(path, what));
            }
            let content = read(name, entry.bytes)?;
            if FileEntry::of(&content) != *entry {
                let what = format!("`{name}` is not what was written: its checksum differs");
                return Err(corrupt(path, what));
            }
            contents.insert(name.clone(), content);
        }
        Ok(Self {
            epoch: manifest.epoch,
            step: manifest.step,
            contents,
        })
    }
}

/// Makes a hidden folder with a locked, empty manifest.
fn begin(temporary: &Path) -> io::Result<File> {
    let attempt = || {
        fs::create_dir(temporary)?;
        let manifest = File::create_new(temporary.join(MANIFEST))?;
        match manifest.try_lock() {
            // Where files cannot be locked, nobody else can clean up by mistake either.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(manifest),
            Err(TryLockError::WouldBlock) => Err(IoErrorKind::ResourceBusy.into()),
        }
    };
    // Another process that starts just now may have taken the still empty folder for a leftover.
    attempt().or_else(|e: io::Error| match e.kind() {
        IoErrorKind::NotFound => attempt(),
        _ => Err(e),
    })
}

/// Reads what a checkpoint says of itself; its other files are not looked at.
///
/// # Errors
/// No checkpoint, a damaged manifest, or one of a newer format.
pub(super) fn read_manifest(path: &Path) -> Result<Manifest> {
    let file = path.join(MANIFEST);
    match fs::metadata(&file) {
        Ok(found) if !found.is_file() => {
            return Err(corrupt(path, format!("`{MANIFEST}` is no file")));
        }
        Ok(found) if found.len() > MAX_MANIFEST => {
            let what = format!("`{MANIFEST}` has {} bytes", found.len());
            return Err(corrupt(path, what));
        }
        Ok(_) => {}
        Err(e) if e.kind() == IoErrorKind::NotFound && path.is_dir() => {
            let what = format!("`{MANIFEST}` is missing, so it is no whole checkpoint");
            return Err(corrupt(path, what));
        }
        Err(e) => return Err(Error::io("read the checkpoint", path, e)),
    }
    let text = fs::read(&file).map_err(|e| Error::io("read", &file, e))?;
    parse_manifest(path, &text)
}

/// The manifest of the checkpoint at `path`, which is for messages.
pub(super) fn parse_manifest(path: &Path, text: &[u8]) -> Result<Manifest> {
    #[derive(Deserialize)]
    struct Versions {
        format: u64,
        firebox: String,
    }
    let damaged = |e| corrupt(path, format!("`{MANIFEST}` cannot be read")).with_source(e);
    // A later format may have other fields; it is still to say which it is.
    let Versions { format, firebox } = serde_json::from_slice(text).map_err(damaged)?;
    if format == 0 || format > FORMAT {
        return Err(Error::config(format!(
            "`{}` has format {format}, written by firebox {firebox}; this is firebox {}, which \
             reads formats up to {FORMAT}; use that one or a newer one",
            path.display(),
            env!("CARGO_PKG_VERSION")
        )));
    }
    serde_json::from_slice(text).map_err(damaged)
}

/// A checkpoint that is not what was written.
pub(super) fn corrupt(path: &Path, what: impl std::fmt::Display) -> Error {
    let message = format!("`{}` is damaged: {what}", path.display());
    Error::new(ErrorKind::Corrupt, message)
}

/// Whether it names a file in the folder, and none elsewhere.
fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name != MANIFEST && name.chars().all(plain)
}

/// Removes a checkpoint. Files in its folder that are not of it stay, and the folder with them.
///
/// # Errors
/// Whatever the file system refuses.
pub(super) fn remove(path: &Path) -> Result<()> {
    if path.is_symlink() {
        return remove_link(path).map_err(|e| Error::io("remove", path, e));
    }
    let manifest = match read_manifest(path) {
        Ok(manifest) => manifest,
        // Somebody else has tidied up.
        Err(_) if path.symlink_metadata().is_err() => return Ok(()),
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            say!("warning: not removing an old checkpoint: {e}");
            return Ok(());
        }
        Err(e) => return Err(e.context("removing an old checkpoint")),
    };
    let failed = |e| Error::io("remove", path, e);
    let is_own = |name: &str| name == MANIFEST || manifest.files.contains_key(name);
    let entries = names(path).map_err(failed)?;
    if entries.iter().all(|name| is_own(name)) {
        // Under the other name it is a leftover, whatever happens from here on.
        let temporary = temporary_of(path);
        fs::rename(path, &temporary).map_err(failed)?;
        return remove_own(&temporary);
    }
    fs::remove_file(path.join(MANIFEST)).map_err(failed)?;
    for name in manifest.files.keys() {
        fs::remove_file(path.join(name)).map_err(failed)?;
    }
    Ok(())
}

/// Removes what killed processes have left in a folder of checkpoints. What is being written now
/// stays.
///
/// # Errors
/// Whatever the file system refuses.
pub(crate) fn remove_leftovers(folder: &Path) -> Result<()> {
    let names = match names(folder) {
        Ok(names) => names,
        Err(e) if matches!(e.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(e) => return Err(Error::io("read", folder, e)),
    };
    let is_temporary = |name: &&String| name.starts_with('.') && name.ends_with(TEMPORARY);
    for name in names.iter().filter(is_temporary) {
        remove_leftover(&folder.join(name))?;
    }
    Ok(())
}

/// Removes a symbolic link, if it is there and is one.
pub(super) fn remove_link(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Removes a hidden folder if the process that wrote it is gone; whether it did.
fn remove_leftover(temporary: &Path) -> Result<bool> {
    let failed = |e| Error::io("remove the leftover", temporary, e);
    remove_link(temporary).map_err(failed)?;
    if !temporary.is_dir() {
        return Ok(false);
    }
    let Ok(manifest) = File::open(temporary.join(MANIFEST)) else {
        // Nothing is in it yet, or it is not one of ours.
        return match fs::remove_dir(temporary) {
            Err(e) if e.kind() == IoErrorKind::DirectoryNotEmpty => Ok(false),
            removed => removed.map(|()| true).map_err(failed),
        };
    };
    match manifest.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(_)) => return Ok(false),
    }
    remove_own(temporary).map(|()| true)
}

/// Removes a hidden folder, its manifest last: by that it is known as ours.
fn remove_own(temporary: &Path) -> Result<()> {
    // Another process that starts just now takes it for a leftover, too.
    let gone = |removed: io::Result<()>| match removed {
        Err(e) if e.kind() == IoErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    let removed = names(temporary).and_then(|names| {
        for name in names.iter().filter(|name| *name != MANIFEST) {
            gone(fs::remove_file(temporary.join(name)))?;
        }
        gone(fs::remove_file(temporary.join(MANIFEST)))?;
        gone(fs::remove_dir(temporary))
    });
    gone(removed).map_err(|e| Error::io("remove", temporary, e))
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

const TEMPORARY: &str = ".tmp";

/// `folder/.NAME.tmp`.
pub(super) fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    parent_of(path).join(format!(".{name}{TEMPORARY}"))
}

pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("."),
    }
}

/// Makes a folder, and sees to it that it is on the disk.
fn create_folders(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
    let above = parent_of(folder);
    sync_folder(above).map_err(|e| Error::io("write", above, e))
}

/// A rename is on disk once the folder that holds it is.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened as a file.
    match cfg!(unix) {
        true => File::open(path)?.sync_all(),
        false => Ok(()),
    }
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn files() -> Files {
        let content = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        Files {
            epoch: 1,
            step: 7,
            contents: [content("a.bin", b"alpha"), content("b.json", b"{}")].into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoints/one");
        files().write(&path).unwrap();
        let read = Files::read(&path).unwrap();
        assert_eq!(read.contents, files().contents);
        assert_eq!((read.epoch, read.step), (1, 7));
        assert_eq!(names(parent_of(&path)).unwrap(), ["one"]);
        let again = files().write(&path).unwrap_err();
        assert!(again.to_string().starts_with("cannot create `"), "{again}");
        // What `xxh128sum` prints for "alpha".
        let entry = &read_manifest(&path).unwrap().files["a.bin"];
        assert_eq!((entry.bytes, entry.xxh3.len()), (5, 32));
    }

    #[test]
    fn damage_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str, damage: &dyn Fn(&Path), expected: &str| {
            let path = dir.path().join(name);
            files().write(&path).unwrap();
            damage(&path);
            let error = Files::read(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let text = error.to_string();
            let start = format!("`{}` is damaged: {expected}", path.display());
            assert!(text.starts_with(&start), "{text}");
        };
        let write = |name: &'static str, text: &'static str| {
            move |path: &Path| fs::write(path.join(name), text).unwrap()
        };
        check(
            "flipped",
            &write("a.bin", "alphA"),
            "`a.bin` is not what was written: its checksum differs",
        );
        check(
            "short",
            &write("a.bin", "alph"),
            "`a.bin` has 4 bytes, not 5",
        );
        let gone = |path: &Path| fs::remove_file(path.join("b.json")).unwrap();
        check("gone", &gone, "`b.json` is missing");
        check(
            "empty",
            &write(MANIFEST, ""),
            "`manifest.json` cannot be read: EOF",
        );
        let gone = |path: &Path| fs::remove_file(path.join(MANIFEST)).unwrap();
        check("none", &gone, "`manifest.json` is missing");
        let outside = |path: &Path| {
            let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
            let text = text.replace("a.bin", "../a.bin");
            fs::write(path.join(MANIFEST), text).unwrap();
        };
        check(
            "outside",
            &outside,
            "`manifest.json` lists `../a.bin`, which is no file's name",
        );
    }

    #[test]
    fn a_newer_format_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        files().write(&path).unwrap();
        fs::write(
            path.join(MANIFEST),
            r#"{"format": 9, "firebox": "7.0.0", "parts": []}"#,
        )
        .unwrap();
        let error = Files::read(&path).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("has format 9, written by firebox 7.0.0"),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::Config);
    }

    #[test]
    fn leftovers_go_and_everything_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        files().write(&folder.join("whole")).unwrap();
        let make = |name: &str, inside: &[&str]| {
            fs::create_dir(folder.join(name)).unwrap();
            for file in inside {
                fs::write(folder.join(name).join(file), "").unwrap();
            }
        };
        make(".killed.tmp", &["a.bin", MANIFEST]);
        make(".just_begun.tmp", &[]);
        make(".somebody.tmp", &["notes.txt"]);
        make(".in_use.tmp", &[MANIFEST]);
        fs::write(folder.join(".file.tmp"), "").unwrap();
        let lock = File::open(folder.join(".in_use.tmp").join(MANIFEST)).unwrap();
        lock.lock().unwrap();
        remove_leftovers(folder).unwrap();
        let stay = [".file.tmp", ".in_use.tmp", ".somebody.tmp", "whole"];
        assert_eq!(names(folder).unwrap(), stay);
        remove_leftovers(&folder.join("nowhere")).unwrap();

        // One that is being written is not written over; one that was left is.
        let busy = files().write(&folder.join("in_use")).unwrap_err();
        assert!(busy.to_string().contains("is in use"), "{busy}");
        drop(lock);
        files().write(&folder.join("in_use")).unwrap();
    }

    #[test]
    fn removing_leaves_what_is_not_of_the_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        files().write(&one).unwrap();
        files().write(&two).unwrap();
        fs::write(two.join("notes.txt"), "mine").unwrap();
        remove(&one).unwrap();
        remove(&two).unwrap();
        remove(&one).unwrap();
        assert_eq!(names(dir.path()).unwrap(), ["two"]);
        assert_eq!(names(&two).unwrap(), ["notes.txt"]);
    }

    #[test]
    fn a_refused_write_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        let mut files = files();
        // No file system has such a name.
        files.contents.insert("x/y".into(), Vec::new());
        let error = files.write(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(names(dir.path()).unwrap().is_empty());
    }
}
