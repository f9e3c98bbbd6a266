use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::{JobName, TopicPartition, job::JobSpec, sink_spec::SinkSpec};

fn spec(mapping: &Value, write: &Value) -> PostgresSinkSpec {
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
    let spec = spec(&json!({"mode": "raw"}), &json!({"mode": "append"}));
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
    let spec = spec(&json!({"mode": "raw"}), &json!({"mode": "append"}));
    let missing = RowEncoder::new(&spec, &raw_columns()[1..]).err().unwrap();
    assert_eq!(
        missing.to_string(),
        "the table public.orders has no column topic"
    );
}

/// The line of a record with a mapping of one column, or why there is none.
fn line(mode: &str, source: &str, kind: TypeKind, value: &[u8]) -> Result<String, String> {
    let mapping = json!({"mode": mode, "columns": {"c": source}});
    let spec = spec(&mapping, &json!({"mode": "append"}));
    let mut encoder = RowEncoder::new(&spec, &[column("c", kind, "some")]).unwrap();
    let mut rows = encoder.rows();
    let encoded = encoder.encode(&run(), &record(None, Some(value)), &mut rows);
    assert_eq!(rows.len(), usize::from(encoded.is_ok()));
    let text = String::from_utf8(rows.all().copy_text().to_vec()).unwrap();
    encoded
        .map(|()| text.trim_end_matches('\n').to_owned())
        .map_err(|rejection| rejection.detail)
}

#[test]
fn values_become_the_text_of_their_column() {
    for (mode, source, kind, value, expected) in [
        ("raw", "@value", TypeKind::Text, &b"a\tb"[..], "a\\tb"),
        ("raw", "@value", TypeKind::Other, b"12", "12"),
        ("raw", "@value", TypeKind::Jsonb, b"[1]", "[1]"),
        (
            "json-document",
            "@value",
            TypeKind::Jsonb,
            b" {\"a\": 1}\n",
            "{\"a\": 1}",
        ),
        ("json-document", "@value", TypeKind::Text, b"\"a\"", "\"a\""),
        ("json-document", "@value", TypeKind::Bytea, b"1", "\\\\x31"),
        ("json-document", "@value", TypeKind::Jsonb, b"null", "\\N"),
        (
            "json-fields",
            "$.a",
            TypeKind::Other,
            b"{\"a\": 1.10}",
            "1.10",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Other,
            b"{\"a\": \"x\"}",
            "x",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"a\": \"\\\\N\"}",
            "\\\\N",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"a\": \"\\\"\"}",
            "\"",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"a\": {\"b\": 1}}",
            "{\"b\": 1}",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Jsonb,
            b"{\"a\": \"\\\\u0000\"}",
            "\"\\\\\\\\u0000\"",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Json,
            b"{\"a\": \"\\u0000\"}",
            "\"\\\\u0000\"",
        ),
        ("json-fields", "$.a", TypeKind::Text, b"{}", "\\N"),
        ("json-fields", "$.a", TypeKind::Text, b"[]", "\\N"),
        ("json-fields", "@value", TypeKind::Bytea, b"{}", "\\\\x7b7d"),
    ] {
        let shown = String::from_utf8_lossy(value);
        assert_eq!(
            line(mode, source, kind, value).as_deref(),
            Ok(expected),
            "{mode} {source} {shown}"
        );
    }
}

#[test]
fn what_cannot_become_a_row_is_named() {
    for (mode, source, kind, value, expected) in [
        (
            "raw",
            "@value",
            TypeKind::Text,
            &b"a\xff"[..],
            "column \"c\" (some, from @value) takes text, and this is none: invalid utf-8 sequence of 1 bytes from index 1",
        ),
        (
            "raw",
            "@value",
            TypeKind::Text,
            b"ab\0",
            "column \"c\" (some, from @value) cannot take the NUL character at byte 2: PostgreSQL's texts have none",
        ),
        (
            "raw",
            "@value",
            TypeKind::Json,
            b"{",
            "column \"c\" (some, from @value) takes JSON, and this is none: EOF while parsing an object at line 1 column 1",
        ),
        (
            "raw",
            "@value",
            TypeKind::Jsonb,
            b"\"\\\\\\u0000\"",
            "column \"c\" (some, from @value) cannot take \\u0000: jsonb has no NUL character",
        ),
        (
            "json-document",
            "@value",
            TypeKind::Text,
            b"no",
            "the value is no JSON: expected ident at line 1 column 2",
        ),
        (
            "json-document",
            "@value",
            TypeKind::Text,
            b"",
            "the value is no JSON: EOF while parsing a value at line 1 column 0",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"b\": 1}}",
            "the value is no JSON: trailing characters at line 1 column 9",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"\xff",
            "the value is no JSON: invalid utf-8 sequence of 1 bytes from index 0",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Other,
            b"{\"a\": [1]}",
            "column \"c\" (some, from $.a) cannot take a JSON array",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Other,
            b"{\"a\": {}}",
            "column \"c\" (some, from $.a) cannot take a JSON object",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"a\": \"\\u0000\"}",
            "column \"c\" (some, from $.a) cannot take the NUL character at byte 0: PostgreSQL's texts have none",
        ),
        (
            "json-fields",
            "$.a",
            TypeKind::Text,
            b"{\"a\": \"\\ud800\"}",
            "column \"c\" (some, from $.a) cannot take the string: unexpected end of hex escape at line 1 column 8",
        ),
    ] {
        let shown = String::from_utf8_lossy(value);
        assert_eq!(
            line(mode, source, kind, value),
            Err(expected.to_owned()),
            "{mode} {source} {shown}"
        );
    }
}

