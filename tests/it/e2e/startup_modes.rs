//! Where a job without state begins.

use serde_json::{Value, json};

use super::{Scene, assert_no_logical_offset, decided, earliest, spec, with};
use crate::support::{
    client::Problem,
    unique,
    wait::{now_ms, rfc3339},
};

/// What retention has taken is not asked for, and an empty partition begins at the number 0 (semantics of the legacy
/// connector: it stored -1 there, and the group had no offset until the first record).
#[test]
fn earliest_begins_at_the_first_record_that_the_log_still_has() {
    let scene = Scene::new("earliest", 3);
    scene.produce(0, 10);
    scene.kafka.delete_records(&scene.name, 0, 4);
    scene.produce(1, 3);
    scene.job.put_spec(&scene.spec(&earliest()));

    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 4), (1, 0), (2, 0)].into());
    assert_eq!(plan.reasons(), ["startup-earliest"; 3]);
    assert_eq!(
        (plan.basis.as_str(), &plan.totals["to_read"]),
        ("startup-mode", &json!(9))
    );

    scene.job.start(&json!({}));
    assert_eq!(decided(&scene.checkpointed().1), plan.starts());
    scene.await_exactly(0, &[(0, 4..10), (1, 0..3)]);
    scene.job.checkpoint();
    assert_eq!(scene.group_offsets(), [(0, 10), (1, 3), (2, 0)].into());
    let view = scene.job.offsets();
    assert_eq!(
        view.map(|row| row.earliest),
        [(0, Some(4)), (1, Some(0)), (2, Some(0))].into()
    );
}

/// FLINK-38453: state taken before partitions were handed out held no offsets, and a restore resolved `latest` anew, so
/// that everything written in between was lost. Here the start stores numbers before its first fetch.
#[test]
fn latest_is_decided_once_even_when_the_server_dies_before_the_first_record() {
    let mut scene = Scene::new("latest-killed", 2);
    scene.produce(0, 5);
    // One job is killed with nothing but the checkpoint of its start, the other one right after a manual checkpoint.
    let manual = unique("latest-manual");
    scene.kafka.create_topic(&manual, 1);
    scene.producer.produce(&manual, 0, 7);
    let other = scene.server.job(&manual);
    other.put_spec(&spec(&manual, &json!({"mode": "latest"})));

    scene.run(&json!({"mode": "latest"}));
    other.start(&json!({}));
    other.checkpoint();
    scene.server.kill();

    scene.produce(0, 3);
    scene.produce(1, 3);
    scene.producer.produce(&manual, 0, 2);
    scene.server.boot();
    scene.await_exactly(0, &[(0, 5..8), (1, 0..3)]);
    let wanted = [(0, vec![7, 8])].into();
    scene
        .server
        .log
        .await_exactly(0, &manual, &wanted, crate::support::wait::SOON);
}

/// confluentinc/librdkafka issues 1957 and 3186, fede1024/rust-rdkafka issue 460: the look-up of a time behind the last
/// record answers -1, which was then taken for an offset.
#[test]
fn a_timestamp_begins_at_its_first_record_and_past_the_end_at_the_end_as_a_number() {
    let scene = Scene::new("timestamp", 3);
    let base = now_ms() - 3_600_000;
    for step in 0..6 {
        scene
            .producer
            .produce_at(&scene.name, 0, base + step * 1_000);
    }
    for step in 0..4 {
        scene
            .producer
            .produce_at(&scene.name, 1, base - 10_000 + step);
    }
    // Between the third and the fourth record of partition 0; partition 1 is older, partition 2 empty.
    let mode = json!({"mode": "timestamp", "timestamp": rfc3339(base + 2_500)});
    scene.job.put_spec(&scene.spec(&mode));

    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 3), (1, 4), (2, 0)].into());
    assert_eq!(
        plan.reasons(),
        [
            "startup-timestamp",
            "timestamp-past-end",
            "timestamp-past-end"
        ]
    );
    assert_no_logical_offset(&plan.body);

    let report = scene.job.start(&json!({}));
    assert_no_logical_offset(&report);
    for partition in 0..3 {
        scene.produce(partition, 1);
    }
    scene.await_exactly(0, &[(0, 3..7), (1, 4..5), (2, 0..1)]);
    for path in ["/offsets", "/checkpoints?offsets=true", ""] {
        assert_no_logical_offset(&scene.job.api.get(&scene.job.at(path)));
    }
}

