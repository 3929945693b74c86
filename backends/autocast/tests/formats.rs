//! Which format an operation computes in, and what comes out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use burn::backend::Autodiff;
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::module::{adaptive_avg_pool2d, linear};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_flex::Flex;
use firebox_autocast::{Autocast, Mode, Pass, Tag, What, in_pass, mark, restoring, watch, within};

type B = Autocast<Flex>;

const BF16: Mode = Mode::Mixed(FloatDType::BF16);

fn ones<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<B, D> {
    Tensor::<B, D>::ones(shape, &Default::default()).cast(dtype)
}

fn parameter<const D: usize>(shape: [usize; D], keeps: bool) -> Tensor<B, D> {
    let path = "layer.weight".to_owned();
    mark(Tag { path, keeps }, || ones(shape, DType::F32).detach())
}

#[test]
fn products_are_in_16_bits_and_what_needs_more_is_not() {
    let (half, full) = (ones([2, 2], DType::BF16), ones([2, 2], DType::F32));
    within(BF16, || {
        let product = full.clone().matmul(half.clone());
        assert_eq!(product.dtype(), DType::BF16);
        assert_eq!(half.clone().sum().dtype(), DType::F32);
        assert_eq!(half.clone().mean_dim(1).dtype(), DType::F32);
        assert_eq!(half.clone().exp().dtype(), DType::F32);
        assert_eq!(softmax(half.clone(), 1).dtype(), DType::F32);
        assert_eq!(relu(half.clone()).dtype(), DType::BF16);
        assert_eq!(gelu(half.clone()).dtype(), DType::BF16);
        let image = half.clone().reshape([1, 1, 2, 2]);
        assert_eq!(adaptive_avg_pool2d(image, [1, 1]).dtype(), DType::BF16);
        assert_eq!((half.clone() + full.clone()).dtype(), DType::F32);
        assert_eq!(relu(full.clone()).dtype(), DType::F32);
    });
    assert_eq!(half.clone().exp().dtype(), DType::BF16);
}

#[test]
fn sums_of_many_numbers_are_exact() {
    // 16 bits have no 257.
    let many = ones([1, 1000], DType::BF16);
    let sum = |mode| within(mode, || many.clone().sum().into_data().iter::<f32>().next());
    assert_eq!(sum(BF16), Some(1000.0));
    assert_eq!(sum(Mode::Whole(FloatDType::BF16)), Some(1000.0));
}

#[test]
fn a_bias_takes_the_format_of_what_it_is_added_to() {
    let half = ones([2, 2], DType::BF16);
    within(BF16, || {
        let bias = parameter([1, 2], false);
        assert_eq!((half.clone() + bias.clone()).dtype(), DType::BF16);
        // A view of it is still the parameter; what was computed from it is not.
        let view = bias.clone().reshape([2, 1]);
        assert_eq!((half.clone() + view).dtype(), DType::BF16);
        assert_eq!((half.clone() + bias * 2.0).dtype(), DType::F32);
    });
}

#[test]
fn parts_that_keep_their_format_do() {
    let half = ones([2, 2], DType::BF16);
    within(BF16, || {
        let kept = parameter([2, 2], true);
        assert_eq!(linear(half.clone(), kept.clone(), None).dtype(), DType::F32);
        assert_eq!((half.clone() + kept).dtype(), DType::F32);
        let cast = parameter([2, 2], false);
        assert_eq!(linear(half, cast, None).dtype(), DType::BF16);
    });
}

#[test]
fn everything_is_in_the_whole_format() {
    let (half, full) = (ones([2, 2], DType::F16), ones([2, 2], DType::F32));
    within(Mode::Whole(FloatDType::F16), || {
        assert_eq!((half.clone() * full.clone()).dtype(), DType::F16);
        assert_eq!(half.clone().matmul(full.clone()).dtype(), DType::F16);
        assert_eq!(half.clone().sum().dtype(), DType::F16);
        let both = Tensor::cat(vec![half.clone(), full.clone()], 0);
        assert_eq!(both.dtype(), DType::F16);
    });
    // Outside of a mode the wider one has room for both.
    assert_eq!((half.clone() * full.clone()).dtype(), DType::F32);
    let (half, other) = (half, ones([2, 2], DType::BF16));
    assert_eq!((half + other).dtype(), DType::F32);
    let wide = ones([2, 2], DType::F64);
    assert_eq!(full.matmul(wide).dtype(), DType::F64);
}

#[test]
fn the_backward_pass_goes_through_the_same_formats() {
    let device = Default::default();
    let x = Tensor::<Autodiff<B>, 2>::ones([4, 3], &device).require_grad();
    let w = Tensor::<Autodiff<B>, 2>::ones([3, 2], &device).require_grad();
    let gradients = within(BF16, || {
        let loss = softmax(x.clone().matmul(w.clone()), 1)
            .slice([0..4, 0..1])
            .mean();
        assert_eq!(loss.dtype(), DType::F32);
        loss.backward()
    });
    // Both halves of the softmax are 1/2: each logit's slope is 1/4 · 1/4.
    let gradient = w.grad(&gradients).unwrap();
    let values: Vec<f32> = gradient.into_data().iter::<f32>().collect();
    assert_eq!(values, [0.25, -0.25].repeat(3));
    assert!(x.grad(&gradients).is_some());
}

#[test]
fn the_first_result_that_is_not_finite_is_found() {
    let (value, found) = watch(|| {
        let weight = parameter([2, 2], false);
        let x = ones([2, 2], DType::F32).matmul(weight);
        let bad = (x - 2.0).log();
        in_pass(Pass::Backward, || (bad * 2.0).exp())
    });
    assert_eq!(value.into_data().iter::<f32>().next(), Some(0.0));
    let found = found.unwrap();
    assert_eq!(found.what, What::NotFinite);
    assert_eq!(
        found.to_string(),
        "the first result that is not finite is that of `log` after `layer.weight`, in the forward pass"
    );
    // What is filled in on purpose is none.
    let (_, found) = watch(|| {
        let x = ones([2, 2], DType::F32);
        let mask = x.clone().equal_elem(1.0);
        softmax(x.mask_fill(mask.clone().bool_not(), f32::NEG_INFINITY), 1)
    });
    assert_eq!(found, None);
}

#[test]
fn formats_that_meet_are_found() {
    let run = || parameter([2, 2], false) + ones([2, 2], DType::F64);
    let (_, found) = watch(run);
    assert_eq!(
        found.unwrap().to_string(),
        "numbers of F32 and F64 meet in `add` with `layer.weight`, in the forward pass"
    );
    // There it is what is meant.
    let (_, found) = within(BF16, || {
        watch(|| ones([2, 2], DType::BF16) + ones([2, 2], DType::F32))
    });
    assert_eq!(found, None);
}

#[test]
fn saved_tensors_come_back_in_their_format() {
    let exact = TensorData::from([0.1_f64, 0.2]);
    let rounded = exact.clone().convert_dtype(DType::F32);
    let device = Default::default();
    let tensor = restoring(FloatDType::F64, [exact.clone()], || {
        Tensor::<B, 1>::from_data(rounded.clone(), &device)
    });
    assert_eq!(tensor.into_data(), exact);
    let half = restoring(FloatDType::BF16, [], || {
        Tensor::<B, 1>::from_data(rounded, &device)
    });
    assert_eq!(half.dtype(), DType::BF16);
}
