//! The program `firebox`: looks at the machine.

use clap::{Parser, Subcommand};
use firebox::doctor::{Measurement, doctor_with, measure_self_test};
use firebox::{Context, Error, Result};
use std::process::{Command, ExitCode};

/// A training toolkit for Burn.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// What this machine offers to train on, and whether it computes right.
    ///
    /// Runs one training step of a small net on every accelerator that is available, each in a
    /// process of its own, and compares it with the CPU in 64 bits.
    Doctor {
        /// Prints the step of one accelerator, for the process that compares.
        #[arg(long, value_name = "ACCELERATOR", hide = true)]
        measure: Option<String>,
    },
}

fn main() -> ExitCode {
    let Task::Doctor { measure } = Arguments::parse().command;
    let done = match measure {
        Some(accelerator) => print_measurement(&accelerator).map(|()| true),
        None => print_report(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints the report; whether all is well.
fn print_report() -> Result<bool> {
    let report = doctor_with(|accelerator| Some(measure_in_process(accelerator)))?;
    print!("{report}");
    Ok(report.is_healthy())
}

fn print_measurement(accelerator: &str) -> Result<()> {
    let measurement = measure_self_test(accelerator)?;
    let text = serde_json::to_string(&measurement).context("cannot write the measurement")?;
    println!("{text}");
    Ok(())
}

/// The step in a process of its own: a driver that crashes takes only that one along, and ndarray
/// can compute in 32 bits there and in 64 here.
fn measure_in_process(accelerator: &str) -> Result<Measurement> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["doctor", "--measure", accelerator]);
    let output = command.output().context("cannot start a process")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ");
        return Err(Error::user(format!("{said} ({})", output.status)));
    }
    serde_json::from_slice(&output.stdout).context("cannot read the measurement")
}
