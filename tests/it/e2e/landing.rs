//! A plan equals what a start then does: the first record delivered of each partition lies at the plan's `start_at`.

use serde_json::{Value, json};

use super::{Scene, earliest, with};
use crate::support::{
    producer::Transaction,
    unique,
    wait::{SOON, eventually, now_ms, rfc3339},
};

/// Partition 0 has lost its first records, 1 is ordinary, 2 empty, 3 ends with the marker of a transaction.
fn mixed(name: &str) -> Scene {
    let scene = Scene::new(name, 4);
    let base = now_ms() - 3_600_000;
    for step in 0..12 {
        scene
            .producer
            .produce_at(&scene.name, 0, base + step * 1_000);
        scene
            .producer
            .produce_at(&scene.name, 1, base + step * 1_000);
    }
    scene.kafka.delete_records(&scene.name, 0, 3);
    let transaction = Transaction::begin(&scene.kafka, &unique("mixed"));
    transaction.produce(&scene.name, 3, 5);
    transaction.commit();
    scene
}

/// Plans, starts, produces one record to each partition, and compares. Leaves the job stopped.
fn assert_lands(scene: &Scene, body: &Value) {
    let plan = scene.job.plan_of(body);
    assert_eq!(
        plan.blockers,
        Vec::<Value>::new(),
        "{body}: {:#}",
        plan.body
    );
    let starts = plan.starts();
    assert_eq!(starts.len(), 4, "{body}: {:#}", plan.body);
    let mark = scene.server.log.mark();
    let report = scene.job.start(body);
    assert_eq!(
        report["to_read"], plan.totals["to_read"],
        "{body}: {report:#}"
    );
    scene.produce_all(1);
    eventually(&format!("{body} lands where its plan says"), SOON, || {
        let landed = scene.server.log.first_since(mark, &scene.name);
        for (partition, offset) in &landed {
            // A plan may point at a marker or at a hole in front of the first record.
            let wanted = starts[partition];
            assert!(
                *offset == wanted || (*partition == 3 && *offset > wanted),
                "{body}: partition {partition} began at {offset}, planned {wanted}: {:#}",
                plan.body
            );
        }
        if landed.len() == 4 {
            Ok(())
        } else {
            Err(format!("{landed:?}"))
        }
    });
    // The start's checkpoint holds the same numbers.
    let bootstrap = report["bootstrap_checkpoint"]
        .as_i64()
        .expect("a start checkpoint");
    let view = scene
        .job
        .api
        .get(&scene.job.at(&format!("/checkpoints/{bootstrap}")));
    assert_eq!(view["kind"], "start");
    assert_eq!(
        super::decided(&crate::support::client::read_checkpoint(&view, &scene.name).1),
        starts
    );
    let ends = scene.ends();
    scene.await_positions(&ends.into_iter().collect::<Vec<_>>());
    scene.job.stop();
}

/// The five startup modes, without state: a job each on the same topic. The reading of the transaction's marker as an
/// offset of its own is KAFKA's; the plan counts it as Kafka does.
#[test]
fn every_startup_mode_lands_where_its_plan_says() {
    let mut scene = mixed("landing");
    let middle = rfc3339(now_ms() - 3_600_000 + 6_000);
    let topic = scene.name.clone();
    for (index, mode) in [
        earliest(),
        json!({"mode": "latest"}),
        json!({"mode": "timestamp", "timestamp": middle}),
        json!({"mode": "specific-offsets", "offsets": {&topic: {"0": 5, "1": 0, "3": 2}}}),
        json!({"mode": "group-offsets"}),
    ]
    .into_iter()
    .enumerate()
    {
        let name = unique(&format!("landing-{index}"));
        scene.job = scene.server.job(&name);
        // The group has offsets for two partitions, the other two follow the policy.
        scene
            .kafka
            .commit_as_another(&name, &topic, &[(0, 7), (1, 9)]);
        let spec = with(
            scene.spec(&mode),
            "/source/on_missing_group_offset",
            json!("earliest"),
        );
        scene.job.put_spec(&spec);
        assert_lands(&scene, &json!({}));
    }
}

