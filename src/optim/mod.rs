//! Optimizers, parameter groups, schedules and clipping.

mod erased;
mod gradients;
mod group;
mod manual;
pub mod schedule;
mod set;

pub(crate) use gradients::Gradients;
pub use group::ParamGroup;
pub use manual::ManualStep;
pub(crate) use set::{Checked, OptimizerSet, UpdateRules};
pub use set::{Optimizers, StepOutcome};
