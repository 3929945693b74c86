//! How the batches of one epoch are made; the items' type ends here.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::backend::Backend;

use super::samples::{ItemIter, OpenStream, Origin, Transforms};
use super::workers::{caught, lock};
use super::{Batch, EpochSpec, FallibleDataset, Plan, SampleRng, Samples};
use crate::error::{Error, Result};
use crate::profiler::Phase;

/// Makes one shard's part of the global batch with the given index; `None` after a stream's end.
pub(super) type Fetch<O> = Arc<dyn Fn(usize) -> Result<Option<Batch<O>>> + Send + Sync>;

/// Items and batcher together.
pub(super) trait Source<B: Backend, O>: Send + Sync {
    /// The number of samples; `None` for a stream.
    fn len(&self) -> Option<usize>;

    /// Starts an epoch. For a stream, batches must then be fetched in order.
    fn open(self: Arc<Self>, epoch: Epoch<B>) -> Result<Fetch<O>>;
}

/// What a source needs to know of an epoch.
pub(super) struct Epoch<B: Backend> {
    pub(super) spec: EpochSpec<B>,
    /// The epoch whose order is taken: `spec.epoch`, unless every epoch is to be the same.
    pub(super) order_epoch: u64,
    /// Which samples make which batch; empty for a stream.
    pub(super) plan: Arc<Plan>,
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
}

pub(super) fn source<B, I, O, C>(samples: Samples<I>, batcher: C) -> Arc<dyn Source<B, O>>
where
    B: Backend,
    I: Send + 'static,
    C: Batcher<B, I, O> + 'static,
{
    let Samples { origin, transforms } = samples;
    match origin {
        Origin::Indexed(dataset) => Arc::new(Indexed {
            dataset,
            transforms,
            batcher,
        }),
        Origin::Stream(open) => Arc::new(Stream {
            open,
            transforms,
            batcher,
        }),
    }
}

struct Indexed<I, C> {
    dataset: Box<dyn FallibleDataset<I>>,
    transforms: Transforms<I>,
    batcher: C,
}

impl<B, I, O, C> Source<B, O> for Indexed<I, C>
where
    B: Backend,
    I: Send + 'static,
    C: Batcher<B, I, O> + 'static,
{
    fn len(&self) -> Option<usize> {
        Some(self.dataset.len())
    }

    fn open(self: Arc<Self>, epoch: Epoch<B>) -> Result<Fetch<O>> {
        let Epoch { spec, plan, .. } = epoch;
        let end = spec.limit.unwrap_or(usize::MAX).min(plan.num_batches());
        Ok(Arc::new(move |index| {
            let Some(slice) = plan.batch(index) else {
                return Ok(None);
            };
            let part = slice.get(spec.part(slice.len())).unwrap_or_default();
            let load = || self.items(part, &spec);
            let items = spec.profiler.time(Phase::Load, load)?;
            let samples = || format!(" (samples {})", listed(part));
            Ok(Some(Batch {
                value: collate(&self.batcher, items, &spec, index, samples)?,
                samples: part.len(),
                global_samples: slice.len(),
                index,
                indices: part.to_vec(),
                is_last: index + 1 == end,
            }))
        }))
    }
}

impl<I, C> Indexed<I, C> {
    /// The items of a batch. Their panics are caught together, as catching costs as much as copying
    /// a small item does.
    fn items<B: Backend>(&self, samples: &[usize], spec: &EpochSpec<B>) -> Result<Vec<I>> {
        let current = Cell::new(0);
        caught(
            || format!("loading sample {}", current.get()),
            || {
                let mut items = Vec::with_capacity(samples.len());
                for &sample in samples {
                    current.set(sample);
                    let item = self.item(sample, spec);
                    items.push(item.map_err(|e| e.context(format!("sample {sample}")))?);
                }
                Ok(items)
            },
        )
    }

    fn item<B: Backend>(&self, sample: usize, spec: &EpochSpec<B>) -> Result<I> {
        let item = self.dataset.try_get(sample)?;
        let rng = || SampleRng::new(spec.seed, spec.epoch, sample);
        self.transforms.apply(item, rng)
    }
}

struct Stream<I, C> {
    open: OpenStream<I>,
    transforms: Transforms<I>,
    batcher: C,
}

impl<B, I, O, C> Source<B, O> for Stream<I, C>
where
    B: Backend,
    I: Send + 'static,
    C: Batcher<B, I, O> + 'static,
{
    fn len(&self) -> Option<usize> {
        None
    }

    fn open(self: Arc<Self>, epoch: Epoch<B>) -> Result<Fetch<O>> {
        let Epoch {
            spec, order_epoch, ..
        } = epoch;
        let items = caught(
            || format!("opening the stream of epoch {order_epoch}"),
            || (self.open)(order_epoch),
        )?;
        let batches_before = spec.start_batch.saturating_mul(epoch.batch_size);
        let (start, slack) = match spec.start_sample {
            Some(start) => (start, 0),
            None if epoch.drop_last => (batches_before, 0),
            None => (batches_before, epoch.batch_size.saturating_sub(1)),
        };
        let reader = Mutex::new(Reader {
            items: Some(items),
            position: 0,
            start,
            slack,
            ahead: None,
            batch_size: epoch.batch_size,
            drop_last: epoch.drop_last,
        });
        Ok(Arc::new(move |index| {
            let last = spec.limit == index.checked_add(1);
            let read = || lock(&reader).batch(last);
            let Some((slice, is_last)) = spec.profiler.time(Phase::Load, read)? else {
                return Ok(None);
            };
            let (global_samples, part) = (slice.len(), spec.part(slice.len()));
            let samples = part.len();
            // Batches before this one were full, or they would have been the last.
            let full = index.saturating_sub(spec.start_batch);
            let before = full.saturating_mul(epoch.batch_size).saturating_add(start);
            let first = before.saturating_add(part.start);
            let items = slice
                .into_iter()
                .skip(part.start)
                .take(samples)
                .zip(first..)
                .map(|(item, position)| self.item(item, position, &spec))
                .collect::<Result<Vec<I>>>()?;
            Ok(Some(Batch {
                value: collate(&self.batcher, items, &spec, index, String::new)?,
                samples,
                global_samples,
                index,
                indices: Vec::new(),
                is_last,
            }))
        }))
    }
}

