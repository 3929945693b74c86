//! Optimizers stepped by hand.

use super::gradients::Gradients;
use super::set::{OptimizerSet, StepOutcome, UpdateRules};
use crate::error::Result;
use crate::metric::Observation;
use crate::module::{StepContext, TrainModule};
use burn::tensor::Tensor;
use std::borrow::Cow;

/// What [`manual_step`](TrainModule::manual_step) works with: each call of
/// [`step`](Self::step) runs a backward pass and steps one named group.
pub struct ManualStep<'a, M: TrainModule> {
    pub(crate) optimizers: &'a mut OptimizerSet<M>,
    pub(crate) rules: UpdateRules,
    /// What a loss is multiplied with.
    pub(crate) weight: f64,
    /// The mean over all ranks of what this one has of a group, and the first rank's learning rates.
    pub(crate) mean: &'a Mean<'a, M>,
    pub(crate) context: &'a mut StepContext<M::Backend>,
    pub(crate) outcomes: Vec<StepOutcome>,
}

type Mean<'a, M> =
    dyn Fn(&M, &str, Gradients, Vec<f64>) -> Result<(Option<Gradients>, Vec<f64>)> + 'a;

impl<M: TrainModule> ManualStep<'_, M> {
    /// Runs the backward pass of `loss` and steps the parameters of the group named `group`;
    /// gradients of all others are dropped. Clipping and the rule for gradients that are not
    /// finite are those of automatic optimization.
    ///
    /// # Errors
    /// A group that does not exist, a loss of more than one element, or what the backward pass or the optimizer reports.
    pub fn step(&mut self, group: &str, model: M, loss: Tensor<M::Backend, 1>) -> Result<M> {
        let gradients = Gradients::of_loss(&model, loss, self.weight, true)?;
        let rates = self.optimizers.rates();
        let (gradients, rates) = (self.mean)(&model, group, gradients, rates)?;
        let optimizers = &mut *self.optimizers;
        let (model, outcome) =
            optimizers.step_group(model, gradients, group, self.rules, &rates)?;
        self.outcomes.push(outcome);
        Ok(model)
    }

    /// Logs a value; see [`StepContext::log`].
    pub fn log(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Observation<M::Backend>>,
    ) {
        self.context.log(name, value);
    }

    /// What the step sees of the run.
    pub fn context(&self) -> &StepContext<M::Backend> {
        self.context
    }
}
