//! Validation, test and prediction: one pass over a loader.

use super::Run;
use crate::callback::BatchInfo;
use crate::data::{Batch, EpochSpec, Loader};
use crate::error::{ErrorKind, Result};
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
        |cx, ()| {
            let samples = cx.samples();
            book.add(cx.logged, samples as f64)
        },
    )?;
    match book.values("")? {
        // Seen by the hook, then forgotten.
        values if stage == Stage::SanityCheck => run.results = values,
        values => run.set_results(values),
    }
    run.hook(stage, model, optimizers, |c, cx| c.on_eval_end(cx))?;
    Ok(run.results.clone())
}

/// What the model predicts for each of up to `limit` batches, in the loader's order.
pub(crate) fn predict<M: TrainModule<Eval: PredictModule>>(
    run: &mut Run<'_, M>,
    model: &M,
    loader: &Loader<Inner<M>, <M::Eval as PredictModule>::Input>,
    limit: Option<usize>,
) -> Result<Vec<<M::Eval as PredictModule>::Output>> {
    let mut outputs = Vec::new();
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
        |_, output| {
            outputs.push(output);
            Ok(())
        },
    )?;
    run.hook(Stage::Predict, model, None, |c, cx| c.on_eval_end(cx))?;
    Ok(outputs)
}

/// Feeds a loader's batches to `step`, and what comes out to `take`.
#[allow(
    clippy::too_many_arguments,
    reason = "private; each names itself at the two calls"
)]
fn pass<M: TrainModule, I: Send + 'static, T>(
    run: &mut Run<'_, M>,
    model: &M,
    optimizers: Option<&OptimizerSet<M>>,
    stage: Stage,
    loader: &Loader<Inner<M>, I>,
    limit: Option<usize>,
    step: impl Fn(&M::Eval, I, &mut StepContext<Inner<M>>) -> Result<T>,
    mut take: impl FnMut(StepContext<Inner<M>>, T) -> Result<()>,
) -> Result<()> {
    let module = model.valid();
    let device = run.fabric.device().clone();
    let total = loader.num_batches(run.config.seed, 0)?;
    let total = match (total, limit) {
        (Some(total), Some(limit)) => Some(total.min(limit)),
        (total, limit) => total.or(limit),
    };
    run.batch = BatchInfo {
        total,
        ..BatchInfo::default()
    };
    run.hook(stage, model, optimizers, |c, cx| c.on_eval_start(cx))?;
    let spec = EpochSpec::new(device.clone())
        .seed(run.config.seed)
        .limit(limit);
    for batch in loader.iter(spec)? {
        signals::check()?;
        let Batch {
            value,
            samples,
            index,
            ..
        } = batch.map_err(|e| e.context(format!("{} data", stage.prefix())))?;
        run.batch = BatchInfo {
            index,
            total,
            samples,
        };
        let Some(value) = value else { continue };
        let mut cx = StepContext::new(stage, run.progress, samples, device.clone());
        // Draws of an evaluation repeat as well, and apart from those of training.
        run.fabric.seed_batch(u64::MAX, index);
        panics::catch(ErrorKind::User, || step(&module, value, &mut cx))
            .and_then(|output| take(cx, output))
            .map_err(|e| e.context(format!("{} batch {index}", stage.prefix())))?;
        run.hook(stage, model, optimizers, |c, cx| c.on_eval_batch_end(cx))?;
    }
    Ok(())
}
