//! Optimizer steps on their own, without callbacks, loggers, validation and checkpoints.

use super::Run;
use super::ranks::{Batches, Which, values};
use super::step::{step_optimizers, train_batch};
use crate::config::Limit;
use crate::data::{EpochSpec, TrainLoader};
use crate::error::{Error, Result};
use crate::fabric::TrainState;
use crate::metric::LogBook;
use crate::module::TrainModule;
use crate::progress::Stage;
use crate::signals;
use std::ops::ControlFlow;

/// Trains on one device, over as many epochs as it takes, until `after` breaks it off. That is told
/// the loss of each step: NaN if none is known.
///
/// # Errors
/// What a step or the data reports, an epoch without batches, or a signal.
pub(crate) fn train_steps<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    train: &TrainLoader<M>,
    limit: Limit,
    mut after: impl FnMut(&mut TrainState<M>, f64) -> ControlFlow<()>,
) -> Result<()> {
    while train_epoch(run, state, train, limit, &mut after)?.is_continue() {
        run.progress.epoch += 1;
        run.progress.batch = 0;
        run.at_batch = 0;
    }
    Ok(())
}

fn train_epoch<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    train: &TrainLoader<M>,
    limit: Limit,
    after: &mut impl FnMut(&mut TrainState<M>, f64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let (seed, epoch) = (run.config.seed, run.progress.epoch);
    let total = limit.resolve(train.num_batches(seed, epoch)?, "train")?;
    let spec = EpochSpec::new(run.fabric.device().clone())
        .seed(seed)
        .epoch(epoch)
        .limit(total);
    let accumulate = run.config.accumulate_grad_batches.max(1);
    let mut batches = Batches::new(train.iter(spec)?, 0, true);
    while let Some((batch, part)) = batches.next(run)? {
        signals::check()?;
        let (samples, is_last) = (batch.global_samples, batch.is_last);
        run.outcome = None;
        train_batch(run, state, batch, part)?;
        let group_is_full = run.position.in_group + 1 >= accumulate || is_last;
        run.position.in_group = match group_is_full {
            true => 0,
            false => run.position.in_group + 1,
        };
        if group_is_full {
            step_optimizers(run, state)?;
        }
        run.progress.samples += samples as u64;
        run.progress.batch += 1;
        run.progress.total_batches += 1;
        if group_is_full {
            let logged = values(&run.fabric.group, &mut run.book, Which::Group)?;
            run.book = LogBook::new(Stage::Train);
            let loss = logged.get("train/loss").unwrap_or(f64::NAN);
            if after(state, loss).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        run.at_batch = run.progress.batch;
    }
    match run.progress.batch {
        0 => Err(Error::data(format!(
            "the train loader gave no batch in epoch {epoch}"
        ))),
        _ => Ok(ControlFlow::Continue(())),
    }
}
