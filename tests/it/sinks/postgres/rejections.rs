//! Rows that the target refuses, and tables that it does not have any more.

use super::*;
use crate::support::unique;

/// Takes numbers below a hundred, once each.
async fn strict(world: &World, constraint: &str) -> Arc<dyn Sink> {
    world
        .run(&format!(
            "CREATE TABLE strict (value int {constraint}, pos bigint)"
        ))
        .await;
    world.sink(
        new_job(),
        &json!({
            "type": "postgres", "connection": "warehouse", "table": "public.strict",
            "mapping": {"mode": "raw", "columns": {"value": "@value", "pos": "@offset"}},
            "batch": {"max_rows": 1000, "linger": "1s"}
        }),
    )
}

fn numbers(partition: i32, values: &[(i64, &str)]) -> Vec<Record> {
    values
        .iter()
        .map(|(offset, value)| record(partition, *offset, value))
        .collect()
}

/// What the writer says of a batch, at the barrier at the latest.
async fn refusal(writer: &mut Box<dyn SinkWriter>, records: Vec<Record>) -> SinkError {
    match writer.write(&batch(records)).await {
        Err(error) => error,
        Ok(()) => writer
            .prepare(CheckpointId(9), &positions(&[]))
            .await
            .unwrap_err(),
    }
}

#[tokio::test]
async fn a_refused_row_is_named_and_everything_before_it_is_kept() {
    for (constraint, bad, words) in [
        ("", "x7", "invalid input syntax for type integer"),
        ("CHECK (value < 100)", "100", "check constraint"),
        ("UNIQUE", "5", "(5) already exists"),
        // Found at COMMIT only.
        (
            "UNIQUE DEFERRABLE INITIALLY DEFERRED",
            "5",
            "(5) already exists",
        ),
    ] {
        let world = World::new().await;
        let sink = strict(&world, constraint).await;
        let mut writer = world.writer(&sink, 1, &[(0, 0, 1), (1, 0, 1)]).await;
        let mut all = numbers(0, &[(0, "1"), (1, "2")]);
        all.extend(numbers(1, &[(0, "5"), (1, "6"), (2, bad), (3, "8")]));
        all.extend(numbers(0, &[(2, "9"), (3, "10")]));
        let error = refusal(&mut writer, all).await;
        assert_eq!(error.class, ErrorClass::Deterministic, "{error}");
        assert_eq!(error.code, Code::BlockedOnRecord, "{error}");
        assert!(error.detail.contains(words), "{error}");
        assert!(error.detail.contains("orders/1@2"), "{error}");
        let record = error.record.clone().unwrap();
        assert_eq!((record.partition, record.offset), (1, 2));
        assert_eq!(record.value_bytes, Some(bad.len()));
        assert_eq!(record.key_bytes, None);
        assert_eq!(
            record.timestamp.unwrap().timestamp_millis(),
            1_700_000_000_002
        );
        assert_eq!(
            world.number("SELECT count(*) FROM strict").await,
            4,
            "{constraint}"
        );
        assert_eq!(
            sink.progress().await.unwrap(),
            progress(&[(0, 2, 1), (1, 2, 1)]),
            "{constraint}"
        );
        // It goes on saying so.
        let again = writer
            .prepare(CheckpointId(10), &positions(&[(0, 4)]))
            .await
            .unwrap_err();
        assert_eq!(again.record, error.record);
        writer.close().await;
    }
}

#[tokio::test]
async fn the_first_of_many_bad_rows_is_found_among_thousands() {
    let world = World::new().await;
    let sink = strict(&world, "CHECK (value < 10000)").await;
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let all: Vec<Record> = (0..3_000)
        .map(|offset| {
            record(
                0,
                offset,
                if offset % 1_234 == 1_233 {
                    "99999"
                } else {
                    "1"
                },
            )
        })
        .collect();
    let error = refusal(&mut writer, all).await;
    assert_eq!(error.record.unwrap().offset, 1_233);
    assert_eq!(world.number("SELECT count(*) FROM strict").await, 1_233);
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 1_233, 1)]));
}

