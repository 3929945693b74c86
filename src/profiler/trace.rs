//! Spans in the Trace Event Format of Chrome's viewer, which Perfetto reads as well:
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use crate::error::{Error, Result};
use serde_json::json;
use std::cell::Cell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Writes events as they come. The format allows an array without an end, so that the trace of a run
/// that was killed can be read.
pub(super) struct Trace {
    path: PathBuf,
    output: Mutex<Output>,
}

struct Output {
    file: BufWriter<File>,
    /// Threads seen, by the number that events name them with.
    threads: Vec<std::thread::ThreadId>,
    /// What a loader's thread does after the run is in no trace.
    is_finished: bool,
    failed: Option<std::io::Error>,
}

thread_local! {
    /// The thread's number in the trace that it wrote to last.
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Trace {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
        let mut file = BufWriter::new(file);
        let failed = file.write_all(b"[").err();
        Ok(Self {
            path: path.to_path_buf(),
            output: Mutex::new(Output {
                file,
                threads: Vec::new(),
                is_finished: false,
                failed,
            }),
        })
    }

    pub(super) fn add(&self, name: &str, start: Duration, took: Duration) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.is_finished {
            return;
        }
        let written = output.event(name, start, took);
        // Kept for the end: a trace is no reason to stop training.
        output.failed = output.failed.take().or(written.err());
    }

    pub(super) fn finish(&self) -> Result<()> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let end = |file: &mut BufWriter<File>| {
            file.write_all(b"\n]\n")?;
            file.flush()
        };
        output.is_finished = true;
        let ended = end(&mut output.file);
        match output.failed.take().or(ended.err()) {
            None => Ok(()),
            Some(error) => Err(Error::io("write", &self.path, error)),
        }
    }
}

impl Output {
    fn event(&mut self, name: &str, start: Duration, took: Duration) -> std::io::Result<()> {
        let lane = self.lane()?;
        let (start, took) = (start.as_nanos(), took.as_nanos());
        // Times are in microseconds.
        write!(
            self.file,
            "{}\n{{\"name\":\"{name}\",\"ph\":\"X\",\"pid\":0,\"tid\":{lane},\"ts\":{}.{:03},\"dur\":{}.{:03}}}",
            self.comma(),
            start / 1000,
            start % 1000,
            took / 1000,
            took % 1000,
        )
    }

    /// The number of this thread, which is named in the trace when it comes up first.
    fn lane(&mut self) -> std::io::Result<usize> {
        let thread = std::thread::current();
        let is_here = |lane: &usize| self.threads.get(*lane) == Some(&thread.id());
        if let Some(lane) = LANE.get().filter(is_here) {
            return Ok(lane);
        }
        if let Some(lane) = self.threads.iter().position(|id| *id == thread.id()) {
            LANE.set(Some(lane));
            return Ok(lane);
        }
        let lane = self.threads.len();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let event = json!({
            "name": "thread_name", "ph": "M", "pid": 0, "tid": lane, "args": { "name": name },
        });
        write!(self.file, "{}\n{event}", self.comma())?;
        self.threads.push(thread.id());
        LANE.set(Some(lane));
        Ok(lane)
    }

    /// What stands before the next event: the name of the first thread is the first one.
    fn comma(&self) -> &'static str {
        if self.threads.is_empty() { "" } else { "," }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::profiler::{Phase, Profiler};
    use serde_json::Value;

    #[test]
    fn a_trace_has_a_lane_for_each_thread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let profiler = Profiler::start(Some(&path)).unwrap();
        profiler.time(Phase::Validation, || profiler.time(Phase::Callbacks, || ()));
        let other = profiler.of_rank(1);
        let thread = std::thread::Builder::new().name("loader-0".into());
        let thread = thread.spawn(move || other.time(Phase::Load, || ()));
        thread.unwrap().join().unwrap();
        profiler.finish().unwrap();
        profiler.time(Phase::Load, || ());

        let events: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let names: Vec<_> = of("X").iter().map(|e| e["name"].clone()).collect();
        assert_eq!(names, ["callbacks", "validation", "load"]);
        let lanes: Vec<_> = of("X").iter().map(|e| e["tid"].clone()).collect();
        assert_eq!(lanes, [0, 0, 1]);
        assert_eq!(of("M")[1]["args"]["name"], "loader-0");
        let (inner, outer) = (of("X")[0], of("X")[1]);
        let end = |e: &Value| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap();
        assert!(inner["ts"].as_f64() >= outer["ts"].as_f64() && end(inner) <= end(outer));
        // The other rank's spans are in the trace, not in the table.
        let profile = profiler.profile().unwrap();
        let table: Vec<_> = profile.phases.iter().map(|p| (p.name, p.count)).collect();
        assert_eq!(table, [("load", 1), ("callbacks", 1), ("validation", 1)]);
    }
}
