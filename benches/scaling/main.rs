//! What a second replica on the CPU brings: samples per second of one and of two replicas, for a
//! small convolutional network, a perceptron and a transformer.
//!
//! All of it is measured in one run, in turns, so that a busy machine slows every way of training;
//! each ratio is the median over the rounds of the ratios of neighbours. The batch is the same for
//! all ways, so two replicas have half of it each. The ways:
//!
//! - one replica: a `Trainer` inside of a pool of one thread, where a replica computes as well;
//! - two replicas: `Trainer::with_devices` with the same device twice;
//! - two replicas with twice the batch, so that each has as much to do as one alone;
//! - one device and all threads, as a `Trainer` computes without replicas;
//! - two trainers that do not know of each other, each with half a batch: what two replicas would
//!   reach if they met for nothing;
//! - two processes of one replica each, with a whole batch each: what the hardware allows;
//! - two processes that MPI connects, if the feature `mpi` is on and `mpirun` is there.
//!
//! The share of averaging is timed in runs of their own. There, the training step runs the backward
//! pass itself and notes when it ends, and the optimizer notes when it begins. What lies between the
//! end of the *last* replica's backward pass and the beginning of an optimizer's step is counted:
//! gradients are read, summed, put back, and checked. How long the first replica waits for the last
//! one is printed by itself: that is what the replicas' different speeds cost, not the average.
//!
//! Aims: 1.6 times one replica for the convolutional network and the transformer, and less than
//! 0.05 of a step for averaging. Needs two cores with nothing else to do.
//!
//! `cargo bench --bench scaling` (`--features mpi` for the last way). `FIREBOX_BENCH_ROUNDS` sets the
//! rounds (7), `FIREBOX_BENCH_STEPS` the steps of a round (by default some that take about a second)
//! and makes it one round if nothing else is said, `FIREBOX_BENCH_MODELS` the models
//! (`cnn,mlp,transformer`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark stops at the first failure"
)]
#![allow(missing_docs, reason = "nobody uses a benchmark's items")]

mod models;
mod ways;

use burn::tensor::{Tensor, TensorData};
use firebox::fabric::Reduce;
use firebox::prelude::*;
use firebox::testing::Cpu;
use models::Kind;
use std::process::{Command, ExitCode};
use std::time::Instant;
use ways::{Here, Process, Rank, Step, config, serve};

/// Names the model, in a process that this one has started.
const CHILD: &str = "FIREBOX_BENCH_CHILD";
const RANK: &str = "FIREBOX_BENCH_RANK";

fn main() -> ExitCode {
    let child = |name| std::env::var(name).ok().map(|kind: String| kind.parse());
    if let Some(kind) = child(CHILD) {
        serve(kind.unwrap());
        return ExitCode::SUCCESS;
    }
    if let Some(kind) = child(RANK) {
        return firebox::launch(Rank(kind.unwrap(), config().with_devices(1)));
    }
    let models = std::env::var("FIREBOX_BENCH_MODELS");
    let models = models.unwrap_or_else(|_| "cnn,mlp,transformer".to_owned());
    let mut here = Here::new();
    for name in models.split(',') {
        let kind = name.parse().unwrap();
        scaling(name, kind, &mut here);
        averaging(name, kind, &mut here);
        processes(name, kind);
        over_mpi(name, kind, &mut here);
        println!();
    }
    all_reduce();
    ExitCode::SUCCESS
}

/// A way of training; samples per second.
type Way = fn(&mut Here, Kind) -> f64;

fn scaling(name: &str, kind: Kind, here: &mut Here) {
    let ways: [(&str, Way); 5] = [
        ("1 replica", Here::one),
        ("2 replicas", Here::two),
        ("2 replicas, batch twice as large", Here::two_wide),
        ("1 device, all threads", Here::all_threads),
        ("2 trainers, half a batch each", Here::two_apart),
    ];
    let mut speeds = ways.map(|_| Vec::new());
    for (_, run) in &ways {
        run(here, kind);
    }
    for _ in 0..rounds() {
        for ((_, run), speeds) in ways.iter().zip(&mut speeds) {
            speeds.push(run(here, kind));
        }
    }
    println!("{name}, samples per second:");
    for ((way, _), speeds) in ways.iter().zip(&speeds) {
        println!("{way:<36}{:>8.0}", median(speeds.clone()));
    }
    let [one, two, wide, all, apart] = speeds;
    println!("ratio 2-replicas/{name} {:.2}", ratio(&two, &one));
    println!("ratio 2-replicas-wide/{name} {:.2}", ratio(&wide, &one));
    println!(
        "ratio 2-replicas-over-multithreaded/{name} {:.2}",
        ratio(&two, &all)
    );
    println!("ratio 2-apart/{name} {:.2}", ratio(&apart, &one));
    println!(
        "ratio 2-replicas-over-apart/{name} {:.2}",
        ratio(&two, &apart)
    );
}

