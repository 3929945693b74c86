//! From a recipe to a run: finds the accelerator and calls the recipe with its backend.

mod choice;

use crate::accelerators::{Hardware, compiled, for_each_accelerator, on_host};
use crate::config::{Devices, ProgressMode, TrainerConfig};
use crate::distributed::{World, leave, mark};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::Fabric;
use crate::module::TrainModule;
use crate::output::say;
use crate::panics;
use crate::signals;
use crate::slurm;
use crate::trainer::Trainer;
use burn::tensor::backend::{AutodiffBackend, Backend};
use choice::{Choice, choose};
use firebox_backend::{Accelerator, DeviceStats, host};
use std::process::ExitCode;

/// A program that trains: generic once, called with the backend of the accelerator that is there.
///
/// ```
/// # use firebox::testing::{Line, line_data, AutodiffBackend};
/// use firebox::data::Loaders;
/// use firebox::prelude::*;
///
/// struct FitLine(TrainerConfig);
///
/// impl Recipe for FitLine {
///     fn config(&self) -> &TrainerConfig {
///         &self.0
///     }
///     fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
///         let model = Line::new(cx.device());
///         let mut data = Loaders::new(line_data().batch_size(8));
///         cx.trainer::<Line<B>>().fit(model, &mut data)?;
///         Ok(())
///     }
/// }
/// # let runs = tempfile::tempdir().unwrap();
/// let config = TrainerConfig::new().with_max_epochs(1);
/// # let config = config.with_run_dir(runs.path());
/// firebox::try_launch(FitLine(config)).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be launched: it does not implement `Recipe`",
    label = "needs `impl Recipe for ...`",
    note = "write `config` and `run<B: AutodiffBackend>`; see `firebox::Recipe`"
)]
pub trait Recipe: Sized {
    /// The settings that say which accelerator and devices to use.
    fn config(&self) -> &TrainerConfig;

    /// Builds the model and trains it on the backend `B`.
    ///
    /// # Errors
    /// Whatever ends the program.
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()>;
}

/// What a recipe runs on: the device that was chosen, and the settings.
#[derive(Debug, Clone)]
pub struct Launch<B: AutodiffBackend> {
    config: TrainerConfig,
    accelerator: &'static str,
    devices: Vec<B::Device>,
    first: B::Device,
    hardware: Hardware,
    is_root: bool,
    /// As many as this process may keep busy.
    cores: usize,
}

impl<B: AutodiffBackend> Launch<B> {
    /// The device that models are made on.
    pub fn device(&self) -> &B::Device {
        &self.first
    }
    /// All devices that were chosen.
    pub fn devices(&self) -> &[B::Device] {
        &self.devices
    }
    /// Whether this is the process that prints, logs and saves: the first, or the only one.
    pub fn is_root(&self) -> bool {
        self.is_root
    }
    /// The accelerator's name, for example `flex`.
    pub fn accelerator(&self) -> &'static str {
        self.accelerator
    }
    /// How busy each chosen device is now: memory used and free, and the share of time at work.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where the platform tells nothing, as by wgpu.
    pub fn device_stats(&self) -> Result<Vec<DeviceStats>> {
        self.hardware.stats()
    }
    /// The settings.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }
    /// A trainer with the recipe's settings.
    pub fn trainer<M: TrainModule<Backend = B>>(&self) -> Trainer<M> {
        let trainer = Trainer::new(self.config.clone(), self.first.clone());
        let trainer = trainer.with_hardware(self.hardware.clone());
        match self.config.devices {
            Devices::Auto if on_host::<B>() => trainer.with_replicas_by_need(self.cores),
            _ => trainer.with_devices(self.devices.clone()),
        }
    }
    /// The operations of a training step, for a loop written by hand.
    pub fn fabric(&self) -> Fabric<B> {
        Fabric::from_config(&self.config, self.first.clone()).with_devices(self.devices.clone())
    }
}

