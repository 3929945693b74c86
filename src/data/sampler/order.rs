//! Samplers that decide an order alone; batches are its slices.

use std::sync::Arc;

use super::{Plan, PlanRequest, Sampler};
use crate::error::{Error, Result};

/// The data set's own order.
///
/// ```
/// use firebox::data::{PlanRequest, Sampler, Sequential};
///
/// let plan = Sequential.plan(&PlanRequest::new(5, 2))?;
/// assert_eq!(plan.batch(2), Some(&[4][..]));
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Sampler for Sequential {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        Ok(Plan::slices((0..request.len).collect(), request))
    }

    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        Some(Arc::new(Self))
    }
}

/// Every sample once per epoch, in an order that is a function of `(seed, epoch)`.
///
/// ```
/// use firebox::data::{PlanRequest, Random, Sampler};
///
/// let mut request = PlanRequest::new(5, 2);
/// request.seed = 42;
/// let plan = Random.plan(&request)?;
/// let mut samples = plan.order().to_vec();
/// samples.sort();
/// assert_eq!(samples, [0, 1, 2, 3, 4]);
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Random;

impl Sampler for Random {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        let mut order: Vec<usize> = (0..request.len).collect();
        request.rng().shuffle(&mut order);
        Ok(Plan::slices(order, request))
    }

    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        Some(Arc::new(Sequential))
    }
}

/// Some of the samples: a training split, the samples of some classes.
///
/// The indices are taken as they are given, also if one is there twice.
///
/// ```
/// use firebox::data::{PlanRequest, Sampler, Subset};
///
/// let plan = Subset::new([7, 3, 5]).plan(&PlanRequest::new(10, 2))?;
/// assert_eq!(plan.order(), [7, 3, 5]);
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Subset {
    indices: Arc<[usize]>,
    shuffle: bool,
}

impl Subset {
    /// The samples at these indices, in this order.
    pub fn new(indices: impl IntoIterator<Item = usize>) -> Self {
        Self {
            indices: indices.into_iter().collect(),
            shuffle: false,
        }
    }

    /// Shuffles them anew in each epoch.
    #[must_use]
    pub fn shuffled(mut self) -> Self {
        self.shuffle = true;
        self
    }
}

impl Sampler for Subset {
    fn plan(&self, request: &PlanRequest) -> Result<Plan> {
        if self.indices.is_empty() {
            return Err(Error::data(
                "the subset has no index; it needs at least one sample",
            ));
        }
        let mut order = self.indices.to_vec();
        if self.shuffle {
            request.rng().shuffle(&mut order);
        }
        Ok(Plan::slices(order, request))
    }

    fn without_shuffle(&self) -> Option<Arc<dyn Sampler>> {
        Some(Arc::new(Self {
            shuffle: false,
            ..self.clone()
        }))
    }
}
