//! The data of a run.

use super::Loader;
use crate::error::Result;
use crate::module::{EvalModule, TrainModule};
use crate::progress::Stage;
use burn::tensor::backend::AutodiffBackend;

/// The loader of a module's training batches.
pub type TrainLoader<M> = Loader<<M as TrainModule>::Backend, <M as TrainModule>::Batch>;

/// The loader of a module's validation or test batches.
pub type EvalLoader<M> = Loader<
    <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend,
    <<M as TrainModule>::Eval as EvalModule>::Batch,
>;

/// The data of a run: where it comes from, and a loader for each stage.
///
/// Every method has a default; a stage without a loader is left out. For loaders that are there
/// already, [`Loaders`] is a ready data module.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend, line_data};
/// use firebox::data::TrainLoader;
/// use firebox::prelude::*;
///
/// struct Points;
///
/// impl<B: AutodiffBackend> DataModule<Line<B>> for Points {
///     fn train_loader(&self) -> Result<Option<TrainLoader<Line<B>>>> {
///         Ok(Some(line_data().batch_size(8).shuffle(true)))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a data module for `{M}`",
    label = "needs `impl<B: AutodiffBackend> DataModule<...> for ...`",
    note = "the batches of its loaders must be those that the model's steps take; see `firebox::DataModule`",
    note = "loaders that are there already become a data module with `firebox::data::Loaders::new`"
)]
pub trait DataModule<M: TrainModule> {
    /// Fetches and unpacks what is not there yet. Runs before everything else.
    ///
    /// # Errors
    /// Whatever went wrong; nothing has been trained yet.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Opens what the stage needs. Runs after [`prepare`](Self::prepare), before the loaders are
    /// asked for.
    ///
    /// # Errors
    /// Whatever went wrong; nothing has been trained yet.
    fn setup(&mut self, stage: Stage) -> Result<()> {
        let _ = stage;
        Ok(())
    }

    /// The training data; `fit` needs it.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn train_loader(&self) -> Result<Option<TrainLoader<M>>> {
        Ok(None)
    }

    /// The data to validate on, in `fit` and in `validate`.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn val_loader(&self) -> Result<Option<EvalLoader<M>>> {
        Ok(None)
    }

    /// The data to test on.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn test_loader(&self) -> Result<Option<EvalLoader<M>>> {
        Ok(None)
    }

    /// Whether each process has samples of its own, which no other has: data that may not leave its
    /// owner, or a part of it that was put on each node. Its devices then share its batches among
    /// themselves, `batch_size` is that of a process, and epochs are as long as the longest; those
    /// that are through before wait for the others.
    fn is_per_process(&self) -> bool {
        false
    }

    /// What a checkpoint keeps of this data module. The position in the data is kept in any case.
    fn save_state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Puts back what [`save_state`](Self::save_state) gave, when a run is resumed. Runs after
    /// [`setup`](Self::setup), before the loaders are asked for.
    ///
    /// # Errors
    /// A state that is not of this data.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

/// Loaders as a data module.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend, line_data};
/// use firebox::data::Loaders;
///
/// # fn build<B: AutodiffBackend>() -> Loaders<Line<B>> {
/// Loaders::new(line_data().batch_size(8)).with_val(line_data())
/// # }
/// ```
#[must_use]
pub struct Loaders<M: TrainModule> {
    train: Option<TrainLoader<M>>,
    val: Option<EvalLoader<M>>,
    test: Option<EvalLoader<M>>,
}

impl<M: TrainModule> Loaders<M> {
    /// Training data alone.
    pub fn new(train: TrainLoader<M>) -> Self {
        Self {
            train: Some(train),
            val: None,
            test: None,
        }
    }
    /// Adds validation data.
    pub fn with_val(mut self, val: EvalLoader<M>) -> Self {
        self.val = Some(val);
        self
    }
    /// Adds test data.
    pub fn with_test(mut self, test: EvalLoader<M>) -> Self {
        self.test = Some(test);
        self
    }
}

impl<M: TrainModule> DataModule<M> for Loaders<M> {
    fn train_loader(&self) -> Result<Option<TrainLoader<M>>> {
        Ok(self.train.clone())
    }
    fn val_loader(&self) -> Result<Option<EvalLoader<M>>> {
        Ok(self.val.clone())
    }
    fn test_loader(&self) -> Result<Option<EvalLoader<M>>> {
        Ok(self.test.clone())
    }
}
