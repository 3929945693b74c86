//! The search for the learning rate.

use super::chart::Chart;
use crate::data::DataModule;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::TrainState;
use crate::loops::trial::train_steps;
use crate::module::{TrainModule, short_type_name};
use crate::panics;
use crate::trainer::Trainer;
use std::ops::ControlFlow;
use std::path::Path;

/// Which learning rates [`Trainer::find_learning_rate`] tries.
///
/// ```
/// use firebox::trainer::{LearningRateMode, LearningRateSearch};
///
/// let search = LearningRateSearch::new()
///     .with_min(0.01)
///     .with_max(0.1)
///     .with_mode(LearningRateMode::Linear);
/// assert_eq!(search.steps, 100);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LearningRateSearch {
    /// The learning rate of the first step. Default: 1e-8.
    pub min: f64,
    /// The learning rate of the last step. Default: 1.0.
    pub max: f64,
    /// The optimizer steps from one to the other. Default: 100.
    pub steps: usize,
    /// How the learning rate grows. Default: exponentially.
    pub mode: LearningRateMode,
    /// The search ends when the smoothed loss is more than so many times the best so far; `None`
    /// never. It takes losses above 0. Default: 4.0.
    pub stop_above: Option<f64>,
}

/// How the learning rate grows from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LearningRateMode {
    /// By the same factor.
    #[default]
    Exponential,
    /// By the same amount.
    Linear,
}

impl Default for LearningRateSearch {
    fn default() -> Self {
        Self {
            min: 1e-8,
            max: 1.0,
            steps: 100,
            mode: LearningRateMode::Exponential,
            stop_above: Some(4.0),
        }
    }
}

impl LearningRateSearch {
    /// The defaults, which are Lightning's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`min`](Self::min).
    #[must_use]
    pub fn with_min(mut self, min: f64) -> Self {
        self.min = min;
        self
    }

    /// Sets [`max`](Self::max).
    #[must_use]
    pub fn with_max(mut self, max: f64) -> Self {
        self.max = max;
        self
    }

    /// Sets [`steps`](Self::steps).
    #[must_use]
    pub fn with_steps(mut self, steps: usize) -> Self {
        self.steps = steps;
        self
    }

    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(mut self, mode: LearningRateMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`stop_above`](Self::stop_above).
    #[must_use]
    pub fn with_stop_above(mut self, stop_above: impl Into<Option<f64>>) -> Self {
        self.stop_above = stop_above.into();
        self
    }

    fn check(&self) -> Result<()> {
        let from_zero = self.mode == LearningRateMode::Linear && self.min == 0.0;
        if !(from_zero || self.min.is_finite() && self.min > 0.0) {
            return Err(Error::config(format!(
                "`min` of the learning rate search is {}; use a finite number above 0",
                self.min
            )));
        }
        if !(self.max.is_finite() && self.max > self.min) {
            return Err(Error::config(format!(
                "`max` of the learning rate search is {}; use a finite number above `min`, {}",
                self.max, self.min
            )));
        }
        if self.steps < 2 {
            return Err(Error::config(format!(
                "`steps` of the learning rate search is {}; use a whole number from 2",
                self.steps
            )));
        }
        if let Some(times) = self.stop_above
            && !(times.is_finite() && times > 1.0)
        {
            return Err(Error::config(format!(
                "`stop_above` of the learning rate search is {times}; use a finite number above 1, \
                 or `None`"
            )));
        }
        Ok(())
    }

    /// The learning rate of this step, from 0.
    fn rate(&self, step: usize) -> f64 {
        let part = step as f64 / (self.steps - 1) as f64;
        let rate = match self.mode {
            LearningRateMode::Exponential => self.min * (self.max / self.min).powf(part),
            LearningRateMode::Linear => self.min + (self.max - self.min) * part,
        };
        // Rounding may lead past the end.
        rate.clamp(self.min, self.max)
    }
}

/// A step of a search for the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LearningRatePoint {
    /// The learning rate.
    pub lr: f64,
    /// The loss of the step, before its update.
    pub loss: f64,
    /// The mean of the losses so far, each with 0.98 of the weight of the next; NaN or infinite where
    /// the loss is, which is left out of the mean.
    pub smoothed: f64,
}

