//! What a model is made of: its parameters by path, and layers without any.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use std::fmt::{self, Write};

/// A float parameter.
pub(crate) struct Parameter {
    /// What the module's fields spell: `encoder.layers.0.weight`.
    pub(crate) path: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// False for running statistics and the like.
    pub(crate) is_trained: bool,
}

/// Every float parameter of a model, in visiting order.
pub(crate) fn parameters<B: Backend, M: Module<B>>(model: &M) -> Vec<Parameter> {
    let mut visitor = Parameters::default();
    model.visit(&mut visitor);
    visitor.found
}

/// Whether a model has numbers that are not trained, such as running statistics.
pub(crate) fn has_statistics<B: Backend, M: Module<B>>(model: &M) -> bool {
    parameters(model).iter().any(|p| !p.is_trained)
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
            is_trained: param.val().is_require_grad(),
        });
    }
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.stack.push(name.into());
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }
}

/// What a module says it is made of. No visit comes by layers without parameters.
pub(crate) fn written(model: &impl fmt::Debug) -> String {
    let mut text = Capped(String::new());
    // What is beyond the cap is not looked at.
    let _ = write!(text, "{model:?}");
    text.0
}

/// Whether Burn's `Dropout` is somewhere in the model, and drops anything.
pub(crate) fn has_dropout(model: &impl fmt::Debug) -> bool {
    mentions_dropout(&written(model))
}

pub(crate) fn mentions_dropout(text: &str) -> bool {
    const DROPOUT: &str = "Dropout { prob: ";
    let mut found = text.match_indices(DROPOUT);
    found.any(|(at, _)| !text[at + DROPOUT.len()..].starts_with("0.0 "))
}

/// Takes no more text than a model without tensors has.
struct Capped(String);

impl fmt::Write for Capped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const MOST: usize = 16 << 20;
        if self.0.len() + text.len() > MOST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
