//! What ranks do with their gradients.

use super::{Fabric, TrainState, average};
use crate::accelerators::on_host;
use crate::config::Strategy;
use crate::distributed::Share;
use crate::error::Result;
use crate::module::TrainModule;
use crate::optim::{StepOutcome, Update};
use crate::profiler::Phase;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// What a rank has done since the last average of the parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SinceAverage {
    steps: u64,
    weight: f64,
}

impl SinceAverage {
    pub(super) fn is_some_steps(&self) -> bool {
        self.steps > 0 || self.weight > 0.0
    }
}

/// The parameters whose moments this rank keeps.
#[derive(Debug, Default)]
pub(crate) struct Own {
    ids: HashSet<ParamId>,
    /// Of each parameter, in the order in which the model is visited, whether it is this rank's.
    is_own: Vec<bool>,
    /// How many numbers they have, and how many all parameters have.
    pub(crate) numbers: usize,
    pub(crate) of_all: usize,
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Whether each rank keeps a part of the optimizers' state.
    pub(super) fn is_sharded(&self) -> bool {
        !self.group.is_alone() && self.strategy == Strategy::Zero1
    }

    /// Steps between two averages, if every rank steps by itself.
    pub(super) fn local_steps(&self) -> Option<u64> {
        match self.strategy {
            Strategy::FedAvg { every_n_steps } if !self.group.is_alone() => Some(every_n_steps),
            _ => None,
        }
    }

    /// Divides the optimizers' state over the ranks, if that is the strategy; what this rank keeps.
    pub(crate) fn divide<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<Option<(usize, usize)>> {
        if !self.is_sharded() {
            return Ok(None);
        }
        let own = own(state.present()?, self.group.rank(), self.group.size());
        let all = ids(state.present()?);
        state
            .optimizers
            .forget_others(&own.ids, &all, &self.device)?;
        let kept = (own.numbers, own.of_all);
        state.own = Some(own);
        Ok(Some(kept))
    }

    /// Steps this rank's part of the parameters, and takes those of the others.
    pub(super) fn step_own<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        update: Update,
        rates: &[f64],
    ) -> Result<()> {
        let own = match state.own.take() {
            Some(own) => own,
            None => own(state.present()?, self.group.rank(), self.group.size()),
        };
        let stepped = self.step_these(state, &own, update, rates);
        // Also after a failure: the state is still divided.
        state.own = Some(own);
        stepped
    }

    fn step_these<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        own: &Own,
        update: Update,
        rates: &[f64],
    ) -> Result<()> {
        let update = state.optimizers.part_of(state.present()?, update, &own.ids);
        state.step(update, rates)?;
        let pieces = average::parameters(state.present()?)?;
        let pieces = pieces.into_iter().zip(&own.is_own);
        let mine = pieces.map(|(piece, is_own)| piece.filter(|_| *is_own));
        // Each parameter is one rank's, so that the sum is what that rank has.
        let pieces = mine.collect();
        let all = self.time(Phase::Reduce, || self.group.sum(pieces, 0.0))?;
        state.set_parameters(all.pieces)
    }

    /// Leaves with the first rank what the optimizers of all ranks keep.
    pub(super) fn collect_optimizers<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        let model = state.present()?.clone();
        let mine = state.optimizers.own_states(&model)?;
        match self.group.gather_bytes(mine)? {
            Some(all) => state.optimizers.gather(&all),
            None => Ok(()),
        }
    }

    /// The outcome of a step that every rank has taken by itself, and the average when it is time.
    pub(super) fn after_local_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        outcome: StepOutcome,
        weight: f64,
        every: u64,
    ) -> Result<StepOutcome> {
        if matches!(outcome, StepOutcome::Stepped { .. }) {
            state.since_average.weight += weight;
        }
        let all = self.group.all_gather(Told::from(outcome))?;
        let stepped = all.iter().find(|told| matches!(told, Told::Stepped(_)));
        let outcome = match (stepped, all.contains(&Told::Skipped)) {
            (Some(Told::Stepped(bits)), _) => StepOutcome::Stepped {
                grad_norm: f64::from_bits(*bits),
            },
            (_, true) => StepOutcome::Skipped,
            (_, false) => StepOutcome::Empty,
        };
        if matches!(outcome, StepOutcome::Stepped { .. }) {
            state.since_average.steps += 1;
        }
        if state.since_average.steps >= every {
            self.average_parameters(state)?;
        }
        Ok(outcome)
    }

    /// Makes all replicas the same where they may differ: in parameters, if they have stepped by
    /// themselves, which are averaged; and in running statistics, which become those of the first
    /// rank, the only one that has a part of every batch.
    pub(crate) fn settle<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        if self.group.is_alone() {
            return Ok(());
        }
        if self.local_steps().is_some() && state.since_average.steps > 0 {
            self.average_parameters(state)?;
        } else if let Some(pieces) = average::first_statistics(state.present()?, &self.group)? {
            state.set_parameters(pieces)?;
        }
        // It has blended each rank's own statistics.
        self.settle_average(state)
    }

    /// Ends training, on all ranks together: the model, which is the same on each. What ranks have
    /// done by themselves (`fedavg`) is averaged first.
    ///
    /// # Errors
    /// The model was lost when an optimizer panicked; another rank has failed or does not come.
    pub fn finish<M: TrainModule<Backend = B>>(&self, mut state: TrainState<M>) -> Result<M> {
        self.unite(&mut state)?;
        state.into_model()
    }

    /// As [`settle`](Self::settle), and on GPUs gives all ranks the first rank's parameters: their
    /// kernels may round in another way from device to device.
    pub(crate) fn unite<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        self.settle(state)?;
        match on_host::<B>() {
            true => Ok(()),
            false => state.take_parameters(&self.group),
        }
    }

    fn average_parameters<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        let since = state.since_average;
        // Running statistics are brought up to date by this, and by no visit.
        let _ = state.present()?.valid();
        let mut pieces = average::parameters(state.present()?)?;
        for piece in pieces.iter_mut().flatten() {
            // In 64 bits, so that what is the same on all ranks, as what is frozen, stays the same.
            piece.widen();
            piece.scale(since.weight);
        }
        let share = Share {
            pieces,
            weight: since.weight,
            note: Vec::new(),
        };
        let mean = self.time(Phase::Reduce, || self.group.mean(share))?;
        if mean.weight > 0.0 {
            state.set_parameters(mean.pieces)?;
        }
        // As each round of federated averaging begins; so nothing of a round is left to save.
        state.optimizers.begin_anew();
        state.since_average = SinceAverage::default();
        Ok(())
    }
}

