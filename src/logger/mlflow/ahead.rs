//! Points that were logged after the checkpoint to which a run has gone back.

use super::spool::{Entry, Lines, Points, Position, Spool, beside};
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::files::write_whole;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;

/// What MLflow has, or may have, of the part of the run that is repeated now.
///
/// A point cannot be taken back from MLflow, and is known there by its name, step, value and time.
/// So a repeated point with the value it had gets the time it had, and is the same point.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    points: HashMap<(u64, u64, String), VecDeque<Old>>,
}

#[derive(Debug, PartialEq)]
struct Old {
    value: f64,
    time: u64,
    sent: bool,
}

/// What is known of a point that is logged.
#[derive(Debug, PartialEq)]
pub(super) enum Known {
    /// Nothing: it is new.
    New,
    /// It was logged before, at this time.
    Repeated { time: u64, sent: bool },
    /// Another value was logged at this step.
    Differs,
}

impl Ahead {
    /// Takes a spool back to `length`: what was never sent is dropped, as it comes again; rows that
    /// were, or may have been, are moved to `mlflow.ahead.jsonl`.
    ///
    /// # Errors
    /// A file cannot be read or written; nothing is lost then.
    pub(super) fn go_back(spool: &mut Spool, length: u64) -> Result<Self> {
        let path = beside(spool.path(), "ahead.jsonl");
        let mut position = Position::of(spool)?;
        let before = match fs::metadata(&path) {
            Ok(found) => Some(Lines::read(&path, 0, found.len())?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let mut ahead = Self::default();
        let mut seen = HashSet::new();
        let mut text = Vec::new();
        let after = Lines::read(spool.path(), length, position.tried)?;
        let known = before.into_iter().flatten().map(|line| (line, true));
        for (line, was_ahead) in known.chain(after.map(|line| (line, false))) {
            let (entry, end) = line?;
            let Entry::Row(mut points) = entry else {
                continue;
            };
            points.sent |= !was_ahead && end <= position.confirmed;
            let line = serde_json::to_vec(&Entry::Row(points.clone()));
            let line = line.map_err(|e| Error::io("write", &path, e.into()))?;
            if seen.insert(line.clone()) {
                text.extend(line);
                text.push(b'\n');
                ahead.add(points);
            }
        }
        // In this order: if the process dies in between, rows are in both, which harms nothing.
        if !text.is_empty() {
            write_whole(&path, &text)?;
        }
        position.confirmed = position.confirmed.min(length);
        position.tried = position.tried.min(length);
        position.save(spool.path())?;
        spool.cut(length)?;
        Ok(ahead)
    }

    /// Whether a point was logged before. Each that was is given once.
    pub(super) fn take(&mut self, (step, epoch): (u64, u64), key: &str, value: f64) -> Known {
        if self.points.is_empty() {
            return Known::New;
        }
        let Some(olds) = self.points.get_mut(&(step, epoch, key.to_owned())) else {
            return Known::New;
        };
        let same = |old: &Old| old.value == value || (old.value.is_nan() && value.is_nan());
        match olds.iter().position(same).and_then(|at| olds.remove(at)) {
            Some(Old { time, sent, .. }) => Known::Repeated { time, sent },
            None if olds.is_empty() => Known::New,
            None => Known::Differs,
        }
    }

    fn add(&mut self, points: Points) {
        let Points { time, sent, .. } = points;
        for (key, Exact(value)) in points.values {
            let place = (points.step, points.epoch, key);
            let old = Old { value, time, sent };
            self.points.entry(place).or_default().push_back(old);
        }
    }
}
