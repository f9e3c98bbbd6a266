//! The layers a setting can come from, and the reading of one setting through them: flag, environment, file, default.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use super::{
    fault::{ConfigFault, Origin},
    setting::{Kind, SETTINGS, Setting},
};
use crate::model::reader::nearest;

/// What was given on the command line, in the environment and in the file, unread.
#[derive(Debug, Default, Clone)]
pub struct Sources {
    /// Values of flags, by the setting's `section.key`.
    pub flags: BTreeMap<String, String>,
    /// The process's environment; only UTF-8 variables.
    pub environment: BTreeMap<String, String>,
    /// The file, if there is one.
    pub file: Option<ConfigFile>,
}

/// The text of a configuration file and its name for messages.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Where it was read.
    pub path: PathBuf,
    /// Its text, or why it could not be read.
    pub text: Result<String, String>,
}

impl ConfigFile {
    /// Reads a file. That it cannot be read is reported with all other faults.
    #[must_use]
    pub fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        Self { path, text }
    }
}

/// The sources while they are read; collects the faults.
pub(super) struct Reading<'a> {
    sources: &'a Sources,
    /// The parsed file, empty without one.
    pub(super) file: toml::Table,
    /// Where the values of the file come from.
    pub(super) file_origin: Origin,
    /// Everything found wrong so far.
    pub(super) faults: Vec<ConfigFault>,
    /// Where each scalar came from, and its value as it would be printed.
    pub(super) shown: BTreeMap<String, (String, Origin)>,
}

/// A scalar as it was written, in text form whatever its source.
pub(super) struct Given {
    /// Its text.
    pub(super) text: String,
    /// Its source.
    pub(super) origin: Origin,
}

impl<'a> Reading<'a> {
    /// Opens the sources. A file that is no TOML is a fault and then reads as empty.
    pub(super) fn open(sources: &'a Sources) -> Self {
        let mut reading = Self {
            sources,
            file: toml::Table::new(),
            file_origin: Origin::Default,
            faults: Vec::new(),
            shown: BTreeMap::new(),
        };
        if let Some(file) = &sources.file {
            reading.file_origin = Origin::File(file.path.clone());
            match &file.text {
                Ok(text) => match text.parse() {
                    Ok(table) => reading.file = table,
                    Err(error) => {
                        reading.fault_of_file(format!("is no TOML: {}", describe(text, &error)));
                    }
                },
                Err(reason) => reading.fault_of_file(format!(
                    "cannot be read: {reason}; give another with --config or HANDOVER_CONFIG"
                )),
            }
        }
        reading
    }

    fn fault_of_file(&mut self, message: String) {
        let origin = self.file_origin.clone();
        self.fault("", message, origin);
    }

    /// Notes a fault.
    pub(super) fn fault(&mut self, key: &str, message: String, origin: Origin) {
        self.faults.push(ConfigFault {
            key: key.to_owned(),
            message,
            origin,
        });
    }

