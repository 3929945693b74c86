//! A disk that refuses.

use super::*;

/// A small disk, which only somebody who may mount has.
struct Disk(TempDir);

impl Disk {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
        let why = match mount.arg(folder.path()).output() {
            Ok(output) if output.status.success() => return Some(Self(folder)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(e) => e.to_string(),
        };
        eprintln!("skipped: cannot mount a small disk: {}", why.trim());
        None
    }

    /// Makes it `ro` or `rw`.
    fn remount(&self, how: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{how}")]);
        mount.arg(self.0.path());
        // It is busy for a moment when another test starts a process, which has its files open.
        while !mount.output().unwrap().status.success() {
            std::thread::yield_now();
        }
    }

    /// Writes until so many pages are left, of which each file takes one.
    fn fill(&self, pages: u64) {
        let path = self.ballast();
        let mut ballast = File::create(&path).unwrap();
        while ballast.write_all(&[1; 4096]).is_ok() {}
        let bytes = ballast.metadata().unwrap().len();
        ballast.set_len(bytes - pages * 4096).unwrap();
    }

    /// Makes room again. A file that was removed may still be open, as above.
    fn empty(&self) {
        fs::write(self.ballast(), "").unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// The disk becomes bad in step 3 of a run that saves each step, which must fail with the next save
/// at the latest, and with the one before intact. `false` if it did not fail: there was room enough.
fn assert_refused(
    folder: &Path,
    [background, at_the_end]: [bool; 2],
    spoil: impl Fn() + 'static,
    heal: impl Fn(),
) -> bool {
    let (config, _runs) = quiet();
    let config = config.with_checkpoint_in_background(background);
    let steps = if at_the_end { 3 } else { 20 };
    let saved = folder.to_path_buf();
    let spoil = move |step| {
        // What is written in the background is to be whole first.
        while step == 3 && names(&saved) != set(["epoch=0-step=2", "last"]) {
            std::thread::yield_now();
        }
        if step == 3 {
            spoil();
        }
    };
    let first = config.clone().with_max_steps(steps);
    let (outcome, reached) = train::<Cpu>(first, every(1).dir(folder), spoil);
    let Err(error) = outcome else {
        return false;
    };
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(text.contains(folder.to_str().unwrap()), "{text}");
    assert!(text.contains("saving a checkpoint"), "{text}");
    let latest = 3 + u64::from(background && !at_the_end);
    assert!((3..=latest).contains(&reached), "{reached}: {text}");
    assert_eq!(weights_at(&folder.join("epoch=0-step=2")), [-1.0, 1.0]);
    assert_eq!(names(folder), set(["epoch=0-step=2", "last"]), "{text}");

    heal();
    let second = config.with_max_steps(5).with_resume(Resume::Last);
    let (outcome, _) = train::<Cpu>(second, every(1).dir(folder), |_| {});
    assert_eq!(outcome.unwrap().model.values(), [-4.0, 1.0]);
    let expected = set(["epoch=0-step=2", "epoch=0-step=5", "last"]);
    assert_eq!(names(folder), expected);
    true
}

const CASES: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn a_disk_that_becomes_read_only_ends_the_run() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let disk = Rc::new(disk);
    for (case, how) in CASES.into_iter().enumerate() {
        let folder = disk.0.path().join(format!("case-{case}"));
        let bad = Rc::clone(&disk);
        let spoil = move || bad.remount("ro");
        assert!(assert_refused(&folder, how, spoil, || disk.remount("rw")));
    }
}

/// With a page more each time, another file of the checkpoint is the first that does not fit.
#[test]
fn a_full_disk_ends_the_run() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let disk = Rc::new(disk);
    for (case, how) in CASES.into_iter().enumerate() {
        let refuses = |pages: &u64| {
            let folder = disk.0.path().join(format!("case-{case}-{pages}"));
            let (full, pages) = (Rc::clone(&disk), *pages);
            let refused = assert_refused(&folder, how, move || full.fill(pages), || disk.empty());
            disk.empty();
            refused
        };
        // Model, optimizer, state, manifest.
        let refused = (0..).take_while(refuses).count();
        assert!(refused >= 4, "{refused}");
    }
}
