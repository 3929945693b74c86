//! How the dashboard looks; what there is no room for is left out.

use super::chart::{self, Curve};
use super::model::{Device, Metric, Model};
use crate::table;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};
use ratatui_core::text::Span;
use std::time::Duration;

const TRAIN: Color = Color::Cyan;
const VAL: Color = Color::Yellow;

/// A value, with a space before it.
const COLUMN: u16 = 10;

/// A column of the list.
type Column = (&'static str, fn(&Metric) -> Option<f64>);

/// What is looked at.
#[derive(Debug)]
pub(super) struct View {
    /// Index of the chosen metric. Metrics are only added, so it stays the same one.
    selected: usize,
    /// Whether the terminal shows more than ASCII.
    unicode: bool,
}

impl View {
    /// The first metric is chosen.
    pub(super) fn new(unicode: bool) -> Self {
        Self {
            selected: 0,
            unicode,
        }
    }

    /// Chooses the next metric; the first after the last.
    pub(super) fn next(&mut self, model: &Model) {
        self.selected = (self.selected + 1) % model.metrics.len().max(1);
    }

    /// Chooses the metric before.
    pub(super) fn previous(&mut self, model: &Model) {
        let count = model.metrics.len().max(1);
        self.selected = (self.selected + count - 1) % count;
    }

    /// Draws everything; gives the rows that matter least, for what others print.
    pub(super) fn draw(&self, model: &Model, area: Rect, buffer: &mut Buffer) -> Rect {
        let mut rest = area;
        let is_tall = area.height >= 10;
        let has_rules = area.height >= 16;
        if is_tall {
            header(model, rest.rows_from_top(3), buffer);
        } else {
            short_header(model, rest.rows_from_top(2), buffer);
        }
        keys(model, rest.rows_from_bottom(1), buffer);
        if is_tall && !model.devices.is_empty() {
            devices(&model.devices, rest.rows_from_bottom(1), buffer);
        }
        let mut free = Rect::ZERO;
        if is_tall {
            free = rest.rows_from_bottom((area.height / 6).max(2));
            notes(model, free, buffer);
            if has_rules {
                rule(rest.rows_from_bottom(1), buffer);
            }
        }
        if has_rules {
            rule(rest.rows_from_top(1), buffer);
        }
        self.body(model, rest, buffer);
        if !self.unicode {
            to_ascii(buffer);
        }
        free
    }

    /// The metrics, and the chart beside or below them.
    fn body(&self, model: &Model, area: Rect, buffer: &mut Buffer) {
        if model.metrics.is_empty() {
            return put(buffer, area, "no metrics yet", Style::new().dim());
        }
        let mut list = area;
        if area.width >= 60 && area.height >= 5 {
            let width = if area.width < 80 {
                32
            } else {
                42.max(area.width * 2 / 5)
            };
            list.width = width;
            let chart = Rect {
                x: area.x + width + 1,
                width: area.width - width - 1,
                ..area
            };
            self.chart(model, chart, buffer);
        } else if area.height >= 10 {
            let wanted = model.metrics.len().saturating_add(1).try_into();
            let height = wanted.unwrap_or(u16::MAX).min(area.height / 3);
            list.height = height;
            let chart = Rect {
                y: area.y + height + 1,
                height: area.height - height - 1,
                ..area
            };
            self.chart(model, chart, buffer);
        }
        self.list(model, list, buffer);
    }

    fn list(&self, model: &Model, mut area: Rect, buffer: &mut Buffer) {
        let columns: &[Column] = match area.width {
            42.. => &[
                ("latest", |m| m.train.last()),
                ("val", |m| m.val.last()),
                ("best", Metric::best),
            ],
            32.. => &[("latest", |m| m.train.last()), ("val", |m| m.val.last())],
            _ => &[("latest", |m| m.train.last().or(m.val.last()))],
        };
        let names = area.width.saturating_sub(columns.len() as u16 * COLUMN);
        if area.height >= 3 && columns.len() > 1 {
            let row = area.rows_from_top(1);
            let style = Style::new().dim();
            put(buffer, left(row, names), "  metric", style);
            for (index, (title, _)) in columns.iter().enumerate() {
                put_right(buffer, cell(row, names, index), title, style);
            }
        }
        let height = usize::from(area.height);
        let first = (self.selected + 1).saturating_sub(height);
        let shown = model.metrics.iter().enumerate().skip(first).take(height);
        for (index, metric) in shown {
            let row = area.rows_from_top(1);
            let is_selected = index == self.selected;
            let style = match is_selected {
                true => Style::new().bold(),
                false => Style::new(),
            };
            let mark = if is_selected { "> " } else { "  " };
            put(buffer, row, mark, style);
            put(buffer, right(left(row, names), 2), &metric.name, style);
            for (column, (title, value)) in columns.iter().enumerate() {
                let text = value(metric).map_or("-".to_owned(), table::number);
                let color = match *title {
                    "val" => style.fg(VAL),
                    "latest" => style.fg(TRAIN),
                    _ => style,
                };
                put_right(buffer, cell(row, names, column), &text, color);
            }
        }
    }

    fn chart(&self, model: &Model, mut area: Rect, buffer: &mut Buffer) {
        let Some(metric) = model.metrics.get(self.selected) else {
            return;
        };
        let curve = |series, label, color, mark| Curve {
            series,
            label,
            color,
            mark,
        };
        let label = if metric.is_split { "train" } else { "" };
        let mut curves = vec![
            curve(&metric.train, label, TRAIN, '.'),
            curve(&metric.val, "val", VAL, 'o'),
        ];
        curves.retain(|curve| curve.series.last().is_some());
        let row = area.rows_from_top(1);
        let mut at = put_more(buffer, row, &metric.name, Style::new().bold());
        for curve in curves.iter().filter(|curve| !curve.label.is_empty()) {
            let line = if self.unicode { '─' } else { curve.mark };
            let text = format!("  {line}{line} {}", curve.label);
            at = put_more(buffer, at, &text, Style::new().fg(curve.color));
        }
        let not_finite = metric.not_finite();
        if not_finite > 0 {
            let text = format!("  {not_finite} NaN/inf");
            put(buffer, at, &text, Style::new().fg(Color::Red));
        }
        chart::draw(&curves, self.unicode, area, buffer);
    }
}

/// `epoch 2/3`, counted from 1 as people do.
fn epoch_text(model: &Model) -> String {
    match model.max_epochs {
        Some(max) => format!("epoch {}/{max}", (model.epoch + 1).min(max)),
        None => format!("epoch {}", model.epoch + 1),
    }
}

/// Batches done of those there are; with a question mark if there are more than was said.
fn batch_text(model: &Model) -> String {
    let doubt = |total| if model.batch > total { "?" } else { "" };
    match model.batches {
        Some(total) => format!("{}/{total}{}", model.batch, doubt(total)),
        None => format!("batch {}", model.batch),
    }
}

fn time_text(model: &Model) -> String {
    let elapsed = duration(model.elapsed);
    match model.eta {
        Some(eta) => format!("{elapsed}, {} left", duration(eta)),
        None => elapsed,
    }
}

fn header(model: &Model, mut area: Rect, buffer: &mut Buffer) {
    let row = area.rows_from_top(1);
    let at = title(model, row, buffer);
    let mut facts = vec![format!("step {}", model.global_step)];
    let rate = model.samples_per_second;
    facts.extend(rate.map(|rate| format!("{} samples/s", table::number(rate))));
    let rates = model
        .learning_rates
        .iter()
        .map(|(_, lr)| table::number(*lr));
    let rates: Vec<_> = rates.collect();
    if !rates.is_empty() {
        facts.push(format!("lr {}", rates.join(" ")));
    }
    put_facts(buffer, right(at, 2), &facts);

    let run = model.run_share();
    let percent = run.map(|share| format!("{:.0} %  ", (share * 100.0).floor()));
    let run_text = format!("{}{}", percent.unwrap_or_default(), time_text(model));
    let gauges = [
        (epoch_text(model), model.epoch_share(), batch_text(model)),
        ("run".to_owned(), run, run_text),
    ];
    let wide = |text: &String| Span::raw(text).width() as u16 + 2;
    let before = gauges.iter().map(|g| wide(&g.0)).max().unwrap_or(0);
    let after = gauges.iter().map(|g| wide(&g.2)).max().unwrap_or(0);
    for (label, share, text) in &gauges {
        let row = area.rows_from_top(1);
        put(buffer, row, label, Style::new());
        put_right(buffer, right(row, before), text, Style::new());
        let bar = right(left(row, row.width.saturating_sub(after)), before);
        gauge(*share, bar, buffer);
    }
}

fn short_header(model: &Model, mut area: Rect, buffer: &mut Buffer) {
    let row = area.rows_from_top(1);
    let epoch = epoch_text(model);
    let taken = Span::raw(&epoch).width() as u16 + 1;
    title(model, left(row, row.width.saturating_sub(taken)), buffer);
    put_right(buffer, row, &epoch, Style::new());
    let row = area.rows_from_top(1);
    let mut text = batch_text(model);
    if area.width >= 60 {
        text = format!("{text}  {}", time_text(model));
    }
    put_right(buffer, row, &text, Style::new());
    let taken = Span::raw(&text).width() as u16 + 2;
    gauge(
        model.epoch_share(),
        left(row, row.width.saturating_sub(taken)),
        buffer,
    );
}

/// The title, where there is room, and the stage; gives what is left of the row.
fn title(model: &Model, row: Rect, buffer: &mut Buffer) -> Rect {
    let mut at = row;
    if row.width >= 30 && !model.title.is_empty() {
        // The stage is to have room, too.
        let half = left(at, row.width / 2);
        let end = put_more(buffer, half, &model.title, Style::new().bold());
        at = right(at, end.x - at.x + 2);
    }
    at = put_more(buffer, at, &model.stage, Style::new().fg(Color::Green));
    let stopping = " stopping ";
    if model.stop_asked && usize::from(at.width) > stopping.len() {
        at = put_more(buffer, right(at, 1), stopping, Style::new().reversed());
    }
    at
}

fn gauge(share: Option<f64>, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let Some(share) = share.filter(|_| width >= 4) else {
        return;
    };
    let full = (share * width as f64).floor() as usize;
    let bar = "█".repeat(full) + &"░".repeat(width.saturating_sub(full));
    put(buffer, area, &bar, Style::new().fg(Color::Green));
}

fn notes(model: &Model, mut area: Rect, buffer: &mut Buffer) {
    let first = model.notes.len().saturating_sub(area.height.into());
    for note in model.notes.iter().skip(first) {
        put(buffer, area.rows_from_top(1), note, Style::new());
    }
}

fn devices(devices: &[Device], area: Rect, buffer: &mut Buffer) {
    let texts: Vec<_> = devices.iter().map(device_text).collect();
    put(buffer, area, &texts.join("   "), Style::new().dim());
}

/// `cuda:0 3.2/80.0 GB 97 %`
fn device_text(device: &Device) -> String {
    let gb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e9);
    let mut text = device.name.clone();
    match (device.memory_used, device.memory_total) {
        (Some(used), Some(total)) => text += &format!(" {}/{} GB", gb(used), gb(total)),
        (Some(used), None) => text += &format!(" {} GB", gb(used)),
        (None, _) => {}
    }
    if let Some(share) = device.utilization {
        text += &format!(" {:.0} %", share * 100.0);
    }
    text
}

