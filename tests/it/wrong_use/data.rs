//! Wrong data.

use super::*;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Tensor;
use firebox::data::FallibleDataset;

fn fit_error(runs: &Runs, data: &mut impl DataModule<Net<Cpu>>) -> Error {
    let outcome = runs.trainer().fit(net(Fault::Nothing), data);
    outcome.expect_err("the fit must fail")
}

#[test]
fn no_train_loader() {
    let runs = Runs::new();
    let error = fit_error(&runs, &mut Given::default());
    assert_error(
        &error,
        ErrorKind::Config,
        "the data module `Given` has no train loader; implement `train_loader`",
    );
    runs.assert_nothing_written();
}

#[test]
fn no_loader_for_validate_and_test() {
    let runs = Runs::new();
    let model = net(Fault::Nothing);
    let mut trainer = runs.trainer();
    let error = trainer.validate(&model, &mut Given::default()).unwrap_err();
    assert_error(
        &error,
        ErrorKind::Config,
        "the data module `Given` has no val loader; implement `val_loader`",
    );
    let error = trainer.test(&model, &mut data()).unwrap_err();
    assert_error(
        &error,
        ErrorKind::Config,
        "the data module `Loaders` has no test loader; implement `test_loader`",
    );
    runs.assert_nothing_written();
}

fn nothing<B: Backend>() -> Loader<B, Points<B>> {
    Loader::new(InMemDataset::new(Vec::new()), PointBatcher)
}

#[test]
fn an_empty_data_set() {
    let runs = Runs::new();
    let error = fit_error(&runs, &mut Loaders::new(nothing()));
    assert_error(
        &error,
        ErrorKind::Data,
        "train loader: the data set is empty; it needs at least one sample",
    );
    let error = fit_error(&runs, &mut data().with_val(nothing()));
    assert_error(
        &error,
        ErrorKind::Data,
        "val loader: the data set is empty; it needs at least one sample",
    );
    let mut trainer = runs.trainer();
    let mut none = data().with_test(nothing());
    let error = trainer.test(&net(Fault::Nothing), &mut none).unwrap_err();
    assert_error(
        &error,
        ErrorKind::Data,
        "test loader: the data set is empty; it needs at least one sample",
    );
    runs.assert_nothing_written();
}

impl<B: Backend> PredictModule for Net<B> {
    type Input = Points<B>;
    type Output = Tensor<B, 2>;

    fn predict_step(&self, (x, _): Points<B>, _: &mut StepContext<B>) -> Result<Tensor<B, 2>> {
        Ok(self.linear.forward(x))
    }
}

#[test]
fn an_empty_data_set_for_predictions() {
    let runs = Runs::new();
    let predicted = runs.trainer().predict(&net(Fault::Nothing), &nothing());
    let error = predicted.expect_err("there is nothing to predict");
    assert_error(
        &error,
        ErrorKind::Data,
        "predict loader: the data set is empty; it needs at least one sample",
    );
    runs.assert_nothing_written();
}

/// Gives x with two columns, where the model has one input.
struct TwoColumns;

impl<B: Backend> Batcher<B, (f32, f32), Points<B>> for TwoColumns {
    fn batch(&self, points: Vec<(f32, f32)>, device: &B::Device) -> Points<B> {
        let n = points.len();
        (Tensor::zeros([n, 2], device), Tensor::zeros([n, 1], device))
    }
}

fn two_columns<B: Backend>() -> Loader<B, Points<B>> {
    Loader::new(InMemDataset::new(vec![(0.0, 1.0); 8]), TwoColumns).batch_size(4)
}

/// What Burn says about shapes is its own; where it happened is ours.
#[track_caller]
fn assert_shape_error(error: &Error, place: &str) {
    let text = error.to_string();
    assert!(text.starts_with(&format!("{place}: panicked: ")), "{text}");
    assert!(text.contains("inner dimensions must match"), "{text}");
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::User, 1));
}

#[test]
fn a_batch_of_another_shape() {
    let runs = Runs::new();
    let error = fit_error(&runs, &mut Loaders::new(two_columns()));
    assert_shape_error(&error, "epoch 0, batch 0, step 0: training_step");
    assert!(runs.assert_whole().is_empty());
}

