//! Holds a spec against the facts of the catalogue.

use super::{
    TypeKind,
    facts::{ColumnFacts, Facts, Relation, UniqueIndex},
};
use crate::model::{
    field_error::FieldError,
    sink_spec::{ColumnSource, MappingMode, OnTombstone, PostgresSinkSpec, WriteMode, quoted},
};

const TABLE: &str = "/sink/table";
const COLUMNS: &str = "/sink/mapping/columns";
const KEY: &str = "/sink/write/key";
/// The tables of the store. (They are in a schema beside tables of other people where both use one database.)
const STORE_TABLES: [&str; 13] = [
    "_sqlx_migrations",
    "attempts",
    "bounded_run_ends",
    "bounded_runs",
    "checkpoint_offsets",
    "checkpoints",
    "events",
    "installation",
    "instances",
    "job_leases",
    "jobs",
    "operations",
    "start_plans",
];

/// All faults; none if the spec can be carried out as far as the catalogue tells.
pub(super) fn judge(spec: &PostgresSinkSpec, facts: &Facts) -> Vec<FieldError> {
    let judge = Judge {
        spec,
        facts,
        table: spec.table.quoted(),
    };
    if facts.holds_the_store && STORE_TABLES.contains(&spec.table.table()) {
        let table = &judge.table;
        let what = format!(
            "{table} is a table in which handover keeps its own state: name another one, best in a database of its own"
        );
        return vec![FieldError::new(TABLE, what)];
    }
    let mut faults = judge.schema();
    match &facts.relation {
        None => faults.push(judge.missing_table()),
        Some(relation) => match judge.wrong_kind(relation) {
            Some(fault) => faults.push(fault),
            None => faults.extend(judge.relation(relation)),
        },
    }
    faults
}

struct Judge<'a> {
    spec: &'a PostgresSinkSpec,
    facts: &'a Facts,
    /// Its quoted name.
    table: String,
}

/// A fault and the statement that mends it.
fn with_remedy(pointer: impl Into<String>, what: impl Into<String>, statement: &str) -> FieldError {
    FieldError::new(pointer, what).mended_by(statement)
}

fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items
        .into_iter()
        .map(|item| item.as_ref().to_owned())
        .collect();
    items.join(", ")
}

fn pointer_to_column(name: &str) -> String {
    format!("{COLUMNS}/{}", name.replace('~', "~0").replace('/', "~1"))
}

