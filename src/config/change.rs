//! What another configuration would change, and which of that a running server cannot follow.

use std::{collections::BTreeMap, fmt};

use super::{
    Config, InstanceConfig, LeaseConfig, LogConfig, MetricsConfig, ServerConfig, StoreConfig,
    setting,
};

/// The differences between two configurations. Prints names only: a value may be a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings (`section.key`) that are different and count only from the next start of the server on.
    pub fixed: Vec<String>,
    /// Whether `log.filter` is different.
    pub log_filter: bool,
    /// The connections that are different, by name.
    pub connections: BTreeMap<String, ConnectionChange>,
}

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionChange {
    /// It was not there before.
    Added,
    /// Something of it is different: brokers, a property, the text of a secret, or where that is kept.
    Changed,
    /// It is no longer there.
    Removed,
}

impl Config {
    /// Compares what counts; from which source it came, and in which form it was written, does not matter.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Changes {
        // Taken apart whole, so that a setting that is added later has to be thought about here.
        let Self {
            server:
                ServerConfig {
                    listen,
                    public_url,
                    read_only,
                    shutdown_grace,
                },
            store:
                StoreConfig {
                    url,
                    max_connections,
                    migrate_at_start,
                },
            instance: InstanceConfig { id, lock_dir },
            lease: LeaseConfig { ttl },
            log: LogConfig { format, filter },
            metrics: MetricsConfig { per_partition },
            connections: _,
            shown: _,
        } = self;
        let (server, store) = (&new.server, &new.store);
        let fixed = [
            (setting::LISTEN, *listen == server.listen),
            (setting::PUBLIC_URL, *public_url == server.public_url),
            (setting::READ_ONLY, *read_only == server.read_only),
            (
                setting::SHUTDOWN_GRACE,
                *shutdown_grace == server.shutdown_grace,
            ),
            (setting::STORE_URL, *url == store.url),
            (
                setting::MAX_CONNECTIONS,
                *max_connections == store.max_connections,
            ),
            (
                setting::MIGRATE_AT_START,
                *migrate_at_start == store.migrate_at_start,
            ),
            (setting::INSTANCE_ID, *id == new.instance.id),
            (setting::LOCK_DIR, *lock_dir == new.instance.lock_dir),
            (setting::LEASE_TTL, *ttl == new.lease.ttl),
            (setting::LOG_FORMAT, *format == new.log.format),
            (
                setting::PER_PARTITION,
                *per_partition == new.metrics.per_partition,
            ),
        ];
        Changes {
            fixed: fixed
                .iter()
                .filter(|(_, same)| !same)
                .map(|(setting, _)| setting.name())
                .collect(),
            log_filter: *filter != new.log.filter,
            connections: self.connection_changes(new),
        }
    }

    fn connection_changes(&self, new: &Self) -> BTreeMap<String, ConnectionChange> {
        let (old, new) = (&self.connections, &new.connections);
        let removed = old
            .keys()
            .filter(|name| !new.contains_key(*name))
            .map(|name| (name.clone(), ConnectionChange::Removed));
        let others = new
            .iter()
            .filter_map(|(name, connection)| match old.get(name) {
                None => Some((name.clone(), ConnectionChange::Added)),
                Some(before) if before != connection => {
                    Some((name.clone(), ConnectionChange::Changed))
                }
                Some(_) => None,
            });
        removed.chain(others).collect()
    }
}