#[tokio::test]
async fn a_record_that_cannot_become_a_row_is_named_after_what_lies_before_it_was_written() {
    let world = World::new().await;
    world.run("CREATE TABLE docs (doc jsonb)").await;
    let sink = world.sink(
        new_job(),
        &json!({
            "type": "postgres", "connection": "warehouse", "table": "public.docs",
            "mapping": {"mode": "json-document", "columns": {"doc": "@value"}}
        }),
    );
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let all = numbers(0, &[(0, "{}"), (1, "[1]"), (2, "{"), (3, "{}")]);
    let error = writer.write(&batch(all)).await.unwrap_err();
    assert_eq!(error.code, Code::BlockedOnRecord, "{error}");
    assert_eq!(error.record.unwrap().offset, 2);
    assert_eq!(world.number("SELECT count(*) FROM docs").await, 2);
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 2, 1)]));
}

/// A table whose `value` has a type of the caller's, with a sink that appends the records' values to it.
async fn typed(world: &World, declaration: &str) -> Arc<dyn Sink> {
    world
        .run(&format!(
            "DROP TABLE IF EXISTS typed; CREATE TABLE typed (value {declaration}, pos bigint)"
        ))
        .await;
    world.sink(new_job(), &typed_spec())
}

fn typed_spec() -> Value {
    json!({
        "type": "postgres", "connection": "warehouse", "table": "public.typed",
        "mapping": {"mode": "raw", "columns": {"value": "@value", "pos": "@offset"}},
        "batch": {"max_rows": 1000, "linger": "1s"}
    })
}

/// Refuses the values `CODE:...` with that SQLSTATE.
const CHECKS: &str = "
    CREATE OR REPLACE FUNCTION checks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF NEW.value LIKE '_____:%' THEN
        RAISE 'no % here', NEW.value USING ERRCODE = left(NEW.value, 5);
      END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER checks BEFORE INSERT ON typed FOR EACH ROW EXECUTE FUNCTION checks();";

/// Codes that mostly concern a whole statement are raised for single values, too, by types and by triggers.
#[tokio::test]
async fn a_value_that_is_refused_like_a_statement_is_named_all_the_same() {
    let world = World::new().await;
    for (declaration, bad, code, trigger) in [
        ("tsvector", "'a", "42601", ""),
        ("regclass", "no_such_table", "42P01", ""),
        ("regproc", "no_such_function", "42883", ""),
        ("text", "42501:", "42501", CHECKS),
        ("text", "55000:", "55000", CHECKS),
        ("text", "0A000:", "0A000", CHECKS),
        ("text", "3F000:", "3F000", CHECKS),
    ] {
        for (before, after) in [(3, 2), (0, 2), (3, 0)] {
            let sink = typed(&world, declaration).await;
            world.run(&format!("{trigger} SELECT")).await;
            let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
            let good = if declaration == "regproc" {
                "now"
            } else {
                "pg_class"
            };
            let values = (0..before + 1 + after).map(|offset| {
                let is_bad = offset == before;
                record(0, offset, if is_bad { bad } else { good })
            });
            let error = refusal(&mut writer, values.collect()).await;
            let what = format!("{declaration} {bad}, row {before}: {error}");
            assert_eq!(error.code, Code::BlockedOnRecord, "{what}");
            assert_eq!(error.class, ErrorClass::Deterministic, "{what}");
            assert_eq!(error.record.unwrap().offset, before, "{what}");
            assert!(error.detail.contains(code), "{what}");
            let kept = world.number("SELECT count(*) FROM typed").await;
            assert_eq!(kept, before, "{what}");
            assert_eq!(
                sink.progress().await.unwrap(),
                progress(&[(0, before, 1)]),
                "{what}"
            );
            writer.close().await;
        }
    }
}

