#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

type NdArray = burn_ndarray::NdArray;
type Flex = burn_flex::Flex;

fn floats<B: Backend, const D: usize>(data: impl Into<TensorData>) -> Tensor<B, D> {
    Tensor::from_data(data.into(), &B::Device::default())
}

fn ints<B: Backend>(values: &[i32]) -> Tensor<B, 1, Int> {
    Tensor::from_data(values, &B::Device::default())
}

/// The state of one observation of a batch of one sample.
fn state<B: Backend>(observation: Observation<B>) -> MetricState {
    let mut states = read(vec![("m", observation, 1.0)]).unwrap();
    states.remove(0).1
}

fn merged(states: impl IntoIterator<Item = MetricState>) -> MetricState {
    states
        .into_iter()
        .reduce(|mut a, b| {
            a.merge(&b).unwrap();
            a
        })
        .unwrap()
}

fn value(state: &MetricState) -> f64 {
    state.value().unwrap()
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(1.0)
}

#[test]
fn a_plain_value_is_weighted_by_the_samples_of_its_batch() {
    let batches = [(0.7, 256.0), (0.8, 256.0), (0.9, 10.0)];
    let on_host = batches.map(|(v, n)| ("loss", Observation::<NdArray>::from(v), n));
    let on_device = batches.map(|(v, n)| ("loss", Observation::from(floats::<NdArray, 1>([v])), n));
    let host = merged(read(on_host.to_vec()).unwrap().into_iter().map(|(_, s)| s));
    let device = merged(
        read(on_device.to_vec())
            .unwrap()
            .into_iter()
            .map(|(_, s)| s),
    );
    assert!(close(value(&host), 393.0 / 522.0, 1e-15));
    assert!(close(value(&device), 393.0 / 522.0, 1e-7));
}

#[test]
fn an_own_weight_wins_over_the_batch() {
    let loss = Mean::weighted::<NdArray>(&floats([2.0]), 3.0).unwrap();
    let states = read(vec![("loss", loss, 100.0)]).unwrap();
    assert_eq!(states[0].1.state(), [6.0, 3.0]);
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(Mean::weighted::<NdArray>(1.0, weight).is_err());
    }
    let statistics = MeanSquaredError::new().observe(floats::<NdArray, 1>([1.0]), floats([0.0]));
    assert!(Mean::weighted(statistics.unwrap(), 1.0).is_err());
}

#[test]
fn a_batch_of_weight_0_is_not_seen() {
    let nan = Observation::<NdArray>::from(f64::NAN);
    let states = read(vec![("a", nan, 0.0), ("a", 2.0.into(), 4.0)]).unwrap();
    assert!(states[0].1.state().is_empty());
    assert_eq!(value(&merged(states.into_iter().map(|(_, s)| s))), 2.0);
}

