//! The optimizers of a model: as users describe them, and as a run holds them.

use super::erased::{ErasedOptimizer, SavedState};
use super::gradients::{self, Gradients};
use super::group::{ParamGroup, matches};
use super::schedule::{Schedule, ScheduleInterval};
use crate::config::{GradNorms, GradientClip};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{TrainModule, short_type_name};
use crate::parameters::{Parameter, parameters};
use burn::module::ParamId;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{DType, Device, FloatDType};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The optimizers of a model, their learning rates and schedules.
///
/// Any of Burn's optimizers works, and any other that implements its
/// [`Optimizer`](burn::optim::Optimizer). Mind that Burn's Adam has `epsilon` 1e-5 by default,
/// where PyTorch has 1e-8.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use burn::optim::AdamConfig;
/// use firebox::optim::schedule::{Cosine, ScheduleInterval};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>() -> Optimizers<Line<B>> {
/// Optimizers::single(AdamConfig::new().init())
///     .with_lr(1e-3)
///     .with_schedule(ScheduleInterval::Step, Cosine::new(10_000))
/// # }
/// ```
#[must_use]
pub struct Optimizers<M: TrainModule> {
    groups: Vec<ParamGroup<M>>,
    /// Takes the parameters that no group matches.
    rest: Option<ParamGroup<M>>,
    lr: Option<f64>,
    schedule: Option<(ScheduleInterval, Box<dyn Schedule>)>,
    manual: bool,
}

impl<M: TrainModule> Optimizers<M> {
    /// One optimizer, for every parameter that no [group](Self::with_group) takes.
    pub fn single(optimizer: impl Optimizer<M, M::Backend> + 'static) -> Self {
        Self {
            rest: Some(ParamGroup::new("default", ["*"], optimizer)),
            ..Self::manual_without_groups(false)
        }
    }

    /// Optimizers that the model steps itself, by their group's name, in
    /// [`manual_step`](TrainModule::manual_step). Add them with [`with_group`](Self::with_group).
    pub fn manual() -> Self {
        Self::manual_without_groups(true)
    }

    fn manual_without_groups(manual: bool) -> Self {
        Self {
            groups: Vec::new(),
            rest: None,
            lr: None,
            schedule: None,
            manual,
        }
    }

    /// The base learning rate of all groups that have none of their own.
    pub fn with_lr(mut self, lr: f64) -> Self {
        self.lr = Some(lr);
        self
    }

    /// The schedule of all groups that have none of their own.
    pub fn with_schedule(mut self, every: ScheduleInterval, schedule: impl Schedule) -> Self {
        self.schedule = Some((every, Box::new(schedule)));
        self
    }

    /// Adds a group. Groups are asked in the order given; the first that matches a path takes it.
    pub fn with_group(mut self, group: ParamGroup<M>) -> Self {
        self.groups.push(group);
        self
    }

    /// Leaves the parameters whose path matches one of the patterns as they are.
    pub fn with_frozen<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.with_group(ParamGroup::frozen("frozen", patterns))
    }
}

/// How gradients are treated before the optimizers see them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpdateRules {
    pub(crate) clip: Option<GradientClip>,
    /// A gradient that is not finite is an error instead of a skipped step.
    pub(crate) detect_anomaly: bool,
    /// Whose norms are asked for.
    pub(crate) norms: GradNorms,
}

/// What an optimizer step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepOutcome {
    /// The parameters moved. `grad_norm` is the global norm before clipping.
    Stepped {
        /// √Σg² over all parameters of the step.
        grad_norm: f64,
    },
    /// A gradient was NaN or infinite: parameters and schedules stay as they were.
    Skipped,
    /// Every batch of the group weighed 0, so there is nothing to step.
    Empty,
}

/// What a check of gradients found.
pub(crate) enum Checked {
    Finite(Update),
    NotFinite,
}

/// Checked and clipped gradients, by group.
pub(crate) struct Update {
    pub(super) groups: Vec<(usize, GradientsParams)>,
    pub(crate) grad_norm: f64,
    /// The norm over each of the model's parts or layers, if that was asked for.
    pub(crate) norms_of_parts: BTreeMap<String, f64>,
}

