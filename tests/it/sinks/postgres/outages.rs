//! Connections that break, and commits whose answer nobody heard.

use fault_proxy::{CommitFault, Protocol, Proxy};

use super::*;
use crate::support::Cluster;

const WRITERS: &str = "datname = current_database() AND application_name = 'handover'";

async fn kill_writers(world: &World) -> i64 {
    let kill =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {WRITERS}");
    world.number(&kill).await
}

#[tokio::test]
async fn a_connection_that_broke_is_replaced_without_a_word() {
    let world = World::new().await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    for round in 0..5 {
        assert!(kill_writers(&world).await > 0, "no session to end");
        writer
            .write(&batch(records(0, round * 10..round * 10 + 10)))
            .await
            .unwrap();
        writer
            .prepare(CheckpointId(round + 2), &positions(&[(0, round * 10 + 10)]))
            .await
            .unwrap();
    }
    assert_eq!(world.offsets(0).await, (0..50).collect::<Vec<_>>());
    writer.close().await;
}

#[tokio::test]
async fn a_commit_that_was_cut_before_it_took_place_is_done_again() {
    let world = World::new().await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let gate = Gate::close(&world).await;
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    gate.somebody_waits(&world).await;
    assert_eq!(kill_writers(&world).await, 1);
    gate.open().await;
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 3)]))
        .await
        .unwrap();
    assert_eq!(world.offsets(0).await, [0, 1, 2]);
    writer.close().await;
}

#[tokio::test]
async fn a_commit_that_took_place_unheard_is_not_done_twice() {
    // A server that waits for a standby that does not exist has committed, and does not say so.
    let cluster = Cluster::create();
    let sql = PgPoolOptions::new()
        .max_connections(4)
        .connect(cluster.url())
        .await
        .unwrap();
    let run = async |text: &'static str| sql.execute(text).await.unwrap();
    run("CREATE TABLE orders (part int, pos bigint, key text, value text)").await;
    let owner = SinkOwner {
        install: InstallId(Uuid::new_v4()),
        job: new_job(),
    };
    let sink = sinks(cluster.url())
        .sink(&sink_spec(&raw()), &job_name(), owner)
        .unwrap();
    sink.recover(LeaseEpoch(1)).await.unwrap();
    let mut writer = sink.writer(0).await.unwrap();
    writer.assign(&beginnings(&[(0, 0, 1)])).await.unwrap();
    run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    run("ALTER SYSTEM SET synchronous_commit = 'on'").await;
    run("SELECT pg_reload_conf()").await;
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    let count = async |text: &'static str| -> i64 {
        sqlx::query(text).fetch_one(&sql).await.unwrap().get(0)
    };
    until("the writer waits for a standby", async || {
        count("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await == 1
    })
    .await;
    run("ALTER SYSTEM RESET synchronous_standby_names").await;
    run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        .await;
    run("SELECT pg_reload_conf()").await;
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 3)]))
        .await
        .unwrap();
    assert_eq!(count("SELECT count(*) FROM orders").await, 3);
    writer.write(&batch(records(0, 3..4))).await.unwrap();
    writer
        .prepare(CheckpointId(3), &positions(&[(0, 4)]))
        .await
        .unwrap();
    assert_eq!(count("SELECT count(*) FROM orders").await, 4);
    writer.close().await;
}