/// The same for the instant of the call and a topic that never had a record.
#[test]
fn the_present_moment_is_the_end_of_every_log() {
    let scene = Scene::new("timestamp-now", 2);
    scene.producer.produce_at(&scene.name, 0, now_ms() - 60_000);
    scene
        .job
        .put_spec(&scene.spec(&json!({"mode": "timestamp", "timestamp": rfc3339(now_ms())})));
    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 1), (1, 0)].into());
    scene.job.start(&json!({}));
    let view = scene.job.offsets();
    assert_eq!(
        view.map(|row| row.position),
        [(0, Some(1)), (1, Some(0))].into()
    );
    assert_eq!(
        view.map(|row| row.checkpointed),
        [(0, Some(1)), (1, Some(0))].into()
    );
}

/// The legacy connector refuses an instant that has not come yet; so does a time without a zone, which means different
/// things on a laptop and on a server.
#[test]
fn an_instant_in_the_future_or_without_an_offset_is_refused() {
    let scene = Scene::new("timestamp-bad", 1);
    let future = json!({"mode": "timestamp", "timestamp": rfc3339(now_ms() + 3_600_000)});
    let problem = scene.job.api.refused(
        &reqwest::Method::PUT,
        &scene.job.at("/spec"),
        Some(&scene.spec(&future)),
    );
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (422, "timestamp-in-future"),
        "{:#}",
        problem.body
    );
    let zoneless = json!({"mode": "timestamp", "timestamp": "2026-01-02T03:04:05"});
    let problem = scene.job.api.refused(
        &reqwest::Method::PUT,
        &scene.job.at("/spec"),
        Some(&scene.spec(&zoneless)),
    );
    assert!(
        problem.status == 400 || problem.status == 422,
        "{:#}",
        problem.body
    );
    assert_eq!(
        pointer(&problem),
        "/startup_mode/timestamp",
        "{:#}",
        problem.body
    );
}

fn pointer(problem: &Problem) -> &str {
    problem.body["errors"][0]["pointer"]
        .as_str()
        .unwrap_or_default()
}

/// FLINK-39193: an incomplete map of offsets failed instead of falling back to the group. Also an offset of 0, which a
/// connector that stores "last processed" has to write as -1.
#[test]
fn specific_offsets_are_the_next_records_and_unlisted_partitions_use_the_group() {
    let scene = Scene::new("specific", 4);
    scene.produce_all(8);
    scene
        .kafka
        .commit_as_another(&scene.name, &scene.name, &[(0, 7), (2, 6)]);
    let offsets = json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 0, "1": 5}}});
    let spec = with(
        scene.spec(&offsets),
        "/source/on_missing_group_offset",
        json!("latest"),
    );
    scene.job.put_spec(&spec);

    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 0), (1, 5), (2, 6), (3, 8)].into());
    assert_eq!(
        plan.reasons(),
        [
            "startup-specific-offset",
            "startup-specific-offset",
            "specific-missing-used-group",
            "group-missing-used-policy"
        ]
    );
    scene.job.start(&json!({}));
    scene.produce(3, 1);
    scene.await_exactly(0, &[(0, 0..8), (1, 5..8), (2, 6..8), (3, 8..9)]);
}

