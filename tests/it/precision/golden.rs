//! Runs whose losses in 16 and 64 bits are those in 32.

use super::models::{Attention, Normalized, Recurrent, Sequences, labelled};
use super::*;
use burn::module::AutodiffModule;
use firebox::callback::{Closure, Hook};
use firebox::config::{LossScale, Resume, Strategy};
use firebox::data::Loaders;
use std::cell::RefCell;
use std::rc::Rc;

on_each_backend!(
    cpu: attention_in_64_bits_is_that_in_32,
    a_recurrent_network_in_64_bits_is_that_in_32,
    a_run_resumes_exactly_in_every_format,
);

mod on_each {
    use super::an_f16_step_runs;

    on_each_backend!(an_f16_step_runs);
}

/// Trains; the loss of each step.
fn losses<M: TrainModule>(
    config: TrainerConfig,
    model: M,
    data: &mut impl DataModule<M>,
) -> Vec<f64> {
    let losses = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&losses);
    let mut trainer = Trainer::new(config, Default::default()).with_callback(Closure::at(
        Hook::OptimizerStep,
        move |cx: &mut RunContext<'_, M>| {
            let loss = cx.results().get("train/loss");
            seen.borrow_mut().push(loss.unwrap());
            Ok(())
        },
    ));
    trainer.fit(model, data).unwrap();
    drop(trainer);
    Rc::into_inner(losses).unwrap().into_inner()
}

/// The mean of the last losses, as one batch says little.
fn last(losses: &[f64]) -> f64 {
    let last = &losses[losses.len() - 25..];
    last.iter().sum::<f64>() / last.len() as f64
}

/// After 200 steps the loss is within 2 % of that in 32 bits; 16 bits do make a difference.
#[cfg(feature = "flex")]
fn learns_in_16_bits<B, M>(model: &M)
where
    B: AutodiffBackend,
    M: TrainModule<Backend = B, Batch = Sequences<B>>,
{
    let run = |precision| {
        let mut data = Loaders::new(labelled(320));
        let config = silent(precision).with_max_steps(200);
        losses(config, model.clone(), &mut data)
    };
    let full = run(Precision::F32True);
    assert!(last(&full) < 0.9 * full[0], "{full:?}");
    for precision in [Precision::Bf16Mixed, Precision::F16Mixed] {
        let half = run(precision);
        let off = (last(&half) - last(&full)).abs() / last(&full);
        println!(
            "{precision}: {} for {}, off by {off:.4}",
            last(&half),
            last(&full)
        );
        assert!(
            off < 0.02,
            "{precision}: {} for {}",
            last(&half),
            last(&full)
        );
        assert_ne!(half, full, "{precision}");
    }
}

#[cfg(feature = "flex")]
#[test]
fn attention_learns_in_16_bits() {
    learns_in_16_bits(&Attention::<firebox::testing::Cpu>::new(&Default::default()));
}

#[cfg(feature = "flex")]
#[test]
fn a_recurrent_network_learns_in_16_bits() {
    learns_in_16_bits(&Recurrent::<firebox::testing::Cpu>::new(&Default::default()));
}

/// 20 steps in 64 bits and in 32.
fn is_the_same_in_64_bits<B, M>(model: &M)
where
    B: AutodiffBackend,
    M: TrainModule<Backend = B, Batch = Sequences<B>>,
{
    if !has::<B>(DType::F64) {
        return;
    }
    let run = |precision| {
        let mut data = Loaders::new(labelled(160));
        losses(
            silent(precision).with_max_steps(20),
            model.clone(),
            &mut data,
        )
    };
    let (single, double) = (run(Precision::F32True), run(Precision::F64True));
    for (single, double) in single.iter().zip(&double) {
        assert!(
            (single - double).abs() / double < 1e-5,
            "{single} and {double}"
        );
    }
    assert_ne!(single, double);
}

fn attention_in_64_bits_is_that_in_32<B: AutodiffBackend>() {
    is_the_same_in_64_bits(&Attention::<B>::new(&B::Device::default()));
}

fn a_recurrent_network_in_64_bits_is_that_in_32<B: AutodiffBackend>() {
    is_the_same_in_64_bits(&Recurrent::<B>::new(&B::Device::default()));
}

/// One step where the device has f16, also through layers that make tensors of their own.
fn an_f16_step_runs<B: AutodiffBackend>() {
    if !has::<B>(DType::F16) {
        return;
    }
    let device = B::Device::default();
    let config = silent(Precision::F16Mixed).with_max_steps(1);
    let model = Recurrent::<B>::new(&device);
    let half = losses(config, model.clone(), &mut Loaders::new(labelled(16)));
    let config = silent(Precision::F32True).with_max_steps(1);
    let full = losses(config, model, &mut Loaders::new(labelled(16)));
    assert_close(&half, &full, 5e-3);
}

