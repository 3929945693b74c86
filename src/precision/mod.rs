//! Number formats: what a run computes in, and the scale of its loss.

mod format;
mod parameters;
mod scaler;

pub(crate) use format::{Format, as_given};
pub(crate) use parameters::{cast, converted, marked};
pub(crate) use scaler::Scaler;