impl Update {
    /// The gradients of each group.
    pub(crate) fn gradients(&self) -> impl Iterator<Item = &GradientsParams> {
        self.groups.iter().map(|(_, gradients)| gradients)
    }
}

/// The optimizers of a run: groups with their parameters, and where each schedule is.
pub(crate) struct OptimizerSet<M: TrainModule> {
    pub(super) groups: Vec<Group<M>>,
    /// `None`: the only group takes every parameter.
    group_of: Option<HashMap<ParamId, usize>>,
    pub(super) schedule: Option<Scheduler>,
    pub(crate) manual: bool,
    /// Of the parameters, and so of what is kept of them.
    pub(super) format: FloatDType,
    /// The learning rate of all groups, whatever they and their schedules say.
    fixed_rate: Option<f64>,
    /// What the optimizers of all ranks keep, for the next checkpoint.
    pub(super) gathered: Option<Vec<SavedState>>,
}

pub(super) struct Group<M: TrainModule> {
    pub(super) name: String,
    pub(super) optimizer: Box<dyn ErasedOptimizer<M>>,
    /// The optimizer before its first step.
    pub(super) fresh: Box<dyn ErasedOptimizer<M>>,
    /// As the model has asked for.
    base_lr: f64,
    /// What has been set in its place while the run went on.
    pub(super) set_lr: Option<f64>,
    /// Whether its parameters are left as they are for now.
    pub(super) rests: bool,
    pub(super) schedule: Option<Scheduler>,
    /// Optimizer steps this group has taken.
    pub(super) steps: u64,
    /// The learning rate of its last step, or of its first if there was none yet.
    pub(super) lr: f64,
}

pub(super) struct Scheduler {
    every: ScheduleInterval,
    pub(super) schedule: Box<dyn Schedule>,
    /// Epochs or metric values seen, by the interval.
    pub(super) ticks: u64,
}

impl Scheduler {
    fn new((every, schedule): (ScheduleInterval, Box<dyn Schedule>)) -> Result<Self> {
        schedule.check()?;
        Ok(Self {
            every,
            schedule,
            ticks: 0,
        })
    }

    fn lr(&mut self, base: f64, steps: u64) -> f64 {
        let t = match self.every {
            ScheduleInterval::Step => steps,
            _ => self.ticks,
        };
        self.schedule.lr(base, t)
    }
}

impl<M: TrainModule> OptimizerSet<M> {
    /// Assigns every parameter of the model to a group.
    pub(crate) fn new(model: &M, optimizers: Optimizers<M>) -> Result<Self> {
        let Optimizers {
            groups: mut described,
            rest,
            lr,
            schedule,
            manual,
        } = optimizers;
        let whole = described.is_empty();
        described.extend(rest);
        let parameters = parameters(model);
        let mut group_of = HashMap::new();
        for Parameter { path, id, .. } in &parameters {
            if let Some(index) = described
                .iter()
                .position(|g| g.patterns.iter().any(|p| matches(p, path)))
            {
                group_of.insert(*id, index);
            }
        }
        let mut groups = Vec::new();
        // Frozen groups leave gaps; what is left is numbered anew.
        let mut renumbered = HashMap::new();
        for (index, group) in described.into_iter().enumerate() {
            check_patterns(&group, &parameters)?;
            let Some(optimizer) = group.optimizer else {
                continue;
            };
            let base_lr = check_lr(&group.name, group.lr.or(lr))?;
            renumbered.insert(index, groups.len());
            groups.push(Group {
                name: group.name,
                fresh: optimizer.boxed_clone(),
                optimizer,
                base_lr,
                set_lr: None,
                rests: false,
                schedule: group.schedule.map(Scheduler::new).transpose()?,
                steps: 0,
                lr: base_lr,
            });
        }
        if groups.is_empty() {
            return Err(Error::config(format!(
                "`configure_optimizers` of `{}` returns no optimizer; use `Optimizers::single` or `with_group`",
                short_type_name::<M>()
            )));
        }
        group_of.retain(|_, index| match renumbered.get(index) {
            Some(new) => {
                *index = *new;
                true
            }
            None => false,
        });
        if !whole && group_of.is_empty() {
            return Err(Error::config(format!(
                "every parameter of `{}` is frozen; leave at least one to train",
                short_type_name::<M>()
            )));
        }
        let mut set = Self {
            groups,
            group_of: (!whole).then_some(group_of),
            schedule: schedule.map(Scheduler::new).transpose()?,
            manual,
            format: format(&parameters),
            fixed_rate: None,
            gathered: None,
        };
        let rates = set.rates();
        set.groups
            .iter_mut()
            .zip(rates)
            .for_each(|(group, lr)| group.lr = lr);
        Ok(set)
    }

