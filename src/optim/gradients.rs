//! Arithmetic on a model's gradients: norms, clipping, and finding what is not finite.

use crate::accelerators::on_host;
use crate::config::GradientClip;
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::nn::context;
use crate::panics;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData, Transaction};
use std::collections::HashMap;

type Inner<M> = <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend;

/// A model's gradients, and what is known of their size.
pub(crate) struct Gradients {
    params: GradientsParams,
    /// See [`Gradients::squares`]; known when they were summed on the way.
    squares: Option<Squares>,
}

/// Σg² of each parameter's gradient, in f64.
pub(crate) type Squares = Vec<(ParamId, f64)>;

/// What a backward pass multiplies with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    /// The loss, before.
    pub(crate) loss: f64,
    /// Every gradient, after it has come into its parameter's format.
    pub(crate) gradients: f64,
}

impl Factors {
    /// A loss whose backward pass is to go on with `scale` times that.
    pub(crate) fn new(scale: Option<f64>) -> Self {
        let loss = scale.unwrap_or(1.0);
        Self {
            loss,
            gradients: 1.0 / loss,
        }
    }
}

impl From<GradientsParams> for Gradients {
    fn from(params: GradientsParams) -> Self {
        Self {
            params,
            squares: None,
        }
    }
}

impl From<Gradients> for GradientsParams {
    fn from(gradients: Gradients) -> Self {
        gradients.params
    }
}

impl Gradients {
    /// Gradients of which Σg² is known, each.
    pub(crate) fn with_squares(params: GradientsParams, squares: Squares) -> Self {
        Self {
            params,
            squares: Some(squares),
        }
    }

    /// The gradients of `loss`, by a backward pass, in the formats of the parameters. `are_final`
    /// says that they are not added to others first.
    pub(crate) fn of_loss<M: TrainModule>(
        model: &M,
        loss: Tensor<M::Backend, 1>,
        factors: Factors,
        are_final: bool,
    ) -> Result<Self> {
        let [elements] = loss.dims();
        if elements != 1 {
            return Err(Error::user(format!(
                "the loss has {elements} elements; reduce it to one with `.mean()`"
            )));
        }
        context::meet()?;
        panics::catch(ErrorKind::Backend, || {
            let scaled = if factors.loss == 1.0 {
                loss
            } else {
                loss.mul_scalar(factors.loss)
            };
            Self::collect(model, scaled.backward(), factors.gradients, are_final)
        })
        .map_err(|e| e.context("backward pass"))
    }

    /// Takes each parameter's gradient from a backward pass, times `factor`. In the host's memory the squares of
    /// final ones are summed at once, which is cheaper than to visit them again.
    pub(super) fn collect<M: TrainModule>(
        model: &M,
        from: <M::Backend as AutodiffBackend>::Gradients,
        factor: f64,
        are_final: bool,
    ) -> Result<Self> {
        let mut collect = Collect::<M::Backend> {
            from,
            to: GradientsParams::new(),
            factor,
            inspect: (are_final && on_host::<M::Backend>()).then(Inspect::default),
        };
        model.visit(&mut collect);
        Ok(Self {
            params: collect.to,
            squares: collect.inspect.map(Inspect::squares).transpose()?,
        })
    }

    /// All gradients times `factor`.
    pub(crate) fn scale<M: TrainModule>(self, model: &M, factor: f64) -> Self {
        map(model, self.params, &mut Scale(factor)).into()
    }

    /// Σ over two sets of gradients.
    pub(crate) fn add<M: TrainModule>(self, model: &M, other: Self) -> Self {
        let mut add = Add(self.params);
        let mut sum = map(model, other.params, &mut add);
        // What only `self` holds is left.
        map(model, add.0, &mut Put(&mut sum));
        sum.into()
    }

    /// Every gradient, read from the device, and the gradients as they were.
    pub(crate) fn read<M: TrainModule>(
        self,
        model: &M,
    ) -> Result<(Self, HashMap<ParamId, TensorData>)> {
        let mut read = Read::default();
        let params = map(model, self.params, &mut read);
        let squares = self.squares;
        match read.error {
            Some(error) => Err(error),
            None => Ok((Self { params, squares }, read.data)),
        }
    }

