//! Orders for a run that goes on: `firebox ctl` leaves them in the run's folder, and the run acts on
//! them between two batches.

use crate::error::{Error, ErrorKind, Result};
use crate::files::write_whole;
use crate::output::say;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a run that goes on can be told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Command {
    /// Finish the step, save a checkpoint and end.
    Stop,
    /// Write a checkpoint.
    Save,
    /// Validate now.
    Validate,
    /// Say how far the run is.
    Status,
    /// Set the base learning rate of the parameter groups whose name matches a pattern.
    LearningRate {
        /// The pattern; `*` is all of them.
        groups: String,
        /// From 0.
        lr: f64,
    },
    /// Set how many batches make a step.
    AccumulateGradBatches(u64),
}

impl Command {
    /// What `name=value` sets: `lr=1e-4`, `lr/GROUP=1e-4` or `accumulate_grad_batches=4`.
    ///
    /// ```
    /// use firebox::control::Command;
    ///
    /// let command = Command::set("lr/head=0.01")?;
    /// assert_eq!(command, Command::LearningRate { groups: "head".into(), lr: 0.01 });
    /// assert!(Command::set("momentum=0.9").is_err());
    /// # Ok::<(), firebox::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another name, or a value that is no number.
    pub fn set(text: &str) -> Result<Self> {
        let wrong = || {
            Error::config(format!(
                "`{text}` will not do; use `lr=1e-4`, `lr/GROUP=1e-4` or \
                 `accumulate_grad_batches=4`"
            ))
        };
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        if name == "accumulate_grad_batches" {
            let batches = value.parse().map_err(|_| wrong())?;
            return Ok(Self::AccumulateGradBatches(batches));
        }
        let groups = match name {
            "lr" => "*",
            name => name.strip_prefix("lr/").ok_or_else(wrong)?,
        };
        Ok(Self::LearningRate {
            groups: groups.to_owned(),
            lr: value.parse().map_err(|_| wrong())?,
        })
    }
}

/// What a run has done about an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// What it has done, or why it could not.
    pub text: String,
    /// Whether it has.
    pub is_done: bool,
    /// Where the run was then: its counters, learning rates and latest values.
    pub status: Value,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const FOLDER: &str = "control";
/// What a run was told, a line each.
const LOG: &str = "orders.jsonl";

