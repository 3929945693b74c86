//! The layers of a configuration: defaults, files, environment, command line.

use super::value::Setting;
use super::{SETTINGS, TrainerConfig};
use crate::error::{Error, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A configuration being put together, and the place each of its settings came from.
pub(super) struct Layers {
    config: TrainerConfig,
    /// Settings that are not here have the default, or come from text without a name.
    origins: BTreeMap<&'static str, String>,
}

/// What is read from a file; null stands for a setting that is left out.
type File = BTreeMap<String, Option<toml::Value>>;

impl Layers {
    /// The lowest layer.
    pub fn over(defaults: TrainerConfig) -> Self {
        Self {
            config: defaults,
            origins: BTreeMap::new(),
        }
    }

    /// Lays a file over it; its name's extension says the format.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::io("read the configuration", path, e))?;
        let extension = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        let name = path.display().to_string();
        let file = match extension.as_str() {
            "toml" => parse_toml(&text),
            "json" => serde_json::from_str(&text)
                .map_err(|e| Error::config("not a JSON object of settings").with_source(e)),
            "yaml" | "yml" => parse_yaml(&text),
            other => Err(Error::config(format!(
                "a configuration ends in .toml, .json, .yaml or .yml, not in `{other}`"
            ))),
        };
        file.and_then(|file| self.add_values(file, Some(&name)))
            .map_err(|e| e.context(name))
    }

    /// Lays TOML over it.
    pub fn add_toml(&mut self, text: &str) -> Result<()> {
        self.add_values(parse_toml(text)?, None)
    }

    /// Lays flags and environment variables over it; clap has let the flags win.
    fn add_matches(&mut self, matches: &ArgMatches) -> Result<()> {
        for setting in SETTINGS {
            let Ok(Some(text)) = matches.try_get_one::<String>(setting.key) else {
                continue;
            };
            let origin = match matches.value_source(setting.key) {
                // Job scripts empty a variable to unset it.
                Some(ValueSource::EnvVariable) if text.is_empty() => continue,
                Some(ValueSource::EnvVariable) => setting.variable(),
                Some(ValueSource::CommandLine) => setting.flag(),
                _ => continue,
            };
            if !(setting.set_text)(&mut self.config, text) {
                return Err(not_allowed(setting, &format!("`{text}`")).context(origin));
            }
            self.origins.insert(setting.key, origin);
        }
        Ok(())
    }

    fn add_values(&mut self, file: File, origin: Option<&str>) -> Result<()> {
        for (key, value) in file {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                let keys: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
                let keys = keys.join(", ");
                return Err(Error::config(format!(
                    "`{key}` is no setting; use one of {keys}"
                )));
            };
            let Some(value) = value else { continue };
            let shown = value.to_string();
            if !(setting.set_file_value)(&mut self.config, value) {
                return Err(not_allowed(setting, &shown));
            }
            if let Some(origin) = origin {
                self.origins.insert(setting.key, origin.to_owned());
            }
        }
        Ok(())
    }

    /// The configuration, checked.
    pub fn finish(self) -> Result<TrainerConfig> {
        let Some(problem) = self.config.problem() else {
            return Ok(self.config);
        };
        let origins: Vec<_> = problem
            .keys
            .iter()
            .filter_map(|key| Some((key, self.origins.get(key)?)))
            .collect();
        Err(match origins.as_slice() {
            [] => Error::config(problem.message),
            [(_, one), others @ ..] if others.iter().all(|(_, other)| other == one) => {
                Error::config(problem.message).context(one)
            }
            several => {
                let several = several
                    .iter()
                    .map(|(key, origin)| format!("`{key}` from {origin}"));
                let several = several.collect::<Vec<_>>().join(", ");
                Error::config(format!("{} ({several})", problem.message))
            }
        })
    }
}