#[test]
fn a_longer_tensor_is_no_plain_value() {
    let long = Observation::from(floats::<NdArray, 1>([1.0, 2.0, 3.0]));
    let error = read(vec![("train/loss", long, 1.0)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::User);
    assert_eq!(
        error.to_string(),
        "`train/loss`: a tensor of shape [3] is not one value; log its `.mean()`, or a metric"
    );
}

#[test]
fn one_read_keeps_names_and_order() {
    let accuracy = Accuracy::new()
        .observe(floats::<Flex, 2>([[0.0, 1.0]]), ints(&[1]))
        .unwrap();
    let states = read(vec![
        ("a", Observation::from(floats::<Flex, 1>([1.5])), 2.0),
        ("b", 7_usize.into(), 1.0),
        ("c", accuracy, 1.0),
        ("d", floats([2.5]).cast(FloatDType::BF16).into(), 1.0),
    ])
    .unwrap();
    let values: Vec<_> = states.iter().map(|(n, s)| (*n, value(s))).collect();
    assert_eq!(values, [("a", 1.5), ("b", 7.0), ("c", 1.0), ("d", 2.5)]);
}

#[test]
fn observations_leave_the_autodiff_graph() {
    type B = burn::backend::Autodiff<NdArray>;
    let x = floats::<B, 2>([[0.0, 1.0], [2.0, 0.0]]).require_grad();
    let loss: Observation<B> = x.clone().mul_scalar(2.0).mean().into();
    let accuracy = Accuracy::new().observe(x.clone(), ints(&[1, 1])).unwrap();
    let perplexity = Perplexity::new().observe(x.clone(), ints(&[1, 1])).unwrap();
    let r2 = R2::new().observe(x.clone(), x).unwrap();
    assert_eq!(value(&state::<NdArray>(loss.inner())), 1.5);
    assert_eq!(value(&state(accuracy.inner())), 0.5);
    assert!(value(&state(perplexity.inner())) > 1.0);
    assert_eq!(value(&state(r2.inner())), 1.0);
}

#[test]
fn a_state_refuses_another_metric() {
    let mut mean = MetricState::from_values(Arc::new(Mean), vec![1.0, 1.0]);
    let error = mean.merge_values(&[1.0, 2.0, 3.0]).unwrap_err();
    assert!(error.to_string().contains("2 statistics cannot merge 3"));
    mean.merge_values(&[]).unwrap();
    assert_eq!(mean.state(), [1.0, 1.0]);
}

/// Runs a generic test on both CPU backends.
macro_rules! on_backends {
    ($($name:ident),* $(,)?) => {
        mod ndarray { $( #[test] fn $name() { super::$name::<super::NdArray>(); } )* }
        mod flex { $( #[test] fn $name() { super::$name::<super::Flex>(); } )* }
    };
}
on_backends!(
    accuracy_of_shards_is_that_of_all_samples,
    top_k_ties_and_nan,
    ignored_and_wrong_labels,
    wrong_shapes_are_errors,
    empty_batches_are_not_seen,
    precision_is_pooled,
    averages_by_hand,
    confusion_cells,
    perplexity_is_pooled,
    perplexity_from_logits,
    regression_by_hand,
    half_precision_counts_exactly,
);

fn accuracy_of_shards_is_that_of_all_samples<B: Backend>() {
    // Right, wrong, wrong, wrong, wrong; three samples on one device, two on the other.
    let logits = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]];
    let targets = [0, 1, 1, 0, 0];
    let shards = [0..3, 3..5].map(|r| {
        let logits = floats::<B, 2>(TensorData::new(logits[r.clone()].concat(), [r.len(), 2]));
        let seen = Accuracy::new().observe(logits, ints(&targets[r]));
        state(seen.unwrap())
    });
    let all = merged(shards);
    assert_eq!(all.state(), [1.0, 5.0, 5.0]);
    assert_eq!(value(&all), 0.2);
}

fn top_k_ties_and_nan<B: Backend>() {
    let top = |k, logits: [f32; 4], target| {
        let seen = Accuracy::new()
            .top_k(k)
            .observe(floats::<B, 2>([logits]), ints(&[target]));
        value(&state(seen.unwrap()))
    };
    let logits = [0.1, 0.4, 0.3, 0.2];
    assert_eq!(
        [0, 1, 2, 3].map(|t| top(1, logits, t)),
        [0.0, 1.0, 0.0, 0.0]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|t| top(2, logits, t)),
        [0.0, 1.0, 1.0, 0.0]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|t| top(3, logits, t)),
        [0.0, 1.0, 1.0, 1.0]
    );
    assert_eq!([0, 1, 2, 3].map(|t| top(4, logits, t)), [1.0; 4]);
    // Of equal ones the lower class comes first: exactly k classes are among the best.
    assert_eq!(
        [0, 1, 2, 3].map(|t| top(2, [1.0; 4], t)),
        [1.0, 1.0, 0.0, 0.0]
    );
    // A broken model is not a perfect one.
    assert_eq!([0, 1, 2, 3].map(|t| top(3, [f32::NAN; 4], t)), [0.0; 4]);
}

fn ignored_and_wrong_labels<B: Backend>() {
    let logits = || floats::<B, 2>([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]);
    for pad in [-100, 1] {
        let labels = || ints(&[0, pad, pad]);
        let index = i64::from(pad);
        let accuracy = Accuracy::new().ignore_index(index);
        let all = state(accuracy.observe(logits(), labels()).unwrap());
        assert_eq!(all.state(), [1.0, 1.0, 1.0]);
        let confusion = ConfusionMatrix::new(2).ignore_index(index);
        let all = state(confusion.observe(logits(), labels()).unwrap());
        assert_eq!(all.state(), [1.0, 0.0, 0.0, 0.0, 1.0]);
        all.compute().unwrap();
        let perplexity = Perplexity::new().ignore_index(index);
        let all = state(perplexity.observe(logits(), labels()).unwrap());
        assert_eq!(all.state()[1..], [1.0, 1.0]);
    }
    for seen in [
        Accuracy::new().observe(logits(), ints(&[0, 2, -1])),
        Accuracy::new()
            .top_k(2)
            .observe(logits(), ints(&[0, 2, -1])),
        Perplexity::new().observe(logits(), ints(&[0, 2, -1])),
        Recall::new(2).observe(logits(), ints(&[0, 2, -1])),
        Recall::new(2).observe_classes(ints(&[0, 2, -1]), ints(&[0, 0, 0])),
    ] {
        let seen = state(seen.unwrap());
        assert_eq!(seen.value(), None);
        let error = seen.compute().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(
            error.to_string().starts_with("2 of 3 class labels"),
            "{error}"
        );
    }
}

fn wrong_shapes_are_errors<B: Backend>() {
    let logits = || floats::<B, 2>([[0.0, 1.0], [0.0, 1.0]]);
    let long = || ints(&[0, 1, 1]);
    let column = floats::<B, 2>([[1.0], [2.0]]);
    let row = floats::<B, 2>([[1.0, 2.0]]);
    for (seen, says) in [
        (
            Accuracy::new().observe(logits(), long()),
            "2 rows of logits but 3 targets",
        ),
        (
            Accuracy::new().top_k(3).observe(logits(), ints(&[0, 1])),
            "a `k` from 1 to 2",
        ),
        (
            Accuracy::new().top_k(0).observe(logits(), ints(&[0, 1])),
            "a `k` from 1 to 2",
        ),
        (
            Perplexity::new().observe(logits(), long()),
            "2 rows of logits but 3 targets",
        ),
        (
            Perplexity::new().observe_mean(floats([1.0, 2.0]), 2),
            "shape [2]",
        ),
        (
            F1::new(2).observe(logits(), long()),
            "2 rows of logits but 3 targets",
        ),
        (
            F1::new(3).observe(logits(), ints(&[0, 1])),
            "logits of 2 classes for a metric of 3",
        ),
        (
            F1::new(0).observe_classes(ints(&[0]), ints(&[0])),
            "at least 1 class",
        ),
        (
            F1::new(2)
                .average(Average::Class(2))
                .observe(logits(), ints(&[0, 1])),
            "class 2 of a metric of 2 classes",
        ),
        (R2::new().observe(column.clone(), row.clone()), "[2, 1]"),
        (
            MeanSquaredError::new().observe(column.clone(), row.clone()),
            "[1, 2]",
        ),
        (MeanAbsoluteError::new().observe(column, row), "same shape"),
    ] {
        let error = seen.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::User);
        assert!(error.to_string().contains(says), "{error}");
    }
}

