//! What a user writes about a model: its steps and its optimizers.

use crate::error::{Error, Result};
use crate::metric::{Logged, Observation};
use crate::optim::{ManualStep, Optimizers, PassSettings};
use crate::progress::{Progress, Stage};
use burn::module::{AutodiffModule, Module};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use std::borrow::Cow;

/// A model that can be trained: one step that gives a loss, and the optimizers that use it.
///
/// Nothing about hardware belongs here: the batch arrives on the right device, and firebox runs
/// the backward pass, averages gradients, clips them and updates the parameters.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Tensor, backend::{AutodiffBackend, Backend}};
/// use firebox::prelude::*;
///
/// #[derive(Module, Debug)]
/// struct Line<B: Backend> {
///     linear: Linear<B>,
/// }
///
/// type Points<B> = (Tensor<B, 2>, Tensor<B, 2>);
///
/// impl<B: AutodiffBackend> TrainModule for Line<B> {
///     type Backend = B;
///     type Batch = Points<B>;
///     type Eval = Line<B::InnerBackend>;
///
///     fn training_step(&self, (x, y): Points<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
///         Ok(MseLoss::new().forward(self.linear.forward(x), y, Reduction::Mean).into())
///     }
///     fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
///         Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
///     }
/// }
///
/// impl<B: Backend> EvalModule for Line<B> {
///     type Backend = B;
///     type Batch = Points<B>;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be trained: it does not implement `TrainModule`",
    label = "needs `impl<B: AutodiffBackend> TrainModule for ...`",
    note = "write `training_step` and `configure_optimizers` for it; see `firebox::TrainModule`"
)]
pub trait TrainModule:
    AutodiffModule<Self::Backend, InnerModule = Self::Eval> + Sized + 'static
{
    /// The backend, with autodiff: the `B` of `Net<B>`.
    type Backend: AutodiffBackend;

    /// What one training step takes: what the train loader's batcher makes.
    type Batch: Send + 'static;

    /// The same model without autodiff: `Net<B::InnerBackend>`.
    type Eval: EvalModule<Backend = <Self::Backend as AutodiffBackend>::InnerBackend>;

    /// The forward pass and the loss of one batch.
    ///
    /// The loss is the **mean** over the batch (see [`Loss`] for means over something else than
    /// samples).
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run with the epoch and batch added.
    fn training_step(
        &self,
        batch: Self::Batch,
        cx: &mut StepContext<Self::Backend>,
    ) -> Result<Loss<Self::Backend>>;

    /// The optimizers, their parameters and schedules; asked once, when training starts.
    ///
    /// # Errors
    /// Whatever went wrong; nothing has been trained yet.
    fn configure_optimizers(&self) -> Result<Optimizers<Self>>;

    /// What a checkpoint keeps of this model beside its parameters: fields that are no tensors, such
    /// as a vocabulary or a counter.
    fn save_state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Puts back what [`save_state`](Self::save_state) gave, when a run is resumed.
    ///
    /// # Errors
    /// A state that is not of this model.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// A whole training step by hand, for models that need several optimizers in turn (GANs).
    ///
    /// Called instead of [`training_step`](Self::training_step) when
    /// [`configure_optimizers`](Self::configure_optimizers) gives [`Optimizers::manual`].
    ///
    /// # Errors
    /// Whatever went wrong.
    fn manual_step(self, batch: Self::Batch, cx: &mut ManualStep<'_, Self>) -> Result<Self> {
        let _ = (batch, cx);
        Err(Error::config(format!(
            "`configure_optimizers` of `{}` returns `Optimizers::manual`, but it has no `manual_step`",
            short_type_name::<Self>()
        )))
    }
}

/// A model that can be evaluated. Values are logged; the trainer merges and weighs them.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, loss::{MseLoss, Reduction}};
/// # use burn::tensor::{Tensor, backend::Backend};
/// use firebox::prelude::*;
///
/// # #[derive(Module, Debug)]
/// # struct Line<B: Backend> { linear: Linear<B> }
/// impl<B: Backend> EvalModule for Line<B> {
///     type Backend = B;
///     type Batch = (Tensor<B, 2>, Tensor<B, 2>);
///
///     fn validation_step(&self, (x, y): Self::Batch, cx: &mut StepContext<B>) -> Result<()> {
///         let predicted = self.linear.forward(x);
///         cx.log("loss", MseLoss::new().forward(predicted, y, Reduction::Mean)); // `val/loss`
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be evaluated: it does not implement `EvalModule`",
    label = "needs `impl<B: Backend> EvalModule for ...`",
    note = "a model that is never validated needs only the two types; see `firebox::EvalModule`"
)]
pub trait EvalModule: Module<Self::Backend> + Sized + 'static {
    /// The backend, without autodiff.
    type Backend: Backend;

    /// What one evaluation step takes: what the validation and test loaders' batcher makes.
    type Batch: Send + 'static;

    /// Evaluates one validation batch and logs what it finds.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn validation_step(
        &self,
        batch: Self::Batch,
        cx: &mut StepContext<Self::Backend>,
    ) -> Result<()> {
        let _ = batch;
        Err(Error::config(format!(
            "there is a {} loader, but `{}` has no `validation_step`",
            cx.stage().prefix(),
            short_type_name::<Self>()
        )))
    }

    /// Evaluates one test batch; by default the same as a validation batch. Names without a slash
    /// get the stage's prefix, so `loss` becomes `test/loss` here.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn test_step(&self, batch: Self::Batch, cx: &mut StepContext<Self::Backend>) -> Result<()> {
        self.validation_step(batch, cx)
    }
}

