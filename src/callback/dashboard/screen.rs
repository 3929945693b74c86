//! The thread that draws.

use super::keys::{Key, Keys};
use super::model::Model;
use super::output::Output;
use super::tty::{self, Phase, Tty, lock};
use super::view::View;
use crate::error::{Error, ErrorKind, Result};
use crate::signals;
use ratatui_core::layout::{Position, Rect, Size};
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::stdio::stdin;
use std::io::{self, PipeReader, PipeWriter};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The screen is drawn four times a second at most, and when a key is pressed.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// What others have printed onto the dashboard is overdrawn after this time.
const REDRAW: Duration = Duration::from_secs(5);

/// A dashboard on the whole terminal, drawn by a thread of its own from what [`update`](Self::update)
/// sets.
///
/// Text that the program prints meanwhile lands among the notes and is gone when the dashboard is drawn
/// anew, after five seconds or at a key; lines for people belong into [`Model::note`], from where they are
/// printed as plain lines once the dashboard is closed. However it ends (a key, a signal, a panic,
/// [`close`](Self::close), being dropped), the terminal is given back as it was. Only a process that
/// is killed (SIGKILL) or that ends by `std::process::exit` leaves it taken; `reset` mends that.
#[derive(Debug)]
pub(crate) struct Screen {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Dropped to wake the thread for the last time.
    alive: Option<PipeWriter>,
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    has_changed: AtomicBool,
    tty: Arc<Tty>,
}

impl Screen {
    /// Shows the dashboard. There is none where standard input or standard error is no terminal, or
    /// a `dumb` one, or the process is in the background, or it has been told to end, or another
    /// dashboard is shown.
    ///
    /// # Errors
    /// The terminal or the system refuses.
    pub(crate) fn open() -> Result<Option<Self>> {
        if signals::received().is_some() {
            return Ok(None);
        }
        let mut shown = lock(&SHOWN);
        if shown.upgrade().is_some_and(|other| !other.tty.has_left()) {
            return Ok(None);
        }
        let failed = |doing: &str, source: io::Error| {
            Error::new(ErrorKind::Io, format!("dashboard: cannot {doing}")).with_source(source)
        };
        let (woken, alive) = io::pipe().map_err(|e| failed("make a pipe", e))?;
        let Some(tty) = Tty::take()? else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            model: Mutex::default(),
            has_changed: AtomicBool::new(true),
            tty,
        });
        restore_at_panic();
        *shown = Arc::downgrade(&shared);
        drop(shown);
        let drawn = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("dashboard".to_owned());
        match thread.spawn(move || draw_until_closed(&drawn, &woken)) {
            Ok(thread) => Ok(Some(Self {
                shared,
                thread: Some(thread),
                alive: Some(alive),
            })),
            Err(error) => {
                shared.tty.leave();
                Err(failed("start a thread", error))
            }
        }
    }

    /// Changes what is shown. It is drawn later; if the dashboard is closed, new notes are printed at
    /// once.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Model)) {
        let mut model = lock(&self.shared.model);
        change(&mut model);
        self.shared.has_changed.store(true, Ordering::Relaxed);
        if self.shared.tty.has_left() {
            print_notes(&mut model);
        }
    }

    /// Whether the dashboard is closed though [`close`](Self::close) was not called: by `q`, by
    /// Ctrl-C or another signal, after a panic, or because the terminal is gone. The run goes on, with
    /// plain lines.
    pub(crate) fn closed_by_user(&self) -> bool {
        self.shared.tty.has_left()
    }

    /// Closes the dashboard and prints the notes.
    pub(crate) fn close(self) {}
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.shared.tty.leave();
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message has been printed.
            let _ = thread.join();
        }
        print_notes(&mut lock(&self.shared.model));
    }
}

/// The one that is shown.
static SHOWN: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// Closes the dashboard before a panic's message is printed, whichever thread panics. The hook stays,
/// since others may be put on top of it, and does nothing where no dashboard is shown.
fn restore_at_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let shown = lock(&SHOWN).upgrade();
            if let Some(shown) = shown {
                shown.tty.leave();
                // The thread that panics may have the model; then the notes are printed later.
                if let Ok(mut model) = shown.model.try_lock() {
                    print_notes(&mut model);
                }
            }
            previous(info);
        }));
    });
}

/// Prints the notes as plain lines.
fn print_notes(model: &mut Model) {
    let dropped = std::mem::take(&mut model.dropped_notes);
    let mut text = match dropped {
        0 => String::new(),
        count => format!("({count} earlier lines are left out)\n"),
    };
    for note in model.notes.drain(..) {
        text += &note;
        text.push('\n');
    }
    // Where standard error is gone nobody can be told.
    let _ = tty::write_all(text.as_bytes());
}

