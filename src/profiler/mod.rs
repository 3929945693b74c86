//! Where the time of a run goes: spans of its parts, as a table and as a trace.

mod table;
mod trace;

pub use table::{PhaseTime, Profile};

use crate::error::Result;
use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use table::Samples;
use trace::Trace;

/// A part of a run that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Waiting for the next batch.
    DataWait,
    /// A loader reads and transforms the samples of a batch, on its own thread if it has workers.
    Load,
    /// The batcher makes tensors on the device.
    Transfer,
    Forward,
    Backward,
    /// Gradients are averaged over devices.
    Reduce,
    Optimizer,
    Callbacks,
    /// Values are read from the device and given to the loggers.
    Logging,
    Validation,
    Checkpoint,
}

impl Phase {
    const ALL: [Self; 11] = [
        Self::DataWait,
        Self::Load,
        Self::Transfer,
        Self::Forward,
        Self::Backward,
        Self::Reduce,
        Self::Optimizer,
        Self::Callbacks,
        Self::Logging,
        Self::Validation,
        Self::Checkpoint,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::DataWait => "data wait",
            Self::Load => "load",
            Self::Transfer => "transfer",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Reduce => "reduce",
            Self::Optimizer => "optimizer",
            Self::Callbacks => "callbacks",
            Self::Logging => "logging",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Times spans, or does nothing, which then costs nothing. Clones time for the same run.
#[derive(Clone, Default)]
pub(crate) struct Profiler {
    recorder: Option<Arc<Recorder>>,
    /// The rank that is timed; the table is that of the first.
    rank: usize,
}

struct Recorder {
    start: Instant,
    phases: Mutex<[Samples; Phase::ALL.len()]>,
    trace: Option<Trace>,
}

thread_local! {
    /// How long the spans inside of the open one have taken.
    static INSIDE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

impl Profiler {
    /// Times from now on; with a path, each span is also written there, in the format of Chrome's
    /// trace viewer.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(crate) fn start(trace: Option<&Path>) -> Result<Self> {
        let trace = trace.map(Trace::create).transpose()?;
        Ok(Self {
            recorder: Some(Arc::new(Recorder {
                start: Instant::now(),
                phases: Mutex::new(std::array::from_fn(|_| Samples::default())),
                trace,
            })),
            rank: 0,
        })
    }

    /// Whether anything is timed.
    pub(crate) fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// The same for another rank of the run.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        Self {
            recorder: self.recorder.clone(),
            rank,
        }
    }

    /// Times a part of the run.
    pub(crate) fn time<T>(&self, phase: Phase, part: impl FnOnce() -> T) -> T {
        let Some(recorder) = &self.recorder else {
            return part();
        };
        let outside = INSIDE.take();
        let start = Instant::now();
        let done = part();
        let took = start.elapsed();
        // A span that holds others counts what is left of it, so that shares sum up to the whole.
        let own = took.saturating_sub(INSIDE.get());
        INSIDE.set(outside + took);
        recorder.add(phase, self.rank, start, took, own);
        done
    }

    /// What has been timed on the first rank.
    pub(crate) fn profile(&self) -> Option<Profile> {
        let recorder = self.recorder.as_ref()?;
        let phases = recorder
            .phases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Some(Profile::new(
            recorder.start.elapsed(),
            Phase::ALL.into_iter().zip(&*phases),
        ))
    }

    /// Writes the rest of the trace.
    ///
    /// # Errors
    /// It could not be written, now or before.
    pub(crate) fn finish(&self) -> Result<()> {
        let trace = self.recorder.as_ref().and_then(|r| r.trace.as_ref());
        trace.map_or(Ok(()), Trace::finish)
    }
}

impl Recorder {
    fn add(&self, phase: Phase, rank: usize, start: Instant, took: Duration, own: Duration) {
        if rank == 0 {
            let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
            phases[phase as usize].add(own);
        }
        if let Some(trace) = &self.trace {
            let start = start.saturating_duration_since(self.start);
            trace.add(phase.name(), start, took);
        }
    }
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_on() {
            true => "Profiler(on)",
            false => "Profiler(off)",
        })
    }
}
