//! What the process and its machine use.

pub(crate) mod process;
