//! Data of unknown length.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{Error, ErrorKind, Result};

/// `0..len`, plus 100 times the epoch.
fn stream(len: usize) -> Loader<Cpu, Vec<usize>> {
    Loader::from_stream(
        move |epoch| {
            let first = 100 * epoch as usize;
            Ok((first..first + len).map(Ok))
        },
        List,
    )
}

#[test]
fn the_length_is_unknown_and_the_last_batch_is_marked() {
    for (len, workers) in [(7, 0), (7, 1), (7, 3), (6, 0), (6, 1), (2, 0), (2, 2)] {
        let loader = stream(len).batch_size(3).workers(workers);
        assert_eq!(loader.num_samples(), None);
        assert_eq!(loader.num_batches(0, 0).unwrap(), None);
        let batches: Vec<_> = loader.iter(spec()).unwrap().map(Result::unwrap).collect();
        let last: Vec<bool> = batches.iter().map(|batch| batch.is_last).collect();
        assert_eq!(batches.len(), len.div_ceil(3));
        assert!(last.iter().rev().skip(1).all(|last| !last) && last[last.len() - 1]);
        assert!(batches.iter().all(|batch| batch.indices.is_empty()));
        let items: Vec<_> = batches.into_iter().flat_map(|b| b.value.unwrap()).collect();
        assert_eq!(items, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn each_epoch_opens_its_own_stream() {
    let loader = stream(3).batch_size(3);
    assert_eq!(values(&loader, spec().epoch(2)), [[200, 201, 202]]);
    let fixed = loader.without_shuffle();
    assert_eq!(values(&fixed, spec().epoch(2)), [[0, 1, 2]]);
}

#[test]
fn a_short_last_batch_is_dropped_and_the_one_before_is_the_last() {
    let loader = stream(7).batch_size(3).drop_last(true);
    let batches: Vec<_> = loader.iter(spec()).unwrap().map(Result::unwrap).collect();
    assert_eq!(batches.len(), 2);
    assert!(batches[1].is_last && !batches[0].is_last);
}

#[test]
fn shards_take_their_part_of_every_batch() {
    for workers in [0, 1] {
        let loader = stream(11).batch_size(5).workers(workers);
        let parts: Vec<_> = shards(2)
            .map(|shard| values(&loader, spec().shard(shard)))
            .collect();
        assert_eq!(parts[0], [vec![0, 1, 2], vec![5, 6, 7], vec![10]]);
        assert_eq!(parts[1], [vec![3, 4], vec![8, 9], vec![]]);
    }
}

#[test]
fn a_resumed_stream_is_the_tail_of_the_whole() {
    for workers in [0, 1] {
        let loader = stream(7).batch_size(3).workers(workers);
        let whole = values(&loader, spec());
        for start in 0..=3 {
            let rest = values(&loader, spec().start_batch(start));
            assert_eq!(rest, whole[start..]);
        }
        let spec = spec().start_batch(4);
        let error = loader.iter(spec).unwrap().next().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the stream ended after 7 items, so it cannot go on after 12; it must be the one that \
             the stopped run read"
        );
    }
    let rest = spec().start_batch(2).start_sample(2);
    assert_eq!(
        values(&stream(7).batch_size(4), rest),
        [vec![2, 3, 4, 5], vec![6]]
    );
}

#[test]
fn nothing_beyond_the_limit_is_read() {
    for workers in [0, 1] {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let open = move |_| {
            let count = Arc::clone(&count);
            let items = (0_usize..).inspect(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            });
            Ok(items.map(Ok))
        };
        let loader: Loader<Cpu, Vec<usize>> = Loader::from_stream(open, List)
            .batch_size(3)
            .workers(workers);
        let batches: Vec<_> = loader.iter(spec().limit(2)).unwrap().flatten().collect();
        assert_eq!(batches.len(), 2);
        assert!(batches[1].is_last);
        drop(loader);
        assert_eq!(read.load(Ordering::SeqCst), 6);
    }
}

#[test]
fn failing_and_panicking_items_are_named() {
    for workers in [0, 2] {
        let failing = |bad: fn() -> Result<usize>| {
            let open =
                move |_| Ok((0..7).map(move |item| if item == 4 { bad() } else { Ok(item) }));
            let loader: Loader<Cpu, _> = Loader::from_stream(open, List);
            let mut batches = loader.batch_size(2).workers(workers).iter(spec()).unwrap();
            let results: Vec<_> = batches.by_ref().collect();
            assert!(batches.next().is_none());
            let count = results.len();
            let error = results.into_iter().nth(2).unwrap().unwrap_err();
            (count, without_place(error))
        };
        assert_eq!(
            failing(|| Err(Error::data("bad line"))),
            (3, "item 4 of the stream: bad line".into())
        );
        assert_eq!(
            failing(|| panic!("bad byte")),
            (3, "reading item 4 of the stream panicked: bad byte".into())
        );
    }
}

#[test]
fn what_cannot_work_is_an_error() {
    let first = |loader: &Loader<Cpu, Vec<usize>>| {
        let mut batches = loader.iter(spec()).unwrap();
        batches.next().unwrap().unwrap_err()
    };
    assert_eq!(first(&stream(0)).kind(), ErrorKind::Data);
    let error = first(&stream(2).batch_size(3).drop_last(true));
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = stream(2).shuffle(true).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);

    let closed: Loader<Cpu, Vec<usize>> = Loader::from_stream(
        |_| Err::<std::iter::Empty<_>, _>(Error::data("no network")),
        List,
    );
    let error = closed.iter(spec()).unwrap_err();
    assert_eq!(error.to_string(), "no network");
}

#[test]
fn two_iterators_read_streams_of_their_own() {
    let loader = stream(6).batch_size(2).workers(1);
    let mut one = loader.iter(spec()).unwrap();
    assert_eq!(one.next().unwrap().unwrap().value.unwrap(), [0, 1]);
    assert_eq!(values(&loader, spec()).len(), 3);
    assert_eq!(one.next().unwrap().unwrap().value.unwrap(), [2, 3]);
}
