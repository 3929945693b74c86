//! Number formats: what trains in them, and what does not reach a kernel.

mod anomaly;
mod golden;
mod memory;
mod models;
mod scale;
mod wrong;

use crate::support::*;
use burn::tensor::DType;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::config::{LoggerNames, Precision, ProgressMode, SanitySteps};
use firebox::prelude::*;

/// Whether the backend computes in a format; if not, the test says so.
fn has<B: Backend>(dtype: DType) -> bool {
    let device = B::Device::default();
    let has = B::supports_dtype(&device, dtype);
    if !has {
        eprintln!(
            "skipped: {} does not compute in {dtype:?}",
            B::name(&device)
        );
    }
    has
}

/// Settings of a run without files and output.
fn silent(precision: Precision) -> TrainerConfig {
    TrainerConfig::new()
        .with_precision(precision)
        .with_logger(LoggerNames::none())
        .with_progress(ProgressMode::Off)
        .with_model_summary(false)
        .with_checkpointing(false)
        .with_log_every_n_steps(1)
        .with_num_sanity_val_steps(SanitySteps::Batches(0))
}
