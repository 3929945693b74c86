//! Clipping, progress and loggers.

use super::hardware::all_different;
use super::value::{SettingValue, read_as_text, write_as_text};
use serde::{Serialize, Serializer};
use std::fmt;

/// How gradients are kept small.
///
/// As text and in files: `1.0` or `norm:1.0`, or `value:0.5`.
///
/// ```
/// use firebox::config::GradientClip;
///
/// assert_eq!("1.0".parse::<GradientClip>()?, GradientClip::Norm(1.0));
/// assert_eq!(GradientClip::Value(0.5).to_string(), "value:0.5");
/// assert!("0".parse::<GradientClip>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GradientClip {
    /// Scale all gradients together so that their common 2-norm is at most this, above 0.
    Norm(f64),
    /// Bring every entry into `-v ..= v`, with `v` above 0.
    Value(f64),
}

impl fmt::Display for GradientClip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Norm(norm) => write!(f, "norm:{norm:?}"),
            Self::Value(value) => write!(f, "value:{value:?}"),
        }
    }
}

impl SettingValue for GradientClip {
    const NAME: &'static str = "CLIP";
    const ALLOWED: &'static str = "a number above 0, for the norm (`1.0` or `norm:1.0`) or for each \
         entry (`value:0.5`)";

    fn from_text(text: &str) -> Option<Self> {
        let (clip, number): (fn(f64) -> Self, &str) = match text.split_once(':') {
            Some(("value", number)) => (Self::Value, number),
            Some(("norm", number)) => (Self::Norm, number),
            Some(_) => return None,
            None => (Self::Norm, text),
        };
        let number: f64 = number.parse().ok()?;
        (number > 0.0 && number.is_finite()).then(|| clip(number))
    }
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProgressMode {
    /// `auto`: a bar on a terminal, plain lines elsewhere.
    Auto,
    /// `bar`: a live bar.
    Bar,
    /// `plain`: a line an epoch.
    Plain,
    /// `off`: nothing.
    Off,
}

impl ProgressMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Bar, Self::Plain, Self::Off];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bar => "bar",
            Self::Plain => "plain",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for ProgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl SettingValue for ProgressMode {
    const NAME: &'static str = "MODE";
    const ALLOWED: &'static str = "one of auto, bar, plain, off";

    fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == text)
    }
}

/// The names of the loggers that a run writes to, in lower case, none twice.
///
/// As text they have commas between them; `none` is no logger. In a file they may be a list.
///
/// ```
/// use firebox::config::LoggerNames;
///
/// assert_eq!("csv,jsonl".parse::<LoggerNames>()?, LoggerNames::from(["csv", "jsonl"]));
/// assert!("none".parse::<LoggerNames>()?.names().is_empty());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoggerNames(Vec<String>);

impl LoggerNames {
    /// No logger.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

impl<const N: usize> From<[&str; N]> for LoggerNames {
    fn from(names: [&str; N]) -> Self {
        names.into_iter().collect()
    }
}

impl<S: AsRef<str>> FromIterator<S> for LoggerNames {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(
            names
                .into_iter()
                .map(|name| name.as_ref().trim().to_lowercase())
                .collect(),
        )
    }
}

impl fmt::Display for LoggerNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.0.join(","))
    }
}

impl SettingValue for LoggerNames {
    const NAME: &'static str = "NAMES";
    const ALLOWED: &'static str =
        "different names of loggers, with commas between them (`csv,jsonl`), or `none`";

    fn from_text(text: &str) -> Option<Self> {
        let text = text.strip_suffix(',').unwrap_or(text).trim();
        // An empty list in a file arrives as empty text.
        if text.is_empty() || text == "none" {
            return Some(Self::none());
        }
        let names: Self = text.split(',').collect();
        let possible = |name: &String| !name.is_empty() && name != "none";
        (names.0.iter().all(possible) && all_different(&names.0)).then_some(names)
    }
}

impl Serialize for LoggerNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

read_as_text!(GradientClip, ProgressMode, LoggerNames);
write_as_text!(GradientClip, ProgressMode);
