//! What a run's folder holds, read as far as it can be read.

use crate::error::{Error, Result};
use crate::exact::Exact;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const CONFIG: &str = "config.toml";
const STARTS: &str = "run.jsonl";
const CSV: &str = "metrics.csv";
const JSONL: &str = "metrics.jsonl";
const PROFILE: &str = "profile.json";
const TEST: &str = "test.json";

/// A run, as its folder tells it.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Distinct among the runs of a report.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// What is missing, cut short or damaged, for people.
    pub(super) notes: Vec<String>,
    pub(super) starts: Vec<Start>,
    /// As they stand in the file, by key.
    pub(super) settings: Vec<(String, String)>,
    /// The watched value, as in `max:val/acc`.
    pub(super) monitor: Option<String>,
    pub(super) metrics: Table,
    /// By step.
    pub(super) checkpoints: Vec<Saved>,
    pub(super) profile: Option<Profile>,
    pub(super) test: Vec<(String, String)>,
}

/// A line of `run.jsonl`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Start {
    /// Seconds since 1970.
    pub(super) started: u64,
    pub(super) firebox: String,
    pub(super) burn: String,
    pub(super) command: Vec<String>,
    pub(super) git: Option<String>,
    pub(super) slurm_job: Value,
    pub(super) resumed_from: Option<String>,
    pub(super) config: Value,
}

/// The logged values.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Step and epoch of each row, by step.
    pub(super) rows: Vec<(u64, u64)>,
    pub(super) columns: Vec<Column>,
    /// When the file was written last, in seconds since 1970.
    pub(super) written: Option<u64>,
}

/// A name's values, each with its row's index.
#[derive(Debug, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) cells: Vec<(usize, f64)>,
}

/// A checkpoint's folder.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub(super) name: String,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) bytes: u64,
    pub(super) metrics: Vec<(String, f64)>,
    /// Seconds trained.
    pub(super) elapsed: Option<f64>,
    pub(super) is_best: bool,
    pub(super) is_last: bool,
    pub(super) damage: Option<String>,
}

/// Where the time went: `profile.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Profile {
    pub(super) wall_seconds: f64,
    pub(super) phases: Vec<Phase>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) count: u64,
    pub(super) total_seconds: f64,
    /// Of the wall time, from 0 to 1; none for what ran beside.
    pub(super) share: Option<f64>,
    pub(super) mean_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
}

