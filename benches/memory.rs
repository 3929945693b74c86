//! How much memory a transformer takes to train, and how long a step takes, by the ways to need less.
//!
//! Six blocks of width 128 on 64 tokens, 32 sequences to a step, Adam. The memory is the most that the
//! heap holds at once during a few steps, without what it holds before; on flex, where a device's
//! memory is the heap.
//!
//! `cargo bench --bench memory`; `FIREBOX_BENCH_STEPS` sets how many steps each way takes.

#![allow(clippy::expect_used, reason = "a benchmark stops at the first failure")]
#![allow(missing_docs, reason = "nobody uses a benchmark's items")]

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use firebox::backend::Balanced;
use firebox::config::{LoggerNames, Precision, ProgressMode, SanitySteps, Strategy};
use firebox::data::Loaders;
use firebox::prelude::*;
use firebox::testing::Cpu;
use peak_alloc::PeakAlloc;
use std::time::Instant;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const WIDTH: usize = 128;
const TOKENS: usize = 64;
const WORDS: usize = 1000;
const CLASSES: usize = 10;
const SEQUENCES: usize = 32;
const BLOCKS: usize = 6;

fn main() {
    let steps = std::env::var("FIREBOX_BENCH_STEPS").ok();
    let steps = steps
        .map_or(8, |n| n.parse().expect("FIREBOX_BENCH_STEPS"))
        .max(1);
    println!("{steps} steps each:\n");
    println!(
        "{:<36} {:>8} {:>9} {:>7} {:>7}",
        "", "MB", "ms/step", "memory", "time"
    );
    let plain = config();
    let first = measure::<Cpu>(plain.clone(), 1, 1, steps);
    let show = |name: &str, (bytes, seconds): (f64, f64)| {
        let (memory, time) = (bytes / first.0, seconds / first.1);
        println!(
            "{name:<36} {:>8.1} {:>9.1} {memory:>7.2} {time:>7.2}",
            bytes / 1e6,
            seconds * 1e3
        );
    };
    show("plain", first);
    let accumulates = plain.clone().with_accumulate_grad_batches(4);
    show("accumulation 4", measure::<Cpu>(accumulates, 4, 1, steps));
    let recomputes = plain.clone().with_gradient_checkpointing(true);
    show(
        "gradient checkpointing by blocks",
        measure::<Cpu>(recomputes.clone(), 1, 1, steps),
    );
    let both = recomputes.with_accumulate_grad_batches(4);
    show("both", measure::<Cpu>(both, 4, 1, steps));
    show(
        "gradient checkpointing, balanced",
        measure::<Balanced<Cpu>>(plain.clone(), 1, 1, steps),
    );
    let bf16 = plain.clone().with_precision(Precision::Bf16Mixed);
    show("bf16-mixed", measure::<Cpu>(bf16, 1, 1, steps));
    show(
        "two replicas, ddp",
        measure::<Cpu>(plain.clone(), 1, 2, steps),
    );
    let zero = plain.with_strategy(Strategy::Zero1);
    show("two replicas, zero1", measure::<Cpu>(zero, 1, 2, steps));
}

fn config() -> TrainerConfig {
    TrainerConfig::new()
        .with_max_epochs(1)
        .with_logger(LoggerNames::none())
        .with_progress(ProgressMode::Off)
        .with_model_summary(false)
        .with_checkpointing(false)
        .with_num_sanity_val_steps(SanitySteps::Batches(0))
}

/// The peak of the heap in bytes, and the time of a step in seconds; a step has `parts` batches.
fn measure<B: AutodiffBackend>(
    config: TrainerConfig,
    parts: usize,
    replicas: usize,
    steps: usize,
) -> (f64, f64) {
    let device = B::Device::default();
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let data = InMemDataset::new((0..steps * SEQUENCES).collect());
    let loader = Loader::new(data, Texts).batch_size(SEQUENCES / parts);
    let model = Net::<B>::new(&device);
    let start = Instant::now();
    let outcome = Trainer::new(config, device.clone())
        .with_devices(vec![device; replicas])
        .fit(model, &mut Loaders::new(loader))
        .expect("training");
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(outcome.progress.global_step, steps as u64);
    let bytes = HEAP.peak_usage().saturating_sub(before);
    (bytes as f64, seconds / steps as f64)
}

/// Words [batch, TOKENS] and classes [batch].
type Text<B> = (Tensor<B, 2, Int>, Tensor<B, 1, Int>);

struct Texts;

impl<B: Backend> Batcher<B, usize, Text<B>> for Texts {
    fn batch(&self, ids: Vec<usize>, device: &B::Device) -> Text<B> {
        let n = ids.len();
        let word = |id: &usize, i: usize| ((id * 31 + i * 7) % WORDS) as i32;
        let words = ids
            .iter()
            .flat_map(|id| (0..TOKENS).map(move |i| word(id, i)));
        let words = TensorData::new(words.collect::<Vec<_>>(), [n, TOKENS]);
        let classes: Vec<_> = ids.iter().map(|id| (id % CLASSES) as i32).collect();
        (
            Tensor::from_data(words, device),
            Tensor::from_data(TensorData::new(classes, [n]), device),
        )
    }
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    embedding: Embedding<B>,
    blocks: Vec<TransformerEncoderLayer<B>>,
    head: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let encoder = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, BLOCKS)
            .with_dropout(0.0)
            .init(device);
        Self {
            embedding: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            blocks: encoder.layers,
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }
}

impl<B: AutodiffBackend> TrainModule for Net<B> {
    type Backend = B;
    type Batch = Text<B>;
    type Eval = Net<B::InnerBackend>;

    fn training_step(&self, (words, classes): Text<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        let x = self.embedding.forward(words);
        let block = |block: &TransformerEncoderLayer<B>, x| block.forward(x, None, None);
        let loss = |x: Tensor<B, 3>| {
            let logits = self.head.forward(x.mean_dim(1).squeeze_dim::<2>(1));
            let loss = CrossEntropyLossConfig::new().init(&logits.device());
            loss.forward(logits, classes)
        };
        cx.checkpoint_blocks(self, &self.blocks, x, block, loss)
    }
    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        Ok(Optimizers::single(AdamConfig::new().init()).with_lr(1e-4))
    }
}

impl<B: Backend> EvalModule for Net<B> {
    type Backend = B;
    type Batch = Text<B>;
}
