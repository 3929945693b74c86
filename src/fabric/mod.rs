//! The operations of one training step, for the [`Trainer`](crate::Trainer) and for loops written
//! by hand.

mod average;
mod averaged;
mod collectives;
mod histograms;
mod lane;
mod look;
mod manual;
mod pruning;
mod state;
mod strategy;
mod weights;

pub(crate) use average::replica;
pub use collectives::Reduce;
pub(crate) use histograms::of_parameters;
pub(crate) use lane::Lane;
pub(crate) use look::Look;
pub(crate) use pruning::check as check_pruning;
pub use state::TrainState;
use state::rescale;
pub(crate) use state::{GroupWeight, configured};

use crate::config::{GradientClip, Strategy, TrainerConfig, WeightAveraging};
use crate::data::{Batch, EpochSpec, Loader, LoaderIter, SampleRng};
use crate::distributed::Group;
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Loss, LossValue, TrainModule, short_type_name};
use crate::nn::context::{self, PassContext, within};
use crate::optim::{
    Checked, Factors, Gradients, OptimizerSet, Optimizers, PassSettings, StepOutcome, UpdateRules,
};
use crate::parameters::parameters;
use crate::precision::{Format, Scaler, as_given, converted, marked};
use crate::profiler::{Phase, Profiler};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};
use firebox_autocast::{Finding, Pass, What, in_pass, watch};
use std::time::Duration;
use weights::Weighted;

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
///             if let Some(points) = batch.value {
///                 let loss = state.model().loss(points);
///                 fabric.backward(&mut state, loss, batch.samples)?; // adds to the gradients
///             }
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
    /// All that [`launch`](Self::launch) runs on.
    devices: Vec<B::Device>,
    timeout: Duration,
    seed: u64,
    rules: UpdateRules,
    pub(crate) format: Format,
    averaging: Option<WeightAveraging>,
    offloads: bool,
    recomputes: bool,
    sync_batchnorm: bool,
    strategy: Strategy,
    pub(crate) group: Group,
    pub(crate) lane: Lane,
    pub(crate) profiler: Profiler,
}

/// An error about numbers that are not finite, with what was seen of them first.
fn explained(error: Error, finding: Option<Finding>) -> Error {
    match finding {
        Some(finding) if error.kind() == ErrorKind::NonFinite => {
            Error::new(ErrorKind::NonFinite, format!("{error}; {finding}"))
        }
        _ => error,
    }
}

/// Where gradients may overflow, the loss itself must not.
fn check_loss<B: AutodiffBackend>(loss: &Tensor<B, 1>) -> Result<()> {
    let data = loss.clone().try_into_data().map_err(|e| {
        Error::new(ErrorKind::Backend, "cannot read the loss").with_source(e.to_string())
    })?;
    match data.iter::<f64>().find(|value| !value.is_finite()) {
        None => Ok(()),
        Some(value) => Err(Error::new(
            ErrorKind::NonFinite,
            format!("the loss is {value}"),
        )),
    }
}

/// The part of a batch that a rank has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    batch: usize,
    samples: usize,
    /// The position of its first sample in the whole batch.
    first_sample: usize,
    /// How many samples the whole batch has.
    batch_samples: usize,
    /// How many ranks have samples of it: the first ones. At most 1 where that is not known.
    among: usize,
    /// Whether all ranks have.
    is_full: bool,
}

impl Part {
    pub(crate) fn of<O>(batch: &Batch<O>, among: usize, group: &Group) -> Self {
        let is_whole = batch.samples == batch.global_samples;
        let first = group.shard(false).part(batch.global_samples).start;
        Self {
            batch: batch.index,
            samples: batch.samples,
            first_sample: if is_whole { 0 } else { first },
            batch_samples: batch.global_samples,
            among,
            is_full: among == group.size(),
        }
    }
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Training on this device, with seed 42, no clipping.
    pub fn new(device: B::Device) -> Self {
        Self::from_config(&TrainerConfig::default(), device)
    }

    /// Training on this device as the config says: its seed, clipping, precision, averages of weights,
    /// and what it does to need less memory.
    pub fn from_config(config: &TrainerConfig, device: B::Device) -> Self {
        Self {
            devices: vec![device.clone()],
            format: Format::new::<B>(config, &device),
            device,
            timeout: config.collective_timeout.as_duration(),
            seed: config.seed,
            rules: UpdateRules {
                clip: config.gradient_clip,
                detect_anomaly: config.detect_anomaly,
                norms: config.log_grad_norms,
            },
            averaging: config.weight_averaging,
            offloads: config.offload_optimizer,
            recomputes: config.gradient_checkpointing,
            sync_batchnorm: config.sync_batchnorm,
            strategy: config.strategy,
            group: Group::default(),
            lane: Lane::default(),
            profiler: Profiler::default(),
        }
    }

