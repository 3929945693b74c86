//! What the ranks of a run agree upon, so that all of them do the same.

use super::Run;
use super::fit::StopReason;
use crate::callback::Change;
use crate::data::{Batch, LoaderIter};
use crate::distributed::Group;
use crate::error::Result;
use crate::fabric::{Part, TrainState};
use crate::metric::{LogBook, Metrics};
use crate::module::TrainModule;
use crate::profiler::Phase;
use crate::signals;
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

/// What happens after a batch.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Next {
    /// Why the run ends here, if it does.
    pub(super) cut: Option<StopReason>,
    /// What else is to be done.
    pub(super) orders: Orders,
}

/// What the first rank's callbacks have asked for and all ranks do.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Whether a checkpoint is to be written.
    pub(super) saves: bool,
    pub(super) validates: bool,
    pub(super) changes: Vec<Change>,
}

/// The values of a log book that a run asks for.
#[derive(Clone, Copy)]
pub(super) enum Which {
    /// Of the current optimizer step.
    Group,
    /// Of everything, with this behind their names.
    All(&'static str),
}

impl<M: TrainModule> Run<'_, M> {
    pub(super) fn is_alone(&self) -> bool {
        self.fabric.group.is_alone()
    }

    /// What happens next, by the word of the first rank; only a signal counts wherever it came.
    pub(super) fn agree(&self, cut: Option<StopReason>, orders: Orders) -> Result<Next> {
        let told = self.fabric.group.all_gather(Next { cut, orders })?;
        let signal = told.iter().find_map(|next| match &next.cut {
            Some(StopReason::Signal(signal)) => Some(*signal),
            _ => None,
        });
        let mut next = told.into_iter().next().unwrap_or_default();
        if let Some(signal) = signal {
            signal.note();
            next.cut = Some(StopReason::Signal(signal));
        }
        Ok(next)
    }

    /// Ends what all ranks are in the midst of, if a signal has come to any of them before this.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`](crate::error::ErrorKind::Interrupted), on all ranks or on none.
    pub(super) fn check_signals_of_all(&self) -> Result<()> {
        let told = self.fabric.group.all_gather(signals::received())?;
        match told.into_iter().flatten().next() {
            None => Ok(()),
            Some(signal) => {
                signal.note();
                Err(signals::interrupted(signal))
            }
        }
    }

    /// What callbacks have asked for and all ranks do.
    pub(super) fn orders_in_epoch(&mut self) -> Orders {
        Orders {
            validates: std::mem::take(&mut self.requests.validates),
            ..self.orders_anywhere()
        }
    }

    /// The same outside of an epoch, where there is no validation.
    pub(super) fn orders_anywhere(&mut self) -> Orders {
        Orders {
            saves: !self.requests.saves.is_empty(),
            validates: false,
            changes: std::mem::take(&mut self.requests.changes),
        }
    }

    /// Changes what has been agreed upon.
    pub(super) fn change(&mut self, state: &mut TrainState<M>, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| {
            match change {
                Change::LearningRate { groups, lr } => state.optimizers.set_rate(groups, *lr)?,
                Change::Freeze { groups, frozen } => state.optimizers.freeze(groups, *frozen)?,
                Change::Accumulate(batches) => self.position.accumulate = Some(*batches),
                Change::Prune { paths, amount } => state.prune(paths, *amount)?,
            }
            Ok(())
        })
    }

    /// How many batches the epoch has on the rank with the most, if all know how many they have, and
    /// whether all have the same ones.
    pub(super) fn agree_on_length(&self, mine: Option<usize>) -> Result<(Option<usize>, bool)> {
        if self.is_alone() {
            return Ok((mine, true));
        }
        let all = self.fabric.group.all_gather(mine)?;
        let known: Option<Vec<usize>> = all.iter().copied().collect();
        let is_even = known.is_some() && all.iter().all(|other| *other == mine);
        let longest = known.and_then(|known| known.into_iter().max());
        Ok((longest, is_even && !self.is_per_process))
    }

    /// Leaves with the first rank what all of them have of an unfinished epoch and an unfinished
    /// step. The run goes on from there, so that it is the same as one that is resumed.
    pub(super) fn collect(&mut self, state: &mut TrainState<M>) -> Result<()> {
        let fabric = self.fabric;
        let group = &fabric.group;
        if group.is_alone() {
            return Ok(());
        }
        let merged = self
            .book
            .over_ranks(group.rank(), |told| group.all_gather(told))?;
        match group.is_root() {
            true => self.book.load(merged),
            false => self.book.clear(),
        }
        let in_group = self.position.in_group > 0;
        fabric.lane.run(|| fabric.collect(state, in_group))
    }

    /// Goes back to before the first batch of an unfinished step: what other ranks have of it is
    /// lost with them.
    pub(super) fn back_to_step(&mut self, state: &mut TrainState<M>) {
        // Alone, all of it is there, unless the step itself has failed with it.
        if self.is_alone() && (self.position.in_group == 0 || state.has_gradients()) {
            return;
        }
        state.drop_gradients();
        if self.position.in_group > 0 {
            match self.at_step {
                Some(before) => (self.progress, self.position) = before,
                // The run went on in the midst of a step, from a checkpoint that is still there.
                None => state.leave_unsaved(),
            }
            self.at_batch = self.progress.batch;
        }
    }
}

