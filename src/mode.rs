//! What is better.

use serde::{Deserialize, Serialize};

/// Whether a smaller or a larger value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Smaller is better: losses, errors.
    Min,
    /// Larger is better: accuracies, scores.
    Max,
}

impl Mode {
    /// Whether `a` is better than `b` by more than `min_delta`. Nothing is better than itself, and
    /// NaN is better than nothing.
    pub(crate) fn better(self, a: f64, b: f64, min_delta: f64) -> bool {
        match self {
            Self::Min => a < b - min_delta,
            Self::Max => a > b + min_delta,
        }
    }
}
