//! Damaged and hostile checkpoints: whatever the bytes, reading them gives a checkpoint or an error.
//!
//! Real files are changed in many small ways, each drawn from its number alone. With the checksums
//! left as they were, every change is found. With checksums made to fit, as somebody with a grudge
//! would, anything goes but a panic, an abort, or memory beyond what the files take.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod change;

use super::folder::{self, FileEntry, Files, MANIFEST, Manifest};
use super::state::{Part, RunState};
use super::{Checkpoint, GRADIENTS, MODEL, STATE, pack, tensors};
use crate::config::TrainerConfig;
use crate::data::SampleRng;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, TrainState};
use crate::module::{EvalModule, Loss, StepContext, TrainModule};
use crate::optim::schedule::{Cosine, LinearWarmup, ReduceOnPlateau, ScheduleInterval, Sequential};
use crate::optim::{Optimizers, ParamGroup};
use crate::progress::Progress;
use crate::testing::Cpu;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use ciborium::Value;
use peak_alloc::PeakAlloc;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use xxhash_rust::xxh3::xxh3_128;

/// Counts what this binary's tests have allocated.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Changes of each file, each with the checksums left and with others that fit.
const CHANGES: u64 = 10_000;

/// What reading may take: so many times the files' length, and what a model and its optimizers take
/// whatever the files hold. What was written has 4 thousand bytes and takes 41 thousand; no change
/// of it has taken more than 120 thousand.
const FACTOR: usize = 16;
/// Where files are made to take as much as they can: a number of two bytes in JSON takes 72 in
/// memory, twice that while its list grows, and more in TOML.
const LARGE_FACTOR: usize = 160;
const BESIDE: usize = 256 << 10;

#[derive(Module, Debug)]
struct Small<B: Backend> {
    first: Linear<B>,
    norm: BatchNorm<B>,
    last: Linear<B>,
}

impl<B: Backend> Small<B> {
    fn new() -> Self {
        let device = Default::default();
        let model = Self {
            first: LinearConfig::new(2, 3).init(&device),
            norm: BatchNormConfig::new(3).init(&device),
            last: LinearConfig::new(3, 1).init(&device),
        };
        // Drawn now, so that a clone need not.
        model.num_params();
        model
    }
}

impl<B: AutodiffBackend> Small<B> {
    fn loss(&self) -> Tensor<B, 1> {
        let points = [[0.0, 1.0], [1.0, 0.5], [-1.0, 2.0]];
        let points = Tensor::<B, 2>::from_floats(points, &Default::default());
        let x = self.first.forward(points);
        self.last.forward(self.norm.forward(x)).square().mean()
    }
}

impl<B: AutodiffBackend> TrainModule for Small<B> {
    type Backend = B;
    type Batch = ();
    type Eval = Small<B::InnerBackend>;

    fn training_step(&self, _: (), _: &mut StepContext<B>) -> Result<Loss<B>> {
        Ok(self.loss().into())
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let plateau = ReduceOnPlateau::new(crate::mode::Mode::Min);
        let group = ParamGroup::new("last", ["last.*"], momentum.init())
            .with_lr(0.1)
            .with_schedule(ScheduleInterval::Metric("val/loss".into()), plateau);
        let phases = Sequential::new()
            .then(LinearWarmup::new(2, 0.5), 2)
            .then(Cosine::new(9), 9);
        Ok(Optimizers::single(AdamConfig::new().init())
            .with_lr(0.01)
            .with_schedule(ScheduleInterval::Step, phases)
            .with_group(group))
    }
}

impl<B: Backend> EvalModule for Small<B> {
    type Backend = B;
    type Batch = ();

    fn validation_step(&self, _: (), _: &mut StepContext<B>) -> Result<()> {
        Ok(())
    }
}

