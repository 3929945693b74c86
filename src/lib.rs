//! firebox trains [Burn](https://burn.dev) models on whatever hardware is there.
//!
//! You write the model once, generic over Burn's `Backend`; a [`Trainer`] finds the device, runs
//! the loops, averages gradients, and takes care of schedules, metrics, checkpoints, logging and
//! stopping. Read in this order:
//!
//! | module | what it holds |
//! |---|---|
//! | [`module`] | what you write: [`TrainModule`], [`EvalModule`], [`PredictModule`] |
//! | [`data`] | [`DataModule`] and the [`Loader`](data::Loader) that feeds it |
//! | [`nn`] | layers that give the same on any number of devices |
//! | [`optim`] | optimizers, parameter groups, learning-rate schedules |
//! | [`metric`] | metrics whose state merges |
//! | [`config`] | [`TrainerConfig`]: settings from code, files, environment and flags |
//! | [`mod@launch`] | [`Recipe`]: from `main` to the accelerator that is there |
//! | [`cli`] | [`Experiment`](cli::Experiment): a command line with `fit`, `validate`, `test`, `predict` |
//! | [`signals`] | Ctrl-C, SIGTERM, and SIGUSR1 in jobs of SLURM |
//! | [`trainer`] | [`Trainer`]: fit, validate, test, predict; what to find before a fit |
//! | [`fabric`] | [`Fabric`]: the operations of one step, for your own loop |
//! | [`callback`], [`logger`] | code that runs at fixed points; where values go |
//! | [`control`], [`profiler`] | telling a run that goes on what to do; where its time goes |
//! | [`mod@report`] | runs as one HTML file |
//! | [`checkpoint`] | what is saved, where, and how it is read back |
//! | [`mod@doctor`] | what the machine offers, and whether it computes right |
//! | [`testing`] | tiny modules with known answers |
//!
//! # Example
//!
//! ```no_run
#![doc = include_str!("../examples/linear_regression.rs")]
//! ```

#![cfg_attr(
    not(any(feature = "flex", feature = "ndarray")),
    allow(unused, reason = "without an accelerator there is nothing to launch")
)]

mod accelerators;
pub mod config;
pub mod control;
pub mod error;
mod exact;
mod files;
mod mode;
mod monitor;
mod output;
mod panics;
mod parameters;
pub mod signals;
mod slurm;
mod table;

pub mod metric;
pub mod progress;

pub mod module;
pub mod optim;

pub mod data;
mod distributed;
pub mod nn;

pub mod callback;
pub mod checkpoint;
pub mod logger;
mod precision;
pub mod profiler;
pub mod report;

pub mod fabric;

mod loops;

pub mod launch;
pub mod trainer;

pub mod cli;

#[cfg(feature = "ndarray")]
pub mod doctor;

#[cfg(feature = "burn-train")]
pub mod burn_train;

pub mod testing;

/// The README's example, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod prelude {
    //! What a user's file needs.
    pub use crate::callback::{
        Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, RunContext,
    };
    pub use crate::config::{GradientClip, TrainerConfig};
    pub use crate::data::{DataModule, Loader};
    pub use crate::error::{Context, Error, Result};
    pub use crate::fabric::Fabric;
    pub use crate::launch::{Launch, Recipe};
    pub use crate::metric::{Metrics, Mode};
    pub use crate::module::{EvalModule, Loss, PredictModule, StepContext, TrainModule};
    pub use crate::optim::{ManualStep, Optimizers, ParamGroup};
    pub use crate::progress::Stage;
    pub use crate::trainer::{FitOutcome, Trainer};
    pub use burn::tensor::backend::AutodiffBackend;
}

pub use config::TrainerConfig;
pub use data::DataModule;
#[cfg(feature = "ndarray")]
pub use doctor::{doctor, verify_on_all_backends};
pub use error::{Context, Error, ErrorKind, Result};
pub use fabric::Fabric;
pub use firebox_backend as backend;
pub use launch::{Launch, Recipe, launch, try_launch};
pub use loops::evaluate::Prediction;
pub use loops::fit::StopReason;
pub use module::{EvalModule, Loss, PredictModule, StepContext, TrainModule};
pub use trainer::{FitOutcome, Trainer};
