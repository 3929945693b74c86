//! Weights on their way from a file to a model: of other backends, of other tools, and of files
//! that do not fit.

use crate::support::*;
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm};
use burn::nn::{LayerNormConfig, Linear, LinearConfig, LinearLayout};
use burn::optim::SgdConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use firebox::ErrorKind;
use firebox::checkpoint::{self, Checkpoint, LoadReport, Weights as File, load_from_checkpoint};
use firebox::prelude::*;
use firebox::progress::Progress;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

on_each_backend!(
    parameters_of_every_kind_come_back,
    statistics_of_the_last_step_are_saved,
    statistics_of_a_trained_model_give_way,
    a_model_is_built_from_its_hyper_parameters,
);

/// A module that is one of two.
#[derive(Module, Debug)]
enum Head<B: Backend> {
    Plain(Linear<B>),
    Scaled(LayerNorm<B>),
}

/// A layer of each kind, and parameters that are no floats.
#[derive(Module, Debug)]
struct Zoo<B: Backend> {
    norm: BatchNorm<B>,
    conv: Conv2d<B>,
    words: Embedding<B>,
    scale: LayerNorm<B>,
    row: Linear<B>,
    col: Linear<B>,
    stack: Vec<Linear<B>>,
    pair: (Linear<B>, Linear<B>),
    some: Option<Linear<B>>,
    none: Option<Linear<B>>,
    head: Head<B>,
    order: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 2, Bool>>,
    nothing: Param<Tensor<B, 2>>,
    width: usize,
}

/// The paths of its parameters, sorted.
const PATHS: [&str; 28] = [
    "col.bias",
    "col.weight",
    "conv.bias",
    "conv.weight",
    "head.Plain.bias",
    "head.Plain.weight",
    "mask",
    "norm.beta",
    "norm.gamma",
    "norm.running_mean",
    "norm.running_var",
    "nothing",
    "order",
    "pair.0.bias",
    "pair.0.weight",
    "pair.1.bias",
    "pair.1.weight",
    "row.bias",
    "row.weight",
    "scale.beta",
    "scale.gamma",
    "some.bias",
    "some.weight",
    "stack.0.bias",
    "stack.0.weight",
    "stack.1.bias",
    "stack.1.weight",
    "words.weight",
];

impl<B: Backend> Zoo<B> {
    /// Its floats are random, and what is no float is `start` and what follows.
    fn new(start: i32) -> Self {
        let device = Device::<B>::default();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        let col = LinearConfig::new(3, 2).with_layout(LinearLayout::Col);
        let order = TensorData::from([start, start + 1, -start]);
        let mask = TensorData::from([[start > 0, false, true], [true, start > 0, false]]);
        let nothing = TensorData::new(Vec::<f32>::new(), [0, 3]);
        let zoo = Self {
            norm: BatchNormConfig::new(2).init(&device),
            conv: Conv2dConfig::new([2, 3], [2, 2]).init(&device),
            words: EmbeddingConfig::new(5, 3).init(&device),
            scale: LayerNormConfig::new(3).init(&device),
            row: linear(3, 2),
            col: col.init(&device),
            stack: vec![linear(2, 2), linear(2, 4)],
            pair: (linear(4, 4), linear(4, 2)),
            some: Some(linear(2, 1)),
            none: None,
            head: Head::Plain(linear(2, 1)),
            order: int(order, &device),
            mask: Param::initialized(Default::default(), Tensor::from_data(mask, &device)),
            nothing: Param::from_data(nothing, &device),
            width: 2,
        };
        // Drawn now, as a clone would draw its own.
        zoo.num_params();
        zoo
    }

