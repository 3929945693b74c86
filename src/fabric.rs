//! The operations of one training step, for the [`Trainer`](crate::Trainer) and for loops written
//! by hand.

use crate::config::{GradientClip, TrainerConfig};
use crate::data::{EpochSpec, Loader, LoaderIter, SampleRng};
use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use crate::module::{Loss, LossValue, StepContext, TrainModule, short_type_name};
use crate::optim::{
    Checked, Gradients, ManualStep, OptimizerSet, Optimizers, StepOutcome, UpdateRules,
};
use crate::panics;
use burn::module::ParamId;
use burn::tensor::TensorData;
use burn::tensor::backend::AutodiffBackend;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The parts of a training step bound together: device, seed, clipping. You keep the loop.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend, line_data};
/// use firebox::prelude::*;
///
/// fn train<B: AutodiffBackend>(model: Line<B>, device: B::Device) -> Result<Line<B>> {
///     let fabric = Fabric::new(device).with_gradient_clip(GradientClip::Norm(1.0));
///     let loader = line_data::<B>().batch_size(8).shuffle(true);
///     let mut state = fabric.setup(model)?;
///     for epoch in 0..3 {
///         for batch in fabric.batches(&loader, epoch)? {
///             let batch = batch?;
///             let Some(points) = batch.value else { continue };
///             let loss = state.model().loss(points);
///             fabric.backward(&mut state, loss, batch.samples)?; // adds to the gradients
///             fabric.optimizer_step(&mut state)?; // averages, checks, clips, steps
///         }
///     }
///     state.into_model()
/// }
/// # train::<firebox::testing::Cpu>(Line::new(&Default::default()), Default::default()).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Fabric<B: AutodiffBackend> {
    device: B::Device,
    seed: u64,
    rules: UpdateRules,
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Training on this device, with seed 42, no clipping.
    pub fn new(device: B::Device) -> Self {
        Self {
            device,
            seed: TrainerConfig::default().seed,
            rules: UpdateRules::default(),
        }
    }

    /// Training on this device as the config says: its seed, clipping and anomaly detection.
    pub fn from_config(config: &TrainerConfig, device: B::Device) -> Self {
        Self {
            device,
            seed: config.seed,
            rules: UpdateRules {
                clip: config.gradient_clip,
                detect_anomaly: config.detect_anomaly,
            },
        }
    }

    /// Sets the seed of the sample order and of the random draws in a step.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Clips averaged gradients before each optimizer step.
    #[must_use]
    pub fn with_gradient_clip(mut self, clip: GradientClip) -> Self {
        self.rules.clip = Some(clip);
        self
    }

    /// The device.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// A model made ready for training with the optimizers it asks for.
    ///
    /// # Errors
    /// What [`configure_optimizers`](TrainModule::configure_optimizers) reports, or a parameter
    /// group that does not fit the model.
    pub fn setup<M: TrainModule<Backend = B>>(&self, model: M) -> Result<TrainState<M>> {
        let optimizers = configured(&model)?;
        self.setup_with(model, optimizers)
    }

    /// A model made ready for training with these optimizers.
    ///
    /// # Errors
    /// A parameter group that does not fit the model, or a wrong learning rate or schedule.
    pub fn setup_with<M: TrainModule<Backend = B>>(
        &self,
        model: M,
        optimizers: Optimizers<M>,
    ) -> Result<TrainState<M>> {
        // Burn draws initial weights at their first use, and a clone draws its own: draw them now.
        if model.num_params() == 0 {
            return Err(Error::config(format!(
                "`{}` has no parameters to train",
                short_type_name::<M>()
            )));
        }
        let optimizers = OptimizerSet::new(&model, optimizers)?;
        Ok(TrainState {
            model: Some(model),
            optimizers,
            gradients: None,
            first_weight: None,
            weight: 0.0,
        })
    }

    /// The batches of one epoch; the order is a function of the seed and the epoch.
    ///
    /// # Errors
    /// A loader that cannot give any: empty data, a wrong sampler.
    pub fn batches<O>(&self, loader: &Loader<B, O>, epoch: u64) -> Result<LoaderIter<O>>
    where
        O: Send + 'static,
    {
        loader.iter(
            EpochSpec::new(self.device.clone())
                .seed(self.seed)
                .epoch(epoch),
        )
    }

    /// Starts the random draws (dropout, noise) of a batch at a point that depends on the seed,
    /// the epoch and the batch alone, so that any batch can be repeated.
    pub fn seed_batch(&self, epoch: u64, batch: usize) {
        let seed = SampleRng::new(self.seed, epoch, batch).next_u64();
        B::seed(&self.device, seed);
    }

    /// Runs the backward pass and adds the gradients, weighed, to those since the last
    /// [`optimizer_step`](Self::optimizer_step).
    ///
    /// `loss` is the mean over the batch's `samples`, or a [`Loss::weighted`].
    ///
    /// # Errors
    /// A loss of more than one element, a weight that is no finite number from 0, or what the
    /// backend reports.
    pub fn backward<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        loss: impl Into<Loss<B>>,
        samples: usize,
    ) -> Result<()> {
        let Loss { value, weight } = loss.into();
        let weight = weight.unwrap_or(samples as f64);
        if !weight.is_finite() || weight < 0.0 {
            return Err(Error::user(format!(
                "the weight of a loss is {weight}; use a finite number from 0"
            )));
        }
        if weight == 0.0 {
            return Ok(());
        }
        // Relative to the first batch of the group: a group of one needs no scaling at all.
        let factor = weight / *state.first_weight.get_or_insert(weight);
        let gradients = match value {
            LossValue::Gradients(gradients) if factor == 1.0 => gradients.into(),
            LossValue::Gradients(gradients) => {
                Gradients::from(gradients).scale(state.present()?, factor)
            }
            LossValue::Tensor(loss) => Gradients::of_loss(state.present()?, loss, factor)?,
        };
        state.gradients = Some(match state.gradients.take() {
            None => gradients,
            Some(sum) => sum.add(state.present()?, gradients),
        });
        state.weight += factor;
        Ok(())
    }

    /// Averages the gradients added so far by weight, checks that they are finite, clips them and
    /// steps the optimizers.
    ///
    /// # Errors
    /// What the backend or an optimizer reports; with anomaly detection, a gradient that is not
    /// finite. The model stays as it was, unless an optimizer panics later than in its first step.
    pub fn optimizer_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<StepOutcome> {
        let weight = std::mem::take(&mut state.weight);
        state.first_weight = None;
        let Some(mut gradients) = state.gradients.take() else {
            return Ok(StepOutcome::Empty);
        };
        let model = state.present()?;
        if weight != 1.0 {
            gradients = gradients.scale(model, 1.0 / weight);
        }
        let update = match state.optimizers.check(model, gradients, None, self.rules)? {
            Checked::Finite(update) => update,
            Checked::NotFinite => return Ok(StepOutcome::Skipped),
        };
        let grad_norm = update.grad_norm;
        // A copy keeps the old parameters alive, so Burn cannot update them in place: there is one
        // only where an optimizer may refuse the model.
        let copy = state.optimizers.is_first(&update).then(|| model.clone());
        if let Some(model) = state.model.take() {
            let stepped = state.optimizers.apply(model, update);
            state.model = copy;
            state.model = Some(stepped?);
        }
        Ok(StepOutcome::Stepped { grad_norm })
    }

    /// Runs the model's [`manual_step`](TrainModule::manual_step).
    pub(crate) fn manual_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        batch: M::Batch,
        context: &mut StepContext<B>,
    ) -> Result<Vec<StepOutcome>> {
        // The step may fail anywhere in the user's code: the model is kept.
        let model = state.present()?.clone();
        let mut step = ManualStep {
            optimizers: &mut state.optimizers,
            rules: self.rules,
            context,
            outcomes: Vec::new(),
        };
        let stepped = panics::catch(ErrorKind::User, || model.manual_step(batch, &mut step))?;
        let outcomes = step.outcomes;
        state.model = Some(stepped);
        Ok(outcomes)
    }
}

