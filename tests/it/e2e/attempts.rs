//! When checkpoints are tried: while what they need does not answer, while a run begins, and while the run comes to its end.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Scene, decided, earliest,
    warehouse::{Lock, Warehouse},
    watch::{assert_history_grows, await_newer_checkpoint},
    with,
};
use crate::support::{
    Database,
    client::block_on,
    kafka::PrivateKafka,
    producer::Load,
    server::{Output, TestServer},
    wait::{SOON, eventually, now_ms},
};

/// An attempt of a periodic checkpoint.
#[derive(Debug)]
struct Attempt {
    id: i64,
    began: DateTime<Utc>,
    ended: DateTime<Utc>,
    failed: bool,
}

/// Those of a job that are over, oldest first.
fn attempts(scene: &Scene) -> Vec<Attempt> {
    let instant = |value: &Value| -> DateTime<Utc> {
        let text = value.as_str().expect("a time");
        text.parse().expect("a time of RFC 3339")
    };
    let views = scene.job.checkpoints("?limit=500&kind=periodic");
    let over = views
        .iter()
        .rev()
        .filter(|view| view["ended_at"].is_string());
    over.map(|view| {
        // A completed one ends when the store has it.
        let stored = view["phases"]["store_ms"].as_i64().unwrap_or_default();
        Attempt {
            id: view["id"].as_i64().expect("a number"),
            began: instant(&view["started_at"]),
            ended: instant(&view["ended_at"]) + TimeDelta::milliseconds(stored),
            failed: view["status"] == "failed",
        }
    })
    .collect()
}

/// FLINK-9598: attempts followed each other without a pause once one had failed. FLINK-8871: those that had run out of time
/// queued up behind a sink that took nothing, and ran all at once when it came back.
#[test]
fn attempts_keep_their_pause_whatever_does_not_answer_and_none_waits_behind_another() {
    const MIN_PAUSE: i64 = 500;
    let warehouse = Warehouse::start("attempts");
    let scene = &warehouse.scene;
    let checkpoint = json!({"interval": "100ms", "timeout": "300ms", "min_pause": "500ms"});
    let applied = scene
        .job
        .api
        .patch(&scene.job.at("/spec"), &json!({"checkpoint": checkpoint}));
    assert_eq!(applied["applies"], "now", "{applied:#}");
    let load = Load::start(&scene.kafka, &scene.name, 2, 200);
    let last = await_newer_checkpoint(scene, 2);

    // The target takes nothing: each attempt runs out of time.
    let lock = Lock::take(&warehouse, "orders");
    let failed = eventually("attempts run out of time", SOON, || {
        let failed = attempts(scene).iter().filter(|one| one.failed).count();
        if failed >= 4 { Ok(failed) } else { Err(failed) }
    });
    let freed = now_ms();
    lock.free();
    let next = await_newer_checkpoint(scene, last);
    let running = attempts(scene)
        .iter()
        .filter(|one| one.ended.timestamp_millis() > freed && one.id < next)
        .count();
    assert!(running <= 1, "{running} attempts ended between: {failed}");

    // The store takes no writes: the checkpoint that was sent is open until it does, and no other is begun meanwhile.
    let store = warehouse.store();
    let refuse = |how: &str| {
        // A session that is there keeps what it began with.
        store.run(&format!(
            "SET TRANSACTION READ WRITE; ALTER DATABASE {} {how}; SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'handover'",
            store.name()
        ));
    };
    refuse("SET default_transaction_read_only = on");
    let open = eventually("the one that was sent is not settled", SOON, || {
        let open = scene.job.checkpoints("?status=uncertain");
        match open.first() {
            Some(open) => Ok(open["id"].as_i64().expect("a number")),
            None => Err("none is open"),
        }
    });
    let since = Instant::now();
    eventually("it stays the only one for two seconds", SOON, || {
        let view = scene.job.view();
        let now = view["checkpoint_in_progress"]["id"].as_i64();
        assert!(now.is_none_or(|now| now == open), "{open}: {view:#}");
        assert_eq!(view["state"], "running", "{view:#}");
        let passed = since.elapsed();
        if passed > Duration::from_secs(2) {
            Ok(())
        } else {
            Err(format!("{passed:?}"))
        }
    });
    refuse("RESET default_transaction_read_only");
    await_newer_checkpoint(scene, await_newer_checkpoint(scene, open - 1));

    let ends = load.end();
    eventually("all rows", SOON, || {
        let (rows, wanted) = (warehouse.rows(), ends.values().sum::<i64>());
        if rows == wanted {
            Ok(())
        } else {
            Err(format!("{rows} of {wanted}"))
        }
    });
    scene.job.stop();
    warehouse.assert_one_row_each(&ends);
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_history_grows(scene);
    // The first ones were taken before there was a pause.
    let all = attempts(scene);
    for pair in all.windows(2).filter(|pair| pair[0].id >= last) {
        let pause = pair[1].began - pair[0].ended;
        // The times are those of the wall clock, in milliseconds.
        assert!(
            pause >= TimeDelta::milliseconds(MIN_PAUSE - 5),
            "{pause} between {pair:#?}"
        );
    }
}

