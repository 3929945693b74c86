//! A model whose gradient is known exactly, and what tests watch a run with.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use firebox::config::ProgressMode;
use firebox::data::Loaders;
use firebox::logger::{Logger, Row};
use firebox::prelude::*;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use tempfile::TempDir;

/// Makes tests of functions that are generic over the backend, one for each accelerator that is
/// compiled in. Where the machine has none of a kind, the test says so.
macro_rules! on_each_backend {
    // For what does not differ from device to device: a model takes long to compile for each.
    (cpu: $($test:ident),* $(,)?) => {
        on_each_backend!(@ flex, "flex", firebox_flex::Flex, $($test),*);
        on_each_backend!(@ ndarray, "ndarray", firebox_ndarray::NdArray, $($test),*);
    };
    ($($test:ident),* $(,)?) => {
        on_each_backend!(@ flex, "flex", firebox_flex::Flex, $($test),*);
        on_each_backend!(@ ndarray, "ndarray", firebox_ndarray::NdArray, $($test),*);
        on_each_backend!(@ wgpu, "wgpu", firebox_wgpu::Wgpu, $($test),*);
        // Compiled only where there may be such a GPU: `tests/gpu.sh`.
        #[cfg(cuda_tests)]
        on_each_backend!(@ cuda, "cuda", firebox_cuda::Cuda, $($test),*);
    };
    (@ $module:ident, $feature:literal, $accelerator:ty, $($test:ident),*) => {
        #[cfg(feature = $feature)]
        mod $module {
            use firebox_backend::Accelerator;

            $(#[test] fn $test() {
                match <$accelerator>::probe() {
                    Ok(devices) => {
                        // Sets the hardware up as a launch does.
                        let _ = <$accelerator>::device(devices[0].id);
                        super::$test::<<$accelerator as Accelerator>::Backend>()
                    }
                    Err(why) => eprintln!("skipped: {why}"),
                }
            })*
        }
    };
}

/// What messages list: the accelerators that are compiled in and those that this machine has.
pub fn accelerator_list() -> String {
    use firebox_backend::Accelerator;
    fn of<A: Accelerator>() -> (&'static str, bool) {
        (A::NAME, A::probe().is_ok())
    }
    let all = [
        #[cfg(feature = "cuda")]
        of::<firebox_cuda::Cuda>(),
        #[cfg(feature = "rocm")]
        of::<firebox_rocm::Rocm>(),
        #[cfg(feature = "wgpu")]
        of::<firebox_wgpu::Wgpu>(),
        #[cfg(feature = "flex")]
        of::<firebox_flex::Flex>(),
        #[cfg(feature = "ndarray")]
        of::<firebox_ndarray::NdArray>(),
    ];
    let names = |available: bool| {
        let wanted = all.iter().filter(|(_, is_there)| *is_there || !available);
        wanted.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    format!(
        "compiled in: {}; available: {} (or auto, cpu, gpu)",
        names(false),
        names(true)
    )
}

/// The example's program, which cargo builds with the tests.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = profile.join("examples").join(file);
    assert!(
        path.exists(),
        "`{}` is not there; build it with `cargo build --example {name}`",
        path.display()
    );
    path
}

/// A process of its own for a test that is ignored unless another one starts it.
pub fn own_process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command
}

/// Two weights, each a tensor of its own; the loss is the mean of ga·a + gb·b over tokens, so the
/// gradient is the mean of (ga, gb).
#[derive(Module, Debug)]
pub struct Weights<B: Backend> {
    pub a: Param<Tensor<B, 1>>,
    pub b: Param<Tensor<B, 1>>,
}

/// What a sequence contributes: the gradient of each of its tokens.
pub type Sequence = Vec<[f32; 2]>;

/// The tokens of a batch, [tokens, 2]. The loss weighs as much as there are tokens.
#[derive(Debug, Clone)]
pub struct Tokens<B: Backend> {
    pub gradients: Tensor<B, 2>,
}

impl<B: Backend> Weights<B> {
    pub fn new(a: f32, b: f32) -> Self {
        let parameter =
            |value| Param::from_tensor(Tensor::from_floats([value], &B::Device::default()));
        Self {
            a: parameter(a),
            b: parameter(b),
        }
    }

    pub fn loss(&self, gradients: Tensor<B, 2>) -> Tensor<B, 1> {
        let weights = Tensor::cat(vec![self.a.val(), self.b.val()], 0);
        (gradients * weights.unsqueeze()).sum_dim(1).mean()
    }

    pub fn values(&self) -> [f32; 2] {
        let value = |p: &Param<Tensor<B, 1>>| p.val().into_data().iter::<f32>().next().unwrap();
        [value(&self.a), value(&self.b)]
    }
}

