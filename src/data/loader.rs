//! The loader: settings, and the order of each epoch.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::tensor::backend::Backend;

use super::iter::Turns;
use super::source::{Epoch, Source, source};
use super::workers::{Workers, caught, lock};
use super::{EpochSpec, FallibleDataset, LoaderIter, Plan, PlanRequest, Random, Sampler, Samples};
use crate::error::{Error, Result};

/// Batches of type `O` on backend `B`, from a Burn `Dataset` and `Batcher`.
///
/// It is cheap to clone; clones share the data set and the worker threads. Those are started at the
/// first use, live as long as the last clone or iterator, and are joined then. Several iterators at
/// once are fine: they share the threads, each with its own batches ahead.
///
/// The batches are the same whatever the number of workers is.
///
/// ```
/// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
/// use burn::tensor::{Device, Tensor, backend::Backend};
/// use burn_ndarray::NdArray;
/// use firebox::data::{EpochSpec, Loader};
///
/// struct Stack;
/// impl<B: Backend> Batcher<B, f32, Tensor<B, 1>> for Stack {
///     fn batch(&self, items: Vec<f32>, device: &Device<B>) -> Tensor<B, 1> {
///         Tensor::from_floats(items.as_slice(), device)
///     }
/// }
/// let dataset = InMemDataset::new(vec![0.0, 0.1, 0.2, 0.3, 0.4]);
/// let loader: Loader<NdArray, _> = Loader::new(dataset, Stack).batch_size(2).shuffle(true);
/// assert_eq!(loader.num_batches(42, 0)?, Some(3));
/// for batch in loader.iter(EpochSpec::new(Default::default()).seed(42))? {
///     let batch = batch?;
///     assert_eq!(batch.samples, if batch.is_last { 1 } else { 2 });
/// }
/// # Ok::<(), firebox::Error>(())
/// ```
pub struct Loader<B: Backend, O> {
    source: Arc<dyn Source<B, O>>,
    /// `None` is the data's own order.
    sampler: Option<Arc<dyn Sampler>>,
    batch_size: usize,
    drop_last: bool,
    prefetch: usize,
    workers: Arc<Workers>,
    /// Whether every epoch takes the samples of epoch 0.
    same_every_epoch: bool,
    last_plan: Arc<Mutex<LastPlan>>,
}

/// The last plan made, for the shards that ask for the same one.
type LastPlan = Option<(PlanRequest, Arc<Plan>)>;

