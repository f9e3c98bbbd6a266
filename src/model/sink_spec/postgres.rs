//! The spec of a sink that writes rows to a table of PostgreSQL.
//!
//! A spec never holds a piece of SQL: a table and columns are names, sources are words or paths, and every statement is
//! made from them with quoted identifiers.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::model::{
    duration::HumanDuration,
    field_error::FieldError,
    json_path::JsonPath,
    reader::{ObjectReader, nearest},
};

/// The longest identifier that PostgreSQL keeps whole (`NAMEDATALEN` - 1).
const MAX_IDENTIFIER_BYTES: usize = 63;
/// The most columns of a table in PostgreSQL.
const MAX_COLUMNS: usize = 1_600;
/// The most rows of one statement.
const MAX_ROWS: u32 = 100_000;
/// The longest wait for more rows.
const MAX_LINGER: Duration = Duration::from_secs(10);
/// The schema in which the sink keeps its own progress.
const OWN_SCHEMA: &str = "handover_sink";
/// Columns that every table of PostgreSQL has by itself.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"];

/// Rows in a table of PostgreSQL, written in one transaction with the progress they stand for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PostgresSinkSpec {
    /// Name of a PostgreSQL connection of the server's file.
    pub connection: String,
    /// What the sink guarantees. There is one answer only: rows and progress commit together, which costs nothing.
    #[schema(default = "exactly-once")]
    pub delivery: PostgresDelivery,
    /// `schema.table`; names with other characters than `a-z 0-9 _ $` in double quotes.
    #[schema(value_type = String, examples("public.orders"))]
    pub table: TableName,
    /// Which part of a record goes to which column.
    pub mapping: MappingSpec,
    /// How rows are written.
    pub write: WriteSpec,
    /// How many rows go together.
    pub batch: BatchSpec,
}

/// What the sink guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PostgresDelivery {
    /// Each record counts once in the table, whatever crashes.
    ExactlyOnce,
}

/// Which part of a record goes to which column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MappingSpec {
    /// What a record's value is taken for.
    pub mode: MappingMode,
    /// Column to source: `@topic`, `@partition`, `@offset`, `@timestamp`, `@key`, `@value`, or a path like `$.order.id`.
    #[schema(value_type = BTreeMap<String, String>)]
    pub columns: BTreeMap<String, ColumnSource>,
}

/// What a record's value is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MappingMode {
    /// Bytes.
    Raw,
    /// One JSON document, for one column.
    JsonDocument,
    /// A JSON document whose fields go to columns.
    JsonFields,
}

/// How rows are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteSpec {
    /// Insert only, or replace the row of the same key.
    #[schema(default = "append")]
    pub mode: WriteMode,
    /// With `upsert`: the columns that tell rows apart; the table has a unique index on just these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<String>,
    /// What a record without a value does. To be said for `upsert`; `fail` by default where JSON is appended; not to be
    /// said where raw records are appended, since a tombstone is a row there like any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_tombstone: Option<OnTombstone>,
}

/// Insert only, or replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Every record is a new row.
    Append,
    /// A record replaces the row of the same key.
    Upsert,
}

/// What a record without a value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnTombstone {
    /// Deletes the row of its key.
    Delete,
    /// Nothing; the position moves on.
    Ignore,
    /// The record is refused and named.
    Fail,
}

/// How many rows go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// The most rows of one transaction.
    #[schema(minimum = 1, maximum = 100_000, default = 20_000)]
    pub max_rows: u32,
    /// How long rows wait for more before they are written, `0s` to `10s`.
    #[schema(default = "50ms")]
    pub linger: HumanDuration,
}

/// A table by its schema and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: String,
    table: String,
}

/// Where a column's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnSource {
    /// The topic's name.
    Topic,
    /// The partition's number.
    Partition,
    /// Where the record lies in its partition's log.
    Offset,
    /// The time stamp of producer or broker, in milliseconds.
    Timestamp,
    /// The key.
    Key,
    /// The whole value.
    Value,
    /// One field of the value.
    Path(JsonPath),
}

