//! What an optimizer step does to the weights, with numbers worked out by hand.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::ErrorKind;
use firebox::config::GradientClip;
use firebox::data::Loaders;
use firebox::optim::schedule::{Linear, ScheduleInterval};
use firebox::prelude::*;

on_each_backend!(
    micro_batches_weigh_their_tokens,
    a_short_last_group_is_stepped_with_its_own_weight,
    the_loss_shown_does_not_depend_on_accumulation,
    the_schedule_counts_optimizer_steps,
    clipping_is_by_the_norm_over_all_parameters,
    clipping_comes_after_the_scale_is_taken_out,
    clipping_by_value,
    a_run_without_a_step_does_not_go_on_forever,
    a_gradient_that_is_not_finite_skips_the_step,
    anomaly_detection_names_the_parameter,
    a_skipped_step_does_not_move_the_schedule,
    groups_have_their_own_rates_and_can_be_frozen,
    a_batch_of_weight_zero_counts_for_nothing,
    gradients_too_large_for_f32_squares_are_still_finite,
);

/// 1 token of gradient 4 and 3 tokens of gradient 1: (4 + 3) / 4, as in one batch of 4 tokens.
fn micro_batches_weigh_their_tokens<B: AutodiffBackend>() {
    let (a, b) = (vec![[4.0, 0.0]], vec![[1.0, 0.0]; 3]);
    for (accumulate, batch_size) in [(2, 1), (1, 2)] {
        let (config, _runs) = quiet();
        let config = config
            .with_max_epochs(1)
            .with_accumulate_grad_batches(accumulate);
        let train = sequences(vec![a.clone(), b.clone()]).batch_size(batch_size);
        let (outcome, _) = fit::<B>(config, sgd(1.0), Loaders::new(train));
        assert_eq!(outcome.progress.global_step, 1);
        let [a, _] = outcome.model.values();
        assert!((a - (1.0 - 1.75)).abs() < 1e-6, "{a}");
    }
}

/// 5 batches of gradient 1 in groups of 2: three steps of 0.1.
fn a_short_last_group_is_stepped_with_its_own_weight<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_accumulate_grad_batches(2);
    let (outcome, rows) = fit::<B>(config, sgd(0.1), ones(5));
    assert_eq!(outcome.progress.global_step, 3);
    let [a, _] = outcome.model.values();
    assert!((a - 0.7).abs() < 1e-6, "{a}");
    // The loss of each group is w itself, the last one's too.
    assert_close(&rows.values("train/loss"), &[1.0, 0.9, 0.8], 1e-6);
}

fn the_loss_shown_does_not_depend_on_accumulation<B: AutodiffBackend>() {
    for accumulate in [1, 2, 4] {
        let (config, _runs) = quiet();
        let config = config
            .with_max_epochs(1)
            .with_accumulate_grad_batches(accumulate);
        let data = Loaders::new(gradients(vec![4.0; 8]));
        // A learning rate of 0: the loss stays 4.
        let (outcome, rows) = fit::<B>(config, sgd(0.0), data);
        let losses = rows.values("train/loss");
        assert_eq!(losses, vec![4.0; 8 / accumulate as usize]);
        assert_eq!(outcome.metrics.get("train/loss_epoch"), Some(4.0));
        let csv = outcome.run_dir.unwrap().join("metrics.csv");
        let mut csv = csv::Reader::from_path(csv).unwrap();
        let column = csv
            .headers()
            .unwrap()
            .iter()
            .position(|h| h == "train/loss")
            .unwrap();
        let cells = csv.records().map(|r| r.unwrap()[column].to_owned());
        let written: Vec<_> = cells.filter(|cell| !cell.is_empty()).collect();
        assert_eq!(written, vec!["4"; 8 / accumulate as usize]);
    }
}

/// Linear decay from 1 to 0 over 8 optimizer steps, and 2 steps more; batches in groups of 2.
fn the_schedule_counts_optimizer_steps<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_accumulate_grad_batches(2);
    let decay = sgd(1.0).with_schedule(ScheduleInterval::Step, Linear::new(1.0, 0.0, 8));
    let (outcome, rows) = fit::<B>(config, decay, ones(20));
    let rates = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0];
    assert_eq!(rows.values("lr"), rates);
    // The optimizer used just those: w = 1 - their sum.
    let [a, _] = outcome.model.values();
    assert_eq!(f64::from(a), 1.0 - rates.iter().sum::<f64>());
}

/// Gradients 3 and 4 in two tensors, norm 5, clipped to 1.
fn clipping_is_by_the_norm_over_all_parameters<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Norm(1.0));
    let data = Loaders::new(sequences(vec![vec![[3.0, 4.0]]]));
    let (outcome, rows) = fit::<B>(config, sgd(1.0), data);
    let [a, b] = outcome.model.values().map(f64::from);
    assert_close(&[a, b], &[1.0 - 0.6, 1.0 - 0.8], 1e-6);
    assert_close(&rows.values("train/grad_norm"), &[5.0], 1e-6);

    // A norm below the limit is left alone, bit for bit.
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Norm(5.5));
    let data = Loaders::new(sequences(vec![vec![[3.0, 4.0]]]));
    let (outcome, _) = fit::<B>(config, sgd(1.0), data);
    assert_eq!(outcome.model.values(), [-2.0, -3.0]);
}

/// Sums of gradients are 1024 times the true gradient (3, 4) before they are averaged.
fn clipping_comes_after_the_scale_is_taken_out<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_accumulate_grad_batches(2)
        .with_gradient_clip(GradientClip::Norm(1.0));
    let data = Loaders::new(sequences(vec![vec![[3.0, 4.0]], vec![[3.0, 4.0]; 1023]]));
    let (outcome, rows) = fit::<B>(config, sgd(1.0), data);
    let [a, b] = outcome.model.values().map(f64::from);
    assert_close(&[1.0 - a, 1.0 - b], &[0.6, 0.8], 1e-6);
    assert_close(&rows.values("train/grad_norm"), &[5.0], 1e-4);
}

