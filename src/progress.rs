//! How far a run has come.

use serde::{Deserialize, Serialize};

/// Counters of a run; each counts one thing. All start at 0.
///
/// Batches seen, optimizer steps taken, epochs finished and samples seen are different numbers as
/// soon as gradients are accumulated or a batch is short, so none is derived from another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Epochs finished; during an epoch this is its index.
    pub epoch: u64,
    /// Batches finished in this epoch.
    pub batch: u64,
    /// Batches finished in all epochs.
    pub total_batches: u64,
    /// Optimizer steps taken. A step by hand counts as one, however many optimizers it steps.
    pub global_step: u64,
    /// Steps skipped because a gradient was NaN or infinite.
    pub skipped_steps: u64,
    /// Training samples seen in all epochs.
    pub samples: u64,
}

impl Progress {
    /// Every counter.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> {
        let Self {
            epoch,
            batch,
            total_batches,
            global_step,
            skipped_steps,
            samples,
        } = *self;
        [
            epoch,
            batch,
            total_batches,
            global_step,
            skipped_steps,
            samples,
        ]
        .into_iter()
    }
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// `fit`, training.
    Train,
    /// A few validation batches before training, to find mistakes early; their values are dropped.
    SanityCheck,
    /// Validation, inside `fit` or on its own.
    Validate,
    /// `test`.
    Test,
    /// `predict`.
    Predict,
}

impl Stage {
    /// What names logged in this stage begin with: `train`, `val`, `test` or `predict`.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::SanityCheck | Self::Validate => "val",
            Self::Test => "test",
            Self::Predict => "predict",
        }
    }
}