/// An identifier in double quotes, as it may stand in a statement.
#[must_use]
pub fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

impl TableName {
    /// Reads `schema.table`, each part plain or in double quotes.
    ///
    /// # Errors
    /// What is wrong with it, and how to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (schema, rest) = identifier(text)?;
        let Some(rest) = rest.strip_prefix('.') else {
            return Err(if rest.is_empty() {
                format!("say the schema too: public.{text}")
            } else {
                not_plain(text)
            });
        };
        let (table, rest) = identifier(rest)?;
        if rest.starts_with('.') {
            return Err("has too many parts: write schema.table".to_owned());
        }
        if !rest.is_empty() {
            return Err(not_plain(text));
        }
        let is_of_the_system = schema.starts_with("pg_") || schema == "information_schema";
        if is_of_the_system {
            return Err(format!("'{schema}' is a schema of PostgreSQL's own"));
        }
        if schema == OWN_SCHEMA {
            return Err(format!(
                "the schema '{OWN_SCHEMA}' is where the sink keeps its own progress"
            ));
        }
        Ok(Self { schema, table })
    }

    /// The schema's name, as the catalogue has it.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table's name, as the catalogue has it.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// As it stands in a statement, quoted.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

/// Takes one identifier off the front of a text.
fn identifier(text: &str) -> Result<(String, &str), String> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(inner) => quoted_identifier(inner)?,
        None => {
            let length = text.bytes().take_while(|byte| is_plain(*byte)).count();
            let (name, rest) = text.split_at(length);
            let begins_well = name
                .bytes()
                .next()
                .is_some_and(|first| !first.is_ascii_digit() && first != b'$');
            if !begins_well {
                return Err(not_plain(text));
            }
            (name.to_owned(), rest)
        }
    };
    identifier_fault(&name).map_or(Ok((name, rest)), Err)
}

fn quoted_identifier(inner: &str) -> Result<(String, &str), String> {
    let mut name = String::new();
    let mut rest = inner;
    while let Some(end) = rest.find('"') {
        name.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Ok((name, rest)),
        }
    }
    Err("a double quote is not closed".to_owned())
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'$')
}

fn not_plain(text: &str) -> String {
    format!(
        "'{text}' is no schema.table: plain names have a-z, 0-9, '_' and '$', others stand in double quotes, as in public.\"Orders\""
    )
}

/// What is wrong with a name as PostgreSQL keeps it.
fn identifier_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name is empty".to_owned());
    }
    if name.len() > MAX_IDENTIFIER_BYTES {
        return Some(format!(
            "'{name}' has {} bytes, and PostgreSQL keeps {MAX_IDENTIFIER_BYTES} of a name",
            name.len()
        ));
    }
    name.chars()
        .any(char::is_control)
        .then(|| "a name has no control characters".to_owned())
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", shown(&self.schema), shown(&self.table))
    }
}

/// A name as a spec writes it: quoted where it must be.
fn shown(name: &str) -> String {
    let plain = name.bytes().all(is_plain)
        && !name.starts_with(|first: char| first.is_ascii_digit() || first == '$');
    if plain { name.to_owned() } else { quoted(name) }
}

impl Serialize for TableName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TableName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The words for the parts of a record.
const PARTS: [(&str, ColumnSource); 6] = [
    ("@topic", ColumnSource::Topic),
    ("@partition", ColumnSource::Partition),
    ("@offset", ColumnSource::Offset),
    ("@timestamp", ColumnSource::Timestamp),
    ("@key", ColumnSource::Key),
    ("@value", ColumnSource::Value),
];

