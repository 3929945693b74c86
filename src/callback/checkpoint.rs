//! Decides when a checkpoint is written and which ones are kept.

use super::{Callback, RunContext};
use crate::error::{Error, Result};
use crate::metric::Mode;
use crate::module::TrainModule;
use crate::progress::Stage;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Writes checkpoints: always the last one, and the best `save_top_k` of a watched value.
///
/// Each checkpoint is a folder `checkpoints/epoch=E-step=S` in the run's folder. The previous one
/// is removed only after the next one is complete, and only what this callback wrote is ever
/// removed. By default a checkpoint is written after every epoch, and at the end of the run
/// wherever that is.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
/// trainer.with_callback(ModelCheckpoint::new().monitor("val/acc", Mode::Max).save_top_k(3))
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ModelCheckpoint {
    monitor: Option<(String, Mode)>,
    save_top_k: Option<usize>,
    every_n_epochs: u64,
    every_n_steps: Option<u64>,
    save_on_exception: bool,
    /// Whether the watched value has ever come.
    scored: bool,
    state: State,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// The best, best first; of equal ones the earlier first.
    best: Vec<Kept>,
    last: Option<Kept>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    path: PathBuf,
    step: u64,
    score: Option<f64>,
}

/// What to write and what to remove afterwards.
#[derive(Debug, Default, PartialEq)]
struct Decision {
    save: Option<PathBuf>,
    remove: Vec<PathBuf>,
}

impl Default for ModelCheckpoint {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelCheckpoint {
    /// Keeps the last checkpoint, written after every epoch and at the end.
    pub fn new() -> Self {
        Self {
            monitor: None,
            save_top_k: Some(1),
            every_n_epochs: 1,
            every_n_steps: None,
            save_on_exception: true,
            scored: false,
            state: State::default(),
        }
    }
    /// Keeps the best by this logged value, written whenever the value is new. A value that is not
    /// finite is never the best.
    pub fn monitor(mut self, name: impl Into<String>, mode: Mode) -> Self {
        self.monitor = Some((name.into(), mode));
        self
    }
    /// How many of the best to keep beside the last (1 unless set; it needs a
    /// [`monitor`](Self::monitor)).
    pub fn save_top_k(mut self, k: usize) -> Self {
        self.save_top_k = Some(k);
        self
    }
    /// Keeps every checkpoint.
    pub fn save_all(mut self) -> Self {
        self.save_top_k = None;
        self
    }
    /// Writes after every `n`-th epoch; 0 turns that off.
    pub fn every_n_epochs(mut self, n: u64) -> Self {
        self.every_n_epochs = n;
        self
    }
    /// Also writes after every `n`-th optimizer step; 0 turns that off.
    pub fn every_n_steps(mut self, n: u64) -> Self {
        self.every_n_steps = (n > 0).then_some(n);
        self
    }
    /// Whether a run that fails leaves a checkpoint of its last step (it does by default).
    pub fn save_on_exception(mut self, save: bool) -> Self {
        self.save_on_exception = save;
        self
    }

    /// What to do about the model of this step, whose score may be known.
    fn decide(&mut self, path: PathBuf, step: u64, score: Option<f64>) -> Decision {
        let score = score.filter(|s| s.is_finite());
        let written = self.state.last.as_ref().filter(|last| last.step == step);
        let kept = Kept {
            path: written.map_or(path, |last| last.path.clone()),
            step,
            score,
        };
        let save = written.is_none().then(|| kept.path.clone());
        let mut dropped: Vec<Kept> = Vec::new();
        if save.is_some() {
            dropped.extend(self.state.last.replace(kept.clone()));
        }
        if let (Some((_, mode)), Some(score)) = (&self.monitor, score)
            && !self.state.best.iter().any(|b| b.step == step)
        {
            // Strictly better: of equal scores the earlier stays in front.
            let better = |b: &Kept| mode.better(score, b.score.unwrap_or(f64::NAN), 0.0);
            let at = self.state.best.iter().position(better);
            let at = at.unwrap_or(self.state.best.len());
            self.state.best.insert(at, kept);
            let keep = self.save_top_k.unwrap_or(usize::MAX);
            let keep = keep.min(self.state.best.len());
            dropped.extend(self.state.best.drain(keep..));
        }
        let still_kept = |path: &Path| {
            let kept = self.state.best.iter().chain(&self.state.last);
            self.save_top_k.is_none() || kept.into_iter().any(|k| k.path == path)
        };
        let mut remove: Vec<PathBuf> = dropped.into_iter().map(|d| d.path).collect();
        remove.retain(|path| !still_kept(path));
        // It may have been the last and one of the best.
        remove.dedup();
        Decision { save, remove }
    }

    fn act<M: TrainModule>(&mut self, cx: &mut RunContext<'_, M>, epoch: u64, score: Option<f64>) {
        let Some(run_dir) = cx.run_dir() else { return };
        let step = cx.progress().global_step;
        let name = format!("epoch={epoch}-step={step}");
        let path = run_dir.join("checkpoints").join(name);
        let decision = self.decide(path, step, score);
        decision
            .save
            .into_iter()
            .for_each(|p| cx.save_checkpoint(p));
        let removes = decision.remove.into_iter();
        removes.for_each(|p| cx.remove_checkpoint(p));
    }