impl Judge<'_> {
    fn schema(&self) -> Vec<FieldError> {
        let facts = self.facts;
        if !facts.schema_exists || facts.may_use_schema {
            return Vec::new();
        }
        let schema = quoted(self.spec.table.schema());
        let what = format!("the role {} may not use the schema {schema}", facts.role);
        let statement = format!("GRANT USAGE ON SCHEMA {schema} TO {};", quoted(&facts.role));
        vec![with_remedy(TABLE, what, &statement)]
    }

    fn missing_table(&self) -> FieldError {
        let schema = quoted(self.spec.table.schema());
        let what = format!("the table {} does not exist", self.spec.table);
        let what = format!("{what} (other types than these are fine where they take the sources)");
        let make_schema = if self.facts.schema_exists {
            String::new()
        } else {
            format!("CREATE SCHEMA {schema}; ")
        };
        with_remedy(
            TABLE,
            what,
            &format!("{make_schema}{}", self.create_table()),
        )
    }

    fn create_table(&self) -> String {
        let mapping = &self.spec.mapping;
        let mut columns: Vec<(&String, &ColumnSource)> = mapping.columns.iter().collect();
        // Columns of key and value first, where they come from last.
        columns.sort_by_key(|(name, source)| {
            let is_key = self.spec.write.key.contains(name);
            (!is_key, rank(source))
        });
        let columns = columns
            .iter()
            .map(|(name, source)| format!("{} {}", quoted(name), self.proposed_type(name, source)));
        let key = &self.spec.write.key;
        let primary_key = (!key.is_empty()).then(|| {
            format!(
                "PRIMARY KEY ({})",
                list(key.iter().map(|name| quoted(name)))
            )
        });
        let parts = list(columns.chain(primary_key));
        format!("CREATE TABLE {} ({parts});", self.table)
    }

    /// A type that takes whatever the source has.
    fn proposed_type(&self, name: &String, source: &ColumnSource) -> &'static str {
        let is_raw = self.spec.mapping.mode == MappingMode::Raw;
        match source {
            ColumnSource::Topic => "text",
            ColumnSource::Partition => "integer",
            ColumnSource::Offset => "bigint",
            ColumnSource::Timestamp => "timestamptz",
            ColumnSource::Key if is_raw => "bytea",
            ColumnSource::Key => "text",
            ColumnSource::Value if self.spec.mapping.mode == MappingMode::JsonDocument => "jsonb",
            ColumnSource::Value => "bytea",
            ColumnSource::Path(_) if self.spec.write.key.contains(name) => "text",
            ColumnSource::Path(_) => "jsonb",
        }
    }

    fn wrong_kind(&self, relation: &Relation) -> Option<FieldError> {
        let why = match relation.kind.as_str() {
            "r" | "p" => return None,
            "v" => {
                "is a view: what becomes of rows that are written through it is not known; name its table"
            }
            "m" => "is a materialized view, which takes no rows; name a table",
            "f" => {
                "is a foreign table: rows of another server do not commit together with the job's progress; give that server a connection of its own"
            }
            "S" => "is a sequence; name a table",
            "c" => "is a composite type; name a table",
            _ => "is no table",
        };
        Some(FieldError::new(TABLE, format!("{} {why}", self.spec.table)))
    }

    fn relation(&self, relation: &Relation) -> Vec<FieldError> {
        let mut faults = self.storage(relation);
        let mut has_all_columns = true;
        for (name, source) in &self.spec.mapping.columns {
            let found = relation
                .columns
                .iter()
                .find(|facts| facts.column.name == *name);
            match found {
                Some(facts) => faults.extend(self.column(facts, source, relation)),
                None => {
                    has_all_columns = false;
                    let statement = format!(
                        "ALTER TABLE {} ADD COLUMN {} {};",
                        self.table,
                        quoted(name),
                        self.proposed_type(name, source)
                    );
                    let what = format!("the table {} has no column \"{name}\"", self.spec.table);
                    faults.push(with_remedy(pointer_to_column(name), what, &statement));
                }
            }
        }
        let unmapped = relation
            .columns
            .iter()
            .filter(|facts| !self.spec.mapping.columns.contains_key(&facts.column.name));
        for facts in unmapped {
            faults.extend(self.unfilled(facts, relation));
        }
        if self.spec.write.mode == WriteMode::Upsert && has_all_columns {
            faults.extend(self.key(relation));
            faults.extend(self.key_columns(relation));
            faults.extend(self.key_indexes(relation));
        }
        faults.extend(self.privileges(relation));
        faults
    }

    /// Whether rows that are committed stay, and all arrive.
    fn storage(&self, relation: &Relation) -> Vec<FieldError> {
        let mut faults = Vec::new();
        let unlogged = "PostgreSQL empties it after a crash, while the job's progress stays";
        if relation.is_unlogged {
            let what = format!("{} is unlogged: {unlogged}", self.spec.table);
            let statement = format!("ALTER TABLE {} SET LOGGED;", self.table);
            faults.push(with_remedy(TABLE, what, &statement));
        }
        for partition in &relation.odd_partitions {
            let name = &partition.name;
            if partition.is_foreign {
                let what = format!(
                    "the partition {name} is a foreign table: its rows do not commit together with the job's progress"
                );
                let statement = format!("ALTER TABLE {} DETACH PARTITION {name};", self.table);
                faults.push(with_remedy(TABLE, what, &statement));
            } else {
                let what = format!("the partition {name} is unlogged: {unlogged}");
                let statement = format!("ALTER TABLE {name} SET LOGGED;");
                faults.push(with_remedy(TABLE, what, &statement));
            }
        }
        if relation.has_row_security {
            let what = format!(
                "row level security of {} applies to the role {}: a policy could refuse rows, and COPY refuses them all",
                self.spec.table, self.facts.role
            );
            let statement = format!("ALTER TABLE {} DISABLE ROW LEVEL SECURITY;", self.table);
            faults.push(with_remedy(TABLE, what, &statement));
        }
        if self.spec.write.mode == WriteMode::Upsert {
            for rule in &relation.rules {
                let what = format!(
                    "{} has the rule {}, and PostgreSQL has no ON CONFLICT beside rules for INSERT or UPDATE",
                    self.spec.table,
                    quoted(rule)
                );
                let statement = format!("DROP RULE {} ON {};", quoted(rule), self.table);
                faults.push(with_remedy(TABLE, what, &statement));
            }
        }
        faults
    }

    fn column(
        &self,
        facts: &ColumnFacts,
        source: &ColumnSource,
        relation: &Relation,
    ) -> Option<FieldError> {
        let column = &facts.column;
        let pointer = pointer_to_column(&column.name);
        let name = quoted(&column.name);
        if facts.is_generated {
            let what = format!(
                "the column {name} is generated: PostgreSQL computes it, and takes no value"
            );
            let statement = format!(
                "ALTER TABLE {} ALTER COLUMN {name} DROP EXPRESSION;",
                self.table
            );
            return Some(with_remedy(pointer, what, &statement));
        }
        if facts.is_always_identity {
            let what =
                format!("the column {name} is GENERATED ALWAYS AS IDENTITY, and takes no value");
            let statement = format!(
                "ALTER TABLE {} ALTER COLUMN {name} SET GENERATED BY DEFAULT;",
                self.table
            );
            return Some(with_remedy(pointer, what, &statement));
        }
        if let Some(cut) = cut(facts) {
            let shown = &column.shown_type;
            let what =
                format!("the column {name} has the type {shown}, which keeps {cut} without a word");
            let wanted = if facts.category == "A" {
                "text[]"
            } else {
                "text"
            };
            return Some(self.retype(pointer, what, facts, wanted, relation));
        }
        let is_document =
            *source == ColumnSource::Value && self.spec.mapping.mode == MappingMode::JsonDocument;
        let wanted = wanted_types(source, is_document, facts)?;
        Some(FieldError::new(
            pointer,
            format!(
                "the column {name} has the type {}, which does not take {source}: use {wanted}",
                column.shown_type
            ),
        ))
    }

    /// A column that no row would fill.
    fn unfilled(&self, facts: &ColumnFacts, relation: &Relation) -> Option<FieldError> {
        let name = quoted(&facts.column.name);
        if let Some(sequence) = facts.closed_sequences.first() {
            let what = format!(
                "the default of the column {name} needs the sequence {sequence}, which the role {} may not use",
                self.facts.role
            );
            let statement = format!(
                "GRANT USAGE ON SEQUENCE {sequence} TO {};",
                quoted(&self.facts.role)
            );
            return Some(with_remedy(TABLE, what, &statement));
        }
        if !facts.is_not_null || facts.has_default {
            return None;
        }
        let what = format!(
            "the column {name} ({}) takes no null and has no default, and the mapping does not fill it; map it",
            facts.column.shown_type
        );
        let is_in_primary_key = relation
            .unique_indexes
            .iter()
            .any(|index| index.is_primary && index.columns.contains(&facts.column.name));
        let is_integer = matches!(
            facts.column.cast.as_str(),
            "pg_catalog.int2" | "pg_catalog.int4" | "pg_catalog.int8"
        );
        let change = match (is_integer, is_in_primary_key) {
            (true, _) => "ADD GENERATED BY DEFAULT AS IDENTITY",
            (false, false) => "DROP NOT NULL",
            // It could only be given a default, and which is not for us to say.
            (false, true) => return Some(FieldError::new(COLUMNS, what)),
        };
        let statement = format!("ALTER TABLE {} ALTER COLUMN {name} {change};", self.table);
        let what = format!("{what}, or run the statement");
        Some(with_remedy(COLUMNS, what, &statement))
    }

    /// A fault that another type of the column mends, if it can have one.
    fn retype(
        &self,
        pointer: impl Into<String>,
        what: String,
        facts: &ColumnFacts,
        wanted: &str,
        relation: &Relation,
    ) -> FieldError {
        let name = &facts.column.name;
        let is_partitioned_by = |column: &Option<String>| column.as_ref() == Some(name);
        if relation.partition_key.iter().any(is_partitioned_by) {
            return FieldError::new(
                pointer,
                format!(
                    "{what}; a column that a table is partitioned by keeps its type: make the table anew with {wanted}"
                ),
            );
        }
        let statement = format!(
            "ALTER TABLE {} ALTER COLUMN {} TYPE {wanted};",
            self.table,
            quoted(name)
        );
        with_remedy(pointer, what, &statement)
    }

    /// Columns in which a row's key would not be the record's, or not the same for all of our statements.
    ///
    /// `DISTINCT ON` and the comparison of DELETE see the key as the record has it, without the column's modifier and under
    /// the default collation; `ON CONFLICT` sees what is stored, under the collation of the index.
    fn key_columns(&self, relation: &Relation) -> Vec<FieldError> {
        let key = &self.spec.write.key;
        let of_key = relation
            .columns
            .iter()
            .filter(|facts| key.contains(&facts.column.name) && cut(facts).is_none());
        of_key
            .filter_map(|facts| self.key_column(facts, relation))
            .collect()
    }

    fn key_column(&self, facts: &ColumnFacts, relation: &Relation) -> Option<FieldError> {
        let why = if let Some(change) = change_by_modifier(facts) {
            format!(
                "which {change}: the key of a row is not its record's, and an update or tombstone does not find it"
            )
        } else if facts.is_deterministic {
            return None;
        } else {
            let collation = facts.collation.as_deref().unwrap_or("of its own");
            format!(
                "and the nondeterministic collation {collation}: keys that differ are one row, and which of them counts is not known"
            )
        };
        let column = &facts.column;
        let what = format!(
            "the key's column {} has the type {}, {why}",
            quoted(&column.name),
            column.shown_type
        );
        // Without COLLATE a new type brings its own collation.
        let collation = match &facts.collation {
            _ if !facts.is_deterministic => r#" COLLATE "C""#.to_owned(),
            Some(collation) => format!(" COLLATE {collation}"),
            None => String::new(),
        };
        let wanted = format!("{}{collation}", facts.plain_type);
        Some(self.retype(KEY, what, facts, &wanted, relation))
    }

    /// Indexes with a nondeterministic collation that their columns do not have; that of a column goes with its type.
    fn key_indexes(&self, relation: &Relation) -> Vec<FieldError> {
        let key = &self.spec.write.key;
        let mut of_key = relation
            .columns
            .iter()
            .filter(|facts| key.contains(&facts.column.name));
        if of_key.any(|facts| !facts.is_deterministic) {
            return Vec::new();
        }
        let loose = self.indexes_on_key(relation).filter(|index| {
            !index.is_deterministic && !index.is_deferrable && flaw(index).is_none()
        });
        loose.map(|index| self.loose(index)).collect()
    }

    fn loose(&self, index: &UniqueIndex) -> FieldError {
        let columns = list(index.columns.iter().map(|name| quoted(name)));
        let name = quoted(&index.name);
        let what = format!(
            "the unique index {name} on the key's columns ({columns}) has a nondeterministic collation: keys that differ are one row there, and which of them counts is not known"
        );
        let statement = format!(
            "DROP INDEX {}.{name}; CREATE UNIQUE INDEX ON {} ({columns});",
            quoted(self.spec.table.schema()),
            self.table
        );
        with_remedy(KEY, what, &statement)
    }

    /// The unique indexes on just the key's columns.
    fn indexes_on_key<'r>(
        &self,
        relation: &'r Relation,
    ) -> impl Iterator<Item = &'r UniqueIndex> + use<'_, 'r> {
        let key = &self.spec.write.key;
        relation.unique_indexes.iter().filter(|index| {
            !index.has_expressions
                && index.columns.len() == key.len()
                && index.columns.iter().all(|column| key.contains(column))
        })
    }

    fn key(&self, relation: &Relation) -> Option<FieldError> {
        let key = &self.spec.write.key;
        let candidates: Vec<&UniqueIndex> = self.indexes_on_key(relation).collect();
        if let Some(late) = candidates.iter().find(|index| index.is_deferrable) {
            return Some(self.deferrable(late));
        }
        let flaws: Vec<String> = candidates.iter().filter_map(|index| flaw(index)).collect();
        if flaws.len() < candidates.len() {
            return None;
        }
        let columns = list(key.iter().map(|name| quoted(name)));
        let outside: Vec<String> = relation
            .partition_key
            .iter()
            .filter(|column| column.as_ref().is_none_or(|column| !key.contains(column)))
            .map(|column| column.clone().unwrap_or_else(|| "an expression".to_owned()))
            .collect();
        if !outside.is_empty() {
            return Some(FieldError::new(
                KEY,
                format!(
                    "{} is partitioned by {}, and PostgreSQL has unique indexes there only on keys with these columns",
                    self.spec.table,
                    list(&outside)
                ),
            ));
        }
        let without_equality = relation
            .columns
            .iter()
            .find(|facts| key.contains(&facts.column.name) && facts.column.kind == TypeKind::Json);
        if let Some(facts) = without_equality {
            let name = quoted(&facts.column.name);
            let what =
                format!("the key's column {name} has the type json, which knows no equality");
            let statement = format!("ALTER TABLE {} ALTER COLUMN {name} TYPE jsonb;", self.table);
            return Some(with_remedy(KEY, what, &statement));
        }
        let because = if flaws.is_empty() {
            String::new()
        } else {
            format!(" that serves ({})", list(&flaws))
        };
        let what = format!(
            "no unique index of {} on just ({columns}){because}",
            self.spec.table
        );
        let statement = format!("CREATE UNIQUE INDEX ON {} ({columns});", self.table);
        Some(with_remedy(KEY, what, &statement))
    }

    /// One such constraint keeps ON CONFLICT from working, whatever other indexes there are.
    fn deferrable(&self, index: &UniqueIndex) -> FieldError {
        let (name, columns) = (
            quoted(&index.name),
            list(index.columns.iter().map(|name| quoted(name))),
        );
        let kind = if index.is_primary {
            "PRIMARY KEY"
        } else {
            "UNIQUE"
        };
        let what = format!(
            "the constraint {name} is deferrable, and PostgreSQL has no ON CONFLICT with such a one"
        );
        let statement = format!(
            "ALTER TABLE {} DROP CONSTRAINT {name}, ADD {kind} ({columns});",
            self.table
        );
        with_remedy(KEY, what, &statement)
    }

    fn privileges(&self, relation: &Relation) -> Option<FieldError> {
        let write = &self.spec.write;
        let mapped = relation
            .columns
            .iter()
            .filter(|facts| self.spec.mapping.columns.contains_key(&facts.column.name));
        let (mut insert, mut update, mut select) = (true, true, true);
        for facts in mapped {
            insert &= facts.may_insert;
            if write.mode == WriteMode::Upsert {
                let is_key = write.key.contains(&facts.column.name);
                update &= is_key || facts.may_update;
                // EXCLUDED counts as reading the table's own column.
                select &= facts.may_select;
            }
        }
        let delete = write.on_tombstone != Some(OnTombstone::Delete) || relation.may_delete;
        let missing = list(
            [
                ("SELECT", select),
                ("INSERT", insert),
                ("UPDATE", update),
                ("DELETE", delete),
            ]
            .into_iter()
            .filter(|(_, may)| !may)
            .map(|(privilege, _)| privilege),
        );
        if missing.is_empty() {
            return None;
        }
        let role = &self.facts.role;
        let what = format!("the role {role} lacks {missing} on {}", self.spec.table);
        let statement = format!(
            "GRANT {missing} ON TABLE {} TO {};",
            self.table,
            quoted(role)
        );
        Some(with_remedy(TABLE, what, &statement))
    }
}