fn empty_batches_are_not_seen<B: Backend>() {
    let logits = || floats::<B, 2>(TensorData::new(Vec::<f32>::new(), [0, 2]));
    let none = || floats::<B, 1>(TensorData::new(Vec::<f32>::new(), [0]));
    let labels = || ints(&[]);
    for seen in [
        Accuracy::new().observe(logits(), labels()),
        ConfusionMatrix::new(2).observe(logits(), labels()),
        Precision::new(2).observe_classes(labels(), labels()),
        Perplexity::new().observe(logits(), labels()),
        Perplexity::new().observe_mean(floats([f32::NAN]), 0),
        MeanSquaredError::new().observe(none(), none()),
        R2::new().observe(none(), none()),
    ] {
        let seen = state(seen.unwrap());
        assert!(seen.state().is_empty());
        assert_eq!(seen.compute().unwrap(), []);
    }
}

fn precision_is_pooled<B: Backend>() {
    // One true positive; then one true and three false.
    let precision = Precision::new(2).average(Average::Class(1));
    let batch = |predicted: &[i32], targets: &[i32]| {
        let seen = precision.observe_classes(ints::<B>(predicted), ints(targets));
        state(seen.unwrap())
    };
    let all = merged([batch(&[1], &[1]), batch(&[1, 1, 1, 1], &[1, 0, 0, 0])]);
    assert_eq!(value(&all), 0.4);
}

