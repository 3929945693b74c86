//! Pieces of HTML, and how values are written in them.

use crate::table::number;

/// Text with everything replaced that means something in HTML, also inside of quotes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// A section, unless it is empty.
pub(super) fn section(id: &str, title: &str, content: &str) -> String {
    match content {
        "" => String::new(),
        _ => format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{content}</section>\n"),
    }
}

/// Something that is shown on a click, unless it is empty.
pub(super) fn folded(title: &str, content: &str) -> String {
    match content {
        "" => String::new(),
        _ => format!("<details>\n<summary>{title}</summary>\n{content}</details>\n"),
    }
}

/// Names with their values, both HTML.
pub(super) fn list<K: AsRef<str>>(class: &str, pairs: &[(K, String)]) -> String {
    let pair = |(name, value): &(K, String)| {
        let name = name.as_ref();
        format!("<div><dt>{name}</dt><dd>{value}</dd></div>\n")
    };
    match pairs.iter().map(pair).collect::<String>() {
        pairs if pairs.is_empty() => pairs,
        pairs => format!("<dl class=\"{class}\">\n{pairs}</dl>\n"),
    }
}

/// A table of cells that are HTML; the first of each row names it. None, if it has no rows.
pub(super) fn table(class: &str, header: &[String], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = header
        .iter()
        .map(|cell| format!("<th scope=\"col\">{cell}</th>"));
    let head: String = head.collect();
    let row = |row: &Vec<String>| {
        let first = row
            .iter()
            .take(1)
            .map(|cell| format!("<th scope=\"row\">{cell}</th>"));
        let others = row.iter().skip(1).map(|cell| format!("<td>{cell}</td>"));
        format!("<tr>{}</tr>\n", first.chain(others).collect::<String>())
    };
    let rows: String = rows.iter().map(row).collect();
    // Wide ones scroll, by the keyboard as well.
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{class}\">\
         <table class=\"{class}\">\n<thead><tr>{head}</tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// A header that is plain text.
pub(super) fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| escape(name)).collect()
}

/// A value as people read it, with all of its digits where the pointer rests.
pub(super) fn value(name: &str, value: f64) -> String {
    let text = match name.starts_with("memory/") && value >= 0.0 {
        true => size(value as u64),
        false => number(value),
    };
    format!("<data value=\"{value}\" title=\"{value}\">{text}</data>")
}

/// Bytes in the unit that fits.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    let scaled = bytes as f64 / 1024f64.powi(power as i32);
    format!("{} {}", number(scaled), units[power as usize])
}

/// A time as people say it.
pub(super) fn duration(seconds: f64) -> String {
    if !(60.0..1e9).contains(&seconds) {
        return format!("{} s", number(seconds));
    }
    let (minutes, seconds) = (seconds as u64 / 60, seconds as u64 % 60);
    match minutes {
        0..60 => format!("{minutes} min {seconds} s"),
        60..1440 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1440, minutes / 60 % 24),
    }
}

/// Seconds since 1970 as a date and time. The days are counted as in
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
pub(super) fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year + era * 400, month + 3),
        _ => (year + era * 400 + 1, month - 9),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}
