//! Shows people how far a run is: a bar on a terminal, plain lines everywhere else.

#[cfg_attr(feature = "progress", path = "bar_enabled.rs")]
#[cfg_attr(not(feature = "progress"), path = "bar_disabled.rs")]
mod bar;

use super::{BatchInfo, Callback, RunContext};
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::module::TrainModule;
use crate::output::say;
use crate::progress::Stage;
use crate::table;
use bar::Bar;
use std::io::IsTerminal;
use std::time::Instant;

/// Shows how far a run is, on standard error: a live bar on a terminal, one line an epoch
/// everywhere else.
#[derive(Debug)]
pub struct ProgressBar {
    live: bool,
    bar: Option<Bar>,
    epoch_start: Instant,
    /// The names to show, if not all.
    chosen: Option<Vec<String>>,
    validation: Vec<(String, f64)>,
}

impl Default for ProgressBar {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressBar {
    /// A live bar if standard error is a terminal, plain lines otherwise.
    pub fn new() -> Self {
        Self::with_live(std::io::stderr().is_terminal())
    }

    /// A live bar whatever standard error is.
    pub fn bar() -> Self {
        Self::with_live(true)
    }

    /// Plain lines whatever standard error is.
    pub fn plain() -> Self {
        Self::with_live(false)
    }

    /// Shows these values alone, in the bar and the lines.
    ///
    /// ```
    /// # use firebox::testing::{Line, AutodiffBackend};
    /// use firebox::callback::ProgressBar;
    /// use firebox::prelude::*;
    ///
    /// # fn build<B: AutodiffBackend>(trainer: Trainer<Line<B>>) -> Trainer<Line<B>> {
    /// trainer.with_callback(ProgressBar::new().metrics(["train/loss", "val/acc"]))
    /// # }
    /// ```
    #[must_use]
    pub fn metrics<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.chosen = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// `name value, name value`, shortest useful numbers, of what is to be shown.
    fn show<'a>(&self, values: impl Iterator<Item = (&'a str, f64)>) -> String {
        let is_chosen = |name: &str| {
            let mut chosen = self.chosen.iter().flatten();
            self.chosen.is_none() || chosen.any(|chosen| chosen == name)
        };
        let shown = values.filter(|(name, _)| is_chosen(name));
        let shown: Vec<_> = shown
            .map(|(name, value)| format!("{name} {}", table::number(value)))
            .collect();
        shown.join(", ")
    }

    /// Plain lines from the middle of an epoch on, which began then.
    #[cfg(all(unix, feature = "dashboard"))]
    pub(super) fn plain_since(epoch_start: Instant) -> Self {
        Self {
            epoch_start,
            ..Self::plain()
        }
    }

    fn with_live(live: bool) -> Self {
        Self {
            live: live && Bar::AVAILABLE,
            bar: None,
            epoch_start: Instant::now(),
            chosen: None,
            validation: Vec::new(),
        }
    }

    fn start(&mut self, label: &str, batches: BatchInfo) {
        self.finish();
        if self.live {
            self.bar = Some(Bar::new(label, batches.total, batches.index));
        }
    }

    fn advance(&mut self, values: &Metrics) {
        if let Some(bar) = &self.bar {
            bar.advance(&self.show(values.iter()));
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

/// What a run has come to: the last values of its epochs and validations.
fn summary(metrics: &Metrics) -> Vec<[String; 2]> {
    let is_of_epoch = |name: &str| name.starts_with("val/") || name.ends_with("_epoch");
    let values = metrics.iter().filter(|(name, _)| is_of_epoch(name));
    values
        .map(|(name, value)| [name.to_owned(), table::number(value)])
        .collect()
}

/// `epoch 2/3`, counted from 1 as people do.
fn epoch_label<M: TrainModule>(cx: &RunContext<'_, M>) -> String {
    let epoch = cx.progress().epoch + 1;
    match cx.max_epochs() {
        Some(max) => format!("epoch {epoch}/{max}"),
        None => format!("epoch {epoch}"),
    }
}

impl<M: TrainModule> Callback<M> for ProgressBar {
    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.epoch_start = Instant::now();
        self.validation.clear();
        self.start(&epoch_label(cx), cx.batch());
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.advance(cx.results());
        Ok(())
    }

    fn on_eval_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        // Inside `fit` the training bar stays; a validation is part of its epoch.
        if matches!(cx.stage(), Stage::Test | Stage::Predict) {
            self.start(cx.stage().prefix(), cx.batch());
        }
        Ok(())
    }

    fn on_eval_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        if matches!(cx.stage(), Stage::Test | Stage::Predict) {
            self.advance(cx.results());
        }
        Ok(())
    }

    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        match cx.stage() {
            Stage::Validate => {
                let values = cx.results().iter();
                self.validation = values.map(|(name, v)| (name.to_owned(), v)).collect();
            }
            Stage::Test | Stage::Predict => self.finish(),
            Stage::Train | Stage::SanityCheck => {}
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.finish();
        let validation = self.validation.iter().map(|(name, v)| (name.as_str(), *v));
        say!(
            "{}: {} batches in {:.1} s, {}",
            epoch_label(cx),
            cx.progress().batch,
            self.epoch_start.elapsed().as_secs_f64(),
            self.show(cx.results().iter().chain(validation)),
        );
        Ok(())
    }

    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        let (progress, elapsed) = (cx.progress(), cx.elapsed().as_secs_f64());
        let rows = summary(cx.metrics());
        if !rows.is_empty() {
            say!("{}", table::render(["value", "last"], &rows).trim_end());
        }
        say!(
            "{} epochs, {} steps, {} samples in {} s{}",
            progress.epoch,
            progress.global_step,
            progress.samples,
            table::number(elapsed),
            cx.run_dir()
                .map_or(String::new(), |dir| format!("; see `{}`", dir.display())),
        );
        Ok(())
    }

    fn on_exception(&mut self, _cx: &mut RunContext<'_, M>, _error: &Error) -> Result<()> {
        self.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_values_alone() {
        let values = [
            ("train/loss", 0.5),
            ("train/grad_norm", 2.0),
            ("val/acc", 0.25),
        ];
        let shown = |bar: ProgressBar| bar.show(values.into_iter());
        let all = "train/loss 0.5000, train/grad_norm 2, val/acc 0.2500";
        assert_eq!(shown(ProgressBar::plain()), all);
        let two = ProgressBar::plain().metrics(["val/acc", "train/loss"]);
        assert_eq!(shown(two), "train/loss 0.5000, val/acc 0.2500");
        assert_eq!(shown(ProgressBar::plain().metrics(["none"])), "");
    }
}