impl Run {
    /// Reads a folder.
    ///
    /// # Errors
    /// There is no such folder, or it is not a run's. All else becomes a note.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            let what = "is no folder; use a run's, such as `runs/version_0`";
            return Err(Error::config(format!("`{}` {what}", path.display())));
        }
        if !path.join(CONFIG).is_file() {
            let shown = path.display();
            let mut what = format!("`{shown}` is not a run's folder: it has no `{CONFIG}`");
            if path.join("version_0").join(CONFIG).is_file() {
                what += &format!("; use one in it, such as `{shown}/version_0`");
            }
            return Err(Error::config(what));
        }
        let mut run = Self {
            path: path.to_path_buf(),
            ..Self::default()
        };
        run.read_starts();
        run.read_settings();
        run.read_metrics();
        run.read_checkpoints();
        run.profile = run.text(PROFILE).and_then(|text| run.json(PROFILE, &text));
        let test = run.text(TEST).and_then(|text| run.json(TEST, &text));
        flatten("", &test.unwrap_or(json!({})), &mut run.test);
        Ok(run)
    }

    fn note(&mut self, file: impl Display, what: impl Display) {
        self.notes.push(format!("`{file}` {what}"));
    }

    /// A file's text, if there is one.
    fn text(&mut self, file: &str) -> Option<String> {
        match fs::read(self.path.join(file)) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                if text.contains(char::REPLACEMENT_CHARACTER) {
                    self.note(file, "is damaged: not all of it is text");
                }
                Some(text.into_owned())
            }
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => {
                self.note(file, format!("cannot be read: {e}"));
                None
            }
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&mut self, file: &str, text: &str) -> Option<T> {
        let failed = |e| self.note(file, format!("is damaged: {e}"));
        serde_json::from_str(text).map_err(failed).ok()
    }

    fn read_starts(&mut self) {
        let Some(text) = self.text(STARTS) else {
            let what = "is missing: when and how the run was started is not known";
            return self.note(STARTS, what);
        };
        let starts = self.lines(STARTS, &text);
        self.starts = starts.into_iter().map(|(_, start)| start).collect();
    }

    /// The lines of JSON that can be read, with their numbers.
    fn lines<T: serde::de::DeserializeOwned>(&mut self, file: &str, text: &str) -> Vec<(u64, T)> {
        let (mut parsed, mut bad) = (Vec::new(), Bad::default());
        let ends = text.ends_with('\n');
        let mut lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty())
            .peekable();
        while let Some((number, line)) = lines.next() {
            match serde_json::from_str(line) {
                Ok(value) => parsed.push((number, value)),
                Err(_) if lines.peek().is_none() && !ends => self.note(file, CUT_SHORT),
                Err(e) => bad.add(number, e),
            }
        }
        bad.note(self, file);
        parsed
    }

    fn read_settings(&mut self) {
        let text = self.text(CONFIG).unwrap_or_default();
        match toml::from_str::<toml::Table>(&text) {
            Ok(table) => {
                let monitor = table.get("monitor").and_then(toml::Value::as_str);
                self.monitor = monitor.map(str::to_owned);
                let table = serde_json::to_value(&table).unwrap_or_default();
                flatten("", &table, &mut self.settings);
            }
            Err(e) => {
                let before = e.span().and_then(|at| text.get(..at.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                self.note(
                    CONFIG,
                    format!("is damaged at line {line}: {}", e.message()),
                );
            }
        }
    }

    fn read_metrics(&mut self) {
        for (file, read) in [
            (CSV, Self::read_csv as fn(&mut Self, &str)),
            (JSONL, Self::read_jsonl),
        ] {
            if let Some(text) = self.text(file) {
                read(self, &text);
                if !self.metrics.rows.is_empty() {
                    let written = fs::metadata(self.path.join(file)).and_then(|m| m.modified());
                    let written = written.ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
                    self.metrics.written = written.map(|t| t.as_secs());
                    break;
                }
            }
        }
        if self.metrics.rows.is_empty() {
            let what = format!("and `{JSONL}` have no rows: nothing is logged yet");
            self.note(CSV, what);
        }
        if self.path.join("metrics-v1.csv").is_file() {
            self.note("metrics-v1.csv", "is not shown");
        }
        if self.metrics.sort() {
            let what = "has rows that are not in order; they are sorted by step";
            self.note("metrics", what);
        }
    }

    fn read_csv(&mut self, text: &str) {
        // Of a line that is cut short, the last number may be another one.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            self.note(CSV, CUT_SHORT);
        }
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_reader(&text.as_bytes()[..whole]);
        let header = reader.headers().cloned().unwrap_or_default();
        let place = |name: &str| header.iter().position(|n| n == name);
        let Some(step) = place("step") else {
            if whole > 0 {
                self.note(CSV, "has no column `step`, and is not shown");
            }
            return;
        };
        let epoch = place("epoch");
        let (mut table, mut bad) = (Builder::default(), Bad::default());
        for record in reader.records() {
            let record = match record {
                Ok(record) => record,
                Err(e) => {
                    bad.add(e.position().map_or(0, csv::Position::line), e);
                    continue;
                }
            };
            let line = record.position().map_or(0, csv::Position::line);
            let counter = |at: usize| record.get(at)?.parse::<u64>().ok();
            match (counter(step), epoch.map_or(Some(0), counter)) {
                (Some(step), Some(epoch)) if record.len() == header.len() => table.row(step, epoch),
                _ => {
                    bad.add(line, "its cells do not fit the header");
                    continue;
                }
            }
            for (at, (name, cell)) in header.iter().zip(&record).enumerate() {
                match cell.parse() {
                    _ if at == step || Some(at) == epoch || cell.is_empty() => {}
                    Ok(value) => table.cell(name, value),
                    Err(_) => bad.add(line, format!("`{cell}` is no number")),
                }
            }
        }
        bad.note(self, CSV);
        self.metrics = table.table;
    }

    fn read_jsonl(&mut self, text: &str) {
        #[derive(Deserialize)]
        struct Line {
            step: u64,
            #[serde(default)]
            epoch: u64,
            values: Map<String, Value>,
        }
        let (mut table, mut bad) = (Builder::default(), Bad::default());
        for (number, line) in self.lines::<Line>(JSONL, text) {
            table.row(line.step, line.epoch);
            for (name, value) in &line.values {
                match Exact::deserialize(value) {
                    Ok(Exact(value)) => table.cell(name, value),
                    Err(_) => bad.add(number, format!("`{value}` is no number")),
                }
            }
        }
        bad.note(self, JSONL);
        self.metrics = table.table;
    }

    fn read_checkpoints(&mut self) {
        let folder = self.path.join("checkpoints");
        let mut names = match fs::read_dir(&folder) {
            Ok(entries) => entries
                .flatten()
                .map(|entry| entry.file_name())
                .collect::<Vec<_>>(),
            Err(e) if e.kind() == ErrorKind::NotFound => return,
            Err(e) => return self.note("checkpoints", format!("cannot be read: {e}")),
        };
        names.sort();
        let last = fs::read_link(folder.join("last")).unwrap_or_default();
        let (mut best, mut hyper_parameters) = (None, (0, Value::Null));
        for file_name in names {
            let path = folder.join(&file_name);
            let name = file_name.to_string_lossy().into_owned();
            // What is hidden is being written, and what `last` stands for is found by itself.
            if name.starts_with('.') || name == "last" || !path.is_dir() {
                continue;
            }
            let mut saved = Saved {
                is_last: last.file_name() == Some(&file_name),
                name,
                ..Saved::default()
            };
            match saved.read(&path) {
                Ok(state) => {
                    best = best.max(state.records.best.map(|best| (saved.step, best)));
                    if saved.step >= hyper_parameters.0 {
                        hyper_parameters = (saved.step, state.hyper_parameters);
                    }
                }
                // The run has removed it meanwhile.
                Err(_) if !path.exists() => continue,
                Err(damage) => {
                    let what = format!("is damaged: {damage}");
                    self.note(format_args!("checkpoints/{}", saved.name), what);
                    saved.damage = Some(damage);
                }
            }
            self.checkpoints.push(saved);
        }
        self.checkpoints.sort_by_key(|saved| saved.step);
        let best = best.as_ref().and_then(|(_, path)| path.file_name());
        let best = best.map(|name| name.to_string_lossy());
        for saved in &mut self.checkpoints {
            saved.is_best = Some(saved.name.as_str()) == best.as_deref();
        }
        let (_, values) = hyper_parameters;
        if !values.is_null() {
            flatten("hyper_parameters", &values, &mut self.settings);
        }
    }
}

