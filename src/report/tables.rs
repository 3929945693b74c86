//! Everything on the page but the charts; it reads well without JavaScript.

use super::charts::{Kind, mode, place};
use super::html::{duration, escape, folded, header, list, section, size, table, utc, value};
use super::run::{Column, Run, Saved, Start, flatten};
use crate::mode::Mode;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

const NO_SCRIPT: &str = "<noscript><p class=\"note\">The charts are drawn by JavaScript, which is \
     switched off here; all tables are complete without it.</p></noscript>\n";

/// The page between `body` and its scripts.
pub(super) fn body(runs: &[Run]) -> String {
    let (title, numbers, values) = match runs {
        [run] => {
            let values = folded("Last and best of each name", &compared(runs, |_| true));
            (escape(&run.name), cards(run), values)
        }
        _ => {
            let rest = folded("Other values", &compared(runs, |name| !is_main(runs, name)));
            let numbers = compared(runs, |name| is_main(runs, name)) + &rest;
            (format!("{} runs", runs.len()), numbers, String::new())
        }
    };
    let numbers = match numbers.as_str() {
        "" => "<p>No values yet.</p>\n",
        numbers => numbers,
    };
    let sections = [
        section("numbers", "Key numbers", numbers),
        section("charts", "Charts", NO_SCRIPT),
        section("values", "All values", &values),
        section("profile", "Profile", &of_each(runs, profile)),
        section("test", "Test", &of_each(runs, test)),
        section("settings", "Settings", &settings(runs)),
        section("environment", "Environment", &of_each(runs, environment)),
        section("checkpoints", "Checkpoints", &of_each(runs, checkpoints)),
    ];
    format!(
        "<header>\n<p class=\"kicker\">firebox report</p>\n<h1>{title}</h1>\n{}{}</header>\n\
         <main>\n{}</main>\n",
        states(runs),
        notes(runs),
        sections.concat()
    )
}

/// The same for each run that has it, under the run's name where there are several.
fn of_each(runs: &[Run], content: impl Fn(&Run) -> String) -> String {
    let of_run = |(index, run)| match content(run) {
        text if text.is_empty() || runs.len() == 1 => text,
        text => format!("<h3>{}</h3>\n{text}", swatch(index, run)),
    };
    runs.iter().enumerate().map(of_run).collect()
}

/// A run's name behind its colour in the charts.
fn swatch(index: usize, run: &Run) -> String {
    let dot = format!(
        "<span class=\"swatch\" style=\"background:var(--c{})\"></span>",
        index % 8
    );
    dot + &escape(&run.name)
}

/// A header with a column for each run.
fn by_run(first: &str, runs: &[Run]) -> Vec<String> {
    let runs = runs.iter().enumerate();
    let names = runs.map(|(index, run)| swatch(index, run));
    [escape(first)].into_iter().chain(names).collect()
}

fn notes(runs: &[Run]) -> String {
    let mut lines = String::new();
    for run in runs {
        for note in &run.notes {
            let note = match runs {
                [_] => escape(note),
                _ => escape(&format!("{}: {note}", run.name)),
            };
            lines += &format!("<li>{note}</li>\n");
        }
    }
    match lines.as_str() {
        "" => lines,
        _ => format!("<ul class=\"note\" id=\"notes\">\n{lines}</ul>\n"),
    }
}

/// How far each run is.
fn states(runs: &[Run]) -> String {
    if let [run] = runs {
        return list("state", &state(run));
    }
    let rows = runs.iter().enumerate().map(|(index, run)| {
        let cells = state(run).into_iter().map(|(_, cell)| cell);
        [swatch(index, run)].into_iter().chain(cells).collect()
    });
    let names = runs.first().map(state).unwrap_or_default();
    let names: Vec<&str> = ["run"]
        .into_iter()
        .chain(names.iter().map(|(n, _)| *n))
        .collect();
    table("state", &header(&names), &rows.collect::<Vec<_>>())
}

