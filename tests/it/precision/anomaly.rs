//! Where the first number that is not finite came from, and norms of the model's parts.

use super::models::{Attention, Sequences, labelled};
use super::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, backend::Backend};
use firebox::ErrorKind;
use firebox::config::GradNorms;
use firebox::data::Loaders;

on_each_backend!(norms_of_parts_make_up_the_whole);

mod on_the_processor {
    use super::*;

    on_each_backend!(
        cpu: the_layer_whose_output_overflows_is_named,
        the_layer_whose_gradient_overflows_is_named,
        formats_that_meet_are_named,
        a_sound_model_is_let_pass,
    );
}

/// What the model does in its second layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The logarithm of 0 in the forward pass.
    Output,
    /// The root of 0, whose slope is infinite.
    Gradient,
    /// Numbers of 64 bits.
    Format,
}

#[derive(Module, Debug)]
struct Faulty<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
    #[module(skip)]
    fault: Fault,
}

impl<B: Backend> Faulty<B> {
    fn new(fault: Fault) -> Self {
        let device = B::Device::default();
        Self {
            first: LinearConfig::new(16, 4).init(&device),
            second: LinearConfig::new(4, 1).init(&device),
            fault,
        }
    }
}

impl<B: AutodiffBackend> TrainModule for Faulty<B> {
    type Backend = B;
    type Batch = Sequences<B>;
    type Eval = Faulty<B::InnerBackend>;

    fn training_step(&self, (x, _): Sequences<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let hidden: Tensor<B, 2> = self.first.forward(x.mean_dim(1).flatten(1, 2));
        let zero = hidden.clone() * 0.0;
        let hidden = match self.fault {
            Fault::Output => hidden + zero.log(),
            Fault::Gradient => hidden + zero.sqrt(),
            Fault::Format => hidden.cast(DType::F64),
        };
        Ok(self.second.forward(hidden).mean().into())
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
    }
}

impl<B: Backend> EvalModule for Faulty<B> {
    type Backend = B;
    type Batch = Sequences<B>;
}

fn error_of<B: AutodiffBackend>(fault: Fault) -> firebox::Error {
    let config = silent(Precision::F32True)
        .with_max_steps(1)
        .with_detect_anomaly(true);
    Trainer::new(config, Default::default())
        .fit(Faulty::<B>::new(fault), &mut Loaders::new(labelled(16)))
        .unwrap_err()
}

fn the_layer_whose_output_overflows_is_named<B: AutodiffBackend>() {
    let error = error_of::<B>(Fault::Output);
    assert_eq!(error.kind(), ErrorKind::NonFinite);
    let error = error.to_string();
    let first = "the first result that is not finite is that of `log` after `first.";
    assert!(error.contains(first), "{error}");
    assert!(error.ends_with(", in the forward pass"), "{error}");
}

fn the_layer_whose_gradient_overflows_is_named<B: AutodiffBackend>() {
    let error = error_of::<B>(Fault::Gradient).to_string();
    assert!(error.contains("the gradient of `first.weight`"), "{error}");
    assert!(error.ends_with(", in the backward pass"), "{error}");
}

fn formats_that_meet_are_named<B: AutodiffBackend>() {
    if !has::<B>(DType::F64) {
        return;
    }
    let error = error_of::<B>(Fault::Format);
    assert_eq!(error.kind(), ErrorKind::User);
    let error = error.to_string();
    assert!(error.contains("numbers of F64 and F32"), "{error}");
    assert!(
        error.contains("meet in `linear` with `second.weight`"),
        "{error}"
    );
}

fn a_sound_model_is_let_pass<B: AutodiffBackend>() {
    let device = B::Device::default();
    let config = silent(Precision::F32True)
        .with_max_steps(2)
        .with_detect_anomaly(true);
    let fitted = Trainer::new(config, device.clone())
        .fit(
            Attention::<B>::new(&device),
            &mut Loaders::new(labelled(32)),
        )
        .unwrap();
    assert_eq!(fitted.progress.global_step, 2);
}

fn norms_of_parts_make_up_the_whole<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config
        .with_max_epochs(1)
        .with_log_grad_norms(GradNorms::Parts);
    let data = Loaders::new(sequences(vec![vec![[3.0, 4.0]]]));
    let (_, rows) = fit::<B>(config, sgd(1.0), data);
    assert_eq!(rows.values("train/grad_norm/a"), [3.0]);
    assert_eq!(rows.values("train/grad_norm/b"), [4.0]);
    assert_eq!(rows.values("train/grad_norm"), [5.0]);
}