impl ColumnSource {
    /// Reads a source.
    ///
    /// # Errors
    /// What is wrong with it, and how to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('$') {
            return JsonPath::parse(text)
                .map(Self::Path)
                .map_err(|fault| format!("'{text}' is no path to one value: {fault}"));
        }
        if let Some((_, part)) = PARTS.iter().find(|(word, _)| *word == text) {
            return Ok(part.clone());
        }
        let words = PARTS.map(|(word, _)| word);
        Err(match nearest(text, &words) {
            Some(near) => format!("'{text}' is no source; did you mean '{near}'?"),
            None => format!(
                "'{text}' is no source: use {} or a path like $.order.id",
                words.join(", ")
            ),
        })
    }

    /// The source as a spec writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Topic => "@topic",
            Self::Partition => "@partition",
            Self::Offset => "@offset",
            Self::Timestamp => "@timestamp",
            Self::Key => "@key",
            Self::Value => "@value",
            Self::Path(path) => path.as_str(),
        }
    }
}

impl fmt::Display for ColumnSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ColumnSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ColumnSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl PostgresSinkSpec {
    /// Reads everything but `type`; faults go to the reader.
    pub(super) fn read(reader: &mut ObjectReader<'_>) -> Option<Self> {
        let connection: Option<String> = reader.required(
            "connection",
            "the name of a PostgreSQL connection of the server's file",
        );
        read_delivery(reader);
        let table: Option<String> =
            reader.required("table", "schema and name, for example public.orders");
        let table = table.and_then(|text| {
            TableName::parse(&text)
                .map_err(|message| reader.fault("table", message))
                .ok()
        });
        let mapping = match reader.object("mapping") {
            Some(mapping) => MappingSpec::read(mapping),
            None => {
                missing(
                    reader,
                    "mapping",
                    "{\"mode\": \"raw\"}, or a mode json-document or json-fields",
                );
                None
            }
        };
        let write = match reader.object("write") {
            Some(write) => WriteSpec::read(write, mapping.as_ref()),
            None => WriteSpec::append(mapping.as_ref()),
        };
        let batch = match reader.object("batch") {
            Some(batch) => BatchSpec::read(batch),
            None => BatchSpec::default(),
        };
        Some(Self {
            connection: connection?,
            delivery: PostgresDelivery::ExactlyOnce,
            table: table?,
            mapping: mapping?,
            write,
            batch,
        })
    }

    /// Names the members of this sink to a reader that does not know which sink is meant.
    pub(super) const MEMBERS: [&'static str; 6] = [
        "connection",
        "delivery",
        "table",
        "mapping",
        "write",
        "batch",
    ];
}

fn missing(reader: &mut ObjectReader<'_>, name: &'static str, remedy: &str) {
    // A member of the wrong kind was reported when it was opened.
    if reader.raw(name).is_none() {
        reader.fault(name, format!("is required: {remedy}"));
    }
}

fn read_delivery(reader: &mut ObjectReader<'_>) {
    let Some(delivery) = reader.raw("delivery") else {
        return;
    };
    if delivery.as_str() != Some("exactly-once") {
        reader.fault(
            "delivery",
            format!(
                "{delivery} is not offered: this sink is always exactly-once, because rows and progress commit in one transaction and less would save nothing"
            ),
        );
    }
}

impl MappingMode {
    /// Column to source where the spec names none; `None` where it must.
    fn default_columns(self) -> Option<BTreeMap<String, ColumnSource>> {
        let value = match self {
            Self::Raw => "value",
            Self::JsonDocument => "document",
            Self::JsonFields => return None,
        };
        let columns = PARTS.map(|(word, source)| {
            let name = if source == ColumnSource::Value {
                value
            } else {
                word.trim_start_matches('@')
            };
            (name.to_owned(), source)
        });
        Some(columns.into())
    }
}

impl MappingSpec {
    fn read(mut reader: ObjectReader<'_>) -> Option<Self> {
        let mode: Option<MappingMode> =
            reader.required("mode", "raw, json-document or json-fields");
        let columns = match reader.raw("columns") {
            Some(columns) => read_columns(columns, mode, &mut reader),
            None => {
                let default = mode.and_then(MappingMode::default_columns);
                if mode.is_some() && default.is_none() {
                    reader.fault(
                        "columns",
                        "is required for json-fields: column to source, for example {\"id\": \"$.id\"}",
                    );
                }
                default
            }
        };
        reader.finish();
        Some(Self {
            mode: mode?,
            columns: columns?,
        })
    }
}

