//! What a run has beside the loop, as its settings ask: loggers, callbacks, its folder, a profiler.

use super::Trainer;
use super::resume::Resumed;
use super::run_dir::{self, RunDir};
#[cfg(all(unix, feature = "dashboard"))]
use crate::callback::Dashboard;
use crate::callback::{
    Callback, DeviceStatsMonitor, EnergyMonitor, ModelCheckpoint, ModelSummary, ProgressBar,
    PrometheusExporter, ThroughputMonitor,
};
use crate::config::{ProfilerMode, ProgressMode, TrainerConfig};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "mlflow")]
use crate::logger::MlflowLogger;
#[cfg(feature = "tensorboard")]
use crate::logger::TensorBoardLogger;
use crate::logger::{CsvLogger, JsonlLogger, Logger};
use crate::module::{TrainModule, short_type_name};
use crate::output::say;
use crate::panics;
use crate::profiler::Profiler;
use std::path::Path;

impl<M: TrainModule> Trainer<M> {
    /// Makes the run's folder, with its settings and the loggers that write there, if anything is
    /// to be written; or takes that of the run that goes on.
    pub(super) fn prepare_run_dir(&mut self, resumed: Option<&Resumed>) -> Result<Option<RunDir>> {
        let config = &self.config;
        let loggers = config.logger.names().iter().map(|name| logger(name));
        let loggers = loggers.collect::<Result<Vec<_>>>()?;
        let checkpoints = config.checkpointing || self.writes_checkpoints();
        let nothing = !checkpoints && loggers.is_empty();
        if nothing || config.fast_dev_run.batches().is_some() {
            return Ok(None);
        }
        let dirs = self.callbacks.iter().filter_map(|c| c.checkpoint_dir());
        dirs.for_each(run_dir::clean);
        let dir = RunDir::open(config, resumed)?;
        for make in loggers {
            self.loggers.push(make(dir.path())?);
        }
        Ok(Some(dir))
    }

    pub(super) fn check_callbacks(&self, config: &TrainerConfig) -> Result<()> {
        for callback in &self.callbacks {
            panics::catch(ErrorKind::User, || callback.check_config(config))
                .map_err(|e| e.context(format!("callback `{}`", callback.name())))?;
        }
        match config.checkpointing && !self.writes_checkpoints() {
            true => Callback::<M>::check_config(&ModelCheckpoint::new(), config),
            false => Ok(()),
        }
    }

    fn writes_checkpoints(&self) -> bool {
        self.callbacks.iter().any(|c| c.writes_checkpoints())
    }

    /// Adds what the config asks for and nobody has given.
    pub(super) fn add_default_callbacks(
        &mut self,
        config: &TrainerConfig,
        run_dir: Option<&Path>,
    ) -> Result<()> {
        self.add_monitors(config, run_dir)?;
        self.add_display(config)?;
        let summary = config.model_summary && config.progress != ProgressMode::Off;
        if summary && !self.has::<ModelSummary>() {
            self.callbacks.push(Box::new(ModelSummary::new()));
        }
        if config.checkpointing && !self.writes_checkpoints() {
            self.callbacks.push(Box::new(ModelCheckpoint::new()));
        }
        Ok(())
    }

    /// Adds what is to be measured beside the model. It comes before what shows values.
    fn add_monitors(&mut self, config: &TrainerConfig, run_dir: Option<&Path>) -> Result<()> {
        if config.log_system_metrics {
            if !self.has::<ThroughputMonitor>() {
                self.callbacks.push(Box::new(ThroughputMonitor::new()));
            }
            if !self.has::<DeviceStatsMonitor>() {
                self.callbacks.push(Box::new(DeviceStatsMonitor::new()));
            }
            if !self.has::<EnergyMonitor>() {
                self.callbacks.push(Box::new(EnergyMonitor::new()));
            }
        }
        if let Some(addr) = config.metrics_addr {
            let run = run_dir.and_then(Path::file_name).unwrap_or_default();
            let exporter = PrometheusExporter::bind(addr, &run.to_string_lossy())?;
            if config.progress != ProgressMode::Off {
                say!("metrics: http://{}/metrics", exporter.addr());
            }
            self.callbacks.push(Box::new(exporter));
        }
        Ok(())
    }