    /// Checks averaged gradients: they are finite, and how large they are. `only` names the group
    /// to step, if not all.
    pub(crate) fn check(
        &self,
        model: &M,
        gradients: Gradients,
        only: Option<&str>,
        rules: UpdateRules,
    ) -> Result<Checked> {
        let only = only.map(|name| self.position(name)).transpose()?;
        let (gradients, mut squares) = gradients.squares(model)?;
        squares.retain(|(id, _)| {
            let group = self.group_of(*id);
            group.is_some_and(|group| only.is_none_or(|only| only == group))
        });
        let spoiled = |(id, sum): &(ParamId, f64)| (!sum.is_finite()).then_some(*id);
        let spoiled: Vec<_> = squares.iter().filter_map(spoiled).collect();
        if !spoiled.is_empty() {
            return match rules.detect_anomaly {
                true => Err(not_finite(model, &spoiled)),
                false => Ok(Checked::NotFinite),
            };
        }
        let grad_norm = squares.iter().map(|(_, sum)| sum).sum::<f64>().sqrt();
        let mut groups = self.of_groups(model, gradients, only);
        if let Some(clip) = rules.clip {
            for (_, gradients) in &mut groups {
                let whole = std::mem::take(gradients);
                *gradients = gradients::clip(model, whole, clip, grad_norm);
            }
        }
        let norms_of_parts = norms_of_parts(model, &squares, rules.norms);
        Ok(Checked::Finite(Update {
            groups,
            grad_norm,
            norms_of_parts,
        }))
    }

    /// Steps one group with averaged gradients, if there are any and they are finite.
    pub(crate) fn step_group(
        &mut self,
        model: M,
        gradients: Option<Gradients>,
        group: &str,
        rules: UpdateRules,
        rates: &[f64],
    ) -> Result<(M, StepOutcome)> {
        let Some(gradients) = gradients else {
            return Ok((model, StepOutcome::Empty));
        };
        match self.check(&model, gradients, Some(group), rules)? {
            Checked::NotFinite => Ok((model, StepOutcome::Skipped)),
            Checked::Finite(update) => {
                let grad_norm = update.grad_norm;
                let model = self.apply(model, update, rates)?;
                Ok((model, StepOutcome::Stepped { grad_norm }))
            }
        }
    }

    /// Whether an optimizer of this update has never stepped before. One that refuses the shape of
    /// a parameter does so then, by panicking (Muon wants matrices).
    pub(crate) fn is_first(&self, update: &Update) -> bool {
        let steps = |index: &usize| self.groups.get(*index).map_or(0, |g| g.steps);
        update.groups.iter().any(|(index, _)| steps(index) == 0)
    }

    /// Steps the optimizers, with these learning rates of all groups.
    ///
    /// # Errors
    /// A learning rate that is no number from 0, or an optimizer that panics; the model is lost.
    pub(crate) fn apply(&mut self, mut model: M, update: Update, rates: &[f64]) -> Result<M> {
        self.gathered = None;
        for (index, gradients) in update.groups {
            if let Some(group) = self.groups.get_mut(index) {
                let lr = check_lr(&group.name, rates.get(index).copied())?;
                group.lr = lr;
                let optimizer = &mut group.optimizer;
                model = optimizer
                    .step(lr, model, gradients)
                    .map_err(|e| e.context(format!("optimizer of group `{}`", group.name)))?;
                group.steps += 1;
            }
        }
        Ok(model)
    }

