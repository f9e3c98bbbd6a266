//! Jobs with an end: on transactional and compacted topics, over kills and restarts, with a sink that counts exactly once.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, decided, earliest, warehouse::Warehouse, with};
use crate::support::{
    kafka::PrivateKafka,
    producer::Transaction,
    server::{Output, TestServer},
    unique,
    wait::{SOON, eventually},
};

impl Scene {
    fn bounded(&self, stop_at: Value) -> Value {
        with(self.spec(&earliest()), "/source/stop_at", stop_at)
    }

    fn await_finished(&self) {
        self.server.await_state(&self.job, "finished");
    }

    /// What everybody sees of a job that has come to these ends.
    fn assert_finished_at(&self, ends: &[(i32, i64)]) {
        let ends: BTreeMap<i32, i64> = ends.iter().copied().collect();
        assert_eq!(decided(&self.checkpointed().1), ends);
        assert_eq!(self.group_offsets(), ends, "the last commit is not lost");
        let view = self.job.view();
        assert_eq!(view["desired_state"], "stopped", "{view:#}");
        assert_eq!(view["health"]["status"], "ok", "{view:#}");
        assert_eq!(view["bounded"]["remaining"], 0, "{view:#}");
        assert_eq!(
            view["bounded"]["ended_partitions"], view["bounded"]["partitions"],
            "{view:#}"
        );
        assert!(view["bounded"]["finished_at"].is_string(), "{view:#}");
        let summary = view["summary"].as_str().expect("a sentence");
        assert!(summary.starts_with("finished"), "{summary}");
        assert_eq!(view["lag"]["checkpoint"], 0, "to its ends: {view:#}");
    }

    fn await_waiting_for_its_log(&self) {
        eventually("it says that the log ends before it", SOON, || {
            let view = self.job.view();
            let waits = view["bounded"]["waits_for_log"].as_array();
            let says = view["summary"].to_string().contains("does not reach");
            if says && waits.is_some_and(|waits| !waits.is_empty()) {
                return Ok(());
            }
            Err(format!("{view:#}"))
        });
    }
}

/// FLINK-34470: a run that was to stop at the end of a transactional topic never did, because no record stands there.
/// FLINK-20194: and when it did, the group's offset was not the end. Then: a restart of the server leaves it finished, a start
/// by chance reads nothing, and `from` begins another run.
#[test]
fn a_transactional_topic_is_read_to_its_end_and_not_beyond() {
    let mut scene = Scene::new("bounded-markers", 3);
    let transaction = |scene: &Scene, partition: i32, count: usize| {
        let transaction = Transaction::begin(&scene.kafka, &unique("bounded-markers"));
        transaction.produce(&scene.name, partition, count);
        transaction
    };
    // 0 ends with the marker of a commit, 1 with that of an abort, 2 is empty.
    transaction(&scene, 0, 5).commit();
    transaction(&scene, 1, 3).commit();
    transaction(&scene, 1, 2).abort();
    let spec = with(
        scene.bounded(json!({"mode": "latest"})),
        "/parallelism",
        json!(2),
    );
    scene.job.put_spec(&spec);
    let plan = scene.job.plan();
    assert_eq!(plan.body["bounded"]["partitions"], 3, "{:#}", plan.body);
    assert_eq!(plan.totals["to_read"], 13, "{:#}", plan.body);
    scene.job.start(&json!({"plan": plan.plan.expect("an id")}));
    scene.await_finished();
    let ends = [(0, 6), (1, 7), (2, 0)];
    scene.assert_finished_at(&ends);
    let delivered = scene.server.log.since(0, &scene.name);
    assert_eq!(
        delivered,
        [(0, vec![0, 1, 2, 3, 4]), (1, vec![0, 1, 2])].into()
    );

    // The topic grows and the server is born again: it stays as it is.
    scene.produce_all(4);
    scene.server.kill();
    scene.server.boot();
    scene.assert_finished_at(&ends);

    // A server that has read that the job should run while another one finished it: nothing failed.
    scene.server.kill();
    let database = scene.server.database();
    database.run("UPDATE jobs SET desired_state = 'running', state = 'starting'");
    scene.server.boot();
    scene.await_finished();
    scene.assert_finished_at(&ends);
    let stop = scene.job.operate("/stop", &json!({}));
    assert_eq!(stop["changed"], false, "{stop:#}");
    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "start-blocked")
    );
    let blocker = &problem.body["blockers"][0];
    assert_eq!(blocker["code"], "run-finished", "{:#}", problem.body);
    assert_eq!(
        blocker["choices"],
        json!([{"from": "checkpoint"}, {"from": "earliest"}])
    );
    assert_eq!(scene.job.state(), "finished");
    let view = scene.job.view();
    assert!(view["next"].to_string().contains("from"), "{view:#}");

    let mark = scene.server.log.mark();
    scene
        .job
        .operate_any("/start", &json!({"from": "checkpoint"}));
    scene.await_finished();
    scene.assert_finished_at(&[(0, 10), (1, 11), (2, 4)]);
    let delivered: BTreeMap<i32, Range<i64>> = [(0, 6..10), (1, 7..11), (2, 0..4)].into();
    for (partition, offsets) in scene.server.log.since(mark, &scene.name) {
        let wanted: Vec<i64> = delivered[&partition].clone().collect();
        assert_eq!(offsets, wanted, "partition {partition}");
    }
}

