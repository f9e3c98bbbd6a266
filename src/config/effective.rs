//! The effective configuration as a TOML file again: what counts, and who said it.

use std::fmt;

use super::{
    Config, Connection, Origin,
    setting::{Kind, SETTINGS},
};

impl fmt::Display for Config {
    /// Secrets show as their reference, the database's password as stars.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for setting in SETTINGS {
            if setting.section != section {
                let gap = if section.is_empty() { "" } else { "\n" };
                writeln!(f, "{gap}[{}]", setting.section)?;
                section = setting.section;
            }
            let Some((value, origin)) = self.shown.get(&setting.name()) else {
                continue;
            };
            let value = match setting.kind {
                Kind::Text | Kind::Duration => toml::Value::from(value.as_str()).to_string(),
                Kind::Bool | Kind::Integer => value.clone(),
            };
            let line = format!("{} = {value}", setting.key);
            match origin {
                Origin::File(_) => writeln!(f, "{line}")?,
                Origin::Flag(_) | Origin::Environment(_) | Origin::Default => {
                    writeln!(f, "{line:<40} # {origin}")?;
                }
            }
        }
        for (name, connection) in &self.connections {
            let connection = match connection {
                Connection::Kafka(connection) => connection,
                Connection::Postgres(connection) => {
                    let url = match &connection.reference {
                        Some(reference) => reference.to_string(),
                        None => toml::Value::from(connection.url.to_string()).to_string(),
                    };
                    writeln!(
                        f,
                        "\n[connections.{name}]\ntype = \"postgres\"\nurl = {url}"
                    )?;
                    continue;
                }
            };
            let servers = toml::Value::from(connection.bootstrap_servers.as_str());
            writeln!(
                f,
                "\n[connections.{name}]\ntype = \"kafka\"\nbootstrap_servers = {servers}"
            )?;
            if connection.insecure {
                writeln!(f, "insecure = true")?;
            }
            if !connection.properties.is_empty() {
                writeln!(f, "\n[connections.{name}.properties]")?;
            }
            for (property, value) in &connection.properties {
                writeln!(f, "{} = {value}", toml::Value::from(property.as_str()))?;
            }
        }
        Ok(())
    }
}