fn keys(model: &Model, area: Rect, buffer: &mut Buffer) {
    let texts = match model.stop_asked {
        true => [
            "stopping after this step   q close the dashboard",
            "stopping   q close",
            "",
        ],
        false => [
            "↑↓ choose a metric   q close the dashboard   Ctrl-C stop the run",
            "↑↓ metric   q close   Ctrl-C stop",
            "q close",
        ],
    };
    let fits = |text: &&&str| Span::raw(**text).width() <= area.width.into();
    let text = texts.iter().find(fits).unwrap_or(&"");
    put(buffer, area, text, Style::new().dim());
}

fn rule(area: Rect, buffer: &mut Buffer) {
    let line = "─".repeat(area.width.into());
    put(buffer, area, &line, Style::new().dim());
}

/// `0:01:02`, `1d 00:00:00`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}d {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Cuts rows off.
trait Rows {
    fn rows_from_top(&mut self, count: u16) -> Rect;
    fn rows_from_bottom(&mut self, count: u16) -> Rect;
}

impl Rows for Rect {
    fn rows_from_top(&mut self, count: u16) -> Rect {
        let height = count.min(self.height);
        let rows = Rect { height, ..*self };
        self.y += height;
        self.height -= height;
        rows
    }

    fn rows_from_bottom(&mut self, count: u16) -> Rect {
        let height = count.min(self.height);
        self.height -= height;
        Rect {
            y: self.bottom(),
            height,
            ..*self
        }
    }
}

