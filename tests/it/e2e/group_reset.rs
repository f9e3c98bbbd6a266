//! Moving the consumer group, and deleting a job with it or without.

use std::process::Command;

use rdkafka::consumer::{BaseConsumer, Consumer};
use reqwest::Method;
use serde_json::json;

use super::{Scene, decided, earliest, with};
use crate::support::{
    kafka::{Kafka, run_script},
    server::{Output, TestServer},
    wait::{SOON, eventually, throughout},
};

const TOOL: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";

/// Apache Kafka PRs 13465 and 13818 (KAFKA-14368, KAFKA-14784, KIP-875): offsets are altered in state `STOPPED` only.
/// apache/druid PR 3484: whether a reset was allowed while running was said nowhere.
#[test]
fn the_group_of_a_job_that_is_not_stopped_is_not_moved() {
    let scene = Scene::new("reset-when", 1);
    scene.produce(0, 10);
    scene.run(&earliest());
    scene.await_positions(&[(0, 10)]);
    let to_earliest = json!({"to": {"mode": "earliest"}});
    let refused = |code: &str| {
        let refused = scene.job.refused("/reset-offsets", &to_earliest);
        assert_eq!(
            (refused.status, refused.code.as_str()),
            (409, code),
            "{:#}",
            refused.body
        );
    };
    refused("job-running");

    scene.job.stop();

    // A job that has failed has no run, and is still to be stopped: then nothing starts it in between.
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    scene
        .job
        .put_spec(&with(spec, "/errors", json!({"block": "job"})));
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    scene.job.operate_any("/start", &json!({}));
    scene.server.await_state(&scene.job, "failed");
    refused("job-not-stopped");
    scene.job.stop_with(&json!({}));
    let report = scene.job.reset_offsets(&to_earliest);
    let summary = report["summary"].to_string();
    assert!(summary.contains(": 1 partition, 1 back"), "{summary}");
    assert_eq!(scene.group_offsets(), [(0, 0)].into());
}

/// As above, in the middle of a stop: its sink takes no more records, so the last checkpoint is still to come.
#[test]
fn the_group_of_a_job_that_is_being_stopped_is_not_moved() {
    let kafka = Kafka::shared();
    let server = TestServer::start_on(&kafka, Output::Unread);
    let mut scene = Scene::with(server, kafka, "reset-stopping", 1);
    scene.produce(0, 1);
    scene.run(&earliest());
    scene.await_positions(&[(0, 1)]);
    // Several times what the log sink's queue and pipe hold (about 1.5 MiB of lines): the position gets stuck, where it would
    // be at the end in no time.
    scene.produce(0, 40_000);
    let (mut last, mut looks) = (None, 0);
    eventually("the sink is full", SOON, || {
        let position = scene.job.offsets().row(0).position;
        looks = if position == last { looks + 1 } else { 0 };
        last = position;
        match position {
            Some(position) if position < 40_001 && looks > 20 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    scene
        .job
        .api
        .post(&scene.job.at("/stop"), &json!({"timeout": "60s"}));
    scene.server.await_state(&scene.job, "stopping");
    for query in ["?wait=60s", "?dry_run=true"] {
        let path = scene.job.at(&format!("/reset-offsets{query}"));
        let body = json!({"to": {"mode": "earliest"}});
        let refused = scene.job.api.refused(&Method::POST, &path, Some(&body));
        assert_eq!(
            (refused.status, refused.code.as_str()),
            (409, "job-running")
        );
    }
    let path = scene.job.at(&format!("?confirm={}&wait=60s", scene.name));
    let refused = scene.job.api.refused(&Method::DELETE, &path, None);
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "job-running")
    );
    assert_eq!(scene.job.state(), "stopping", "it was so all the time");
    scene.server.follow_output();
    scene.server.await_state(&scene.job, "stopped");
    scene
        .job
        .reset_offsets(&json!({"to": {"mode": "earliest"}}));
    assert_eq!(scene.group_offsets(), [(0, 0)].into());
}

/// Apache Kafka PR 15302 (KAFKA-15917): a reset right after a stop met a group that the old run was still in. Here a stop has
/// ended when its clients are closed, so the old run commits never again.
#[test]
fn a_reset_right_after_a_stop_is_never_overwritten_by_the_old_run() {
    let scene = Scene::new("reset-race", 2);
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("100ms"),
    );
    scene.job.put_spec(&spec);
    let mut end = 0;
    for round in 0..20 {
        scene.job.start(&json!({}));
        scene.produce_all(20);
        end += 20;
        scene.job.stop();
        let to = i64::from(round);
        let report = scene
            .job
            .reset_offsets(&json!({"to": {"mode": "specific-offsets",
            "offsets": {&scene.name: {"0": to, "1": to}}}}));
        assert_eq!(report["partitions"][0]["to"], to, "{report:#}");
        assert_eq!(
            scene.group_offsets(),
            [(0, to), (1, to)].into(),
            "round {round}"
        );
    }
    throughout(std::time::Duration::from_secs(2), || {
        assert_eq!(scene.group_offsets(), [(0, 19), (1, 19)].into());
    });
    // The job went on from its checkpoints: nothing twice, nothing left out.
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..end), (1, 0..end)]);
    scene.job.stop();
    assert_eq!(scene.group_offsets(), decided(&scene.checkpointed().1));
}

