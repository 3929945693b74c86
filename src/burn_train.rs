//! Models written for burn-train, as they are.

use crate::error::{Error, Result};
use crate::metric::{Observation, batch_value, observe_entry};
use crate::module::{EvalModule, Loss, StepContext, TrainModule};
use crate::optim::Optimizers;
use burn::module::{AutodiffModule, Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_train::metric::{Adaptor, ItemLazy, Metric, Numeric, NumericEntry};
use burn_train::{InferenceStep, TrainStep};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A model that implements burn-train's `TrainStep` and `InferenceStep`, ready for a
/// [`Trainer`](crate::Trainer), with no change to it.
///
/// Its `TrainStep` runs the backward pass; firebox averages, clips and steps. Metrics of
/// burn-train are added with [`with_metric`](Self::with_metric); train with
/// [`Trainer::fit_with`](crate::Trainer::fit_with), which takes the optimizers.
///
/// ```no_run
/// use burn::optim::AdamConfig;
/// use burn::module::AutodiffModule;
/// use burn_train::{ClassificationOutput, InferenceStep, TrainStep};
/// use burn_train::metric::{AccuracyMetric, LossMetric};
/// use burn_flex::Flex;
/// use firebox::burn_train::BurnTrain;
/// use firebox::prelude::*;
/// # use burn::tensor::backend::AutodiffBackend;
///
/// fn train<B, M, I, E>(model: M, trainer: &mut Trainer<BurnTrain<B, M, ClassificationOutput<Flex>>>,
///     data: &mut impl DataModule<BurnTrain<B, M, ClassificationOutput<Flex>>>) -> Result<M>
/// where
///     B: AutodiffBackend,
///     M: AutodiffModule<B> + TrainStep<Output = ClassificationOutput<B>> + 'static,
///     M::InnerModule: InferenceStep<Output = ClassificationOutput<B::InnerBackend>> + 'static,
/// {
///     let model = BurnTrain::new(model)
///         .with_metric("loss", LossMetric::<Flex>::new())
///         .with_metric("acc", AccuracyMetric::<Flex>::new());
///     let optimizers = Optimizers::single(AdamConfig::new().init()).with_lr(1e-3);
///     Ok(trainer.fit_with(model, optimizers, data)?.model.into_inner())
/// }
/// ```
pub struct BurnTrain<B: Backend, M, T> {
    model: M,
    metrics: Vec<NamedMetric<T>>,
    backend: PhantomData<B>,
}

/// A metric's name, and its value of one batch's output.
type NamedMetric<T> = (&'static str, Arc<dyn Fn(&T) -> NumericEntry + Send + Sync>);

impl<B: Backend, M, T> BurnTrain<B, M, T> {
    /// A burn-train model. `T` is what its outputs become on the host (their `ItemSync`).
    pub fn new(model: M) -> Self {
        Self {
            model,
            metrics: Vec::new(),
            backend: PhantomData,
        }
    }

    /// Logs this metric of each training, validation and test output, as
    /// [`burn_metric`](crate::metric::burn_metric) does.
    #[must_use]
    pub fn with_metric<N>(mut self, name: &'static str, metric: N) -> Self
    where
        N: Metric + Numeric + 'static,
        T: Adaptor<N::Input>,
    {
        let value = move |output: &T| batch_value(&metric, &output.adapt());
        self.metrics.push((name, Arc::new(value)));
        self
    }

    /// The model itself.
    pub fn into_inner(self) -> M {
        self.model
    }

    fn log(&self, output: &T, cx: &mut StepContext<B>) -> Result<()> {
        for (name, value) in &self.metrics {
            let observed: Observation<B> = observe_entry(value(output))?;
            cx.log(*name, observed);
        }
        Ok(())
    }

    fn wrap<N, C: Backend>(&self, model: N) -> BurnTrain<C, N, T> {
        BurnTrain {
            model,
            metrics: self.metrics.clone(),
            backend: PhantomData,
        }
    }
}

#[diagnostic::do_not_recommend]
impl<B, M, T> TrainModule for BurnTrain<B, M, T>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + TrainStep + 'static,
    M::Output: ItemLazy<ItemSync = T>,
    M::InnerModule: InferenceStep + 'static,
    <M::InnerModule as InferenceStep>::Output: ItemLazy<ItemSync = T>,
    T: 'static,
{
    type Backend = B;
    type Batch = M::Input;
    type Eval = BurnTrain<B::InnerBackend, M::InnerModule, T>;

    fn training_step(&self, batch: M::Input, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let output = TrainStep::step(&self.model, batch);
        self.log(&output.item.sync(), cx)?;
        Ok(Loss::from_gradients(output.grads))
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Err(Error::config(
            "a burn-train model brings no optimizers; give them to `Trainer::fit_with`",
        ))
    }
}

#[diagnostic::do_not_recommend]
impl<B, M, T> EvalModule for BurnTrain<B, M, T>
where
    B: Backend,
    M: Module<B> + InferenceStep + 'static,
    <M as InferenceStep>::Output: ItemLazy<ItemSync = T>,
    T: 'static,
{
    type Backend = B;
    type Batch = M::Input;

    fn validation_step(&self, batch: M::Input, cx: &mut StepContext<B>) -> Result<()> {
        self.log(&self.model.step(batch).sync(), cx)
    }
}

impl<B: Backend, M: Clone, T> Clone for BurnTrain<B, M, T> {
    fn clone(&self) -> Self {
        self.wrap(self.model.clone())
    }
}

impl<B: Backend, M: fmt::Debug, T> fmt::Debug for BurnTrain<B, M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BurnTrain").field(&self.model).finish()
    }
}

// The model's parameters are this module's parameters, under the same paths.
impl<B: Backend, M: Module<B>, T> Module<B> for BurnTrain<B, M, T> {
    type Record = M::Record;

    fn collect_devices(&self, devices: Devices<B>) -> Devices<B> {
        self.model.collect_devices(devices)
    }
    fn fork(mut self, device: &Device<B>) -> Self {
        self.model = self.model.fork(device);
        self
    }
    fn to_device(mut self, device: &Device<B>) -> Self {
        self.model = self.model.to_device(device);
        self
    }
    fn visit<V: ModuleVisitor<B>>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }
    fn map<P: ModuleMapper<B>>(mut self, mapper: &mut P) -> Self {
        self.model = self.model.map(mapper);
        self
    }
    fn load_record(mut self, record: M::Record) -> Self {
        self.model = self.model.load_record(record);
        self
    }
    fn into_record(self) -> M::Record {
        self.model.into_record()
    }
}

impl<B: AutodiffBackend, M: AutodiffModule<B>, T> AutodiffModule<B> for BurnTrain<B, M, T> {
    type InnerModule = BurnTrain<B::InnerBackend, M::InnerModule, T>;

    fn valid(&self) -> Self::InnerModule {
        self.wrap(self.model.valid())
    }
    fn from_inner(module: Self::InnerModule) -> Self {
        BurnTrain {
            metrics: module.metrics,
            model: M::from_inner(module.model),
            backend: PhantomData,
        }
    }
}
