//! Scores that come from a confusion matrix: precision, recall, F.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

use super::confusion::ConfusionMatrix;
use super::{Metric, Observation};
use crate::error::{Error, Result};

/// How the scores of the classes become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Average {
    /// The mean over the classes that occur in targets or predictions, each counting the same.
    #[default]
    Macro,
    /// The score of the counts summed over the classes. With one class for each sample, precision,
    /// recall and F are then all the accuracy.
    Micro,
    /// The mean over the classes, weighted by how many targets each has.
    Weighted,
    /// The score of this class alone. `Class(1)` is scikit-learn's `average="binary"`.
    Class(usize),
    /// No average: one value for each class, `name/class_0` and so on.
    PerClass,
}

/// True and false positives, false negatives of one class.
#[derive(Clone, Copy, Default)]
struct Counts {
    tp: f64,
    fp: f64,
    fn_: f64,
}

impl Counts {
    fn precision(self) -> f64 {
        divide(self.tp, self.tp + self.fp)
    }

    fn recall(self) -> f64 {
        divide(self.tp, self.tp + self.fn_)
    }

    fn f_beta(self, beta: f64) -> f64 {
        let b2 = beta * beta;
        divide(
            (1.0 + b2) * self.tp,
            (1.0 + b2) * self.tp + b2 * self.fn_ + self.fp,
        )
    }

    /// The targets of this class.
    fn support(self) -> f64 {
        self.tp + self.fn_
    }

    fn occurs(self) -> bool {
        self.tp + self.fp + self.fn_ > 0.0
    }
}

