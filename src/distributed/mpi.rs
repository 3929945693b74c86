//! Messages between processes that an MPI launcher has started.
//!
//! All calls of MPI are made by one thread, which has started it. A message that is on its way when
//! a run fails may never end, and its memory must then stay as it is. Safe Rust has no other way to
//! say so than a frame of the stack that is never left: this thread stays in the meeting that
//! failed, and answers from there, while the run goes on to end.

use super::link::{Link, Stream};
use crate::error::{Error, ErrorKind, Result};
use mpi::Tag;
use mpi::datatype::Equivalence;
use mpi::environment::{Threading, Universe};
use mpi::point_to_point::{Message, Status};
use mpi::request::{LocalScope, Request, StaticScope, scope};
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, Destination, Source};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, mem, process, thread};

/// What a process that has failed says to the others. Smaller tags are those of the streams.
const FAILED: Tag = 2;

/// That a process has come to its last call.
const PARTING: Tag = 3;

/// The longest message. A part ends with the first that is shorter, so that no lengths are sent;
/// MPI counts up to 2 GiB.
const CHUNK: usize = 64 << 20;

/// How long messages are looked for without sleeping.
const SPIN: Duration = Duration::from_millis(1);

/// How often MPI may work on messages already sent, while the run does something else.
const IDLE: Duration = Duration::from_millis(10);

/// How long MPI may take for what should take no time.
const GRACE: Duration = Duration::from_secs(10);

type Parts = Vec<Vec<u8>>;

/// The processes that an MPI launcher has started, seen from one of them.
pub(crate) struct Mpi {
    process: usize,
    processes: usize,
    host: String,
    orders: Sender<Order>,
    /// Whose turn it is to wait for others.
    turn: Mutex<()>,
    finalized: AtomicBool,
}

/// MPI can be started once per process.
static MPI: OnceLock<Result<Arc<Mpi>, String>> = OnceLock::new();

impl Mpi {
    /// The link to the other processes, the same one at each call; none if no MPI launcher has
    /// started this process.
    ///
    /// # Errors
    /// MPI cannot be used: the program has started it already, it does not work with threads, or it
    /// has been [finalized](Self::finalize).
    pub(crate) fn init() -> Result<Option<Arc<Self>>> {
        if !launched(|name| env::var_os(name).is_some()) {
            return Ok(None);
        }
        match MPI.get_or_init(start) {
            Ok(mpi) if mpi.finalized.load(Ordering::Relaxed) => Err(unavailable(
                "MPI has ended with the run before this one, and a process can start it only \
                 once; start one process for each run",
            )),
            Ok(mpi) => Ok(Some(Arc::clone(mpi))),
            Err(message) => Err(unavailable(message)),
        }
    }

    /// Ends MPI after a run without failures, for which launchers wait; nothing can be sent
    /// afterwards. Does nothing where MPI has not been started, or after a failure: other processes
    /// would never come to end it, too.
    pub(crate) fn finalize() {
        let Some(Ok(mpi)) = MPI.get() else { return };
        if !mpi.finalized.swap(true, Ordering::Relaxed) {
            let _turn = mpi.turn();
            // Without an answer MPI has ended or never will.
            let _ = mpi.ask(Order::Finalize, GRACE);
        }
    }

    /// The name of the machine this process runs on.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What MPI's thread answers, within a time it never needs if MPI works.
    fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order, within: Duration) -> Result<T> {
        let (reply, answer) = mpsc::channel();
        // If the thread has ended, so has the other end of the answer.
        let _ = self.orders.send(order(reply));
        let answer = answer.recv_timeout(within);
        answer.map_err(|_| unavailable("MPI has ended, or does not answer any more"))
    }
}

impl Link for Mpi {
    fn process(&self) -> usize {
        self.process
    }

    fn processes(&self) -> usize {
        self.processes
    }

