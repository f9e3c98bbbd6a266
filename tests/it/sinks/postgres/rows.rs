//! What arrives, and what the progress says beside it.

use super::*;

#[tokio::test]
async fn rows_and_progress_commit_together() {
    let world = World::new().await;
    let job = new_job();
    let sink = world.sink(job, &raw());
    assert_eq!(sink.progress().await.unwrap(), SinkProgress::new());
    let mut writer = world.writer(&sink, 1, &[(0, 5, 1), (1, 0, 1)]).await;
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 5, 1), (1, 0, 1)])
    );
    let mut mixed = records(0, 5..8);
    mixed.extend(records(1, 0..2));
    mixed.extend(records(0, 8..10));
    writer.write(&batch(mixed)).await.unwrap();
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 10), (1, 2)]))
        .await
        .unwrap();
    assert_eq!(world.offsets(0).await, [5, 6, 7, 8, 9]);
    assert_eq!(world.offsets(1).await, [0, 1]);
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 10, 1), (1, 2, 1)])
    );
    writer.abort().await;
    writer.close().await;
    // The next owner begins where the target stands.
    let next = world.sink(job, &raw());
    assert_eq!(
        next.recover(LeaseEpoch(2)).await.unwrap(),
        progress(&[(0, 10, 1), (1, 2, 1)])
    );
    assert_eq!(
        next.identity(),
        format!("postgres/warehouse/{}/public.orders", world.database.name())
    );
    assert!(next.has_fence());
}

#[tokio::test]
async fn rows_are_seen_within_the_linger_and_positions_without_rows_at_the_barrier() {
    let world = World::new().await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1), (1, 0, 1)]).await;
    writer.write(&batch(records(0, 0..1))).await.unwrap();
    until("the row", async || world.rows().await == 1).await;
    // Past transaction markers.
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 3), (1, 7)]))
        .await
        .unwrap();
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 3, 1), (1, 7, 1)])
    );
    writer
        .prepare(CheckpointId(3), &positions(&[(0, 3), (1, 7)]))
        .await
        .unwrap();
    writer.close().await;
}

#[tokio::test]
async fn a_transaction_has_at_most_so_many_rows() {
    let world = World::new().await;
    let mut spec = raw();
    spec["batch"] = json!({"max_rows": 7, "linger": "5s"});
    let sink = world.sink(new_job(), &spec);
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..50))).await.unwrap();
    // Longer than a piece, so it does not wait for the linger.
    until("all rows", async || world.rows().await == 50).await;
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 50)]))
        .await
        .unwrap();
    let largest = "SELECT max(n) FROM (SELECT count(*) AS n FROM orders GROUP BY xmin::text) AS t";
    assert_eq!(world.number(largest).await, 7);
    writer.close().await;
}

#[tokio::test]
async fn subtasks_write_side_by_side() {
    let world = World::new().await;
    let sink = world.sink(new_job(), &raw());
    sink.recover(LeaseEpoch(1)).await.unwrap();
    let mut subtasks = Vec::new();
    for number in 0..3_i32 {
        let mut writer = sink.writer(number.unsigned_abs()).await.unwrap();
        subtasks.push(tokio::spawn(async move {
            writer.assign(&beginnings(&[(number, 0, 1)])).await.unwrap();
            for begin in (0..2_000).step_by(100) {
                writer
                    .write(&batch(records(number, begin..begin + 100)))
                    .await
                    .unwrap();
            }
            writer
                .prepare(CheckpointId(2), &positions(&[(number, 2_000)]))
                .await
                .unwrap();
            writer.close().await;
        }));
    }
    for subtask in subtasks {
        subtask.await.unwrap();
    }
    assert_eq!(world.rows().await, 6_000);
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 2_000, 1), (1, 2_000, 1), (2, 2_000, 1)])
    );
}

#[tokio::test]
async fn the_last_record_of_a_key_wins_and_a_tombstone_deletes() {
    let world = World::new().await;
    world
        .run("CREATE TABLE latest (id int PRIMARY KEY, value text, pos bigint)")
        .await;
    let sink = world.sink(
        new_job(),
        &json!({
            "type": "postgres", "connection": "warehouse", "table": "public.latest",
            "mapping": {"mode": "raw", "columns": {"id": "@key", "pos": "@offset", "value": "@value"}},
            "write": {"mode": "upsert", "key": ["id"], "on_tombstone": "delete"}
        }),
    );
    let keyed = |offset: i64, key: &str, value: Option<&str>| Record {
        partition: 0,
        offset,
        key: Some(key.to_owned()),
        value: value.map(str::to_owned),
    };
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let first = vec![
        keyed(0, "1", Some("a")),
        keyed(1, "2", Some("b")),
        keyed(2, "01", Some("c")),
        keyed(3, "3", Some("d")),
    ];
    writer.write(&batch(first)).await.unwrap();
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 4)]))
        .await
        .unwrap();
    let all = "SELECT id || ' ' || value || ' ' || pos FROM latest ORDER BY id";
    assert_eq!(world.texts(all).await, ["1 c 2", "2 b 1", "3 d 3"]);
    let second = vec![
        keyed(4, "2", None),
        keyed(5, "3", None),
        keyed(6, "3", Some("e")),
        keyed(7, "4", Some("f")),
        keyed(8, "4", None),
    ];
    writer.write(&batch(second)).await.unwrap();
    writer
        .prepare(CheckpointId(3), &positions(&[(0, 9)]))
        .await
        .unwrap();
    assert_eq!(world.texts(all).await, ["1 c 2", "3 e 6"]);
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 9, 1)]));
    writer.close().await;
}

#[tokio::test]
async fn what_was_not_prepared_may_be_given_up_and_no_session_stays() {
    let world = World::new().await;
    let mut spec = raw();
    spec["batch"]["linger"] = json!("10s");
    let sink = world.sink(new_job(), &spec);
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..10))).await.unwrap();
    writer.abort().await;
    writer.close().await;
    drop(writer);
    assert_eq!(world.rows().await, 0);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'handover'";
    until("no session", async || world.number(sessions).await == 0).await;
}
