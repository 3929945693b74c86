//! Processes that `mpirun` starts on this machine.

use super::{FEATURES, Net, Rows, assert_near, fit, rows};
use crate::support::quiet;
use burn::module::Module;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::callback::{Closure, Hook};
use firebox::checkpoint::Checkpoint;
use firebox::config::{Devices, ProgressMode, Resume, Strategy};
use firebox::data::FallibleDataset;
use firebox::prelude::*;
use firebox::testing::Cpu;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SAMPLES: usize = 22;
const BATCH_SIZE: usize = 4;
const STEPS: u64 = 20;

/// What every process of a run is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Scenario {
    config: TrainerConfig,
    folder: PathBuf,
    fault: Option<Fault>,
    /// After so many batches a checkpoint `midway` is written.
    saves_at: Option<u64>,
    /// Whether each process has samples of its own: the first all, the second half of them.
    is_per_process: bool,
}

/// What befalls one of the processes when it has trained on so many batches.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Fault {
    process: usize,
    batches: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum What {
    Killed,
    Terminated,
    Panics,
    Fails,
    LoaderFails,
}

fn process() -> usize {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK");
    rank.map_or(0, |rank| rank.parse().unwrap())
}

#[derive(Module, Debug)]
struct Faulty<B: Backend> {
    net: Net<B>,
}

impl<B: AutodiffBackend> TrainModule for Faulty<B> {
    type Backend = B;
    type Batch = Rows<B>;
    type Eval = Faulty<B::InnerBackend>;

    fn training_step(&self, rows: Rows<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let loss = self.net.training_step(rows, cx);
        let befalls = |fault: &Fault| {
            fault.process == process() && fault.batches == cx.progress().total_batches
        };
        match scenario().fault.filter(befalls).map(|fault| fault.what) {
            Some(What::Killed) => raise("KILL"),
            Some(What::Terminated) => raise("TERM"),
            Some(What::Panics) => panic!("out of luck"),
            Some(What::Fails) => return Err(Error::user("out of luck")),
            Some(What::LoaderFails) | None => {}
        }
        loss
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let momentum = burn::optim::momentum::MomentumConfig::new();
        let sgd = burn::optim::SgdConfig::new().with_momentum(Some(momentum));
        Ok(Optimizers::single(sgd.init()).with_lr(0.05))
    }
}

impl<B: Backend> EvalModule for Faulty<B> {
    type Backend = B;
    type Batch = Rows<B>;
}

/// Sends a signal to this process, and has it arrive.
fn raise(signal: &str) {
    let pid = std::process::id().to_string();
    let sent = Command::new("kill")
        .args([&format!("-{signal}"), &pid])
        .status();
    assert!(sent.unwrap().success());
}

struct Data<B: Backend> {
    train: Loader<B, Rows<B>>,
    is_per_process: bool,
}

impl<B: AutodiffBackend> DataModule<Faulty<B>> for Data<B> {
    fn train_loader(&self) -> Result<Option<Loader<B, Rows<B>>>> {
        Ok(Some(self.train.clone()))
    }

    fn is_per_process(&self) -> bool {
        self.is_per_process
    }
}

/// Row numbers, one of which cannot be read in one of the processes.
struct Numbers(Option<Fault>, usize);

impl FallibleDataset<usize> for Numbers {
    fn len(&self) -> usize {
        self.1
    }

    fn try_get(&self, index: usize) -> Result<usize> {
        match self.0 {
            Some(fault) if fault.process == process() && index as u64 == fault.batches => {
                Err(Error::data("the disk is gone"))
            }
            _ => Ok(index),
        }
    }
}

impl Recipe for Scenario {
    fn config(&self) -> &TrainerConfig {
        &self.config
    }

    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let device = cx.device();
        // Every process begins with other weights; those of the first count.
        let net = match process() {
            0 => Net::new(device),
            _ => Net {
                first: super::linear(FEATURES, 8, device),
                second: burn::nn::LinearConfig::new(8, 1).init(device),
            },
        };
        let fault = self.fault.filter(|fault| fault.what == What::LoaderFails);
        let (_, seen) = rows::<B>(1);
        let samples = match self.is_per_process && process() == 1 {
            true => SAMPLES / 2,
            false => SAMPLES,
        };
        let loader =
            Loader::from_fallible(Numbers(fault, samples), super::RowBatcher(seen.clone()));
        let train = loader.batch_size(BATCH_SIZE).shuffle(fault.is_none());
        let mut data = Data {
            train,
            is_per_process: self.is_per_process,
        };
        let saves_at = self.saves_at;
        let midway = Closure::at(Hook::TrainBatchEnd, move |cx: &mut RunContext<'_, _>| {
            if saves_at == Some(cx.progress().total_batches) {
                cx.save_checkpoint(cx.run_dir().unwrap().join("midway"));
            }
            Ok(())
        });
        let mut trainer = cx.trainer().with_callback(midway);
        let outcome = trainer.fit(Faulty { net }, &mut data)?;
        let left = (outcome.model.net.values(), seen.take(), outcome.progress);
        let file = self.folder.join(format!("left-{}.json", process()));
        std::fs::write(file, serde_json::to_string(&left).unwrap()).unwrap();
        Ok(())
    }
}

