//! Which checkpoint a run goes on from.

use super::{Trainer, run_dir};
use crate::checkpoint::{self, Checkpoint, Found};
use crate::config::{FastDevRun, ProgressMode, Resume, TrainerConfig};
use crate::distributed::{Group, World};
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::output::say;
use crate::slurm;
use std::path::{Path, PathBuf};

/// A checkpoint to go on from.
pub(super) struct Resumed {
    pub(super) checkpoint: Checkpoint,
    /// The folder of its run, if the run goes on in it.
    pub(super) run_dir: Option<PathBuf>,
}

/// Finds what the settings ask for. `dirs` are folders of checkpoints outside of runs' own.
///
/// # Errors
/// There is no such checkpoint, or it is damaged.
pub(super) fn find(config: &TrainerConfig, dirs: &[&Path]) -> Result<Option<Resumed>> {
    let job = slurm::Job::current().filter(|job| job.is_requeued);
    if config.resume.is_none() && job.is_none() {
        return Ok(None);
    }
    if config.fast_dev_run.batches().is_some() {
        say!("note: `fast_dev_run` starts anew and leaves `resume` out");
        return Ok(None);
    }
    // A job that goes back into the queue is started again with the same command: what it has done
    // itself comes before what that says.
    let own = match &job {
        Some(job) => own_newest(config, dirs, job)?,
        None => None,
    };
    let strict = config.resume_strict;
    let resumed = match (own, &config.resume) {
        (Some(own), _) => Some(own),
        (None, None) => None,
        (None, Some(Resume::Last)) => newest(&folders(config, dirs)?, strict)?.map(in_its_run),
        (None, Some(Resume::Best)) => Some(best(config, dirs)?),
        (None, Some(Resume::Path(path))) => Some(at(path, strict)?),
    };
    if let Some(resumed) = &resumed {
        check_seed(config, &resumed.checkpoint)?;
    }
    Ok(resumed)
}

/// Says where a fit goes on from, if it was to.
pub(super) fn announce(config: &TrainerConfig, resumed: Option<&Resumed>) {
    match resumed {
        Some(resumed) if config.progress != ProgressMode::Off => {
            say!("{}", resumed.announce());
        }
        None if config.resume.is_some() && config.fast_dev_run.batches().is_none() => say!(
            "note: there is no checkpoint under `{}` to resume from; starting anew",
            config.run_dir.display()
        ),
        _ => {}
    }
}

/// What the first process finds, for all of them.
///
/// # Errors
/// As [`find`].
pub(super) fn find_for_all(
    processes: &Group,
    config: &TrainerConfig,
    dirs: &[&Path],
) -> Result<Option<Resumed>> {
    let found = match processes.is_root() {
        true => find(config, dirs)?,
        false => None,
    };
    if processes.is_alone() {
        return Ok(found);
    }
    let bytes = found
        .as_ref()
        .map_or(Ok(Vec::new()), |f| f.checkpoint.to_bytes())?;
    let all = processes.all_gather_bytes(bytes)?;
    match (found, all.first().filter(|bytes| !bytes.is_empty())) {
        (None, Some(bytes)) => Ok(Some(Resumed {
            checkpoint: Checkpoint::from_bytes(bytes)?,
            run_dir: None,
        })),
        (found, _) => Ok(found),
    }
}

impl Resumed {
    fn announce(&self) -> String {
        let progress = self.checkpoint.progress();
        format!(
            "resuming from `{}`: epoch {}, batch {}, step {}{}",
            self.checkpoint.path().display(),
            progress.epoch,
            progress.batch,
            progress.global_step,
            match self.run_dir {
                Some(_) => "",
                None => ", in a new run folder",
            }
        )
    }
}

