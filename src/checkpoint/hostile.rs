//! Damaged and hostile checkpoints: whatever the bytes, reading them gives a checkpoint or an error.
//!
//! Real files are changed in many small ways, each drawn from its number alone. With the checksums
//! left as they were, every change is found. With checksums made to fit, as somebody with a grudge
//! would, anything goes but a panic, an abort, or memory beyond what the files take.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::folder::{self, FileEntry, Files, MANIFEST, Manifest};
use super::state::{Part, RunState};
use super::{Checkpoint, GRADIENTS, MODEL, STATE, optimizer_file, pack, tensors};
use crate::config::TrainerConfig;
use crate::data::SampleRng;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, TrainState};
use crate::module::{EvalModule, Loss, StepContext, TrainModule};
use crate::optim::schedule::{Cosine, LinearWarmup, ReduceOnPlateau, ScheduleInterval, Sequential};
use crate::optim::{Optimizers, ParamGroup};
use crate::progress::Progress;
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

/// Changes of each file, with the checksums left and with others that fit.
const CHANGES: u64 = 6_000;

/// What reading may take beyond what the files take, at most: so many times their length, and some
/// more for what is there whatever they hold (a model, its optimizers).
///
/// The real files take 4 times their length, and no change of them has taken more than TODO. The
/// factor is for the worst that can be written: a list of zeros takes two bytes for each in JSON,
/// one in CBOR, and a value takes 72 (or 32) in memory; twice that while the list grows.
const FACTOR: usize = 128;
const BESIDE: usize = 1 << 20;

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
    let files = pack(&mut state, run).unwrap();
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

/// What is changed: one of the files, or the list of them.
fn targets(files: &Files) -> Vec<String> {
    let mut names: Vec<_> = files.contents.keys().cloned().collect();
    names.push(MANIFEST.into());
    names
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

/// The files with one of them changed in the way of this number, and the manifest.
fn changed(files: &Files, target: &str, random: &mut SampleRng) -> (Files, Vec<u8>) {
    let mut files = files.clone();
    let manifest = manifest(&files);
    let content = files.contents.get(target).unwrap_or(&manifest);
    let changed = match (target, random.below(4)) {
        (MODEL | GRADIENTS, 0) => change_header(content, random),
        (STATE | MANIFEST, 0 | 1) => change_token(content, random),
        (name, 0 | 1) if name.ends_with(".cbor") => change_value(content, random),
        _ => {
            let others: Vec<_> = files.contents.values().collect();
            change_bytes(content, &others, random)
        }
    };
    match files.contents.get_mut(target) {
        None => (files, changed),
        Some(content) => {
            *content = changed;
            (files, manifest)
        }
    }
}

/// Bytes, wherever they are.
fn change_bytes(content: &[u8], others: &[&Vec<u8>], random: &mut SampleRng) -> Vec<u8> {
    let mut bytes = content.to_vec();
    for _ in 0..=random.below(3) {
        let place = random.below(bytes.len().max(1));
        let end = (place + 1 + random.below(16)).min(bytes.len());
        match random.below(9) {
            _ if bytes.is_empty() => bytes.push(random.below(256) as u8),
            0 | 1 => bytes[place] ^= 1 << random.below(8),
            2 => bytes[place] = random.below(256) as u8,
            3 => bytes.truncate(place),
            4 => drop(bytes.drain(place..end)),
            5 => drop(bytes.splice(place..place, random.next_u64().to_le_bytes())),
            6 => {
                let copied = bytes[place..end].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, copied));
            }
            7 => {
                let other = others[random.below(others.len())];
                let from = random.below(other.len().max(1));
                let to = (from + 1 + random.below(64)).min(other.len());
                drop(bytes.splice(place..end, other[from.min(to)..to].iter().copied()));
            }
            // A length, as CBOR and safetensors write them, of more than there is.
            _ => {
                let length = u64::MAX >> random.below(64);
                let field = match random.below(2) {
                    0 => length.to_le_bytes().to_vec(),
                    _ => {
                        let kind = [0x5b, 0x7b, 0x9b, 0xbb][random.below(4)];
                        [&[kind], &length.to_be_bytes()[..]].concat()
                    }
                };
                let end = (place + field.len()).min(bytes.len());
                drop(bytes.splice(place..end, field));
            }
        }
    }
    bytes
}

