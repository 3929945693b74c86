//! Ctrl-C and SIGTERM, in real processes.

use crate::support::{example, own_process};
use firebox::config::{Devices, Resume, Strategy};
use firebox::testing::{Line, line_data};
use firebox::{data::Loaders, prelude::*};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// Reads the process's standard error until a line contains `text`; what follows it.
fn wait_for(child: &mut Child, text: &str) -> BufReader<std::process::ChildStderr> {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        let read = lines.read_line(&mut line).unwrap();
        assert!(read > 0, "the process ended before it said `{text}`");
    }
    lines
}

fn send(signal: &str, child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries.map(|e| name(e).into_string().unwrap()).collect()
}

/// An endless run that gets a signal saves its last step and ends with this code.
#[track_caller]
fn assert_ends_well(signal: &str, code: i32, said: &str) {
    let runs = tempfile::tempdir().unwrap();
    let mut child = Command::new(example("linear_regression"))
        .args(["--accelerator", "cpu", "--max-epochs", "1000000000"])
        .args(["--min-epochs", "1000000000", "--progress", "plain"])
        .arg("--run-dir")
        .arg(runs.path())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut rest = wait_for(&mut child, "epoch 3/");
    send(signal, &child);
    let mut stderr = String::new();
    rest.read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code), "{stderr}");
    assert!(stderr.ends_with(&format!("{said}\n")), "{stderr}");

    let run = runs.path().join("version_0");
    let mut saved = names(&run.join("checkpoints"));
    saved.retain(|name| name != "last");
    let [name] = saved.as_slice() else {
        panic!("one checkpoint, not {saved:?}");
    };
    let step: u64 = name.split("step=").nth(1).unwrap().parse().unwrap();
    assert!(step >= 12, "{name}");
    assert!(
        run.join("checkpoints")
            .join(name)
            .join("state.json")
            .is_file()
    );
    let metrics = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    assert!(metrics.ends_with('\n'), "the last row is whole");
}

#[test]
fn ctrl_c_saves_and_exits_with_130() {
    assert_ends_well("-INT", 130, "interrupted (SIGINT)");
}

#[test]
fn sigterm_saves_and_exits_with_143() {
    assert_ends_well("-TERM", 143, "terminated (SIGTERM)");
}

/// A folder with a `scontrol` that writes down what it is asked, or fails.
fn scontrol(fails: bool) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scontrol");
    let asked = folder.path().join("asked");
    let end = if fails {
        "echo no such job >&2; exit 1"
    } else {
        ""
    };
    let script = format!("#!/bin/sh\necho \"$@\" >> '{}'\n{end}\n", asked.display());
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// The example in a job of SLURM, which has a `scontrol` in this folder.
fn job(runs: &Path, scontrol: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(example("linear_regression"));
    let path = format!("{}:{}", scontrol.display(), std::env::var("PATH").unwrap());
    command
        .args(["--accelerator", "cpu", "--max-epochs", "100000"])
        .args(["--progress", "plain", "--run-dir"])
        .arg(runs)
        .env("PATH", path)
        .envs(variables.iter().copied())
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    command
}

/// Sends SIGUSR1 to a run that says `text` at its start, once it has begun to train; its exit code,
/// and what it says afterwards.
fn told_to_make_room(mut job: Command, text: &str) -> (Option<i32>, String) {
    let mut child = job.spawn().unwrap();
    let mut rest = wait_for(&mut child, text);
    let mut line = String::new();
    while !line.starts_with("epoch ") {
        line.clear();
        assert!(rest.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    send("-USR1", &child);
    let mut stderr = String::new();
    rest.read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap().code(), stderr)
}

#[test]
fn a_job_of_slurm_is_requeued_and_goes_on() {
    let (runs, scontrol) = (tempfile::tempdir().unwrap(), scontrol(false));
    let variables = [("SLURM_JOB_ID", "7")];
    let first = job(runs.path(), scontrol.path(), &variables);
    let (code, stderr) = told_to_make_room(first, "accelerator: ");
    assert_eq!(code, Some(138), "{stderr}");
    assert!(stderr.ends_with("requeued (SIGUSR1)\n"), "{stderr}");
    let asked = || std::fs::read_to_string(scontrol.path().join("asked")).unwrap();
    assert_eq!(asked(), "requeue 7\n");

    // SLURM starts the same command again.
    let variables = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "1")];
    let again = job(runs.path(), scontrol.path(), &variables);
    let (code, stderr) = told_to_make_room(again, "resuming from `");
    assert_eq!(code, Some(138), "{stderr}");
    assert_eq!(asked(), "requeue 7\nrequeue 7\n");
    assert_eq!(names(runs.path()), ["version_0"]);
    let launches = std::fs::read_to_string(runs.path().join("version_0/run.jsonl")).unwrap();
    assert_eq!(launches.lines().count(), 2);
}

