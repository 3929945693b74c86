#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use crate::metric::Mode;
use ::burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use serde_json::json;

use super::*;

fn lrs(schedule: &mut impl Schedule, base: f64, times: impl IntoIterator<Item = u64>) -> Vec<f64> {
    times.into_iter().map(|t| schedule.lr(base, t)).collect()
}

fn assert_close(found: &[f64], right: &[f64]) {
    assert_eq!(found.len(), right.len());
    for (found, right) in found.iter().zip(right) {
        assert!(
            (found - right).abs() <= 1e-15 * right.abs().max(1e-3),
            "{found} {right}"
        );
    }
}

#[test]
fn linear_decay_reaches_0_with_its_last_step() {
    let right = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0];
    assert_eq!(lrs(&mut Linear::new(1.0, 0.0, 8), 1.0, 0..10), right);
}

#[test]
fn multi_step_by_epoch() {
    let mut schedule = MultiStep::new([4], 0.1);
    let right = [100.0, 100.0, 100.0, 100.0, 10.0, 10.0];
    assert_eq!(lrs(&mut schedule, 100.0, 0..6), right);
    // A function of `t` alone: resuming at any epoch changes nothing.
    for epoch in 0..6 {
        let mut resumed = MultiStep::new([4], 0.1);
        resumed.load_state(&schedule.save_state()).unwrap();
        let right = &right[epoch..];
        assert_eq!(lrs(&mut resumed, 100.0, epoch as u64..6), right);
    }
}

#[test]
fn cosine_is_flat_at_its_end() {
    let mut cosine = Cosine::new(4).min_lr(0.1);
    let right = [
        1.0,
        0.868_198_051_533_946_4,
        0.55,
        0.231_801_948_466_053_62,
        0.1,
    ];
    assert_close(&lrs(&mut cosine, 1.0, 0..5), &right);
    assert_eq!(lrs(&mut cosine, 1.0, [4, 5, 8, 1_000_000]), [0.1; 4]);
}

#[test]
fn warmup_and_cosine_meet() {
    let mut whole = Cosine::new(110).min_lr(0.01).warmup(10, 0.1);
    let mut parts = Sequential::new()
        .then(LinearWarmup::new(10, 0.1), 10)
        .then(Cosine::new(100).min_lr(0.01), 100);
    assert_eq!(lrs(&mut whole, 0.5, 0..150), lrs(&mut parts, 0.5, 0..150));
    assert_eq!(lrs(&mut whole, 0.5, [0, 10]), [0.05, 0.5]);
    for t in 0..150 {
        let step = whole.lr(0.5, t) - whole.lr(0.5, t + 1);
        // No jump larger than the warm-up's own stride.
        assert!(
            step.abs() < 0.0451 && (t < 10 || step >= 0.0),
            "{t}: {step}"
        );
    }
}

#[test]
fn one_cycle_as_pytorch() {
    // `OneCycleLR`'s two phases, computed from its formulas.
    let right = [
        0.0040000000000000036,
        0.052000000000000005,
        0.1,
        0.09504846320134738,
        0.0811745653949763,
        0.06112620219362893,
        0.03887419780637107,
        0.0188258346050237,
        0.004951936798652629,
        4e-07,
    ];
    assert_close(&lrs(&mut OneCycle::new(0.1, 10), 9.0, 0..10), &right);
    let right = [
        0.040000000000000036,
        0.9805566273349586,
        0.9190443762697106,
        0.6726838364805451,
        0.35773877573965707,
        0.0992967918932656,
        4e-06,
    ];
    assert_close(&lrs(&mut OneCycle::new(1.0, 7), 9.0, 0..7), &right);
    assert_eq!(
        lrs(&mut OneCycle::new(1.0, 7), 9.0, [6, 7, 99]),
        [0.000_004; 3]
    );
    // Degenerate cycles stay finite.
    for total in 1..5 {
        for pct_start in [0.0, 0.2, 0.25, 0.5, 1.0] {
            let mut cycle = OneCycle::new(1.0, total).pct_start(pct_start);
            cycle.check().unwrap();
            let lrs = lrs(&mut cycle, 1.0, 0..9);
            assert!(
                lrs.iter().all(|lr| (0.000_003_9..=1.0).contains(lr)),
                "{lrs:?}"
            );
        }
    }
}

fn watch(schedule: &mut impl Schedule, values: &[f64]) -> Vec<f64> {
    values
        .iter()
        .map(|value| {
            schedule.observe(*value);
            schedule.lr(1.0, 0)
        })
        .collect()
}

