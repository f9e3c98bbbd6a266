//! `[connections.NAME]`: the outside systems that jobs refer to by name.

use std::{collections::BTreeMap, fmt};

use super::{
    secret::{PostgresUrl, Secret, SecretReference},
    sources::Reading,
};
use crate::{model::reader::nearest, sinks::PostgresTarget};

/// The longest name of a connection.
const MAX_NAME_BYTES: usize = 63;

/// The types of connections that there are.
const TYPES: &str = "\"kafka\" or \"postgres\"";

/// An outside system as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// A cluster to read from.
    Kafka(KafkaConnection),
    /// A database to write to.
    Postgres(PostgresConnection),
}

impl Connection {
    /// The cluster, if it is one.
    #[must_use]
    pub fn kafka(&self) -> Option<&KafkaConnection> {
        match self {
            Self::Kafka(connection) => Some(connection),
            Self::Postgres(_) => None,
        }
    }

    /// The database, if it is one.
    #[must_use]
    pub fn postgres(&self) -> Option<&PostgresConnection> {
        match self {
            Self::Kafka(_) => None,
            Self::Postgres(connection) => Some(connection),
        }
    }
}

/// A target database as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConnection {
    /// Where it is and as whom to connect.
    pub url: PostgresUrl,
    /// Where the URL stands, if not in the file itself.
    pub reference: Option<SecretReference>,
}

/// A Kafka cluster as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaConnection {
    /// `host:port`, comma separated: where the client learns of the cluster's brokers.
    pub bootstrap_servers: String,
    /// Further client properties under librdkafka's names, checked.
    pub properties: BTreeMap<String, PropertyValue>,
    /// The operator's word that debug output and an unverified broker are meant.
    pub insecure: bool,
}

impl KafkaConnection {
    /// All properties as the client gets them: with the bootstrap servers, and secrets filled in.
    #[must_use]
    pub fn client_properties(&self) -> BTreeMap<String, String> {
        let mut properties: BTreeMap<String, String> = self
            .properties
            .iter()
            .map(|(name, value)| (name.clone(), value.expose().to_owned()))
            .collect();
        properties.insert(
            "bootstrap.servers".to_owned(),
            self.bootstrap_servers.clone(),
        );
        properties
    }
}

/// The value of a client property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyValue {
    /// It stands in the file.
    Literal(String),
    /// It stands elsewhere and never prints.
    Secret {
        /// Where it stands.
        reference: SecretReference,
        /// Its text, fetched at the start.
        value: Secret,
    },
}

impl PropertyValue {
    /// The text that the client gets.
    #[must_use]
    pub fn expose(&self) -> &str {
        match self {
            Self::Literal(text) => text,
            Self::Secret { value, .. } => value.expose(),
        }
    }
}

impl fmt::Display for PropertyValue {
    /// As it stands in the file: secrets show as their reference.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) => write!(f, "{}", toml::Value::from(text.as_str())),
            Self::Secret { reference, .. } => reference.fmt(f),
        }
    }
}

/// Name, properties, whether insecure ones are meant; to faulty properties and what is wrong with each.
pub type CheckConnection = fn(&str, &BTreeMap<String, String>, bool) -> Vec<(String, String)>;

/// What the client library's adapter knows about client properties; it has the library's own table of them.
#[derive(Clone, Copy)]
pub struct PropertyRules {
    /// Whether a property may only be given by reference.
    pub is_secret: fn(&str) -> bool,
    /// Judges a whole connection: its name, its properties with the bootstrap servers and secrets filled in, and whether
    /// it says `insecure = true`. Answers each faulty property and what is wrong with it.
    pub check: CheckConnection,
}

/// Reads all connections; faults go to the reading.
pub(super) fn read_connections(
    reading: &mut Reading<'_>,
    rules: PropertyRules,
) -> BTreeMap<String, Connection> {
    let mut connections = BTreeMap::new();
    let Some(value) = reading.file.get("connections").cloned() else {
        return connections;
    };
    let origin = reading.file_origin.clone();
    let Some(table) = value.as_table() else {
        reading.fault(
            "connections",
            "is a table of connections: write [connections.NAME]".into(),
            origin,
        );
        return connections;
    };
    for (name, content) in table {
        let key = format!("connections.{name}");
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(legal) {
            let message =
                format!("is no name for a connection: 1 to {MAX_NAME_BYTES} of a-z, 0-9 and '-'");
            reading.fault(&key, message, origin.clone());
        }
        let Some(content) = content.as_table() else {
            reading.fault(&key, format!("is a table: write [{key}]"), origin.clone());
            continue;
        };
        if let Some(connection) = read_connection(reading, &key, content, rules) {
            connections.insert(name.clone(), connection);
        }
    }
    connections
}

