//! What a run shows of itself, and the Prometheus text format, which says it.

use super::process::{self, Memory};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The window of `firebox_samples_per_second`.
const WINDOW: Duration = Duration::from_secs(10);

/// How far the points of the window lie apart at least, in milliseconds.
const POINT_MS: u64 = 250;

/// The numbers of a run, as they are now. The trainer writes them, a scrape reads them; neither
/// waits for the other for longer than it takes to copy the named values.
pub(crate) struct Gauges {
    run: String,
    start: Instant,
    steps: AtomicU64,
    epoch: AtomicU64,
    batches: AtomicU64,
    samples: AtomicU64,
    /// When the next point of the throughput is due, in milliseconds since `start`.
    next_point: AtomicU64,
    throughput: Mutex<Throughput>,
    named: Mutex<Named>,
}

/// What changes on logged steps only.
#[derive(Default, Clone)]
struct Named {
    values: BTreeMap<String, f64>,
    /// Used and free bytes by device.
    memory: BTreeMap<String, (u64, Option<u64>)>,
}

impl Gauges {
    /// Nothing counted yet. `run` is the run's name.
    pub(crate) fn new(run: impl Into<String>) -> Self {
        Self {
            run: run.into(),
            start: Instant::now(),
            steps: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            next_point: AtomicU64::new(0),
            throughput: Mutex::default(),
            named: Mutex::default(),
        }
    }

    /// How far the run is: steps taken, the epoch's index, batches and samples seen, each in all.
    /// For every step. The first call is where the throughput starts to be measured, so a resumed
    /// run makes it before its first step.
    pub(crate) fn count(&self, step: u64, epoch: u64, batches: u64, samples: u64) {
        self.steps.store(step, Relaxed);
        self.epoch.store(epoch, Relaxed);
        self.batches.store(batches, Relaxed);
        self.samples.store(samples, Relaxed);
        let now = self.start.elapsed();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        // A scrape that holds the lock must not make the trainer wait: the next step will do.
        if millis >= self.next_point.load(Relaxed)
            && let Ok(mut throughput) = self.throughput.try_lock()
        {
            throughput.add(now, samples);
            self.next_point.store(millis + POINT_MS, Relaxed);
        }
    }

    /// A value by its name in the log. `train/loss`, `lr` and `lr/<group>` get metrics of their
    /// own, too.
    pub(crate) fn set(&self, name: &str, value: f64) {
        let values = &mut lock(&self.named).values;
        match values.get_mut(name) {
            Some(known) => *known = value,
            None => drop(values.insert(name.to_owned(), value)),
        }
    }

    /// The memory of a device, in bytes.
    pub(crate) fn set_memory(&self, device: &str, used: u64, free: Option<u64>) {
        let memory = &mut lock(&self.named).memory;
        match memory.get_mut(device) {
            Some(known) => *known = (used, free),
            None => drop(memory.insert(device.to_owned(), (used, free))),
        }
    }

    /// All of it in the text exposition format, version 0.0.4
    /// (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
    pub(crate) fn text(&self) -> String {
        self.render(
            self.start.elapsed(),
            process::memory(),
            process::start_time(),
        )
    }

