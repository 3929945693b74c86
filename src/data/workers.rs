//! The threads that load batches ahead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::panics;

/// A fixed number of threads, started at the first job and joined when the pool is dropped.
///
/// They live as long as the loader and not for one epoch, because GPU runtimes may keep a stream and
/// a memory pool for every thread that ever made a tensor. Jobs start in the order they are given.
pub(super) struct Workers {
    count: usize,
    running: Mutex<Option<Running>>,
}

type Job = Box<dyn FnOnce() + Send>;

struct Running {
    jobs: Sender<Job>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            running: Mutex::new(None),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Hands over a job. It never waits: the callers bound how many jobs they have under way.
    pub(super) fn submit(&self, job: Job) -> Result<()> {
        let mut running = lock(&self.running);
        let running = match &mut *running {
            Some(running) => running,
            empty => empty.insert(Running::start(self.count)?),
        };
        running
            .jobs
            .send(job)
            .map_err(|_| Error::data("the loader's worker threads have ended"))
    }
}

impl Running {
    fn start(count: usize) -> Result<Self> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        // Threads already started end by themselves when a later one fails: `jobs` is dropped.
        let threads = (0..count)
            .map(|index| {
                let queue = Arc::clone(&queue);
                std::thread::Builder::new()
                    .name(format!("loader-{index}"))
                    .spawn(move || work(&queue))
            })
            .collect::<std::io::Result<_>>()
            .map_err(|e| {
                let message = format!("cannot start {count} loader threads; use fewer `workers`");
                Error::new(ErrorKind::Data, message).with_source(e)
            })?;
        Ok(Self { jobs, threads })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(Running { jobs, threads }) = running.take() else {
            return;
        };
        drop(jobs);
        let here = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != here) {
            // Jobs do not unwind, and a drop could not report it.
            let _ = thread.join();
        }
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting and not while working.
        let job = lock(queue).recv();
        match job {
            // Jobs catch the panics of the user's code; this is for what is dropped with a job.
            Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
            Err(_) => return,
        }
    }
}

/// Locks; data behind these locks is whole even if a holder panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs user code, and turns its panic into an error: `what` it was doing, and the message.
pub(super) fn caught<T>(
    what: impl FnOnce() -> String,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    panics::catch_as(run, |panic| {
        Error::data(format!("{} panicked: {panic}", what()))
    })
}
