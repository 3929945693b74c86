//! What a checkpoint's `state.json` holds: everything that is no tensor.

use crate::fabric::GroupWeight;
use crate::metric::{LogBookState, Metrics};
use crate::optim::SetState;
use crate::precision::Scaler;
use crate::progress::Progress;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A run between two batches.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunState {
    pub(crate) progress: Progress,
    pub(crate) position: Position,
    /// Where all randomness of the run starts from. What is drawn for a batch is a function of it,
    /// the epoch and the batch, so there is no other random state to keep.
    pub(crate) seed: u64,
    pub(crate) optimizers: SetState,
    /// Of the gradients in `gradients.safetensors`, if the step is unfinished.
    pub(crate) gradients: Option<GroupWeight>,
    /// Of the loss, in a precision that needs it.
    #[serde(default)]
    pub(crate) scaler: Option<Scaler>,
    /// How many states of the model its average has, if there is one.
    #[serde(default)]
    pub(crate) averaged: Option<u64>,
    /// Patterns of the parameters whose zeros stay zeros.
    #[serde(default)]
    pub(crate) pruned: Vec<String>,
    /// The latest value of every name.
    pub(crate) metrics: Metrics,
    /// The unfinished epoch's values.
    pub(crate) epoch: LogBookState,
    pub(crate) callbacks: Vec<Part>,
    pub(crate) loggers: Vec<Part>,
    /// Callbacks (by index) that want the run to stop, but may not yet.
    pub(crate) stops: Vec<(usize, String)>,
    /// The user's own.
    pub(crate) model: Value,
    pub(crate) data: Value,
    pub(crate) hyper_parameters: Value,
    /// The settings, as TOML.
    pub(crate) config: String,
    pub(crate) records: Records,
}

/// Where the loop is, beside the counters that people see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Samples of this epoch, over all devices, that have been trained on.
    pub(crate) epoch_samples: u64,
    /// Batches since the last optimizer step.
    pub(crate) in_group: u64,
    /// Batches to a step, where that was changed while the run went on.
    #[serde(default)]
    pub(crate) accumulate: Option<u64>,
    /// Whether the run has ever validated, and after how many batches it did last.
    pub(crate) validated: bool,
    pub(crate) last_validated: Option<u64>,
    /// Seconds trained, now and at the last validation.
    pub(crate) elapsed: f64,
    pub(crate) validated_at: f64,
}

/// The state of a callback or logger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) state: Value,
}

/// The checkpoints that the run has written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Records {
    /// Those that are kept, this one among them, and how many have asked for each.
    pub(crate) kept: BTreeMap<PathBuf, usize>,
    /// Those that go as soon as this one is safe.
    pub(crate) removed: Vec<PathBuf>,
    pub(crate) best: Option<PathBuf>,
}
