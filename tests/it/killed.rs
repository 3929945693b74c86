//! Whatever ends a process, and whatever becomes of the disk: the newest checkpoint is a whole one.

#![cfg(unix)]

mod disk;
mod kept;

use crate::support::*;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::ErrorKind;
use firebox::callback::{Closure, Hook, SaveLast};
use firebox::checkpoint::{self, Checkpoint};
use firebox::config::{ProgressMode, Resume};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::testing::Cpu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use tempfile::TempDir;

/// More than 50 MB of parameters, and as much again in the optimizer. All are equal: after k steps
/// the momentum is k and each weight -k(k + 1)/2, which floats hold exactly. One step more shows
/// whether weights, momentum and counters are of the same step.
#[derive(Module, Debug)]
struct Big<B: Backend> {
    weights: Param<Tensor<B, 1>>,
}

const WEIGHTS: usize = 13_200_000;

impl<B: Backend> Big<B> {
    fn new() -> Self {
        let zeros = Tensor::zeros([WEIGHTS], &B::Device::default());
        Self {
            weights: Param::from_tensor(zeros),
        }
    }

    /// An error unless these are the weights after so many steps.
    fn check(&self, steps: u64) -> Result<()> {
        let expected = -((steps * (steps + 1) / 2) as f32);
        let data = self.weights.val().into_data();
        let values = data.as_slice::<f32>().unwrap();
        match values.iter().find(|value| **value != expected) {
            None => Ok(()),
            Some(found) => Err(Error::user(format!(
                "a weight is {found} after {steps} steps, not {expected}"
            ))),
        }
    }
}

impl<B: AutodiffBackend> TrainModule for Big<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = Big<B::InnerBackend>;

    fn training_step(&self, _batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.weights.val().sum().into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let momentum = MomentumConfig::new().with_momentum(1.0).with_dampening(0.0);
        let sgd = SgdConfig::new().with_momentum(Some(momentum));
        Ok(Optimizers::single(sgd.init()).with_lr(1.0))
    }
}

impl<B: Backend> EvalModule for Big<B> {
    type Backend = B;
    type Batch = Tokens<B>;

    fn validation_step(&self, _batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<()> {
        Ok(())
    }
}

/// Compares the model with the counters.
struct Compare;

impl<B: AutodiffBackend> Callback<Big<B>> for Compare {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, Big<B>>) -> Result<()> {
        let step = cx.progress().global_step;
        cx.model().check(step)?;
        println!("{STARTS_AT}{step}");
        Ok(())
    }

    fn on_optimizer_step(&mut self, cx: &mut RunContext<'_, Big<B>>) -> Result<()> {
        cx.model().check(cx.progress().global_step)
    }
}

const STARTS_AT: &str = "the run starts at step ";

/// Not a test: the process that is killed.
#[test]
#[ignore = "started by `a_run_that_is_killed_leaves_a_whole_checkpoint`"]
fn endless_process() {
    let Some(root) = std::env::var_os("KILLED_RUNS") else {
        return;
    };
    let steps = std::env::var("KILLED_STEPS").ok();
    let config = TrainerConfig::new()
        .with_progress(ProgressMode::Off)
        .with_run_dir(root)
        .with_resume(Resume::Last)
        .with_checkpoint_in_background(std::env::var_os("KILLED_BACKGROUND").is_some())
        .with_checkpoint_every_n_steps(1)
        .with_max_steps(steps.map_or(1_000_000, |steps| steps.parse().unwrap()));
    Trainer::new(config, Default::default())
        .with_callback(Compare)
        .fit(
            Big::<Cpu>::new(),
            &mut Loaders::new(gradients(vec![1.0; 10_000])),
        )
        .unwrap();
}

/// A process that trains; it does not outlive the test.
struct Training {
    process: Child,
    stderr: PathBuf,
    starts_at: u64,
}

impl Training {
    fn start(root: &Path, background: bool, steps: Option<u64>) -> Self {
        let stderr = root.join("stderr.txt");
        let mut command = own_process("killed::endless_process");
        command
            .env("KILLED_RUNS", root)
            .stderr(File::create(&stderr).unwrap())
            .stdout(Stdio::piped());
        if background {
            command.env("KILLED_BACKGROUND", "1");
        }
        if let Some(steps) = steps {
            command.env("KILLED_STEPS", steps.to_string());
        }
        let mut training = Self {
            process: command.spawn().unwrap(),
            stderr,
            starts_at: 0,
        };
        let mut lines = BufReader::new(training.process.stdout.take().unwrap());
        let mut line = String::new();
        let said = loop {
            line.clear();
            if lines.read_line(&mut line).unwrap() == 0 {
                training.failed();
            }
            if let Some((_, step)) = line.split_once(STARTS_AT) {
                break step;
            }
        };
        training.starts_at = said.trim().parse().unwrap();
        // What the test's harness says in the end has room in the pipe.
        training.process.stdout = Some(lines.into_inner());
        training
    }