/// All columns, or `None` if one of them is faulty.
fn read_columns(
    value: &Value,
    mode: Option<MappingMode>,
    reader: &mut ObjectReader<'_>,
) -> Option<BTreeMap<String, ColumnSource>> {
    let Some(members) = value.as_object() else {
        reader.fault("columns", "must be an object: column to source");
        return None;
    };
    if members.is_empty() || members.len() > MAX_COLUMNS {
        reader.fault(
            "columns",
            format!("must name between 1 and {MAX_COLUMNS} columns"),
        );
        return None;
    }
    let base = reader.pointer_to("columns");
    let mut columns = BTreeMap::new();
    for (name, source) in members {
        match read_column(name, source, mode) {
            Ok(source) => {
                columns.insert(name.clone(), source);
            }
            Err(message) => {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let pointer = format!("{base}/{escaped}");
                reader.errors().push(FieldError::new(pointer, message));
            }
        }
    }
    let has_document = columns
        .values()
        .any(|source| *source == ColumnSource::Value);
    if mode == Some(MappingMode::JsonDocument) && columns.len() == members.len() && !has_document {
        reader.fault(
            "columns",
            "no column takes the document: one needs the source @value",
        );
        return None;
    }
    (columns.len() == members.len()).then_some(columns)
}

fn read_column(
    name: &str,
    source: &Value,
    mode: Option<MappingMode>,
) -> Result<ColumnSource, String> {
    if let Some(fault) = identifier_fault(name) {
        return Err(format!("is no name of a column: {fault}"));
    }
    if SYSTEM_COLUMNS.contains(&name) {
        return Err("is a column that PostgreSQL fills itself".to_owned());
    }
    let Some(text) = source.as_str() else {
        return Err("a source is text, for example @offset or $.id".to_owned());
    };
    let source = ColumnSource::parse(text)?;
    let takes_paths = mode.is_none_or(|mode| mode == MappingMode::JsonFields);
    if matches!(source, ColumnSource::Path(_)) && !takes_paths {
        return Err(format!("'{text}' is a path: use the mode json-fields"));
    }
    Ok(source)
}

impl WriteSpec {
    /// What counts where the spec does not say how to write.
    fn append(mapping: Option<&MappingSpec>) -> Self {
        let is_raw = mapping.is_none_or(|mapping| mapping.mode == MappingMode::Raw);
        Self {
            mode: WriteMode::Append,
            key: Vec::new(),
            on_tombstone: (!is_raw).then_some(OnTombstone::Fail),
        }
    }

    fn read(mut reader: ObjectReader<'_>, mapping: Option<&MappingSpec>) -> Self {
        let mode = reader.or("mode", WriteMode::Append);
        let key: Option<Vec<String>> = reader.optional("key");
        let on_tombstone: Option<OnTombstone> = reader.optional("on_tombstone");
        let write = match mode {
            WriteMode::Append => {
                let mut write = Self::append(mapping);
                check_append(&mut reader, mapping, key.as_deref(), on_tombstone);
                if write.on_tombstone.is_some() {
                    write.on_tombstone = on_tombstone.or(write.on_tombstone);
                }
                write
            }
            WriteMode::Upsert => {
                let key = key.unwrap_or_default();
                check_upsert(&mut reader, mapping, &key, on_tombstone);
                Self {
                    mode,
                    key,
                    on_tombstone,
                }
            }
        };
        reader.finish();
        write
    }
}