fn state(run: &Run) -> Vec<(&'static str, String)> {
    let (step, epoch) = run.metrics.rows.last().copied().unzip();
    let saved = run.checkpoints.iter().rfind(|saved| saved.damage.is_none());
    let step = step.max(saved.map(|saved| saved.step));
    let trained = |saved: &Saved| {
        let seconds = duration(saved.elapsed?);
        Some(format!(
            "{seconds} <small>up to step {}</small>",
            saved.step
        ))
    };
    let resumed = match run.starts.len() {
        0 => None,
        1 => Some("never".to_owned()),
        2 => Some("once".to_owned()),
        starts => Some(format!("{} times", starts - 1)),
    };
    let started = run.starts.first().map(|start| utc(start.started));
    let all = [
        ("started", started),
        ("resumed", resumed),
        ("last step", step.map(|step| step.to_string())),
        ("epoch (from 0)", epoch.map(|epoch| epoch.to_string())),
        ("trained for", saved.and_then(trained)),
        ("last logged", run.metrics.written.map(utc)),
    ];
    all.map(|(name, cell)| (name, cell.unwrap_or_else(|| "–".to_owned())))
        .into()
}

/// What became of a name's values.
struct Summary {
    last: (u64, f64),
    /// Of those that are finite; of equal ones the first.
    lowest: Option<(u64, f64)>,
    highest: Option<(u64, f64)>,
    mean: f64,
    count: usize,
    not_finite: usize,
}

impl Summary {
    fn new(run: &Run, column: &Column) -> Option<Self> {
        let values: Vec<(u64, f64)> = run.metrics.values(column).collect();
        let finite: Vec<_> = values
            .iter()
            .copied()
            .filter(|(_, v)| v.is_finite())
            .collect();
        let extreme = |is_better: fn(f64, f64) -> bool| {
            let better = |a: (u64, f64), b: (u64, f64)| if is_better(b.1, a.1) { b } else { a };
            finite.iter().copied().reduce(better)
        };
        Some(Self {
            last: *values.last()?,
            lowest: extreme(|a, b| a < b),
            highest: extreme(|a, b| a > b),
            mean: finite.iter().map(|(_, v)| v / finite.len() as f64).sum(),
            count: values.len(),
            not_finite: values.len() - finite.len(),
        })
    }

    fn best(&self, mode: Mode) -> Option<(u64, f64)> {
        match mode {
            Mode::Min => self.lowest,
            Mode::Max => self.highest,
        }
    }

    /// The best, with where it was; lowest and highest where it is not known what is better.
    fn best_text(&self, name: &str, mode: Option<Mode>) -> String {
        let at = |word, found: Option<(u64, f64)>| {
            let (step, found) = found?;
            let found = value(name, found);
            Some(format!(
                "{word} {found} <span class=\"at\">at step {step}</span>"
            ))
        };
        let lowest = at("lowest", self.lowest).filter(|_| mode != Some(Mode::Max));
        let highest = at("highest", self.highest).filter(|_| mode != Some(Mode::Min));
        let gaps = match self.not_finite {
            0 => None,
            gaps => Some(format!("{gaps} of {} not finite", self.count)),
        };
        let lines: Vec<String> = [lowest, highest, gaps].into_iter().flatten().collect();
        lines.join("<br>")
    }
}

/// The numbers that people look at first: validation, test, training, speed.
fn cards(run: &Run) -> String {
    let card = |column: &Column| {
        let (name, place) = (column.name.as_str(), place(&column.name));
        let summary = Summary::new(run, column)?;
        let (rank, detail) = match place.kind {
            _ if place.has_parts => return None,
            Kind::Val => (
                0,
                summary.best_text(name, mode(name, run.monitor.as_deref())),
            ),
            Kind::Test => (1, String::new()),
            Kind::Epoch if place.chart.ends_with("loss") => (2, "last epoch".to_owned()),
            Kind::Train if place.chart.ends_with("loss") => {
                (2, format!("at step {}", summary.last.0))
            }
            Kind::Other if name.starts_with("throughput/") => {
                (3, format!("mean {}", value(name, summary.mean)))
            }
            _ => return None,
        };
        let title = escape(name).replace('_', "_<wbr>").replace('/', "/<wbr>");
        let last = value(name, summary.last.1);
        let html = format!("<h3>{title}</h3><p class=\"big\">{last}</p><p>{detail}</p>");
        Some((rank, format!("<div class=\"card\">{html}</div>\n")))
    };
    let mut cards: Vec<_> = run.metrics.columns.iter().filter_map(card).collect();
    cards.sort_by_key(|(rank, _)| *rank);
    match cards.into_iter().map(|(_, card)| card).collect::<String>() {
        cards if cards.is_empty() => cards,
        cards => format!("<div class=\"cards\">\n{cards}</div>\n"),
    }
}