    /// Times a part of a step, and then waits for the device to have done it.
    pub(crate) fn time<T>(&self, phase: Phase, part: impl FnOnce() -> T) -> T {
        if !self.profiler.is_on() {
            return part();
        }
        self.profiler.time(phase, || {
            let done = part();
            // What fails here fails again when the results are read.
            let _ = B::sync(&self.device);
            done
        })
    }

    /// As one of these ranks, on this thread.
    pub(crate) fn with_group(mut self, group: Group, lane: Lane) -> Self {
        self.group = group;
        self.lane = lane;
        self
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

    /// A model made ready for training with these optimizers. Among several ranks, all get the
    /// first rank's parameters.
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
        let model = self.in_format(model)?;
        let model = match self.group.is_alone() {
            true => model,
            false => average::shared(model, &self.group)?,
        };
        let mut optimizers = OptimizerSet::new(&model, optimizers)?;
        if self.offloads {
            optimizers.offload(&model, &self.device);
        }
        Ok(TrainState::new(model, optimizers, self.format.clone()))
    }

    /// The model with its parameters in the format of the run's precision.
    ///
    /// # Errors
    /// A precision that the device does not have.
    pub(crate) fn in_format<M: TrainModule<Backend = B>>(&self, model: M) -> Result<M> {
        self.format.check::<B>(&self.device)?;
        converted(model, &self.format)
    }

    /// What a training pass asks of the model's step.
    pub(crate) fn pass_settings<M: TrainModule<Backend = B>>(
        &self,
        state: &TrainState<M>,
    ) -> PassSettings {
        PassSettings {
            recomputes: self.recomputes,
            scale: state.scaler.as_ref().map(Scaler::scale),
            replicas: self.group.size() / self.group.processes().max(1),
        }
    }

    /// The model as it is evaluated in the run's precision.
    ///
    /// # Errors
    /// As [`in_format`](Self::in_format).
    pub(crate) fn evaluated<M: TrainModule<Backend = B>>(&self, model: &M) -> Result<M> {
        Ok(marked(self.in_format(model.clone())?, &self.format))
    }

