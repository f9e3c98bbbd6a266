//! Partitions and topics that appear, vanish and come back while a job reads.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Scene, earliest, with};
use crate::support::{
    producer::{Load, Producer},
    unique,
    wait::{SOON, eventually},
};

fn latest() -> Value {
    json!({"mode": "latest"})
}

/// A spec that looks for partitions each second.
fn watching(spec: Value) -> Value {
    with(
        spec,
        "/source/partition_discovery",
        json!({"interval": "1s"}),
    )
}

impl Scene {
    /// A spec for all topics whose names begin with the scene's.
    fn by_pattern(&self, startup_mode: &Value) -> Value {
        let mut spec = watching(self.spec(startup_mode));
        let source = spec["source"].as_object_mut().expect("an object");
        source.remove("topics");
        source.insert(
            "topic_pattern".to_owned(),
            json!(format!("{}-.*", self.name)),
        );
        spec
    }

    /// Waits until some partitions of the job are parked for one reason; answers them.
    fn await_parked(&self, code: &str, count: usize) -> Vec<Value> {
        eventually(&format!("{count} partitions are {code}"), SOON, || {
            let view = self.job.view();
            let parked: Vec<Value> = view["parked"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|parked| parked["code"] == code)
                .cloned()
                .collect();
            if parked.len() == count {
                return Ok(parked);
            }
            Err(format!("{view:#}"))
        })
    }

    /// The entries of a kind in the history, once there is one: a run tells it beside what it does.
    fn history(&self, kind: &'static str) -> Vec<Value> {
        eventually(&format!("the history has {kind}"), SOON, || {
            let all: Vec<String> = self
                .server
                .database()
                .column("SELECT kind || ' ' || details::text FROM events ORDER BY id");
            let of_kind = all.iter().filter_map(|entry| {
                let (found, details) = entry.split_once(' ')?;
                (found == kind).then(|| serde_json::from_str(details).expect("JSON"))
            });
            let entries: Vec<Value> = of_kind.collect();
            if entries.is_empty() {
                return Err(all.join("\n"));
            }
            Ok(entries)
        })
    }
}

