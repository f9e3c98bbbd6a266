//! A bounded run that is killed in the middle.

use serde_json::json;

use crate::{
    e2e::{Scene, decided, earliest, with},
    support::{
        kafka::Kafka,
        producer::Producer,
        server::{Output, TestServer},
        wait::{SOON, eventually},
    },
};

/// FLINK-33466, FLINK-31006: a bounded source that was restored from a savepoint never ended. Here it ends, and at the same
/// place, although the topic has grown and got partitions meanwhile, and `latest` would mean something else now.
#[test]
fn a_run_that_was_killed_ends_at_the_same_place() {
    let kafka = Kafka::shared();
    // Nobody reads what the sink writes: it blocks in the middle of the run.
    let server = TestServer::start_on(&kafka, Output::Unread);
    let mut scene = Scene::with(server, kafka, "bounded-kill", 2);
    scene.produce_all(3_000);
    let spec = with(
        scene.spec(&earliest()),
        "/source/stop_at",
        json!({"mode": "latest"}),
    );
    scene
        .job
        .put_spec(&with(spec, "/checkpoint/interval", json!("200ms")));
    scene.job.start(&json!({}));
    eventually("it stands in the middle", SOON, || {
        let view = scene.job.view();
        let records = view["records"].as_u64().unwrap_or(0);
        if records > 0 && view["bounded"]["remaining"].as_i64() > Some(0) {
            return Ok(());
        }
        Err(format!("{view:#}"))
    });
    scene.server.kill();
    scene.produce_all(500);
    scene.kafka.add_partitions(&scene.name, 3);
    // One that knows the topic as it is now.
    Producer::new(&scene.kafka).produce(&scene.name, 2, 7);

    scene.server.boot();
    scene.server.await_state(&scene.job, "finished");
    let ends = [(0, 3_000), (1, 3_000)].into();
    scene.partitions = 3;
    let mut stored = decided(&scene.checkpointed().1);
    assert_eq!(stored.remove(&2), Some(0), "left for the next run");
    assert_eq!(stored, ends);
    let delivered = scene.server.log.since(0, &scene.name);
    assert!(!delivered.contains_key(&2), "{delivered:?}");
    for (partition, offsets) in &delivered {
        assert_eq!(offsets.last(), Some(&2_999), "partition {partition}");
    }
    assert_eq!(
        scene.group_offsets(),
        [(0, 3_000), (1, 3_000), (2, 0)].into()
    );

    // The next run takes up what was left, and what came after.
    let mark = scene.server.log.mark();
    scene
        .job
        .operate_any("/start", &json!({"from": "checkpoint"}));
    scene.await_exactly(mark, &[(0, 3_000..3_500), (1, 3_000..3_500), (2, 0..7)]);
    scene.server.await_state(&scene.job, "finished");
}
