//! Arithmetic on a model's gradients: norms, clipping, and finding what is not finite.

use crate::accelerators::on_host;
use crate::config::GradientClip;
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::panics;
use crate::parameters::parameters;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, Transaction};
use std::collections::HashMap;

type Inner<M> = <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend;

/// The gradients of `loss`, times `factor`, by a backward pass.
pub(crate) fn of_loss<M: TrainModule>(
    model: &M,
    loss: Tensor<M::Backend, 1>,
    factor: f64,
) -> Result<GradientsParams> {
    let [elements] = loss.dims();
    if elements != 1 {
        return Err(Error::user(format!(
            "the loss has {elements} elements; reduce it to one with `.mean()`"
        )));
    }
    panics::catch(ErrorKind::Backend, || {
        let scaled = if factor == 1.0 {
            loss
        } else {
            loss.mul_scalar(factor)
        };
        Ok(GradientsParams::from_grads(scaled.backward(), model))
    })
    .map_err(|e| e.context("backward pass"))
}

/// The global norm of all gradients together, or the parameters that spoil it.
pub(crate) enum Norm {
    Finite(f64),
    /// Paths of the parameters whose gradient holds a NaN or an infinity.
    NotFinite(Vec<String>),
}

/// The global norm √Σg², over all parameters at once.
pub(crate) fn norm<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, Norm)> {
    if on_host::<M::Backend>() {
        return norm_on_host(model, gradients);
    }
    let (gradients, sum) = sum_on_device(model, gradients)?;
    match sum.is_finite() {
        true => Ok((gradients, Norm::Finite(sum.sqrt()))),
        // Finite gradients whose squares overflow f32 end here too: look at each number, in f64.
        false => norm_on_host(model, gradients),
    }
}

/// Σg², by operations on the device and one read from it.
fn sum_on_device<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, f64)> {
    let mut squares = SumOfSquares(Some(Transaction::default()));
    let gradients = map(model, gradients, &mut squares);
    let sums = squares.0.unwrap_or_default().try_execute().map_err(|e| {
        Error::new(ErrorKind::Backend, "cannot read the gradients' norm").with_source(e)
    })?;
    let sum = sums.iter().flat_map(|data| data.iter::<f64>()).sum();
    Ok((gradients, sum))
}

/// The norm, or what spoils it, by reading every gradient and putting it back. Neither copies
/// where the tensors are in the host's memory.
fn norm_on_host<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, Norm)> {
    let mut inspect = Inspect::default();
    let gradients = map(model, gradients, &mut inspect);
    if let Some(error) = inspect.error {
        return Err(error);
    }
    let norm = if inspect.not_finite.is_empty() {
        Norm::Finite(inspect.sum.sqrt())
    } else {
        let parameters = parameters(model);
        let name = |id| {
            let parameter = parameters.iter().find(|p| p.id == id);
            parameter.map(|p| p.path.clone())
        };
        Norm::NotFinite(inspect.not_finite.into_iter().filter_map(name).collect())
    };
    Ok((gradients, norm))
}

/// Clips: by global norm, all gradients times `max / norm` if the norm is above `max` (Pascanu et
/// al., 2013), or by value, each entry into [-max, max].
pub(crate) fn clip<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
    clip: GradientClip,
    norm: f64,
) -> GradientsParams {
    match clip {
        GradientClip::Norm(max) if norm > max => scale(model, gradients, max / norm),
        GradientClip::Norm(_) => gradients,
        GradientClip::Value(max) => map(model, gradients, &mut Clamp(max)),
    }
}

/// All gradients times `factor`.
pub(crate) fn scale<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
    factor: f64,
) -> GradientsParams {
    map(model, gradients, &mut Scale(factor))
}

/// Σ over two sets of gradients.
pub(crate) fn add<M: TrainModule>(
    model: &M,
    a: GradientsParams,
    b: GradientsParams,
) -> GradientsParams {
    let mut add = Add(a);
    let mut sum = map(model, b, &mut add);
    // What only `a` holds is left.
    map(model, add.0, &mut Put(&mut sum));
    sum
}

/// Splits gradients over groups; those of no group are dropped.
pub(crate) fn split<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
    group_of: &HashMap<ParamId, usize>,
    groups: usize,
) -> Vec<GradientsParams> {
    let mut split = Split {
        group_of,
        groups: std::iter::repeat_with(GradientsParams::new)
            .take(groups)
            .collect(),
    };
    map(model, gradients, &mut split);
    split.groups
}

/// Applies `f` to every gradient and keeps what it returns.
///
/// Gradients are moved from one container to another, so a parameter that a module holds twice
/// (tied weights) is counted once.
fn map<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
    f: &mut impl MapGradient<Inner<M>>,
) -> GradientsParams {
    let mut visitor = Mapped {
        from: gradients,
        to: GradientsParams::new(),
        f,
    };
    model.visit(&mut visitor);
    visitor.to
}

/// A function over gradients of every rank.
trait MapGradient<B: Backend> {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>>;
}

struct Mapped<'a, F> {
    from: GradientsParams,
    to: GradientsParams,
    f: &'a mut F,
}

impl<B: AutodiffBackend, F: MapGradient<B::InnerBackend>> ModuleVisitor<B> for Mapped<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.from.remove::<B::InnerBackend, D>(param.id)
            && let Some(mapped) = self.f.map(param.id, gradient)
        {
            self.to.register::<B::InnerBackend, D>(param.id, mapped);
        }
    }
}

struct SumOfSquares<B: Backend>(Option<Transaction<B>>);

