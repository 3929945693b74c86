//! The names of checkpoints.

use crate::error::{Error, Result};

/// A name with fields: `{epoch}`, `{step}`, and logged values such as `{val/loss:.3}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Field { name: String, format: Format },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Plain,
    /// Digits behind the point.
    Decimals(usize),
    /// Zeros in front, up to so many digits.
    Digits(usize),
}

/// What a name is made of at one moment.
pub(super) struct Values<'a> {
    pub(super) epoch: u64,
    pub(super) step: u64,
    pub(super) logged: &'a dyn Fn(&str) -> Option<f64>,
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::config(format!(
                "the name of checkpoints is `{text}`, {why}; use fields such as `{{epoch}}`, \
                 `{{step:06}}` or `{{val/loss:.3}}`"
            ))
        };
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, field)) = rest.split_once('{') {
            let (field, after) = field
                .split_once('}')
                .ok_or_else(|| wrong("in which a field is not closed"))?;
            let (name, format) = match field.rsplit_once(':') {
                None => (field, Format::Plain),
                Some((name, format)) => {
                    let format = Format::parse(format);
                    (
                        name,
                        format.ok_or_else(|| wrong("whose format is unknown"))?,
                    )
                }
            };
            if name.is_empty() {
                return Err(wrong("in which a field has no name"));
            }
            // As Lightning does it, a value says what it is of.
            let is_labelled = before.ends_with('=');
            let label = if is_labelled {
                String::new()
            } else {
                format!("{name}=")
            };
            pieces.push(Piece::Text(format!("{before}{label}")));
            let name = name.to_owned();
            pieces.push(Piece::Field { name, format });
            rest = after;
        }
        if rest.contains('}') {
            return Err(wrong("in which a brace is closed that was not opened"));
        }
        pieces.push(Piece::Text(rest.to_owned()));
        let template = Self(pieces);
        let nothing = Values {
            epoch: 0,
            step: 0,
            logged: &|_| None,
        };
        match template.render(&nothing) {
            name if name.is_empty() => Err(wrong("which is empty")),
            name if name.starts_with('.') => Err(wrong("which begins with a point")),
            name if name == "last" => Err(wrong("which is the name of the link to the newest")),
            _ => Ok(template),
        }
    }

    /// The name at this moment. A value that was never logged is `nan`.
    pub(super) fn render(&self, values: &Values<'_>) -> String {
        let text = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Field { name, format } => match name.as_str() {
                "epoch" => format.count(values.epoch),
                "step" => format.count(values.step),
                name => format.value((values.logged)(name).unwrap_or(f64::NAN)),
            },
        });
        // What no file system minds, on any system.
        let kept = |c: char| c.is_alphanumeric() || "-_=+.,@ ".contains(c);
        let flat = text.collect::<String>();
        flat.chars()
            .map(|c| if kept(c) { c } else { '_' })
            .collect()
    }
}

impl Format {
    /// `.3` (or Python's `.3f`), `06` (or `06d`).
    fn parse(text: &str) -> Option<Self> {
        if let Some(decimals) = text.strip_prefix('.') {
            let decimals = decimals.strip_suffix('f').unwrap_or(decimals);
            return decimals
                .parse()
                .ok()
                .filter(|n| *n <= 17)
                .map(Self::Decimals);
        }
        let digits = text.strip_suffix('d').unwrap_or(text).strip_prefix('0')?;
        digits.parse().ok().filter(|n| *n <= 20).map(Self::Digits)
    }

    fn count(self, count: u64) -> String {
        match self {
            Self::Digits(digits) => format!("{count:0digits$}"),
            _ => count.to_string(),
        }
    }

    fn value(self, value: f64) -> String {
        match self {
            Self::Decimals(decimals) => format!("{value:.decimals$}").to_lowercase(),
            _ => value.to_string().to_lowercase(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn name(template: &str) -> String {
        let logged = |name: &str| match name {
            "val/loss" => Some(0.12345),
            "acc" => Some(1.0),
            _ => None,
        };
        Template::parse(template).unwrap().render(&Values {
            epoch: 2,
            step: 237,
            logged: &logged,
        })
    }

    #[test]
    fn names() {
        assert_eq!(name("{epoch}-{step}"), "epoch=2-step=237");
        assert_eq!(
            name("{step:06}-{val/loss:.3}"),
            "step=000237-val_loss=0.123"
        );
        assert_eq!(
            name("{step:06d}-{val/loss:.2f}"),
            "step=000237-val_loss=0.12"
        );
        assert_eq!(name("net-{acc}-{val/loss}"), "net-acc=1-val_loss=0.12345");
        assert_eq!(name("e={epoch}/s={step}"), "e=2_s=237");
        assert_eq!(name("{val/f1:.3}"), "val_f1=nan");
    }

    #[test]
    fn names_that_cannot_be() {
        for (template, why) in [
            ("", "which is empty"),
            ("{epoch", "in which a field is not closed"),
            ("epoch}", "in which a brace is closed that was not opened"),
            ("{}", "in which a field has no name"),
            ("{loss:x}", "whose format is unknown"),
            (".hidden", "which begins with a point"),
            ("../{step}", "which begins with a point"),
            ("last", "which is the name of the link to the newest"),
        ] {
            let error = Template::parse(template).unwrap_err().to_string();
            let expected = format!("the name of checkpoints is `{template}`, {why}; use fields");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