/// FLINK-32019 (FLIP-288), KAFKA-20539: partitions that appeared began by the mode `latest`, and what was written before they
/// were noticed was lost. FLINK-36780: the interval that a user had set was overridden.
#[test]
fn a_new_partition_is_read_from_its_first_record_within_the_interval_and_a_second() {
    let mut scene = Scene::new("grows", 1);
    scene.produce(0, 5);
    let spec = with(
        scene.spec(&latest()),
        "/source/partition_discovery",
        json!({"interval": "2s"}),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    let shown = scene.job.api.get(&scene.job.at("/spec"));
    assert_eq!(
        shown["source"]["partition_discovery"],
        json!({"interval": "2s", "new_partitions": "earliest"})
    );

    scene.kafka.add_partitions(&scene.name, 2);
    // One that knows the new partition already.
    let producer = Producer::new(&scene.kafka);
    let began = Instant::now();
    producer.produce(&scene.name, 1, 10);
    eventually("the first record of the new partition", SOON, || {
        let found = scene.server.log.since(0, &scene.name);
        found.get(&1).map(|_| ()).ok_or("none yet")
    });
    let took = began.elapsed();
    assert!(
        took <= Duration::from_secs(3),
        "the interval is 2 s, and it took {took:?}"
    );
    scene.await_exactly(0, &[(1, 0..10)]);

    // Why it began there, and what decided it.
    let view = scene.job.offsets();
    let row = view.row(1);
    assert_eq!(row.start_reason.as_deref(), Some("new-since-checkpoint"));
    assert_eq!(view.row(0).start_reason.as_deref(), Some("startup-latest"));
    let decided = scene.job.checkpoints("?kind=discovery");
    assert_eq!(decided.len(), 1, "{decided:?}");
    assert_eq!(json!(row.position_id), decided[0]["id"]);
    let told = scene.history("positions-decided");
    assert_eq!(
        (
            &told[0]["partitions"][0]["partition"],
            &told[0]["partitions"][0]["next_offset"]
        ),
        (&json!(1), &json!(0)),
        "{told:?}"
    );
    assert_eq!(scene.job.view()["discovery"]["discovered"], 1);

    // No checkpoint was taken since: whoever dies now reads it again, and skips nothing.
    let mark = scene.server.log.mark();
    scene.server.kill();
    scene.server.boot();
    scene.await_exactly(mark, &[(1, 0..10)]);
    producer.produce(&scene.name, 1, 1);
    scene.await_exactly(mark, &[(1, 0..11)]);
    scene.job.stop();
    assert_eq!(
        scene.checkpointed().1,
        [(0, Some(5)), (1, Some(11))].into(),
        "partition 0 was not moved"
    );
}

/// arroyo pull request 132: partitions that were added to a topic under load were read from somewhere in the middle. The
/// server dies once between the discovery and its checkpoint, and once between that and the first record.
#[test]
fn partitions_added_under_load_lose_nothing_whenever_the_server_dies() {
    let mut scene = Scene::new("grows-busy", 2);
    let load = Load::start(&scene.kafka, &scene.name, 2, 200);
    let spec = watching(scene.spec(&earliest()));
    scene.job.put_spec(&with(spec, "/parallelism", json!(2)));
    scene.job.start(&json!({}));
    let mut ends = Vec::new();
    for (partitions, point) in [(3, "before-checkpoint-stored"), (4, "checkpoint-stored")] {
        scene.server.kill();
        scene.server.boot_to_crash(point);
        scene.server.await_ready();
        // By then the start has seen the topic as it was.
        scene.server.await_state(&scene.job, "running");
        scene.kafka.add_partitions(&scene.name, partitions);
        scene.partitions = partitions;
        Producer::new(&scene.kafka).produce(&scene.name, partitions - 1, 50);
        scene.server.await_crash();
        scene.server.boot();
        scene.server.await_state(&scene.job, "running");
        ends.push((partitions - 1, 50));
    }
    let mut all = load.end();
    all.extend(ends);
    scene.server.log.await_complete(0, &scene.name, &all, SOON);
    let wanted: Vec<(i32, i64)> = all.into_iter().collect();
    scene.await_positions(&wanted);
    // Read in order, from the first record on, by each life that came to them.
    for partition in [2, 3] {
        let offsets = &scene.server.log.since(0, &scene.name)[&partition];
        assert_eq!(offsets[0], 0);
    }
}

/// A pattern is no mistake before its topics exist. It means whole names, and none of Kafka's own topics.
#[test]
fn topics_are_found_by_pattern() {
    let scene = Scene::new("by-pattern", 1);
    let topic = |name: &str| format!("{}-{name}", scene.name);
    let applied = scene.job.put_spec(&scene.by_pattern(&latest()));
    assert_eq!(applied["applies"], "now");
    scene.job.start(&json!({}));
    eventually("the job says that it has nothing to read", SOON, || {
        let view = scene.job.view();
        if view["waiting"].to_string().contains("no-topics") {
            return Ok(());
        }
        Err(format!("{view:#}"))
    });
    assert_eq!(scene.job.offsets().partitions.len(), 0);

    // The scene's own topic is only contained in the pattern; the others are written to before anybody knows them.
    scene.produce(0, 3);
    for name in ["a", "b"] {
        scene.kafka.create_topic(&topic(name), 2);
        scene.producer.produce(&topic(name), 1, 5);
    }
    for name in ["a", "b"] {
        let wanted = [(1, (0..5).collect())].into();
        scene
            .server
            .log
            .await_exactly(0, &topic(name), &wanted, SOON);
    }
    eventually("nothing is waited for", SOON, || match scene.job.view() {
        view if view["waiting"] == json!([]) => Ok(()),
        view => Err(format!("{view:#}")),
    });
    assert_eq!(scene.server.log.since(0, &scene.name).len(), 0);

    // One is deleted, and the others go on; so does a start.
    scene.kafka.delete_topic(&topic("a"));
    let gone = scene.await_parked("partition-gone", 2);
    assert_eq!(gone[0]["topic"], json!(topic("a")));
    scene.producer.produce(&topic("b"), 0, 2);
    let both = [(0, vec![0, 1]), (1, (0..5).collect())].into();
    scene.server.log.await_exactly(0, &topic("b"), &both, SOON);
    scene.job.stop();
    let kept = scene.job.latest_checkpoint(&topic("a")).expect("positions");
    assert_eq!(kept.1, [(0, Some(0)), (1, Some(5))].into());
    let plan = scene.job.plan();
    assert_eq!(plan.blockers.len(), 0, "{:#}", plan.body);
    assert_eq!(plan.reasons()[..2], ["partition-gone", "partition-gone"]);
    scene.job.start(&json!({}));
    scene.await_parked("partition-gone", 2);
    let again = scene.job.latest_checkpoint(&topic("a")).expect("positions");
    assert_eq!(again.1, kept.1, "a start keeps what it does not read");

    // The topic that comes back under this name is another one, and that stands against reading on in it.
    scene.kafka.create_topic(&topic("a"), 2);
    scene.await_parked("topic-recreated", 2);
}

/// FLINK-39837: what was taken out of a job and put back began anew.
#[test]
fn a_topic_that_is_taken_out_and_put_back_goes_on_where_it_was() {
    let scene = Scene::new("detached", 1);
    let other = unique("attached");
    scene.kafka.create_topic(&other, 1);
    let both = with(
        watching(scene.spec(&latest())),
        "/source/topics",
        json!([scene.name, other]),
    );
    let one = with(both.clone(), "/source/topics", json!([other]));
    scene.job.put_spec(&both);
    scene.job.start(&json!({}));
    scene.produce(0, 4);
    scene.await_exactly(0, &[(0, 0..4)]);
    scene.job.stop();
    let kept = scene.checkpointed().1;

    scene.job.put_spec(&one);
    scene.produce(0, 3);
    for _ in 0..2 {
        scene.job.start(&json!({}));
        let view = scene.job.offsets();
        let row = view
            .partitions
            .iter()
            .find(|row| row.flags == ["detached"])
            .unwrap_or_else(|| panic!("{view:?}"));
        assert_eq!((row.checkpointed, row.position), (Some(4), None));
        scene.producer.produce(&other, 0, 1);
        scene.job.stop();
        assert_eq!(scene.checkpointed().1, kept, "every checkpoint has it");
    }
    let mark = scene.server.log.mark();
    scene.job.put_spec(&both);
    let plan = scene.job.plan();
    let reasons: Vec<&str> = plan.reasons();
    assert_eq!(reasons, ["checkpoint", "checkpoint"], "{:#}", plan.body);
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 4..7)]);
}

