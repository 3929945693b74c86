//! A checkpoint of a run that fails.

use super::{Callback, RunContext};
use crate::error::{Error, Result};
use crate::module::TrainModule;
use std::path::PathBuf;

/// Saves a checkpoint when the run fails, beside those that are saved anyway.
///
/// It is what there was before the batch that failed: resumed from, the run repeats that batch. With
/// [`ModelCheckpoint::save_on_exception`](super::ModelCheckpoint::save_on_exception) the `last`
/// checkpoint is brought up to date instead.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::OnExceptionCheckpoint;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(OnExceptionCheckpoint::new())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct OnExceptionCheckpoint {
    dir: Option<PathBuf>,
}

impl OnExceptionCheckpoint {
    /// Saves as `on_exception` in the run's `checkpoints`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Saves in this folder instead.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
}

impl<M: TrainModule> Callback<M> for OnExceptionCheckpoint {
    fn on_exception(&mut self, cx: &mut RunContext<'_, M>, _error: &Error) -> Result<()> {
        let of_run = cx.run_dir().map(|dir| dir.join("checkpoints"));
        let Some(dir) = self.dir.clone().or(of_run) else {
            return Ok(());
        };
        let names = (1..).map(|version| format!("on_exception-v{version}"));
        let names = std::iter::once("on_exception".to_owned()).chain(names);
        let free = names.map(|name| dir.join(name)).find(|path| !path.exists());
        if let Some(path) = free {
            cx.save_checkpoint(path);
        }
        Ok(())
    }
}