    /// Runs a forward pass in the precision of the config; [`in_batch`](Self::in_batch) does so by
    /// itself, and the backward pass needs nothing.
    pub fn autocast<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.format.within(pass)
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
                .epoch(epoch)
                .shard(self.group.shard(false)),
        )
    }

    /// Starts the random draws (dropout, noise) of a batch at a point that depends on the seed,
    /// the epoch and the batch alone, so that any batch can be repeated.
    pub fn seed_batch(&self, epoch: u64, batch: usize) {
        // Ranks draw apart from one another.
        let seed = self.seed.wrapping_add((self.group.rank() as u64) << 32);
        let seed = SampleRng::new(seed, epoch, batch).next_u64();
        B::seed(&self.device, seed);
    }

    /// Runs the forward and backward pass of a batch so that its draws repeat, as
    /// [`seed_batch`](Self::seed_batch) does, and so that the layers of [`nn`](crate::nn) know which
    /// part of it this device has.
    pub fn in_batch<T, O>(&self, epoch: u64, batch: &Batch<O>, pass: impl FnOnce() -> T) -> T {
        // Ranks with nothing to compute come last.
        let among = batch.global_samples.min(self.group.size());
        self.in_part(epoch, &Part::of(batch, among, &self.group), pass)
    }

    pub(crate) fn in_part<T>(&self, epoch: u64, part: &Part, pass: impl FnOnce() -> T) -> T {
        self.seed_batch(epoch, part.batch);
        // Where every rank steps by itself, it does so with its own statistics.
        let sum = self.sync_batchnorm && self.local_steps().is_none() && part.among > 1;
        let context = PassContext {
            seed: self.seed,
            epoch,
            batch: part.batch,
            samples: part.samples,
            first_sample: part.first_sample,
            batch_samples: part.batch_samples,
            sum: sum.then(|| self.group.sum_among(part.among)),
        };
        within(context, || self.format.within(pass))
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
        // Where layers take statistics over all ranks, the losses of others flow back through this
        // rank's samples, and wait for its pass.
        if weight == 0.0 && !context::is_synchronized() {
            return Ok(());
        }
        let first = *state.first_weight.get_or_insert(self.first_weight(weight));
        let gradients = match value {
            LossValue::Gradients(gradients) | LossValue::Recomputed { gradients, .. } => {
                self.check_unweighted()?;
                match weight == first {
                    true => gradients.into(),
                    false => Gradients::from(gradients).scale(state.present()?, weight / first),
                }
            }
            LossValue::Tensor(loss) => {
                let (model, scaler) = (state.present()?, state.scaler.as_ref());
                let factors = self.factors(weight, first, scaler);
                self.gradients(
                    model,
                    loss,
                    factors,
                    scaler.is_some(),
                    self.group.is_alone(),
                )?
            }
        };
        state.gradients = Some(match state.gradients.take() {
            None => gradients,
            Some(sum) => sum.add(state.present()?, gradients),
        });
        state.weight += weight / first;
        Ok(())
    }

    /// The gradients of a loss; where it `is_scaled`, they may overflow.
    fn gradients<M: TrainModule<Backend = B>>(
        &self,
        model: &M,
        loss: Tensor<B, 1>,
        factors: Factors,
        is_scaled: bool,
        are_final: bool,
    ) -> Result<Gradients> {
        self.format.within(|| {
            let loss = match self.format.is_mixed() {
                true => loss.cast(FloatDType::F32),
                false => loss,
            };
            if self.rules.detect_anomaly && is_scaled {
                check_loss(&loss)?;
            }
            let pass = || Gradients::of_loss(model, loss, factors, are_final);
            self.time(Phase::Backward, || in_pass(Pass::Backward, pass))
        })
    }

    /// Runs a training pass; where anomalies are to be found, looks at every result on the way.
    ///
    /// # Errors
    /// What `pass` reports, and formats that do not go together.
    pub(crate) fn watched<T>(
        &self,
        pass: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<Finding>)> {
        if !self.rules.detect_anomaly {
            return Ok((pass()?, None));
        }
        match watch(pass) {
            (_, Some(finding)) if matches!(finding.what, What::Formats(_)) => {
                Err(Error::user(format!(
                    "{finding}; bring them into one format with `cast`, or use a precision that does"
                )))
            }
            (Ok(done), finding) => Ok((done, finding)),
            (Err(error), finding) => Err(explained(error, finding)),
        }
    }

    /// Where the loss has a scale, gradients that are not finite are to be expected.
    fn rules_with(&self, scaler: Option<&Scaler>) -> UpdateRules {
        UpdateRules {
            detect_anomaly: self.rules.detect_anomaly && scaler.is_none(),
            ..self.rules
        }
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
        // The optimizers compute in the parameters' own format.
        as_given(|| self.step(state))
    }

    fn step<M: TrainModule<Backend = B>>(&self, state: &mut TrainState<M>) -> Result<StepOutcome> {
        let rates = state.optimizers.rates();
        if let Some(every) = self.local_steps() {
            let rates = self.first_rates(rates)?;
            let Weighted {
                gradients,
                weight,
                first,
            } = state.take_gradients();
            let gradients = match gradients.filter(|_| weight > 0.0) {
                Some(gradients) => Some(gradients.scale(state.present()?, 1.0 / weight)),
                None => None,
            };
            let update = || self.update(state, gradients, &rates);
            let outcome = self.time(Phase::Optimizer, update)?;
            return self.after_local_step(state, outcome, weight * first, every);
        }
        let (gradients, rates) = match self.group.is_alone() {
            true => self.averaged(state, rates)?,
            false => self.time(Phase::Reduce, || self.averaged(state, rates))?,
        };
        self.time(Phase::Optimizer, || self.update(state, gradients, &rates))
    }

    /// Checks and clips averaged gradients, and steps the optimizers.
    fn update<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        gradients: Option<Gradients>,
        rates: &[f64],
    ) -> Result<StepOutcome> {
        let Some(gradients) = gradients else {
            return Ok(StepOutcome::Empty);
        };
        let model = state.present()?;
        let rules = self.rules_with(state.scaler.as_ref());
        let checked = state.optimizers.check(model, gradients, None, rules);
        let finding = state.finding.take();
        let checked = checked.map_err(|e| explained(e, finding.clone()))?;
        let outcome = match checked {
            Checked::NotFinite => StepOutcome::Skipped,
            Checked::Finite(mut update) => {
                let grad_norm = update.grad_norm;
                state.norms_of_parts = std::mem::take(&mut update.norms_of_parts);
                if state.histograms.is_some() {
                    let histograms = histograms::of_gradients(state.present()?, &update)?;
                    state.histograms = Some(histograms);
                }
                self.keeping_zeros(state, |state| match self.is_sharded() {
                    true => self.step_own(state, update, rates),
                    false => state.step(update, rates),
                })?;
                self.average_step(state)?;
                StepOutcome::Stepped { grad_norm }
            }
        };
        rescale(state.scaler.as_mut(), outcome).map_err(|e| explained(e, finding))?;
        Ok(outcome)
    }

    /// Checks that all ranks have the same parameters, bit by bit.
    pub(crate) fn check_replicas<M: TrainModule<Backend = B>>(
        &self,
        state: &TrainState<M>,
    ) -> Result<()> {
        let model = state.present()?;
        let mine = average::hashes(model)?;
        let all = self.group.all_gather(mine)?;
        let first = all.first().map(Vec::as_slice).unwrap_or_default();
        for (rank, other) in all.iter().enumerate() {
            let differs = first.iter().zip(other).position(|(a, b)| a != b);
            if differs.is_none() && first.len() == other.len() {
                continue;
            }
            let parameters = parameters(model);
            let path = differs
                .and_then(|at| parameters.get(at))
                .map_or("?", |p| &p.path);
            return Err(Error::new(
                ErrorKind::Backend,
                format!(
                    "ranks 0 and {rank} have different values of `{path}`: a device has computed the \
                     same step otherwise"
                ),
            ));
        }
        Ok(())
    }
}
