//! The training loop.

use super::Run;
use super::averaging::average_epoch;
use super::evaluate::evaluate;
use super::ranks::{Batches, Next, Orders, Which, values};
use super::step::{check_replicas, insert_skipped, read_step, step_optimizers, train_batch};
use super::validation::{Finished, ValidationSchedule};
use crate::callback::BatchInfo;
use crate::config::{GradNorms, Limit, SanitySteps, TrainerConfig};
use crate::data::{Batch, EpochSpec, EvalLoader, TrainLoader};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Part, TrainState};
use crate::metric::Metrics;
use crate::module::TrainModule;
use crate::output::say;
use crate::profiler::Phase;
use crate::progress::Stage;
use crate::signals::{self, Signal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StopReason {
    /// All epochs are done.
    MaxEpochs,
    /// All optimizer steps are done.
    MaxSteps,
    /// The time is up.
    MaxTime,
    /// `limit_train_batches` is 0: there was nothing to train on.
    NoTrainBatches,
    /// A callback asked for it, for this reason.
    Requested(String),
    /// A signal asked the process to end.
    Signal(Signal),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxEpochs => "all epochs are done",
            Self::MaxSteps => "all optimizer steps are done",
            Self::MaxTime => "the time is up",
            Self::NoTrainBatches => "`limit_train_batches` is 0",
            Self::Requested(reason) => reason,
            Self::Signal(signal) => return signal.fmt(f),
        })
    }
}

/// What `fit` trains and validates on. A stage limited to nothing has no loader.
pub(crate) struct Loaders<M: TrainModule> {
    pub(crate) is_per_process: bool,
    pub(crate) train: Option<TrainLoader<M>>,
    pub(crate) val: Option<EvalLoader<M>>,
}

/// How long the run may go on, and when it validates.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    max_time: Option<Duration>,
    val_limit: Option<usize>,
    validation: ValidationSchedule,
}

impl Plan {
    /// Resolves the limits and intervals, so that what cannot work is refused before any work.
    pub(crate) fn new<M: TrainModule>(
        config: &TrainerConfig,
        loaders: &Loaders<M>,
    ) -> Result<Self> {
        if let Some(train) = &loaders.train {
            let known = train.num_batches(config.seed, 0)?;
            let batches = config.limit_train_batches.resolve(known, "train")?;
            if loaders.val.is_some() {
                let batches = batches.map(|n| n as u64);
                config.val_check_interval.batches(batches)?;
            }
        }
        let val_batches = match &loaders.val {
            Some(val) => val.num_batches(config.seed, 0)?,
            None => None,
        };
        Ok(Self {
            max_time: config.max_time.map(|time| time.as_duration()),
            val_limit: config.limit_val_batches.resolve(val_batches, "val")?,
            validation: ValidationSchedule::new(config),
        })
    }
}

/// Trains until a limit is reached, or a callback asks to stop.
pub(crate) fn fit<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    loaders: &Loaders<M>,
    plan: Plan,
) -> Result<StopReason> {
    run.validates = loaders.val.is_some();
    run.is_per_process = loaders.is_per_process;
    let kept = run.fabric.divide(state)?;
    if run.prints() && !run.is_alone() {
        run.fabric.warn_of_layers(state)?;
    }
    if let Some((own, all)) = kept.filter(|_| run.prints()) {
        say!("zero1: each device keeps the optimizer state of {own} of {all} parameters");
    }
    if run.prints() && state.optimizers.manual && run.config.log_grad_norms != GradNorms::Off {
        say!("warning: `log_grad_norms` shows nothing of a model that steps by hand");
    }
    run.train_hook(state, |c, cx| c.on_fit_start(cx))?;
    run.serve(state)?;
    let stopped = match &loaders.train {
        None => StopReason::NoTrainBatches,
        Some(train) => {
            if run.progress.total_batches == 0 {
                sanity_check(run, state, loaders, plan.val_limit)?;
            }
            loop {
                let reason = limit_reached(run, &plan);
                if let Some(reason) = run.agree(reason, Orders::default())?.cut {
                    break reason;
                }
                let cut = train_epoch(run, state, train, &loaders.val, &plan)?;
                if let Some(reason) = cut {
                    break reason;
                }
            }
        }
    };
    let fabric = run.fabric;
    fabric.lane.run(|| fabric.unite(state))?;
    run.results = Metrics::default();
    run.train_hook(state, |c, cx| c.on_fit_end(cx))?;
    run.serve(state)?;
    run.log_results()?;
    Ok(stopped)
}

