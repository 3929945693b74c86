//! Which values belong into one chart, in the form that `report.js` draws.

use super::run::{Run, Table};
use crate::exact::Exact;
use crate::mode::Mode;
use serde::Serialize;
use std::collections::HashMap;

/// Everything that is drawn; embedded into the page as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Charts<'a> {
    runs: Vec<&'a str>,
    /// The places of values on the x axis; names that were logged together share one.
    xs: Vec<Axis>,
    charts: Vec<Chart<'a>>,
}

#[derive(Debug, Serialize)]
struct Axis {
    step: Vec<u64>,
    epoch: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Chart<'a> {
    title: String,
    is_bytes: bool,
    /// Whether its names are parts of one quantity, such as the layers of a model.
    has_parts: bool,
    series: Vec<Series<'a>>,
    #[serde(skip)]
    rank: u8,
}

#[derive(Debug, Serialize)]
struct Series<'a> {
    run: usize,
    name: &'a str,
    kind: Kind,
    /// Which of the chart's parts.
    part: usize,
    is_noisy: bool,
    x: usize,
    y: Vec<Exact>,
}

/// How a value came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Of one training step.
    Train,
    /// Of a whole epoch's training steps.
    Epoch,
    /// Of a whole validation.
    Val,
    /// Of a whole test.
    Test,
    /// Neither.
    Other,
}

/// Where a name belongs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The quantity, which is the chart's title.
    pub(super) chart: String,
    pub(super) kind: Kind,
    pub(super) has_parts: bool,
    /// Whether single values are noisy, so that a smoothed line helps.
    pub(super) is_noisy: bool,
    /// Charts with a lower one come first.
    rank: u8,
}

impl<'a> Charts<'a> {
    pub(super) fn new(runs: &'a [Run]) -> Self {
        let mut this = Self {
            runs: runs.iter().map(|run| run.name.as_str()).collect(),
            xs: Vec::new(),
            charts: Vec::new(),
        };
        for (index, run) in runs.iter().enumerate() {
            this.add(index, &run.metrics);
        }
        this.charts.sort_by_key(|chart| chart.rank);
        this
    }

    fn add(&mut self, run: usize, table: &'a Table) {
        let epochs = table.epochs();
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        for column in &table.columns {
            let rows: Vec<usize> = column.cells.iter().map(|(row, _)| *row).collect();
            let x = *known.entry(rows).or_insert_with_key(|rows| {
                self.xs.push(Axis {
                    step: rows.iter().map(|row| table.rows[*row].0).collect(),
                    epoch: rows.iter().map(|row| epochs[*row]).collect(),
                });
                self.xs.len() - 1
            });
            let place = place(&column.name);
            let chart = self.chart(place.chart, place.has_parts, place.rank);
            let parts = chart
                .series
                .iter()
                .filter(|s| s.run == run && place.has_parts);
            let same = |name: &str| chart.series.iter().find(|s| s.name == name);
            let part = same(&column.name).map_or(parts.count(), |s| s.part);
            chart.series.push(Series {
                run,
                name: &column.name,
                kind: place.kind,
                part,
                is_noisy: place.is_noisy,
                x,
                y: column.cells.iter().map(|(_, y)| Exact(*y)).collect(),
            });
        }
    }

    /// The chart of a quantity, a new one where there is none.
    fn chart(&mut self, title: String, has_parts: bool, rank: u8) -> &mut Chart<'a> {
        let is_it = |chart: &Chart<'_>| chart.title == title && chart.has_parts == has_parts;
        let known = self.charts.iter().position(is_it);
        let at = known.unwrap_or(self.charts.len());
        if known.is_none() {
            self.charts.push(Chart {
                title,
                is_bytes: rank == MEMORY,
                has_parts,
                series: Vec::new(),
                rank,
            });
        }
        let chart = &mut self.charts[at];
        chart.rank = chart.rank.min(rank);
        chart
    }

    /// As JSON that may stand in a `script` element: no `<` is in it.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        // They stand inside of strings alone.
        Ok(json
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026"))
    }
}

