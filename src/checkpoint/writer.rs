//! Writing checkpoints, in the training thread or beside it.

use super::folder::{self, Files};
use super::pack::Packed;
use crate::callback::Alias;
use crate::error::{Error, ErrorKind, Result};
use crate::output::say;
use std::fs;
use std::io::{self, ErrorKind::PermissionDenied, ErrorKind::Unsupported};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread::JoinHandle;

/// What is to be done about checkpoints, in this order: the old goes only once the new is safe.
#[derive(Default)]
pub(crate) struct Job {
    /// New folders, and what all of them hold.
    pub(crate) saves: Vec<PathBuf>,
    pub(crate) packed: Option<Packed>,
    pub(crate) aliases: Vec<Alias>,
    pub(crate) removes: Vec<PathBuf>,
}

impl Job {
    fn run(self) -> Result<()> {
        let saved = self.packed.map_or(Ok(()), |packed| {
            let files = packed.encode()?;
            self.saves.iter().try_for_each(|path| files.write(path))
        });
        saved.map_err(|e| e.context("saving a checkpoint"))?;
        self.aliases.iter().try_for_each(|alias| {
            let made = if alias.copies {
                copy(alias)
            } else {
                link(alias)
            };
            made.map_err(|e| e.context("saving a checkpoint"))
        })?;
        self.removes
            .iter()
            .try_for_each(|path| folder::remove(path))
    }
}

/// A symbolic link, which takes the place of the one before at once.
fn link(alias: &Alias) -> Result<()> {
    let failed = |e| Error::io("create the link", &alias.name, e);
    if alias.name.symlink_metadata().is_ok_and(|m| !m.is_symlink()) {
        // A copy, from before links were asked for.
        folder::remove(&alias.name)?;
    }
    let parent = folder::parent_of(&alias.name);
    // Beside it, so that the folder of both can be moved.
    let target = match alias.of.strip_prefix(parent) {
        Ok(beside) => beside.to_path_buf(),
        Err(_) => std::path::absolute(&alias.of).map_err(failed)?,
    };
    let name = alias.name.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.tmp"));
    folder::remove_link(&temporary).map_err(failed)?;
    match symlink(&target, &temporary) {
        // The checkpoint itself has been written in the same folder. Resuming goes by the newest one,
        // and needs no link.
        Err(e) if matches!(e.kind(), PermissionDenied | Unsupported) => {
            let name = alias.name.display();
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                say!(
                    "warning: `{name}` cannot be a link here ({e}); `SaveLast::Copy` writes the last \
                     checkpoint twice instead"
                );
            });
            return Ok(());
        }
        linked => linked.map_err(failed)?,
    }
    fs::rename(&temporary, &alias.name).map_err(failed)?;
    folder::sync_folder(parent).map_err(failed)
}

/// A checkpoint of its own with the same files.
fn copy(alias: &Alias) -> Result<()> {
    let files = Files::read(&alias.of)?;
    if alias.name.symlink_metadata().is_ok() {
        // What is there is a copy from before; the checkpoint itself is safe under its name.
        folder::remove(&alias.name)?;
    }
    files.write(&alias.name)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Does the jobs, each at once or in a thread of its own, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    background: bool,
    running: Option<JoinHandle<Result<()>>>,
}

impl Writer {
    /// With `background`, training goes on while a job is done; the next one waits for it.
    pub(crate) fn new(background: bool) -> Self {
        Self {
            background,
            running: None,
        }
    }

    /// Does a job, or begins to.
    ///
    /// # Errors
    /// What this job reports, or the one before it that ran in the background.
    pub(crate) fn begin(&mut self, job: Job) -> Result<()> {
        self.wait()?;
        if !self.background {
            return job.run();
        }
        let thread = std::thread::Builder::new().name("firebox-checkpoint".into());
        let running = thread.spawn(move || job.run());
        let failed = |e| Error::new(ErrorKind::Io, "cannot start a thread").with_source(e);
        self.running = Some(running.map_err(|e: io::Error| failed(e))?);
        Ok(())
    }

    /// Waits until nothing is being written.
    ///
    /// # Errors
    /// What a job in the background reports.
    pub(crate) fn wait(&mut self) -> Result<()> {
        match self.running.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(done)) => done,
            Some(Err(_)) => Err(Error::new(
                ErrorKind::Io,
                "the thread that writes checkpoints has panicked",
            )),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Every way out waits before and takes the error; this only keeps the process from ending
        // in the middle of a save when the run itself panics.
        let _ = self.wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn save(path: &Path) -> Job {
        Job {
            saves: vec![path.into()],
            packed: Some(Packed::default()),
            ..Job::default()
        }
    }

    #[test]
    fn what_fails_in_the_background_is_reported_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file/one");
        fs::write(dir.path().join("file"), "").unwrap();
        let mut writer = Writer::new(true);
        writer.begin(save(&blocked)).unwrap();
        let two = dir.path().join("two");
        let error = writer.begin(save(&two)).unwrap_err();
        assert!(
            error.to_string().starts_with("saving a checkpoint: "),
            "{error}"
        );
        assert!(!two.exists());
        // Reported once.
        writer.begin(save(&two)).unwrap();
        writer.wait().unwrap();
        assert!(two.is_dir());
    }

    #[test]
    fn nothing_is_removed_when_a_save_fails() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        Writer::default().begin(save(&old)).unwrap();
        fs::write(&new, "in the way").unwrap();
        let job = Job {
            removes: vec![old.clone()],
            ..save(&new)
        };
        Writer::default().begin(job).unwrap_err();
        assert!(old.is_dir());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_and_a_copy_follow_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        // Each takes the other's place as well.
        for (kind, copies) in [("link", false), ("copy", true), ("again", false)] {
            for of in ["one", "two"].map(|of| dir.path().join(format!("{kind}-{of}"))) {
                let alias = Alias {
                    name: dir.path().join("last"),
                    of: of.clone(),
                    copies,
                };
                let job = Job {
                    aliases: vec![alias],
                    ..save(&of)
                };
                Writer::default().begin(job).unwrap();
                let target = dir.path().join("last");
                Files::read(&target).unwrap();
                let leads_to = fs::read_link(&target).ok();
                let expected = (!copies).then(|| of.file_name().unwrap().into());
                assert_eq!(leads_to, expected);
            }
        }
        for kind in ["link-one", "link-two", "copy-one", "copy-two", "again-one"] {
            Files::read(&dir.path().join(kind)).unwrap();
        }
    }
}