#[tokio::test]
async fn a_target_that_is_away_is_waited_for_and_said() {
    let cluster = Cluster::create();
    let sql = PgPoolOptions::new()
        .max_connections(1)
        .connect(cluster.url())
        .await
        .unwrap();
    sql.execute("CREATE TABLE orders (part int, pos bigint, key text, value text)")
        .await
        .unwrap();
    sql.close().await;
    let owner = SinkOwner {
        install: InstallId(Uuid::new_v4()),
        job: new_job(),
    };
    let sink = sinks(cluster.url())
        .sink(&sink_spec(&raw()), &job_name(), owner)
        .unwrap();
    sink.recover(LeaseEpoch(1)).await.unwrap();
    let mut writer = sink.writer(0).await.unwrap();
    writer.assign(&beginnings(&[(0, 0, 1)])).await.unwrap();
    cluster.control(&["kill"]);
    // Nothing to tell yet; who waited for it may go and come back.
    let early = tokio::time::timeout(Duration::from_millis(1), writer.troubled(None)).await;
    assert!(early.is_err(), "{early:?}");
    // Taken, and then not written: who listens hears of it, and so does whoever comes next.
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    let heard = tokio::time::timeout(DEADLINE, writer.troubled(None)).await;
    let heard = heard.unwrap().unwrap_err();
    assert_eq!(heard.class, ErrorClass::Infrastructure);
    assert!(heard.detail.contains("connect to database"), "{heard}");
    let told = writer
        .prepare(CheckpointId(2), &positions(&[(0, 3)]))
        .await
        .unwrap_err();
    assert_eq!(told.class, ErrorClass::Infrastructure);
    assert!(told.detail.contains("connect to database"), "{told}");
    let told = writer.write(&batch(records(0, 3..5))).await.unwrap_err();
    assert_eq!(told.class, ErrorClass::Infrastructure);
    assert_eq!(
        sink.progress().await.unwrap_err().class,
        ErrorClass::Infrastructure
    );
    cluster.control(&["up", "--fast"]);
    let works_again = async {
        let mut known = told.detail;
        while let Err(error) = writer.troubled(Some(&known)).await {
            assert_eq!(error.class, ErrorClass::Infrastructure);
            assert_ne!(error.detail, known, "told twice");
            known = error.detail;
        }
    };
    tokio::time::timeout(DEADLINE, works_again).await.unwrap();
    writer.write(&batch(records(0, 3..5))).await.unwrap();
    writer
        .prepare(CheckpointId(3), &positions(&[(0, 5)]))
        .await
        .unwrap();
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 5, 1)]));
    let mut look = PgConnection::connect(cluster.url()).await.unwrap();
    let rows: Vec<i64> = sqlx::query_scalar("SELECT pos FROM orders ORDER BY pos")
        .fetch_all(&mut look)
        .await
        .unwrap();
    assert_eq!(rows, [0, 1, 2, 3, 4]);
    writer.close().await;
}

#[tokio::test]
async fn a_deadlock_is_tried_again() {
    let world = World::new().await;
    world
        .run("CREATE TABLE latest (id text PRIMARY KEY, value text)")
        .await;
    world
        .run("INSERT INTO latest VALUES ('1', 'x'), ('2', 'x')")
        .await;
    let sink = world.sink(
        new_job(),
        &json!({
            "type": "postgres", "connection": "warehouse", "table": "public.latest",
            "mapping": {"mode": "raw", "columns": {"id": "@key", "value": "@value"}},
            "write": {"mode": "upsert", "key": ["id"], "on_tombstone": "ignore"}
        }),
    );
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    let mut other = world.sql.begin().await.unwrap();
    // PostgreSQL ends the one that notices first; the test's own session takes its time.
    other
        .execute("SET LOCAL deadlock_timeout = '60s'")
        .await
        .unwrap();
    other
        .execute("UPDATE latest SET value = 'y' WHERE id = '2'")
        .await
        .unwrap();
    let both = ["1", "2"].iter().zip(0..).map(|(key, offset)| Record {
        key: Some((*key).to_owned()),
        ..record(0, offset, "z")
    });
    writer.write(&batch(both.collect())).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock' AND application_name = 'handover'";
    until("the writer waits", async || {
        world.number(waiting).await == 1
    })
    .await;
    other
        .execute("UPDATE latest SET value = 'y' WHERE id = '1'")
        .await
        .unwrap();
    other.commit().await.unwrap();
    prepare(&mut writer, &[(0, 2)]).await;
    assert_eq!(
        world
            .texts("SELECT id || value FROM latest ORDER BY id")
            .await,
        ["1z", "2z"]
    );
    writer.close().await;
}

#[tokio::test]
async fn a_transaction_that_is_cancelled_for_its_size_is_made_smaller_until_it_gets_through() {
    let world = World::new().await;
    // A statement that ran into its time limit, without the minute that takes.
    world
        .run(
            "CREATE FUNCTION too_many() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN
                 IF (SELECT count(*) FROM new_rows) > 100 THEN
                   RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
                 END IF;
                 RETURN NULL;
               END $$;
             CREATE TRIGGER too_many AFTER INSERT ON orders REFERENCING NEW TABLE AS new_rows
               FOR EACH STATEMENT EXECUTE FUNCTION too_many()",
        )
        .await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..900))).await.unwrap();
    prepare(&mut writer, &[(0, 900)]).await;
    assert_eq!(world.offsets(0).await, (0..900).collect::<Vec<_>>());
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 900, 1)]));
    writer.close().await;
}

