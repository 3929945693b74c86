//! The ways of training that are compared.

use crate::models::{Kind, Net, Ready, marks};
use crate::{CHILD, setting};
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::{LoggerNames, ProgressMode};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::testing::Cpu;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Steps at the start of each run that are not timed.
const WARM_UP: usize = 4;

/// What trains in this process, kept over all rounds as a program would.
pub struct Here {
    one_thread: [ThreadPool; 2],
    two: Trainer<Net<Cpu>>,
    all: Trainer<Net<Cpu>>,
    clocks: [Clock; 2],
}

impl Here {
    pub fn new() -> Self {
        let clocks = [Clock::default(), Clock::default()];
        let device = Default::default();
        let trainer = |clock: &Clock| Trainer::new(config(), device).with_callback(clock.clone());
        Self {
            one_thread: [one_thread(), one_thread()],
            two: trainer(&clocks[0]).with_devices([device, device]),
            all: trainer(&clocks[1]),
            clocks,
        }
    }

    pub fn one(&mut self, kind: Kind) -> f64 {
        self.one_thread[0].install(|| fit_alone(kind, 2, false, || {}))
    }

    pub fn two(&mut self, kind: Kind) -> f64 {
        fit(&mut self.two, &self.clocks[0], kind, 2, false)
    }

    pub fn two_wide(&mut self, kind: Kind) -> f64 {
        fit(&mut self.two, &self.clocks[0], kind, 4, false)
    }

    pub fn all_threads(&mut self, kind: Kind) -> f64 {
        fit(&mut self.all, &self.clocks[1], kind, 2, false)
    }

    pub fn two_apart(&mut self, kind: Kind) -> f64 {
        self.apart(kind, false)
    }

    fn apart(&mut self, kind: Kind, timed: bool) -> f64 {
        let start = Barrier::new(2);
        let half = |pool: &ThreadPool| {
            pool.install(|| {
                fit_alone(kind, 1, timed, || {
                    start.wait();
                })
            })
        };
        let [first, second] = &self.one_thread;
        thread::scope(|scope| {
            let other = scope.spawn(|| half(second));
            half(first) + other.join().unwrap()
        })
    }

    /// Where the time of a step of two replicas goes.
    pub fn timed(&mut self, kind: Kind) -> Step {
        marks::take();
        fit(&mut self.two, &self.clocks[0], kind, 2, true);
        Step::of(&marks::take())
    }

    /// The same for trainers that do not know of each other.
    pub fn timed_apart(&mut self, kind: Kind) -> Step {
        marks::take();
        self.apart(kind, true);
        Step::of(&marks::take())
    }
}

/// Milliseconds of the parts of a step, each the median over the steps.
#[derive(Clone, Copy)]
pub struct Step {
    pub whole: f64,
    /// Forward and backward pass.
    pub passes: f64,
    /// The first replica waits for the last to have its gradients.
    pub waiting: f64,
    /// Since the last replica has its gradients, until both optimizers begin.
    pub averaging: f64,
    pub optimizer: f64,
}

impl Step {
    fn of(marks: &marks::Marks) -> Self {
        let [(_, first), (_, second)] = &marks[..] else {
            panic!("{} replicas", marks.len());
        };
        let (first, second) = (first.as_chunks::<4>().0, second.as_chunks::<4>().0);
        let steps: Vec<_> = first.iter().zip(second).skip(WARM_UP).collect();
        let part = |part: fn(&[Instant; 4], &[Instant; 4]) -> Duration| {
            let times = steps.iter().map(|(a, b)| part(a, b).as_secs_f64() * 1000.0);
            crate::median(times.collect())
        };
        let whole = steps
            .windows(2)
            .map(|pair| (pair[1].0[0] - pair[0].0[0]).as_secs_f64());
        Self {
            whole: crate::median(whole.map(|seconds| seconds * 1000.0).collect()),
            passes: part(|a, b| (a[1] - a[0]).max(b[1] - b[0])),
            waiting: part(|a, b| a[1].max(b[1]) - a[1].min(b[1])),
            averaging: part(|a, b| a[2].max(b[2]) - a[1].max(b[1])),
            optimizer: part(|a, b| (a[3] - a[2]).max(b[3] - b[2])),
        }
    }
}

fn one_thread() -> ThreadPool {
    let pool = ThreadPoolBuilder::new().num_threads(1).stack_size(8 << 20);
    pool.build().unwrap()
}

pub fn config() -> TrainerConfig {
    TrainerConfig::new()
        .with_accelerator("cpu")
        .with_max_epochs(1)
        .with_logger(LoggerNames::none())
        .with_progress(ProgressMode::Off)
        .with_model_summary(false)
        .with_checkpointing(false)
}

/// Samples per second of a new trainer, on this thread's pool.
fn fit_alone(kind: Kind, units: usize, timed: bool, ready: impl FnOnce()) -> f64 {
    let clock = Clock::default();
    let device = Default::default();
    let mut trainer = Trainer::<Net<Cpu>>::new(config(), device).with_callback(clock.clone());
    ready();
    fit(&mut trainer, &clock, kind, units, timed)
}

/// Samples per second with batches of so many units.
fn fit<B: AutodiffBackend>(
    trainer: &mut Trainer<Net<B>>,
    clock: &Clock,
    kind: Kind,
    units: usize,
    timed: bool,
) -> f64 {
    let steps = setting("FIREBOX_BENCH_STEPS").unwrap_or(kind.steps()) + WARM_UP;
    let dataset = InMemDataset::new(vec![(); steps * units]);
    let loader = Loader::new(dataset, Ready::new(kind)).batch_size(units);
    let model = Net::new(kind, timed, &Default::default());
    clock.0.borrow_mut().clear();
    let fitted = trainer.fit(model, &mut Loaders::new(loader)).unwrap();
    assert_eq!(fitted.progress.global_step, steps as u64);
    let ends = clock.0.borrow();
    // Other processes than the first have no callbacks.
    let Some((first, last)) = ends.get(WARM_UP - 1).zip(ends.last()) else {
        return 0.0;
    };
    let samples = (steps - WARM_UP) * units * kind.unit();
    samples as f64 / (*last - *first).as_secs_f64()
}

/// When batches ended.
#[derive(Default, Clone)]
struct Clock(Rc<RefCell<Vec<Instant>>>);

impl<M: TrainModule> Callback<M> for Clock {
    fn on_train_batch_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
        self.0.borrow_mut().push(Instant::now());
        Ok(())
    }
}

/// A process of one replica, which runs a round when it is asked to.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(kind: Kind) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, format!("{kind:?}").to_lowercase())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub fn ask(&mut self) {
        writeln!(self.orders.as_mut().unwrap(), "run").unwrap();
    }

    pub fn answer(&mut self) -> f64 {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    pub fn run(&mut self) -> f64 {
        self.ask();
        self.answer()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when nobody can ask any more.
        self.orders = None;
        let _ = self.child.wait();
    }
}

pub fn serve(kind: Kind) {
    let pool = one_thread();
    for line in std::io::stdin().lines() {
        line.unwrap();
        println!("{}", pool.install(|| fit_alone(kind, 2, false, || {})));
    }
}

/// One process of several.
pub struct Rank(pub Kind, pub TrainerConfig);

impl Recipe for Rank {
    fn config(&self) -> &TrainerConfig {
        &self.1
    }

    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let clock = Clock::default();
        let mut trainer = cx.trainer().with_callback(clock.clone());
        let speed = fit::<B>(&mut trainer, &clock, self.0, 2, false);
        if cx.is_root() {
            println!("speed {speed}");
        }
        Ok(())
    }
}