    /// Every layer has its part in what comes out.
    fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.conv.forward(self.norm.forward(images));
        let x = x.mean_dim(2).mean_dim(3).flatten::<2>(1, 3);
        let order = self.order.val().narrow(0, 0, 2).reshape([1, 2]);
        let words = self.words.forward(order).mean_dim(1).flatten::<2>(1, 2);
        let x = self.scale.forward(x + words);
        let mask = self.mask.val().slice([0..1, 0..3]);
        let x = x.clone() + x.mask_fill(mask.expand([2, 3]), 1.0);
        let mut x = self.row.forward(x.clone()) * self.col.forward(x);
        for layer in &self.stack {
            x = layer.forward(x);
        }
        let x = self.pair.1.forward(self.pair.0.forward(x));
        let some = self.some.as_ref().unwrap().forward(x.clone());
        match &self.head {
            Head::Plain(linear) => some + linear.forward(x),
            Head::Scaled(scale) => scale.forward(some),
        }
    }
}

fn int<B: Backend>(data: TensorData, device: &B::Device) -> Param<Tensor<B, 1, Int>> {
    Param::initialized(Default::default(), Tensor::from_data(data, device))
}

/// Two images of two channels, whose means are 1 and 3 and whose variances are 0.
fn images<B: Backend>() -> Tensor<B, 4> {
    let channel = |value| Tensor::full([2, 1, 3, 3], value, &Default::default());
    Tensor::cat(vec![channel(1.0), channel(3.0)], 1)
}

macro_rules! trained {
    ($($module:ident),*) => { $(
        impl<B: AutodiffBackend> TrainModule for $module<B> {
            type Backend = B;
            type Batch = ();
            type Eval = $module<B::InnerBackend>;

            fn training_step(&self, _: (), _: &mut StepContext<B>) -> Result<Loss<B>> {
                Err(Error::user("these tests step by hand"))
            }
            fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
                Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.5))
            }
        }

        impl<B: Backend> EvalModule for $module<B> {
            type Backend = B;
            type Batch = ();

            fn validation_step(&self, _: (), _: &mut StepContext<B>) -> Result<()> {
                Ok(())
            }
        }
    )* };
}

trained!(Zoo);

mod fit;
// After the macro that it uses.
#[cfg(all(feature = "pytorch", feature = "ndarray"))]
mod pytorch;

/// Saves a model as the checkpoint of this name.
fn save<B: AutodiffBackend, M: TrainModule<Backend = B>>(
    dir: &Path,
    name: &str,
    model: M,
) -> PathBuf {
    let path = dir.join(name);
    let mut state = Fabric::new(Default::default()).setup(model).unwrap();
    checkpoint::save(&path, &mut state, &Progress::default()).unwrap();
    path
}

/// The bytes of a checkpoint's parameters.
fn parameters(checkpoint: &Path) -> Vec<u8> {
    std::fs::read(checkpoint.join("model.safetensors")).unwrap()
}

/// A parameter of 32-bit floats in a checkpoint.
fn floats(checkpoint: &Path, name: &str) -> Vec<f32> {
    let bytes = parameters(checkpoint);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = file.tensor(name).unwrap().data().chunks_exact(4);
    values
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A safetensors file with these tensors.
fn file(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> File {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.to_vec(), bytes).unwrap(),
        )
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(path, bytes).unwrap();
    File::open(path).unwrap()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn parameters_of_every_kind_come_back<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let model = Zoo::<B>::new(2);
    let saved = save(dir.path(), "first", model.clone());
    let bytes = parameters(&saved);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(names, PATHS);
    // As the layers compute with them, and as those save them that compute with another layout.
    assert_eq!(file.tensor("row.weight").unwrap().shape(), [3, 2]);
    assert_eq!(file.tensor("col.weight").unwrap().shape(), [2, 3]);
    assert_eq!(file.tensor("mask").unwrap().dtype(), Dtype::BOOL);

    let other = Zoo::<B>::new(0);
    let loaded = checkpoint::load_model(&saved, other.clone()).unwrap();
    let again = save(dir.path(), "second", loaded.clone());
    assert!(parameters(&again) == bytes);
    // The layers compute with them, too.
    let [expected, before, after] = [model, other, loaded].map(|zoo| values(zoo.forward(images())));
    assert_ne!(before, expected, "they are random");
    assert_eq!(after, expected);
}

