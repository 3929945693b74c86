//! Checkpoints that were damaged, and those that a run must not take away.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

on_each_backend!(a_resumed_run_removes_nothing_of_others);

/// A run of 6 steps that kept those of steps 2, 4 and 6; the folder of its checkpoints.
fn three_kept() -> (TrainerConfig, TempDir, PathBuf) {
    let (config, runs) = quiet();
    let checkpoints = every(2).save_top_k(-1);
    let config = config.with_max_steps(6);
    train::<Cpu>(config.clone(), checkpoints, |_| {}).0.unwrap();
    let folder = runs.path().join("runs/version_0/checkpoints");
    (config.with_max_steps(8), runs, folder)
}

/// Resumes a run to step 8; the step it began at, and how it ended.
fn resumed(config: TrainerConfig) -> (u64, Result<FitOutcome<Weights<Cpu>>>) {
    let first = Rc::new(Cell::new(None));
    let begun = Rc::clone(&first);
    let watch = move |step: u64| begun.set(begun.get().or(Some(step - 1)));
    let (outcome, _) = train(config, every(2).save_top_k(-1), watch);
    (first.get().unwrap_or(0), outcome)
}

fn damage(path: &Path, how: &str) {
    let mut bytes = fs::read(path).unwrap();
    match (how, bytes.last_mut()) {
        ("cut", _) => bytes.truncate(bytes.len() / 2),
        ("flipped", Some(last)) => *last ^= 1,
        _ => return fs::remove_file(path).unwrap(),
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let (_, _runs, folder) = three_kept();
    let files = names(&folder.join("epoch=0-step=6"));
    let expected = [
        "manifest.json",
        "model.safetensors",
        "optimizer-0.cbor",
        "state.json",
    ];
    assert_eq!(files, set(expected));
    let ways = ["cut", "flipped", "gone"];
    for (file, how) in files.iter().flat_map(|file| ways.map(|how| (file, how))) {
        let (config, _runs, folder) = three_kept();
        let [whole, newest] = [4, 6].map(|step| folder.join(format!("epoch=0-step={step}")));
        damage(&newest.join(file), how);
        let before = names(&folder);
        let assert_named = |config: TrainerConfig, hint: &str| {
            let (begun, outcome) = resumed(config);
            let error = outcome.unwrap_err();
            assert_eq!((begun, error.kind()), (0, ErrorKind::Corrupt), "{error}");
            let text = error.to_string();
            for part in [newest.to_str().unwrap(), &format!("`{file}`"), hint] {
                assert!(text.contains(part), "{how}: `{part}` is not in: {text}");
            }
            assert_eq!(names(&folder), before);
        };
        let last = config.clone().with_resume(Resume::Last);
        assert_named(last.clone().with_resume_strict(true), "resuming");
        let hint = format!("(the newest whole one beside it is `{}`)", whole.display());
        for path in [newest.clone(), folder.join("last")] {
            assert_named(config.clone().with_resume(Resume::Path(path)), &hint);
        }

        let run = folder.parent().unwrap().to_path_buf();
        for resume in [Resume::Last, Resume::Path(run.clone())] {
            let (begun, outcome) = resumed(config.clone().with_resume(resume));
            let outcome = outcome.unwrap();
            assert_eq!(begun, 4, "{file} {how}");
            assert_eq!(outcome.run_dir.as_ref(), Some(&run));
            assert_eq!(outcome.model.values(), [-7.0, 1.0]);
            let newest = outcome.last_checkpoint.unwrap();
            assert_eq!(weights_at(&newest), [-7.0, 1.0]);
            assert_eq!(weights_at(&whole), [-3.0, 1.0]);
            fs::remove_dir_all(newest).unwrap();
            fs::remove_dir_all(folder.join("epoch=0-step=6-v1")).unwrap();
        }
    }
}

#[test]
fn damaged_checkpoints_alone_are_an_error() {
    let (config, _runs, folder) = three_kept();
    for file in ["2/model.safetensors", "4/state.json", "6/manifest.json"] {
        damage(&folder.join(format!("epoch=0-step={file}")), "cut");
    }
    let (_, outcome) = resumed(config.with_resume(Resume::Last));
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    for part in ["no checkpoint is whole: ", "`manifest.json`"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Nothing else vouches for the manifest, so each of its bits is tried. Some change the versions it
/// names, and nothing else.
#[test]
fn no_flipped_bit_of_a_manifest_makes_another_checkpoint() {
    let (_, _runs, folder) = three_kept();
    let path = folder.join("epoch=0-step=6");
    let text = fs::read(path.join("manifest.json")).unwrap();
    let mut wrong = Vec::new();
    for bit in 0..8 * text.len() {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(path.join("manifest.json"), &flipped).unwrap();
        match Checkpoint::open(&path) {
            Ok(checkpoint) => {
                let zeros = Weights::<Cpu>::new(0.0, 0.0);
                let model = checkpoint.load_model(zeros).unwrap();
                assert_eq!(model.values(), [-5.0, 1.0]);
                let list = checkpoint::list(&folder).unwrap();
                let listed = list.into_iter().find(|found| found.path == path);
                let epoch = listed.unwrap().manifest.unwrap().epoch;
                if epoch != checkpoint.progress().epoch {
                    wrong.push(format!("epoch {epoch} is believed"));
                }
            }
            Err(error) => {
                let text = error.to_string();
                let what = text.split_once("` is damaged: ").map(|(_, what)| what);
                if !what.map_or(text.contains(" has format "), |what| what.contains('`')) {
                    wrong.push(format!("no file is named in: {text}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The newest has lost its manifest, which says how new it is.
#[test]
fn a_damaged_checkpoint_is_not_passed_over_for_an_older_run_in_silence() {
    let (config, _runs, folder) = three_kept();
    let second = train::<Cpu>(config.clone(), every(2), |_| {}).0.unwrap();
    let newest = second.last_checkpoint.unwrap();
    assert!(!newest.starts_with(folder));
    fs::remove_file(newest.join("manifest.json")).unwrap();
    let strict = config.with_resume(Resume::Last).with_resume_strict(true);
    let error = resumed(strict).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains(newest.to_str().unwrap()), "{text}");
}

/// One that is too old to be kept is no reason to end the run, and whose files they are is unknown.
#[test]
fn a_damaged_checkpoint_that_should_go_stays() {
    let (config, _runs) = quiet();
    let first = config.clone().with_max_steps(5);
    let first = train::<Cpu>(first, two_newest(), |_| {}).0.unwrap();
    let folder = first.run_dir.unwrap().join("checkpoints");
    damage(&folder.join("epoch=0-step=2/manifest.json"), "cut");
    let resume = Resume::Path(folder.join("epoch=0-step=4"));
    let config = config.with_max_steps(8).with_resume(resume);
    let second = two_newest().dir(&folder);
    let (outcome, _) = train::<Cpu>(config, second, |_| {});
    assert_eq!(outcome.unwrap().model.values(), [-7.0, 1.0]);
    let expected = [2, 4, 6, 8].map(|step| format!("epoch=0-step={step}"));
    assert_eq!(names(&folder), BTreeSet::from(expected));
    assert_eq!(names(&folder.join("epoch=0-step=2")).len(), 4);
}

/// A process was killed when a new checkpoint had its name, and `last` was still a link to the old
/// one; the run goes on, or was at its end.
#[test]
fn last_leads_somewhere_before_the_old_one_goes() {
    for steps in [2, 3] {
        let (config, runs) = quiet();
        let folder = runs.path().join("runs/version_0/checkpoints");
        let [old, last] = ["epoch=0-step=1", "last"].map(|name| folder.join(name));
        let aside = runs.path().join("aside");
        let (from, to) = (old.clone(), aside.clone());
        let set_aside = move |step| {
            if step == 2 {
                fs::create_dir(&to).unwrap();
                for file in names(&from) {
                    fs::copy(from.join(&file), to.join(&file)).unwrap();
                }
            }
        };
        let first = config.clone().with_max_steps(2);
        train::<Cpu>(first, every(1), set_aside).0.unwrap();
        assert_eq!(names(&folder), set(["epoch=0-step=2", "last"]));
        fs::rename(aside, &old).unwrap();
        fs::remove_file(&last).unwrap();
        std::os::unix::fs::symlink("epoch=0-step=1", &last).unwrap();

        let config = config.with_max_steps(steps).with_resume(Resume::Last);
        let during = last.clone();
        let check = move |_| assert_eq!(weights_at(&during), [-1.0, 1.0]);
        train::<Cpu>(config, every(1), check).0.unwrap();
        assert_eq!(weights_at(&last), [1.0 - steps as f32, 1.0]);
        assert!(!old.exists());
    }
}

/// Other threads start processes, as loggers and loaders do; a lock lives on in a process that has
/// just begun, for a moment.
#[test]
fn a_run_that_has_ended_leaves_its_folder_at_once() {
    let runs = fast_folder();
    let config = quiet().0.with_run_dir(runs.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let again = |steps| {
            let config = config.clone().with_max_steps(steps);
            let config = config.with_resume((steps > 1).then_some(Resume::Last));
            train::<Cpu>(config, every(1), |_| {}).0.map(drop)
        };
        let ended = (1..=40).try_for_each(again);
        done.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    assert_eq!(names(runs.path()), set(["version_0"]));
}

fn folder_with_notes() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/model.txt"), "mine").unwrap();
    folder
}

/// What is in the folder of [`folder_with_notes`] beside the notes: the steps of its checkpoints.
#[track_caller]
fn steps_beside_notes(folder: &Path) -> Vec<u64> {
    for notes in ["notes.txt", "mine/model.txt"] {
        assert_eq!(fs::read_to_string(folder.join(notes)).unwrap(), "mine");
    }
    let others = names(folder).into_iter();
    let others = others.filter(|name| name != "notes.txt" && name != "mine");
    let steps = others.map(|name| step_of(&name).unwrap_or_else(|| panic!("`{name}`")));
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    steps
}

fn two_newest() -> ModelCheckpoint {
    let newest = every(2).monitor("step", Mode::Max).save_top_k(2);
    newest.save_last(SaveLast::Off)
}

/// It keeps the two newest, and goes on in another folder or in the same.
fn a_resumed_run_removes_nothing_of_others<B: AutodiffBackend>() {
    for in_place in [false, true] {
        let (config, _runs) = quiet();
        let [a, b] = [folder_with_notes(), folder_with_notes()];
        let [a, b] = [a.path(), b.path()];
        let first = config.clone().with_max_steps(5);
        train::<B>(first, two_newest().dir(a), |_| {}).0.unwrap();
        assert_eq!(steps_beside_notes(a), [2, 4]);

        let from = a.join("epoch=0-step=4");
        let resume = Resume::Path(from.clone());
        let second = config.with_max_steps(8).with_resume(resume);
        let into = two_newest().dir(if in_place { a } else { b });
        let outcome = train::<B>(second, into, |_| {}).0.unwrap();
        assert_eq!(outcome.model.values(), [-7.0, 1.0]);
        let (in_a, in_b) = match in_place {
            false => (vec![2, 4], vec![6, 8]),
            // What it was resumed from stays.
            true => (vec![4, 6, 8], vec![]),
        };
        assert_eq!(steps_beside_notes(a), in_a);
        assert_eq!(steps_beside_notes(b), in_b);
        let model = checkpoint::load_model(from, Weights::<B>::new(0.0, 0.0)).unwrap();
        assert_eq!(model.values(), [-3.0, 1.0]);
    }
}