/// The row's first columns.
fn left(row: Rect, width: u16) -> Rect {
    let width = width.min(row.width);
    Rect { width, ..row }
}

/// The row without its first columns.
fn right(row: Rect, skip: u16) -> Rect {
    let skip = skip.min(row.width);
    Rect {
        x: row.x + skip,
        width: row.width - skip,
        ..row
    }
}

/// A value's place in a row of the list.
fn cell(row: Rect, names: u16, column: usize) -> Rect {
    let before = names.saturating_add((column as u16).saturating_mul(COLUMN));
    // The space before it stays free.
    left(right(row, before + 1), COLUMN - 1)
}

/// Writes into the area's first row; a text that is too long ends with an ellipsis.
pub(super) fn put(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    put_more(buffer, area, text, style);
}

/// [`put`], and gives what is left of the row.
fn put_more(buffer: &mut Buffer, area: Rect, text: &str, style: Style) -> Rect {
    if area.is_empty() {
        return area;
    }
    let room = usize::from(area.width);
    if Span::raw(text).width() <= room {
        let (end, _) = buffer.set_stringn(area.x, area.y, text, room, style);
        return right(area, end - area.x);
    }
    let (end, _) = buffer.set_stringn(area.x, area.y, text, room - 1, style);
    buffer.set_stringn(end, area.y, "…", 1, style);
    right(area, area.width)
}

/// Writes at the end of the area's first row.
pub(super) fn put_right(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    let width = u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX);
    let at = right(area, area.width.saturating_sub(width));
    put(buffer, at, text, style);
}

/// Writes as many of the texts as there is room for, at the end of the row.
fn put_facts(buffer: &mut Buffer, area: Rect, facts: &[String]) {
    let fits = |text: &String| Span::raw(text).width() <= area.width.into();
    let texts = (1..=facts.len()).rev().map(|n| facts[..n].join("  "));
    if let Some(text) = texts.into_iter().find(fits) {
        put_right(buffer, area, &text, Style::new());
    }
}

/// What a terminal without Unicode can show.
fn to_ascii(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if cell.symbol().is_ascii() {
            continue;
        }
        let ascii = match cell.symbol() {
            "█" => "#",
            "░" => ".",
            "│" => "|",
            "┤" | "└" => "+",
            "─" => "-",
            "…" => "~",
            "↑" => "^",
            "↓" => "v",
            _ => "?",
        };
        cell.set_symbol(ascii);
    }
}