fn read_connection(
    reading: &mut Reading<'_>,
    key: &str,
    table: &toml::Table,
    rules: PropertyRules,
) -> Option<Connection> {
    let origin = reading.file_origin.clone();
    let message = match table.get("type") {
        Some(toml::Value::String(kind)) if kind == "kafka" => {
            return read_kafka(reading, key, table, rules).map(Connection::Kafka);
        }
        Some(toml::Value::String(kind)) if kind == "postgres" => {
            return read_postgres(reading, key, table).map(Connection::Postgres);
        }
        Some(other) => format!("{other} is no type of connection: this version knows {TYPES}"),
        None => format!("is required: {TYPES}"),
    };
    // The other keys belong to a type that is not known.
    reading.fault(&format!("{key}.type"), message, origin);
    None
}

/// Reports keys that a type of connection does not have; `more` says where else a key may belong.
fn report_unknown(
    reading: &mut Reading<'_>,
    key: &str,
    table: &toml::Table,
    known: &[&str],
    more: &str,
) {
    for unknown in table.keys().filter(|name| !known.contains(&name.as_str())) {
        let message = match nearest(unknown, known) {
            Some(near) => format!("no such key; did you mean '{near}'?"),
            None => format!("no such key; known here: {}{more}", known.join(", ")),
        };
        let origin = reading.file_origin.clone();
        reading.fault(&format!("{key}.{unknown}"), message, origin);
    }
}

fn read_postgres(
    reading: &mut Reading<'_>,
    key: &str,
    table: &toml::Table,
) -> Option<PostgresConnection> {
    report_unknown(reading, key, table, &["type", "url"], "");
    let read = match table.get("url") {
        Some(toml::Value::String(url)) => Ok((url.clone(), None)),
        Some(toml::Value::Table(inner)) => SecretReference::read(inner)
            .unwrap_or_else(|| Err("must be text, { env = \"NAME\" } or { file = \"/path\" }".to_owned()))
            .and_then(|reference| {
                let secret = reference.resolve(&|variable| reading.variable(variable))?;
                Ok((secret.expose().to_owned(), Some(reference)))
            }),
        Some(other) => Err(format!("must be text in quotes, not {}", other.type_str())),
        None => Err("is required: postgres://USER:PASSWORD@HOST:PORT/DATABASE, or where that stands: { env = \"NAME\" }".to_owned()),
    };
    let checked = read.and_then(|(text, reference)| {
        let url = PostgresUrl::new(text)?;
        PostgresTarget::new(url.expose()).map_err(|fault| format!("is refused: {fault}"))?;
        Ok(PostgresConnection { url, reference })
    });
    let origin = reading.file_origin.clone();
    checked
        .map_err(|message| reading.fault(&format!("{key}.url"), message, origin))
        .ok()
}

fn read_kafka(
    reading: &mut Reading<'_>,
    key: &str,
    table: &toml::Table,
    rules: PropertyRules,
) -> Option<KafkaConnection> {
    const KNOWN: [&str; 4] = ["type", "bootstrap_servers", "properties", "insecure"];
    let origin = reading.file_origin.clone();
    let more = format!(". Client properties go to [{key}.properties]");
    report_unknown(reading, key, table, &KNOWN, &more);
    let servers_key = format!("{key}.bootstrap_servers");
    let bootstrap_servers = match table.get("bootstrap_servers") {
        Some(toml::Value::String(servers)) => check_servers(servers),
        Some(other) => Err(format!("must be text in quotes, not {}", other.type_str())),
        None => Err("is required: \"HOST:PORT\", or several with commas between".to_owned()),
    };
    let bootstrap_servers = bootstrap_servers
        .map_err(|message| reading.fault(&servers_key, message, origin.clone()))
        .ok();
    let insecure = match table.get("insecure") {
        None => false,
        Some(toml::Value::Boolean(insecure)) => *insecure,
        Some(_) => {
            let message = "must be true or false, without quotes".to_owned();
            reading.fault(&format!("{key}.insecure"), message, origin.clone());
            false
        }
    };
    let mut properties = BTreeMap::new();
    let faults_before = reading.faults.len();
    match table.get("properties") {
        None => {}
        Some(toml::Value::Table(table)) => {
            read_properties(
                reading,
                &format!("{key}.properties"),
                "",
                table,
                rules,
                &mut properties,
            );
        }
        Some(_) => {
            let message = format!("is a table: write [{key}.properties]");
            reading.fault(&format!("{key}.properties"), message, origin);
        }
    }
    let complete = reading.faults.len() == faults_before;
    let readable = bootstrap_servers.is_some();
    let connection = KafkaConnection {
        // In place of one that is faulty, so that the properties are looked at all the same.
        bootstrap_servers: bootstrap_servers.unwrap_or_else(|| "localhost:9092".to_owned()),
        properties,
        insecure,
    };
    check_properties(reading, key, &connection, complete, rules);
    readable.then_some(connection)
}