fn averages_by_hand<B: Backend>() {
    // Class:  0 (TP 2, FP 1, FN 1)   1 (TP 1, FP 1, FN 2)   2 (TP 1, FP 2, FN 0)   3: never seen.
    let targets = [0, 0, 0, 1, 1, 1, 2, 0];
    let predicted = [0, 0, 1, 1, 0, 2, 2, 2];
    // The last sample moves class 0 to FN 2, class 2 to FP 2.
    let (p, r) = ([2. / 3., 1. / 2., 1. / 3.], [2. / 4., 1. / 3., 1.0]);
    let support = [4.0, 3.0, 1.0];
    let f = [4. / 7., 2. / 5., 2. / 4.];
    let all = |seen: Result<Observation<B>>| state(seen.unwrap()).compute().unwrap();
    let main = |v: f64| vec![(String::new(), v)];
    let near = |a: Vec<(String, f64)>, b: f64| assert!(close(a[0].1, b, 1e-15), "{a:?} {b}");
    let mean = |x: [f64; 3]| x.iter().sum::<f64>() / 3.0;
    let weighted = |x: [f64; 3]| x.iter().zip(support).map(|(x, n)| x * n).sum::<f64>() / 8.0;
    let (x, y) = (|| ints(&predicted), || ints(&targets));

    near(all(Precision::new(4).observe_classes(x(), y())), mean(p));
    near(all(Recall::new(4).observe_classes(x(), y())), mean(r));
    near(all(F1::new(4).observe_classes(x(), y())), mean(f));
    near(all(FBeta::new(1.0, 4).observe_classes(x(), y())), mean(f));
    // β = 2: 5 TP / (5 TP + 4 FN + FP).
    let f2 = FBeta::new(2.0, 4).average(Average::Class(0));
    near(all(f2.observe_classes(x(), y())), 10. / (10. + 8. + 1.));

    let micro = |m: Precision| m.average(Average::Micro).observe_classes(x(), y());
    assert_eq!(all(micro(Precision::new(4))), main(0.5));
    let f1 = F1::new(4).average(Average::Micro);
    assert_eq!(all(f1.observe_classes(x(), y())), main(0.5));
    let weigh = Precision::new(4).average(Average::Weighted);
    near(all(weigh.observe_classes(x(), y())), weighted(p));
    let weigh = F1::new(4).average(Average::Weighted);
    near(all(weigh.observe_classes(x(), y())), weighted(f));

    let each = Recall::new(4).average(Average::PerClass);
    let each = all(each.observe_classes(x(), y()));
    let names: Vec<_> = each.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["/class_0", "/class_1", "/class_2", "/class_3"]);
    let values: Vec<_> = each.iter().map(|(_, v)| *v).collect();
    assert_eq!(values, [r[0], r[1], r[2], 0.0]);
}

fn confusion_cells<B: Backend>() {
    let confusion = ConfusionMatrix::new(2);
    let logits = floats::<B, 2>([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]);
    let seen = state(confusion.observe(logits, ints(&[0, 0, 1])).unwrap());
    assert_eq!(confusion.matrix(seen.state()), [[1.0, 1.0], [0.0, 1.0]]);
    let cells = seen.compute().unwrap();
    assert_eq!(cells[1], ("/target_0_predicted_1".to_string(), 1.0));
    assert_eq!(seen.value(), None);
}

fn perplexity_is_pooled<B: Backend>() {
    let perplexity = Perplexity::new();
    let one = state(perplexity.observe_mean(floats::<B, 1>([1.0]), 1).unwrap());
    let two = state(perplexity.observe_sum(floats::<B, 1>([2.0]), 1).unwrap());
    assert!(close(value(&merged([one, two])), 1.5_f64.exp(), 1e-12));
}

fn perplexity_from_logits<B: Backend>() {
    // Even odds of 4 tokens, twice; padding may have any logits at all.
    let logits = floats::<B, 2>([[7.0; 4], [0.0; 4], [f32::NAN; 4]]);
    let seen = Perplexity::new()
        .ignore_index(-1)
        .observe(logits, ints(&[3, 0, -1]));
    assert!(close(value(&state(seen.unwrap())), 4.0, 1e-6));
}

