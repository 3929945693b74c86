//! Where the replicas of one process meet.

use super::link::Stream;
use crate::error::{Error, ErrorKind, Result};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(super) type Item = Arc<dyn Any + Send + Sync>;

/// What everybody brought to a meeting, by replica.
type Items = Arc<Vec<Item>>;

/// A meeting place of the replicas of one process. A replica that fails says so, and nobody waits
/// for it any longer.
pub(super) struct Room {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
    has_failed: AtomicBool,
    /// A thread that waits keeps its core for a moment, if every replica has one: waking it up
    /// takes longer than most meetings.
    spin: Duration,
}

#[derive(Default)]
struct State {
    rounds: Vec<Round>,
    /// The replicas that come to no further meeting.
    gone: Vec<usize>,
    failure: Option<Failure>,
}

/// A meeting that is not complete yet.
struct Round {
    stream: Stream,
    among: usize,
    items: Vec<Option<Item>>,
    done: Arc<OnceLock<Items>>,
}

struct Failure {
    /// For the one who tells the user.
    error: Option<Error>,
    text: String,
}

impl Room {
    pub(super) fn new(size: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = match size <= cores {
            true => Duration::from_micros(100),
            false => Duration::ZERO,
        };
        Self {
            size,
            state: Mutex::default(),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            spin,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Brings an item to the next meeting of the first `among` replicas on this stream, waits until
    /// they all have, and returns what they brought.
    ///
    /// # Errors
    /// A replica has failed, or does not come within `timeout`.
    pub(super) fn meet(
        &self,
        replica: usize,
        stream: Stream,
        among: usize,
        item: Item,
        timeout: Duration,
    ) -> Result<Items> {
        let done = {
            let mut state = self.lock();
            state.check()?;
            let at = state.round_of(replica, stream, among);
            let Some(round) = state.rounds.get_mut(at) else {
                return Err(Error::new(ErrorKind::Aborted, "a meeting does not exist"));
            };
            if let Some(place) = round.items.get_mut(replica) {
                *place = Some(item);
            }
            let done = Arc::clone(&round.done);
            if round.items.iter().all(Option::is_some) {
                let round = state.rounds.remove(at);
                let items: Items = Arc::new(round.items.into_iter().flatten().collect());
                // Nobody else sets it: the round is out of the list.
                let _ = done.set(Arc::clone(&items));
                drop(state);
                self.changed.notify_all();
                return Ok(items);
            }
            self.miss_the_gone(state)?;
            done
        };
        let started = Instant::now();
        while started.elapsed() < self.spin && !self.has_failed.load(Ordering::Relaxed) {
            if let Some(items) = done.get() {
                return Ok(Arc::clone(items));
            }
            match started.elapsed() < self.spin / 4 {
                true => std::hint::spin_loop(),
                // Whoever is waited for may need the core.
                false => std::thread::yield_now(),
            }
        }
        let mut state = self.lock();
        loop {
            if let Some(items) = done.get() {
                return Ok(Arc::clone(items));
            }
            state.check()?;
            let Some(left) = timeout.checked_sub(started.elapsed()) else {
                let error = state.late(&done, timeout);
                drop(state);
                self.fail(error);
                return self.lock().check().map(|()| Arc::default());
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A replica is done, and comes to no further meeting.
    pub(super) fn leave(&self, replica: usize) {
        let mut state = self.lock();
        state.gone.push(replica);
        // What others wait for is theirs to report.
        let _ = self.miss_the_gone(state);
    }

    /// Ends the waiting for replicas that do not come any more.
    fn miss_the_gone(&self, state: MutexGuard<'_, State>) -> Result<()> {
        let Some(gone) = state.missed() else {
            return Ok(());
        };
        drop(state);
        self.fail(Error::new(
            ErrorKind::Aborted,
            format!(
                "replica {gone} has ended, and others wait for it; all must take the same steps, and \
                 end together"
            ),
        ));
        self.lock().check()
    }

    /// Lets nobody wait any longer. The first failure counts; whether it is this one.
    pub(super) fn fail(&self, error: Error) -> bool {
        let mut state = self.lock();
        let is_first = state.failure.is_none();
        state.failure.get_or_insert_with(|| Failure {
            text: error.to_string(),
            error: Some(error),
        });
        self.has_failed.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
        is_first
    }

    /// The first failure, if there was one that nobody has been given.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.lock().failure.as_mut().and_then(|f| f.error.take())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The error of a room in which a replica has failed.
    fn check(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => Err(Error::new(ErrorKind::Aborted, failure.text.clone())),
        }
    }

    /// The first meeting of this kind that the replica has not come to. Whoever takes part in one
    /// of a kind takes part in all of that kind, so that they come in the same order for all.
    fn round_of(&mut self, replica: usize, stream: Stream, among: usize) -> usize {
        let fits = |round: &Round| {
            let is_empty = round.items.get(replica).is_some_and(Option::is_none);
            round.stream == stream && round.among == among && is_empty
        };
        if let Some(at) = self.rounds.iter().position(fits) {
            return at;
        }
        self.rounds.push(Round {
            stream,
            among,
            items: vec![None; among],
            done: Arc::default(),
        });
        self.rounds.len() - 1
    }

    /// One of the gone that a meeting is not complete without.
    fn missed(&self) -> Option<usize> {
        let is_missing = |gone: &&usize| {
            let missing = |round: &Round| round.items.get(**gone).is_some_and(Option::is_none);
            self.rounds.iter().any(missing)
        };
        self.gone.iter().find(is_missing).copied()
    }

    fn late(&self, done: &Arc<OnceLock<Items>>, timeout: Duration) -> Error {
        let round = self.rounds.iter().find(|r| Arc::ptr_eq(&r.done, done));
        let items = round.map_or(&[][..], |round| &round.items);
        let missing = items.iter().enumerate().filter(|(_, item)| item.is_none());
        let missing: Vec<_> = missing.map(|(i, _)| format!("replica {i}")).collect();
        Error::new(
            ErrorKind::Aborted,
            format!(
                "{} did not come to where the others wait within {} s; raise `collective_timeout` \
                 if that is no fault",
                missing.join(", "),
                timeout.as_secs_f64()
            ),
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// Runs `f` in one thread for each of `n` replicas.
    fn replicas<T: Send>(n: usize, f: impl Fn(&Room, usize) -> T + Sync) -> Vec<T> {
        let room = Room::new(n);
        std::thread::scope(|scope| {
            let (room, f) = (&room, &f);
            let threads: Vec<_> = (0..n).map(|i| scope.spawn(move || f(room, i))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn meet(room: &Room, i: usize, stream: Stream, among: usize, n: usize) -> Result<Vec<usize>> {
        let items = room.meet(i, stream, among, Arc::new(n), LONG)?;
        let number = |item: &Item| *item.downcast_ref::<usize>().unwrap();
        Ok(items.iter().map(number).collect())
    }

    #[test]
    fn everybody_gets_what_everybody_brought_in_their_order() {
        let all = replicas(4, |room, i| {
            let numbers = (0..1000).map(|round| meet(room, i, Stream::Loop, 4, round * 10 + i));
            numbers.collect::<Result<Vec<_>>>().unwrap()
        });
        for numbers in all {
            for (round, items) in numbers.into_iter().enumerate() {
                assert_eq!(items, [0, 1, 2, 3].map(|i| round * 10 + i));
            }
        }
    }

    #[test]
    fn meetings_of_some_do_not_disturb_those_of_all() {
        replicas(3, |room, i| {
            for round in 0..300 {
                let among = round % 3 + 1;
                if i < among {
                    let items = meet(room, i, Stream::Pass, among, round).unwrap();
                    assert_eq!(items, vec![round; among]);
                }
                if round % 7 == 0 {
                    assert_eq!(meet(room, i, Stream::Loop, 3, i).unwrap(), [0, 1, 2]);
                }
            }
        });
    }

    #[test]
    fn a_failure_ends_all_waiting() {
        let errors = replicas(3, |room, i| {
            if i == 2 {
                room.fail(Error::data("disk on fire"));
                room.fail(Error::data("what came of it"));
            }
            let error = meet(room, i, Stream::Loop, 3, 0).unwrap_err();
            let taken = room.take_failure().map(|error| error.kind());
            (error.kind(), error.to_string(), taken)
        });
        for (kind, text, _) in &errors {
            assert_eq!((*kind, text.as_str()), (ErrorKind::Aborted, "disk on fire"));
        }
        // One of them is given the very error.
        let taken: Vec<_> = errors.iter().filter_map(|(_, _, taken)| *taken).collect();
        assert_eq!(taken, [ErrorKind::Data]);
    }

    #[test]
    fn who_does_not_come_is_named() {
        let errors = replicas(3, |room, i| match i {
            1 => None,
            _ => {
                let waited = room.meet(i, Stream::Loop, 3, Arc::new(()), Duration::ZERO);
                Some(waited.unwrap_err().to_string())
            }
        });
        for error in errors.into_iter().flatten() {
            assert!(error.contains("replica 1"), "{error}");
            assert!(error.contains("within 0 s"), "{error}");
        }
    }
}
