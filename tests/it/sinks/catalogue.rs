use serde_json::{Value, json};

use super::target::{Target, remedy, spec};

const KEY_AND_TOTAL: &str = "CREATE TABLE app.t (id text PRIMARY KEY, total numeric)";

/// One fault: what there is, what the spec says, and what the check must answer.
struct Case {
    /// What the owner makes in the schema `app`, which is empty before.
    made: &'static str,
    mapping: Value,
    write: Value,
    pointer: &'static str,
    says: &'static str,
    /// The statement that mends it; none where only the spec can be changed.
    remedy: Option<&'static str>,
}

fn append() -> Value {
    json!({"mode": "append"})
}

fn upsert() -> Value {
    json!({"mode": "upsert", "key": ["id"], "on_tombstone": "delete"})
}

fn fields(columns: &Value) -> Value {
    json!({"mode": "json-fields", "columns": columns})
}

/// A key from the record's key and a number from its value.
fn key_and_total() -> Value {
    fields(&json!({"id": "@key", "total": "$.total"}))
}

fn case(
    made: &'static str,
    mapping: Value,
    write: Value,
    pointer: &'static str,
    says: &'static str,
    remedy: Option<&'static str>,
) -> Case {
    Case {
        made,
        mapping,
        write,
        pointer,
        says,
        remedy,
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn on_the_table() -> Vec<Case> {
    vec![
        case(
            "",
            json!({"mode": "raw"}),
            append(),
            "/sink/table",
            "app.t does not exist",
            Some(
                r#"CREATE TABLE "app"."t" ("key" bytea, "value" bytea, "topic" text, "partition" integer, "offset" bigint, "timestamp" timestamptz);"#,
            ),
        ),
        case(
            "",
            json!({"mode": "json-document"}),
            append(),
            "/sink/table",
            "app.t does not exist",
            Some(
                r#"CREATE TABLE "app"."t" ("key" text, "document" jsonb, "topic" text, "partition" integer, "offset" bigint, "timestamp" timestamptz);"#,
            ),
        ),
        case(
            "",
            key_and_total(),
            upsert(),
            "/sink/table",
            "app.t does not exist",
            Some(r#"CREATE TABLE "app"."t" ("id" text, "total" jsonb, PRIMARY KEY ("id"));"#),
        ),
        case(
            "CREATE TABLE app.u (total numeric); CREATE VIEW app.t AS SELECT * FROM app.u",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "is a view",
            None,
        ),
        case(
            "CREATE MATERIALIZED VIEW app.t AS SELECT 1 AS total",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "is a materialized view",
            None,
        ),
        case(
            "CREATE FOREIGN TABLE app.t (total numeric) SERVER elsewhere",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "is a foreign table",
            None,
        ),
        case(
            "CREATE SEQUENCE app.t",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "is a sequence",
            None,
        ),
        case(
            "CREATE UNLOGGED TABLE app.t (total numeric)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "is unlogged",
            Some(r#"ALTER TABLE "app"."t" SET LOGGED;"#),
        ),
        case(
            "CREATE TABLE app.t (id text, total numeric) PARTITION BY LIST (id);
             CREATE UNLOGGED TABLE app.one PARTITION OF app.t DEFAULT",
            key_and_total(),
            append(),
            "/sink/table",
            "the partition app.one is unlogged",
            Some("ALTER TABLE app.one SET LOGGED;"),
        ),
        case(
            "CREATE TABLE app.t (id text, total numeric) PARTITION BY LIST (id);
             CREATE TABLE app.one PARTITION OF app.t DEFAULT;
             CREATE FOREIGN TABLE app.two PARTITION OF app.t FOR VALUES IN ('x') SERVER elsewhere",
            key_and_total(),
            append(),
            "/sink/table",
            "the partition app.two is a foreign table",
            Some(r#"ALTER TABLE "app"."t" DETACH PARTITION app.two;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric); ALTER TABLE app.t ENABLE ROW LEVEL SECURITY",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "row level security",
            Some(r#"ALTER TABLE "app"."t" DISABLE ROW LEVEL SECURITY;"#),
        ),
        case(
            "CREATE TABLE app.t (id text PRIMARY KEY, total numeric);
             CREATE RULE \"my rule\" AS ON UPDATE TO app.t DO ALSO NOTHING",
            key_and_total(),
            upsert(),
            "/sink/table",
            "has the rule \"my rule\"",
            Some(r#"DROP RULE "my rule" ON "app"."t";"#),
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn on_columns() -> Vec<Case> {
    vec![
        case(
            "CREATE TABLE app.t (id text PRIMARY KEY)",
            key_and_total(),
            upsert(),
            "/sink/mapping/columns/total",
            "has no column \"total\"",
            Some(r#"ALTER TABLE "app"."t" ADD COLUMN "total" jsonb;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric, dropped text); ALTER TABLE app.t DROP COLUMN dropped",
            fields(&json!({"total": "$.total", "odd \"name\"/~": "@offset"})),
            append(),
            "/sink/mapping/columns/odd \"name\"~1~0",
            "has no column",
            Some(r#"ALTER TABLE "app"."t" ADD COLUMN "odd ""name""/~" bigint;"#),
        ),
        case(
            "CREATE TABLE app.t (base numeric, total numeric GENERATED ALWAYS AS (base * 2) STORED)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/mapping/columns/total",
            "is generated",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "total" DROP EXPRESSION;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric, number bigint GENERATED ALWAYS AS IDENTITY)",
            fields(&json!({"total": "$.total", "number": "@offset"})),
            append(),
            "/sink/mapping/columns/number",
            "GENERATED ALWAYS AS IDENTITY",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "number" SET GENERATED BY DEFAULT;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric, note text NOT NULL, fine text NOT NULL DEFAULT '', also bigserial, as_well int GENERATED ALWAYS AS IDENTITY);
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA app TO ROLE",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/mapping/columns",
            "the column \"note\" (text) takes no null",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "note" DROP NOT NULL;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric, id int PRIMARY KEY)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/mapping/columns",
            "the column \"id\" (integer) takes no null",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "id" ADD GENERATED BY DEFAULT AS IDENTITY;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric, id text PRIMARY KEY)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/mapping/columns",
            "the column \"id\" (text) takes no null",
            None,
        ),
        case(
            "CREATE TABLE app.t (total numeric, id bigserial)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "needs the sequence app.t_id_seq",
            Some("GRANT USAGE ON SEQUENCE app.t_id_seq TO \"ROLE\";"),
        ),
        case(
            "CREATE TABLE app.t (\"offset\" integer)",
            fields(&json!({"offset": "@offset"})),
            append(),
            "/sink/mapping/columns/offset",
            "has the type integer, which does not take @offset: use bigint",
            None,
        ),
        case(
            "CREATE DOMAIN app.small AS smallint; CREATE TABLE app.t (part app.small)",
            fields(&json!({"part": "@partition"})),
            append(),
            "/sink/mapping/columns/part",
            "which does not take @partition: use integer or bigint",
            None,
        ),
        case(
            "CREATE TABLE app.t (at date)",
            fields(&json!({"at": "@timestamp"})),
            append(),
            "/sink/mapping/columns/at",
            "use timestamptz",
            None,
        ),
        case(
            "CREATE TABLE app.t (doc hstore_like)",
            json!({"mode": "json-document", "columns": {"doc": "@value"}}),
            append(),
            "/sink/mapping/columns/doc",
            "use jsonb, json, text or bytea",
            None,
        ),
        case(
            "CREATE TABLE app.t (tags text[])",
            fields(&json!({"tags": "$.tags"})),
            append(),
            "/sink/mapping/columns/tags",
            "has the type text[], which does not take $.tags: use jsonb",
            None,
        ),
        case(
            "CREATE TABLE app.t (total name)",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/mapping/columns/total",
            "has the type name, which keeps the first 63 bytes of a text",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "total" TYPE text;"#),
        ),
        case(
            "CREATE DOMAIN app.flag AS \"char\" CHECK (VALUE <> 'x'); CREATE TABLE app.t (topic app.flag)",
            fields(&json!({"topic": "@topic"})),
            append(),
            "/sink/mapping/columns/topic",
            "has the type app.flag, which keeps the first byte of a text",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "topic" TYPE text;"#),
        ),
        case(
            "CREATE TABLE app.t (id name PRIMARY KEY, total numeric)",
            key_and_total(),
            upsert(),
            "/sink/mapping/columns/id",
            "has the type name",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "id" TYPE text;"#),
        ),
        case(
            "CREATE TABLE app.t (id name, total numeric) PARTITION BY LIST (id)",
            key_and_total(),
            append(),
            "/sink/mapping/columns/id",
            "keeps its type: make the table anew with text",
            None,
        ),
    ]
}

fn on_keys_and_rights() -> Vec<Case> {
    let no_index = "no unique index of app.t on just (\"id\")";
    let make_index = Some(r#"CREATE UNIQUE INDEX ON "app"."t" ("id");"#);
    vec![
        case(
            "CREATE TABLE app.t (id text, total numeric); CREATE INDEX ON app.t (id);
             CREATE UNIQUE INDEX ON app.t (id, total); CREATE UNIQUE INDEX ON app.t (lower(id))",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            no_index,
            make_index,
        ),
        case(
            "CREATE TABLE app.t (id text, total numeric); CREATE UNIQUE INDEX part_of ON app.t (id) WHERE total > 0",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "\"part_of\" is partial",
            make_index,
        ),
        case(
            "CREATE TABLE app.t (id text UNIQUE, total numeric, CONSTRAINT late PRIMARY KEY (id) DEFERRABLE)",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "the constraint \"late\" is deferrable",
            Some(r#"ALTER TABLE "app"."t" DROP CONSTRAINT "late", ADD PRIMARY KEY ("id");"#),
        ),
        case(
            "CREATE TABLE app.t (id text, total numeric) PARTITION BY RANGE (total)",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "is partitioned by total",
            None,
        ),
        case(
            "CREATE TABLE app.t (id json, total numeric)",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "knows no equality",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "id" TYPE jsonb;"#),
        ),
        case(
            "CREATE TABLE app.t (total numeric); REVOKE ALL ON app.t FROM ROLE",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "lacks INSERT on app.t",
            Some("GRANT INSERT ON TABLE \"app\".\"t\" TO \"ROLE\";"),
        ),
        case(
            "CREATE TABLE app.t (id text PRIMARY KEY, total numeric); REVOKE ALL ON app.t FROM ROLE; GRANT INSERT ON app.t TO ROLE",
            key_and_total(),
            upsert(),
            "/sink/table",
            "lacks SELECT, UPDATE, DELETE on app.t",
            Some("GRANT SELECT, UPDATE, DELETE ON TABLE \"app\".\"t\" TO \"ROLE\";"),
        ),
        case(
            "CREATE TABLE app.t (total numeric); REVOKE USAGE ON SCHEMA app FROM ROLE",
            fields(&json!({"total": "$.total"})),
            append(),
            "/sink/table",
            "may not use the schema \"app\"",
            Some("GRANT USAGE ON SCHEMA \"app\" TO \"ROLE\";"),
        ),
        case(
            "CREATE TABLE app.t (id text COLLATE loose PRIMARY KEY, total numeric)",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "the nondeterministic collation public.loose",
            Some(r#"ALTER TABLE "app"."t" ALTER COLUMN "id" TYPE text COLLATE "C";"#),
        ),
        case(
            "CREATE TABLE app.t (id text PRIMARY KEY, total numeric); CREATE UNIQUE INDEX any_case ON app.t (id COLLATE loose)",
            key_and_total(),
            upsert(),
            "/sink/write/key",
            "the unique index \"any_case\"",
            Some(r#"DROP INDEX "app"."any_case"; CREATE UNIQUE INDEX ON "app"."t" ("id");"#),
        ),
        case(
            "CREATE TABLE app.t (id numeric(6,2), total numeric, UNIQUE (id)) PARTITION BY HASH (id)",
            fields(&json!({"id": "$.total"})),
            json!({"mode": "upsert", "key": ["id"], "on_tombstone": "ignore"}),
            "/sink/write/key",
            "keeps its type: make the table anew with numeric",
            None,
        ),
    ]
}

async fn run(target: &mut Target, cases: Vec<Case>) {
    for case in cases {
        let made = case.made;
        target
            .run(
                "DROP SCHEMA IF EXISTS app CASCADE; CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO ROLE;
                 ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT ALL ON TABLES TO ROLE",
            )
            .await;
        target.run(made).await;
        let spec = spec("app.t", &case.mapping, &case.write);
        let faults = target.check(&spec).await;
        let [fault] = &faults[..] else {
            panic!("{made}: {faults:#?}");
        };
        assert_eq!(fault.pointer, case.pointer, "{made}");
        assert!(fault.message.contains(case.says), "{made}: {fault}");
        let expected = case.remedy.map(|text| text.replace("ROLE", &target.role));
        assert_eq!(remedy(fault), expected, "{made}");
        let Some(expected) = expected else {
            continue;
        };
        // What was made helps where it is said to, and then a record can be written.
        assert_eq!(target.mend(&spec).await[0], expected);
        let written = target
            .write(&spec, &[(Some(br#""k""#), Some(br#"{"total": 12}"#))])
            .await;
        written.unwrap_or_else(|error| panic!("{made}: {error}"));
        assert_eq!(
            target.lines("SELECT count(*)::text FROM app.t").await,
            ["1"]
        );
    }
}

#[tokio::test]
async fn each_fault_is_named_with_the_statement_that_mends_it() {
    let mut target = Target::create().await;
    target
        .run(
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing;
             CREATE TYPE hstore_like AS ENUM ('a');
             CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        )
        .await;
    run(&mut target, on_the_table()).await;
    run(&mut target, on_columns()).await;
    run(&mut target, on_keys_and_rights()).await;
    target.finish().await;
}

#[tokio::test]
async fn a_table_is_made_from_nothing_by_the_statements_alone() {
    let mut target = Target::create().await;
    let spec = spec(
        "\"My Shop\".\"Or\"\"ders\"",
        &fields(&json!({"id": "@key", "b": "$.b", "at": "@timestamp", "o": "@offset"})),
        &json!({"mode": "upsert", "key": ["o", "id"], "on_tombstone": "ignore"}),
    );
    let run = target.mend(&spec).await;
    let role = &target.role;
    assert_eq!(
        run,
        [
            r#"CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."Or""ders" ("id" text, "o" bigint, "b" jsonb, "at" timestamptz, PRIMARY KEY ("o", "id"));"#.to_owned(),
            format!(r#"GRANT USAGE ON SCHEMA "My Shop" TO "{role}";"#),
            format!(r#"GRANT SELECT, INSERT, UPDATE ON TABLE "My Shop"."Or""ders" TO "{role}";"#),
        ]
    );
    target
        .write(&spec, &[(Some(b"k"), Some(br#"{"b": [1]}"#))])
        .await
        .unwrap();
    assert_eq!(
        target
            .lines(r#"SELECT t::text FROM "My Shop"."Or""ders" AS t"#)
            .await,
        [r#"(k,0,[1],"2026-12-01 17:19:36.123+00")"#]
    );
    target.finish().await;
}

#[tokio::test]
async fn rights_on_the_columns_that_are_used_are_enough() {
    let mut target = Target::create().await;
    target
        .run(&format!(
            "CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO ROLE; {KEY_AND_TOTAL}; ALTER TABLE app.t ADD COLUMN other int;
             GRANT SELECT (id, total), INSERT (id, total), UPDATE (total) ON app.t TO ROLE"
        ))
        .await;
    let spec = spec(
        "app.t",
        &key_and_total(),
        &json!({"mode": "upsert", "key": ["id"], "on_tombstone": "fail"}),
    );
    assert_eq!(target.check(&spec).await, []);
    for total in ["1", "2"] {
        let value = format!(r#"{{"total": {total}}}"#);
        target
            .write(&spec, &[(Some(b"k"), Some(value.as_bytes()))])
            .await
            .unwrap();
    }
    assert_eq!(target.lines("SELECT t::text FROM app.t").await, ["(k,2,)"]);
    target.finish().await;
}

/// Where the program keeps its own state in the target database, only its own tables are refused.
#[tokio::test]
async fn a_table_of_the_store_is_no_target() {
    let mut target = Target::create().await;
    for table in ["installation", "job_leases", "checkpoint_offsets", "orders"] {
        target
            .run(&format!(
                "CREATE TABLE public.{table} (id text, total text)"
            ))
            .await;
    }
    for table in ["job_leases", "events"] {
        let refused = target
            .check(&spec(
                &format!("public.{table}"),
                &key_and_total(),
                &Value::Null,
            ))
            .await;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(
            format!("{refused:?}").contains("its own state"),
            "{refused:?}"
        );
    }
    let beside = target
        .check(&spec("public.orders", &key_and_total(), &Value::Null))
        .await;
    assert!(
        !format!("{beside:?}").contains("its own state"),
        "{beside:?}"
    );
    target.finish().await;
}

#[tokio::test]
async fn the_examples_of_the_documentation_fit_their_tables() {
    let mut target = Target::create().await;
    let page = include_str!("../../../docs/sinks/postgres.md");
    let (_, examples) = page.split_once("## Examples").unwrap();
    let blocks: Vec<&str> = examples.split("```").skip(1).step_by(2).collect();
    assert!(blocks.len() >= 6, "{blocks:?}");
    for pair in blocks.chunks(2) {
        let [sink, table] = pair else {
            panic!("{pair:?}");
        };
        let sink: Value = serde_json::from_str(sink.strip_prefix("json").unwrap()).unwrap();
        target.run(table.strip_prefix("sql").unwrap()).await;
        let write = sink.get("write").unwrap_or(&Value::Null);
        let spec = spec(sink["table"].as_str().unwrap(), &sink["mapping"], write);
        let grants = target.mend(&spec).await;
        assert!(
            grants
                .iter()
                .all(|statement| statement.starts_with("GRANT")),
            "{grants:?}"
        );
    }
    target.finish().await;
}

/// Types of a key's column, and what the check turns them into; none where it leaves them.
const KEY_TYPES: &[(&str, Option<&str>)] = &[
    ("numeric(6,2)", Some("numeric")),
    ("numeric(6,2)[]", Some("numeric[]")),
    ("timestamp(3)", Some("timestamp without time zone")),
    ("timestamptz(0)", Some("timestamp with time zone")),
    ("time(2)", Some("time without time zone")),
    ("timetz(1)", Some("time with time zone")),
    ("interval(3)", Some("interval")),
    ("interval day to minute", Some("interval")),
    ("varchar(20)", None),
    ("varchar(20) COLLATE \"und-x-icu\"", None),
    ("app.above_price", Some("numeric")),
    ("app.loose_text", Some("text COLLATE \"C\"")),
    ("app.exact", None),
    ("numeric", None),
    ("timestamptz(6)", None),
    ("time", None),
    ("interval(6)", None),
    ("interval", None),
    ("char(3)", None),
    ("bit(4)", None),
    ("varbit(4)", None),
    ("text COLLATE \"und-x-icu\"", None),
];

#[tokio::test]
async fn a_key_is_stored_as_the_record_has_it_or_refused() {
    let mut target = Target::create().await;
    target
        .run(
            "CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO ROLE;
             ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT ALL ON TABLES TO ROLE;
             CREATE COLLATION app.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE DOMAIN app.price AS numeric(6,2); CREATE DOMAIN app.above_price AS app.price CHECK (VALUE > 0);
             CREATE DOMAIN app.loose_text AS text COLLATE app.loose; CREATE DOMAIN app.exact AS numeric CHECK (VALUE > 0)",
        )
        .await;
    let spec = spec("app.t", &key_and_total(), &upsert());
    for (sql_type, wanted) in KEY_TYPES {
        target
            .run(&format!(
                "DROP TABLE IF EXISTS app.t; CREATE TABLE app.t (id {sql_type} PRIMARY KEY, total numeric)"
            ))
            .await;
        let statements = wanted
            .map(|wanted| format!(r#"ALTER TABLE "app"."t" ALTER COLUMN "id" TYPE {wanted};"#));
        let faults = target.check(&spec).await;
        for fault in &faults {
            assert_eq!(fault.pointer, "/sink/write/key", "{sql_type}");
            assert!(fault.message.contains("the key's column \"id\""), "{fault}");
        }
        let run = target.mend(&spec).await;
        assert_eq!(run, Vec::from_iter(statements), "{sql_type}");
    }
    target.finish().await;
}

/// A type of the key before it is mended, and the keys of a record and of the tombstone that is to find it.
const FOUND: &[(&str, &str, &str)] = &[
    ("numeric(6,2)", "1.005", "1.005"),
    ("varchar(3)", "abc", "abc"),
    ("app.price", "1.005", "1.005"),
    ("char(3)", "a", "a  "),
    ("char(3)", "abc   ", "abc"),
];

#[tokio::test]
async fn a_tombstone_finds_the_row_of_its_key() {
    let mut target = Target::create().await;
    target
        .run(
            "CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO ROLE; CREATE DOMAIN app.price AS numeric(6,2);
             ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT ALL ON TABLES TO ROLE",
        )
        .await;
    let spec = spec("app.t", &key_and_total(), &upsert());
    for (sql_type, key, again) in FOUND {
        target
            .run(&format!(
                "DROP TABLE IF EXISTS app.t; CREATE TABLE app.t (id {sql_type} PRIMARY KEY, total numeric)"
            ))
            .await;
        target.mend(&spec).await;
        let total: &[u8] = br#"{"total": 1}"#;
        let rows = [(Some(key.as_bytes()), Some(total))];
        target.write(&spec, &rows).await.unwrap();
        assert_eq!(
            target.lines("SELECT total::text FROM app.t").await,
            ["1"],
            "{sql_type}"
        );
        let rows = [(Some(again.as_bytes()), None)];
        target.write(&spec, &rows).await.unwrap();
        assert!(
            target
                .lines("SELECT t::text FROM app.t AS t")
                .await
                .is_empty(),
            "{sql_type}"
        );
    }
    target.finish().await;
}

#[tokio::test]
async fn numeric_and_timestamp_take_where_a_record_lies() {
    let mut target = Target::create().await;
    target
        .run(
            "CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO ROLE; CREATE TABLE app.t (o numeric, p numeric, at timestamp);
             GRANT INSERT ON app.t TO ROLE",
        )
        .await;
    let spec = spec(
        "app.t",
        &fields(&json!({"o": "@offset", "p": "@partition", "at": "@timestamp"})),
        &append(),
    );
    assert_eq!(target.check(&spec).await, []);
    target.write(&spec, &[(None, Some(b"{}"))]).await.unwrap();
    assert_eq!(
        target.lines("SELECT t::text FROM app.t AS t").await,
        [r#"(0,3,"2026-12-01 17:19:36.123")"#]
    );
    target.finish().await;
}
