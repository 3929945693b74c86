//! A run's own folder.

use super::resume::Resumed;
use crate::checkpoint::{self, BURN_VERSION};
use crate::config::TrainerConfig;
use crate::control::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::output::say;
use crate::slurm;
use serde_json::{Value, json};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a run writes, for this process alone.
#[derive(Debug)]
pub(super) struct RunDir {
    path: PathBuf,
    /// Locked as long as the run goes on.
    launches: File,
    /// Before it was locked.
    started: SystemTime,
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A process that is just being started by another thread still has the file open.
        let _ = self.launches.unlock();
    }
}

const CONFIG: &str = "config.toml";
/// A line for each start of the run: how it can be repeated.
const LAUNCHES: &str = "run.jsonl";

impl RunDir {
    /// The next free `version_N` under the settings' folder, or that of the run that goes on.
    /// What killed processes have left beside checkpoints is removed.
    pub(super) fn open(config: &TrainerConfig, resumed: Option<&Resumed>) -> Result<Self> {
        let goes_on = resumed.and_then(|resumed| resumed.run_dir.clone());
        for run in runs(&config.run_dir)?.iter().chain(&goes_on) {
            clean(&run.join("checkpoints"));
        }
        let path = goes_on.map_or_else(|| new_run_dir(config), Ok)?;
        let from = resumed.map(|resumed| resumed.checkpoint.path());
        let started = SystemTime::now();
        let launches = add_launch(&path, config, from)?;
        Ok(Self {
            path,
            launches,
            started,
        })
    }

    /// Where `firebox ctl` leaves orders for this start of the run.
    pub(super) fn inbox(&self) -> Inbox {
        Inbox::open(&self.path, self.started)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes what killed processes have left in a folder of checkpoints. Where that is refused, it may
/// be another user's, and is no reason not to train.
pub(super) fn clean(checkpoints: &Path) {
    if let Err(error) = checkpoint::remove_leftovers(checkpoints) {
        say!("warning: {error}");
    }
}

/// The runs under a folder, in order.
pub(super) fn runs(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(Error::io("read the runs in", root, e)),
    };
    let mut runs: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((version(entry.file_name().to_str()?)?, entry.path()))
        })
        .collect();
    runs.sort();
    Ok(runs.into_iter().map(|(_, run)| run).collect())
}

/// Whether a folder is that of a run.
pub(super) fn is_run(path: &Path) -> bool {
    path.join(CONFIG).is_file()
}

/// Whether a run was started by this job of SLURM.
pub(super) fn is_of_job(run: &Path, job: &slurm::Job) -> bool {
    let launches = fs::read_to_string(run.join(LAUNCHES)).unwrap_or_default();
    let started_by = |line: &str| {
        let launch: Value = serde_json::from_str(line).ok()?;
        launch.get("slurm_job")?.as_str().map(str::to_owned)
    };
    launches
        .lines()
        .any(|line| started_by(line).as_ref() == Some(&job.id))
}

fn version(name: &str) -> Option<u64> {
    name.strip_prefix("version_")?.parse().ok()
}

fn new_run_dir(config: &TrainerConfig) -> Result<PathBuf> {
    let root = &config.run_dir;
    let failed = |e| Error::io("create the run folder in", root, e);
    fs::create_dir_all(root).map_err(failed)?;
    let taken = runs(root)?;
    let last = taken
        .last()
        .and_then(|run| version(run.file_name()?.to_str()?));
    for version in last.map_or(0, |last| last + 1).. {
        let dir = root.join(format!("version_{version}"));
        match fs::create_dir(&dir) {
            Ok(()) => {
                config.save(dir.join(CONFIG))?;
                return Ok(dir);
            }
            // Another run was faster.
            Err(e) if e.kind() == IoErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Err(Error::config("there is no free `version_N` folder"))
}

/// Locks a run's file; whether no other run has it.
fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..10_000 {
        match file.try_lock() {
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(true),
            Err(TryLockError::WouldBlock) => {}
        }
        // A run does not share its lock. Who asks whether one goes on (`firebox ctl`) does, and has it
        // for a moment only.
        if file.try_lock_shared().is_err() {
            return Ok(false);
        }
        file.unlock()?;
        std::thread::yield_now();
    }
    Ok(false)
}

/// Writes down with what a run is started, and keeps other processes from writing here.
fn add_launch(dir: &Path, config: &TrainerConfig, resumed_from: Option<&Path>) -> Result<File> {
    let path = dir.join(LAUNCHES);
    let failed = |e| Error::io("write", &path, e);
    let file = File::options().create(true).append(true).open(&path);
    let mut file = file.map_err(failed)?;
    if !lock(&file).map_err(failed)? {
        return Err(Error::new(
            ErrorKind::Io,
            format!(
                "`{}` is in use by a run that is going on; wait for its end, or resume from a \
                 checkpoint's path to run beside it",
                dir.display()
            ),
        ));
    }
    let launch = json!({
        "started": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        "firebox": env!("CARGO_PKG_VERSION"),
        "burn": BURN_VERSION,
        "command": std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        "git": git_revision(),
        "slurm_job": slurm::Job::current().map(|job| job.id),
        "resumed_from": resumed_from,
        "config": config,
    });
    writeln!(file, "{launch}").map_err(failed)?;
    Ok(file)
}

/// The revision of the program's sources, with `-dirty` if they were changed since; none where
/// there is no git or no repository.
fn git_revision() -> Option<&'static str> {
    static REVISION: LazyLock<Option<String>> = LazyLock::new(|| {
        // Without the lock that refreshing git's index would take from the user.
        let output = Command::new("git")
            .args(["--no-optional-locks", "describe", "--always", "--dirty"])
            .args(["--abbrev=40", "--exclude=*"])
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        let revision = String::from_utf8(output.stdout).ok()?;
        Some(revision.trim().to_owned()).filter(|revision| !revision.is_empty())
    });
    REVISION.as_deref()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn who_asks_for_a_run_does_not_keep_it_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LAUNCHES);
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap()
        };
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    // Given back with the file.
                    let _ = open().try_lock_shared();
                }
            });
            let taken: Vec<bool> = (0..1000).map(|_| lock(&open()).unwrap()).collect();
            is_done.store(true, Ordering::Release);
            assert!(taken.iter().all(|taken| *taken));
        });
        let run = open();
        assert!(lock(&run).unwrap());
        assert!(!lock(&open()).unwrap());
    }
}
