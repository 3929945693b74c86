//! The picture of a search for the learning rate.

use super::learning_rate::{LearningRateMode, LearningRatePoint};
use std::fmt::Write as _;

/// The curve of a search, to be drawn.
pub(super) struct Chart<'a> {
    pub(super) points: &'a [LearningRatePoint],
    pub(super) mode: LearningRateMode,
    pub(super) suggested: Option<LearningRatePoint>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
/// The edges of the area that the curve is in.
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = HEIGHT - 60.0;

/// Colours are of the page that the picture is on, dark or light; text is not smaller than 12.
const STYLE: &str = "\
.page { fill: #ffffff; } .text { fill: #1f2328; font: 13px system-ui, sans-serif; } \
.title { font-size: 16px; font-weight: 600; } .frame { fill: none; stroke: #59636e; } \
.grid { stroke: #d1d9e0; } .loss { fill: none; stroke: #8c959f; stroke-width: 1; } \
.mean { fill: none; stroke: #0969da; stroke-width: 2.5; } \
.mark { fill: #bc4c00; stroke: #ffffff; stroke-width: 2; } \
.line { stroke: #bc4c00; stroke-dasharray: 5 4; } .found { fill: #bc4c00; font-weight: 600; } \
@media (prefers-color-scheme: dark) { \
.page { fill: #0d1117; } .text { fill: #e6edf3; } .frame { stroke: #9198a1; } \
.grid { stroke: #30363d; } .loss { stroke: #6e7681; } .mean { stroke: #58a6ff; } \
.mark { fill: #f0883e; stroke: #0d1117; } .line { stroke: #f0883e; } .found { fill: #f0883e; } }";

impl Chart<'_> {
    pub(super) fn to_svg(&self) -> String {
        let (x, y) = (self.x_axis(), self.y_axis());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Loss against learning rate\">\n\
             <style>{STYLE}</style>\n\
             <clipPath id=\"area\"><rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/></clipPath>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text class=\"text title\" x=\"{LEFT}\" y=\"30\">Loss against learning rate</text>\n",
            RIGHT - LEFT,
            BOTTOM - TOP,
        );
        for (at, label) in x.ticks(9) {
            svg += &line("grid", (at, TOP), (at, BOTTOM));
            svg += &text("text", (at, BOTTOM + 20.0), "middle", &label);
        }
        for (at, label) in y.ticks(6) {
            svg += &line("grid", (LEFT, at), (RIGHT, at));
            svg += &text("text", (LEFT - 8.0, at + 4.0), "end", &label);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        svg += &text("text", (middle, HEIGHT - 16.0), "middle", "learning rate");
        for (class, start) in [("loss", RIGHT - 132.0), ("mean", RIGHT - 68.0)] {
            let height = HEIGHT - 20.0;
            svg += &line(class, (start, height), (start + 20.0, height));
            svg += &text("text", (start + 26.0, HEIGHT - 16.0), "start", class);
        }
        let middle = f64::midpoint(TOP, BOTTOM);
        let _ = writeln!(
            svg,
            "<text class=\"text\" text-anchor=\"middle\" transform=\"translate(18 {middle}) \
             rotate(-90)\">loss</text>"
        );
        svg += &self.curve("loss", &x, &y, |point| point.loss);
        svg += &self.curve("mean", &x, &y, |point| point.smoothed);
        let _ = writeln!(
            svg,
            "<rect class=\"frame\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>",
            RIGHT - LEFT,
            BOTTOM - TOP
        );
        svg += &self.suggestion(&x, &y);
        svg += "</svg>\n";
        svg
    }

    /// The suggestion, marked and named at the top.
    fn suggestion(&self, x: &Axis, y: &Axis) -> String {
        let Some(point) = self.suggested else {
            return text("text", (RIGHT, 30.0), "end", "no suggestion");
        };
        let (at, height) = (x.place(point.lr), y.place(point.smoothed));
        let named = format!("suggestion: {:.2e}", point.lr);
        let mark = format!("<circle class=\"mark\" cx=\"{at:.1}\" cy=\"{height:.1}\" r=\"6\"/>\n");
        line("line", (at, TOP), (at, BOTTOM))
            + &mark
            + &text("text found", (RIGHT, 30.0), "end", &named)
    }

    /// A line through all points with finite values; where there are others, it has a gap.
    fn curve(
        &self,
        class: &str,
        x: &Axis,
        y: &Axis,
        value: impl Fn(&LearningRatePoint) -> f64,
    ) -> String {
        let mut path = String::new();
        let mut command = 'M';
        for point in self.points {
            let value = value(point);
            if !value.is_finite() {
                command = 'M';
                continue;
            }
            // Far outside is outside, and renderers have limits.
            let height = y.place(value).clamp(-HEIGHT, 2.0 * HEIGHT);
            let _ = write!(path, "{command}{:.1} {height:.1}", x.place(point.lr));
            command = 'L';
        }
        match path.is_empty() {
            true => path,
            false => format!("<path class=\"{class}\" clip-path=\"url(#area)\" d=\"{path}\"/>\n"),
        }
    }

    fn x_axis(&self) -> Axis {
        let rates = self.points.iter().map(|point| point.lr);
        let (low, high) = range(rates).unwrap_or((1e-8, 1.0));
        let is_log = self.mode == LearningRateMode::Exponential && low > 0.0;
        Axis::new((low, high), (LEFT, RIGHT), is_log)
    }

    /// From the lowest mean to the highest, but not so far up that a loss that has exploded flattens
    /// everything before.
    fn y_axis(&self) -> Axis {
        let smoothed: Vec<_> = self.points.iter().map(|p| p.smoothed).collect();
        let finite = || smoothed.iter().copied().filter(|loss| loss.is_finite());
        let (low, mut high) = range(finite()).unwrap_or((0.0, 1.0));
        let start = finite().take_while(|loss| *loss > low).fold(low, f64::max);
        if start > low {
            high = high.min(start + 2.0 * (start - low));
        }
        let room = 0.05 * (high - low);
        Axis::new((low - room, high + room), (BOTTOM, TOP), false)
    }
}

