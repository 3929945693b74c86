//! What is best found by trying: the learning rate, and the batch size that fits in memory.

mod batch_size;
mod chart;
mod learning_rate;
mod out_of_memory;

pub use batch_size::{BatchSizeMode, BatchSizeSearch};
pub use learning_rate::{LearningRateMode, LearningRatePoint, LearningRateSearch, LearningRates};

use super::resume::{self, Resumed};
use super::{Trainer, effective, fit_loaders};
use crate::config::{Limit, TrainerConfig};
use crate::data::{DataModule, TrainLoader};
use crate::distributed::World;
use crate::error::{Error, Result};
use crate::fabric::{self, Fabric, TrainState, replica};
use crate::loops::Run;
use crate::module::TrainModule;
use crate::progress::Progress;
use burn::tensor::backend::Backend;

/// What the trials of a search start from. Each trains a copy, and leaves nothing behind.
struct Trials<'a, M: TrainModule> {
    config: TrainerConfig,
    fabric: Fabric<M::Backend>,
    model: &'a M,
    resumed: Option<Resumed>,
}

impl<M: TrainModule> Trainer<M> {
    /// Runs a search on the first device.
    fn search<T>(
        &self,
        model: &M,
        search: impl FnOnce(&World, &Trials<'_, M>) -> Result<T>,
    ) -> Result<T> {
        let mut config = effective(&self.config)?;
        config.limit_val_batches = Limit::NONE;
        if config.limit_train_batches.is_none() {
            return Err(Error::config(
                "`limit_train_batches` is 0, so there is nothing to search with; use 1 or more",
            ));
        }
        let world = World::join(config.num_nodes, config.collective_timeout.as_duration())?;
        let trials = self.trials(&world, config, model);
        let found = trials.and_then(|trials| search(&world, &trials));
        world.told(found)
    }

    fn trials<'a>(
        &self,
        world: &World,
        config: TrainerConfig,
        model: &'a M,
    ) -> Result<Trials<'a, M>> {
        let processes = world.processes.size();
        if processes > 1 {
            return Err(Error::config(format!(
                "a search runs on one device, but there are {processes} processes; start it in one"
            )));
        }
        // In the order of `fit`: a model whose weights are yet to be drawn gets those it would get
        // there, and the copies have the same.
        drop(fabric::configured(model)?);
        let fabric = Fabric::from_config(&config, self.device());
        M::Backend::seed(fabric.device(), config.seed);
        model.num_params();
        let dirs = self.callbacks.iter().filter_map(|c| c.checkpoint_dir());
        let dirs: Vec<_> = dirs.collect();
        let resumed = resume::find_for_all(&world.processes, &config, &dirs)?;
        Ok(Trials {
            config,
            fabric,
            model,
            resumed,
        })
    }
}

impl<M: TrainModule> Trials<'_, M> {
    /// A copy of the model with fresh optimizers, or as the checkpoint has them that the run is to
    /// go on from.
    fn state(&self) -> Result<TrainState<M>> {
        let model = replica(self.model, self.fabric.device())?;
        let optimizers = fabric::configured(&model)?;
        let mut state = match &self.resumed {
            None => self.fabric.setup_with(model, optimizers)?,
            Some(Resumed { checkpoint, .. }) => {
                checkpoint.restore(&self.fabric, model, optimizers)?
            }
        };
        state.drop_gradients();
        Ok(state)
    }

    /// At the beginning of the first epoch, or of that in which the checkpoint was written.
    fn run(&self) -> Run<'_, M> {
        let mut run = Run::new(&self.config, &self.fabric, &mut [], &mut []);
        if let Some(Resumed { checkpoint, .. }) = &self.resumed {
            run.progress = Progress {
                batch: 0,
                ..*checkpoint.progress()
            };
        }
        run
    }

    /// The training data, as `fit` gets it.
    fn loader(&self, world: &World, data: &mut impl DataModule<M>) -> Result<TrainLoader<M>> {
        let loaders = fit_loaders(world, &self.config, data, None)?;
        loaders
            .train
            .ok_or_else(|| Error::data("there is no train loader to search with"))
    }
}
