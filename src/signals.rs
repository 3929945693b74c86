//! Ctrl-C, SIGTERM, and SIGUSR1 in a job of SLURM: the run finishes its step, saves and ends.

use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
#[cfg(unix)]
use signal_hook::consts::SIGUSR1;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

/// Other systems have no such signal, and no SLURM to send it.
#[cfg(not(unix))]
const SIGUSR1: i32 = -1;

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Signal {
    /// SIGINT: somebody pressed Ctrl-C.
    Interrupt,
    /// SIGTERM: the system or a scheduler wants the process to end.
    Terminate,
    /// SIGUSR1 in a job of SLURM: it is to go back into the queue.
    Requeue,
}

impl Signal {
    const ALL: [Self; 3] = [Self::Interrupt, Self::Terminate, Self::Requeue];

    fn number(self) -> i32 {
        match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
            Self::Requeue => SIGUSR1,
        }
    }

    /// Takes it that this signal came, as another process of the run says.
    pub(crate) fn note(self) {
        RECEIVED.store(self.number() as usize, Ordering::Relaxed);
        if self == Self::Requeue {
            REQUEUE.store(true, Ordering::Relaxed);
        }
    }

    /// What a process that ended because of it exits with: 128 and the signal's number.
    pub fn exit_code(self) -> u8 {
        // The numbers are below 32.
        u8::try_from(128 + self.number()).unwrap_or(1)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "interrupted (SIGINT)",
            Self::Terminate => "terminated (SIGTERM)",
            Self::Requeue => "requeued (SIGUSR1)",
        })
    }
}

/// The number of the signal that came last; 0 if none did.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Whether SIGUSR1 came, whatever came after it.
static REQUEUE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether the job is to go back into the queue.
pub(crate) fn wants_requeue() -> bool {
    REQUEUE.load(Ordering::Relaxed)
}

/// From now on the first signal is noted, for the loops to see, and a second one ends the process
/// at once. SIGUSR1 counts if the process can be requeued.
///
/// # Errors
/// The system refuses.
pub(crate) fn install(can_requeue: bool) -> Result<()> {
    static INSTALLED: Once = Once::new();
    let mut installed = Ok(());
    let wanted = |signal: &Signal| *signal != Signal::Requeue || can_requeue;
    let mut signals = Signal::ALL.into_iter().filter(wanted);
    INSTALLED.call_once(|| installed = signals.try_for_each(listen));
    installed.map_err(|e| {
        Error::new(ErrorKind::Io, "cannot listen for Ctrl-C and SIGTERM").with_source(e)
    })
}

fn listen(signal: Signal) -> std::io::Result<()> {
    let number = signal.number() as usize;
    if signal == Signal::Requeue {
        // It does no harm twice.
        flag::register(signal.number(), Arc::clone(&REQUEUE))?;
        flag::register_usize(signal.number(), Arc::clone(&RECEIVED), number)?;
        return Ok(());
    }
    // Handlers run in the order they were registered: the first finds `again` unset, the next sets
    // it, so that only another signal of the kind ends the process.
    let again = Arc::new(AtomicBool::new(false));
    let code = i32::from(signal.exit_code());
    flag::register_conditional_shutdown(signal.number(), code, Arc::clone(&again))?;
    flag::register(signal.number(), again)?;
    flag::register_usize(signal.number(), Arc::clone(&RECEIVED), number)?;
    Ok(())
}

/// The signal that came, if one did.
pub(crate) fn received() -> Option<Signal> {
    let number = RECEIVED.load(Ordering::Relaxed);
    Signal::ALL
        .into_iter()
        .find(|signal| signal.number() as usize == number)
}

/// Ends a loop that saves nothing, if a signal came.
///
/// # Errors
/// [`ErrorKind::Interrupted`].
pub(crate) fn check() -> Result<()> {
    match received() {
        None => Ok(()),
        Some(signal) => Err(interrupted(signal)),
    }
}

/// The error of what a signal has ended.
pub(crate) fn interrupted(signal: Signal) -> Error {
    Error::new(ErrorKind::Interrupted, signal.to_string())
}