fn regression_by_hand<B: Backend>() {
    let predictions = || floats::<B, 2>([[2.5, 0.0], [2.0, 8.0]]);
    let targets = || floats::<B, 2>([[3.0, -0.5], [2.0, 7.0]]);
    let mse = state(
        MeanSquaredError::new()
            .observe(predictions(), targets())
            .unwrap(),
    );
    let mae = state(
        MeanAbsoluteError::new()
            .observe(predictions(), targets())
            .unwrap(),
    );
    let r2 = state(R2::new().observe(predictions(), targets()).unwrap());
    assert_eq!(value(&mse), 0.375);
    assert_eq!(value(&mae), 0.5);
    // The example of scikit-learn's `r2_score`.
    assert!(close(value(&r2), 0.948_608_137_044_967, 1e-7));
    let constant = |p: f32| {
        let seen = R2::new().observe(floats::<B, 1>([p, 3.0]), floats([3.0, 3.0]));
        value(&state(seen.unwrap()))
    };
    assert_eq!((constant(3.0), constant(2.0)), (1.0, 0.0));
    let single = R2::new().observe(floats::<B, 1>([1.0]), floats([1.0]));
    assert!(value(&state(single.unwrap())).is_nan());
}

fn half_precision_counts_exactly<B: Backend>() {
    // 4,099 is no bf16 and no f16; a sum in those types would be neither.
    if !B::supports_dtype(&B::Device::default(), burn::tensor::DType::BF16) {
        return;
    }
    let device = B::Device::default();
    let zeros = Tensor::<B, 2>::zeros([4_099, 2], &device).cast(FloatDType::BF16);
    let labels = || Tensor::<B, 1, Int>::zeros([4_099], &device);
    let seen = state(Accuracy::new().observe(zeros.clone(), labels()).unwrap());
    assert_eq!(seen.state(), [4_099.0; 3]);
    let seen = state(
        ConfusionMatrix::new(2)
            .observe(zeros.clone(), labels())
            .unwrap(),
    );
    assert_eq!(seen.state(), [4_099.0, 0.0, 0.0, 0.0, 4_099.0]);
    let seen = state(Perplexity::new().observe(zeros.clone(), labels()).unwrap());
    assert!(close(value(&seen), 2.0, 1e-5));
    let ones = Tensor::<B, 2>::ones([4_099, 2], &device);
    let seen = state(MeanSquaredError::new().observe(zeros, ones).unwrap());
    assert_eq!(seen.state(), [8_198.0, 8_198.0]);
}

#[test]
fn double_precision_stays_double() {
    // The format is named: which one is a device's default is decided once in a process.
    let doubles = |values: [f64; 3]| {
        let like = (&Default::default(), burn::tensor::DType::F64);
        Tensor::<burn_ndarray::NdArray, 1>::from_data(TensorData::from(values), like)
    };
    let targets = doubles([1e9, 1e9 + 1.0, 1e9 + 2.0]);
    let predictions = doubles([1e9, 1e9 + 1.0, 1e9 + 1.0]);
    let seen = R2::new().observe(predictions, targets).unwrap();
    assert_eq!(value(&state(seen)), 0.5);
}

const CLASSES: usize = 3;

/// Samples (target, predicted class, prediction's error) and where to cut them.
fn samples() -> impl Strategy<Value = (Vec<(i32, i32, f32)>, usize, usize)> {
    let sample = (0..CLASSES as i32, 0..CLASSES as i32, -1.0_f32..1.0);
    let samples = prop::collection::vec(sample, 2..40);
    samples.prop_flat_map(|s| {
        let n = s.len();
        (Just(s), 0..=n, 0..=n)
    })
}

type Observe = Box<dyn Fn(&[(i32, i32, f32)]) -> Result<Observation<NdArray>>>;