    /// A variable of the environment.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.sources.environment.get(name).cloned()
    }

    /// Whether a flag or the environment speaks about a setting, so that the file does not count.
    pub(super) fn overridden(&self, setting: &Setting) -> bool {
        self.sources.flags.contains_key(&setting.name())
            || self.sources.environment.contains_key(&setting.variable())
    }

    /// What was said about a setting, by the source that counts. A value of the wrong form is a fault.
    pub(super) fn given(&mut self, setting: &Setting) -> Option<Given> {
        let name = setting.name();
        if let Some(text) = self.sources.flags.get(&name) {
            return Some(Given {
                text: text.clone(),
                origin: Origin::Flag(format!("--{}", setting.flag())),
            });
        }
        let variable = setting.variable();
        if let Some(text) = self.sources.environment.get(&variable) {
            return Some(Given {
                text: text.clone(),
                origin: Origin::Environment(variable),
            });
        }
        let value = self
            .file
            .get(setting.section)?
            .as_table()?
            .get(setting.key)?;
        let text = match (setting.kind, value) {
            (Kind::Text | Kind::Duration, toml::Value::String(text)) => text.clone(),
            (Kind::Integer, toml::Value::Integer(number)) => number.to_string(),
            (Kind::Bool, toml::Value::Boolean(flag)) => flag.to_string(),
            (kind, other) => {
                let wanted = match kind {
                    Kind::Text => "text in quotes",
                    Kind::Duration => "a duration in quotes, such as \"30s\"",
                    Kind::Integer => "a whole number without quotes",
                    Kind::Bool => "true or false, without quotes",
                };
                let message = format!("must be {wanted}, not {}", other.type_str());
                let origin = self.file_origin.clone();
                self.fault(&name, message, origin);
                return None;
            }
        };
        Some(Given {
            text,
            origin: self.file_origin.clone(),
        })
    }

    /// Reads a setting with a default; `parse` says what is wrong with a text, without repeating it needlessly.
    pub(super) fn read<T: ToString>(
        &mut self,
        setting: &Setting,
        default: impl FnOnce() -> T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let (value, origin) = match self.given(setting) {
            None => (default(), Origin::Default),
            Some(given) => match parse(&given.text) {
                Ok(value) => (value, given.origin),
                Err(message) => {
                    self.fault(&setting.name(), message, given.origin);
                    (default(), Origin::Default)
                }
            },
        };
        self.show(setting, value.to_string(), origin);
        value
    }

    /// Keeps what the effective configuration prints for a setting.
    pub(super) fn show(&mut self, setting: &Setting, value: String, origin: Origin) {
        self.shown.insert(setting.name(), (value, origin));
    }

    /// Reports sections and keys that do not exist, in the file and among the environment's variables.
    pub(super) fn report_unknown(&mut self) {
        let sections: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.section).collect();
        let file = std::mem::take(&mut self.file);
        for (section, content) in &file {
            if section == "connections" {
                continue;
            }
            if !sections.contains(section.as_str()) {
                let known: Vec<&str> = sections.iter().copied().chain(["connections"]).collect();
                self.unknown(section, section, &known, "section");
                continue;
            }
            let Some(content) = content.as_table() else {
                let origin = self.file_origin.clone();
                self.fault(section, format!("is a section: write [{section}]"), origin);
                continue;
            };
            let known: Vec<&str> = SETTINGS
                .iter()
                .filter(|setting| setting.section == section)
                .map(|setting| setting.key)
                .collect();
            for key in content.keys().filter(|key| !known.contains(&key.as_str())) {
                self.unknown(&format!("{section}.{key}"), key, &known, "key");
            }
        }
        self.file = file;
        self.report_unknown_variables(&sections);
    }

    fn unknown(&mut self, name: &str, key: &str, known: &[&str], what: &str) {
        let message = match nearest(key, known) {
            Some(near) => format!("no such {what}; did you mean '{near}'?"),
            None => format!("no such {what}; known here: {}", known.join(", ")),
        };
        let origin = self.file_origin.clone();
        self.fault(name, message, origin);
    }

    /// A misspelt variable would be ignored silently; one that begins like a section of ours is meant for us.
    fn report_unknown_variables(&mut self, sections: &BTreeSet<&str>) {
        let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let ours = |name: &str| {
            sections.iter().any(|section| {
                name.strip_prefix("HANDOVER_")
                    .and_then(|rest| rest.strip_prefix(section.to_uppercase().as_str()))
                    .is_some_and(|rest| rest.starts_with('_'))
            })
        };
        let sources = self.sources;
        for name in sources.environment.keys() {
            if !ours(name) || known.contains(&name.as_str()) {
                continue;
            }
            let message = match nearest(name, &known) {
                Some(near) => format!("no such setting; did you mean {near}?"),
                None => "no such setting; see docs/configuration.md".to_owned(),
            };
            self.fault("", message, Origin::Environment(name.clone()));
        }
    }
}

/// A parse error by line and column, without the quoted line: it may hold a secret.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else {
        return error.message().to_owned();
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line}, column {column}: {}", error.message())
}