/// A run that stops after 3 steps and goes on; what its last checkpoint holds.
fn a_run_resumes_exactly_in_every_format<B: AutodiffBackend>() {
    let device = B::Device::default();
    let model = Attention::<B>::new(&device);
    for precision in Precision::ALL.into_iter().skip(1) {
        let runs = tempfile::TempDir::new().unwrap();
        let config = silent(precision)
            .with_checkpointing(true)
            .with_accumulate_grad_batches(2)
            .with_loss_scale("dynamic:1024".parse::<LossScale>().unwrap())
            .with_max_epochs(2);
        let run = |folder: &str, config: &TrainerConfig| {
            let config = config.clone().with_run_dir(runs.path().join(folder));
            let fitted = Trainer::new(config, device.clone())
                .fit(model.clone(), &mut Loaders::new(labelled(96)));
            fitted.map(|outcome| outcome.last_checkpoint.unwrap())
        };
        let whole = match run("whole", &config) {
            Ok(whole) => whole,
            Err(error) => {
                assert!(error.to_string().contains("does not compute in"), "{error}");
                continue;
            }
        };
        run("stopped", &config.clone().with_max_steps(2)).unwrap();
        let resumed = config.with_resume("last".parse::<Resume>().unwrap());
        let resumed = run("stopped", &resumed).unwrap();
        for name in ["model.safetensors", "optimizer-0.cbor"] {
            let read = |folder: &std::path::Path| std::fs::read(folder.join(name)).unwrap();
            assert_eq!(read(&resumed), read(&whole), "{precision}: {name}");
        }
    }
}

/// Two devices against one, in a format whose steps are 1/256.
#[cfg(feature = "flex")]
#[test]
fn replicas_in_16_bits_train_as_one() {
    let device = Default::default();
    let model = Attention::<firebox::testing::Cpu>::new(&device);
    let run = |replicas| {
        let config = silent(Precision::Bf16Mixed).with_max_epochs(3);
        Trainer::new(config, device)
            .with_devices(vec![device; replicas])
            .fit(model.clone(), &mut Loaders::new(labelled(96)))
            .unwrap()
            .metrics
            .get("train/loss_epoch")
            .unwrap()
    };
    let (one, two) = (run(1), run(2));
    assert!((one - two).abs() / one < 4e-3, "{one} and {two}");
}

/// Statistics of a batch are taken and kept in 32 bits, by Burn's layer as it is.
#[cfg(feature = "flex")]
#[test]
fn running_statistics_stay_in_32_bits() {
    let device = Default::default();
    let model = Normalized::<firebox::testing::Cpu>::new(&device);
    let run = |precision| {
        let config = silent(precision).with_max_epochs(2);
        // Clones share their statistics.
        let copy = Normalized::<firebox::testing::Cpu>::from_inner(model.valid());
        let mut data = Loaders::new(labelled(64)).with_val(labelled(32));
        let fitted = Trainer::new(config, device).fit(copy, &mut data).unwrap();
        let variance = fitted.model.norm.running_var.value_sync();
        assert_eq!(variance.dtype(), DType::F32);
        let variance: Vec<f64> = variance.into_data().iter::<f64>().collect();
        (variance, fitted.metrics.get("val/loss").unwrap())
    };
    let (full, full_loss) = run(Precision::F32True);
    let (half, half_loss) = run(Precision::Bf16Mixed);
    assert_ne!(half, full);
    assert_close(&half, &full, 1e-2);
    assert_close(&[half_loss], &[full_loss], 1e-2);
}

/// Divided moments and 16 bits: the steps are those of undivided ones, bit by bit.
#[cfg(feature = "flex")]
#[test]
fn divided_optimizers_step_in_16_bits_as_whole_ones() {
    let device = Default::default();
    let model = Attention::<firebox::testing::Cpu>::new(&device);
    let run = |strategy| {
        let config = silent(Precision::Bf16Mixed)
            .with_max_epochs(1)
            .with_strategy(strategy);
        Trainer::new(config, device)
            .with_devices([device, device])
            .fit(model.clone(), &mut Loaders::new(labelled(64)))
            .unwrap()
            .model
            .head
            .weight
            .val()
            .into_data()
    };
    assert_eq!(run(Strategy::Zero1), run(Strategy::Ddp));
}