impl<B: AutodiffBackend> TrainModule for Weights<B> {
    type Backend = B;
    type Batch = Tokens<B>;
    type Eval = Weights<B::InnerBackend>;

    fn training_step(&self, batch: Tokens<B>, _cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let [tokens, _] = batch.gradients.dims();
        Ok(Loss::weighted(self.loss(batch.gradients), tokens as f64))
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(sgd(1.0))
    }
}

impl<B: Backend> EvalModule for Weights<B> {
    type Backend = B;
    type Batch = Tokens<B>;

    /// Logs the first column's mean over the batch as `value`.
    fn validation_step(&self, batch: Tokens<B>, cx: &mut StepContext<B>) -> Result<()> {
        cx.log("value", batch.gradients.narrow(1, 0, 1).mean());
        Ok(())
    }
}

/// Plain gradient descent.
pub fn sgd<B: AutodiffBackend>(lr: f64) -> Optimizers<Weights<B>> {
    Optimizers::single(SgdConfig::new().init()).with_lr(lr)
}

#[derive(Debug, Clone, Copy)]
pub struct TokenBatcher;

impl<B: Backend> Batcher<B, Sequence, Tokens<B>> for TokenBatcher {
    fn batch(&self, sequences: Vec<Sequence>, device: &B::Device) -> Tokens<B> {
        let tokens: Vec<f32> = sequences.into_iter().flatten().flatten().collect();
        let data = TensorData::new(tokens.clone(), [tokens.len() / 2, 2]);
        Tokens {
            gradients: Tensor::from_data(data, device),
        }
    }
}

/// A loader of sequences, one in a batch, in their order.
pub fn sequences<B: Backend>(sequences: Vec<Sequence>) -> Loader<B, Tokens<B>> {
    Loader::new(InMemDataset::new(sequences), TokenBatcher)
}

/// A loader of one-token sequences with gradients (g, 0).
pub fn gradients<B: Backend>(gradients: impl IntoIterator<Item = f32>) -> Loader<B, Tokens<B>> {
    sequences(gradients.into_iter().map(|g| vec![[g, 0.0]]).collect())
}

/// `n` batches of gradient (1, 0).
pub fn ones<B: AutodiffBackend>(n: usize) -> Loaders<Weights<B>> {
    Loaders::new(gradients(vec![1.0; n]))
}

/// The names of the checkpoints in a folder, in order.
pub fn checkpoints(folder: &Path) -> Vec<String> {
    let found = firebox::checkpoint::list(folder).unwrap().into_iter();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<_> = found.map(|found| name(&found.path)).collect();
    names.sort();
    names
}

/// A quiet config with every step logged, and the folder that its runs go to.
pub fn quiet() -> (TrainerConfig, TempDir) {
    let runs = tempfile::tempdir().unwrap();
    let config = TrainerConfig::new()
        .with_progress(ProgressMode::Off)
        .with_run_dir(runs.path().join("runs"))
        .with_log_every_n_steps(1);
    (config, runs)
}

/// Fits weights (1, 1) and returns the outcome and every logged row.
pub fn fit<B: AutodiffBackend>(
    config: TrainerConfig,
    optimizers: Optimizers<Weights<B>>,
    mut data: Loaders<Weights<B>>,
) -> (FitOutcome<Weights<B>>, Rows) {
    let rows = Rows::default();
    let outcome = Trainer::new(config, B::Device::default())
        .with_callback(LearningRateMonitor::new())
        .with_logger(rows.clone())
        .fit_with(Weights::new(1.0, 1.0), optimizers, &mut data)
        .unwrap();
    (outcome, rows)
}

/// A logger that keeps its rows: step, epoch and values.
#[derive(Debug, Clone, Default)]
pub struct Rows(Rc<RefCell<Vec<(u64, u64, Metrics)>>>);

impl Rows {
    /// Every value logged under a name, in order.
    pub fn values(&self, name: &str) -> Vec<f64> {
        let rows = self.0.borrow();
        rows.iter().filter_map(|(_, _, v)| v.get(name)).collect()
    }

    /// The steps at which a name was logged.
    pub fn steps(&self, name: &str) -> Vec<u64> {
        let rows = self.0.borrow();
        let logged = rows.iter().filter(|(_, _, v)| v.get(name).is_some());
        logged.map(|(step, _, _)| *step).collect()
    }
}

impl Logger for Rows {
    fn log(&mut self, row: &Row<'_>) -> Result<()> {
        self.0
            .borrow_mut()
            .push((row.step, row.epoch, row.values.clone()));
        Ok(())
    }
}

/// Whether two lists of numbers are equal to within `tolerance`.
#[track_caller]
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let close = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(close, "found {found:?}, expected {expected:?}");
}
