//! What connects the processes of a run.

use crate::error::{Error, Result};
use std::time::Duration;

/// Messages between the processes of a run. One thread of a process uses it at a time.
pub(crate) trait Link: Send + Sync {
    /// Which process this is, from 0.
    fn process(&self) -> usize;

    /// How many processes there are.
    fn processes(&self) -> usize;

    /// A collective of the first `among` processes, of which this is one: `parts[p]` goes to process
    /// `p`, and what each process has sent here comes back, by process. Calls with the same `stream`
    /// meet in the order in which they are made.
    ///
    /// # Errors
    /// A process has [failed](Self::fail), with what it said; or one does not come within `timeout`.
    fn all_to_all(
        &self,
        stream: Stream,
        among: usize,
        parts: Vec<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>>;

    /// Tells all other processes, once, that this one has failed: what they wait for, now and from
    /// here on, ends with this error. Never blocks.
    fn fail(&self, error: &Error);

    /// Waits, no longer than `timeout`, until all other processes have come here too, whether they
    /// have failed or not: the last call.
    fn part(&self, timeout: Duration);

    /// Ends every process of the run at once, this one with the given exit code.
    fn abort(&self, code: i32) -> !;
}

/// Collectives that do not wait for those of another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Of the loop.
    Loop = 0,
    /// Inside of a forward or backward pass.
    Pass = 1,
}