/// A run in the middle of everything: two groups, schedules, an unfinished step.
fn real<B: AutodiffBackend>() -> Files {
    let fabric = Fabric::<B>::new(Default::default());
    let mut state = fabric.setup(Small::new()).unwrap();
    for batch in 0..5 {
        let loss = state.model().loss();
        fabric.backward(&mut state, loss, 3).unwrap();
        if batch < 4 {
            fabric.optimizer_step(&mut state).unwrap();
            state.optimizers.on_metrics(|_| Some(0.5));
        }
    }
    let part = |name: &str, state| Part {
        name: name.into(),
        state,
    };
    let run = RunState {
        progress: Progress {
            epoch: 1,
            batch: 5,
            global_step: 4,
            ..Progress::default()
        },
        callbacks: vec![part("EarlyStopping", json!({"best": "0.5", "bad": 2}))],
        loggers: vec![part("CsvLogger", json!(["step", "epoch", "train/loss"]))],
        hyper_parameters: json!({"width": 3, "dropout": 0.1, "names": ["a", "b"]}),
        config: TrainerConfig::default().to_toml().unwrap(),
        ..RunState::default()
    };
    let files = pack(&mut state, run).unwrap().encode().unwrap();
    let expected = [
        GRADIENTS,
        MODEL,
        "optimizer-0.cbor",
        "optimizer-1.cbor",
        STATE,
    ];
    assert!(files.contents.keys().eq(expected.iter().copied()));
    files
}

/// Reads all that there is to read.
fn read<B: AutodiffBackend>(files: Files, model: &Small<B>) -> Result<TrainState<Small<B>>> {
    let checkpoint = Checkpoint::from_files(Path::new("checkpoint"), files)?;
    let _ = checkpoint.config();
    let _ = checkpoint.hyper_parameters::<serde_json::Value>();
    let _ = checkpoint.best();
    let _ = checkpoint.weights()?.partial().load(model.clone());
    let fabric = Fabric::new(Default::default());
    let optimizers = model.configure_optimizers()?;
    checkpoint.restore(&fabric, model.clone(), optimizers)
}

/// The bytes of the list of these files.
fn manifest(files: &Files) -> Vec<u8> {
    let entry = |content: &Vec<u8>| FileEntry {
        bytes: content.len() as u64,
        xxh3: format!("{:032x}", xxh3_128(content)),
    };
    let entries = files.contents.iter();
    let manifest = Manifest {
        format: folder::FORMAT,
        firebox: "0.1.0".into(),
        burn: super::BURN_VERSION.into(),
        epoch: files.epoch,
        step: files.step,
        files: entries
            .map(|(name, content)| (name.clone(), entry(content)))
            .collect(),
    };
    serde_json::to_vec_pretty(&manifest).unwrap()
}

/// The files that a manifest lists, where those are the files that are there.
fn check(manifest: &[u8], files: &Files) -> Result<Files> {
    let path = Path::new("checkpoint");
    let manifest = folder::parse_manifest(path, manifest)?;
    Files::check(path, &manifest, |name, _| {
        let content = files.contents.get(name).cloned();
        content.ok_or_else(|| folder::corrupt(path, format!("`{name}` is missing")))
    })
}

/// What became of the inputs.
#[derive(Default)]
struct Tally {
    inputs: usize,
    read: usize,
    /// The most memory that one has taken, and how long its files were.
    most: (usize, usize),
    /// What must not be: panics, too much memory, damage that is not found.
    wrong: Vec<String>,
}

impl Tally {
    /// Runs `f` on files of this length; what it gives, unless it panics.
    fn watch<T>(&mut self, files: (usize, usize), f: impl FnOnce() -> Result<T>) -> Result<T> {
        let (length, factor) = files;
        self.inputs += 1;
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let taken = MEMORY.peak_usage().saturating_sub(before);
        self.most = self.most.max((taken, length));
        if taken > factor * length + BESIDE {
            self.wrong.push(format!("{length} bytes took {taken}"));
        }
        let outcome = outcome.unwrap_or_else(|_| {
            self.wrong.push("a panic".into());
            Err(Error::user("a panic"))
        });
        self.read += usize::from(outcome.is_ok());
        outcome
    }

    fn expect(&mut self, is_right: bool, wrong: &str) {
        if !is_right {
            self.wrong.push(wrong.into());
        }
    }
}

fn length(files: &Files) -> usize {
    files.contents.values().map(Vec::len).sum()
}

fn is_corrupt<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(e) if e.kind() == ErrorKind::Corrupt)
}

