//! What the dashboard is told of a run.

use super::{Device, Model, Screen};
use crate::callback::{Callback, ProgressBar, RunContext};
use crate::error::{Error, Result};
use crate::module::{TrainModule, short_type_name};
use crate::progress::Stage;
use crate::table;
use std::time::{Duration, Instant};

/// A full screen with how far the run is, the curves of its values, and the devices; the setting
/// `dashboard` asks for it. Arrow keys choose a value, `q` closes it and training goes on with plain
/// lines, Ctrl-C ends the run as everywhere.
///
/// Where there is no terminal that can show it, it is a [`ProgressBar`].
#[derive(Default)]
pub struct Dashboard {
    screen: Option<Screen>,
    /// Takes over where there is no screen, and once it is closed.
    plain: Option<ProgressBar>,
    opened: Option<Opened>,
    epoch_start: Option<Instant>,
}

/// The run when the dashboard was opened.
struct Opened {
    at: Instant,
    /// The part of the run that was done.
    share: Option<f64>,
    samples: u64,
}

impl Dashboard {
    /// Opens with the first epoch.
    pub fn new() -> Self {
        Self::default()
    }

    fn open<M: TrainModule>(&mut self, cx: &RunContext<'_, M>) -> Result<()> {
        if self.opened.is_some() {
            return Ok(());
        }
        self.screen = Screen::open()?;
        match &self.screen {
            None => self.plain = Some(ProgressBar::new()),
            Some(screen) => screen.update(|model| {
                model.title = match cx.run_dir() {
                    Some(dir) => format!("{} in {}", short_type_name::<M>(), dir.display()),
                    None => short_type_name::<M>().to_owned(),
                };
                model.max_epochs = cx.max_epochs();
            }),
        }
        self.opened = Some(Opened {
            at: Instant::now(),
            share: None,
            samples: cx.progress().samples,
        });
        Ok(())
    }

    /// Closes a screen that the user has left, once and for all.
    fn look(&mut self) {
        if self.screen.as_ref().is_some_and(Screen::closed_by_user) {
            self.close();
            let since = self.epoch_start.unwrap_or_else(Instant::now);
            self.plain = Some(ProgressBar::plain_since(since));
        }
    }

    fn close(&mut self) {
        if let Some(screen) = self.screen.take() {
            screen.close();
        }
    }

    fn update(&self, change: impl FnOnce(&mut Model)) {
        if let Some(screen) = &self.screen {
            screen.update(change);
        }
    }

    /// Shows the values of what has just ended.
    fn record<M: TrainModule>(&self, cx: &RunContext<'_, M>) {
        let step = cx.progress().global_step;
        let logged = cx
            .requests
            .logged
            .iter()
            .map(|(name, v)| (name.as_str(), *v));
        self.update(|model| {
            for (name, value) in cx.results().iter().chain(logged) {
                model.record(name, step, value);
            }
        });
    }
}

/// A hook that the bar takes instead, where there is one.
macro_rules! or_plain {
    ($self:ident, $hook:ident, $cx:ident) => {
        $self.look();
        if let Some(plain) = &mut $self.plain {
            return Callback::<M>::$hook(plain, $cx);
        }
    };
}

impl<M: TrainModule> Callback<M> for Dashboard {
    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.open(cx)?;
        self.epoch_start = Some(Instant::now());
        or_plain!(self, on_train_epoch_start, cx);
        let (progress, batch) = (cx.progress(), cx.batch());
        self.update(|model| {
            model.stage = Stage::Train.prefix().to_owned();
            model.epoch = progress.epoch;
            model.batch = progress.batch;
            model.batches = batch.total.map(|n| n as u64);
        });
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        or_plain!(self, on_train_batch_end, cx);
        let (progress, elapsed) = (*cx.progress(), cx.elapsed());
        let devices = match cx.logs_now() {
            true => cx.device_stats().unwrap_or_default(),
            false => Vec::new(),
        };
        let asked = !cx.requests.stops.is_empty() || cx.requests.ordered_stop;
        if let (Some(screen), Some(opened)) = (&self.screen, &mut self.opened) {
            screen.update(|model| {
                model.epoch = progress.epoch;
                model.batch = progress.batch;
                model.global_step = progress.global_step;
                model.elapsed = elapsed;
                model.stop_asked = asked;
                let seconds = opened.at.elapsed().as_secs_f64();
                let samples = progress.samples.saturating_sub(opened.samples);
                model.samples_per_second = (seconds > 0.0).then(|| samples as f64 / seconds);
                model.eta = model.run_share().and_then(|share| {
                    let since = share - *opened.share.get_or_insert(share);
                    let left = (1.0 - share) / since * seconds;
                    Duration::try_from_secs_f64(left).ok()
                });
                let rates = cx.learning_rates();
                model.learning_rates = rates.map(|(name, lr)| (name.to_owned(), lr)).collect();
                if !devices.is_empty() {
                    let device = |(index, stats): (usize, &firebox_backend::DeviceStats)| Device {
                        name: format!("device {index}"),
                        memory_used: stats.memory_used,
                        memory_total: stats.memory_used.zip(stats.memory_free).map(|(a, b)| a + b),
                        utilization: stats.utilization,
                    };
                    model.devices = devices.iter().enumerate().map(device).collect();
                }
            });
        }
        if cx.logs_now() {
            self.record(cx);
        }
        Ok(())
    }

    fn on_eval_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        or_plain!(self, on_eval_start, cx);
        let stage = cx.stage().prefix();
        self.update(|model| model.stage = stage.to_owned());
        Ok(())
    }

    fn on_eval_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        or_plain!(self, on_eval_batch_end, cx);
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        or_plain!(self, on_eval_end, cx);
        if cx.stage() == Stage::Validate {
            self.record(cx);
        }
        self.update(|model| model.stage = Stage::Train.prefix().to_owned());
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        or_plain!(self, on_train_epoch_end, cx);
        let values: Vec<String> = cx
            .results()
            .iter()
            .map(|(name, value)| format!("{name} {}", table::number(value)))
            .collect();
        let line = format!("epoch {}: {}", cx.progress().epoch + 1, values.join(", "));
        self.update(|model| model.note(&line));
        Ok(())
    }

    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.close();
        let plain = self.plain.get_or_insert_with(ProgressBar::plain);
        Callback::<M>::on_fit_end(plain, cx)
    }

    fn on_exception(&mut self, _cx: &mut RunContext<'_, M>, _error: &Error) -> Result<()> {
        // What is printed next has to be seen.
        self.close();
        Ok(())
    }
}