/// Every gradient is NaN, and only a number of steps would end the run.
fn a_run_without_a_step_does_not_go_on_forever<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let mut data = Loaders::new(gradients([f32::NAN; 3]));
    let error = Trainer::new(config.with_max_steps(5), B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "epoch 0 took no optimizer step (3 were skipped because a gradient was not finite), so \
         the run would never end; `detect_anomaly` names the parameter"
    );
}

fn clipping_by_value<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Value(0.5));
    let data = Loaders::new(sequences(vec![vec![[-3.0, 0.25]]]));
    let (outcome, _) = fit::<B>(config, sgd(1.0), data);
    assert_eq!(outcome.model.values(), [1.5, 0.75]);
}

fn infinite_then_finite<B: AutodiffBackend>() -> Loaders<Weights<B>> {
    let bad = vec![[f32::INFINITY, 1.0]];
    Loaders::new(sequences(vec![bad, vec![[0.25, 0.25]]]))
}

fn a_gradient_that_is_not_finite_skips_the_step<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_gradient_clip(GradientClip::Norm(1.0));
    // The first batch alone leaves everything as it was.
    let one = config
        .clone()
        .with_max_epochs(1)
        .with_limit_train_batches(firebox::config::Limit::Batches(1));
    let (outcome, _) = fit::<B>(one, sgd(1.0), infinite_then_finite());
    assert_eq!(outcome.model.values(), [1.0, 1.0]);
    assert_eq!(
        (outcome.progress.global_step, outcome.progress.skipped_steps),
        (0, 1)
    );

    let (outcome, rows) = fit::<B>(config.with_max_epochs(1), sgd(1.0), infinite_then_finite());
    assert_eq!(outcome.model.values(), [0.75, 0.75]);
    assert_eq!(
        (outcome.progress.global_step, outcome.progress.skipped_steps),
        (1, 1)
    );
    // With the step after it, and with the epoch.
    assert_eq!(rows.values("train/skipped_steps"), [1.0, 1.0]);
}

fn anomaly_detection_names_the_parameter<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_detect_anomaly(true);
    let error = Trainer::new(config, B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut infinite_then_finite())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NonFinite);
    assert_eq!(
        error.to_string(),
        "epoch 0, batch 0, step 0: optimizer step: the gradient of `a` is not finite"
    );
}

fn a_skipped_step_does_not_move_the_schedule<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let decay = sgd(1.0).with_schedule(ScheduleInterval::Step, Linear::new(1.0, 0.0, 8));
    let finite = || vec![[1.0, 0.0]];
    let bad = vec![[f32::NAN, 0.0]];
    let data = Loaders::new(sequences(vec![finite(), bad, finite()]));
    let (_, rows) = fit::<B>(config.with_max_epochs(1), decay, data);
    assert_eq!(rows.values("lr"), [1.0, 0.875]);
}

fn groups_have_their_own_rates_and_can_be_frozen<B: AutodiffBackend>() {
    let slow = ParamGroup::new("slow", ["b"], burn::optim::SgdConfig::new().init()).with_lr(0.25);
    let both = || Loaders::new(sequences(vec![vec![[1.0, 1.0]]]));
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1);
    let (outcome, rows) = fit::<B>(config.clone(), sgd(0.5).with_group(slow), both());
    assert_eq!(outcome.model.values(), [0.5, 0.75]);
    assert_eq!(rows.values("lr/slow"), [0.25]);
    assert_eq!(rows.values("lr/default"), [0.5]);

    // Frozen: stays, and takes no part in the norm.
    let (outcome, rows) = fit::<B>(config, sgd(0.5).with_frozen(["b"]), both());
    assert_eq!(outcome.model.values(), [0.5, 1.0]);
    assert_eq!(rows.values("train/grad_norm"), [1.0]);
}

fn a_batch_of_weight_zero_counts_for_nothing<B: AutodiffBackend>() {
    let fabric = Fabric::<B>::new(B::Device::default());
    let mut state = fabric.setup(Weights::new(1.0, 1.0)).unwrap();
    let device = B::Device::default();
    let loss = |state: &firebox::fabric::TrainState<Weights<B>>, g: f32| {
        let gradients = burn::tensor::Tensor::from_floats([[g, 0.0]], &device);
        state.model().loss(gradients)
    };
    let (padding, real) = (loss(&state, f32::NAN), loss(&state, 0.5));
    fabric
        .backward(&mut state, Loss::weighted(padding, 0.0), 4)
        .unwrap();
    assert_eq!(
        fabric.optimizer_step(&mut state).unwrap(),
        firebox::optim::StepOutcome::Empty
    );
    let padding = loss(&state, f32::NAN);
    fabric
        .backward(&mut state, Loss::weighted(padding, 0.0), 4)
        .unwrap();
    fabric.backward(&mut state, real, 4).unwrap();
    fabric.optimizer_step(&mut state).unwrap();
    assert_eq!(state.model().values(), [0.5, 1.0]);
}

fn gradients_too_large_for_f32_squares_are_still_finite<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_gradient_clip(GradientClip::Norm(1.0));
    let data = Loaders::new(sequences(vec![vec![[3e25, 4e25]]]));
    let (outcome, _) = fit::<B>(config, sgd(1.0), data);
    let [a, b] = outcome.model.values().map(f64::from);
    assert_close(&[a, b], &[0.4, 0.2], 1e-6);
    assert_eq!(outcome.progress.skipped_steps, 0);
}
