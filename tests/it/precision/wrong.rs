//! Formats that a backend does not have, and operands that do not fit together.

use super::models::{Attention, Recurrent, labelled};
use super::*;
use firebox::ErrorKind;
use firebox::data::Loaders;

on_each_backend!(every_precision_trains_or_is_refused);

fn error<B: AutodiffBackend>(config: TrainerConfig) -> String {
    let model = Weights::<B>::new(1.0, 1.0);
    let error = Trainer::new(config, Default::default())
        .fit(model, &mut ones::<B>(1))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    error.to_string()
}

#[cfg(feature = "ndarray")]
#[test]
fn what_a_backend_does_not_have_is_said_with_what_it_has() {
    use firebox_backend::Accelerator;
    type B = <firebox_ndarray::NdArray as Accelerator>::Backend;
    assert_eq!(
        error::<B>(silent(Precision::F16Mixed)),
        "`precision` is 16-mixed, which ndarray does not compute in; it can do 32-true, 64-true"
    );
}

#[cfg(feature = "flex")]
#[test]
fn a_backend_that_does_not_choose_formats_is_refused() {
    type B = burn::backend::Autodiff<burn_flex::Flex>;
    let error = error::<B>(silent(Precision::Bf16Mixed));
    assert!(
        error.starts_with("`precision` is bf16-mixed, which needs a backend that chooses formats"),
        "{error}"
    );
}

#[cfg(feature = "flex")]
#[test]
fn parts_that_do_not_exist_are_named() {
    let config = silent(Precision::Bf16Mixed).with_full_precision(["a", "head.*"]);
    assert_eq!(
        error::<firebox::testing::Cpu>(config),
        "`full_precision` has `head.*`, which matches no parameter of `Weights`; it has `a`, `b`"
    );
}

/// Models whose layers make tensors in the device's default format: states of zeros, positions.
#[cfg(feature = "flex")]
#[test]
fn layers_with_tensors_of_their_own_train_in_every_format() {
    type B = firebox::testing::Cpu;
    let device = Default::default();
    for precision in Precision::ALL {
        let config = silent(precision).with_max_steps(2);
        let recurrent = Recurrent::<B>::new(&device);
        let fitted = Trainer::new(config.clone(), device)
            .fit(recurrent, &mut Loaders::new(labelled(32)))
            .unwrap();
        let stored = match precision {
            Precision::F64True => DType::F64,
            Precision::F16True => DType::F16,
            Precision::Bf16True => DType::BF16,
            _ => DType::F32,
        };
        assert_eq!(fitted.model.head.weight.val().dtype(), stored);
        assert!(fitted.metrics.get("train/loss").unwrap().is_finite());
        Trainer::new(config, device)
            .fit(
                Attention::<B>::new(&device),
                &mut Loaders::new(labelled(32)),
            )
            .unwrap();
    }
}

/// Each format trains, or what the device has instead is said.
fn every_precision_trains_or_is_refused<B: AutodiffBackend>() {
    let device = B::Device::default();
    for (precision, dtype) in [
        (Precision::F32True, DType::F32),
        (Precision::F64True, DType::F64),
        (Precision::F16Mixed, DType::F16),
        (Precision::F16True, DType::F16),
        (Precision::Bf16Mixed, DType::BF16),
        (Precision::Bf16True, DType::BF16),
        (Precision::Auto, DType::F32),
    ] {
        let model = Weights::<B>::new(1.0, 1.0);
        let config = silent(precision).with_max_epochs(1);
        let fitted = Trainer::new(config, device.clone()).fit_with(model, sgd(0.25), &mut ones(2));
        let is_joined = dtype == DType::F64 && B::name(&device).contains("fusion<");
        match B::supports_dtype(&device, dtype) && !is_joined {
            true => assert_eq!(fitted.unwrap().model.values(), [0.5, 1.0], "{precision}"),
            false => {
                let error = fitted.unwrap_err().to_string();
                let said = format!("`precision` is {precision}, which ");
                assert!(error.starts_with(&said), "{error}");
                assert!(
                    error.contains(" does not compute in; it can do 32-true"),
                    "{error}"
                );
            }
        }
    }
}
