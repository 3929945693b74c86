//! Optimizers stepped by hand.

use super::set::StepOutcome;
use crate::error::Result;
use crate::metric::Observation;
use crate::module::{StepContext, TrainModule};
use burn::tensor::Tensor;
use std::borrow::Cow;

/// What [`manual_step`](TrainModule::manual_step) works with: each call of
/// [`step`](Self::step) runs a backward pass and steps one named group.
pub struct ManualStep<'a, M: TrainModule> {
    pub(crate) stepper: &'a mut Stepper<'a, M>,
    pub(crate) context: &'a mut StepContext<M::Backend>,
    pub(crate) outcomes: Vec<StepOutcome>,
}

/// Steps a group of parameters by the gradients of a loss.
pub(crate) type Stepper<'a, M> =
    dyn FnMut(M, &str, Tensor<<M as TrainModule>::Backend, 1>) -> Result<(M, StepOutcome)> + 'a;

impl<M: TrainModule> ManualStep<'_, M> {
    /// Runs the backward pass of `loss` and steps the parameters of the group named `group`;
    /// gradients of all others are dropped. Clipping and the rule for gradients that are not
    /// finite are those of automatic optimization.
    ///
    /// # Errors
    /// A group that does not exist, a loss of more than one element, or what the backward pass or the optimizer reports.
    pub fn step(&mut self, group: &str, model: M, loss: Tensor<M::Backend, 1>) -> Result<M> {
        let (model, outcome) = (self.stepper)(model, group, loss)?;
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