fn rank(source: &ColumnSource) -> u8 {
    match source {
        ColumnSource::Path(_) => 0,
        ColumnSource::Key => 1,
        ColumnSource::Value => 2,
        ColumnSource::Topic => 3,
        ColumnSource::Partition => 4,
        ColumnSource::Offset => 5,
        ColumnSource::Timestamp => 6,
    }
}

/// Why an index on the key's columns cannot tell rows apart for ON CONFLICT.
fn flaw(index: &UniqueIndex) -> Option<String> {
    let why = if index.is_partial {
        "partial"
    } else if !index.is_valid {
        "not valid"
    } else {
        return None;
    };
    Some(format!("{} is {why}", quoted(&index.name)))
}

/// What a type keeps of a longer text, where it cuts without an error even as its text is read.
fn cut(facts: &ColumnFacts) -> Option<&'static str> {
    match facts.builtin.as_str() {
        "name" => Some("the first 63 bytes of a text"),
        "char" => Some("the first byte of a text"),
        _ => None,
    }
}

/// What the modifier of a type does to values that are assigned, where that can make another value of them.
///
/// `char(n)` only adds and takes blanks at the end, which count in no comparison. `varchar(n)` takes them from texts that are
/// too long for nothing but them, and refuses other ones: no key that anybody uses, and the type of most. `bit(n)` and `bit varying(n)` refuse what
/// does not fit. Times have six digits by themselves.
fn change_by_modifier(facts: &ColumnFacts) -> Option<&'static str> {
    const ALL_DIGITS: i32 = 6;
    /// `INTERVAL_TYPMOD(6, INTERVAL_FULL_RANGE)` of PostgreSQL's timestamp.h.
    const WHOLE_INTERVAL: i32 = (0x7FFF << 16) | ALL_DIGITS;
    match (facts.builtin.as_str(), facts.modifier) {
        (_, -1) | ("bpchar" | "varchar" | "bit" | "varbit", _) => None,
        ("timestamp" | "timestamptz" | "time" | "timetz", ALL_DIGITS) => None,
        ("interval", WHOLE_INTERVAL) => None,
        ("interval", _) => Some("rounds or cuts times"),
        _ => Some("rounds what is written"),
    }
}