/// Nothing over nothing is 0, as in scikit-learn: a class never predicted has no precision.
fn divide(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

impl Average {
    fn values(
        self,
        confusion: &ConfusionMatrix,
        state: &[f64],
        score: impl Fn(Counts) -> f64,
    ) -> Vec<(String, f64)> {
        let classes = counts(&confusion.matrix(state));
        let value = match self {
            Self::PerClass => {
                let named = classes.iter().enumerate();
                return named
                    .map(|(class, counts)| (format!("/class_{class}"), score(*counts)))
                    .collect();
            }
            Self::Class(class) => score(classes.get(class).copied().unwrap_or_default()),
            Self::Macro => {
                let occurring = classes.iter().filter(|c| c.occurs());
                let (sum, n) = occurring.fold((0.0, 0.0), |(s, n), c| (s + score(*c), n + 1.0));
                divide(sum, n)
            }
            Self::Micro => score(classes.iter().fold(Counts::default(), |a, c| Counts {
                tp: a.tp + c.tp,
                fp: a.fp + c.fp,
                fn_: a.fn_ + c.fn_,
            })),
            Self::Weighted => {
                let sum: f64 = classes.iter().map(|c| c.support() * score(*c)).sum();
                divide(sum, classes.iter().map(|c| c.support()).sum())
            }
        };
        vec![(String::new(), value)]
    }

    fn check(self, classes: usize) -> Result<()> {
        match self {
            Self::Class(class) if class >= classes => Err(Error::user(format!(
                "class {class} of a metric of {classes} classes; use a class below {classes}"
            ))),
            _ => Ok(()),
        }
    }
}

/// The counts of every class from the rows of a confusion matrix.
fn counts(rows: &[Vec<f64>]) -> Vec<Counts> {
    let mut classes = vec![Counts::default(); rows.len()];
    for (target, row) in rows.iter().enumerate() {
        for (predicted, (n, class)) in row.iter().zip(&mut classes).enumerate() {
            match predicted == target {
                true => class.tp = *n,
                false => class.fp += n,
            }
        }
    }
    for (class, row) in classes.iter_mut().zip(rows) {
        class.fn_ = row.iter().sum::<f64>() - class.tp;
    }
    classes
}

macro_rules! score {
    ($(#[$doc:meta])* $name:ident, $(#[$new:meta])* new($($beta:ident)?), $score:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            confusion: ConfusionMatrix,
            classes: usize,
            average: Average,
            $($beta: f64,)?
        }

        impl $name {
            $(#[$new])*
            pub fn new($($beta: f64,)? classes: usize) -> Self {
                Self {
                    confusion: ConfusionMatrix::new(classes),
                    classes,
                    average: Average::default(),
                    $($beta,)?
                }
            }

            /// How the classes' scores become one.
            #[must_use]
            pub fn average(mut self, average: Average) -> Self {
                self.average = average;
                self
            }

            /// Leaves out samples with this target, such as padding.
            #[must_use]
            pub fn ignore_index(mut self, label: i64) -> Self {
                self.confusion = self.confusion.ignore_index(label);
                self
            }

            /// A batch of logits (or probabilities) `[N, C]` and targets `[N]`, classes from 0.
            ///
            /// # Errors
            ///
            /// As [`ConfusionMatrix::observe`], and when the class to score is no class.
            pub fn observe<B: Backend>(
                &self,
                logits: Tensor<B, 2>,
                targets: Tensor<B, 1, Int>,
            ) -> Result<Observation<B>> {
                self.average.check(self.classes)?;
                let statistics = self.confusion.count_logits(logits, targets)?;
                Ok(Observation::new(self.clone(), statistics, Vec::new()))
            }

            /// A batch of predicted classes `[N]` and targets `[N]`.
            ///
            /// # Errors
            ///
            /// As [`ConfusionMatrix::observe_classes`], and when the class to score is no class.
            pub fn observe_classes<B: Backend>(
                &self,
                predicted: Tensor<B, 1, Int>,
                targets: Tensor<B, 1, Int>,
            ) -> Result<Observation<B>> {
                self.average.check(self.classes)?;
                let statistics = self.confusion.count_classes(predicted, targets)?;
                Ok(Observation::new(self.clone(), statistics, Vec::new()))
            }
        }

        impl Metric for $name {
            fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
                let score: fn(&Self, Counts) -> f64 = $score;
                self.average.values(&self.confusion, state, |counts| score(self, counts))
            }

            fn check(&self, state: &[f64]) -> Result<()> {
                self.confusion.check_counts(state)
            }
        }
    };
}

score! {
    /// Of the samples predicted as a class, the share that is of it: TP / (TP + FP).
    ///
    /// Pooled over all batches, from a [`ConfusionMatrix`]. A class never predicted has precision
    /// 0, as in scikit-learn.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use firebox::metric::{self, Average, Precision};
    ///
    /// type B = burn_ndarray::NdArray;
    /// # fn main() -> firebox::Result<()> {
    /// let device = Default::default();
    /// let precision = Precision::new(2).average(Average::Class(1));
    /// let predicted = Tensor::<B, 1, _>::from_ints([1, 1, 1, 1], &device);
    /// let seen = precision.observe_classes(predicted, Tensor::from_ints([1, 0, 0, 0], &device))?;
    /// let states = metric::read(vec![("val/precision", seen, 4.0)])?;
    /// assert_eq!(states[0].1.value(), Some(0.25));
    /// # Ok(())
    /// # }
    /// ```
    Precision,
    /// The macro average over `classes`; see [`Precision::average`] for others.
    new(),
    |_, counts| counts.precision()
}

score! {
    /// Of the samples of a class, the share predicted as it: TP / (TP + FN).
    ///
    /// Pooled over all batches, from a [`ConfusionMatrix`]. A class without targets has recall 0,
    /// as in scikit-learn. Used as [`Precision`].
    Recall,
    /// The macro average over `classes`; see [`Recall::average`] for others.
    new(),
    |_, counts| counts.recall()
}

score! {
    /// The harmonic mean of precision and recall: 2·TP / (2·TP + FN + FP).
    ///
    /// Pooled over all batches, from a [`ConfusionMatrix`]. A class neither predicted nor among
    /// the targets scores 0, as in scikit-learn. Used as [`Precision`].
    F1,
    /// The macro average over `classes`; see [`F1::average`] for others.
    new(),
    |_, counts| counts.f_beta(1.0)
}

score! {
    /// Precision and recall in one, recall counting `beta` times as much:
    /// (1 + β²)·TP / ((1 + β²)·TP + β²·FN + FP), van Rijsbergen's F as in scikit-learn's
    /// `fbeta_score`.
    ///
    /// Pooled over all batches, from a [`ConfusionMatrix`]. Used as [`Precision`].
    FBeta,
    /// The macro average over `classes`; see [`FBeta::average`] for others.
    new(beta),
    |this, counts| counts.f_beta(this.beta)
}
