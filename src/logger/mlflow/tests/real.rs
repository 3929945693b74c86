//! With MLflow itself, where it is installed.

use super::*;
use crate::logger::Media;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// `mlflow server`, with its worker processes.
struct Mlflow(Child);

impl Mlflow {
    fn start(folder: &Path, port: u16) -> Self {
        let mut command = Command::new("mlflow");
        command.args([
            "server",
            "--host",
            "127.0.0.1",
            "--workers",
            "1",
            "--serve-artifacts",
        ]);
        command.args(["--port", &port.to_string()]);
        let database = format!("sqlite:///{}/mlflow.db", folder.display());
        command.args(["--backend-store-uri", &database]);
        command
            .arg("--artifacts-destination")
            .arg(folder.join("artifacts"));
        command.current_dir(folder).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Ends it as a power cut would.
    fn kill(&mut self) {
        let group = format!("-{}", self.0.id());
        Command::new("kill")
            .args(["-KILL", "--", &group])
            .status()
            .unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What is logged at a step.
fn values(step: u64) -> [(&'static str, f64); 3] {
    let x = step as f64;
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, -1e308];
    [
        ("train/loss", x.sin() / 3.0),
        ("acc@5", 1.0 / x),
        ("odd", odd[step as usize % 5]),
    ]
}

/// How long this thread has been ready to run while others had the processors, where the system
/// tells it: on a busy machine any call can be held up.
fn waited_for_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').nth(1).and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[test]
fn every_point_is_in_mlflow_once_although_it_is_killed_in_mid_run() {
    let found = Command::new("mlflow").arg("--version").output();
    let Some(found) = found.ok().filter(|found| found.status.success()) else {
        eprintln!("skipped: mlflow is not installed");
        return;
    };
    let version = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let uri = format!("http://127.0.0.1:{port}");
    let (mut calls, mut own) = (Vec::new(), Vec::new());
    let mut timed = |logger: &mut MlflowLogger, steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            let (waited, before) = (waited_for_cpu(), Instant::now());
            log(logger, step, &values(step));
            let took = before.elapsed();
            calls.push(took);
            own.push(took.saturating_sub(waited_for_cpu() - waited));
        }
    };
    let patient = |retry_after: u64| {
        let (mut logger, says) = logger(&uri, here.path());
        logger.retry = Retry {
            first: Duration::from_millis(retry_after),
            longest: Duration::from_secs(1),
        };
        (logger.patience(3 * LONG).run_name("killed"), says)
    };
    let all_sent = |logger: &MlflowLogger| {
        let end = logger.sender.as_ref().unwrap().finish(3 * LONG);
        assert!(matches!(end, sender::End::Sent), "{end:?}");
    };

    // The server comes up when the run is under way.
    let (mut run, says) = patient(200);
    timed(&mut run, 1..=500);
    let mut server = Mlflow::start(there.path(), port);
    all_sent(&run);
    // It is killed while it has work to do, and the run goes on.
    timed(&mut run, 501..=4000);
    server.kill();
    timed(&mut run, 4001..=6000);
    let state = run.save_state();
    timed(&mut run, 6001..=7000);
    run.log_media(7000, "note", &Media::Text("größer".to_owned()))
        .unwrap();
    let said: Vec<_> = says.iter().take(2).collect();
    server = Mlflow::start(there.path(), port);
    all_sent(&run);
    drop(run);
    // The process was killed, too, and goes on from its checkpoint.
    let (mut run, _says) = patient(200);
    run.load_state(&state).unwrap();
    timed(&mut run, 6001..=8000);
    run.log_media(7000, "note", &Media::Text("größer".to_owned()))
        .unwrap();
    finish(&mut run);

    let get = |path: &str| {
        let agent = ureq::Agent::config_builder()
            .proxy(None)
            .build()
            .new_agent();
        let answer = agent.get(format!("{uri}/{path}")).call();
        answer.unwrap().body_mut().read_to_vec().unwrap()
    };
    let json = |path: &str| serde_json::from_slice::<Value>(&get(path)).unwrap();
    let run_id = run.save_state()["run_id"].as_str().unwrap().to_owned();
    let mut points = 0;
    for (key, index) in [("train/loss", 0), ("acc_x40_5", 1), ("odd", 2)] {
        let history = json(&format!(
            "api/2.0/mlflow/metrics/get-history?run_id={run_id}&metric_key={key}"
        ));
        let mut by_step = BTreeMap::new();
        for point in history["metrics"].as_array().unwrap() {
            let value = point["value"]
                .as_f64()
                .or_else(|| point["value"].as_str()?.parse().ok());
            let step = point["step"].as_u64().unwrap();
            let earlier = by_step.insert(step, value.unwrap());
            assert_eq!(earlier, None, "{key} twice at step {step}");
            points += 1;
        }
        assert!(
            by_step.keys().copied().eq(1..=8000),
            "{key}: {} steps",
            by_step.len()
        );
        for (step, value) in by_step {
            let logged = values(step)[index].1;
            // MLflow's database has no infinity.
            let kept = if logged.is_nan() {
                logged
            } else {
                logged.clamp(f64::MIN, f64::MAX)
            };
            assert_eq!(value.to_bits(), kept.to_bits(), "{key} at step {step}");
        }
    }
    let info = json(&format!("api/2.0/mlflow/runs/get?run_id={run_id}"));
    let info = &info["run"]["info"];
    assert_eq!(
        (&info["status"], &info["run_name"]),
        (&"FINISHED".into(), &"killed".into())
    );
    let root = info["artifact_uri"]
        .as_str()
        .unwrap()
        .strip_prefix("mlflow-artifacts:/")
        .unwrap();
    let text = get(&format!(
        "api/2.0/mlflow-artifacts/artifacts/{root}/note/step-7000.txt"
    ));
    assert_eq!(String::from_utf8(text).unwrap(), "größer");
    drop(server);
    let of = |mut times: Vec<Duration>| {
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, longest) = (ms(times[times.len() / 2]), ms(times[times.len() - 1]));
        format!("{longest:.3} ms at most, {median:.3} ms in the median")
    };
    eprintln!(
        "{version}: killed in mid-run, restarted; {points} points read back, each as logged\n  \
         {} `log` calls took {}; without waiting for a processor {}\n  {}\n  {}",
        calls.len(),
        of(calls.clone()),
        of(own),
        said[0],
        said[1]
    );
}