/// An offset outside of the log was quietly replaced by the client's reset policy: a jump to the end, unread.
#[test]
fn specific_offsets_outside_of_the_log_are_refused_with_the_choices_there_are() {
    let scene = Scene::new("specific-outside", 3);
    scene.produce(0, 10);
    scene.kafka.delete_records(&scene.name, 0, 4);
    scene.produce(1, 3);
    scene.produce(2, 3);
    let offsets =
        json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 2, "1": 50, "2": 3}}});
    scene.job.put_spec(&scene.spec(&offsets));

    let plan = scene.job.plan();
    assert_eq!(plan.plan, None, "a blocked plan cannot be started");
    assert_eq!(
        plan.reasons(),
        ["below-earliest", "beyond-latest", "startup-specific-offset"]
    );
    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "start-blocked"),
        "{:#}",
        problem.body
    );
    let text = problem.body.to_string();
    assert!(
        text.contains(r#"{"on_out_of_range":"earliest"}"#),
        "{:#}",
        problem.body
    );
    assert_eq!(scene.job.state(), "stopped");
    assert_eq!(scene.job.view()["desired_state"], "stopped");
    assert_eq!(
        scene.job.latest_checkpoint(&scene.name),
        None,
        "a refused start leaves nothing"
    );

    let choice = json!({"on_out_of_range": "earliest"});
    let chosen = scene.job.plan_of(&choice);
    assert_eq!(chosen.starts(), [(0, 4), (1, 0), (2, 3)].into());
    scene.job.start(&choice);
    scene.await_exactly(0, &[(0, 4..10), (1, 0..3)]);
    scene.await_positions(&[(0, 10), (1, 3), (2, 3)]);
}

/// The same of a group: an offset that retention has overtaken, or that lies behind the end of a log that was cut. What is
/// unread and gone is named before and after.
#[test]
fn group_offsets_outside_of_the_log_are_refused_with_the_choices_there_are() {
    let scene = Scene::new("group-outside", 3);
    scene.produce(0, 10);
    scene.kafka.delete_records(&scene.name, 0, 4);
    scene.produce(1, 3);
    scene.produce(2, 3);
    scene
        .kafka
        .commit_as_another(&scene.name, &scene.name, &[(0, 1), (1, 50), (2, 2)]);
    scene
        .job
        .put_spec(&scene.spec(&json!({"mode": "group-offsets"})));

    let plan = scene.job.plan();
    let reasons = ["below-earliest", "beyond-latest", "startup-group-offset"];
    assert_eq!(plan.reasons(), reasons);
    assert_eq!((&plan.plan, plan.starts()), (&None, [(2, 2)].into()));
    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "start-blocked")
    );
    let (name, detail) = (&scene.name, problem.body["detail"].to_string());
    for said in [
        format!("{name}/0: the position is 1, the log starts at 4: 3 offsets are gone"),
        format!("{name}/1: the position is 50, the log ends at 3"),
    ] {
        assert!(detail.contains(&said), "{detail}");
    }
    assert_eq!(scene.job.latest_checkpoint(name), None);

    let gone = json!({"side": "below-earliest", "from": 1, "to": 4, "offsets": 3});
    let beyond = json!({"side": "beyond-latest", "from": 3, "to": 50, "offsets": 47});
    for (policy, starts, skipped) in [
        ("latest", [(0, 10), (1, 3), (2, 2)], 6),
        ("earliest", [(0, 4), (1, 0), (2, 2)], 0),
    ] {
        let plan = scene.job.plan_of(&json!({"on_out_of_range": policy}));
        assert_eq!(
            (plan.reasons(), plan.starts()),
            (reasons.into(), starts.into())
        );
        let totals = (&plan.totals["lost"], &plan.totals["skipped"]);
        assert_eq!(totals, (&json!(3), &json!(skipped)), "{:#}", plan.body);
        let rows = &plan.body["partitions"];
        let outside = [0, 1, 2].map(|row| rows[row]["outside"].clone());
        assert_eq!(outside, [gone.clone(), beyond.clone(), Value::Null]);
    }

    let mut mark = 0;
    for (policy, wanted) in [
        ("earliest", [(0, 4..10), (1, 0..3), (2, 2..3)]),
        ("latest", [(0, 10..11), (1, 3..4), (2, 2..4)]),
    ] {
        let report = scene.job.start(&json!({"on_out_of_range": policy}));
        assert_eq!(report["lost"], 3, "{report:#}");
        if policy == "latest" {
            scene.produce_all(1);
        }
        scene.await_exactly(mark, &wanted);
        let view = scene.job.view();
        assert_eq!(view["positions_moved"], 2, "{view:#}");
        let events = scene
            .job
            .api
            .get(&scene.job.at("/events?kind=position-moved"));
        let told = |partition: i64| {
            let items = events["items"].as_array().expect("a list");
            let of_it = |item: &&Value| item["details"]["partition"] == partition;
            items.iter().find(of_it).expect("an event")["details"].clone()
        };
        assert_eq!(
            (&told(0)["outside"], &told(1)["outside"]),
            (&gone, &beyond),
            "{events:#}"
        );
        assert_eq!(told(0)["to"], wanted[0].1.start, "{events:#}");
        // Once more, with nothing but the group: it stands where it stood.
        scene.job.stop();
        scene.job.delete("");
        scene
            .kafka
            .commit_as_another(name, name, &[(0, 1), (1, 50), (2, 2)]);
        let mode = json!({"mode": "group-offsets"});
        scene.job.put_spec(&scene.spec(&mode));
        mark = scene.server.log.mark();
    }
}

