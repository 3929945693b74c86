//! A model's parameters in another format, and known by their paths.

use super::Format;
use crate::error::{Error, Result};
use crate::module::{TrainModule, short_type_name};
use crate::optim::matches;
use crate::parameters::parameters;
use burn::module::{ModuleMapper, Param};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor};
use firebox_autocast::{Tag, mark};

/// The model with its parameters in the format of the run. What it was cloned from stays as it is.
///
/// # Errors
/// A part that is to keep its format does not exist.
pub(crate) fn converted<M: TrainModule>(model: M, format: &Format) -> Result<M> {
    check_keeps(&model, format)?;
    let Some(dtype) = format.parameters else {
        return Ok(model);
    };
    // Clones share running statistics.
    let copy = M::from_inner(model.valid());
    Ok(cast(copy, |_| dtype))
}

fn check_keeps<M: TrainModule>(model: &M, format: &Format) -> Result<()> {
    if format.keeps.is_empty() {
        return Ok(());
    }
    let parameters = parameters(model);
    let unmatched = |pattern: &&String| !parameters.iter().any(|p| matches(pattern, &p.path));
    match format.keeps.iter().find(unmatched) {
        None => Ok(()),
        Some(pattern) => {
            let known: Vec<_> = parameters.iter().take(8).map(|p| p.path.as_str()).collect();
            Err(Error::config(format!(
                "`full_precision` has `{pattern}`, which matches no parameter of `{}`; it has `{}`{}",
                short_type_name::<M>(),
                known.join("`, `"),
                if parameters.len() > known.len() {
                    ", ..."
                } else {
                    ""
                },
            )))
        }
    }
}

/// The model with each float in the format that `to` gives for its own.
pub(crate) fn cast<M: TrainModule>(model: M, to: impl Fn(DType) -> DType) -> M {
    model.map(&mut Cast(to))
}

struct Cast<F>(F);

impl<B: AutodiffBackend, F: Fn(DType) -> DType> ModuleMapper<B> for Cast<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (from, to) = (param.val().dtype(), (self.0)(param.val().dtype()));
        if from == to {
            return param;
        }
        param.map(|old| {
            let requires = old.is_require_grad();
            let new = Tensor::from_inner(old.inner().cast(to));
            if requires { new.require_grad() } else { new }
        })
    }
}

/// The model whose tensors know which parameters they are; an optimizer's step makes new ones.
pub(crate) fn marked<M: TrainModule>(model: M, format: &Format) -> M {
    if !format.marks {
        return model;
    }
    model.map(&mut Mark {
        keeps: &format.keeps,
        path: Vec::new(),
    })
}

struct Mark<'a> {
    keeps: &'a [String],
    path: Vec<String>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Mark<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        let path = self.path.join(".");
        let keeps = self.keeps.iter().any(|pattern| matches(pattern, &path));
        param.map(|old| {
            let known = mark(Tag { path, keeps }, || old.inner().detach());
            Tensor::from_inner(known).require_grad()
        })
    }
}
