//! Every setting of the server: read from flags, environment and one TOML file, checked once, complete or refused.
//!
//! A server that starts with half of what was meant is worse than one that does not start, and a person who mends a file
//! should have to run it once, not once a fault. So reading never stops at the first fault: [`Config::load`] answers a
//! whole configuration or the list of everything that is wrong, each with its key, the remedy and the source it came from.
//! The scalar settings are rows of one [table](setting::SETTINGS); see docs/configuration.md for people.

mod change;
mod connection;
mod effective;
mod fault;
mod secret;
pub mod setting;
mod sources;

use std::{
    collections::BTreeMap,
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

pub use change::{Changes, ConnectionChange};
pub use connection::{
    CheckConnection, Connection, KafkaConnection, PostgresConnection, PropertyRules, PropertyValue,
};
pub use fault::{ConfigFault, InvalidConfig, Origin};
pub use secret::{PostgresUrl, Secret, SecretReference};
use setting::Setting;
use sources::Reading;
pub use sources::{ConfigFile, Sources};

use crate::model::HumanDuration;

/// A complete, checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The HTTP server.
    pub server: ServerConfig,
    /// The database.
    pub store: StoreConfig,
    /// This process among others.
    pub instance: InstanceConfig,
    /// The lease on jobs.
    pub lease: LeaseConfig,
    /// The log.
    pub log: LogConfig,
    /// What `/metrics` shows.
    pub metrics: MetricsConfig,
    /// The outside systems that jobs refer to, by name.
    pub connections: BTreeMap<String, Connection>,
    /// Each scalar as it is printed, with its source.
    shown: BTreeMap<String, (String, Origin)>,
}

/// `[server]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where to listen; loopback.
    pub listen: SocketAddr,
    /// How people reach the server, without a slash at its end; `None`: by the address it listens on.
    pub public_url: Option<String>,
    /// Whether calls that change something are refused.
    pub read_only: bool,
    /// How long a shutdown may take.
    pub shutdown_grace: Duration,
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The database.
    pub url: PostgresUrl,
    /// Connections open at most.
    pub max_connections: u32,
    /// Whether the schema is brought up to date at the start.
    pub migrate_at_start: bool,
}

/// `[instance]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceConfig {
    /// The instance's name.
    pub id: String,
    /// The folder of the lock file.
    pub lock_dir: PathBuf,
}

/// `[lease]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConfig {
    /// How long an instance counts as alive after its last renewal.
    pub ttl: Duration,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// What is logged, in `EnvFilter`'s syntax.
    pub filter: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[metrics]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Whether series exist for each partition.
    pub per_partition: bool,
}

impl Config {
    /// Reads how to log, for what has to be said before the rest is known; faults are found again by [`Config::load`].
    ///
    /// # Errors
    /// The faults of `[log]`.
    pub fn load_log(sources: &Sources) -> Result<LogConfig, InvalidConfig> {
        let mut reading = Reading::open(sources);
        let log = read_log(&mut reading);
        if reading.faults.is_empty() {
            Ok(log)
        } else {
            Err(InvalidConfig(reading.faults))
        }
    }

    /// Reads and checks everything.
    ///
    /// # Errors
    /// All faults at once.
    pub fn load(sources: &Sources, rules: PropertyRules) -> Result<Self, InvalidConfig> {
        let mut reading = Reading::open(sources);
        if !reading.faults.is_empty() {
            // What an unreadable file would have said is not known, so nothing else can be judged.
            return Err(InvalidConfig(reading.faults));
        }
        let server = read_server(&mut reading);
        let url = read_store_url(&mut reading);
        let max_connections = reading.read(
            &setting::MAX_CONNECTIONS,
            || 10,
            |text| number(text, 3, 500),
        );
        let migrate_at_start = reading.read(&setting::MIGRATE_AT_START, || true, switch);
        let instance = read_instance(&mut reading);
        let ttl = read_duration(&mut reading, &setting::LEASE_TTL, 10, 3, 60);
        let log = read_log(&mut reading);
        let per_partition = reading.read(&setting::PER_PARTITION, || false, switch);
        let connections = connection::read_connections(&mut reading, rules);
        reading.report_unknown();
        match url {
            Some(url) if reading.faults.is_empty() => Ok(Self {
                server,
                store: StoreConfig {
                    url,
                    max_connections,
                    migrate_at_start,
                },
                instance,
                lease: LeaseConfig { ttl },
                log,
                metrics: MetricsConfig { per_partition },
                connections,
                shown: reading.shown,
            }),
            _ => Err(InvalidConfig(reading.faults)),
        }
    }
}