/// A model that makes predictions.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::Linear;
/// # use burn::tensor::{Tensor, backend::Backend};
/// # use firebox::prelude::*;
/// # #[derive(Module, Debug)]
/// # struct Line<B: Backend> { linear: Linear<B> }
/// # impl<B: Backend> EvalModule for Line<B> { type Backend = B; type Batch = Tensor<B, 2>; }
/// impl<B: Backend> PredictModule for Line<B> {
///     type Input = Tensor<B, 2>;
///     type Output = Tensor<B, 2>;
///
///     fn predict_step(&self, x: Tensor<B, 2>, _cx: &mut StepContext<B>) -> Result<Tensor<B, 2>> {
///         Ok(self.linear.forward(x))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` makes no predictions: it does not implement `PredictModule`",
    label = "needs `impl<B: Backend> PredictModule for ...`",
    note = "write `predict_step` for it; see `firebox::PredictModule`"
)]
pub trait PredictModule: EvalModule {
    /// What one step takes: what the predict loader's batcher makes.
    type Input: Send + 'static;

    /// What one step gives, for a whole batch.
    type Output: Send + 'static;

    /// The predictions for one batch.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn predict_step(
        &self,
        input: Self::Input,
        cx: &mut StepContext<Self::Backend>,
    ) -> Result<Self::Output>;
}

/// The loss of one batch: a mean, and how much the batch weighs.
///
/// The gradient of an optimizer step is Σ wᵢ·gᵢ / Σ wᵢ over its micro-batches, so a weight is the
/// number of things the loss is a mean over. By default those are the batch's samples.
///
/// ```
/// # use burn::tensor::{Tensor, backend::AutodiffBackend};
/// use firebox::Loss;
///
/// fn per_token<B: AutodiffBackend>(mean_nll: Tensor<B, 1>, tokens: usize) -> Loss<B> {
///     Loss::weighted(mean_nll, tokens as f64)
/// }
/// ```
#[derive(Debug)]
pub struct Loss<B: AutodiffBackend> {
    pub(crate) value: LossValue<B>,
    pub(crate) weight: Option<f64>,
}

#[derive(Debug)]
pub(crate) enum LossValue<B: AutodiffBackend> {
    Tensor(Tensor<B, 1>),
    /// The step ran the backward pass itself.
    Gradients(GradientsParams),
    /// So did [`StepContext::checkpoint_blocks`], which knows the loss.
    Recomputed {
        gradients: GradientsParams,
        loss: Tensor<B::InnerBackend, 1>,
    },
}

impl<B: AutodiffBackend> Loss<B> {
    /// A mean over `weight` things (tokens, pixels). A weight of 0 leaves the batch out.
    pub fn weighted(mean: Tensor<B, 1>, weight: f64) -> Self {
        Self {
            value: LossValue::Tensor(mean),
            weight: Some(weight),
        }
    }

    /// Gradients of a mean loss, for a step that has run the backward pass itself.
    pub fn from_gradients(gradients: GradientsParams) -> Self {
        Self {
            value: LossValue::Gradients(gradients),
            weight: None,
        }
    }
}

impl<B: AutodiffBackend> Loss<B> {
    /// The same loss, as a mean over so many things; see [`weighted`](Self::weighted).
    #[must_use]
    pub fn with_weight(mut self, weight: f64) -> Self {
        self.weight = Some(weight);
        self
    }
}

impl<B: AutodiffBackend> From<Tensor<B, 1>> for Loss<B> {
    fn from(mean: Tensor<B, 1>) -> Self {
        Self {
            value: LossValue::Tensor(mean),
            weight: None,
        }
    }
}

/// What a step sees of the run, and where it logs.
#[derive(Debug)]
pub struct StepContext<B: Backend> {
    stage: Stage,
    progress: Progress,
    samples: usize,
    device: B::Device,
    pub(crate) pass: PassSettings,
    pub(crate) logged: Vec<Logged<B>>,
}

impl<B: Backend> StepContext<B> {
    pub(crate) fn new(stage: Stage, progress: Progress, samples: usize, device: B::Device) -> Self {
        Self {
            stage,
            progress,
            samples,
            device,
            pass: PassSettings::default(),
            logged: Vec::new(),
        }
    }

    pub(crate) fn with_pass(mut self, pass: PassSettings) -> Self {
        self.pass = pass;
        self
    }

    /// Logs a value under a name; it stays on the device until somebody looks.
    ///
    /// A name without a slash gets the stage's prefix: `loss` is `train/loss` in training,
    /// `val/loss` in validation, `test/loss` in a test. The value is a number, a tensor of one
    /// element (weighed by the batch's samples) or what a [metric](crate::metric) observed.
    ///
    /// While training, the value of an optimizer step is logged under the name itself, and the
    /// epoch's under the name with `_epoch` behind it.
    pub fn log(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Observation<B>>) {
        self.logged.push(Logged {
            name: name.into(),
            value: value.into(),
        });
    }

    /// Training, validation, test or prediction.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The run's counters, before this batch.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The samples in this batch: on several devices, in this one's part of it.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The device that the batch is on.
    pub fn device(&self) -> &B::Device {
        &self.device
    }
}

/// A type's name without its path and parameters.
pub(crate) fn short_type_name<T: ?Sized>() -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}
