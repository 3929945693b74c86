//! Ranks: the replicas of a model that train together, one on each device of each process.

mod link;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
mod processes;
mod reduce;
mod room;
mod values;
mod world;

pub(crate) use link::{Link, Stream};
pub(crate) use reduce::{Mean, Share};
pub(crate) use values::{Pieces, Values};
pub(crate) use world::{World, leave, mark};

use crate::data::Shard;
use crate::error::{Error, ErrorKind, Result};
use crate::nn::context::SumOverReplicas;
use room::{Item, Room};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// All ranks, as one of them sees them.
///
/// Every operation is collective: all ranks call it, in the same order. Whatever fails on one ends
/// the waiting of all.
#[derive(Clone)]
pub(crate) struct Group {
    room: Arc<Room>,
    /// Which replica of its process this is.
    local: usize,
    link: Option<Arc<dyn Link>>,
    /// The replicas of each process.
    sizes: Arc<Vec<usize>>,
    timeout: Duration,
}

impl Default for Group {
    /// One rank alone.
    fn default() -> Self {
        Self {
            room: Arc::new(Room::new(1)),
            local: 0,
            link: None,
            sizes: Arc::new(vec![1]),
            timeout: Duration::MAX,
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Group {
    /// The ranks of this process, of which there are `replicas`, among those of all processes.
    ///
    /// # Errors
    /// Another process does not come, or has failed.
    pub(crate) fn new(
        replicas: usize,
        link: Option<Arc<dyn Link>>,
        timeout: Duration,
    ) -> Result<Vec<Self>> {
        let sizes = match &link {
            None => vec![replicas],
            Some(link) => {
                let processes = link.processes();
                let mine = vec![(replicas as u64).to_le_bytes().to_vec(); processes];
                let sizes = link.all_to_all(Stream::Loop, processes, mine, timeout)?;
                let size = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_le_bytes);
                sizes
                    .into_iter()
                    .map(|bytes| size(bytes) as usize)
                    .collect()
            }
        };
        let (room, sizes) = (Arc::new(Room::new(replicas)), Arc::new(sizes));
        let rank = |local| Self {
            room: Arc::clone(&room),
            local,
            link: link.clone(),
            sizes: Arc::clone(&sizes),
            timeout,
        };
        Ok((0..replicas).map(rank).collect())
    }

    /// This rank, from 0.
    pub(crate) fn rank(&self) -> usize {
        self.first_of(self.process()) + self.local
    }

    /// How many ranks there are.
    pub(crate) fn size(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Whether there is no other rank.
    pub(crate) fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this is the rank that logs, saves and prints.
    pub(crate) fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// The part of every batch that this rank takes: of a batch of all processes, or of one that is
    /// its own process's.
    pub(crate) fn shard(&self, is_per_process: bool) -> Shard {
        match is_per_process {
            false => Shard {
                index: self.rank(),
                count: self.size(),
            },
            true => Shard {
                index: self.local(),
                count: self.locals(),
            },
        }
    }

    pub(crate) fn process(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.process())
    }

    pub(crate) fn processes(&self) -> usize {
        self.sizes.len()
    }

    fn has_other_processes(&self) -> bool {
        self.processes() > 1
    }

    /// Which of its process's replicas this is, and how many there are.
    pub(crate) fn local(&self) -> usize {
        self.local
    }

    pub(crate) fn locals(&self) -> usize {
        self.room.size()
    }

    /// The first rank of a process.
    fn first_of(&self, process: usize) -> usize {
        self.sizes.iter().take(process).sum()
    }

    /// What each rank has, by rank.
    pub(crate) fn all_gather<T: Serialize + DeserializeOwned>(&self, mine: T) -> Result<Vec<T>> {
        if self.is_alone() {
            return Ok(vec![mine]);
        }
        let bytes = serde_json::to_vec(&mine).map_err(|e| not_sent().with_source(e))?;
        let read =
            |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|e| not_sent().with_source(e));
        let all = self.all_gather_bytes(bytes)?;
        all.iter().map(read).collect()
    }

    /// What the first rank has; the others give what is at hand.
    pub(crate) fn broadcast<T: Serialize + DeserializeOwned>(&self, mine: T) -> Result<T> {
        if self.is_alone() {
            return Ok(mine);
        }
        let bytes = match self.is_root() {
            true => serde_json::to_vec(&mine).map_err(|e| not_sent().with_source(e))?,
            false => Vec::new(),
        };
        let all = self.all_gather_bytes(bytes)?;
        let first = all.first().map(Vec::as_slice).unwrap_or_default();
        serde_json::from_slice(first).map_err(|e| not_sent().with_source(e))
    }

    /// The bytes of each rank, by rank.
    pub(crate) fn all_gather_bytes(&self, mine: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>> {
        self.gathered(mine, true)
    }

    /// The bytes of each rank, by rank, for the first rank alone.
    pub(crate) fn gather_bytes(&self, mine: Vec<u8>) -> Result<Option<Arc<Vec<Vec<u8>>>>> {
        let all = self.gathered(mine, false)?;
        Ok(self.is_root().then_some(all))
    }

    /// The bytes of each rank: on every process, or on the first alone.
    fn gathered(&self, mine: Vec<u8>, on_all: bool) -> Result<Arc<Vec<Vec<u8>>>> {
        let locals = self.locals();
        let here: Vec<Arc<Vec<u8>>> = self.meet(Stream::Loop, locals, mine)?;
        let here: Vec<&[u8]> = here.iter().map(|bytes| bytes.as_slice()).collect();
        if !self.has_other_processes() {
            return Ok(Arc::new(here.into_iter().map(<[u8]>::to_vec).collect()));
        }
        self.lead(Stream::Loop, locals, |group| {
            let processes = group.processes();
            let mut parts = vec![pack(&here)];
            let others = if on_all { parts.concat() } else { Vec::new() };
            parts.resize(processes, others);
            let all = group.exchange(Stream::Loop, processes, parts)?;
            Ok(all.iter().flat_map(|bytes| unpack(bytes)).collect())
        })
    }

    /// Σ over the first `among` ranks, element by element, of numbers in the midst of a pass.
    pub(crate) fn sum_in_pass(&self, among: usize, mine: Vec<f64>) -> Result<Vec<f64>> {
        let first = self.first_of(self.process());
        let locals = among.saturating_sub(first).min(self.locals());
        let here: Vec<Arc<Vec<f64>>> = self.meet(Stream::Pass, locals, mine)?;
        let local = sum_lists(here.iter().map(|list| list.as_slice()));
        let processes = (0..self.processes())
            .filter(|p| self.first_of(*p) < among)
            .count();
        if processes <= 1 {
            return Ok(local);
        }
        let total = self.lead(Stream::Pass, locals, |group| {
            let parts = vec![bytemuck::cast_slice(&local).to_vec(); processes];
            let all = group.exchange(Stream::Pass, processes, parts)?;
            let lists: Vec<Vec<f64>> = all
                .iter()
                .map(|b| bytemuck::pod_collect_to_vec(b))
                .collect();
            Ok(sum_lists(lists.iter().map(Vec::as_slice)))
        })?;
        Ok((*total).clone())
    }

    /// What the first rank has; the others give nothing.
    pub(crate) fn pieces_from_root(&self, mine: Pieces) -> Result<Pieces> {
        let here: Vec<Arc<Pieces>> = self.meet(Stream::Loop, self.locals(), mine)?;
        let first = here
            .first()
            .map(|pieces| pieces.as_slice())
            .unwrap_or_default();
        if !self.has_other_processes() {
            return Ok(first.to_vec());
        }
        let all = self.lead(Stream::Loop, self.locals(), |group| {
            let bytes = match group.is_root() {
                true => processes::encode(first),
                false => Vec::new(),
            };
            let all = group.over_processes(Stream::Loop, bytes)?;
            processes::decode(all.first().map(Vec::as_slice).unwrap_or_default())
        })?;
        Ok((*all).clone())
    }

    /// What sums over the first `among` ranks in the midst of a pass.
    pub(crate) fn sum_among(&self, among: usize) -> Arc<dyn SumOverReplicas> {
        Arc::new(SumAmong {
            group: self.clone(),
            among,
        })
    }

    /// Waits until all ranks are here.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.all_gather(()).map(drop)
    }

    /// Ends the waiting of all other ranks, now and from here on, with this error.
    pub(crate) fn fail(&self, error: Error) {
        if let Some(link) = &self.link {
            link.fail(&error);
        }
        self.room.fail(error);
    }

    /// This rank is done: whoever of its process waits for it fails at once.
    pub(crate) fn leave(&self) {
        self.room.leave(self.local);
    }

    /// An error marked with this rank, unless it comes from another one.
    pub(crate) fn marked(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Aborted => error,
            _ => error.context(format!("rank {}", self.rank())),
        }
    }