fn scenario() -> Scenario {
    let text = std::env::var("FIREBOX_TEST_SCENARIO").unwrap();
    serde_json::from_str(&text).unwrap()
}

/// One process of a run that a test has started.
#[test]
#[ignore = "started by other tests"]
fn process_of_a_run() {
    let code = format!("{:?}", firebox::launch(scenario()));
    let code: String = code.chars().filter(char::is_ascii_digit).collect();
    std::process::exit(code.parse().unwrap());
}

/// Why there is nothing to test, if so.
fn missing() -> Option<String> {
    let found = Command::new("mpirun").arg("--version").output();
    found.err().map(|e| format!("no mpirun: {e}"))
}

impl Scenario {
    fn new(folder: &Path) -> Self {
        let config = quiet().0;
        Self {
            config: config
                .with_accelerator("flex")
                .with_devices(1)
                .with_progress(ProgressMode::Off)
                .with_max_steps(STEPS)
                .with_checkpoint_every_n_steps(2)
                .with_check_replicas_every_n_steps(1)
                .with_run_dir(folder.join("runs")),
            folder: folder.to_owned(),
            fault: None,
            saves_at: None,
            is_per_process: false,
        }
    }

    /// Runs so many processes. If one hangs, `timeout` ends them all with status 124.
    fn run_on(&self, processes: usize) -> Output {
        Command::new("timeout")
            .args(["60", "mpirun", "--allow-run-as-root", "--oversubscribe"])
            .args(["--bind-to", "none", "-np", &processes.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["replicas::mpi::process_of_a_run", "--exact", "--ignored"])
            .args(["--nocapture", "--test-threads", "1"])
            .env(
                "FIREBOX_TEST_SCENARIO",
                serde_json::to_string(self).unwrap(),
            )
            .output()
            .unwrap()
    }

    /// As [`run_on`](Self::run_on), to the end; what each process has left.
    fn finish_on(&self, processes: usize) -> Vec<(Vec<f64>, Vec<usize>)> {
        let output = self.run_on(processes);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}: {said}", output.status);
        let left = |process: usize| {
            let file = self.folder.join(format!("left-{process}.json"));
            let text = std::fs::read_to_string(file).unwrap();
            let (values, seen, _): (_, _, serde_json::Value) = serde_json::from_str(&text).unwrap();
            (values, seen)
        };
        (0..processes).map(left).collect()
    }

    fn last(&self) -> PathBuf {
        self.config.run_dir.join("version_0/checkpoints/last")
    }
}

/// What one device in one process gives.
fn alone() -> Vec<f64> {
    let (config, _runs) = quiet();
    let (train, _) = rows::<Cpu>(SAMPLES);
    let train = train.batch_size(BATCH_SIZE).shuffle(true);
    fit(config.with_max_steps(STEPS), 1, train).model.values()
}

#[test]
fn processes_give_what_one_gives() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    for (processes, devices) in [(2, 1), (4, 1), (2, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = Scenario::new(folder.path());
        scenario.config.devices = Devices::Count(devices);
        let left = scenario.finish_on(processes);
        assert_near(&left[0].0, &alone(), 1e-5);
        assert!(left.iter().all(|(values, _)| *values == left[0].0));
        // 20 steps are three epochs of six batches, and two batches.
        let mut seen: Vec<usize> = left.into_iter().flat_map(|(_, seen)| seen).collect();
        assert_eq!(seen.len(), 3 * SAMPLES + 2 * BATCH_SIZE);
        seen.sort_unstable();
        let times = |id: usize| seen.iter().filter(|seen| **seen == id).count();
        assert!((0..SAMPLES).all(|id| (3..=4).contains(&times(id))));
    }
}

#[test]
fn moments_divided_over_processes_change_nothing() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    for devices in [1, 2] {
        let run = |strategy| {
            let folder = tempfile::tempdir().unwrap();
            let mut scenario = Scenario::new(folder.path());
            scenario.config.devices = Devices::Count(devices);
            scenario.config.strategy = strategy;
            let left = scenario.finish_on(2);
            let last = Checkpoint::open(scenario.last()).unwrap();
            let optimizer = std::fs::read(last.path().join("optimizer-0.cbor")).unwrap();
            (left[0].0.clone(), optimizer)
        };
        assert_eq!(run(Strategy::Zero1), run(Strategy::Ddp));
    }
}

