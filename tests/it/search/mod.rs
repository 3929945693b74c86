//! Searches for the learning rate and the batch size: what they find.

mod traces;

use crate::support::*;
use burn::module::Module;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::ErrorKind;
use firebox::callback::{Closure, Hook};
use firebox::config::Limit;
use firebox::data::{DataModule, Loaders};
use firebox::optim::schedule::{Exponential, ScheduleInterval};
use firebox::prelude::*;
use firebox::trainer::{
    BatchSizeMode, BatchSizeSearch, LearningRateMode, LearningRateSearch, LearningRates,
};
use std::sync::atomic::{AtomicUsize, Ordering};

on_each_backend!(
    learning_rates_are_those_of_the_steps,
    gradients_are_accumulated_and_clipped,
    two_searches_agree,
    the_model_and_the_trainer_stay_as_they_are,
    optimizers_without_one_learning_rate_are_refused,
    data_without_batches_is_an_error,
    the_largest_batch_that_fits_is_found,
    no_batch_is_larger_than_the_data,
    a_batch_that_never_fits_is_an_error,
    errors_of_other_kinds_are_passed_on,
    a_development_run_tries_little,
);

fn rates<B: AutodiffBackend>(
    config: TrainerConfig,
    data: &mut Loaders<Weights<B>>,
    search: LearningRateSearch,
) -> LearningRates {
    let model = Weights::new(1.0, 1.0);
    Trainer::new(config, B::Device::default())
        .find_learning_rate(&model, data, search)
        .unwrap()
}

fn losses(rates: &LearningRates) -> Vec<f64> {
    rates.points().iter().map(|point| point.loss).collect()
}

fn learning_rates(rates: &LearningRates) -> Vec<f64> {
    rates.points().iter().map(|point| point.lr).collect()
}

fn learning_rates_are_those_of_the_steps<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let search = LearningRateSearch::new()
        .with_min(0.01)
        .with_max(0.05)
        .with_steps(5)
        .with_mode(LearningRateMode::Linear)
        .with_stop_above(None);
    // Three steps an epoch, so that the fourth is of the second one.
    let rates = rates::<B>(config, &mut ones(3), search);
    let expected = [0.01, 0.02, 0.03, 0.04, 0.05];
    assert_close(&learning_rates(&rates), &expected, 1e-12);
    assert!(rates.points().iter().all(|p| (0.01..=0.05).contains(&p.lr)));
    // The loss is the weight, which moves by the learning rate.
    assert_close(&losses(&rates), &[1.0, 0.99, 0.97, 0.94, 0.90], 1e-6);
    assert_eq!(rates.suggestion(), None);
    assert!(rates.to_svg().starts_with("<svg"));
}

fn gradients_are_accumulated_and_clipped<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_accumulate_grad_batches(2)
        .with_gradient_clip(GradientClip::Norm(0.5));
    let search = LearningRateSearch::new()
        .with_min(0.1)
        .with_max(0.4)
        .with_steps(4)
        .with_mode(LearningRateMode::Linear)
        .with_stop_above(None);
    // Five batches are three steps, the last of one batch.
    let rates = rates::<B>(config, &mut ones(5), search);
    assert_close(&losses(&rates), &[1.0, 0.95, 0.85, 0.70], 1e-6);
}

fn two_searches_agree<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let mut data = Loaders::new(
        gradients((0..24).map(|i| 1.0 + i as f32 / 8.0))
            .batch_size(3)
            .shuffle(true),
    );
    let search = LearningRateSearch::new().with_min(1e-4).with_steps(40);
    let first = rates::<B>(config.clone(), &mut data, search);
    let second = rates::<B>(config.clone(), &mut data, search);
    assert!(first.suggestion().is_some());
    assert_eq!(first, second);
    // The order is that of the seed.
    let other = rates::<B>(config.with_seed(1), &mut data, search);
    assert_ne!(losses(&first), losses(&other));
}

fn the_model_and_the_trainer_stay_as_they_are<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let rows = Rows::default();
    let never = |hook| {
        Closure::at(hook, |_: &mut RunContext<'_, Weights<B>>| {
            Err(Error::user("a callback was asked"))
        })
    };
    let mut trainer = Trainer::new(config, B::Device::default())
        .with_callback(never(Hook::FitStart))
        .with_callback(never(Hook::OptimizerStep))
        .with_logger(rows.clone());
    let model = Weights::new(1.0, 2.0);
    let mut data = ones(8);
    trainer
        .find_learning_rate(&model, &mut data, LearningRateSearch::new())
        .unwrap();
    let size = trainer.find_batch_size(&model, &mut data, BatchSizeSearch::new());
    assert_eq!(size.unwrap(), 8);
    assert_eq!(model.values(), [1.0, 2.0]);
    assert!(rows.steps("train/loss").is_empty());
    let left: Vec<_> = std::fs::read_dir(runs.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let loader = DataModule::<Weights<B>>::train_loader(&data).unwrap();
    assert_eq!(loader.unwrap().global_batch_size(), 1);
}

