//! Lists of numbers that ranks add up.

use crate::error::{Error, ErrorKind, Result};
use std::ops::{AddAssign, MulAssign, Range};

/// The numbers of one tensor, in the format they are summed in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// One list for each tensor, in an order that all ranks share; none where a rank has nothing to add.
pub(crate) type Pieces = Vec<Option<Values>>;

impl Values {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// The numbers of a part; none outside of it.
    pub(super) fn part(&self, part: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(values.get(part).unwrap_or_default().to_vec()),
            Self::F64(values) => Self::F64(values.get(part).unwrap_or_default().to_vec()),
        }
    }

    /// Puts numbers in the place of those from `start` on.
    pub(super) fn put(&mut self, start: usize, part: &Self) -> Result<()> {
        match (self, part) {
            (Self::F32(all), Self::F32(part)) => put(all, start, part),
            (Self::F64(all), Self::F64(part)) => put(all, start, part),
            _ => Err(differ()),
        }
    }

    /// Adds a part of another list to this one, which is as long as the part.
    fn add(&mut self, other: &Self, part: Range<usize>) -> Result<()> {
        match (self, other) {
            (Self::F32(sum), Self::F32(other)) => add(sum, other.get(part)),
            (Self::F64(sum), Self::F64(other)) => add(sum, other.get(part)),
            _ => Err(differ()),
        }
    }

    pub(super) fn append(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Self::F32(all), Self::F32(other)) => all.extend_from_slice(other),
            (Self::F64(all), Self::F64(other)) => all.extend_from_slice(other),
            _ => return Err(differ()),
        }
        Ok(())
    }

    /// An empty list of the same format with room for `len` numbers.
    pub(super) fn empty(&self, len: usize) -> Self {
        match self {
            Self::F32(_) => Self::F32(Vec::with_capacity(len)),
            Self::F64(_) => Self::F64(Vec::with_capacity(len)),
        }
    }

    /// Whether all numbers are 0.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::F32(values) => values.iter().all(|v| *v == 0.0),
            Self::F64(values) => values.iter().all(|v| *v == 0.0),
        }
    }

    /// Brings the numbers into 64 bits.
    pub(crate) fn widen(&mut self) {
        if let Self::F32(values) = self {
            *self = Self::F64(values.iter().copied().map(f64::from).collect());
        }
    }

    /// Multiplies all numbers and returns the sum of their squares.
    pub(crate) fn scale(&mut self, factor: f64) -> f64 {
        match self {
            Self::F32(values) => {
                scale(values, factor as f32);
                squares(values, f64::from)
            }
            Self::F64(values) => {
                scale(values, factor);
                squares(values, |v| v)
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F64(values) => bytemuck::cast_slice(values),
        }
    }

    /// The numbers that [`as_bytes`](Self::as_bytes) gave, in the format of `self`.
    pub(crate) fn read(&self, bytes: &[u8]) -> Option<Self> {
        let size = match self {
            Self::F32(_) => 4,
            Self::F64(_) => 8,
        };
        bytes.len().is_multiple_of(size).then(|| match self {
            Self::F32(_) => Self::F32(bytemuck::pod_collect_to_vec(bytes)),
            Self::F64(_) => Self::F64(bytemuck::pod_collect_to_vec(bytes)),
        })
    }
}

/// The sum of a part of each of these lists, in their order, times `factor`, if any is there; and the
/// sum of its squares.
pub(super) fn sum<'a>(
    lists: impl Iterator<Item = &'a Values> + Clone,
    part: Range<usize>,
    factor: f64,
) -> Result<(Option<Values>, f64)> {
    let Some(first) = lists.clone().next() else {
        return Ok((None, 0.0));
    };
    let (mut sum, mut squares) = (first.empty(part.len()), 0.0);
    // In blocks that stay in the processor's cache from one pass to the next.
    for start in part.clone().step_by(BLOCK) {
        let block = start..(start + BLOCK).min(part.end);
        let mut lists = lists.clone();
        let mut total = lists
            .next()
            .map_or_else(|| first.empty(0), |l| l.part(block.clone()));
        for list in lists {
            total.add(list, block.clone())?;
        }
        squares += total.scale(factor);
        sum.append(&total)?;
    }
    Ok((Some(sum), squares))
}

/// Numbers that fit into a processor's cache several times.
const BLOCK: usize = 2048;

fn put<T: Copy>(all: &mut [T], start: usize, part: &[T]) -> Result<()> {
    let place = all
        .get_mut(start..)
        .and_then(|all| all.get_mut(..part.len()));
    place.ok_or_else(differ)?.copy_from_slice(part);
    Ok(())
}

pub(super) fn differ() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "ranks differ in the shapes or number formats of their tensors; all must build the same \
         model",
    )
}

fn add<T: Copy + AddAssign>(sum: &mut [T], other: Option<&[T]>) -> Result<()> {
    let other = other.filter(|other| other.len() == sum.len());
    let other = other.ok_or_else(differ)?;
    sum.iter_mut().zip(other).for_each(|(sum, v)| *sum += *v);
    Ok(())
}

fn scale<T: Copy + MulAssign>(values: &mut [T], factor: T) {
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Σv² in f64, in several sums, as a single one would wait for each addition to finish.
fn squares<T: Copy>(values: &[T], wide: impl Fn(T) -> f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let sums = chunks.iter().fold([0.0; 8], |sums: [f64; 8], chunk| {
        std::array::from_fn(|i| sums[i] + wide(chunk[i]) * wide(chunk[i]))
    });
    let rest: f64 = rest.iter().map(|v| wide(*v) * wide(*v)).sum();
    sums.iter().sum::<f64>() + rest
}