/// What a rank tells of its step; a gradient's norm by its bits.
#[derive(PartialEq, Serialize, Deserialize)]
enum Told {
    Stepped(u64),
    Skipped,
    Empty,
}

impl From<StepOutcome> for Told {
    fn from(outcome: StepOutcome) -> Self {
        match outcome {
            StepOutcome::Stepped { grad_norm } => Self::Stepped(grad_norm.to_bits()),
            StepOutcome::Skipped => Self::Skipped,
            StepOutcome::Empty => Self::Empty,
        }
    }
}

/// Divides parameters over ranks so that each has about as many numbers: each parameter goes to the
/// rank that has the fewest so far.
fn own<M: TrainModule>(model: &M, rank: usize, ranks: usize) -> Own {
    let mut sizes = Sizes::default();
    model.visit(&mut sizes);
    let mut own = Own::default();
    let mut numbers = vec![0; ranks];
    let mut seen = HashSet::new();
    for (id, size) in sizes.0 {
        // What is not trained has no moments, and stays where it is.
        let Some(size) = size else {
            own.is_own.push(false);
            continue;
        };
        if !seen.insert(id) {
            // Tied to one that has been divided.
            own.is_own.push(own.ids.contains(&id));
            continue;
        }
        let least = numbers
            .iter()
            .enumerate()
            .min_by_key(|(_, numbers)| **numbers);
        let owner = least.map_or(0, |(owner, _)| owner);
        numbers[owner] += size;
        own.of_all += size;
        own.is_own.push(owner == rank);
        if owner == rank {
            own.ids.insert(id);
            own.numbers += size;
        }
    }
    own
}

fn ids<M: TrainModule>(model: &M) -> HashSet<ParamId> {
    let mut sizes = Sizes::default();
    model.visit(&mut sizes);
    sizes.0.into_iter().map(|(id, _)| id).collect()
}

/// Every float parameter's id and, if it is trained, how many numbers it has.
#[derive(Default)]
struct Sizes(Vec<(ParamId, Option<usize>)>);

impl<B: Backend> ModuleVisitor<B> for Sizes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let parameter = param.val();
        let size = parameter.shape().num_elements();
        self.0
            .push((param.id, parameter.is_require_grad().then_some(size)));
    }
}