    fn all_to_all(
        &self,
        stream: Stream,
        among: usize,
        parts: Parts,
        timeout: Duration,
    ) -> Result<Parts> {
        debug_assert!(self.process < among && among <= self.processes && parts.len() == among);
        let _turn = self.turn();
        let start = Instant::now();
        let meet = |reply| {
            Order::Meet(Meeting {
                tag: stream as Tag,
                parts,
                start,
                timeout,
                reply,
            })
        };
        self.ask(meet, timeout.saturating_add(GRACE))?
    }

    fn fail(&self, error: &Error) {
        // Where the thread has ended, nobody listens any more.
        let _ = self.orders.send(Order::Fail(error.to_string()));
    }

    fn part(&self, timeout: Duration) {
        let _turn = self.turn();
        // Whether all have come or not, this process goes on.
        let part = |reply| Order::Part(timeout, reply);
        let _ = self.ask(part, timeout.saturating_add(GRACE));
    }

    fn abort(&self, code: i32) -> ! {
        if self.orders.send(Order::Abort(code)).is_ok() {
            thread::sleep(GRACE);
        }
        // A launcher ends all processes when one ends without MPI.
        process::exit(code)
    }
}

/// Whether an MPI launcher has started this process, by what it leaves in the environment. MPI that
/// is started without one runs as a single process, if at all, and may cost a second.
///
/// A program started by a process of an MPI run counts, too: it inherits the environment.
fn launched(is_set: impl Fn(&str) -> bool) -> bool {
    const LAUNCHERS: [&str; 6] = [
        "OMPI_COMM_WORLD_SIZE", // Open MPI
        "PMIX_RANK",            // PRRTE, `srun --mpi=pmix`
        "PMI_RANK",             // MPICH, Intel MPI, MS-MPI, `srun --mpi=pmi2`
        "PMI_SIZE",
        "MV2_COMM_WORLD_SIZE", // MVAPICH
        "PALS_RANKID",         // HPE Cray
    ];
    // SLURM sets its own variables for every program, so they mean MPI only next to one of PMI.
    // HPE Cray's plugin for it does not set the rank.
    let cray = is_set("SLURM_PROCID") && is_set("PMI_UNIVERSE_SIZE");
    cray || LAUNCHERS.into_iter().any(is_set)
}

fn start() -> Result<Arc<Mpi>, String> {
    let (orders, inbox) = mpsc::channel();
    let (started, answer) = mpsc::channel();
    thread::Builder::new()
        .name("mpi".to_owned())
        .spawn(move || run(inbox, &started))
        .map_err(|e| format!("cannot start a thread for MPI: {e}"))?;
    let (process, processes, host) = answer
        .recv()
        .map_err(|_| "MPI has failed to start".to_owned())??;
    Ok(Arc::new(Mpi {
        process,
        processes,
        host,
        orders,
        turn: Mutex::new(()),
        finalized: AtomicBool::new(false),
    }))
}

/// What the thread that owns MPI is asked for.
enum Order {
    Meet(Meeting),
    Fail(String),
    Part(Duration, Sender<()>),
    Abort(i32),
    Finalize(Sender<()>),
}

/// A call of [`Link::all_to_all`].
struct Meeting {
    tag: Tag,
    parts: Parts,
    start: Instant,
    timeout: Duration,
    reply: Sender<Result<Parts>>,
}

/// Which process this is, of how many, and on which host.
type Place = (usize, usize, String);

fn run(orders: Receiver<Order>, started: &Sender<Result<Place, String>>) {
    let universe = match initialize() {
        Ok(universe) => universe,
        // If nobody waits, the process is about to end; so it is wherever an answer is sent.
        Err(message) => return drop(started.send(Err(message))),
    };
    let world = universe.world();
    let (process, processes) = (index(world.rank()), index(world.size()));
    let host = mpi::environment::processor_name()
        .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
    let _ = started.send(Ok((process, processes, host)));
    let mpi = Thread {
        world,
        process,
        processes,
        orders,
        told: Cell::new(false),
    };
    mpi.serve(universe);
}

