//! The samples' random streams.

use std::collections::BTreeMap;

use rand::RngExt;

use super::*;

/// One 64-bit draw for each sample, by epoch and index.
fn draws(workers: usize, shard_count: usize, shuffle: bool) -> BTreeMap<(u64, usize), u64> {
    let samples = Samples::new(InMemDataset::new(vec![0_u64; 32])).map(|_, rng| Ok(rng.next_u64()));
    let loader: Loader<Cpu, Vec<u64>> = samples
        .into_loader(List)
        .batch_size(8)
        .shuffle(shuffle)
        .workers(workers);
    let mut draws = BTreeMap::new();
    for epoch in 0..2 {
        for shard in shards(shard_count) {
            let spec = spec().seed(42).epoch(epoch).shard(shard);
            for batch in loader.iter(spec).unwrap().map(|batch| batch.unwrap()) {
                let values = batch.value.unwrap();
                draws.extend(batch.indices.iter().map(|i| (epoch, *i)).zip(values));
            }
        }
    }
    draws
}

#[test]
fn every_sample_of_every_epoch_draws_differently() {
    let two_by_two = draws(2, 2, false);
    assert_eq!(two_by_two.len(), 64);
    assert_eq!(distinct(&two_by_two.values().collect::<Vec<_>>()), 64);
    assert_eq!(draws(2, 2, false), two_by_two);
}

#[test]
fn draws_depend_on_neither_workers_nor_shards_nor_order() {
    let plain = draws(0, 1, false);
    for (workers, shards, shuffle) in [(2, 2, false), (0, 1, true), (1, 3, true), (4, 4, false)] {
        assert_eq!(draws(workers, shards, shuffle), plain);
    }
}

#[test]
fn a_stream_draws_by_position() {
    let all = |shard_count, workers| {
        let samples = Samples::stream(|_| Ok((0..7_u64).map(Ok))).map(|_, rng| Ok(rng.next_u64()));
        let loader: Loader<Cpu, Vec<u64>> =
            samples.into_loader(List).batch_size(3).workers(workers);
        let mut parts: Vec<_> = shards(shard_count)
            .map(|shard| values(&loader, spec().seed(42).shard(shard)))
            .collect();
        let first = parts.remove(0);
        let joined = first.into_iter().enumerate().flat_map(|(batch, values)| {
            let rest = parts.iter().flat_map(move |part| part[batch].clone());
            values.into_iter().chain(rest).collect::<Vec<_>>()
        });
        joined.collect::<Vec<u64>>()
    };
    let expected: Vec<u64> = (0..7)
        .map(|position| SampleRng::new(42, 0, position).next_u64())
        .collect();
    assert_eq!(all(1, 0), expected);
    assert_eq!(all(2, 1), expected);
}

#[test]
fn transforms_follow_each_other() {
    let samples = Samples::new(numbers(3))
        .map(|item, _| Ok(item + 1))
        .map(|item, _| Ok(item * 10));
    let loader: Loader<Cpu, Vec<usize>> = samples.into_loader(List);
    assert_eq!(values(&loader, spec()).concat(), [10, 20, 30]);
}

#[test]
fn the_stream_is_chacha8_under_the_key_of_its_words() {
    let mut rng = SampleRng::new(0, 0, 0);
    // Computed by another implementation of ChaCha8.
    assert_eq!(rng.next_u64(), 9_966_650_989_538_655_850);
    assert_eq!(rng.next_u64(), 17_000_366_598_362_369_727);
    // For `rand` it is the same stream.
    let mut rng = SampleRng::new(3, 2, 1);
    let word: u64 = rng.clone().random();
    assert_eq!(word, rng.next_u64());
}

#[test]
fn numbers_below_a_bound_are_uniform() {
    let mut rng = SampleRng::new(1, 0, 0);
    let mut counts = [0_i32; 6];
    for _ in 0..60_000 {
        counts[rng.below(6)] += 1;
    }
    // Six standard deviations of a binomial count: 6·√(60000·5/36) = 548.
    assert!(
        counts.iter().all(|count| (count - 10_000).abs() < 548),
        "{counts:?}"
    );
    assert_eq!((rng.below(1), rng.below(0)), (0, 0));
    let mean = (0..10_000).map(|_| rng.uniform()).sum::<f64>() / 10_000.0;
    // Six standard deviations: 6/√(12·10000) = 0.0173.
    assert!((mean - 0.5).abs() < 0.0173, "{mean}");
}