#[test]
fn a_requeued_job_goes_on_with_what_it_has_done_itself() {
    let (runs, scontrol) = (tempfile::tempdir().unwrap(), scontrol(false));
    // Another's run, which the command names.
    let ended = Command::new(example("linear_regression"))
        .args([
            "--accelerator",
            "cpu",
            "--max-epochs",
            "1",
            "--progress",
            "off",
            "--run-dir",
        ])
        .arg(runs.path())
        .output()
        .unwrap();
    assert!(ended.status.success());
    let checkpoint = runs.path().join("version_0/checkpoints/last");
    let job = |restarts: &str, resumes: bool| {
        let variables = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", restarts)];
        let mut command = job(runs.path(), scontrol.path(), &variables);
        if resumes {
            command.arg("--resume").arg(&checkpoint);
        }
        command
    };
    // It was restarted before it had begun anything: the other run is not its own.
    let (code, stderr) = told_to_make_room(job("1", false), "accelerator: ");
    assert_eq!(code, Some(138), "{stderr}");
    assert!(!stderr.contains("resuming"), "{stderr}");
    std::fs::remove_dir_all(runs.path().join("version_1")).unwrap();
    for (restarts, from) in [("0", "version_0/"), ("1", "version_1/")] {
        let (code, stderr) = told_to_make_room(job(restarts, true), from);
        assert_eq!(code, Some(138), "{stderr}");
    }
}

#[test]
fn tasks_of_an_array_go_on_with_their_own_runs() {
    let (runs, scontrol) = (tempfile::tempdir().unwrap(), scontrol(false));
    let task = |task: &str, restarts: &str| {
        let variables = [
            ("SLURM_JOB_ID", "9"),
            ("SLURM_ARRAY_JOB_ID", "5"),
            ("SLURM_ARRAY_TASK_ID", task),
            ("SLURM_RESTART_COUNT", restarts),
        ];
        let mut command = job(runs.path(), scontrol.path(), &variables);
        command.args(["--resume", "last"]);
        command
    };
    for (index, restarts, said) in [
        ("3", "0", "starting anew"),
        // Not the other task's run.
        ("4", "0", "starting anew"),
        ("3", "1", "version_0/"),
        ("4", "1", "version_1/"),
    ] {
        let (code, stderr) = told_to_make_room(task(index, restarts), said);
        assert_eq!(code, Some(138), "{stderr}");
    }
    let asked = std::fs::read_to_string(scontrol.path().join("asked")).unwrap();
    assert_eq!(
        asked,
        "requeue 5_3\nrequeue 5_4\nrequeue 5_3\nrequeue 5_4\n"
    );
}

#[test]
fn a_job_that_cannot_be_requeued_says_so() {
    let (runs, scontrol) = (tempfile::tempdir().unwrap(), scontrol(true));
    let variables = [("SLURM_JOB_ID", "7")];
    let (code, stderr) = told_to_make_room(
        job(runs.path(), scontrol.path(), &variables),
        "accelerator: ",
    );
    assert_eq!(code, Some(1), "{stderr}");
    let said = "error: cannot requeue the job: `scontrol requeue 7`: exit status: 1, no such job; \
                what was saved is there\n";
    assert!(stderr.ends_with(said), "{stderr}");
    assert!(
        runs.path()
            .join("version_0/checkpoints/last/manifest.json")
            .exists()
    );
}

/// Never comes back from the second batch.
struct Hang;

impl<M: TrainModule> Callback<M> for Hang {
    fn on_train_batch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        while cx.progress().global_step == 1 {
            eprintln!("it hangs");
            std::thread::park();
        }
        Ok(())
    }
}