fn draw_until_closed(shared: &Shared, woken: &PipeReader) {
    let ended = Ended(shared);
    let signal = draw(shared, woken).unwrap_or_else(|error| {
        lock(&shared.model).note(&format!("the dashboard is closed: {error}"));
        None
    });
    // The terminal is given back before anybody hears of the signal.
    drop(ended);
    if let Some(signal) = signal
        && let Err(error) = tty::send(signal)
    {
        let text = format!("dashboard: cannot send {signal:?}: {error}\n");
        let _ = tty::write_all(text.as_bytes());
    }
}

/// Gives the terminal back when the thread ends, whatever ends it.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.tty.leave();
        print_notes(&mut lock(&self.0.model));
    }
}

/// Draws until the dashboard is closed; gives the signal that a key stands for, if that is why.
fn draw(shared: &Shared, woken: &PipeReader) -> io::Result<Option<Signal>> {
    let tty = &shared.tty;
    let mut terminal = Terminal::new(Output::new(Arc::clone(tty)))?;
    let mut view = View::new(is_unicode(|name| std::env::var(name).ok()));
    let mut keys = Keys::default();
    let mut size = Size::ZERO;
    let mut drawn_anew = Instant::now();
    let mut is_pressed = false;
    loop {
        let phase = tty.look()?;
        match phase {
            Phase::Left => return Ok(None),
            Phase::Suspended => {}
            Phase::Shown | Phase::Resumed => {
                let before = std::mem::replace(&mut size, tty.size()?);
                let is_stale = phase == Phase::Resumed || before != size;
                let anew = is_stale || is_pressed || drawn_anew.elapsed() >= REDRAW;
                if anew {
                    terminal.resize(Rect::from((Position::ORIGIN, size)))?;
                    drawn_anew = Instant::now();
                }
                if shared.has_changed.swap(false, Ordering::Relaxed) || anew {
                    // The frame is written when the model is free again.
                    let mut free = Rect::ZERO;
                    terminal.draw(|frame| {
                        let model = lock(&shared.model);
                        free = view.draw(&model, frame.area(), frame.buffer_mut());
                    })?;
                    tty.scroll_in(free)?;
                }
            }
        }
        let pressed = match wait(woken, phase != Phase::Suspended)? {
            Woken::Closed => return Ok(None),
            Woken::Bytes(bytes) => keys.feed(&bytes),
        };
        if signals::received().is_some() {
            return Ok(None);
        }
        is_pressed = !pressed.is_empty();
        for key in pressed {
            match key {
                Key::Next => view.next(&lock(&shared.model)),
                Key::Previous => view.previous(&lock(&shared.model)),
                Key::Other => {}
                Key::Close => return Ok(None),
                Key::Interrupt => return Ok(Some(Signal::INT)),
                Key::Quit => return Ok(Some(Signal::QUIT)),
                Key::Suspend => {
                    tty.suspend();
                    tty::send(Signal::TSTP)?;
                    // The process is stopped in here, unless nobody could continue it.
                    wait(woken, false)?;
                }
            }
        }
    }
}

enum Woken {
    /// By [`Screen`].
    Closed,
    /// By keys or, without any, by the time.
    Bytes(Vec<u8>),
}

/// Waits for a key, if asked to, for a tick at most.
fn wait(woken: &PipeReader, for_keys: bool) -> io::Result<Woken> {
    let (terminal, quiet) = (stdin(), PollFlags::empty());
    let mut files = [
        PollFd::new(woken, PollFlags::IN),
        PollFd::new(&terminal, PollFlags::IN),
    ];
    let count = if for_keys { 2 } else { 1 };
    match poll(&mut files[..count], Some(&TICK)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Woken::Bytes(Vec::new())),
        Err(error) => return Err(error.into()),
    }
    if files[0].revents() != quiet {
        return Ok(Woken::Closed);
    }
    if files[1].revents() == quiet {
        return Ok(Woken::Bytes(Vec::new()));
    }
    let mut bytes = [0; 256];
    match rustix::io::read(terminal, &mut bytes) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Woken::Bytes(bytes[..count].to_vec())),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Woken::Bytes(Vec::new())),
        Err(error) => Err(error.into()),
    }
}

/// Whether text is UTF-8 here: POSIX, Base Definitions 8.2, says which variable counts.
fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = names
        .into_iter()
        .filter_map(variable)
        .find(|v| !v.is_empty());
    let locale = locale.unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_says_the_encoding() {
        let with = |set: &[(&str, &str)]| {
            is_unicode(|name| {
                let (_, value) = set.iter().find(|(n, _)| *n == name)?;
                Some((*value).to_owned())
            })
        };
        assert!(with(&[("LANG", "en_GB.UTF-8")]));
        assert!(with(&[
            ("LANG", "C"),
            ("LC_ALL", ""),
            ("LC_CTYPE", "C.utf8")
        ]));
        assert!(!with(&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")]));
        assert!(!with(&[]));
    }
}