fn every_metric() -> Vec<Observe> {
    type Samples<'a> = &'a [(i32, i32, f32)];
    fn targets(samples: Samples) -> Tensor<NdArray, 1, Int> {
        ints(&samples.iter().map(|s| s.0).collect::<Vec<_>>())
    }
    fn logits(samples: Samples) -> Tensor<NdArray, 2> {
        let rows = samples
            .iter()
            .flat_map(|s| (0..CLASSES as i32).map(|class| if class == s.1 { 2.0 } else { s.2 }));
        let rows: Vec<f32> = rows.collect();
        floats(TensorData::new(rows, [samples.len(), CLASSES]))
    }
    /// Targets far from 0, and predictions near them.
    fn numbers(samples: Samples) -> (Tensor<NdArray, 1>, Tensor<NdArray, 1>) {
        let t: Vec<f32> = samples.iter().map(|s| 1e4 + s.0 as f32).collect();
        let p: Vec<f32> = samples.iter().map(|s| 1e4 + s.0 as f32 + s.2).collect();
        (floats(p.as_slice()), floats(t.as_slice()))
    }
    macro_rules! classes {
        ($metric:expr) => {{
            let metric = $metric;
            Box::new(move |s: Samples| metric.observe(logits(s), targets(s))) as Observe
        }};
    }
    macro_rules! regression {
        ($metric:expr) => {
            Box::new(|s: Samples| {
                let (p, t) = numbers(s);
                $metric.observe(p, t)
            }) as Observe
        };
    }
    let mut metrics = vec![
        classes!(Accuracy::new()),
        classes!(Accuracy::new().top_k(2)),
        classes!(Accuracy::new().ignore_index(0)),
        classes!(ConfusionMatrix::new(CLASSES)),
        classes!(FBeta::new(2.0, CLASSES)),
        classes!(F1::new(CLASSES).ignore_index(1)),
        classes!(Perplexity::new()),
        regression!(MeanSquaredError::new()),
        regression!(MeanAbsoluteError::new()),
        regression!(R2::new()),
    ];
    use Average::*;
    for average in [Macro, Micro, Weighted, Class(2), PerClass] {
        metrics.push(classes!(Precision::new(CLASSES).average(average)));
        metrics.push(classes!(Recall::new(CLASSES).average(average)));
    }
    metrics
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn shards_merge_to_the_whole((samples, a, b) in samples()) {
        let (a, b) = (a.min(b), a.max(b));
        for (index, observe) in every_metric().iter().enumerate() {
            let one = |range: &[_]| state(observe(range).unwrap());
            let whole = one(&samples).compute().unwrap();
            let cut = [&samples[..a], &samples[a..b], &samples[b..]].map(one);
            // In order, and as a tree from the other end.
            let [x, y, z] = cut.clone();
            for shards in [merged(cut), merged([merged([z, y]), x])] {
                let shards = shards.compute().unwrap();
                prop_assert_eq!(shards.len(), whole.len());
                for ((name, shards), (whole_name, whole)) in shards.iter().zip(&whole) {
                    prop_assert_eq!(name, whole_name);
                    let same = close(*shards, *whole, 1e-5) || (shards.is_nan() && whole.is_nan());
                    prop_assert!(same, "metric {}{}: {} is not {}", index, name, shards, whole);
                }
            }
        }
    }

    /// Against the definition, in `f64` on the host.
    #[test]
    fn r2_far_from_0((samples, _, _) in samples()) {
        let t: Vec<f32> = samples.iter().map(|s| 1e4 + s.0 as f32).collect();
        let p: Vec<f32> = samples.iter().map(|s| 1e4 + s.0 as f32 + s.2).collect();
        let mean = t.iter().map(|t| f64::from(*t)).sum::<f64>() / t.len() as f64;
        let total: f64 = t.iter().map(|t| (f64::from(*t) - mean).powi(2)).sum();
        let residual: f64 = t.iter().zip(&p).map(|(t, p)| f64::from(t - p).powi(2)).sum();
        prop_assume!(total > 0.0);
        let each = t.iter().zip(&p).map(|(t, p)| {
            state(R2::new().observe(floats::<NdArray, 1>([*p]), floats([*t])).unwrap())
        });
        let merged = value(&merged(each));
        prop_assert!(close(merged, 1.0 - residual / total, 1e-6), "{} {}", merged, 1.0 - residual / total);
    }
}

#[cfg(feature = "burn-train")]
#[test]
fn metrics_of_burn_train_are_weighted_means() {
    use ::burn_train::metric::{AccuracyInput, AccuracyMetric, LossInput, LossMetric};
    let metric = AccuracyMetric::<NdArray>::new();
    let batch = |logits: TensorData, targets: &[i32]| {
        let input = AccuracyInput::new(floats(logits), ints(targets));
        state(burn_metric::<NdArray, _>(&metric, &input).unwrap())
    };
    let small = batch([[1.0, 0.0]].into(), &[0]);
    let large = batch([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]].into(), &[0, 1, 1]);
    assert_eq!(small.state(), [100.0, 1.0]);
    assert!(close(value(&merged([small, large])), 50.0, 1e-6));
    let loss = LossInput::new(floats::<NdArray, 1>([0.5]));
    let loss = burn_metric::<NdArray, _>(&LossMetric::new(), &loss).unwrap();
    assert_eq!(state(loss).state(), [0.5, 1.0]);
}