/// What to use instead where a type cannot take every value of a source; `None` where it can, or where that depends on the
/// record and is left to the type's input function.
fn wanted_types(
    source: &ColumnSource,
    is_document: bool,
    facts: &ColumnFacts,
) -> Option<&'static str> {
    let kind = facts.column.kind;
    let builtin = match facts.category.as_str() {
        "A" => "",
        _ => facts.builtin.as_str(),
    };
    let is_text = kind == TypeKind::Text;
    let (fits, wanted) = match source {
        ColumnSource::Topic => (is_text, "text"),
        ColumnSource::Partition => (
            is_text || matches!(builtin, "int4" | "int8" | "numeric"),
            "integer or bigint",
        ),
        ColumnSource::Offset => (is_text || matches!(builtin, "int8" | "numeric"), "bigint"),
        ColumnSource::Timestamp => (
            is_text || matches!(builtin, "timestamptz" | "timestamp"),
            "timestamptz",
        ),
        ColumnSource::Value if is_document => {
            (kind != TypeKind::Other, "jsonb, json, text or bytea")
        }
        // A text in the form that the type reads may come; JSON arrays and objects never have it.
        ColumnSource::Path(_) => (!matches!(facts.category.as_str(), "A" | "C"), "jsonb"),
        ColumnSource::Key | ColumnSource::Value => (true, ""),
    };
    (!fits).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::STORE_TABLES;

    #[test]
    fn the_tables_of_the_store_are_those_of_the_migrations() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut tables = vec!["_sqlx_migrations".to_owned()];
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "sql") {
                let text = std::fs::read_to_string(path).unwrap();
                let created = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("CREATE TABLE "));
                tables.extend(created.map(|rest| rest.trim_end_matches(" (").to_owned()));
            }
        }
        tables.sort();
        assert_eq!(tables, STORE_TABLES);
    }
}
