//! What a run is told: [`TrainerConfig`], plain data that comes from the program, a file, the
//! environment and the command line.

mod check;
mod checkpoint;
mod hardware;
mod layers;
mod limits;
mod precision;
mod strategy;
#[cfg(test)]
mod tests;
mod time;
mod value;
mod various;
mod watching;

pub use checkpoint::{Monitor, Resume, SaveTopK};
pub use hardware::{AcceleratorName, Devices, Precision};
pub use limits::{FastDevRun, Limit, SanitySteps, ValCheckInterval};
pub use precision::{LossScale, Paths, WeightAveraging};
pub use strategy::Strategy;
pub use time::WallTime;
pub use various::{GradientClip, LoggerNames, ProgressMode};
pub use watching::{GradNorms, ProfilerMode};

use crate::error::{Error, Result};
use layers::Layers;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use value::{Setting, SettingValue};

/// Lists every setting once: documentation, name, type, default, builder method.
///
/// A setting appears in five places: as a public field, in `Default`, as a `with_*` method, as a
/// flag with its help text, and in the table by which files, variables and flags are read. Kept by
/// hand, these drift apart. The first paragraph of a setting's documentation is its `--help` text.
macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty = $default:expr, $with:ident($given:ty);
    )+) => {
        /// Everything a `Trainer` can be told, as plain data.
        ///
        /// In a program with a command line it is flattened into the program's own arguments. Each
        /// setting is then a flag (`--max-epochs 3`), an environment variable
        /// (`FIREBOX_MAX_EPOCHS=3`) and a key of the files given with `--config` (TOML, JSON or
        /// YAML; of several, the later wins). Flags win over variables, variables over files, and
        /// files over the defaults. `none` unsets a setting that may be unset. `--print-config`
        /// prints the result as TOML instead of running.
        ///
        /// ```
        /// use clap::Parser;
        /// use firebox::config::{Devices, TrainerConfig};
        ///
        /// #[derive(Parser)]
        /// struct Args {
        ///     #[command(flatten)]
        ///     trainer: TrainerConfig,
        ///     #[arg(long)]
        ///     data_dir: Option<std::path::PathBuf>,
        /// }
        ///
        /// let args = Args::parse_from(["train", "--max-epochs", "3", "--devices", "2"]);
        /// assert_eq!(args.trainer.max_epochs, Some(3));
        /// assert_eq!(args.trainer.devices, Devices::Count(2));
        ///
        /// // A program with defaults of its own lays the command line over them.
        /// let trainer = TrainerConfig::new().with_max_epochs(5).with_seed(1);
        /// let mut args = Args { trainer, data_dir: None };
        /// args.update_from(["train", "--seed", "7"]);
        /// assert_eq!((args.trainer.max_epochs, args.trainer.seed), (Some(5), 7));
        /// ```
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct TrainerConfig {
            $( $(#[doc = $doc])+ pub $name: $type, )+
        }

        impl Default for TrainerConfig {
            fn default() -> Self {
                Self { $( $name: $default, )+ }
            }
        }

        impl TrainerConfig {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                #[must_use]
                pub fn $with(mut self, value: $given) -> Self {
                    self.$name = value.into();
                    self
                }
            )+
        }

        /// Every setting, in the order of `--help` and of a printed configuration.
        const SETTINGS: &[Setting] = &[ $(
            Setting {
                key: stringify!($name),
                doc: concat!($($doc, "\n"),+),
                value_name: <$type as SettingValue>::NAME,
                bare: <$type as SettingValue>::BARE,
                value_allowed: <$type as SettingValue>::ALLOWED,
                optional: <$type as SettingValue>::OPTIONAL,
                set_text: |config, text| SettingValue::from_text(text)
                    .map(|value| config.$name = value).is_some(),
                set_file_value: |config, value| SettingValue::from_file_value(value)
                    .map(|value| config.$name = value).is_some(),
                is_possible: |config| config.$name.is_possible(),
                shown: |config| format!("{:?}", config.$name),
            },
        )+ ];
    };
}

