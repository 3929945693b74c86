//! The MNIST example's own files: what it reads, and what it says about files it cannot read.

#![allow(dead_code, reason = "the example uses all of it")]

#[path = "../../examples/mnist/data.rs"]
mod data;
#[path = "../../examples/mnist/model.rs"]
mod model;
#[path = "../../examples/mnist/training.rs"]
mod training;

use data::Mnist;
use firebox::prelude::*;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use training::Classifier;

type B = firebox::testing::Cpu;

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mnist/data")
}

fn unpacked(name: &str) -> Vec<u8> {
    let file = fs::File::open(shipped().join(format!("{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn prepared(dir: &Path) -> Result<Mnist> {
    let mut mnist = Mnist::new(dir.to_path_buf(), 500);
    DataModule::<Classifier<B>>::setup(&mut mnist, Stage::Train)?;
    Ok(mnist)
}

/// How often each digit occurs in a loader's batches.
fn digits<B: burn::tensor::backend::Backend>(loader: Loader<B, data::Digits<B>>) -> [usize; 10] {
    let mut counts = [0; 10];
    let spec = firebox::data::EpochSpec::new(Default::default());
    for batch in loader.iter(spec).unwrap() {
        let labels = batch.unwrap().value.unwrap().labels.into_data();
        labels
            .iter::<i64>()
            .for_each(|label| counts[label as usize] += 1);
    }
    counts
}

#[test]
fn the_shipped_digits_are_all_there() {
    let mnist = prepared(&shipped()).unwrap();
    let train = digits(
        DataModule::<Classifier<B>>::train_loader(&mnist)
            .unwrap()
            .unwrap(),
    );
    let val = digits(
        DataModule::<Classifier<B>>::val_loader(&mnist)
            .unwrap()
            .unwrap(),
    );
    let both: Vec<usize> = train.iter().zip(val).map(|(a, b)| a + b).collect();
    assert_eq!(both, [479, 563, 488, 493, 535, 434, 501, 550, 462, 495]);
    assert_eq!(val.iter().sum::<usize>(), 250);
    let test = digits(
        DataModule::<Classifier<B>>::test_loader(&mnist)
            .unwrap()
            .unwrap(),
    );
    assert_eq!(test, [85, 126, 116, 107, 110, 87, 87, 99, 89, 94]);
}

/// A folder with the four files unpacked, the named one changed.
fn folder(name: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for part in ["train", "t10k"] {
        for kind in ["images-idx3-ubyte", "labels-idx1-ubyte"] {
            let file = format!("{part}-{kind}");
            let bytes = unpacked(&file);
            let bytes = if file == name { change(bytes) } else { bytes };
            fs::write(dir.path().join(file), bytes).unwrap();
        }
    }
    dir
}

fn message(dir: &Path) -> String {
    let text = prepared(dir).unwrap_err().to_string();
    text.replace(&dir.display().to_string(), "DIR")
}

#[test]
fn plain_files_are_read_too() {
    let dir = folder("", |bytes| bytes);
    assert!(prepared(dir.path()).is_ok());
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let images = "train-images-idx3-ubyte";
    let dir = folder(images, |bytes| bytes[..1000].to_vec());
    assert_eq!(
        message(dir.path()),
        "DIR/train-images-idx3-ubyte: has 984 bytes of data; 5000 items need 3920000"
    );
    let dir = folder(images, |bytes| bytes[..7].to_vec());
    assert_eq!(
        message(dir.path()),
        "DIR/train-images-idx3-ubyte: is cut off in its header, after 7 bytes"
    );
    let dir = folder(images, |bytes| [&[1, 2, 3, 4], &bytes[4..]].concat());
    assert_eq!(
        message(dir.path()),
        "DIR/train-images-idx3-ubyte: begins with [1, 2, 3, 4]; an IDX file of this kind begins \
         with [0, 0, 8, 3]"
    );
    let dir = folder("t10k-labels-idx1-ubyte", |mut bytes| {
        bytes[8] = 10;
        bytes
    });
    assert_eq!(
        message(dir.path()),
        "DIR: a `t10k` label is 10, not a digit"
    );

    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        message(dir.path()),
        "no MNIST in DIR (it needs train-images-idx3-ubyte.gz or train-images-idx3-ubyte): cannot \
         open `DIR/train-images-idx3-ubyte`: No such file or directory (os error 2)"
    );
    fs::write(dir.path().join(format!("{images}.gz")), b"no gzip").unwrap();
    assert_eq!(
        message(dir.path()),
        "cannot unpack (expected gzip) `DIR/train-images-idx3-ubyte.gz`: unexpected end of file"
    );
}

/// The example's network after 200 steps: the loss in 16 bits is within 2 % of that in 32.
#[test]
fn the_network_learns_in_16_bits() {
    let device = Default::default();
    let model = Classifier::new(model::ConvNet::<B>::new(0.0, &device), 1e-3);
    burn::module::Module::num_params(&model);
    let run = |precision: &str| {
        let config = TrainerConfig::new()
            .with_precision(precision.parse().unwrap())
            .with_max_steps(200)
            .with_logger(firebox::config::LoggerNames::none())
            .with_progress(firebox::config::ProgressMode::Off)
            .with_checkpointing(false)
            .with_limit_val_batches(firebox::config::Limit::NONE);
        let mut data = Mnist::new(shipped(), 16);
        let fitted = Trainer::new(config, device).fit(model.clone(), &mut data);
        fitted.unwrap().metrics.get("train/loss_epoch").unwrap()
    };
    let full = run("32-true");
    for precision in ["bf16-mixed", "16-mixed"] {
        let half = run(precision);
        println!("{precision}: {half} for {full}");
        assert!(
            (half - full).abs() / full < 0.02,
            "{precision}: {half} for {full}"
        );
    }
}