    /// The gradients that [`read`](Self::read) gave, on the devices of the parameters.
    ///
    /// # Errors
    /// One that is of no parameter, or not of its shape.
    pub(crate) fn written<M: TrainModule>(
        model: &M,
        data: HashMap<ParamId, TensorData>,
    ) -> Result<Self> {
        let mut write = Write {
            data,
            to: GradientsParams::new(),
        };
        model.visit(&mut write);
        match write.data.values().next() {
            None => Ok(write.to.into()),
            Some(data) => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "a gradient of shape {:?} fits no parameter",
                    data.shape.as_slice()
                ),
            )),
        }
    }

    /// The gradients and Σg² of each. One is not finite if, and only if, its gradient is not.
    pub(crate) fn squares<M: TrainModule>(self, model: &M) -> Result<(GradientsParams, Squares)> {
        if let Some(squares) = self.squares {
            return Ok((self.params, squares));
        }
        if on_host::<M::Backend>() {
            return squares_on_host(model, self.params);
        }
        let (params, squares) = squares_on_device(model, self.params)?;
        match squares.iter().all(|(_, sum)| sum.is_finite()) {
            true => Ok((params, squares)),
            // Finite gradients whose squares overflow f32 end here too: take each number in f64.
            false => squares_on_host(model, params),
        }
    }
}

struct Collect<B: AutodiffBackend> {
    from: B::Gradients,
    to: GradientsParams,
    factor: f64,
    inspect: Option<Inspect>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let parameter = param.val();
        let gradient = parameter.grad_remove(&mut self.from);
        let gradient = gradient.map(|g| match g.dtype() == parameter.dtype() {
            true => g,
            // Part of a pass in a mixed precision; the wider format holds it as it is.
            false => g.cast(parameter.dtype()),
        });
        let gradient = match self.factor == 1.0 {
            true => gradient,
            false => gradient.map(|g| g.mul_scalar(self.factor)),
        };
        let gradient = match &mut self.inspect {
            Some(inspect) => gradient.and_then(|g| inspect.map(param.id, g)),
            None => gradient,
        };
        if let Some(gradient) = gradient {
            self.to.register(param.id, gradient);
        }
    }
}

/// Σg², by operations on the device and one read from it.
fn squares_on_device<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, Squares)> {
    let mut sums = SumOfSquares::<Inner<M>>::default();
    let gradients = map(model, gradients, &mut sums);
    let read = sums.read.unwrap_or_default().try_execute().map_err(|e| {
        Error::new(ErrorKind::Backend, "cannot read the gradients' norm").with_source(e)
    })?;
    let sums_of_ids = sums.ids.into_iter().zip(read);
    let squares = sums_of_ids.map(|(id, data)| (id, data.iter::<f64>().sum()));
    Ok((gradients, squares.collect()))
}

/// Σg², by reading every gradient and putting it back. Neither copies where the tensors are in the
/// host's memory.
fn squares_on_host<M: TrainModule>(
    model: &M,
    gradients: GradientsParams,
) -> Result<(GradientsParams, Squares)> {
    let mut inspect = Inspect::default();
    let gradients = map(model, gradients, &mut inspect);
    Ok((gradients, inspect.squares()?))
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
        GradientClip::Norm(max) if norm > max => map(model, gradients, &mut Scale(max / norm)),
        GradientClip::Norm(_) => gradients,
        GradientClip::Value(max) => map(model, gradients, &mut Clamp(max)),
    }
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

struct SumOfSquares<B: Backend> {
    ids: Vec<ParamId>,
    read: Option<Transaction<B>>,
}

impl<B: Backend> Default for SumOfSquares<B> {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            read: None,
        }
    }
}

impl<B: Backend> MapGradient<B> for SumOfSquares<B> {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        let read = self.read.take().unwrap_or_default();
        // 16 bits hold neither small squares nor long sums.
        let wide = match gradient.dtype() {
            DType::F16 | DType::BF16 => gradient.clone().cast(DType::F32),
            _ => gradient.clone(),
        };
        self.read = Some(read.register(wide.square().sum()));
        self.ids.push(id);
        Some(gradient)
    }
}

/// Sums squares on the host, in f64.
#[derive(Default)]
struct Inspect {
    squares: Squares,
    error: Option<Error>,
}

impl Inspect {
    fn squares(self) -> Result<Squares> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.squares),
        }
    }
}

impl<B: Backend> MapGradient<B> for Inspect {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        let like = (&gradient.device(), gradient.dtype());
        let data = gradient.try_into_data().map_err(|e| {
            let error = Error::new(ErrorKind::Backend, "cannot read a gradient");
            self.error = Some(error.with_source(e));
        });
        let data = data.ok()?;
        self.squares.push((id, sum_of_squares(&data)));
        Some(Tensor::from_data(data, like))
    }
}

/// Copies every gradient to the host.
#[derive(Default)]
struct Read {
    data: HashMap<ParamId, TensorData>,
    error: Option<Error>,
}

impl<B: Backend> MapGradient<B> for Read {
    fn map<const D: usize>(&mut self, id: ParamId, gradient: Tensor<B, D>) -> Option<Tensor<B, D>> {
        match gradient.clone().try_into_data() {
            Ok(data) => {
                self.data.insert(id, data);
            }
            Err(e) => {
                let error = Error::new(ErrorKind::Backend, "cannot read a gradient");
                self.error = Some(error.with_source(e));
            }
        }
        Some(gradient)
    }
}

