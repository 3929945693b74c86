//! Which checkpoints are kept: a decision, without files.

use crate::config::SaveTopK;
use crate::mode::Mode;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The rules of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Policy {
    /// What is better, if a value is watched.
    pub(super) mode: Option<Mode>,
    pub(super) top_k: SaveTopK,
    /// Whether the newest is kept, whatever it is worth.
    pub(super) keeps_last: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// The best, best first; of equal ones the earlier first.
    pub(super) best: Vec<Kept>,
    pub(super) last: Option<Kept>,
    /// Whether the watched value has ever come.
    pub(super) scored: bool,
    /// Seconds that the run had trained when it was saved last.
    pub(super) saved_at: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) path: PathBuf,
    pub(super) step: u64,
    pub(super) score: Option<f64>,
}

/// What to write and what to remove afterwards.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decision {
    pub(super) save: Option<PathBuf>,
    pub(super) remove: Vec<PathBuf>,
}

impl State {
    /// What to do about the model of this step, whose score may be known.
    pub(super) fn decide(
        &mut self,
        policy: Policy,
        path: PathBuf,
        step: u64,
        score: Option<f64>,
    ) -> Decision {
        let score = score.filter(|s| s.is_finite());
        let written = self.last.as_ref().filter(|last| last.step == step);
        let is_new = written.is_none();
        let kept = Kept {
            path: written.map_or(path, |last| last.path.clone()),
            step,
            score,
        };
        let at = self.rank(policy, step, score);
        let keeps_all = policy.top_k == SaveTopK::All;
        if is_new && at.is_none() && !policy.keeps_last && !keeps_all {
            return Decision::default();
        }
        let mut dropped: Vec<Kept> = Vec::new();
        if is_new {
            dropped.extend(self.last.replace(kept.clone()));
        } else if score.is_some() {
            self.last = Some(kept.clone());
        }
        if let Some(at) = at {
            self.best.insert(at, kept.clone());
            if let SaveTopK::Best(k) = policy.top_k {
                let keep = usize::try_from(k).unwrap_or(usize::MAX);
                dropped.extend(self.best.drain(keep.min(self.best.len())..));
            }
        }
        let still_kept = |path: &Path| {
            let last = self.last.iter().filter(|_| policy.keeps_last);
            let mut kept = self.best.iter().chain(last);
            keeps_all || kept.any(|k| k.path == path)
        };
        let mut remove: Vec<PathBuf> = dropped.into_iter().map(|d| d.path).collect();
        remove.retain(|path| !still_kept(path));
        // It may have been the last and one of the best.
        remove.dedup();
        Decision {
            save: is_new.then_some(kept.path),
            remove,
        }
    }

    /// The place of a score among the best, if it has one.
    fn rank(&self, policy: Policy, step: u64, score: Option<f64>) -> Option<usize> {
        let (mode, score) = policy.mode.zip(score)?;
        if self.best.iter().any(|b| b.step == step) {
            return None;
        }
        // Strictly better: of equal scores the earlier stays in front.
        let better = |b: &Kept| mode.better(score, b.score.unwrap_or(f64::NAN), 0.0);
        let at = self.best.iter().position(better);
        let at = at.unwrap_or(self.best.len());
        match policy.top_k {
            SaveTopK::Best(k) if at as u64 >= k => None,
            _ => Some(at),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The steps kept after these scores, one a step, and the best.
    fn keep(policy: Policy, scores: &[f64]) -> (Vec<u64>, Option<u64>) {
        let (mut state, mut on_disk) = (State::default(), Vec::new());
        for (step, score) in (1..).zip(scores) {
            let path = PathBuf::from(format!("{step}"));
            let decision = state.decide(policy, path, step, Some(*score));
            on_disk.extend(decision.save);
            on_disk.retain(|p| !decision.remove.contains(p));
        }
        let number = |p: &Path| p.to_str().unwrap().parse().unwrap();
        let steps = on_disk.iter().map(|p| number(p)).collect();
        let best = state.best.first().map(|kept| number(&kept.path));
        (steps, best)
    }

    const NAN: f64 = f64::NAN;

    fn watching(mode: Mode, k: i64) -> Policy {
        Policy {
            mode: Some(mode),
            top_k: k.into(),
            keeps_last: true,
        }
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
        let (kept, _) = keep(watching(Mode::Max, -1), &[1., 5., 3.]);
        assert_eq!(kept, vec![1, 2, 3]);
    }

    #[test]
    fn without_the_last_only_the_best_are_written() {
        let best_alone = |k| Policy {
            keeps_last: false,
            ..watching(Mode::Max, k)
        };
        let (kept, best) = keep(best_alone(2), &[1., 5., 3., 4., 2.]);
        assert_eq!((kept, best), (vec![2, 4], Some(2)));
        let mut state = State::default();
        for (step, score) in [(1, 5.), (2, 3.), (3, 4.)] {
            let decision = state.decide(best_alone(1), format!("{step}").into(), step, Some(score));
            assert_eq!(decision.save.is_some(), step == 1);
        }
    }

    #[test]
    fn what_was_both_last_and_best_is_removed_once() {
        let (mut state, policy) = (State::default(), watching(Mode::Min, 1));
        state.decide(policy, "1".into(), 1, Some(2.0));
        let second = state.decide(policy, "2".into(), 2, Some(1.0));
        assert_eq!(second.remove, [PathBuf::from("1")]);
    }

    #[test]
    fn one_step_is_written_once_and_scored_later() {
        let (mut state, policy) = (State::default(), watching(Mode::Min, 1));
        let first = state.decide(policy, "a".into(), 4, None);
        assert_eq!(first.save, Some("a".into()));
        let second = state.decide(policy, "b".into(), 4, Some(0.5));
        assert_eq!(second, Decision::default());
        assert_eq!(state.best.first().unwrap().path, PathBuf::from("a"));
    }
}