impl<B: Backend, O: Send + 'static> Loader<B, O> {
    /// Batches of one sample, in the data set's order, loaded in the caller's thread.
    ///
    /// An `Arc<dyn Dataset<I>>` is a data set too.
    pub fn new<I, D, C>(dataset: D, batcher: C) -> Self
    where
        I: Send + 'static,
        D: Dataset<I> + 'static,
        C: Batcher<B, I, O> + 'static,
    {
        Self::from_samples(Samples::new(dataset), batcher)
    }

    /// As [`new`](Self::new), from a data set with errors of its own.
    pub fn from_fallible<I, D, C>(dataset: D, batcher: C) -> Self
    where
        I: Send + 'static,
        D: FallibleDataset<I> + 'static,
        C: Batcher<B, I, O> + 'static,
    {
        Self::from_samples(Samples::fallible(dataset), batcher)
    }

    /// As [`new`](Self::new), from a stream that is opened for each epoch: see [`Samples::stream`].
    pub fn from_stream<I, T, F, C>(open: F, batcher: C) -> Self
    where
        I: Send + 'static,
        T: Iterator<Item = Result<I>> + Send + 'static,
        F: Fn(u64) -> Result<T> + Send + Sync + 'static,
        C: Batcher<B, I, O> + 'static,
    {
        Self::from_samples(Samples::stream(open), batcher)
    }

    /// As [`new`](Self::new), from [`Samples`], which may have random transforms.
    pub fn from_samples<I, C>(samples: Samples<I>, batcher: C) -> Self
    where
        I: Send + 'static,
        C: Batcher<B, I, O> + 'static,
    {
        Self {
            source: source(samples, batcher),
            sampler: None,
            batch_size: 1,
            drop_last: false,
            prefetch: 2,
            workers: Arc::new(Workers::new(0)),
            same_every_epoch: false,
            last_plan: Arc::default(),
        }
    }

    /// Sets the samples of one **global** batch, over all shards. Default: 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size;
        self
    }

    /// Takes the samples in a random order ([`Random`]), or in the data set's. It replaces a
    /// sampler set before. Default: not shuffled.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        let sampler: Option<Arc<dyn Sampler>> = if shuffle {
            Some(Arc::new(Random))
        } else {
            None
        };
        self.with_sampler(sampler)
    }

    /// Takes the samples and batches a sampler plans. It replaces `shuffle`.
    #[must_use]
    pub fn sampler(self, sampler: impl Sampler) -> Self {
        self.with_sampler(Some(Arc::new(sampler)))
    }

    /// Leaves out a last batch shorter than the batch size. Default: it is kept.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Loads in that many threads, ahead of the caller; 0 is in the caller's thread. Default: 0.
    ///
    /// A stream has one reader, so that it uses one thread at most.
    ///
    /// On a GPU with a backend that no accelerator of firebox has set up, call
    /// `firebox_backend::cubecl::share_streams` before the first tensor is made, or leave this at 0:
    /// CubeCL 0.10 may overwrite what another thread has made before it is read.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        let most = self.num_samples().map_or(1, |_| usize::MAX);
        self.workers = Arc::new(Workers::new(workers.min(most)));
        self
    }

    /// Sets how many batches each worker may be ahead. They may be in the device's memory.
    /// Default: 2, as in PyTorch.
    #[must_use]
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// The same loader with the same batches in every epoch, as when overfitting a few of them.
    ///
    /// Without shuffling, where the sampler can ([`Sampler::without_shuffle`]); otherwise the
    /// batches of epoch 0 are repeated. Worker threads are shared with this loader.
    #[must_use]
    pub fn without_shuffle(&self) -> Self {
        let sampler = self.sampler.as_ref();
        let sampler = sampler.map(|s| s.without_shuffle().unwrap_or_else(|| Arc::clone(s)));
        Self {
            same_every_epoch: true,
            ..self.clone()
        }
        .with_sampler(sampler)
    }

    /// The samples of one global batch.
    pub fn global_batch_size(&self) -> usize {
        self.batch_size
    }

    /// The data set's length, `None` for a stream. A sampler may take fewer samples, or more.
    pub fn num_samples(&self) -> Option<usize> {
        self.source.len()
    }

    /// The number of global batches in an epoch, `None` for a stream.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    pub fn num_batches(&self, seed: u64, epoch: u64) -> Result<Option<usize>> {
        let plan = self.plan(seed, epoch)?;
        Ok(self.num_samples().map(|_| plan.num_batches()))
    }

    /// Checks the settings, and plans an epoch to try the sampler. No sample is loaded.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a batch size or a prefetch of 0, for
    /// `drop_last` that leaves no batch, and for a stream with a sampler.
    /// [`ErrorKind::Data`](crate::ErrorKind::Data) for an empty data set. And the sampler's own.
    pub fn check(&self) -> Result<()> {
        self.plan(0, 0).map(drop)
    }

    /// The batches of one epoch.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check); a shard that does not exist; a start after the epoch's end;
    /// a stream that cannot be opened.
    pub fn iter(&self, spec: EpochSpec<B>) -> Result<LoaderIter<O>> {
        spec.shard.check()?;
        let start = spec.start_batch;
        let mut plan = self.plan(spec.seed, spec.epoch)?;
        if let (Some(done), Some(_)) = (spec.start_sample, self.num_samples()) {
            plan = plan.resume(start, done)?;
        }
        let batches = self
            .num_samples()
            .map_or(usize::MAX, |_| plan.num_batches());
        if start > batches {
            return Err(Error::data(format!(
                "epoch {} has {batches} batches, so it cannot go on at batch {start}; the data \
                 set and the batch size must be those of the stopped run",
                spec.epoch
            )));
        }
        let end = spec.limit.unwrap_or(usize::MAX).min(batches);
        let turns = match spec.by_batch {
            false => Turns::all(),
            // A stream has to be read in order, so that others' batches are read and dropped.
            true if self.num_samples().is_none() => Turns::read(spec.shard),
            true => Turns::skip(spec.shard),
        };
        let epoch = Epoch {
            order_epoch: self.order_epoch(spec.epoch),
            plan,
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            spec,
        };
        let fetch = Arc::clone(&self.source).open(epoch)?;
        let workers = (self.workers.count() > 0).then(|| Arc::clone(&self.workers));
        Ok(LoaderIter::new(
            fetch,
            start,
            end,
            turns,
            workers,
            self.prefetch,
        ))
    }

    fn with_sampler(mut self, sampler: Option<Arc<dyn Sampler>>) -> Self {
        self.sampler = sampler;
        // A plan of the sampler before is not to be taken for one of this.
        self.last_plan = Arc::default();
        self
    }

    fn order_epoch(&self, epoch: u64) -> u64 {
        if self.same_every_epoch { 0 } else { epoch }
    }

    /// The checked plan of an epoch; empty for a stream.
    fn plan(&self, seed: u64, epoch: u64) -> Result<Arc<Plan>> {
        self.check_settings()?;
        let Some(len) = self.num_samples() else {
            return Ok(Arc::new(Plan::batches([])));
        };
        if len == 0 {
            return Err(Error::data(
                "the data set is empty; it needs at least one sample",
            ));
        }
        let request = PlanRequest {
            len,
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            seed,
            epoch: self.order_epoch(epoch),
        };
        // The lock is held while planning, so that shards that ask at once plan once.
        let mut last = lock(&self.last_plan);
        if let Some((of, plan)) = &*last
            && *of == request
        {
            return Ok(Arc::clone(plan));
        }
        let plan = caught(
            || format!("the sampler of epoch {epoch}"),
            || match &self.sampler {
                Some(sampler) => sampler.plan(&request),
                None => super::Sequential.plan(&request),
            },
        )?;
        plan.check(&request)?;
        let plan = Arc::new(plan);
        *last = Some((request, Arc::clone(&plan)));
        Ok(plan)
    }

    fn check_settings(&self) -> Result<()> {
        if self.batch_size == 0 {
            return Err(Error::config(
                "`batch_size` is 0; use a whole number from 1",
            ));
        }
        if self.prefetch == 0 && self.workers.count() > 0 {
            return Err(Error::config(
                "`prefetch` is 0; with workers, use a whole number from 1",
            ));
        }
        if self.sampler.is_some() && self.num_samples().is_none() {
            return Err(Error::config(
                "a stream comes in its own order and takes no sampler; shuffle in the function \
                 that opens it, by the epoch it is given",
            ));
        }
        Ok(())
    }
}

impl<B: Backend, O> Clone for Loader<B, O> {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            sampler: self.sampler.clone(),
            workers: Arc::clone(&self.workers),
            last_plan: Arc::clone(&self.last_plan),
            ..*self
        }
    }
}

impl<B: Backend, O> fmt::Debug for Loader<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("batch_size", &self.batch_size)
            .field("drop_last", &self.drop_last)
            .field("workers", &self.workers.count())
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}