/// Whether runs are compared by a name at first sight.
fn is_main(runs: &[Run], name: &str) -> bool {
    let place = place(name);
    let by_epoch = format!("{name}_epoch");
    let mut columns = runs.iter().flat_map(|run| &run.metrics.columns);
    match place.kind {
        _ if place.has_parts => false,
        Kind::Train => place.chart.ends_with("loss") && !columns.any(|c| c.name == by_epoch),
        kind => kind != Kind::Other,
    }
}

/// Last and best values, a metric a row and a run a column.
fn compared(runs: &[Run], is_shown: impl Fn(&str) -> bool) -> String {
    let columns = runs.iter().flat_map(|run| &run.metrics.columns);
    let names = distinct(columns.map(|column| column.name.as_str()));
    let row = |name: &str| {
        let mode = runs
            .iter()
            .find_map(|run| mode(name, run.monitor.as_deref()));
        let summary = |run: &Run| {
            let column = run
                .metrics
                .columns
                .iter()
                .find(|column| column.name == name);
            Summary::new(run, column?)
        };
        let summaries: Vec<Option<Summary>> = runs.iter().map(summary).collect();
        let best = |summary: &Option<Summary>| Some(summary.as_ref()?.best(mode?)?.1);
        let winner = summaries.iter().filter_map(best).reduce(match mode {
            Some(Mode::Max) => f64::max,
            _ => f64::min,
        });
        let cell = |summary: &Option<Summary>| {
            let Some(found) = summary else {
                return "–".to_owned();
            };
            let is_winner = summaries.iter().flatten().count() > 1
                && winner.is_some()
                && best(summary) == winner;
            let class = if is_winner { " class=\"best\"" } else { "" };
            let (last, text) = (value(name, found.last.1), found.best_text(name, mode));
            format!("{last}<br><small{class}>{text}</small>")
        };
        let cells = summaries.iter().map(cell);
        [escape(name)].into_iter().chain(cells).collect()
    };
    let rows = names.into_iter().filter(|name| is_shown(name)).map(row);
    let rows: Vec<Vec<String>> = rows.collect();
    table("compared", &by_run("last, and best", runs), &rows)
}

/// Each once, in the order in which they come up.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

fn profile(run: &Run) -> String {
    let Some(profile) = &run.profile else {
        return String::new();
    };
    let rows = profile.phases.iter().map(|phase| {
        let times = [
            phase.total_seconds,
            phase.mean_ms,
            phase.p50_ms,
            phase.p95_ms,
        ];
        let [total, mean, p50, p95] = times.map(|time| value("", time));
        let share = phase.share.map(|share| {
            let percent = share * 100.0;
            let width = percent.clamp(0.0, 100.0);
            let bar = format!("<span style=\"width:{width:.1}%\"></span>");
            format!("<span class=\"bar\">{bar}</span>{percent:.1} %")
        });
        let share = share.unwrap_or_else(|| "beside the run".to_owned());
        let count = phase.count.to_string();
        vec![escape(&phase.name), count, total, share, mean, p50, p95]
    });
    let head = [
        "phase",
        "count",
        "total, s",
        "share",
        "mean, ms",
        "median, ms",
        "p95, ms",
    ];
    let table = table("profile", &header(&head), &rows.collect::<Vec<_>>());
    format!("<p>{} in all.</p>\n{table}", duration(profile.wall_seconds))
}

fn test(run: &Run) -> String {
    let rows = run
        .test
        .iter()
        .map(|(name, value)| (escape(name), escape(value)));
    list("settings", &rows.collect::<Vec<_>>())
}

