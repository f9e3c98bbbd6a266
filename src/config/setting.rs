//! The table of scalar settings: one row each, from which the flags, the environment variables, the list of known keys
//! and the printed effective configuration are all made.

/// What a setting's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text in the file; checked further by the setting itself.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A span of time as text: `250ms`, `30s`, `5m`.
    Duration,
}

/// One scalar setting.
#[derive(Debug)]
pub struct Setting {
    /// The table of the file it stands in.
    pub section: &'static str,
    /// Its key there.
    pub key: &'static str,
    /// The form of its value.
    pub kind: Kind,
    /// The default as it would be written, for people; `None` when it must be given.
    pub default: Option<&'static str>,
    /// What it does, with unit and bounds.
    pub help: &'static str,
}

/// All scalar settings, in the order in which they are shown.
pub const SETTINGS: &[Setting] = &[
    LISTEN,
    PUBLIC_URL,
    READ_ONLY,
    SHUTDOWN_GRACE,
    STORE_URL,
    MAX_CONNECTIONS,
    MIGRATE_AT_START,
    INSTANCE_ID,
    LOCK_DIR,
    LEASE_TTL,
    LOG_FORMAT,
    LOG_FILTER,
    PER_PARTITION,
];

/// `server.listen`.
pub const LISTEN: Setting = Setting {
    section: "server",
    key: "listen",
    kind: Kind::Text,
    default: Some("127.0.0.1:8080"),
    help: "Address of the API and the web page; loopback only, since this version has no access control. Port 0 takes a free one",
};
/// `server.public_url`.
pub const PUBLIC_URL: Setting = Setting {
    section: "server",
    key: "public_url",
    kind: Kind::Text,
    default: Some("http:// and the listen address"),
    help: "URL by which people reach this server; used in the curl lines that it prints and accepted as a Host",
};
/// `server.read_only`.
pub const READ_ONLY: Setting = Setting {
    section: "server",
    key: "read_only",
    kind: Kind::Bool,
    default: Some("false"),
    help: "Refuse every call that would change something; jobs run on",
};
/// `server.shutdown_grace`.
pub const SHUTDOWN_GRACE: Setting = Setting {
    section: "server",
    key: "shutdown_grace",
    kind: Kind::Duration,
    default: Some("30s"),
    help: "How long a shutdown may take for last checkpoints and for giving back the leases, 1s to 10m",
};
/// `store.url`.
pub const STORE_URL: Setting = Setting {
    section: "store",
    key: "url",
    kind: Kind::Text,
    default: None,
    help: "PostgreSQL database: postgres://USER:PASSWORD@HOST:PORT/DATABASE. On the command line a password can be seen by others; \
           prefer the environment, or a reference in the file: { env = \"NAME\" } or { file = \"/path\" }",
};
/// `store.max_connections`.
pub const MAX_CONNECTIONS: Setting = Setting {
    section: "store",
    key: "max_connections",
    kind: Kind::Integer,
    default: Some("10"),
    help: "Connections to the database that are open at most, 3 to 500",
};
/// `store.migrate_at_start`.
pub const MIGRATE_AT_START: Setting = Setting {
    section: "store",
    key: "migrate_at_start",
    kind: Kind::Bool,
    default: Some("true"),
    help: "Bring the database schema up to date at the start; with false, `handover migrate` must have done it",
};
/// `instance.id`.
pub const INSTANCE_ID: Setting = Setting {
    section: "instance",
    key: "id",
    kind: Kind::Text,
    default: Some("the host's name"),
    help: "Name of this server process among those that share a database: 1 to 63 letters, digits, '.', '_', '-'",
};
/// `instance.lock_dir`.
pub const LOCK_DIR: Setting = Setting {
    section: "instance",
    key: "lock_dir",
    kind: Kind::Text,
    default: Some("the system's folder for temporary files"),
    help: "Folder of the lock file that keeps two processes on one host from using the same instance id",
};
/// `lease.ttl`.
pub const LEASE_TTL: Setting = Setting {
    section: "lease",
    key: "ttl",
    kind: Kind::Duration,
    default: Some("10s"),
    help: "How long an instance counts as alive after its last sign of life, 3s to 60s; its jobs pause after two thirds of it",
};
/// `log.format`.
pub const LOG_FORMAT: Setting = Setting {
    section: "log",
    key: "format",
    kind: Kind::Text,
    default: Some("auto"),
    help: "How log lines on standard error look: text, json (one object a line), or auto: text on a terminal, else json",
};
/// `log.filter`.
pub const LOG_FILTER: Setting = Setting {
    section: "log",
    key: "filter",
    kind: Kind::Text,
    default: Some("info"),
    help: "What is logged: a level (error, warn, info, debug, trace), or levels by module: info,handover::kafka=debug",
};
/// `metrics.per_partition`.
pub const PER_PARTITION: Setting = Setting {
    section: "metrics",
    key: "per_partition",
    kind: Kind::Bool,
    default: Some("false"),
    help: "Offsets and lags in /metrics for each partition, not only for each job",
};

impl Setting {
    /// `section.key`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    /// The flag without its dashes: `section-key`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name().replace(['.', '_'], "-")
    }

    /// The environment variable: `HANDOVER_SECTION_KEY`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("HANDOVER_{}", self.name().replace('.', "_").to_uppercase())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_in_all_three_places_are_unique() {
        let unique = |name: fn(&Setting) -> String| -> usize {
            SETTINGS.iter().map(name).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(unique(Setting::name), SETTINGS.len());
        assert_eq!(unique(Setting::flag), SETTINGS.len());
        assert_eq!(unique(Setting::variable), SETTINGS.len());
        assert_eq!(PUBLIC_URL.flag(), "server-public-url");
        assert_eq!(PUBLIC_URL.variable(), "HANDOVER_SERVER_PUBLIC_URL");
    }
}
