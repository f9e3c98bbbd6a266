//! A broker that goes away, dies or freezes while a job reads: the job waits, and goes on by itself where it was.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    Scene, earliest,
    watch::{OffsetWatch, assert_history_grows},
    with,
};
use crate::support::{
    kafka::PrivateKafka,
    producer::{Load, Producer},
    server::{Output, TestServer},
    wait::{SOON, breathe, eventually, throughout},
};

fn scene_on(cluster: &PrivateKafka, name: &str) -> Scene {
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let scene = Scene::with(server, cluster.kafka.clone(), name, 2);
    let spec = with(scene.spec(&earliest()), "/checkpoint/interval", json!("1s"));
    scene.job.put_spec(&spec);
    scene
}

fn waits_for_kafka(view: &Value) -> bool {
    view["health"]["status"] == "waiting"
        && view["waiting"].to_string().contains("kafka-unreachable")
}

/// FLINK-28060: after a restart of the broker commits failed until the job was restarted. MaterializeInc/materialize PR
/// 28058: a record was delivered twice after a reconnect. vectordotdev/vector issue 21134: the lag stayed at the level of
/// the incident.
#[test]
fn a_broker_away_for_twenty_seconds_costs_nothing_but_the_time() {
    let cluster = PrivateKafka::start(1);
    let scene = scene_on(&cluster, "broker-away");
    scene.produce_all(100);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..100), (1, 0..100)]);
    eventually("a committed checkpoint", SOON, || {
        match scene.group_offsets() {
            offsets if offsets == [(0, 100), (1, 100)].into() => Ok(()),
            offsets => Err(format!("{offsets:?}")),
        }
    });
    let before = scene.job.view();

    cluster.broker("stop-broker", 1);
    let away = Instant::now();
    eventually(
        "the job says that it waits for Kafka",
        SOON,
        || match scene.job.view() {
            view if waits_for_kafka(&view) => Ok(()),
            view => Err(format!("{view:#}")),
        },
    );
    // The view of offsets still answers with what it has, and says what it has not.
    let from = Instant::now();
    let view = scene.job.offsets();
    assert!(
        from.elapsed() < Duration::from_secs(8),
        "{:?}",
        from.elapsed()
    );
    assert_ne!(view.sources["brokers"]["status"], "ok", "{view:?}");
    assert_eq!(view.sources["checkpoint"]["status"], "ok", "{view:?}");
    for row in &view.partitions {
        assert_eq!(
            (row.checkpointed, row.position),
            (Some(100), Some(100)),
            "{view:?}"
        );
        assert_eq!(
            (row.latest, row.lag.checkpoint),
            (None, None),
            "unknown is null: {view:?}"
        );
    }
    throughout(
        Duration::from_secs(20).saturating_sub(away.elapsed()),
        || {
            let view = scene.job.view();
            assert_eq!(
                (&view["state"], &view["failure"]),
                (&json!("running"), &Value::Null),
                "{view:#}"
            );
        },
    );
    cluster.broker("start-broker", 1);

    scene.produce_all(50);
    // Nothing lost, nothing twice, in order.
    scene.await_exactly(0, &[(0, 0..150), (1, 0..150)]);
    eventually("health, lag and group recover", SOON, || {
        let (job, view) = (scene.job.view(), scene.job.offsets());
        let recovered = !waits_for_kafka(&job)
            && job["waiting"] == json!([])
            && view.sources["brokers"]["status"] == "ok"
            && view
                .partitions
                .iter()
                .all(|row| row.lag == crate::support::client::Lag::ZERO);
        if recovered {
            Ok(())
        } else {
            Err(format!("{job:#} {view:?}"))
        }
    });
    let after = scene.job.view();
    assert_eq!(after["owner"], before["owner"], "the same run");
    assert_eq!(after["since"], before["since"], "the same run");
    assert_eq!(scene.group_offsets(), [(0, 150), (1, 150)].into());
}

/// confluentinc/librdkafka issue 5158: a restarted leader sent the consumer back to the start. A broker killed under load, in
/// the middle of checkpoints and of commits; offsets never go backwards, neither those of records nor those of checkpoint
/// and group, and within one run no record comes twice.
#[test]
fn a_broker_killed_under_load_sends_nobody_back() {
    let cluster = PrivateKafka::start(1);
    let scene = scene_on(&cluster, "broker-killed");
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("100ms"),
    );
    scene.job.put_spec(&spec);
    let mut watch = OffsetWatch::default();
    let load = Load::start(&cluster.kafka, &scene.name, 2, 400);
    scene.job.start(&json!({}));
    let delivered = || scene.server.log.mark();
    let more = |what: &str| {
        let seen = delivered();
        eventually(what, Duration::from_secs(60), || match delivered() {
            now if now > seen + 200 => Ok(()),
            now => Err(format!("{seen}, then {now} records")),
        });
    };
    more("records under load");
    let mut checkpoint = scene.checkpointed().0;
    for _ in 0..2 {
        watch.look(&scene);
        cluster.broker("kill-broker", 1);
        // What the client had fetched may still come; then it stands still.
        throughout(Duration::from_secs(3), || {
            assert_eq!(scene.job.state(), "running");
        });
        cluster.broker("start-broker", 1);
        more("records after the broker is back");
        eventually("checkpoints go on", SOON, || match scene.checkpointed().0 {
            id if id > checkpoint => Ok(()),
            id => Err(format!("still {id}")),
        });
        checkpoint = scene.checkpointed().0;
        watch.look(&scene);
    }
    let ends = load.end();
    let repeats = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    assert_eq!(repeats, 0, "one run delivers nothing twice");
    for (partition, offsets) in scene.server.log.since(0, &scene.name) {
        assert!(offsets.is_sorted(), "partition {partition} went backwards");
    }
    scene.job.checkpoint();
    watch.look(&scene);
    assert_eq!(scene.group_offsets(), ends);
    assert_history_grows(&scene);
}

