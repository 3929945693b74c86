//! Small weights that are set to zero.

use super::{Callback, Change, RunContext};
use crate::config::{Strategy, TrainerConfig};
use crate::error::{Error, Result};
use crate::module::TrainModule;

/// Sets a share of the weights to zero, those with the smallest size in each tensor, and keeps them so:
/// magnitude pruning ([Han et al. 2015](https://arxiv.org/abs/1506.02626)). Tensors of one dimension
/// (biases, normalization) are left alone. Several of these, each with an epoch and a larger share,
/// prune by and by.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::Pruning;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// // Half of the encoder's weights from epoch 5 on, 80 % from epoch 10 on.
/// trainer
///     .with_callback(Pruning::new(0.5).at_epoch(5).paths(["encoder.*"]))
///     .with_callback(Pruning::new(0.8).at_epoch(10).paths(["encoder.*"]))
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Pruning {
    amount: f64,
    epoch: u64,
    paths: Vec<String>,
    is_done: bool,
}

impl Pruning {
    /// This share of the weights, from 0 and below 1, in all of the model, before training.
    pub fn new(amount: f64) -> Self {
        Self {
            amount,
            epoch: 0,
            paths: vec!["*".to_owned()],
            is_done: false,
        }
    }

    /// Before this epoch, counted from 0.
    #[must_use]
    pub fn at_epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// In the parameters whose path matches one of these patterns, as in
    /// [`ParamGroup`](crate::optim::ParamGroup).
    #[must_use]
    pub fn paths<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.paths = patterns.into_iter().map(Into::into).collect();
        self
    }
}

impl<M: TrainModule> Callback<M> for Pruning {
    fn check_config(&self, config: &TrainerConfig) -> Result<()> {
        match config.strategy {
            Strategy::FedAvg { .. } => Err(Error::config(format!(
                "`strategy` is {}, where every device has weights of its own to prune; use another",
                config.strategy
            ))),
            _ => Ok(()),
        }
    }

    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.is_done = false;
        }
        // Before hours of training, not after them.
        cx.check_change(&self.change())
    }

    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if self.is_done || cx.progress().epoch < self.epoch {
            return Ok(());
        }
        self.is_done = true;
        cx.change(self.change())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.is_done)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.is_done = state
            .as_bool()
            .ok_or_else(|| Error::config("the state of Pruning cannot be read"))?;
        Ok(())
    }
}

impl Pruning {
    fn change(&self) -> Change {
        Change::Prune {
            paths: self.paths.clone(),
            amount: self.amount,
        }
    }
}
