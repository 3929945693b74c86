//! Failing samples, worker threads, and what is loaded when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;

use burn::data::dataset::Dataset;

use super::*;
use crate::{Error, ErrorKind, Result};

/// `0..len`, where one index fails in some way.
#[derive(Clone, Copy)]
enum Faulty {
    Missing(usize),
    Panics(usize),
    Errs(usize),
}

impl Dataset<usize> for Faulty {
    fn get(&self, index: usize) -> Option<usize> {
        match self {
            Self::Missing(bad) if *bad == index => None,
            Self::Panics(bad) if *bad == index => panic!("cannot decode {index}"),
            _ => Some(index),
        }
    }
    fn len(&self) -> usize {
        11
    }
}

impl FallibleDataset<usize> for Faulty {
    fn try_get(&self, index: usize) -> Result<usize> {
        match self {
            Self::Errs(bad) if *bad == index => Err(Error::user("no such label")),
            _ => Ok(index),
        }
    }
    fn len(&self) -> usize {
        11
    }
}

/// Panics for a batch with a given sample.
struct Refuses(usize);

impl<B: Backend> Batcher<B, usize, Vec<usize>> for Refuses {
    fn batch(&self, items: Vec<usize>, _: &Device<B>) -> Vec<usize> {
        assert!(!items.contains(&self.0), "shapes differ");
        items
    }
}

#[test]
fn a_failing_sample_is_an_error_that_names_it() {
    for workers in [0, 2] {
        let with =
            |loader: Loader<Cpu, Vec<usize>>| failure(&loader.batch_size(2).workers(workers));
        assert_eq!(
            with(Loader::new(Faulty::Missing(5), List)),
            (
                2,
                "sample 5: the data set gave no item, although its length is 11; `Dataset::get` \
                 must give one for every index below `len`"
                    .into()
            )
        );
        assert_eq!(
            with(Loader::new(Faulty::Panics(5), List)),
            (2, "loading sample 5 panicked: cannot decode 5".into())
        );
        assert_eq!(
            with(Loader::from_fallible(Faulty::Errs(5), List)),
            (2, "sample 5: no such label".into())
        );
        assert_eq!(
            with(Loader::new(numbers(11), Refuses(5))),
            (
                2,
                "making batch 2 (samples 4, 5) panicked: shapes differ".into()
            )
        );
        let failing_map = Samples::new(numbers(11)).map(|item: usize, _| match item {
            5 => Err(Error::data("too dark")),
            item => Ok(item),
        });
        assert_eq!(
            with(failing_map.into_loader(List)),
            (2, "sample 5: too dark".into())
        );
    }
}

#[test]
fn errors_keep_their_kind() {
    let kind = |loader: Loader<Cpu, Vec<usize>>| {
        let mut batches = loader.batch_size(11).iter(spec()).unwrap();
        batches.next().unwrap().unwrap_err().kind()
    };
    assert_eq!(kind(Loader::new(Faulty::Missing(5), List)), ErrorKind::Data);
    assert_eq!(kind(Loader::new(Faulty::Panics(5), List)), ErrorKind::Data);
    assert_eq!(
        kind(Loader::from_fallible(Faulty::Errs(5), List)),
        ErrorKind::User
    );
}

#[test]
fn a_long_batch_is_listed_in_part() {
    let loader: Loader<Cpu, _> = Loader::new(numbers(20), Refuses(19)).batch_size(20);
    assert_eq!(
        failure(&loader).1,
        "making batch 0 (samples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more) \
         panicked: shapes differ"
    );
}

#[test]
fn a_sampler_that_panics_is_an_error() {
    struct Broken;
    impl Sampler for Broken {
        fn plan(&self, _: &PlanRequest) -> Result<Plan> {
            panic!("no idea")
        }
    }
    let error = loader(3).sampler(Broken).check().unwrap_err();
    assert_eq!(
        without_place(error),
        "the sampler of epoch 0 panicked: no idea"
    );
}

#[test]
fn a_dataset_behind_a_pointer_is_a_dataset() {
    let dataset: Arc<dyn Dataset<usize>> = Arc::new(numbers(3));
    let loader: Loader<Cpu, Vec<usize>> = Loader::new(dataset, List);
    assert_eq!(loader.num_samples(), Some(3));
}

