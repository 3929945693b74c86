//! How busy devices are.

use super::{Callback, RunContext};
use crate::config::ProgressMode;
use crate::error::Result;
use crate::module::TrainModule;
use crate::monitor::process;
use crate::output::say;

/// Logs, with every step that is logged, the memory in use on each device of this process and the share
/// of its time at work, as far as the platform tells: `memory/device0_bytes`,
/// `memory/device0_free_bytes`, `utilization/device0`; and the memory of the process,
/// `memory/process_bytes`.
///
/// On the CPU the device is the host, with what all its programs use.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceStatsMonitor;

impl DeviceStatsMonitor {
    /// Logs with every step that is logged.
    pub fn new() -> Self {
        Self
    }
}

impl<M: TrainModule> Callback<M> for DeviceStatsMonitor {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if let Err(why) = cx.device_stats()
            && cx.config().progress != ProgressMode::Off
        {
            say!("note: nothing is known of the devices' memory: {why}");
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if !cx.logs_now() {
            return Ok(());
        }
        // Where nothing is known, that was said at the start.
        for (device, stats) in cx.device_stats().unwrap_or_default().iter().enumerate() {
            let values = [
                (
                    format!("memory/device{device}_bytes"),
                    stats.memory_used.map(|n| n as f64),
                ),
                (
                    format!("memory/device{device}_free_bytes"),
                    stats.memory_free.map(|n| n as f64),
                ),
                (format!("utilization/device{device}"), stats.utilization),
            ];
            for (name, value) in values {
                if let Some(value) = value {
                    cx.log(name, value);
                }
            }
        }
        if let Some(memory) = process::memory() {
            cx.log("memory/process_bytes", memory.resident as f64);
        }
        Ok(())
    }
}
