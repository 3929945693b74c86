//! Callbacks that change a run on its way, and those that measure it.

use crate::support::*;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use firebox::callback::{
    BackboneFinetuning, Closure, GradientAccumulationScheduler, Hook, OnExceptionCheckpoint,
    PrometheusExporter, SpikeDetection, Timer,
};
use firebox::config::Resume;
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::{ErrorKind, StopReason};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

on_each_backend!(
    cpu: accumulation_changes_with_the_epochs,
    a_schedule_and_a_setting_are_too_much,
    a_backbone_trains_from_its_epoch_on,
    a_backbone_that_goes_on_is_the_same,
    all_groups_cannot_be_frozen,
    a_timer_stops_at_its_limit,
    a_spike_stops_the_run,
    a_run_that_fails_leaves_a_checkpoint,
    prometheus_is_told_the_truth,
    system_metrics_are_logged,
    layers_have_gradient_norms_of_their_own,
    what_is_pruned_stays_zero,
    nothing_to_prune_is_said_before_training,
    what_begins_with_zeros_is_not_pruned,
);

fn accumulation_changes_with_the_epochs<B: AutodiffBackend>() {
    for devices in [1, 2] {
        let (config, _runs) = quiet();
        let device = B::Device::default();
        let trainer = |config| {
            Trainer::new(config, device.clone())
                .with_devices(vec![device.clone(); devices])
                .with_callback(GradientAccumulationScheduler::new([(1, 2), (2, 3)]))
        };
        let model = || Weights::<B>::new(1.0, 1.0);
        let whole = trainer(config.clone().with_max_epochs(3))
            .fit(model(), &mut ones::<B>(4))
            .unwrap();
        // 4 steps of one batch, 2 of two, and one of three and one of what is left.
        assert_eq!(whole.progress.global_step, 8);
        assert_eq!(whole.model.values()[0], 1.0 - 8.0);
        // Stopped in the middle of the second epoch, it goes on as it was.
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(3);
        let stopped = config.clone().with_max_steps(5);
        trainer(stopped).fit(model(), &mut ones::<B>(4)).unwrap();
        let rest = trainer(config.with_resume(Resume::Last))
            .fit(model(), &mut ones::<B>(4))
            .unwrap();
        assert_eq!(rest.progress, whole.progress);
        assert_eq!(rest.model.values(), whole.model.values());
    }
}

fn a_schedule_and_a_setting_are_too_much<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let error = Trainer::new(config.with_accumulate_grad_batches(2), B::Device::default())
        .with_callback(GradientAccumulationScheduler::new([(0, 4)]))
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(1))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().contains("leave one of them out"),
        "{error}"
    );
}

/// `a` in a group of its own, both with a gradient of 1.
fn grouped<B: AutodiffBackend>() -> Optimizers<Weights<B>> {
    sgd(1.0).with_group(ParamGroup::new("backbone", ["a"], SgdConfig::new().init()))
}

fn both<B: AutodiffBackend>(batches: usize) -> Loaders<Weights<B>> {
    Loaders::new(sequences(vec![vec![[1.0, 1.0]]; batches]))
}

fn a_backbone_trains_from_its_epoch_on<B: AutodiffBackend>() {
    for devices in [1, 2] {
        let (config, _runs) = quiet();
        let rows = Rows::default();
        let device = B::Device::default();
        let mut trainer = Trainer::new(config.with_max_epochs(3), device.clone())
            .with_devices(vec![device; devices])
            .with_callback(BackboneFinetuning::new("backbone", 2).with_lr(0.5))
            .with_callback(LearningRateMonitor::new())
            .with_logger(rows.clone());
        let mut fit = || {
            let outcome = trainer.fit_with(Weights::<B>::new(1.0, 1.0), grouped(), &mut both(2));
            outcome.unwrap().model.values()
        };
        assert_eq!(fit(), [0.0, -5.0]);
        let (one, two) = (1.0, 2.0_f64.sqrt());
        let expected = [one, one, one, one, two, two];
        assert_close(&rows.values("train/grad_norm"), &expected, 1e-6);
        assert_eq!(rows.values("lr/backbone")[4..], [0.5, 0.5]);
        // Another fit is as the first.
        assert_eq!(fit(), [0.0, -5.0]);
    }
}

fn a_backbone_that_goes_on_is_the_same<B: AutodiffBackend>() {
    for steps in 1..6 {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(3);
        let run = |config: TrainerConfig| {
            Trainer::new(config, B::Device::default())
                .with_callback(BackboneFinetuning::new("backbone", 1).with_lr(0.25))
                .fit_with(Weights::<B>::new(1.0, 1.0), grouped(), &mut both(2))
                .unwrap()
        };
        run(config.clone().with_max_steps(steps));
        let outcome = run(config.with_resume(Resume::Last));
        assert_eq!(outcome.model.values(), [0.0, -5.0], "{steps}");
    }
}