fn read_server(reading: &mut Reading<'_>) -> ServerConfig {
    let default = || SocketAddr::from(([127, 0, 0, 1], 8080));
    let listen = reading.read(&setting::LISTEN, default, loopback);
    let public_url = match reading.given(&setting::PUBLIC_URL) {
        None => {
            reading.show(
                &setting::PUBLIC_URL,
                format!("http://{listen}"),
                Origin::Default,
            );
            None
        }
        Some(given) => match check_public_url(&given.text) {
            Ok(url) => {
                reading.show(&setting::PUBLIC_URL, url.clone(), given.origin);
                Some(url)
            }
            Err(message) => {
                reading.fault(&setting::PUBLIC_URL.name(), message, given.origin);
                None
            }
        },
    };
    ServerConfig {
        listen,
        public_url,
        read_only: reading.read(&setting::READ_ONLY, || false, switch),
        shutdown_grace: read_duration(reading, &setting::SHUTDOWN_GRACE, 30, 1, 600),
    }
}

/// The URL as text, or by reference in the file, since it may hold a password.
fn read_store_url(reading: &mut Reading<'_>) -> Option<PostgresUrl> {
    let name = setting::STORE_URL.name();
    let overridden = reading.overridden(&setting::STORE_URL);
    let table = reading
        .file
        .get("store")
        .and_then(|store| store.get("url"))
        .and_then(toml::Value::as_table)
        .filter(|_| !overridden)
        .cloned();
    let (text, origin) = if let Some(table) = table {
        let origin = reading.file_origin.clone();
        let reference = SecretReference::read(&table).unwrap_or_else(|| {
            Err("must be text, { env = \"NAME\" } or { file = \"/path\" }".to_owned())
        });
        let secret =
            reference.and_then(|reference| reference.resolve(&|name| reading.variable(name)));
        match secret {
            Ok(secret) => (secret.expose().to_owned(), origin),
            Err(message) => {
                reading.fault(&name, message, origin);
                return None;
            }
        }
    } else {
        let before = reading.faults.len();
        match reading.given(&setting::STORE_URL) {
            Some(given) => (given.text, given.origin),
            None => {
                if reading.faults.len() == before {
                    let message = format!(
                        "is required: write it into the file, or set {} to postgres://USER:PASSWORD@HOST:PORT/DATABASE",
                        setting::STORE_URL.variable()
                    );
                    reading.fault(&name, message, Origin::Default);
                }
                return None;
            }
        }
    };
    match PostgresUrl::new(text) {
        Ok(url) => {
            reading.show(&setting::STORE_URL, url.to_string(), origin);
            Some(url)
        }
        Err(message) => {
            reading.fault(&name, message, origin);
            None
        }
    }
}

fn read_instance(reading: &mut Reading<'_>) -> InstanceConfig {
    let id = match reading.given(&setting::INSTANCE_ID) {
        Some(given) => (given.text, given.origin),
        None => (host_name(), Origin::Default),
    };
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let (id, origin) = id;
    if id.is_empty() || id.len() > 63 || !id.bytes().all(legal) {
        let message = format!(
            "'{}' is no instance id: 1 to 63 letters, digits, '.', '_', '-'",
            id.escape_default()
        );
        reading.fault(&setting::INSTANCE_ID.name(), message, origin);
    } else {
        reading.show(&setting::INSTANCE_ID, id.clone(), origin);
    }
    let lock_dir = reading.read(
        &setting::LOCK_DIR,
        || std::env::temp_dir().display().to_string(),
        |text| {
            if text.starts_with('/') {
                Ok(text.to_owned())
            } else {
                Err(format!("'{text}' is no absolute path"))
            }
        },
    );
    InstanceConfig {
        id,
        lock_dir: PathBuf::from(lock_dir),
    }
}

