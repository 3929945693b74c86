//! The processes of a run, and the machines they are on.

use super::Group;
use super::link::Link;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The processes of a run, as one of them sees them.
pub(crate) struct World {
    link: Option<Arc<dyn Link>>,
    /// The machine of each process.
    hosts: Vec<String>,
    /// The processes, each as one rank.
    pub(crate) processes: Group,
}

impl World {
    /// The processes that the launcher has started, all of which call this; or this one alone.
    ///
    /// # Errors
    /// They are on another number of machines than there should be; one does not come.
    pub(crate) fn join(num_nodes: Option<u64>, timeout: Duration) -> Result<Self> {
        let (link, host) = match connect()? {
            Some((link, host)) => (Some(link), host),
            None => (None, String::new()),
        };
        let mut processes = Group::new(1, link.clone(), timeout)?;
        let processes = processes.pop().unwrap_or_default();
        let hosts = processes.all_gather(host)?;
        let world = Self {
            link,
            hosts,
            processes,
        };
        let found = world.nodes().len() as u64;
        match num_nodes {
            Some(nodes) if nodes != found => Err(Error::config(format!(
                "`num_nodes` is {nodes}, but the run is on {found} ({}); {}",
                match &world.link {
                    None => "it was not started by `mpirun`, `srun` or the like".to_owned(),
                    Some(_) => world.nodes().join(", "),
                },
                match cfg!(feature = "mpi") {
                    true => "start it on as many, or leave it out",
                    false => "several need the feature `mpi`, which is not compiled in",
                }
            ))),
            _ => Ok(world),
        }
    }

    pub(crate) fn link(&self) -> Option<Arc<dyn Link>> {
        self.link.clone()
    }

    /// Whether this is the process that logs, saves and prints.
    pub(crate) fn is_root(&self) -> bool {
        self.processes.is_root()
    }

    /// Which of the processes on its machine this one is, and how many there are.
    pub(crate) fn on_this_node(&self) -> (usize, usize) {
        let me = self.processes.rank();
        let here = self.hosts.get(me);
        let same = |of: &[String]| of.iter().filter(|host| Some(*host) == here).count();
        let before = self.hosts.get(..me).unwrap_or_default();
        (same(before), same(&self.hosts).max(1))
    }

    /// Tells the other processes that this one has failed.
    pub(crate) fn told<T>(&self, done: Result<T>) -> Result<T> {
        if let (Err(error), Some(link)) = (&done, &self.link) {
            link.fail(error);
        }
        done
    }

    /// What the first process of each machine does once for all of its machine.
    ///
    /// # Errors
    /// What `f` reports, or that it has failed elsewhere.
    pub(crate) fn once_per_node(&self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.on_this_node().0 == 0 {
            f()?;
        }
        self.processes.barrier()
    }

    /// The machines.
    fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

#[cfg(feature = "mpi")]
fn connect() -> Result<Option<(Arc<dyn Link>, String)>> {
    let mpi = super::mpi::Mpi::init()?;
    Ok(mpi.map(|mpi| {
        let host = mpi.host().to_owned();
        (mpi as Arc<dyn Link>, host)
    }))
}

#[cfg(not(feature = "mpi"))]
fn connect() -> Result<Option<(Arc<dyn Link>, String)>> {
    // What launchers tell each process of how many it started.
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"] {
        let size = std::env::var(variable)
            .ok()
            .and_then(|size| size.parse::<usize>().ok());
        if let Some(size) = size.filter(|size| *size > 1) {
            return Err(Error::config(format!(
                "an MPI launcher has started {size} processes, which would all do the same; to \
                 train together they need the feature `mpi`, which is not compiled in"
            )));
        }
    }
    Ok(None)
}

/// How long processes wait for one another at the end of a run that was cut short: long enough for a
/// last checkpoint.
const PARTING: Duration = Duration::from_secs(8);

/// How this process marks its lines, if it is one of several and not the first.
pub(crate) fn mark() -> Option<String> {
    let (link, _) = connect().ok()??;
    (link.process() > 0).then(|| format!("[process {}] ", link.process()))
}

/// Ends the part of this process in a run; if the run has failed, that of all processes, once the
/// first of them has done what there is left to do. After a run that came to its end, the others
/// may have as much to do as the `patience` allows: a launcher that finds a process gone too early
/// ends them all.
pub(crate) fn leave(failure: Option<&Error>, patience: Option<Duration>) {
    let Ok(Some((link, _))) = connect() else {
        return;
    };
    if let Some(error) = failure {
        link.fail(error);
    }
    link.part(patience.unwrap_or(PARTING));
    match failure {
        Some(error) => link.abort(error.exit_code().into()),
        None => end(),
    }
}

#[cfg(feature = "mpi")]
fn end() {
    super::mpi::Mpi::finalize();
}

#[cfg(not(feature = "mpi"))]
fn end() {}
