use burn::tensor::backend::Backend;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

use super::labels::{Labels, all_valid, count, same_rows, to_i32};
use super::mean::ratio;
use super::{Metric, Observation};
use crate::error::{Error, Result};

/// The share of samples whose target is the predicted class, or among the `k` best: 0 to 1.
///
/// The statistics are (correct, labels in range, labels).
///
/// ```
/// use burn::tensor::Tensor;
/// use firebox::metric::{self, Accuracy};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let device = Default::default();
/// let logits = Tensor::<B, 2>::from_floats([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]], &device);
/// let targets = Tensor::from_ints([1, 2], &device);
/// let top2 = Accuracy::new().top_k(2).observe(logits, targets)?;
/// let states = metric::read(vec![("val/top2", top2, 2.0)])?;
/// assert_eq!(states[0].1.value(), Some(0.5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Accuracy {
    k: usize,
    ignore: Option<i64>,
}

impl Accuracy {
    /// The accuracy of the best class.
    pub fn new() -> Self {
        Self { k: 1, ignore: None }
    }

    /// Counts a sample as correct when its target is among the `k` largest logits. Of equal
    /// logits the lower class comes first; NaN is larger than every number.
    #[must_use]
    pub fn top_k(mut self, k: usize) -> Self {
        self.k = k;
        self
    }

    /// Leaves out samples with this target, such as padding.
    #[must_use]
    pub fn ignore_index(mut self, label: i64) -> Self {
        self.ignore = Some(label);
        self
    }

    /// A batch of logits (or probabilities) `[N, C]` and targets `[N]`, classes from 0.
    ///
    /// # Errors
    ///
    /// When the numbers of rows differ, or `k` is not between 1 and C. A target that is no class
    /// is reported when the value is computed.
    pub fn observe<B: Backend>(
        &self,
        logits: Tensor<B, 2>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Observation<B>> {
        let [rows, classes] = logits.dims();
        let n = same_rows("logits", rows, targets.dims()[0])?;
        if self.k == 0 || self.k > classes {
            return Err(Error::user(format!(
                "top-{} accuracy of {classes} classes; use a `k` from 1 to {classes}",
                self.k
            )));
        }
        if n == 0 {
            return Ok(Observation::new(self.clone(), None, Vec::new()));
        }
        let logits = logits.detach();
        let labels = Labels::new(targets, classes, self.ignore);
        let hit = match self.k {
            1 => to_i32(logits.argmax(1))
                .reshape([n])
                .equal(labels.index.clone()),
            k => among_best(logits, labels.index.clone(), k),
        };
        let correct = hit.bool_and(labels.valid.clone());
        let statistics = [correct, labels.valid, labels.counted].map(|m| count(m, FloatDType::F32));
        let statistics = Tensor::cat(statistics.to_vec(), 0);
        Ok(Observation::new(self.clone(), Some(statistics), Vec::new()))
    }
}

impl Default for Accuracy {
    fn default() -> Self {
        Self::new()
    }
}

impl Metric for Accuracy {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        ratio(state)
    }

    fn check(&self, state: &[f64]) -> Result<()> {
        match *state {
            [_, valid, counted] => all_valid(valid, counted),
            _ => Ok(()),
        }
    }
}

/// Whether fewer than `k` classes come before the target. Comparing needs no sort, which several
/// backends would do on the host.
fn among_best<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
    k: usize,
) -> Tensor<B, 1, Bool> {
    let [n, classes] = logits.dims();
    let target = targets.reshape([n, 1]);
    let device = logits.device();
    let class = to_i32(Tensor::arange(0..classes as i64, &device)).reshape([1, classes]);
    let score = logits.clone().gather(1, target.clone());
    let larger = logits.clone().lower_equal(score.clone()).bool_not();
    let equal_and_before = logits.equal(score).bool_and(class.lower(target));
    let before = larger.bool_or(equal_and_before).int().sum_dim(1);
    before.reshape([n]).lower_elem(k as i64)
}
