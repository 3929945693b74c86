//! MNIST in its original IDX format, compressed with gzip or plain.

use super::training::Classifier;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use firebox::data::{EvalLoader, TrainLoader};
use firebox::prelude::*;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const SIDE: usize = 28;
/// The share of the training images that is held back for validation.
const VALIDATION: usize = 20;

/// A digit: 28 x 28 grey values, and which digit it is.
pub type Digit = (Vec<u8>, u8);

/// A batch: images [batch, 28, 28] with mean 0 and deviation 1, labels [batch].
#[derive(Debug, Clone)]
pub struct Digits<B: Backend> {
    pub images: Tensor<B, 3>,
    pub labels: Tensor<B, 1, Int>,
}

/// The training, validation and test images in a folder.
#[derive(Debug)]
pub struct Mnist {
    dir: PathBuf,
    batch_size: usize,
    train: Vec<Digit>,
    test: Vec<Digit>,
}

impl Mnist {
    pub fn new(dir: PathBuf, batch_size: usize) -> Self {
        Self {
            dir,
            batch_size,
            train: Vec::new(),
            test: Vec::new(),
        }
    }

    fn loader<B: Backend>(&self, digits: &[Digit]) -> Loader<B, Digits<B>> {
        Loader::new(InMemDataset::new(digits.to_vec()), DigitBatcher).batch_size(self.batch_size)
    }

    /// The training images: those for training, and those for validation.
    fn split(&self) -> (&[Digit], &[Digit]) {
        self.train
            .split_at(self.train.len() - self.train.len() / VALIDATION)
    }
}

impl<B: AutodiffBackend> DataModule<Classifier<B>> for Mnist {
    fn setup(&mut self, _stage: Stage) -> Result<()> {
        if self.train.is_empty() {
            self.train = read_digits(&self.dir, "train")?;
            self.test = read_digits(&self.dir, "t10k")?;
        }
        Ok(())
    }
    fn train_loader(&self) -> Result<Option<TrainLoader<Classifier<B>>>> {
        Ok(Some(self.loader(self.split().0).shuffle(true).workers(1)))
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<Classifier<B>>>> {
        Ok(Some(self.loader(self.split().1)))
    }
    fn test_loader(&self) -> Result<Option<EvalLoader<Classifier<B>>>> {
        Ok(Some(self.loader(&self.test)))
    }
}

/// Puts digits into tensors.
#[derive(Debug, Clone, Copy)]
struct DigitBatcher;

impl<B: Backend> Batcher<B, Digit, Digits<B>> for DigitBatcher {
    fn batch(&self, digits: Vec<Digit>, device: &B::Device) -> Digits<B> {
        let n = digits.len();
        // The mean and deviation of MNIST's training images.
        let normalized = |grey: &u8| (f32::from(*grey) / 255.0 - 0.1307) / 0.3081;
        let pixels: Vec<f32> = digits
            .iter()
            .flat_map(|(image, _)| image.iter().map(normalized))
            .collect();
        let labels: Vec<i32> = digits.iter().map(|(_, label)| i32::from(*label)).collect();
        Digits {
            images: Tensor::from_data(TensorData::new(pixels, [n, SIDE, SIDE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [n]), device),
        }
    }
}

fn read_digits(dir: &Path, part: &str) -> Result<Vec<Digit>> {
    let images = read_idx(dir, &format!("{part}-images-idx3-ubyte"), [SIDE, SIDE])?;
    let labels = read_idx(dir, &format!("{part}-labels-idx1-ubyte"), [])?;
    if images.len() != labels.len() {
        return Err(Error::data(format!(
            "{} has {} `{part}` images, but {} labels",
            dir.display(),
            images.len(),
            labels.len()
        )));
    }
    if let Some(wrong) = labels.iter().flatten().find(|label| **label > 9) {
        return Err(Error::data(format!(
            "{}: a `{part}` label is {wrong}, not a digit",
            dir.display()
        )));
    }
    let labels = labels.into_iter().flatten();
    Ok(images.into_iter().zip(labels).collect())
}

/// The items of an IDX file of bytes. Its header is: 0, 0, 8 (bytes), the number of dimensions,
/// then each dimension as a big-endian u32, the number of items first.
fn read_idx<const D: usize>(dir: &Path, name: &str, item: [usize; D]) -> Result<Vec<Vec<u8>>> {
    let (path, bytes) = read_file(dir, name)?;
    let wrong = |what: String| Error::data(format!("{}: {what}", path.display()));
    let magic = [0, 0, 8, 1 + D as u8];
    let Some(rest) = bytes.strip_prefix(&magic) else {
        let found = bytes.get(..4).unwrap_or(&bytes);
        return Err(wrong(format!(
            "begins with {found:?}; an IDX file of this kind begins with {magic:?}"
        )));
    };
    let (header, pixels) = rest.split_at_checked(4 * (1 + D)).ok_or_else(|| {
        wrong(format!(
            "is cut off in its header, after {} bytes",
            bytes.len()
        ))
    })?;
    let sizes: Vec<usize> = header
        .chunks_exact(4)
        .map(|b| b.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)))
        .collect();
    if sizes[1..] != item {
        return Err(wrong(format!(
            "has items of shape {:?}; expected {item:?}",
            &sizes[1..]
        )));
    }
    let size: usize = item.iter().product();
    let expected = sizes[0] * size;
    if pixels.len() != expected {
        return Err(wrong(format!(
            "has {} bytes of data; {} items need {expected}",
            pixels.len(),
            sizes[0]
        )));
    }
    Ok(pixels.chunks_exact(size).map(<[u8]>::to_vec).collect())
}

/// The file `name.gz`, or `name`.
fn read_file(dir: &Path, name: &str) -> Result<(PathBuf, Vec<u8>)> {
    let mut bytes = Vec::new();
    let zipped = dir.join(format!("{name}.gz"));
    if zipped.exists() {
        let file = File::open(&zipped).map_err(|e| Error::io("open", &zipped, e))?;
        flate2::read::GzDecoder::new(file)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::io("unpack (expected gzip)", &zipped, e))?;
        return Ok((zipped, bytes));
    }
    let plain = dir.join(name);
    let mut file = File::open(&plain).map_err(|e| {
        Error::io("open", &plain, e).context(format!(
            "no MNIST in {} (it needs {name}.gz or {name})",
            dir.display()
        ))
    })?;
    file.read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", &plain, e))?;
    Ok((plain, bytes))
}