/// One changed input, read in both ways.
fn try_one<B: AutodiffBackend>(
    tally: &mut Tally,
    (target, random): (&str, &mut SampleRng),
    files: &Files,
    model: &Small<B>,
) {
    let (changed, manifest) = change::changed(files, target, random);
    let size = (length(&changed) + manifest.len(), FACTOR);
    let checked = tally.watch(size, || check(&manifest, &changed));
    if target != MANIFEST {
        let is_same = changed.contents == files.contents;
        tally.expect(is_same || is_corrupt(&checked), "damage that is not found");
        let _ = tally.watch(size, || read(changed, model));
        return;
    }
    match checked {
        // What the list says beside (who wrote it) is for people alone.
        Ok(found) if found.contents == files.contents && found.step == files.step => {}
        // Files that are left out, or of another step, are found by what the others say.
        Ok(found) => {
            let outcome = tally.watch(size, || read(found, model));
            tally.expect(is_corrupt(&outcome), "damage that is not found");
        }
        Err(e) => {
            let is_other_format = e.to_string().contains(" has format ");
            tally.expect(
                is_other_format || is_corrupt(&Err::<(), _>(e)),
                "another error",
            );
        }
    }
}

fn try_all<B: AutodiffBackend>(backend: &str) {
    let (files, model) = (real::<B>(), Small::<B>::new());
    let targets = files.contents.keys().map(String::as_str).chain([MANIFEST]);
    let mut tally = Tally::default();
    let size = (length(&files), FACTOR);
    tally.watch(size, || read(files.clone(), &model)).unwrap();
    eprintln!(
        "{backend}: {} bytes as they were written took {}",
        size.0, tally.most.0
    );
    for (index, target) in targets.enumerate() {
        for number in 0..CHANGES {
            let mut random = SampleRng::new(1, index as u64, number as usize);
            let before = tally.wrong.len();
            try_one(&mut tally, (target, &mut random), &files, &model);
            for wrong in &tally.wrong[before..] {
                eprintln!("{backend}, {target}, {number}: {wrong}");
            }
            if number % 64 == 0 {
                // Burn gives back what belonged to models that are gone with the next gradients.
                model.loss().backward();
            }
        }
    }
    eprintln!(
        "{backend}: {} inputs, {} of them read; the most was {:?}",
        tally.inputs, tally.read, tally.most
    );
    for (what, files) in large(&files) {
        let size = (length(&files), LARGE_FACTOR);
        tally.most = (0, 0);
        let outcome = tally.watch(size, || read(files, &model));
        let factor = tally.most.0 as f64 / size.0 as f64;
        eprintln!(
            "{backend}, {what}: {factor:.0} times {}, {}",
            size.0,
            outcome.is_ok()
        );
    }
    assert!(tally.inputs > 100_000);
    assert!(tally.wrong.is_empty(), "{:?}", tally.wrong);
}

