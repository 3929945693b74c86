//! The weighted mean of what all ranks have.
//!
//! Each rank sums its own part of every tensor, over all ranks in their order, and gives the sum to
//! all others. So the work is shared, every number is summed once and in one order, and all ranks
//! end with the same bits.

use super::values::{Pieces, Values, differ, sum};
use super::{Group, Stream};
use crate::error::Result;
use std::sync::Arc;

/// What a rank adds to a mean, or to a sum.
pub(crate) struct Share {
    /// Already multiplied by what they weigh.
    pub(crate) pieces: Pieces,
    pub(crate) weight: f64,
    /// What the first rank tells the others by the way.
    pub(crate) note: Vec<f64>,
}

/// The mean, or the sum, over all ranks.
pub(crate) struct Mean {
    /// None where no rank had anything.
    pub(crate) pieces: Pieces,
    /// Σv² of each piece.
    pub(crate) squares: Vec<f64>,
    /// Over all ranks. If it is 0, a mean has no pieces.
    pub(crate) weight: f64,
    /// The first rank's.
    pub(crate) note: Vec<f64>,
}

/// What becomes of the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Divide {
    ByWeight,
    Not,
}

impl Divide {
    /// What a sum of this weight is multiplied with; nothing is left of one that weighs nothing.
    pub(super) fn factor(self, weight: f64) -> Option<f64> {
        match self {
            Self::Not => Some(1.0),
            Self::ByWeight => (weight > 0.0).then(|| 1.0 / weight),
        }
    }
}

/// A rank's part of every piece's sum, and its part of Σv².
struct Part {
    sums: Pieces,
    squares: Vec<f64>,
}

impl Group {
    /// Σ pieces / Σ weight over all ranks. All of them call it, with pieces for the same tensors.
    ///
    /// # Errors
    /// A rank has failed, or has other tensors.
    pub(crate) fn mean(&self, share: Share) -> Result<Mean> {
        self.reduce(share, Divide::ByWeight)
    }

    /// Σ pieces over all ranks, and Σ weight.
    ///
    /// # Errors
    /// As [`mean`](Self::mean).
    pub(crate) fn sum(&self, pieces: Pieces, weight: f64) -> Result<Mean> {
        let note = Vec::new();
        let share = Share {
            pieces,
            weight,
            note,
        };
        self.reduce(share, Divide::Not)
    }

    fn reduce(&self, share: Share, divide: Divide) -> Result<Mean> {
        let mine = Arc::new(share);
        let (locals, timeout) = (self.locals(), self.timeout);
        let shares = self.meet_within(Stream::Loop, locals, Arc::clone(&mine), timeout)?;
        let local: f64 = shares.iter().map(|share| share.weight).sum();
        let note = shares
            .first()
            .map_or_else(Vec::new, |first| first.note.clone());
        let is_whole = !self.has_other_processes();
        let factor = if is_whole {
            divide.factor(local)
        } else {
            Some(1.0)
        };
        let part = self.part_of(&shares, factor.unwrap_or(0.0))?;
        // The others have theirs to themselves when they come to the next meeting, and may write
        // into them: to fill memory again is much faster than to fill memory that is new.
        drop(shares);
        let parts = self.meet(Stream::Loop, self.locals(), part)?;
        let own = Arc::try_unwrap(mine).map_or_else(|_| Vec::new(), |share| share.pieces);
        if is_whole {
            let mut mean = joined(own, &parts, local, note)?;
            if factor.is_none() {
                mean.pieces.iter_mut().for_each(|piece| *piece = None);
            }
            return Ok(mean);
        }
        let mean = self.lead(Stream::Loop, self.locals(), |group| {
            let sums = joined(own, &parts, local, note)?;
            group.reduce_over_processes(sums, divide)
        })?;
        Ok(Mean {
            pieces: mean.pieces.clone(),
            squares: mean.squares.clone(),
            weight: mean.weight,
            note: mean.note.clone(),
        })
    }

    /// This rank's part of the sum over the replicas of its process, multiplied by `scale`.
    fn part_of(&self, shares: &[Arc<Share>], factor: f64) -> Result<Part> {
        let shard = self.shard(true);
        let pieces = shares.iter().map(|s| s.pieces.len()).max().unwrap_or(0);
        let mut part = Part {
            sums: Vec::with_capacity(pieces),
            squares: Vec::with_capacity(pieces),
        };
        for index in 0..pieces {
            let lists = shares.iter().filter_map(|s| s.pieces.get(index)?.as_ref());
            let len = lists.clone().next().map_or(0, Values::len);
            if lists.clone().any(|list| list.len() != len) {
                return Err(differ());
            }
            let (total, squares) = sum(lists, shard.part(len), factor)?;
            part.sums.push(total);
            part.squares.push(squares);
        }
        Ok(part)
    }
}

/// The parts of all replicas, put together in what was this rank's share.
fn joined(own: Pieces, parts: &[Arc<Part>], weight: f64, note: Vec<f64>) -> Result<Mean> {
    let pieces = parts.first().map_or(0, |part| part.sums.len());
    let mut mean = Mean {
        pieces: Vec::with_capacity(pieces),
        squares: Vec::with_capacity(pieces),
        weight,
        note,
    };
    let mut own = own.into_iter();
    for index in 0..pieces {
        let sums = parts
            .iter()
            .filter_map(|part| part.sums.get(index)?.as_ref());
        mean.pieces.push(match own.next().flatten() {
            Some(own) => Some(filled(own, sums)?),
            None => concatenated(sums)?,
        });
        let squares = parts.iter().filter_map(|part| part.squares.get(index));
        mean.squares.push(squares.sum());
    }
    Ok(mean)
}

/// These numbers in the place of those that are there.
fn filled<'a>(mut whole: Values, parts: impl Iterator<Item = &'a Values>) -> Result<Values> {
    let mut start = 0;
    for part in parts {
        whole.put(start, part)?;
        start += part.len();
    }
    Ok(whole)
}

fn concatenated<'a>(mut lists: impl Iterator<Item = &'a Values> + Clone) -> Result<Option<Values>> {
    let len = lists.clone().map(Values::len).sum();
    let whole = lists.clone().next().map(|first| first.empty(len));
    whole.map_or(Ok(None), |mut whole| {
        lists.try_for_each(|list| whole.append(list))?;
        Ok(Some(whole))
    })
}
