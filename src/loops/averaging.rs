//! The average of weights that goes by epochs.

use super::Run;
use super::ranks::Batches;
use crate::config::WeightAveraging;
use crate::data::{EpochSpec, TrainLoader};
use crate::error::{ErrorKind, Result};
use crate::fabric::TrainState;
use crate::module::{StepContext, TrainModule};
use crate::panics;
use crate::parameters::has_statistics;
use crate::progress::Stage;

/// Takes the weights at the end of an epoch into their average, once it is time, and gives the
/// average running statistics of its own by a pass over the training data without steps.
pub(super) fn average_epoch<M: TrainModule>(
    run: &Run<'_, M>,
    state: &mut TrainState<M>,
    train: &TrainLoader<M>,
) -> Result<()> {
    let Some(WeightAveraging::Swa { start }) = run.config.weight_averaging else {
        return Ok(());
    };
    let (epoch, epochs) = (run.progress.epoch, run.config.epoch_limit().unwrap_or(0));
    if epoch < (start * epochs as f64).floor() as u64 {
        return Ok(());
    }
    let fabric = run.fabric;
    fabric.lane.run(|| {
        fabric.settle(state)?;
        fabric.average_epoch(state)
    })?;
    // Steps by hand cannot be run without stepping.
    if has_statistics(state.evaluated()) && !state.optimizers.manual {
        refresh(run, state, train).map_err(run.at().of("statistics of the averaged model"))?;
        fabric.lane.run(|| fabric.settle_average(state))?;
    }
    Ok(())
}

/// It is not cut short by a signal: the average of this epoch would keep the statistics of a part of
/// the data.
fn refresh<M: TrainModule>(
    run: &Run<'_, M>,
    state: &mut TrainState<M>,
    train: &TrainLoader<M>,
) -> Result<()> {
    let (fabric, epoch) = (run.fabric, run.progress.epoch);
    let known = train.num_batches(run.config.seed, epoch)?;
    let total = run.config.limit_train_batches.resolve(known, "train")?;
    let spec = EpochSpec::new(fabric.device().clone())
        .seed(run.config.seed)
        .epoch(epoch)
        .limit(total)
        .shard(fabric.group.shard(run.is_per_process));
    let (_, is_even) = run.agree_on_length(known.and(total))?;
    let mut batches = Batches::new(train.iter(spec)?, 0, is_even);
    while let Some((batch, part)) = batches.next(run)? {
        let Some(value) = batch.value else { continue };
        let device = fabric.device().clone();
        let context = StepContext::new(Stage::Train, run.progress, batch.samples, device);
        fabric.lane.run(|| {
            panics::catch(ErrorKind::User, || {
                fabric.refresh_statistics(state, value, context, epoch, &part)
            })
        })?;
    }
    Ok(())
}
