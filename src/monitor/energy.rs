//! How much energy a run uses, and an estimate of the CO2 that goes with it.

use super::process;
use crate::error::{Error, ErrorKind, Result};
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Power of a processor's thread that computes, in watts.
///
/// Cloud Carbon Footprint (<https://www.cloudcarbonfootprint.org/docs/methodology/>, appendix I)
/// gives, from the servers of SPECpower_ssj2008, watts per vCPU at full load as 3.5 for AWS, 3.76
/// for Azure and 4.26 for Google Cloud. This is the one in the middle.
const WATTS_PER_THREAD: f64 = 3.76;

/// How often `nvidia-smi` is started at most.
const GPU_INTERVAL: Duration = Duration::from_secs(10);

/// After this, `nvidia-smi` is taken to hang and is ended.
const GPU_TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the energy that the processors and GPUs use while a run lasts.
///
/// Processors: the counters of their packages (RAPL, by Linux's powercap; Intel and AMD). They count
/// all that runs on the machine, without its memory. Mostly only root may read them; where nobody
/// may, or there are none, this process's CPU time is taken times 3.76 W. GPUs: the power of the
/// board as `nvidia-smi` reports it, over time. It is what the driver's sensor saw, which on some
/// GPUs looks a quarter of the time only (<https://arxiv.org/abs/2312.02741>).
#[derive(Debug)]
pub(crate) struct EnergyMeter {
    joules: f64,
    stat: PathBuf,
    packages: Vec<Package>,
    /// CPU time at the last reading.
    cpu_seconds: Option<f64>,
    gpus: Option<Gpus>,
    by_rapl: bool,
    by_cpu_time: bool,
    by_gpu: bool,
    /// Some energy is not in `joules`, and will not come.
    lost: bool,
    /// Why the processors are not measured.
    problem: Option<String>,
}

/// Energy since the run began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// Energy in joules; a kilowatt-hour is 3.6 million.
    pub(crate) joules: f64,
    /// Not all of it is measured: a part is estimated from CPU time, or could not be read and is
    /// missing.
    pub(crate) is_estimate: bool,
    /// What it was read from.
    pub(crate) source: &'static str,
}

/// Where a meter reads.
#[derive(Debug, Clone)]
pub(crate) struct EnergySources {
    /// The folder with the RAPL domains.
    pub(crate) powercap: PathBuf,
    /// The times of the process.
    pub(crate) stat: PathBuf,
    /// The program.
    pub(crate) nvidia_smi: PathBuf,
    /// The GPUs to measure, each as `nvidia-smi -i` takes it: an index in PCI order, which need not
    /// be CUDA's, or a UUID. Empty for none.
    pub(crate) gpus: Vec<String>,
}

impl EnergySources {
    /// Those of this machine.
    pub(crate) fn of_this_machine(gpus: Vec<String>) -> Self {
        Self {
            powercap: "/sys/class/powercap".into(),
            stat: "/proc/self/stat".into(),
            nvidia_smi: "nvidia-smi".into(),
            gpus,
        }
    }
}

impl EnergyMeter {
    /// Measures from now on, and adds what the run has used before: the joules of its last reading,
    /// or 0.
    pub(crate) fn new(sources: EnergySources, joules_so_far: f64) -> Self {
        Self::new_at(sources, joules_so_far, Instant::now())
    }

    fn new_at(sources: EnergySources, joules_so_far: f64, now: Instant) -> Self {
        let mut problem = None;
        let packages = match Package::all(&sources.powercap) {
            Ok(packages) => packages,
            Err(error) => {
                problem = Some(error.to_string());
                Vec::new()
            }
        };
        let mut meter = Self {
            joules: joules_so_far,
            cpu_seconds: process::cpu_seconds(&sources.stat),
            stat: sources.stat,
            packages,
            gpus: None,
            by_rapl: false,
            by_cpu_time: false,
            by_gpu: false,
            lost: false,
            problem,
        };
        for package in &mut meter.packages {
            match package.counter() {
                Ok(counter) => package.last = Some(counter),
                Err(error) => drop(meter.problem.get_or_insert(error.to_string())),
            }
        }
        drop_mirrored(&mut meter.packages);
        if !sources.gpus.is_empty() {
            meter.gpus = Some(Gpus::new(sources.nvidia_smi, sources.gpus, now));
        }
        meter
    }