fn initialize() -> Result<Universe, String> {
    let (universe, threads) = mpi::initialize_with_threading(Threading::Funneled)
        .ok_or("the program has started MPI before firebox could; leave that to firebox")?;
    if threads < Threading::Funneled {
        // Ending MPI would wait for the other processes.
        mem::forget(universe);
        return Err(format!(
            "MPI gives the thread level {threads:?}, firebox needs Funneled; use an MPI library \
             that is built for threads"
        ));
    }
    Ok(universe)
}

/// MPI's ranks and counts are never negative.
fn index(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn length(message: &Status) -> usize {
    index(message.count(u8::equivalent_datatype()))
}

/// The thread that owns MPI.
struct Thread {
    world: SimpleCommunicator,
    process: usize,
    processes: usize,
    orders: Receiver<Order>,
    /// Whether the others know that this process fails: it, or the one it fails with, has said so.
    told: Cell<bool>,
}

impl Thread {
    fn serve(&self, universe: Universe) {
        loop {
            match self.orders.recv_timeout(IDLE) {
                Ok(Order::Meet(meeting)) => self.meet(meeting),
                Ok(Order::Fail(message)) => self.answer_failed(&self.fail(message)),
                Ok(Order::Finalize(reply)) => {
                    drop(universe);
                    let _ = reply.send(());
                    return;
                }
                order => self.obey(order),
            }
        }
    }

    /// Answers after a failure, without ever leaving the call that failed.
    fn answer_failed(&self, message: &str) -> ! {
        loop {
            match self.orders.recv_timeout(IDLE) {
                Ok(Order::Meet(meeting)) => drop(
                    meeting
                        .reply
                        .send(Err(Error::new(ErrorKind::Aborted, message))),
                ),
                Ok(Order::Fail(message)) => drop(self.fail(message)),
                Ok(Order::Finalize(reply)) => drop(reply.send(())),
                order => self.obey(order),
            }
        }
    }

    /// What is the same before and after a failure.
    fn obey(&self, order: Result<Order, RecvTimeoutError>) {
        match order {
            Ok(Order::Part(timeout, reply)) => {
                self.part(timeout);
                let _ = reply.send(());
            }
            Ok(Order::Abort(code)) => self.world.abort(code),
            // MPI works on messages only while it is called.
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.world.any_process().immediate_probe_with_tag(FAILED);
            }
            // The process is about to end.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(IDLE),
            // What waits has its turn, so no other can come meanwhile.
            Ok(Order::Meet(_) | Order::Fail(_) | Order::Finalize(_)) => {}
        }
    }

    fn meet(&self, mut meeting: Meeting) {
        let mut parts = mem::take(&mut meeting.parts);
        let own = mem::take(&mut parts[self.process]);
        let mut received = scope(|scope| self.exchange(scope, &parts, &meeting));
        received[self.process] = own;
        let _ = meeting.reply.send(Ok(received));
    }

    fn exchange<'a>(
        &self,
        scope: &LocalScope<'a>,
        parts: &'a [Vec<u8>],
        meeting: &Meeting,
    ) -> Parts {
        let mut sends = self.send(scope, parts, meeting.tag);
        let mut arrivals: Vec<Arrival> = parts.iter().map(|_| Arrival::default()).collect();
        arrivals[self.process].begun = true;
        arrivals[self.process].complete = true;

        let mut waiting = Instant::now();
        loop {
            let before = sends.len();
            sends = sends.into_iter().filter_map(Send::unfinished).collect();
            let mut moved = sends.len() < before;
            for process in self.others(parts.len()) {
                moved |= self.receive(process, &mut arrivals[process], meeting);
            }
            if sends.is_empty() && arrivals.iter().all(|arrival| arrival.complete) {
                return arrivals.into_iter().map(|arrival| arrival.bytes).collect();
            }
            self.look(meeting, || missing(&arrivals, &sends));
            if moved {
                waiting = Instant::now();
            }
            // A message between two processes that are both here needs both to look often.
            let half = |a: &Arrival| a.begun && !a.complete;
            let flows =
                arrivals.iter().any(half) || sends.iter().any(|send| arrivals[send.to].begun);
            pause(waiting, flows);
        }
    }

    fn peer(&self, process: usize) -> Process<'_> {
        let rank = i32::try_from(process).unwrap_or(i32::MAX);
        self.world.process_at_rank(rank)
    }

    /// The other processes, not the same one first for all.
    fn others(&self, among: usize) -> impl Iterator<Item = usize> + use<> {
        (self.process + 1..among).chain(0..self.process.min(among))
    }

    fn send<'a, 's>(
        &self,
        scope: &'s LocalScope<'a>,
        parts: &'a [Vec<u8>],
        tag: Tag,
    ) -> Vec<Send<'a, 's>> {
        let mut sends = Vec::new();
        for to in self.others(parts.len()) {
            let peer = self.peer(to);
            let mut rest = parts[to].as_slice();
            loop {
                let (chunk, after) = rest.split_at(rest.len().min(CHUNK));
                let request = peer.immediate_send_with_tag(scope, chunk, tag);
                sends.push(Send { to, request });
                rest = after;
                if chunk.len() < CHUNK {
                    break;
                }
            }
        }
        sends
    }

    /// Takes the next message of a part, if it has come; whether it has.
    fn receive(&self, from: usize, arrival: &mut Arrival, meeting: &Meeting) -> bool {
        if arrival.complete {
            return false;
        }
        let next = self
            .peer(from)
            .immediate_matched_probe_with_tag(meeting.tag);
        let Some((message, status)) = next else {
            return false;
        };
        let length = length(&status);
        arrival.begun = true;
        arrival.complete = length < CHUNK;
        let missing = || format!("process {from} has sent a message, but not all of it,");
        read(message, arrival.room(length), || {
            self.look(meeting, missing);
        });
        true
    }

    /// Looks, between two looks at MPI, for what ends a meeting early.
    fn look(&self, meeting: &Meeting, missing: impl FnOnce() -> String) {
        match self.orders.try_recv() {
            Ok(Order::Fail(message)) => {
                self.leave(meeting, ErrorKind::Aborted, self.fail(message));
            }
            Ok(order) => self.obey(Ok(order)),
            Err(_) => {}
        }
        if let Some(failure) = self.hear(meeting) {
            self.leave(meeting, ErrorKind::Aborted, failure);
        }
        if meeting.start.elapsed() > meeting.timeout {
            let time = meeting.timeout.as_secs_f32();
            let hint = "raise `collective_timeout` if it is slow";
            let message = format!("{} for {time} s; {hint}", missing());
            self.leave(meeting, ErrorKind::Unavailable, message);
        }
    }

    /// What a process has said that has failed, if one has.
    fn hear(&self, meeting: &Meeting) -> Option<String> {
        let anyone = self.world.any_process();
        let (message, status) = anyone.immediate_matched_probe_with_tag(FAILED)?;
        self.told.set(true);
        let failure = format!("process {} has failed", index(status.source_rank()));
        let mut said = vec![0; length(&status)];
        let start = Instant::now();
        read(message, &mut said, || {
            if start.elapsed() > GRACE {
                self.leave(meeting, ErrorKind::Aborted, failure.clone());
            }
        });
        Some(format!("{failure}: {}", String::from_utf8_lossy(&said)))
    }

    /// Ends a meeting for the one who waits for it, and stays in it for what is on its way.
    fn leave(&self, meeting: &Meeting, kind: ErrorKind, message: String) -> ! {
        let _ = meeting.reply.send(Err(Error::new(kind, message.as_str())));
        self.answer_failed(&message)
    }

    /// Tells the others, once, that this process has failed. What it answers from now on.
    fn fail(&self, message: String) -> String {
        let answer = format!("this process has failed before: {message}");
        if !self.told.replace(true) {
            let message: &'static [u8] = message.leak().as_bytes();
            for to in self.others(self.processes) {
                let peer = self.peer(to);
                // It need never arrive.
                mem::forget(peer.immediate_send_with_tag(StaticScope, message, FAILED));
            }
        }
        answer
    }

    fn part(&self, timeout: Duration) {
        const NOTHING: &[u8] = &[];
        let start = Instant::now();
        let mut missing: Vec<usize> = self.others(self.processes).collect();
        let mut sends: Vec<Request<'static, [u8]>> = missing
            .iter()
            .map(|&to| self.peer(to))
            .map(|peer| peer.immediate_send_with_tag(StaticScope, NOTHING, PARTING))
            .collect();
        while !(missing.is_empty() && sends.is_empty()) && start.elapsed() < timeout {
            sends = sends.into_iter().filter_map(|s| s.test().err()).collect();
            missing.retain(|&from| !self.has_come(from));
            match self.orders.try_recv() {
                Ok(Order::Fail(message)) => drop(self.fail(message)),
                Ok(order) => self.obey(Ok(order)),
                Err(_) => {}
            }
            pause(start, false);
        }
        // A request that is dropped panics.
        sends.into_iter().for_each(mem::forget);
    }

    /// Whether a process has come to its last call, which it says once.
    fn has_come(&self, process: usize) -> bool {
        let parting = self.peer(process).immediate_matched_probe_with_tag(PARTING);
        parting.is_some_and(|(message, _)| {
            // An empty message that has come has come to its end, so this does not wait.
            message.matched_receive_into(&mut [0_u8; 0][..]);
            true
        })
    }
}

