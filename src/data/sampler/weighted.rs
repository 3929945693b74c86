//! Samples drawn by weight.

use std::sync::Arc;

use super::{Plan, PlanRequest, Sampler};
use crate::data::SampleRng;
use crate::error::{Error, Result};

/// Draws samples with a probability proportional to their weights, for instance to balance classes.
///
/// By default it draws with replacement, as many as the data set has samples (the defaults of
/// PyTorch's `WeightedRandomSampler`). A sample of weight 0 is never drawn.
///
/// ```
/// use firebox::data::{PlanRequest, Sampler, Weighted};
///
/// let sampler = Weighted::new([0.0, 1.0, 3.0]).num_samples(100);
/// let plan = sampler.plan(&PlanRequest::new(3, 10))?;
/// assert_eq!(plan.num_batches(), 10);
/// assert!(!plan.order().contains(&0));
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Weighted {
    weights: Arc<[f64]>,
    num_samples: usize,
    replacement: bool,
}

impl Weighted {
    /// One weight for each sample of the data set, finite and not negative; their sum is free.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let weights: Arc<[f64]> = weights.into_iter().collect();
        Self {
            num_samples: weights.len(),
            weights,
            replacement: true,
        }
    }

    /// How many samples an epoch draws.
    #[must_use]
    pub fn num_samples(mut self, num_samples: usize) -> Self {
        self.num_samples = num_samples;
        self
    }

    /// Draws every sample at most once per epoch: each draw is by weight among those left.
    ///
    /// [`num_samples`](Self::num_samples) must then be at most the number of weights above 0.
    #[must_use]
    pub fn without_replacement(mut self) -> Self {
        self.replacement = false;
        self
    }

    fn check(&self, len: usize) -> Result<()> {
        let weights = &self.weights;
        if weights.len() != len {
            return Err(Error::data(format!(
                "there are {} weights for a data set of {len} samples; give one for each",
                weights.len()
            )));
        }
        let wrong = |weight: &f64| !weight.is_finite() || *weight < 0.0;
        if let Some((index, weight)) = weights.iter().enumerate().find(|(_, w)| wrong(w)) {
            return Err(Error::data(format!(
                "the weight of sample {index} is {weight}; weights are finite and not negative"
            )));
        }
        let sum: f64 = weights.iter().sum();
        if !sum.is_finite() || sum <= 0.0 {
            return Err(Error::data(format!(
                "the weights add up to {sum}; their sum must be above 0 and finite"
            )));
        }
        if self.num_samples == 0 {
            return Err(Error::config(
                "`num_samples` is 0; a weighted epoch draws at least one sample",
            ));
        }
        let drawable = weights.iter().filter(|weight| **weight > 0.0).count();
        if !self.replacement && self.num_samples > drawable {
            return Err(Error::config(format!(
                "`num_samples` is {}, but without replacement only the {drawable} samples with a \
                 weight above 0 can be drawn; draw fewer, or with replacement",
                self.num_samples
            )));
        }
        Ok(())
    }
}

impl Sampler for Weighted {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        self.check(request.len)?;
        let mut tree = SumTree::new(&self.weights);
        let mut rng = request.rng();
        let order = (0..self.num_samples)
            .map(|_| {
                let sample = tree.draw(&mut rng);
                if !self.replacement {
                    tree.remove(sample);
                }
                sample
            })
            .collect();
        Ok(Plan::slices(order, request))
    }
}

/// A binary tree of sums over the weights: a draw, or the removal of one weight, takes
/// logarithmic time. Sums are only ever added up from below, never reduced by subtraction, so that
/// no rounding error makes a removed weight drawable; and additions give the same on all platforms.
struct SumTree {
    /// Node `n` has the children `2n` and `2n + 1`; the root is 1, the leaves begin at `leaves`.
    sums: Vec<f64>,
    leaves: usize,
}

impl SumTree {
    fn new(weights: &[f64]) -> Self {
        let leaves = weights.len().next_power_of_two();
        let mut sums = vec![0.0; leaves];
        sums.extend_from_slice(weights);
        sums.resize(2 * leaves, 0.0);
        let mut tree = Self { sums, leaves };
        (1..leaves).rev().for_each(|node| tree.add_up(node));
        tree
    }

    fn draw(&self, rng: &mut SampleRng) -> usize {
        let mut target = rng.uniform() * self.sums[1];
        let mut node = 1;
        while node < self.leaves {
            let (left, right) = (self.sums[2 * node], self.sums[2 * node + 1]);
            // Rounding may leave the target at the total; a side that weighs nothing is no choice.
            if target < left || right <= 0.0 {
                node *= 2;
            } else {
                target -= left;
                node = 2 * node + 1;
            }
        }
        node - self.leaves
    }

    fn remove(&mut self, sample: usize) {
        let mut node = self.leaves + sample;
        self.sums[node] = 0.0;
        while node > 1 {
            node /= 2;
            self.add_up(node);
        }
    }

    fn add_up(&mut self, node: usize) {
        self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
    }
}
