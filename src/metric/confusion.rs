use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

use super::labels::{Labels, all_valid, count, same_rows, some_classes, to_i32};
use super::{Metric, Observation};
use crate::error::{Error, Result};

/// How often each class was predicted for each target class.
///
/// The statistics are the C·C counts, row by row (rows are targets, columns predictions, as in
/// scikit-learn's `confusion_matrix`), and the number of labels. Logged, it gives one value for
/// each cell: `name/target_0_predicted_1`. [`ConfusionMatrix::matrix`] gives the rows.
///
/// The counts are made on the device as a product of two one-hot matrices of N·C elements, which
/// is exact: a batch's counts are sums of ones in `f32`, exact up to 2^24.
///
/// ```
/// use burn::tensor::Tensor;
/// use firebox::metric::{self, ConfusionMatrix};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let device = Default::default();
/// let confusion = ConfusionMatrix::new(2);
/// let predicted = Tensor::<B, 1, _>::from_ints([0, 1, 1], &device);
/// let seen = confusion.observe_classes(predicted, Tensor::from_ints([0, 0, 1], &device))?;
/// let states = metric::read(vec![("confusion", seen, 3.0)])?;
/// assert_eq!(confusion.matrix(states[0].1.state()), [[1.0, 1.0], [0.0, 1.0]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ConfusionMatrix {
    classes: usize,
    ignore: Option<i64>,
}

impl ConfusionMatrix {
    /// A matrix of `classes` by `classes`.
    pub fn new(classes: usize) -> Self {
        Self {
            classes,
            ignore: None,
        }
    }

    /// Leaves out samples with this target, such as padding.
    #[must_use]
    pub fn ignore_index(mut self, label: i64) -> Self {
        self.ignore = Some(label);
        self
    }

    /// A batch of logits (or probabilities) `[N, C]` and targets `[N]`, classes from 0. The
    /// largest logit is the prediction.
    ///
    /// # Errors
    ///
    /// When the numbers of rows differ, or the logits are of another number of classes. A target
    /// that is no class is reported when the values are computed.
    pub fn observe<B: Backend>(
        &self,
        logits: Tensor<B, 2>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Observation<B>> {
        let statistics = self.count_logits(logits, targets)?;
        Ok(Observation::new(self.clone(), statistics, Vec::new()))
    }

    /// A batch of predicted classes `[N]` and targets `[N]`, for predictions that are not the
    /// largest of C logits: a threshold, a search.
    ///
    /// # Errors
    ///
    /// When the numbers of samples differ. A prediction or target that is no class is reported
    /// when the values are computed.
    pub fn observe_classes<B: Backend>(
        &self,
        predicted: Tensor<B, 1, Int>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Observation<B>> {
        let statistics = self.count_classes(predicted, targets)?;
        Ok(Observation::new(self.clone(), statistics, Vec::new()))
    }

    /// The rows of the matrix, one for each target class, from the state of this metric.
    pub fn matrix(&self, state: &[f64]) -> Vec<Vec<f64>> {
        let cells = state.get(..self.cells()).unwrap_or_default();
        cells
            .chunks(self.classes.max(1))
            .map(<[_]>::to_vec)
            .collect()
    }

    pub(super) fn count_logits<B: Backend>(
        &self,
        logits: Tensor<B, 2>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Option<Tensor<B, 1>>> {
        let [n, classes] = logits.dims();
        if classes != self.classes {
            return Err(Error::user(format!(
                "logits of {classes} classes for a metric of {}; construct it with the model's \
                 number of classes",
                self.classes
            )));
        }
        some_classes(classes)?;
        same_rows("logits", n, targets.dims()[0])?;
        if n == 0 {
            return Ok(None);
        }
        self.count_classes(logits.detach().argmax(1).reshape([n]), targets)
    }

    pub(super) fn count_classes<B: Backend>(
        &self,
        predicted: Tensor<B, 1, Int>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Option<Tensor<B, 1>>> {
        let n = same_rows("predictions", predicted.dims()[0], targets.dims()[0])?;
        some_classes(self.classes)?;
        if n == 0 {
            return Ok(None);
        }
        let counted = Labels::new(targets.clone(), self.classes, self.ignore).counted;
        // A row that is left out, or whose label is no class, matches no column.
        let ignored = counted.clone().bool_not().reshape([n, 1]);
        let targets = self.one_hot(targets).mask_fill(ignored, 0.0);
        let counts = targets.transpose().matmul(self.one_hot(predicted));
        let counts = counts.reshape([self.cells()]);
        let total = count(counted, FloatDType::F32);
        Ok(Some(Tensor::cat(vec![counts, total], 0)))
    }

    /// `[N]` to `[N, C]`, in `f32` whatever the backend's usual precision.
    fn one_hot<B: Backend>(&self, labels: Tensor<B, 1, Int>) -> Tensor<B, 2> {
        let [n] = labels.dims();
        let classes = Tensor::arange(0..self.classes as i64, &labels.device());
        let classes = to_i32(classes)
            .reshape([1, self.classes])
            .expand([n, self.classes]);
        let labels = to_i32(labels).reshape([n, 1]).expand([n, self.classes]);
        labels.equal(classes).float().cast(FloatDType::F32)
    }

    pub(super) fn check_counts(&self, state: &[f64]) -> Result<()> {
        match state.split_last() {
            Some((counted, cells)) => all_valid(cells.iter().sum(), *counted),
            None => Ok(()),
        }
    }

    fn cells(&self) -> usize {
        self.classes.saturating_mul(self.classes)
    }
}

impl Metric for ConfusionMatrix {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        let rows = self.matrix(state);
        let cells = rows.iter().enumerate().flat_map(|(target, row)| {
            row.iter()
                .enumerate()
                .map(move |(p, n)| (format!("/target_{target}_predicted_{p}"), *n))
        });
        cells.collect()
    }

    fn check(&self, state: &[f64]) -> Result<()> {
        self.check_counts(state)
    }
}
