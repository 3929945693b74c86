//! Loss and gradients of one training step.

use super::verify::VerifyCase;
use crate::error::{Error, ErrorKind, Result};
use crate::module::{LossValue, StepContext, TrainModule};
use crate::optim::{Factors, Gradients};
use crate::panics;
use crate::parameters::parameters;
use crate::progress::{Progress, Stage};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

/// Every parameter's values, in visiting order.
pub(super) type Weights = Vec<Vec<f64>>;

/// What one training step gives on an accelerator.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub(super) loss: f64,
    /// Each parameter's path and gradient.
    pub(super) gradients: Vec<(String, Vec<f64>)>,
    pub(super) weights: Weights,
    /// The float formats that the device computes in.
    pub(super) float_types: Vec<DType>,
    /// The format of the parameters.
    pub(super) dtype: DType,
}

/// Runs the step. Parameters get these weights, if there are any.
pub(super) fn measure<B: AutodiffBackend>(
    case: &impl VerifyCase,
    device: &B::Device,
    weights: Option<&Weights>,
) -> Result<Measurement> {
    panics::catch(ErrorKind::Backend, || {
        let model = case.model::<B>(device);
        let paths = parameters(&model);
        let mut read = ReadWeights {
            weights: Vec::new(),
            dtype: DType::F32,
        };
        let model = match weights {
            Some(weights) => replace_weights(model, weights)?,
            None => model,
        };
        model.visit(&mut read);
        let mut cx = StepContext::new(Stage::Train, Progress::default(), 1, device.clone());
        let loss = model.training_step(case.batch::<B>(device), &mut cx)?;
        let LossValue::Tensor(loss) = loss.value else {
            return Err(Error::user(
                "verification needs a step that returns a loss, not gradients",
            ));
        };
        let value = numbers(loss.clone());
        let gradients = Gradients::of_loss(&model, loss, Factors::new(None), true)?;
        let mut found = ReadGradients {
            from: gradients.into(),
            found: Vec::new(),
        };
        model.visit(&mut found);
        let named = paths.into_iter().map(|p| p.path).zip(found.found);
        Ok(Measurement {
            loss: value.first().copied().unwrap_or(f64::NAN),
            gradients: named.collect(),
            weights: read.weights,
            float_types: [DType::F16, DType::BF16, DType::F32, DType::F64]
                .into_iter()
                .filter(|dtype| B::supports_dtype(device, *dtype))
                .collect(),
            dtype: read.dtype,
        })
    })
}

fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

struct ReadWeights {
    weights: Weights,
    dtype: DType,
}

impl<B: Backend> ModuleVisitor<B> for ReadWeights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.dtype = param.val().dtype();
        self.weights.push(numbers(param.val()));
    }
}

struct ReadGradients {
    from: GradientsParams,
    found: Vec<Vec<f64>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for ReadGradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.from.remove::<B::InnerBackend, D>(param.id);
        self.found.push(gradient.map_or_else(Vec::new, numbers));
    }
}

/// The model with these weights.
pub(super) fn replace_weights<M: TrainModule>(model: M, weights: &Weights) -> Result<M> {
    let mut replace = Replace {
        weights: weights.iter(),
        fits: true,
    };
    let model = model.map(&mut replace);
    match replace.fits && replace.weights.next().is_none() {
        true => Ok(model),
        false => Err(Error::user(
            "the model has other parameters here than on the reference; make the same model for \
             every backend",
        )),
    }
}

struct Replace<'a> {
    weights: std::slice::Iter<'a, Vec<f64>>,
    fits: bool,
}

impl<B: Backend> ModuleMapper<B> for Replace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let values = self.weights.next();
        let shape = tensor.shape();
        let tensor = match values {
            Some(values) if values.len() == shape.num_elements() => {
                let learns = tensor.is_require_grad();
                let data = TensorData::new(values.clone(), shape);
                let like = (&tensor.device(), tensor.dtype());
                Tensor::from_data(data, like).set_require_grad(learns)
            }
            _ => {
                self.fits = false;
                tensor
            }
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}