#[test]
fn tombstones_and_keys_do_what_the_spec_says() {
    let columns = [
        column("id", TypeKind::Text, "text"),
        column("v", TypeKind::Jsonb, "jsonb"),
    ];
    let mapping = json!({"mode": "json-fields", "columns": {"id": "@key", "v": "$.v"}});
    let upsert = |on: &str| json!({"mode": "upsert", "key": ["id"], "on_tombstone": on});
    let encode = |write: Value, key: Option<&[u8]>, value: Option<&[u8]>| {
        let mut encoder = RowEncoder::new(&spec(&mapping, &write), &columns).unwrap();
        let mut rows = encoder.rows();
        encoder
            .encode(&run(), &record(key, value), &mut rows)
            .map(|()| {
                let all = rows.all();
                (
                    rows.len(),
                    all.gone().to_vec(),
                    format!("{:?}", all.columns()),
                )
            })
    };
    let key: Option<&[u8]> = Some(b"k");
    assert_eq!(
        encode(upsert("delete"), key, None).unwrap(),
        (1, vec![true], r#"[[Some("k")], [None]]"#.to_owned())
    );
    assert_eq!(
        encode(upsert("delete"), key, Some(b"{\"v\": 1}")).unwrap(),
        (1, vec![false], r#"[[Some("k")], [Some("1")]]"#.to_owned())
    );
    assert_eq!(encode(upsert("ignore"), key, None).unwrap().0, 0);
    let refusals = [
        (upsert("fail"), key, None, "is a tombstone"),
        (json!({"mode": "append"}), key, None, "is a tombstone"),
        (
            upsert("delete"),
            None,
            None,
            "is part of the key and has no value",
        ),
        (
            upsert("fail"),
            None,
            Some(&b"{}"[..]),
            "is part of the key and has no value",
        ),
    ];
    for (write, key, value, expected) in refusals {
        let rejection = encode(write, key, value).unwrap_err();
        assert!(rejection.detail.contains(expected), "{rejection}");
    }
}

#[test]
fn a_record_that_is_refused_leaves_the_rows_as_they_were() {
    let columns = [
        column("a", TypeKind::Text, "text"),
        column("b", TypeKind::Other, "int4"),
    ];
    let mapping = json!({"mode": "json-fields", "columns": {"a": "$.a", "b": "$.b"}});
    for write in [
        json!({"mode": "append"}),
        json!({"mode": "upsert", "key": ["a"], "on_tombstone": "fail"}),
    ] {
        let mut encoder = RowEncoder::new(&spec(&mapping, &write), &columns).unwrap();
        let mut rows = encoder.rows();
        let mut texts = Vec::new();
        for value in [
            r#"{"a": "x", "b": 1}"#,
            r#"{"a": "refused", "b": [1]}"#,
            r#"{"a": "y", "b": 2}"#,
        ] {
            let encoded = encoder.encode(&run(), &record(None, Some(value.as_bytes())), &mut rows);
            texts.push((encoded.is_ok(), rows.len(), rows.bytes()));
        }
        assert_eq!(texts[1], (false, 1, texts[0].2));
        assert_eq!(texts[2].1, 2);
        let copied = String::from_utf8(rows.all().copy_text().to_vec()).unwrap();
        let arrays = rows.all().columns();
        assert!(
            copied == "x\t1\ny\t2\n" || arrays == [[Some("x"), Some("y")], [Some("1"), Some("2")]],
            "{copied:?} {arrays:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_encoder_panic_or_break_a_line(
        value in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            r#"\{"a": ?("([a-z\\\\"u0\t]|\\\\u0000|\\\\ud800){0,8}"|[0-9.eE+-]{1,9}|\[.{0,5}\]|null|true)\}"#.prop_map(String::into_bytes),
        ],
        key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..16)),
        millis in any::<i64>(),
    ) {
        let columns: Vec<TableColumn> = [
            ("a", TypeKind::Text), ("b", TypeKind::Jsonb), ("c", TypeKind::Bytea), ("d", TypeKind::Other), ("e", TypeKind::Other),
            ("k", TypeKind::Text),
        ].map(|(name, kind)| column(name, kind, "some")).to_vec();
        let fields = json!({"a": "$.a", "b": "$.a[0]", "c": "$", "d": "$.a", "e": "@timestamp", "k": "@key"});
        let parts = json!({"a": "@value", "b": "@value", "e": "@timestamp", "k": "@key"});
        for (mode, mapped) in [("raw", &parts), ("json-document", &parts), ("json-fields", &fields)] {
            let spec = spec(&json!({"mode": mode, "columns": mapped}), &json!({"mode": "append"}));
            let mut encoder = RowEncoder::new(&spec, &columns).unwrap();
            let mut rows = encoder.rows();
            let record = ConsumerRecord { record_offset: 0, timestamp_ms: Some(millis), key: key.as_deref(), value: Some(&value) };
            let encoded = encoder.encode(&run(), &record, &mut rows);
            let text = rows.all().copy_text();
            // Nothing of a record ends a line or a column, and all of it is text without NUL.
            let line_ends = text.iter().filter(|byte| **byte == b'\n').count();
            let column_ends = text.iter().filter(|byte| **byte == b'\t').count();
            let (lines, columns) = if encoded.is_ok() { (1, mapped.as_object().unwrap().len() - 1) } else { (0, 0) };
            prop_assert_eq!((line_ends, column_ends), (lines, columns));
            prop_assert!(std::str::from_utf8(text).is_ok() && !text.contains(&0));
        }
    }
}
