//! Batches: what a model is fed, in which order, from which threads.
//!
//! A [`Loader`] takes Burn's own `Dataset` and `Batcher` as they are. Three things it holds to:
//!
//! - **The order is a function of `(seed, epoch)`.** Global batch `s` of an epoch is slice `s` of
//!   that order, whatever the number of devices or worker threads, so a run can be resumed at any
//!   batch, also with another number of devices.
//! - **The batch size is global.** Each [`Shard`] takes its contiguous part of every slice, so all
//!   shards see the same number of batches and no sample is lost or seen twice.
//! - **A failing sample is an error that names it,** never a silent end of the epoch.

mod epoch;
mod iter;
mod loader;
mod module;
mod rng;
mod sampler;
mod samples;
mod source;
mod workers;

#[cfg(test)]
mod tests;

pub use epoch::{EpochSpec, Shard};
pub use iter::{Batch, LoaderIter};
pub use loader::Loader;
pub use module::{DataModule, EvalLoader, Loaders, TrainLoader};
pub use rng::SampleRng;
pub use sampler::{
    LengthBucketed, Plan, PlanRequest, Random, Sampler, Sequential, Subset, TokenBudget, Weighted,
};
pub use samples::{FallibleDataset, Samples};