/// Runs a few validation batches and forgets their values.
fn sanity_check<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &TrainState<M>,
    loaders: &Loaders<M>,
    val_limit: Option<usize>,
) -> Result<()> {
    let limit = match run.config.num_sanity_val_steps {
        SanitySteps::Batches(0) => return Ok(()),
        SanitySteps::Batches(n) => Some(val_limit.unwrap_or(usize::MAX).min(n as usize)),
        SanitySteps::All => val_limit,
    };
    let Some(val) = &loaders.val else {
        return Ok(());
    };
    let optimizers = Some(&state.optimizers);
    evaluate(
        run,
        state.evaluated(),
        optimizers,
        Stage::SanityCheck,
        val,
        limit,
    )
    .map_err(|e| e.context("sanity check"))?;
    Ok(())
}

/// One epoch, or what is left of it; the reason if it ends before its last batch, and the run with
/// it.
fn train_epoch<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    train: &TrainLoader<M>,
    val: &Option<EvalLoader<M>>,
    plan: &Plan,
) -> Result<Option<StopReason>> {
    let epoch = run.progress.epoch;
    let (first, steps_before) = (run.progress.batch, run.progress.global_step);
    // A checkpoint of a loop written by hand does not say.
    let samples = Some(run.position.epoch_samples as usize);
    let samples = samples.filter(|samples| *samples > 0 && !run.is_per_process);
    let known = train.num_batches(run.config.seed, epoch)?;
    let total = run.config.limit_train_batches.resolve(known, "train")?;
    // A process with fewer batches than others may be through with its own.
    let through = known.filter(|_| run.is_per_process).unwrap_or(usize::MAX);
    let start = (first as usize).min(through);
    let spec = EpochSpec::new(run.fabric.device().clone())
        .seed(run.config.seed)
        .epoch(epoch)
        .start_batch(start)
        .start_sample(samples)
        .limit(total)
        .shard(run.fabric.group.shard(run.is_per_process))
        .profiler(&run.fabric.profiler);
    let (longest, is_even) = run.agree_on_length(known.and(total))?;
    run.batch = BatchInfo {
        index: first as usize,
        total: longest.or(total),
        samples: 0,
    };
    run.at_batch = first;
    run.results = Metrics::default();
    run.train_hook(state, |c, cx| c.on_train_epoch_start(cx))?;
    run.serve(state)?;
    if first > 0 {
        // Where the run failed in its validation, that is still to come.
        let is_last = longest.is_some_and(|total| first >= total as u64);
        validate_if_due(run, state, val, plan, is_last)?;
    }

    let (mut cut, mut reached_last) = (None, false);
    let mut batches = Batches::new(train.iter(spec)?, first as usize, is_even);
    while let Some((batch, part)) = batches.next(run)? {
        reached_last = batch.is_last;
        let group_is_full = train_on(run, state, batch, part, train)?;
        validate_if_due(run, state, val, plan, reached_last)?;
        run.take_orders(state);
        // A stop waits for the group's step: what has been accumulated is not thrown away.
        let wanted = group_is_full.then(|| cut_reason(run, plan)).flatten();
        let orders = run.orders_in_epoch();
        let Next {
            cut: agreed,
            orders,
        } = run.agree(wanted, orders)?;
        run.change(state, &orders.changes)?;
        cut = agreed;
        if cut.is_some() {
            break;
        }
        // The last batch is saved with the end of its epoch.
        if !reached_last {
            run.serve_agreed(state, orders.saves)?;
        }
        let is_validated = run.position.last_validated == Some(run.progress.total_batches);
        if let Some(val) = val.as_ref().filter(|_| orders.validates && !is_validated) {
            validate(run, state, val, plan)?;
            if !reached_last {
                run.serve(state)?;
            }
        }
        if !reached_last {
            run.answer_orders(state)?;
        }
    }
    if run.progress.batch == 0 {
        return Err(Error::data(format!(
            "the train loader gave no batch in epoch {epoch}"
        )));
    }
    if let (Some(StopReason::Requested(_)), Some(val)) = (&cut, val)
        && run.position.last_validated != Some(run.progress.total_batches)
    {
        validate(run, state, val, plan)?;
    }
    let is_whole = (cut.is_none() || reached_last) && !run.in_validation;
    if !is_whole {
        // What is saved here goes on with the epoch's next batch.
        run.train_hook(state, |c, cx| c.on_stop(cx))?;
        run.serve(state)?;
    }
    end_epoch(run, state, is_whole)?;
    run.serve(state)?;
    run.answer_orders(state)?;
    let stepped = run.progress.global_step > steps_before;
    if first == 0 && !stepped && run.config.epoch_limit().is_none() {
        return Err(never_ends(epoch, run.progress.skipped_steps));
    }
    Ok(cut)
}