/// All settings; of several runs, those that differ first.
fn settings(runs: &[Run]) -> String {
    let keys = runs
        .iter()
        .flat_map(|run| &run.settings)
        .map(|(key, _)| key.as_str());
    let value = |run: &Run, key: &str| {
        let found = run.settings.iter().find(|(k, _)| k == key);
        found.map_or("–".to_owned(), |(_, value)| escape(value))
    };
    let (mut same, mut different) = (Vec::new(), Vec::new());
    for key in distinct(keys) {
        let values: Vec<String> = runs.iter().map(|run| value(run, key)).collect();
        match values.as_slice() {
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                same.push((escape(key), first.clone()));
            }
            _ => different.push([escape(key)].into_iter().chain(values).collect()),
        }
    }
    let count = same.len();
    let same = list("settings", &same);
    if runs.len() == 1 {
        return same;
    }
    let differing = match table("differing", &by_run("setting", runs), &different) {
        table if table.is_empty() => "<p>No setting differs.</p>\n".to_owned(),
        table => table,
    };
    differing + &folded(&format!("The same in all runs: {count}"), &same)
}

/// With what each start of a run was made.
fn environment(run: &Run) -> String {
    let code = |text: &str| format!("<code>{}</code>", escape(text));
    let before = std::iter::once(None).chain(run.starts.iter().map(Some));
    let start = |(start, before): (&Start, Option<&Start>)| {
        let job = match &start.slurm_job {
            Value::Null => None,
            Value::String(job) => Some(code(job)),
            other => Some(code(&other.to_string())),
        };
        let command: Vec<String> = start.command.iter().map(|word| quoted(word)).collect();
        let rows = [
            ("started", Some(utc(start.started))),
            ("firebox", Some(escape(&start.firebox))),
            ("Burn", Some(escape(&start.burn))),
            ("git", start.git.as_deref().map(code)),
            ("SLURM job", job),
            ("resumed from", start.resumed_from.as_deref().map(code)),
            (
                "settings changed",
                before.map(|before| changes(before, start)),
            ),
            ("command", Some(code(&command.join(" ")))),
        ];
        let rows = rows
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?)));
        list("start", &rows.collect::<Vec<_>>())
    };
    let starts = run.starts.iter().zip(before).map(start);
    let folder = code(&run.path.display().to_string());
    format!("<p>{folder}</p>\n{}", starts.collect::<String>())
}

/// A word of a command line as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The settings that a start changed.
fn changes(before: &Start, after: &Start) -> String {
    let flat = |start: &Start| {
        let mut settings = Vec::new();
        flatten("", &start.config, &mut settings);
        settings
    };
    let old: HashMap<String, String> = flat(before).into_iter().collect();
    let changed = flat(after).into_iter().filter_map(|(key, now)| {
        let was = old.get(&key).map_or("–", String::as_str);
        (was != now).then(|| format!("{} {} → {}", escape(&key), escape(was), escape(&now)))
    });
    match changed.collect::<Vec<_>>() {
        changed if changed.is_empty() => "none".to_owned(),
        changed => changed.join(", "),
    }
}

fn checkpoints(run: &Run) -> String {
    let watched = run
        .monitor
        .as_deref()
        .and_then(|monitor| monitor.split_once(':'));
    let is_watched = |name: &str| watched.is_some_and(|(_, watched)| watched == name);
    let is_shown = |name: &str| {
        let place = place(name);
        is_watched(name) || (place.kind == Kind::Val && !place.has_parts)
    };
    let row = |saved: &Saved| {
        let mut name = escape(&saved.name);
        for (is_so, word) in [(saved.is_best, "best"), (saved.is_last, "last")] {
            if is_so {
                name += &format!(" <span class=\"badge\">{word}</span>");
            }
        }
        if let Some(damage) = &saved.damage {
            let none = || "–".to_owned();
            return vec![
                name,
                none(),
                none(),
                none(),
                format!("damaged: {}", escape(damage)),
            ];
        }
        let mut metrics: Vec<_> = saved.metrics.iter().filter(|(n, _)| is_shown(n)).collect();
        metrics.sort_by_key(|(name, _)| !is_watched(name));
        let metrics = metrics
            .iter()
            .map(|(n, v)| format!("{} {}", escape(n), value(n, *v)));
        let metrics = metrics.collect::<Vec<_>>().join(", ");
        let bytes = format!("{} <small>{}</small>", saved.bytes, size(saved.bytes));
        vec![
            name,
            saved.step.to_string(),
            saved.epoch.to_string(),
            bytes,
            metrics,
        ]
    };
    let rows: Vec<_> = run.checkpoints.iter().map(row).collect();
    let head = ["name", "step", "epochs done", "bytes", "values"];
    table("checkpoints", &header(&head), &rows)
}
