//! Ways to need less of a device's memory: the results are those without.

use super::models::{Sequences, labelled};
use super::*;
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::gelu;
use burn::tensor::backend::BackendTypes;
use burn::tensor::{Tensor, TensorData};
use firebox::backend::Balanced;
use firebox::config::{Resume, Strategy};
use firebox::data::Loaders;
use firebox::testing::Cpu;
use tempfile::TempDir;

on_each_backend!(
    an_offloaded_optimizer_steps_as_any,
    an_offloaded_optimizer_resumes_exactly,
);

/// Every parameter's numbers.
fn numbers<B: Backend, M: Module<B>>(model: &M) -> Vec<TensorData> {
    struct Read(Vec<TensorData>);
    impl<B: Backend> ModuleVisitor<B> for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut read = Read(Vec::new());
    model.visit(&mut read);
    read.0
}

fn trained<B: AutodiffBackend>(config: TrainerConfig, replicas: usize) -> [f32; 2] {
    let device = B::Device::default();
    let script = vec![
        vec![[1.0, 2.0]],
        vec![[3.0, -1.0]],
        vec![[0.5, 4.0]],
        vec![[2.0, 2.0]],
    ];
    let adam = Optimizers::single(AdamConfig::new().init()).with_lr(0.1);
    let outcome = Trainer::new(config.with_max_epochs(2), device.clone())
        .with_devices(vec![device; replicas])
        .fit_with(
            Weights::<B>::new(1.0, 1.0),
            adam,
            &mut Loaders::new(sequences(script)),
        )
        .unwrap();
    outcome.model.values()
}

/// With Adam's moments, of two parameters in two parts; also where they are divided over replicas.
fn an_offloaded_optimizer_steps_as_any<B: AutodiffBackend>() {
    let config = silent(Precision::F32True);
    let offloads = config.clone().with_offload_optimizer(true);
    assert_eq!(trained::<B>(offloads.clone(), 1), trained::<B>(config, 1));
    let divided = offloads.with_strategy(Strategy::Zero1);
    let plain = silent(Precision::F32True).with_strategy(Strategy::Zero1);
    assert_eq!(trained::<B>(divided, 2), trained::<B>(plain, 2));
}

fn an_offloaded_optimizer_resumes_exactly<B: AutodiffBackend>() {
    let runs = TempDir::new().unwrap();
    let config = silent(Precision::F32True).with_run_dir(runs.path());
    let plain = trained::<B>(config.clone(), 1);
    let config = config.with_checkpointing(true).with_offload_optimizer(true);
    trained::<B>(config.clone().with_max_steps(3), 1);
    let config = config.with_resume("last".parse::<Resume>().unwrap());
    assert_eq!(trained::<B>(config.clone().with_max_steps(5), 1).len(), 2);
    // And without: the file is the same.
    assert_eq!(trained::<B>(config.with_offload_optimizer(false), 1), plain);
}

/// Blocks of a network, one after another, with dropout.
#[derive(Module, Debug)]
struct Deep<B: Backend> {
    embed: Linear<B>,
    blocks: Vec<Block<B>>,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    norm: LayerNorm<B>,
    linear: Linear<B>,
    dropout: firebox::nn::Dropout,
    burns: burn::nn::Dropout,
}

impl<B: Backend> Deep<B> {
    fn new(burns: f64) -> Self {
        let device = B::Device::default();
        let block = || Block {
            norm: LayerNormConfig::new(16).init(&device),
            linear: LinearConfig::new(16, 16).init(&device),
            dropout: firebox::nn::DropoutConfig::new(0.2).init(),
            burns: DropoutConfig::new(burns).init(),
        };
        let model = Self {
            embed: LinearConfig::new(16, 16).init(&device),
            blocks: (0..3).map(|_| block()).collect(),
            head: LinearConfig::new(16, 2).init(&device),
        };
        model.num_params();
        model
    }
}

impl<B: AutodiffBackend> TrainModule for Deep<B> {
    type Backend = B;
    type Batch = Sequences<B>;
    type Eval = Deep<B::InnerBackend>;