fn read_log(reading: &mut Reading<'_>) -> LogConfig {
    LogConfig {
        format: reading.read(&setting::LOG_FORMAT, || LogFormat::Auto, str::parse),
        filter: reading.read(&setting::LOG_FILTER, || "info".to_owned(), check_filter),
    }
}

fn check_filter(text: &str) -> Result<String, String> {
    const REMEDY: &str =
        "write a level (error, warn, info, debug, trace), or info,handover::kafka=debug";
    for directive in text.split(',').map(str::trim) {
        // The filter's own reading takes a misspelt level for the name of a module, and then nothing is logged at all.
        let bare = !directive.contains(['=', '[', ':']);
        if directive.is_empty()
            || bare
                && directive
                    .parse::<tracing_subscriber::filter::LevelFilter>()
                    .is_err()
        {
            return Err(format!("'{directive}' is no level: {REMEDY}"));
        }
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("'{text}' is no filter ({error}): {REMEDY}")),
    }
}

fn read_duration(
    reading: &mut Reading<'_>,
    setting: &Setting,
    default: u64,
    least: u64,
    most: u64,
) -> Duration {
    let (least, most) = (
        HumanDuration::from_secs(least),
        HumanDuration::from_secs(most),
    );
    let parse = |text: &str| match HumanDuration::parse(text) {
        Some(duration) if (least..=most).contains(&duration) => Ok(duration),
        Some(_) => Err(format!("{text} must lie between {least} and {most}")),
        None => Err(format!(
            "'{text}' is no duration: write for example 250ms, 30s, 5m"
        )),
    };
    reading
        .read(setting, || HumanDuration::from_secs(default), parse)
        .0
}

/// Without access control, whoever reaches the port may stop jobs: only this machine may.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let addresses: Vec<SocketAddr> = match text.parse() {
        Ok(address) => vec![address],
        Err(_) if text.starts_with("localhost:") => text
            .to_socket_addrs()
            .map_err(|error| format!("'{text}' is no address: {error}"))?
            .collect(),
        Err(_) => {
            return Err(format!(
                "'{text}' is no address: write IP:PORT, such as 127.0.0.1:8080 or [::1]:8080"
            ));
        }
    };
    // IPv4 first: that is what "localhost" in other people's scripts mostly means.
    let address = addresses
        .iter()
        .find(|address| address.is_ipv4())
        .or_else(|| addresses.first());
    match address {
        Some(address) if address.ip().is_loopback() => Ok(*address),
        Some(address) => Err(format!(
            "{} is not a loopback address, and this version has no access control: anybody who reaches it could stop jobs. \
             Listen on 127.0.0.1 and put a proxy that authenticates in front, or use an ssh tunnel",
            address.ip()
        )),
        None => Err(format!("'{text}' has no address")),
    }
}

fn check_public_url(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    let place = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    match place {
        Some(place) if !place.is_empty() && !place.contains(['/', '?', '#', '@', ' ']) => {
            Ok(url.to_owned())
        }
        _ => Err(format!(
            "'{text}' is no URL of a server: write http://HOST:PORT or https://HOST, without a path"
        )),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is neither true nor false"))
}

fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!(
            "'{text}' must be a whole number between {least} and {most}"
        )),
    }
}

/// The host's name, cut to what an instance id may hold.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| {
            // Other systems than Linux.
            let output = std::process::Command::new("hostname").output().ok()?;
            String::from_utf8(output.stdout).ok()
        });
    let name: String = name
        .unwrap_or_default()
        .trim()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || ".-_".contains(letter) {
                letter
            } else {
                '-'
            }
        })
        .take(63)
        .collect();
    if name.is_empty() {
        "handover".to_owned()
    } else {
        name
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!(
                "'{other}' is no log format: use auto, text or json"
            )),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests;