#[test]
fn a_dropped_iterator_leaves_nothing_to_the_next() {
    let loader = loader(40).batch_size(2).shuffle(true).workers(2);
    let expected = values(&loader, spec().seed(1).epoch(1));
    for taken in [0, 1, 5] {
        let mut first = loader.iter(spec().seed(1)).unwrap();
        assert_eq!(first.by_ref().take(taken).count(), taken);
        drop(first);
        assert_eq!(values(&loader, spec().seed(1).epoch(1)), expected);
    }
}

#[test]
fn two_iterators_share_the_workers() {
    let loader = loader(12).batch_size(2).workers(1);
    let mut train = loader.iter(spec()).unwrap();
    assert_eq!(train.next().unwrap().unwrap().index, 0);
    // A whole epoch runs while the other one is stopped half-way.
    assert_eq!(values(&loader.clone(), spec()).len(), 6);
    assert_eq!(train.next().unwrap().unwrap().index, 1);
    let validation = loader.iter(spec().start_batch(2)).unwrap();
    for (a, b) in train.zip(validation) {
        assert_eq!(a.unwrap().value, b.unwrap().value);
    }
}

/// Item 0 is ready only once item 3 is.
struct Backwards(Mutex<bool>, Condvar);

impl Dataset<usize> for Backwards {
    fn get(&self, index: usize) -> Option<usize> {
        let mut ready = self.0.lock().unwrap();
        if index == 3 {
            *ready = true;
            self.1.notify_all();
        }
        while index == 0 && !*ready {
            ready = self.1.wait(ready).unwrap();
        }
        Some(index)
    }
    fn len(&self) -> usize {
        8
    }
}

#[test]
fn batches_come_in_order_whoever_finishes_first() {
    let dataset = Backwards(Mutex::new(false), Condvar::new());
    let loader: Loader<Cpu, Vec<usize>> = Loader::new(dataset, List).workers(2).prefetch(2);
    assert_eq!(values(&loader, spec()).concat(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Counts the samples loaded, and the threads that load.
#[derive(Clone, Default)]
struct Counting(Arc<(AtomicUsize, Mutex<Vec<ThreadId>>)>);

impl Dataset<usize> for Counting {
    fn get(&self, index: usize) -> Option<usize> {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        self.0.1.lock().unwrap().push(std::thread::current().id());
        Some(index)
    }
    fn len(&self) -> usize {
        100
    }
}

#[test]
fn no_more_is_loaded_ahead_than_allowed() {
    let count = Counting::default();
    let loader: Loader<Cpu, Vec<usize>> = Loader::new(count.clone(), List).workers(2).prefetch(3);
    let mut batches = loader.iter(spec()).unwrap();
    batches.next().unwrap().unwrap();
    drop(batches);
    drop(loader);
    assert!(count.0.0.load(Ordering::SeqCst) <= 1 + 2 * 3);
}

#[test]
fn nothing_beyond_the_limit_is_loaded() {
    for workers in [0, 3] {
        let count = Counting::default();
        let loader: Loader<Cpu, Vec<usize>> = Loader::new(count.clone(), List)
            .batch_size(4)
            .workers(workers);
        assert_eq!(values(&loader, spec().start_batch(1).limit(3)).len(), 2);
        drop(loader);
        assert_eq!(count.0.0.load(Ordering::SeqCst), 8);
    }
}

#[test]
fn threads_live_as_long_as_the_loader_and_end_with_it() {
    let count = Counting::default();
    let loader: Loader<Cpu, Vec<usize>> = Loader::new(count.clone(), List).workers(2);
    let clone = loader.clone();
    for epoch in 0..3 {
        values(&loader, spec().epoch(epoch));
        values(&clone.without_shuffle(), spec().epoch(epoch));
    }
    let mut threads = count.0.1.lock().unwrap().clone();
    threads.sort_by_key(|id| format!("{id:?}"));
    threads.dedup();
    assert!(threads.len() <= 2);
    assert!(!threads.contains(&std::thread::current().id()));

    // With the last handle, in mid-epoch, the threads end: nothing holds the data set any more.
    let mut batches = clone.iter(spec()).unwrap();
    batches.next();
    drop((loader, clone));
    assert!(batches.next().is_some());
    drop(batches);
    assert_eq!(Arc::strong_count(&count.0), 1);
}
