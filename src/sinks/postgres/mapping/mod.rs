//! Makes rows of records, as a spec's mapping says.
//!
//! Every value becomes the text that its type's input function reads, so that one way serves all types, numbers keep every
//! digit they were written with, and PostgreSQL itself judges what a column takes. Appended rows become one buffer in
//! COPY's text format; rows that replace others become one array of texts for each column. What is plainly wrong with a
//! record (no JSON, no UTF-8, a NUL in a text, no key) is refused here already and names the record; what only the
//! database can know (a constraint, a number out of range) is found there, by writing [slices](Rows::slice).

mod fields;
mod rows;
mod statements;

use std::borrow::Cow;

use fields::Fields;
use rows::{Cell, timestamp};
pub use rows::{Rows, RowsSlice};
use serde::de::IgnoredAny;
use statements::Statements;

use super::catalogue::{TableColumn, TypeKind};
use crate::model::{
    record::{BatchRun, ConsumerRecord},
    sink_spec::{ColumnSource, MappingMode, OnTombstone, PostgresSinkSpec, WriteMode},
};

/// A record that cannot become a row: the same would happen again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Rejection {
    /// What is wrong with the record, and at which column.
    pub detail: String,
}

impl Rejection {
    fn new(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
        }
    }
}

/// A column of the mapping that the table does not have; the [catalogue](super::catalogue) names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the table {table} has no column {column}")]
pub struct MissingColumn {
    /// The table.
    pub table: String,
    /// The column.
    pub column: String,
}

/// Encodes records for one table. Holds the statements that go with its rows.
pub struct RowEncoder {
    plans: Vec<ColumnPlan>,
    mode: MappingMode,
    write: WriteMode,
    on_tombstone: Option<OnTombstone>,
    fields: Fields,
    statements: Statements,
}

/// What goes to one column.
struct ColumnPlan {
    name: String,
    source: Source,
    kind: TypeKind,
    /// The type as it stands in a cast.
    cast: String,
    /// The type as people know it.
    shown_type: String,
    is_key: bool,
}

enum Source {
    Part(ColumnSource),
    /// The whole value as JSON text.
    Document,
    /// A field of the document, by its slot.
    Field {
        slot: usize,
        path: String,
    },
}

impl RowEncoder {
    /// An encoder for a spec and the columns that its table has.
    ///
    /// # Errors
    /// The first column of the mapping that the table does not have.
    pub fn new(spec: &PostgresSinkSpec, columns: &[TableColumn]) -> Result<Self, MissingColumn> {
        let mut fields = Fields::default();
        let mut plans = Vec::new();
        for (name, source) in &spec.mapping.columns {
            let Some(column) = columns.iter().find(|column| column.name == *name) else {
                return Err(MissingColumn {
                    table: spec.table.to_string(),
                    column: name.clone(),
                });
            };
            let source = match source {
                ColumnSource::Path(path) => Source::Field {
                    slot: fields.add(path),
                    path: path.as_str().to_owned(),
                },
                ColumnSource::Value if spec.mapping.mode == MappingMode::JsonDocument => {
                    Source::Document
                }
                part @ (ColumnSource::Topic
                | ColumnSource::Partition
                | ColumnSource::Offset
                | ColumnSource::Timestamp
                | ColumnSource::Key
                | ColumnSource::Value) => Source::Part(part.clone()),
            };
            plans.push(ColumnPlan {
                name: name.clone(),
                source,
                kind: column.kind,
                cast: column.cast.clone(),
                shown_type: column.shown_type.clone(),
                is_key: spec.write.key.contains(name),
            });
        }
        let statements = Statements::new(spec, &plans);
        Ok(Self {
            plans,
            mode: spec.mapping.mode,
            write: spec.write.mode,
            on_tombstone: spec.write.on_tombstone,
            fields,
            statements,
        })
    }

    /// An empty list of rows in the form that the write mode takes.
    #[must_use]
    pub fn rows(&self) -> Rows {
        match self.write {
            WriteMode::Append => Rows::to_copy(),
            WriteMode::Upsert => Rows::to_arrays(self.plans.len()),
        }
    }

    /// How rows are written.
    #[must_use]
    pub fn mode(&self) -> WriteMode {
        self.write
    }

    /// The statement of appended rows; takes [`RowsSlice::copy_text`].
    #[must_use]
    pub fn copy_statement(&self) -> &str {
        &self.statements.copy
    }