/// The end lies in a transaction that is open: the run waits there, says so, survives a kill and another parallelism, and
/// ends where it was to end although the topic has grown far beyond.
#[test]
fn an_end_inside_of_an_open_transaction_is_waited_for() {
    let mut scene = Scene::new("bounded-open", 2);
    scene.produce_all(5);
    let open = Transaction::begin(&scene.kafka, &unique("bounded-open"));
    open.produce(&scene.name, 0, 5);
    let stop_at = |one: i64| json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 8, "1": one}}});
    let spec = scene.bounded(stop_at(3));
    scene.job.put_spec(&spec);
    let warnings = scene.job.plan().body["warnings"].to_string();
    assert!(warnings.contains("waits-for-stop-offset"), "{warnings}");
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..5), (1, 0..3)]);
    scene.await_waiting_for_its_log();
    let view = scene.job.offsets();
    assert_eq!(view.row(0).lag.position, Some(0), "all that can be read");

    scene.server.kill();
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.job.put_spec(&with(spec, "/parallelism", json!(2)));
    let plan = scene.job.plan();
    assert!(
        plan.body["bounded"]["goes_on_from"].is_i64(),
        "{:#}",
        plan.body
    );
    scene.job.operate("/restart", &json!({}));
    scene.await_waiting_for_its_log();
    open.commit();
    scene.produce_all(20);
    scene.await_finished();
    scene.assert_finished_at(&[(0, 8), (1, 3)]);
    let delivered = scene.server.log.since(0, &scene.name);
    assert_eq!(delivered[&0].last(), Some(&7), "{delivered:?}");
    assert!(
        delivered[&1].iter().all(|offset| *offset < 3),
        "{delivered:?}"
    );
}

/// FLINK-34470 again: on a compacted topic the record at the end, and those before it, may be gone.
#[test]
fn an_end_that_was_compacted_away_is_reached() {
    let cluster = PrivateKafka::start_with(1, &["log.cleaner.backoff.ms=50"]);
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let name = unique("bounded-compacted");
    let scene = Scene {
        job: server.job(&name),
        producer: crate::support::producer::Producer::new(&cluster.kafka),
        kafka: cluster.kafka.clone(),
        server,
        name,
        partitions: 1,
    };
    scene.kafka.create_topic_with(
        &scene.name,
        1,
        &[
            ("cleanup.policy", "compact"),
            ("segment.ms", "100"),
            ("min.cleanable.dirty.ratio", "0.001"),
            ("max.compaction.lag.ms", "100"),
        ],
    );
    // One key: of these only the newest stays, once the segment that holds it is closed and cleaned.
    for _ in 0..20 {
        scene.producer.produce_keyed(&scene.name, 0, "one");
    }
    let stop_at = json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 12}}});
    scene.job.put_spec(&scene.bounded(stop_at));
    eventually(
        "the records around the end are gone",
        Duration::from_secs(60),
        || {
            // Only a closed segment is cleaned: one that comes later opens another one.
            scene.producer.produce_keyed(&scene.name, 0, "one");
            let look = format!("/records?topic={}&partition=0&offset=12", scene.name);
            let look = scene.job.at(&look);
            let answer = scene.job.api.try_send(&Method::GET, &look, None);
            match answer.expect("an answer") {
                answer if answer.body["code"] == "record-not-found" => Ok(()),
                answer => Err(format!("{:#}", answer.body)),
            }
        },
    );
    scene.job.operate_any("/start", &json!({}));
    scene.await_finished();
    scene.assert_finished_at(&[(0, 12)]);
    let delivered = scene.server.log.since(0, &scene.name);
    assert!(
        delivered.is_empty(),
        "they lie behind the end: {delivered:?}"
    );
}

/// A kill in the middle with a table that gets every record once: the run ends at the same place, and the table holds exactly
/// what lies before it.
#[test]
fn a_table_holds_exactly_what_lies_before_the_end() {
    let mut house = Warehouse::start("bounded-warehouse");
    house.scene.job.stop();
    let scene = &mut house.scene;
    scene.produce_all(300);
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    let spec = with(spec, "/source/stop_at", json!({"mode": "latest"}));
    scene.job.put_spec(&with(
        spec,
        "/sink/batch",
        json!({"max_rows": 20, "linger": "10ms"}),
    ));
    for (life, point) in [
        "batch-written",
        "sink-prepared",
        "checkpoint-stored",
        "before-stop-settled",
    ]
    .into_iter()
    .enumerate()
    {
        if life == 0 {
            scene.server.kill();
        }
        scene.server.boot_to_crash(point);
        if life == 0 {
            scene.server.await_ready();
            let start = scene.job.at("/start");
            let answer =
                scene
                    .job
                    .api
                    .try_send(&Method::POST, &start, Some(&json!({"from": "checkpoint"})));
            assert!(answer.is_ok_and(|answer| answer.status == 202));
        }
        scene.server.await_crash();
        // What comes now is behind the end.
        scene.produce_all(10);
    }
    scene.server.boot();
    scene.await_finished();
    scene.assert_finished_at(&[(0, 300), (1, 300)]);
    house.assert_one_row_each(&[(0, 300), (1, 300)].into());
}