impl<I, C> Stream<I, C> {
    fn item<B: Backend>(&self, item: I, position: usize, spec: &EpochSpec<B>) -> Result<I> {
        let rng = || SampleRng::new(spec.seed, spec.epoch, position);
        caught(
            || format!("transforming item {position} of the stream"),
            || {
                self.transforms
                    .apply(item, rng)
                    .map_err(|e| e.context(format!("item {position} of the stream")))
            },
        )
    }
}

/// Cuts a stream into global batches, one batch ahead to know which one is the last.
struct Reader<I> {
    /// `None` once it has ended or failed: an iterator is not asked again after that.
    items: Option<ItemIter<I>>,
    /// How many items were read.
    position: usize,
    /// How many items come before the first batch: they are read and thrown away.
    start: usize,
    /// By how many items `start` may be too high, because it was counted in full batches.
    slack: usize,
    ahead: Option<Result<Vec<I>>>,
    batch_size: usize,
    drop_last: bool,
}

impl<I> Reader<I> {
    /// The next batch's items, and whether it is the last one. With `last`, nothing is read ahead.
    fn batch(&mut self, last: bool) -> Result<Option<(Vec<I>, bool)>> {
        while self.position < self.start {
            if self.item()?.is_none() {
                return self.ended_early();
            }
        }
        let slice = match self.ahead.take() {
            Some(ahead) => ahead?,
            None => self.read()?,
        };
        if slice.is_empty() {
            return match (self.start, self.position) {
                (0, 0) => Err(Error::data(
                    "the stream gave no item; an epoch needs at least one",
                )),
                (0, read) if self.drop_last && read < self.batch_size => {
                    Err(Error::config(format!(
                        "`drop_last` leaves no batch: the stream gave {read} items and \
                         `batch_size` is {}; use a smaller one, or keep the last batch",
                        self.batch_size
                    )))
                }
                _ => Ok(None),
            };
        }
        if last {
            return Ok(Some((slice, true)));
        }
        let ahead = self.read();
        let is_last = matches!(&ahead, Ok(items) if items.is_empty());
        self.ahead = Some(ahead);
        Ok(Some((slice, is_last)))
    }

    /// The end came before the start: right after a short last batch, an error anywhere else.
    fn ended_early<T>(&self) -> Result<Option<T>> {
        if self.start - self.position <= self.slack {
            return Ok(None);
        }
        Err(Error::data(format!(
            "the stream ended after {} items, so it cannot go on after {}; it must be the one \
             that the stopped run read",
            self.position, self.start
        )))
    }

    /// The items of the next batch; none at the end.
    fn read(&mut self) -> Result<Vec<I>> {
        let mut batch = Vec::new();
        while batch.len() < self.batch_size
            && let Some(item) = self.item()?
        {
            batch.push(item);
        }
        if self.drop_last && batch.len() < self.batch_size {
            batch.clear();
        }
        Ok(batch)
    }

    fn item(&mut self) -> Result<Option<I>> {
        let Some(items) = &mut self.items else {
            return Ok(None);
        };
        let position = self.position;
        let item = caught(
            || format!("reading item {position} of the stream"),
            || {
                let item = items.next().transpose();
                item.map_err(|e| e.context(format!("item {position} of the stream")))
            },
        );
        match &item {
            Ok(Some(_)) => self.position += 1,
            Ok(None) | Err(_) => self.items = None,
        }
        item
    }
}

/// Calls the batcher, unless this shard has no sample of the batch.
fn collate<B: Backend, I, O>(
    batcher: &impl Batcher<B, I, O>,
    items: Vec<I>,
    spec: &EpochSpec<B>,
    index: usize,
    samples: impl Fn() -> String,
) -> Result<Option<O>> {
    if items.is_empty() {
        return Ok(None);
    }
    let EpochSpec {
        device, profiler, ..
    } = spec;
    caught(
        || format!("making batch {index}{}", samples()),
        || {
            profiler.time(Phase::Transfer, || {
                let batch = batcher.batch(items, device);
                if profiler.is_on() {
                    // What fails here fails again when the batch is used.
                    let _ = B::sync(device);
                }
                Ok(Some(batch))
            })
        },
    )
}

/// The indices for a message: all of them up to 16, else the first ones.
fn listed(indices: &[usize]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = indices.iter().take(SHOWN).map(usize::to_string).collect();
    let more = match indices.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}
