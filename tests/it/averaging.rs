//! Averages of weights: closed forms, what is validated and saved, and exact resumes.

use crate::support::*;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::ErrorKind;
use firebox::checkpoint::{Checkpoint, Weights as Saved};
use firebox::config::{Resume, Strategy, WeightAveraging};
use firebox::data::Loaders;
use firebox::prelude::*;

on_each_backend!(
    an_exponential_average_is_its_closed_form,
    a_stochastic_average_is_the_mean_of_epochs,
    the_average_is_validated_and_saved,
    a_resumed_average_goes_on,
    a_skipped_step_is_not_averaged,
    replicas_have_the_average_of_one,
);

const EMA: WeightAveraging = WeightAveraging::Ema { decay: 0.5 };

/// w = 1 - sum / 8; e_1 = w_1, then e_n = (e_(n-1) + w_n) / 2. All exact in 32 bits.
fn averages(gradients: &[f32]) -> (f32, f32) {
    let (mut w, mut average) = (1.0, None);
    for g in gradients {
        w -= g / 8.0;
        average = Some(average.map_or(w, |e: f32| (e + w) / 2.0));
    }
    (w, average.unwrap())
}

fn an_exponential_average_is_its_closed_form<B: AutodiffBackend>() {
    let script = [1.0, 2.0, 4.0, 1.0];
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_weight_averaging(EMA);
    let data = Loaders::new(gradients(script));
    let (outcome, rows) = fit::<B>(config, sgd(0.125), data);
    let (_, average) = averages(&script);
    assert_eq!(outcome.model.values(), [average, 1.0]);
    // Training goes on with the weights themselves: the loss of a step is g · w.
    assert_eq!(rows.values("train/loss")[1], 2.0 * 0.875);
}

fn a_stochastic_average_is_the_mean_of_epochs<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let swa = WeightAveraging::Swa { start: 0.5 };
    let config = config.with_max_epochs(4).with_weight_averaging(swa);
    let (outcome, _) = fit::<B>(config, sgd(0.125), ones(2));
    // At the ends of epochs 2 and 3: 1 - 6/8 and 1 - 8/8.
    assert_eq!(outcome.model.values(), [0.125, 1.0]);
}

fn the_average_is_validated_and_saved<B: AutodiffBackend>() {
    let script = [1.0, 2.0, 4.0];
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_weight_averaging(EMA);
    let data = Loaders::new(gradients(script)).with_val(gradients([0.0]));
    let validated = std::rc::Rc::new(std::cell::Cell::new(0.0));
    let seen = std::rc::Rc::clone(&validated);
    let outcome = Trainer::new(config, B::Device::default())
        .with_callback(firebox::callback::Closure::at(
            firebox::callback::Hook::EvalEnd,
            move |cx: &mut RunContext<'_, Weights<B>>| {
                seen.set(cx.model().values()[0]);
                Ok(())
            },
        ))
        .fit_with(Weights::new(1.0, 1.0), sgd(0.125), &mut { data })
        .unwrap();
    let (trained, average) = averages(&script);
    assert_eq!(validated.get(), average);
    let last = outcome.last_checkpoint.unwrap();
    let device = B::Device::default();
    let _ = &device;
    let loaded = firebox::checkpoint::load_model(&last, Weights::<B>::new(0.0, 0.0)).unwrap();
    assert_eq!(loaded.values()[0], average);
    let (loaded, _) = Saved::open(last.join("trained.safetensors"))
        .unwrap()
        .load(Weights::<B>::new(0.0, 0.0))
        .unwrap();
    assert_eq!(loaded.values()[0], trained);
}

fn a_resumed_average_goes_on<B: AutodiffBackend>() {
    let script = [1.0, 2.0, 4.0, 1.0, 2.0];
    let (config, runs) = quiet();
    let config = config.with_max_epochs(1).with_weight_averaging(EMA);
    let data = || Loaders::new(gradients(script));
    let (whole, _) = fit::<B>(config.clone(), sgd(0.125), data());
    let config = config.with_run_dir(runs.path().join("stopped"));
    fit::<B>(config.clone().with_max_steps(2), sgd(0.125), data());
    let resume = config.with_resume("last".parse::<Resume>().unwrap());
    let (resumed, _) = fit::<B>(resume.clone(), sgd(0.125), data());
    assert_eq!(resumed.model.values(), whole.model.values());
    let files = |outcome: &FitOutcome<Weights<B>>, name| {
        std::fs::read(outcome.last_checkpoint.as_ref().unwrap().join(name)).unwrap()
    };
    for name in ["model.safetensors", "trained.safetensors"] {
        assert_eq!(files(&resumed, name), files(&whole, name), "{name}");
    }
    // Without an average, a resumed run goes on from what was trained.
    let plain = resume.with_weight_averaging(None).with_max_epochs(2);
    let (plain, _) = fit::<B>(plain, sgd(0.0), data());
    assert_eq!(plain.model.values()[0], averages(&script).0);
    let state = Checkpoint::open(plain.last_checkpoint.unwrap()).unwrap();
    assert_eq!(state.progress().global_step, 10);
}

