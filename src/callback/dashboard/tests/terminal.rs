//! The dashboard of another process, on a pseudo-terminal.

use super::super::screen::Screen;
use crate::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const CHILD: &str = "FIREBOX_TEST_DASHBOARD";
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The dashboard's process; the tests below start it.
#[test]
fn child() {
    let Ok(ending) = std::env::var(CHILD) else {
        return;
    };
    if ending != "no handler" {
        signals::install(false).unwrap();
    }
    let screen = Screen::open().unwrap().unwrap();
    assert!(Screen::open().unwrap().is_none(), "there are two");
    screen.update(|model| model.note("before"));
    match ending.as_str() {
        "close" => screen.close(),
        "panic" => {
            let thread = std::thread::spawn(|| panic!("a thread's panic"));
            assert!(thread.join().is_err());
            assert!(screen.closed_by_user());
        }
        "key" => {
            while !screen.closed_by_user() {
                std::thread::yield_now();
            }
            screen.update(|model| model.note("after"));
        }
        "signals" => {
            while signals::received().is_none() {
                std::thread::yield_now();
            }
            assert!(screen.closed_by_user(), "the signal was faster");
            screen.update(|model| model.note("after"));
            sleep();
        }
        "no handler" => sleep(),
        other => panic!("{other}?"),
    }
}

/// A step that never ends.
fn sleep() -> ! {
    loop {
        std::thread::park();
    }
}

/// A terminal, and a process whose standard input and error it is.
struct OnTerminal {
    ours: File,
    theirs: OwnedFd,
    /// The terminal's settings before the process.
    settings: String,
    child: Child,
    seen: String,
}

impl OnTerminal {
    /// Runs [`child`]; `None` where there are no pseudo-terminals.
    fn run(ending: &str) -> Option<Self> {
        let Ok(ours) = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY) else {
            eprintln!("skipped: there are no pseudo-terminals here");
            return None;
        };
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        resize(&theirs, 80, 24);
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &format!("{module}::child"), "--nocapture"])
            .env(CHILD, ending)
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .stdin(theirs.try_clone().unwrap())
            .stdout(Stdio::null())
            .stderr(theirs.try_clone().unwrap())
            // Where its signals go.
            .process_group(0);
        Some(Self {
            settings: settings(&theirs),
            child: command.spawn().unwrap(),
            ours: ours.into(),
            theirs,
            seen: String::new(),
        })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Reads what is shown next; false once there is nothing more.
    fn read(&mut self) -> bool {
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        loop {
            // In this order: what an ended process has written is there.
            let has_ended = self.child.try_wait().unwrap().is_some();
            let mut files = [PollFd::new(&self.ours, PollFlags::IN)];
            poll(&mut files, Some(&tick)).unwrap();
            if files[0].revents().contains(PollFlags::IN) {
                let mut bytes = [0; 4096];
                let count = self.ours.read(&mut bytes).unwrap();
                self.seen += &String::from_utf8_lossy(&bytes[..count]);
                return true;
            }
            if has_ended {
                return false;
            }
        }
    }

    /// Reads until this has been shown so often.
    fn wait_for(&mut self, text: &str, times: usize) {
        while self.seen.matches(text).count() < times {
            assert!(self.read(), "no {text:?} in {:?}", self.seen);
        }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads to the end; gives the exit code and what was shown after the dashboard.
    fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        let code = self.child.wait().unwrap().code();
        assert_eq!(settings(&self.theirs), self.settings);
        let (_, after) = self.seen.rsplit_once(LEAVE).unwrap();
        (code, after.replace("\r\n", "\n"))
    }
}

fn settings(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).unwrap())
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

#[test]
fn closing_gives_the_terminal_back_and_prints_the_notes() {
    let Some(run) = OnTerminal::run("close") else {
        return;
    };
    assert_eq!(run.end(), (Some(0), "before\n".to_owned()));
}

#[test]
fn q_closes_it_and_the_run_goes_on() {
    let Some(mut run) = OnTerminal::run("key") else {
        return;
    };
    run.wait_for("q close the dashboard", 1);
    assert_ne!(settings(&run.theirs), run.settings);
    run.press("\x1b[A\tjkq");
    assert_eq!(run.end(), (Some(0), "before\nafter\n".to_owned()));
}

#[test]
fn the_terminal_is_sane_before_a_signal_can_end_the_process() {
    let Some(mut run) = OnTerminal::run("signals") else {
        return;
    };
    run.wait_for("q close the dashboard", 1);
    run.press("\x03");
    run.wait_for("after", 1);
    assert_eq!(settings(&run.theirs), run.settings);
    kill_process(run.pid(), Signal::INT).unwrap();
    assert_eq!(run.end(), (Some(130), "before\nafter\n".to_owned()));
}

#[test]
fn the_terminal_is_sane_where_ctrl_c_ends_the_process_at_once() {
    // What a shell starts in the background ignores it, and so does what that starts.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if ignored.is_some_and(|mask| mask & (1 << (Signal::INT.as_raw() - 1)) != 0) {
        eprintln!("skipped: this process ignores SIGINT");
        return;
    }
    let Some(mut run) = OnTerminal::run("no handler") else {
        return;
    };
    run.wait_for("q close the dashboard", 1);
    run.press("\x03");
    assert_eq!(run.end(), (None, "before\n".to_owned()));
}

#[test]
fn a_panic_is_printed_after_the_dashboard() {
    let Some(run) = OnTerminal::run("panic") else {
        return;
    };
    let (code, after) = run.end();
    assert_eq!(code, Some(0), "{after}");
    assert!(after.starts_with("before\n"), "{after}");
    assert!(after.contains("a thread's panic"), "{after}");
}

#[test]
fn a_stopped_process_leaves_the_terminal_to_the_shell() {
    let Some(mut run) = OnTerminal::run("key") else {
        return;
    };
    run.wait_for("q close the dashboard", 1);
    run.press("\x1a");
    run.wait_for(LEAVE, 1);
    let (_, status) = waitpid(Some(run.pid()), WaitOptions::UNTRACED)
        .unwrap()
        .unwrap();
    assert!(status.stopped(), "{status:?}");
    assert_eq!(settings(&run.theirs), run.settings);
    kill_process(run.pid(), Signal::CONT).unwrap();
    run.wait_for(ENTER, 2);
    run.press("q");
    assert_eq!(run.end(), (Some(0), "before\nafter\n".to_owned()));
}

#[test]
fn another_size_is_another_screen() {
    let Some(mut run) = OnTerminal::run("key") else {
        return;
    };
    run.wait_for("q close the dashboard", 1);
    resize(&run.theirs, 40, 12);
    run.wait_for("↑↓ metric   q close", 1);
    run.press("q");
    assert_eq!(run.end().0, Some(0));
}