/// The lowest and the highest of finite values.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|value| value.is_finite())
        .fold(None, |range, value| {
            let (low, high): (f64, f64) = range.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })
}

/// Where values are in the picture.
struct Axis {
    low: f64,
    high: f64,
    /// Where `low` and `high` are.
    places: (f64, f64),
    is_log: bool,
}

impl Axis {
    fn new((low, mut high): (f64, f64), places: (f64, f64), is_log: bool) -> Self {
        // One value alone has room around it.
        if high <= low {
            high = low + low.abs().max(1.0);
        }
        Self {
            low,
            high,
            places,
            is_log,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    /// Round values, about so many at most, with their places.
    fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let exponents = (self.low.log10(), self.high.log10());
        let decades = (exponents.1 + 1e-9).floor() - (exponents.0 - 1e-9).ceil();
        if self.is_log && decades >= 2.0 {
            let every = (decades / most as f64).ceil().max(1.0);
            let first = ((exponents.0 - 1e-9) / every).ceil() * every;
            return steps(first, every, exponents.1 + 1e-9)
                .map(|exponent| (self.place(10f64.powf(exponent)), format!("1e{exponent}")))
                .collect();
        }
        let every = round_step((self.high - self.low) / most as f64);
        let first = (self.low / every).ceil() * every;
        steps(first, every, self.high + 1e-9 * every)
            .map(|value| (self.place(value), label(value, every)))
            .collect()
    }
}

/// `first`, `first + every`, ... up to `last`, and not without end where `every` is lost in rounding.
fn steps(first: f64, every: f64, last: f64) -> impl Iterator<Item = f64> {
    let values = (0..64).map(move |index| first + f64::from(index) * every);
    values.take_while(move |value| *value <= last)
}

/// The next larger of 1, 2, 5, 10, 20, ...
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let rounded = [1.0, 2.0, 5.0].map(|times| times * power);
    let mut larger = rounded.into_iter().filter(|rounded| *rounded >= step);
    larger.next().unwrap_or(10.0 * power)
}

/// A value with the digits in which neighbours `every` apart differ.
fn label(value: f64, every: f64) -> String {
    // 0 as a sum of steps may be a little more or less.
    let value = if value.abs() < every / 2.0 {
        0.0
    } else {
        value
    };
    if value != 0.0 && !(1e-4..1e6).contains(&value.abs()) {
        return format!("{value:.1e}");
    }
    let digits = (-every.log10().floor()).clamp(0.0, 12.0);
    format!("{value:.*}", digits as usize)
}

fn line(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!(
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
    )
}

fn text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(lr: f64, smoothed: f64) -> LearningRatePoint {
        LearningRatePoint {
            lr,
            loss: smoothed,
            smoothed,
        }
    }

    fn svg(points: &[LearningRatePoint], mode: LearningRateMode) -> String {
        let suggested = points.get(1).copied();
        let svg = Chart {
            points,
            mode,
            suggested,
        }
        .to_svg();
        // What an empty range or a division by 0 would leave.
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let opened = svg.matches("<text").count();
        assert_eq!(opened, svg.matches("</text>").count());
        svg
    }

    #[test]
    fn the_axis_is_in_decades() {
        let points: Vec<_> = (0..9)
            .map(|i| point(10f64.powi(i - 8), f64::from(10 - i)))
            .collect();
        let svg = svg(&points, LearningRateMode::Exponential);
        for label in ["1e-8", "1e-7", "1e-4", "1e0", "suggestion: 1.00e-7", "loss"] {
            assert!(svg.contains(&format!(">{label}<")), "{label} in {svg}");
        }
        assert_eq!(svg.matches("class=\"mark\"").count(), 1);
    }

    #[test]
    fn a_linear_axis_has_round_numbers() {
        let points: Vec<_> = (0..11).map(|i| point(f64::from(i) / 10.0, 1.0)).collect();
        let svg = svg(&points, LearningRateMode::Linear);
        for label in [">0.0<", ">0.2<", ">1.0<"] {
            assert!(svg.contains(label), "{label} in {svg}");
        }
    }

    #[test]
    fn values_that_are_not_finite_leave_a_gap() {
        let losses = [3.0, 2.0, f64::NAN, 1.0, f64::INFINITY, 4.0, 1e300];
        let points = losses.iter().enumerate();
        let points: Vec<_> = points
            .map(|(i, l)| point(10f64.powi(i as i32), *l))
            .collect();
        let svg = svg(&points, LearningRateMode::Exponential);
        let mean = svg
            .lines()
            .find(|line| line.starts_with("<path class=\"mean\""));
        assert_eq!(mean.map(|line| line.matches('M').count()), Some(3));
    }

    #[test]
    fn few_points_are_drawn_too() {
        for count in 0..3 {
            let points = vec![point(0.1, 2.0); count];
            svg(&points, LearningRateMode::Exponential);
            svg(&points, LearningRateMode::Linear);
        }
    }

    #[test]
    fn steps_are_round() {
        for (step, rounded) in [
            (0.7, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (30.0, 50.0),
            (0.06, 0.1),
        ] {
            assert!((round_step(step) - rounded).abs() < 1e-12 * rounded);
        }
        assert_eq!(label(0.30000000000000004, 0.1), "0.3");
        assert_eq!(label(1e-17, 0.1), "0.0");
        assert_eq!(label(2e7, 1e7), "2.0e7");
    }
}