/// The values of a log book over all ranks.
pub(super) fn values<B: Backend>(
    group: &Group,
    book: &mut LogBook<B>,
    which: Which,
) -> Result<Metrics> {
    if group.is_alone() {
        return match which {
            Which::Group => book.group_values(),
            Which::All(suffix) => book.values(suffix),
        };
    }
    let merged = book.over_ranks(group.rank(), |told| group.all_gather(told))?;
    Ok(match which {
        Which::Group => merged.group_values(book.stage()),
        Which::All(suffix) => merged.values(book.stage(), suffix),
    })
}

/// The batches of an epoch on one of several ranks. They have as many, even where each reads a
/// stream of its own and one ends early.
pub(super) struct Batches<O> {
    iter: LoaderIter<O>,
    /// Whether all ranks know that they have the same number.
    is_even: bool,
    index: usize,
}

/// What a rank says of its next batch.
#[derive(Serialize, Deserialize)]
struct Said {
    samples: usize,
    is_last: bool,
}

impl<O: Send + 'static> Batches<O> {
    /// From batch `first` on.
    pub(super) fn new(iter: LoaderIter<O>, first: usize, is_even: bool) -> Self {
        Self {
            index: first,
            iter,
            is_even,
        }
    }

    /// The next batch, until no rank has one.
    pub(super) fn next<M: TrainModule>(
        &mut self,
        run: &Run<'_, M>,
    ) -> Result<Option<(Batch<O>, Part)>> {
        let group = &run.fabric.group;
        let profiler = &run.fabric.profiler;
        let batch = profiler.time(Phase::DataWait, || self.iter.next());
        let batch = batch.transpose().map_err(run.at().of("train data"))?;
        if self.is_even {
            // Ranks with nothing to compute come last.
            let among = |batch: &Batch<O>| batch.global_samples.min(group.size());
            return Ok(batch.map(|batch| {
                let part = Part::of(&batch, among(&batch), group);
                (batch, part)
            }));
        }
        let said = batch.as_ref().map(|batch| Said {
            samples: batch.samples,
            is_last: batch.is_last,
        });
        let told = group.all_gather(said)?;
        let has_batch = || told.iter().flatten();
        if has_batch().next().is_none() {
            return Ok(None);
        }
        let index = self.index;
        self.index += 1;
        let batch = batch.unwrap_or_else(|| Batch::nothing(index));
        let batch = Batch {
            global_samples: has_batch().map(|said| said.samples).sum(),
            is_last: has_batch().all(|said| said.is_last),
            ..batch
        };
        // Statistics over the ranks are for those that have samples, which must be the first.
        let has_samples = |said: &Option<Said>| said.as_ref().is_some_and(|s| s.samples > 0);
        let with_samples = told.iter().filter(|said| has_samples(said)).count();
        let first = told.iter().take_while(|said| has_samples(said)).count();
        let among = if first == with_samples { first } else { 1 };
        let part = Part::of(&batch, among, group);
        Ok(Some((batch, part)))
    }
}
