//! A run's values for Prometheus.

use super::{Callback, RunContext};
use crate::error::Result;
use crate::module::TrainModule;
use crate::monitor::MetricsServer;
use std::net::SocketAddr;

/// Serves a run's values to Prometheus at `http://ADDRESS/metrics`, as the setting `metrics_addr` does:
/// steps, samples and batches (as counters), samples per second, loss, learning rates, every logged
/// value by name, and the memory of the process and the devices.
///
/// The values are those of the last logged step and validation, the counters those of the last batch.
///
/// ```no_run
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::PrometheusExporter;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Result<Trainer<Line<B>>> {
/// let exporter = PrometheusExporter::bind(([127, 0, 0, 1], 9464).into(), "spirals")?;
/// # Ok(
/// trainer.with_callback(exporter)
/// # )
/// # }
/// ```
pub struct PrometheusExporter(MetricsServer);

impl PrometheusExporter {
    /// Listens at this address, at any free port if the port is 0, for as long as it lives. `run` names
    /// the run in `firebox_info`.
    ///
    /// # Errors
    /// An address that is in use or not this machine's.
    pub fn bind(addr: SocketAddr, run: &str) -> Result<Self> {
        MetricsServer::bind(addr, run).map(Self)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    fn count<M: TrainModule>(&self, cx: &RunContext<'_, M>) {
        let progress = cx.progress();
        self.0.gauges().count(
            progress.global_step,
            progress.epoch,
            progress.total_batches,
            progress.samples,
        );
    }

    fn set<M: TrainModule>(&self, cx: &RunContext<'_, M>) {
        let logged = cx
            .requests
            .logged
            .iter()
            .map(|(name, v)| (name.as_str(), *v));
        for (name, value) in cx.results().iter().chain(logged) {
            self.0.gauges().set(name, value);
        }
    }
}

impl<M: TrainModule> Callback<M> for PrometheusExporter {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.count(cx);
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.count(cx);
        if !cx.logs_now() {
            return Ok(());
        }
        self.set(cx);
        let gauges = self.0.gauges();
        for (group, lr) in cx.learning_rates() {
            gauges.set(&format!("lr/{group}"), lr);
        }
        // Where the platform tells nothing, there is nothing to show.
        for (device, stats) in cx.device_stats().unwrap_or_default().iter().enumerate() {
            if let Some(used) = stats.memory_used {
                gauges.set_memory(&format!("device{device}"), used, stats.memory_free);
            }
        }
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.set(cx);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.set(cx);
        Ok(())
    }
}