/// What a search for the learning rate has seen.
///
/// ```
/// # use firebox::testing::{Line, Cpu, line_data};
/// # use firebox::data::Loaders;
/// # use firebox::prelude::*;
/// use firebox::trainer::{LearningRateSearch, LearningRates};
///
/// # fn main() -> Result<()> {
/// # let device = Default::default();
/// # let model = Line::<Cpu>::new(&device);
/// # let mut trainer = Trainer::new(TrainerConfig::new(), device);
/// # let mut data = Loaders::new(line_data().batch_size(8));
/// # let charts = tempfile::tempdir().unwrap();
/// # let path = charts.path().join("learning_rates.svg");
/// let search = LearningRateSearch::new().with_max(10.0);
/// let rates: LearningRates = trainer.find_learning_rate(&model, &mut data, search)?;
/// for point in rates.points() {
///     assert!(point.loss > 0.0 && point.lr <= 10.0);
/// }
/// rates.save_svg(path)?; // the curve, to look at
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRates {
    search: LearningRateSearch,
    points: Vec<LearningRatePoint>,
    /// The mean with its weights, which do not sum up to 1 yet.
    mean: f64,
    /// How many losses are in it.
    losses: i32,
    /// The lowest smoothed loss.
    best: Option<f64>,
}

/// Points at the start that no suggestion is made from: there the mean is of a few losses.
const SKIP_START: usize = 10;

/// Points at the end that no suggestion is made from.
const SKIP_END: usize = 1;

/// What a loss weighs in the mean relative to the next one.
const BETA: f64 = 0.98;

impl LearningRates {
    fn new(search: LearningRateSearch) -> Self {
        Self {
            search,
            points: Vec::new(),
            mean: 0.0,
            losses: 0,
            best: None,
        }
    }

    /// Every step, in order.
    pub fn points(&self) -> &[LearningRatePoint] {
        &self.points
    }

    /// The learning rate at which the smoothed loss falls most from step to step: a good one to begin
    /// with, and to let a schedule rise to.
    ///
    /// The first 10 steps and the last do not count, nor do losses that are not finite. `None` if
    /// fewer than two are left, or the loss falls nowhere.
    ///
    /// Look at the curve, too ([`save_svg`](Self::save_svg)): where the losses of batches differ much,
    /// it falls by chance as well, most of all at the start. Larger batches help, or a higher `min`.
    pub fn suggestion(&self) -> Option<f64> {
        self.suggested().map(|point| point.lr)
    }

    fn suggested(&self) -> Option<LearningRatePoint> {
        let end = self.points.len().saturating_sub(SKIP_END);
        let points = self.points.get(SKIP_START..end)?;
        let points: Vec<_> = points.iter().filter(|p| p.smoothed.is_finite()).collect();
        let slope = |index: usize| {
            // At both ends there is a neighbour on one side alone.
            let (before, after) = (index.saturating_sub(1), (index + 1).min(points.len() - 1));
            let fall = points.get(after)?.smoothed - points.get(before)?.smoothed;
            (after > before).then(|| fall / (after - before) as f64)
        };
        let slopes = (0..points.len()).filter_map(|index| Some((index, slope(index)?)));
        let (index, slope) = slopes.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        points.get(index).filter(|_| slope < 0.0).map(|p| **p)
    }

    /// The curve as an SVG picture: the losses, their mean, and the suggestion. It needs nothing else,
    /// and takes the colours of a light or a dark page.
    pub fn to_svg(&self) -> String {
        Chart {
            points: &self.points,
            mode: self.search.mode,
            suggested: self.suggested(),
        }
        .to_svg()
    }

    /// Writes [`to_svg`](Self::to_svg) to a file whose folder exists.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_svg(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_svg()).map_err(|e| Error::io("write the chart to", path, e))
    }

    /// The learning rate of the next step.
    fn next_rate(&self) -> f64 {
        self.search.rate(self.points.len())
    }

    /// Adds a step with its loss; whether the loss is so high that the search is over.
    fn add(&mut self, loss: f64) -> bool {
        let smoothed = match loss.is_finite() {
            false => loss,
            true => {
                self.mean = BETA * self.mean + (1.0 - BETA) * loss;
                self.losses = self.losses.saturating_add(1);
                self.mean / (1.0 - BETA.powi(self.losses))
            }
        };
        self.points.push(LearningRatePoint {
            lr: self.next_rate(),
            loss,
            smoothed,
        });
        let is_over = match (self.search.stop_above, self.best) {
            // One such loss may pass; weights that are not numbers any more stay so.
            (Some(_), Some(_)) if self.has_diverged() => true,
            (Some(times), Some(best)) => best > 0.0 && smoothed > times * best,
            _ => false,
        };
        if smoothed.is_finite() {
            self.best = Some(self.best.map_or(smoothed, |best| best.min(smoothed)));
        }
        is_over
    }

    /// Whether the last three losses were not finite.
    fn has_diverged(&self) -> bool {
        let last = self.points.iter().rev().take(3);
        last.filter(|point| !point.loss.is_finite()).count() == 3
    }
}