    /// The error of another rank of this process, if nobody has been given it yet.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.room.take_failure()
    }

    /// What each of the first `among` replicas of this process has.
    pub(crate) fn meet<T: Any + Send + Sync>(
        &self,
        stream: Stream,
        among: usize,
        mine: T,
    ) -> Result<Vec<Arc<T>>> {
        self.meet_within(stream, among, Arc::new(mine), self.timeout)
    }

    fn meet_within<T: Any + Send + Sync>(
        &self,
        stream: Stream,
        among: usize,
        mine: Arc<T>,
        timeout: Duration,
    ) -> Result<Vec<Arc<T>>> {
        let items = self.room.meet(self.local, stream, among, mine, timeout)?;
        let item = |item: &Item| {
            Arc::clone(item).downcast::<T>().map_err(|_| {
                Error::new(
                    ErrorKind::Aborted,
                    "ranks do different things at the same time",
                )
            })
        };
        items.iter().map(item).collect()
    }

    /// The first replica of each process does something with the other processes; all replicas of
    /// this process get what comes of it.
    fn lead<T: Any + Send + Sync>(
        &self,
        stream: Stream,
        among: usize,
        f: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<Arc<T>> {
        let done = match self.local {
            0 => Some(f(self).inspect_err(|error| {
                // For the others here; this one has the error itself.
                let text = error.to_string();
                if self.room.fail(Error::new(ErrorKind::Aborted, text)) {
                    self.room.take_failure();
                }
            })?),
            _ => None,
        };
        // The first may wait for other processes as long as the timeout, so that the others here
        // wait longer.
        let timeout = self.timeout.saturating_add(GRACE);
        let done = self.meet_within(stream, among, Arc::new(done.map(Arc::new)), timeout)?;
        let first = done.first().and_then(|first| first.as_ref().as_ref());
        first.cloned().ok_or_else(not_sent)
    }

    /// The bytes of each process, by process.
    fn over_processes(&self, stream: Stream, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let processes = self.processes();
        self.exchange(stream, processes, vec![mine; processes])
    }

    fn exchange(&self, stream: Stream, among: usize, parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        match &self.link {
            None => Ok(parts),
            Some(link) => link.all_to_all(stream, among, parts, self.timeout),
        }
    }
}