fn check_append(
    reader: &mut ObjectReader<'_>,
    mapping: Option<&MappingSpec>,
    key: Option<&[String]>,
    on_tombstone: Option<OnTombstone>,
) {
    if key.is_some() {
        reader.fault(
            "key",
            "does nothing with append: rows are only told apart by upsert",
        );
    }
    let Some(mapping) = mapping else {
        return;
    };
    match (mapping.mode, on_tombstone) {
        (MappingMode::Raw, Some(_)) => reader.fault(
            "on_tombstone",
            "does nothing here: appended raw, a tombstone is a row whose value is null",
        ),
        (_, Some(OnTombstone::Delete)) => reader.fault(
            "on_tombstone",
            "append deletes nothing: use ignore or fail, or the mode upsert",
        ),
        _ => {}
    }
}

fn check_upsert(
    reader: &mut ObjectReader<'_>,
    mapping: Option<&MappingSpec>,
    key: &[String],
    on_tombstone: Option<OnTombstone>,
) {
    if key.is_empty() {
        // A key of the wrong form was reported already.
        if reader.raw("key").is_none_or(Value::is_array) {
            reader.fault(
                "key",
                "is required for upsert: the columns that tell rows apart",
            );
        }
    }
    if reader.raw("on_tombstone").is_none() {
        reader.fault(
            "on_tombstone",
            "is to be said for upsert: delete, ignore or fail",
        );
    }
    let Some(mapping) = mapping else {
        return;
    };
    let base = reader.pointer_to("key");
    for (index, column) in key.iter().enumerate() {
        let message = match mapping.columns.get(column) {
            _ if key[..index].contains(column) => format!("'{column}' is named twice"),
            None => format!("'{column}' is no column of the mapping"),
            Some(source) if on_tombstone == Some(OnTombstone::Delete) && !outlives(source) => {
                format!(
                    "'{column}' comes from {source}, which does not lead from a tombstone to the row it deletes: take the key from @key, or let on_tombstone be ignore or fail"
                )
            }
            Some(_) => continue,
        };
        reader
            .errors()
            .push(FieldError::new(format!("{base}/{index}"), message));
    }
}

/// Whether a tombstone has the same there as the records it deletes.
fn outlives(source: &ColumnSource) -> bool {
    match source {
        ColumnSource::Topic | ColumnSource::Partition | ColumnSource::Key => true,
        ColumnSource::Offset
        | ColumnSource::Timestamp
        | ColumnSource::Value
        | ColumnSource::Path(_) => false,
    }
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            max_rows: 20_000,
            linger: HumanDuration(Duration::from_millis(50)),
        }
    }
}

impl BatchSpec {
    fn read(mut reader: ObjectReader<'_>) -> Self {
        let default = Self::default();
        let batch = Self {
            max_rows: reader.or("max_rows", default.max_rows),
            linger: reader.or("linger", default.linger),
        };
        if !(1..=MAX_ROWS).contains(&batch.max_rows) {
            reader.fault("max_rows", format!("must lie between 1 and {MAX_ROWS}"));
        }
        if batch.linger.0 > MAX_LINGER {
            reader.fault(
                "linger",
                format!("must lie between 0s and {}", HumanDuration(MAX_LINGER)),
            );
        }
        reader.finish();
        batch
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::sink_spec::SinkSpec;

    fn read(sink: &Value) -> Result<SinkSpec, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = SinkSpec::read(ObjectReader::open(sink, "/sink", &mut errors));
        match spec {
            Some(spec) if errors.is_empty() => Ok(spec),
            _ => Err(errors),
        }
    }

    fn minimal(with: &Value) -> Value {
        let mut sink = json!({
            "type": "postgres", "connection": "warehouse", "table": "public.orders", "mapping": {"mode": "raw"}
        });
        for (name, value) in with.as_object().unwrap() {
            sink[name] = value.clone();
        }
        sink
    }