#[cfg(all(feature = "flex", feature = "ndarray"))]
#[test]
fn a_checkpoint_of_one_backend_loads_on_the_other() {
    use firebox_backend::Accelerator;

    type Flex = <firebox_flex::Flex as Accelerator>::Backend;
    type NdArray = <firebox_ndarray::NdArray as Accelerator>::Backend;

    fn passes<A: AutodiffBackend, B: AutodiffBackend>() {
        let dir = tempfile::tempdir().unwrap();
        let there = save(dir.path(), "there", Zoo::<A>::new(2));
        let model = checkpoint::load_model(&there, Zoo::<B>::new(1)).unwrap();
        let here = save(dir.path(), "here", model.clone());
        let home = checkpoint::load_model(&here, Zoo::<A>::new(3)).unwrap();
        let back = save(dir.path(), "back", home.clone());
        // Every bit of every parameter, though whole numbers are of another width here.
        assert!(parameters(&back) == parameters(&there));
        let [here, there] = [
            values(model.forward(images())),
            values(home.forward(images())),
        ];
        assert_close(&here, &there, 1e-5);
    }
    passes::<Flex, NdArray>();
    passes::<NdArray, Flex>();
}

/// After n batches of mean m, from 0 and with momentum 0.1, the running mean is m (1 - 0.9ⁿ).
fn statistics_of_the_last_step_are_saved<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::new(B::Device::default());
    let mut state = fabric.setup(Zoo::<B>::new(1)).unwrap();
    for step in 1..=3 {
        let loss = state.model().forward(images()).mean();
        fabric.backward(&mut state, loss, 2).unwrap();
        fabric.optimizer_step(&mut state).unwrap();
        let path = dir.path().join(format!("{step}"));
        checkpoint::save(&path, &mut state, &Progress::default()).unwrap();
        let rest = 0.9_f64.powi(step);
        let mean: Vec<f64> = floats(&path, "norm.running_mean")
            .into_iter()
            .map(f64::from)
            .collect();
        assert_close(&mean, &[1.0 - rest, 3.0 * (1.0 - rest)], 1e-6);
        let variance = floats(&path, "norm.running_var").into_iter().map(f64::from);
        assert_close(&variance.collect::<Vec<_>>(), &[rest, rest], 1e-6);
        // And they come back into what validates.
        let loaded = checkpoint::load_model(&path, Zoo::<B>::new(1)).unwrap();
        assert_eq!(values(loaded.norm.running_mean.value()), mean);
        use burn::module::AutodiffModule;
        assert_eq!(values(loaded.valid().norm.running_mean.value()), mean);
    }
}

/// What the last batch has left in a layer is not joined to what is loaded afterwards.
fn statistics_of_a_trained_model_give_way<B: AutodiffBackend>() {
    use burn::module::AutodiffModule;

    let dir = tempfile::tempdir().unwrap();
    let untrained = save(dir.path(), "untrained", Zoo::<B>::new(1));
    let trained = Zoo::<B>::new(1);
    trained.forward(images());
    let model = checkpoint::load_model(&untrained, trained).unwrap();
    assert_eq!(values(model.valid().norm.running_mean.value()), [0.0, 0.0]);
}

/// What a model is made with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Start {
    a: f32,
    b: f32,
}

