//! The order of epochs, its slices, shards and resumption.

use super::*;
use crate::ErrorKind;

#[test]
fn every_epoch_is_another_permutation_and_a_seed_repeats_it() {
    let loader = loader(10).batch_size(2).shuffle(true);
    let epoch = |seed, epoch| values(&loader, spec().seed(seed).epoch(epoch)).concat();
    let orders = [epoch(42, 0), epoch(42, 1), epoch(42, 2), epoch(43, 0)];
    for order in &orders {
        assert_eq!(distinct(order), 10);
    }
    assert_eq!(distinct(&orders), 4);
    assert_eq!(epoch(42, 1), orders[1]);
}

#[test]
fn the_order_never_changes_between_versions() {
    let loader = loader(10).batch_size(10).shuffle(true);
    let orders = [0, 1].map(|epoch| values(&loader, spec().seed(42).epoch(epoch)).concat());
    // Computed by another implementation of ChaCha8 and of the shuffle.
    assert_eq!(orders[0], [9, 4, 0, 2, 1, 5, 3, 6, 8, 7]);
    assert_eq!(orders[1], [0, 2, 7, 4, 3, 8, 9, 6, 1, 5]);
}

#[test]
fn batches_are_the_same_for_any_number_of_workers() {
    for start in [0, 3] {
        let [none, one, four] = [0, 1, 4].map(|workers| {
            let loader = loader(23).batch_size(4).shuffle(true).workers(workers);
            values(&loader, spec().seed(7).start_batch(start))
        });
        assert_eq!(none.len(), 6 - start);
        assert_eq!((&none, &none), (&one, &four));
    }
}

#[test]
fn a_resumed_epoch_is_the_tail_of_the_whole() {
    let loader = loader(10).batch_size(2).shuffle(true).workers(2);
    for epoch in 0..3 {
        let spec = spec().seed(42).epoch(epoch);
        let whole = values(&loader, spec.clone());
        for start in 0..=5 {
            let mut rest = loader.iter(spec.clone().start_batch(start)).unwrap();
            assert_eq!(rest.position(), start);
            for (expected, items) in whole.iter().enumerate().skip(start) {
                let batch = rest.next().unwrap().unwrap();
                assert_eq!((batch.index, batch.is_last), (expected, expected == 4));
                assert_eq!(batch.value.as_ref(), Some(items));
                assert_eq!(&batch.indices, items);
                assert_eq!(rest.position(), expected + 1);
            }
            assert!(rest.next().is_none());
        }
    }
    let error = loader.iter(spec().start_batch(6)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "epoch 0 has 5 batches, so it cannot go on at batch 6; the data set and the batch size \
         must be those of the stopped run"
    );
}

#[test]
fn a_larger_batch_goes_on_where_the_smaller_one_stopped() {
    // One device took one batch of 4; two devices go on with 4 each.
    let loader = loader(16).batch_size(8);
    let rest = |shard| {
        let spec = spec().start_batch(1).start_sample(4).shard(shard);
        values(&loader, spec)
    };
    let [first, second] = [0, 1].map(|index| rest(Shard { index, count: 2 }));
    assert_eq!(first, [vec![4, 5, 6, 7], vec![12, 13]]);
    assert_eq!(second, [vec![8, 9, 10, 11], vec![14, 15]]);

    let dropping = loader.clone().drop_last(true);
    let batches: Vec<_> = dropping
        .iter(spec().start_batch(1).start_sample(4))
        .unwrap()
        .map(|batch| batch.unwrap())
        .collect();
    assert_eq!(batches.len(), 1);
    assert_eq!((batches[0].index, batches[0].is_last), (1, true));
    // The whole epoch was taken already.
    let done = spec().start_batch(4).start_sample(16);
    assert_eq!(values(&loader, done), [[0; 0]; 0]);
    let beyond = spec().start_batch(4).start_sample(17);
    assert!(loader.iter(beyond).is_err());
}

#[test]
fn a_short_last_batch_is_kept_or_dropped() {
    let loader = loader(9).batch_size(5);
    assert_eq!(
        values(&loader, spec()),
        [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8]]
    );
    assert_eq!(loader.num_batches(0, 0).unwrap(), Some(2));
    let dropping = loader.drop_last(true);
    assert_eq!(values(&dropping, spec()).concat().len(), 5);
    assert_eq!(dropping.num_batches(0, 0).unwrap(), Some(1));
}

