//! What a run shows of itself.

use super::value::{SettingValue, read_as_text, write_as_text};
use std::fmt;
use std::net::SocketAddr;

/// Whose gradients' norms are logged beside the global one.
///
/// As text: `off`, `parts` (or `true`), `layers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradNorms {
    /// Nobody's.
    Off,
    /// Of each field of the model: `train/grad_norm/encoder`.
    Parts,
    /// Of each layer that holds parameters: `train/grad_norm/encoder.layers.0.linear`.
    Layers,
}

impl fmt::Display for GradNorms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Parts => "parts",
            Self::Layers => "layers",
        })
    }
}

impl SettingValue for GradNorms {
    const NAME: &'static str = "OF";
    const ALLOWED: &'static str = "one of off, parts, layers";
    const BARE: Option<&'static str> = Some("parts");

    fn from_text(text: &str) -> Option<Self> {
        Some(match text {
            "off" | "false" => Self::Off,
            "parts" | "true" => Self::Parts,
            "layers" => Self::Layers,
            _ => return None,
        })
    }
}

/// What is told of where the time of a run goes.
///
/// As text: `simple`, `trace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProfilerMode {
    /// A table at the end of a fit, also in `profile.json` in the run's folder.
    Simple,
    /// The table, and every span in `trace.json`, for <https://ui.perfetto.dev> or Chrome's
    /// `about:tracing`: a lane for each replica and each thread of a loader.
    Trace,
}

impl fmt::Display for ProfilerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Simple => "simple",
            Self::Trace => "trace",
        })
    }
}

impl SettingValue for ProfilerMode {
    const NAME: &'static str = "MODE";
    const ALLOWED: &'static str = "simple or trace";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "simple" => Some(Self::Simple),
            "trace" => Some(Self::Trace),
            _ => None,
        }
    }
}

impl SettingValue for SocketAddr {
    const NAME: &'static str = "ADDRESS";
    const ALLOWED: &'static str = "an IP address and a port (`127.0.0.1:9464`)";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

read_as_text!(GradNorms, ProfilerMode);
write_as_text!(GradNorms, ProfilerMode);
