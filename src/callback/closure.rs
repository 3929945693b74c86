//! Functions as callbacks.

use super::{Callback, RunContext};
use crate::error::Result;
use crate::module::TrainModule;

/// A hook, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the `Callback` method of the same name"
)]
pub enum Hook {
    FitStart,
    TrainEpochStart,
    TrainBatchStart,
    OptimizerStep,
    TrainBatchEnd,
    TrainEpochEnd,
    EvalStart,
    EvalBatchEnd,
    EvalEnd,
    Stop,
    FitEnd,
}

/// A function that runs at one hook; Lightning's `LambdaCallback`.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::{Closure, Hook};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(Closure::at(Hook::TrainEpochEnd, |cx| {
///     println!("epoch {} is done", cx.progress().epoch);
///     Ok(())
/// }))
/// # }
/// ```
#[doc(alias = "LambdaCallback")]
pub struct Closure<F> {
    hook: Hook,
    f: F,
}

impl<F> Closure<F> {
    /// Runs `f` at this hook.
    pub fn at<M: TrainModule>(hook: Hook, f: F) -> Self
    where
        F: FnMut(&mut RunContext<'_, M>) -> Result<()>,
    {
        Self { hook, f }
    }
}

macro_rules! hooks {
    ($($method:ident => $hook:ident),* $(,)?) => {$(
        fn $method(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
            if self.hook == Hook::$hook { (self.f)(cx) } else { Ok(()) }
        }
    )*};
}

impl<M: TrainModule, F: FnMut(&mut RunContext<'_, M>) -> Result<()>> Callback<M> for Closure<F> {
    hooks! {
        on_fit_start => FitStart,
        on_train_epoch_start => TrainEpochStart,
        on_train_batch_start => TrainBatchStart,
        on_optimizer_step => OptimizerStep,
        on_train_batch_end => TrainBatchEnd,
        on_train_epoch_end => TrainEpochEnd,
        on_eval_start => EvalStart,
        on_eval_batch_end => EvalBatchEnd,
        on_eval_end => EvalEnd,
        on_stop => Stop,
        on_fit_end => FitEnd,
    }
}