/// A run that hangs.
struct Hanging(TrainerConfig);

impl Recipe for Hanging {
    fn config(&self) -> &TrainerConfig {
        &self.0
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let mut data = Loaders::new(line_data().batch_size(8));
        let mut trainer = cx.trainer().with_callback(Hang);
        trainer.fit(Line::<B>::new(cx.device()), &mut data)?;
        Ok(())
    }
}

/// Not a test: the process that the next one starts.
#[test]
#[ignore = "started by `a_second_ctrl_c_ends_a_run_that_hangs`"]
fn hanging_process() {
    let runs = tempfile::tempdir().unwrap();
    let config = TrainerConfig::new().with_accelerator("cpu");
    let code = firebox::launch(Hanging(config.with_run_dir(runs.path())));
    assert_eq!(code, ExitCode::SUCCESS);
}

#[test]
fn a_second_ctrl_c_ends_a_run_that_hangs() {
    let mut child = own_process("signals::hanging_process")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _stderr = wait_for(&mut child, "it hangs");
    send("-INT", &child);
    let still_runs = child.try_wait().unwrap().is_none();
    assert!(still_runs, "the first signal is for the step to end");
    // The system may join a signal with one that has not arrived yet.
    let status = loop {
        send("-INT", &child);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(130));
}

/// Sends SIGTERM to its own process in the validation of the second epoch.
struct InValidation;

impl<M: TrainModule> Callback<M> for InValidation {
    fn on_eval_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.progress().global_step == 8 && cx.batch().index == 2 {
            let pid = std::process::id().to_string();
            let sent = Command::new("kill").args(["-TERM", &pid]).status();
            assert!(sent.unwrap().success());
        }
        Ok(())
    }
}

/// Two epochs with validations.
struct Validating(TrainerConfig);

impl Recipe for Validating {
    fn config(&self) -> &TrainerConfig {
        &self.0
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let val = line_data().batch_size(1);
        let mut data = Loaders::new(line_data().batch_size(8)).with_val(val);
        let mut trainer = cx.trainer();
        if self.0.resume.is_none() {
            trainer = trainer.with_callback(InValidation);
        }
        trainer.fit(Line::<B>::new(cx.device()), &mut data)?;
        Ok(())
    }
}

/// Not a test: the process that the next one starts.
#[test]
#[ignore = "started by `a_signal_in_a_validation_leaves_it_for_later`"]
fn validating_process() {
    let config = std::env::var("VALIDATING").unwrap();
    let config = serde_json::from_str(&config).unwrap();
    let code = firebox::launch(Validating(config));
    let codes = [0, 143];
    let code = codes
        .into_iter()
        .find(|known| code == ExitCode::from(*known));
    std::process::exit(code.map_or(1, i32::from));
}

#[test]
fn a_signal_in_a_validation_leaves_it_for_later() {
    for (devices, strategy) in [(1, Strategy::Ddp), (2, Strategy::Ddp), (2, Strategy::Zero1)] {
        let run = |runs: &Path, resume: Option<Resume>| {
            let mut config = TrainerConfig::new()
                .with_accelerator("cpu")
                .with_devices(Devices::Count(devices))
                .with_strategy(strategy)
                .with_max_epochs(2)
                .with_log_every_n_steps(1)
                .with_run_dir(runs);
            config.resume = resume;
            let output = own_process("signals::validating_process")
                .env("VALIDATING", serde_json::to_string(&config).unwrap())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), text)
        };
        let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // With nothing to resume from, it starts anew, and nobody sends a signal.
        let (code, stderr) = run(whole.path(), Some(Resume::Last));
        assert_eq!(code, Some(0), "{stderr}");
        let (code, stderr) = run(cut.path(), None);
        assert_eq!(code, Some(143), "{strategy}: {stderr}");
        assert!(!stderr.contains("error"), "{stderr}");
        let (code, stderr) = run(cut.path(), Some(Resume::Last));
        assert_eq!(code, Some(0), "{strategy}: {stderr}");
        assert!(stderr.contains("step 8"), "{stderr}");
        let rows = |runs: &Path| {
            let file = runs.join("version_0/metrics.csv");
            std::fs::read_to_string(file).unwrap()
        };
        assert_eq!(rows(cut.path()), rows(whole.path()), "{strategy}");
    }
}
