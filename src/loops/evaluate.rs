//! Validation, test and prediction: one pass over a loader.

use super::Run;
use super::ranks::{Which, values};
use crate::callback::BatchInfo;
use crate::data::{Batch, EpochSpec, Loader};
use crate::error::{ErrorKind, Result};
use crate::fabric::Part;
use crate::metric::{LogBook, Metrics};
use crate::module::{EvalModule, PredictModule, StepContext, TrainModule};
use crate::optim::OptimizerSet;
use crate::panics;
use crate::progress::Stage;
use crate::signals;
use burn::tensor::backend::AutodiffBackend;

type Inner<M> = <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend;

/// Evaluates the model on up to `limit` batches and returns what it logged.
pub(crate) fn evaluate<M: TrainModule>(
    run: &mut Run<'_, M>,
    model: &M,
    optimizers: Option<&OptimizerSet<M>>,
    stage: Stage,
    loader: &Loader<Inner<M>, <M::Eval as EvalModule>::Batch>,
    limit: Option<usize>,
) -> Result<Metrics> {
    let mut book = LogBook::new(stage);
    let step = |module: &M::Eval, batch, cx: &mut StepContext<Inner<M>>| match stage {
        Stage::Test => module.test_step(batch, cx),
        _ => module.validation_step(batch, cx),
    };
    run.results = Metrics::default();
    pass(
        run,
        model,
        optimizers,
        stage,
        loader,
        limit,
        step,
        |cx, (), _, _| {
            let samples = cx.samples();
            book.add(cx.logged, samples as f64)
        },
    )?;
    match values(&run.fabric.group, &mut book, Which::All(""))? {
        // Seen by the hook, then forgotten.
        values if stage == Stage::SanityCheck => run.results = values,
        values => run.set_results(values),
    }
    run.hook(stage, model, optimizers, |c, cx| c.on_eval_end(cx))?;
    Ok(run.results.clone())
}

/// What the model predicts for a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Prediction<O> {
    /// The batch's index in the loader's order, from 0.
    pub batch: usize,
    /// The samples' indices in the data set, in the batch's order; empty for a stream.
    pub samples: Vec<usize>,
    /// The rank that has computed it.
    pub rank: usize,
    /// What `predict_step` gave.
    pub output: O,
}

/// Predicts up to `limit` batches, or of those that ranks take in turn this one's, and gives what
/// comes out to `write`.
pub(crate) fn predict<M: TrainModule<Eval: PredictModule>>(
    run: &mut Run<'_, M>,
    model: &M,
    loader: &Loader<Inner<M>, <M::Eval as PredictModule>::Input>,
    limit: Option<usize>,
    write: &dyn Fn(Prediction<<M::Eval as PredictModule>::Output>) -> Result<()>,
) -> Result<()> {
    let rank = run.fabric.group.rank();
    let step =
        |module: &M::Eval, input, cx: &mut StepContext<Inner<M>>| module.predict_step(input, cx);
    pass(
        run,
        model,
        None,
        Stage::Predict,
        loader,
        limit,
        step,
        |_, output, batch, samples| {
            write(Prediction {
                batch,
                samples,
                rank,
                output,
            })
        },
    )?;
    // Nobody goes on before all is written.
    run.fabric.group.barrier()?;
    run.hook(Stage::Predict, model, None, |c, cx| c.on_eval_end(cx))
}

/// When a signal may end a pass in its midst.
enum Stops {
    Never,
    Always,
    /// Ranks end together: they agree on it at times, up to this batch, which all of them have.
    Together(usize),
}

impl Stops {
    /// How many batches pass between two agreements: few enough to end in time, too many for them to
    /// take time.
    const EVERY: usize = 16;

    /// Of a pass over as many batches as are known, of which ranks have parts or which they take in
    /// turn (`by_batch`).
    fn of<M: TrainModule>(run: &Run<'_, M>, batches: Option<usize>, by_batch: bool) -> Self {
        let ranks = run.fabric.group.size();
        match batches {
            _ if ranks == 1 => Self::Always,
            Some(batches) if !run.is_per_process => Self::Together(match by_batch {
                true => batches / ranks,
                false => batches,
            }),
            _ => Self::Never,
        }
    }

    /// Ends the pass before this rank's batch of this number, if it is to end.
    fn check<M: TrainModule>(&self, run: &Run<'_, M>, turn: usize) -> Result<()> {
        match *self {
            Self::Always => signals::check(),
            Self::Together(batches) if turn < batches && turn.is_multiple_of(Self::EVERY) => {
                run.check_signals_of_all()
            }
            _ => Ok(()),
        }
    }
}

/// Feeds a loader's batches to `step`, and what comes out to `take`.
#[allow(
    clippy::too_many_arguments,
    reason = "private; each names itself at the two calls"
)]
fn pass<M: TrainModule, I: Send + 'static, T: Send>(
    run: &mut Run<'_, M>,
    model: &M,
    optimizers: Option<&OptimizerSet<M>>,
    stage: Stage,
    loader: &Loader<Inner<M>, I>,
    limit: Option<usize>,
    step: impl Fn(&M::Eval, I, &mut StepContext<Inner<M>>) -> Result<T> + Sync,
    mut take: impl FnMut(StepContext<Inner<M>>, T, usize, Vec<usize>) -> Result<()>,
) -> Result<()> {
    let fabric = run.fabric;
    let mut module = model.valid();
    let device = fabric.device().clone();
    let known = loader.num_batches(run.config.seed, 0)?;
    let known = known.map(|total| limit.map_or(total, |limit| total.min(limit)));
    let total = known.or(limit);
    let by_batch = stage == Stage::Predict;
    let stops = Stops::of(run, known, by_batch);
    run.batch = BatchInfo {
        total,
        ..BatchInfo::default()
    };
    run.hook(stage, model, optimizers, |c, cx| c.on_eval_start(cx))?;
    let spec = EpochSpec::new(device.clone())
        .seed(run.config.seed)
        .limit(limit)
        .shard(fabric.group.shard(run.is_per_process))
        .by_batch(by_batch);
    for (turn, batch) in loader.iter(spec)?.enumerate() {
        stops.check(run, turn)?;
        let batch = batch.map_err(|e| e.context(format!("{} data", stage.prefix())))?;
        // In an evaluation nobody waits for the others.
        let part = Part::of(&batch, 1, &fabric.group);
        let Batch {
            value,
            samples,
            global_samples,
            index,
            indices,
            ..
        } = batch;
        run.batch = BatchInfo {
            index,
            total,
            samples: global_samples,
        };
        let Some(value) = value else { continue };
        let cx = StepContext::new(stage, run.progress, samples, device.clone());
        let (module, step) = (&mut module, &step);
        let stepped = fabric.lane.run(move || {
            let mut cx = cx;
            // Draws of an evaluation repeat as well, and apart from those of training.
            let output = fabric.in_part(u64::MAX, &part, || {
                panics::catch(ErrorKind::User, || step(module, value, &mut cx))
            });
            Ok((cx, output?))
        });
        stepped
            .and_then(|(cx, output)| take(cx, output, index, indices))
            .map_err(|e| e.context(format!("{} batch {index}", stage.prefix())))?;
        run.hook(stage, model, optimizers, |c, cx| c.on_eval_batch_end(cx))?;
    }
    Ok(())
}