#[tokio::test]
async fn a_target_that_takes_no_row_in_time_is_said_and_a_checkpoint_waits_for_the_next_attempt() {
    let world = World::new().await;
    world
        .run(
            "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END $$;
             CREATE TRIGGER never BEFORE INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION never()",
        )
        .await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    let mut told = Vec::new();
    let began = std::time::Instant::now();
    for _ in 0..4 {
        let error = writer
            .prepare(CheckpointId(2), &positions(&[(0, 3)]))
            .await
            .unwrap_err();
        assert_eq!(error.class, ErrorClass::Infrastructure);
        told.push(error.detail);
    }
    assert!(told[0].contains("one row alone"), "{told:?}");
    // Each of them heard of another attempt: the pauses between these are 0.1 s and more.
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(100), "{waited:?}");
    world.run("DROP TRIGGER never ON orders").await;
    prepare(&mut writer, &[(0, 3)]).await;
    assert_eq!(world.offsets(0).await, [0, 1, 2]);
    writer.close().await;
}

#[tokio::test]
async fn work_that_is_deferred_to_the_end_has_a_statements_time_and_not_that_of_a_commit() {
    let world = World::new().await;
    // Longer than a COMMIT is waited for.
    world
        .run(
            "CREATE SEQUENCE attempts;
             CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM nextval('attempts'), pg_sleep(11); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..1))).await.unwrap();
    prepare(&mut writer, &[(0, 1)]).await;
    assert_eq!(world.offsets(0).await, [0]);
    assert_eq!(world.number("SELECT last_value FROM attempts").await, 1);
    writer.close().await;
}

/// The target's address, and its URL with another one in it.
fn through(url: &str, address: &str) -> (String, String) {
    let (front, rest) = url.split_once('@').unwrap();
    let (place, database) = rest.split_once('/').unwrap();
    (place.to_owned(), format!("{front}@{address}/{database}"))
}

/// A checkpoint as the engine takes it: a target that is away fails it, and the next one covers it.
async fn prepare(writer: &mut Box<dyn SinkWriter>, upto: &[(i32, i64)]) {
    let end = std::time::Instant::now() + DEADLINE;
    while let Err(error) = writer.prepare(CheckpointId(2), &positions(upto)).await {
        assert_eq!(error.class, ErrorClass::Infrastructure, "{error}");
        assert!(std::time::Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn every_row_counts_once_however_often_a_commit_is_cut() {
    const CUTS: i64 = 200;
    let world = World::new().await;
    let (place, _) = through(&world.database.url(), "");
    let proxy = Proxy::start(&place, Protocol::Postgres).unwrap();
    let (_, url) = through(&world.database.url(), &proxy.address().to_string());
    let sink = world.sink_by(&url, world.owner(new_job()), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1), (1, 0, 1)]).await;
    for cut in 0..CUTS {
        let fault = if cut % 2 == 0 {
            CommitFault::AnswerDropped
        } else {
            CommitFault::BeforeServer
        };
        // Every tenth time twice: the attempt after it is cut too.
        proxy.arm_touching("COPY", fault, if cut % 10 == 0 { 2 } else { 1 });
        let mut both = records(0, cut * 3..cut * 3 + 3);
        both.extend(records(1, cut..cut + 1));
        writer.write(&batch(both)).await.unwrap();
        prepare(&mut writer, &[(0, cut * 3 + 3), (1, cut + 1)]).await;
    }
    let (effective, half) = (proxy.effective(), CUTS.unsigned_abs() / 2);
    assert!(
        effective.answer_dropped >= half && effective.before_server >= half,
        "{effective:?}"
    );
    assert_eq!(world.offsets(0).await, (0..CUTS * 3).collect::<Vec<_>>());
    assert_eq!(world.offsets(1).await, (0..CUTS).collect::<Vec<_>>());
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, CUTS * 3, 1), (1, CUTS, 1)])
    );
    writer.close().await;
}

#[tokio::test]
async fn a_cable_that_is_cut_in_one_direction_is_noticed_and_the_commit_settled() {
    let world = World::new().await;
    let (place, _) = through(&world.database.url(), "");
    let proxy = Proxy::start(&place, Protocol::Postgres).unwrap();
    let (_, url) = through(&world.database.url(), &proxy.address().to_string());
    let sink = world.sink_by(&url, world.owner(new_job()), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    proxy.arm_touching("COPY", CommitFault::AnswerSwallowed, 1);
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    prepare(&mut writer, &[(0, 3)]).await;
    assert_eq!(proxy.effective().answer_swallowed, 1);
    assert_eq!(world.offsets(0).await, [0, 1, 2]);
    writer.close().await;
}