/// What stands where it should not.
const TOKENS: [&str; 20] = [
    "null",
    "true",
    "-1",
    "0",
    "0.5",
    "1e308",
    "1e999",
    "-0.0",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "\"\"",
    "\"NaN\"",
    "\"inf\"",
    "[]",
    "{}",
    "[[]]",
    "\"F16\"",
    "\"../up\"",
    "\"\\ud800\"",
];

/// Words, numbers, texts or signs of JSON.
fn change_token(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let mut tokens = tokens(content);
    for _ in 0..=random.below(2) {
        let place = random.below(tokens.len());
        let other = tokens[random.below(tokens.len())].clone();
        match random.below(6) {
            0 => drop(tokens.remove(place)),
            1 => tokens[place] = other,
            2 => tokens.insert(place, other),
            3 => tokens[place] = "[".repeat(1 + random.below(300)).into_bytes(),
            _ => tokens[place] = TOKENS[random.below(TOKENS.len())].into(),
        }
        if tokens.is_empty() {
            break;
        }
    }
    tokens.concat()
}

fn tokens(text: &[u8]) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = Vec::new();
    let mut in_text = false;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    for (index, byte) in text.iter().enumerate() {
        let goes_on = index > 0 && (in_text || is_word(*byte) && is_word(text[index - 1]));
        match tokens.last_mut() {
            Some(token) if goes_on => token.push(*byte),
            _ => tokens.push(vec![*byte]),
        }
        in_text ^= *byte == b'"';
    }
    tokens
}

/// The description of the tensors in a safetensors file, with its length before it.
fn change_header(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let (header, data) = content[8..].split_at(length);
    let header = change_token(header, random);
    [&(header.len() as u64).to_le_bytes(), &*header, data].concat()
}

/// A value of CBOR, or what it is in.
fn change_value(content: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let mut value: Value = ciborium::from_reader(content).unwrap();
    for _ in 0..=random.below(2) {
        let mut left = usize::MAX;
        node(&mut value, &mut left);
        let mut number = random.below(usize::MAX - left);
        if let Some(node) = node(&mut value, &mut number) {
            let old = std::mem::replace(node, Value::Null);
            *node = match random.below(12) {
                0 => Value::Null,
                1 => Value::Integer(random.next_u64().into()),
                2 => Value::Integer((-1).into()),
                3 => Value::Float(f64::NAN),
                4 => Value::Text("Rank8".into()),
                5 => Value::Bytes(vec![7; random.below(40)]),
                6 => Value::Array(vec![old.clone(), old]),
                7 => Value::Array(Vec::new()),
                8 => Value::Map(Vec::new()),
                // What is tagged is read as if it were not.
                _ => Value::Tag(random.below(30) as u64, Box::new(old)),
            };
        }
    }
    let mut bytes = Vec::new();
    ciborium::into_writer(&value, &mut bytes).unwrap();
    bytes
}

/// The value of this number, keys counted too.
fn node<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| node(item, number)),
        Value::Map(entries) => entries.iter_mut().find_map(|(key, value)| {
            let found = node(key, number);
            found.or_else(|| node(value, number))
        }),
        Value::Tag(_, inner) => node(inner, number),
        _ => None,
    }
}

/// What became of the inputs.
#[derive(Default)]
struct Tally {
    inputs: u64,
    read: u64,
    errors: u64,
    /// The most memory that one has taken, in lengths of its files.
    most: f64,
    /// What must not be: panics, too much memory, damage that is not found.
    wrong: Vec<String>,
}

impl Tally {
    /// Runs `f` on an input of this length, and keeps what is wrong with it.
    fn watch<T>(
        &mut self,
        length: usize,
        name: &str,
        f: impl FnOnce() -> Result<T>,
    ) -> Option<Result<T>> {
        self.inputs += 1;
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let taken = MEMORY.peak_usage().saturating_sub(before);
        self.most = self
            .most
            .max(taken.saturating_sub(BESIDE) as f64 / length as f64);
        if std::env::var("SHOW").is_ok() && taken > 8 * length {
            eprintln!("{name}: {taken} of {length}");
        }
        if taken > FACTOR * length + BESIDE {
            self.wrong
                .push(format!("{name}: {length} bytes took {taken}"));
        }
        match &outcome {
            Ok(Ok(_)) => self.read += 1,
            Ok(Err(_)) => self.errors += 1,
            Err(_) => self.wrong.push(format!("{name}: a panic")),
        }
        outcome.ok()
    }
}

