//! The terminal: taken for the dashboard, and given back as it was.

use crate::error::{Error, ErrorKind, Result};
use ratatui_core::layout::{Rect, Size};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{getpgrp, kill_current_process_group};
use rustix::stdio::{stderr, stdin};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use signal_hook::SigId;
use signal_hook::consts::SIGCONT;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The alternate screen, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J";

/// No frame that is not whole, no colours, all rows scroll, the cursor, the screen as it was before.
const LEAVE: &[u8] = b"\x1b[?2026l\x1b[0m\x1b[r\x1b[?25h\x1b[?1049l";

/// The terminal of standard input and standard error.
///
/// While the dashboard is shown, keys come as they are pressed, Ctrl-C and its like among them: so
/// the terminal is given back before the signal is sent, and no handler that ends the process finds
/// it taken.
#[derive(Debug)]
pub(super) struct Tty {
    /// Its settings before.
    before: Termios,
    phase: Mutex<Phase>,
    /// The phase is [`Phase::Left`]; known without waiting for a frame that is being written.
    left: AtomicBool,
    /// The process was stopped and goes on.
    continued: Arc<AtomicBool>,
    listener: SigId,
}

/// Who has the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The dashboard.
    Shown,
    /// The dashboard, and what it drew is gone.
    Resumed,
    /// The shell, for as long as the process is stopped or in the background.
    Suspended,
    /// Whoever had it before, for good.
    Left,
}

impl Tty {
    /// Takes the terminal, if there is one that can show a dashboard.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(super) fn take() -> Result<Option<Arc<Self>>> {
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let term = std::env::var("TERM").unwrap_or_default();
        let is_dumb = term.is_empty() || term == "dumb";
        if !is_terminal || is_dumb || !is_foreground() {
            return Ok(None);
        }
        let failed = |doing: &str, source: io::Error| {
            Error::new(ErrorKind::Io, format!("dashboard: cannot {doing}")).with_source(source)
        };
        let size = tcgetwinsize(stderr())
            .map_err(|e| failed("ask the terminal for its size", e.into()))?;
        if size.ws_col == 0 || size.ws_row == 0 {
            return Ok(None);
        }
        let before = tcgetattr(stdin())
            .map_err(|e| failed("ask the terminal for its settings", e.into()))?;
        let continued = Arc::default();
        // It does what it does by default, too: the process goes on.
        let listener = signal_hook::flag::register(SIGCONT, Arc::clone(&continued))
            .map_err(|e| failed("listen for SIGCONT", e))?;
        let tty = Arc::new(Self {
            before,
            phase: Mutex::new(Phase::Shown),
            left: AtomicBool::new(false),
            continued,
            listener,
        });
        if let Err(error) = tty.enter() {
            tty.leave();
            return Err(failed("take the terminal", error));
        }
        Ok(Some(tty))
    }

    /// Looks who has the terminal, and takes it again when the process is back in the foreground.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(super) fn look(&self) -> io::Result<Phase> {
        let mut phase = lock(&self.phase);
        let continued = self.continued.swap(false, Ordering::Relaxed);
        *phase = match (*phase, is_foreground()) {
            (Phase::Left, _) => Phase::Left,
            // The shell has its own settings there; touching them would stop the process.
            (_, false) => Phase::Suspended,
            (Phase::Shown, true) if !continued => Phase::Shown,
            (_, true) => {
                self.enter()?;
                *phase = Phase::Shown;
                return Ok(Phase::Resumed);
            }
        };
        Ok(*phase)
    }

    /// Gives the terminal back until the process is continued.
    pub(super) fn suspend(&self) {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Shown {
            self.give_back();
            *phase = Phase::Suspended;
        }
    }

    /// Gives the terminal back for good.
    pub(super) fn leave(&self) {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Shown {
            self.give_back();
        }
        *phase = Phase::Left;
        self.left.store(true, Ordering::Release);
    }

    /// Whether the terminal was given back for good.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Writes a frame, if the dashboard has the terminal.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn show(&self, frame: &[u8]) -> io::Result<()> {
        let phase = lock(&self.phase);
        if *phase == Phase::Shown {
            write_all(frame)?;
        }
        Ok(())
    }

    /// Leaves the cursor in these rows, so that what others print scrolls there and nowhere else.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn scroll_in(&self, rows: Rect) -> io::Result<()> {
        // Counted from 1. A terminal takes two rows at least.
        let (first, last) = (rows.y + 1, rows.bottom());
        let margins = match rows.height {
            2.. => format!("\x1b[{first};{last}r\x1b[{last};1H"),
            _ => "\x1b[r".to_owned(),
        };
        self.show(margins.as_bytes())
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(stderr())?;
        Ok(Size::new(size.ws_col, size.ws_row))
    }

    fn enter(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        // What the program prints meanwhile keeps its lines.
        raw.output_modes = self.before.output_modes;
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        write_all(ENTER)
    }

    fn give_back(&self) {
        if is_foreground() {
            // A terminal that refuses this is gone, and nobody is left to be told.
            let _ = write_all(LEAVE);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.listener);
    }
}

/// Writes to standard error, without its lock: a thread that panics while it has that waits for the
/// frame that is being written.
///
/// # Errors
/// The terminal is gone.
pub(super) fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stderr(), bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stderr(), PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends the signal of a key to all processes that the terminal would send it to.
///
/// # Errors
/// The system refuses.
pub(super) fn send(signal: rustix::process::Signal) -> io::Result<()> {
    Ok(kill_current_process_group(signal)?)
}

/// Whether the process may use the terminal.
fn is_foreground() -> bool {
    // Without job control there is no such group, and no shell to leave the terminal to.
    tcgetpgrp(stdin()).map_or(true, |group| group == getpgrp())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
