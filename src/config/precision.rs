//! What is told of number formats and weights beside the precision itself.

use super::value::{SettingValue, read_as_text, write_as_text};
use serde::{Serialize, Serializer};
use std::fmt;

/// What the loss is multiplied with before the backward pass of `16-mixed`, so that small gradients
/// do not vanish in 16 bits; they are divided by it before anything else sees them.
///
/// As text: `dynamic`, `dynamic:1024` to start there, or `1024` for one that stays.
///
/// ```
/// use firebox::config::LossScale;
///
/// assert_eq!("dynamic".parse::<LossScale>()?, LossScale::Dynamic { start: 65536.0 });
/// assert_eq!("1024".parse::<LossScale>()?, LossScale::Static(1024.0));
/// assert!("0".parse::<LossScale>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossScale {
    /// Halved when a gradient is not finite, doubled after 2000 steps without one, as by PyTorch's
    /// `GradScaler`, with its numbers; but never below 1.
    Dynamic {
        /// The first scale; from 1.
        start: f32,
    },
    /// Always this; above 0.
    Static(f32),
}

impl LossScale {
    /// PyTorch's: dynamic, from 2^16.
    pub const DEFAULT: Self = Self::Dynamic { start: 65536.0 };
}

impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            same if *same == Self::DEFAULT => f.write_str("dynamic"),
            Self::Dynamic { start } => write!(f, "dynamic:{start:?}"),
            Self::Static(scale) => write!(f, "{scale:?}"),
        }
    }
}

impl SettingValue for LossScale {
    const NAME: &'static str = "SCALE";
    const ALLOWED: &'static str = "`dynamic`, `dynamic:N` with the first scale, from 1, or a number above 0 for one that stays";

    fn from_text(text: &str) -> Option<Self> {
        let scale = |text: &str| text.parse().ok().filter(|scale: &f32| scale.is_finite());
        match text.strip_prefix("dynamic") {
            Some("") => Some(Self::DEFAULT),
            Some(rest) => {
                let start = scale(rest.strip_prefix(':')?)?;
                (start >= 1.0).then_some(Self::Dynamic { start })
            }
            None => scale(text).filter(|scale| *scale > 0.0).map(Self::Static),
        }
    }
}

/// Patterns of paths in a model, as in [`ParamGroup`](crate::optim::ParamGroup), with commas between
/// them; `none` for none. In a file they may be a list.
///
/// ```
/// use firebox::config::Paths;
///
/// assert_eq!("head.*,norm".parse::<Paths>()?, Paths::from(["head.*", "norm"]));
/// assert!("none".parse::<Paths>()?.patterns().is_empty());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Paths(Vec<String>);

impl Paths {
    /// No path.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The patterns.
    pub fn patterns(&self) -> &[String] {
        &self.0
    }
}

impl<const N: usize> From<[&str; N]> for Paths {
    fn from(patterns: [&str; N]) -> Self {
        Self(patterns.map(|pattern| pattern.trim().to_owned()).into())
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&self.0.join(",")),
        }
    }
}

impl SettingValue for Paths {
    const NAME: &'static str = "PATHS";
    const ALLOWED: &'static str = "paths of the model's fields, with `*` for any text and commas between them (`head.*`), or \
         `none`";

    fn from_text(text: &str) -> Option<Self> {
        let text = text.strip_suffix(',').unwrap_or(text).trim();
        // An empty list in a file arrives as empty text.
        if text.is_empty() || text == "none" {
            return Some(Self::none());
        }
        let patterns: Vec<_> = text.split(',').map(|p| p.trim().to_owned()).collect();
        let possible = |pattern: &String| !pattern.is_empty() && pattern != "none";
        patterns.iter().all(possible).then_some(Self(patterns))
    }
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_empty() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

/// An average of the weights over the steps of a run, which often generalizes better than the last
/// ones. Validation, test and checkpoints have it, and so has the model that a fit gives back.
///
/// As text: `ema:0.999`, `swa` or `swa:0.8`.
///
/// ```
/// use firebox::config::WeightAveraging;
///
/// assert_eq!("ema:0.99".parse::<WeightAveraging>()?, WeightAveraging::Ema { decay: 0.99 });
/// assert_eq!("swa".parse::<WeightAveraging>()?, WeightAveraging::Swa { start: 0.8 });
/// assert!("ema:1".parse::<WeightAveraging>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightAveraging {
    /// Exponential: after every optimizer step, average = decay · average + (1 - decay) · weights.
    Ema {
        /// What is kept of the average; from 0, below 1.
        decay: f64,
    },
    /// Stochastic weight averaging (Izmailov et al., 2018): the mean of the weights at the end of
    /// every epoch from this share of the epochs on.
    Swa {
        /// The share of `max_epochs` after which it begins; from 0, below 1.
        start: f64,
    },
}

impl fmt::Display for WeightAveraging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ema { decay } => write!(f, "ema:{decay:?}"),
            Self::Swa { start } => write!(f, "swa:{start:?}"),
        }
    }
}

impl SettingValue for WeightAveraging {
    const NAME: &'static str = "AVERAGE";
    const ALLOWED: &'static str = "`ema:DECAY` with a number from 0, below 1 (`ema:0.999`), `swa`, or \
         `swa:START` with the share of the epochs after which it begins (`swa:0.8`)";

    fn from_text(text: &str) -> Option<Self> {
        let share = |text: &str| {
            let number: f64 = text.parse().ok()?;
            (0.0..1.0).contains(&number).then_some(number)
        };
        match text.split_once(':') {
            None if text == "swa" => Some(Self::Swa { start: 0.8 }),
            Some(("ema", decay)) => share(decay).map(|decay| Self::Ema { decay }),
            Some(("swa", start)) => share(start).map(|start| Self::Swa { start }),
            _ => None,
        }
    }
}

read_as_text!(LossScale, Paths, WeightAveraging);
write_as_text!(LossScale, WeightAveraging);