fn all_groups_cannot_be_frozen<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    for (groups, said) in [
        ("*", "nothing left to train"),
        (
            "head",
            "there is no parameter group `head`; there is `backbone`, `default`",
        ),
    ] {
        let error = Trainer::new(config.clone(), B::Device::default())
            .with_callback(BackboneFinetuning::new(groups, 2))
            .fit_with(Weights::<B>::new(1.0, 1.0), grouped(), &mut both(2))
            .unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

fn a_timer_stops_at_its_limit<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let rows = Rows::default();
    let outcome = Trainer::new(config.with_max_epochs(5), B::Device::default())
        .with_callback(Timer::new().limit(Duration::ZERO))
        .with_logger(rows.clone())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(3))
        .unwrap();
    assert_eq!(outcome.progress.global_step, 1);
    assert_eq!(
        outcome.stopped,
        StopReason::Requested("the run has taken 0ns".into())
    );
    assert_eq!(rows.values("timer/train").len(), 1);
}

fn a_spike_stops_the_run<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let rows = Rows::default();
    // The loss is the gradient times a weight that stays 1.
    let mut data = Loaders::new(gradients([1.0, 2.0, 1.0, 9.0, 1.0]));
    let outcome = Trainer::new(config.with_max_epochs(1), B::Device::default())
        .with_callback(SpikeDetection::new("train/loss").stop(true))
        .with_logger(rows.clone())
        .fit_with(Weights::<B>::new(1.0, 1.0), sgd(0.0), &mut data)
        .unwrap();
    assert_eq!(outcome.progress.global_step, 4);
    assert_eq!(rows.values("spikes/train/loss"), [1.0]);
    assert!(
        outcome
            .stopped
            .to_string()
            .contains("step 4 (epoch 0, batch 3)")
    );
}

fn a_run_that_fails_leaves_a_checkpoint<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1);
    let root = config.run_dir.join("version_0/checkpoints");
    let error = Trainer::new(config, B::Device::default())
        .with_callback(OnExceptionCheckpoint::new())
        .with_callback(Closure::at(Hook::TrainBatchStart, |cx| {
            match cx.batch().index {
                2 => Err(Error::user("no more")),
                _ => Ok(()),
            }
        }))
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(4))
        .unwrap_err();
    assert!(error.to_string().contains("no more"), "{error}");
    let path = root.join("on_exception");
    let saved = firebox::checkpoint::Checkpoint::open(&path).unwrap();
    assert_eq!(
        (saved.progress().global_step, saved.progress().batch),
        (2, 2)
    );
    let model = saved.load_model(Weights::<B>::new(1.0, 1.0)).unwrap();
    assert_eq!(model.values()[0], -1.0);
}

fn prometheus_is_told_the_truth<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let exporter = PrometheusExporter::bind(([127, 0, 0, 1], 0).into(), "night \"3\"").unwrap();
    let addr = exporter.addr();
    let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let scraped = std::sync::Arc::clone(&said);
    Trainer::new(config.with_max_epochs(2), B::Device::default())
        .with_callback(exporter)
        .with_callback(Closure::at(Hook::FitEnd, move |_| {
            let mut stream = TcpStream::connect(addr).context("connecting")?;
            let asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(asked).context("asking")?;
            let read = stream.read_to_string(&mut scraped.lock().unwrap());
            read.context("reading").map(drop)
        }))
        .fit_with(
            Weights::<B>::new(1.0, 1.0),
            sgd(0.5),
            &mut Loaders::new(gradients([1.0; 6]).batch_size(2)),
        )
        .unwrap();
    let said = said.lock().unwrap();
    for line in [
        "firebox_steps_total 6",
        "firebox_batches_total 6",
        "firebox_samples_total 12",
        "firebox_learning_rate{group=\"default\"} 0.5",
        // The weight is 1 - 5/2 at the last step, and the loss as much.
        "firebox_loss -1.5",
        "firebox_metric{name=\"train/grad_norm\"} 1",
        "run=\"night \\\"3\\\"\"",
    ] {
        assert!(said.contains(line), "no `{line}` in {said}");
    }
}

fn system_metrics_are_logged<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_log_system_metrics(true).with_max_epochs(1);
    let (_, rows) = fit::<B>(config, sgd(1.0), ones(3));
    for name in [
        "throughput/samples_per_second",
        "memory/device0_bytes",
        "utilization/device0",
        "energy/kwh",
        "energy/co2_grams",
    ] {
        let values = rows.values(name);
        assert_eq!(values.len(), 3, "{name}");
        assert!(
            values
                .iter()
                .all(|value| value.is_finite() && *value >= 0.0),
            "{name}"
        );
    }
    let energy = rows.values("energy/kwh");
    assert!(energy.is_sorted(), "{energy:?}");
}

