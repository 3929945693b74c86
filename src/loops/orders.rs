//! What people tell a run that goes on, by `firebox ctl`.

use super::Run;
use crate::callback::Change;
use crate::control::{Answer, Command, Order};
use crate::error::{Error, Result};
use crate::fabric::TrainState;
use crate::module::TrainModule;
use crate::output::say;
use crate::table;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// An order that is being carried out, and what its giver will be told.
pub(super) type Taken = (Order, String);

impl<M: TrainModule> Run<'_, M> {
    /// Takes what has been ordered since the last look into the run's requests. What cannot be done is
    /// refused.
    pub(super) fn take_orders(&mut self, state: &TrainState<M>) {
        let orders = self.inbox.as_mut().map_or(Vec::new(), |inbox| inbox.take());
        for order in orders {
            match self.take_order(&order.command, state) {
                Ok(text) => self.orders.push((order, text)),
                Err(error) => {
                    let answer = Answer::refusal(error.to_string(), self.status(state));
                    self.tell(&order, &answer);
                }
            }
        }
    }

    fn take_order(&mut self, command: &Command, state: &TrainState<M>) -> Result<String> {
        let step = self.progress.global_step;
        Ok(match command {
            Command::Status => format!("step {step}"),
            Command::Stop => {
                self.requests.ordered_stop = true;
                // It waits for the group of batches that has begun.
                let last = step + u64::from(self.position.in_group > 0);
                format!("the run ends after step {last}")
            }
            Command::Save => {
                let run_dir = self.run_dir.ok_or_else(|| Error::config("no run folder"))?;
                let path = run_dir
                    .join("checkpoints")
                    .join(format!("ordered-step={step}"));
                if path.exists() || self.requests.saves.contains(&path) {
                    return Ok(format!("`{}` is there already", path.display()));
                }
                let text = format!("`{}` is written", path.display());
                self.requests.saves.push(path);
                text
            }
            Command::Validate if !self.validates => {
                return Err(Error::config("this run has no validation data"));
            }
            Command::Validate => {
                self.requests.validates = true;
                "validated".to_owned()
            }
            Command::LearningRate { groups, lr } => {
                self.order_change(
                    state,
                    Change::LearningRate {
                        groups: groups.clone(),
                        lr: *lr,
                    },
                )?;
                format!("the base learning rate of `{groups}` is {lr} after step {step}")
            }
            Command::AccumulateGradBatches(batches) => {
                self.order_change(state, Change::Accumulate(*batches))?;
                format!("{batches} batches make a step after step {step}")
            }
        })
    }

    fn order_change(&mut self, state: &TrainState<M>, change: Change) -> Result<()> {
        change.check(state.present()?, &state.optimizers)?;
        self.requests.changes.push(change);
        Ok(())
    }

    /// Tells those who have given orders whether they are carried out.
    ///
    /// # Errors
    /// A checkpoint could not be written.
    pub(super) fn answer_orders(&mut self, state: &TrainState<M>) -> Result<()> {
        let orders = std::mem::take(&mut self.orders);
        let saves = orders.iter().any(|(o, _)| o.command == Command::Save);
        let written = match saves {
            true => self.writer.wait(),
            false => Ok(()),
        };
        for (order, mut text) in orders {
            let refused = match (&order.command, &written) {
                (Command::Save, Err(error)) => Some(error.to_string()),
                (Command::Validate, _)
                    if self.position.last_validated != Some(self.progress.total_batches) =>
                {
                    Some("the run ends before it validates".to_owned())
                }
                _ => None,
            };
            if let Some(why) = refused {
                self.tell(&order, &Answer::refusal(why, self.status(state)));
                continue;
            }
            if order.command == Command::Validate {
                let values = self
                    .metrics
                    .iter()
                    .filter(|(name, _)| name.starts_with("val/"));
                for (name, value) in values {
                    text += &format!(", {name} {}", table::number(value));
                }
            }
            let answer = Answer::done(text, self.status(state));
            self.tell(&order, &answer);
        }
        written
    }

    fn tell(&mut self, order: &Order, answer: &Answer) {
        if self.prints() && order.command != Command::Status {
            let refused = if answer.is_done { "" } else { "refused: " };
            say!("firebox ctl: {refused}{answer}");
        }
        if let Some(inbox) = &self.inbox {
            inbox.answer(order, answer);
        }
    }

    fn status(&self, state: &TrainState<M>) -> Value {
        let rates: BTreeMap<&str, f64> = state.learning_rates().collect();
        let progress = self.progress;
        json!({
            "epoch": progress.epoch,
            "max_epochs": self.config.epoch_limit(),
            "batch": progress.batch,
            "batches": self.batch.total,
            "global_step": progress.global_step,
            "skipped_steps": progress.skipped_steps,
            "samples": progress.samples,
            "elapsed_seconds": self.elapsed().as_secs_f64(),
            "learning_rates": rates,
            "metrics": self.metrics.to_json(),
        })
    }
}
