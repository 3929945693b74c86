//! How much of the data each loop sees, and how often validation comes.

use super::time::WallTime;
use super::value::{SettingValue, read_as_text};
use crate::error::{Error, Result};
use serde::{Serialize, Serializer};
use std::fmt;

/// How much of an epoch a loop sees: a number of batches, or a fraction.
///
/// As text and in files, whole numbers are batches and numbers with a point are fractions: `1` is
/// one batch, `1.0` is everything.
///
/// ```
/// use firebox::config::Limit;
///
/// let half: Limit = "0.5".parse()?;
/// assert_eq!(half.resolve(Some(9), "train")?, Some(4));
/// assert_eq!(Limit::Batches(10).resolve(Some(9), "train")?, Some(9));
/// assert_eq!(Limit::Batches(10).resolve(None, "train")?, Some(10));
///
/// let error = Limit::Fraction(0.1).resolve(Some(9), "val").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "0.1 of the 9 val batches is no batch; use 0.112 or more, or a whole number of batches",
/// );
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// At most this many batches; with 0 the loop does not run and the data is not asked for.
    Batches(usize),
    /// This share of the batches, from 0.0 to 1.0, rounded down.
    Fraction(f64),
}

impl Limit {
    /// Everything.
    pub const ALL: Self = Self::Fraction(1.0);

    /// Nothing.
    pub const NONE: Self = Self::Batches(0);

    /// Whether the limit is zero, as a count or as a fraction.
    pub fn is_none(self) -> bool {
        self == Self::NONE || self == Self::Fraction(0.0)
    }

    /// The number of batches to run when the data has `batches`; `None` is an unknown length, and
    /// as an answer no limit. `name` says whose batches they are, for the message.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config): a fraction above 0 of some batches is less
    /// than one batch, or a fraction between 0.0 and 1.0 is asked of data of unknown length.
    pub fn resolve(self, batches: Option<usize>, name: &str) -> Result<Option<usize>> {
        match (self, batches) {
            (Self::Batches(limit), Some(batches)) => Ok(Some(limit.min(batches))),
            (Self::Batches(limit), None) => Ok(Some(limit)),
            (Self::Fraction(1.0), batches) => Ok(batches),
            (Self::Fraction(0.0), _) => Ok(Some(0)),
            (Self::Fraction(fraction), None) => Err(Error::config(format!(
                "{fraction:?} of the {name} batches is unknown, because the data does not say how \
                 many it has; use 1.0, or a whole number of batches"
            ))),
            (Self::Fraction(fraction), Some(batches)) => match share(batches as f64, fraction) {
                0 if batches > 0 => Err(Error::config(format!(
                    "{fraction:?} of the {batches} {name} batches is no batch; use {:?} or more, or \
                     a whole number of batches",
                    smallest_fraction(batches)
                ))),
                limit => Ok(Some(limit as usize)),
            },
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batches(batches) => write!(f, "{batches}"),
            Self::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl SettingValue for Limit {
    const NAME: &'static str = "BATCHES|FRACTION";
    const ALLOWED: &'static str =
        "a number of batches from 0 (`10`), or a fraction with a point from 0.0 to 1.0 (`0.5`)";

    fn from_text(text: &str) -> Option<Self> {
        if let Ok(batches) = text.parse() {
            return Some(Self::Batches(batches));
        }
        let fraction = fraction(text)?;
        (0.0..=1.0)
            .contains(&fraction)
            .then_some(Self::Fraction(fraction))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Batches(batches) => batches.serialize(serializer),
            Self::Fraction(fraction) => fraction.serialize(serializer),
        }
    }
}

/// A try of every loop with a few batches: one epoch, no logs, no checkpoints.
///
/// As text: a number of batches, 0 for off, `true` for one batch, or `false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastDevRun(u64);

impl FastDevRun {
    /// A run in earnest.
    pub const OFF: Self = Self(0);

    /// The batches of each loop, or `None` for a run in earnest.
    pub fn batches(self) -> Option<u64> {
        (self != Self::OFF).then_some(self.0)
    }
}

impl From<u64> for FastDevRun {
    fn from(batches: u64) -> Self {
        Self(batches)
    }
}

impl From<bool> for FastDevRun {
    fn from(on: bool) -> Self {
        Self(on.into())
    }
}

impl SettingValue for FastDevRun {
    const NAME: &'static str = "BATCHES";
    const ALLOWED: &'static str =
        "a number of batches, 0 for off, or true (one batch) or false (off)";
    const BARE: Option<&'static str> = Some("1");

    fn from_text(text: &str) -> Option<Self> {
        u64::from_text(text)
            .map(Self)
            .or_else(|| bool::from_text(text).map(Self::from))
    }
}

impl Serialize for FastDevRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// How much validation data is tried before training begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SanitySteps {
    /// All of it: `all` or `-1`.
    All,
    /// So many batches, or as many as there are; 0 is none.
    Batches(u64),
}

impl fmt::Display for SanitySteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Batches(batches) => write!(f, "{batches}"),
        }
    }
}