/// What is shown of a checkpoint's `state.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    position: Position,
    metrics: Vec<(String, Exact)>,
    hyper_parameters: Value,
    records: Records,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Position {
    elapsed: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Records {
    best: Option<PathBuf>,
}

impl Saved {
    /// Reads what the checkpoint says of itself; the error says what is wrong with it.
    fn read(&mut self, path: &Path) -> Result<State, String> {
        #[derive(Deserialize)]
        struct Manifest {
            step: u64,
            epoch: u64,
            files: HashMap<String, File>,
        }
        #[derive(Deserialize)]
        struct File {
            bytes: u64,
        }
        let text = |name: &str| {
            let text = fs::read_to_string(path.join(name));
            text.map_err(|e| format!("`{name}` cannot be read: {e}"))
        };
        let manifest: Manifest = serde_json::from_str(&text("manifest.json")?)
            .map_err(|e| format!("`manifest.json`: {e}"))?;
        (self.step, self.epoch) = (manifest.step, manifest.epoch);
        let bytes = manifest.files.values().map(|file| file.bytes);
        self.bytes = bytes.fold(0, u64::saturating_add);
        let state: State =
            serde_json::from_str(&text("state.json")?).map_err(|e| format!("`state.json`: {e}"))?;
        let metrics = state.metrics.iter();
        self.metrics = metrics.map(|(n, Exact(v))| (n.clone(), *v)).collect();
        self.elapsed = state.position.elapsed;
        for (name, file) in &manifest.files {
            let found = fs::metadata(path.join(name)).map_or(0, |found| found.len());
            if found != file.bytes {
                return Err(format!("`{name}` has {found} bytes, not {}", file.bytes));
            }
        }
        Ok(state)
    }
}

impl Table {
    /// A name's values: steps, and what was logged there.
    pub(super) fn values(&self, column: &Column) -> impl Iterator<Item = (u64, f64)> {
        let cells = column.cells.iter();
        cells.filter_map(|(row, value)| Some((self.rows.get(*row)?.0, *value)))
    }

    /// How many epochs are done at each row, with the part of the one that goes on.
    ///
    /// An epoch ends with the last row that has its index. One that may still go on is taken to be
    /// as long as the longest before it.
    pub(super) fn epochs(&self) -> Vec<f64> {
        let mut ends = BTreeMap::new();
        for (step, epoch) in &self.rows {
            let end = ends.entry(*epoch).or_insert(*step);
            *end = (*end).max(*step);
        }
        let start = |epoch: u64| match epoch.checked_sub(1) {
            None => Some(0),
            Some(before) => ends.get(&before).copied(),
        };
        let newest = ends.keys().next_back().copied();
        let length = |epoch: &u64, end: u64| Some(end.saturating_sub(start(*epoch)?));
        let full = ends.iter().filter(|(epoch, _)| Some(**epoch) != newest);
        let longest = full.filter_map(|(epoch, end)| length(epoch, *end)).max();
        let longest = longest.unwrap_or(0);
        let position = |(step, epoch): &(u64, u64)| {
            let end = ends.get(epoch).copied().unwrap_or(*step);
            let own = length(epoch, end).unwrap_or(longest);
            let own = if Some(*epoch) == newest {
                own.max(longest)
            } else {
                own
            };
            let start = start(*epoch).unwrap_or(end.saturating_sub(own));
            let done = step.saturating_sub(start) as f64 / own.max(1) as f64;
            *epoch as f64 + done.min(1.0)
        };
        self.rows.iter().map(position).collect()
    }

    /// Sorts the rows by step; whether that was needed.
    fn sort(&mut self) -> bool {
        if self.rows.is_sorted_by_key(|(step, _)| *step) {
            return false;
        }
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|row| self.rows[*row].0);
        let mut places = vec![0; order.len()];
        for (place, row) in order.iter().enumerate() {
            places[*row] = place;
        }
        self.rows = order.iter().map(|row| self.rows[*row]).collect();
        for column in &mut self.columns {
            column
                .cells
                .iter_mut()
                .for_each(|(row, _)| *row = places[*row]);
            column.cells.sort_by_key(|(row, _)| *row);
        }
        true
    }
}

