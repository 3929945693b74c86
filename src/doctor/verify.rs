//! One training step on every accelerator, compared with the CPU in 64 bits.

use super::measure::{Measurement, Weights, measure};
use crate::accelerators::for_each_accelerator;
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use burn::tensor::DType;
use burn::tensor::backend::AutodiffBackend;
use firebox_backend::Accelerator;
use firebox_ndarray::Reference;

/// A model and a batch to verify accelerators with: generic, so that each of them can run it.
///
/// Leave out what draws at random in a training step, such as dropout: every accelerator draws
/// other numbers.
pub trait VerifyCase {
    /// The model.
    type Model<B: AutodiffBackend>: TrainModule<Backend = B>;

    /// Makes the model. Its parameters are made equal on all accelerators afterwards.
    fn model<B: AutodiffBackend>(&self, device: &B::Device) -> Self::Model<B>;

    /// Makes a batch, the same each time.
    fn batch<B: AutodiffBackend>(
        &self,
        device: &B::Device,
    ) -> <Self::Model<B> as TrainModule>::Batch;
}

/// What the verification of an accelerator gave.
#[derive(Debug)]
pub struct Verified {
    /// The accelerator's name.
    pub accelerator: &'static str,
    /// How far it is from the reference.
    pub outcome: Verification,
}

/// How far an accelerator is from the reference, or why that is not known.
#[derive(Debug)]
pub enum Verification {
    /// Its step was compared with the reference's.
    Compared(Difference),
    /// It could not run, for this reason.
    NotRun(String),
    /// It ran and failed.
    Failed(Error),
}

/// The largest relative difference to the reference.
///
/// That of a gradient is the largest difference of an entry over the largest entry, both of one
/// parameter. Where a gradient is nearly zero (a bias in front of a normalisation), a tenth of the
/// largest entry of all gradients takes that place: it is what rounding goes by there.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Of the loss.
    pub loss: f64,
    /// Of the gradients.
    pub gradients: f64,
    /// The path of the parameter whose gradient is furthest off.
    pub parameter: String,
}

impl Difference {
    /// The larger of the two.
    pub fn largest(&self) -> f64 {
        self.loss.max(self.gradients)
    }
}

/// Runs one training step, forward and backward, of your model on every accelerator that is
/// compiled in and available, and compares loss and gradients with the CPU in 64 bits.
///
/// In 32 bits a difference below 1e-4 is rounding; one above 1e-2 is a fault of a kernel or driver.
/// A model with gelu may be up to 1e-3 apart: Burn's backends do not agree on its gradient.
///
/// The reference is computed on ndarray, in 64 bits. A process can use ndarray in one number format
/// alone, so ndarray itself is not compared here (the program `firebox doctor` does it in processes
/// of their own), and training on ndarray in 32 bits must not have begun before.
///
/// ```standalone_crate
/// use firebox::doctor::{Verification, VerifyCase, verify_on_all_backends};
/// use firebox::prelude::*;
/// use firebox::testing::{Line, Points};
/// use burn::tensor::Tensor;
///
/// struct MyModel;
///
/// impl VerifyCase for MyModel {
///     type Model<B: AutodiffBackend> = Line<B>;
///
///     fn model<B: AutodiffBackend>(&self, device: &B::Device) -> Line<B> {
///         Line::new(device)
///     }
///     fn batch<B: AutodiffBackend>(&self, device: &B::Device) -> Points<B> {
///         let x = Tensor::from_floats([[0.5], [-1.0]], device);
///         (x.clone(), x * 2.0 + 1.0)
///     }
/// }
///
/// for verified in verify_on_all_backends(&MyModel)? {
///     if let Verification::Compared(difference) = &verified.outcome {
///         assert!(difference.largest() < 1e-4, "{verified:?}");
///     }
/// }
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The reference cannot be computed: the model or the batch fails, or ndarray has been used in
/// another number format.
pub fn verify_on_all_backends(case: &impl VerifyCase) -> Result<Vec<Verified>> {
    let reference = reference(case)?;
    let names = crate::accelerators::compiled();
    let verified = names.iter().map(|compiled| Verified {
        accelerator: compiled.name,
        outcome: verify(case, compiled.name, &reference),
    });
    Ok(verified.collect())
}

fn verify(case: &impl VerifyCase, accelerator: &str, reference: &Measurement) -> Verification {
    if accelerator == firebox_ndarray::NdArray::NAME {
        return Verification::NotRun("it computes the reference in this process".into());
    }
    match measure_on(case, accelerator, Some(&reference.weights)) {
        Ok(measured) => Verification::Compared(difference(&measured, reference)),
        Err(e) if e.kind() == ErrorKind::Unavailable => Verification::NotRun(e.to_string()),
        Err(e) => Verification::Failed(e),
    }
}

