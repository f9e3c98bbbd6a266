//! Where a job's records go, as its spec says it.

mod postgres;

pub use postgres::{
    BatchSpec, ColumnSource, MappingMode, MappingSpec, OnTombstone, PostgresDelivery,
    PostgresSinkSpec, TableName, WriteMode, WriteSpec, quoted,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::reader::ObjectReader;

/// Where the records go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SinkSpec {
    /// Counts records and drops them.
    Blackhole,
    /// Prints each record as a line on the server's standard output.
    Log {
        /// How a line looks.
        format: LogFormat,
        /// Bytes of a value (and of a key) that are printed; longer ones are cut and marked.
        max_value_bytes: u32,
    },
    /// Writes rows to a table of PostgreSQL.
    Postgres(Box<PostgresSinkSpec>),
}

/// How the log sink prints a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// `topic/partition@offset key value`.
    Text,
}

impl SinkSpec {
    /// What it guarantees, in the words of docs/guarantees.md.
    #[must_use]
    pub fn delivery(&self) -> &'static str {
        match self {
            Self::Blackhole => "counted",
            Self::Log { .. } => "at-least-once",
            Self::Postgres(_) => "exactly-once",
        }
    }

    /// The sink's type word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Blackhole => "blackhole",
            Self::Log { .. } => "log",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Whether the target keeps how far it has come, beside the checkpoints.
    #[must_use]
    pub fn keeps_progress(&self) -> bool {
        match self {
            Self::Blackhole | Self::Log { .. } => false,
            Self::Postgres(_) => true,
        }
    }

    /// Whether a record that is read again by a start's decision stands in the target twice, although each counts once
    /// otherwise.
    #[must_use]
    pub fn doubles_what_is_replayed(&self) -> bool {
        match self {
            Self::Blackhole | Self::Log { .. } => false,
            Self::Postgres(spec) => spec.write.mode == WriteMode::Append,
        }
    }

    /// The connection of the server's file that it writes to, if it writes to one.
    #[must_use]
    pub fn connection(&self) -> Option<&str> {
        match self {
            Self::Blackhole | Self::Log { .. } => None,
            Self::Postgres(spec) => Some(&spec.connection),
        }
    }

    /// Reads it out of a job's document, whatever is wrong with the rest of that. `None` if it has faults of its own.
    #[must_use]
    pub fn of_document(document: &Value) -> Option<Self> {
        let mut faults = Vec::new();
        let sink = Self::read(ObjectReader::open(
            document.get("sink")?,
            "/sink",
            &mut faults,
        ));
        sink.filter(|_| faults.is_empty())
    }

    pub(super) fn read(mut reader: ObjectReader<'_>) -> Option<Self> {
        let kind: Option<String> = reader.required("type", "blackhole, log or postgres");
        let sink = match kind.as_deref() {
            Some("blackhole") => Some(Self::Blackhole),
            Some("log") => {
                let max_value_bytes = reader.or("max_value_bytes", 1_024_u32);
                if max_value_bytes > 1 << 20 {
                    reader.fault("max_value_bytes", "must be at most 1048576");
                }
                Some(Self::Log {
                    format: reader.or("format", LogFormat::Json),
                    max_value_bytes,
                })
            }
            Some("postgres") => {
                PostgresSinkSpec::read(&mut reader).map(|spec| Self::Postgres(Box::new(spec)))
            }
            Some(other) => {
                reader.fault(
                    "type",
                    format!("'{other}' is no sink: use blackhole, log or postgres"),
                );
                // Its members cannot be judged.
                return None;
            }
            None => {
                // A misspelt `type` is named beside the fault that it is missing.
                let of_log = ["format", "max_value_bytes"];
                for member in of_log.into_iter().chain(PostgresSinkSpec::MEMBERS) {
                    reader.raw(member);
                }
                None
            }
        };
        reader.finish();
        sink
    }
}