impl clap::Args for TrainerConfig {
    fn augment_args(command: Command) -> Command {
        let defaults = toml::Value::try_from(Self::default()).ok();
        let default = |setting: &Setting| typed(defaults.as_ref()?.get(setting.key)?);
        command
            .arg(
                Arg::new("config")
                    .long("config")
                    .env("FIREBOX_CONFIG")
                    .hide_env_values(true)
                    .value_name("FILE")
                    .value_parser(value_parser!(PathBuf))
                    .action(ArgAction::Append)
                    .help_heading(HEADING)
                    .help("Take settings from this file: .toml, .json or .yaml; of several, the later wins"),
            )
            .arg(
                Arg::new("print_config")
                    .long("print-config")
                    .action(ArgAction::SetTrue)
                    .help_heading(HEADING)
                    .help("Print the settings as TOML, merged from files, environment and flags, and exit"),
            )
            .args(SETTINGS.iter().map(|setting| argument(setting, default(setting))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for TrainerConfig {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut config = Self::default();
        config.update_from_arg_matches(matches)?;
        Ok(config)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let merged = merge(self.clone(), matches)
            .and_then(|config| Ok((config.to_toml()?, config)))
            .map_err(|e| clap::Error::raw(clap::error::ErrorKind::ValueValidation, e));
        let (toml, config) = merged?;
        if matches!(matches.try_get_one("print_config"), Ok(Some(true))) {
            return Err(printed(toml));
        }
        *self = config;
        Ok(())
    }
}

/// Where the flags stand in `--help`.
const HEADING: &str = "Trainer";

/// The flag and the variable of a setting. Their values stay text here: clap's own message for a
/// value it cannot read names the flag even where the value came from the variable.
fn argument(setting: &'static Setting, default: Option<String>) -> Arg {
    let help = setting.doc.lines().map(str::trim);
    let help: Vec<_> = help.take_while(|line| !line.is_empty()).collect();
    let arg = Arg::new(setting.key)
        .long(setting.flag().trim_start_matches('-').to_owned())
        .env(setting.variable())
        .hide_env_values(true)
        .value_name(setting.value_name)
        .allow_negative_numbers(true)
        .help_heading(HEADING)
        .help(help.join(" "))
        // Shown in the help; the layers skip it.
        .default_values(default);
    match setting.bare {
        Some(bare) => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(bare),
        None => arg,
    }
}

fn merge(defaults: TrainerConfig, matches: &ArgMatches) -> Result<TrainerConfig> {
    let mut layers = Layers::over(defaults);
    if let Ok(Some(paths)) = matches.try_get_many::<PathBuf>("config") {
        for path in paths.filter(|path| !path.as_os_str().is_empty()) {
            layers.add_file(path)?;
        }
    }
    layers.add_matches(matches)?;
    layers.finish()
}

/// A clap "error" that prints the text alone on stdout and exits with 0.
///
/// An error that is made from a message is printed with `error:` before it, whatever its kind. Only
/// a help text is printed as it is, so the text becomes the help of a command.
fn printed(text: String) -> clap::Error {
    let command = Command::new("config").override_help(text);
    match command.try_get_matches_from(["config", "--help"]) {
        Err(help) => help,
        Ok(_) => clap::Error::new(clap::error::ErrorKind::DisplayHelp),
    }
}

fn not_allowed(setting: &Setting, shown: &str) -> Error {
    Error::config(format!(
        "`{}` is {shown}; use {}",
        setting.key,
        setting.allowed()
    ))
}

/// A value as it is typed on the command line.
fn typed(value: &toml::Value) -> Option<String> {
    Some(match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => items
            .iter()
            .map(typed)
            .collect::<Option<Vec<_>>>()?
            .join(","),
        other => other.to_string(),
    })
}

fn parse_toml(text: &str) -> Result<File> {
    // The message shows the place over several lines, and ends with a line break.
    toml::from_str(text)
        .map_err(|e| Error::config(format!("not TOML: {}", e.to_string().trim_end())))
}

#[cfg(feature = "yaml")]
fn parse_yaml(text: &str) -> Result<File> {
    // Only `true` and `false` are booleans, as in YAML 1.2: `progress: off` is the word.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|e| Error::config("not a YAML mapping of settings").with_source(e))
}

#[cfg(not(feature = "yaml"))]
fn parse_yaml(_text: &str) -> Result<File> {
    Err(Error::config(
        "this program reads no YAML; build firebox with the feature `yaml`, or use TOML or JSON",
    ))
}
