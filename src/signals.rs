//! Ctrl-C and SIGTERM: the run finishes its step, saves and ends.

use crate::error::{Error, ErrorKind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// SIGINT: somebody pressed Ctrl-C.
    Interrupt,
    /// SIGTERM: the system or a scheduler wants the process to end.
    Terminate,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Interrupt, Self::Terminate];

    fn number(self) -> i32 {
        match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
        }
    }

    /// What a process that ended because of it exits with: 128 and the signal's number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "interrupted (SIGINT)",
            Self::Terminate => "terminated (SIGTERM)",
        })
    }
}

/// The number of the signal that came last; 0 if none did.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// From now on the first signal is noted, for the loops to see, and a second one ends the process
/// at once.
///
/// # Errors
/// The system refuses.
pub(crate) fn install() -> Result<()> {
    static INSTALLED: Once = Once::new();
    let mut installed = Ok(());
    INSTALLED.call_once(|| installed = Signal::ALL.into_iter().try_for_each(listen));
    installed.map_err(|e| {
        Error::new(ErrorKind::Io, "cannot listen for Ctrl-C and SIGTERM").with_source(e)
    })
}

fn listen(signal: Signal) -> std::io::Result<()> {
    // Handlers run in the order they were registered: the first finds `again` unset, the next sets
    // it, so that only another signal of the kind ends the process.
    let again = Arc::new(AtomicBool::new(false));
    let code = i32::from(signal.exit_code());
    flag::register_conditional_shutdown(signal.number(), code, Arc::clone(&again))?;
    flag::register(signal.number(), again)?;
    let number = signal.number() as usize;
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
        Some(signal) => Err(Error::new(ErrorKind::Interrupted, signal.to_string())),
    }
}
