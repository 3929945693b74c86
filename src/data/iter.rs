//! The batches of one epoch, in order.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use super::Shard;
use super::source::Fetch;
use super::workers::Workers;
use crate::error::{Error, Result};

/// One shard's part of one global batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Batch<O> {
    /// What the batcher made; `None` if the global batch has fewer samples than there are shards
    /// and this shard got none. Such a shard still takes the step, with weight 0.
    pub value: Option<O>,
    /// The number of samples in this part.
    pub samples: usize,
    /// The number of samples in the global batch, over all shards.
    pub global_samples: usize,
    /// The index of the global batch in its epoch, from 0.
    pub index: usize,
    /// The samples' indices in the data set, in the batch's order; empty for a stream.
    pub indices: Vec<usize>,
    /// Whether this is the last batch: of the epoch, or before the limit that was set.
    pub is_last: bool,
}

impl<O> Batch<O> {
    /// The part of a rank that has no samples left while others have.
    pub(crate) fn nothing(index: usize) -> Self {
        Self {
            value: None,
            samples: 0,
            global_samples: 0,
            index,
            indices: Vec::new(),
            is_last: true,
        }
    }
}

/// The batches of one epoch, in order; made by [`Loader::iter`](super::Loader::iter).
///
/// It ends after the first error. With worker threads, batches are loaded ahead from the first call
/// of `next`; dropping the iterator drops what was loaded and cancels what was not, at once.
pub struct LoaderIter<O> {
    fetch: Fetch<O>,
    turns: Turns,
    position: usize,
    /// The global batch to stop before, as far as it is known.
    end: usize,
    ahead: Option<Ahead<O>>,
}

impl<O: Send + 'static> LoaderIter<O> {
    /// Without `workers`, batches are made by the caller of `next`.
    pub(super) fn new(
        fetch: Fetch<O>,
        start: usize,
        end: usize,
        turns: Turns,
        workers: Option<Arc<Workers>>,
        prefetch: usize,
    ) -> Self {
        let position = turns.first(start);
        let ahead = workers.map(|workers| Ahead {
            bound: workers.count().saturating_mul(prefetch).max(1),
            workers,
            pending: VecDeque::new(),
            submitted: position,
            cancelled: Arc::default(),
        });
        Self {
            fetch,
            turns,
            position,
            end,
            ahead,
        }
    }
}

impl<O> LoaderIter<O> {
    /// The index of the next global batch: where a later run goes on, as
    /// [`start_batch`](super::EpochSpec::start_batch). Batches loaded ahead do not count.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<O: Send + 'static> Iterator for LoaderIter<O> {
    type Item = Result<Batch<O>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.position >= self.end {
                return None;
            }
            let batch = match &mut self.ahead {
                None => (self.fetch)(self.position),
                Some(ahead) => ahead.next(&self.fetch, self.end, self.turns.stride),
            };
            match batch {
                Ok(Some(_)) => self.position = self.position.saturating_add(self.turns.stride),
                Ok(None) | Err(_) => {
                    self.end = self.position;
                    self.ahead = None;
                }
            }
            let is_mine = |batch: &Batch<O>| self.turns.take(batch.index);
            if batch.as_ref().is_ok_and(|b| b.as_ref().is_none_or(is_mine)) || batch.is_err() {
                return batch.transpose();
            }
        }
    }
}

impl<O: Send + 'static> FusedIterator for LoaderIter<O> {}

impl<O> fmt::Debug for LoaderIter<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoaderIter")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Which batches are those of this iterator.
pub(super) struct Turns {
    /// How many batches it is from one that is made to the next.
    stride: usize,
    /// Those of which it takes.
    of: Shard,
}

impl Turns {
    pub(super) fn all() -> Self {
        Self::read(Shard::default())
    }

    /// Makes the batches of this shard alone.
    pub(super) fn skip(shard: Shard) -> Self {
        Self {
            stride: shard.count.max(1),
            of: shard,
        }
    }

    /// Makes all batches and drops those of other shards.
    pub(super) fn read(shard: Shard) -> Self {
        Self {
            stride: 1,
            of: shard,
        }
    }

    fn take(&self, batch: usize) -> bool {
        batch % self.of.count.max(1) == self.of.index
    }

    /// The first batch to make.
    fn first(&self, start: usize) -> usize {
        let steps = (0..self.stride).find(|step| self.stride == 1 || self.take(start + step));
        start + steps.unwrap_or(0)
    }
}

/// The batches under way on worker threads. Each has a channel of its own, so that they come back
/// in order whoever finishes first, and those of a dropped iterator go nowhere.
struct Ahead<O> {
    workers: Arc<Workers>,
    /// How many batches may be under way or waiting.
    bound: usize,
    pending: VecDeque<Receiver<Result<Option<Batch<O>>>>>,
    /// The index of the next batch to hand to the workers.
    submitted: usize,
    cancelled: Arc<AtomicBool>,
}

impl<O: Send + 'static> Ahead<O> {
    fn next(&mut self, fetch: &Fetch<O>, end: usize, stride: usize) -> Result<Option<Batch<O>>> {
        self.fill(fetch, end, stride)?;
        let batch = match self.pending.pop_front() {
            Some(batch) => batch.recv(),
            None => return Ok(None),
        };
        let batch =
            batch.map_err(|_| Error::data("a loader thread ended before its batch was made"))??;
        // The workers go on while the caller computes. A failure comes again at the next call.
        let _ = self.fill(fetch, end, stride);
        Ok(batch)
    }

    fn fill(&mut self, fetch: &Fetch<O>, end: usize, stride: usize) -> Result<()> {
        while self.pending.len() < self.bound && self.submitted < end {
            let (send, receive) = sync_channel(1);
            let (fetch, cancelled) = (Arc::clone(fetch), Arc::clone(&self.cancelled));
            let index = self.submitted;
            self.workers.submit(Box::new(move || {
                if !cancelled.load(Ordering::Relaxed) {
                    // The receiver is gone if the iterator was dropped meanwhile.
                    let _ = send.send(fetch(index));
                }
            }))?;
            self.pending.push_back(receive);
            self.submitted = self.submitted.saturating_add(stride);
        }
        Ok(())
    }
}

impl<O> Drop for Ahead<O> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
