//! `kill -9`, again and again.

mod backing_off;
mod bounded;
mod crash_points;

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{Scene, decided, earliest, with};
use crate::support::{
    kafka::PrivateKafka,
    producer::{Load, Producer},
    server::{Output, TestServer},
    wait::{SOON, eventually},
};

/// Asks for an operation while the brokers do not answer, and kills the server once it waits for them.
fn kill_in_the_middle(
    scene: &mut Scene,
    cluster: &PrivateKafka,
    verb: &str,
    body: &Value,
) -> String {
    cluster.broker("pause-broker", 1);
    let operation = scene.job.api.post(&scene.job.at(verb), body);
    let path = format!(
        "/api/v1/operations/{}",
        operation["id"].as_str().expect("an id")
    );
    eventually(
        "it waits for the brokers",
        Duration::from_secs(60),
        || match scene.job.api.get(&path) {
            found
                if found["step"]
                    .to_string()
                    .contains("the brokers are asked; waiting") =>
            {
                Ok(())
            }
            found => Err(format!("{found:#}")),
        },
    );
    scene.server.kill();
    scene.server.boot();
    cluster.broker("resume-broker", 1);
    eventually(
        "the next server has ended it",
        Duration::from_secs(60),
        || match scene.job.api.get(&path) {
            found if found["status"] == "succeeded" => Ok(()),
            found => Err(format!("{found:#}")),
        },
    );
    path
}

/// What was asked for stands in the store with the step it has come to: the next server carries it on, once.
#[test]
fn a_skip_and_a_restart_survive_a_kill_in_the_middle() {
    let cluster = PrivateKafka::start(1);
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let mut scene = Scene::with(server, cluster.kafka.clone(), "kill-operation", 1);
    scene.produce(0, 3);
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    scene.produce(0, 2);
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    let spec = with(spec, "/errors", json!({"block": "job"}));
    scene.job.put_spec(&spec);
    scene.job.operate_any("/start", &json!({}));
    scene.server.await_state(&scene.job, "failed");

    let skip = json!({"topic": scene.name, "partition": 0, "offset": 3});
    let path = kill_in_the_middle(&mut scene, &cluster, "/skip", &skip);
    assert_eq!(scene.job.api.get(&path)["changed"], true);
    scene.server.await_state(&scene.job, "running");
    // Each once, but the one. The lines come shortly after the position: a thread of the sink writes them.
    let all_but_one = [(0, vec![0, 1, 2, 4, 5])].into();
    scene
        .server
        .log
        .await_exactly(0, &scene.name, &all_but_one, SOON);
    scene.await_positions(&[(0, 6)]);

    let mark = scene.server.log.mark();
    let restart = json!({
        "from": "specific-offsets", "offsets": {&scene.name: {"0": 4}}, "stop": {"checkpoint": "none"},
    });
    kill_in_the_middle(&mut scene, &cluster, "/restart", &restart);
    scene.server.await_state(&scene.job, "running");
    scene.await_exactly(mark, &[(0, 4..6)]);
    Producer::produce_after_freeze(&cluster.kafka, &scene.name, 0, 1);
    let end = scene.ends()[&0];
    scene.await_exactly(mark, &[(0, 4..end)]);
    assert_eq!(scene.job.view()["desired_state"], "running");
}

/// risingwavelabs/risingwave issue 5192 and apache/iggy issue 4199: after a recovery records were missing, because what had
/// been polled counted as done. Ten kills under load: offsets never go back, and every record comes at least once.
#[test]
fn ten_kills_under_load_lose_nothing_and_set_no_offset_back() {
    let mut scene = Scene::new("kills", 3);
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("200ms"),
    );
    let spec = with(spec, "/parallelism", json!(2));
    scene.job.put_spec(&spec);
    let load = Load::start(&scene.kafka, &scene.name, 3, 600);
    scene.job.start(&json!({}));
    let mut last: (i64, BTreeMap<i32, i64>) = (0, BTreeMap::new());
    let mut group: BTreeMap<i32, i64> = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(7);
    for kill in 0..10 {
        // Somewhere between two checkpoints of this life.
        let after = last.0 + random.i64(1..4);
        last = eventually("checkpoints of this life", Duration::from_secs(60), || {
            let (id, offsets) = scene.checkpointed();
            let offsets = decided(&offsets);
            for (partition, offset) in &last.1 {
                let now = offsets[partition];
                assert!(
                    now >= *offset,
                    "kill {kill}: checkpoint of partition {partition} went from {offset} to {now}"
                );
            }
            assert!(
                id >= last.0,
                "kill {kill}: checkpoint {id} after {}",
                last.0
            );
            if id > after {
                Ok((id, offsets))
            } else {
                Err(format!("{id}, wanted one after {after}"))
            }
        });
        scene.server.kill();
        let found = scene.group_offsets();
        for (partition, offset) in &group {
            assert!(
                found[partition] >= *offset,
                "kill {kill}: group of partition {partition} went from {offset} to {}",
                found[partition]
            );
        }
        group = found;
        scene.server.boot();
        scene.server.await_state(&scene.job, "running");
    }
    let ends = load.end();
    scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    scene.job.stop();
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
    // Only a kill tears a line, and at most one.
    assert!(
        scene.server.log.torn().len() <= 10,
        "{:?}",
        scene.server.log.torn()
    );
}