impl<B: Backend> MapGradient<B> for SumOfSquares<B> {
    fn map<const D: usize>(&mut self, _: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        let transaction = self.0.take().unwrap_or_default();
        self.0 = Some(transaction.register(gradient.clone().square().sum()));
        Some(gradient)
    }
}

/// Sums squares on the host, in f64, and notes what is not finite.
#[derive(Default)]
struct Inspect {
    sum: f64,
    not_finite: Vec<ParamId>,
    error: Option<Error>,
}

impl<B: Backend> MapGradient<B> for Inspect {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        let like = (&gradient.device(), gradient.dtype());
        let data = gradient.try_into_data().map_err(|e| {
            let error = Error::new(ErrorKind::Backend, "cannot read a gradient");
            self.error = Some(error.with_source(e));
        });
        let data = data.ok()?;
        let sum = sum_of_squares(&data);
        if !sum.is_finite() {
            self.not_finite.push(id);
        }
        self.sum += sum;
        Some(Tensor::from_data(data, like))
    }
}

/// Σg². Short blocks are summed in f32, which processors do many at once, and the blocks in f64.
/// Where f32 does not reach (a square above 3e38, or all of them tiny) every number is taken in f64.
fn sum_of_squares(data: &TensorData) -> f64 {
    let exact = || data.iter::<f64>().map(|g| g * g).sum();
    let Ok(values) = data.as_slice::<f32>() else {
        return exact();
    };
    let blocks = values.chunks(256).map(|block| f64::from(block_sum(block)));
    let sum: f64 = blocks.sum();
    match (1e-30..f64::INFINITY).contains(&sum) {
        true => sum,
        false => exact(),
    }
}

fn block_sum(block: &[f32]) -> f32 {
    // A single sum would wait for each addition to finish.
    let mut sums = [0.0; 16];
    let (chunks, rest) = block.as_chunks::<16>();
    for chunk in chunks {
        for (sum, g) in sums.iter_mut().zip(chunk) {
            *sum += g * g;
        }
    }
    for (sum, g) in sums.iter_mut().zip(rest) {
        *sum += g * g;
    }
    sums.iter().sum()
}

struct Scale(f64);

impl<B: Backend> MapGradient<B> for Scale {
    fn map<const D: usize>(&mut self, _: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        Some(gradient.mul_scalar(self.0))
    }
}

struct Clamp(f64);

impl<B: Backend> MapGradient<B> for Clamp {
    fn map<const D: usize>(&mut self, _: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        Some(gradient.clamp(-self.0, self.0))
    }
}

struct Add(GradientsParams);

impl<B: Backend> MapGradient<B> for Add {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        Some(match self.0.remove::<B, D>(id) {
            Some(other) => other + gradient,
            None => gradient,
        })
    }
}

/// Puts every gradient into the container.
struct Put<'a>(&'a mut GradientsParams);

impl<B: Backend> MapGradient<B> for Put<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        self.0.register(id, gradient);
        None
    }
}

struct Split<'a> {
    group_of: &'a HashMap<ParamId, usize>,
    groups: Vec<GradientsParams>,
}

impl<B: Backend> MapGradient<B> for Split<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        let group = self
            .group_of
            .get(&id)
            .and_then(|g| self.groups.get_mut(*g))?;
        group.register(id, gradient);
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{Cpu, Line, line_data};

    /// The gradients of a line's weight and bias, times `factor`.
    fn gradients(line: &Line<Cpu>, factor: f64) -> GradientsParams {
        let batch = line_data().batch_size(32);
        let batch = batch.iter(crate::data::EpochSpec::new(Default::default()));
        let batch = batch.unwrap().next().unwrap().unwrap().value.unwrap();
        of_loss(line, line.loss(batch), factor).unwrap()
    }

    #[test]
    fn the_norm_is_the_same_on_host_and_on_device() {
        let line = Line::<Cpu>::new(&Default::default());
        let (_, sum) = sum_on_device(&line, gradients(&line, 1.0)).unwrap();
        let (kept, norm) = norm_on_host(&line, gradients(&line, 1.0)).unwrap();
        let Norm::Finite(norm) = norm else {
            panic!("the gradients are finite");
        };
        assert!((norm * norm / sum - 1.0).abs() < 1e-6, "{norm} {sum}");
        assert_eq!(sum_on_device(&line, kept).unwrap().1, sum);
    }

    #[test]
    fn a_sum_that_overflows_is_seen_on_the_device_and_computed_on_the_host() {
        let line = Line::<Cpu>::new(&Default::default());
        let (gradients, sum) = sum_on_device(&line, gradients(&line, 1e25)).unwrap();
        assert!(!sum.is_finite());
        let (_, norm) = norm_on_host(&line, gradients).unwrap();
        assert!(matches!(norm, Norm::Finite(norm) if norm > 1e20));
    }

    #[test]
    fn squares_are_summed_whatever_the_length_and_format() {
        for n in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            let sum = (n * (n + 1) * (2 * n + 1) / 6) as f64;
            let data = TensorData::new(values, [n]);
            assert_eq!(sum_of_squares(&data), sum);
            assert_eq!(sum_of_squares(&data.convert::<f64>()), sum);
        }
        // More than a block, and squares that f32 cannot hold.
        let of = |value: f32| sum_of_squares(&TensorData::new(vec![value; 1000], [1000]));
        assert_eq!(of(2.0), 4000.0);
        assert!((of(1e25) / 1e53 - 1.0).abs() < 1e-6);
        assert!((of(1e-25) / 1e-47 - 1.0).abs() < 1e-6);
        assert!(!of(f32::NAN).is_finite() && !of(f32::INFINITY).is_finite());
    }
}