#[test]
fn plateau_as_pytorch() {
    let new = |mode| ReduceOnPlateau::new(mode).factor(0.5).patience(1);
    let mut falling = new(Mode::Min);
    assert_eq!(watch(&mut falling, &[3.0, 2.0, 1.0]), [1.0; 3]);
    // An improvement below the threshold is none.
    let values = [1.0, 0.99995, 0.9999, 0.5, 0.5, 0.5];
    assert_eq!(
        watch(&mut new(Mode::Min), &values),
        [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    );
    let values = [1.0, 2.0, 2.0, 1.0, 3.0];
    assert_eq!(
        watch(&mut new(Mode::Max), &values),
        [1.0, 1.0, 1.0, 0.5, 0.5]
    );
    // NaN is bad, also as the first value.
    let values = [f64::NAN, f64::NAN, 1.0, f64::NAN, f64::NAN];
    assert_eq!(
        watch(&mut new(Mode::Min), &values),
        [1.0, 0.5, 0.5, 0.5, 0.25]
    );
    // Two values of cool-down, in which nothing counts.
    let mut cooling = new(Mode::Min).cooldown(2);
    let right = [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25];
    assert_eq!(watch(&mut cooling, &[1.0; 7]), right);
    let mut floored = new(Mode::Min).min_lr(0.4);
    assert_eq!(
        watch(&mut floored, &[1.0; 7]),
        [1.0, 1.0, 0.5, 0.5, 0.4, 0.4, 0.4]
    );
    // Negative values get worse by a relative threshold, so there is an absolute one.
    let mut absolute = new(Mode::Min).absolute_threshold(0.1);
    let values = [-1.0, -1.2, -1.25, -1.25];
    assert_eq!(watch(&mut absolute, &values), [1.0, 1.0, 1.0, 0.5]);
}

#[test]
fn a_minimum_above_the_base_changes_nothing() {
    let mut plateau = ReduceOnPlateau::new(Mode::Min).patience(0).min_lr(2.0);
    assert_eq!(watch(&mut plateau, &[1.0; 4]), [1.0; 4]);
}

/// Saves at every point, through text, loads into a fresh one and compares the rest.
fn resumes_exactly<S: Schedule>(new: impl Fn() -> S) {
    let values = [
        0.3,
        0.1,
        f64::INFINITY,
        0.2,
        f64::NAN,
        0.1,
        0.1,
        0.05,
        1.0,
        1.0,
        1.0,
    ];
    let step = |s: &mut S, t: usize| {
        let lr = s.lr(0.1, t as u64);
        s.observe(values[t]);
        lr
    };
    let mut whole = new();
    let right: Vec<f64> = (0..values.len()).map(|t| step(&mut whole, t)).collect();
    assert!(right.iter().any(|lr| *lr != right[0]));
    for stop in 0..values.len() {
        let mut first = new();
        (0..stop).for_each(|t| _ = step(&mut first, t));
        let saved = first.save_state().to_string();
        let mut second = new();
        second
            .load_state(&serde_json::from_str(&saved).unwrap())
            .unwrap();
        for (t, right) in right.iter().enumerate().skip(stop) {
            assert_eq!(step(&mut second, t), *right, "stopped at {stop}, step {t}");
        }
    }
}

#[test]
fn resuming_changes_nothing() {
    let plateau = || ReduceOnPlateau::new(Mode::Min).patience(1).cooldown(1);
    let burn = || BurnSchedule::new(LinearLrSchedulerConfig::new(1.0, 0.1, 6).init().unwrap());
    resumes_exactly(plateau);
    resumes_exactly(|| plateau().absolute_threshold(0.01).min_lr(1e-3));
    resumes_exactly(burn);
    resumes_exactly(|| {
        Sequential::new()
            .then(LinearWarmup::new(3, 0.0), 3)
            .then(plateau(), 4)
            .then(burn(), 9)
    });
    resumes_exactly(|| -> Box<dyn Schedule> { Box::new(plateau()) });
}

#[test]
fn burn_schedulers_step_only_when_time_advances() {
    let mut burn = BurnSchedule::new(LinearLrSchedulerConfig::new(1.0, 0.5, 2).init().unwrap());
    // Asked twice, ahead, and back.
    assert_eq!(
        lrs(&mut burn, 7.0, [0, 0, 1, 1, 3, 0, 2]),
        [1.0, 1.0, 0.75, 0.75, 0.5, 1.0, 0.5]
    );
}

#[test]
fn the_watched_value_goes_to_the_current_schedule() {
    let mut schedule = Sequential::new()
        .then(Constant::new(), 2)
        .then(ReduceOnPlateau::new(Mode::Min).patience(0), 2);
    let mut run = |t, value| {
        let lr = schedule.lr(1.0, t);
        schedule.observe(value);
        lr
    };
    // The first two are the constant's, which does not care.
    let right = [1.0, 1.0, 1.0, 1.0, 0.1];
    assert_eq!(
        [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)].map(|(t, v)| run(t, v)),
        right
    );
}