fn a_model_is_built_from_its_hyper_parameters<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(1);
    let start = Start { a: 5.0, b: 2.0 };
    let outcome = Trainer::new(config.clone(), B::Device::default())
        .with_hyper_parameters(&start)
        .unwrap()
        .fit(Weights::<B>::new(start.a, start.b), &mut ones(3))
        .unwrap();
    let path = outcome.last_checkpoint.unwrap();
    let model = load_from_checkpoint(&path, |found: Start| {
        assert_eq!(found, start);
        Weights::<B>::new(found.a, found.b)
    });
    assert_eq!(model.unwrap().values(), [2.0, 2.0]);

    let error = load_from_checkpoint(&path, |_: Vec<u8>| Weights::<B>::new(0.0, 0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let expected = format!(
        "the hyper-parameters in `{}` are not of this type: ",
        path.display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");

    let error = load_from_checkpoint(&path, |_: Start| -> Weights<B> { panic!("no such size") });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::User);
    assert!(error.to_string().contains("no such size"), "{error}");

    let outcome = Trainer::new(config, B::Device::default())
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(1))
        .unwrap();
    let path = outcome.last_checkpoint.unwrap();
    let error = load_from_checkpoint(&path, |_: Start| Weights::<B>::new(0.0, 0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let expected = format!(
        "`{}` has no hyper-parameters; give them to `Trainer::with_hyper_parameters`",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    // The parameters are there all the same.
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(
        checkpoint
            .load_model(Weights::<B>::new(0.0, 0.0))
            .unwrap()
            .values(),
        [0.0, 1.0]
    );
}

/// By another program that reads safetensors: Python's own package.
#[cfg(feature = "ndarray")]
#[test]
fn python_reads_the_same_parameters() {
    type Cpu = <firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend;

    let dir = tempfile::tempdir().unwrap();
    let model = Zoo::<Cpu>::new(2);
    let path = save(dir.path(), "saved", model.clone());
    let mut expected = serde_json::Map::new();
    let mut add = |name: &str, dtype: &str, data: TensorData| {
        let values: Vec<serde_json::Value> = match dtype {
            "bool" => data.iter::<bool>().map(|v| v.into()).collect(),
            "float32" => data.iter::<f32>().map(|v| f64::from(v).into()).collect(),
            _ => data.iter::<i64>().map(|v| v.into()).collect(),
        };
        let shape = data.shape.to_vec();
        let entry = json!({"dtype": dtype, "shape": shape, "values": values});
        expected.insert(name.into(), entry);
    };
    macro_rules! add {
        ($($name:literal: $param:expr),* $(,)?) => {
            $( add($name, "float32", $param.val().into_data()); )*
        };
    }
    let bias = |linear: &Linear<Cpu>| linear.bias.clone().unwrap();
    let Head::Plain(head) = &model.head else {
        panic!("it is the plain one");
    };
    add! {
        "col.bias": bias(&model.col),
        "conv.bias": model.conv.bias.clone().unwrap(),
        "conv.weight": model.conv.weight,
        "head.Plain.bias": bias(head),
        "head.Plain.weight": head.weight,
        "norm.beta": model.norm.beta,
        "norm.gamma": model.norm.gamma,
        "nothing": model.nothing,
        "pair.0.bias": bias(&model.pair.0),
        "pair.0.weight": model.pair.0.weight,
        "pair.1.bias": bias(&model.pair.1),
        "pair.1.weight": model.pair.1.weight,
        "row.bias": bias(&model.row),
        "row.weight": model.row.weight,
        "scale.beta": model.scale.beta.clone().unwrap(),
        "scale.gamma": model.scale.gamma,
        "some.bias": bias(model.some.as_ref().unwrap()),
        "some.weight": model.some.as_ref().unwrap().weight,
        "stack.0.bias": bias(&model.stack[0]),
        "stack.0.weight": model.stack[0].weight,
        "stack.1.bias": bias(&model.stack[1]),
        "stack.1.weight": model.stack[1].weight,
        "words.weight": model.words.weight,
    }
    add(
        "norm.running_mean",
        "float32",
        model.norm.running_mean.value().into_data(),
    );
    add(
        "norm.running_var",
        "float32",
        model.norm.running_var.value().into_data(),
    );
    add(
        "col.weight",
        "float32",
        model.col.weight.val().transpose().into_data(),
    );
    add("order", "int64", model.order.val().into_data());
    add("mask", "bool", model.mask.val().into_data());
    let json = dir.path().join("expected.json");
    std::fs::write(&json, serde_json::to_vec(&expected).unwrap()).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/safetensors.py");
    match Command::new("python3")
        .args([&script, &path, &json])
        .output()
    {
        Err(error) => eprintln!("skipped: no python3: {error}"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            eprint!("{text}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}{errors}");
        }
    }
}