/// A day's interval, until somebody changes it under the running job.
#[test]
fn the_interval_changes_while_the_job_runs() {
    let scene = Scene::new("interval", 1);
    let spec = |interval: &str| {
        let discovery = json!({"interval": interval});
        with(
            scene.spec(&latest()),
            "/source/partition_discovery",
            discovery,
        )
    };
    scene.job.put_spec(&spec("1d"));
    scene.job.start(&json!({}));
    let since = scene.job.view()["since"].clone();
    scene.kafka.add_partitions(&scene.name, 2);
    Producer::new(&scene.kafka).produce(&scene.name, 1, 3);
    let applied = scene.job.put_spec(&spec("1s"));
    assert_eq!(
        (&applied["applies"], &applied["pending_fields"]),
        (&json!("now"), &json!([]))
    );
    scene.await_exactly(0, &[(1, 0..3)]);
    assert_eq!(scene.job.view()["since"], since, "the same run");
}

/// What older descriptions of the connector say happens, by choice and with a warning.
#[test]
fn new_partitions_begin_by_the_startup_mode_if_that_is_wanted() {
    let scene = Scene::new("by-mode", 1);
    let discovery = json!({"interval": "1s", "new_partitions": "startup-mode"});
    let spec = with(
        scene.spec(&latest()),
        "/source/partition_discovery",
        discovery,
    );
    let applied = scene.job.put_spec(&spec);
    assert_eq!(applied["warnings"][0]["code"], "new-partitions");
    scene.job.start(&json!({}));
    // Written before anybody can look.
    scene.server.signal("-STOP");
    scene.kafka.add_partitions(&scene.name, 2);
    let producer = Producer::new(&scene.kafka);
    producer.produce(&scene.name, 1, 7);
    scene.server.signal("-CONT");
    scene.await_positions(&[(0, 0), (1, 7)]);
    producer.produce(&scene.name, 1, 1);
    scene.await_exactly(0, &[(1, 7..8)]);
}

/// confluentinc/librdkafka issue 4836: a consumer was told nothing of its topic's deletion.
#[test]
fn a_topic_deleted_under_a_running_job_is_parked_and_the_others_go_on() {
    let scene = Scene::new("deleted", 2);
    let other = unique("stays");
    scene.kafka.create_topic(&other, 1);
    let spec = with(
        watching(scene.spec(&earliest())),
        "/source/topics",
        json!([scene.name, other]),
    );
    scene.job.put_spec(&spec);
    scene.produce_all(3);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..3), (1, 0..3)]);
    scene.job.checkpoint();
    scene.kafka.delete_topic(&scene.name);
    let parked = scene.await_parked("partition-gone", 2);
    assert_eq!(parked[0]["offset"], 3);
    assert_eq!(scene.history("partition-gone").len(), 1);
    scene.producer.produce(&other, 0, 2);
    let wanted = [(0, vec![0, 1])].into();
    scene.server.log.await_exactly(0, &other, &wanted, SOON);
    let report = scene.job.checkpoint();
    assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
    let view = scene.job.offsets();
    let gone = view
        .partitions
        .iter()
        .filter(|row| row.flags.iter().any(|flag| flag == "partition-gone"));
    assert_eq!(gone.count(), 2, "{view:?}");
    // The positions are kept: the last checkpoint of the stop holds them.
    scene.job.stop();
    assert_eq!(scene.checkpointed().1, [(0, Some(3)), (1, Some(3))].into());
}