/// fede1024/rust-rdkafka issue 611: with the broker gone, dropping a consumer blocked for the session time-out. Five jobs are
/// stopped at once while the broker is frozen: each stop keeps to its time, and the server answers meanwhile.
#[test]
fn a_frozen_broker_holds_up_neither_stops_nor_the_server() {
    let cluster = PrivateKafka::start(1);
    let scene = scene_on(&cluster, "frozen");
    scene.produce_all(10);
    let jobs: Vec<_> = (0..5)
        .map(|number| {
            let job = scene.server.job(&format!("{}-{number}", scene.name));
            let spec = with(
                scene.spec(&earliest()),
                "/sink",
                json!({"type": "blackhole"}),
            );
            job.put_spec(&spec);
            job.start(&json!({}));
            job
        })
        .collect();
    cluster.broker("pause-broker", 1);
    let stopped = std::thread::scope(|scope| {
        let stops: Vec<_> = jobs
            .iter()
            .map(|job| scope.spawn(|| (job.stop_with(&json!({"timeout": "4s"})), Instant::now())))
            .collect();
        let began = Instant::now();
        while stops.iter().any(|stop| !stop.is_finished()) {
            let asked = Instant::now();
            scene.server.api.get("/livez");
            assert!(asked.elapsed() < Duration::from_secs(1), "{asked:?}");
            assert!(began.elapsed() < SOON, "the stops do not end");
            breathe(Duration::from_millis(20));
        }
        let ends = stops.into_iter().map(|stop| stop.join().expect("a stop"));
        ends.map(|(report, at)| (report, at - began))
            .collect::<Vec<_>>()
    });
    for (report, took) in &stopped {
        assert!(*took < Duration::from_secs(15), "{took:?}: {report:#}");
        // The store keeps the last checkpoint; only the commit to the group has to wait for the broker.
        assert_eq!(report["checkpoint"]["status"], "completed", "{report:#}");
    }
    for job in &jobs {
        assert_eq!(job.state(), "stopped");
    }
    cluster.broker("resume-broker", 1);
}

/// confluentinc/librdkafka issue 5301: a cluster whose only broker was frozen answers for a moment with topics and without
/// a broker; librdkafka then forgets all brokers and connects to nobody ever again. The job and the questions about it find
/// the broker again by themselves, and no offset goes back.
#[test]
fn a_broker_frozen_under_load_is_found_again_even_by_a_client_that_forgot_it() {
    let cluster = PrivateKafka::start(1);
    let scene = scene_on(&cluster, "broker-frozen");
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("100ms"),
    );
    scene.job.put_spec(&spec);
    scene.produce_all(100);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..100), (1, 0..100)]);
    let mut watch = OffsetWatch::default();
    // Its own client may forget the broker, too: what counts below is what another one wrote.
    let _load = Load::start(&cluster.kafka, &scene.name, 2, 400);
    // Whether a question falls into the moment is up to the machine; most often one does.
    for _ in 0..3 {
        watch.look(&scene);
        cluster.broker("pause-broker", 1);
        // Longer than its session with the controller, which is frozen with it and ends it when both wake.
        throughout(Duration::from_millis(3_500), || {
            assert_eq!(scene.job.state(), "running");
        });
        cluster.broker("resume-broker", 1);
        Producer::produce_after_freeze(&cluster.kafka, &scene.name, 0, 10);
        let ends = scene.ends();
        eventually(
            "the job finds the broker again",
            Duration::from_secs(90),
            || {
                let view = scene.job.offsets();
                let has_read = view
                    .partitions
                    .iter()
                    .all(|row| row.position >= Some(ends[&row.partition]));
                if has_read && view.sources["brokers"]["status"] == "ok" {
                    Ok(())
                } else {
                    Err(format!("{view:?}"))
                }
            },
        );
    }
    scene.job.checkpoint();
    watch.look(&scene);
    assert_history_grows(&scene);
    for (partition, offsets) in scene.server.log.since(0, &scene.name) {
        assert!(
            offsets.is_sorted_by(|one, next| one < next),
            "partition {partition}: a record came twice or late"
        );
    }
}
