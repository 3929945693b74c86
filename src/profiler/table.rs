//! Times of a run's parts, summed up.

use super::Phase;
use crate::table;
use serde::Serialize;
use std::time::Duration;

/// Where the time of a run went, on its first device.
///
/// A part that holds others (a validation whose callbacks are timed) counts what is left of it, so that
/// the shares of all parts sum up to what was timed of the run. What loader threads do beside the run
/// has no share.
#[derive(Debug, Clone, Serialize)]
pub struct Profile {
    /// From the beginning of the run to its end, in seconds.
    pub wall_seconds: f64,
    /// The parts that took any time, in the order of a step.
    pub phases: Vec<PhaseTime>,
}

/// How often a part ran, and how long it took.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseTime {
    /// The part: `forward`, `optimizer`.
    pub name: &'static str,
    /// How often it ran.
    pub count: u64,
    /// All of its times, in seconds.
    pub total_seconds: f64,
    /// Its share of the run; none for what may be on another thread.
    pub share: Option<f64>,
    /// The mean of its times, in milliseconds.
    pub mean_ms: f64,
    /// Half of its times were shorter, in milliseconds.
    pub p50_ms: f64,
    /// 95 % of its times were shorter, in milliseconds.
    pub p95_ms: f64,
}

impl Profile {
    pub(super) fn new<'a>(
        wall: Duration,
        phases: impl Iterator<Item = (Phase, &'a Samples)>,
    ) -> Self {
        let wall_seconds = wall.as_secs_f64();
        let of_phase = |(phase, samples): (Phase, &Samples)| {
            let total_seconds = samples.total.as_secs_f64();
            let beside = matches!(phase, Phase::Load | Phase::Transfer);
            (samples.count > 0).then(|| PhaseTime {
                name: phase.name(),
                count: samples.count,
                total_seconds,
                share: (!beside).then(|| total_seconds / wall_seconds.max(f64::MIN_POSITIVE)),
                mean_ms: total_seconds / samples.count as f64 * 1e3,
                p50_ms: samples.percentile(0.5) * 1e3,
                p95_ms: samples.percentile(0.95) * 1e3,
            })
        };
        Self {
            wall_seconds,
            phases: phases.filter_map(of_phase).collect(),
        }
    }

    /// As a table.
    pub(crate) fn render(&self) -> String {
        let ms = |value: f64| format!("{value:.3}");
        let share = |phase: &PhaseTime| match phase.share {
            Some(share) => format!("{:.1} %", share * 100.0),
            None => "(beside)".to_owned(),
        };
        let row = |phase: &PhaseTime| {
            [
                phase.name.to_owned(),
                share(phase),
                phase.count.to_string(),
                ms(phase.mean_ms),
                ms(phase.p50_ms),
                ms(phase.p95_ms),
                format!("{:.2}", phase.total_seconds),
            ]
        };
        let mut rows: Vec<_> = self.phases.iter().map(row).collect();
        let timed: f64 = self.phases.iter().filter_map(|phase| phase.share).sum();
        let rest = (1.0 - timed).max(0.0);
        let mut others = ["(rest)".to_owned(), format!("{:.1} %", rest * 100.0)].into_iter();
        let seconds = format!("{:.2}", rest * self.wall_seconds);
        rows.push(std::array::from_fn(|column| match column {
            6 => seconds.clone(),
            _ => others.next().unwrap_or_default(),
        }));
        let header = [
            "part", "share", "times", "mean ms", "p50 ms", "p95 ms", "total s",
        ];
        table::render(header, &rows)
    }
}

/// How many times are kept before every other one is left out.
const MAX_KEPT: usize = 1 << 17;

/// Times of one part. All are kept up to [`MAX_KEPT`]; from then on every second, fourth and so on, so
/// that percentiles stay those of the whole run.
pub(super) struct Samples {
    count: u64,
    total: Duration,
    /// In seconds.
    kept: Vec<f32>,
    every: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            count: 0,
            total: Duration::ZERO,
            kept: Vec::new(),
            every: 1,
        }
    }
}

impl Samples {
    pub(super) fn add(&mut self, took: Duration) {
        if self.count.is_multiple_of(self.every) {
            if self.kept.len() == MAX_KEPT {
                let mut index = 0;
                self.kept.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
            if self.count.is_multiple_of(self.every) {
                self.kept.push(took.as_secs_f32());
            }
        }
        self.count += 1;
        self.total += took;
    }

    /// The smallest time that this share of all is not longer than (the nearest rank), in seconds.
    fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.kept.clone();
        sorted.sort_by(f32::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted
            .get(rank.saturating_sub(1))
            .map_or(0.0, |time| f64::from(*time))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_times() {
        let mut samples = Samples::default();
        for ms in 1..=100 {
            samples.add(Duration::from_millis(ms));
        }
        assert_eq!(samples.percentile(0.5), f64::from(0.05_f32));
        assert_eq!(samples.percentile(0.95), f64::from(0.095_f32));
        assert_eq!(Samples::default().percentile(0.5), 0.0);
        // More than are kept, in an order that every second one would spoil if it were not even.
        let mut many = Samples::default();
        let count = 5 * MAX_KEPT as u64;
        for index in 0..count {
            many.add(Duration::from_micros(index));
        }
        assert_eq!(many.count, count);
        assert!(many.kept.len() <= MAX_KEPT);
        let middle = count as f64 * 0.5e-6;
        assert!((many.percentile(0.5) - middle).abs() < 1e-4 * middle);
    }

    #[test]
    fn shares_are_of_the_whole_run() {
        let mut samples: [Samples; 2] = std::array::from_fn(|_| Samples::default());
        samples[0].add(Duration::from_secs(3));
        samples[1].add(Duration::from_secs(9));
        let phases = [Phase::Forward, Phase::Load].into_iter().zip(&samples);
        let profile = Profile::new(Duration::from_secs(4), phases);
        assert_eq!(profile.phases[0].share, Some(0.75));
        assert_eq!(profile.phases[1].share, None);
        let table = profile.render();
        let rest = table.lines().last().unwrap();
        assert_eq!(
            rest.split_whitespace().collect::<Vec<_>>(),
            ["(rest)", "25.0", "%", "1.00"]
        );
    }
}
