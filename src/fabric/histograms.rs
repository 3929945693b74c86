//! Histograms of a model's parameters and gradients.

use super::average::values;
use crate::distributed::Values;
use crate::error::Result;
use crate::logger::Histogram;
use crate::module::TrainModule;
use crate::optim::Update;
use burn::module::{ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// By the parameter's path, with what it is of in front: `gradients/encoder.weight`.
pub(crate) type Histograms = Vec<(String, Histogram)>;

/// Of every float parameter.
pub(crate) fn of_parameters<M: TrainModule>(model: &M) -> Result<Histograms> {
    collect(model, "parameters", None)
}

/// Of every gradient, as the optimizers are given it.
pub(super) fn of_gradients<M: TrainModule>(model: &M, update: &Update) -> Result<Histograms> {
    let gradients: Vec<_> = update.gradients().collect();
    collect(model, "gradients", Some(&gradients))
}

fn collect<M: TrainModule>(
    model: &M,
    prefix: &'static str,
    gradients: Option<&[&GradientsParams]>,
) -> Result<Histograms> {
    let mut visitor = Visitor {
        prefix,
        gradients,
        path: Vec::new(),
        found: Ok(Vec::new()),
    };
    model.visit(&mut visitor);
    visitor.found
}

struct Visitor<'a> {
    prefix: &'static str,
    /// Of the parameters themselves, if there are none.
    gradients: Option<&'a [&'a GradientsParams]>,
    path: Vec<String>,
    found: Result<Histograms>,
}

impl Visitor<'_> {
    fn add<B: Backend, const D: usize>(&mut self, tensor: Tensor<B, D>) {
        let Ok(found) = &mut self.found else {
            return;
        };
        match values(tensor) {
            Ok(values) => {
                let name = format!("{}/{}", self.prefix, self.path.join("."));
                let histogram = match values {
                    Values::F32(values) => Histogram::of(values.into_iter().map(f64::from)),
                    Values::F64(values) => Histogram::of(values),
                };
                found.push((name, histogram));
            }
            Err(error) => self.found = Err(error),
        }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Visitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(gradients) = self.gradients else {
            return self.add(param.val().inner());
        };
        let mut gradients = gradients.iter();
        if let Some(gradient) = gradients.find_map(|g| g.get::<B::InnerBackend, D>(param.id)) {
            self.add(gradient);
        }
    }
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}
