//! Batches of samples of similar length, so that little is padded.

use std::sync::Arc;

use super::{Plan, PlanRequest, Sampler};
use crate::data::SampleRng;
use crate::error::{Error, Result};

/// Batches of `batch_size` samples of similar length, with enough chance left in them.
///
/// Every sample comes once per epoch. The samples are shuffled and cut into pools of
/// [`pool_batches`](Self::pool_batches) batches; each pool is sorted by length, longest first, and
/// cut into batches; then the batches are shuffled. The short last batch, if there is one, stays
/// last.
///
/// ```
/// use firebox::data::{LengthBucketed, PlanRequest, Sampler};
///
/// let sampler = LengthBucketed::new([3, 90, 4, 80]);
/// let plan = sampler.plan(&PlanRequest::new(4, 2))?;
/// let mut batches: Vec<_> = (0..2).filter_map(|b| plan.batch(b)).collect();
/// batches.sort();
/// assert_eq!(batches, [[1, 3], [2, 0]]);
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct LengthBucketed {
    lengths: Arc<[usize]>,
    pool_batches: usize,
    shuffle: bool,
}

impl LengthBucketed {
    /// One length for each sample of the data set, in any unit: tokens, frames, characters.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        Self {
            lengths: lengths.into_iter().collect(),
            // The value of Hugging Face's `get_length_grouped_indices`.
            pool_batches: 50,
            shuffle: true,
        }
    }

    /// How many batches' worth of samples are sorted together. More pads less, and leaves less to
    /// chance. Default: 50.
    #[must_use]
    pub fn pool_batches(mut self, pool_batches: usize) -> Self {
        self.pool_batches = pool_batches;
        self
    }
}

impl Sampler for LengthBucketed {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        check_lengths(&self.lengths, request.len)?;
        if self.pool_batches == 0 {
            return Err(Error::config(
                "`pool_batches` is 0; a pool holds at least one batch",
            ));
        }
        let mut rng = self.shuffle.then(|| request.rng());
        let size = request.batch_size.max(1);
        let order = pooled(
            &self.lengths,
            self.pool_batches.saturating_mul(size),
            &mut rng,
        );
        let mut batches: Vec<Vec<usize>> = order.chunks(size).map(<[usize]>::to_vec).collect();
        let short = batches.pop_if(|batch| batch.len() < size);
        if let Some(rng) = &mut rng {
            rng.shuffle(&mut batches);
        }
        batches.extend(short.filter(|_| !request.drop_last));
        Ok(Plan::batches(batches))
    }

    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        Some(Arc::new(Self {
            shuffle: false,
            ..self.clone()
        }))
    }
}

/// Batches of as many samples as fit a budget of tokens; the loader's `batch_size` has no say.
///
/// A batch costs its longest length times its number of samples, which is what it takes once
/// padded; with [`unpadded`](Self::unpadded) it costs the sum of its lengths. No global batch costs
/// more than the budget. Every sample comes once per epoch. Samples are shuffled, sorted by length
/// within pools, filled into batches in that order, and the batches are shuffled. There is no
/// "short" batch, so `drop_last` drops nothing. The number of batches varies from epoch to epoch.
///
/// ```
/// use firebox::data::{PlanRequest, Sampler, TokenBudget};
///
/// let plan = TokenBudget::new([10, 6, 5, 2], 12).plan(&PlanRequest::new(4, 1))?;
/// let mut batches: Vec<_> = (0..3).filter_map(|b| plan.batch(b)).collect();
/// batches.sort();
/// assert_eq!(batches, [&[0][..], &[1, 2], &[3]]);
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenBudget {
    lengths: Arc<[usize]>,
    max_tokens: usize,
    padded: bool,
    pool_samples: usize,
    shuffle: bool,
}

impl TokenBudget {
    /// One length for each sample of the data set, and what a global batch may cost at most.
    pub fn new(lengths: impl IntoIterator<Item = usize>, max_tokens: usize) -> Self {
        Self {
            lengths: lengths.into_iter().collect(),
            max_tokens,
            padded: true,
            pool_samples: 4096,
            shuffle: true,
        }
    }

    /// Counts the sum of the lengths, for models that pack samples without padding.
    #[must_use]
    pub fn unpadded(mut self) -> Self {
        self.padded = false;
        self
    }

    /// How many samples are sorted together. Default: 4096.
    #[must_use]
    pub fn pool_samples(mut self, pool_samples: usize) -> Self {
        self.pool_samples = pool_samples;
        self
    }

    fn check(&self, len: usize) -> Result<()> {
        check_lengths(&self.lengths, len)?;
        if self.pool_samples == 0 {
            return Err(Error::config(
                "`pool_samples` is 0; a pool holds at least one sample",
            ));
        }
        let budget = self.max_tokens;
        match self.lengths.iter().enumerate().find(|(_, l)| **l > budget) {
            Some((index, length)) => Err(Error::data(format!(
                "sample {index} has {length} tokens, more than the budget of {budget} for a \
                 whole batch; raise `max_tokens`, or shorten or leave out the sample"
            ))),
            None => Ok(()),
        }
    }
}

impl Sampler for TokenBudget {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        self.check(request.len)?;
        let mut rng = self.shuffle.then(|| request.rng());
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let mut batch: Vec<usize> = Vec::new();
        let (mut longest, mut sum) = (0_usize, 0_usize);
        for sample in pooled(&self.lengths, self.pool_samples, &mut rng) {
            let length = self.lengths[sample];
            (longest, sum) = (longest.max(length), sum.saturating_add(length));
            let cost = if self.padded {
                longest.saturating_mul(batch.len() + 1)
            } else {
                sum
            };
            if cost > self.max_tokens {
                batches.push(std::mem::take(&mut batch));
                (longest, sum) = (length, length);
            }
            batch.push(sample);
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        if let Some(rng) = &mut rng {
            rng.shuffle(&mut batches);
        }
        Ok(Plan::batches(batches))
    }

    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        Some(Arc::new(Self {
            shuffle: false,
            ..self.clone()
        }))
    }
}

fn check_lengths(lengths: &[usize], len: usize) -> Result<()> {
    if lengths.len() == len {
        return Ok(());
    }
    Err(Error::data(format!(
        "there are {} lengths for a data set of {len} samples; give one for each",
        lengths.len()
    )))
}

/// All samples, shuffled if there is a generator, and sorted within pools: longest first, equal
/// lengths in the order they had.
fn pooled(lengths: &[usize], pool: usize, rng: &mut Option<SampleRng>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if let Some(rng) = rng {
        rng.shuffle(&mut order);
    }
    for pool in order.chunks_mut(pool.max(1)) {
        pool.sort_by_key(|&sample| std::cmp::Reverse(lengths[sample]));
    }
    order
}
