//! What can be watched of a run from outside: its metrics over HTTP, its memory, its energy.

mod energy;
mod gauges;
pub(crate) mod process;
mod prometheus;

pub(crate) use energy::{CarbonIntensity, EnergyMeter, EnergySources, Reading};
pub(crate) use prometheus::MetricsServer;