impl SettingValue for SanitySteps {
    const NAME: &'static str = "BATCHES";
    const ALLOWED: &'static str = "a number of batches from 0, or `all` (or -1)";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "all" | "-1" => Some(Self::All),
            batches => u64::from_text(batches).map(Self::Batches),
        }
    }
}

impl Serialize for SanitySteps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.collect_str(self),
            Self::Batches(batches) => batches.serialize(serializer),
        }
    }
}

/// How often a run validates.
///
/// As text and in files: a fraction of the epoch has a point (`0.25`), a whole number is batches
/// (`500`), and a time has units (`10m`).
///
/// ```
/// use firebox::config::ValCheckInterval;
///
/// let third: ValCheckInterval = "0.333".parse()?;
/// assert_eq!(third.batches(Some(64))?, Some(21));
/// assert_eq!("500".parse::<ValCheckInterval>()?.batches(None)?, Some(500));
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValCheckInterval {
    /// After each such share of the epoch's batches, above 0.0, at most 1.0, at least a batch.
    Fraction(f64),
    /// After so many batches, at least 1, counted across epochs.
    Batches(u64),
    /// After the batch at which so much time has passed since the last validation.
    Time(WallTime),
}

impl ValCheckInterval {
    /// The interval in batches, when the epoch has `epoch_batches`: `max(1, int(batches · f))` for
    /// a fraction. `None` means that batches are not counted: the interval is a time, or one
    /// epoch of unknown length.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config): a fraction below 1.0 of an epoch of
    /// unknown length.
    pub fn batches(self, epoch_batches: Option<u64>) -> Result<Option<u64>> {
        match (self, epoch_batches) {
            (Self::Batches(batches), _) => Ok(Some(batches)),
            (Self::Fraction(fraction), Some(batches)) => {
                Ok(Some(share(batches as f64, fraction).max(1)))
            }
            (Self::Fraction(1.0), None) | (Self::Time(_), _) => Ok(None),
            (Self::Fraction(fraction), None) => Err(Error::config(format!(
                "`val_check_interval` is {fraction:?} of an epoch, but the training data does not \
                 say how many batches it has; use 1.0, a number of batches, or a time"
            ))),
        }
    }
}

impl fmt::Display for ValCheckInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(f, "{fraction:?}"),
            Self::Batches(batches) => write!(f, "{batches}"),
            Self::Time(time) => write!(f, "{time}"),
        }
    }
}

impl SettingValue for ValCheckInterval {
    const NAME: &'static str = "FRACTION|BATCHES|TIME";
    const ALLOWED: &'static str = "a fraction of the epoch with a point, above 0.0 and at most \
         1.0 (`0.25`), a number of batches from 1 (`500`), or a time above 0 (`10m`)";

    fn from_text(text: &str) -> Option<Self> {
        if let Ok(batches) = text.parse::<u64>() {
            return (batches > 0).then_some(Self::Batches(batches));
        }
        if let Some(fraction) = fraction(text) {
            return (fraction > 0.0 && fraction <= 1.0).then_some(Self::Fraction(fraction));
        }
        WallTime::from_text(text)
            .filter(|time| *time > WallTime::ZERO)
            .map(Self::Time)
    }
}

impl Serialize for ValCheckInterval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fraction(fraction) => fraction.serialize(serializer),
            Self::Batches(batches) => batches.serialize(serializer),
            Self::Time(time) => time.serialize(serializer),
        }
    }
}

read_as_text!(Limit, FastDevRun, SanitySteps, ValCheckInterval);

/// A number with a point or an exponent; whole numbers mean batches and are none.
fn fraction(text: &str) -> Option<f64> {
    let whole = text
        .trim_start_matches(['+', '-'])
        .bytes()
        .all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| !whole)
}

/// `int(batches · fraction)`.
fn share(batches: f64, fraction: f64) -> u64 {
    (batches * fraction) as u64
}

/// The smallest fraction of so many batches that is a batch, rounded up to a number that is easily
/// typed: as exact as the batches can tell apart.
fn smallest_fraction(batches: usize) -> f64 {
    let scale = 10_f64.powi(batches.to_string().len() as i32 + 2);
    (scale / batches as f64).ceil() / scale
}
