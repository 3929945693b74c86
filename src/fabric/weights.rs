//! How much gradients weigh: those of a step's batches, and those of all ranks.

use super::{Fabric, TrainState, average};
use crate::error::{Error, Result};
use crate::module::TrainModule;
use crate::nn::context;
use crate::optim::{Factors, Gradients};
use crate::precision::Scaler;
use burn::tensor::backend::AutodiffBackend;

/// The gradients of a step: Σ w·g of its batches, divided by `first`.
pub(super) struct Weighted {
    pub(super) gradients: Option<Gradients>,
    /// Σ w, divided by `first`.
    pub(super) weight: f64,
    /// What the weights of this rank's batches are relative to.
    pub(super) first: f64,
}

impl<M: TrainModule> TrainState<M> {
    /// The gradients added so far.
    pub(super) fn take_gradients(&mut self) -> Weighted {
        Weighted {
            gradients: self.gradients.take(),
            weight: std::mem::take(&mut self.weight),
            first: self.first_weight.take().unwrap_or(1.0),
        }
    }
}

impl<B: AutodiffBackend> Fabric<B> {
    /// What the weights of a step are relative to, of which this is the first.
    pub(super) fn first_weight(&self, weight: f64) -> f64 {
        match self.group.is_alone() {
            // A step of one batch needs no scaling at all.
            true => weight,
            // Ranks add up what they have, by the weights themselves.
            false => self.unit(),
        }
    }

    /// What ranks divide weights by: 1, unless the format is too narrow for them.
    fn unit(&self) -> f64 {
        match self.format.is_f16() {
            true => context::unit(),
            false => 1.0,
        }
    }

    /// What the backward pass of a loss multiplies with, for Σ w·g relative to `first`.
    pub(super) fn factors(&self, weight: f64, first: f64, scaler: Option<&Scaler>) -> Factors {
        let (in_loss, scale) = match scaler.map(Scaler::scale) {
            None if self.group.is_alone() => (first, 1.0),
            None => (self.unit(), 1.0),
            // Through layers that take statistics over all ranks, gradients of all losses flow to
            // the samples of each: they must have their weights by then.
            Some(scale) if context::is_synchronized() => (context::unit(), scale),
            // The scale alone decides about the range of 16 bits; the weight comes afterwards.
            Some(scale) => {
                return Factors {
                    loss: scale,
                    gradients: weight / first / scale,
                };
            }
        };
        Factors {
            loss: scale * (weight / in_loss),
            gradients: in_loss / first / scale,
        }
    }

    /// Checks that gradients may be weighed now that they are there.
    ///
    /// # Errors
    /// Those of other ranks' losses have come into them through layers that take statistics over all
    /// ranks.
    pub(super) fn check_unweighted(&self) -> Result<()> {
        match context::is_synchronized() {
            false => Ok(()),
            true => Err(Error::config(
                "`gradient_checkpointing` and losses given as gradients do not go with layers that \
                 take statistics over all devices (`SyncBatchNorm`): these mix the losses of the \
                 devices before they are weighed; set `sync_batchnorm` to false, train on one device, \
                 or use a normalization without running statistics",
            )),
        }
    }

    /// The first rank's learning rates.
    pub(super) fn first_rates(&self, mine: Vec<f64>) -> Result<Vec<f64>> {
        // By their bits: JSON has no word for what is not finite.
        let bits: Vec<u64> = mine.into_iter().map(f64::to_bits).collect();
        let first: Vec<u64> = self.group.broadcast(bits)?;
        Ok(first.into_iter().map(f64::from_bits).collect())
    }

    /// The mean of the gradients added so far, on all ranks, and the first rank's learning rates.
    pub(super) fn averaged<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        rates: Vec<f64>,
    ) -> Result<(Option<Gradients>, Vec<f64>)> {
        let taken = state.take_gradients();
        let model = state.present()?;
        match taken {
            taken if !self.group.is_alone() => average::mean(model, taken, rates, &self.group),
            Weighted {
                gradients: Some(gradients),
                weight,
                ..
            } if weight != 1.0 => Ok((Some(gradients.scale(model, 1.0 / weight)), rates)),
            Weighted { gradients, .. } => Ok((gradients, rates)),
        }
    }

    /// Leaves with the first rank what all of them have of an unfinished step (`in_group`), and of
    /// the optimizers' state.
    pub(crate) fn collect<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        in_group: bool,
    ) -> Result<()> {
        self.unite(state)?;
        if self.is_sharded() {
            self.collect_optimizers(state)?;
        }
        if !in_group {
            return Ok(());
        }
        let taken = state.take_gradients();
        let sum = average::sum(state.present()?, taken, &self.group)?;
        if self.group.is_root() {
            state.first_weight = sum.gradients.is_some().then_some(sum.first);
            state.weight = sum.weight;
            state.gradients = sum.gradients;
        }
        Ok(())
    }
}
