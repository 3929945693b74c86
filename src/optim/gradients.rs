//! Arithmetic on a model's gradients: norms, clipping, and finding what is not finite.

use crate::config::GradientClip;
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::panics;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, Transaction};
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

/// The global norm √Σg², over all parameters at once. One read from the device.
pub(crate) fn norm<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, Norm)> {
    let mut squares = SumOfSquares(Some(Transaction::default()));
    let gradients = map(model, gradients, &mut squares);
    let sums = squares.0.unwrap_or_default().try_execute().map_err(|e| {
        Error::new(ErrorKind::Backend, "cannot read the gradients' norm").with_source(e)
    })?;
    let sum: f64 = sums.iter().flat_map(|data| data.iter::<f64>()).sum();
    if sum.is_finite() {
        return Ok((gradients, Norm::Finite(sum.sqrt())));
    }
    // Finite gradients whose squares overflow f32 end here too: look at each number, in f64.
    let mut inspect = Inspect::default();
    let gradients = map(model, gradients, &mut inspect);
    if let Some(error) = inspect.error {
        return Err(error);
    }
    let norm = if inspect.not_finite.is_empty() {
        Norm::Finite(inspect.sum.sqrt())
    } else {
        let paths = super::set::paths(model);
        let name = |id| {
            paths
                .iter()
                .find(|(_, i)| *i == id)
                .map(|(path, _)| path.clone())
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
        match gradient.clone().try_into_data() {
            Ok(data) => {
                let sum: f64 = data.iter::<f64>().map(|g| g * g).sum();
                if !sum.is_finite() {
                    self.not_finite.push(id);
                }
                self.sum += sum;
            }
            Err(e) => {
                let error = Error::new(ErrorKind::Backend, "cannot read a gradient");
                self.error = Some(error.with_source(e));
            }
        }
        Some(gradient)
    }
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
