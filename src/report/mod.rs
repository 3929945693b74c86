//! A run's numbers and curves, or those of several side by side, as one HTML file.
//!
//! The page needs no network: styles, script and values are in it, and values are embedded as they
//! were logged. Tables are there without JavaScript; the charts are drawn by it.

mod charts;
mod html;
mod run;
mod tables;
#[cfg(test)]
mod tests;

use crate::error::{Error, ErrorKind, Result};
use charts::Charts;
use run::Run;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The page that shows these runs' folders, such as `runs/version_0`.
///
/// A run may still be going on. What a folder lacks, or what is damaged in it, is said on the page.
///
/// ```
/// # use firebox::prelude::*;
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let run_dir = dir.path().to_path_buf();
/// # std::fs::write(run_dir.join("config.toml"), "seed = 1\n").unwrap();
/// # std::fs::write(run_dir.join("metrics.csv"), "step,epoch,val/loss\n75,0,0.25\n").unwrap();
/// let page = firebox::report::report(&[run_dir])?;
/// assert!(page.contains("<!doctype html>") && page.contains("val/loss"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// No runs, no such folder, or one that is not a run's.
pub fn report(runs: &[PathBuf]) -> Result<String> {
    if runs.is_empty() {
        let what =
            "there is no run to report on; give the folders of some, such as `runs/version_0`";
        return Err(Error::config(what));
    }
    let read: Result<Vec<Run>> = runs.iter().map(|path| Run::read(path)).collect();
    let mut runs = read?;
    name(&mut runs);
    let json = Charts::new(&runs).to_json();
    let json =
        json.map_err(|e| Error::new(ErrorKind::Io, "cannot encode the values").with_source(e))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = html::escape(&names.join(", "));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title} – firebox</title>\n<style>\n{css}</style>\n</head>\n<body>\n{body}\
         <footer>Written {now} by firebox {version}.</footer>\n\
         <script type=\"application/json\" id=\"data\">{json}</script>\n\
         <script>\n{js}</script>\n</body>\n</html>\n",
        css = include_str!("report.css"),
        js = include_str!("report.js"),
        body = tables::body(&runs),
        now = html::utc(now),
        version = env!("CARGO_PKG_VERSION"),
    ))
}

/// Writes [`report`] to a file, `report.html` in the first run's folder unless another is given;
/// gives its path. A file that is there is replaced as a whole.
///
/// # Errors
/// As [`report`], or the file cannot be written.
pub fn write_report(runs: &[PathBuf], output: Option<&Path>) -> Result<PathBuf> {
    let page = report(runs)?;
    let path = match (output, runs.first()) {
        (Some(path), _) => path.to_path_buf(),
        (None, Some(run)) => run.join("report.html"),
        (None, None) => "report.html".into(),
    };
    let failed = |e| Error::io("write", &path, e);
    let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
        let what = format!(
            "`{}` is a folder; give a file's path for the report",
            path.display()
        );
        return Err(Error::config(what));
    };
    let hidden = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
    let temporary = path.with_file_name(hidden);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(page.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    });
    if let Err(e) = written {
        // The error that is returned is the one that counts.
        let _ = fs::remove_file(&temporary);
        return Err(failed(e));
    }
    Ok(path)
}

/// Names runs by their folders, with as many of those above as make them distinct.
fn name(runs: &mut [Run]) {
    let paths: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let path = run.path.canonicalize().unwrap_or_else(|_| run.path.clone());
            let parts = path.iter().rev();
            let parts = parts.map(|part| part.to_string_lossy().into_owned());
            parts.filter(|part| part != "/").collect()
        })
        .collect();
    let end = |path: &[String], depth: usize| {
        let mut parts: Vec<&str> = path.iter().take(depth).map(String::as_str).collect();
        parts.reverse();
        parts.join("/")
    };
    for (index, path) in paths.iter().enumerate() {
        let others = || {
            paths
                .iter()
                .enumerate()
                .filter(move |(other, _)| *other != index)
        };
        let is_distinct =
            |depth: &usize| others().all(|(_, other)| end(other, *depth) != end(path, *depth));
        let name = match (1..=path.len()).find(is_distinct) {
            Some(depth) => end(path, depth),
            // The same folder twice.
            None => {
                let before = paths[..index].iter().filter(|other| *other == path).count();
                format!("{} ({})", end(path, 1), before + 1)
            }
        };
        runs[index].name = name;
    }
}