/// Fills a table row by row.
#[derive(Default)]
struct Builder {
    table: Table,
    places: HashMap<String, usize>,
}

impl Builder {
    fn row(&mut self, step: u64, epoch: u64) {
        self.table.rows.push((step, epoch));
    }

    fn cell(&mut self, name: &str, value: f64) {
        let columns = &mut self.table.columns;
        let place = *self.places.entry(name.to_owned()).or_insert(columns.len());
        if place == columns.len() {
            let (name, cells) = (name.to_owned(), Vec::new());
            columns.push(Column { name, cells });
        }
        columns[place]
            .cells
            .push((self.table.rows.len() - 1, value));
    }
}

/// The lines of a file that cannot be read.
#[derive(Default)]
struct Bad {
    count: usize,
    first: Option<String>,
}

impl Bad {
    fn add(&mut self, line: u64, why: impl Display) {
        self.count += 1;
        self.first
            .get_or_insert_with(|| format!("line {line}: {why}"));
    }

    fn note(&self, run: &mut Run, file: &str) {
        if let Some(first) = &self.first {
            let what = match self.count {
                1 => format!("is damaged in one place, which is left out: {first}"),
                count => format!("is damaged in {count} places, which are left out; {first}"),
            };
            run.note(file, what);
        }
    }
}

const CUT_SHORT: &str = "ends within a line, which is left out; the run may still be going on";

/// The values of nested objects, each with its path and as JSON writes it.
pub(super) fn flatten(path: &str, value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() || path.is_empty() => {
            for (key, value) in map {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(&format!("{path}{dot}{key}"), value, into);
            }
        }
        _ => into.push((path.to_owned(), value.to_string())),
    }
}