settings! {
    /// The kind of hardware: `auto`, `cpu`, `gpu`, or the name of an accelerator such as `cuda`
    ///
    /// Whether the name exists is judged when the run is launched.
    accelerator: AcceleratorName = AcceleratorName::auto(), with_accelerator(impl Into<AcceleratorName>);

    /// Which devices: `auto`, `all`, how many (`2`), or which (`0,2`; one alone is `0,`)
    devices: Devices = Devices::Auto, with_devices(impl Into<Devices>);

    /// How many nodes the run is to have; that of the launcher (`mpirun`, `srun`) is checked against it
    num_nodes: Option<u64> = None, with_num_nodes(impl Into<Option<u64>>);

    /// How several devices train one model: `auto`, `ddp`, `zero1`, or `fedavg:N`
    strategy: Strategy = Strategy::Auto, with_strategy(Strategy);

    /// Take the statistics of `firebox::nn::SyncBatchNorm` over all devices
    sync_batchnorm: bool = true, with_sync_batchnorm(bool);

    /// Compare the parameters of all devices every n optimizer steps, and stop if they differ
    check_replicas_every_n_steps: Option<u64> = None, with_check_replicas_every_n_steps(impl Into<Option<u64>>);

    /// How long a device waits for the others before the run fails
    collective_timeout: WallTime = WallTime::from(Duration::from_secs(1800)), with_collective_timeout(impl Into<WallTime>);

    /// The number format: `auto`, `32-true`, `64-true`, `16-mixed`, `bf16-mixed`, `16-true` or `bf16-true`
    precision: Precision = Precision::F32True, with_precision(Precision);

    /// What the loss is multiplied with in `16-mixed`: `dynamic`, `dynamic:N`, or a number
    loss_scale: LossScale = LossScale::DEFAULT, with_loss_scale(LossScale);

    /// Parts of the model whose products are computed in 32 bits in a mixed precision, by path (`head.*`)
    full_precision: Paths = Paths::none(), with_full_precision(impl Into<Paths>);

    /// Where all randomness starts from
    seed: u64 = 42, with_seed(u64);

    /// Refuse operations whose result can differ from run to run; on the CPU there are none
    deterministic: bool = false, with_deterministic(bool);

    /// Stop after this many epochs; 1000 unless `max_steps` or `max_time` is set
    max_epochs: Option<u64> = None, with_max_epochs(impl Into<Option<u64>>);

    /// Stop after this many optimizer steps
    max_steps: Option<u64> = None, with_max_steps(impl Into<Option<u64>>);

    /// Stop after this long: `90s`, `1h30m`, or `DD:HH:MM:SS`
    ///
    /// What a resumed run had before counts.
    max_time: Option<WallTime> = None, with_max_time(impl Into<Option<WallTime>>);

    /// Let nothing stop the run early before this many epochs
    min_epochs: Option<u64> = None, with_min_epochs(impl Into<Option<u64>>);

    /// Let nothing stop the run early before this many optimizer steps
    min_steps: Option<u64> = None, with_min_steps(impl Into<Option<u64>>);

    /// Train on this much of each epoch: batches (`10`), or a fraction with a point (`0.5`)
    limit_train_batches: Limit = Limit::ALL, with_limit_train_batches(Limit);

    /// Validate on this much of the validation data
    limit_val_batches: Limit = Limit::ALL, with_limit_val_batches(Limit);

    /// Test on this much of the test data
    limit_test_batches: Limit = Limit::ALL, with_limit_test_batches(Limit);

    /// Predict this much of the prediction data
    limit_predict_batches: Limit = Limit::ALL, with_limit_predict_batches(Limit);

    /// Train and validate on the first batches of each loader, unshuffled, to see the model overfit; 0 is off
    overfit_batches: Limit = Limit::NONE, with_overfit_batches(Limit);

    /// Try every loop with this many batches, once, without logs and checkpoints; alone it means 1
    fast_dev_run: FastDevRun = FastDevRun::OFF, with_fast_dev_run(impl Into<FastDevRun>);

    /// Validate this often: a fraction of the epoch (`0.25`), batches (`500`), or a time (`10m`)
    ///
    /// Batches are counted across epochs, as the training data need not end at a multiple of them.
    val_check_interval: ValCheckInterval = ValCheckInterval::Fraction(1.0), with_val_check_interval(ValCheckInterval);

    /// Validate only in every n-th epoch
    check_val_every_n_epoch: u64 = 1, with_check_val_every_n_epoch(u64);

    /// Validate this many batches before training, to find mistakes early; `all` (or -1) for all, 0 is off
    num_sanity_val_steps: SanitySteps = SanitySteps::Batches(2), with_num_sanity_val_steps(SanitySteps);

    /// Give step values to the loggers every n optimizer steps
    log_every_n_steps: u64 = 50, with_log_every_n_steps(u64);

    /// Average the gradients of this many batches for one optimizer step
    accumulate_grad_batches: u64 = 1, with_accumulate_grad_batches(u64);

    /// Clip gradients: to a global norm (`1.0` or `norm:1.0`), or each entry (`value:0.5`)
    gradient_clip: Option<GradientClip> = None, with_gradient_clip(impl Into<Option<GradientClip>>);

    /// Log the gradients' norm of each of the model's `parts`, or of each of its `layers`, beside the global one
    log_grad_norms: GradNorms = GradNorms::Off, with_log_grad_norms(GradNorms);

    /// Give histograms of all parameters and gradients to the loggers that show them, with step values
    log_histograms: bool = false, with_log_histograms(bool);

    /// Log throughput, memory, use of the devices and energy with step values
    log_system_metrics: bool = false, with_log_system_metrics(bool);

    /// Average the weights over the steps: `ema:0.999`, or `swa` from 80 % of the epochs on
    weight_averaging: Option<WeightAveraging> = None, with_weight_averaging(impl Into<Option<WeightAveraging>>);

    /// Compute the activations of a model's blocks again in the backward pass, to need less memory
    ///
    /// Of models that say what their blocks are, with `StepContext::checkpoint_blocks`.
    gradient_checkpointing: bool = false, with_gradient_checkpointing(bool);

    /// Keep the optimizers' state in the host's memory between two steps; for GPUs
    offload_optimizer: bool = false, with_offload_optimizer(bool);

    /// Stop at the first NaN or infinite number, and name its layer; slow
    detect_anomaly: bool = false, with_detect_anomaly(bool);

    /// The folder under which each run makes its own `version_N` folder
    run_dir: PathBuf = PathBuf::from("runs"), with_run_dir(impl Into<PathBuf>);

    /// How progress is shown: `auto`, `bar`, `plain` lines, or `off`
    progress: ProgressMode = ProgressMode::Auto, with_progress(ProgressMode);

    /// Show a full screen with curves in place of the progress bar
    dashboard: bool = false, with_dashboard(bool);

    /// Tell where the time goes: `simple` for a table, `trace` for every span as well
    profiler: Option<ProfilerMode> = None, with_profiler(impl Into<Option<ProfilerMode>>);

    /// Serve the run's values to Prometheus at this address (`127.0.0.1:9464`)
    metrics_addr: Option<SocketAddr> = None, with_metrics_addr(impl Into<Option<SocketAddr>>);

    /// Print the model's parts and their parameter counts at the start
    model_summary: bool = true, with_model_summary(bool);

    /// Write checkpoints
    checkpointing: bool = true, with_checkpointing(bool);

    /// Also write a checkpoint every n optimizer steps
    checkpoint_every_n_steps: Option<u64> = None, with_checkpoint_every_n_steps(impl Into<Option<u64>>);

    /// Keep the best checkpoints by this logged value, smaller first; `max:val/acc` for larger first
    ///
    /// This and the settings beside it are for the checkpoints that every run writes; a program with a
    /// `ModelCheckpoint` of its own may leave them open.
    monitor: Option<Monitor> = None, with_monitor(impl Into<Option<Monitor>>);

    /// Keep so many of the best checkpoints, beside the last; `all` (or -1) for every one; 1 unless set
    save_top_k: Option<SaveTopK> = None, with_save_top_k(impl Into<Option<SaveTopK>>);

    /// Write checkpoints to the disk while training goes on
    checkpoint_in_background: bool = false, with_checkpoint_in_background(bool);

    /// Go on from a checkpoint: `last`, `best`, or its path; with `last` and none there, start anew
    ///
    /// A job of SLURM looks among its own runs first, and a task of an array among those alone; a job
    /// that SLURM has requeued goes on from its last checkpoint by itself.
    resume: Option<Resume> = None, with_resume(impl Into<Option<Resume>>);

    /// Refuse to resume inexactly: from an older checkpoint because the newest is damaged, or with another seed
    resume_strict: bool = false, with_resume_strict(bool);

    /// The loggers, with commas between them: csv, jsonl, tensorboard, mlflow; `none` for none
    logger: LoggerNames = LoggerNames::from(["csv"]), with_logger(impl Into<LoggerNames>);
}

