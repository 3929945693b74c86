//! Ways to need less of a device's memory: the results are those without.

use super::models::{Attention, labelled};
use super::*;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use firebox::config::{Resume, Strategy};
use firebox::data::Loaders;
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

fn trained<B: AutodiffBackend>(
    config: TrainerConfig,
    model: &Attention<B>,
    replicas: usize,
) -> Vec<TensorData> {
    let device = B::Device::default();
    let outcome = Trainer::new(config, device.clone())
        .with_devices(vec![device; replicas])
        .fit(model.clone(), &mut Loaders::new(labelled(64)))
        .unwrap();
    numbers(&outcome.model.valid())
}

/// With Adam's moments; also where they are divided over replicas.
fn an_offloaded_optimizer_steps_as_any<B: AutodiffBackend>() {
    let model = Attention::<B>::new(&B::Device::default());
    let config = silent(Precision::F32True).with_max_epochs(1);
    let plain = trained(config.clone(), &model, 1);
    let offloaded = trained(config.clone().with_offload_optimizer(true), &model, 1);
    assert_eq!(offloaded, plain);
    let config = config.with_strategy(Strategy::Zero1);
    let plain = trained(config.clone(), &model, 2);
    let offloaded = trained(config.with_offload_optimizer(true), &model, 2);
    assert_eq!(offloaded, plain);
}

fn an_offloaded_optimizer_resumes_exactly<B: AutodiffBackend>() {
    let model = Attention::<B>::new(&B::Device::default());
    let runs = TempDir::new().unwrap();
    let config = silent(Precision::F32True)
        .with_max_epochs(1)
        .with_run_dir(runs.path());
    let plain = trained(config.clone(), &model, 1);
    let config = config.with_checkpointing(true).with_offload_optimizer(true);
    trained(config.clone().with_max_steps(2), &model, 1);
    let config = config.with_resume("last".parse::<Resume>().unwrap());
    assert_eq!(trained(config.clone(), &model, 1), plain);
    // And without: the file is the same.
    let config = config
        .with_offload_optimizer(false)
        .with_run_dir(runs.path());
    assert_eq!(trained(config, &model, 1), plain);
}
