//! The offsets of a job, side by side.

use serde_json::Value;

use super::Scene;

#[test]
fn offsets_are_shown_for_a_stopped_job_and_narrowed() {
    let scene = Scene::new("api-offsets");
    let client = &scene.client;
    let job = scene.run("api-offsets");
    scene.stop(&job);
    let inspect = || client.job("inspectOffsets", &job).query("fresh", "true");

    let view = inspect().expect(200);
    assert_eq!(view.body["sources"]["live"]["status"], "absent");
    assert_eq!(view.body["sources"]["brokers"]["status"], "ok");
    assert_eq!(view.body["totals"]["partitions"], 3);
    assert!(view.body["totals"]["position_lag"].is_null());
    let partitions = view.body["partitions"].as_array().expect("a list");
    assert_eq!(partitions.len(), 3);
    for partition in partitions {
        assert!(partition["position"].is_null(), "{partition:#}");
        assert_eq!(partition["checkpointed"], 10);
        assert_eq!(partition["latest"], 10);
    }

    let count = |answer: super::Answer| answer.body["partitions"].as_array().map(Vec::len);
    let topic = &scene.topic;
    for (partitions, wanted) in [
        (topic.clone(), 3),
        (format!("{topic}:0"), 1),
        (format!("{topic}:0,2"), 2),
        (format!("{topic}:1-9"), 2),
        ("other".to_owned(), 0),
    ] {
        let found = inspect().query("partitions", &partitions).expect(200);
        assert_eq!(count(found), Some(wanted), "{partitions}");
    }
    assert_eq!(
        count(inspect().query("only", "lagging").expect(200)),
        Some(0)
    );
    let summary = inspect().query("summary", "true").expect(200);
    assert_eq!(summary.body["totals"]["checkpoint_lag"], 0);
    assert_eq!(summary.body["partitions"], Value::Array(Vec::new()));

    inspect()
        .query("partitions", &format!("{topic}:5-3"))
        .refused("invalid-request");
    inspect().query("only", "late").refused("invalid-request");
    client
        .job("inspectOffsets", "nobody")
        .refused("job-not-found");
}

#[test]
fn records_can_be_looked_at() {
    let scene = Scene::new("api-records");
    let client = &scene.client;
    let job = scene.create("api-records");
    let look = |offset: &str, limit: &str| {
        client
            .job("lookAtRecords", &job)
            .query("topic", &scene.topic)
            .query("partition", "0")
            .query("offset", offset)
            .query("limit", limit)
    };
    let shown = look("8", "20").query("as", "text").expect(200);
    let offsets: Vec<_> = shown.body["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|record| record["offset"].clone())
        .collect();
    assert_eq!(offsets, [8, 9], "{:#}", shown.body);
    look("10", "1").refused("record-not-found");
    look("11", "1").refused("offset-out-of-range");
    look("8", "21").refused("invalid-request");
    look("-1", "1").refused("invalid-request");
    client
        .job("lookAtRecords", &job)
        .query("topic", "elsewhere")
        .query("partition", "0")
        .query("offset", "0")
        .refused("unknown-topic");
}