    fn render(&self, now: Duration, memory: Option<Memory>, started: Option<f64>) -> String {
        // Copied, so that the trainer does not wait while the text is made.
        let named = lock(&self.named).clone();
        let samples = self.samples.load(Relaxed);
        let rate = lock(&self.throughput).per_second(now, samples);
        let mut text = Text::default();

        text.family(
            "firebox_info",
            GAUGE,
            "The version of firebox, and the run's name.",
        );
        let info = [("version", env!("CARGO_PKG_VERSION")), ("run", &self.run)];
        text.sample(&info, 1);
        text.family("firebox_steps_total", COUNTER, "Optimizer steps taken.");
        text.sample(&[], self.steps.load(Relaxed));
        text.family(
            "firebox_batches_total",
            COUNTER,
            "Batches seen in training.",
        );
        text.sample(&[], self.batches.load(Relaxed));
        text.family(
            "firebox_samples_total",
            COUNTER,
            "Samples seen in training.",
        );
        text.sample(&[], samples);
        text.family("firebox_epoch", GAUGE, "The epoch's index, from 0.");
        text.sample(&[], self.epoch.load(Relaxed));
        let help = "Samples seen per second, over the last 10 seconds.";
        text.family("firebox_samples_per_second", GAUGE, help);
        text.sample(&[], Float(rate));

        text.family("firebox_loss", GAUGE, "The last logged train/loss.");
        if let Some(loss) = named.values.get("train/loss") {
            text.sample(&[], Float(*loss));
        }
        let help = "The last logged learning rate, by parameter group where there are several.";
        text.family("firebox_learning_rate", GAUGE, help);
        for (name, value) in &named.values {
            if name == "lr" {
                text.sample(&[], Float(*value));
            } else if let Some(group) = name.strip_prefix("lr/") {
                text.sample(&[("group", group)], Float(*value));
            }
        }
        text.family(
            "firebox_metric",
            GAUGE,
            "The last logged value, by its name in the log.",
        );
        for (name, value) in &named.values {
            text.sample(&[("name", name)], Float(*value));
        }

        let help = "Memory of the device in use, in bytes.";
        text.family("firebox_device_memory_used_bytes", GAUGE, help);
        for (device, (used, _)) in &named.memory {
            text.sample(&[("device", device)], used);
        }
        let help = "Memory of the device not in use, in bytes.";
        text.family("firebox_device_memory_free_bytes", GAUGE, help);
        for (device, (_, free)) in &named.memory {
            if let Some(free) = free {
                text.sample(&[("device", device)], free);
            }
        }
        let help = "Resident memory size in bytes.";
        text.family("process_resident_memory_bytes", GAUGE, help);
        if let Some(memory) = memory {
            text.sample(&[], memory.resident);
        }
        let help = "Start time of the process since unix epoch in seconds.";
        text.family("process_start_time_seconds", GAUGE, help);
        if let Some(started) = started {
            text.sample(&[], Float(started));
        }
        text.done
    }
}

/// How many samples there were at points of time; the counts rise from point to point.
#[derive(Default)]
struct Throughput {
    points: VecDeque<(Duration, u64)>,
}

impl Throughput {
    fn add(&mut self, now: Duration, samples: u64) {
        match self.points.back() {
            Some((_, last)) if *last == samples => return,
            // Another fit counts from its own start.
            Some((_, last)) if *last > samples => self.points.clear(),
            _ => {}
        }
        self.points.push_back((now, samples));
        // The newest point before the window is its start. One more is kept, since the newest has
        // nothing to be compared with when no step ended in the window.
        while self
            .points
            .get(2)
            .is_some_and(|(at, _)| *at + WINDOW <= now)
        {
            self.points.pop_front();
        }
    }

    /// Samples per second over the window, or since the first point where that is later. Where no
    /// step ended in the window, over the time back to the step before: long steps have a rate, too,
    /// and the rate of a run that hangs goes towards 0.
    fn per_second(&self, now: Duration, samples: u64) -> f64 {
        let mut earlier = self.points.iter().filter(|(_, count)| *count < samples);
        let before = earlier.clone().rfind(|(at, _)| *at + WINDOW <= now);
        let Some((at, count)) = before.or_else(|| earlier.next()) else {
            return 0.0;
        };
        let seconds = now.saturating_sub(*at).as_secs_f64();
        if seconds > 0.0 {
            (samples - count) as f64 / seconds
        } else {
            0.0
        }
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Metrics in the text format, family by family.
#[derive(Default)]
struct Text {
    done: String,
    name: &'static str,
    /// What goes before the first sample of the family; a family without samples is left out.
    header: String,
}

impl Text {
    /// Begins a family. Neither text may have a backslash or a line feed.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        self.header = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.done += &std::mem::take(&mut self.header);
        self.done += self.name;
        for (i, (label, text)) in labels.iter().enumerate() {
            self.done.push(if i == 0 { '{' } else { ',' });
            self.done += label;
            self.done += "=\"";
            for c in text.chars() {
                match c {
                    '\\' => self.done += "\\\\",
                    '"' => self.done += "\\\"",
                    '\n' => self.done += "\\n",
                    c => self.done.push(c),
                }
            }
            self.done.push('"');
        }
        if !labels.is_empty() {
            self.done.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.done, " {value}");
    }
}

/// A float as Go's `ParseFloat` reads it; infinity needs its sign in this format.
struct Float(f64);

impl Display for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            // The shortest form that gives the same number, with an exponent where it is long.
            value => write!(f, "{value:?}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn seconds(value: f64) -> Duration {
        Duration::from_secs_f64(value)
    }