/// The newest checkpoint of the runs that a job has begun itself.
fn own_newest(config: &TrainerConfig, dirs: &[&Path], job: &slurm::Job) -> Result<Option<Resumed>> {
    let own = runs_of(run_dir::runs(&config.run_dir)?, job);
    if own.is_empty() {
        return Ok(None);
    }
    let newest = newest(&listed(own, dirs)?, config.resume_strict)?;
    Ok(newest.map(in_its_run))
}

fn runs_of(mut runs: Vec<PathBuf>, job: &slurm::Job) -> Vec<PathBuf> {
    runs.retain(|run| run_dir::is_of_job(run, job));
    runs
}

/// The folders of checkpoints to choose from, that with the newest first.
fn folders(config: &TrainerConfig, dirs: &[&Path]) -> Result<Vec<Vec<Found>>> {
    let mut runs = run_dir::runs(&config.run_dir)?;
    if let Some(job) = slurm::Job::current() {
        let own = runs_of(runs.clone(), &job);
        // The tasks of an array run side by side: each has its own run, or none yet.
        if !own.is_empty() || job.is_of_array {
            runs = own;
        }
    }
    listed(runs, dirs)
}

/// The checkpoints of runs and of other folders, that folder with the newest first.
fn listed(runs: Vec<PathBuf>, dirs: &[&Path]) -> Result<Vec<Vec<Found>>> {
    // Of those written at the same moment, as far as the file system knows, the latest run counts.
    let own = runs.into_iter().rev().map(|run| run.join("checkpoints"));
    let others = dirs.iter().map(|dir| dir.to_path_buf());
    let folders = own.chain(others).map(checkpoint::list);
    let mut folders = folders.collect::<Result<Vec<_>>>()?;
    let written = |folder: &Vec<Found>| folder.iter().map(|found| found.written).max();
    folders.sort_by_key(|folder| std::cmp::Reverse(written(folder)));
    Ok(folders)
}

/// The newest checkpoint that is whole. Damaged ones are reported, or refused if `strict`.
fn newest(folders: &[Vec<Found>], strict: bool) -> Result<Option<Checkpoint>> {
    let mut damaged = None;
    for found in folders.iter().flatten() {
        match Checkpoint::open(&found.path) {
            Ok(checkpoint) => {
                if damaged.is_some() {
                    say!(
                        "warning: going back to `{}`, the newest checkpoint that is whole",
                        found.path.display()
                    );
                }
                return Ok(Some(checkpoint));
            }
            Err(error) if error.kind() == ErrorKind::Corrupt && !strict => {
                say!("warning: {error}");
                damaged.get_or_insert(error);
            }
            Err(error) => return Err(error.context("resuming")),
        }
    }
    match damaged {
        None => Ok(None),
        Some(error) => Err(error.context("resuming: no checkpoint is whole")),
    }
}

/// Goes on in the folder of the run that wrote the checkpoint, where that is known.
fn in_its_run(checkpoint: Checkpoint) -> Resumed {
    let folder = checkpoint.path().parent();
    let run = folder.filter(|folder| folder.ends_with("checkpoints"));
    let run = run.and_then(Path::parent).map(Path::to_path_buf);
    Resumed {
        run_dir: run.filter(|run| run_dir::is_run(run)),
        checkpoint,
    }
}

fn best(config: &TrainerConfig, dirs: &[&Path]) -> Result<Resumed> {
    let root = config.run_dir.display();
    let newest = newest(&folders(config, dirs)?, config.resume_strict)?.ok_or_else(|| {
        Error::config(format!(
            "`resume` is best, but there is no checkpoint under `{root}`"
        ))
    })?;
    let best = newest.best().ok_or_else(|| {
        Error::config(format!(
            "`resume` is best, but the run of `{}` has no best checkpoint; it watched no value \
             (`monitor`), or none was finite; use `last`",
            newest.path().display()
        ))
    })?;
    let checkpoint = Checkpoint::open(best).map_err(|e| e.context("resuming"))?;
    Ok(Resumed {
        checkpoint,
        run_dir: None,
    })
}