impl<M: TrainModule> Trainer<M> {
    /// Tries learning rates from low to high, one for each optimizer step, to
    /// [suggest](LearningRates::suggestion) one to train with.
    ///
    /// A copy of the model is trained, with the optimizers it asks for but without their schedules,
    /// over as many epochs as that takes; from the weights that a fit would start from: the model's,
    /// or those of the checkpoint that the config says to `resume` from. Gradients are accumulated
    /// and clipped as the config says. Everything is as before afterwards, and nothing is written.
    /// With `fast_dev_run` there are as many steps as that says.
    ///
    /// It runs on the first device alone, with the whole of each batch.
    ///
    /// ```
    /// # use firebox::testing::{Line, Cpu, line_data};
    /// # use firebox::data::Loaders;
    /// # use firebox::prelude::*;
    /// use firebox::trainer::LearningRateSearch;
    ///
    /// # fn main() -> Result<()> {
    /// # let device = Default::default();
    /// # let model = Line::<Cpu>::new(&device);
    /// let mut data = Loaders::new(line_data().batch_size(8).shuffle(true));
    /// let mut trainer = Trainer::new(TrainerConfig::new(), device);
    /// let rates = trainer.find_learning_rate(&model, &mut data, LearningRateSearch::new())?;
    /// if let Some(lr) = rates.suggestion() {
    ///     assert!(lr > 1e-8 && lr < 1.0);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A wrong setting; a model that steps its optimizers by hand, or whose parameter groups differ
    /// in their learning rates; several processes; or what a step or the data reports.
    pub fn find_learning_rate(
        &mut self,
        model: &M,
        data: &mut impl DataModule<M>,
        search: LearningRateSearch,
    ) -> Result<LearningRates> {
        search.check()?;
        self.search(model, |world, trials| {
            let mut state = trials.state()?;
            check_optimizers(&state)?;
            let train = trials.loader(world, data)?;
            let steps = trials.config.fast_dev_run.batches();
            let steps = steps.map_or(search.steps, |steps| search.steps.min(steps as usize));
            let mut rates = LearningRates::new(search);
            state.optimizers.fix_rate(rates.next_rate());
            let limit = trials.config.limit_train_batches;
            let mut run = trials.run();
            let trained = panics::catch(ErrorKind::User, || {
                train_steps(&mut run, &mut state, &train, limit, |state, loss| {
                    if rates.add(loss) || rates.points.len() >= steps {
                        return ControlFlow::Break(());
                    }
                    state.optimizers.fix_rate(rates.next_rate());
                    ControlFlow::Continue(())
                })
            });
            trained.map_err(|e| e.context("finding the learning rate"))?;
            Ok(rates)
        })
    }
}

