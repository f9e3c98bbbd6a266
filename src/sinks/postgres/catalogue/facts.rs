//! Reads the catalogue. Only facts; what they mean for a spec stands in `judge`.

use sqlx::{
    PgConnection, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{TableColumn, TypeKind};
use crate::model::sink_spec::TableName;

/// What there is under a name.
#[derive(Debug)]
pub(super) struct Facts {
    /// As whom the sink is connected.
    pub(super) role: String,
    pub(super) schema_exists: bool,
    /// Whether the role may use what is in the schema.
    pub(super) may_use_schema: bool,
    /// Whether the program keeps its own state in this schema.
    pub(super) holds_the_store: bool,
    pub(super) relation: Option<Relation>,
}

#[derive(Debug)]
pub(super) struct Relation {
    /// `pg_class.relkind`.
    pub(super) kind: String,
    pub(super) is_unlogged: bool,
    /// Whether row level security applies to the role.
    pub(super) has_row_security: bool,
    pub(super) may_delete: bool,
    pub(super) columns: Vec<ColumnFacts>,
    pub(super) unique_indexes: Vec<UniqueIndex>,
    /// Rules that rewrite INSERT or UPDATE.
    pub(super) rules: Vec<String>,
    /// The columns it is partitioned by; an expression has no name.
    pub(super) partition_key: Vec<Option<String>>,
    /// Partitions, quoted, that are foreign or unlogged.
    pub(super) odd_partitions: Vec<OddPartition>,
}

#[derive(Debug)]
pub(super) struct OddPartition {
    pub(super) name: String,
    pub(super) is_foreign: bool,
}

#[derive(Debug)]
pub(super) struct ColumnFacts {
    pub(super) column: TableColumn,
    /// The name of the type in `pg_catalog`, below domains and array brackets; empty for types of others.
    pub(super) builtin: String,
    /// The type below domains as it is written in DDL, without its modifier.
    pub(super) plain_type: String,
    /// The modifier of the type or of its domain, for example length or scale; -1 is none.
    pub(super) modifier: i32,
    /// The collation, quoted, where it is not the one that the type has by itself.
    pub(super) collation: Option<String>,
    /// Whether texts that its collation calls equal are the same bytes.
    pub(super) is_deterministic: bool,
    /// `pg_type.typcategory` of the type, below domains.
    pub(super) category: String,
    /// Whether null is refused, by the column or by its domain.
    pub(super) is_not_null: bool,
    /// Whether it gets a value by itself.
    pub(super) has_default: bool,
    pub(super) is_generated: bool,
    pub(super) is_always_identity: bool,
    pub(super) may_insert: bool,
    pub(super) may_update: bool,
    pub(super) may_select: bool,
    /// Sequences, quoted, that its default needs and the role may not use.
    pub(super) closed_sequences: Vec<String>,
}

#[derive(Debug)]
pub(super) struct UniqueIndex {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
    pub(super) is_primary: bool,
    pub(super) is_valid: bool,
    pub(super) is_deferrable: bool,
    pub(super) is_partial: bool,
    pub(super) has_expressions: bool,
    /// Whether texts that its collations call equal are the same bytes.
    pub(super) is_deterministic: bool,
}

const RELATION: &str = r"
SELECT current_user::text AS role,
       n.oid IS NOT NULL AS schema_exists,
       COALESCE(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false) AS may_use_schema,
       (SELECT count(*) = 3 FROM pg_catalog.pg_class own
        WHERE own.relnamespace = n.oid AND own.relname IN ('installation', 'job_leases', 'checkpoint_offsets')) AS holds_the_store,
       c.oid::int8 AS relation,
       c.relkind::text AS kind,
       c.relpersistence = 'u' AS is_unlogged,
       CASE WHEN c.relkind IN ('r', 'p') THEN pg_catalog.row_security_active(c.oid) END AS has_row_security,
       pg_catalog.has_table_privilege(c.oid, 'DELETE') AS may_delete,
       ARRAY(SELECT r.rulename::text FROM pg_catalog.pg_rewrite r
             WHERE r.ev_class = c.oid AND r.ev_type IN ('2', '3') ORDER BY 1) AS rules,
       ARRAY(SELECT a.attname::text
             FROM pg_catalog.pg_partitioned_table p
             CROSS JOIN unnest(p.partattrs) WITH ORDINALITY AS k (attnum, place)
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum AND k.attnum > 0
             WHERE p.partrelid = c.oid ORDER BY k.place) AS partition_key
FROM (SELECT) AS always
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = $2";

const COLUMNS: &str = r"
WITH RECURSIVE type_below (attnum, typid, modifier, is_not_null, has_default) AS (
    SELECT attnum, atttypid, atttypmod, false, false FROM pg_catalog.pg_attribute
    WHERE attrelid = $1::int8::oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT b.attnum, t.typbasetype, t.typtypmod, b.is_not_null OR t.typnotnull, b.has_default OR t.typdefault IS NOT NULL
    FROM type_below b JOIN pg_catalog.pg_type t ON t.oid = b.typid WHERE t.typtype = 'd'
)
SELECT a.attname::text AS name,
       pg_catalog.format_type(a.atttypid, a.atttypmod) AS shown_type,
       pg_catalog.quote_ident(tn.nspname) || '.' || pg_catalog.quote_ident(t.typname) AS type_name,
       CASE WHEN tn.nspname = 'pg_catalog' THEN COALESCE(e.typname, t.typname)::text ELSE '' END AS builtin,
       CASE WHEN tn.nspname = 'pg_catalog' THEN pg_catalog.format_type(t.oid, -1)
            ELSE pg_catalog.quote_ident(tn.nspname) || '.' || pg_catalog.quote_ident(t.typname) END AS plain_type,
       b.modifier,
       CASE WHEN a.attcollation <> t.typcollation
            THEN pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname) END AS collation,
       COALESCE(co.collisdeterministic, true) AS is_deterministic,
       t.typcategory::text AS category,
       a.attnotnull OR b.is_not_null AS is_not_null,
       a.atthasdef OR b.has_default OR a.attidentity <> '' AS has_default,
       a.attgenerated <> '' AS is_generated,
       a.attidentity = 'a' AS is_always_identity,
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS may_insert,
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS may_update,
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS may_select,
       ARRAY(SELECT pg_catalog.quote_ident(sn.nspname) || '.' || pg_catalog.quote_ident(s.relname)
             FROM pg_catalog.pg_attrdef ad
             JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = ad.oid
                                        AND d.refclassid = 'pg_catalog.pg_class'::regclass
             JOIN pg_catalog.pg_class s ON s.oid = d.refobjid
             JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
             WHERE ad.adrelid = a.attrelid AND ad.adnum = a.attnum
               AND CASE WHEN s.relkind = 'S' THEN NOT pg_catalog.has_sequence_privilege(s.oid, 'USAGE, UPDATE') ELSE false END
            ) AS closed_sequences
