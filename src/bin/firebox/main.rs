//! The program `firebox`: looks at the machine and at runs, tells runs what to do, and begins new
//! projects.

mod new;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use firebox::control::{self, Command};
use firebox::doctor::{Measurement, doctor_with, measure_self_test};
use firebox::{Context, Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A training toolkit for Burn.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Say what this machine offers to train on, and whether it computes right.
    ///
    /// Runs one training step of a small net on every accelerator that is available, each in a
    /// process of its own, and compares it with the CPU in 64 bits.
    Doctor {
        /// Prints the step of one accelerator, for the process that compares.
        #[arg(long, value_name = "ACCELERATOR", hide = true)]
        measure: Option<String>,
    },
    /// Tell a run that goes on what to do.
    Ctl {
        /// The run's folder, for example runs/version_3
        run_dir: PathBuf,
        #[command(subcommand)]
        order: Order,
        /// Seconds to wait for the run's answer
        #[arg(long, global = true, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Write one HTML file with the charts and numbers of a run, or of several side by side.
    ///
    /// The file needs no network and no other file; any browser shows it.
    Report {
        /// Folders of runs, such as runs/version_0
        #[arg(required = true, value_name = "RUN_DIR")]
        runs: Vec<PathBuf>,
        /// The file to write, instead of report.html in the first run's folder
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Send what an MLflow server that was away has not been given.
    #[cfg(feature = "mlflow")]
    MlflowSend {
        /// The run's folder
        run_dir: PathBuf,
    },
    /// Begin a project that trains: a model, data, a command line, CI and Dockerfiles.
    New {
        /// The folder to make; its name is that of the project
        path: PathBuf,
        /// Use firebox from this folder instead of where this program was built
        #[arg(long, value_name = "DIR")]
        firebox: Option<PathBuf>,
    },
    /// Print completions for a shell.
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Subcommand)]
enum Order {
    /// Finish the step, save a checkpoint and end
    Stop,
    /// Write a checkpoint
    Save,
    /// Validate now
    Validate,
    /// Say how far the run is, as JSON
    Status,
    /// Set `lr=1e-4`, `lr/GROUP=1e-4` or `accumulate_grad_batches=4`
    Set {
        /// Name and value
        #[arg(value_name = "NAME=VALUE")]
        setting: String,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Doctor { measure: None } => {
            let report = doctor_with(|accelerator| Some(measure_in_process(accelerator)))?;
            print!("{report}");
            if !report.is_healthy() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Doctor {
            measure: Some(accelerator),
        } => {
            let measurement = measure_self_test(&accelerator)?;
            let text = serde_json::to_string(&measurement);
            println!("{}", text.context("cannot write the measurement")?);
        }
        Task::Ctl {
            run_dir,
            order,
            timeout,
        } => {
            let command = match order {
                Order::Stop => Command::Stop,
                Order::Save => Command::Save,
                Order::Validate => Command::Validate,
                Order::Status => Command::Status,
                Order::Set { setting } => Command::set(&setting)?,
            };
            let answer = control::send(&run_dir, &command, Duration::from_secs(timeout))?;
            match command {
                Command::Status => println!("{:#}", answer.status),
                _ => println!("{answer}"),
            }
        }
        Task::Report { runs, output } => {
            let path = firebox::report::write_report(&runs, output.as_deref())?;
            println!("{}", path.display());
        }
        #[cfg(feature = "mlflow")]
        Task::MlflowSend { run_dir } => println!("{}", firebox::logger::send_spooled(&run_dir)?),
        Task::New { path, firebox } => new::project(&path, firebox.as_deref())?,
        Task::Completions { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(shell, &mut command, "firebox", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The step in a process of its own: a driver that crashes takes only that one along, and ndarray
/// can compute in 32 bits there and in 64 here.
fn measure_in_process(accelerator: &str) -> Result<Measurement> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = std::process::Command::new(program);
    command.args(["doctor", "--measure", accelerator]);
    let output = command.output().context("cannot start a process")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ");
        return Err(Error::user(format!("{said} ({})", output.status)));
    }
    serde_json::from_slice(&output.stdout).context("cannot read the measurement")
}
