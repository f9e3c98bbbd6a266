//! What the target's catalogue says about a table, and whether a spec can be carried out there.
//!
//! A fault that the catalogue can show is better told when a spec is stored than by the first record of the night. So each
//! is told with the statement that mends it, made from the spec and the catalogue, to be copied as it is.

mod facts;
mod judge;

use sqlx::PgConnection;

use crate::model::{
    field_error::FieldError,
    sink_spec::{PostgresSinkSpec, TableName},
};

/// A column as the catalogue has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// Which form its values are encoded in.
    pub kind: TypeKind,
    /// The type of its values as it stands in a cast: of a domain the type below it, with schema, quoted, without a length.
    pub cast: String,
    /// The type as people know it, for example `character varying(20)`.
    pub shown_type: String,
}

/// Which form values are encoded in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeKind {
    /// Bytes.
    Bytea,
    /// Any text.
    Text,
    /// JSON, kept as text.
    Json,
    /// JSON, taken apart.
    Jsonb,
    /// Whatever the type's input function reads.
    Other,
}

/// The columns of a table in their order, and those types below its domains; empty if there is no such table.
///
/// # Errors
/// When the target does not answer or refuses.
pub async fn read_columns(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<Vec<TableColumn>, sqlx::Error> {
    let facts = facts::read(connection, table).await?;
    let relation = facts.relation.into_iter();
    Ok(relation
        .flat_map(|relation| relation.columns)
        .map(|column| column.column)
        .collect())
}

/// What stands in the target against a spec's table, mapping and way to write.
///
/// Each fault has its pointer in the spec and the statement that mends it. Whether the sink can keep its own
/// progress there is not part of it.
///
/// # Errors
/// When the target does not answer or refuses.
pub async fn check(
    connection: &mut PgConnection,
    spec: &PostgresSinkSpec,
) -> Result<Vec<FieldError>, sqlx::Error> {
    let facts = facts::read(connection, &spec.table).await?;
    Ok(judge::judge(spec, &facts))
}