    fn assert_runs(&mut self) {
        if self.process.try_wait().unwrap().is_some() {
            self.failed();
        }
    }

    fn failed(&mut self) -> ! {
        let status = self.process.wait().unwrap();
        let said = fs::read_to_string(&self.stderr).unwrap();
        panic!("the run ended by itself, {status}: {said}");
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How far a save has come, as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Nothing,
    Begun,
    /// So many bytes of the model are there.
    Model(u64),
    /// The model is whole, and so much of the optimizer's state is there.
    Optimizer(u64),
    /// Everything is there; the manifest may be missing.
    State,
    /// It has its name; what is old may still have to be removed.
    Whole,
    /// An old one is being removed.
    Removing,
}

impl Stage {
    /// A stage to kill at.
    fn random(rng: &mut ChaCha8Rng) -> Self {
        let bytes = 4 * WEIGHTS as u64;
        match rng.random_range(0..9) {
            0 => Self::Begun,
            1 | 2 => Self::Model(rng.random_range(1..bytes)),
            3 | 4 => Self::Optimizer(rng.random_range(1..bytes)),
            5 => Self::State,
            6 | 7 => Self::Whole,
            _ => Self::Removing,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "between saves",
            Self::Begun => "before the first file",
            Self::Model(_) => "in the model",
            Self::Optimizer(_) => "in the optimizer's state",
            Self::State => "before the rename",
            Self::Whole => "before the removal",
            Self::Removing => "in the removal",
        }
    }
}

/// Watches a folder of checkpoints.
struct Watch {
    folder: PathBuf,
    seen: BTreeSet<String>,
}

impl Watch {
    fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            seen: names(folder),
        }
    }

    /// What goes on just now. That a checkpoint is new is said once.
    fn look(&mut self) -> Stage {
        let stage = |name: String| {
            let hidden = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp"));
            match hidden {
                // The link to the newest, before it takes the place of the old one.
                Some("last") => Stage::Nothing,
                Some(of) if self.seen.contains(of) => Stage::Removing,
                Some(_) => Self::look_into(&self.folder.join(name)),
                None if self.seen.insert(name.clone()) => Stage::Whole,
                None => Stage::Nothing,
            }
        };
        let stages = names(&self.folder).into_iter().map(stage);
        stages.max().unwrap_or(Stage::Nothing)
    }

    fn look_into(temporary: &Path) -> Stage {
        let bytes = |name| fs::metadata(temporary.join(name)).map(|found| found.len());
        match (bytes("model.safetensors"), bytes("optimizer-0.cbor")) {
            _ if bytes("state.json").is_ok() => Stage::State,
            (_, Ok(bytes)) => Stage::Optimizer(bytes),
            (Ok(bytes), _) => Stage::Model(bytes),
            _ => Stage::Begun,
        }
    }

    /// The latest step of which a checkpoint was seen.
    fn step(&self) -> u64 {
        self.seen
            .iter()
            .filter_map(|n| step_of(n))
            .max()
            .unwrap_or(0)
    }
}

fn step_of(name: &str) -> Option<u64> {
    name.split_once("step=")?.1.parse().ok()
}

/// What is in a folder; nothing if it is not there.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// A folder in memory, if there is room for a gigabyte or two.
fn fast_folder() -> TempDir {
    let shared = Path::new("/dev/shm");
    let output = Command::new("df").arg("-kP").arg(shared).output();
    let text = output.map_or_else(|_| String::new(), |o| String::from_utf8(o.stdout).unwrap());
    let last = text.lines().last().unwrap_or_default();
    let kilobytes = last
        .split_whitespace()
        .nth(3)
        .and_then(|n| n.parse::<u64>().ok());
    match kilobytes {
        Some(kilobytes) if kilobytes > 2_000_000 => tempfile::tempdir_in(shared).unwrap(),
        _ => tempfile::tempdir().unwrap(),
    }
}

/// The newest checkpoint's step, after all have been found whole.
fn check_all(folder: &Path) -> Option<u64> {
    let found = checkpoint::list(folder).unwrap();
    let mut newest = None;
    for found in found {
        let checkpoint = Checkpoint::open(&found.path).unwrap();
        if newest.is_none() {
            let progress = checkpoint.progress();
            assert_eq!(progress.total_batches, progress.global_step);
            let model = checkpoint.load_model(Big::<Cpu>::new()).unwrap();
            model.check(progress.global_step).unwrap();
            newest = Some(progress.global_step);
        }
    }
    let last = folder.join("last");
    assert!(
        !last.is_symlink() || last.join("manifest.json").is_file(),
        "`last` leads nowhere"
    );
    newest
}

const KILLS: usize = 50;