    /// The watched value, if it is among what has just ended.
    fn score<M: TrainModule>(&mut self, cx: &RunContext<'_, M>) -> Option<f64> {
        let (name, _) = self.monitor.as_ref()?;
        let score = cx.fresh(name);
        self.scored |= score.is_some();
        score
    }
}

impl<M: TrainModule> Callback<M> for ModelCheckpoint {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.progress().total_batches == 0 {
            self.state = State::default();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let step = cx.progress().global_step;
        let stepped = cx.step_outcome().is_some();
        if stepped
            && self
                .every_n_steps
                .is_some_and(|n| step > 0 && step.is_multiple_of(n))
        {
            self.act(cx, cx.progress().epoch, None);
        }
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.stage() == Stage::Validate
            && let Some(score) = self.score(cx)
        {
            self.act(cx, cx.progress().epoch, Some(score));
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let score = self.score(cx);
        let due = self.every_n_epochs > 0
            && (cx.progress().epoch + 1).is_multiple_of(self.every_n_epochs);
        if due || score.is_some() {
            self.act(cx, cx.progress().epoch, score);
        }
        match &self.monitor {
            Some((name, _)) if !self.scored => cx.check_monitor("ModelCheckpoint", name),
            _ => Ok(()),
        }
    }

    fn on_exception(&mut self, cx: &mut RunContext<'_, M>, _error: &Error) -> Result<()> {
        if self.save_on_exception && cx.progress().global_step > 0 {
            self.act(cx, cx.progress().epoch, None);
        }
        Ok(())
    }

    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        // The last epoch has been counted by now; its index is one less.
        let epochs = cx.progress().epoch.max(1);
        if cx.progress().global_step > 0 {
            self.act(cx, epochs - 1, None);
        }
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.state)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.state = State::deserialize(state).map_err(|e| {
            Error::config("the state of ModelCheckpoint cannot be read").with_source(e)
        })?;
        Ok(())
    }

    fn best_checkpoint(&self) -> Option<&Path> {
        self.state.best.first().map(|kept| kept.path.as_path())
    }

    fn last_checkpoint(&self) -> Option<&Path> {
        self.state.last.as_ref().map(|kept| kept.path.as_path())
    }

    fn writes_checkpoints(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The steps kept after these scores, one a step, and the best.
    fn keep(mut policy: ModelCheckpoint, scores: &[f64]) -> (Vec<u64>, Option<u64>) {
        let mut on_disk = Vec::new();
        for (step, score) in (1..).zip(scores) {
            let path = PathBuf::from(format!("{step}"));
            let decision = policy.decide(path, step, Some(*score));
            on_disk.extend(decision.save);
            on_disk.retain(|p| !decision.remove.contains(p));
        }
        let number = |p: &Path| p.to_str().unwrap().parse().unwrap();
        let steps = on_disk.iter().map(|p| number(p)).collect();
        let best = policy.state.best.first().map(|kept| number(&kept.path));
        (steps, best)
    }

    const NAN: f64 = f64::NAN;

    fn watching(mode: Mode, k: usize) -> ModelCheckpoint {
        ModelCheckpoint::new().monitor("x", mode).save_top_k(k)
    }

    #[test]
    fn a_nan_is_never_the_best_and_blocks_nothing() {
        let (_, best) = keep(watching(Mode::Min, 1), &[NAN, 8., 7., 5.]);
        assert_eq!(best, Some(4));
        let (_, best) = keep(watching(Mode::Max, 1), &[NAN, 5., 7., 8.]);
        assert_eq!(best, Some(4));
        // No best, but the last is there.
        assert_eq!(keep(watching(Mode::Min, 1), &[NAN, NAN]), (vec![2], None));
        let (kept, best) = keep(watching(Mode::Min, 2), &[3., NAN, 2.]);
        assert_eq!((kept, best), (vec![1, 3], Some(3)));
        let (_, best) = keep(watching(Mode::Min, 1), &[f64::INFINITY, 4.]);
        assert_eq!(best, Some(2));
    }

    #[test]
    fn of_equal_scores_the_earlier_stays() {
        let (kept, best) = keep(watching(Mode::Min, 1), &[2., 1., 1., 1.]);
        assert_eq!((kept, best), (vec![2, 4], Some(2)));
    }

    #[test]
    fn top_k_keeps_the_best_and_the_last() {
        let (kept, best) = keep(watching(Mode::Max, 2), &[1., 5., 3., 4., 2.]);
        assert_eq!((kept, best), (vec![2, 4, 5], Some(2)));
        let (kept, _) = keep(watching(Mode::Max, 0), &[1., 5., 3.]);
        assert_eq!(kept, vec![3]);
        let (kept, _) = keep(watching(Mode::Max, 1).save_all(), &[1., 5., 3.]);
        assert_eq!(kept, vec![1, 2, 3]);
    }

    #[test]
    fn what_was_both_last_and_best_is_removed_once() {
        let mut policy = watching(Mode::Min, 1);
        policy.decide("1".into(), 1, Some(2.0));
        let second = policy.decide("2".into(), 2, Some(1.0));
        assert_eq!(second.remove, [PathBuf::from("1")]);
    }

    #[test]
    fn one_step_is_written_once_and_scored_later() {
        let mut policy = watching(Mode::Min, 1);
        let first = policy.decide("a".into(), 4, None);
        assert_eq!(first.save, Some("a".into()));
        assert_eq!(policy.decide("b".into(), 4, Some(0.5)), Decision::default());
        assert_eq!(policy.state.best.first().unwrap().path, PathBuf::from("a"));
    }
}
