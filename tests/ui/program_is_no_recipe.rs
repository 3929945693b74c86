//! A program is launched that is no recipe.

use clap::Parser;
use firebox::TrainerConfig;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    trainer: TrainerConfig,
}

fn main() -> ExitCode {
    firebox::launch(Args::parse())
}