#[test]
fn a_state_of_another_schedule_is_refused() {
    let saved = ReduceOnPlateau::new(Mode::Min).save_state();
    let error = Constant::new().load_state(&saved).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is not that of a schedule without state"),
        "{error}"
    );
    let mut plateau = ReduceOnPlateau::new(Mode::Min);
    assert!(plateau.load_state(&Value::Null).is_err());
    assert!(
        plateau
            .load_state(&json!({"best": 1, "bad": 0, "cooling": 0, "reductions": 0}))
            .is_err()
    );
    let sequence = |n| (0..n).fold(Sequential::new(), |s, _| s.then(Constant::new(), 1));
    assert!(sequence(2).load_state(&sequence(3).save_state()).is_err());
    assert!(sequence(2).load_state(&sequence(2).save_state()).is_ok());
    let error = Sequential::new()
        .then(Constant::new(), 1)
        .load_state(&json!({"current": 0, "phases": [1]}))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("schedule 0 of the sequence: "),
        "{error}"
    );
}

#[test]
fn wrong_parameters_are_named() {
    let plateau = || ReduceOnPlateau::new(Mode::Min);
    let cases: [(Box<dyn Schedule>, &str); 19] = [
        (
            Box::new(Linear::new(1.0, 0.0, 0)),
            "linear schedule: `steps` is 0; use at least 1",
        ),
        (
            Box::new(Linear::new(-1.0, 0.0, 1)),
            "`start_factor` is -1.0; use a finite number from 0",
        ),
        (
            Box::new(Linear::new(1.0, f64::NAN, 1)),
            "`end_factor` is NaN",
        ),
        (
            Box::new(LinearWarmup::new(0, 0.0)),
            "linear warm-up schedule: `steps` is 0",
        ),
        (Box::new(Cosine::new(0)), "cosine schedule: `total` is 0"),
        (
            Box::new(Cosine::new(5).warmup(5, 0.0)),
            "`warmup` is 5; use fewer than the 5 updates",
        ),
        (
            Box::new(Cosine::new(5).min_lr(f64::INFINITY)),
            "`min_lr` is inf",
        ),
        (Box::new(Step::new(0, 0.1)), "step schedule: `every` is 0"),
        (
            Box::new(Step::new(1, 0.0)),
            "`gamma` is 0.0; use a finite number above 0",
        ),
        (
            Box::new(MultiStep::new([4, 4], 0.1)),
            "`milestones` is [4, 4]; use increasing numbers",
        ),
        (
            Box::new(Exponential::new(-0.5)),
            "exponential schedule: `gamma` is -0.5",
        ),
        (Box::new(Polynomial::new(3, 0.0, 0.0)), "`power` is 0.0"),
        (
            Box::new(OneCycle::new(0.0, 3)),
            "one-cycle schedule: `max_lr` is 0.0",
        ),
        (
            Box::new(OneCycle::new(1.0, 3).pct_start(1.5)),
            "`pct_start` is 1.5",
        ),
        (
            Box::new(plateau().factor(1.0)),
            "`factor` is 1.0; use a number between 0 and 1",
        ),
        (
            Box::new(plateau().threshold(f64::NAN)),
            "`threshold` is NaN",
        ),
        (Box::new(Sequential::new()), "a sequence of no schedules"),
        (
            Box::new(Sequential::new().then(Constant::new(), 0)),
            "schedule 0 of the sequence: sequential schedule: `length` is 0",
        ),
        (
            Box::new(
                Sequential::new()
                    .then(Constant::new(), 1)
                    .then(Step::new(0, 1.0), 1),
            ),
            "schedule 1 of the sequence: step schedule: `every` is 0",
        ),
    ];
    for (mut schedule, says) in cases {
        let error = schedule.check().unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Config);
        assert!(error.to_string().contains(says), "{error}");
        // Unchecked, it still does not panic.
        schedule.observe(1.0);
        lrs(&mut schedule, 1.0, [0, 1, 100, u64::MAX]);
    }
    assert!(Polynomial::new(3, 1.0, 0.0).check().is_ok());
    assert!(MultiStep::new([], 0.1).check().is_ok());
    assert!(plateau().check().is_ok());
}