impl TrainerConfig {
    /// The epochs of a run that nothing else ends, as in Lightning.
    pub const DEFAULT_MAX_EPOCHS: u64 = 1000;

    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of epochs after which training ends: `max_epochs`, or
    /// [`DEFAULT_MAX_EPOCHS`](Self::DEFAULT_MAX_EPOCHS) when `max_steps` and `max_time` are unset
    /// too. `None` is no limit.
    pub fn epoch_limit(&self) -> Option<u64> {
        let endless = self.max_steps.is_none() && self.max_time.is_none();
        self.max_epochs
            .or(endless.then_some(Self::DEFAULT_MAX_EPOCHS))
    }

    /// Reads a file over the defaults: `.toml`, `.json`, or `.yaml` and `.yml` (feature `yaml`).
    ///
    /// # Errors
    /// The file cannot be read, is not of its format, has an unknown key or an impossible value,
    /// or [`check`](Self::check) fails.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let mut layers = Layers::over(Self::default());
        layers.add_file(path.as_ref())?;
        layers.finish()
    }

    /// Reads TOML over the defaults.
    ///
    /// ```
    /// use firebox::config::{Limit, TrainerConfig};
    ///
    /// let config = TrainerConfig::from_toml_str("max_epochs = 3\nlimit_val_batches = 0.5")?;
    /// assert_eq!(config.limit_val_batches, Limit::Fraction(0.5));
    ///
    /// let error = TrainerConfig::from_toml_str("max_epochs = -3").unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "`max_epochs` is -3; use a whole number from 0 (below 2^63), or leave it out (`none`)",
    /// );
    /// # Ok::<(), firebox::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_toml_str(text: &str) -> Result<Self> {
        let mut layers = Layers::over(Self::default());
        layers.add_toml(text)?;
        layers.finish()
    }

    /// The settings as TOML, every set one on a line, which [`from_toml_str`](Self::from_toml_str)
    /// reads back.
    ///
    /// # Errors
    /// A value that TOML cannot hold; [`check`](Self::check) names it.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| {
            Error::config("the configuration cannot be written as TOML").with_source(e)
        })
    }

    /// Writes [`to_toml`](Self::to_toml) to a file whose folder exists.
    ///
    /// # Errors
    /// As [`to_toml`](Self::to_toml), or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_toml()?)
            .map_err(|e| Error::io("write the configuration to", path, e))
    }
}
