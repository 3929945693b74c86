#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod loading;
mod order;
mod rng;
mod sampling;
mod stream;

use std::collections::BTreeSet;

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::tensor::{Device, backend::Backend};
use burn_ndarray::NdArray;

use super::*;

type Cpu = NdArray<f32>;

/// A batch is the list of its items.
struct List;

impl<B: Backend, I> Batcher<B, I, Vec<I>> for List {
    fn batch(&self, items: Vec<I>, _: &Device<B>) -> Vec<I> {
        items
    }
}

/// The samples `0..len`, each its own index.
fn numbers(len: usize) -> InMemDataset<usize> {
    InMemDataset::new((0..len).collect())
}

fn loader(len: usize) -> Loader<Cpu, Vec<usize>> {
    Loader::new(numbers(len), List)
}

fn spec() -> EpochSpec<Cpu> {
    EpochSpec::new(Default::default())
}

fn shards(count: usize) -> impl Iterator<Item = Shard> {
    (0..count).map(move |index| Shard { index, count })
}

/// All batches' values; an empty part is an empty list.
fn values<T: Send + 'static>(loader: &Loader<Cpu, Vec<T>>, spec: EpochSpec<Cpu>) -> Vec<Vec<T>> {
    loader
        .iter(spec)
        .unwrap()
        .map(|batch| batch.unwrap().value.unwrap_or_default())
        .collect()
}

/// How many batches came, and the message of the error that ended the epoch.
fn failure<T: Send + std::fmt::Debug + 'static>(loader: &Loader<Cpu, Vec<T>>) -> (usize, String) {
    let mut batches = loader.iter(spec()).unwrap();
    let good = batches.by_ref().take_while(Result::is_ok).count();
    assert!(batches.next().is_none(), "it ends after the error");
    // `take_while` has swallowed the error: make it again, from where it came.
    let mut again = loader.iter(spec().start_batch(good)).unwrap();
    (good, without_place(again.next().unwrap().unwrap_err()))
}

/// An error's message without the place of the panic, which moves with these files.
fn without_place(error: crate::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (at src/data/tests/") {
        Some((message, _)) => message.to_owned(),
        None => text,
    }
}

fn distinct<T: Ord + Clone>(values: &[T]) -> usize {
    values.iter().cloned().collect::<BTreeSet<T>>().len()
}
