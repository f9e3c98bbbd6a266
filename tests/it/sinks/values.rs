use serde_json::json;

use super::target::{KeyAndValue, Target, record, run, spec};

/// What a value becomes in a column of a type: JSON, type, and the column as PostgreSQL shows it (`None` is null).
const VALUES: &[(&str, &str, Option<&str>)] = &[
    (r#""5""#, "int", Some("5")),
    ("-7", "smallint", Some("-7")),
    ("9223372036854775807", "bigint", Some("9223372036854775807")),
    (
        "123456789012345678901234567890.123456789",
        "numeric",
        Some("123456789012345678901234567890.123456789"),
    ),
    ("1e3", "numeric", Some("1000")),
    ("0.1", "double precision", Some("0.1")),
    ("9007199254740993", "text", Some("9007199254740993")),
    ("true", "boolean", Some("t")),
    (r#""yes""#, "boolean", Some("t")),
    ("true", "text", Some("true")),
    ("null", "text", None),
    ("null", "jsonb", None),
    (
        r#""2026-11-29T12:00:00+01:00""#,
        "timestamptz",
        Some("2026-11-29 11:00:00+00"),
    ),
    (r#""2026-11-29""#, "date", Some("2026-11-29")),
    (
        r#""6F9619FF-8B86-D011-B42D-00C04FC964FF""#,
        "uuid",
        Some("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    ),
    (
        r#"{"b":1,"a":[1, 2]}"#,
        "json",
        Some(r#"{"b":1,"a":[1, 2]}"#),
    ),
    (
        r#"{"b":1,"a":[1, 2]}"#,
        "jsonb",
        Some(r#"{"a": [1, 2], "b": 1}"#),
    ),
    (
        r#"{"b":1,"a":[1, 2]}"#,
        "text",
        Some(r#"{"b":1,"a":[1, 2]}"#),
    ),
    (r#""text""#, "jsonb", Some(r#""text""#)),
    (
        "12345678901234567890.5",
        "jsonb",
        Some("12345678901234567890.5"),
    ),
    (
        r#""a\tb\nc\\d\r\"e\" \u00fc \ud83d\ude00""#,
        "text",
        Some("a\tb\nc\\d\r\"e\" ü 😀"),
    ),
    (r#""\\N""#, "text", Some("\\N")),
    (r#""\\.""#, "text", Some("\\.")),
    (r#""""#, "text", Some("")),
    (r#""ab""#, "varchar(3)", Some("ab")),
    (r#""ab""#, "char(3)", Some("ab ")),
    (r#""101""#, "bit(3)", Some("101")),
    (r#""ü\u0001""#, "bytea", Some("\\xc3bc01")),
    ("[1]", "bytea", Some("\\x5b315d")),
    (r#""sad""#, "mood", Some("sad")),
    (r#""abc""#, "short", Some("abc")),
    (r#""10.0.0.1""#, "inet", Some("10.0.0.1")),
    (r#""1 day""#, "interval", Some("1 day")),
];

/// What a type refuses: the same either way, and never cut or rounded without a word.
const REFUSED: &[(&str, &str)] = &[
    (r#""abcd""#, "varchar(3)"),
    (r#""abcd""#, "char(3)"),
    (r#""1010""#, "bit(3)"),
    (r#""abcd""#, "short"),
    ("2147483648", "int"),
    ("1.5", "int"),
    (r#""glad""#, "mood"),
];

#[tokio::test]
async fn values_arrive_exactly_in_both_ways_of_writing() {
    let mut target = Target::create().await;
    let mut types: Vec<&str> = Vec::new();
    for sql_type in VALUES
        .iter()
        .map(|value| value.1)
        .chain(REFUSED.iter().map(|value| value.1))
    {
        if !types.contains(&sql_type) {
            types.push(sql_type);
        }
    }
    // One column for each type.
    let columns: Vec<String> = (0..)
        .zip(&types)
        .map(|(place, sql_type): (usize, _)| format!("c{place} {sql_type}"))
        .collect();
    target
        .run(&format!(
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN short AS varchar(3);
             CREATE TABLE t (o bigint PRIMARY KEY, {}); GRANT ALL ON t TO ROLE",
            columns.join(", ")
        ))
        .await;
    let all = VALUES
        .iter()
        .map(|(json, sql_type, text)| (json, sql_type, Some(*text)));
    let refused = REFUSED
        .iter()
        .map(|(json, sql_type)| (json, sql_type, None));
    for (value, sql_type, expected) in all.chain(refused) {
        let place = types.iter().position(|known| known == sql_type).unwrap();
        for write in [
            json!({"mode": "append"}),
            json!({"mode": "upsert", "key": ["o"], "on_tombstone": "fail"}),
        ] {
            target.run("DELETE FROM t").await;
            let column = format!("c{place}");
            let mapping =
                json!({"mode": "json-fields", "columns": {"o": "@offset", &column: "$.v"}});
            let spec = spec("public.t", &mapping, &write);
            assert_eq!(target.check(&spec).await, [], "{sql_type}");
            let document = format!(r#"{{"v": {value}}}"#);
            let written = target
                .write(&spec, &[(None, Some(document.as_bytes()))])
                .await;
            let Some(expected) = expected else {
                assert!(written.is_err(), "{value} into {sql_type}, {write}");
                continue;
            };
            written.unwrap_or_else(|error| panic!("{value} into {sql_type}, {write}: {error}"));
            let shown = format!(
                "SELECT CASE WHEN {column} IS NULL THEN 'null' ELSE '=' || format('%s', {column}) END FROM t"
            );
            let expected = expected.map_or_else(|| "null".to_owned(), |text| format!("={text}"));
            assert_eq!(
                target.lines(&shown).await,
                [expected],
                "{value} into {sql_type}, {write}"
            );
        }
    }
    target.finish().await;
}

#[tokio::test]
async fn every_byte_arrives_through_copy() {
    let mut target = Target::create().await;
    target
        .run("CREATE TABLE t (\"offset\" bigint, value bytea, key text); GRANT ALL ON t TO ROLE")
        .await;
    let mapping =
        json!({"mode": "raw", "columns": {"offset": "@offset", "value": "@value", "key": "@key"}});
    let spec = spec("public.t", &mapping, &json!({"mode": "append"}));
    let bytes: Vec<u8> = (0..=255).collect();
    let text: String = (1..0x2ff).filter_map(char::from_u32).collect();
    let mut records: Vec<KeyAndValue<'_>> = vec![
        (Some(text.as_bytes()), Some(&bytes)),
        (None, None),
        (Some(b""), Some(b"")),
    ];
    let words: Vec<String> = [
        "\\", "\\\\", "\t", "\n", "\r\n", "\\.", "\\N", "\\x", "\"", "'",
    ]
    .iter()
    .flat_map(|word| [(*word).to_owned(), format!("a{word}b{word}")])
    .collect();
    records.extend(
        words
            .iter()
            .map(|word| (Some(word.as_bytes()), Some(word.as_bytes()))),
    );
    target.write(&spec, &records).await.unwrap();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let expected: Vec<String> = records
        .iter()
        .map(|(key, value)| {
            format!(
                "{} {}",
                key.map_or("-".to_owned(), hex),
                value.map_or("-".to_owned(), hex)
            )
        })
        .collect();
    let sql = "SELECT coalesce(encode(convert_to(key, 'UTF8'), 'hex'), '-') || ' ' || coalesce(encode(value, 'hex'), '-')
               FROM t ORDER BY \"offset\"";
    assert_eq!(target.lines(sql).await, expected);
    target.finish().await;
}

#[tokio::test]
async fn the_last_row_of_a_key_wins_whatever_its_text_looks_like() {
    let mut target = Target::create().await;
    target
        .run("CREATE TABLE t (id numeric PRIMARY KEY, v text); GRANT ALL ON t TO ROLE")
        .await;
    let mapping = json!({"mode": "json-fields", "columns": {"id": "@key", "v": "$.v"}});
    let write = json!({"mode": "upsert", "key": ["id"], "on_tombstone": "delete"});
    let spec = spec("public.t", &mapping, &write);
    let row = |key: &'static str, value: &'static str| -> KeyAndValue<'static> {
        let value = if value.is_empty() {
            None
        } else {
            Some(value.as_bytes())
        };
        (Some(key.as_bytes()), value)
    };
    target
        .run("INSERT INTO t VALUES (3, 'old'), (4, 'old'), (5, 'old')")
        .await;
    let records = [
        row("1", r#"{"v": "first"}"#),
        row("1.0", r#"{"v": "second"}"#),
        row("01", r#"{"v": "third"}"#),
        row("2", r#"{"v": "gone"}"#),
        row("2.00", ""),
        row("3", ""),
        row("3.0", r#"{"v": "again"}"#),
        row("4", r#"{"v": "between"}"#),
        row("4.0", ""),
        row("6", ""),
    ];
    let expected = ["1.0=third", "3=again", "5=old"];
    // In one chunk, and in any two.
    for split in 0..records.len() {
        let mut encoder = target.encoder(&spec).await;
        for part in [&records[..split], &records[split..]] {
            let mut rows = encoder.rows();
            for (offset, (key, value)) in (0..).zip(part) {
                encoder
                    .encode(&run(), &record(offset, *key, *value), &mut rows)
                    .unwrap();
            }
            target.send(&encoder, &rows).await.unwrap();
        }
        let found = target
            .lines("SELECT trim_scale(id)::text || '=' || v FROM t ORDER BY id")
            .await;
        assert_eq!(
            found,
            expected.map(|line| line.replace(".0", "")),
            "split at {split}"
        );
        target
            .run("TRUNCATE t; INSERT INTO t VALUES (3, 'old'), (4, 'old'), (5, 'old')")
            .await;
    }
    target.finish().await;
}

#[tokio::test]
async fn a_part_of_the_rows_can_be_written_by_itself() {
    let mut target = Target::create().await;
    target
        .run("CREATE TABLE t (id text PRIMARY KEY, v int); GRANT ALL ON t TO ROLE")
        .await;
    let mapping = json!({"mode": "json-fields", "columns": {"id": "@key", "v": "$.v"}});
    let write = json!({"mode": "upsert", "key": ["id"], "on_tombstone": "ignore"});
    let spec = spec("public.t", &mapping, &write);
    let mut encoder = target.encoder(&spec).await;
    let mut rows = encoder.rows();
    for (offset, value) in (0..).zip([r#"{"v": 1}"#, r#"{"v": "bad"}"#, r#"{"v": 3}"#]) {
        let key = format!("k{offset}");
        let record = record(offset, Some(key.as_bytes()), Some(value.as_bytes()));
        encoder.encode(&run(), &record, &mut rows).unwrap();
    }
    assert!(target.send(&encoder, &rows).await.is_err());
    let columns = rows.slice(2..3).columns();
    assert_eq!(columns, [vec![Some("k2")], vec![Some("3")]]);
    assert_eq!(
        rows.slice(1..2).columns(),
        [vec![Some("k1")], vec![Some("bad")]]
    );
    assert_eq!(rows.origin(1).1, 1);
    target.finish().await;
}