    /// The energy up to now. It never waits: `nvidia-smi` is started by one reading, every 10
    /// seconds at most, and read by a later one. At least one reading a minute is needed, as the
    /// processors' counters start over after a few minutes.
    pub(crate) fn read(&mut self) -> Reading {
        self.read_at(Instant::now())
    }

    fn read_at(&mut self, now: Instant) -> Reading {
        let mut missing = self.read_processors();
        if let Some(gpus) = &mut self.gpus {
            self.joules += gpus.advance(now);
            self.by_gpu |= gpus.watts.is_some();
            missing |= gpus.watts.is_none() || gpus.failed;
        }
        Reading {
            joules: self.joules,
            is_estimate: self.by_cpu_time || self.lost || missing,
            source: match (self.by_rapl, self.by_cpu_time, self.by_gpu) {
                (false, false, false) => "none",
                (true, false, false) => "RAPL",
                (false, true, false) => "CPU time",
                (true, true, false) => "RAPL and CPU time",
                (false, false, true) => "nvidia-smi",
                (true, false, true) => "RAPL and nvidia-smi",
                (false, true, true) => "CPU time and nvidia-smi",
                (true, true, true) => "RAPL, CPU time and nvidia-smi",
            },
        }
    }

    /// Why processors or GPUs are not measured, for people; the first problem of each.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &str> {
        let gpus = self.gpus.as_ref().and_then(|gpus| gpus.problem.as_deref());
        self.problem.as_deref().into_iter().chain(gpus)
    }

    /// Adds the processors' energy since the last reading; whether some could not be read.
    fn read_processors(&mut self) -> bool {
        let cpu_seconds = process::cpu_seconds(&self.stat);
        let since = cpu_seconds
            .zip(self.cpu_seconds)
            .map(|(now, last)| now - last);
        self.cpu_seconds = cpu_seconds.or(self.cpu_seconds);
        let (mut read, mut compared, mut begun) = (0, false, false);
        for package in &mut self.packages {
            match package.counter() {
                Ok(counter) => {
                    read += 1;
                    let Some(last) = package.last.replace(counter) else {
                        begun = true;
                        continue;
                    };
                    compared = true;
                    let (microjoules, sure) = package.difference(last, counter);
                    self.joules += microjoules as f64 / 1e6;
                    self.lost |= !sure;
                }
                // The counter goes on meanwhile: if it comes back soon, nothing is lost.
                Err(error) => drop(self.problem.get_or_insert(error.to_string())),
            }
        }
        if compared {
            self.by_rapl = true;
            self.lost |= begun;
            return read < self.packages.len();
        }
        // What is estimated here must not be counted again by a counter that comes back.
        if read == 0 {
            self.packages
                .iter_mut()
                .for_each(|package| package.last = None);
        }
        match since {
            Some(seconds) => {
                self.joules += seconds.max(0.0) * WATTS_PER_THREAD;
                self.by_cpu_time = true;
                false
            }
            None => true,
        }
    }
}

/// The energy counter of a processor package.
#[derive(Debug)]
struct Package {
    path: PathBuf,
    /// `package-0`, or `package-0-die-1`.
    name: String,
    /// What the counter has before it starts over, in microjoules.
    range: Option<u64>,
    last: Option<u64>,
}

