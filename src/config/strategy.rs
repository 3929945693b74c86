//! How several devices train one model.

use super::value::{SettingValue, read_as_text, write_as_text};
use std::fmt;

/// How several devices train one model.
///
/// As text: `auto`, `ddp`, `zero1`, or `fedavg:20` for an average every 20 steps.
///
/// ```
/// use firebox::config::Strategy;
///
/// assert_eq!("fedavg:20".parse::<Strategy>()?, Strategy::FedAvg { every_n_steps: 20 });
/// assert!("fedavg:0".parse::<Strategy>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// `ddp`.
    Auto,
    /// Data parallel: every device has the whole model and a part of each batch; gradients are
    /// averaged before each optimizer step.
    Ddp,
    /// As `ddp`, with the optimizers' state (moments) divided over the devices (Rajbhandari et al.,
    /// 2020, "ZeRO", stage 1).
    Zero1,
    /// Federated averaging (McMahan et al., 2017), or local SGD: every device steps by itself, and
    /// the parameters are averaged, by samples, every so many steps.
    FedAvg {
        /// Optimizer steps between two averages.
        every_n_steps: u64,
    },
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Ddp => f.write_str("ddp"),
            Self::Zero1 => f.write_str("zero1"),
            Self::FedAvg { every_n_steps } => write!(f, "fedavg:{every_n_steps}"),
        }
    }
}

impl SettingValue for Strategy {
    const NAME: &'static str = "STRATEGY";
    const ALLOWED: &'static str =
        "`auto`, `ddp`, `zero1`, or `fedavg:N` with the steps between two averages (`fedavg:20`)";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "ddp" => Some(Self::Ddp),
            "zero1" => Some(Self::Zero1),
            text => {
                let every_n_steps = text.strip_prefix("fedavg:")?.parse().ok()?;
                (every_n_steps > 0).then_some(Self::FedAvg { every_n_steps })
            }
        }
    }
}

read_as_text!(Strategy);
write_as_text!(Strategy);