FROM pg_catalog.pg_attribute a
JOIN type_below b ON b.attnum = a.attnum
JOIN pg_catalog.pg_type t ON t.oid = b.typid AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace
WHERE a.attrelid = $1::int8::oid
ORDER BY a.attnum";

const UNIQUE_INDEXES: &str = r"
SELECT ic.relname::text AS name,
       ARRAY(SELECT a.attname::text
             FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts ORDER BY k.place) AS columns,
       i.indisprimary AS is_primary,
       i.indisvalid AS is_valid,
       NOT i.indimmediate AS is_deferrable,
       i.indpred IS NOT NULL AS is_partial,
       i.indexprs IS NOT NULL AS has_expressions,
       NOT EXISTS (SELECT FROM unnest(i.indcollation) AS k (collation_oid)
                   JOIN pg_catalog.pg_collation co ON co.oid = k.collation_oid
                   WHERE NOT co.collisdeterministic) AS is_deterministic
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
WHERE i.indrelid = $1::int8::oid AND i.indisunique
ORDER BY ic.relname";

const ODD_PARTITIONS: &str = r"
SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) AS name, c.relkind = 'f' AS is_foreign
FROM pg_catalog.pg_partition_tree($1::int8::oid::regclass) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND (c.relkind = 'f' OR c.relpersistence = 'u')
ORDER BY 1";