fn length(files: &Files) -> usize {
    files.contents.values().map(Vec::len).sum()
}

fn try_all<B: AutodiffBackend>(backend: &str) {
    let (files, model) = (real::<B>(), Small::<B>::new());
    read(files.clone(), &model).unwrap();
    eprintln!("{backend}: files of {} bytes", length(&files));
    let mut tally = Tally::default();
    for (index, target) in targets(&files).iter().enumerate() {
        let start = std::time::Instant::now();
        let (r, e, i) = (tally.read, tally.errors, tally.inputs);
        for number in 0..CHANGES {
            let mut random = SampleRng::new(1, index as u64, number as usize);
            let (changed, manifest) = changed(&files, target, &mut random);
            let name = format!("{backend}, {target}, {number}");
            let length = length(&changed) + manifest.len();
            let checked = tally.watch(length, &name, || check(&manifest, &changed));
            let is_found = |checked: &Result<Files>| match checked {
                // One of another format cannot be read as what it was.
                Err(e) => e.kind() == ErrorKind::Corrupt || e.to_string().contains(" has format "),
                Ok(found) => found.contents == files.contents,
            };
            if target != MANIFEST {
                if checked.is_some_and(|checked| !is_found(&checked)) {
                    tally.wrong.push(format!("{name}: not found"));
                }
                let state = tally.watch(length, &name, || read(changed, &model));
                if let Some(Ok(mut state)) = state {
                    let fabric = Fabric::<B>::new(Default::default());
                    let next = catch_unwind(AssertUnwindSafe(|| {
                        let loss = state.model().loss();
                        fabric.backward(&mut state, loss, 3)?;
                        fabric.optimizer_step(&mut state)?;
                        state.on_epoch_end();
                        state.optimizers.on_metrics(|_| Some(0.5));
                        Ok::<_, Error>(())
                    }));
                    match next {
                        Ok(Ok(())) => {}
                        Ok(Err(e)) => eprintln!("{name}: NEXT {e}"),
                        Err(_) => eprintln!("{name}: NEXT PANIC"),
                    }
                }
                continue;
            }
            // A list that leaves files out, or is of another step.
            if let Some(Ok(found)) = checked {
                let same = found.contents == files.contents && found.step == files.step;
                let outcome = tally.watch(length, &name, || read(found, &model));
                let is_found = |e: &Error| e.kind() == ErrorKind::Corrupt;
                if !same && outcome.is_some_and(|o| !o.is_err_and(|e| is_found(&e))) {
                    tally.wrong.push(format!("{name}: not found"));
                }
            } else if checked.is_some_and(|c| !is_found(&c)) {
                tally.wrong.push(format!("{name}: not found"));
            }
        }
        eprintln!(
            "{target}: {} {} {} in {:?}",
            tally.inputs - i,
            tally.read - r,
            tally.errors - e,
            start.elapsed()
        );
    }
    eprintln!(
        "{backend}: {} inputs, {} read, {} refused, {:.1} lengths",
        tally.inputs, tally.read, tally.errors, tally.most
    );
    for wrong in tally.wrong.iter().take(60) {
        eprintln!("WRONG {wrong}");
    }
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.len());
}

