//! Which part of which epoch a loader iterates.

use std::ops::Range;

use burn::tensor::{Device, backend::Backend};

use crate::error::{Error, Result};
use crate::profiler::Profiler;

/// Which batches to make, and where: one pass of [`Loader::iter`](super::Loader::iter).
///
/// ```
/// use burn_ndarray::NdArray;
/// use firebox::data::{EpochSpec, Shard};
///
/// // The second of two shards goes on in epoch 3, from global batch 10, and stops before 20.
/// let spec = EpochSpec::<NdArray>::new(Default::default())
///     .seed(42)
///     .epoch(3)
///     .start_batch(10)
///     .limit(20)
///     .shard(Shard { index: 1, count: 2 });
/// assert_eq!(spec.limit, Some(20));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EpochSpec<B: Backend> {
    /// The device the batcher is given.
    pub device: Device<B>,
    /// The run's seed. Default: 0.
    pub seed: u64,
    /// The epoch, from 0; with the seed it decides the order and the samples' random streams.
    pub epoch: u64,
    /// The first global batch to make: those before it are skipped, not loaded. Default: 0.
    pub start_batch: usize,
    /// How many samples of the epoch, over all shards, come before `start_batch`. It is only needed
    /// to go on with another batch size than before, as when the batch grows with the number of
    /// devices: batches are then cut anew from there. Default: those of the batches before.
    pub start_sample: Option<usize>,
    /// The global batch to stop before; nothing is loaded from there on. Default: the epoch's end.
    pub limit: Option<usize>,
    /// The part of every global batch to take. Default: all of it.
    pub shard: Shard,
    /// Whether shards take whole batches in turn instead of a part of each. Default: no.
    pub by_batch: bool,
    pub(crate) profiler: Profiler,
}

impl<B: Backend> EpochSpec<B> {
    /// The whole of epoch 0, seed 0, on the given device.
    pub fn new(device: Device<B>) -> Self {
        Self {
            device,
            seed: 0,
            epoch: 0,
            start_batch: 0,
            start_sample: None,
            limit: None,
            shard: Shard::default(),
            by_batch: false,
            profiler: Profiler::default(),
        }
    }

    /// Sets the run's seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the epoch, from 0.
    #[must_use]
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// Skips to a global batch, to go on exactly where a stopped run was.
    #[must_use]
    pub fn start_batch(mut self, start_batch: usize) -> Self {
        self.start_batch = start_batch;
        self
    }

    /// Says how many samples of the epoch come before [`start_batch`](Self::start_batch), to go on
    /// exactly with another batch size.
    #[must_use]
    pub fn start_sample(mut self, start_sample: impl Into<Option<usize>>) -> Self {
        self.start_sample = start_sample.into();
        self
    }

    /// Stops before a global batch (counted from the epoch's start), or at the epoch's end.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<Option<usize>>) -> Self {
        self.limit = limit.into();
        self
    }

    /// Takes one part of every global batch.
    #[must_use]
    pub fn shard(mut self, shard: Shard) -> Self {
        self.shard = shard;
        self
    }

    /// Lets shards take whole batches in turn instead of a part of each.
    #[must_use]
    pub fn by_batch(mut self, by_batch: bool) -> Self {
        self.by_batch = by_batch;
        self
    }

    /// Times what loading takes.
    pub(crate) fn profiler(mut self, profiler: &Profiler) -> Self {
        self.profiler = profiler.clone();
        self
    }

    /// This shard's part of a batch of `len` samples.
    pub(super) fn part(&self, len: usize) -> Range<usize> {
        match self.by_batch {
            true => 0..len,
            false => self.shard.part(len),
        }
    }
}

/// One of `count` equal takers of every global batch: a device, or a process.
///
/// ```
/// use firebox::data::Shard;
///
/// // 11 samples over 3 shards: the first ones take one more.
/// let parts = [0, 1, 2].map(|index| Shard { index, count: 3 }.part(11));
/// assert_eq!(parts, [0..4, 4..8, 8..11]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 0.
    pub index: usize,
    /// How many there are, from 1.
    pub count: usize,
}

impl Shard {
    /// This shard's contiguous part of a slice of `len` samples, split as evenly as it goes; empty
    /// for the last shards of a slice with fewer samples than shards.
    pub fn part(self, len: usize) -> Range<usize> {
        let count = self.count.max(1);
        let (share, extra) = (len / count, len % count);
        let start = |index: usize| index.saturating_mul(share) + index.min(extra);
        start(self.index).min(len)..start(self.index.saturating_add(1)).min(len)
    }

    pub(super) fn check(self) -> Result<()> {
        if self.index < self.count {
            return Ok(());
        }
        Err(Error::config(format!(
            "shard {} of {} does not exist; the index goes from 0 to below the count",
            self.index, self.count
        )))
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}
