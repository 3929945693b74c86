//! The thread that sends, so that training never waits for the server.

use super::delivery::{Delivery, Report, Trouble, send_command};
use super::spool::Spool;
use crate::error::{Error, ErrorKind, Result};
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait before a request is made again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    pub(super) first: Duration,
    /// The wait is doubled up to this.
    pub(super) longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(30),
        }
    }
}

/// Sends a spool in a thread of its own. Dropped, it stops as soon as the request under way ends.
pub(super) struct Sender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    written: u64,
    confirmed: u64,
    run_id: Option<String>,
    error: Option<Error>,
    /// The run has ended: no long waits any more.
    hurry: bool,
    stop: bool,
    ended: bool,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum End {
    /// Everything was sent,
    Sent,
    /// or not, in the time given,
    Late,
    /// or not, for good; the error, unless it has been reported.
    Stopped(Option<Error>),
}

impl Sender {
    pub(super) fn start(
        delivery: Delivery,
        spool: &Spool,
        retry: Retry,
        report: Report,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                written: spool.length(),
                confirmed: delivery.confirmed(),
                run_id: delivery.run_id().map(str::to_owned),
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let lock = spool.lock();
        let thread = std::thread::Builder::new().name("firebox-mlflow".into());
        let thread = thread.spawn(move || {
            of_thread.work(delivery, retry, &report);
            release(&lock);
            of_thread.lock().ended = true;
            of_thread.changed.notify_all();
        });
        let failed =
            |e: io::Error| Error::new(ErrorKind::Io, "cannot start a thread").with_source(e);
        Ok(Self {
            shared,
            thread: Some(thread.map_err(failed)?),
        })
    }

    /// The spool has been written up to here.
    pub(super) fn wake(&self, written: u64) {
        self.shared.lock().written = written;
        self.shared.changed.notify_all();
    }

    /// Why sending has ended; given once.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.shared.lock().error.take()
    }

    /// MLflow's id of the run, once it is known.
    pub(super) fn run_id(&self) -> Option<String> {
        self.shared.lock().run_id.clone()
    }

    /// Waits until everything is sent, for so long at most. In time or not, the thread goes on
    /// until this is dropped.
    pub(super) fn finish(&self, patience: Duration) -> End {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        state.hurry = true;
        self.shared.changed.notify_all();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.confirmed >= state.written || state.ended || left.is_zero() {
                break;
            }
            state = self.shared.wait(state, left);
        }
        match state.confirmed >= state.written {
            true => End::Sent,
            false if state.ended => End::Stopped(state.error.take()),
            false => End::Late,
        }
    }

    /// Ends the thread, which has nothing to send, and frees the spool.
    pub(super) fn join(mut self) -> Result<()> {
        self.stop();
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        let panicked = |_| {
            Error::new(
                ErrorKind::Io,
                "the thread that sends to MLflow has panicked",
            )
        };
        joined.map_err(panicked)
    }

    /// Ends the thread after the request under way.
    pub(super) fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn work(&self, mut delivery: Delivery, retry: Retry, report: &Report) {
        let mut failures = 0;
        let mut pause = retry.first;
        while let Some(written) = self.wait_for_work(delivery.confirmed()) {
            match delivery.send_next(written) {
                Ok(()) => {
                    if failures > 1 {
                        let uri = delivery.client().uri();
                        report(&format!("note: MLflow at {uri} answers again"));
                    }
                    failures = 0;
                    pause = retry.first;
                    let mut state = self.lock();
                    state.confirmed = delivery.confirmed();
                    state.run_id = delivery.run_id().map(str::to_owned);
                    drop(state);
                    self.changed.notify_all();
                }
                Err(Trouble::Away(why)) => {
                    failures += 1;
                    // The first retry is silent: a server that restarts closes connections.
                    if failures == 2 {
                        report(&format!(
                            "warning: MLflow at {} does not take what it is sent: {why}; the run \
                             goes on, and its values wait in `{}`",
                            delivery.client().uri(),
                            delivery.spool().display()
                        ));
                    }
                    pause = match self.pause(pause) {
                        true => retry.first,
                        false => (pause * 2).min(retry.longest),
                    };
                }
                Err(Trouble::Stop(error)) => {
                    self.lock().error = Some(error);
                    break;
                }
            }
        }
    }

    /// How much has been written, as soon as it is more than this; none at the end.
    fn wait_for_work(&self, confirmed: u64) -> Option<u64> {
        let mut state = self.lock();
        while !state.stop && state.written <= confirmed {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        (!state.stop).then_some(state.written)
    }

    /// Waits for so long, or until the run ends, which is then returned once.
    fn pause(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.hurry || state.stop || left.is_zero() {
                return std::mem::take(&mut state.hurry);
            }
            state = self.wait(state, left);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, time: Duration) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says that a run's rest was not sent in time.
pub(super) fn say_late(report: &Report, uri: &str, spool: &Spool, patience: Duration) {
    report(&format!(
        "warning: MLflow at {uri} has not taken everything within {patience:?} of the run's end; \
         the rest stays in `{}`, to be sent by `{}`",
        spool.path().display(),
        send_command(spool.path())
    ));
}

/// A lock ends with its last handle, but a process that is just being started by another thread
/// still has one.
pub(super) fn release(lock: &File) {
    let _ = lock.unlock();
}
