//! Weights that are set to zero and stay so.

use super::average::{tensor, values};
use super::{Fabric, TrainState};
use crate::distributed::Values;
use crate::error::{Error, Result};
use crate::module::{TrainModule, short_type_name};
use crate::optim::matches;
use crate::parameters::parameters;
use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Bool, Tensor};
use std::collections::HashMap;

/// Which entries of each pruned parameter are zero, in a row.
type Zeros<M> = HashMap<ParamId, Tensor<Inner<M>, 1, Bool>>;

type Inner<M> = <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend;

/// The parameters that pruning is about: those with two dimensions or more whose path matches.
fn pruned<M: TrainModule>(model: &M, patterns: &[String]) -> HashMap<ParamId, String> {
    let parameters = parameters(model).into_iter();
    let is_pruned = |path: &str| patterns.iter().any(|pattern| matches(pattern, path));
    parameters
        .filter(|p| p.is_trained && p.shape.len() > 1 && is_pruned(&p.path))
        .map(|p| (p.id, p.path))
        .collect()
}

/// Whether there is something to prune.
///
/// # Errors
/// No parameter matches.
pub(crate) fn check<M: TrainModule>(model: &M, patterns: &[String], amount: f64) -> Result<()> {
    if !(0.0..1.0).contains(&amount) {
        return Err(Error::config(format!(
            "the share of weights to prune is {amount}; use a number from 0 and below 1"
        )));
    }
    if pruned(model, patterns).is_empty() {
        return Err(Error::config(format!(
            "no parameter of `{}` with two dimensions or more matches `{}`",
            short_type_name::<M>(),
            patterns.join("`, `")
        )));
    }
    Ok(())
}

impl<M: TrainModule> TrainState<M> {
    /// Sets this share of each parameter's entries to zero, those with the smallest size, and keeps them
    /// so from now on.
    pub(crate) fn prune(&mut self, patterns: &[String], amount: f64) -> Result<()> {
        check(self.present()?, patterns, amount)?;
        let ids = pruned(self.present()?, patterns);
        if let Some(model) = self.model.take() {
            let mut prune = Prune {
                ids,
                amount,
                pruned: Vec::new(),
                error: None,
            };
            self.put(model.map(&mut prune));
            if let Some(error) = prune.error {
                return Err(error);
            }
            // Each by itself: what a pattern matches but was not pruned trains on.
            self.pruned.extend(prune.pruned);
        }
        // What is averaged with weights that are zero has to be zero as well.
        let zeros = self.zeros()?;
        self.map_average(|model| model.map(&mut Clear::<M>(&zeros)));
        Ok(())
    }

    /// What is zero and is to stay so.
    pub(super) fn zeros(&self) -> Result<Zeros<M>> {
        let mut zeros = FindZeros::<M> {
            ids: HashMap::new(),
            found: HashMap::new(),
        };
        if !self.pruned.is_empty() {
            zeros.ids = pruned(self.present()?, &self.pruned);
            self.present()?.visit(&mut zeros);
        }
        Ok(zeros.found)
    }

    /// Sets to zero again what was so before a step.
    pub(super) fn keep_zeros(&mut self, zeros: &Zeros<M>) {
        if !zeros.is_empty()
            && let Some(model) = self.model.take()
        {
            self.put(model.map(&mut Clear::<M>(zeros)));
        }
    }

    /// The patterns of what is pruned, for a checkpoint.
    pub(crate) fn pruned(&self) -> &[String] {
        &self.pruned
    }

    /// Keeps what is zero in these parameters so, as before the run was stopped.
    pub(crate) fn keep_pruned(&mut self, patterns: Vec<String>) {
        self.pruned = patterns;
    }
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Runs a step, after which what was pruned is zero as before.
    pub(super) fn keeping_zeros<M: TrainModule<Backend = B>, T>(
        &self,
        state: &mut TrainState<M>,
        step: impl FnOnce(&mut TrainState<M>) -> Result<T>,
    ) -> Result<T> {
        let zeros = state.zeros()?;
        let done = step(state)?;
        state.keep_zeros(&zeros);
        Ok(done)
    }
}

struct Prune {
    ids: HashMap<ParamId, String>,
    amount: f64,
    /// The paths of what has been pruned.
    pruned: Vec<String>,
    error: Option<Error>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Prune {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(path) = self.ids.get(&param.id) else {
            return param;
        };
        let old = param.val().inner();
        let (shape, device, dtype) = (old.dims(), old.device(), old.dtype());
        let pruned = values(old).map(|mut values| {
            // All zero is what begins to train yet, such as the second factor of LoRA.
            if values.is_zero() {
                return None;
            }
            self.pruned.push(path.clone());
            clear_smallest(&mut values, self.amount);
            tensor::<B::InnerBackend, D>(values, shape, &device, dtype)
        });
        match pruned {
            Ok(Some(new)) => param.map(|_| Tensor::from_inner(new).require_grad()),
            Ok(None) => param,
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// Sets so many of the numbers to zero; of equal ones the first.
fn clear_smallest(values: &mut Values, amount: f64) {
    fn clear<T: Copy + Default>(values: &mut [T], amount: f64, size: impl Fn(T) -> f64) {
        let count = (amount * values.len() as f64).round() as usize;
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| size(values[*a]).total_cmp(&size(values[*b])));
        for index in order.into_iter().take(count) {
            values[index] = T::default();
        }
    }
    match values {
        Values::F32(values) => clear(values, amount, |v| f64::from(v.abs())),
        Values::F64(values) => clear(values, amount, f64::abs),
    }
}

struct FindZeros<M: TrainModule> {
    ids: HashMap<ParamId, String>,
    found: Zeros<M>,
}

impl<B: AutodiffBackend, M: TrainModule<Backend = B>> ModuleVisitor<B> for FindZeros<M> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ids.contains_key(&param.id) {
            let weights = param.val().inner();
            let entries = weights.shape().num_elements();
            let zeros = weights.equal_elem(0.0).reshape([entries]);
            self.found.insert(param.id, zeros);
        }
    }
}

struct Clear<'a, M: TrainModule>(&'a Zeros<M>);

impl<B: AutodiffBackend, M: TrainModule<Backend = B>> ModuleMapper<B> for Clear<'_, M> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(zeros) = self.0.get(&param.id) else {
            return param;
        };
        let zeros = zeros.clone();
        param.map(|old| {
            let requires = old.is_require_grad();
            let shape = old.dims();
            let new = old.inner().mask_fill(zeros.reshape(shape), 0.0);
            let new = Tensor::from_inner(new);
            if requires { new.require_grad() } else { new }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_go_first() {
        let cleared = |values: &[f32], amount| {
            let mut values = Values::F32(values.to_vec());
            clear_smallest(&mut values, amount);
            values
        };
        let half = cleared(&[3.0, -1.0, 0.0, 2.0], 0.5);
        assert_eq!(half, Values::F32(vec![3.0, 0.0, 0.0, 2.0]));
        // Of equal ones the first, and to the nearest whole number.
        let third = cleared(&[1.0, -1.0, 1.0, 1.0, 1.0], 0.3);
        assert_eq!(third, Values::F32(vec![0.0, 0.0, 1.0, 1.0, 1.0]));
        assert_eq!(cleared(&[1.0], 0.0), Values::F32(vec![1.0]));
    }
}
