//! The scale of the loss in `16-mixed`: skipped steps, clipping, and what a checkpoint keeps.

use super::*;
use firebox::ErrorKind;
use firebox::config::{GradientClip, LossScale};
use firebox::data::Loaders;
use firebox::optim::schedule::{Linear, ScheduleInterval};

on_each_backend!(
    scale_steps_and_parameters_follow_the_gradients,
    clipping_comes_after_the_scale,
    a_schedule_waits_for_a_skipped_step,
    ten_skips_at_the_smallest_scale_end_the_run,
    a_resumed_run_has_the_scale_of_the_one_before,
);

fn mixed<B: AutodiffBackend>(scale: &str) -> Option<(TrainerConfig, tempfile::TempDir)> {
    let (config, runs) = quiet();
    let config = config
        .with_precision(Precision::F16Mixed)
        .with_loss_scale(scale.parse::<LossScale>().unwrap())
        .with_max_epochs(1);
    has::<B>(DType::F16).then_some((config, runs))
}

/// By the rule of `torch.amp.GradScaler`: halved at a gradient that is not finite, of which the
/// parameters see nothing.
fn scale_steps_and_parameters_follow_the_gradients<B: AutodiffBackend>() {
    let Some((config, _runs)) = mixed::<B>("dynamic:1024") else {
        return;
    };
    let inf = f32::INFINITY;
    let script = [1.0, inf, 2.0, f32::NAN, inf, 4.0];
    let (outcome, rows) = fit::<B>(config, sgd(0.125), Loaders::new(gradients(script)));
    // A row for each step that was taken, with the scale after it.
    assert_eq!(rows.values("train/loss_scale"), [1024.0, 512.0, 128.0]);
    assert_eq!(rows.values("train/skipped_steps").last(), Some(&3.0));
    assert_eq!(outcome.progress.skipped_steps, 3);
    assert_eq!(outcome.progress.global_step, 3);
    assert_eq!(rows.values("train/grad_norm"), [1.0, 2.0, 4.0]);
    // 1 - (1 + 2 + 4) / 8, exactly: the scale is a power of two.
    assert_eq!(outcome.model.values(), [0.125, 1.0]);
}

/// A scale of 1024, gradient (3, 4), norm at most 1.
fn clipping_comes_after_the_scale<B: AutodiffBackend>() {
    let Some((config, _runs)) = mixed::<B>("1024") else {
        return;
    };
    let config = config.with_gradient_clip(GradientClip::Norm(1.0));
    let data = Loaders::new(sequences(vec![vec![[3.0, 4.0]]]));
    let (outcome, rows) = fit::<B>(config.clone(), sgd(1.0), data);
    let [a, b] = outcome.model.values().map(f64::from);
    assert_close(&[a, b], &[0.4, 0.2], 1e-6);
    assert_close(&rows.values("train/grad_norm"), &[5.0], 1e-6);

    // Of two devices the mean of (6, 0) and (0, 8) is clipped.
    let device = B::Device::default();
    let data = sequences(vec![vec![[6.0, 0.0]], vec![[0.0, 8.0]]]).batch_size(2);
    let outcome = Trainer::new(config, device.clone())
        .with_devices([device.clone(), device])
        .fit_with(
            Weights::<B>::new(1.0, 1.0),
            sgd(1.0),
            &mut Loaders::new(data),
        )
        .unwrap();
    let [a, b] = outcome.model.values().map(f64::from);
    assert_close(&[a, b], &[0.4, 0.2], 1e-6);
}

fn a_schedule_waits_for_a_skipped_step<B: AutodiffBackend>() {
    let Some((config, _runs)) = mixed::<B>("dynamic") else {
        return;
    };
    let decay = sgd(1.0).with_schedule(ScheduleInterval::Step, Linear::new(1.0, 0.0, 4));
    let data = Loaders::new(gradients([1.0, f32::INFINITY, 1.0, 1.0]));
    let (outcome, rows) = fit::<B>(config, decay, data);
    assert_eq!(rows.values("lr"), [1.0, 0.75, 0.5]);
    assert_eq!(outcome.model.values()[0], 1.0 - 2.25);
}

fn ten_skips_at_the_smallest_scale_end_the_run<B: AutodiffBackend>() {
    let Some((config, _runs)) = mixed::<B>("dynamic:2") else {
        return;
    };
    // One halves the scale to 1; of those after it the tenth ends the run.
    let mut data = Loaders::new(gradients(vec![f32::INFINITY; 20]));
    let error = Trainer::new(config, Default::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NonFinite);
    let error = error.to_string();
    assert!(error.contains("batch 10"), "{error}");
    assert!(
        error.contains("10 optimizer steps in a row were skipped with the loss scale 1"),
        "{error}"
    );
}

fn a_resumed_run_has_the_scale_of_the_one_before<B: AutodiffBackend>() {
    let Some((config, runs)) = mixed::<B>("dynamic:1024") else {
        return;
    };
    let inf = f32::INFINITY;
    let script = [1.0, inf, 2.0, inf, 4.0, 8.0];
    let (whole, _) = fit::<B>(config.clone(), sgd(0.125), Loaders::new(gradients(script)));
    let config = config.with_run_dir(runs.path().join("stopped"));
    let stopped = config.clone().with_max_steps(2);
    fit::<B>(stopped, sgd(0.125), Loaders::new(gradients(script)));
    let config = config.with_resume("last".parse::<firebox::config::Resume>().unwrap());
    let (resumed, rows) = fit::<B>(config, sgd(0.125), Loaders::new(gradients(script)));
    assert_eq!(rows.values("train/loss_scale"), [256.0, 256.0]);
    assert_eq!(resumed.model.values(), whole.model.values());
    assert_eq!(resumed.progress.skipped_steps, 2);
}
