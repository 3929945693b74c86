//! The ranks of this process: one on each device, each on a thread that is kept.

use crate::accelerators::on_host;
use crate::config::TrainerConfig;
use crate::distributed::{Group, Link};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, Lane, Look};
use crate::panics;
use crate::profiler::Profiler;
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::time::Duration;

/// The threads of a trainer's replicas. Backends keep memory for every thread that they have seen,
/// so there are no new ones for each run.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    /// One for each of `replicas`. The first computes on the caller's thread, unless it `shares` the
    /// processor with others.
    fn take(&mut self, replicas: usize, shares: bool) -> Result<Vec<Lane>> {
        while self.0.len() < replicas {
            self.0.push(Lane::new(self.0.len())?);
        }
        let mut lanes: Vec<_> = self.0.iter().take(replicas).cloned().collect();
        if let Some(first) = lanes.first_mut().filter(|_| !shares) {
            *first = Lane::default();
        }
        Ok(lanes)
    }
}

/// The ranks of this process, for one run.
pub(super) struct Ranks<B: AutodiffBackend> {
    first: Fabric<B>,
    others: Vec<Fabric<B>>,
}

/// What a rank does beside the first of its process.
type Job<B> = Box<dyn FnOnce(&Fabric<B>) -> Result<()> + Send>;

impl<B: AutodiffBackend> Ranks<B> {
    /// A rank on each device.
    ///
    /// # Errors
    /// Another process has failed or does not come; a thread cannot be started.
    pub(super) fn new(
        config: &TrainerConfig,
        devices: &[B::Device],
        lanes: &mut Lanes,
        link: Option<Arc<dyn Link>>,
    ) -> Result<Self> {
        if on_host::<B>() {
            keep_memory();
        }
        let Some(first) = devices.first() else {
            return Err(Error::config(
                "there is no device to train on; give at least one",
            ));
        };
        let timeout = config.collective_timeout.as_duration();
        let groups = Group::new(devices.len(), link, timeout)?;
        if groups.first().is_none_or(Group::is_alone) {
            return Ok(Self {
                first: Fabric::from_config(config, first.clone()),
                others: Vec::new(),
            });
        }
        let lanes = lanes.take(devices.len(), on_host::<B>())?;
        let ranks = groups.into_iter().zip(devices).zip(lanes);
        let mut fabrics = ranks.map(|((group, device), lane)| {
            Fabric::from_config(config, device.clone()).with_group(group, lane)
        });
        let none = || Error::config("there is no device to train on; give at least one");
        Ok(Self {
            first: fabrics.next().ok_or_else(none)?,
            others: fabrics.collect(),
        })
    }

    /// Has all of them timed.
    pub(super) fn with_profiler(mut self, profiler: &Profiler) -> Self {
        self.first.profiler = profiler.clone();
        let others = self.others.iter_mut().zip(1..);
        others.for_each(|(other, rank)| other.profiler = profiler.of_rank(rank));
        self
    }

    /// The rank that the caller is.
    pub(super) fn first(&self) -> &Fabric<B> {
        &self.first
    }

    /// Gives each of the other ranks its job and lets them begin. What fails ends the waiting of all
    /// ranks.
    pub(super) fn start(
        &self,
        mut job: impl FnMut(&Fabric<B>) -> Result<Job<B>>,
    ) -> Result<Started> {
        let (sender, done) = channel();
        for fabric in &self.others {
            // Those that have begun must not wait for one that never does.
            let job = panics::catch(ErrorKind::User, || job(fabric)).inspect_err(|error| {
                let text = error.to_string();
                fabric.group.fail(Error::new(ErrorKind::Aborted, text));
            })?;
            let (sender, lane) = (sender.clone(), fabric.lane.clone());
            // The rank itself is on that thread already.
            let fabric = fabric
                .clone()
                .with_group(fabric.group.clone(), Lane::default());
            lane.spawn(move || work(&fabric, job, sender));
        }
        Ok(Started(done))
    }
}

fn work<B: AutodiffBackend>(fabric: &Fabric<B>, job: Job<B>, _done: Sender<()>) {
    if let Err(error) = panics::catch(ErrorKind::User, || job(fabric)) {
        fabric.group.fail(fabric.group.marked(error));
    }
}

/// Ranks at work. None of them has anything to say: it is over when all of them are gone.
#[must_use]
pub(super) struct Started(Receiver<()>);

/// How long ranks may take to notice that another has failed: as long as a step, which nothing
/// can interrupt.
const PATIENCE: Duration = Duration::from_secs(5);

impl Started {
    /// Waits for the ranks to end, after this one has.
    ///
    /// # Errors
    /// One of them goes on.
    pub(super) fn wait(self) -> Result<()> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                ErrorKind::Aborted,
                format!(
                    "a replica is still in its step after {} s",
                    PATIENCE.as_secs()
                ),
            )),
        }
    }
}

/// Has glibc keep memory of up to 31 MB that is freed, for the next time. Otherwise it gives all that
/// is larger than 128 kB back to the system and asks for it again, at every step, and the system
/// clears it each time: that costs a third of a step of a small network. glibc takes larger limits
/// from the largest block that it has seen freed; on other systems this does nothing.
fn keep_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(31 << 20))));
}

/// How many replicas of a model make sense on so many cores: one on each, as long as each has
/// enough to do between two meetings. One, if the layers of the model would not give with several
/// what they give with one.
pub(super) fn useful_replicas<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    cores: usize,
    batch_size: Option<usize>,
) -> usize {
    let look = Look::at(model);
    if !look.layers_of_one_device.is_empty() {
        return 1;
    }
    let samples = batch_size.unwrap_or(1);
    let enough = match look.works_hard {
        true => MIN_SAMPLES,
        false => MIN_SAMPLES_OF_PERCEPTRONS,
    };
    let by_samples = samples / enough;
    let by_work = look.parameters.saturating_mul(samples) / MIN_WORK;
    cores.min(by_samples).min(by_work).max(1)
}

/// Fewer samples than these make a replica's kernels slow.
const MIN_SAMPLES: usize = 16;

/// Where each parameter is used once for a sample, there is less to do between two meetings, which
/// take time for each parameter.
const MIN_SAMPLES_OF_PERCEPTRONS: usize = 128;

/// Parameters times samples that a replica has to have for a step to be longer than a meeting.
const MIN_WORK: usize = 500_000;