    /// Pointers and the beginnings of messages, in any order.
    fn faults(sink: &Value) -> Vec<String> {
        let faults = read(sink).expect_err(&sink.to_string());
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_are_filled_in_and_survive_the_store() {
        let spec = read(&minimal(&json!({}))).unwrap();
        let shown = serde_json::to_value(&spec).unwrap();
        assert_eq!(
            shown,
            json!({
                "type": "postgres",
                "connection": "warehouse",
                "delivery": "exactly-once",
                "table": "public.orders",
                "mapping": {"mode": "raw", "columns": {
                    "topic": "@topic", "partition": "@partition", "offset": "@offset",
                    "timestamp": "@timestamp", "key": "@key", "value": "@value"
                }},
                "write": {"mode": "append"},
                "batch": {"max_rows": 20000, "linger": "50ms"}
            })
        );
        assert_eq!(read(&shown).unwrap(), spec);
        assert_eq!(serde_json::from_value::<SinkSpec>(shown).unwrap(), spec);
        assert_eq!(spec.connection(), Some("warehouse"));
        let document = read(&minimal(&json!({"mapping": {"mode": "json-document"}}))).unwrap();
        let shown = serde_json::to_value(&document).unwrap();
        assert_eq!(shown["mapping"]["columns"]["document"], "@value");
        assert_eq!(
            shown["write"],
            json!({"mode": "append", "on_tombstone": "fail"})
        );
    }

    #[test]
    fn a_whole_spec_is_shown_as_it_was_sent() {
        let whole = json!({
            "type": "postgres", "connection": "warehouse", "delivery": "exactly-once",
            "table": "\"My Shop\".\"a.\"\"b\"\"\"",
            "mapping": {"mode": "json-fields", "columns": {"id": "@key", "x": "$.a['x y'][0]", "_offset": "@offset"}},
            "write": {"mode": "upsert", "key": ["id"], "on_tombstone": "delete"},
            "batch": {"max_rows": 1, "linger": "0s"}
        });
        let spec = read(&whole).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap(), whole);
        let SinkSpec::Postgres(spec) = spec else {
            panic!("{spec:?}");
        };
        assert_eq!(
            (spec.table.schema(), spec.table.table()),
            ("My Shop", "a.\"b\"")
        );
        assert_eq!(spec.table.quoted(), "\"My Shop\".\"a.\"\"b\"\"\"");
    }