/// Files made to take as much as they can.
fn large(real: &Files) -> Vec<(&'static str, Files)> {
    let with = |what, name: &str, content: Vec<u8>| {
        let mut files = real.clone();
        files.contents.insert(name.into(), content);
        (what, files)
    };
    let state: serde_json::Value = serde_json::from_slice(&real.contents[STATE]).unwrap();
    let state = |what, field: &str, value: serde_json::Value| {
        let mut state = state.clone();
        state[field] = value;
        with(what, STATE, serde_json::to_vec(&state).unwrap())
    };
    let cbor = |what, start: &[u8], repeated: &[u8], end: &[u8]| {
        let content = [start, &repeated.repeat(MANY), end].concat();
        with(what, "optimizer-0.cbor", content)
    };
    let header = |what, name, text: String| {
        let length = text.len() as u64;
        with(
            what,
            name,
            [&length.to_le_bytes(), text.as_bytes()].concat(),
        )
    };
    let join =
        |part: &dyn Fn(usize) -> String| (0..MANY / 8).map(part).collect::<Vec<_>>().join(",");
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let tensors = format!("{{{}}}", join(&|i| format!(r#""{i}":{empty}"#)));
    let shape = format!("[0{}]", ",0".repeat(MANY));
    let shape = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
    vec![
        state("zeros", "model", json!(vec![0; MANY])),
        state("objects", "model", json!(vec![json!({"": 0}); MANY])),
        state("hyper-parameters", "hyper_parameters", json!(vec![0; MANY])),
        state("stops", "stops", json!(vec![(0, ""); MANY])),
        with("brackets", STATE, b"[".repeat(MANY)),
        state(
            "a list in TOML",
            "config",
            format!("a = [{}]", "0,".repeat(MANY)).into(),
        ),
        state(
            "lists in TOML",
            "config",
            format!("a = {}", "[".repeat(MANY)).into(),
        ),
        state(
            "names in TOML",
            "config",
            format!("{}a = 1", "a.".repeat(MANY)).into(),
        ),
        cbor("a list", &[0x9f], &[0], &[0xff]),
        cbor("a map", &[0xbf], &[0, 0], &[0xff]),
        cbor("maps", &[0x9f], &[0xa1, 0, 0], &[0xff]),
        cbor("tags", &[0x9f], &[0xc1, 0], &[0xff]),
        cbor("a byte at a time", &[0x5f], &[0x41, 0], &[0xff]),
        cbor("lists in lists", &[], &[0x81], &[0]),
        cbor("maps in maps", &[], &[0xa1, 0], &[0]),
        cbor("tags in tags", &[], &[0xc1], &[0]),
        cbor(
            "long lists in long lists",
            &[],
            &[0x9b, 0, 0, 0, 1, 0, 0, 0, 0],
            &[0],
        ),
        header("tensors", MODEL, tensors.clone()),
        header("gradients", GRADIENTS, tensors),
        header("a shape", MODEL, shape.clone()),
        header("a gradient's shape", GRADIENTS, shape),
        with("a header", MODEL, (1_u64 << 40).to_le_bytes().to_vec()),
    ]
}

const MANY: usize = 1 << 18;

#[test]
#[ignore = "started by `whatever_the_bytes_reading_gives_a_checkpoint_or_an_error`"]
fn process() {
    #[cfg(feature = "flex")]
    try_all::<<firebox_flex::Flex as firebox_backend::Accelerator>::Backend>("flex");
    #[cfg(feature = "ndarray")]
    try_all::<<firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend>("ndarray");
}

/// In a process of its own: other tests take memory, too, and an abort would end them.
#[test]
fn whatever_the_bytes_reading_gives_a_checkpoint_or_an_error() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "checkpoint::hostile::process",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// Reads a checkpoint with every tensor of an optimizer's state changed.
fn with_tensors(change: &dyn Fn(&mut Value)) -> Result<()> {
    fn each(value: &mut Value, change: &dyn Fn(&mut Value)) {
        match value {
            Value::Map(entries)
                if entries
                    .iter()
                    .any(|(key, _)| key.as_text() == Some("bytes")) =>
            {
                change(value);
            }
            Value::Map(entries) => entries
                .iter_mut()
                .for_each(|(_, value)| each(value, change)),
            _ => {}
        }
    }
    let (mut files, model) = (real::<Cpu>(), Small::<Cpu>::new());
    let content = files.contents.get_mut("optimizer-1.cbor").unwrap();
    let mut value: Value = ciborium::from_reader(&**content).unwrap();
    each(&mut value, change);
    content.clear();
    ciborium::into_writer(&value, content).unwrap();
    read(files, &model).map(drop)
}

/// A shape of more numbers than there are.
fn enlarge(tensor: &mut Value) {
    for (key, value) in tensor.as_map_mut().unwrap() {
        if key.as_text() == Some("shape") {
            value.as_array_mut().unwrap().fill(Value::from(1000));
        }
    }
}

#[test]
fn an_optimizers_tensor_is_as_long_as_its_shape_says() {
    let error = with_tensors(&enlarge).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_tag_hides_no_tensor_from_the_check() {
    let outcome = with_tensors(&|tensor| {
        enlarge(tensor);
        *tensor = Value::Tag(9, Box::new(tensor.clone()));
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let outcome = with_tensors(&|tensor| {
        enlarge(tensor);
        let (key, _) = &mut tensor.as_map_mut().unwrap()[0];
        *key = Value::Tag(9, Box::new(key.clone()));
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Gradients in another precision than their parameters are no gradients of this run, or become it.
fn gradients_as<B: AutodiffBackend>(dtype: DType) -> Result<()> {
    let (mut files, model) = (real::<B>(), Small::<B>::new());
    let (decoded, _) = tensors::decode(&files.contents[GRADIENTS]).unwrap();
    let converted = decoded
        .into_iter()
        .map(|(path, data)| (path, data.convert_dtype(dtype)));
    let content = tensors::encode(converted.collect()).unwrap();
    files.contents.insert(GRADIENTS.into(), content);
    let mut state = read(files, &model)?;
    let fabric = Fabric::new(Default::default());
    let loss = state.model().loss();
    fabric.backward(&mut state, loss, 3)?;
    fabric.optimizer_step(&mut state).map(drop)
}

#[test]
fn gradients_of_another_precision_are_no_panic() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let _ = gradients_as::<Cpu>(dtype);
        #[cfg(feature = "ndarray")]
        let _ = gradients_as::<<firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend>(
            dtype,
        );
    }
}
