//! Topics that are no longer the ones that were read.

use serde_json::json;

use super::{Scene, earliest};
use crate::support::{
    producer::Load,
    wait::{SOON, eventually},
};

/// confluentinc/librdkafka issue 1558: after the broker had lost data the lag was negative, and commits did not mend it.
#[test]
fn a_topic_recreated_shorter_has_no_negative_lag_and_is_read_only_by_choice() {
    let scene = Scene::new("recreated", 1);
    scene.produce(0, 10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10)]);
    scene.job.stop();

    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 1);
    scene.produce(0, 3);
    eventually("the new topic is told from the old one", SOON, || {
        let view = scene.job.offsets();
        let row = view.row(0);
        let is_told = row.flags.iter().any(|flag| flag == "topic-recreated");
        if is_told && row.latest == Some(3) && row.checkpointed == Some(10) {
            assert_eq!(row.lag.checkpoint, None, "it is of another log: {row:?}");
            assert_eq!(view.totals["unknown_partitions"], 1, "{:#}", view.totals);
            return Ok(());
        }
        Err(format!("{row:?}"))
    });

    // Nothing says that all is read, and what is offered is no start that would be refused.
    let view = scene.job.view();
    let summary = view["summary"].as_str().expect("a sentence");
    assert!(!summary.contains("unread"), "{summary}");
    assert!(
        summary.ends_with("was created again (1 partition): a start needs a decision"),
        "{summary}"
    );
    let next = view["next"].to_string();
    for offered in ["earliest", "latest"] {
        let body = format!(r#"{{\"on_topic_recreated\":\"{offered}\"}}"#);
        assert!(next.contains(&body), "{next}");
    }
    let metrics = scene.server.api.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    let unknown = format!(
        "handover_lag_unknown_partitions{{job=\"{}\"}} 1\n",
        scene.name
    );
    assert!(metrics.contains(&unknown), "{metrics}");
    let zero = format!(
        "handover_lag_offsets{{job=\"{}\",basis=\"checkpoint\"}}",
        scene.name
    );
    assert!(!metrics.contains(&zero), "{metrics}");

    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "start-blocked"),
        "{:#}",
        problem.body
    );
    assert_eq!(
        problem.body["blockers"][0]["code"], "topic-recreated",
        "{:#}",
        problem.body
    );

    let mark = scene.server.log.mark();
    scene.job.start(&json!({"on_topic_recreated": "earliest"}));
    scene.await_exactly(mark, &[(0, 0..3)]);
    scene.await_positions(&[(0, 3)]);
}

/// MaterializeInc/materialize issue 20141: a topic recreated with fewer partitions ended in a crash that took everything with
/// it. Here the one job is refused with the partitions named, the others go on, and by choice it reads what there is.
#[test]
fn a_topic_recreated_with_fewer_partitions_concerns_its_own_job_alone() {
    let scene = Scene::new("recreated-narrower", 4);
    scene.produce_all(5);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5), (1, 0..5), (2, 0..5), (3, 0..5)]);
    scene.job.stop();
    let bystander_topic = crate::support::unique("bystander");
    scene.kafka.create_topic(&bystander_topic, 1);
    let bystander = scene.server.job(&bystander_topic);
    bystander.put_spec(&super::spec(&bystander_topic, &earliest()));
    bystander.start(&json!({}));

    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 2);
    scene.produce(0, 2);
    scene.produce(1, 2);
    let problem = scene.job.refused("/start", &json!({}));
    let blocker = &problem.body["blockers"][0];
    assert_eq!(blocker["code"], "topic-recreated", "{:#}", problem.body);
    let named: Vec<i64> = blocker["partitions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|partition| partition["partition"].as_i64())
        .collect();
    assert_eq!(named, [0, 1], "{:#}", problem.body);
    assert_eq!(bystander.state(), "running");

    let mark = scene.server.log.mark();
    scene.job.start(&json!({"on_topic_recreated": "earliest"}));
    scene.await_exactly(mark, &[(0, 0..2), (1, 0..2)]);
    // What the new topic does not have keeps its position, should it ever get that many.
    scene.await_positions(&[(0, 2), (1, 2), (2, 5), (3, 5)]);
    let view = scene.job.view();
    let parked: Vec<(i64, &str)> = view["parked"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| Some((one["partition"].as_i64()?, one["code"].as_str()?)))
        .collect();
    assert_eq!(
        parked,
        [(2, "partition-gone"), (3, "partition-gone")],
        "{view:#}"
    );
    assert_eq!(bystander.state(), "running");
    // The line that the view gives drops those two, and goes on with the others.
    let next = view["next"].to_string();
    assert!(
        next.contains("on_partition_gone") && !next.contains("/stop"),
        "{next}"
    );
    let forget = json!({"on_partition_gone": "forget"});
    let told = scene
        .job
        .api
        .post(&scene.job.at("/restart?wait=90s"), &forget);
    assert_eq!(told["status"], "succeeded", "{told:#}");
    assert_eq!(told["result"]["start"]["partitions"], 2, "{told:#}");
    assert!(
        !told.to_string().contains("nothing is forgotten"),
        "{told:#}"
    );
    // What is dropped stays in the history.
    let history = scene
        .job
        .api
        .get(&scene.job.at("/events?kind=position-forgotten"));
    let mut dropped: Vec<(i64, i64)> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["details"])
        .map(|at| {
            (
                at["partition"].as_i64().unwrap(),
                at["next_offset"].as_i64().unwrap(),
            )
        })
        .collect();
    dropped.sort_unstable();
    assert_eq!(dropped, [(2, 5), (3, 5)], "{history:#}");
    scene.produce(1, 1);
    scene.await_positions(&[(0, 2), (1, 3)]);
    assert_eq!(scene.job.view()["parked"], json!([]));
    // Once more, and it says that there is nothing to drop.
    let told = scene
        .job
        .api
        .post(&scene.job.at("/restart?wait=90s"), &forget);
    assert!(
        told.to_string().contains("nothing is forgotten"),
        "{told:#}"
    );
}

