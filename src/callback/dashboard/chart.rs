//! A line chart of a metric.

use super::model::Series;
use super::view::{put, put_right};
use crate::table;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};

/// Bounds whose distance is finite, too.
const LIMIT: f64 = 1e300;

/// A series and how it looks.
pub(super) struct Curve<'a> {
    pub(super) series: &'a Series,
    pub(super) label: &'a str,
    pub(super) color: Color,
    /// Its mark where there are no braille patterns.
    pub(super) mark: char,
}

/// Draws the curves and their axes: all values, over all steps.
pub(super) fn draw(curves: &[Curve<'_>], braille: bool, area: Rect, buffer: &mut Buffer) {
    let points = || curves.iter().flat_map(|c| c.series.points());
    let (Some(x), Some(y)) = (bounds(points().map(|p| p.0)), bounds(points().map(|p| p.1))) else {
        return put(buffer, area, "no finite values yet", Style::new().dim());
    };
    let x = if x.0 < x.1 { x } else { (x.0, x.0 + 1.0) };
    let y = if y.0 < y.1 { y } else { around(y.0) };
    let rows = area.height.saturating_sub(2);
    let labels = labels(y, rows);
    let wide = labels.iter().map(|(_, text)| text.chars().count()).max();
    let margin = wide.unwrap_or(0) as u16 + 1;
    if rows == 0 || area.width < margin + 2 {
        return;
    }
    let plot = Rect {
        x: area.x + margin,
        width: area.width - margin,
        height: rows,
        ..area
    };
    axes(&labels, x, plot, area, buffer);
    let mut grid = Grid::new(plot, braille);
    for (index, curve) in curves.iter().enumerate() {
        grid.curve(curve.series, index, x, y);
    }
    grid.show(curves, plot, buffer);
}

fn axes(labels: &[(u16, String)], x: (f64, f64), plot: Rect, area: Rect, buffer: &mut Buffer) {
    let dim = Style::new().dim();
    for row in 0..plot.height {
        buffer.set_string(plot.x - 1, plot.y + row, "│", dim);
    }
    for (row, text) in labels {
        let place = Rect {
            y: plot.y + row,
            width: plot.x - 1 - area.x,
            height: 1,
            ..area
        };
        put_right(buffer, place, text, dim);
        buffer.set_string(plot.x - 1, plot.y + row, "┤", dim);
    }
    let line = "─".repeat(plot.width.into());
    buffer.set_string(plot.x - 1, plot.bottom(), format!("└{line}"), dim);
    let steps = Rect {
        y: plot.bottom() + 1,
        height: 1,
        ..plot
    };
    let (first, last) = (format!("{}", x.0), format!("{}", x.1));
    let middle = "step";
    let free = usize::from(steps.width).saturating_sub(first.len() + last.len());
    if free > 0 {
        put(buffer, steps, &first, dim);
    }
    if free > middle.len() + 4 {
        let before = first.len() + (free - middle.len()) / 2;
        put(buffer, shifted(steps, before as u16), middle, dim);
    }
    put_right(buffer, steps, &last, dim);
}

fn shifted(area: Rect, by: u16) -> Rect {
    Rect {
        x: area.x + by,
        width: area.width.saturating_sub(by),
        ..area
    }
}

/// Rows and the values at them: top, bottom and, where there is room, the middle.
fn labels(y: (f64, f64), rows: u16) -> Vec<(u16, String)> {
    let bottom = rows.saturating_sub(1);
    let mut labels = vec![(0, table::number(y.1))];
    if rows >= 5 {
        let middle = bottom / 2;
        let share = f64::from(middle) / f64::from(bottom);
        labels.push((middle, table::number(y.1 + (y.0 - y.1) * share)));
    }
    if bottom > 0 {
        labels.push((bottom, table::number(y.0)));
    }
    labels
}

/// The lowest and the highest value.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.map(|v| v.clamp(-LIMIT, LIMIT));
    values.fold(None, |bounds, v| match bounds {
        None => Some((v, v)),
        Some((low, high)) => Some((v.min(low), v.max(high))),
    })
}

/// Bounds for one value.
fn around(value: f64) -> (f64, f64) {
    let margin = match value {
        0.0 => 1.0,
        _ => value.abs() * 0.1,
    };
    (value - margin, value + margin)
}

/// Dots, several in a cell where there are braille patterns.
struct Grid {
    /// Dots in a row, dots in a column.
    size: (i64, i64),
    /// Dots of a cell in a row and in a column.
    of_cell: (i64, i64),
    /// A cell's dots as braille counts them, and the curve that came last.
    cells: Vec<(u8, usize)>,
}

impl Grid {
    fn new(plot: Rect, braille: bool) -> Self {
        let of_cell = if braille { (2, 4) } else { (1, 1) };
        let (width, height) = (i64::from(plot.width), i64::from(plot.height));
        Self {
            size: (width * of_cell.0, height * of_cell.1),
            of_cell,
            cells: vec![(0, 0); usize::from(plot.width) * usize::from(plot.height)],
        }
    }