/// One learning rate is searched, for all that is trained.
fn check_optimizers<M: TrainModule>(state: &TrainState<M>) -> Result<()> {
    let name = short_type_name::<M>();
    if state.optimizers.manual {
        return Err(Error::config(format!(
            "`{name}` steps its optimizers by hand, so there is no learning rate to find for it; try \
             some with `fit`"
        )));
    }
    if state.optimizers.base_rate().is_none() {
        return Err(Error::config(format!(
            "the parameter groups of `{name}` have different learning rates, and a search finds one; \
             give all of them the same"
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A curve with these smoothed losses at learning rates 1, 2, 3...
    fn curve(smoothed: impl IntoIterator<Item = f64>) -> LearningRates {
        let points = smoothed.into_iter().enumerate();
        let points = points.map(|(index, smoothed)| LearningRatePoint {
            lr: (index + 1) as f64,
            loss: smoothed,
            smoothed,
        });
        LearningRates {
            points: points.collect(),
            ..LearningRates::new(LearningRateSearch::new())
        }
    }

    /// Ten losses that do not count, then these, then one more that does not.
    fn between(losses: &[f64]) -> LearningRates {
        let start = (0..10).map(|index| 1000.0 - 100.0 * f64::from(index));
        let losses = start.chain(losses.iter().copied());
        curve(losses.chain([-1000.0]))
    }

    #[test]
    fn the_suggestion_is_where_the_loss_falls_most() {
        // Slopes -0.5, -1.0, -2.5, -2.5, -1.0, -0.5, 1.0 between neighbours on both sides.
        let rates = between(&[9.0, 8.5, 7.0, 3.5, 2.0, 1.5, 1.0, 3.5]);
        assert_eq!(rates.suggestion(), Some(13.0));
        let rates = between(&[9.0, 4.0, 4.0, 4.0]);
        assert_eq!(rates.suggestion(), Some(11.0));
        let rates = between(&[9.0, 9.0, 9.0, 4.0]);
        assert_eq!(rates.suggestion(), Some(14.0));
    }

    #[test]
    fn losses_that_stay_no_numbers_end_the_search() {
        let mut rates = LearningRates::new(LearningRateSearch::new());
        // Not before there was another.
        assert!((0..5).all(|_| !rates.add(f64::NAN)));
        assert!(!rates.add(1.0));
        assert!(!rates.add(f64::NAN));
        assert!(!rates.add(f64::NAN));
        assert!(rates.add(f64::NAN));
    }

    #[test]
    fn losses_that_are_not_finite_do_not_count() {
        let rates = between(&[
            9.0,
            f64::NAN,
            8.5,
            7.0,
            f64::INFINITY,
            3.5,
            2.0,
            f64::NAN,
            1.9,
        ]);
        assert_eq!(rates.suggestion(), Some(14.0));
    }

    #[test]
    fn no_suggestion_from_fewer_than_two_losses_or_none_that_fall() {
        assert_eq!(curve([]).suggestion(), None);
        assert_eq!(curve([3.0, 2.0, 1.0]).suggestion(), None);
        assert_eq!(between(&[]).suggestion(), None);
        assert_eq!(between(&[1.0]).suggestion(), None);
        assert_eq!(between(&[1.0, f64::NAN]).suggestion(), None);
        assert_eq!(between(&[2.0, 1.0]).suggestion(), Some(11.0));
        assert_eq!(between(&[1.0, 1.0, 2.0]).suggestion(), None);
    }

    #[test]
    fn learning_rates_go_from_one_end_to_the_other() {
        for mode in [LearningRateMode::Exponential, LearningRateMode::Linear] {
            let search = LearningRateSearch::new()
                .with_min(1e-3)
                .with_max(0.7)
                .with_steps(33)
                .with_mode(mode);
            let rates: Vec<_> = (0..33).map(|step| search.rate(step)).collect();
            assert_eq!((rates[0], rates[32]), (1e-3, 0.7));
            assert!(rates.is_sorted_by(|a, b| a < b));
            assert!(rates.iter().all(|lr| (1e-3..=0.7).contains(lr)));
        }
        let search = LearningRateSearch::new().with_steps(9);
        assert!((search.rate(4) / 1e-4 - 1.0).abs() < 1e-12);
        let search = search.with_mode(LearningRateMode::Linear);
        assert!((search.rate(4) - 0.500_000_005).abs() < 1e-12);
    }

    #[test]
    fn the_mean_is_of_the_losses_so_far() {
        let mut rates = LearningRates::new(LearningRateSearch::new());
        for loss in [2.0, f64::NAN, 1.0] {
            assert!(!rates.add(loss));
        }
        let smoothed: Vec<_> = rates.points().iter().map(|p| p.smoothed).collect();
        assert!((smoothed[0] - 2.0).abs() < 1e-12);
        assert!(smoothed[1].is_nan());
        // (0.98 * 2 + 1) / 1.98
        assert!((smoothed[2] - 2.96 / 1.98).abs() < 1e-12);
    }

    #[test]
    fn a_loss_far_above_the_best_ends_the_search() {
        let mut rates = LearningRates::new(LearningRateSearch::new());
        assert!(!rates.add(1.0));
        assert!(!rates.add(1.0));
        assert!(!rates.add(3.0));
        assert!(rates.add(100.0));
        assert!(rates.add(f64::INFINITY));
        let mut rates = LearningRates::new(LearningRateSearch::new().with_stop_above(None));
        assert!(
            [1.0, 100.0, f64::INFINITY]
                .iter()
                .all(|loss| !rates.add(*loss))
        );
        // A multiple of a loss below 0 is no bound.
        let mut rates = LearningRates::new(LearningRateSearch::new());
        assert!([-1.0, -1.0, 1.0].iter().all(|loss| !rates.add(*loss)));
    }

    #[test]
    fn wrong_settings_are_refused() {
        let search = LearningRateSearch::new();
        for (search, message) in [
            (
                search.with_min(0.0),
                "`min` of the learning rate search is 0; use a finite number above 0",
            ),
            (
                search.with_max(1e-9),
                "`max` of the learning rate search is 0.000000001; use a finite number above `min`, \
                 0.00000001",
            ),
            (
                search.with_steps(1),
                "`steps` of the learning rate search is 1; use a whole number from 2",
            ),
            (
                search.with_stop_above(0.5),
                "`stop_above` of the learning rate search is 0.5; use a finite number above 1, or \
                 `None`",
            ),
        ] {
            let error = search.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert_eq!(error.to_string(), message);
        }
        let from_zero = search.with_min(0.0).with_mode(LearningRateMode::Linear);
        from_zero.check().unwrap();
    }
}
