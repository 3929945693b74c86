//! A loop written by hand on several devices.

use super::Fabric;
use super::average::{tensor, values};
use super::lane::{Lane, STACK_SIZE};
use crate::accelerators::on_host;
use crate::distributed::{Group, Share, World};
use crate::error::{Error, ErrorKind, Result};
use crate::panics;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// How the tensors of all ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their mean, each rank weighing the same.
    Mean,
}

impl<B: AutodiffBackend> Fabric<B> {
    /// On all of these devices, in place of the one: [`launch`](Self::launch) runs a loop on each.
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = B::Device>) -> Self {
        self.devices = devices.into_iter().collect();
        self
    }

    /// Runs a loop on every device at the same time, as one rank of all, and returns what each
    /// came to. Under an MPI launcher, the ranks of all processes work together, and what those of
    /// this process came to is returned.
    ///
    /// [`setup`](Self::setup) gives all ranks the same parameters, [`batches`](Self::batches) each
    /// its part of every batch, and [`optimizer_step`](Self::optimizer_step) averages over all of
    /// them; every rank must call it as often as the others.
    ///
    /// ```
    /// # use firebox::testing::{Line, Cpu, line_data};
    /// use firebox::fabric::Reduce;
    /// use firebox::prelude::*;
    /// use burn::tensor::Tensor;
    ///
    /// # fn main() -> Result<()> {
    /// let cpu = Default::default();
    /// let fabric = Fabric::<Cpu>::new(cpu).with_devices([cpu, cpu]);
    /// let sums = fabric.launch(|fabric| {
    ///     let rank = Tensor::<Cpu, 1>::from_floats([fabric.rank() as f32 + 1.0], fabric.device());
    ///     Ok(fabric.all_reduce(rank, Reduce::Sum)?.into_scalar())
    /// })?;
    /// assert_eq!(sums, [3.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error of any rank, with the rank; all others end with it.
    pub fn launch<T: Send>(&self, run: impl Fn(&Self) -> Result<T> + Sync) -> Result<Vec<T>> {
        if self.devices.is_empty() {
            return Err(Error::config(
                "a fabric needs at least one device; give it one",
            ));
        }
        let world = World::join(None, self.timeout)?;
        let groups = Group::new(self.devices.len(), world.link(), self.timeout)?;
        let ranks = groups.into_iter().zip(&self.devices).enumerate();
        let ranks = ranks.map(|(index, (group, device))| {
            let shares = on_host::<B>() && !group.is_alone();
            let lane = if shares {
                Lane::new(index)?
            } else {
                Lane::default()
            };
            let mut fabric = self.clone().with_group(group, Lane::default());
            fabric.device = device.clone();
            Ok((fabric, lane))
        });
        let ranks = ranks.collect::<Result<Vec<_>>>()?;
        let done: Vec<Result<T>> = std::thread::scope(|scope| {
            let run = &run;
            let threads = ranks.iter().map(|(fabric, lane)| {
                let thread = std::thread::Builder::new().stack_size(STACK_SIZE);
                let work = move || lane.run(|| rank(fabric, run));
                // The others must not wait for one that never begins.
                thread.spawn_scoped(scope, work).map_err(|e| {
                    let error = Error::new(ErrorKind::Io, "cannot start a rank's thread");
                    fabric.group.fail(error.with_source(e));
                })
            });
            let threads: Vec<_> = threads.collect();
            let ended = threads.into_iter().map(|thread| thread.ok()?.join().ok());
            let gone = || Err(Error::new(ErrorKind::User, "a rank's thread is gone"));
            ended.map(|done| done.unwrap_or_else(gone)).collect()
        });
        let done: Result<Vec<T>> = done.into_iter().collect();
        let first = ranks.first().map(|(fabric, _)| &fabric.group);
        let failure = || first.and_then(Group::take_failure);
        world.told(done.map_err(|error| failure().unwrap_or(error)))
    }

    /// This rank, from 0; rank 0 logs, saves and prints.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// How many ranks there are, over all devices and processes.
    pub fn world_size(&self) -> usize {
        self.group.size()
    }

    /// The sum or mean of the tensors of all ranks, which have the same shape; the same bits on all
    /// of them. It is no part of the graph of gradients.
    ///
    /// # Errors
    /// Another rank has failed, has a tensor of another shape, or does not come within
    /// [`collective_timeout`](crate::TrainerConfig::collective_timeout).
    pub fn all_reduce<T: Backend, const D: usize>(
        &self,
        mine: Tensor<T, D>,
        reduce: Reduce,
    ) -> Result<Tensor<T, D>> {
        let (shape, device, dtype) = (mine.dims(), mine.device(), mine.dtype());
        let pieces = vec![Some(values(mine)?)];
        let reduced = match reduce {
            Reduce::Sum => self.group.sum(pieces, 1.0)?,
            Reduce::Mean => self.group.mean(Share {
                pieces,
                weight: 1.0,
                note: Vec::new(),
            })?,
        };
        let sum = reduced.pieces.into_iter().next().flatten();
        let sum = sum.and_then(|sum| tensor(sum, shape, &device, dtype));
        sum.ok_or_else(differ)
    }

    /// The tensors of all ranks, which have the same shape, by rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Backend, const D: usize>(
        &self,
        mine: Tensor<T, D>,
    ) -> Result<Vec<Tensor<T, D>>> {
        let (shape, device, dtype) = (mine.dims(), mine.device(), mine.dtype());
        let mine = values(mine)?;
        let all = self.group.all_gather_bytes(mine.as_bytes().to_vec())?;
        let tensors = all.iter().map(|bytes| {
            let values = mine.read(bytes).ok_or_else(differ)?;
            tensor(values, shape, &device, dtype).ok_or_else(differ)
        });
        tensors.collect()
    }

    /// The tensor of rank `from`; what the others give has the same shape, and is dropped.
    ///
    /// # Errors
    /// There is no such rank; or as [`all_reduce`](Self::all_reduce).
    pub fn broadcast<T: Backend, const D: usize>(
        &self,
        mine: Tensor<T, D>,
        from: usize,
    ) -> Result<Tensor<T, D>> {
        if from >= self.world_size() {
            return Err(Error::config(format!(
                "there is no rank {from} to broadcast from; ranks are below {}",
                self.world_size()
            )));
        }
        let (shape, device, dtype) = (mine.dims(), mine.device(), mine.dtype());
        let mine = values(mine)?;
        let bytes = match self.rank() == from {
            true => mine.as_bytes().to_vec(),
            false => Vec::new(),
        };
        let all = self.group.all_gather_bytes(bytes)?;
        let values = all.get(from).and_then(|bytes| mine.read(bytes));
        let tensor = values.and_then(|values| tensor(values, shape, &device, dtype));
        tensor.ok_or_else(differ)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        self.group.barrier()
    }
}

/// What a rank does; if it fails, the others need not wait for it.
fn rank<B: AutodiffBackend, T>(
    fabric: &Fabric<B>,
    run: &impl Fn(&Fabric<B>) -> Result<T>,
) -> Result<T> {
    let done = panics::catch(ErrorKind::User, || run(fabric));
    if done.is_ok() {
        fabric.group.leave();
    }
    done.map_err(|error| {
        if fabric.group.is_alone() {
            return error;
        }
        let error = fabric.group.marked(error);
        let aborted = Error::new(ErrorKind::Aborted, error.to_string());
        fabric.group.fail(error);
        aborted
    })
}

fn differ() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "ranks differ in the shapes of their tensors",
    )
}
