//! A model's parameters by path.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

/// A float parameter.
pub(crate) struct Parameter {
    /// What the module's fields spell: `encoder.layers.0.weight`.
    pub(crate) path: String,
    pub(crate) id: ParamId,
    #[cfg_attr(
        not(feature = "ndarray"),
        allow(dead_code, reason = "the doctor alone asks for it")
    )]
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
}

/// Every float parameter of a model, in visiting order.
pub(crate) fn parameters<B: Backend, M: Module<B>>(model: &M) -> Vec<Parameter> {
    let mut visitor = Parameters::default();
    model.visit(&mut visitor);
    visitor.found
}

#[derive(Default)]
struct Parameters {
    stack: Vec<String>,
    found: Vec<Parameter>,
}

impl<B: Backend> ModuleVisitor<B> for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push(Parameter {
            path: self.stack.join("."),
            id: param.id,
            shape: param.val().dims().to_vec(),
            dtype: param.val().dtype(),
        });
    }
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.stack.push(name.into());
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }
}