fn layers_have_gradient_norms_of_their_own<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_log_grad_norms(firebox::config::GradNorms::Layers)
        .with_max_epochs(1);
    let rows = Rows::default();
    Trainer::new(config, B::Device::default())
        .with_logger(rows.clone())
        .fit(
            Weights::<B>::new(1.0, 1.0),
            &mut Loaders::new(sequences(vec![vec![[3.0, 4.0]]])),
        )
        .unwrap();
    assert_close(&rows.values("train/grad_norm/a"), &[3.0], 1e-6);
    assert_close(&rows.values("train/grad_norm/b"), &[4.0], 1e-6);
}

fn what_is_pruned_stays_zero<B: AutodiffBackend>() {
    use firebox::callback::Pruning;
    use firebox::testing::{Line, line_data};

    struct Weight(f32);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Weight {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if D == 2 {
                self.0 = param.val().into_data().iter().next().unwrap();
            }
        }
    }
    let weight = |model: &Line<B>| {
        let mut weight = Weight(f32::NAN);
        model.visit(&mut weight);
        weight.0
    };
    for (devices, averaging) in [(1, None), (2, None), (1, Some("ema:0.5"))] {
        let (config, _runs) = quiet();
        let config = config
            .with_max_epochs(4)
            .with_weight_averaging(averaging.map(|text: &str| text.parse().unwrap()));
        let device = B::Device::default();
        let run = |config: TrainerConfig| {
            let mut trainer = Trainer::new(config, device.clone())
                .with_devices(vec![device.clone(); devices])
                .with_callback(Pruning::new(0.9).at_epoch(2));
            let mut data = Loaders::new(line_data().batch_size(8));
            trainer
                .fit(Line::<B>::new(&device), &mut data)
                .unwrap()
                .model
        };
        // A line has one weight, and nine tenths of one is one.
        let stopped = run(config.clone().with_max_steps(8));
        assert_ne!(weight(&stopped), 0.0);
        assert_eq!(weight(&run(config.clone().with_resume(Resume::Last))), 0.0);
        let goes_on = config.with_max_epochs(6).with_resume(Resume::Last);
        assert_eq!(weight(&run(goes_on)), 0.0);
    }
}

fn nothing_to_prune_is_said_before_training<B: AutodiffBackend>() {
    use firebox::callback::Pruning;

    let (config, _runs) = quiet();
    for (pruning, said) in [
        (Pruning::new(1.5), "is 1.5; use a number from 0 and below 1"),
        // Its parameters have one dimension.
        (
            Pruning::new(0.5).at_epoch(3),
            "no parameter of `Weights` with two dimensions",
        ),
    ] {
        let rows = Rows::default();
        let error = Trainer::new(config.clone(), B::Device::default())
            .with_callback(pruning)
            .with_logger(rows.clone())
            .fit(Weights::<B>::new(1.0, 1.0), &mut ones::<B>(1))
            .unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(rows.values("train/loss").is_empty());
    }
}

/// x · down · up, of which `up` begins with zeros, as in LoRA.
#[derive(Module, Debug)]
struct LowRank<B: burn::tensor::backend::Backend> {
    down: Param<Tensor<B, 2>>,
    up: Param<Tensor<B, 2>>,
}

impl<B: AutodiffBackend> TrainModule for LowRank<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = LowRank<B::InnerBackend>;

    fn training_step(&self, batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let low = batch.gradients.matmul(self.down.val());
        Ok(low.matmul(self.up.val()).mean().into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
    }
}

impl<B: burn::tensor::backend::Backend> EvalModule for LowRank<B> {
    type Backend = B;
    type Batch = Tokens<B>;
}

fn what_begins_with_zeros_is_not_pruned<B: AutodiffBackend>() {
    use firebox::callback::Pruning;

    let (config, _runs) = quiet();
    let device = B::Device::default();
    let model = LowRank::<B> {
        down: Param::from_tensor(Tensor::from_floats([[1.0, 2.0], [3.0, 4.0]], &device)),
        up: Param::from_tensor(Tensor::zeros([2, 1], &device)),
    };
    let tokens = vec![vec![[1.0, 1.0]]; 4];
    let mut trainer =
        Trainer::new(config.with_max_epochs(2), device).with_callback(Pruning::new(0.5));
    let outcome = trainer.fit(model, &mut Loaders::new(sequences(tokens)));
    let model = outcome.unwrap().model;
    let zeros = |weights: &Param<Tensor<B, 2>>| {
        let weights: Vec<f32> = weights.val().into_data().iter().collect();
        weights.iter().map(|w| *w == 0.0).collect::<Vec<_>>()
    };
    assert_eq!(zeros(&model.down), [true, true, false, false]);
    assert_eq!(zeros(&model.up), [false, false]);
}