struct SumAmong {
    group: Group,
    among: usize,
}

impl SumOverReplicas for SumAmong {
    fn sum(&self, values: Vec<f64>) -> Result<Vec<f64>> {
        self.group.sum_in_pass(self.among, values)
    }
}

/// How much longer those wait whose first replica waits for other processes.
const GRACE: Duration = Duration::from_secs(20);

fn not_sent() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "ranks cannot tell each other what to do next",
    )
}

/// Σ over lists, element by element, in their order.
fn sum_lists<'a>(mut lists: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut sum = lists.next().unwrap_or_default().to_vec();
    for list in lists {
        sum.iter_mut().zip(list).for_each(|(sum, v)| *sum += v);
    }
    sum
}

/// Several lists of bytes as one.
fn pack(lists: &[&[u8]]) -> Vec<u8> {
    let mut packed = Vec::new();
    for list in lists {
        packed.extend_from_slice(&(list.len() as u64).to_le_bytes());
        packed.extend_from_slice(list);
    }
    packed
}

fn unpack(mut packed: &[u8]) -> Vec<Vec<u8>> {
    let mut lists = Vec::new();
    while let Some((len, rest)) = packed.split_first_chunk::<8>() {
        let len = u64::from_le_bytes(*len) as usize;
        let (list, rest) = rest.split_at(len.min(rest.len()));
        lists.push(list.to_vec());
        packed = rest;
    }
    lists
}
