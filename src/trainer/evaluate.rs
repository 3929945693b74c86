//! Validation, test and prediction.

use super::ranks::Ranks;
use super::{Trainer, ask, effective, ended_with, no_loader};
use crate::config::{ProgressMode, TrainerConfig};
use crate::data::{DataModule, Loader};
use crate::distributed::World;
use crate::error::{ErrorKind, Result};
use crate::fabric::{Fabric, replica};
use crate::files::write_whole;
use crate::logger::RunEnd;
use crate::loops::Run;
use crate::loops::evaluate::{self, Prediction};
use crate::metric::Metrics;
use crate::module::{PredictModule, TrainModule};
use crate::progress::Stage;
use crate::{output, panics, table};
use burn::tensor::backend::AutodiffBackend;
use std::sync::{Arc, Mutex, PoisonError};

impl<M: TrainModule> Trainer<M> {
    /// Validates the model on the data module's validation loader.
    ///
    /// # Errors
    /// No validation loader, or what the data or a step reports.
    pub fn validate(&mut self, model: &M, data: &mut impl DataModule<M>) -> Result<Metrics> {
        self.evaluate(model, data, Stage::Validate)
    }

    /// Tests the model on the data module's test loader.
    ///
    /// # Errors
    /// No test loader, or what the data or a step reports.
    pub fn test(&mut self, model: &M, data: &mut impl DataModule<M>) -> Result<Metrics> {
        self.evaluate(model, data, Stage::Test)
    }