fn a_skipped_step_is_not_averaged<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1).with_weight_averaging(EMA);
    let data = Loaders::new(gradients([1.0, f32::INFINITY, 2.0]));
    let (outcome, _) = fit::<B>(config, sgd(0.125), data);
    assert_eq!(outcome.model.values()[0], averages(&[1.0, 2.0]).1);
}

mod on_the_processor {
    use super::running_statistics_are_those_of_the_average;

    on_each_backend!(cpu: running_statistics_are_those_of_the_average);
}

/// One weight times the batch, normalized; the statistics are those of `w · x`.
#[derive(Module, Debug)]
struct Scaled<B: Backend> {
    w: Param<Tensor<B, 1>>,
    norm: BatchNorm<B>,
}

impl<B: AutodiffBackend> TrainModule for Scaled<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = Scaled<B::InnerBackend>;

    fn training_step(&self, batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let x = batch.gradients.narrow(1, 0, 1) * self.w.val().unsqueeze();
        let normal = self.norm.forward::<2>(x);
        // The gradient of the weight is 1.
        Ok((normal.mean().detach() * 0.0 + self.w.val()).into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let sgd = burn::optim::SgdConfig::new().init();
        Ok(Optimizers::single(sgd).with_lr(0.25))
    }
}

impl<B: Backend> EvalModule for Scaled<B> {
    type Backend = B;
    type Batch = Tokens<B>;
}

fn running_statistics_are_those_of_the_average<B: AutodiffBackend>() {
    let device = B::Device::default();
    let model = Scaled::<B> {
        w: Param::from_tensor(Tensor::from_floats([4.0], &device)),
        // Takes all of the new batch.
        norm: BatchNormConfig::new(1).with_momentum(1.0).init(&device),
    };
    let (config, _runs) = quiet();
    let swa = WeightAveraging::Swa { start: 0.0 };
    let config = config
        .with_max_epochs(3)
        .with_weight_averaging(swa)
        .with_precision("32-true".parse().unwrap());
    let data = sequences(vec![vec![[2.0, 0.0]], vec![[6.0, 0.0]]]).batch_size(2);
    let outcome = Trainer::new(config, device)
        .fit(model, &mut Loaders::new(data))
        .unwrap();
    let value = |tensor: Tensor<B, 1>| tensor.into_data().iter::<f64>().next().unwrap();
    // The mean of 3.75, 3.5 and 3.25, times the batch's mean of 4.
    assert_close(&[value(outcome.model.w.val())], &[3.5], 1e-6);
    let mean = value(outcome.model.norm.running_mean.value_sync());
    assert_close(&[mean], &[14.0], 1e-5);
}

fn replicas_have_the_average_of_one<B: AutodiffBackend>() {
    let run = |replicas| {
        let (config, _runs) = quiet();
        let config = config.with_max_epochs(2).with_weight_averaging(EMA);
        let cpu = B::Device::default();
        let data = gradients([1.0, 2.0, 3.0, 4.0]).batch_size(2);
        Trainer::new(config, cpu.clone())
            .with_devices(vec![cpu; replicas])
            .fit_with(
                Weights::<B>::new(1.0, 1.0),
                sgd(0.125),
                &mut Loaders::new(data),
            )
            .unwrap()
            .model
            .values()
    };
    assert_eq!(run(2), run(1));
}

#[test]
fn what_cannot_be_averaged_is_refused() {
    let config = TrainerConfig::new()
        .with_weight_averaging(EMA)
        .with_strategy(Strategy::FedAvg { every_n_steps: 2 });
    let error = config.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().contains("leave one of them out"),
        "{error}"
    );
    let config = TrainerConfig::new()
        .with_max_steps(5)
        .with_weight_averaging(WeightAveraging::Swa { start: 0.8 });
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("set it, or use ema"), "{error}");
}