/// Weights with optimizers of their own.
#[derive(Module, Debug)]
struct Special<B: Backend> {
    weights: Weights<B>,
    #[module(skip)]
    optimizers: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    ByHand,
    TwoRates,
    TwoGroups,
}

impl<B: AutodiffBackend> TrainModule for Special<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = Special<B::InnerBackend>;

    fn training_step(&self, batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.weights.loss(batch.gradients).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let sgd = || burn::optim::SgdConfig::new().init();
        let of_a = ParamGroup::new("a", ["*.a"], sgd());
        Ok(match self.optimizers {
            Kind::ByHand => Optimizers::manual().with_group(of_a.with_lr(0.1)),
            Kind::TwoRates => Optimizers::single(sgd())
                .with_lr(0.2)
                .with_group(of_a.with_lr(0.1)),
            Kind::TwoGroups => Optimizers::single(sgd())
                .with_lr(0.2)
                .with_group(of_a.with_schedule(ScheduleInterval::Step, Exponential::new(0.5))),
        })
    }
}

impl<B: Backend> EvalModule for Special<B> {
    type Backend = B;
    type Batch = Tokens<B>;
}

fn optimizers_without_one_learning_rate_are_refused<B: AutodiffBackend>() {
    let find = |optimizers| {
        let (config, _runs) = quiet();
        let model = Special::<B> {
            weights: Weights::new(1.0, 1.0),
            optimizers,
        };
        let search = LearningRateSearch::new()
            .with_min(0.01)
            .with_max(0.02)
            .with_steps(2);
        Trainer::new(config, B::Device::default()).find_learning_rate(
            &model,
            &mut Loaders::new(gradients([1.0])),
            search,
        )
    };
    for (optimizers, message) in [
        (
            Kind::ByHand,
            "`Special` steps its optimizers by hand, so there is no learning rate to find for it; \
             try some with `fit`",
        ),
        (
            Kind::TwoRates,
            "the parameter groups of `Special` have different learning rates, and a search finds \
             one; give all of them the same",
        ),
    ] {
        let error = find(optimizers).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), message);
    }
    // Whatever their schedules say.
    let rates = find(Kind::TwoGroups).unwrap();
    assert_close(&losses(&rates), &[1.0, 0.99], 1e-6);
}

struct NoData;

impl<B: AutodiffBackend> DataModule<Weights<B>> for NoData {}

fn data_without_batches_is_an_error<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let model = Weights::<B>::new(1.0, 1.0);
    let mut trainer = Trainer::new(config.clone(), B::Device::default());
    let error = trainer.find_learning_rate(&model, &mut NoData, LearningRateSearch::new());
    assert_eq!(
        error.unwrap_err().to_string(),
        "the data module `NoData` has no train loader; implement `train_loader`"
    );
    let empty = Loader::from_stream(|_| Ok(std::iter::empty()), TokenBatcher);
    let mut empty = Loaders::new(empty);
    let error = trainer.find_learning_rate(&model, &mut empty, LearningRateSearch::new());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(
        error.to_string().contains("the stream gave no item"),
        "{error}"
    );
    let mut trainer = Trainer::new(
        config.with_limit_train_batches(Limit::NONE),
        B::Device::default(),
    );
    let error = trainer.find_batch_size(&model, &mut ones(4), BatchSizeSearch::new());
    assert_eq!(
        error.unwrap_err().to_string(),
        "`limit_train_batches` is 0, so there is nothing to search with; use 1 or more"
    );
}

/// Weights on a device whose memory is full from so many samples on, and how it says so.
#[derive(Module, Debug)]
struct Limited<B: Backend> {
    weights: Weights<B>,
    #[module(skip)]
    fits: usize,
    #[module(skip)]
    refusal: Refusal,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Refusal {
    Error,
    Panic,
    /// Something else goes wrong.
    Other,
}

impl<B: AutodiffBackend> TrainModule for Limited<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = Limited<B::InnerBackend>;

