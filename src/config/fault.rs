//! What is wrong with a configuration, and where it was said.

use std::{fmt, path::PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Environment(String),
    /// The configuration file.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One fault of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// `section.key`, or empty for a fault of the file as a whole.
    pub key: String,
    /// What is wrong and what to write instead. Never holds a secret.
    pub message: String,
    /// Who said it.
    pub origin: Origin,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        match self.origin {
            Origin::Default => write!(f, "{} (given nowhere)", self.message),
            Origin::Flag(_) | Origin::Environment(_) | Origin::File(_) => {
                write!(f, "{} (from {})", self.message, self.origin)
            }
        }
    }
}

/// All faults of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidConfig(pub Vec<ConfigFault>);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [_] => f.write_str("the configuration has a fault:")?,
            faults => write!(f, "the configuration has {} faults:", faults.len())?,
        }
        for fault in &self.0 {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}