/// What averaging takes of a step, and the waiting for the slower replica.
fn averaging(name: &str, kind: Kind, here: &mut Here) {
    let (mut together, mut apart) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        together.push(here.timed(kind));
        apart.push(here.timed_apart(kind));
    }
    println!("parts of a step, ms: passes, waiting, averaging, optimizer, whole");
    for (way, steps) in [("2 replicas", &together), ("2 trainers", &apart)] {
        let part = |part: fn(&Step) -> f64| median(steps.iter().map(part).collect());
        println!(
            "{way:<12}{:>8.2}{:>8.2}{:>8.2}{:>8.2}{:>8.2}",
            part(|s| s.passes),
            // Trainers that do not know of each other wait for nothing.
            if way == "2 replicas" {
                part(|s| s.waiting)
            } else {
                0.0
            },
            if way == "2 replicas" {
                part(|s| s.averaging)
            } else {
                0.0
            },
            part(|s| s.optimizer),
            part(|s| s.whole),
        );
    }
    let share = |part: fn(&Step) -> f64| {
        median(
            together
                .iter()
                .map(|step| part(step) / step.whole)
                .collect(),
        )
    };
    println!("ratio averaging-share/{name} {:.3}", share(|s| s.averaging));
    println!("ratio waiting-share/{name} {:.3}", share(|s| s.waiting));
}

/// Two processes side by side over one of them alone.
fn processes(name: &str, kind: Kind) {
    let mut children = [Process::start(kind), Process::start(kind)];
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    for round in 0..=rounds() {
        let one = children[round % 2].run();
        children.iter_mut().for_each(Process::ask);
        let two: f64 = children.iter_mut().map(Process::answer).sum();
        // The first round is for caches and frequencies.
        if round > 0 {
            alone.push(one);
            both.push(two);
        }
    }
    println!("ratio 2-processes/{name} {:.2}", ratio(&both, &alone));
}

/// Two ranks of MPI over two threads.
fn over_mpi(name: &str, kind: Kind, here: &mut Here) {
    if !cfg!(feature = "mpi") {
        println!("ratio mpi/{name} skipped: the feature `mpi` is off");
        return;
    }
    let (mut ranks, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..rounds().min(5) {
        threads.push(here.two(kind));
        match mpirun(kind) {
            Ok(speed) => ranks.push(speed),
            Err(why) => {
                println!("ratio mpi/{name} skipped: {why}");
                return;
            }
        }
    }
    println!("{:<36}{:>8.0}", "2 processes of MPI", median(ranks.clone()));
    println!("ratio mpi/{name} {:.2}", ratio(&ranks, &threads));
}

fn mpirun(kind: Kind) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("mpirun")
        // Two ranks get one core each by `mpirun`'s own choice, without the cores' other threads.
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
        ])
        .args(["-np", "2"])
        .arg(program)
        .env(RANK, format!("{kind:?}").to_lowercase())
        .output()
        .map_err(|e| format!("mpirun: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let speed = text
        .lines()
        .find_map(|line| line.strip_prefix("speed ")?.parse().ok());
    speed.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        format!("mpirun: {} {}", output.status, last.unwrap_or_default())
    })
}

/// The speed of an all-reduce between two replicas over that of a plain copy of as much memory.
fn all_reduce() {
    let cpu = Default::default();
    let fabric = Fabric::<Cpu>::new(cpu).with_devices([cpu, cpu]);
    for megabytes in [1, 10, 100] {
        let (numbers, rounds) = (megabytes * 250_000, (200 / megabytes).clamp(5, 50));
        let from = vec![1.0_f32; numbers];
        let mut to = vec![0.0_f32; numbers];
        let copies = (0..rounds).map(|_| {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
            start.elapsed().as_secs_f64()
        });
        let copy = median(copies.collect());
        let reduced = fabric.launch(|fabric| {
            let times = (0..rounds).map(|_| {
                let data = TensorData::new(vec![1.0_f32; numbers], [numbers]);
                let mine = Tensor::<Cpu, 1>::from_data(data, fabric.device());
                fabric.barrier()?;
                let start = Instant::now();
                std::hint::black_box(fabric.all_reduce(mine, Reduce::Mean)?);
                Ok(start.elapsed().as_secs_f64())
            });
            Ok(median(times.collect::<Result<_>>()?))
        });
        let reduce = reduced.unwrap().into_iter().fold(0.0, f64::max);
        println!(
            "{megabytes:>3} MB: copy {:.2} ms, all-reduce {:.2} ms",
            copy * 1e3,
            reduce * 1e3
        );
        println!(
            "ratio all-reduce-over-copy/{megabytes}MB {:.2}",
            copy / reduce
        );
    }
}

fn setting(name: &str) -> Option<usize> {
    let value = std::env::var(name).ok()?;
    Some(value.parse::<usize>().expect(name).max(1))
}

fn rounds() -> usize {
    // Who shortens the rounds wants to see whether it runs.
    let default = if setting("FIREBOX_BENCH_STEPS").is_some() {
        1
    } else {
        7
    };
    setting("FIREBOX_BENCH_ROUNDS").unwrap_or(default)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// The median of the ratios of each round.
fn ratio(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a / b).collect())
}
