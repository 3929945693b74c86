//! What the classification metrics share: the class labels of a batch, made safe to index with.

use burn::tensor::backend::Backend;
use burn::tensor::{Bool, DType, FloatDType, Int, IntDType, Tensor};

use crate::error::{Error, Result};

/// Class labels `[N]` against `classes` classes.
pub(super) struct Labels<B: Backend> {
    /// The labels as `i32`, clamped into the classes.
    pub index: Tensor<B, 1, Int>,
    /// Those that are not ignored.
    pub counted: Tensor<B, 1, Bool>,
    /// Those of them that are one of the classes.
    pub valid: Tensor<B, 1, Bool>,
}

impl<B: Backend> Labels<B> {
    pub fn new(labels: Tensor<B, 1, Int>, classes: usize, ignore: Option<i64>) -> Self {
        let labels = to_i32(labels);
        let last = i32::try_from(classes).unwrap_or(i32::MAX).saturating_sub(1);
        let index = labels.clone().clamp(0, last);
        let valid = index.clone().equal(labels.clone());
        // A label that no `i32` holds cannot occur among labels that one does.
        match ignore.and_then(|i| i32::try_from(i).ok()) {
            None => Self {
                index,
                counted: labels.clone().equal(labels),
                valid,
            },
            Some(ignore) => {
                let counted = labels.not_equal_elem(ignore);
                let valid = valid.bool_and(counted.clone());
                Self {
                    index,
                    counted,
                    valid,
                }
            }
        }
    }
}

/// One integer type for every comparison: backends take integers as they come, and some do not
/// check that both sides are alike.
pub(super) fn to_i32<B: Backend, const D: usize>(x: Tensor<B, D, Int>) -> Tensor<B, D, Int> {
    x.cast(IntDType::I32)
}

/// The number of true elements, shape `[1]`, counted as integers so that a half-precision backend
/// is as exact.
pub(super) fn count<B: Backend>(mask: Tensor<B, 1, Bool>, to: FloatDType) -> Tensor<B, 1> {
    mask.int().sum().cast(to)
}

/// The precision to sum statistics in.
pub(super) fn accumulator(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// The number of samples, if both have the same.
pub(super) fn same_rows(what: &str, rows: usize, labels: usize) -> Result<usize> {
    if rows == labels {
        return Ok(rows);
    }
    Err(Error::user(format!(
        "{rows} rows of {what} but {labels} targets; each row needs its target"
    )))
}

/// Fails if there are no classes to choose from.
pub(super) fn some_classes(classes: usize) -> Result<()> {
    if classes > 0 {
        return Ok(());
    }
    Err(Error::user(
        "a classification metric needs at least 1 class; it was given 0",
    ))
}

/// Fails if some of the `counted` labels were not valid.
pub(super) fn all_valid(valid: f64, counted: f64) -> Result<()> {
    if valid == counted {
        return Ok(());
    }
    Err(Error::data(format!(
        "{} of {counted} class labels are not among the classes; number the classes from 0, and \
         name the label of padding with `ignore_index`",
        counted - valid
    )))
}