    fn curve(&mut self, series: &Series, index: usize, x: (f64, f64), y: (f64, f64)) {
        let scale = |value: f64, (low, high): (f64, f64), dots: i64| {
            let share = (value.clamp(-LIMIT, LIMIT) - low) / (high - low);
            (share * (dots - 1) as f64).round() as i64
        };
        let mut before = None;
        for point in series.points() {
            let across = scale(point.0, x, self.size.0);
            let up = scale(point.1, y, self.size.1);
            let dot = (across, self.size.1 - 1 - up);
            self.line(before.unwrap_or(dot), dot, index);
            before = Some(dot);
        }
    }

    /// Bresenham's algorithm, <https://doi.org/10.1147/sj.41.0025>.
    fn line(&mut self, from: (i64, i64), to: (i64, i64), index: usize) {
        let (dx, dy) = ((to.0 - from.0).abs(), -(to.1 - from.1).abs());
        let (sx, sy) = ((to.0 - from.0).signum(), (to.1 - from.1).signum());
        let (mut at, mut error) = (from, dx + dy);
        loop {
            self.dot(at, index);
            if at == to {
                return;
            }
            let twice = 2 * error;
            if twice >= dy {
                error += dy;
                at.0 += sx;
            }
            if twice <= dx {
                error += dx;
                at.1 += sy;
            }
        }
    }

    fn dot(&mut self, (x, y): (i64, i64), index: usize) {
        let columns = self.size.0 / self.of_cell.0;
        let cell = y / self.of_cell.1 * columns + x / self.of_cell.0;
        // <https://www.unicode.org/charts/PDF/U2800.pdf>: seven and eight are the last row's.
        let bit = match (x % self.of_cell.0, y % self.of_cell.1) {
            (0, 3) => 6,
            (_, 3) => 7,
            (column, row) => column * 3 + row,
        };
        let cell = usize::try_from(cell).ok();
        if let Some((dots, last)) = cell.and_then(|cell| self.cells.get_mut(cell)) {
            *dots |= 1 << bit;
            *last = index;
        }
    }

    fn show(&self, curves: &[Curve<'_>], plot: Rect, buffer: &mut Buffer) {
        for (position, (dots, index)) in plot.positions().zip(&self.cells) {
            let (Some(cell), Some(curve)) = (buffer.cell_mut(position), curves.get(*index)) else {
                continue;
            };
            if *dots == 0 {
                continue;
            }
            let braille = char::from_u32(0x2800 + u32::from(*dots)).unwrap_or(curve.mark);
            let mark = if self.of_cell == (1, 1) {
                curve.mark
            } else {
                braille
            };
            cell.set_char(mark).set_fg(curve.color);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[(u64, f64)], braille: bool, width: u16, height: u16) -> Vec<String> {
        let mut series = Series::default();
        values.iter().for_each(|(x, y)| series.push(*x, *y));
        let curve = Curve {
            series: &series,
            label: "",
            color: Color::Cyan,
            mark: '.',
        };
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(&[curve], braille, area, &mut buffer);
        super::super::tests::lines(&buffer)
    }

    #[test]
    fn a_line_from_corner_to_corner() {
        let lines = chart(&[(0, 0.0), (8, 4.0)], false, 11, 7);
        #[rustfmt::skip]
        let expected = [
            "4┤       ..",
            " │     ..  ",
            "2┤   ..    ",
            " │ ..      ",
            "0┤.        ",
            " └─────────",
            "  0       8",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn braille_has_eight_dots_in_a_cell() {
        let lines = chart(&[(0, 0.0), (1, 1.0), (2, 0.0), (3, 1.0)], true, 4, 3);
        assert_eq!(lines, ["1┤⡜⡜", " └──", "   3"]);
    }

    #[test]
    fn bounds_that_are_equal_or_huge() {
        let one = chart(&[(5, 2.0)], false, 12, 4);
        assert_eq!(
            one,
            [
                "2.200┤      ",
                "1.800┤.     ",
                "     └──────",
                "      5    6"
            ]
        );
        let huge = chart(&[(0, f64::MAX), (1, f64::MIN)], false, 16, 4);
        assert_eq!(huge[0], " 1.000e300┤..   ");
        assert_eq!(huge[1], "-1.000e300┤  ...");
        let tiny = chart(&[(0, 5e-324), (1, 0.0)], false, 16, 4);
        assert_eq!(tiny[1], "         0┤  ...");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in (0..14).flat_map(|w| (0..8).map(move |h| (w, h))) {
            chart(&[(0, 0.0), (1_000_000, -1.5)], true, width, height);
            chart(&[], false, width, height);
        }
    }
}