/// With nothing to compare the record with, the statement without rows decides.
#[tokio::test]
async fn a_row_by_itself_is_named_unless_the_statement_fails_without_it() {
    let world = World::new().await;
    let role = unique("writer").replace('-', "_");
    let database = world.database.name();
    world
        .run(&format!(
            "CREATE SEQUENCE numbers; CREATE ROLE {role} LOGIN;
             GRANT CREATE ON DATABASE {database} TO {role}"
        ))
        .await;
    let url = world.database.url();
    let (scheme, place) = (
        url.split_once("//").unwrap().0,
        url.split_once('@').unwrap().1,
    );
    let url = format!("{scheme}//{role}@{place}");
    for (change, bad, blamed) in [
        ("SELECT", "'a", true),
        ("DROP TABLE typed", "a", false),
        ("ALTER TABLE typed DROP COLUMN pos", "a", false),
        ("REVOKE INSERT ON typed FROM ROLE", "a", false),
        // The default of a column that is not mapped: it shows with a row only.
        ("REVOKE ALL ON SEQUENCE numbers FROM ROLE", "a", false),
    ] {
        let _by_the_owner =
            typed(&world, "tsvector, number bigint DEFAULT nextval('numbers')").await;
        world
            .run(&format!(
                "GRANT INSERT ON typed TO {role}; GRANT ALL ON SEQUENCE numbers TO {role}"
            ))
            .await;
        let sink = world.sink_by(&url, world.owner(new_job()), &typed_spec());
        let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
        world.run(&change.replace("ROLE", &role)).await;
        let error = refusal(&mut writer, numbers(0, &[(0, bad)])).await;
        let code = if blamed {
            Code::BlockedOnRecord
        } else {
            Code::SinkError
        };
        assert_eq!(error.code, code, "{change}: {error}");
        assert_eq!(error.record.is_some(), blamed, "{change}: {error}");
        writer.close().await;
    }
    world
        .run(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))
        .await;
}

/// Deletions that the table takes say nothing of a statement that inserts.
#[tokio::test]
async fn a_table_that_takes_deletions_only_is_at_fault() {
    let world = World::new().await;
    world
        .run(
            "CREATE TABLE latest (id text PRIMARY KEY, value text);
             CREATE FUNCTION audits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO audit VALUES (NEW.id); RETURN NEW;
             END $$;
             CREATE TRIGGER audits BEFORE INSERT ON latest FOR EACH ROW EXECUTE FUNCTION audits()",
        )
        .await;
    let sink = world.sink(
        new_job(),
        &json!({
            "type": "postgres", "connection": "warehouse", "table": "public.latest",
            "mapping": {"mode": "raw", "columns": {"id": "@key", "value": "@value"}},
            "write": {"mode": "upsert", "key": ["id"], "on_tombstone": "delete"}
        }),
    );
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let rows = (0..20).map(|offset| Record {
        partition: 0,
        offset,
        key: Some(offset.to_string()),
        value: (offset % 2 == 1).then(|| "v".to_owned()),
    });
    let error = refusal(&mut writer, rows.collect()).await;
    assert_eq!(
        (error.code, &error.record),
        (Code::SinkError, &None),
        "{error}"
    );
    for words in [
        "\"audit\" does not exist",
        "every row that was tried (6)",
        "triggers",
    ] {
        assert!(error.detail.contains(words), "{error}");
    }
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 0, 1)]));
    writer.close().await;
}

#[tokio::test]
async fn what_concerns_the_table_blames_no_record_and_says_the_remedy() {
    for (change, words) in [
        ("DROP TABLE strict", "does not exist"),
        (
            "ALTER TABLE strict DROP COLUMN value",
            "no longer what the spec was checked against",
        ),
    ] {
        let world = World::new().await;
        let sink = strict(&world, "").await;
        let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
        world.run(change).await;
        let error = refusal(&mut writer, numbers(0, &[(0, "1"), (1, "2")])).await;
        assert_eq!(
            (error.class, error.code),
            (ErrorClass::Deterministic, Code::SinkError),
            "{error}"
        );
        assert_eq!(error.record, None, "{error}");
        assert!(error.detail.contains(words), "{error}");
        assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 0, 1)]));
    }
}