/// FLINK-40469: a checkpoint while a run was still restoring lost partitions. Both are asked for at once, and the run is
/// stopped as soon as it can be.
#[test]
fn a_checkpoint_asked_for_with_the_start_holds_every_partition() {
    const PARTITIONS: i32 = 24;
    const ROUNDS: i64 = 3;
    let scene = Scene::new("with-the-start", PARTITIONS);
    let spec = with(scene.spec(&earliest()), "/parallelism", json!(3));
    scene.job.put_spec(&spec);
    for round in 1..=ROUNDS {
        scene.produce_all(2);
        let report = std::thread::scope(|scope| {
            let start = scope.spawn(|| scene.job.start(&json!({})));
            let report = eventually("a checkpoint is taken", SOON, || {
                let answer = scene.job.operate_any("/checkpoints", &json!({}));
                match answer.body["status"].as_str() {
                    Some("succeeded") => Ok(answer.body["result"].clone()),
                    _ => Err(answer.body["code"].to_string()),
                }
            });
            start.join().expect("it starts");
            report
        });
        assert_eq!(report["status"], "completed", "{report:#}");
        let path = scene.job.at(&format!("/checkpoints/{}", report["id"]));
        let view = scene.job.api.get(&path);
        let offsets = view["offsets"][&scene.name].as_object().expect("offsets");
        assert_eq!(offsets.len(), 24, "{view:#}");
        let before = 2 * (round - 1);
        for position in offsets.values() {
            let next = position["next_offset"].as_i64();
            assert!(
                next.is_some_and(|next| (before..=before + 2).contains(&next)),
                "{view:#}"
            );
        }
        if round == ROUNDS {
            scene.await_exactly(
                0,
                &(0..PARTITIONS)
                    .map(|one| (one, 0..2 * ROUNDS))
                    .collect::<Vec<_>>(),
            );
        }
        scene.job.stop();
        let (_, offsets) = scene.checkpointed();
        assert_eq!(decided(&offsets).len(), 24, "{offsets:?}");
    }
    assert_eq!(decided(&scene.checkpointed().1), scene.ends());
    assert_history_grows(&scene);
}

/// FLINK-13226: a failure while offsets were being committed waited for the commit, and the commit for the failure. Here the
/// broker is frozen in the middle of a commit and the sink refuses what it is given.
#[test]
fn a_sink_that_fails_while_the_broker_is_frozen_in_a_commit_fails_the_job_at_once() {
    const RECORDS: usize = 900;
    let cluster = PrivateKafka::start(1);
    let target = block_on(Database::create());
    let store = block_on(Database::create());
    target.run("CREATE TABLE orders (pos bigint NOT NULL)");
    let connection = format!(
        "[connections.warehouse]\ntype = \"postgres\"\nurl = \"{}\"\n",
        target.url()
    );
    let server =
        TestServer::start_configured(&cluster.kafka, &store.url(), Output::Followed, &connection);
    let scene = Scene::with(server, cluster.kafka.clone(), "fails-in-a-commit", 1);
    scene.produce(0, RECORDS);
    let sink = json!({
        "type": "postgres", "connection": "warehouse", "table": "public.orders",
        "mapping": {"mode": "raw", "columns": {"pos": "@offset"}}, "batch": {"linger": "10ms"},
    });
    // What the client has fetched goes to the sink little by little, with a broker or without.
    let limits = json!({"records_per_s": 20, "bytes_per_s": null});
    let spec = with(
        with(scene.spec(&earliest()), "/sink", sink),
        "/limits",
        limits,
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    let rows = || -> i64 { target.column("SELECT count(*) FROM orders")[0] };
    let wait_for_rows = |more: i64| {
        eventually("rows", SOON, || match rows() {
            rows if rows >= more => Ok(rows),
            rows => Err(rows),
        })
    };
    wait_for_rows(5);
    cluster.broker("pause-broker", 1);
    scene
        .job
        .api
        .post(&scene.job.at("/checkpoints"), &json!({}));
    let is_open = |view: &Value| {
        let last = &view["last_checkpoint"];
        last["id"].as_i64() > Some(1) && last["group_commit"]["status"] == "pending"
    };
    eventually("the commit is under way", SOON, || {
        let view = scene.job.view();
        if is_open(&view) {
            Ok(())
        } else {
            Err(format!("{:#}", view["last_checkpoint"]))
        }
    });
    wait_for_rows(rows() + 5);
    let view = scene.job.view();
    assert!(is_open(&view), "it still is: {view:#}");
    target.run("ALTER TABLE orders RENAME TO away");
    let failing = Instant::now();
    let mut slowest = Duration::ZERO;
    let view = eventually("the job fails", SOON, || {
        let asked = Instant::now();
        let view = scene.job.view();
        slowest = slowest.max(asked.elapsed());
        if view["state"] == "failed" {
            Ok(view)
        } else {
            Err(format!("{view:#}"))
        }
    });
    assert!(
        failing.elapsed() < Duration::from_secs(15),
        "{:?}",
        failing.elapsed()
    );
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(
        view["failure"]["summary"].to_string().contains("orders"),
        "{view:#}"
    );
    let refused = scene.job.api.refused(
        &Method::POST,
        &scene.job.at("/checkpoints"),
        Some(&json!({})),
    );
    assert_eq!(refused.status, 409, "{refused:?}");

    // It is no trap: all of it is there once broker and table are.
    cluster.broker("resume-broker", 1);
    target.run("ALTER TABLE away RENAME TO orders");
    scene.job.stop_with(&json!({}));
    let unlimited = json!({"limits": {"records_per_s": null}});
    scene.job.api.patch(&scene.job.at("/spec"), &unlimited);
    eventually("it starts", SOON, || {
        let answer = scene.job.operate_any("/start", &json!({}));
        match answer.body["status"].as_str() {
            Some("succeeded") => Ok(()),
            _ => Err(answer.body.to_string()),
        }
    });
    let wanted = i64::try_from(RECORDS).expect("a small number");
    wait_for_rows(wanted);
    scene.job.stop();
    let distinct: Vec<i64> = target.column("SELECT count(DISTINCT pos) FROM orders");
    assert_eq!((rows(), distinct[0]), (wanted, wanted));
    assert_eq!(scene.group_offsets(), [(0, wanted)].into());
}