    fn training_step(
        &self,
        (x, classes): Sequences<B>,
        cx: &mut StepContext<B>,
    ) -> Result<Loss<B>> {
        let block = |block: &Block<B>, x: Tensor<B, 3>| {
            let hidden = gelu(block.linear.forward(block.norm.forward(x.clone())));
            x + block.burns.forward(block.dropout.forward(hidden))
        };
        let loss = |x: Tensor<B, 3>| {
            let logits = self.head.forward(x.mean_dim(1).flatten(1, 2));
            let loss = CrossEntropyLossConfig::new().init(&logits.device());
            loss.forward(logits, classes)
        };
        cx.checkpoint_blocks(self, &self.blocks, self.embed.forward(x), block, loss)
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(1e-2))
    }
}

impl<B: Backend> EvalModule for Deep<B> {
    type Backend = B;
    type Batch = Sequences<B>;
}

fn deep<B: AutodiffBackend>(config: TrainerConfig, replicas: usize, burns: f64) -> Vec<TensorData> {
    let device = B::Device::default();
    let model = Deep::<B>::new(burns);
    let known = known::<B, _>(model);
    let outcome = Trainer::new(config.with_max_epochs(1), device.clone())
        .with_devices(vec![device; replicas])
        .fit(known, &mut Loaders::new(labelled(48)))
        .unwrap();
    assert!(outcome.metrics.get("train/loss_epoch").unwrap() > 0.0);
    numbers(&outcome.model.valid())
}

/// The model with weights that no generator has drawn.
fn known<B: AutodiffBackend, M: Module<B>>(model: M) -> M {
    struct Known(usize);
    impl<B: AutodiffBackend> ModuleMapper<B> for Known {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let offset = self.0;
            self.0 += 1;
            param.map(|old| {
                let entries = old.shape().num_elements();
                let value = |i: usize| f64::sin((i * 7 + offset * 13) as f64) as f32 / 4.0;
                let values: Vec<f32> = (0..entries).map(value).collect();
                let data = TensorData::new(values, old.shape());
                Tensor::from_data(data, &old.device()).require_grad()
            })
        }
    }
    model.map(&mut Known(0))
}

/// Gradients are those of one pass to rounding: sums go another way through the blocks' ends.
fn close(found: &[TensorData], expected: &[TensorData], tolerance: f64) {
    for (found, expected) in found.iter().zip(expected) {
        let list = |data: &TensorData| data.iter::<f64>().collect::<Vec<_>>();
        assert_close(&list(found), &list(expected), tolerance);
    }
}

#[test]
fn recomputed_blocks_train_as_kept_ones() {
    let config = silent(Precision::F32True);
    let recomputes = config.clone().with_gradient_checkpointing(true);
    let (kept, again) = (
        deep::<Cpu>(config.clone(), 1, 0.0),
        deep::<Cpu>(recomputes.clone(), 1, 0.0),
    );
    close(&again, &kept, 1e-5);
    // Several devices, several batches to a step.
    let two = recomputes.with_accumulate_grad_batches(2);
    let one = config.with_accumulate_grad_batches(2);
    close(&deep::<Cpu>(two, 2, 0.0), &deep::<Cpu>(one, 1, 0.0), 1e-4);
}

#[test]
fn recomputed_blocks_train_in_16_bits() {
    let config = silent(Precision::F16Mixed);
    let kept = deep::<Cpu>(config.clone(), 1, 0.0);
    let again = deep::<Cpu>(config.with_gradient_checkpointing(true), 1, 0.0);
    close(&again, &kept, 2e-2);
}

#[test]
fn blocks_that_cannot_be_repeated_are_refused() {
    let device = <Cpu as BackendTypes>::Device::default();
    let config = silent(Precision::F32True)
        .with_max_steps(1)
        .with_gradient_checkpointing(true);
    let error = Trainer::new(config, device)
        .with_devices([device, device])
        .fit(Deep::<Cpu>::new(0.5), &mut Loaders::new(labelled(16)))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`Block` has Burn's `Dropout`, whose draws do not repeat"),
        "{error}"
    );
}

/// Burn's own checkpointing, which goes by the backend's type.
#[test]
fn balanced_checkpointing_trains_as_without() {
    let config = silent(Precision::F32True);
    let kept = deep::<Cpu>(config.clone(), 1, 0.0);
    let balanced = deep::<Balanced<Cpu>>(config, 1, 0.0);
    close(&balanced, &kept, 1e-5);
}