impl fmt::Display for Changes {
    /// `log.filter, connections.main (changed)`, or `nothing`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = self.log_filter.then(|| setting::LOG_FILTER.name());
        let connections = self.connections.iter().map(|(name, change)| {
            let what = match change {
                ConnectionChange::Added => "added",
                ConnectionChange::Changed => "changed",
                ConnectionChange::Removed => "removed",
            };
            format!("connections.{name} ({what})")
        });
        let fixed = self.fixed.iter().cloned();
        let all: Vec<String> = fixed.chain(filter).chain(connections).collect();
        if all.is_empty() {
            return f.write_str("nothing");
        }
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::PathBuf};

    use super::*;
    use crate::config::{ConfigFile, PropertyRules, Sources, setting::SETTINGS};

    /// What all rows of the tables begin with: every setting given, and a connection of each kind.
    const FILE: &str = r#"
        [server]
        listen = "127.0.0.1:8080"
        public_url = "https://handover.example"
        read_only = false
        shutdown_grace = "30s"
        [store]
        url = "postgres://u:hush@localhost/d"
        max_connections = 10
        migrate_at_start = true
        [instance]
        id = "one"
        lock_dir = "/run/one"
        [lease]
        ttl = "10s"
        [log]
        format = "text"
        filter = "info"
        [metrics]
        per_partition = false
        [connections.main]
        type = "kafka"
        bootstrap_servers = "a:1,b:2"
        properties = { "sasl.username" = { env = "USER_NAME" }, "socket.timeout.ms" = 5000 }
        [connections.spare]
        type = "kafka"
        bootstrap_servers = "c:3"
        [connections.target]
        type = "postgres"
        url = "postgres://w:hush@t/d"
    "#;

    fn load(file: &str, environment: &[(&str, &str)]) -> Config {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let sources = Sources {
            environment: environment.collect(),
            file: Some(ConfigFile {
                path: PathBuf::from("handover.toml"),
                text: Ok(file.to_owned()),
            }),
            ..Sources::default()
        };
        let rules = PropertyRules {
            is_secret: crate::kafka::client_config::is_secret,
            check: crate::kafka::client_config::check_connection,
        };
        Config::load(&sources, rules).unwrap()
    }

    const USER: (&str, &str) = ("USER_NAME", "hush-user");

    /// The file with one part put in place of another, which must be there.
    fn edited(from: &str, to: &str) -> String {
        assert!(FILE.contains(from), "{from}");
        FILE.replacen(from, to, 1)
    }

    fn changes(file: &str, environment: &[(&str, &str)]) -> Changes {
        load(FILE, &[USER]).changes_to(&load(file, environment))
    }

    #[test]
    fn what_changed_is_named() {
        let spare =
            "[connections.spare]\n        type = \"kafka\"\n        bootstrap_servers = \"c:3\"";
        for (from, to, expected) in [
            ("", "", "nothing"),
            // Written otherwise, and the same.
            (
                "shutdown_grace = \"30s\"",
                "shutdown_grace = \"30000ms\"",
                "nothing",
            ),
            ("a:1,b:2", "a:1, b:2", "nothing"),
            ("= 5000", "= \"5000\"", "nothing"),
            (
                "public_url = \"https://handover.example\"",
                "public_url = \"https://handover.example/\"",
                "nothing",
            ),
            ("read_only = false", "", "nothing"),
            // Followed.
            (
                "filter = \"info\"",
                "filter = \"info,handover::app=debug\"",
                "log.filter",
            ),
            ("filter = \"info\"", "filter = \"warn\"", "log.filter"),
            ("a:1,b:2", "a:1", "connections.main (changed)"),
            ("= 5000", "= 6000", "connections.main (changed)"),
            (
                ", \"socket.timeout.ms\" = 5000",
                "",
                "connections.main (changed)",
            ),
            (
                "bootstrap_servers = \"c:3\"",
                "bootstrap_servers = \"c:3\"\ninsecure = true",
                "connections.spare (changed)",
            ),
            (spare, "", "connections.spare (removed)"),
            (
                "connections.spare",
                "connections.new",
                "connections.new (added), connections.spare (removed)",
            ),
            ("w:hush@t/d", "w:other@t/d", "connections.target (changed)"),
            (
                "connections.target",
                "connections.aim",
                "connections.aim (added), connections.target (removed)",
            ),
            // Not followed.
            ("127.0.0.1:8080", "127.0.0.1:8081", "server.listen"),
            ("handover.example", "handover.test", "server.public_url"),
            (
                "public_url = \"https://handover.example\"",
                "",
                "server.public_url",
            ),
            ("read_only = false", "read_only = true", "server.read_only"),
            ("shutdown_grace = \"30s\"", "", "nothing"),
            (
                "shutdown_grace = \"30s\"",
                "shutdown_grace = \"31s\"",
                "server.shutdown_grace",
            ),
            ("u:hush@", "u:other@", "store.url"),
            (
                "max_connections = 10",
                "max_connections = 11",
                "store.max_connections",
            ),
            (
                "migrate_at_start = true",
                "migrate_at_start = false",
                "store.migrate_at_start",
            ),
            ("id = \"one\"", "id = \"two\"", "instance.id"),
            ("/run/one", "/run/two", "instance.lock_dir"),
            ("ttl = \"10s\"", "ttl = \"11s\"", "lease.ttl"),
            ("format = \"text\"", "format = \"json\"", "log.format"),
            (
                "per_partition = false",
                "per_partition = true",
                "metrics.per_partition",
            ),
        ] {
            let changes = changes(&edited(from, to), &[USER]);
            assert_eq!(changes.to_string(), expected, "{from} -> {to}");
            assert!(!format!("{changes:?}").contains("hush"), "{changes:?}");
        }
    }

    #[test]
    fn all_changes_are_named_together() {
        let file = edited("ttl = \"10s\"", "ttl = \"20s\"")
            .replace("read_only = false", "read_only = true")
            .replace("filter = \"info\"", "filter = \"debug\"")
            .replace("a:1,b:2", "a:1");
        let changes = changes(&file, &[USER]);
        assert_eq!(changes.fixed, ["server.read_only", "lease.ttl"]);
        assert_eq!(
            changes.to_string(),
            "server.read_only, lease.ttl, log.filter, connections.main (changed)"
        );
    }

    #[test]
    fn a_secret_that_was_renewed_changes_its_connection() {
        let renewed = changes(FILE, &[("USER_NAME", "hush-other")]);
        assert_eq!(renewed.to_string(), "connections.main (changed)");
    }

    #[test]
    fn where_a_value_was_said_does_not_matter() {
        let file = edited("ttl = \"10s\"", "");
        let moved = changes(&file, &[USER, ("HANDOVER_LEASE_TTL", "10s")]);
        assert_eq!(moved, Changes::default());
    }

    #[test]
    fn every_setting_but_the_filter_is_fixed() {
        // Every setting different from the file above.
        let file = r#"
            [server]
            listen = "127.0.0.1:1"
            read_only = true
            shutdown_grace = "1s"
            [store]
            url = "postgres://u:hush@localhost/other"
            max_connections = 3
            migrate_at_start = false
            [instance]
            id = "two"
            lock_dir = "/run/two"
            [lease]
            ttl = "3s"
            [log]
            format = "auto"
            filter = "debug"
            [metrics]
            per_partition = true
        "#;
        let changes = changes(file, &[]);
        let mut named: BTreeSet<String> = changes.fixed.into_iter().collect();
        assert!(changes.log_filter);
        named.insert(setting::LOG_FILTER.name());
        let all: BTreeSet<String> = SETTINGS.iter().map(setting::Setting::name).collect();
        assert_eq!(named, all);
    }
}