    #[test]
    fn the_text_is_exact() {
        let gauges = Gauges::new("mnist \"1\"\\\n");
        gauges.count(12, 3, 24, 1536);
        gauges.set("train/loss", 9.0);
        gauges.set("train/loss", 0.5);
        gauges.set("val/\"acc\"", f64::NAN);
        gauges.set("up", f64::INFINITY);
        gauges.set("down", f64::NEG_INFINITY);
        gauges.set("lr", 1e-7);
        gauges.set("lr/back\\bone\n", 0.1);
        gauges.set_memory("cuda:0", 5, None);
        gauges.set_memory("cuda:0", 1 << 40, Some(7));
        gauges.set_memory("cuda:1", 3, None);
        let memory = Memory {
            resident: 4096,
            peak: 8192,
        };
        let text = gauges.render(Duration::ZERO, Some(memory), Some(1_700_000_000.25));
        let version = env!("CARGO_PKG_VERSION");
        let expected = r#"# HELP firebox_info The version of firebox, and the run's name.
# TYPE firebox_info gauge
firebox_info{version="VERSION",run="mnist \"1\"\\\n"} 1
# HELP firebox_steps_total Optimizer steps taken.
# TYPE firebox_steps_total counter
firebox_steps_total 12
# HELP firebox_batches_total Batches seen in training.
# TYPE firebox_batches_total counter
firebox_batches_total 24
# HELP firebox_samples_total Samples seen in training.
# TYPE firebox_samples_total counter
firebox_samples_total 1536
# HELP firebox_epoch The epoch's index, from 0.
# TYPE firebox_epoch gauge
firebox_epoch 3
# HELP firebox_samples_per_second Samples seen per second, over the last 10 seconds.
# TYPE firebox_samples_per_second gauge
firebox_samples_per_second 0.0
# HELP firebox_loss The last logged train/loss.
# TYPE firebox_loss gauge
firebox_loss 0.5
# HELP firebox_learning_rate The last logged learning rate, by parameter group where there are several.
# TYPE firebox_learning_rate gauge
firebox_learning_rate 1e-7
firebox_learning_rate{group="back\\bone\n"} 0.1
# HELP firebox_metric The last logged value, by its name in the log.
# TYPE firebox_metric gauge
firebox_metric{name="down"} -Inf
firebox_metric{name="lr"} 1e-7
firebox_metric{name="lr/back\\bone\n"} 0.1
firebox_metric{name="train/loss"} 0.5
firebox_metric{name="up"} +Inf
firebox_metric{name="val/\"acc\""} NaN
# HELP firebox_device_memory_used_bytes Memory of the device in use, in bytes.
# TYPE firebox_device_memory_used_bytes gauge
firebox_device_memory_used_bytes{device="cuda:0"} 1099511627776
firebox_device_memory_used_bytes{device="cuda:1"} 3
# HELP firebox_device_memory_free_bytes Memory of the device not in use, in bytes.
# TYPE firebox_device_memory_free_bytes gauge
firebox_device_memory_free_bytes{device="cuda:0"} 7
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 4096
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1700000000.25
"#;
        assert_eq!(text, expected.replace("VERSION", version));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let text = Gauges::new("").render(Duration::ZERO, None, None);
        let names: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(['{', ' ']).next().unwrap())
            .collect();
        let expected = [
            "firebox_info",
            "firebox_steps_total",
            "firebox_batches_total",
            "firebox_samples_total",
            "firebox_epoch",
            "firebox_samples_per_second",
        ];
        assert_eq!(names, expected);
        assert_eq!(text.matches("# HELP").count(), expected.len());
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let mut throughput = Throughput::default();
        assert_eq!(throughput.per_second(seconds(1.0), 0), 0.0);
        // A resumed run starts with a million samples; they were not seen in this second.
        throughput.add(seconds(1.0), 1_000_000);
        assert_eq!(throughput.per_second(seconds(1.0), 1_000_000), 0.0);
        assert_eq!(throughput.per_second(seconds(1.0), 1_000_001), 0.0);
        assert_eq!(throughput.per_second(seconds(3.0), 1_000_100), 50.0);
        // 100 samples a second for 20 seconds, then 400 a second for 10.
        for quarter in 1..=80 {
            throughput.add(
                seconds(1.0 + 0.25 * f64::from(quarter)),
                1_000_000 + 25 * quarter as u64,
            );
        }
        assert_eq!(throughput.per_second(seconds(21.0), 1_002_000), 100.0);
        for quarter in 1..=40 {
            throughput.add(
                seconds(21.0 + 0.25 * f64::from(quarter)),
                1_002_000 + 100 * quarter as u64,
            );
        }
        assert_eq!(throughput.per_second(seconds(31.0), 1_006_000), 400.0);
        // The window and two points before it; not one for each step of the run.
        assert_eq!(throughput.points.len(), 42);
    }

    #[test]
    fn the_rate_of_long_steps_and_of_a_run_that_hangs() {
        let mut throughput = Throughput::default();
        for step in 0..5_u64 {
            throughput.add(seconds(30.0 * step as f64), 600 * step);
        }
        // The last step ended at 120 s.
        assert_eq!(throughput.per_second(seconds(120.0), 2400), 20.0);
        assert_eq!(throughput.per_second(seconds(125.0), 2400), 600.0 / 35.0);
        assert_eq!(throughput.per_second(seconds(150.0), 2400), 10.0);
        assert_eq!(throughput.per_second(seconds(6090.0), 2400), 0.1);
        assert_eq!(throughput.points.len(), 3);
    }

    #[test]
    fn another_fit_starts_the_rate_anew() {
        let mut throughput = Throughput::default();
        throughput.add(seconds(0.0), 0);
        throughput.add(seconds(10.0), 5000);
        throughput.add(seconds(10.0), 5000);
        assert_eq!(throughput.points.len(), 2);
        assert_eq!(throughput.per_second(seconds(11.0), 8), 8.0 / 11.0);
        throughput.add(seconds(20.0), 100);
        assert_eq!(throughput.per_second(seconds(24.0), 140), 10.0);
    }

    #[test]
    fn steps_are_counted_while_a_scrape_reads() {
        let gauges = Gauges::new("");
        let held = lock(&gauges.throughput);
        gauges.count(1, 0, 1, 8);
        assert_eq!(gauges.samples.load(Relaxed), 8);
        assert!(held.points.is_empty());
        drop(held);
        gauges.count(2, 0, 2, 16);
        assert_eq!(lock(&gauges.throughput).points.len(), 1);
        // Two points are not nearer to one another than a quarter of a second.
        assert!(gauges.next_point.load(Relaxed) >= POINT_MS);
    }

    /// What the parser of Prometheus's own Python client makes of the text.
    #[test]
    fn the_python_client_reads_the_same() {
        const SCRIPT: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families as parse
for family in parse(sys.stdin.buffer.read().decode()):
    assert family.documentation, family
    for sample in family.samples:
        print(family.type, sample.name, sorted(sample.labels.items()), float(sample.value))
";
        let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
        let there = Command::new(&python)
            .args(["-c", "import prometheus_client"])
            .stderr(Stdio::null())
            .status();
        if !there.is_ok_and(|status| status.success()) {
            eprintln!("skipped: `{python}` has no prometheus_client");
            return;
        }
        let gauges = Gauges::new("a\\nb\"}\u{e9}, x=\"1\"");
        gauges.count(1, 2, 3, 4);
        gauges.set("lr/a\\", 1e-300);
        gauges.set("\n# TYPE x counter\nx 1", f64::NAN);
        gauges.set("", f64::NEG_INFINITY);
        gauges.set_memory("cuda:0", 1 << 40, Some(0));
        let memory = Memory {
            resident: 4096,
            peak: 8192,
        };
        let text = gauges.render(Duration::ZERO, Some(memory), Some(1_700_000_000.25));
        let mut child = Command::new(&python)
            .args(["-c", SCRIPT])
            .env("PYTHONIOENCODING", "utf-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let info = format!("('version', '{}')", env!("CARGO_PKG_VERSION"));
        let expected = r#"gauge firebox_info [('run', 'a\\nb"}é, x="1"'), VERSION] 1.0
counter firebox_steps_total [] 1.0
counter firebox_batches_total [] 3.0
counter firebox_samples_total [] 4.0
gauge firebox_epoch [] 2.0
gauge firebox_samples_per_second [] 0.0
gauge firebox_learning_rate [('group', 'a\\')] 1e-300
gauge firebox_metric [('name', '')] -inf
gauge firebox_metric [('name', '\n# TYPE x counter\nx 1')] nan
gauge firebox_metric [('name', 'lr/a\\')] 1e-300
gauge firebox_device_memory_used_bytes [('device', 'cuda:0')] 1099511627776.0
gauge firebox_device_memory_free_bytes [('device', 'cuda:0')] 0.0
gauge process_resident_memory_bytes [] 4096.0
gauge process_start_time_seconds [] 1700000000.25
"#;
        let read = String::from_utf8(output.stdout).unwrap();
        assert_eq!(read, expected.replace("VERSION", &info));
    }
}