    /// Whether a callback of this type was given.
    fn has<C>(&self) -> bool {
        let name = short_type_name::<C>();
        self.callbacks.iter().any(|c| c.name() == name)
    }

    /// Adds the full screen of a fit, if it is asked for; the bar otherwise.
    fn add_display(&mut self, config: &TrainerConfig) -> Result<()> {
        if !config.dashboard {
            self.add_progress(config);
            return Ok(());
        }
        #[cfg(all(unix, feature = "dashboard"))]
        {
            self.callbacks.push(Box::new(Dashboard::new()));
            Ok(())
        }
        #[cfg(not(all(unix, feature = "dashboard")))]
        Err(Error::config(
            "`dashboard` is true, and this program has none; build it with the feature `dashboard` of \
             firebox, on Unix",
        ))
    }

    pub(super) fn add_progress(&mut self, config: &TrainerConfig) {
        let bar = match config.progress {
            _ if self.has::<ProgressBar>() => return,
            ProgressMode::Off => return,
            ProgressMode::Auto => ProgressBar::new(),
            ProgressMode::Bar => ProgressBar::bar(),
            ProgressMode::Plain => ProgressBar::plain(),
        };
        self.callbacks.push(Box::new(bar));
    }
}

/// Times the run, if it is to be timed.
pub(super) fn profiler(config: &TrainerConfig, run_dir: Option<&Path>) -> Result<Profiler> {
    let Some(mode) = config.profiler else {
        return Ok(Profiler::default());
    };
    let trace = run_dir.filter(|_| mode == ProfilerMode::Trace);
    Profiler::start(trace.map(|dir| dir.join("trace.json")).as_deref())
}

/// Shows where the time went, and writes it into the run's folder.
pub(super) fn write_profile(
    config: &TrainerConfig,
    profiler: &Profiler,
    run_dir: Option<&Path>,
) -> Result<()> {
    let Some(profile) = profiler.profile() else {
        return Ok(());
    };
    if config.progress != ProgressMode::Off {
        say!("{}", profile.render().trim_end());
    }
    if let Some(dir) = run_dir {
        let path = dir.join("profile.json");
        let text =
            serde_json::to_string(&profile).map_err(|e| Error::io("write", &path, e.into()))?;
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    profiler.finish()
}

/// Makes a logger that writes into the run's folder.
type MakeLogger = fn(&Path) -> Result<Box<dyn Logger>>;

/// The logger of this name.
fn logger(name: &str) -> Result<MakeLogger> {
    match name {
        "csv" => Ok(|dir| Ok(Box::new(CsvLogger::new(dir.join("metrics.csv"))))),
        "jsonl" => Ok(|dir| Ok(Box::new(JsonlLogger::new(dir.join("metrics.jsonl"))))),
        #[cfg(feature = "tensorboard")]
        "tensorboard" => Ok(|dir| Ok(Box::new(TensorBoardLogger::new(dir)))),
        #[cfg(not(feature = "tensorboard"))]
        "tensorboard" => Err(not_built_in(name)),
        #[cfg(feature = "mlflow")]
        "mlflow" => Ok(|dir| Ok(Box::new(MlflowLogger::from_env(dir)?))),
        #[cfg(not(feature = "mlflow"))]
        "mlflow" => Err(not_built_in(name)),
        other => Err(Error::config(format!(
            "`logger` is {other}, which does not exist; use csv, jsonl, tensorboard, mlflow or none"
        ))),
    }
}

#[cfg(not(all(feature = "tensorboard", feature = "mlflow")))]
fn not_built_in(name: &str) -> Error {
    Error::config(format!(
        "`logger` is {name}, and this program is built without it; build it with the feature \
         `{name}` of firebox"
    ))
}