/// Flink ignores entries for partitions that do not exist without a word.
#[test]
fn an_offset_for_a_partition_that_does_not_exist_is_refused() {
    let scene = Scene::new("specific-unknown", 1);
    scene.produce(0, 3);
    let offsets = json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 1, "99": 0}}});
    scene.job.put_spec(&scene.spec(&offsets));
    let problem = scene.job.refused("/start", &json!({}));
    assert!(matches!(problem.status, 409 | 422), "{:#}", problem.body);
    let text = problem.body.to_string();
    assert!(
        text.contains("unknown-partition") && text.contains("99"),
        "{:#}",
        problem.body
    );
    assert_eq!(scene.job.state(), "stopped");
    assert_eq!(scene.server.log.mark(), 0);
}

/// A group without an offset: the client's `auto.offset.reset` decided, by default a silent jump to the end.
#[test]
fn group_offsets_are_taken_as_they_are_and_missing_ones_follow_the_policy() {
    let scene = Scene::new("group-mode", 2);
    scene.produce_all(6);
    scene
        .kafka
        .commit_as_another(&scene.name, &scene.name, &[(0, 4)]);
    scene
        .job
        .put_spec(&scene.spec(&json!({"mode": "group-offsets"})));

    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(problem.code, "start-blocked", "{:#}", problem.body);
    assert!(
        problem.body.to_string().contains("group-missing"),
        "{:#}",
        problem.body
    );
    assert!(
        problem
            .body
            .to_string()
            .contains(r#"{"on_missing_group_offset":"earliest"}"#)
    );

    for (policy, start) in [("latest", 6), ("earliest", 0)] {
        let plan = scene
            .job
            .plan_of(&json!({"on_missing_group_offset": policy}));
        assert_eq!(plan.starts(), [(0, 4), (1, start)].into());
        assert_eq!(
            plan.reasons(),
            ["startup-group-offset", "group-missing-used-policy"]
        );
    }
    scene
        .job
        .start(&json!({"on_missing_group_offset": "earliest"}));
    scene.await_exactly(0, &[(0, 4..6), (1, 0..6)]);
}

/// FLINK-4618 and ovotech/fs2-kafka-client PR 1: the offset of the last record was committed instead of the next one's, so
/// that a fresh start from the group read it twice. Ten records, and one single record.
#[test]
fn another_job_with_the_same_group_reads_nothing_twice() {
    let scene = Scene::new("same-group", 2);
    scene.produce(0, 10);
    scene.produce(1, 1);
    let shared = |name: &str, mode: Value| {
        let spec = with(spec(&scene.name, &mode), "/source/group_id", json!(name));
        with(spec, "/source/allow_shared_group", json!(true))
    };
    scene.job.put_spec(&shared(&scene.name, earliest()));
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..10), (1, 0..1)]);
    scene.job.checkpoint();
    scene.job.stop();
    assert_eq!(scene.group_offsets(), [(0, 10), (1, 1)].into());

    let mark = scene.server.log.mark();
    let second = scene.server.job(&unique("same-group-second"));
    second.put_spec(&shared(&scene.name, json!({"mode": "group-offsets"})));
    assert_eq!(second.plan().starts(), [(0, 10), (1, 1)].into());
    second.start(&json!({}));
    scene.produce_all(1);
    scene.await_exactly(mark, &[(0, 10..11), (1, 1..2)]);
}