/// Each process goes on from what the one before left when it was killed, and compares weights,
/// momentum and counters before it saves.
#[test]
fn a_run_that_is_killed_leaves_a_whole_checkpoint() {
    let root = fast_folder();
    let root = root.path();
    let folder_of = |run: usize| root.join(format!("version_{run}/checkpoints"));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (mut run, mut newest, mut resumed_from) = (0, None, BTreeSet::new());
    let mut killed = BTreeMap::<&str, usize>::new();
    for kill in 0..KILLS {
        // With the first killed this early, the second has nothing to go on from, either.
        let at = match kill {
            0 => Stage::Begun,
            _ => Stage::random(&mut rng),
        };
        let extra = match at {
            // The moment before the removal is short.
            Stage::Whole => 0,
            _ => rng.random_range(0..100),
        };
        let mut watch = Watch::new(&folder_of(run));
        let mut training = Training::start(root, kill % 2 == 1, None);
        assert_eq!(training.starts_at, newest.unwrap_or(0));
        // What it was resumed from stays, so there is something to remove after its second save.
        let times = if at == Stage::Whole { 2 } else { 1 };
        for _ in 0..times {
            while watch.look() < at {
                training.assert_runs();
            }
        }
        for _ in 0..extra {
            watch.look();
        }
        let seen = watch.step();
        drop(training);

        let mut stage = watch.look();
        let folder = folder_of(run);
        match check_all(&folder) {
            // A run that has no checkpoint yet begins in a folder of its own.
            None => {
                assert_eq!((seen, newest), (0, None));
                run += 1;
                *killed.entry(stage.name()).or_default() += 1;
                continue;
            }
            Some(step) => {
                assert!(step >= seen && Some(step) >= newest);
                newest = Some(step);
            }
        }
        if !folder.join("notes.txt").exists() {
            assert!(resumed_from.is_empty(), "the notes are gone");
            fs::write(folder.join("notes.txt"), "mine").unwrap();
        }
        let list = checkpoint::list(&folder).unwrap().into_iter();
        let paths: Vec<_> = list.map(|found| found.path).collect();
        let new = paths.iter().filter(|path| !resumed_from.contains(*path));
        if new.count() > 1 {
            stage = stage.max(Stage::Whole);
        }
        *killed.entry(stage.name()).or_default() += 1;
        // A run never removes what it was resumed from; 50 of them would fill the disk.
        resumed_from.insert(paths[0].clone());
        let last = fs::read_link(folder.join("last")).map(|last| folder.join(last));
        let in_use = [paths.first(), last.as_ref().ok()];
        resumed_from.retain(|path: &PathBuf| {
            let stays = in_use.contains(&Some(path));
            if !stays {
                fs::remove_dir_all(path).unwrap();
            }
            stays
        });
    }
    eprintln!("killed {killed:?}");
    let times = |stage: Stage| killed.get(stage.name()).copied().unwrap_or(0);
    assert!(times(Stage::Begun) + times(Stage::Model(0)) > 0);
    assert!(times(Stage::Optimizer(0)) + times(Stage::State) > 0);

    let newest = newest.unwrap();
    let mut training = Training::start(root, true, Some(newest + 3));
    assert_eq!(training.starts_at, newest);
    if !training.process.wait().unwrap().success() {
        training.failed();
    }
    assert_eq!(check_all(&folder_of(run)), Some(newest + 3));
    for run in 0..run {
        assert_eq!(names(&folder_of(run)), set([]));
    }
    let folder = folder_of(run);
    assert_eq!(
        fs::read_to_string(folder.join("notes.txt")).unwrap(),
        "mine"
    );
    let mut left = names(&folder);
    for path in &resumed_from {
        left.remove(path.file_name().unwrap().to_str().unwrap());
    }
    let end = format!("epoch=0-step={}", newest + 3);
    assert_eq!(left, set([end.as_str(), "last", "notes.txt"]));
}

/// Trains weights (1, 1), which go down to (1 - steps, 1), and hands back where it stopped, too.
fn train<B: AutodiffBackend>(
    config: TrainerConfig,
    checkpoints: ModelCheckpoint,
    mut spoil: impl FnMut(u64) + 'static,
) -> (Result<FitOutcome<Weights<B>>>, u64) {
    let step = Rc::new(Cell::new(0));
    let reached = Rc::clone(&step);
    let watch = Closure::at(
        Hook::OptimizerStep,
        move |cx: &mut RunContext<'_, Weights<B>>| {
            reached.set(cx.progress().global_step);
            spoil(reached.get());
            Ok(())
        },
    );
    let outcome = Trainer::new(config, B::Device::default())
        .with_callback(watch)
        .with_callback(checkpoints)
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(50));
    (outcome, step.get())
}

/// After every n-th step, and at no other time but the end.
fn every(steps: u64) -> ModelCheckpoint {
    ModelCheckpoint::new()
        .every_n_epochs(0)
        .every_n_steps(steps)
}

fn weights_at(path: &Path) -> [f32; 2] {
    let model = Weights::<Cpu>::new(0.0, 0.0);
    checkpoint::load_model(path, model).unwrap().values()
}