/// Files made to take as much as they can.
fn large(real: &Files) -> Vec<(&'static str, Files)> {
    let with = |what, name: &str, content: Vec<u8>| {
        let mut files = real.clone();
        files.contents.insert(name.into(), content);
        (what, files)
    };
    let state: serde_json::Value = serde_json::from_slice(&real.contents[STATE]).unwrap();
    let state = |field: &str, value: serde_json::Value| {
        let mut state = state.clone();
        state[field] = value;
        serde_json::to_vec(&state).unwrap()
    };
    let many = 1 << 19;
    let cbor =
        |start: &[u8], repeated: &[u8], end: &[u8]| [start, &repeated.repeat(many), end].concat();
    let header = |text: String| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let tensors = (0..many / 16)
        .map(|i| format!(r#""{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#));
    let tensors = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    let shape = format!(
        r#"{{"a":{{"dtype":"F32","shape":[0{}],"data_offsets":[0,0]}}}}"#,
        ",0".repeat(many)
    );
    let open = |depth: usize| json!("[".repeat(depth));
    let objects: Vec<_> = (0..many / 8).map(|_| json!({"": 0})).collect();
    let keys: serde_json::Map<_, _> = (0..many / 8).map(|i| (i.to_string(), json!(0))).collect();
    vec![
        with(
            "a list of zeros",
            STATE,
            state("model", json!(vec![0; many])),
        ),
        with("objects", STATE, state("model", json!(objects))),
        with("an object", STATE, state("model", json!(keys))),
        with(
            "hyper-parameters",
            STATE,
            state("hyper_parameters", json!(vec![0; many])),
        ),
        with(
            "stops",
            STATE,
            state("stops", json!(vec![(0, ""); many / 4])),
        ),
        with(
            "schedule",
            STATE,
            state(
                "optimizers",
                json!({"groups": vec![json!({"name": "", "steps": 0, "lr": 0, "schedule": null}); many / 32], "schedule": null}),
            ),
        ),
        with(
            "kept",
            STATE,
            state(
                "records",
                json!({"kept": keys, "removed": vec![""; many / 4], "best": null}),
            ),
        ),
        with("brackets", STATE, b"[".repeat(many)),
        with(
            "settings",
            STATE,
            state("config", format!("seed = [{}]", "0,".repeat(many)).into()),
        ),
        with(
            "settings",
            STATE,
            state(
                "config",
                json!(format!("a = {}", open(many).as_str().unwrap())),
            ),
        ),
        with(
            "settings",
            STATE,
            state("config", json!("a.".repeat(many) + "a = 1")),
        ),
        with(
            "settings",
            STATE,
            state(
                "config",
                json!(
                    (0..many / 16)
                        .map(|i| format!("a{i} = 1\n"))
                        .collect::<String>()
                ),
            ),
        ),
        with("an array", "optimizer-0.cbor", cbor(&[0x9f], &[0], &[0xff])),
        with("a map", "optimizer-0.cbor", cbor(&[0xbf], &[0, 0], &[0xff])),
        with(
            "arrays",
            "optimizer-0.cbor",
            cbor(&[0x9f], &[0x80], &[0xff]),
        ),
        with(
            "maps",
            "optimizer-0.cbor",
            cbor(&[0x9f], &[0xa1, 0, 0], &[0xff]),
        ),
        with(
            "tagged",
            "optimizer-0.cbor",
            cbor(&[0x9f], &[0xc1, 0], &[0xff]),
        ),
        with(
            "bytes",
            "optimizer-0.cbor",
            cbor(&[0x5f], &[0x41, 0], &[0xff]),
        ),
        with(
            "texts",
            "optimizer-0.cbor",
            cbor(&[0x9f], &[0x61, b'a'], &[0xff]),
        ),
        with(
            "nested arrays",
            "optimizer-0.cbor",
            cbor(&[], &[0x81], &[0]),
        ),
        with(
            "nested maps",
            "optimizer-0.cbor",
            cbor(&[], &[0xa1, 0], &[0]),
        ),
        with("nested tags", "optimizer-0.cbor", cbor(&[], &[0xc1], &[0])),
        with(
            "claimed arrays",
            "optimizer-0.cbor",
            cbor(&[], &[0x9b, 0, 0, 0, 1, 0, 0, 0, 0], &[0]),
        ),
        with("tensors", MODEL, header(tensors.clone())),
        with("tensors", GRADIENTS, header(tensors)),
        with("a shape", MODEL, header(shape.clone())),
        with("a shape", GRADIENTS, header(shape)),
        with("a header", MODEL, (1_u64 << 40).to_le_bytes().to_vec()),
    ]
}

fn explore<B: AutodiffBackend>() {
    let (files, model) = (real::<B>(), Small::<B>::new());
    for (what, files) in large(&files) {
        let mut tally = Tally::default();
        let len = length(&files);
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let outcome = tally.watch(len, what, || read(files, &model));
        let taken = MEMORY.peak_usage().saturating_sub(before);
        let outcome = match outcome {
            None => "PANIC".into(),
            Some(Ok(_)) => "Ok".into(),
            Some(Err(e)) => {
                let mut t = e.to_string();
                t.truncate(150);
                t
            }
        };
        eprintln!(
            "{what}: {len} {taken} {:.1} {outcome}",
            taken as f64 / len as f64
        );
    }
    let whole = "{".to_owned()
        + &(0..1 << 16)
            .map(|i| format!("\"{i}\":{{\"bytes\":0,\"xxh3\":\"\"}}"))
            .collect::<Vec<_>>()
            .join(",")
        + "}";
    let m = format!(
        "{{\"format\":1,\"firebox\":\"\",\"burn\":\"\",\"epoch\":0,\"step\":0,\"files\":{whole}}}"
    );
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let o = check(m.as_bytes(), &files).map(|_| ());
    let taken = MEMORY.peak_usage().saturating_sub(before);
    eprintln!("manifest {} {taken} {} {o:?}", m.len(), taken / m.len());
}

#[test]
#[ignore]
fn leak() {
    type B = crate::testing::Cpu;
    let (files, model) = (real::<B>(), Small::<B>::new());
    for i in 0..20001 {
        if i % 2000 == 0 {
            eprintln!("{i}: {}", MEMORY.current_usage());
        }
        read(files.clone(), &model).unwrap();
    }
    for i in 0..20001 {
        if i % 2000 == 0 {
            eprintln!("clone {i}: {}", MEMORY.current_usage());
        }
        let c = Checkpoint::from_files(Path::new("x"), files.clone()).unwrap();
        c.load_model(model.clone()).unwrap();
    }
}

fn special<B: AutodiffBackend>(backend: &str) {
    let (files, model) = (real::<B>(), Small::<B>::new());
    let next = |what: &str, files: Files| {
        let outcome = catch_unwind(AssertUnwindSafe(|| read(files, &model)));
        match outcome {
            Err(_) => eprintln!("SPECIAL {backend} {what}: PANIC"),
            Ok(Err(e)) => eprintln!("SPECIAL {backend} {what}: {e:?}"),
            Ok(Ok(mut state)) => {
                let fabric = Fabric::<B>::new(Default::default());
                let next = catch_unwind(AssertUnwindSafe(|| {
                    let loss = state.model().loss();
                    fabric.backward(&mut state, loss, 3)?;
                    fabric.optimizer_step(&mut state)?;
                    state.on_epoch_end();
                    state.optimizers.on_metrics(|_| Some(0.5));
                    let loss = state.model().loss();
                    Ok::<_, Error>(loss.into_data().iter::<f64>().next().unwrap())
                }));
                match next {
                    Err(_) => eprintln!("SPECIAL {backend} {what}: read, then PANIC"),
                    Ok(n) => eprintln!("SPECIAL {backend} {what}: read, then {n:?}"),
                }
            }
        }
    };
    next("real", files.clone());
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::I32] {
        for name in [GRADIENTS, MODEL] {
            let mut files = files.clone();
            let (mut t, _) = tensors::decode(&files.contents[name]).unwrap();
            for (_, d) in t.iter_mut() {
                *d = d.clone().convert_dtype(dtype);
            }
            files
                .contents
                .insert(name.into(), tensors::encode(t).unwrap());
            next(&format!("{name} {dtype:?}"), files);
        }
    }
    for name in ["optimizer-0.cbor", "optimizer-1.cbor"] {
        let value: Value = ciborium::from_reader(&*files.contents[name]).unwrap();
        eprintln!("{name} {value:?}");
        for (what, f) in [
            ("bigger shape", 0),
            ("tagged bigger shape", 1),
            ("tagged smaller", 2),
            ("other shape", 3),
            ("other rank", 4),
            ("qfloat", 5),
            ("empty", 6),
        ] {
            let mut v = value.clone();
            fn walk(v: &mut Value, f: i32) {
                match v {
                    Value::Array(a) => a.iter_mut().for_each(|x| walk(x, f)),
                    Value::Map(m) => {
                        if m.iter().any(|(k, _)| k.as_text() == Some("bytes")) {
                            for (k, x) in m.iter_mut() {
                                if k.as_text() == Some("shape") && f < 5 {
                                    let n = x.as_array().unwrap().len();
                                    *x = Value::Array(match f {
                                        0 | 1 => vec![Value::from(1000); n],
                                        2 => vec![Value::from(1); n],
                                        3 => x
                                            .as_array()
                                            .unwrap()
                                            .iter()
                                            .map(|_| Value::from(1))
                                            .collect(),
                                        _ => [x.as_array().unwrap().clone(), vec![Value::from(1)]]
                                            .concat(),
                                    });
                                }
                                if k.as_text() == Some("shape") && f == 6 {
                                    let n = x.as_array().unwrap().len();
                                    *x = Value::Array(vec![Value::from(0); n]);
                                }
                                if f == 3 && k.as_text() == Some("bytes") {
                                    *x = Value::Bytes(vec![0; 4]);
                                }
                                if f == 6 && k.as_text() == Some("bytes") {
                                    *x = Value::Bytes(vec![]);
                                }
                                if f == 5 && k.as_text() == Some("dtype") {
                                    use burn::tensor::quantization::*;
                                    let d = DType::QFloat(QuantScheme::default());
                                    *x = Value::serialized(&d).unwrap();
                                }
                                if f == 5 && k.as_text() == Some("bytes") {
                                    let b = x.as_bytes().unwrap();
                                    *x = Value::Bytes(b[..b.len() / 4].to_vec());
                                }
                            }
                        } else {
                            m.iter_mut().for_each(|(_, x)| walk(x, f));
                        }
                        if f == 1 || f == 2 {
                            let old = std::mem::replace(v, Value::Null);
                            *v = Value::Tag(9, Box::new(old));
                        }
                    }
                    _ => {}
                }
            }
            walk(&mut v, f);
            let mut files = files.clone();
            let mut bytes = Vec::new();
            ciborium::into_writer(&v, &mut bytes).unwrap();
            files.contents.insert(name.into(), bytes);
            next(&format!("{name} {what}"), files);
        }
    }
    for (field, value) in [
        ("ticks", json!(u64::MAX)),
        ("steps", json!(u64::MAX)),
        ("lr", json!("NaN")),
    ] {
        let mut state: serde_json::Value = serde_json::from_slice(&files.contents[STATE]).unwrap();
        for g in state["optimizers"]["groups"].as_array_mut().unwrap() {
            if field == "ticks" {
                if !g["schedule"].is_null() {
                    g["schedule"]["ticks"] = value.clone()
                }
            } else {
                g[field] = value.clone()
            }
        }
        let mut files = files.clone();
        files
            .contents
            .insert(STATE.into(), serde_json::to_vec(&state).unwrap());
        next(&format!("{field} {value}"), files);
    }
    for (first, sum) in [
        (json!("NaN"), json!("NaN")),
        (json!(0), json!(0)),
        (json!(null), json!("inf")),
    ] {
        let mut state: serde_json::Value = serde_json::from_slice(&files.contents[STATE]).unwrap();
        state["gradients"] = json!({"first": first, "sum": sum});
        let mut files = files.clone();
        files
            .contents
            .insert(STATE.into(), serde_json::to_vec(&state).unwrap());
        next(&format!("weights {first} {sum}"), files);
    }
}

#[test]
#[ignore]
fn specials() {
    special::<crate::testing::Cpu>("flex");
    special::<<firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend>("ndarray");
}

#[test]
#[ignore]
fn exploration() {
    explore::<crate::testing::Cpu>();
}

#[test]
#[ignore = "started by `nothing_that_is_read_ends_the_process_or_fills_its_memory`"]
fn process() {
    #[cfg(feature = "flex")]
    try_all::<<firebox_flex::Flex as firebox_backend::Accelerator>::Backend>("flex");
    #[cfg(feature = "ndarray")]
    try_all::<<firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend>("ndarray");
}