    fn training_step(&self, batch: Tokens<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        // In the last step of a trial.
        if cx.samples() > self.fits && cx.progress().global_step == 2 {
            match self.refusal {
                Refusal::Error => {
                    let why = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
                    return Err(Error::user("the step failed").with_source(why));
                }
                Refusal::Panic => panic!("wgpu error: Out of Memory\n"),
                Refusal::Other => return Err(Error::user("the step has had enough")),
            }
        }
        Ok(self.weights.loss(batch.gradients).into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(burn::optim::SgdConfig::new().init()).with_lr(0.1))
    }
}

impl<B: Backend> EvalModule for Limited<B> {
    type Backend = B;
    type Batch = Tokens<B>;
}

fn size<B: AutodiffBackend>(
    samples: usize,
    fits: usize,
    refusal: Refusal,
    search: BatchSizeSearch,
) -> Result<usize> {
    let (config, _runs) = quiet();
    let model = Limited::<B> {
        weights: Weights::new(1.0, 1.0),
        fits,
        refusal,
    };
    let mut data = Loaders::new(gradients(vec![1.0; samples]).shuffle(true));
    Trainer::new(config, B::Device::default()).find_batch_size(&model, &mut data, search)
}

fn the_largest_batch_that_fits_is_found<B: AutodiffBackend>() {
    let search = BatchSizeSearch::new();
    let four = search.with_max_trials(4);
    let all = usize::MAX;
    assert_eq!(size::<B>(1000, all, Refusal::Error, four).unwrap(), 16);
    for refusal in [Refusal::Error, Refusal::Panic] {
        let find = |search| size::<B>(2000, 100, refusal, search).unwrap();
        assert_eq!(find(search), 64);
        assert_eq!(find(search.with_start(500)), 62);
        let binary = search.with_mode(BatchSizeMode::BinarySearch);
        assert_eq!(find(binary), 95);
        assert_eq!(find(binary.with_start(500).with_margin(0.0)), 100);
    }
}

fn no_batch_is_larger_than_the_data<B: AutodiffBackend>() {
    for mode in [BatchSizeMode::Power, BatchSizeMode::BinarySearch] {
        let search = BatchSizeSearch::new().with_mode(mode);
        let find = |search| size::<B>(20, usize::MAX, Refusal::Error, search).unwrap();
        assert_eq!(find(search), 20);
        assert_eq!(find(search.with_start(500)), 20);
        assert_eq!(find(search.with_most(12)), 12);
    }
}

fn a_batch_that_never_fits_is_an_error<B: AutodiffBackend>() {
    let error = size::<B>(20, 0, Refusal::Panic, BatchSizeSearch::new()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "finding the batch size: not even a batch size of 1 fits in memory; use a smaller \
             model: epoch 0, batch 2, step 2: training_step: panicked: wgpu error: Out of Memory"
        ),
        "{text}"
    );
}

fn errors_of_other_kinds_are_passed_on<B: AutodiffBackend>() {
    let error = size::<B>(40, 4, Refusal::Other, BatchSizeSearch::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::User);
    assert_eq!(
        error.to_string(),
        "finding the batch size: epoch 0, batch 2, step 2: training_step: the step has had enough"
    );
}

/// A data module that counts how often it is asked.
#[derive(Default)]
struct Counted {
    prepared: usize,
    set_up: usize,
    asked: AtomicUsize,
}

impl<B: AutodiffBackend> DataModule<Weights<B>> for Counted {
    fn prepare(&mut self) -> Result<()> {
        self.prepared += 1;
        Ok(())
    }
    fn setup(&mut self, stage: Stage) -> Result<()> {
        assert_eq!((stage, self.prepared), (Stage::Train, self.set_up + 1));
        self.set_up += 1;
        Ok(())
    }
    fn train_loader(&self) -> Result<Option<firebox::data::TrainLoader<Weights<B>>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Some(gradients([1.0; 8])))
    }
    fn val_loader(&self) -> Result<Option<firebox::data::EvalLoader<Weights<B>>>> {
        Err(Error::data("asked for validation data"))
    }
}

fn a_development_run_tries_little<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let model = Weights::<B>::new(1.0, 1.0);
    let mut trainer = Trainer::new(config.with_fast_dev_run(2), B::Device::default());
    let mut data = Counted::default();
    let rates = trainer.find_learning_rate(&model, &mut data, LearningRateSearch::new());
    assert_eq!(rates.unwrap().points().len(), 2);
    let size = trainer.find_batch_size(&model, &mut data, BatchSizeSearch::new());
    assert_eq!(size.unwrap(), 2);
    let asked = data.asked.load(Ordering::Relaxed);
    assert_eq!((data.prepared, data.set_up, asked), (2, 2, 2));
}