    #[test]
    fn tables_are_names_and_never_sql() {
        let long = "x".repeat(64);
        for (table, word) in [
            ("orders", "public.orders"),
            ("", "is no schema.table"),
            ("public.", "is no schema.table"),
            (".orders", "is no schema.table"),
            ("public.Orders", "double quotes"),
            ("public.orders; drop table x", "double quotes"),
            ("public.orders--", "double quotes"),
            ("public.1a", "double quotes"),
            ("a.b.c", "too many parts"),
            ("\"public.orders", "not closed"),
            ("\"\".orders", "empty"),
            ("public.\"a\u{0}\"", "control"),
            ("pg_catalog.pg_class", "PostgreSQL's own"),
            ("pg_temp.x", "PostgreSQL's own"),
            ("pg_toast.x", "PostgreSQL's own"),
            ("\"information_schema\".x", "PostgreSQL's own"),
            ("handover_sink.progress", "its own progress"),
            (&format!("public.{long}"), "64 bytes"),
            (&format!("public.\"{}\"", "ü".repeat(32)), "64 bytes"),
        ] {
            let fault = TableName::parse(table).unwrap_err();
            assert!(fault.contains(word), "{table}: {fault}");
        }
        for table in ["public.orders", "a_1.b$2", "\"A b\".c", "public.\"1\""] {
            assert_eq!(TableName::parse(table).unwrap().to_string(), table);
        }
        assert_eq!(TableName::parse("\"a\".\"b\"").unwrap().to_string(), "a.b");
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let found = faults(&json!({
            "type": "postgres", "delivery": "at-least-once", "table": "orders", "tabel": 1,
            "mapping": {"mode": "json-fields", "columns": {"a/b": "$.*", "ctid": "@offset", "ok": "@ofset", "n": 5, "": "@key"}, "more": 1},
            "write": {"mode": "upsert", "keys": []},
            "batch": {"max_rows": 0, "linger": "11s"}
        }));
        let expected = [
            "/sink/connection: is required",
            "/sink/delivery: \"at-least-once\" is not offered",
            "/sink/table: say the schema too",
            "/sink/mapping/columns/a~1b: '$.*' is no path to one value: at character 3",
            "/sink/mapping/columns/ctid: is a column that PostgreSQL fills itself",
            "/sink/mapping/columns/ok: '@ofset' is no source; did you mean '@offset'?",
            "/sink/mapping/columns/n: a source is text",
            "/sink/mapping/columns/: is no name of a column",
            "/sink/mapping/more: no such member",
            "/sink/write/key: is required for upsert",
            "/sink/write/on_tombstone: is to be said for upsert",
            "/sink/write/keys: no such member; did you mean 'key'?",
            "/sink/batch/max_rows: must lie between 1 and 100000",
            "/sink/batch/linger: must lie between 0s and 10s",
            "/sink/tabel: no such member; did you mean 'table'?",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
    }

    #[test]
    fn what_would_do_nothing_or_harm_is_refused() {
        let raw = json!({"mode": "raw"});
        let document = json!({"mode": "json-document"});
        let fields = json!({"mode": "json-fields", "columns": {"id": "$.id", "k": "@key", "o": "@offset", "t": "@topic"}});
        let upsert =
            |key: Value, on: &str| json!({"mode": "upsert", "key": key, "on_tombstone": on});
        for (mapping, write, expected) in [
            (
                &raw,
                json!({"mode": "append", "on_tombstone": "ignore"}),
                "/sink/write/on_tombstone: does nothing here",
            ),
            (
                &raw,
                json!({"mode": "append", "key": ["key"]}),
                "/sink/write/key: does nothing with append",
            ),
            (
                &document,
                json!({"on_tombstone": "delete"}),
                "/sink/write/on_tombstone: append deletes nothing",
            ),
            (
                &fields,
                upsert(json!(["no"]), "fail"),
                "/sink/write/key/0: 'no' is no column",
            ),
            (
                &fields,
                upsert(json!(["k", "k"]), "fail"),
                "/sink/write/key/1: 'k' is named twice",
            ),
            (
                &fields,
                upsert(json!(["t", "id"]), "delete"),
                "/sink/write/key/1: 'id' comes from $.id, which does not lead",
            ),
            (
                &fields,
                upsert(json!(["o"]), "delete"),
                "/sink/write/key/0: 'o' comes from @offset",
            ),
            (
                &fields,
                upsert(json!("k"), "delete"),
                "/sink/write/key: invalid type",
            ),
            (
                &json!({"mode": "json-fields"}),
                json!({}),
                "/sink/mapping/columns: is required for json-fields",
            ),
            (
                &json!({"mode": "raw", "columns": {}}),
                json!({}),
                "/sink/mapping/columns: must name between 1 and",
            ),
            (
                &json!({"mode": "raw", "columns": {"a": "$.a"}}),
                json!({}),
                "/sink/mapping/columns/a: '$.a' is a path",
            ),
            (
                &json!({"mode": "json-document", "columns": {"a": "@key"}}),
                json!({}),
                "/sink/mapping/columns: no column takes the document",
            ),
            (
                &json!({"mode": "raw", "columns": {"a": "@headers"}}),
                json!({}),
                "/sink/mapping/columns/a: '@headers' is no source",
            ),
        ] {
            let found = faults(&minimal(&json!({"mapping": mapping, "write": write})));
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(
                found[0].starts_with(expected),
                "{} is not {expected}",
                found[0]
            );
        }
        for (mapping, write) in [
            (&raw, json!({"mode": "append"})),
            (&raw, upsert(json!(["topic", "key"]), "delete")),
            (&document, json!({"on_tombstone": "ignore"})),
            (&fields, upsert(json!(["id"]), "ignore")),
            (&fields, upsert(json!(["t", "k"]), "delete")),
        ] {
            read(&minimal(&json!({"mapping": mapping, "write": write}))).unwrap();
        }
    }
}
