use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::model::{JobName, TopicPartition, job::JobSpec, sink_spec::SinkSpec};

fn spec(mapping: Value, write: Value) -> PostgresSinkSpec {
    let document = json!({
        "source": {"connection": "main", "topics": ["orders"]},
        "startup_mode": {"mode": "earliest"},
        "sink": {"type": "postgres", "connection": "warehouse", "table": "public.orders", "mapping": mapping, "write": write},
    });
    match JobSpec::read(&JobName::new("orders").unwrap(), &document)
        .unwrap()
        .sink
    {
        SinkSpec::Postgres(spec) => *spec,
        other => panic!("{other:?}"),
    }
}

fn column(name: &str, kind: TypeKind, sql_type: &str) -> TableColumn {
    TableColumn {
        name: name.to_owned(),
        kind,
        cast: format!("pg_catalog.{sql_type}"),
        shown_type: sql_type.to_owned(),
    }
}

fn run() -> BatchRun {
    BatchRun {
        partition: Arc::new(TopicPartition {
            topic: "orders".into(),
            partition: 3,
        }),
        records: 0..1,
        advance_to: None,
    }
}

fn record<'a>(key: Option<&'a [u8]>, value: Option<&'a [u8]>) -> ConsumerRecord<'a> {
    ConsumerRecord {
        record_offset: 42,
        timestamp_ms: Some(0),
        key,
        value,
    }
}

fn raw_columns() -> Vec<TableColumn> {
    vec![
        column("topic", TypeKind::Text, "text"),
        column("partition", TypeKind::Other, "int4"),
        column("offset", TypeKind::Other, "int8"),
        column("timestamp", TypeKind::Other, "timestamptz"),
        column("key", TypeKind::Bytea, "bytea"),
        column("value", TypeKind::Bytea, "bytea"),
    ]
}

#[test]
fn raw_records_become_lines_for_copy() {
    let spec = spec(json!({"mode": "raw"}), json!({"mode": "append"}));
    let mut encoder = RowEncoder::new(&spec, &raw_columns()).unwrap();
    assert_eq!(
        encoder.copy_statement(),
        r#"COPY "public"."orders" ("key", "offset", "partition", "timestamp", "topic", "value") FROM STDIN WITH (FORMAT text, ENCODING 'UTF8')"#
    );
    let mut rows = encoder.rows();
    let run = run();
    encoder
        .encode(&run, &record(Some(b"k"), Some(b"\x00v")), &mut rows)
        .unwrap();
    encoder
        .encode(&run, &record(None, None), &mut rows)
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.origin(1), (&*run.partition, 42));
    let line = |slice: RowsSlice<'_>| String::from_utf8(slice.copy_text().to_vec()).unwrap();
    let first = "\\\\x6b\t42\t3\t1970-01-01 00:00:00.000+00\torders\t\\\\x0076\n";
    let second = "\\N\t42\t3\t1970-01-01 00:00:00.000+00\torders\t\\N\n";
    assert_eq!(line(rows.all()), format!("{first}{second}"));
    assert_eq!(line(rows.slice(0..1)), first);
    assert_eq!(line(rows.slice(1..2)), second);
    assert_eq!(line(rows.slice(1..1)), "");
    rows.clear();
    assert!(rows.is_empty());
}

#[test]
fn a_missing_column_is_named() {
    let spec = spec(json!({"mode": "raw"}), json!({"mode": "append"}));
    let missing = RowEncoder::new(&spec, &raw_columns()[1..]).err().unwrap();
    assert_eq!(
        missing.to_string(),
        "the table public.orders has no column topic"
    );
}
