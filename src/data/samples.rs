//! Where items come from, before they become batches.

use std::marker::PhantomData;

use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::tensor::backend::Backend;

use super::{Loader, SampleRng};
use crate::error::{Error, Result};

/// A data set whose samples can fail with a message of their own.
///
/// Burn's `Dataset::get` can only say `None`. A data set that decodes files implements this trait
/// instead, and its error reaches the user with the sample's index in front. It must give an item,
/// or an error, for every index below `len`.
///
/// ```
/// use firebox::data::{FallibleDataset, Samples};
/// use firebox::prelude::*;
///
/// struct Files(Vec<String>);
///
/// impl FallibleDataset<Vec<u8>> for Files {
///     fn try_get(&self, index: usize) -> Result<Vec<u8>> {
///         let path = &self.0[index];
///         std::fs::read(path).context(path)
///     }
///     fn len(&self) -> usize {
///         self.0.len()
///     }
/// }
/// let samples = Samples::fallible(Files(vec!["a.png".into()]));
/// ```
pub trait FallibleDataset<I>: Send + Sync {
    /// The item at an index below [`len`](Self::len).
    ///
    /// # Errors
    ///
    /// Whatever keeps the item from being made; the epoch ends with it.
    fn try_get(&self, index: usize) -> Result<I>;

    /// The number of items.
    fn len(&self) -> usize;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The items a [`Loader`] batches, with the transforms applied to each of them.
///
/// [`Loader::new`] is the short way for a Burn `Dataset` without transforms. This type adds random
/// augmentation, samples that can fail, and streams of unknown length:
///
/// ```
/// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
/// use burn::tensor::{Device, Tensor, backend::Backend};
/// use burn_ndarray::NdArray;
/// use firebox::data::{EpochSpec, Samples};
///
/// struct Stack;
/// impl<B: Backend> Batcher<B, f32, Tensor<B, 1>> for Stack {
///     fn batch(&self, items: Vec<f32>, device: &Device<B>) -> Tensor<B, 1> {
///         Tensor::from_floats(items.as_slice(), device)
///     }
/// }
/// let loader = Samples::new(InMemDataset::new(vec![0.0, 1.0, 2.0]))
///     .map(|x: f32, rng| Ok(if rng.chance(0.5) { -x } else { x }))
///     .into_loader::<NdArray, _, _>(Stack)
///     .batch_size(2);
/// let batches = loader.iter(EpochSpec::new(Default::default()))?;
/// assert_eq!(batches.count(), 2);
/// # Ok::<(), firebox::Error>(())
/// ```
pub struct Samples<I> {
    pub(super) origin: Origin<I>,
    pub(super) transforms: Transforms<I>,
}

/// Items that can be asked for by index, or that come in their own order.
pub(super) enum Origin<I> {
    Indexed(Box<dyn FallibleDataset<I>>),
    Stream(OpenStream<I>),
}

/// The items of a stream: an error ends it.
pub(super) type ItemIter<I> = Box<dyn Iterator<Item = Result<I>> + Send>;

/// Starts the stream of one epoch.
pub(super) type OpenStream<I> = Box<dyn Fn(u64) -> Result<ItemIter<I>> + Send + Sync>;

/// What is done to each item, in order.
pub(super) struct Transforms<I>(Vec<Transform<I>>);

type Transform<I> = Box<dyn Fn(I, &mut SampleRng) -> Result<I> + Send + Sync>;

impl<I: Send + 'static> Samples<I> {
    /// The items of a Burn data set; a `None` from its `get` becomes an error.
    pub fn new(dataset: impl Dataset<I> + 'static) -> Self {
        Self::fallible(Checked(dataset, PhantomData))
    }

    /// The items of a data set with errors of its own.
    pub fn fallible(dataset: impl FallibleDataset<I> + 'static) -> Self {
        Self {
            origin: Origin::Indexed(Box::new(dataset)),
            transforms: Transforms(Vec::new()),
        }
    }

    /// Items that come in their own order, as many as there are: a file read line by line, a
    /// generator, a queue.
    ///
    /// `open` is called once for each epoch, with its number, and must start the same stream for
    /// the same number if runs are to be resumed exactly. Resuming reads the skipped items and
    /// throws them away. Every shard reads the whole stream and keeps its part of every batch.
    ///
    /// ```
    /// use std::io::{BufRead, BufReader};
    ///
    /// use firebox::data::Samples;
    /// use firebox::prelude::*;
    ///
    /// let lines = Samples::<String>::stream(|_epoch| {
    ///     let file = std::fs::File::open("corpus.txt").context("corpus.txt")?;
    ///     Ok(BufReader::new(file).lines().map(|line| line.context("reading corpus.txt")))
    /// });
    /// ```
    pub fn stream<T>(open: impl Fn(u64) -> Result<T> + Send + Sync + 'static) -> Self
    where
        T: Iterator<Item = Result<I>> + Send + 'static,
    {
        let boxed = move |epoch| open(epoch).map(|items| Box::new(items) as ItemIter<I>);
        Self {
            origin: Origin::Stream(Box::new(boxed)),
            transforms: Transforms(Vec::new()),
        }
    }

    /// Applies a transform to each item, such as a random augmentation; after those added before.
    ///
    /// The generator is the sample's own stream, a function of `(seed, epoch, index)` alone (of
    /// the position, in a stream): neither workers, shards nor the order change it. A sample that
    /// a sampler takes twice in an epoch is transformed the same way twice. Several transforms of
    /// one sample draw from one stream, one after the other.
    #[must_use]
    pub fn map(
        mut self,
        transform: impl Fn(I, &mut SampleRng) -> Result<I> + Send + Sync + 'static,
    ) -> Self {
        self.transforms.0.push(Box::new(transform));
        self
    }

    /// The loader that makes batches of these items.
    pub fn into_loader<B, O, C>(self, batcher: C) -> Loader<B, O>
    where
        B: Backend,
        O: Send + 'static,
        C: Batcher<B, I, O> + 'static,
    {
        Loader::from_samples(self, batcher)
    }
}

impl<I> Transforms<I> {
    /// The generator is made only if there is a transform that may draw from it.
    pub(super) fn apply(&self, item: I, rng: impl FnOnce() -> SampleRng) -> Result<I> {
        if self.0.is_empty() {
            return Ok(item);
        }
        let mut rng = rng();
        self.0
            .iter()
            .try_fold(item, |item, map| map(item, &mut rng))
    }
}

/// A Burn data set, with an error in place of its `None`.
struct Checked<D, I>(D, PhantomData<fn() -> I>);

impl<I, D: Dataset<I>> FallibleDataset<I> for Checked<D, I> {
    fn try_get(&self, index: usize) -> Result<I> {
        self.0.get(index).ok_or_else(|| {
            Error::data(format!(
                "the data set gave no item, although its length is {}; `Dataset::get` must give \
                 one for every index below `len`",
                self.0.len()
            ))
        })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