/// The optimizers that a model asks for.
pub(crate) fn configured<M: TrainModule>(model: &M) -> Result<Optimizers<M>> {
    panics::catch(ErrorKind::User, || model.configure_optimizers())
        .map_err(|e| e.context("configure_optimizers"))
}

/// How much the gradients of an unfinished group weigh.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupWeight {
    first: Option<Exact>,
    sum: Exact,
}

/// Gradients in the host's memory.
pub(crate) type GradientData = HashMap<ParamId, TensorData>;

/// A model in training, with its optimizers and the gradients of the step being built.
pub struct TrainState<M: TrainModule> {
    /// Absent only after an optimizer has panicked with it.
    model: Option<M>,
    pub(crate) optimizers: OptimizerSet<M>,
    gradients: Option<Gradients>,
    /// Weight of the group's first batch; all others are relative to it.
    first_weight: Option<f64>,
    /// Sum of relative weights.
    weight: f64,
}

impl<M: TrainModule> TrainState<M> {
    /// The model as it is now.
    ///
    /// # Panics
    /// After an [`optimizer_step`](Fabric::optimizer_step) that has reported a panic of an
    /// optimizer, later than its first step: the model was lost in it.
    pub fn model(&self) -> &M {
        match &self.model {
            Some(model) => model,
            #[expect(clippy::panic, reason = "the caller has been given the error before")]
            None => panic!("the model was lost when an optimizer panicked; end this run"),
        }
    }

    /// The model, or the error that it was lost.
    pub(crate) fn present(&self) -> Result<&M> {
        self.model
            .as_ref()
            .ok_or_else(|| Error::user("the model was lost when an optimizer panicked"))
    }

    /// Ends training; the model, under the same condition as [`model`](Self::model).
    ///
    /// # Errors
    /// The model was lost when an optimizer panicked.
    pub fn into_model(self) -> Result<M> {
        self.model
            .ok_or_else(|| Error::user("the model was lost when an optimizer panicked"))
    }

    /// The gradients of the step being built, read from the device, and how much they weigh; `None`
    /// between two steps.
    pub(crate) fn read_gradients(&mut self) -> Result<Option<(GroupWeight, GradientData)>> {
        let Some(gradients) = self.gradients.take() else {
            return Ok(None);
        };
        let (gradients, data) = gradients.read(self.present()?)?;
        self.gradients = Some(gradients);
        let weight = GroupWeight {
            first: self.first_weight.map(Exact),
            sum: Exact(self.weight),
        };
        Ok(Some((weight, data)))
    }

    /// Goes on with what [`read_gradients`](Self::read_gradients) gave.
    pub(crate) fn write_gradients(
        &mut self,
        weight: GroupWeight,
        data: GradientData,
    ) -> Result<()> {
        self.gradients = Some(Gradients::written(self.present()?, data)?);
        self.first_weight = weight.first.map(|Exact(first)| first);
        self.weight = weight.sum.0;
        Ok(())
    }

    /// Each parameter group's name and the learning rate of its last step.
    pub fn learning_rates(&self) -> impl Iterator<Item = (&str, f64)> {
        self.optimizers.learning_rates()
    }

    /// Moves schedules that count epochs on.
    pub fn on_epoch_end(&mut self) {
        self.optimizers.on_epoch_end();
    }
}