/// The one verb that moves a position, for all partitions and for some: the others keep theirs.
#[test]
fn every_start_with_state_lands_where_its_plan_says() {
    let scene = mixed("landing-state");
    scene.run(&earliest());
    let ends: Vec<(i32, i64)> = scene.ends().into_iter().collect();
    scene.await_positions(&ends);
    let report = scene.job.stop();
    let old = report["checkpoint"]["id"].clone();

    let topic = &scene.name;
    for body in [
        json!({}),
        json!({"from": "checkpoint"}),
        json!({"from": "checkpoint", "checkpoint": old}),
        json!({"from": "shift", "by": -1}),
        json!({"from": "shift", "by": -2, "partitions": {topic: [0, 3]}}),
        json!({"from": "earliest", "partitions": {topic: [1, 2]}}),
        json!({"from": "earliest"}),
        json!({"from": "latest"}),
        json!({"from": "latest", "partitions": {topic: [0]}}),
        json!({"from": "ago", "duration": "59m"}),
        json!({"from": "timestamp", "timestamp": rfc3339(now_ms() - 3_600_000 + 4_000), "partitions": {topic: [0, 1]}}),
        json!({"from": "specific-offsets", "offsets": {topic: {"0": 4, "1": 1, "2": 0, "3": 0}}}),
        json!({"from": "group-offsets"}),
    ] {
        assert_lands(&scene, &body);
    }
}

/// A plan that somebody looked at is carried out with its numbers, also `latest`.
#[test]
fn a_start_with_a_plan_uses_the_numbers_that_were_looked_at() {
    let scene = Scene::new("plan", 2);
    scene.produce_all(3);
    scene.job.put_spec(&scene.spec(&json!({"mode": "latest"})));
    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 3), (1, 3)].into());
    scene.produce_all(2);
    scene.job.start(&json!({"plan": plan.plan}));
    scene.await_exactly(0, &[(0, 3..5), (1, 3..5)]);
}

/// A plan whose ground has shifted is refused: the generation, the checkpoint, the partitions, the log.
#[test]
fn a_plan_that_no_longer_holds_is_refused() {
    let scene = Scene::new("plan-stale", 1);
    scene.produce(0, 10);
    let spec = scene.spec(&earliest());
    scene.job.put_spec(&spec);
    let refused = |plan: &Option<String>, why: &str| {
        let problem = scene.job.refused("/start", &json!({"plan": plan}));
        assert_eq!(
            (problem.status, problem.code.as_str()),
            (409, "plan-stale"),
            "{why}: {:#}",
            problem.body
        );
        assert_eq!(scene.job.state(), "stopped", "{why}");
    };

    let plan = scene.job.plan().plan;
    assert!(plan.is_some());
    scene
        .job
        .put_spec(&with(spec, "/checkpoint/interval", json!("2h")));
    refused(&plan, "generation");

    let plan = scene.job.plan().plan;
    scene.kafka.delete_records(&scene.name, 0, 2);
    refused(&plan, "log start");

    let plan = scene.job.plan().plan;
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
    scene.job.stop();
    refused(&plan, "checkpoint");

    let plan = scene.job.plan().plan;
    scene.kafka.add_partitions(&scene.name, 2);
    // The server may learn of it a moment later than the brokers.
    eventually("the new partition is known", SOON, || {
        let known = scene.job.plan().partitions.len();
        if known == 2 {
            Ok(())
        } else {
            Err(format!("{known} partitions"))
        }
    });
    refused(&plan, "partitions");

    let problem = scene
        .job
        .refused("/start", &json!({"plan": "pl_00000000000000000000000000"}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (410, "plan-expired"),
        "{:#}",
        problem.body
    );
    assert_eq!(
        scene.server.log.since(0, &scene.name)[&0].len(),
        8,
        "no refused start read anything"
    );
}
