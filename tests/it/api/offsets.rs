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