    /// The group that steps a parameter; none if it is frozen.
    fn group_of(&self, id: ParamId) -> Option<usize> {
        let group = match &self.group_of {
            None => Some(0),
            Some(group_of) => group_of.get(&id).copied(),
        };
        group.filter(|index| !self.rests(*index))
    }

    fn rests(&self, index: usize) -> bool {
        self.groups.get(index).is_some_and(|group| group.rests)
    }

    /// The gradients of each group, without the frozen ones.
    fn of_groups(
        &self,
        model: &M,
        gradients: GradientsParams,
        only: Option<usize>,
    ) -> Vec<(usize, GradientsParams)> {
        let Some(group_of) = &self.group_of else {
            return vec![(0, gradients)];
        };
        let split = gradients::split(model, gradients, group_of, self.groups.len());
        let wanted =
            |(index, _): &(usize, _)| only.is_none_or(|only| only == *index) && !self.rests(*index);
        split.into_iter().enumerate().filter(wanted).collect()
    }

    fn position(&self, name: &str) -> Result<usize> {
        self.groups
            .iter()
            .position(|g| g.name == name)
            .ok_or_else(|| {
                let names: Vec<_> = self.groups.iter().map(|g| g.name.as_str()).collect();
                Error::config(format!(
                    "there is no optimizer named `{name}`; there is `{}`",
                    names.join("`, `")
                ))
            })
    }

    /// The base learning rate of all groups, if they have the same.
    pub(crate) fn base_rate(&self) -> Option<f64> {
        let first = self.groups.first()?.base_lr;
        self.groups
            .iter()
            .all(|group| group.base_lr == first)
            .then_some(first)
    }

    /// From now on all groups step with this learning rate.
    pub(crate) fn fix_rate(&mut self, lr: f64) {
        self.fixed_rate = Some(lr);
    }

    /// The learning rate of each group's next step.
    pub(crate) fn rates(&mut self) -> Vec<f64> {
        if let Some(lr) = self.fixed_rate {
            return vec![lr; self.groups.len()];
        }
        let shared = &mut self.schedule;
        let rate = |group: &mut Group<M>| {
            let scheduler = group.schedule.as_mut().or(shared.as_mut());
            let base = group.set_lr.unwrap_or(group.base_lr);
            scheduler.map_or(base, |s| s.lr(base, group.steps))
        };
        self.groups.iter_mut().map(rate).collect()
    }

    /// The same optimizers for another replica, as they are now; it is told the learning rates.
    pub(crate) fn replica(&self, device: &Device<M::Backend>, is_other: bool) -> Result<Self> {
        let groups = self.groups.iter().map(|group| {
            let mut optimizer = group.optimizer.boxed_clone();
            if is_other {
                // Most backends cannot copy from one device to another but through the host.
                let state = group.optimizer.save(self.format)()?;
                optimizer.load(&state, device, self.format)?;
            }
            Ok(Group {
                name: group.name.clone(),
                fresh: group.fresh.boxed_clone(),
                optimizer,
                base_lr: group.base_lr,
                set_lr: group.set_lr,
                rests: group.rests,
                schedule: None,
                steps: group.steps,
                lr: group.lr,
            })
        });
        Ok(Self {
            groups: groups.collect::<Result<_>>()?,
            group_of: self.group_of.clone(),
            schedule: None,
            manual: self.manual,
            format: self.format,
            fixed_rate: self.fixed_rate,
            gathered: None,
        })
    }

    fn schedulers(&mut self) -> impl Iterator<Item = &mut Scheduler> {
        let own = self.groups.iter_mut().filter_map(|g| g.schedule.as_mut());
        own.chain(&mut self.schedule)
    }

    /// Moves epoch schedules on.
    pub(crate) fn on_epoch_end(&mut self) {
        for scheduler in self.schedulers() {
            if matches!(scheduler.every, ScheduleInterval::Epoch) {
                scheduler.ticks += 1;
            }
        }
    }