impl Package {
    /// The package domains, `intel-rapl:0` and so on. Their parts (`intel-rapl:0:1`), the whole
    /// platform (`psys`), which holds the packages, and `intel-rapl-mmio`, which shows them a second
    /// time, would be counted twice
    /// (<https://docs.kernel.org/power/powercap/powercap.html>).
    fn all(powercap: &Path) -> Result<Vec<Self>> {
        let none = || {
            let message = format!(
                "there is no energy counter of a processor in `{}`",
                powercap.display()
            );
            Error::new(ErrorKind::Unavailable, message)
        };
        let folder = std::fs::read_dir(powercap).map_err(|e| none().with_source(e))?;
        let mut packages = Vec::new();
        for entry in folder.filter_map(std::result::Result::ok) {
            let file_name = entry.file_name();
            let index = file_name
                .to_str()
                .and_then(|name| name.strip_prefix("intel-rapl:"));
            if index.is_none_or(|index| index.parse::<u32>().is_err()) {
                continue;
            }
            let path = entry.path();
            let name = std::fs::read_to_string(path.join("name")).unwrap_or_default();
            if name.starts_with("package") {
                packages.push(Self {
                    range: read_number(&path.join("max_energy_range_uj")).ok(),
                    path,
                    name: name.trim().to_owned(),
                    last: None,
                });
            }
        }
        if packages.is_empty() {
            return Err(none());
        }
        packages.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(packages)
    }

    fn counter(&self) -> Result<u64> {
        read_number(&self.path.join("energy_uj"))
    }

    /// Microjoules between two values, and whether that is sure.
    fn difference(&self, last: u64, now: u64) -> (u64, bool) {
        if now >= last {
            return (now - last, true);
        }
        match self.range.and_then(|range| range.checked_sub(last)) {
            Some(to_the_end) => (to_the_end.saturating_add(now), true),
            // At least what it has counted since it started over.
            None => (now, false),
        }
    }
}

/// AMD processors of several dies show the counter of the whole package once for each die
/// (`package-0-die-0`, `package-0-die-1`). Counters of one package that are not even a joule apart
/// are taken as the same one; read one after the other, they differ a little.
fn drop_mirrored(packages: &mut Vec<Package>) {
    let mut kept: Vec<(String, u64)> = Vec::new();
    packages.retain(|package| {
        let (Some((socket, _)), Some(counter @ 1..)) =
            (package.name.split_once("-die-"), package.last)
        else {
            return true;
        };
        let mirrors = |(s, c): &(String, u64)| s == socket && c.abs_diff(counter) < 1_000_000;
        let keep = !kept.iter().any(mirrors);
        kept.push((socket.to_owned(), counter));
        keep
    });
}

