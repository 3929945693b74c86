//! Which samples an epoch takes, in which order, in which batches.

mod length;
mod order;
mod weighted;

use std::sync::Arc;

use super::SampleRng;
use crate::error::{Error, Result};

pub use length::{LengthBucketed, TokenBudget};
pub use order::{Random, Sequential, Subset};
pub use weighted::Weighted;

/// Decides the samples of an epoch, their order, and where batches begin and end.
///
/// A plan must be a function of the request: shards and resumed runs each ask for it and must get
/// the same one. [`PlanRequest::rng`] gives the randomness for that.
///
/// ```
/// use firebox::data::{Plan, PlanRequest, Sampler};
/// use firebox::prelude::*;
///
/// /// Every second sample, shuffled.
/// struct EverySecond;
/// impl Sampler for EverySecond {
///     fn plan(&self, request: &PlanRequest) -> Result<Plan> {
///         let mut order: Vec<usize> = (0..request.len).step_by(2).collect();
///         request.rng().shuffle(&mut order);
///         Ok(Plan::slices(order, request))
///     }
/// }
/// let plan = EverySecond.plan(&PlanRequest::new(10, 2))?;
/// assert_eq!(plan.num_batches(), 3);
/// # Ok::<(), firebox::Error>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// The batches of one epoch.
    ///
    /// # Errors
    ///
    /// Settings that do not fit the data set or each other.
    fn plan(&self, request: &PlanRequest) -> Result<Plan>;

    /// The sampler that takes the same samples without shuffling, to see the same batches every
    /// epoch. By default there is none, and the loader repeats the batches of epoch 0.
    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        None
    }
}

/// What a [`Sampler`] plans for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanRequest {
    /// The number of samples in the data set.
    pub len: usize,
    /// The samples of one global batch.
    pub batch_size: usize,
    /// Whether a last batch shorter than `batch_size` is left out.
    pub drop_last: bool,
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
}

impl PlanRequest {
    /// Epoch 0 with seed 0, the short last batch kept; the fields can be set.
    pub fn new(len: usize, batch_size: usize) -> Self {
        Self {
            len,
            batch_size,
            drop_last: false,
            seed: 0,
            epoch: 0,
        }
    }

    /// The random stream for this epoch's order; the same at every call.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_order(self.seed, self.epoch)
    }
}

/// The batches of one epoch: indices into the data set, cut into global batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    order: Vec<usize>,
    /// Where each batch ends in `order`; it begins where the one before ends.
    ends: Vec<usize>,
    /// The index of the first batch: above 0 if the plan begins within the epoch.
    first: usize,
    /// How the order was cut, if it can be cut at any place.
    slices: Option<Slices>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slices {
    size: usize,
    drop_last: bool,
}

impl Plan {
    /// Cuts an order into batches of the requested size. The last one may be shorter; it is left
    /// out if the request says so.
    pub fn slices(order: Vec<usize>, request: &PlanRequest) -> Self {
        let slices = Slices {
            size: request.batch_size.max(1),
            drop_last: request.drop_last,
        };
        Self::cut(order, 0, slices)
    }

    /// Batches of any sizes.
    pub fn batches(batches: impl IntoIterator<Item = Vec<usize>>) -> Self {
        let (mut order, mut ends) = (Vec::new(), Vec::new());
        for batch in batches {
            order.extend(batch);
            ends.push(order.len());
        }
        Self {
            order,
            ends,
            first: 0,
            slices: None,
        }
    }

    /// The number of global batches.
    pub fn num_batches(&self) -> usize {
        self.first.saturating_add(self.ends.len())
    }

    /// The data set's indices in one global batch, `None` after the last one.
    pub fn batch(&self, index: usize) -> Option<&[usize]> {
        let end = *self.ends.get(index.checked_sub(self.first)?)?;
        self.order.get(self.samples_before(index)?..end)
    }

    /// The indices of all batches, in order.
    pub fn order(&self) -> &[usize] {
        let end = self.ends.last().copied().unwrap_or(0);
        self.order.get(..end).unwrap_or_default()
    }

    /// The rest of the epoch: batch `first` begins after `done` samples.
    ///
    /// If that is not where it begins anyway, the order is cut anew from there, which only a plan
    /// of slices allows.
    pub(super) fn resume(self: Arc<Self>, first: usize, done: usize) -> Result<Arc<Self>> {
        if self.samples_before(first) == Some(done) {
            return Ok(self);
        }
        let Some(slices) = self.slices else {
            return Err(Error::config(format!(
                "batch {first} does not begin after {done} samples, and this sampler's batches \
                 cannot be cut elsewhere; go on with the batch size of the stopped run"
            )));
        };
        let rest = self.order.get(done..).ok_or_else(|| {
            Error::data(format!(
                "the epoch has {} samples, so it cannot go on after {done}; the data set must be \
                 that of the stopped run",
                self.order.len()
            ))
        })?;
        Ok(Arc::new(Self::cut(rest.to_vec(), first, slices)))
    }

    fn cut(order: Vec<usize>, first: usize, slices: Slices) -> Self {
        let Slices { size, drop_last } = slices;
        let (full, short) = (order.len() / size, order.len() % size);
        let mut ends: Vec<usize> = (1..=full).map(|batch| batch * size).collect();
        if short > 0 && !drop_last {
            ends.push(order.len());
        }
        Self {
            order,
            ends,
            first,
            slices: Some(slices),
        }
    }

    fn samples_before(&self, batch: usize) -> Option<usize> {
        match batch.checked_sub(self.first)?.checked_sub(1) {
            Some(before) => self.ends.get(before).copied(),
            None => Some(0),
        }
    }

    /// Checks that every batch has a sample and every index is in the data set.
    pub(super) fn check(&self, request: &PlanRequest) -> Result<()> {
        let len = request.len;
        if let Some(index) = self.order().iter().find(|&&index| index >= len) {
            return Err(Error::data(format!(
                "the sampler gave index {index} for a data set of {len} samples; indices go from \
                 0 to {}",
                len.saturating_sub(1)
            )));
        }
        if self.ends.is_empty() {
            return Err(if request.drop_last {
                Error::config(format!(
                    "`drop_last` leaves no batch: there are fewer samples than the `batch_size` \
                     of {} (the data set has {len}); use a smaller `batch_size`, or keep the \
                     last batch",
                    request.batch_size
                ))
            } else {
                Error::data(format!(
                    "the sampler gave no batch for a data set of {len} samples; it must give at \
                     least one"
                ))
            });
        }
        let empty = |batch: &usize| self.batch(*batch).is_none_or(<[usize]>::is_empty);
        match (0..self.num_batches()).find(empty) {
            Some(batch) => Err(Error::data(format!(
                "the sampler gave no sample for batch {batch}; every batch needs at least one"
            ))),
            None => Ok(()),
        }
    }
}