#[test]
fn a_step_begun_by_several_processes_goes_on_exactly() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(folder.path());
    scenario.config.accumulate_grad_batches = 4;
    scenario.saves_at = Some(3);
    scenario.config.max_steps = Some(6);
    let whole = scenario.finish_on(2)[0].0.clone();
    let midway = scenario.config.run_dir.join("version_0/midway");
    assert_eq!(Checkpoint::open(&midway).unwrap().progress().batch, 3);
    scenario.saves_at = None;
    scenario.config.resume = Some(Resume::Path(midway));
    for (processes, is_exact) in [(2, true), (1, false)] {
        let resumed = scenario.finish_on(processes)[0].0.clone();
        match is_exact {
            true => assert_eq!(resumed, whole),
            false => assert_near(&resumed, &whole, 1e-5),
        }
    }
}

#[test]
fn each_process_trains_on_samples_of_its_own() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    for strategy in [Strategy::Ddp, Strategy::FedAvg { every_n_steps: 2 }] {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = Scenario::new(folder.path());
        scenario.is_per_process = true;
        scenario.config.strategy = strategy;
        if strategy != Strategy::Ddp {
            scenario.config.check_replicas_every_n_steps = None;
        }
        scenario.config.max_steps = None;
        scenario.config.max_epochs = Some(2);
        // 22 samples in one process and 11 in the other, in batches of 4.
        let left = scenario.finish_on(2);
        assert_eq!(left[0].0, left[1].0);
        let [first, second] = [22, 11].map(|n| [(0..n).collect(), (0..n).collect::<Vec<_>>()]);
        for (process, expected) in [(0, first.concat()), (1, second.concat())] {
            let mut expected = expected;
            expected.sort_unstable();
            assert_eq!(left[process].1, expected);
        }
        let last = Checkpoint::open(scenario.last()).unwrap();
        assert_eq!(
            (last.progress().global_step, last.progress().samples),
            (12, 66)
        );
    }
}

/// Lets a fault befall one of so many processes, and goes on from the last checkpoint.
fn survives(processes: usize, fault: Fault, whole: &[f64]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(folder.path());
    scenario.fault = Some(fault);
    let output = scenario.run_on(processes);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{fault:?}: {said}");
    assert_ne!(output.status.code(), Some(124), "{fault:?} hangs: {said}");
    let last = Checkpoint::open(scenario.last()).unwrap();
    let expected = match fault.what {
        // The step is finished first.
        What::Terminated => fault.batches + 1,
        // Every second step is saved.
        What::Killed => fault.batches / 2 * 2,
        // The rest leave the step before.
        _ => fault.batches,
    };
    // Where the processors are busy, the signal may reach its handler a step later than it was sent.
    let late = u64::from(matches!(fault.what, What::Terminated));
    let steps = last.progress().global_step;
    assert!(
        (expected..=expected + late).contains(&steps),
        "{fault:?}: {steps}"
    );

    scenario.fault = None;
    scenario.config.resume = Some(Resume::Last);
    let left = scenario.finish_on(processes);
    assert_eq!(left[0].0, whole, "{fault:?}");
    output
}

#[test]
fn whatever_befalls_a_process_ends_all() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    for processes in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let whole = Scenario::new(folder.path()).finish_on(processes)[0]
            .0
            .clone();
        for what in [What::Killed, What::Panics, What::Fails] {
            let fault = Fault {
                process: 1,
                batches: 3,
                what,
            };
            let output = survives(processes, fault, &whole);
            let said = String::from_utf8_lossy(&output.stderr);
            if what != What::Killed {
                let expected = "error: process 1 has failed: rank 1: epoch 0, batch 3, step 3: ";
                assert!(said.contains(expected), "{said}");
                assert!(said.contains("out of luck"), "{said}");
                assert_eq!(output.status.code(), Some(1), "{said}");
            }
        }
    }
}

#[test]
fn a_loader_that_fails_in_one_process_ends_all() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(folder.path());
    // Unshuffled, the second process has samples 14 and 15 of the fourth batch.
    scenario.fault = Some(Fault {
        process: 1,
        batches: 15,
        what: What::LoaderFails,
    });
    let output = scenario.run_on(2);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = "rank 1: epoch 0, batch 3, step 3: train data: ";
    assert!(
        said.contains(expected) && said.contains("the disk is gone"),
        "{said}"
    );
    assert_eq!(
        Checkpoint::open(scenario.last())
            .unwrap()
            .progress()
            .global_step,
        3
    );
}

#[test]
fn a_signal_to_one_process_ends_all_after_the_step() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let whole = Scenario::new(folder.path()).finish_on(2)[0].0.clone();
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    for _ in 0..20 {
        let fault = Fault {
            process: random.random_range(0..2),
            batches: random.random_range(0..STEPS - 1),
            what: What::Terminated,
        };
        let output = survives(2, fault, &whole);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(143), "{fault:?}: {said}");
        assert!(said.contains("terminated (SIGTERM)"), "{said}");
    }
}