fn read_number(path: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        IoErrorKind::PermissionDenied => {
            let path = path.display();
            let message =
                format!("only root may read `{path}`; `chmod o+r {path}` lets others, too");
            Error::new(ErrorKind::Unavailable, message).with_source(e)
        }
        _ => Error::io("read", path, e),
    })?;
    text.trim().parse().map_err(|_| {
        let shown: String = text.trim().chars().take(40).collect();
        let message = format!("`{}` is no number but `{shown}`", path.display());
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// The power of NVIDIA GPUs, by `nvidia-smi`.
#[derive(Debug)]
struct Gpus {
    command: PathBuf,
    ids: Vec<String>,
    running: Option<Child>,
    started: Instant,
    /// The power of all at the last sample.
    watts: Option<f64>,
    /// Up to when the energy is counted.
    counted: Instant,
    /// The last sample could not be had.
    failed: bool,
    problem: Option<String>,
}

impl Gpus {
    fn new(command: PathBuf, ids: Vec<String>, now: Instant) -> Self {
        let mut gpus = Self {
            command,
            ids,
            running: None,
            started: now,
            watts: None,
            counted: now,
            failed: false,
            problem: None,
        };
        gpus.ask(now);
        gpus
    }

    /// Joules since the last call. A sample's power holds until the next one is there, and that of
    /// the first one holds for the time before it.
    fn advance(&mut self, now: Instant) -> f64 {
        self.collect(now);
        let mut joules = 0.0;
        if let Some(watts) = self.watts {
            joules = watts * now.saturating_duration_since(self.counted).as_secs_f64();
            self.counted = now;
        }
        if self.running.is_none() && now.saturating_duration_since(self.started) >= GPU_INTERVAL {
            self.ask(now);
        }
        joules
    }

    fn ask(&mut self, now: Instant) {
        self.started = now;
        let started = Command::new(&self.command)
            .arg("-i")
            .arg(self.ids.join(","))
            .args(["--query-gpu=power.draw", "--format=csv,noheader,nounits"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => self.running = Some(child),
            Err(e) => {
                let message = format!("cannot start `{}`", self.command.display());
                self.fail(Error::new(ErrorKind::Unavailable, message).with_source(e));
            }
        }
    }

    /// Takes the sample of a program that has ended.
    fn collect(&mut self, now: Instant) {
        let Some(child) = &mut self.running else {
            return;
        };
        let name = self.command.display();
        let status = match child.try_wait() {
            Ok(Some(status)) => status,
            Ok(None) => {
                if now.saturating_duration_since(self.started) >= GPU_TIMEOUT {
                    // It may be stuck in the driver and not end at once, so it is not waited for.
                    let _ = child.kill();
                    let message = format!("`{name}` did not end within a minute");
                    self.fail(Error::new(ErrorKind::Unavailable, message));
                }
                return;
            }
            Err(e) => {
                let message = format!("cannot wait for `{name}`");
                self.running = None;
                return self.fail(Error::new(ErrorKind::Io, message).with_source(e));
            }
        };
        let mut output = String::new();
        // A few bytes a GPU: they were in the pipe before it ended.
        let read = child
            .stdout
            .take()
            .map(|mut out| out.read_to_string(&mut output));
        self.running = None;
        let watts = read
            .is_some_and(|read| read.is_ok())
            .then(|| power(&output, self.ids.len()))
            .flatten();
        match watts.filter(|_| status.success()) {
            Some(watts) => {
                self.watts = Some(watts);
                self.failed = false;
            }
            None => {
                let said = output.trim().chars().take(200).collect::<String>();
                let message = format!(
                    "`{name}` does not give the power of GPU {}: {status}, `{}`",
                    self.ids.join(", "),
                    said.replace('\n', "; ")
                );
                self.fail(Error::new(ErrorKind::Unavailable, message));
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.failed = true;
        self.problem.get_or_insert(error.to_string());
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        if let Some(child) = &mut self.running {
            // Not waited for either: the run is over, and must not hang for a sample.
            let _ = child.kill();
            let _ = child.try_wait();
        }
    }
}

/// The sum of one number a line, one line a GPU.
fn power(output: &str, gpus: usize) -> Option<f64> {
    let watts: Option<Vec<f64>> = output
        .lines()
        .map(|line| line.trim().parse().ok())
        .map(|watts| watts.filter(|watts: &f64| watts.is_finite() && *watts >= 0.0))
        .collect();
    watts
        .filter(|watts| watts.len() == gpus)
        .map(|watts| watts.iter().sum())
}

/// How much CO2 goes with electricity, in grams of CO2 equivalent per kilowatt-hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CarbonIntensity(f64);

impl CarbonIntensity {
    /// The world's average of 2025: Ember, Global Electricity Review 2026
    /// (<https://ember-energy.org/latest-insights/global-electricity-review-2026/>). Countries lie
    /// between less than 50 and more than 700.
    pub(crate) const WORLD: Self = Self(458.0);

    /// That of the electricity used here.
    ///
    /// # Errors
    /// A number below 0 or without an end.
    pub(crate) fn new(grams_per_kwh: f64) -> Result<Self> {
        if grams_per_kwh.is_finite() && grams_per_kwh >= 0.0 {
            return Ok(Self(grams_per_kwh));
        }
        Err(Error::config(format!(
            "a carbon intensity of {grams_per_kwh} g/kWh cannot be; use a number from 0, such as \
             {} for the world's average",
            Self::WORLD.0
        )))
    }

    /// Grams of CO2 equivalent for an energy.
    pub(crate) fn grams(self, joules: f64) -> f64 {
        joules / 3.6e6 * self.0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