#[test]
fn shards_take_every_sample_of_every_batch_once() {
    for len in [1, 2, 5, 8, 11] {
        for workers in [0, 2] {
            let loader = loader(len).batch_size(5).shuffle(true).workers(workers);
            let whole = values(&loader, spec().seed(3));
            for count in 1..=3 {
                let mut joined = vec![Vec::new(); whole.len()];
                let mut sizes = vec![Vec::new(); whole.len()];
                for shard in shards(count) {
                    let batches = loader.iter(spec().seed(3).shard(shard)).unwrap();
                    for batch in batches.map(|batch| batch.unwrap()) {
                        assert_eq!(batch.value.is_none(), batch.samples == 0);
                        assert_eq!(batch.global_samples, whole[batch.index].len());
                        assert_eq!(batch.is_last, batch.index + 1 == whole.len());
                        sizes[batch.index].push(batch.samples);
                        joined[batch.index].extend(batch.value.unwrap_or_default());
                    }
                }
                assert_eq!(joined, whole);
                for sizes in sizes {
                    assert_eq!(sizes.len(), count, "every shard sees every batch");
                    assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[count - 1] <= 1);
                }
            }
        }
    }
}

#[test]
fn a_shard_without_a_sample_still_gets_a_batch() {
    let spec = spec().shard(Shard { index: 1, count: 2 });
    let batch = loader(1).iter(spec).unwrap().next().unwrap().unwrap();
    assert_eq!(
        (batch.value, batch.samples, batch.global_samples),
        (None, 0, 1)
    );
    assert!(batch.is_last);
}

#[test]
fn a_shard_that_does_not_exist_is_an_error() {
    for shard in [Shard { index: 2, count: 2 }, Shard { index: 0, count: 0 }] {
        let error = loader(4).iter(spec().shard(shard)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

#[test]
fn the_limit_ends_the_epoch() {
    let loader = loader(10).batch_size(2);
    let batches: Vec<_> = loader.iter(spec().limit(3)).unwrap().flatten().collect();
    assert_eq!(batches.len(), 3);
    assert!(batches[2].is_last && !batches[1].is_last);
    assert_eq!(values(&loader, spec().limit(100)).len(), 5);
    assert_eq!(values(&loader, spec().limit(0)).len(), 0);
    assert_eq!(values(&loader, spec().start_batch(4).limit(3)).len(), 0);
}

#[test]
fn without_shuffle_every_epoch_is_the_same() {
    let shuffled = loader(6).batch_size(2).shuffle(true);
    let fixed = shuffled.without_shuffle();
    assert_eq!(values(&fixed, spec().epoch(5)).concat(), [0, 1, 2, 3, 4, 5]);
    assert_ne!(
        values(&shuffled, spec().seed(1)).concat(),
        [0, 1, 2, 3, 4, 5]
    );

    // A weighted sampler has no order of its own: its first epoch is repeated.
    let weighted = loader(6).sampler(Weighted::new([1.0; 6]));
    let fixed = weighted.without_shuffle();
    let first = values(&weighted, spec());
    assert_ne!(values(&weighted, spec().epoch(1)), first);
    assert_eq!(values(&fixed, spec().epoch(1)), first);
}

#[test]
fn check_names_what_is_wrong() {
    let message = |loader: Loader<Cpu, Vec<usize>>| {
        let error = loader.check().unwrap_err();
        let iter_error = loader.iter(spec()).unwrap_err();
        assert_eq!(error.to_string(), iter_error.to_string());
        assert_eq!(loader.num_batches(0, 0).unwrap_err().kind(), error.kind());
        (error.kind(), error.to_string())
    };
    assert!(loader(3).check().is_ok());
    assert_eq!(
        message(loader(3).batch_size(0)),
        (
            ErrorKind::Config,
            "`batch_size` is 0; use a whole number from 1".into()
        )
    );
    assert_eq!(
        message(loader(3).workers(1).prefetch(0)).0,
        ErrorKind::Config
    );
    assert_eq!(
        message(loader(0)),
        (
            ErrorKind::Data,
            "the data set is empty; it needs at least one sample".into()
        )
    );
    assert_eq!(
        message(loader(3).sampler(Subset::new([0, 3]))),
        (
            ErrorKind::Data,
            "the sampler gave index 3 for a data set of 3 samples; indices go from 0 to 2".into()
        )
    );
    let (kind, text) = message(loader(9).batch_size(10).drop_last(true));
    assert_eq!(kind, ErrorKind::Config);
    assert!(
        text.contains("`batch_size` of 10") && text.contains("has 9"),
        "{text}"
    );
}