const LOSS: u8 = 0;
const QUANTITY: u8 = 1;
const LEARNING_RATE: u8 = 2;
const GRADIENTS: u8 = 3;
const THROUGHPUT: u8 = 4;
const MEMORY: u8 = 5;
const ENERGY: u8 = 6;
const OTHER: u8 = 7;

/// Where a name belongs: `train/X`, `train/X_epoch`, `val/X` and `test/X` into the chart `X`.
pub(super) fn place(name: &str) -> Place {
    let place = |chart: &str, kind, has_parts, rank| Place {
        chart: chart.to_owned(),
        kind,
        has_parts,
        is_noisy: matches!(rank, GRADIENTS | THROUGHPUT) || kind == Kind::Train,
        rank,
    };
    let other = |chart: &str, has_parts, rank| place(chart, Kind::Other, has_parts, rank);
    let (stage, quantity) = match name.split_once('/') {
        Some((stage, quantity)) if !quantity.is_empty() => (stage, quantity),
        _ if name == "lr" => (name, ""),
        _ => return other(name, false, OTHER),
    };
    let (kind, quantity) = match stage {
        "lr" => return other("learning rate", true, LEARNING_RATE),
        "memory" => return other("memory", true, MEMORY),
        "throughput" => return other(&quantity.replace('_', " "), false, THROUGHPUT),
        "energy" => return other(&name.replace('/', ", "), false, ENERGY),
        "train" => match quantity.strip_suffix("_epoch") {
            _ if quantity.split('/').next() == Some("grad_norm") => {
                return other("gradient norm", true, GRADIENTS);
            }
            // They count, or change by steps.
            _ if matches!(quantity, "loss_scale" | "skipped_steps") => {
                return other(&quantity.replace('_', " "), false, OTHER);
            }
            Some(quantity) if !quantity.is_empty() => (Kind::Epoch, quantity),
            _ => (Kind::Train, quantity),
        },
        "val" => (Kind::Val, quantity),
        "test" => (Kind::Test, quantity),
        _ => return other(name, false, OTHER),
    };
    let (whole, part) = quantity.rsplit_once('/').unwrap_or((quantity, ""));
    let is_numbered = |start| {
        let rest = part.strip_prefix(start);
        rest.is_some_and(|rest: &str| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    if is_numbered("class_") {
        return place(&format!("{whole} by class"), kind, true, QUANTITY);
    } else if is_numbered("target_") {
        return place(
            &format!("{whole} by target and prediction"),
            kind,
            true,
            QUANTITY,
        );
    }
    let rank = match kind {
        _ if quantity == "loss" => LOSS,
        Kind::Train => OTHER,
        _ => QUANTITY,
    };
    place(quantity, kind, false, rank)
}

/// What is better, as far as the watched value (`max:val/acc`) or the name says it.
pub(super) fn mode(name: &str, monitor: Option<&str>) -> Option<Mode> {
    const LOWER: [&str; 11] = [
        "loss",
        "error",
        "perplexity",
        "ppl",
        "mse",
        "mae",
        "rmse",
        "nll",
        "wer",
        "cer",
        "fid",
    ];
    const HIGHER: [&str; 13] = [
        "acc",
        "accuracy",
        "f1",
        "fbeta",
        "precision",
        "recall",
        "auc",
        "auroc",
        "r2",
        "iou",
        "dice",
        "bleu",
        "score",
    ];
    match monitor.and_then(|monitor| monitor.split_once(':')) {
        Some(("min", watched)) if watched == name => return Some(Mode::Min),
        Some(("max", watched)) if watched == name => return Some(Mode::Max),
        _ => {}
    }
    let name = name.strip_suffix("_epoch").unwrap_or(name).to_lowercase();
    let ends: Vec<&str> = name
        .split('/')
        .filter_map(|part| part.rsplit('_').next())
        .collect();
    let is_one_of = |list: &[&str]| ends.iter().any(|end| list.contains(end));
    match (is_one_of(&LOWER), is_one_of(&HIGHER)) {
        (true, false) => Some(Mode::Min),
        (false, true) => Some(Mode::Max),
        _ => None,
    }
}
