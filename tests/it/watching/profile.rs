//! Where the time goes.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::ProfilerMode;
use firebox::data::Loaders;
use firebox::prelude::*;
use serde_json::Value;
use std::path::Path;

on_each_backend!(
    cpu: the_table_has_every_part,
    the_trace_has_a_lane_for_each_thread,
);

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Four batches in two steps, validated once, with a worker.
fn profiled<B: AutodiffBackend>(mode: ProfilerMode, devices: usize) -> FitOutcome<Weights<B>> {
    let (config, runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_accumulate_grad_batches(2)
        .with_profiler(mode);
    let device = B::Device::default();
    let train = gradients([1.0; 8]).batch_size(2).workers(1);
    let mut data = Loaders::new(train).with_val(gradients([3.0]));
    let outcome = Trainer::new(config, device.clone())
        .with_devices(vec![device; devices])
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap();
    std::mem::forget(runs);
    outcome
}

fn the_table_has_every_part<B: AutodiffBackend>() {
    for devices in [1, 2] {
        let run = profiled::<B>(ProfilerMode::Simple, devices)
            .run_dir
            .unwrap();
        let profile = read(&run.join("profile.json"));
        let count = |name: &str| {
            let phases = profile["phases"].as_array().unwrap();
            let phase = phases.iter().find(|phase| phase["name"] == name);
            phase.map_or(0, |phase| phase["count"].as_u64().unwrap())
        };
        for (name, times) in [
            ("forward", 4),
            ("backward", 4),
            ("reduce", 2 * (devices as u64 - 1)),
            ("optimizer", 2),
            ("validation", 1),
            ("load", 4),
            ("transfer", 4),
            // One more, to see that there is none.
            ("data wait", 5),
        ] {
            assert_eq!(count(name), times, "{name} on {devices} devices: {profile}");
        }
        assert!(count("checkpoint") > 0 && count("logging") > 0, "{profile}");
        let shares = profile["phases"].as_array().unwrap().iter();
        let shares: f64 = shares.filter_map(|phase| phase["share"].as_f64()).sum();
        assert!(shares > 0.0 && shares <= 1.0, "{profile}");
        assert!(!run.join("trace.json").exists());
        // The report reads it as it is.
        let report = firebox::report::report(&[run]).unwrap();
        assert!(report.contains("backward") && !report.contains("damaged"));
    }
}

fn the_trace_has_a_lane_for_each_thread<B: AutodiffBackend>() {
    let run = profiled::<B>(ProfilerMode::Trace, 2).run_dir.unwrap();
    let trace = read(&run.join("trace.json"));
    let events = trace.as_array().unwrap();
    let of = |ph: &'static str| events.iter().filter(move |event| event["ph"] == ph);
    let mut names: Vec<_> = of("M")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    names.retain(|name| name.starts_with("firebox-replica") || name.starts_with("loader"));
    names.sort_unstable();
    names.dedup();
    assert_eq!(
        names,
        ["firebox-replica-0", "firebox-replica-1", "loader-0"]
    );
    let forward = of("X").filter(|event| event["name"] == "forward").count();
    assert_eq!(forward, 8);
}
