//! A model in training.

use super::average;
use super::averaged::Averaged;
use super::histograms::Histograms;
use super::strategy::{Own, SinceAverage};
use crate::distributed::{Group, Pieces};
use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use crate::module::TrainModule;
use crate::optim::{Gradients, OptimizerSet, Optimizers, StepOutcome, Update};
use crate::panics;
use crate::precision::{Format, Scaler, marked};
use burn::module::ParamId;
use burn::tensor::{Device, TensorData};
use firebox_autocast::Finding;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The optimizers that a model asks for.
pub(crate) fn configured<M: TrainModule>(model: &M) -> Result<Optimizers<M>> {
    panics::catch(ErrorKind::User, || model.configure_optimizers())
        .map_err(|e| e.context("configure_optimizers"))
}

/// Moves the loss's scale on after a step.
///
/// # Errors
/// Steps are skipped whatever the scale.
pub(super) fn rescale(scaler: Option<&mut Scaler>, outcome: StepOutcome) -> Result<()> {
    match (scaler, outcome) {
        (Some(scaler), StepOutcome::Stepped { .. }) => scaler.on_step(),
        (Some(scaler), StepOutcome::Skipped) => scaler.on_skip()?,
        _ => {}
    }
    Ok(())
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
    pub(super) model: Option<M>,
    pub(crate) optimizers: OptimizerSet<M>,
    pub(super) gradients: Option<Gradients>,
    /// Weight of the group's first batch; all others are relative to it.
    pub(super) first_weight: Option<f64>,
    /// Sum of relative weights.
    pub(super) weight: f64,
    pub(super) since_average: SinceAverage,
    /// The parameters that this rank steps, if not all.
    pub(super) own: Option<Own>,
    /// Whether no checkpoint is to be made of it.
    pub(super) is_unsaved: bool,
    pub(super) averaged: Option<Averaged<M>>,
    /// The gradients' norm over each of the model's parts at the last step, if that was asked for.
    pub(crate) norms_of_parts: BTreeMap<String, f64>,
    /// Patterns of the parameters whose zeros stay zeros.
    pub(super) pruned: Vec<String>,
    /// Of the gradients of the next step, if they are wanted.
    pub(crate) histograms: Option<Histograms>,
    /// The first number that was not finite in the step being built.
    pub(super) finding: Option<Finding>,
    pub(super) format: Format,
    /// Of the loss, in a precision that needs it.
    pub(crate) scaler: Option<Scaler>,
}

impl<M: TrainModule> TrainState<M> {
    /// The model as it is now.
    ///
    /// # Panics
    /// After an [`optimizer_step`](crate::Fabric::optimizer_step) that has reported a panic of an
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

    /// Ends training; the model, under the same condition as [`model`](Self::model). On several
    /// devices, end with [`Fabric::finish`](crate::Fabric::finish).
    ///
    /// # Errors
    /// The model was lost when an optimizer panicked; or the devices have stepped by themselves since
    /// they last averaged their parameters.
    pub fn into_model(self) -> Result<M> {
        if self.since_average.is_some_steps() {
            return Err(Error::user(
                "the devices have stepped by themselves since they last averaged their parameters \
                 (`fedavg`); end with `Fabric::finish`",
            ));
        }
        self.model
            .ok_or_else(|| Error::user("the model was lost when an optimizer panicked"))
    }

    /// A model that begins to train.
    pub(super) fn new(model: M, optimizers: OptimizerSet<M>, format: Format) -> Self {
        let scaler = format.scaler();
        Self {
            model: Some(marked(model, &format)),
            optimizers,
            gradients: None,
            first_weight: None,
            weight: 0.0,
            since_average: SinceAverage::default(),
            own: None,
            is_unsaved: false,
            averaged: None,
            norms_of_parts: BTreeMap::new(),
            pruned: Vec::new(),
            histograms: None,
            finding: None,
            format,
            scaler,
        }
    }

    /// Takes another state of the model.
    pub(super) fn put(&mut self, model: M) {
        self.model = Some(marked(model, &self.format));
    }

    /// The same model on another device of its own, with the same optimizers, for another replica.
    pub(crate) fn replica(&self, device: &Device<M::Backend>) -> Result<Self> {
        let model = self.present()?;
        let is_other = model.devices().iter().any(|other| other != device);
        let model = average::replica(model, device)?;
        let optimizers = self.optimizers.replica(device, is_other)?;
        let averaged = self.averaged.as_ref();
        let averaged = averaged
            .map(|averaged| averaged.replica(device))
            .transpose()?;
        Ok(Self {
            scaler: self.scaler.clone(),
            averaged,
            pruned: self.pruned.clone(),
            ..Self::new(model, optimizers, self.format.clone())
        })
    }

    /// Steps the optimizers.
    pub(super) fn step(&mut self, update: Update, rates: &[f64]) -> Result<()> {
        // A copy keeps the old parameters alive, so Burn cannot update them in place: there is one
        // only where an optimizer may refuse the model.
        let copy = self
            .optimizers
            .is_first(&update)
            .then(|| self.model.clone());
        if let Some(model) = self.model.take() {
            let stepped = self.optimizers.apply(model, update, rates);
            self.model = copy.flatten();
            self.put(stepped?);
        }
        Ok(())
    }

    /// Takes these parameters, in the order in which the model is visited.
    pub(super) fn set_parameters(&mut self, pieces: Pieces) -> Result<()> {
        if let Some(model) = self.model.take() {
            self.put(average::with_parameters(model, pieces)?);
        }
        Ok(())
    }

    /// Takes the first rank's parameters.
    pub(crate) fn take_parameters(&mut self, group: &Group) -> Result<()> {
        self.restore_parameters(group, Ok)
    }

    /// Takes the parameters that the first rank's model has after `restore`.
    pub(crate) fn restore_parameters(
        &mut self,
        group: &Group,
        restore: impl FnOnce(M) -> Result<M>,
    ) -> Result<()> {
        let mut model = self.present()?.clone();
        if group.is_root() {
            model = restore(model)?;
        }
        if !group.is_alone() {
            model = average::shared(model, group)?;
        }
        self.put(model);
        Ok(())
    }

    /// Checks that this rank has all that a checkpoint needs.
    ///
    /// # Errors
    /// It has not: other ranks have parts of it.
    pub(crate) fn is_whole(&self) -> Result<()> {
        let why = if self.own.is_some() && !self.optimizers.is_gathered() {
            "the optimizers' state is divided over the devices (`zero1`)"
        } else if self.since_average.is_some_steps() {
            "the devices have not averaged their parameters (`fedavg`)"
        } else if self.is_unsaved {
            "the step that it went on with had begun before"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Aborted,
            format!("no checkpoint was written: {why}; one from before is whole"),
        ))
    }

    /// Lets no checkpoint be made of this state.
    pub(crate) fn leave_unsaved(&mut self) {
        self.is_unsaved = true;
    }

    /// Keeps what was found in a pass, for the error of its step.
    pub(crate) fn note_finding(&mut self, finding: Option<Finding>) {
        self.finding = self.finding.take().or(finding);
    }

    /// Whether there are gradients of a step being built.
    pub(crate) fn has_gradients(&self) -> bool {
        self.gradients.is_some()
    }

    /// Forgets the gradients of the step being built.
    pub(crate) fn drop_gradients(&mut self) {
        self.gradients = None;
        self.first_weight = None;
        self.weight = 0.0;
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
