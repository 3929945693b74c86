//! What `TensorBoardLogger` writes, read by TensorBoard's own reader.

use firebox::config::TrainerConfig;
use firebox::error::{Error, ErrorKind};
use firebox::logger::{Channels, Histogram, Image, Logger, Media, Row, RunEnd, TensorBoardLogger};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAMES: [&str; 6] = [
    "train/loss",
    "val/größe/損失",
    "🔥 with spaces",
    "nan",
    "up",
    "down",
];

/// Values that lose bits as floats, and those that are none.
fn values(step: u64) -> Vec<(String, f64)> {
    let x = step as f64;
    let values = [
        1.0 / (x + 3.0),
        -x * 1e7 - 0.1,
        if step.is_multiple_of(2) {
            1e300
        } else {
            1e-300
        },
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let all = NAMES.iter().map(|name| (*name).to_owned()).zip(values);
    // Not every row has every name.
    all.filter(|(name, _)| name != "train/loss" || step % 3 != 1)
        .collect()
}

fn log(logger: &mut TensorBoardLogger, steps: impl IntoIterator<Item = u64>) {
    for step in steps {
        let values = values(step).into_iter().collect();
        let row = Row {
            step,
            epoch: step / 100,
            values: &values,
        };
        logger.log(&row).unwrap();
    }
}

/// A float as the script prints it.
fn shown(value: f64) -> Value {
    match value {
        value if value.is_nan() => json!("nan"),
        value if value.is_infinite() => json!(format!("{value}")),
        value => json!(value),
    }
}

fn scalars(steps: impl IntoIterator<Item = u64>) -> Value {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for step in steps {
        for (name, value) in values(step) {
            let value = shown(f64::from(value as f32));
            all.entry(name).or_default().push(json!([step, value]));
        }
    }
    json!(all)
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard.py")
}

/// Whether Python can read event files; says so if it cannot.
fn can_read() -> bool {
    let import = ["-c", "import tensorboard"];
    let output = Command::new("python3").args(import).output();
    let can_read = output.is_ok_and(|output| output.status.success());
    if !can_read {
        eprintln!("skipped: Python has no package tensorboard");
    }
    can_read
}

fn read(folder: &Path) -> Map<String, Value> {
    let mut python = Command::new("python3");
    let output = python.arg(script()).arg(folder).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first difference: all of thousands of values are not to be read by anybody.
#[track_caller]
fn assert_scalars(found: &Value, expected: &Value) {
    let (found, expected) = (found.as_object().unwrap(), expected.as_object().unwrap());
    let mut names: Vec<_> = found.keys().collect();
    names.sort();
    assert_eq!(names, expected.keys().collect::<Vec<_>>());
    for (name, expected) in expected {
        let (found, expected) = (
            found[name].as_array().unwrap(),
            expected.as_array().unwrap(),
        );
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(found.len(), expected.len(), "{name}");
    }
}

fn event_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_row_is_there_once_however_often_the_run_is_killed() {
    if !can_read() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a/b");
    let mut logger = TensorBoardLogger::new(&folder);
    assert!(!folder.exists());
    logger.log_config(&TrainerConfig::new()).unwrap();
    log(&mut logger, 0..2500);
    let early = logger.save_state();
    log(&mut logger, 2500..4000);
    let late = logger.save_state();
    log(&mut logger, 4000..=4321);
    let file = logger.path().unwrap().to_path_buf();
    drop(logger);

    // Killed while it wrote the last row: the others can be read.
    let length = fs::metadata(&file).unwrap().len();
    let cut = File::options().write(true).open(&file).unwrap();
    cut.set_len(length - 3).unwrap();
    assert_scalars(&read(&folder)["scalars"], &scalars(0..4321));

    let mut logger = TensorBoardLogger::new(&folder);
    logger.load_state(&late).unwrap();
    logger.log_config(&TrainerConfig::new()).unwrap();
    assert_scalars(&read(&folder)["scalars"], &scalars(0..4000));
    log(&mut logger, 4000..4800);
    let later = logger.save_state();
    log(&mut logger, 4800..5000);
    drop(logger);
    assert_scalars(&read(&folder)["scalars"], &scalars(0..5000));

    // From a checkpoint of the second start, then from one before both.
    let mut logger = TensorBoardLogger::new(&folder);
    logger.load_state(&later).unwrap();
    log(&mut logger, 4800..4900);
    drop(logger);
    assert_scalars(&read(&folder)["scalars"], &scalars(0..4900));
    let mut logger = TensorBoardLogger::new(&folder);
    logger.load_state(&early).unwrap();
    logger.log_config(&TrainerConfig::new()).unwrap();
    log(&mut logger, 2500..2600);
    let found = read(&folder);
    assert_scalars(&found["scalars"], &scalars(0..2600));

    // The settings stand where a start began.
    let text = TrainerConfig::new().to_toml().unwrap();
    let text: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let config = json!([{"step": 0, "text": text}, {"step": 2499, "text": text}]);
    assert_eq!(found["texts"]["config"], config);
    assert_eq!(event_files(&folder).len(), 4);
}

#[test]
fn a_tensorboard_that_is_running_follows_the_run() {
    if !can_read() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut logger = TensorBoardLogger::new(dir.path());
    log(&mut logger, 0..100);
    let early = logger.save_state();
    log(&mut logger, 100..150);
    let late = logger.save_state();
    log(&mut logger, 150..200);

    let mut python = Command::new("python3");
    python.arg(script()).arg(dir.path()).arg("--follow");
    python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    let mut ask = python.stdin.take().unwrap();
    let mut answers = BufReader::new(python.stdout.take().unwrap()).lines();
    let mut next = || {
        let found: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        found["scalars"].clone()
    };
    assert_scalars(&next(), &scalars(0..200));
    for (state, from, to) in [(&late, 150, 180), (&late, 150, 190), (&early, 100, 120)] {
        let mut logger = TensorBoardLogger::new(dir.path());
        logger.load_state(state).unwrap();
        log(&mut logger, from..to);
        writeln!(ask).unwrap();
        assert_scalars(&next(), &scalars(0..to));
    }
    drop(ask);
    assert!(python.wait().unwrap().success());
}

#[test]
fn histograms_images_and_texts_come_back() {
    if !can_read() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut logger = TensorBoardLogger::new(dir.path());
    let histogram = Histogram::of([-2.5, 0.0, 0.0, 1e-3, 7.0, f64::NAN]);
    let extreme = Histogram::of([f64::MAX, f64::MIN]);
    let none = Histogram::of([]);
    for (step, histogram) in [(1, &histogram), (2, &extreme), (3, &none)] {
        let media = Media::from(histogram.clone());
        logger.log_media(step, "weights/größe", &media).unwrap();
    }
    let images = [
        (Channels::Gray, vec![200, 1, 2, 3, 4, 5]),
        (Channels::Rgb, (30..48).collect()),
        (Channels::Rgba, (100..124).collect()),
    ];
    for (step, (channels, pixels)) in images.into_iter().enumerate() {
        let image = Image::new(3, 2, channels, pixels).unwrap();
        logger
            .log_media(step as u64, "samples", &image.into())
            .unwrap();
    }
    let noise: Vec<u8> = (0_u32..640 * 480 * 3)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let image = Image::new(640, 480, Channels::Rgb, noise.clone()).unwrap();
    logger.log_media(9, "noise", &image.into()).unwrap();
    let text = "| a | ß |\n|---|---|\n| **1** | 🔥 |\n";
    logger.log_media(4, "notes", &text.into()).unwrap();
    logger.log_media(5, "notes", &"".into()).unwrap();

    let found = read(dir.path());
    let expected = |step: u64, h: &Histogram| {
        let (limits, counts): (Vec<f64>, Vec<f64>) = h.buckets.iter().copied().unzip();
        assert_eq!(counts.iter().sum::<f64>(), h.count as f64);
        json!({
            "step": step, "min": h.min, "max": h.max, "num": h.count as f64,
            "sum": h.sum, "sum_squares": shown(h.sum_of_squares),
            "limits": limits, "counts": counts,
        })
    };
    let histograms = json!({"weights/größe": [
        expected(1, &histogram), expected(2, &extreme), expected(3, &none),
    ]});
    assert_eq!(found["histograms"], histograms);
    assert_eq!(
        found["images"],
        json!({
            "samples": [
                {"step": 0, "width": 3, "height": 2, "first": [200]},
                {"step": 1, "width": 3, "height": 2, "first": [30, 31, 32]},
                {"step": 2, "width": 3, "height": 2, "first": [100, 101, 102, 103]},
            ],
            "noise": [{"step": 9, "width": 640, "height": 480, "first": noise[..3]}],
        })
    );
    let texts = json!({"notes": [{"step": 4, "text": text}, {"step": 5, "text": ""}]});
    assert_eq!(found["texts"], texts);
    assert_eq!(found["scalars"], json!({}));
}

#[test]
fn hyper_parameters_and_the_end_are_those_of_the_last_start() {
    if !can_read() {
        return;
    }
    let given = json!({
        "lr": 0.1,
        "model": {"layers": 3, "name": "größe", "dropout": null, "norm": {"eps": 1e-5}},
        "sizes": [1, 2.5, "x"],
        "amp": true,
        "off": false,
    });
    let values = json!({
        "lr": 0.1, "model.layers": 3.0, "model.name": "größe", "model.norm.eps": 1e-5,
        "sizes": "[1,2.5,\"x\"]", "amp": true, "off": false,
    });
    let failure = Error::new(ErrorKind::Data, "no data");
    let dir = tempfile::tempdir().unwrap();
    let mut logger = TensorBoardLogger::new(dir.path());
    logger.log_hyper_parameters(&given).unwrap();
    log(&mut logger, 0..10);
    let state = logger.save_state();
    log(&mut logger, 10..20);
    logger.finish(&RunEnd::Failed(&failure)).unwrap();
    drop(logger);
    let found = read(dir.path());
    assert_eq!(found["hparams"], json!({"values": values, "status": 2}));
    assert_scalars(&found["scalars"], &scalars(0..20));

    let mut logger = TensorBoardLogger::new(dir.path());
    logger.load_state(&state).unwrap();
    logger.log_hyper_parameters(&given).unwrap();
    log(&mut logger, 10..30);
    logger.finish(&RunEnd::Finished).unwrap();
    // Rows of a test after the fit.
    log(&mut logger, [30]);
    logger.finish(&RunEnd::Finished).unwrap();
    let found = read(dir.path());
    assert_eq!(found["hparams"], json!({"values": values, "status": 1}));
    assert_scalars(&found["scalars"], &scalars(0..31));
}

#[test]
fn files_that_are_there_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("events.out.tfevents.1.other.1.0");
    fs::write(&other, "theirs").unwrap();
    let mut loggers = [0, 1, 2].map(|_| TensorBoardLogger::new(dir.path()));
    for logger in &mut loggers {
        log(logger, [1]);
        assert!(logger.path().unwrap().exists());
    }
    assert_eq!(event_files(dir.path()).len(), 4);
    let state = loggers[1].save_state();
    let lengths = || {
        let files = event_files(dir.path()).into_iter();
        files
            .map(|file| (file.clone(), fs::metadata(file).unwrap().len()))
            .collect::<BTreeMap<_, _>>()
    };
    let before = lengths();
    let mut logger = TensorBoardLogger::new(dir.path());
    logger.load_state(&state).unwrap();
    let mut after = lengths();
    assert!(after.remove(logger.path().unwrap()).is_some());
    assert_eq!(after, before);
    assert_eq!(fs::read_to_string(&other).unwrap(), "theirs");

    // In another folder there is nothing to go on with.
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = elsewhere.path().join("new");
    let mut logger = TensorBoardLogger::new(&folder);
    logger.load_state(&state).unwrap();
    assert!(!folder.exists());
    log(&mut logger, [2]);
    assert_eq!(event_files(&folder).len(), 1);
}

#[test]
fn what_cannot_work_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut logger = TensorBoardLogger::new(dir.path());
    assert_eq!(logger.save_state(), Value::Null);
    let image = Image {
        width: 2,
        height: 2,
        channels: Channels::Gray,
        pixels: vec![0; 3],
    };
    let error = logger.log_media(1, "bad", &image.into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`bad`: an image of 2 x 2 pixels and 1 channels has 4 bytes, not 3"
    );
    assert!(logger.path().is_none());

    log(&mut logger, 0..10);
    let state = logger.save_state();
    let file = logger.path().unwrap().to_path_buf();
    let length = state["length"].as_u64().unwrap();
    let cut = File::options().write(true).open(&file).unwrap();
    cut.set_len(length - 1).unwrap();
    let error = TensorBoardLogger::new(dir.path()).load_state(&state);
    assert_eq!(
        error.unwrap_err().to_string(),
        format!(
            "`{}` has {} bytes, but had {length} when the checkpoint was saved; move it away to go \
             on in a new file",
            file.display(),
            length - 1
        )
    );
    // Nothing was touched.
    assert_eq!(event_files(dir.path()), std::slice::from_ref(&file));
    assert_eq!(fs::metadata(&file).unwrap().len(), length - 1);

    let refused = |name: &str| {
        let state = json!({"name": name, "part": u64::MAX, "length": 0, "step": u64::MAX});
        let error = TensorBoardLogger::new(dir.path()).load_state(&state);
        error.unwrap_err().to_string()
    };
    let text = "the state of TensorBoardLogger cannot be read: ";
    assert_eq!(
        refused("events.out.tfevents.1/../../x"),
        format!("{text}`events.out.tfevents.1/../../x` is no event file's name")
    );
    assert_eq!(
        refused("metrics.csv"),
        format!("{text}`metrics.csv` is no event file's name")
    );
    let error = TensorBoardLogger::new(dir.path()).load_state(&json!({"rows": 3}));
    assert!(error.unwrap_err().to_string().starts_with(text));

    let taken = dir.path().join("file");
    fs::write(&taken, "").unwrap();
    let mut logger = TensorBoardLogger::new(&taken);
    let error = logger.log_config(&TrainerConfig::new()).unwrap_err();
    assert!(error.to_string().starts_with("cannot create `"), "{error}");
}