/// confluentinc/librdkafka issue 3255: of a topic that was recreated while a producer wrote, some records were missed.
#[test]
fn a_topic_recreated_under_a_producer_is_read_from_its_first_record() {
    let scene = Scene::new("recreated-busy", 2);
    scene.produce_all(50);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..50), (1, 0..50)]);
    scene.job.stop();
    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 2);
    let load = Load::start(&scene.kafka, &scene.name, 2, 500);
    eventually("the new topic has passed the old positions", SOON, || {
        let ends = scene.ends();
        if ends.values().all(|end| *end > 50) {
            return Ok(());
        }
        Err(format!("{ends:?}"))
    });
    // The stored positions lie inside the new log: only the topic's id tells that they mean nothing there.
    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(problem.body["blockers"][0]["code"], "topic-recreated");
    let mark = scene.server.log.mark();
    scene.job.start(&json!({"on_topic_recreated": "earliest"}));
    let ends = load.end();
    let repeats = scene
        .server
        .log
        .await_complete(mark, &scene.name, &ends, SOON);
    assert_eq!(repeats, 0);
}

/// redpanda-data/connect issue 2366, apache/druid issue 11658: records that expired under a consumer left it stuck or made it
/// reset for ever. The policy is applied once, and the range that is lost is named before and after.
#[test]
fn records_that_expired_are_named_as_lost_and_the_policy_counts_once() {
    let scene = Scene::new("expired", 1);
    scene.produce(0, 10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10)]);
    scene.job.stop();
    scene.produce(0, 90);
    scene.kafka.delete_records(&scene.name, 0, 50);

    let plan = scene.job.plan();
    assert_eq!(plan.totals["lost"], 40, "{:#}", plan.body);
    assert_eq!(plan.blockers[0]["code"], "offset-out-of-range");
    let problem = scene.job.refused("/start", &json!({}));
    let summary = problem.body["blockers"][0]["summary"].to_string();
    assert!(
        summary.contains("10") && summary.contains("50"),
        "{summary}"
    );

    let mark = scene.server.log.mark();
    let report = scene.job.start(&json!({"on_out_of_range": "earliest"}));
    assert_eq!(report["lost"], 40, "{report:#}");
    scene.await_exactly(mark, &[(0, 50..100)]);
    let told: Vec<String> = scene
        .server
        .database()
        .column("SELECT details->>'lost_offsets' FROM events WHERE kind = 'position-moved'");
    assert_eq!(
        told,
        ["40"],
        "the history tells it, whoever started the job"
    );
    // Nothing of it is left to decide at the next start.
    scene.job.stop();
    let plan = scene.job.plan();
    assert_eq!((plan.starts(), plan.blockers.len()), ([(0, 100)].into(), 0));
    assert_eq!(plan.totals["lost"], 0, "{:#}", plan.body);
}
