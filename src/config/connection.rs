//! `[connections.NAME]`: the outside systems that jobs refer to by name.

use std::{collections::BTreeMap, fmt};

use super::{
    secret::{Secret, SecretReference},
    sources::Reading,
};
use crate::model::reader::nearest;

/// The longest name of a connection.
const MAX_NAME_BYTES: usize = 63;

/// A Kafka cluster as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaConnection {
    /// `host:port`, comma separated: where the client learns of the cluster's brokers.
    pub bootstrap_servers: String,
    /// Further client properties under librdkafka's names, checked.
    pub properties: BTreeMap<String, PropertyValue>,
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

/// How a client property may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropertyClass {
    /// As text in the file, or by reference.
    Plain,
    /// By reference only.
    Secret,
}

/// Judges one client property of a connection: its class, or why it is refused. Lives with the client library's adapter,
/// which knows the library's own table of properties; gets the value too, and must not repeat a secret one.
pub type PropertyRules<'a> = &'a dyn Fn(&str, &str) -> Result<PropertyClass, String>;

/// Reads all connections; faults go to the reading.
pub(super) fn read_connections(
    reading: &mut Reading<'_>,
    rules: PropertyRules<'_>,
) -> BTreeMap<String, KafkaConnection> {
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
    rules: PropertyRules<'_>,
) -> Option<KafkaConnection> {
    const KNOWN: [&str; 3] = ["type", "bootstrap_servers", "properties"];
    let origin = reading.file_origin.clone();
    match table.get("type") {
        Some(toml::Value::String(kind)) if kind == "kafka" => {}
        Some(other) => {
            let message = format!("{other} is no type of connection: this version knows \"kafka\"");
            reading.fault(&format!("{key}.type"), message, origin);
            // The other keys belong to a type that is not known.
            return None;
        }
        None => reading.fault(
            &format!("{key}.type"),
            "is required: \"kafka\"".into(),
            origin.clone(),
        ),
    }
    for unknown in table.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
        let message = match nearest(unknown, &KNOWN) {
            Some(near) => format!("no such key; did you mean '{near}'?"),
            None => format!(
                "no such key; known here: {}. Client properties go to [{key}.properties]",
                KNOWN.join(", ")
            ),
        };
        reading.fault(&format!("{key}.{unknown}"), message, origin.clone());
    }
    let servers_key = format!("{key}.bootstrap_servers");
    let bootstrap_servers = match table.get("bootstrap_servers") {
        Some(toml::Value::String(servers)) => check_servers(servers),
        Some(other) => Err(format!("must be text in quotes, not {}", other.type_str())),
        None => Err("is required: \"HOST:PORT\", or several with commas between".to_owned()),
    };
    let bootstrap_servers = bootstrap_servers
        .map_err(|message| reading.fault(&servers_key, message, origin.clone()))
        .ok();
    let mut properties = BTreeMap::new();
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
    Some(KafkaConnection {
        bootstrap_servers: bootstrap_servers?,
        properties,
    })
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
    rules: PropertyRules<'_>,
    properties: &mut BTreeMap<String, PropertyValue>,
) {
    for (part, value) in table {
        let name = format!("{prefix}{part}");
        let read = match value {
            toml::Value::Table(inner) => match SecretReference::read(inner) {
                Some(reference) => {
                    reference.and_then(|reference| by_reference(reading, &name, reference, rules))
                }
                None => {
                    read_properties(reading, key, &format!("{name}."), inner, rules, properties);
                    continue;
                }
            },
            toml::Value::String(text) => literal(&name, text.clone(), rules),
            toml::Value::Integer(number) => literal(&name, number.to_string(), rules),
            toml::Value::Boolean(flag) => literal(&name, flag.to_string(), rules),
            other => Err(format!(
                "must be text, a whole number, true or false, not {}",
                other.type_str()
            )),
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

fn literal(name: &str, text: String, rules: PropertyRules<'_>) -> Result<PropertyValue, String> {
    match rules(name, &text)? {
        PropertyClass::Plain => Ok(PropertyValue::Literal(text)),
        PropertyClass::Secret => Err(
            "is a secret and must not stand in the file: write { env = \"NAME\" } or { file = \"/path\" }"
                .to_owned(),
        ),
    }
}

fn by_reference(
    reading: &Reading<'_>,
    name: &str,
    reference: SecretReference,
    rules: PropertyRules<'_>,
) -> Result<PropertyValue, String> {
    let value = reference.resolve(&|variable| reading.variable(variable))?;
    rules(name, value.expose())?;
    Ok(PropertyValue::Secret { reference, value })
}