    /// Moves schedules that watch a metric on; they see each new value once.
    pub(crate) fn on_metrics(&mut self, value_of: impl Fn(&str) -> Option<f64>) {
        for scheduler in self.schedulers() {
            if let ScheduleInterval::Metric(name) = &scheduler.every
                && let Some(value) = value_of(name)
            {
                scheduler.schedule.observe(value);
                scheduler.ticks += 1;
            }
        }
    }

    /// A metric that a schedule watches and that has never come.
    pub(crate) fn unseen_metric(&mut self) -> Option<String> {
        self.schedulers().find_map(|s| match &s.every {
            ScheduleInterval::Metric(name) if s.ticks == 0 => Some(name.clone()),
            _ => None,
        })
    }

    /// Each group's name and the learning rate of its last step.
    pub(crate) fn learning_rates(&self) -> impl Iterator<Item = (&str, f64)> {
        self.groups.iter().map(|g| (g.name.as_str(), g.lr))
    }
}

/// √Σg² over the parameters of each part of the model.
fn norms_of_parts<M: TrainModule>(
    model: &M,
    squares: &[(ParamId, f64)],
    of: GradNorms,
) -> BTreeMap<String, f64> {
    let mut parts = BTreeMap::new();
    if of == GradNorms::Off {
        return parts;
    }
    let squares: HashMap<ParamId, f64> = squares.iter().copied().collect();
    let mut seen = HashSet::new();
    for parameter in parameters(model) {
        // A parameter that a module holds twice counts where it comes first.
        if let Some(sum) = squares.get(&parameter.id)
            && seen.insert(parameter.id)
        {
            let path = &parameter.path;
            let cut = match of {
                GradNorms::Layers => path.rsplit_once('.'),
                _ => path.split_once('.'),
            };
            let part = cut.map_or(path.as_str(), |(part, _)| part);
            *parts.entry(part.to_owned()).or_insert(0.0) += sum;
        }
    }
    parts
        .values_mut()
        .for_each(|sum: &mut f64| *sum = sum.sqrt());
    parts
}

fn not_finite<M: TrainModule>(model: &M, ids: &[ParamId]) -> Error {
    let parameters = parameters(model);
    let of_ids = parameters.iter().filter(|p| ids.contains(&p.id));
    let paths: Vec<_> = of_ids.map(|p| p.path.as_str()).collect();
    Error::new(
        ErrorKind::NonFinite,
        format!("the gradient of `{}` is not finite", paths.join("`, `")),
    )
}

/// The widest format of any parameter.
fn format(parameters: &[Parameter]) -> FloatDType {
    let mut formats = parameters.iter().map(|parameter| parameter.dtype);
    let all_are = |dtype| parameters.iter().all(|p| p.dtype == dtype);
    if formats.any(|dtype| dtype == DType::F64) {
        FloatDType::F64
    } else if all_are(DType::F16) {
        FloatDType::F16
    } else if all_are(DType::BF16) {
        FloatDType::BF16
    } else {
        FloatDType::F32
    }
}

fn check_patterns<M: TrainModule>(group: &ParamGroup<M>, parameters: &[Parameter]) -> Result<()> {
    let unmatched = |p: &&String| !parameters.iter().any(|q| matches(p, &q.path));
    match group.patterns.iter().find(unmatched) {
        None => Ok(()),
        Some(pattern) => {
            let known: Vec<_> = parameters.iter().take(8).map(|p| p.path.as_str()).collect();
            Err(Error::config(format!(
                "pattern `{pattern}` of parameter group `{}` matches no parameter of `{}`, which has `{}`{}",
                group.name,
                short_type_name::<M>(),
                known.join("`, `"),
                if parameters.len() > known.len() {
                    ", ..."
                } else {
                    ""
                },
            )))
        }
    }
}

pub(super) fn check_lr(group: &str, lr: Option<f64>) -> Result<f64> {
    match lr {
        Some(lr) if lr.is_finite() && lr >= 0.0 => Ok(lr),
        Some(lr) => Err(Error::config(format!(
            "the learning rate of parameter group `{group}` is {lr}; use a finite number from 0"
        ))),
        None => Err(Error::config(format!(
            "parameter group `{group}` has no learning rate; set one with `with_lr`"
        ))),
    }
}