/// Puts gradients of the host onto the device.
struct Write {
    data: HashMap<ParamId, TensorData>,
    to: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Write {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let parameter = param.val();
        let fits = |d: &TensorData| d.shape == parameter.shape() && d.dtype.is_float();
        if self.data.get(&param.id).is_some_and(fits)
            && let Some(data) = self.data.remove(&param.id)
        {
            let dtype = parameter.dtype();
            let like = (&parameter.device(), dtype);
            let gradient = Tensor::<B::InnerBackend, D>::from_data(data.convert_dtype(dtype), like);
            self.to.register(param.id, gradient);
        }
    }
}

/// Σg². Short blocks are summed in f32, which processors do many at once, and the blocks in f64.
/// Where f32 does not reach (a square above 3e38, or all of them tiny) every number is taken in f64.
fn sum_of_squares(data: &TensorData) -> f64 {
    let exact = || data.iter::<f64>().map(|g| g * g).sum();
    let Ok(values) = data.as_slice::<f32>() else {
        return exact();
    };
    let blocks = values.chunks(1024).map(|block| f64::from(block_sum(block)));
    let sum: f64 = blocks.sum();
    match (1e-30..f64::INFINITY).contains(&sum) {
        true => sum,
        false => exact(),
    }
}

fn block_sum(block: &[f32]) -> f32 {
    // A single sum would wait for each addition to finish.
    let (chunks, rest) = block.as_chunks::<16>();
    let sums = chunks.iter().fold([0.0; 16], |sums: [f32; 16], chunk| {
        std::array::from_fn(|i| sums[i] + chunk[i] * chunk[i])
    });
    let rest: f32 = rest.iter().map(|g| g * g).sum();
    sums.iter().sum::<f32>() + rest
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
    fn gradients(line: &Line<Cpu>, factor: f64) -> Gradients {
        let batch = line_data().batch_size(32);
        let batch = batch.iter(crate::data::EpochSpec::new(Default::default()));
        let batch = batch.unwrap().next().unwrap().unwrap().value.unwrap();
        let factors = Factors {
            loss: factor,
            gradients: 1.0,
        };
        Gradients::of_loss(line, line.loss(batch), factors, true).unwrap()
    }

    #[test]
    fn squares_are_the_same_on_host_and_on_device() {
        let line = Line::<Cpu>::new(&Default::default());
        let collected = gradients(&line, 1.0);
        let on_the_way = collected.squares.clone().unwrap();
        let (kept, on_device) = squares_on_device(&line, collected.params).unwrap();
        let (_, on_host) = squares_on_host(&line, kept).unwrap();
        assert_eq!(on_host, on_the_way);
        assert_eq!(on_host.len(), 2);
        for ((host_id, host), (device_id, device)) in on_host.into_iter().zip(on_device) {
            assert_eq!(host_id, device_id);
            assert!((host / device - 1.0).abs() < 1e-6, "{host} {device}");
        }
    }

    #[test]
    fn a_sum_that_overflows_is_seen_on_the_device_and_computed_on_the_host() {
        let line = Line::<Cpu>::new(&Default::default());
        let params = gradients(&line, 1e25).params;
        let (params, on_device) = squares_on_device(&line, params).unwrap();
        assert!(on_device.iter().any(|(_, sum)| !sum.is_finite()));
        let (_, on_host) = squares_on_host(&line, params).unwrap();
        assert!(on_host.iter().all(|(_, sum)| sum.is_finite()));
    }

    #[test]
    fn squares_summed_on_the_way_are_forgotten_when_gradients_change() {
        let line = Line::<Cpu>::new(&Default::default());
        let sum = |gradients: Gradients| {
            let (_, squares) = gradients.squares(&line).unwrap();
            squares.iter().map(|(_, sum)| sum).sum::<f64>()
        };
        let one = sum(gradients(&line, 1.0));
        let halved = sum(gradients(&line, 1.0).scale(&line, 0.5));
        let doubled = sum(gradients(&line, 1.0).add(&line, gradients(&line, 1.0)));
        assert_eq!((halved, doubled), (0.25 * one, 4.0 * one));
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
        let of = |value: f32| sum_of_squares(&TensorData::new(vec![value; 3000], [3000]));
        assert_eq!(of(2.0), 12000.0);
        assert!((of(1e25) / 3e53 - 1.0).abs() < 1e-6);
        assert!((of(1e-25) / 3e-47 - 1.0).abs() < 1e-6);
        assert!(!of(f32::NAN).is_finite() && !of(f32::INFINITY).is_finite());
    }
}