/// Gives an order to the run in this folder and waits for its answer.
///
/// # Errors
/// There is no run that goes on; it refuses; it ends before it answers, or does not answer in time.
pub fn send(run_dir: &Path, command: &Command, patience: Duration) -> Result<Answer> {
    if !run_dir.join("config.toml").is_file() {
        return Err(Error::config(format!(
            "`{}` is not the folder of a run (`runs/version_N`): it has no config.toml",
            run_dir.display()
        )));
    }
    if is_over(run_dir) {
        return Err(Error::config(format!(
            "the run in `{}` is not going on",
            run_dir.display()
        )));
    }
    let folder = run_dir.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|e| Error::io("create", &folder, e))?;
    // Orders are carried out in the order of their names.
    let id = format!(
        "{:020}-{}",
        since_1970(SystemTime::now()),
        std::process::id()
    );
    let order = folder.join(format!("{id}.json"));
    write_whole(&order, json!(command).to_string().as_bytes())?;
    let answer = folder.join(format!("{id}.answer"));
    let start = Instant::now();
    loop {
        // Asked before the look, so that an answer given at the very end is still found.
        let over = is_over(run_dir);
        if let Ok(text) = fs::read_to_string(&answer) {
            // An answer that stays behind does no harm.
            let _ = fs::remove_file(&answer);
            let answer: Answer =
                serde_json::from_str(&text).map_err(|e| Error::io("read", &answer, e.into()))?;
            return match answer.is_done {
                true => Ok(answer),
                false => Err(Error::config(answer.text)),
            };
        }
        if over || start.elapsed() > patience {
            let was_taken = fs::remove_file(&order).is_err();
            let why = match (over, was_taken) {
                (true, true) => "the run has taken the order, and ended without an answer".into(),
                (true, false) => "the run ended before it took the order".to_owned(),
                (false, true) => format!(
                    "the run has taken the order and not answered in {patience:?}; it goes on with it"
                ),
                (false, false) => format!(
                    "the run has not taken the order in {patience:?}, and it is withdrawn: a step, a \
                     validation or a save takes longer"
                ),
            };
            return Err(Error::new(ErrorKind::Aborted, why));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the run in a folder has ended. Where files cannot be locked, it is taken to go on.
fn is_over(run_dir: &Path) -> bool {
    match File::open(run_dir.join("run.jsonl")) {
        // A run holds the lock of its own.
        Ok(file) => !matches!(
            file.try_lock_shared(),
            Err(TryLockError::WouldBlock | TryLockError::Error(_))
        ),
        Err(_) => true,
    }
}

/// In nanoseconds.
fn since_1970(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos())
}

/// Where a run finds its orders.
#[derive(Debug)]
pub(crate) struct Inbox {
    folder: PathBuf,
    looked: Option<Instant>,
}

/// An order that was found.
#[derive(Debug)]
pub(crate) struct Order {
    id: String,
    pub(crate) command: Command,
}

/// Looking for orders is a call of the system, which would be felt at each of many short steps.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Inbox {
    /// The orders of the run in this folder, which holds its lock since `started` or a bit later. Who
    /// gives an order has seen that lock, so that orders from before then were for an earlier start.
    pub(crate) fn open(run_dir: &Path, started: SystemTime) -> Self {
        let inbox = Self {
            folder: run_dir.join(FOLDER),
            looked: None,
        };
        for order in inbox.waiting() {
            let name = order.file_stem().and_then(|name| name.to_str());
            let nanos = name.and_then(|name| name.split('-').next()?.parse().ok());
            if nanos.is_none_or(|nanos: u128| nanos < since_1970(started)) {
                // One that stays is carried out; it was given to this run after all.
                let _ = fs::remove_file(order);
            }
        }
        inbox
    }

    /// What has come in. What cannot be read is answered with why.
    pub(crate) fn take(&mut self) -> Vec<Order> {
        if self.looked.is_some_and(|then| then.elapsed() < LOOK_EVERY) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let waiting = self.waiting();
        waiting.iter().filter_map(|path| self.order(path)).collect()
    }

    /// The files of orders, in the order they were given in.
    fn waiting(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            // Nobody has ever asked for anything.
            return Vec::new();
        };
        let is_order = |path: &PathBuf| path.extension().is_some_and(|e| e == "json");
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<_> = paths.filter(is_order).collect();
        paths.sort();
        paths
    }

    fn order(&self, path: &Path) -> Option<Order> {
        let id = path.file_stem()?.to_str()?.to_owned();
        let text = fs::read_to_string(path).ok()?;
        // Who cannot take it away must not carry it out again and again. Nor one that was withdrawn.
        fs::remove_file(path).ok()?;
        match serde_json::from_str(&text) {
            Ok(command) => Some(Order { id, command }),
            Err(error) => {
                let text = format!("this version does not know the order `{text}`: {error}");
                self.put(&id, &Answer::refusal(text, Value::Null));
                None
            }
        }
    }

    /// Answers an order, and writes it down.
    pub(crate) fn answer(&self, order: &Order, answer: &Answer) {
        self.put(&order.id, answer);
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = json!({
            "time": at.map_or(0, |at| at.as_secs()),
            "order": order.command,
            "is_done": answer.is_done,
            "answer": answer.text,
            "step": answer.status.get("global_step"),
        });
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(LOG));
        if let Err(error) = log.and_then(|mut log| writeln!(log, "{line}")) {
            say!("warning: an order is not written down: {error}");
        }
    }

    fn put(&self, id: &str, answer: &Answer) {
        // Whoever asked will find out by waiting; the run is not to end for it.
        let path = self.folder.join(format!("{id}.answer"));
        if let Err(error) = write_whole(&path, json!(answer).to_string().as_bytes()) {
            say!("warning: an order cannot be answered: {error}");
        }
    }
}