/// What has come of a part.
#[derive(Default)]
struct Arrival {
    bytes: Vec<u8>,
    begun: bool,
    complete: bool,
}

impl Arrival {
    /// Room for the next message.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        if start == 0 {
            // Memory that is zero already, where the system has it.
            self.bytes = vec![0; length];
        } else {
            self.bytes.resize(start + length, 0);
        }
        &mut self.bytes[start..]
    }
}

/// A message on its way to a process.
struct Send<'a, 's> {
    to: usize,
    request: Request<'a, [u8], &'s LocalScope<'a>>,
}

impl Send<'_, '_> {
    fn unfinished(self) -> Option<Self> {
        let Self { to, request } = self;
        request.test().err().map(|request| Self { to, request })
    }
}

/// Reads a message that has begun to come. Calls `between` while it is not complete, which may
/// never return.
fn read(message: Message, into: &mut [u8], mut between: impl FnMut()) {
    scope(|scope| {
        let mut request = message.immediate_matched_receive_into(scope, into);
        while let Err(unfinished) = request.test() {
            request = unfinished;
            between();
            thread::yield_now();
        }
    });
}

/// Pauses between two looks: none at first, so that those who come at the same time lose none, then
/// ever longer, so that a long wait takes no core.
fn pause(waiting: Instant, flows: bool) {
    let waited = waiting.elapsed();
    if flows || waited < SPIN {
        thread::yield_now();
    } else {
        let (least, most) = (Duration::from_micros(50), Duration::from_millis(1));
        thread::sleep((waited / 64).clamp(least, most));
    }
}

/// What a meeting waits for.
fn missing(arrivals: &[Arrival], sends: &[Send<'_, '_>]) -> String {
    let all = 0..arrivals.len();
    let absent: Vec<usize> = all.clone().filter(|p| !arrivals[*p].begun).collect();
    let apart = |p: &usize| !arrivals[*p].complete || sends.iter().any(|send| send.to == *p);
    if absent.is_empty() {
        let apart: Vec<usize> = all.filter(apart).collect();
        return format!("{} come, but not ended the exchange,", have(&apart));
    }
    let absent = have(&absent);
    format!("{absent} not come to a meeting of all processes")
}

fn have(processes: &[usize]) -> String {
    let listed: Vec<String> = processes.iter().map(usize::to_string).collect();
    match listed.as_slice() {
        [one] => format!("process {one} has"),
        several => format!("processes {} have", several.join(", ")),
    }
}

fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