    /// The statement that inserts and replaces rows. Its parameters are [`RowsSlice::columns`], each as `text[]`, and
    /// [`RowsSlice::gone`] as `bool[]`. Of several rows of a key it takes the last one, and nothing if that deletes.
    #[must_use]
    pub fn upsert_statement(&self) -> &str {
        &self.statements.upsert
    }

    /// The statement that deletes rows, with the parameters of the upsert. Needed only where rows
    /// [delete](RowsSlice::deletions); before or after the upsert, since no key is in both.
    #[must_use]
    pub fn delete_statement(&self) -> &str {
        &self.statements.delete
    }

    /// Adds the row of a record. A tombstone that is to be ignored adds none.
    ///
    /// # Errors
    /// What is wrong with the record; the rows are as they were then.
    pub fn encode(
        &mut self,
        run: &BatchRun,
        record: &ConsumerRecord<'_>,
        rows: &mut Rows,
    ) -> Result<(), Rejection> {
        let mut is_gone = false;
        if record.value.is_none() {
            match self.on_tombstone {
                None => {}
                Some(OnTombstone::Ignore) => return Ok(()),
                Some(OnTombstone::Fail) => {
                    return Err(Rejection::new(
                        "the record is a tombstone (it has no value), and write.on_tombstone is fail",
                    ));
                }
                Some(OnTombstone::Delete) => is_gone = true,
            }
        }
        let encoded = self.push_row(run, record, is_gone, rows);
        match encoded {
            Ok(()) => rows.end_row(run, record.record_offset, is_gone),
            Err(_) => rows.drop_row(),
        }
        encoded
    }

    fn push_row(
        &self,
        run: &BatchRun,
        record: &ConsumerRecord<'_>,
        is_gone: bool,
        rows: &mut Rows,
    ) -> Result<(), Rejection> {
        let document = self.document(record)?;
        for (index, plan) in self.plans.iter().enumerate() {
            let cell = if is_gone && !plan.is_key {
                Cell::Null
            } else {
                plan.cell(run, record, &document)?
            };
            if plan.is_key && cell == Cell::Null {
                return Err(plan.rejection("is part of the key and has no value in this record"));
            }
            rows.push(index, &cell);
        }
        Ok(())
    }

    /// What the mapping takes of a JSON value; nothing where it takes the value for bytes.
    fn document<'a>(&self, record: &ConsumerRecord<'a>) -> Result<fields::Found<'a>, Rejection> {
        let no_json = |error: &dyn std::fmt::Display| {
            Rejection::new(format!("the value is no JSON: {error}"))
        };
        let (MappingMode::JsonDocument | MappingMode::JsonFields, Some(value)) =
            (self.mode, record.value)
        else {
            return Ok(Vec::new());
        };
        let text = std::str::from_utf8(value).map_err(|error| no_json(&error))?;
        if self.mode == MappingMode::JsonFields {
            return self.fields.read(text).map_err(|error| no_json(&error));
        }
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| no_json(&error))?;
        Ok(vec![Some(text.trim_matches(JSON_BLANKS))])
    }
}

/// What may stand around a JSON value.
const JSON_BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