/// Has the client's own rules look at the properties. What they say about one that could not be read was said already.
fn check_properties(
    reading: &mut Reading<'_>,
    key: &str,
    connection: &KafkaConnection,
    complete: bool,
    rules: PropertyRules,
) {
    let name = key.rsplit('.').next().unwrap_or(key);
    let faults = (rules.check)(name, &connection.client_properties(), connection.insecure);
    for (property, message) in faults {
        let origin = reading.file_origin.clone();
        if property == "bootstrap.servers" {
            reading.fault(&format!("{key}.bootstrap_servers"), message, origin);
            continue;
        }
        // A client that complains about a combination must not quote a secret.
        let message = match connection.properties.get(&property) {
            Some(PropertyValue::Secret { value, .. }) => message.replace(value.expose(), "***"),
            Some(PropertyValue::Literal(_)) => message,
            // It complains that something is missing, which may be what could not be read.
            None if complete => message,
            None => continue,
        };
        reading.fault(&format!("{key}.properties.\"{property}\""), message, origin);
    }
}

fn check_servers(servers: &str) -> Result<String, String> {
    let mut list = Vec::new();
    for server in servers.split(',').map(str::trim) {
        let port = server.rsplit_once(':').and_then(|(host, port)| {
            (!host.is_empty() && !host.contains([' ', '/', '@'])).then_some(port)
        });
        match port.map(str::parse::<u16>) {
            Some(Ok(port)) if port > 0 => list.push(server),
            _ => return Err(format!("'{server}' is no HOST:PORT")),
        }
    }
    Ok(list.join(","))
}

/// Reads properties. TOML takes the dots of an unquoted name for nesting, so nested tables are names that go on.
fn read_properties(
    reading: &mut Reading<'_>,
    key: &str,
    prefix: &str,
    table: &toml::Table,
    rules: PropertyRules,
    properties: &mut BTreeMap<String, PropertyValue>,
) {
    for (part, value) in table {
        let name = format!("{prefix}{part}");
        if name == "bootstrap.servers" {
            let message = "stands beside the properties: write bootstrap_servers".to_owned();
            let origin = reading.file_origin.clone();
            reading.fault(&format!("{key}.\"{name}\""), message, origin);
            continue;
        }
        let read = match value {
            toml::Value::Table(inner) => match SecretReference::read(inner) {
                Some(reference) => reference.and_then(|reference| by_reference(reading, reference)),
                None => {
                    read_properties(reading, key, &format!("{name}."), inner, rules, properties);
                    continue;
                }
            },
            toml::Value::String(text) => literal(&name, text.clone(), rules),
            toml::Value::Integer(number) => literal(&name, number.to_string(), rules),
            toml::Value::Boolean(flag) => literal(&name, flag.to_string(), rules),
            other @ (toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Array(_)) => {
                Err(format!(
                    "must be text, a whole number, true or false, not {}",
                    other.type_str()
                ))
            }
        };
        match read {
            Ok(value) => {
                properties.insert(name, value);
            }
            Err(message) => {
                let origin = reading.file_origin.clone();
                reading.fault(&format!("{key}.\"{name}\""), message, origin);
            }
        }
    }
}

fn literal(name: &str, text: String, rules: PropertyRules) -> Result<PropertyValue, String> {
    if (rules.is_secret)(name) {
        return Err(
            "is a secret and must not stand in the file: write { env = \"NAME\" } or { file = \"/path\" }"
                .to_owned(),
        );
    }
    Ok(PropertyValue::Literal(text))
}

fn by_reference(
    reading: &Reading<'_>,
    reference: SecretReference,
) -> Result<PropertyValue, String> {
    let value = reference.resolve(&|variable| reading.variable(variable))?;
    Ok(PropertyValue::Secret { reference, value })
}