/// A checkpoint, a run's folder, or a folder of checkpoints.
fn at(path: &Path, strict: bool) -> Result<Resumed> {
    // A run may make `last` a link to something else while it is being used.
    let path = match path.is_symlink() {
        true => path.canonicalize().unwrap_or_else(|_| path.to_path_buf()),
        false => path.to_path_buf(),
    };
    let inside = path.join("checkpoints");
    let folder = if inside.is_dir() {
        inside
    } else {
        path.clone()
    };
    let found = checkpoint::list(&folder)?;
    if !found.is_empty() {
        let newest = newest(&[found], strict)?;
        return newest.map(in_its_run).ok_or_else(|| nothing_at(&path));
    }
    match Checkpoint::open(&path) {
        Ok(checkpoint) => Ok(Resumed {
            checkpoint,
            run_dir: None,
        }),
        Err(error) if error.kind() == ErrorKind::Corrupt => Err(with_hint(error, &path)),
        Err(error) if error.kind() == ErrorKind::Io => {
            Err(nothing_at(&path).with_source(error.to_string()))
        }
        Err(error) => Err(error.context("resuming")),
    }
}

fn nothing_at(path: &Path) -> Error {
    Error::config(format!(
        "`resume` is {}, where there is no checkpoint; use `last`, `best`, or the path of a \
         checkpoint or of a run's folder",
        path.display()
    ))
}

/// Names the newest whole checkpoint beside a damaged one that was asked for by its path.
fn with_hint(error: Error, path: &Path) -> Error {
    let beside = path.parent().map(checkpoint::list).and_then(Result::ok);
    let mut beside = beside.into_iter().flatten();
    match beside.find(|found| Checkpoint::open(&found.path).is_ok()) {
        None => error.context("resuming"),
        Some(found) => error.context(format!(
            "resuming (the newest whole one beside it is `{}`)",
            found.path.display()
        )),
    }
}

/// With another seed the rest of the epoch would be of another order.
fn check_seed(config: &TrainerConfig, checkpoint: &Checkpoint) -> Result<()> {
    let (here, there) = (config.seed, checkpoint.state().seed);
    if here == there {
        return Ok(());
    }
    let progress = checkpoint.progress();
    if progress.batch > 0 || config.resume_strict {
        return Err(Error::config(format!(
            "`seed` is {here}, but `{}` is of a run with {there}, in epoch {} after {} batches; the \
             rest of the epoch would be of another order; use {there}",
            checkpoint.path().display(),
            progress.epoch,
            progress.batch,
        )));
    }
    say!("warning: `seed` is {here}, and was {there} before this run was resumed");
    Ok(())
}

impl<M: TrainModule> Trainer<M> {
    /// The model with the parameters of the checkpoint that the setting `resume` names, to validate,
    /// test or predict with.
    ///
    /// # Errors
    /// `resume` is not set, there is no such checkpoint, or it is one of another model.
    pub fn load(&self, model: M) -> Result<M> {
        self.config.check()?;
        // There is something to go on from whatever else is tried.
        let config = &self.config.clone().with_fast_dev_run(FastDevRun::OFF);
        if config.resume.is_none() {
            return Err(Error::config(
                "`resume` is not set; say which checkpoint to load with `last`, `best` or its path",
            ));
        }
        let world = World::join(config.num_nodes, config.collective_timeout.as_duration())?;
        let dirs = self.callbacks.iter().filter_map(|c| c.checkpoint_dir());
        let dirs: Vec<_> = dirs.collect();
        let loaded = find_for_all(&world.processes, config, &dirs).and_then(|found| {
            let Some(Resumed { checkpoint, .. }) = found else {
                return Err(Error::config(format!(
                    "there is no checkpoint under `{}` to load",
                    config.run_dir.display()
                )));
            };
            checkpoint.load_model(model)
        });
        world.told(loaded)
    }
}