#[test]
fn a_validation_batch_of_another_shape() {
    let runs = Runs::new();
    let error = fit_error(&runs, &mut data().with_val(two_columns()));
    assert_shape_error(&error, "sanity check: val batch 0");
    assert!(runs.assert_whole().is_empty());

    let mut trainer = runs.trainer();
    let mut data = data().with_test(two_columns());
    let error = trainer.test(&net(Fault::Nothing), &mut data).unwrap_err();
    assert_shape_error(&error, "test batch 0");
    let predicted = trainer.predict(&net(Fault::Nothing), &two_columns());
    assert_shape_error(&predicted.err().unwrap(), "predict batch 0");
}

/// Sample 9 cannot be read, or is not there, or panics.
#[derive(Clone, Copy)]
enum Broken {
    Error,
    Missing,
    Panic,
}

impl FallibleDataset<(f32, f32)> for Broken {
    fn try_get(&self, index: usize) -> Result<(f32, f32)> {
        match (index, self) {
            (9, Self::Panic) => panic!("cannot decode"),
            (9, _) => Err(Error::data("cannot decode")),
            _ => Ok((index as f32 / 16.0, 1.0)),
        }
    }
    fn len(&self) -> usize {
        16
    }
}

impl Dataset<(f32, f32)> for Broken {
    fn get(&self, index: usize) -> Option<(f32, f32)> {
        (index != 9).then_some((0.0, 1.0))
    }
    fn len(&self) -> usize {
        16
    }
}

#[test]
fn a_sample_that_fails_in_the_middle_of_an_epoch() {
    for (broken, message) in [
        (
            Broken::Error,
            "epoch 0, batch 2, step 2: train data: sample 9: cannot decode",
        ),
        (
            Broken::Missing,
            "epoch 0, batch 2, step 2: train data: sample 9: the data set gave no item, although its length is 16; `Dataset::get` must give one for every index below `len`",
        ),
        (
            Broken::Panic,
            "epoch 0, batch 2, step 2: train data: loading sample 9 panicked: cannot decode",
        ),
    ] {
        for workers in [0, 2] {
            let train = match broken {
                Broken::Missing => Loader::new(broken, PointBatcher),
                _ => Loader::from_fallible(broken, PointBatcher),
            };
            let runs = Runs::new();
            let train = train.batch_size(4).workers(workers);
            let error = fit_error(&runs, &mut Loaders::new(train));
            assert_error(&error, ErrorKind::Data, message);
            // The two steps before it are kept.
            assert_eq!(runs.assert_whole(), ["epoch=0-step=2"]);
        }
    }
}

#[test]
fn a_validation_sample_that_fails() {
    let runs = Runs::new();
    let val = Loader::from_fallible(Broken::Error, PointBatcher).batch_size(4);
    let error = fit_error(&runs, &mut data().with_val(val));
    assert_error(
        &error,
        ErrorKind::Data,
        "epoch 0, batch 4, step 4: validation: val data: sample 9: cannot decode",
    );
    assert_eq!(runs.assert_whole(), ["epoch=0-step=4"]);
}

/// A data module that fails, or panics, in one of its methods.
struct Failing {
    method: &'static str,
    panics: bool,
}

impl Failing {
    fn reach(&self, method: &str) -> Result<()> {
        match method == self.method {
            true if self.panics => panic!("the disk is gone"),
            true => Err(Error::data("the disk is gone")),
            false => Ok(()),
        }
    }
}

impl DataModule<Net<Cpu>> for Failing {
    fn prepare(&mut self) -> Result<()> {
        self.reach("prepare")
    }
    fn setup(&mut self, _: Stage) -> Result<()> {
        self.reach("setup")
    }
    fn train_loader(&self) -> Result<Option<TrainLoader<Net<Cpu>>>> {
        self.reach("train_loader").map(|()| Some(points()))
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<Net<Cpu>>>> {
        self.reach("val_loader").map(|()| Some(points()))
    }
}

#[test]
fn a_data_module_that_fails() {
    for method in ["prepare", "setup", "train_loader", "val_loader"] {
        for panics in [false, true] {
            let runs = Runs::new();
            let error = fit_error(&runs, &mut Failing { method, panics });
            let panicked = if panics { "panicked: " } else { "" };
            let message = format!("{method}: {panicked}the disk is gone");
            assert_error(&error, ErrorKind::Data, &message);
            runs.assert_nothing_written();

            if method != "train_loader" {
                let mut data = Failing { method, panics };
                let model = net(Fault::Nothing);
                let error = runs.trainer().validate(&model, &mut data).unwrap_err();
                assert_error(&error, ErrorKind::Data, &message);
            }
        }
    }
}