impl ColumnPlan {
    fn cell<'a>(
        &self,
        run: &'a BatchRun,
        record: &ConsumerRecord<'a>,
        document: &fields::Found<'a>,
    ) -> Result<Cell<'a>, Rejection> {
        match &self.source {
            Source::Part(ColumnSource::Topic) => Ok(Cell::Text(&run.partition.topic)),
            Source::Part(ColumnSource::Partition) => {
                Ok(Cell::Integer(i64::from(run.partition.partition)))
            }
            Source::Part(ColumnSource::Offset) => Ok(Cell::Integer(record.record_offset)),
            Source::Part(ColumnSource::Timestamp) => match record.timestamp_ms {
                None => Ok(Cell::Null),
                Some(millis) => timestamp(millis).map(Cell::Timestamp).ok_or_else(|| {
                    self.rejection(format!(
                        "cannot take the time stamp {millis} ms: PostgreSQL has no such instant"
                    ))
                }),
            },
            Source::Part(ColumnSource::Key) => self.bytes(record.key),
            Source::Part(ColumnSource::Value | ColumnSource::Path(_)) => self.bytes(record.value),
            Source::Document => self.whole(document.first().copied().flatten()),
            Source::Field { slot, .. } => self.json(document.get(*slot).copied().flatten()),
        }
    }

    /// A key or a whole value.
    fn bytes<'a>(&self, bytes: Option<&'a [u8]>) -> Result<Cell<'a>, Rejection> {
        let Some(bytes) = bytes else {
            return Ok(Cell::Null);
        };
        if self.kind == TypeKind::Bytea {
            return Ok(Cell::Bytes(bytes));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| self.rejection(format!("takes text, and this is none: {error}")))?;
        match self.kind {
            TypeKind::Json | TypeKind::Jsonb => {
                serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
                    self.rejection(format!("takes JSON, and this is none: {error}"))
                })?;
                self.json_text(text)
            }
            TypeKind::Bytea | TypeKind::Text | TypeKind::Other => self.text(Cow::Borrowed(text)),
        }
    }

    /// A document, as JSON text that is known to be valid.
    fn whole<'a>(&self, text: Option<&'a str>) -> Result<Cell<'a>, Rejection> {
        let Some(text) = text.filter(|text| *text != "null") else {
            return Ok(Cell::Null);
        };
        match self.kind {
            TypeKind::Bytea => Ok(Cell::Bytes(text.as_bytes())),
            TypeKind::Json | TypeKind::Jsonb | TypeKind::Text | TypeKind::Other => {
                self.json_text(text)
            }
        }
    }

    /// A field, as JSON text that is known to be valid.
    fn json<'a>(&self, text: Option<&'a str>) -> Result<Cell<'a>, Rejection> {
        let Some(text) = text.filter(|text| *text != "null") else {
            return Ok(Cell::Null);
        };
        if matches!(self.kind, TypeKind::Json | TypeKind::Jsonb) {
            return self.json_text(text);
        }
        let plain = match text.as_bytes().first() {
            Some(b'"') => self.unescaped(text)?,
            Some(b'{' | b'[') if self.kind == TypeKind::Other => {
                let what = if text.starts_with('{') {
                    "object"
                } else {
                    "array"
                };
                return Err(self.rejection(format!("cannot take a JSON {what}")));
            }
            _ => Cow::Borrowed(text),
        };
        match (self.kind, plain) {
            (TypeKind::Bytea, Cow::Borrowed(text)) => Ok(Cell::Bytes(text.as_bytes())),
            (TypeKind::Bytea, Cow::Owned(text)) => Ok(Cell::Made(bytea(&text))),
            (_, plain) => self.text(plain),
        }
    }

    fn json_text<'a>(&self, text: &'a str) -> Result<Cell<'a>, Rejection> {
        if self.kind == TypeKind::Jsonb && has_escaped_nul(text) {
            return Err(self.rejection("cannot take \\u0000: jsonb has no NUL character"));
        }
        Ok(Cell::Text(text))
    }

    fn text<'a>(&self, text: Cow<'a, str>) -> Result<Cell<'a>, Rejection> {
        if let Some(at) = text.as_bytes().iter().position(|byte| *byte == 0) {
            return Err(self.rejection(format!(
                "cannot take the NUL character at byte {at}: PostgreSQL's texts have none"
            )));
        }
        Ok(match text {
            Cow::Borrowed(text) => Cell::Text(text),
            Cow::Owned(text) => Cell::Made(text),
        })
    }

    /// The text of a JSON string.
    fn unescaped<'a>(&self, literal: &'a str) -> Result<Cow<'a, str>, Rejection> {
        if !literal.contains('\\') {
            return Ok(Cow::Borrowed(literal.trim_matches('"')));
        }
        serde_json::from_str(literal)
            .map(Cow::Owned)
            .map_err(|error| self.rejection(format!("cannot take the string: {error}")))
    }

    fn rejection(&self, what: impl AsRef<str>) -> Rejection {
        let source = match &self.source {
            Source::Part(part) => part.as_str(),
            Source::Document => ColumnSource::Value.as_str(),
            Source::Field { path, .. } => path,
        };
        Rejection::new(format!(
            "column \"{}\" ({}, from {source}) {}",
            self.name,
            self.shown_type,
            what.as_ref()
        ))
    }
}

/// A made text as bytea's own form.
fn bytea(text: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(2 + text.len() * 2);
    hex.push_str("\\x");
    for byte in text.bytes() {
        // Writing to a String cannot fail.
        let _infallible = write!(hex, "{byte:02x}");
    }
    hex
}

/// Whether JSON text has the escape `\u0000`, which a `jsonb` refuses.
fn has_escaped_nul(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at + 1..];
        if escape.starts_with("u0000") {
            return true;
        }
        // The escaped character may itself be a backslash; in valid JSON there is one, and it is ASCII.
        rest = escape.get(1..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests;
