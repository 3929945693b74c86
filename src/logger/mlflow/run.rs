//! From a run's first entry to its end.

use super::delivery::Delivery;
use super::sender::{self, End, Sender};
use super::spool::{Begin, Entry, Spool};
use super::{MlflowLogger, State};
use crate::error::Result;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64;

impl MlflowLogger {
    /// Adds entries to the spool, which the sender then sends. An error of the sender comes after
    /// that, so that nothing is lost.
    pub(super) fn add(&mut self, entries: &[Entry]) -> Result<()> {
        self.start()?;
        self.write(entries)?;
        let error = self.sender.as_ref().and_then(Sender::take_error);
        error.map_or(Ok(()), Err)
    }

    /// Logs parameters, and the file they come from. Those of a run that goes on are new only if they
    /// have changed.
    pub(super) fn add_settings(
        &mut self,
        (stem, ending): (&str, &str),
        text: String,
        params: Vec<(String, String)>,
    ) -> Result<()> {
        let mut of_kind = self
            .settings
            .iter()
            .filter(|(path, _)| path.starts_with(stem));
        let path = match of_kind.clone().count() {
            0 => format!("{stem}.{ending}"),
            version => format!("{stem}-v{version}.{ending}"),
        };
        if of_kind.next_back().is_some_and(|(_, last)| *last == text) {
            return Ok(());
        }
        self.settings.push((path.clone(), text.clone()));
        self.add(&[Entry::Settings { path, text, params }])
    }

    /// Begins the run, or goes on with it.
    pub(super) fn start(&mut self) -> Result<()> {
        let goes_on = Entry::Status {
            status: "RUNNING".to_owned(),
            end: None,
        };
        if self.sender.is_some() {
            return match std::mem::take(&mut self.ended) {
                true => self.write(&[goes_on]),
                false => Ok(()),
            };
        }
        let (mut spool, state, first) = match (self.spool.take(), self.state.clone()) {
            (Some(spool), Some(state)) => (spool, state, goes_on),
            (_, Some(state)) => {
                let mut spool = Spool::open(&self.folder.join(&state.spool), self.patience)?;
                spool.cut(state.length)?;
                (spool, state, goes_on)
            }
            (_, None) => {
                let spool = Spool::create(&self.folder)?;
                let (state, run) = self.begin(&spool);
                (spool, state, run)
            }
        };
        spool.append(&first)?;
        let report = || Arc::clone(&self.report);
        let delivery = Delivery::new(self.client.clone(), &spool, report())?;
        self.sender = Some(Sender::start(delivery, &spool, self.retry, report())?);
        let length = spool.length();
        self.state = Some(State { length, ..state });
        self.spool = Some(spool);
        self.ended = false;
        Ok(())
    }

    fn write(&mut self, entries: &[Entry]) -> Result<()> {
        let (Some(spool), Some(state)) = (&mut self.spool, &mut self.state) else {
            return Ok(());
        };
        let written = entries.iter().try_for_each(|entry| spool.append(entry));
        state.length = spool.length();
        if let Some(sender) = &self.sender {
            sender.wake(spool.length());
        }
        written
    }

    fn begin(&mut self, spool: &Spool) -> (State, Entry) {
        let time = self.now();
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH);
        let unique = (
            spool.path(),
            std::process::id(),
            nanos.map(|t| t.as_nanos()),
        );
        let id = format!("{:016x}", xxh3_64(format!("{unique:?}").as_bytes()));
        let name = spool.path().file_name().unwrap_or_default();
        let state = State {
            spool: name.to_string_lossy().into_owned(),
            id: id.clone(),
            length: 0,
            run_id: None,
            experiment: self.experiment.clone(),
        };
        let from = self.resumed_from.clone();
        let from = from.map(|run| ("firebox.resumed_from".to_owned(), run));
        let run = Begin {
            id,
            uri: self.client.uri().to_owned(),
            experiment: self.experiment.clone(),
            run_name: self.run_name.clone(),
            tags: self.tags.iter().cloned().chain(from).collect(),
            time,
        };
        (state, Entry::Run(run))
    }

    /// Waits for the sender once the run has ended, and closes the files if it is done.
    pub(super) fn wait_for_end(&mut self) -> Result<()> {
        self.ended = true;
        let Some(sender) = self.sender.take() else {
            return Ok(());
        };
        let end = sender.finish(self.patience);
        if let Some(state) = &mut self.state {
            state.run_id = sender.run_id().or(state.run_id.take());
        }
        if let End::Late = end {
            if let Some(spool) = &self.spool {
                sender::say_late(&self.report, self.client.uri(), spool, self.patience);
            }
            // It goes on sending as long as the process does.
            self.sender = Some(sender);
            return Ok(());
        }
        let joined = sender.join();
        self.spool = None;
        match end {
            End::Stopped(Some(error)) => Err(error),
            _ => joined,
        }
    }
}
