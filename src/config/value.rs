//! How one setting's value is read, from text and from a file.

use super::TrainerConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::path::PathBuf;

/// The type of a setting.
///
/// It says in one place what is allowed, so that a flag, a variable, a file and a program give the
/// same message.
pub(super) trait SettingValue:
    Clone + PartialEq + Debug + Serialize + DeserializeOwned
{
    /// What stands for the value in `--help`.
    const NAME: &'static str;

    /// What is allowed; follows "use".
    const ALLOWED: &'static str;

    /// The value that the flag has when it is given alone. A flag with such a value takes others
    /// only after `=`, so that `--deterministic data` leaves `data` alone.
    const BARE: Option<&'static str> = None;

    /// Whether `none` is allowed as well.
    const OPTIONAL: bool = false;

    /// Reads what a person typed; `None` if it is not [`ALLOWED`](Self::ALLOWED).
    fn from_text(text: &str) -> Option<Self>;

    /// Reads a config file's value; `None` if it is not [`ALLOWED`](Self::ALLOWED).
    fn from_file_value(value: toml::Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// Whether the value is allowed, for one that the program made: it is if a config file can
    /// hold it, because what a run was told is always written down and read back.
    fn is_possible(&self) -> bool {
        toml::Value::try_from(self)
            .is_ok_and(|value| Self::from_file_value(value).as_ref() == Some(self))
    }
}

/// A setting as the layers see it.
pub(super) struct Setting {
    pub key: &'static str,
    pub doc: &'static str,
    pub value_name: &'static str,
    pub bare: Option<&'static str>,
    pub value_allowed: &'static str,
    pub optional: bool,
    /// False if the text is not allowed.
    pub set_text: fn(&mut TrainerConfig, &str) -> bool,
    /// False if the value is not allowed.
    pub set_file_value: fn(&mut TrainerConfig, toml::Value) -> bool,
    pub is_possible: fn(&TrainerConfig) -> bool,
    pub shown: fn(&TrainerConfig) -> String,
}

impl Setting {
    /// The counts that divide something: 0 has no meaning for them.
    pub const FROM_ONE: [&str; 6] = [
        "num_nodes",
        "check_replicas_every_n_steps",
        "check_val_every_n_epoch",
        "log_every_n_steps",
        "accumulate_grad_batches",
        "checkpoint_every_n_steps",
    ];

    /// What is allowed; follows "use".
    pub fn allowed(&self) -> String {
        let allowed = if Self::FROM_ONE.contains(&self.key) {
            "a whole number from 1 (below 2^63)"
        } else {
            self.value_allowed
        };
        let or_none = if self.optional {
            ", or leave it out (`none`)"
        } else {
            ""
        };
        format!("{allowed}{or_none}")
    }

    /// `--max-epochs`.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }

    /// `FIREBOX_MAX_EPOCHS`.
    pub fn variable(&self) -> String {
        format!("FIREBOX_{}", self.key.to_uppercase())
    }
}

impl SettingValue for bool {
    const NAME: &'static str = "BOOL";
    const ALLOWED: &'static str = "true or false";
    const BARE: Option<&'static str> = Some("true");

    /// Takes what people put into environment variables, too.
    fn from_text(text: &str) -> Option<Self> {
        match text.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        }
    }
}

impl SettingValue for u64 {
    const NAME: &'static str = "N";
    const ALLOWED: &'static str = "a whole number from 0 (below 2^63)";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(Self::is_possible)
    }
}

impl SettingValue for PathBuf {
    const NAME: &'static str = "PATH";
    const ALLOWED: &'static str = "a path, in UTF-8";

    fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.into())
    }

    fn from_file_value(value: toml::Value) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const NAME: &'static str = T::NAME;
    const ALLOWED: &'static str = T::ALLOWED;
    const BARE: Option<&'static str> = T::BARE;
    const OPTIONAL: bool = true;

    fn from_text(text: &str) -> Option<Self> {
        if text == "none" {
            Some(None)
        } else {
            T::from_text(text).map(Some)
        }
    }

    /// Takes `"none"`, too: TOML has no null, and a file may have to undo the program's default.
    fn from_file_value(value: toml::Value) -> Option<Self> {
        if value.as_str() == Some("none") {
            Some(None)
        } else {
            T::from_file_value(value).map(Some)
        }
    }

    fn is_possible(&self) -> bool {
        self.as_ref().is_none_or(T::is_possible)
    }
}

/// A value of a config file, as the text that stands for it on the command line.
///
/// The types of this module have one grammar, of text. Numbers and lists in a file are read
/// through it, so that `devices = [0, 2]`, `devices = "0,2"` and `--devices 0,2` are one thing.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Scalar>),
}

impl Scalar {
    pub fn into_text(self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            // `{:?}` keeps the point of `1.0`, which makes it a fraction.
            Self::Float(value) => format!("{value:?}"),
            Self::Text(value) => value,
            // The comma after each item makes a list of one a list.
            Self::List(items) => items
                .into_iter()
                .map(|item| item.into_text() + ",")
                .collect(),
        }
    }
}

/// Implements `FromStr` and `Deserialize` by [`SettingValue::from_text`].
macro_rules! read_as_text {
    ($($type:ty),+) => { $(
        impl std::str::FromStr for $type {
            type Err = crate::error::Error;

            fn from_str(text: &str) -> crate::error::Result<Self> {
                <Self as $crate::config::value::SettingValue>::from_text(text).ok_or_else(|| {
                    let allowed = <Self as $crate::config::value::SettingValue>::ALLOWED;
                    crate::error::Error::config(format!("`{text}` will not do; use {allowed}"))
                })
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let scalar = $crate::config::value::Scalar::deserialize(deserializer)?;
                scalar.into_text().parse().map_err(serde::de::Error::custom)
            }
        }
    )+ };
}
pub(super) use read_as_text;

/// Implements `Serialize` by `Display`.
macro_rules! write_as_text {
    ($($type:ty),+) => { $(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+ };
}
pub(super) use write_as_text;