/// The error of a run whose steps are all skipped, and which nothing else would ever end.
fn never_ends(epoch: u64, skipped: u64) -> Error {
    Error::new(
        ErrorKind::NonFinite,
        format!(
            "epoch {epoch} took no optimizer step ({skipped} were skipped because a gradient was \
             not finite), so the run would never end; `detect_anomaly` names the parameter"
        ),
    )
}

/// One batch with its hooks, and the optimizers' step if its group is full; whether it is.
fn train_on<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    batch: Batch<M::Batch>,
    part: Part,
    train: &TrainLoader<M>,
) -> Result<bool> {
    run.batch.index = batch.index;
    run.batch.samples = batch.global_samples;
    if run.position.in_group == 0 {
        run.at_step = Some((run.progress, run.position));
    }
    run.outcome = None;
    run.logs_now = false;
    run.results = Metrics::default();
    run.train_hook(state, |c, cx| c.on_train_batch_start(cx))?;
    let (global_samples, is_last) = (batch.global_samples, batch.is_last);
    train_batch(run, state, batch, part)?;
    let group_is_full = run.position.in_group + 1 >= run.batches_to_a_step() || is_last;
    if group_is_full {
        step_optimizers(run, state)?;
    }
    // From here on the batch counts as done, whatever the hooks report.
    run.position.in_group = match group_is_full {
        true => 0,
        false => run.position.in_group + 1,
    };
    run.position.epoch_samples += global_samples as u64;
    run.progress.samples += global_samples as u64;
    run.progress.batch += 1;
    run.progress.total_batches += 1;
    if group_is_full {
        check_replicas(run, state)?;
        read_step(run, state)?;
        run.train_hook(state, |c, cx| c.on_optimizer_step(cx))?;
    }
    if is_last {
        average_epoch(run, state, train)?;
    }
    run.train_hook(state, |c, cx| c.on_train_batch_end(cx))?;
    run.log_results()?;
    run.at_batch = run.progress.batch;
    Ok(group_is_full)
}

/// The epoch's own values, its hooks and, if it is whole, the schedules that count epochs.
fn end_epoch<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    is_whole: bool,
) -> Result<()> {
    let mut values = values(&run.fabric.group, &mut run.book, Which::All("_epoch"))?;
    insert_skipped(run, &mut values);
    run.set_results(values);
    if is_whole {
        state.optimizers.on_metrics(|name| run.results.get(name));
    }
    run.train_hook(state, |c, cx| c.on_train_epoch_end(cx))?;
    run.log_results()?;
    if (run.position.validated || !run.validates)
        && let Some(name) = state.optimizers.unseen_metric()
        && is_whole
    {
        return Err(Error::config(format!(
            "a learning-rate schedule watches `{name}`, which is never logged for an epoch or a \
             validation"
        )));
    }
    if is_whole {
        state.optimizers.on_epoch_end();
        run.book.clear();
        run.progress.epoch += 1;
        run.progress.batch = 0;
        run.position.epoch_samples = 0;
    }
    Ok(())
}