/// Reads everything that a judgement needs.
pub(super) async fn read(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<Facts, sqlx::Error> {
    let found = statement(RELATION)
        .bind(table.schema())
        .bind(table.table())
        .fetch_one(&mut *connection)
        .await?;
    let oid: Option<i64> = found.try_get("relation")?;
    let relation = match oid {
        Some(oid) => Some(relation(connection, oid, &found).await?),
        None => None,
    };
    Ok(Facts {
        role: found.try_get("role")?,
        schema_exists: found.try_get("schema_exists")?,
        may_use_schema: found.try_get("may_use_schema")?,
        holds_the_store: found.try_get("holds_the_store")?,
        relation,
    })
}

async fn relation(
    connection: &mut PgConnection,
    oid: i64,
    found: &PgRow,
) -> Result<Relation, sqlx::Error> {
    let kind: String = found.try_get("kind")?;
    let columns = rows_of(connection, COLUMNS, oid).await?;
    let unique_indexes = rows_of(connection, UNIQUE_INDEXES, oid).await?;
    let odd_partitions = if kind == "p" {
        rows_of(connection, ODD_PARTITIONS, oid).await?
    } else {
        Vec::new()
    };
    let has_row_security: Option<bool> = found.try_get("has_row_security")?;
    Ok(Relation {
        is_unlogged: kind == "r" && found.try_get("is_unlogged")?,
        kind,
        has_row_security: has_row_security.unwrap_or(false),
        may_delete: found.try_get("may_delete")?,
        columns: columns.iter().map(column).collect::<Result<_, _>>()?,
        unique_indexes: unique_indexes.iter().map(index).collect::<Result<_, _>>()?,
        rules: found.try_get("rules")?,
        partition_key: found.try_get("partition_key")?,
        odd_partitions: odd_partitions
            .iter()
            .map(partition)
            .collect::<Result<_, _>>()?,
    })
}

async fn rows_of(
    connection: &mut PgConnection,
    sql: &'static str,
    oid: i64,
) -> Result<Vec<PgRow>, sqlx::Error> {
    statement(sql).bind(oid).fetch_all(connection).await
}

fn statement(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the checked form is for the store's schema; this reads the catalogue of another database"
    )]
    sqlx::query(sql).persistent(false)
}

fn column(row: &PgRow) -> Result<ColumnFacts, sqlx::Error> {
    let cast: String = row.try_get("type_name")?;
    let category: String = row.try_get("category")?;
    let kind = match (cast.as_str(), category.as_str()) {
        ("pg_catalog.bytea", _) => TypeKind::Bytea,
        ("pg_catalog.json", _) => TypeKind::Json,
        ("pg_catalog.jsonb", _) => TypeKind::Jsonb,
        (_, "S") => TypeKind::Text,
        _ => TypeKind::Other,
    };
    Ok(ColumnFacts {
        column: TableColumn {
            name: row.try_get("name")?,
            kind,
            cast,
            shown_type: row.try_get("shown_type")?,
        },
        builtin: row.try_get("builtin")?,
        plain_type: row.try_get("plain_type")?,
        modifier: row.try_get("modifier")?,
        collation: row.try_get("collation")?,
        is_deterministic: row.try_get("is_deterministic")?,
        category,
        is_not_null: row.try_get("is_not_null")?,
        has_default: row.try_get("has_default")?,
        is_generated: row.try_get("is_generated")?,
        is_always_identity: row.try_get("is_always_identity")?,
        may_insert: row.try_get("may_insert")?,
        may_update: row.try_get("may_update")?,
        may_select: row.try_get("may_select")?,
        closed_sequences: row.try_get("closed_sequences")?,
    })
}

fn index(row: &PgRow) -> Result<UniqueIndex, sqlx::Error> {
    Ok(UniqueIndex {
        name: row.try_get("name")?,
        columns: row.try_get("columns")?,
        is_primary: row.try_get("is_primary")?,
        is_valid: row.try_get("is_valid")?,
        is_deferrable: row.try_get("is_deferrable")?,
        is_partial: row.try_get("is_partial")?,
        has_expressions: row.try_get("has_expressions")?,
        is_deterministic: row.try_get("is_deterministic")?,
    })
}

fn partition(row: &PgRow) -> Result<OddPartition, sqlx::Error> {
    Ok(OddPartition {
        name: row.try_get("name")?,
        is_foreign: row.try_get("is_foreign")?,
    })
}
