//! Behaviour tests: one binary, a module for each subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[macro_use]
mod support;

mod accelerators;
mod arithmetic;
mod averages;
mod averaging;
#[cfg(feature = "burn-train")]
mod burn_train;
mod checkpoints;
mod compile_messages;
mod hooks;
mod killed;
mod limits;
mod mnist;
mod precision;
mod replicas;
mod resume;
mod search;
#[cfg(unix)]
mod signals;
mod stopping;
mod streams;
#[cfg(feature = "tensorboard")]
mod tensorboard;
mod tidy;
mod watching;
mod weights;
mod wrong_use;