/// A group with members is somebody else's: it is neither moved nor deleted, and the answer says how many there are.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the member of the group subscribes, which is the point"
)]
fn a_group_with_live_members_is_neither_moved_nor_deleted() {
    let scene = Scene::new("reset-members", 1);
    scene.produce(0, 5);
    scene.job.put_spec(&scene.spec(&earliest()));
    let member: BaseConsumer = scene
        .kafka
        .config()
        .set("group.id", &scene.name)
        .create()
        .expect("a consumer");
    member.subscribe(&[&scene.name]).expect("a subscription");
    eventually("the member is there", SOON, || {
        drop(member.poll(std::time::Duration::from_millis(100)));
        let view = scene.job.offsets();
        match view.sources["group"]["members"].as_i64() {
            Some(1) => Ok(()),
            members => Err(format!("{members:?}")),
        }
    });
    let refused = scene
        .job
        .refused("/reset-offsets", &json!({"to": {"mode": "latest"}}));
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "group-in-use")
    );
    let detail = refused.body["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("1 live member"), "{detail}");
    let path = format!("?confirm={}&wait=60s&group=delete", scene.name);
    let refused = scene
        .job
        .api
        .refused(&Method::DELETE, &scene.job.at(&path), None);
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "group-in-use")
    );
    assert_eq!(scene.job.state(), "stopped", "nothing was deleted");
    drop(member);
    assert_eq!(scene.job.delete("")["group"]["outcome"], "kept");
}

/// confluentinc/kafka-connect-elasticsearch issue 267: the consumer group stayed behind when its connector was deleted. It
/// stays here, too, unless it is told to go.
#[test]
fn the_group_of_a_deleted_job_stays_unless_it_is_told_to_go() {
    let scene = Scene::new("delete-group", 1);
    scene.produce(0, 5);
    for (options, outcome, left) in [
        ("", "kept", vec![(0, 5)]),
        ("&purge=true", "kept", vec![(0, 5)]),
        ("&group=delete", "deleted", vec![]),
    ] {
        scene.run(&earliest());
        scene.await_positions(&[(0, 5)]);
        scene.job.stop();
        let report = scene.job.delete(options);
        assert_eq!(report["group"]["outcome"], outcome, "{report:#}");
        assert_eq!(
            scene.group_offsets(),
            left.into_iter().collect(),
            "{options}"
        );
        let groups = run_script(
            "kafka",
            &[
                "tool",
                TOOL,
                "--bootstrap-server",
                &scene.kafka.bootstrap,
                "--list",
            ],
        );
        let listed = groups.lines().any(|group| group == scene.name);
        assert_eq!(listed, outcome == "kept", "{options}: {groups}");
    }
    scene.job.put_spec(&scene.spec(&earliest()));
    assert_eq!(
        scene.job.delete("&group=delete")["group"]["outcome"],
        "absent"
    );
}

/// What is written here is read by Kafka's own tool, and the other way round.
#[test]
fn tables_are_exchanged_with_kafka_s_own_tool() {
    let scene = Scene::new("reset-table", 3);
    scene.produce_all(10);
    scene.run(&earliest());
    scene.await_positions(&[(0, 10), (1, 10), (2, 10)]);
    scene.job.stop();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("offsets.csv");
    let url = format!("{}{}", scene.server.base, scene.job.path);
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args(["-sS", "--fail-with-body"])
            .args(arguments)
            .output()
            .expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let tool = |arguments: &[&str]| {
        let group = [
            "--bootstrap-server",
            &scene.kafka.bootstrap,
            "--group",
            &scene.name,
        ];
        let all = [
            &["tool", TOOL],
            group.as_slice(),
            &["--reset-offsets"],
            arguments,
        ]
        .concat();
        run_script("kafka", &all)
    };
    let path = file.to_str().expect("a path in UTF-8");

    let ours = curl(&[
        "-H",
        "Accept: text/csv",
        &format!("{url}/offsets?column=checkpointed"),
    ]);
    std::fs::write(&file, ours.replace(",1,10", ",1,4")).expect("a file");
    tool(&["--from-file", path, "--execute"]);
    assert_eq!(scene.group_offsets(), [(0, 10), (1, 4), (2, 10)].into());

    tool(&["--all-topics", "--to-earliest", "--execute"]);
    let theirs = tool(&["--all-topics", "--to-current", "--dry-run", "--export"]);
    scene.job.reset_offsets(&json!({"to": {"mode": "latest"}}));
    std::fs::write(&file, &theirs).expect("a file");
    curl(&[
        "-X",
        "POST",
        "-H",
        "Content-Type: text/csv",
        "--data-binary",
        &format!("@{path}"),
        &format!("{url}/reset-offsets?wait=60s"),
    ]);
    assert_eq!(scene.group_offsets(), [(0, 0), (1, 0), (2, 0)].into());
    let again = curl(&[
        "-H",
        "Accept: text/csv",
        &format!("{url}/offsets?fresh=true"),
    ]);
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.is_empty());
        lines.sort();
        lines
    };
    assert_eq!(lines(&again), lines(&theirs));
}
