//! Which checkpoints are kept, and which one a run goes on from.

use super::value::{SettingValue, read_as_text, write_as_text};
use crate::mode::Mode;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// The checkpoint that a run goes on from.
///
/// ```
/// use firebox::config::Resume;
///
/// assert_eq!("last".parse::<Resume>()?, Resume::Last);
/// let path = "runs/version_3/checkpoints/epoch=1-step=8";
/// assert_eq!(path.parse::<Resume>()?, Resume::Path(path.into()));
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resume {
    /// `last`: the newest one under `run_dir`. The run goes on in its folder. Where there is none, it
    /// starts from the beginning.
    Last,
    /// `best`: the best one of the newest run, in a new run folder.
    Best,
    /// This checkpoint, in a new run folder; or the newest one of this run folder, in that.
    Path(PathBuf),
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("last"),
            Self::Best => f.write_str("best"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl SettingValue for Resume {
    const NAME: &'static str = "last|best|PATH";
    const ALLOWED: &'static str =
        "`last`, `best`, or the path of a checkpoint or of a run's folder";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "" => None,
            "last" => Some(Self::Last),
            "best" => Some(Self::Best),
            path => Some(Self::Path(path.into())),
        }
    }
}

/// How many of the best checkpoints are kept.
///
/// As text: a number, or `all` (or -1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaveTopK {
    /// Every one that was written, best or not.
    All,
    /// So many; 0 keeps none for its value.
    Best(u64),
}

impl From<i64> for SaveTopK {
    /// Below 0 is [`All`](Self::All), as in Lightning.
    fn from(k: i64) -> Self {
        u64::try_from(k).map_or(Self::All, Self::Best)
    }
}

impl fmt::Display for SaveTopK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Best(k) => write!(f, "{k}"),
        }
    }
}

impl SettingValue for SaveTopK {
    const NAME: &'static str = "K";
    const ALLOWED: &'static str = "a whole number from 0, or `all` (or -1)";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "all" | "-1" => Some(Self::All),
            k => u64::from_text(k).map(Self::Best),
        }
    }
}

impl Serialize for SaveTopK {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.collect_str(self),
            Self::Best(k) => k.serialize(serializer),
        }
    }
}

/// A logged value by which checkpoints are ranked.
///
/// As text: its name, with `min:` or `max:` before it; without, smaller is better.
///
/// ```
/// use firebox::config::Monitor;
/// use firebox::metric::Mode;
///
/// assert_eq!("max:val/acc".parse::<Monitor>()?.mode, Mode::Max);
/// assert_eq!("val/loss".parse::<Monitor>()?.mode, Mode::Min);
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// The name under which the value is logged.
    pub name: String,
    /// Whether smaller or larger is better.
    pub mode: Mode,
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Min => "min",
            Mode::Max => "max",
        };
        write!(f, "{mode}:{}", self.name)
    }
}

impl SettingValue for Monitor {
    const NAME: &'static str = "[min:|max:]NAME";
    const ALLOWED: &'static str = "the name of a logged value, such as `val/loss`; `max:` before it if \
         larger is better";

    fn from_text(text: &str) -> Option<Self> {
        let (mode, name) = match text.split_once(':') {
            Some(("min", name)) => (Mode::Min, name),
            Some(("max", name)) => (Mode::Max, name),
            _ => (Mode::Min, text),
        };
        let name = name.trim().to_owned();
        (!name.is_empty()).then_some(Self { name, mode })
    }
}

read_as_text!(Resume, SaveTopK, Monitor);
write_as_text!(Resume, Monitor);