/// Runs a recipe on the accelerator its settings name, prints an error if there is one, and gives
/// the process's exit code: 0, 1 for an error, 2 for a wrong setting.
///
/// At Ctrl-C or SIGTERM the run finishes its step, saves a checkpoint and ends, and the exit code is
/// 130 or 143; a second signal ends the process at once. Checkpoints on disk stay whole.
///
/// In a job of SLURM, SIGUSR1 (`#SBATCH --requeue --signal=USR1@120`) does the same and requeues the
/// job, also a task of an array; the exit code is 138 on Linux. When the job starts again, the run
/// resumes.
///
/// Of several processes (`mpirun`, `srun`; feature `mpi`) the first prints and saves. If one fails,
/// all end, with its error.
pub fn launch(recipe: impl Recipe) -> ExitCode {
    let job = slurm::Job::current();
    let patience = recipe.config().collective_timeout.as_duration();
    let done = signals::install(job.is_some()).and_then(|()| try_launch(recipe));
    let signal = signals::received();
    let is_saved = done
        .as_ref()
        .err()
        .is_none_or(|e| e.kind() == ErrorKind::Interrupted && e.later().is_empty());
    // One process asks for all of them.
    let asks = is_saved && signals::wants_requeue() && mark().is_none();
    if let Some(job) = job.filter(|_| asks)
        && let Err(error) = job.requeue()
    {
        say!("error: {error}");
        return ExitCode::from(error.exit_code());
    }
    let errors = match &done {
        Ok(()) => &[],
        // Of the signal there is a line of its own.
        Err(error) if error.kind() == ErrorKind::Interrupted => error.later(),
        Err(error) => std::slice::from_ref(error),
    };
    for error in errors {
        match mark() {
            None => say!("error: {error}"),
            // The first process tells of what another has told it.
            Some(_) if error.kind() == ErrorKind::Aborted => {}
            Some(mark) => say!("{mark}error: {error}"),
        }
    }
    let came_to_its_end = done.is_ok() && signal.is_none();
    leave(
        done.as_ref().err().filter(|_| signal.is_none()),
        came_to_its_end.then_some(patience),
    );
    match (signal, done) {
        (Some(signal), _) => {
            say!("{signal}");
            ExitCode::from(signal.exit_code())
        }
        (None, Err(error)) => ExitCode::from(error.exit_code()),
        (None, Ok(())) => ExitCode::SUCCESS,
    }
}

/// [`launch`] for programs that go on afterwards.
///
/// # Errors
/// An accelerator or device that does not exist or is not available, or what the recipe returns.
pub fn try_launch(recipe: impl Recipe) -> Result<()> {
    let config = recipe.config();
    config.check()?;
    let timeout = config.collective_timeout.as_duration();
    let world = World::join(config.num_nodes, timeout)?;
    let share = world.on_this_node();
    let choice = choose(&config.accelerator, &config.devices, share, &compiled())?;
    if config.progress != ProgressMode::Off && world.is_root() {
        let processes = match world.processes.size() {
            1 => String::new(),
            several => format!("; {several} processes"),
        };
        say!("{choice}{processes}");
    }
    let place = Place {
        is_root: world.is_root(),
        cores: (host::physical_cores() / share.1).max(1),
    };
    run(choice, place, recipe)
}

/// What a process is among those of the run.
#[derive(Debug, Clone, Copy)]
struct Place {
    is_root: bool,
    /// Its share of the machine's.
    cores: usize,
}

/// The call of a recipe with the accelerator that was chosen.
macro_rules! run_on_chosen {
    ($($feature:literal => $accelerator:path),* $(,)?) => {
        fn run(choice: Choice, place: Place, recipe: impl Recipe) -> Result<()> {
            let ids: Vec<_> = choice.devices.iter().map(|device| device.id).collect();
            match choice.accelerator {
                $(
                    #[cfg(feature = $feature)]
                    <$accelerator>::NAME => run_on::<$accelerator>(&ids, place, recipe),
                )*
                other => Err(Error::config(format!("`{other}` is not compiled in"))),
            }
        }
    };
}

for_each_accelerator!(run_on_chosen);

/// Calls the recipe with an accelerator's backend; one copy of the user's code per accelerator.
fn run_on<A: Accelerator>(ids: &[usize], place: Place, recipe: impl Recipe) -> Result<()> {
    let devices: Vec<_> = ids.iter().map(|id| A::device(*id)).collect();
    let first = devices.first().cloned().ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            format!("`{}` has no device", A::NAME),
        )
    })?;
    let config = recipe.config().clone();
    // Weights that the recipe draws before `fit` follow from the seed as well.
    A::Backend::seed(&first, config.seed);
    let launch = Launch {
        config,
        accelerator: A::NAME,
        devices,
        first,
        hardware: Hardware::of::<A>(ids),
        is_root: place.is_root,
        cores: place.cores,
    };
    panics::catch(ErrorKind::User, || recipe.run::<A::Backend>(launch))
}
