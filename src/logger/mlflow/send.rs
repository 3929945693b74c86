//! Sending what a run could not send.

use super::client::Client;
use super::delivery::{Delivery, Trouble, send_command};
use super::spool::{Entry, Lines, Spool, spools};
use crate::error::{Error, ErrorKind, Result};
use crate::output::say;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What [`send_spooled`] has sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    /// Values of metrics, each at a step.
    pub points: u64,
    /// Settings files, texts, images and histograms.
    pub files: u64,
    /// MLflow's ids of the runs.
    pub run_ids: Vec<String>,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (points, files) = (self.points, self.files);
        write!(f, "sent {points} points and {files} files to MLflow: ")?;
        f.write_str(&self.run_ids.join(", "))
    }
}

/// Sends what a run that has ended could not send to MLflow, from the spool in its folder, and goes
/// on where the run stopped; what MLflow has is not sent again. The server is that of the run, or
/// MLFLOW_TRACKING_URI; credentials come from the environment, as for
/// [`MlflowLogger`](super::MlflowLogger).
///
/// ```no_run
/// let sent = firebox::logger::send_spooled("runs/version_3")?;
/// println!("{sent}");
/// # Ok::<(), firebox::Error>(())
/// ```
///
/// # Errors
/// There is no spool, it is in use by a run that goes on, the server is away or refuses something.
/// The spool stays as it is, and can be sent again.
pub fn send_spooled(run_dir: impl AsRef<Path>) -> Result<Sent> {
    send_with(run_dir.as_ref(), &super::variable)
}

pub(super) fn send_with(folder: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Result<Sent> {
    let found = spools(folder)?;
    if found.is_empty() {
        return Err(Error::config(format!(
            "`{}` holds no `mlflow.spool.jsonl`, the file that a run with MLflow as its logger \
             keeps in its folder",
            folder.display()
        )));
    }
    let mut sent = Sent::default();
    for path in found {
        let spool = Spool::open(&path, Duration::ZERO)?;
        if spool.length() > 0 {
            send(&spool, variable, &mut sent)?;
        }
    }
    Ok(sent)
}

fn send(spool: &Spool, variable: &dyn Fn(&str) -> Option<String>, sent: &mut Sent) -> Result<()> {
    let path = spool.path();
    let uri = match variable("MLFLOW_TRACKING_URI") {
        Some(uri) => uri,
        None => match Lines::read(path, 0, spool.length())?.next().transpose()? {
            Some((Entry::Run(begin), _)) => begin.uri,
            _ => {
                let message = format!("`{}` does not begin with its run", path.display());
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        },
    };
    let client = Client::new(&uri, variable)?;
    let mut delivery = Delivery::new(client, spool, Arc::new(|line| say!("{line}")))?;
    while delivery.confirmed() < spool.length() {
        match delivery.send_next(spool.length()) {
            Ok(()) => {}
            Err(Trouble::Stop(error)) => return Err(error),
            Err(Trouble::Away(why)) => {
                let left = spool.length() - delivery.confirmed();
                return Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "MLflow at {} does not take what it is sent: {why}; {left} bytes of `{}` \
                         are left, to be sent by `{}` once it does",
                        delivery.client().uri(),
                        path.display(),
                        send_command(path)
                    ),
                ));
            }
        }
    }
    sent.points += delivery.points;
    sent.files += delivery.files;
    sent.run_ids.extend(delivery.run_id().map(str::to_owned));
    Ok(())
}
