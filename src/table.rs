//! Tables for people.

/// Columns padded to the same width, a rule below the header, a line feed behind each line.
pub(crate) fn render<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let rule = format!("{}\n", widths.map(|w| "-".repeat(w)).join("  "));
    let body = rows
        .iter()
        .map(|row| line(std::array::from_fn(|i| row[i].as_str())));
    [line(header), rule].into_iter().chain(body).collect()
}

/// A number as people want to read it: four significant digits, no more than it has.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == value.trunc() && size < 1e9 {
        format!("{value}")
    } else if (1e-3..1e6).contains(&size) {
        let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a".into(), "10".into()], ["long".into(), "7".into()]];
        let text = render(["name", "n"], &rows);
        assert_eq!(text, "name  n\n----  --\na     10\nlong  7\n");
    }

    #[test]
    fn numbers() {
        let text = [0.0, 3.0, 0.91234, 12.3456, 1234.5, 1.23456e-7, f64::NAN].map(number);
        let expected = ["0", "3", "0.9123", "12.35", "1234", "1.235e-7", "NaN"];
        assert_eq!(text, expected);
    }
}
