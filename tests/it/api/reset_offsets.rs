//! Moving the consumer group.

use serde_json::{Value, json};

use super::{Call, Scene};

fn rows(report: &Value) -> Vec<(i64, Option<i64>, i64)> {
    let partitions = report["partitions"].as_array().expect("partitions");
    let row = |row: &Value| {
        let number = |name: &str| row[name].as_i64();
        (
            number("partition").expect("a number"),
            number("from"),
            number("to").expect("an offset"),
        )
    };
    partitions.iter().map(row).collect()
}

#[test]
fn a_group_is_planned_moved_and_seen() {
    let scene = Scene::new("api-reset");
    let client = &scene.client;
    let topic = &scene.topic;
    let job = scene.run("api-reset");
    scene.stop(&job);
    let reset = || client.job("resetOffsets", &job).query("wait", "60s");
    let dry = |body: &Value| reset().query("dry_run", "true").json(body);
    let group = || scene.kafka.group_offsets(&job, topic, 3);
    let stands = [(0, 10), (1, 10), (2, 10)].into();
    assert_eq!(group(), stands);

    let body = json!({"to": {"mode": "shift", "by": -4}, "partitions": {topic: [0, 1]}});
    let plan = dry(&body).expect(200);
    assert_eq!(rows(&plan.body), [(0, Some(10), 6), (1, Some(10), 6)]);
    assert_eq!(plan.body["warnings"][0]["code"], "group-only-moved");
    assert!(plan.body["note"].is_null());
    assert_eq!(group(), stands);

    let keyed = || reset().json(&body).header("idempotency-key", "once");
    let moved = keyed().expect(200);
    assert_eq!(moved.body["changed"], true);
    assert_eq!(moved.body["result"]["partitions"], plan.body["partitions"]);
    assert_eq!(group(), [(0, 6), (1, 6), (2, 10)].into());
    // Repeated by a caller who missed the answer, it shifts nothing once more.
    let again = keyed().expect(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.body["id"], moved.body["id"]);
    assert_eq!(group(), [(0, 6), (1, 6), (2, 10)].into());
    reset()
        .json(&json!({"to": {"mode": "latest"}}))
        .header("idempotency-key", "once")
        .refused("idempotency-key-reused");

    let view = client
        .job("inspectOffsets", &job)
        .query("fresh", "true")
        .expect(200);
    let divergence = &view.body["partitions"][0]["divergence"];
    assert_eq!(divergence["cause"], "after-reset", "{:#}", view.body);
    assert_eq!(divergence["group_behind_checkpoint"], 4);
    let note = divergence["group_note"].as_str().expect("a note");
    assert!(note.ends_with(moved.body["id"].as_str().expect("an id")));
    assert_eq!(moved.body["result"]["note"], note);
    assert_eq!(view.body["partitions"][2]["divergence"]["cause"], "none");

    // The checkpoint heals it.
    let healed = reset()
        .json(&json!({"to": {"mode": "checkpoint"}}))
        .expect(200);
    assert_eq!(
        rows(&healed.body["result"]),
        [(0, Some(6), 10), (1, Some(6), 10), (2, Some(10), 10)]
    );
    assert_eq!(group(), stands);
    let nothing = reset().json(&json!({"to": {"mode": "latest"}})).expect(200);
    assert_eq!(nothing.body["changed"], false);
    let back = json!({"to": {"mode": "ago", "duration": "365000d"}});
    let back = reset().json(&back).expect(200);
    assert_eq!(rows(&back.body["result"])[2], (2, Some(10), 0));
    // A job that has a checkpoint does not follow.
    let plan = client.job("getStartPlan", &job).expect(200);
    assert_eq!(plan.body["totals"]["to_read"], 0, "{:#}", plan.body);
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_moved() {
    let scene = Scene::new("api-unreset");
    let client = &scene.client;
    let topic = &scene.topic;
    let job = scene.create("api-unreset");
    let reset = || client.job("resetOffsets", &job).query("wait", "60s");
    let with = |to: Value| -> Call<'_> { reset().json(&json!({"to": to})) };
    client
        .job("resetOffsets", "nobody")
        .json(&json!({"to": {"mode": "latest"}}))
        .refused("job-not-found");
    reset().json(&json!({})).refused("invalid-request");
    reset()
        .json(&json!({"to": {"mode": "latest"}, "target": "group"}))
        .refused("unknown-member");
    with(json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00"}))
        .refused("timestamp-without-offset");
    with(json!({"mode": "timestamp", "timestamp": "2999-01-01T00:00:00Z"}))
        .refused("timestamp-in-future");
    with(json!({"mode": "checkpoint", "id": 7})).refused("checkpoint-not-found");
    with(json!({"mode": "checkpoint"})).refused("checkpoint-not-found");
    let unshifted = with(json!({"mode": "shift", "by": 1})).refused("group-missing");
    assert_eq!(unshifted.status, 409);
    reset()
        .query("clamp", "true")
        .json(&json!({"to": {"mode": "latest"}}))
        .refused("invalid-request");

    // Apache Kafka PRs 13465 and 13818 (KIP-875): of several partitions some were altered and some not.
    let mixed = json!({"mode": "specific-offsets", "offsets": {topic: {"0": 3, "1": 11, "7": 0}, "elsewhere": {"0": 0}}});
    let refused = with(mixed.clone()).refused("offset-out-of-range");
    assert_eq!(refused.status, 422);
    let pointers = [
        format!("/to/offsets/{topic}/1"),
        format!("/to/offsets/{topic}/7"),
        "/to/offsets/elsewhere/0".to_owned(),
    ];
    assert_eq!(
        refused.pointers(),
        pointers.iter().map(String::as_str).collect()
    );
    assert_eq!(refused.body["operation"]["status"], "failed");
    let planned = reset()
        .query("dry_run", "true")
        .json(&json!({"to": mixed}))
        .refused("offset-out-of-range");
    assert_eq!(planned.pointers(), refused.pointers());
    let far = json!({"to": {"mode": "specific-offsets", "offsets": {topic: {"0": 3, "1": 11}}}});
    reset().json(&far).refused("offset-out-of-range");
    with(json!({"mode": "specific-offsets", "offsets": {topic: {"7": 0}}}))
        .refused("unknown-partition");
    assert_eq!(scene.kafka.group_offsets(&job, topic, 3), [].into());

    let mut clamped = far;
    clamped["clamp"] = json!(true);
    let clamped = reset().json(&clamped).expect(200);
    assert_eq!(rows(&clamped.body["result"]), [(0, None, 3), (1, None, 10)]);
    let row = &clamped.body["result"]["partitions"][1];
    assert_eq!((&row["clamped"], &row["asked"]), (&json!(true), &json!(11)));
    // Without a checkpoint there is nothing to warn of: a start from the group's offsets follows.
    assert_eq!(clamped.body["result"]["warnings"], json!([]));
    assert_eq!(
        scene.kafka.group_offsets(&job, topic, 3),
        [(0, 3), (1, 10)].into()
    );
}

#[test]
fn offsets_go_out_and_in_as_a_table() {
    let scene = Scene::new("api-table");
    let client = &scene.client;
    let topic = &scene.topic;
    let job = scene.run("api-table");
    let inspect = || {
        client
            .job("inspectOffsets", &job)
            .header("accept", "text/csv")
            .query("fresh", "true")
    };
    let empty = inspect().query("column", "group_committed").expect(200);
    assert_eq!(empty.body, "");
    scene.stop(&job);
    let all: String = (0..3)
        .map(|number| format!("{topic},{number},10\n"))
        .collect();
    for column in ["group_committed", "checkpointed"] {
        let table = inspect().query("column", column).expect(200);
        assert_eq!(table.header("content-type"), "text/csv");
        assert_eq!(table.body, *all, "{column}");
    }
    let one = inspect()
        .query("partitions", &format!("{topic}:1"))
        .expect(200);
    assert_eq!(one.body, format!("{topic},1,10\n"));
    inspect()
        .query("summary", "true")
        .refused("invalid-request");
    inspect()
        .query("column", "position")
        .refused("invalid-request");
    client
        .job("inspectOffsets", &job)
        .query("column", "checkpointed")
        .refused("invalid-request");
    client
        .job("inspectOffsets", &job)
        .header("accept", "text/html")
        .refused("not-acceptable");

    let table = |text: &str| {
        client
            .job("resetOffsets", &job)
            .query("wait", "60s")
            .raw("text/csv", text)
    };
    let moved = table(&format!("{topic},0,4\r\n{topic},2,0\r\n")).expect(200);
    assert_eq!(
        rows(&moved.body["result"]),
        [(0, Some(10), 4), (2, Some(10), 0)]
    );
    let faults =
        table(&format!("{topic},0,4\n{topic},0,5\n{topic};1;1\n")).refused("invalid-request");
    assert_eq!(faults.pointers(), ["/2", "/3"].into());
    table("").refused("invalid-request");
    table(&format!("{topic},0,99\n")).refused("offset-out-of-range");
    let clamped = table(&format!("{topic},0,99\n"))
        .query("clamp", "true")
        .expect(200);
    assert_eq!(rows(&clamped.body["result"]), [(0, Some(4), 10)]);
    client
        .job("resetOffsets", &job)
        .raw("text/plain", "x,0,1")
        .refused("unsupported-media-type");
}
