//! What a run computes on, and in which numbers.

use super::value::{SettingValue, read_as_text, write_as_text};
use serde::{Serialize, Serializer};
use std::fmt;

/// The name of an accelerator, or `auto`, in lower case.
///
/// Any name is taken here: which accelerators a program has is known when it launches the run.
///
/// ```
/// use firebox::config::AcceleratorName;
///
/// assert_eq!(AcceleratorName::from("CPU").as_str(), "cpu");
/// assert!("".parse::<AcceleratorName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcceleratorName(String);

impl AcceleratorName {
    /// The best accelerator that the machine has.
    pub fn auto() -> Self {
        Self::from("auto")
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the choice is left to the launcher.
    pub fn is_auto(&self) -> bool {
        self.0 == "auto"
    }
}

impl From<&str> for AcceleratorName {
    fn from(name: &str) -> Self {
        Self(name.trim().to_lowercase())
    }
}

impl From<String> for AcceleratorName {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl fmt::Display for AcceleratorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl SettingValue for AcceleratorName {
    const NAME: &'static str = "NAME";
    const ALLOWED: &'static str = "`auto` or the name of an accelerator";

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::from(text)).filter(|name| !name.0.is_empty())
    }
}

/// Which devices of the accelerator a run uses.
///
/// As text: `auto`, `all` or `-1`, a count (`2`), or ids (`0,2`; a single id is `0,`). In a file
/// ids may be a list, `[0, 2]`. Whether the devices are there is judged when the run is launched.
///
/// ```
/// use firebox::config::Devices;
///
/// assert_eq!("2".parse::<Devices>()?, Devices::Count(2));
/// assert_eq!("2,".parse::<Devices>()?, Devices::Ids(vec![2]));
/// assert!("0".parse::<Devices>().is_err());
/// assert_eq!(Devices::from([0, 2]).to_string(), "0,2");
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Devices {
    /// As many as make sense for the accelerator.
    Auto,
    /// Every device there is.
    All,
    /// The first so many, at least one.
    Count(usize),
    /// These, by id, in this order.
    Ids(Vec<usize>),
}

impl From<usize> for Devices {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

impl<const N: usize> From<[usize; N]> for Devices {
    fn from(ids: [usize; N]) -> Self {
        Self::Ids(ids.into())
    }
}

impl From<Vec<usize>> for Devices {
    fn from(ids: Vec<usize>) -> Self {
        Self::Ids(ids)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Ids(ids) => match ids.as_slice() {
                [id] => write!(f, "{id},"),
                ids => {
                    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                    f.write_str(&ids.join(","))
                }
            },
        }
    }
}

impl SettingValue for Devices {
    const NAME: &'static str = "DEVICES";
    const ALLOWED: &'static str = "`auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "all" | "-1" => Some(Self::All),
            ids if ids.contains(',') => {
                let ids = ids.strip_suffix(',').unwrap_or(ids);
                let ids: Vec<usize> = ids
                    .split(',')
                    .map(|id| id.trim().parse().ok())
                    .collect::<Option<_>>()?;
                all_different(&ids).then_some(Self::Ids(ids))
            }
            count => count
                .parse()
                .ok()
                .filter(|count| *count > 0)
                .map(Self::Count),
        }
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => count.serialize(serializer),
            Self::Ids(ids) => ids.serialize(serializer),
            Self::Auto | Self::All => serializer.collect_str(self),
        }
    }
}

/// The numbers a run computes in.
///
/// `true` precisions keep parameters and compute in one format; `mixed` ones keep parameters in
/// 32 bits and compute in 16. The names are Lightning's.
///
/// ```
/// use firebox::config::Precision;
///
/// assert_eq!("bf16-mixed".parse::<Precision>()?, Precision::Bf16Mixed);
/// assert!("bf16".parse::<Precision>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `auto`: the fastest that trains as well as `32-true` on the accelerator.
    Auto,
    /// `32-true`: 32 bits throughout.
    F32True,
    /// `64-true`: 64 bits throughout.
    F64True,
    /// `16-mixed`: computes in f16, with the loss scaled.
    F16Mixed,
    /// `bf16-mixed`: computes in bf16.
    Bf16Mixed,
    /// `16-true`: f16 throughout.
    F16True,
    /// `bf16-true`: bf16 throughout.
    Bf16True,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Self; 7] = [
        Self::Auto,
        Self::F32True,
        Self::F64True,
        Self::F16Mixed,
        Self::Bf16Mixed,
        Self::F16True,
        Self::Bf16True,
    ];

    /// The name, for example `bf16-mixed`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32True => "32-true",
            Self::F64True => "64-true",
            Self::F16Mixed => "16-mixed",
            Self::Bf16Mixed => "bf16-mixed",
            Self::F16True => "16-true",
            Self::Bf16True => "bf16-true",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl SettingValue for Precision {
    const NAME: &'static str = "PRECISION";
    const ALLOWED: &'static str =
        "one of auto, 32-true, 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true";

    fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == text)
    }
}

read_as_text!(AcceleratorName, Devices, Precision);
write_as_text!(AcceleratorName, Precision);

/// Whether no item comes twice; the lists are a handful long.
pub(super) fn all_different<T: PartialEq>(items: &[T]) -> bool {
    (1..items.len()).all(|i| !items[..i].contains(&items[i]))
}
