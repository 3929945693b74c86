//! What a run costs in electricity.

use super::{Callback, RunContext};
use crate::config::ProgressMode;
use crate::error::{Error, Result};
use crate::module::TrainModule;
use crate::monitor::{CarbonIntensity, EnergyMeter, EnergySources, Reading};
use crate::output::say;
use crate::table;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Logs how much energy the run has used, `energy/kwh`, and how much CO2 equivalent goes with it,
/// `energy/co2_grams`, with every step that is logged, and says both at the end. A resumed run counts on.
///
/// Processors are read by RAPL, with all that runs on the machine, and NVIDIA's GPUs by `nvidia-smi`.
/// Where a processor's counter cannot be read (most systems keep it for the superuser), the process's
/// CPU time counts with 3.76 W a core, the figure of Cloud Carbon Footprint; the end says then that it
/// is an estimate.
///
/// ```
/// # use firebox::testing::{Line, AutodiffBackend};
/// use firebox::callback::EnergyMonitor;
/// use firebox::prelude::*;
///
/// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Result<Trainer<Line<B>>> {
/// // Electricity of 60 g CO2 equivalent per kilowatt-hour.
/// # Ok(
/// trainer.with_callback(EnergyMonitor::new().carbon_intensity(60.0)?)
/// # )
/// # }
/// ```
#[derive(Debug)]
pub struct EnergyMonitor {
    intensity: CarbonIntensity,
    meter: Option<EnergyMeter>,
    read: Option<Instant>,
    used: Used,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Used {
    joules: f64,
    is_estimate: bool,
}

/// The counters of processors start over after some minutes.
const READ_EVERY: Duration = Duration::from_secs(10);

const JOULES_PER_KWH: f64 = 3.6e6;

impl Default for EnergyMonitor {
    fn default() -> Self {
        Self::new()
    }
}

impl EnergyMonitor {
    /// With the world's average of CO2 per kilowatt-hour: 458 g (Ember, for 2025).
    pub fn new() -> Self {
        Self {
            intensity: CarbonIntensity::WORLD,
            meter: None,
            read: None,
            used: Used::default(),
        }
    }

    /// The CO2 equivalent of the electricity used here, in grams per kilowatt-hour.
    ///
    /// # Errors
    /// No finite number from 0.
    pub fn carbon_intensity(mut self, grams_per_kwh: f64) -> Result<Self> {
        self.intensity = CarbonIntensity::new(grams_per_kwh)?;
        Ok(self)
    }

    fn read(&mut self) -> Option<Reading> {
        self.read = Some(Instant::now());
        let reading = self.meter.as_mut()?.read();
        self.used.joules = reading.joules;
        self.used.is_estimate |= reading.is_estimate;
        Some(reading)
    }
}

impl<M: TrainModule> Callback<M> for EnergyMonitor {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if cx.starts_anew() {
            self.used = Used::default();
        }
        let hardware = cx.view.hardware;
        let gpus = match hardware.accelerator {
            Some("cuda") => hardware.ids.iter().map(usize::to_string).collect(),
            _ => Vec::new(),
        };
        let sources = EnergySources::of_this_machine(gpus);
        self.meter = Some(EnergyMeter::new(sources, self.used.joules));
        self.read();
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let is_due = self.read.is_none_or(|read| read.elapsed() >= READ_EVERY);
        if !cx.logs_now() && !is_due {
            return Ok(());
        }
        if let Some(reading) = self.read()
            && cx.logs_now()
        {
            cx.log("energy/kwh", reading.joules / JOULES_PER_KWH);
            cx.log("energy/co2_grams", self.intensity.grams(reading.joules));
        }
        Ok(())
    }

    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let Some(reading) = self.read() else {
            return Ok(());
        };
        if cx.config().progress != ProgressMode::Off {
            let estimate = if self.used.is_estimate {
                "an estimate "
            } else {
                ""
            };
            say!(
                "energy: {} kWh, {} g CO2e ({estimate}from {})",
                table::number(reading.joules / JOULES_PER_KWH),
                table::number(self.intensity.grams(reading.joules)),
                reading.source
            );
            let problems = self.meter.iter().flat_map(EnergyMeter::problems);
            problems.for_each(|problem| say!("energy: {problem}"));
        }
        Ok(())
    }

    fn save_state(&self) -> serde_json::Value {
        serde_json::json!(self.used)
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.used = Used::deserialize(state).map_err(|e| {
            Error::config("the state of EnergyMonitor cannot be read").with_source(e)
        })?;
        Ok(())
    }
}