/// Validates, if that is due after the batches that are done and has not been done.
fn validate_if_due<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    val: &Option<EvalLoader<M>>,
    plan: &Plan,
    is_last: bool,
) -> Result<()> {
    let finished = Finished {
        epoch: run.progress.epoch,
        batch: run.progress.batch,
        total_batches: run.progress.total_batches,
        is_last,
        epoch_batches: run.batch.total.map(|n| n as u64),
        since_validation: run
            .elapsed()
            .saturating_sub(seconds(run.position.validated_at)),
    };
    let Some(val) = val else {
        return Ok(());
    };
    if run.position.last_validated == Some(finished.total_batches) {
        return Ok(());
    }
    let mut due = plan.validation.due(finished)?;
    if plan.validation.looks_at_the_time() {
        due = run.fabric.group.broadcast(due)?;
    }
    match due {
        true => validate(run, state, val, plan),
        false => Ok(()),
    }
}

fn validate<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    val: &EvalLoader<M>,
    plan: &Plan,
) -> Result<()> {
    let fabric = run.fabric;
    fabric.lane.run(|| fabric.unite(state))?;
    let (model, optimizers, batch) = (state.evaluated(), Some(&state.optimizers), run.batch);
    let place = run.at().of("validation");
    let validate = || evaluate(run, model, optimizers, Stage::Validate, val, plan.val_limit);
    let validated = fabric.profiler.time(Phase::Validation, validate);
    run.batch = batch;
    match validated.map(drop) {
        // The run ends after this batch, on all ranks; it goes on with the validation.
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            run.in_validation = true;
            run.results = Metrics::default();
            return Ok(());
        }
        validated => validated.map_err(place)?,
    }
    run.in_validation = false;
    run.position.validated_at = run.elapsed().as_secs_f64();
    run.position.last_validated = Some(run.progress.total_batches);
    run.position.validated = true;
    state.optimizers.on_metrics(|name| run.results.get(name));
    run.log_results()
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Why the epoch ends after this batch, if so.
fn cut_reason<M: TrainModule>(run: &Run<'_, M>, plan: &Plan) -> Option<StopReason> {
    // No minimum holds up a process that has been told to end.
    if let Some(signal) = signals::received() {
        return Some(StopReason::Signal(signal));
    }
    let steps = run.progress.global_step;
    if run.config.max_steps.is_some_and(|max| steps >= max) {
        return Some(StopReason::MaxSteps);
    }
    if time_is_up(run, plan) {
        return Some(StopReason::MaxTime);
    }
    let reason = run.stop_request()?;
    Some(StopReason::Requested(reason.to_owned()))
}

/// Why no further epoch begins, if so.
fn limit_reached<M: TrainModule>(run: &Run<'_, M>, plan: &Plan) -> Option<StopReason> {
    let epochs = run.progress.epoch;
    let all_epochs = run.config.epoch_limit().is_some_and(|max| epochs >= max);
    match cut_reason(run, plan) {
        Some(StopReason::MaxSteps) => Some(StopReason::MaxSteps),
        _ if all_epochs => Some(StopReason::MaxEpochs),
        other => other,
    }
}

/// Whether `max_time` is over; `min_epochs` and `min_steps` win.
fn time_is_up<M: TrainModule>(run: &Run<'_, M>, plan: &Plan) -> bool {
    plan.max_time.is_some_and(|max| run.elapsed() >= max) && run.past_minimum()
}

impl<M: TrainModule> Clone for Loaders<M> {
    fn clone(&self) -> Self {
        Self {
            is_per_process: self.is_per_process,
            train: self.train.clone(),
            val: self.val.clone(),
        }
    }
}

impl<M: TrainModule> Loaders<M> {
    /// The loaders as `overfit_batches` wants them: no shuffling.
    pub(crate) fn for_overfitting(self, limit: Limit) -> Self {
        if limit.is_none() {
            return self;
        }
        Self {
            train: self.train.map(|train| train.without_shuffle()),
            val: self.val.map(|val| val.without_shuffle()),
            is_per_process: self.is_per_process,
        }
    }
}
