//! A part of the model that begins to train later.

use super::{Callback, RunContext};
use crate::error::{Error, Result};
use crate::module::TrainModule;
use serde_json::{Value, json};

/// Freezes a parameter group, and trains it from an epoch on, with a learning rate of its own if one
/// is given: a pretrained backbone stays as it is until the new head has settled.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use burn::optim::AdamConfig;
/// use firebox::callback::BackboneFinetuning;
/// use firebox::prelude::*;
///
/// # fn optimizers<B: AutodiffBackend>() -> Optimizers<Line<B>> {
/// // In the model's `configure_optimizers`:
/// Optimizers::single(AdamConfig::new().init())
///     .with_lr(1e-3)
///     .with_group(ParamGroup::new("backbone", ["backbone.*"], AdamConfig::new().init()))
/// # }
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(BackboneFinetuning::new("backbone", 10).with_lr(1e-4))
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BackboneFinetuning {
    groups: String,
    unfreeze_at_epoch: u64,
    lr: Option<f64>,
    is_unfrozen: bool,
}

impl BackboneFinetuning {
    /// The groups whose name matches the pattern train from this epoch on, counted from 0.
    pub fn new(groups: impl Into<String>, unfreeze_at_epoch: u64) -> Self {
        Self {
            groups: groups.into(),
            unfreeze_at_epoch,
            lr: None,
            is_unfrozen: false,
        }
    }

    /// The base learning rate they begin with; otherwise it is the one they were given. Their
    /// schedule, which counts the steps they take, begins then.
    #[must_use]
    pub fn with_lr(mut self, lr: f64) -> Self {
        self.lr = Some(lr);
        self
    }
}

impl<M: TrainModule> Callback<M> for BackboneFinetuning {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.is_unfrozen = false;
        }
        Ok(())
    }

    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.progress().epoch < self.unfreeze_at_epoch {
            return cx.freeze(&self.groups);
        }
        if self.is_unfrozen {
            return Ok(());
        }
        self.is_unfrozen = true;
        cx.unfreeze(&self.groups)?;
        match self.lr {
            Some(lr) => cx.set_learning_rate(&self.groups, lr),
            None => Ok(()),
        }
    }

    fn save_state(&self) -> Value {
        json!(self.is_unfrozen)
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.is_unfrozen = state
            .as_bool()
            .ok_or_else(|| Error::config("the state of BackboneFinetuning cannot be read"))?;
        Ok(())
    }
}