impl Answer {
    pub(crate) fn done(text: impl Into<String>, status: Value) -> Self {
        Self {
            text: text.into(),
            is_done: true,
            status,
        }
    }

    pub(crate) fn refusal(text: impl Into<String>, status: Value) -> Self {
        Self {
            text: text.into(),
            is_done: false,
            status,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The folder of a run whose lock is held as long as the file.
    fn run() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.toml"), "").unwrap();
        let launches = File::create(dir.path().join("run.jsonl")).unwrap();
        launches.lock().unwrap();
        (dir, launches)
    }

    fn open(run_dir: &Path) -> Inbox {
        Inbox::open(run_dir, SystemTime::now())
    }

    #[test]
    fn orders_of_an_earlier_start_are_forgotten() {
        let (dir, _lock) = run();
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        let started = SystemTime::now();
        let id = |time: SystemTime| folder.join(format!("{:020}-1.json", since_1970(time)));
        fs::write(id(started - Duration::from_secs(1)), "\"stop\"").unwrap();
        // Given between the moment that the lock was taken and now.
        fs::write(id(started + Duration::from_nanos(1)), "\"save\"").unwrap();
        let orders = Inbox::open(dir.path(), started).take();
        let orders: Vec<_> = orders.into_iter().map(|order| order.command).collect();
        assert_eq!(orders, [Command::Save]);
    }

    #[test]
    fn an_order_is_taken_once_and_answered() {
        let (dir, _lock) = run();
        let mut inbox = open(dir.path());
        std::thread::scope(|scope| {
            let path = dir.path();
            let asked = scope.spawn(|| send(path, &Command::Save, Duration::from_secs(60)));
            let order = loop {
                inbox.looked = None;
                if let Some(order) = inbox.take().pop() {
                    break order;
                }
            };
            assert_eq!(order.command, Command::Save);
            inbox.looked = None;
            assert!(inbox.take().is_empty());
            inbox.answer(&order, &Answer::done("saved", json!({ "global_step": 7 })));
            let answer = asked.join().unwrap().unwrap();
            assert_eq!(
                (answer.text.as_str(), &answer.status["global_step"]),
                ("saved", &json!(7))
            );
        });
        let log = fs::read_to_string(dir.path().join("control/orders.jsonl")).unwrap();
        let line: Value = serde_json::from_str(&log).unwrap();
        assert_eq!((&line["order"], &line["step"]), (&json!("save"), &json!(7)));
    }

    #[test]
    fn a_run_that_is_over_takes_no_orders() {
        let (dir, lock) = run();
        let error = send(dir.path(), &Command::Stop, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("withdrawn"), "{error}");
        assert!(open(dir.path()).take().is_empty());
        drop(lock);
        let error = send(dir.path(), &Command::Stop, Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("is not going on"), "{error}");
        let error = send(&dir.path().join("none"), &Command::Stop, Duration::ZERO).unwrap_err();
        assert!(
            error.to_string().contains("not the folder of a run"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let (dir, _lock) = run();
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        let mut inbox = open(dir.path());
        fs::write(folder.join("1.json"), "{\"dance\": 1}").unwrap();
        fs::write(folder.join("2.txt"), "mine").unwrap();
        assert!(inbox.take().is_empty());
        let answer = fs::read_to_string(folder.join("1.answer")).unwrap();
        assert!(answer.contains("does not know the order"), "{answer}");
        assert!(folder.join("2.txt").exists());
        for wrong in [
            "lr",
            "lr=fast",
            "seed=1",
            "lr=",
            "accumulate_grad_batches=-1",
        ] {
            assert!(Command::set(wrong).is_err(), "{wrong}");
        }
    }
}
