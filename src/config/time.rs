//! Durations as people write them.

use super::value::{SettingValue, read_as_text, write_as_text};
use std::fmt;
use std::time::Duration;

/// A duration with a text form: `90s`, `1h30m`, or Lightning's `DD:HH:MM:SS`.
///
/// The units are d, h, m, s, ms, us and ns, the larger first, each with a whole number. Printed, a
/// time has units.
///
/// ```
/// use firebox::config::WallTime;
/// use std::time::Duration;
///
/// assert_eq!("1h30m".parse::<WallTime>()?, WallTime::from(Duration::from_secs(5400)));
/// assert_eq!("00:12:00:00".parse::<WallTime>()?.to_string(), "12h");
/// assert!("90".parse::<WallTime>().is_err());
/// # Ok::<(), firebox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(Duration);

impl WallTime {
    /// No time.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// As the standard library's type.
    pub fn as_duration(self) -> Duration {
        self.0
    }
}

impl From<Duration> for WallTime {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<WallTime> for Duration {
    fn from(time: WallTime) -> Self {
        time.0
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, nanos) in UNITS {
            if rest >= nanos {
                write!(f, "{}{unit}", rest / nanos)?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

impl SettingValue for WallTime {
    const NAME: &'static str = "TIME";
    const ALLOWED: &'static str =
        "a time with units (`90s`, `45m`, `1h30m`, `2d`) or as `DD:HH:MM:SS`";

    fn from_text(text: &str) -> Option<Self> {
        let nanos = if text.contains(':') {
            parse_clock(text)?
        } else {
            parse_units(text)?
        };
        let seconds = u64::try_from(nanos / SECOND).ok()?;
        Some(Self(Duration::new(seconds, (nanos % SECOND) as u32)))
    }
}

read_as_text!(WallTime);
write_as_text!(WallTime);

const SECOND: u128 = 1_000_000_000;

/// Each unit in nanoseconds, the largest first.
const UNITS: [(&str, u128); 7] = [
    ("d", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// `DD:HH:MM:SS` in nanoseconds.
fn parse_clock(text: &str) -> Option<u128> {
    let mut parts = text.split(':');
    let mut nanos: u128 = 0;
    for (_, unit) in UNITS.into_iter().take(4) {
        nanos += u128::from(parts.next()?.parse::<u32>().ok()?) * unit;
    }
    parts.next().is_none().then_some(nanos)
}

/// `1h30m` in nanoseconds.
fn parse_units(text: &str) -> Option<u128> {
    let mut units = UNITS.into_iter();
    let mut rest = text;
    let mut nanos: u128 = 0;
    loop {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (name, tail) = tail.split_at(
            tail.find(|c: char| c.is_ascii_digit())
                .unwrap_or(tail.len()),
        );
        // The iterator has passed the larger units, so they come in order and at most once.
        let (_, unit) = units.find(|(unit, _)| *unit == name)?;
        nanos = nanos.checked_add(number.parse::<u128>().ok()?.checked_mul(unit)?)?;
        if tail.is_empty() {
            return Some(nanos);
        }
        rest = tail;
    }
}
