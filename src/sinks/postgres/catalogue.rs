//! What the target's catalogue says about a table.

use sqlx::{PgConnection, Row, postgres::PgRow};

use crate::model::sink_spec::TableName;

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
    let rows = sqlx::query(COLUMNS)
        .bind(table.schema())
        .bind(table.table())
        .fetch_all(connection)
        .await?;
    rows.iter().map(column).collect()
}

const COLUMNS: &str = r"
WITH RECURSIVE attribute AS (
    SELECT a.attnum, a.attname, a.atttypid, a.atttypmod
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), base (attnum, typid) AS (
    SELECT attnum, atttypid FROM attribute
    UNION ALL
    SELECT b.attnum, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typid WHERE t.typtype = 'd'
)
SELECT a.attname::text AS name,
       pg_catalog.format_type(a.atttypid, a.atttypmod) AS shown_type,
       pg_catalog.quote_ident(tn.nspname) || '.' || pg_catalog.quote_ident(t.typname) AS type_name,
       t.typcategory::text AS category
FROM attribute a
JOIN base b ON b.attnum = a.attnum
JOIN pg_catalog.pg_type t ON t.oid = b.typid AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
ORDER BY a.attnum";

fn column(row: &PgRow) -> Result<TableColumn, sqlx::Error> {
    let cast: String = row.try_get("type_name")?;
    let category: String = row.try_get("category")?;
    Ok(TableColumn {
        name: row.try_get("name")?,
        kind: match (cast.as_str(), category.as_str()) {
            ("pg_catalog.bytea", _) => TypeKind::Bytea,
            ("pg_catalog.json", _) => TypeKind::Json,
            ("pg_catalog.jsonb", _) => TypeKind::Jsonb,
            (_, "S") => TypeKind::Text,
            _ => TypeKind::Other,
        },
        cast,
        shown_type: row.try_get("shown_type")?,
    })
}