    /// What the model predicts for each batch, in the loader's order. Devices take the batches in
    /// turn. Of several processes each gets what its own devices have predicted.
    ///
    /// # Errors
    /// What the data or a step reports.
    pub fn predict<I: Send + 'static, O: Send + 'static>(
        &mut self,
        model: &M,
        loader: &Loader<<M::Backend as AutodiffBackend>::InnerBackend, I>,
    ) -> Result<Vec<O>>
    where
        M::Eval: PredictModule<Input = I, Output = O>,
    {
        let gathered = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&gathered);
        self.predict_to(model, loader, move |prediction: Prediction<O>| {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((prediction.batch, prediction.output));
            Ok(())
        })?;
        let mut all = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        all.sort_by_key(|(batch, _)| *batch);
        Ok(all.drain(..).map(|(_, output)| output).collect())
    }

    /// Predicts, and gives each batch's prediction to `write` as soon as it is there: every device
    /// calls it by itself, in the order of its own batches, and nothing is kept in memory.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use firebox::testing::{Line, Cpu, line_data};
    /// # use firebox::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let folder = dir.path().to_owned();
    /// # let (cpu, config) = (Default::default(), TrainerConfig::new());
    /// # let model = Line::<Cpu>::new(&cpu);
    /// // A file for each batch.
    /// let mut trainer = Trainer::new(config, cpu).with_devices([cpu, cpu]);
    /// trainer.predict_to(&model, &line_data().batch_size(8), move |prediction| {
    ///     let output: Tensor<_, 2> = prediction.output;
    ///     let text = format!("{:?}\n{}", prediction.samples, output.into_data());
    ///     let file = folder.join(format!("batch-{}.txt", prediction.batch));
    ///     std::fs::write(file, text).context("writing predictions")
    /// })?;
    /// # assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the data, a step or `write` reports.
    pub fn predict_to<I: Send + 'static, O: Send + 'static>(
        &mut self,
        model: &M,
        loader: &Loader<<M::Backend as AutodiffBackend>::InnerBackend, I>,
        write: impl Fn(Prediction<O>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()>
    where
        M::Eval: PredictModule<Input = I, Output = O>,
    {
        let config = effective(&self.config)?;
        loader.check().map_err(|e| e.context("predict loader"))?;
        let batches = loader.num_batches(config.seed, 0)?;
        let limit = config.limit_predict_batches.resolve(batches, "predict")?;
        let world = World::join(config.num_nodes, config.collective_timeout.as_duration())?;
        let model = &Fabric::from_config(&config, self.device()).evaluated(model)?;
        let ranks = self.ranks(&world, &config, model, Some(loader.global_batch_size()))?;
        let write = Arc::new(write);
        let others = ranks.start(|fabric| {
            let (config, loader, write) = (config.clone(), loader.clone(), Arc::clone(&write));
            let model = replica(model, fabric.device())?;
            Ok(Box::new(move |fabric| {
                let mut run = Run::<M>::new(&config, fabric, &mut [], &mut []);
                evaluate::predict(&mut run, &model, &loader, limit, &*write)
            }))
        })?;
        let predicted = self.with_progress(&config, &ranks, |run| {
            evaluate::predict(run, model, loader, limit, &*write)
        });
        world.told(ended_with(predicted, others.wait()))
    }

    fn evaluate(
        &mut self,
        model: &M,
        data: &mut impl DataModule<M>,
        stage: Stage,
    ) -> Result<Metrics> {
        let config = effective(&self.config)?;
        let world = World::join(config.num_nodes, config.collective_timeout.as_duration())?;
        let metrics = self.evaluate_in(&world, &config, model, data, stage);
        world.told(metrics)
    }

    fn evaluate_in(
        &mut self,
        world: &World,
        config: &TrainerConfig,
        model: &M,
        data: &mut impl DataModule<M>,
        stage: Stage,
    ) -> Result<Metrics> {
        let name = stage.prefix();
        let model = &Fabric::from_config(config, self.device()).evaluated(model)?;
        world.once_per_node(|| ask("prepare", || data.prepare()))?;
        ask("setup", || data.setup(stage))?;
        let limit = match stage {
            Stage::Test => config.limit_test_batches,
            _ => config.limit_val_batches,
        };
        if limit.is_none() {
            return Ok(Metrics::default());
        }
        let loader = match stage {
            Stage::Test => ask("test_loader", || data.test_loader())?,
            _ => ask("val_loader", || data.val_loader())?,
        }
        .ok_or_else(|| no_loader(data, name))?;
        loader
            .check()
            .map_err(|e| e.context(format!("{name} loader")))?;
        let limit = limit.resolve(loader.num_batches(config.seed, 0)?, name)?;
        let ranks = self.ranks(world, config, model, Some(loader.global_batch_size()))?;
        let is_per_process = data.is_per_process();
        let others = ranks.start(|fabric| {
            let (config, loader) = (config.clone(), loader.clone());
            let model = replica(model, fabric.device())?;
            Ok(Box::new(move |fabric| {
                let mut run = Run::new(&config, fabric, &mut [], &mut []);
                run.is_per_process = is_per_process;
                evaluate::evaluate(&mut run, &model, None, stage, &loader, limit).map(drop)
            }))
        })?;
        let metrics = self.with_progress(config, &ranks, |run| {
            run.is_per_process = is_per_process;
            let metrics = evaluate::evaluate(run, model, None, stage, &loader, limit)?;
            run.log_results()?;
            // They may have begun anew for this.
            match run.finish_loggers(&RunEnd::Finished).into_iter().next() {
                None => Ok(metrics),
                Some(error) => Err(error),
            }
        });
        let metrics = ended_with(metrics, others.wait())?;
        if stage == Stage::Test
            && world.is_root()
            && let Some(run_dir) = self.last_run.as_ref().filter(|dir| dir.is_dir())
        {
            let values = metrics.to_json().to_string();
            write_whole(&run_dir.join("test.json"), values.as_bytes())?;
        }
        let prints = config.progress != ProgressMode::Off && world.is_root();
        if prints && !metrics.is_empty() {
            let rows: Vec<[String; 2]> = metrics
                .iter()
                .map(|(name, value)| [name.to_owned(), table::number(value)])
                .collect();
            output::print(&table::render(["metric", "value"], &rows));
        }
        Ok(metrics)
    }

    /// Runs `pass` with the trainer's callbacks, and a progress bar if there is to be one.
    fn with_progress<T>(
        &mut self,
        config: &TrainerConfig,
        ranks: &Ranks<M::Backend>,
        pass: impl FnOnce(&mut Run<'_, M>) -> Result<T>,
    ) -> Result<T> {
        let given = self.callbacks.len();
        self.add_progress(config);
        let passed = {
            let fabric = ranks.first();
            let mut run = match fabric.group.is_root() {
                true => Run::new(config, fabric, &mut self.callbacks, &mut self.loggers),
                false => Run::new(config, fabric, &mut [], &mut []),
            };
            run.progress = self.progress;
            panics::catch(ErrorKind::User, || pass(&mut run)).map_err(|e| run.first_error(e))
        };
        self.callbacks.truncate(given);
        passed
    }
}
