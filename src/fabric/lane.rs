//! Where a rank computes.

use crate::error::{Error, ErrorKind, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::fmt;
use std::sync::Arc;

/// The thread that a rank computes on: its own, or the only one of a pool, on which Burn's CPU
/// kernels find no other thread to share their work with.
#[derive(Clone, Default)]
pub(crate) struct Lane(Option<Arc<ThreadPool>>);

/// As deep as the main thread's on most systems: a backward pass goes as deep as the model.
pub(super) const STACK_SIZE: usize = 8 << 20;

impl Lane {
    /// A thread of its own for the replica of this number.
    pub(crate) fn new(replica: usize) -> Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(1)
            .stack_size(STACK_SIZE)
            .thread_name(move |_| format!("firebox-replica-{replica}"))
            .build();
        let pool = pool.map_err(|e| {
            Error::new(ErrorKind::Io, "cannot start a replica's thread").with_source(e)
        })?;
        Ok(Self(Some(Arc::new(pool))))
    }

    /// Runs `f` there and waits for it.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            None => f(),
            Some(pool) => pool.install(f),
        }
    }

    /// Runs `f` there later; on the caller's thread, at once, if there is no other.
    pub(crate) fn spawn(&self, f: impl FnOnce() + Send + 'static) {
        match &self.0 {
            None => f(),
            Some(pool) => pool.spawn(f),
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "the caller's thread",
            Some(_) => "a thread of its own",
        })
    }
}