/// confluentinc/librdkafka issue 3255: of a topic that was created again some records were missed. The client goes on in the
/// new topic at the old one's offset without a word; the topic's id tells, and the policy counts.
#[test]
fn a_topic_recreated_under_a_running_job_stops_its_partitions_until_somebody_decides() {
    let scene = Scene::new("recreated-running", 2);
    let other = unique("stays");
    scene.kafka.create_topic(&other, 1);
    let spec = with(
        watching(scene.spec(&earliest())),
        "/source/topics",
        json!([scene.name, other]),
    );
    scene.job.put_spec(&spec);
    scene.produce_all(3);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..3), (1, 0..3)]);
    // While the server sleeps, so that its client cannot see that there is no such topic for a moment.
    scene.server.signal("-STOP");
    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 2);
    scene.produce_all(2);
    scene.server.signal("-CONT");
    let parked = scene.await_parked("topic-recreated", 2);
    let history = scene.history("topic-recreated");
    let ids = &history[0]["partitions"][0];
    for id in [&ids["topic_id"], &ids["new_topic_id"]] {
        let id = id.as_str().expect("an id");
        let detail = parked[0]["detail"].as_str().expect("text");
        assert!(detail.contains(id), "{detail}");
    }
    // Where they are parked says nothing about how much of the new topic is unread.
    let view = scene.job.offsets();
    for partition in [0, 1] {
        let row = view.row(partition);
        assert_eq!((row.position, row.lag.position), (Some(3), None), "{row:?}");
    }
    assert_eq!(view.totals["unknown_partitions"], 2, "{:#}", view.totals);
    scene.producer.produce(&other, 0, 2);
    let wanted = [(0, vec![0, 1])].into();
    scene.server.log.await_exactly(0, &other, &wanted, SOON);
    // The view has the line that decides it.
    let next = scene.job.view()["next"].to_string();
    assert!(next.contains("on_topic_recreated"), "{next}");

    // A server that comes up parks them again, and the other topic goes on.
    scene.job.checkpoint();
    let mut scene = scene;
    scene.server.kill();
    scene.server.boot();
    let parked = scene.await_parked("topic-recreated", 2);
    assert_eq!(parked[0]["offset"], 3);
    scene.producer.produce(&other, 0, 1);
    scene
        .server
        .log
        .await_complete(0, &other, &[(0, 3)].into(), SOON);
    // It stays so over looks at the topics, and the policy counts at once: what the new topic has is left out.
    let mark = scene.server.log.mark();
    let spec = with(
        watching(scene.spec(&earliest())),
        "/source/topics",
        json!([scene.name, other]),
    );
    let spec = with(spec, "/source/on_topic_recreated", json!("latest"));
    let applied = scene.job.put_spec(&spec);
    assert_eq!(applied["applies"], "now", "{applied:#}");
    scene.await_parked("topic-recreated", 0);
    scene.produce_all(1);
    scene.await_exactly(mark, &[(0, 2..3), (1, 2..3)]);
    let view = scene.job.offsets();
    let reasons = view
        .partitions
        .iter()
        .map(|row| row.start_reason.as_deref());
    let moved = reasons.filter(|reason| *reason == Some("topic-recreated"));
    assert_eq!(moved.count(), 2, "{view:?}");
}

/// The same with the policy `earliest`: the run moves by itself, and stores that before it reads.
#[test]
fn a_topic_recreated_under_a_running_job_is_read_from_its_first_record_by_policy() {
    let scene = Scene::new("recreated-policy", 2);
    let spec = with(
        watching(scene.spec(&earliest())),
        "/source/on_topic_recreated",
        json!("earliest"),
    );
    scene.job.put_spec(&spec);
    scene.produce_all(100);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..100), (1, 0..100)]);
    let since = scene.job.view()["since"].clone();
    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 2);
    let mark = scene.server.log.mark();
    let load = Load::start(&scene.kafka, &scene.name, 2, 200);
    eventually("the new topic has passed the old positions", SOON, || {
        let ends = scene.ends();
        if ends.values().all(|end| *end > 120) {
            return Ok(());
        }
        Err(format!("{ends:?}"))
    });
    let ends = load.end();
    scene
        .server
        .log
        .await_complete(mark, &scene.name, &ends, SOON);
    let view = scene.job.offsets();
    for row in &view.partitions {
        assert_eq!(row.start_reason.as_deref(), Some("topic-recreated"));
    }
    assert_eq!(scene.job.view()["since"], since, "the same run");
    assert_eq!(scene.job.view()["parked"], json!([]));
}
