//! Rows that the target refuses, and tables that it does not have any more.

use super::*;

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
