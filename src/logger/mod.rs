//! Where a run's values go.

mod csv;
mod file;
mod jsonl;
mod media;
#[cfg(feature = "mlflow")]
mod mlflow;
#[cfg(feature = "tensorboard")]
mod tensorboard;

pub use csv::CsvLogger;
pub use jsonl::JsonlLogger;
pub use media::{Channels, Histogram, Image, Media};
#[cfg(feature = "mlflow")]
pub use mlflow::{MlflowLogger, Sent, send_spooled};
#[cfg(feature = "tensorboard")]
pub use tensorboard::TensorBoardLogger;

use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::module::short_type_name;

/// Takes the values of a run: one row a logged step, epoch, validation or test.
///
/// ```
/// use firebox::logger::{Logger, Row};
/// use firebox::prelude::*;
///
/// /// Prints every row.
/// struct Print;
///
/// impl Logger for Print {
///     fn log(&mut self, row: &Row<'_>) -> Result<()> {
///         println!("step {}: {:?}", row.step, row.values);
///         Ok(())
///     }
/// }
/// ```
pub trait Logger {
    /// Takes the run's settings, before the first row.
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run.
    fn log_config(&mut self, config: &TrainerConfig) -> Result<()> {
        let _ = config;
        Ok(())
    }

    /// Takes what the model was built with
    /// ([`Trainer::with_hyper_parameters`](crate::Trainer::with_hyper_parameters)), before the first
    /// row; null if nobody has said.
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run.
    fn log_hyper_parameters(&mut self, values: &serde_json::Value) -> Result<()> {
        let _ = values;
        Ok(())
    }

    /// Takes a row.
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run.
    fn log(&mut self, row: &Row<'_>) -> Result<()>;

    /// Takes a histogram, an image or a text.
    ///
    /// # Errors
    /// Whatever went wrong; it ends the run.
    fn log_media(&mut self, step: u64, name: &str, media: &Media) -> Result<()> {
        let _ = (step, name, media);
        Ok(())
    }

    /// Whether [`log_media`](Self::log_media) does anything; if no logger's does, histograms are not
    /// computed.
    fn takes_media(&self) -> bool {
        false
    }

    /// What a checkpoint keeps of this logger.
    fn save_state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Puts back what [`save_state`](Self::save_state) gave, before the first row. The run goes on
    /// from there, so that rows logged after it come again.
    ///
    /// # Errors
    /// A state that is not of this logger.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// What errors call it: the type's name.
    fn name(&self) -> &str {
        short_type_name::<Self>()
    }

    /// Writes everything out. Called once, however the run has ended.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn finish(&mut self, end: &RunEnd<'_>) -> Result<()> {
        let _ = end;
        Ok(())
    }
}

/// How a run has ended.
#[derive(Debug, Clone, Copy)]
pub enum RunEnd<'a> {
    /// It has trained as long as it was to, or a callback has stopped it.
    Finished,
    /// A signal asked the process to end.
    Interrupted,
    /// It failed.
    Failed(&'a Error),
}

/// Values that belong to one moment of a run.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Optimizer steps taken.
    pub step: u64,
    /// The epoch's index, from 0.
    pub epoch: u64,
    /// The values by name.
    pub values: &'a Metrics,
}