/// The step on the CPU in 64 bits.
pub(super) fn reference(case: &impl VerifyCase) -> Result<Measurement> {
    let measured = measure::<Reference>(case, &Default::default(), None);
    let measured = measured.map_err(|e| e.context("reference on ndarray in 64 bits"))?;
    match measured.dtype == DType::F64 {
        true => Ok(measured),
        false => Err(Error::new(
            ErrorKind::Unavailable,
            "ndarray has been used in 32 bits by this process, so it cannot compute the reference \
             in 64; verify in a process of its own, before any training on ndarray",
        )),
    }
}

macro_rules! measure_on {
    ($($feature:literal => $accelerator:path),* $(,)?) => {
        /// The step on the first device of the accelerator of this name.
        pub(super) fn measure_on(
            case: &impl VerifyCase,
            accelerator: &str,
            weights: Option<&Weights>,
        ) -> Result<Measurement> {
            match accelerator {
                $(
                    #[cfg(feature = $feature)]
                    <$accelerator>::NAME => measure_with::<$accelerator>(case, weights),
                )*
                other => Err(Error::config(format!("`{other}` is not compiled in"))),
            }
        }
    };
}

for_each_accelerator!(measure_on);

fn measure_with<A: Accelerator>(
    case: &impl VerifyCase,
    weights: Option<&Weights>,
) -> Result<Measurement> {
    let unavailable = |why: String| Error::new(ErrorKind::Unavailable, why);
    let devices = A::probe().map_err(|why| unavailable(why.to_string()))?;
    let first = devices.first();
    let first = first.ok_or_else(|| unavailable("it has no device".into()))?;
    measure::<A::Backend>(case, &A::device(first.id), weights)
}

/// How far a measurement is from the reference.
pub(super) fn difference(measured: &Measurement, reference: &Measurement) -> Difference {
    let largest = |values: &[f64]| values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let of_all = reference.gradients.iter().map(|(_, g)| largest(g));
    let floor = of_all.fold(0.0, f64::max) / 10.0;
    let mut worst = (0.0, String::new());
    for ((path, ours), (_, theirs)) in measured.gradients.iter().zip(&reference.gradients) {
        let apart: Vec<_> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
        let relative = ratio(&apart, largest(theirs).max(floor));
        if relative >= worst.0 || relative.is_nan() {
            worst = (relative, path.clone());
        }
        if ours.len() != theirs.len() || relative.is_nan() {
            worst = (f64::INFINITY, path.clone());
            break;
        }
    }
    let loss = [measured.loss - reference.loss];
    Difference {
        loss: ratio(&loss, reference.loss.abs()),
        gradients: worst.0,
        parameter: worst.1,
    }
}

/// The largest of the differences over `scale`; a NaN among them stays one.
fn ratio(differences: &[f64], scale: f64) -> f64 {
    let larger = |a: f64, b: &f64| if b.is_nan() { *b } else { a.max(b.abs()) };
    match differences.iter().fold(0.0, larger) {
        0.0 => 0.0,
        largest => largest / scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(loss: f64, gradients: &[&[f64]]) -> Measurement {
        let named = |(i, g): (usize, &&[f64])| (format!("p{i}"), g.to_vec());
        Measurement {
            loss,
            gradients: gradients.iter().enumerate().map(named).collect(),
            weights: Vec::new(),
            float_types: Vec::new(),
            dtype: DType::F64,
        }
    }

    #[test]
    fn differences_are_relative_to_the_largest_entry_of_a_parameter() {
        let reference = measured(2.0, &[&[10.0, -1.0], &[0.5]]);
        let other = measured(2.002, &[&[10.0, -1.5], &[0.4]]);
        let found = difference(&other, &reference);
        assert!((found.loss - 1e-3).abs() < 1e-12, "{found:?}");
        assert!((found.gradients - 0.1).abs() < 1e-12, "{found:?}");
        assert_eq!(found.parameter, "p1");
        assert_eq!(difference(&reference, &reference).largest(), 0.0);
    }

    #[test]
    fn a_gradient_that_should_be_zero_counts_against_the_others() {
        let reference = measured(1.0, &[&[10.0], &[1e-18]]);
        let other = measured(1.0, &[&[10.0], &[1e-8]]);
        assert!((difference(&other, &reference).gradients - 1e-8).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_number_is_infinitely_off() {
        let reference = measured(1.0, &[&[1.0], &[1.0]]);
        let other = measured(1.0, &[&[f64::NAN], &[1.0]]);
        assert_eq!(difference(&other, &reference).gradients, f64::INFINITY);
        assert_eq!(difference(&other, &reference).parameter, "p0");
    }
}
