//! One batch: the step that the user wrote, its backward pass, and the optimizers'.

use super::Run;
use super::ranks::{Which, values};
use super::run::Place;
use crate::data::Batch;
use crate::error::{ErrorKind, Result};
use crate::fabric::{Fabric, Part, TrainState, of_parameters};
use crate::metric::{LogBook, Logged, Metrics, Observation, logged_loss};
use crate::module::{LossValue, StepContext, TrainModule};
use crate::optim::StepOutcome;
use crate::panics;
use crate::profiler::Phase;
use crate::progress::Stage;
use burn::tensor::Tensor;

/// Forward and backward pass of one batch; its gradients join those of the group.
pub(super) fn train_batch<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
    batch: Batch<M::Batch>,
    part: Part,
) -> Result<()> {
    let (samples, at) = (batch.samples, run.at());
    let (fabric, epoch) = (run.fabric, run.progress.epoch);
    let Some(value) = batch.value else {
        if state.optimizers.manual {
            let followed = fabric.lane.run(|| fabric.follow_manual_step(state, &part));
            take_outcomes(run, &followed.map_err(at.of("manual_step"))?);
        }
        return Ok(());
    };
    let cx = StepContext::new(Stage::Train, run.progress, samples, fabric.device().clone())
        .with_pass(fabric.pass_settings(state));
    let logged = if state.optimizers.manual {
        let stepped = fabric.lane.run(|| {
            let mut cx = cx;
            let step = || fabric.manual_step(state, value, &mut cx, &part);
            let step = || fabric.watched(|| fabric.time(Phase::Forward, step));
            let (outcomes, _) = fabric.in_part(epoch, &part, step)?;
            Ok((outcomes, cx.logged))
        });
        let (outcomes, logged) = stepped.map_err(at.of("manual_step"))?;
        take_outcomes(run, &outcomes);
        logged
    } else {
        fabric.lane.run(|| {
            let step = || fabric.watched(|| learn(fabric, state, value, cx, at));
            let (logged, finding) = fabric.in_part(epoch, &part, step)?;
            state.note_finding(finding);
            Ok(logged)
        })?
    };
    run.book
        .add(logged.into_iter().map(|l| l.inner()), samples as f64)
        .map_err(at.of("training_step"))
}

/// One step by hand, however many optimizers it steps.
fn take_outcomes<M: TrainModule>(run: &mut Run<'_, M>, outcomes: &[StepOutcome]) {
    let stepped = |o: &&StepOutcome| matches!(o, StepOutcome::Stepped { .. });
    run.outcome = outcomes.iter().find(stepped).or(outcomes.last()).copied();
    if outcomes.contains(&StepOutcome::Skipped) {
        run.progress.skipped_steps += 1;
    }
}

/// The step that the user wrote, and the backward pass of its loss; what it has logged.
fn learn<M: TrainModule>(
    fabric: &Fabric<M::Backend>,
    state: &mut TrainState<M>,
    value: M::Batch,
    mut cx: StepContext<M::Backend>,
    at: Place,
) -> Result<Vec<Logged<M::Backend>>> {
    let samples = cx.samples();
    let step = || state.model().training_step(value, &mut cx);
    let forward = || panics::catch(ErrorKind::User, step);
    let loss = fabric.time(Phase::Forward, forward);
    let loss = loss.map_err(at.of("training_step"))?;
    // Before the gradients are added: what is saved after an error repeats this batch.
    LogBook::check(&cx.logged).map_err(at.of("training_step"))?;
    let weight = loss.weight.unwrap_or(samples as f64);
    let mut names = cx.logged.iter().map(|l| &*l.name);
    let value = match &loss.value {
        LossValue::Tensor(value) => Some(value.clone()),
        LossValue::Recomputed { loss, .. } => Some(Tensor::from_inner(loss.clone())),
        LossValue::Gradients(_) => None,
    };
    if let Some(value) = value
        && !names.any(|name| matches!(name, "loss" | "train/loss"))
    {
        let logged = logged_loss(Observation::from(value), weight);
        cx.logged.push(logged.map_err(at.of("training_step"))?);
    }
    let added = fabric.backward(state, loss, samples);
    added.map_err(at.of("backward"))?;
    Ok(cx.logged)
}

/// Steps the optimizers, and counts.
pub(super) fn step_optimizers<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
) -> Result<()> {
    let every = run.config.log_every_n_steps.max(1);
    let will_be_read = (run.progress.global_step + 1).is_multiple_of(every);
    if run.config.log_histograms && run.takes_media && will_be_read {
        state.histograms = Some(Vec::new());
    }
    if !state.optimizers.manual {
        let fabric = run.fabric;
        let outcome = fabric.lane.run(|| fabric.optimizer_step(state));
        run.outcome = Some(outcome.map_err(run.at().of("optimizer step"))?);
    }
    match run.outcome {
        Some(StepOutcome::Stepped { .. }) => {
            run.progress.global_step += 1;
        }
        Some(StepOutcome::Skipped) if !state.optimizers.manual => {
            run.progress.skipped_steps += 1;
        }
        _ => {}
    }
    Ok(())
}

/// When it is time, compares the replicas after a step.
pub(super) fn check_replicas<M: TrainModule>(
    run: &Run<'_, M>,
    state: &mut TrainState<M>,
) -> Result<()> {
    let (every, step) = (
        run.config.check_replicas_every_n_steps,
        run.progress.global_step,
    );
    let stepped = matches!(run.outcome, Some(StepOutcome::Stepped { .. }));
    if !stepped || every.is_none_or(|every| !step.is_multiple_of(every.max(1))) {
        return Ok(());
    }
    let fabric = run.fabric;
    let settled = fabric.lane.run(|| fabric.settle(state));
    let checked = settled.and_then(|()| fabric.check_replicas(state));
    checked.map_err(run.at().of("comparing replicas"))
}

/// When it is time, reads the values of the step that has been taken.
pub(super) fn read_step<M: TrainModule>(
    run: &mut Run<'_, M>,
    state: &mut TrainState<M>,
) -> Result<()> {
    let every = run.config.log_every_n_steps.max(1);
    if let Some(StepOutcome::Stepped { grad_norm }) = run.outcome
        && run.progress.global_step.is_multiple_of(every)
    {
        run.logs_now = true;
        let mut values = values(&run.fabric.group, &mut run.book, Which::Group)?;
        values.insert("train/grad_norm", grad_norm);
        for (part, norm) in &state.norms_of_parts {
            values.insert(format!("train/grad_norm/{part}"), *norm);
        }
        if let Some(scaler) = &state.scaler {
            values.insert("train/loss_scale", scaler.scale());
        }
        insert_skipped(run, &mut values);
        run.set_results(values);
        if let Some(of_gradients) = state.histograms.take() {
            let all = of_parameters(state.present()?)?;
            let all = all.into_iter().chain(of_gradients);
            let all = all.map(|(name, histogram)| (name, histogram.into()));
            run.requests.media.extend(all);
        }
    }
    run.book.next_group();
    Ok(())
}

/// Skipped steps are shown as soon as there is one.
pub(super) fn insert_skipped<M: TrainModule>(run: &Run<'_, M>, values: &mut Metrics) {
    if run.progress.skipped_steps > 0 {
        values.insert("train/skipped_steps", run.progress.skipped_steps as f64);
    }
}
