//! Optimizers, parameter groups, schedules and clipping.

mod change;
mod erased;
mod gradients;
mod group;
mod manual;
mod offload;
mod recompute;
pub mod schedule;
mod set;
mod shards;
mod state;

pub(crate) use erased::SavedState;
pub(crate) use gradients::{Factors, Gradients};
pub use group::ParamGroup;
pub(crate) use group::matches;
pub use manual::ManualStep;
pub(crate) use recompute::PassSettings;
pub(crate) use set::{Checked, OptimizerSet, Update, UpdateRules};
pub use set::{Optimizers, StepOutcome};
pub(crate) use state::SetState;
